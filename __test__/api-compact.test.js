'use strict'

// Copies and compactions: what they hold, who follows, how they are watched and stopped, and what they refuse.

const assert = require('node:assert/strict')
const fs = require('node:fs')
const path = require('node:path')
const { pathToFileURL } = require('node:url')
const { test } = require('node:test')
const { Worker } = require('node:worker_threads')

const { Plane, PlaneError } = require('..')
const { clustered, closing, failure, optionsPlane, pack, packKeys, runChild, tempDir, wf } = require('./helpers.js')

const DIMS = 32
const vectors = clustered(17, 3000, DIMS, 30, 0.4)
const keyOf = (i) => `k${i}`

/** A plane with all vectors, `keyOf(i)` for each; those that `gone` names are removed. */
async function filled(t, gone = () => false) {
  const dir = tempDir(t)
  const file = path.join(dir, 'case.hnsw')
  const plane = optionsPlane(t, { dims: DIMS, keyCap: 8 }, file)
  await plane.insertBatch(pack(vectors), packKeys(vectors.map((_, i) => keyOf(i))))
  await plane.removeBatchAsync(Uint32Array.from(vectors.map((_, i) => i).filter(gone), (i) => plane.idOf(keyOf(i))))
  return { dir, file, plane }
}

/** The plane has exactly the records that are not `gone`. */
async function assertHolds(plane, gone) {
  const report = await plane.verify()
  assert.equal(report.ok, true, JSON.stringify(report))
  assert.equal(plane.count, vectors.filter((_, i) => !gone(i)).length)
  vectors.forEach((vector, i) => assert.deepEqual(plane.get(keyOf(i)), gone(i) ? undefined : vector))
  const hits = wf(await plane.search(vectors[7], { k: 20 }))
  assert.equal(hits.length, Math.min(20, plane.count))
}

test('snapshot copies the plane as it is, also while it is being written', async (t) => {
  const { dir, plane } = await filled(t, (i) => i % 3 === 1)
  const copy = path.join(dir, 'copy.hnsw')
  const progress = []
  assert.equal(await plane.snapshot(copy, { onProgress: (done, total) => progress.push([done, total]) }), undefined)
  const [done, total] = progress.at(-1)
  assert.ok(done === total && total > 1e6, `${done} of ${total} bytes`)
  const copied = closing(t, Plane.open(copy))
  assert.equal(copied.openedClean(), true)
  await assertHolds(copied, (i) => i % 3 === 1)
  assert.equal(copied.idOf(keyOf(3)), plane.idOf(keyOf(3)))

  // Both go on by themselves.
  copied.insert(vectors[0], 'only in the copy')
  assert.equal(plane.has('only in the copy'), false)

  const inserting = plane.insertBatch(pack(vectors), packKeys(vectors.map((_, i) => `second ${i}`)))
  await plane.snapshot(pathToFileURL(path.join(dir, 'beside.hnsw')))
  await inserting
  const beside = closing(t, Plane.open(path.join(dir, 'beside.hnsw')))
  assert.equal((await beside.verify()).ok, true)
  assert.ok(beside.count >= 2000 && beside.count <= 5000)
  assert.equal(plane.count, 5000)
})

test('compact gives room back, and every handle goes on with the new file', async (t) => {
  const gone = (i) => i >= 300
  const { dir, file, plane } = await filled(t, gone)
  const other = closing(t, Plane.open(file))
  const reader = closing(t, Plane.open(file, { readOnly: true }))
  const before = { size: fs.statSync(file).size, inode: fs.statSync(file).ino }
  const progress = []
  const result = await plane.compact({ onProgress: (done, total) => progress.push([done, total]) })
  assert.deepEqual(result, { bytesBefore: before.size, bytesAfter: fs.statSync(file).size })
  assert.ok(result.bytesAfter < result.bytesBefore / 3, JSON.stringify(result))
  assert.equal(progress.at(-1)[0], progress.at(-1)[1])
  if (process.platform !== 'win32') assert.notEqual(fs.statSync(file).ino, before.inode)
  assert.deepEqual(fs.readdirSync(dir), ['case.hnsw'])
  for (const handle of [plane, other, reader]) await assertHolds(handle, gone)
  assert.equal(other.insert(vectors[1], 'by another handle'), plane.idOf('by another handle'))
  assert.equal(reader.has('by another handle'), true)
  await other.close()
  await plane.close()
  await reader.close()
  const again = closing(t, Plane.open(file))
  assert.equal(again.openedClean(), true)
  assert.equal(again.has('by another handle'), true)
})

test('compact keeps ids, and with renumber tells the new ones', async (t) => {
  const gone = (i) => i % 10 !== 3
  const { file, plane } = await filled(t, gone)
  const ids = vectors.map((_, i) => plane.idOf(keyOf(i)))
  const hits = await plane.search(vectors[3], { k: 50 })
  await plane.compact()
  assert.deepEqual(vectors.map((_, i) => plane.idOf(keyOf(i))), ids)
  assert.deepEqual((await plane.search(vectors[3], { k: 50 })).ids, hits.ids)

  const { newIds, bytesBefore, bytesAfter } = await plane.compact({ renumber: true })
  assert.ok(newIds instanceof Uint32Array && bytesAfter < bytesBefore / 3)
  assert.equal(plane.idHighWater(), 300)
  assert.equal(fs.statSync(file).size, bytesAfter)
  ids.forEach((id, i) => {
    if (!gone(i)) assert.equal(plane.idOf(keyOf(i)), newIds[id])
  })
  assert.equal(newIds.filter((id) => id !== 0xffffffff).length, 300)
  assert.deepEqual([...(await plane.search(vectors[3], { k: 50 })).ids].sort(), [...hits.ids].map((id) => newIds[id]).sort())
  await assertHolds(plane, gone)
})

test('compact to another path leaves the plane alone', async (t) => {
  const gone = (i) => i >= 300
  const { dir, file, plane } = await filled(t, gone)
  const { ino, size } = fs.statSync(file)
  const [first, second] = ['first.hnsw', 'second.hnsw'].map((name) => path.join(dir, name))
  const { bytesAfter } = await plane.compact(first)
  await plane.compact({ path: pathToFileURL(second), renumber: true })
  assert.deepEqual([fs.statSync(file).ino, fs.statSync(file).size], [ino, size])
  assert.equal(fs.statSync(first).size, bytesAfter)
  for (const copy of [first, second]) await assertHolds(closing(t, Plane.open(copy)), gone)
  assert.equal((await failure(() => plane.compact(first))).code, 'PLANE_EXISTS')
  await plane.compact({ path: first, overwrite: true })
  await assertHolds(plane, gone)
})

test('batches and searches under way go through a compaction', async (t) => {
  const { plane } = await filled(t)
  const more = packKeys(vectors.map((_, i) => `more ${i}`))
  const work = [plane.insertBatch(pack(vectors), more), plane.compact(), plane.compact()]
  for (let i = 0; i < 200; i++) work.push(plane.search(vectors[i], { k: 1 }))
  const [{ ids }] = await Promise.all(work)
  assert.equal(plane.count, 6000)
  assert.equal(plane.idOf('more 2999'), ids[2999])
  assert.equal((await plane.verify()).ok, true)
})

test('searches do not wait for writes that wait for a compaction, whichever handle they came by', async (t) => {
  const { file, plane } = await filled(t)
  const other = closing(t, Plane.open(file))
  // So that the compaction takes a while.
  await plane.insertBatch(pack(vectors), packKeys(vectors.map((_, i) => `more ${i}`)))
  const order = []
  const before = vectors.slice(0, 400).map((vector, i) => (i < 100 ? plane : other).insertAsync(vector, `before ${i}`))
  const compaction = plane.compact({ renumber: true }).then(({ newIds }) => order.push('compaction') && newIds)
  const after = vectors.slice(0, 8).map((vector, i) => (i % 2 ? plane : other).insertAsync(vector, `after ${i}`))
  const flushed = Array.from({ length: 8 }, (_, i) => (i % 2 ? plane : other).flushAsync())
  const searches = vectors.slice(0, 8).map((vector) => plane.search(vector, { k: 1 }).then(() => order.push('search')))
  await Promise.all(searches)
  const newIds = await compaction
  assert.deepEqual(order, [...Array(8).fill('search'), 'compaction'])
  const given = await Promise.all(before)
  given.forEach((id, i) => assert.equal(plane.idOf(`before ${i}`), newIds[id]))
  const ids = await Promise.all(after)
  // Calls on one handle come in order; those on another may still get in before.
  ids.forEach((id, i) => assert.ok(plane.idOf(`after ${i}`) === id || (i % 2 === 0 && plane.idOf(`after ${i}`) === newIds[id])))
  await Promise.all(flushed)
  assert.equal((await plane.verify()).ok, true)
})

test('other processes and worker threads follow', async (t) => {
  const gone = (i) => i >= 300
  const { file, plane } = await filled(t, gone)
  const worker = new Worker(`
    const { parentPort, workerData } = require('node:worker_threads')
    const { Plane } = require(workerData.root)
    const plane = Plane.open(workerData.file)
    parentPort.postMessage(plane.count)
    parentPort.on('message', async () => {
      plane.insert(new Float32Array(${DIMS}).fill(1), 'worker')
      await plane.close()
      process.exit(0)
    })
  `, { eval: true, workerData: { root: path.resolve(__dirname, '..'), file } })
  assert.equal(await new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject)), 300)
  const child = runChild(`
    const fs = require('node:fs')
    const [file, ready, go] = process.argv.slice(2)
    const plane = vecplane.Plane.open(file)
    plane.insert(new Float32Array(${DIMS}).fill(2), 'before')
    fs.writeFileSync(ready, '')
    const timer = setInterval(() => {
      if (!fs.existsSync(go)) return
      clearInterval(timer)
      plane.insert(new Float32Array(${DIMS}).fill(3), 'after')
      console.log(plane.count)
    }, 5)
  `, [file, `${file}.ready`, `${file}.go`])
  while (!fs.existsSync(`${file}.ready`)) await new Promise((resolve) => setTimeout(resolve, 5))
  await plane.compact({ renumber: true })
  fs.writeFileSync(`${file}.go`, '')
  const { code, stdout, stderr } = await child
  assert.deepEqual([code, stdout, stderr], [0, '302\n', ''])
  worker.postMessage('go')
  assert.equal(await new Promise((resolve) => worker.once('exit', resolve)), 0)
  assert.deepEqual(['before', 'after', 'worker'].map((key) => plane.has(key)), [true, true, true])
})

test('a stopped copy or compaction leaves nothing behind', async (t) => {
  const { dir, plane } = await filled(t)
  const aborted = AbortSignal.abort(new Error('enough'))
  for (const call of [
    (options) => plane.compact(options),
    (options) => plane.compact({ ...options, path: path.join(dir, 'copy.hnsw') }),
    (options) => plane.snapshot(path.join(dir, 'copy.hnsw'), options),
  ]) {
    const error = await failure(() => call({ signal: aborted }))
    assert.ok(error instanceof PlaneError)
    assert.deepEqual([error.name, error.code, error.cause.message], ['AbortError', 'ABORT_ERR', 'enough'])
    const thrown = await failure(() => call({ onProgress: () => { throw new Error('mine') } }))
    assert.equal(thrown.message, 'mine')
    // Whatever had been done by then is whole.
    fs.rmSync(path.join(dir, 'copy.hnsw'), { force: true })
    assert.deepEqual(fs.readdirSync(dir), ['case.hnsw'])
  }
  await assertHolds(plane, () => false)
})

test('wrong arguments and unreachable places are refused', async (t) => {
  const { dir, file, plane } = await filled(t, (i) => i >= 10)
  const reader = closing(t, Plane.open(file, { readOnly: true }))
  fs.writeFileSync(path.join(dir, 'taken'), 'something')
  for (const [call, code] of [
    [() => plane.snapshot(), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.snapshot(7), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.snapshot(''), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.snapshot('x', { overwrit: true }), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.snapshot('x', { overwrite: 1 }), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.snapshot('x', { signal: 1 }), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.snapshot(file, { overwrite: true }), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.snapshot(dir), 'EISDIR'],
    [() => plane.snapshot(path.join(dir, 'taken')), 'PLANE_EXISTS'],
    [() => plane.snapshot(path.join(dir, 'no', 'such', 'place')), 'ENOENT'],
    [() => plane.compact(7), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.compact({ renumber: 'yes' }), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.compact({ relink: 'yes' }), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.compact({ relink: true, threads: 0 }), 'ERR_OUT_OF_RANGE'],
    [() => plane.compact({ overwrite: true }), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.compact({ onProgress: true }), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.compact(file), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.compact(path.join(dir, 'no', 'such', 'place')), 'ENOENT'],
    [() => reader.compact(), 'PLANE_READ_ONLY'],
  ]) {
    assert.equal((await failure(call)).code, code, String(call))
  }
  assert.deepEqual(fs.readdirSync(dir).sort(), ['case.hnsw', 'taken'])
  // A handle that may not write may copy.
  await reader.snapshot(path.join(dir, 'copy'))
  await assertHolds(closing(t, Plane.open(path.join(dir, 'copy'))), (i) => i >= 10)
  fs.linkSync(file, path.join(dir, 'second name'))
  const linked = await failure(() => plane.compact())
  assert.equal(linked.code, 'PLANE_LINKED')
  await plane.close()
  assert.equal((await failure(() => plane.compact())).code, 'PLANE_CLOSED')
  assert.equal((await failure(() => plane.snapshot(path.join(dir, 'late')))).code, 'PLANE_CLOSED')
})

test('writes in promise form wait for a compaction of their own process, whatever lockTimeout says', async (t) => {
  const plane = optionsPlane(t, { dims: 64, M: 4, efConstruction: 8, lockTimeout: 1 })
  const count = 3000
  await plane.insertBatch(Float32Array.from({ length: count * 64 }, (_, i) => Math.sin(i * i)))
  const compacting = plane.compact()
  const ids = await Promise.all(Array.from({ length: 50 }, (_, i) => plane.insertAsync(new Float32Array(64).fill(i + 1))))
  await compacting
  assert.equal(new Set(ids).size, 50)
  assert.equal(plane.count, count + 50)
  assert.equal((await plane.verify()).ok, true)
})
