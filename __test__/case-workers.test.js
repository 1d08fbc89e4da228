'use strict'

// Worker threads come, share a plane, go, and are terminated in the middle of everything; whatever a process used is given
// back, by `close()` and by garbage collection alike.

const assert = require('node:assert/strict')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')

const { Plane } = require('..')
const { clustered, closing, optionsPlane, pack, packKeys, runChild, tempDir, tempPath, wf } = require('./helpers.js')

const ROOT = path.join(__dirname, '..')
const DIMS = 64
const FLUSHED = 2000
const WORKERS = 50
const TERMINATIONS = 30
const ROUNDS = 500
const MAPS_MAX = 5
const DESCRIPTORS_MAX = 5
const GROWTH_MAX = 32 * 1024 * 1024
const LINUX = process.platform === 'linux'

const vectors = clustered(61, FLUSHED, DIMS, 50, 0.5)

/** A plane of flushed records, closed. */
async function prepared(t) {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: DIMS, keyCap: 16, M: 8, efConstruction: 60 }, file)
  await plane.insertBatch(pack(vectors), packKeys(vectors.map((_, i) => `k${i}`)))
  await plane.close()
  return file
}

/** A path for planes that are created by the hundred, which on a disk would mean waiting for hundreds of syncs. */
function manyPath(t) {
  if (!LINUX || !fs.existsSync('/dev/shm')) return tempPath(t, 'dropped')
  const folder = fs.mkdtempSync('/dev/shm/vecplane-')
  t.after(() => fs.rmSync(folder, { recursive: true, force: true }))
  return path.join(folder, 'dropped')
}

/** What every script and every worker of it can use. */
const COMMON = `
  const fs = require('node:fs')
  const { Worker, parentPort, workerData, isMainThread } = require('node:worker_threads')
  const packagePath = ${JSON.stringify(ROOT)}
  const file = isMainThread ? process.argv[2] : workerData
  const some = (n) => Float32Array.from({ length: n * ${DIMS} }, () => Math.random() - 0.5)
`
const SCRIPT = `${COMMON}
  const worker = (body) => new Worker(${JSON.stringify(COMMON)} + body, { eval: true, workerData: file })
  const said = (w) => new Promise((resolve, reject) => { w.once('message', resolve); w.once('error', reject) })
  const ended = (w) => new Promise((resolve, reject) => { w.once('exit', resolve); w.once('error', reject) })
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
  /** Collects, finalizers included, which run on later turns of the event loop. */
  const collect = async () => { for (let i = 0; i < 4; i++) { gc(); await pause(20) } }
  const used = () => ${LINUX} ? {
    maps: fs.readFileSync('/proc/self/maps', 'utf8').split('\\n').filter((line) => line.includes('.hnsw')).length,
    descriptors: fs.readdirSync('/proc/self/fd').length,
    threads: fs.readdirSync('/proc/self/task').length,
    rss: process.memoryUsage().rss,
  } : { maps: 0, descriptors: 0, threads: 0, rss: process.memoryUsage().rss }
  const report = (result) => console.log(JSON.stringify(result))
`

/** Runs a script that reports, leaves with code 0 by itself, and prints nothing else. */
async function reportOf(t, body, args, options) {
  const child = await runChild(`${SCRIPT};(async () => {${body}})()`, args, { execArgv: ['--expose-gc'], ...options })
  assert.deepEqual({ code: child.code, signal: child.signal, stderr: child.stderr }, { code: 0, signal: null, stderr: '' })
  const report = JSON.parse(child.stdout)
  t.diagnostic(child.stdout.trim())
  return report
}

/** Fails unless a process that used much has given it back. */
function assertGivenBack({ before, after }) {
  assert.ok(after.maps <= MAPS_MAX, `${after.maps} mappings are left`)
  assert.ok(after.descriptors - before.descriptors <= DESCRIPTORS_MAX, `${after.descriptors - before.descriptors} descriptors are left`)
  assert.ok(after.rss - before.rss < GROWTH_MAX, `${after.rss - before.rss} bytes more are resident`)
}

/** What must hold for a plane after whatever happened to processes that wrote to it. */
async function assertSound(t, file) {
  const plane = closing(t, Plane.open(file))
  const found = vectors.filter((vector, i) => {
    const hits = wf(plane.searchSync(vector, 10, 128))
    return [...hits].some(({ id, key }) => key.toString() === `k${i}` && plane.idOf(key) === id)
  })
  assert.ok(found.length >= 0.999 * vectors.length, `${vectors.length - found.length} flushed records are not found`)
  const { ok, live } = await plane.verify()
  assert.equal(ok, true)
  assert.equal(live, plane.count)
  const last = plane.idHighWater()
  const taken = new Set()
  for (let id = 0; id < last; id++) if (plane.getById(id)) taken.add(id)
  assert.equal(taken.size, live)
  assert.ok(!taken.has(plane.insert(vectors[0], 'new')), 'a live id was given out again')
}

test(`${WORKERS} workers in turn, in a process that never loads the package itself`, async (t) => {
  const file = await prepared(t)
  const report = await reportOf(t, `
    const one = async () => {
      const w = worker(\`
        const { Plane } = require(packagePath)
        const plane = Plane.open(file)
        let found = 0
        for (let i = 0; i < 20; i++) found += plane.searchSync(some(1), 10).length
        plane.search(some(1), 10)
        parentPort.postMessage(found)
        setImmediate(() => process.exit(0))\`)
      return Promise.all([said(w), ended(w)])
    }
    for (let i = 0; i < 5; i++) await one()
    await collect()
    const before = used()
    const wrong = []
    for (let i = 0; i < ${WORKERS}; i++) {
      const [found, code] = await one()
      if (found !== 200 || code !== 0) wrong.push([found, code])
    }
    await collect()
    report({ wrong, before, after: used() })`, [file], { loads: false })
  assert.deepEqual(report.wrong, [])
  assertGivenBack(report)
  await assertSound(t, file)
})

test('the main thread and four workers search one plane while a fifth inserts', async (t) => {
  const file = await prepared(t)
  const report = await reportOf(t, `
    const search = \`
      ;(async () => {
        const { Plane } = require(packagePath)
        const plane = Plane.open(file)
        let wrong = 0
        for (let i = 0; i < 40; i++) {
          const answers = await Promise.all(Array.from({ length: 50 }, () => plane.search(some(1), 10)))
          for (const hits of answers) wrong += Number(hits.length !== 10 || new Set(hits.ids).size !== 10)
        }
        await plane.close()
        return wrong
      })()\`
    const insert = \`
      const { Plane } = require(packagePath)
      const keys = Buffer.from(Array.from({ length: 2000 }, (_, i) => 'n' + String(i).padStart(4, '0')).join(''))
      Plane.open(file).insertBatch(some(2000), { keys, keyEnds: Uint32Array.from({ length: 2000 }, (_, i) => 5 * i + 5) })
        .then(({ ids, rejected }) => parentPort.postMessage(2000 - new Set(ids).size + rejected.length))\`
    const workers = [...Array(4).fill(search + '.then((wrong) => parentPort.postMessage(wrong))'), insert].map(worker)
    const codes = Promise.all(workers.map(ended))
    const wrong = await Promise.all([eval(search), ...workers.map(said)])
    report({ wrong, codes: await codes })`, [file])
  assert.deepEqual(report, { wrong: [0, 0, 0, 0, 0, 0], codes: [0, 0, 0, 0, 0] })
  await assertSound(t, file)
  assert.equal(closing(t, Plane.open(file)).count, FLUSHED + 2000 + 1)
})

test(`${TERMINATIONS} workers terminated in the middle of a batch and a hundred searches`, async (t) => {
  const file = await prepared(t)
  const report = await reportOf(t, `
    const { Plane } = vecplane
    const one = async (i) => {
      const w = worker(\`
        const { Plane } = require(packagePath)
        const plane = Plane.open(file)
        const keys = Buffer.from(Array.from({ length: 5000 }, (_, i) => String(\${i}).padStart(3, 't') + String(i).padStart(5, '0')).join(''))
        plane.insertBatch(some(5000), { keys, keyEnds: Uint32Array.from({ length: 5000 }, (_, i) => 8 * i + 8), threads: 2 })
        for (let i = 0; i < 100; i++) plane.search(some(1), 10)
        if (\${i} % 3 === 0) plane.verify()
        parentPort.postMessage('busy')\`)
      await said(w)
      await pause(2 * i)
      await w.terminate()
    }
    await one(0)
    await collect()
    const before = used()
    for (let i = 1; i <= ${TERMINATIONS}; i++) await one(i)
    const plane = Plane.open(file)
    // A batch that nobody waits for any more must stop, and not just at its end.
    let count
    for (let calm = 0; calm < 5; calm = plane.count === count ? calm + 1 : 0) {
      count = plane.count
      await pause(20)
    }
    const found = (await plane.search(some(1), 10)).length
    await plane.close()
    await collect()
    report({ found, count, before, after: used() })`, [file])
  assert.equal(report.found, 10)
  assert.ok(report.count >= FLUSHED && report.count < FLUSHED + 5000 * (TERMINATIONS + 1), `${report.count} records`)
  assertGivenBack(report)
  await assertSound(t, file)
})

test(`${ROUNDS} planes created, used and dropped`, async (t) => {
  const report = await reportOf(t, `
    const { Plane } = vecplane
    const round = async (i) => {
      const plane = Plane.create(file + i + '.hnsw', { dims: ${DIMS}, keyCap: 8 })
      plane.insert(some(1), 'a')
      const { ids } = await plane.insertBatch(some(2), { keys: Buffer.from('bc'), keyEnds: Uint32Array.of(1, 2) })
      const wrong = Number(ids.length !== 2 || (await plane.search(some(1), 3)).length !== 3)
      if (i % 10 === 0) await plane.verify()
      fs.rmSync(file + i + '.hnsw')
      return wrong
    }
    for (let i = 0; i < 50; i++) await round(i)
    await collect()
    const before = used()
    let wrong = 0
    for (let i = 0; i < ${ROUNDS}; i++) wrong += await round(i)
    await collect()
    report({ wrong, before, after: used() })`, [manyPath(t)])
  assert.equal(report.wrong, 0)
  assertGivenBack(report)
  assert.ok(report.after.threads <= report.before.threads + 8, 'threads are left')
})

test('as many planes dropped within one turn of the event loop, which must end before any is collected', async (t) => {
  const report = await reportOf(t, `
    const { Plane } = vecplane
    const round = (i) => {
      const plane = Plane.create(file + i + '.hnsw', { dims: 3072, keyCap: 8 })
      plane.insert(new Float32Array(3072).fill(1), 'a')
      if (plane.searchSync(new Float32Array(3072).fill(1)).length !== 1) throw new Error('not found')
      fs.rmSync(file + i + '.hnsw')
    }
    for (let i = 0; i < 20; i++) round(i)
    await collect()
    const before = used()
    for (let i = 0; i < ${ROUNDS}; i++) round(i)
    const during = used()
    await collect()
    report({ before, during, after: used() })`, [manyPath(t)])
  if (LINUX) assert.ok(report.during.maps >= ROUNDS, 'this is no test: they were collected on the way')
  assertGivenBack({ before: report.before, after: { ...report.after, rss: report.before.rss } })
})

test('close gives everything back at once', async (t) => {
  const report = await reportOf(t, `
    const { Plane } = vecplane
    const round = async () => {
      const plane = Plane.create(file, { dims: ${DIMS}, overwrite: true })
      await plane.insertBatch(some(200))
      const again = Plane.open(file)
      await Promise.all([plane.search(some(1)), again.search(some(1)), plane.close(), again.close()])
    }
    await round()
    await pause(20)
    const before = used()
    const left = []
    for (let i = 0; i < 20; i++) {
      await round()
      left.push(used().maps)
    }
    report({ left, before, after: used() })`, [tempPath(t, 'closed.hnsw')])
  assert.deepEqual(report.left, Array(20).fill(0))
  assert.ok(report.after.descriptors <= report.before.descriptors, 'descriptors are left')
})

test('two copies of the addon in one process share a file as two processes do', async (t) => {
  const folder = tempDir(t)
  const copies = ['one', 'two'].map((name) => path.join(folder, name))
  const parts = fs.readdirSync(ROOT).filter((name) => /\.(js|node)$/.test(name) || name === 'package.json')
  for (const copy of copies) {
    fs.mkdirSync(copy)
    for (const part of parts) fs.copyFileSync(path.join(ROOT, part), path.join(copy, part))
  }
  const report = await reportOf(t, `
    const [one, two] = process.argv.slice(3).map((copy) => require(copy))
    const a = one.Plane.create(file, { dims: ${DIMS}, keyCap: 8 })
    const b = two.Plane.open(file)
    const wrong = []
    let stored = 0
    for (let i = 0; i < 50; i++) {
      const [writer, reader] = i % 2 ? [a, b] : [b, a]
      const vector = some(1)
      const id = await writer.insertAsync(vector, 'k' + i)
      stored++
      if (reader.count !== stored || reader.searchSync(vector, 1).ids[0] !== id) wrong.push(i)
    }
    await Promise.all([a, b].flatMap((plane, half) => Array.from({ length: 100 }, (_, i) => plane.insertAsync(some(1), 'h' + half + i))))
    let code
    try { b.insert(some(1), 'h01') } catch (error) { code = [error.code, error instanceof two.PlaneError, error instanceof one.PlaneError] }
    const { ok, live } = await a.verify()
    await Promise.all([a.close(), b.close()])
    report({ different: one.Plane !== two.Plane, wrong, code, ok, live, left: used().maps })`, [path.join(folder, 'shared.hnsw'), ...copies], { loads: false })
  assert.deepEqual(report, { different: true, wrong: [], code: ['PLANE_KEY_EXISTS', true, false], ok: true, live: 250, left: 0 })
})

test('answers can be posted to another thread, copied and moved', async (t) => {
  const file = await prepared(t)
  const report = await reportOf(t, `
    const plane = vecplane.Plane.open(file)
    const w = worker(\`
      parentPort.on('message', ({ ids, distances, keys, keyEnds }) => {
        if (!ids) return parentPort.close()
        parentPort.postMessage([[...ids], [...distances], Buffer.from(keys).toString(), [...keyEnds]])
      })\`)
    const { ids, distances, keys, keyEnds } = await plane.search(some(1), 5)
    const wanted = JSON.stringify([[...ids], [...distances], keys.toString(), [...keyEnds]])
    w.postMessage({ ids, distances, keys, keyEnds })
    const copied = JSON.stringify(await said(w)) === wanted && ids.length === 5
    w.postMessage({ ids, distances, keys, keyEnds }, [ids.buffer])
    const moved = JSON.stringify(await said(w)) === wanted && ids.length === 0 && distances.length === 0
    w.postMessage({})
    report({ copied, moved, code: await ended(w) })`, [file])
  assert.deepEqual(report, { copied: true, moved: true, code: 0 })
})
