'use strict'

// A process killed at any moment loses nothing that was acknowledged, flushed or not, and holds up nobody: the plane
// opens at once, every record is found under its own key, and the next write does not wait for a dead owner.

const assert = require('node:assert/strict')
const { spawn } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')

const { rng, tempDir } = require('./helpers.js')
const { FORMS, LONG, peer } = require('./case-helpers.js')

const ROUNDS = LONG ? 50 : 10
const FLUSHED = 5000
/** Of the records after the flush, every how many is looked for; all are counted. */
const STEP = LONG ? 1 : 7
const SEED = Number(process.env.VECPLANE_SEED ?? Date.now() % 1e9)

/** Both processes make the same vectors: of a flushed record by its number, of a later one by its key. */
const VECTORS = `
  const { clustered, keyAt, pack, packKeys, randVec, rng, wf } = require(${JSON.stringify(path.join(__dirname, 'helpers.js'))})
  const flushed = clustered(61, ${FLUSHED}, 64, 50, 0.5)
  const batchOf = (round, batch) => {
    const random = rng(1000 * round + batch)
    return Array.from({ length: 500 }, () => randVec(random, 64))
  }
`

/**
 * Makes or opens a plane, says READY, then inserts batches for ever and removes some of each while the next is under way.
 * Every line it says is an acknowledgement.
 */
const WRITER = `
  const fs = require('node:fs')
  const { Plane } = require(${JSON.stringify(path.resolve(__dirname, '..'))})
  ${VECTORS}
  const [file, form, round] = process.argv.slice(2)
  const say = (line) => fs.writeSync(1, line + '\\n')
  async function main() {
    let plane
    if (fs.existsSync(file)) {
      plane = Plane.open(file)
    } else {
      plane = form === 'positional' ? Plane.create(file, 64, 32, 1_000_000, 16) : Plane.create(file, { dims: 64, keyCap: 16 })
      const { keys, keyEnds } = packKeys(flushed.map((_, i) => 'k' + i))
      await plane.insertBatch(pack(flushed), keys, keyEnds)
      await plane.flushAsync()
    }
    say('READY')
    let before = []
    for (let batch = 0; ; batch++) {
      const { keys, keyEnds } = packKeys(Array.from({ length: 500 }, (_, i) => 'b' + round + ':' + batch + ':' + i))
      const call = plane.insertBatch(pack(batchOf(round, batch)), keys, keyEnds)
      for (let i = 0; i < before.length; i += 97) {
        await new Promise((resolve) => setTimeout(resolve, 2))
        plane.remove(before[i])
        say('REMOVED ' + (batch - 1) + ' ' + i)
      }
      before = (await call).ids
      say('BATCH ' + batch)
    }
  }
  main()
`

/** Opens what is left and looks for everything that was acknowledged. */
const CHECKER = `
  ${VECTORS}
  const vectors = new Map(flushed.map((vector, i) => ['k' + i, vector]))
  serve.check = async (file, { acknowledged, started, removed, doubtful }) => {
    for (const [round, batches] of started) {
      for (let batch = 0; batch < batches; batch++) {
        if (vectors.has('b' + round + ':' + batch + ':0')) continue
        batchOf(round, batch).forEach((vector, i) => vectors.set('b' + round + ':' + batch + ':' + i, vector))
      }
    }
    const start = performance.now()
    const plane = vecplane.Plane.open(file)
    const report = { msOpen: performance.now() - start, wrong: [] }
    const wanted = []
    for (let i = 0; i < ${FLUSHED}; i++) wanted.push('k' + i)
    for (const [round, batches] of acknowledged) {
      for (let batch = 0; batch < batches; batch++) {
        for (let i = 0; i < 500; i++) if (i % ${STEP} === 0 || i % 97 === 0) wanted.push('b' + round + ':' + batch + ':' + i)
      }
    }
    const sum = acknowledged.reduce((total, [, batches]) => total + 500 * batches, ${FLUSHED})
    const least = sum - removed.length - doubtful.length
    const most = sum - removed.length + 500 * started.length
    if (plane.count < least || plane.count > most) report.wrong.push(plane.count + ' records, not ' + least + ' to ' + most)
    const gone = new Set(removed)
    const doubt = new Set(doubtful)
    const live = new Set()
    for (const key of wanted) {
      const vector = vectors.get(key)
      let found = false
      const hits = wf(plane.searchSync(vector, 10, 128))
      for (let j = 0; j < hits.length; j++) {
        const name = keyAt(hits, j).toString()
        live.add(hits.ids[j])
        if (name === key) found = hits.distances[j] < 1e-3
        if (!vectors.has(name)) report.wrong.push('foreign key ' + name)
        else if (gone.has(name)) report.wrong.push('removed record ' + name)
        else if (Math.abs(hits.distances[j] - helpers.cosineDistance(vector, vectors.get(name))) > 0.01) {
          report.wrong.push('key ' + name + ' of another record')
        }
      }
      if (!found && !gone.has(key) && !doubt.has(key)) report.wrong.push('lost ' + key)
    }
    const insert = performance.now()
    const id = plane.insert(flushed[0].map((x) => -x), 'probe')
    report.msInsert = performance.now() - insert
    if (live.has(id)) report.wrong.push('id ' + id + ' is in use')
    plane.remove(id)
    const { ok, ...verified } = await plane.verify()
    if (!ok) report.wrong.push('verify: ' + JSON.stringify(verified))
    await plane.close()
    return { ...report, wrong: report.wrong.slice(0, 20), faults: report.wrong.length }
  }
`

/** Runs a writer and kills it `ms` after it is ready; returns what it acknowledged. */
function killed(script, args, ms) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [script, ...args.map(String)], { stdio: ['ignore', 'pipe', 'pipe'] })
    const late = setTimeout(() => child.kill('SIGKILL'), 30_000)
    const output = { stdout: '', stderr: '' }
    let timer
    child.stderr.on('data', (data) => (output.stderr += data))
    child.stdout.on('data', (data) => {
      output.stdout += data
      if (output.stdout.startsWith('READY')) timer ??= setTimeout(() => child.kill('SIGKILL'), ms)
    })
    child.on('error', reject)
    child.on('close', (code, signal) => {
      clearTimeout(late)
      if (!timer || signal !== 'SIGKILL' || output.stderr) reject(new Error(`the writer ended by itself: ${code} ${output.stderr}`))
      else resolve(output.stdout.split('\n').slice(0, -1))
    })
  })
}

for (const form of FORMS) {
  test(`kill -9 amid a batch (${form.name})`, { timeout: LONG ? 600_000 : 120_000 }, async (t) => {
    t.diagnostic(`VECPLANE_SEED=${SEED}`)
    const random = rng(SEED)
    const dir = tempDir(t)
    const script = path.join(dir, 'writer.js')
    fs.writeFileSync(script, WRITER)
    const checker = peer(t, CHECKER, { timeout: 30_000 })
    const slowest = { msOpen: 0, msInsert: 0 }
    let file
    let history
    for (let round = 0; round < ROUNDS; round++) {
      // Every other round goes on with the file that the one before left.
      if (round % 2 === 0) {
        file = path.join(dir, `${round}.hnsw`)
        history = { acknowledged: [], started: [], removed: [], doubtful: [] }
      }
      const ms = 20 + 480 * random()
      const batches = note(history, round, await killed(script, [file, form.name, round], ms))
      const report = await checker.call('check', file, history)
      assert.deepEqual(report.wrong, [], `round ${round}, killed after ${ms} ms and ${batches} batches`)
      for (const name of Object.keys(slowest)) slowest[name] = Math.max(slowest[name], report[name])
      assert.ok(report.msOpen < 2000, `open took ${report.msOpen} ms`)
      assert.ok(report.msInsert < 1000, `the first insert took ${report.msInsert} ms`)
    }
    t.diagnostic(`${ROUNDS} kills; slowest open ${slowest.msOpen.toFixed(1)} ms, first insert ${slowest.msInsert.toFixed(1)} ms`)

    // The checker itself: it must miss a batch that was never inserted, and see a record that was never removed.
    history.acknowledged.push([ROUNDS, 1])
    history.started.push([ROUNDS, 1])
    history.removed.push('k7')
    const { wrong, faults } = await checker.call('check', file, history)
    assert.ok(faults > 500 / STEP && wrong.includes('removed record k7'), `planted faults: ${wrong}`)
  })
}

/** Adds what a writer acknowledged in a round, and the one removal that it may have done and not told; returns its batches. */
function note({ acknowledged, started, removed, doubtful }, round, lines) {
  const batches = lines.filter((line) => line.startsWith('BATCH')).length
  acknowledged.push([round, batches])
  started.push([round, batches + 1])
  const removals = lines.map((line) => /^REMOVED (\d+) (\d+)$/.exec(line)).filter(Boolean)
  for (const [, batch, i] of removals) removed.push(`b${round}:${batch}:${i}`)
  const done = removals.filter(([, batch]) => Number(batch) === batches - 1).length
  doubtful.push(`b${round}:${batches - 1}:${97 * done}`)
  return batches
}
