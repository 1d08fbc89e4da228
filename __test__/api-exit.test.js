'use strict'

// Processes end when their work does, worker threads come and go, and nothing that is in flight crashes either.

const assert = require('node:assert/strict')
const path = require('node:path')
const { test } = require('node:test')

const { Plane } = require('..')
const { closing, optionsPlane, pack, randVec, rng, runChild, tempPath, wf } = require('./helpers.js')

const DIMS = 64
const PRELUDE = `
  const { randVec, rng } = require(${JSON.stringify(path.resolve(__dirname, 'helpers.js'))})
  const random = rng(7)
  const vectors = (n) => randVec(random, n * ${DIMS})
`

/** A flushed plane of 2,000 records, closed. */
async function prepared(t) {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: DIMS }, file)
  await plane.insertBatch(randVec(rng(1), 2000 * DIMS))
  await plane.close()
  return file
}

for (const [what, source, { code = 0, stdout = '', stderr = '' }] of [
  ['requires only', '', {}],
  ['creates, inserts, searches and does not close', `
    const plane = vecplane.Plane.create(process.argv[2] + '.new', { dims: ${DIMS} })
    plane.insert(vectors(1)); plane.searchSync(vectors(1)); console.log(plane.count)`, { stdout: '1\n' }],
  ['starts searches and does not await them', `
    const plane = vecplane.Plane.open(process.argv[2])
    for (let i = 0; i < 10; i++) plane.search(vectors(1), 10)`, {}],
  ['exits in the middle of a batch', `
    const plane = vecplane.Plane.open(process.argv[2])
    plane.insertBatch(vectors(20000)); process.exit(0)`, {}],
  ['exits a little later in the middle of a batch', `
    const plane = vecplane.Plane.open(process.argv[2])
    plane.insertBatch(vectors(20000), { onProgress() {} }); setTimeout(() => process.exit(0), 50)`, {}],
  ['exits in the middle of everything', `
    const plane = vecplane.Plane.open(process.argv[2])
    plane.insertBatch(vectors(20000)); plane.verify(); plane.flushAsync(); plane.insertAsync(vectors(1))
    for (let i = 0; i < 100; i++) plane.search(vectors(1), 10)
    plane.close(); process.exit(0)`, {}],
  ['awaits a search as its last statement', `
    const plane = vecplane.Plane.open(process.argv[2])
    ;(async () => { console.log((await plane.search(vectors(1), 3)).length) })()`, { stdout: '3\n' }],
  ['throws while a search runs', `
    const plane = vecplane.Plane.open(process.argv[2])
    plane.search(vectors(1), 10); throw new Error('mine')`, { code: 1, stderr: /Error: mine/ }],
  ['keeps a plane in a global', 'globalThis.plane = vecplane.Plane.open(process.argv[2])', {}],
  ['searches on exit', `
    const plane = vecplane.Plane.open(process.argv[2])
    process.on('exit', () => console.log(plane.searchSync(vectors(1), 4).length))`, { stdout: '4\n' }],
  ['has no handles of ours when idle', `
    const plane = vecplane.Plane.open(process.argv[2])
    ;(async () => {
      await plane.insertBatch(vectors(100), { onProgress() {} })
      await plane.search(vectors(1), { signal: new AbortController().signal })
      await plane.verify()
      await new Promise(setImmediate)
      console.log(process.getActiveResourcesInfo().filter((name) => !/Pipe|TTY|FSReq|Immediate/.test(name)).join())
    })()`, { stdout: '\n' }],
  ['is collected with planes that were never closed', `
    ;(async () => {
      for (let i = 0; i < 50; i++) { vecplane.Plane.open(process.argv[2]).search(vectors(1), 1); if (i % 10 === 0) gc() }
      await new Promise(setImmediate); gc(); console.log('done')
    })()`, { stdout: 'done\n' }],
]) {
  test(`a process that ${what} ends as it should`, async (t) => {
    const file = await prepared(t)
    const child = await runChild(PRELUDE + source, [file], { timeout: 20_000, execArgv: ['--expose-gc'] })
    assert.deepEqual([child.code, child.signal, child.stdout], [code, null, stdout], child.stderr)
    if (stderr instanceof RegExp) assert.match(child.stderr, stderr)
    else assert.equal(child.stderr, stderr)
    assert.ok(child.ms < 5000, `${child.ms} ms`)
    const plane = closing(t, Plane.open(file))
    assert.ok(plane.count >= 2000)
    assert.equal(wf(await plane.search(randVec(rng(2), DIMS), 10)).length, 10)
    assert.equal((await plane.verify()).ok, true)
  })
}

const WORKER = `
  const { Worker } = require('node:worker_threads')
  const path = require('node:path')
  const main = ${JSON.stringify(path.resolve(__dirname, '..'))}
  const worker = (body, file) => new Worker('const { Plane } = require(' + JSON.stringify(main) + '); const file = ' +
    JSON.stringify(file) + '; const vectors = (n) => Float32Array.from({ length: n * ${DIMS} }, () => Math.random() - 0.5);' + body, { eval: true })
  const ended = (w) => new Promise((resolve, reject) => { w.on('exit', resolve); w.on('error', reject) })
`

test('workers may come and go, the main thread never having loaded the package', async (t) => {
  const file = await prepared(t)
  const source = `${WORKER}
    ;(async () => {
      const codes = []
      for (let i = 0; i < 20; i++) {
        codes.push(await ended(worker(\`
          const plane = Plane.open(file)
          for (let i = 0; i < 20; i++) plane.searchSync(vectors(1), 10)
          plane.search(vectors(1), 10)
          process.exit(0)\`, process.argv[2])))
      }
      console.log(codes.every((code) => code === 0))
    })()`
  const { execPath } = process
  const child = await runChild(`
    const { spawnSync } = require('node:child_process')
    const { status, signal, stdout, stderr } = spawnSync(${JSON.stringify(execPath)}, ['-e', ${JSON.stringify(source)}, '-', process.argv[2]])
    console.log(status, signal, String(stdout), String(stderr))
  `, [file])
  assert.equal(child.stdout, '0 null true\n \n')
})

test('several workers search while one inserts', async (t) => {
  const file = await prepared(t)
  const child = await runChild(`${WORKER}
    const search = \`
      const { parentPort } = require('node:worker_threads')
      ;(async () => {
        const plane = Plane.open(file)
        let bad = 0
        for (let i = 0; i < 20; i++) {
          for (const hits of await Promise.all(Array.from({ length: 50 }, () => plane.search(vectors(1), 10)))) bad += hits.length !== 10
        }
        parentPort.postMessage(bad)
      })()\`
    const insert = \`
      const { parentPort } = require('node:worker_threads')
      Plane.open(file).insertBatch(vectors(2000)).then(({ ids }) => parentPort.postMessage(ids.length - 2000))\`
    ;(async () => {
      const plane = vecplane.Plane.open(process.argv[2])
      const workers = [search, search, search, insert].map((body) => worker(body, process.argv[2]))
      const said = await Promise.all(workers.map((w) => new Promise((resolve) => w.on('message', resolve))))
      await Promise.all(workers.map((w) => w.terminate()))
      console.log(said.join(), plane.count, (await plane.verify()).ok)
    })()`, [file])
  assert.deepEqual([child.code, child.stdout, child.stderr], [0, '0,0,0,0 4000 true\n', ''])
})

test('workers may be terminated in the middle of everything', async (t) => {
  const file = await prepared(t)
  const child = await runChild(`${WORKER}
    ;(async () => {
      for (let i = 0; i < 8; i++) {
        const w = worker(\`
          const { parentPort } = require('node:worker_threads')
          const plane = Plane.open(file)
          plane.insertBatch(vectors(3000), { onProgress() {} })
          for (let i = 0; i < 100; i++) plane.search(vectors(1), 10)
          plane.verify()
          parentPort.postMessage('busy')\`, process.argv[2])
        await new Promise((resolve) => w.on('message', resolve))
        await new Promise((resolve) => setTimeout(resolve, 5 * i))
        await w.terminate()
      }
      const plane = vecplane.Plane.open(process.argv[2])
      const ids = plane.searchSync(Float32Array.from({ length: ${DIMS} }, Math.random), 10).ids
      console.log(ids.length, plane.count >= 2000)
    })()`, [file])
  assert.deepEqual([child.code, child.signal, child.stdout, child.stderr], [0, null, '10 true\n', ''])
  const plane = closing(t, Plane.open(file))
  assert.equal((await plane.verify()).ok, true)
})

test('answers can be posted to other threads', async (t) => {
  const plane = optionsPlane(t, { dims: 4, keyCap: 4 })
  plane.insert(randVec(rng(1), 4), 'a')
  await plane.insertBatch(pack([randVec(rng(2), 4)]), { keys: Buffer.from('b'), keyEnds: Uint32Array.of(1) })
  const hits = await plane.search(randVec(rng(1), 4))
  const { ids, distances, keys, keyEnds } = hits
  const copied = structuredClone({ ids, distances, keys, keyEnds })
  assert.deepEqual([copied.ids, copied.distances, copied.keyEnds], [ids, distances, keyEnds])
  assert.deepEqual(Buffer.from(copied.keys), keys)
  const moved = structuredClone({ ids, distances, keys, keyEnds }, { transfer: [ids.buffer] })
  assert.deepEqual([...moved.ids], [...copied.ids])
  assert.equal(ids.length, 0, 'the arrays are views of one buffer')
})
