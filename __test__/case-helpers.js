'use strict'

// Shared by the case tests, each of which rules out a fault that users of other embedded indexes ran into: the two
// planes that a case runs on, exact neighbours of many queries, and processes that answer calls.

const assert = require('node:assert/strict')
const { fork } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')

const { casePlane, optionsPlane, pack, packKeys, tempDir, tempPath, wf } = require('./helpers.js')

/** Whether minutes may pass. */
const LONG = process.env.VECPLANE_LONG === '1'

/** Key of record i. */
const keyOf = (i) => Buffer.from(`k${i}`)

/**
 * The planes a case runs on: as published (int8 without an exact copy), and as the README teaches (int8 with rerank).
 * `floor` is what recall must reach on each: without a copy, what an exact scan over int8 codes leaves room for.
 * `threads` is what batches are inserted with.
 */
const FORMS = [
  {
    name: 'positional',
    create: (t, dims, maxNodes, file = tempPath(t)) => casePlane(t, dims, maxNodes, { file }),
    floor: (positional) => positional,
    threads: 1,
    uniqueKeys: false,
  },
  {
    name: 'with rerank',
    create: (t, dims, maxNodes, file = tempPath(t)) => optionsPlane(t, { dims, keyCap: 16, maxNodes }, file),
    floor: () => 0.99,
    threads: 2,
    uniqueKeys: true,
  },
]

/** Declares a test for each of the planes. */
function testForms(name, body, { timeout = 60_000, forms = FORMS } = {}) {
  for (const form of forms) test(`${name} (${form.name})`, { timeout }, (t) => body(t, form))
}

/** Inserts one by one, under the case's keys; returns the ids. */
const insertAll = (plane, vectors, key = keyOf) => vectors.map((vector, i) => plane.insert(vector, key(i)))

/** Inserts as one batch, under the case's keys; returns the ids, which must all be there. */
async function insertAllBatch(plane, vectors, threads, key = keyOf) {
  const { keys, keyEnds } = packKeys(vectors.map((_, i) => key(i)))
  const { ids, rejected } = await plane.insertBatch(pack(vectors), keys, keyEnds, threads)
  assert.deepEqual(rejected, [])
  assert.equal(new Set(ids).size, vectors.length, 'every record has an id of its own')
  return ids
}

/**
 * Exact cosine neighbours in double precision: for each query the positions in `vectors` of the nearest `k`. Positions
 * that `allowed` does not hold are left out.
 */
function exactNeighbours(vectors, queries, k, allowed = vectors.map((_, i) => i)) {
  const dims = queries[0].length
  const rows = new Float64Array(allowed.length * dims)
  allowed.forEach((position, row) => rows.set(unit(vectors[position]), row * dims))
  const scores = new Float64Array(allowed.length)
  return queries.map((query) => {
    const direction = unit(query)
    for (let row = 0, at = 0; row < allowed.length; row++) {
      let dot = 0
      for (let i = 0; i < dims; i++, at++) dot += rows[at] * direction[i]
      scores[row] = dot
    }
    return largest(scores, k).map((row) => allowed[row])
  })
}

function unit(vector) {
  const out = Float64Array.from(vector)
  const norm = Math.sqrt(out.reduce((sum, x) => sum + x * x, 0))
  return out.map((x) => x / norm)
}

/** Positions of the `k` largest scores, largest first. */
function largest(scores, k) {
  const best = []
  for (let row = 0; row < scores.length; row++) {
    if (best.length === k && scores[row] <= scores[best[k - 1]]) continue
    let at = best.length
    while (at > 0 && scores[best[at - 1]] < scores[row]) at--
    best.splice(at, 0, row)
    if (best.length > k) best.pop()
  }
  return best
}

/** Mean share of `truth[i]` that the answer to `queries[i]` holds; `ids[position]` is the id of a vector. */
function recallOf(plane, queries, truth, ids, ef) {
  let found = 0
  let wanted = 0
  queries.forEach((query, i) => {
    const hits = new Set(wf(plane.searchSync(query, truth[i].length, ef)).ids)
    found += truth[i].filter((position) => hits.has(ids[position])).length
    wanted += truth[i].length
  })
  return found / wanted
}

/** Positions whose vectors are not among their own `k` neighbours at `ef`. */
function missing(plane, vectors, ids, positions, k, ef) {
  return positions.filter((i) => !wf(plane.searchSync(vectors[i], k, ef)).ids.includes(ids[i]))
}

/** All positions of an array, or every `step`-th. */
const positionsOf = (array, step = 1) => Array.from({ length: Math.ceil(array.length / step) }, (_, i) => i * step)

const median = (numbers) => [...numbers].sort((a, b) => a - b)[numbers.length >> 1]

/** Median milliseconds of a synchronous call over `inputs`. */
function medianMs(inputs, call) {
  return median(inputs.map((input) => {
    const start = performance.now()
    call(input)
    return performance.now() - start
  }))
}

/**
 * A process that answers calls. `source` sees the package as `vecplane`, the helpers as `helpers` and `tools`, and
 * assigns functions to `serve`. A call that takes longer than `timeout` fails, and so do all that a dead process owes.
 */
function peer(t, source, { timeout = 30_000, execArgv = [] } = {}) {
  const file = path.join(tempDir(t), 'peer.js')
  fs.writeFileSync(file, `
    const vecplane = require(${JSON.stringify(path.resolve(__dirname, '..'))})
    const helpers = require(${JSON.stringify(path.join(__dirname, 'helpers.js'))})
    const tools = require(${JSON.stringify(__filename)})
    const serve = {}
    ${source}
    process.on('message', async ({ number, name, args }) => {
      try {
        process.send({ number, value: await serve[name](...args) })
      } catch (error) {
        process.send({ number, error: { message: error.message, code: error.code, stack: error.stack } })
      }
    })
  `)
  const child = fork(file, [], { serialization: 'advanced', execArgv, stdio: ['ignore', 'ignore', 'inherit', 'ipc'] })
  const owed = new Map()
  let calls = 0
  const exited = new Promise((resolve) => child.on('exit', (code, signal) => {
    for (const { name, reject } of owed.values()) reject(new Error(`the process ended during ${name}: ${code ?? signal}`))
    owed.clear()
    resolve({ code, signal })
  }))
  child.on('message', ({ number, value, error }) => {
    const call = owed.get(number)
    if (!call) return
    owed.delete(number)
    clearTimeout(call.timer)
    if (error) call.reject(Object.assign(new Error(error.message), error))
    else call.resolve(value)
  })
  const call = (name, ...args) => new Promise((resolve, reject) => {
    const number = calls++
    const late = () => {
      owed.delete(number)
      child.kill('SIGKILL')
      reject(new Error(`${name} took longer than ${timeout} ms`))
    }
    owed.set(number, { name, resolve, reject, timer: setTimeout(late, timeout) })
    child.send({ number, name, args })
  })
  t.after(() => {
    child.kill('SIGKILL')
    return exited
  })
  return { call, exited, pid: child.pid, kill: () => child.kill('SIGKILL'), leave: () => child.disconnect() }
}

module.exports = {
  LONG, FORMS, keyOf, testForms, insertAll, insertAllBatch, exactNeighbours, recallOf, missing, positionsOf, median, medianMs,
  peer,
}
