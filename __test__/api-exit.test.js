'use strict'

// Processes end when their work does, and nothing that is in flight crashes them. Worker threads: case-workers.test.js.

const assert = require('node:assert/strict')
const path = require('node:path')
const { test } = require('node:test')

const { Plane } = require('..')
const { closing, optionsPlane, randVec, rng, runChild, tempPath, wf } = require('./helpers.js')

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
    plane.search(vectors(1), 10); throw new Error('mine')`, { code: 1, stderr: /error: mine/i }],
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
