'use strict'

// remove, removeBatch, and planes that are emptied and filled again.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { Plane } = require('..')
const {
  casePlane, closing, clustered, failure, optionsPlane, pack, randVec, rng, runChild, selfMisses, tempPath, wf,
} = require('./helpers.js')

test('delete everything, then insert again', async (t) => {
  const file = tempPath(t)
  const plane = casePlane(t, 32, 2000, { file })
  const vectors = clustered(2, 1000, 32, 20, 0.5)
  const query = randVec(rng(1), 32)

  // (a) a fresh plane
  assert.equal(wf(await plane.search(query, 10, 64)).length, 0)
  assert.equal(plane.getEntryPoint(), null)

  // (b) everything removed in insertion order
  let ids = vectors.map((vector, i) => plane.insert(vector, `k${i}`))
  for (const id of ids) assert.equal(plane.remove(id), true)
  const started = performance.now()
  assert.equal(wf(await plane.search(query, 10, 64)).length, 0)
  assert.ok(performance.now() - started < 50)
  assert.equal(plane.count, 0)
  assert.equal(plane.getEntryPoint(), null)

  // (c) one record
  const first = plane.insert(vectors[0], 'k0')
  const hits = wf(await plane.search(vectors[0], 10, 64))
  assert.deepEqual([hits.length, hits.ids[0]], [1, first])
  assert.ok(hits.distances[0] < 1e-3)

  // (d) all of them again
  ids = [first, ...vectors.slice(1).map((vector, i) => plane.insert(vector, `k${i + 1}`))]
  assert.equal(await selfMisses(plane, vectors, ids, 1, 64), 0)
  assert.ok(plane.idHighWater() <= 1001)

  // (f) ids that are dead, were never given, or could not be
  const [gone] = ids.splice(500, 1)
  assert.equal(plane.remove(gone), true)
  const kept = vectors.filter((_, i) => i !== 500)
  for (const id of [gone, gone, 1500, 0xffffffff]) assert.equal(plane.remove(id), false)
  assert.equal(await selfMisses(plane, kept, ids, 1, 64), 0)
  const three = [1, 2, 3].map((i) => plane.insert(randVec(rng(i), 32), 'extra'))
  assert.equal(new Set([...three, ...ids]).size, 3 + ids.length, 'no id is given twice')
  for (const id of three) plane.remove(id)

  // (e) everything removed in reverse order, flushed, and opened by another process
  for (const id of ids.reverse()) plane.remove(id)
  await plane.flushAsync()
  await plane.close()
  const child = await runChild(`
    const { randVec, rng, clustered, selfMisses, wf } = require(process.argv[3])
    const plane = vecplane.Plane.open(process.argv[2])
    const empty = wf(plane.searchSync(randVec(rng(1), 32), 10, 64)).length
    const vectors = clustered(2, 1000, 32, 20, 0.5).slice(0, 500)
    const ids = vectors.map((vector) => plane.insert(vector))
    selfMisses(plane, vectors, ids, 1, 64).then((misses) => console.log(empty, plane.count, misses))
  `, [file, require.resolve('./helpers.js')])
  assert.deepEqual([child.code, child.stdout, child.stderr], [0, '0 500 0\n', ''])
  assert.equal(closing(t, Plane.open(file)).count, 500)
})

test('the freed id is the next one given when no search is in flight', (t) => {
  const plane = casePlane(t, 8, 100)
  const ids = Array.from({ length: 20 }, (_, i) => plane.insert(randVec(rng(i), 8)))
  for (const id of [ids[3], ids[17], ids[0]]) {
    assert.equal(plane.remove(id), true)
    assert.equal(plane.insert(randVec(rng(100 + id), 8)), id)
  }
  assert.equal(plane.idHighWater(), 20)
})

test('a removed record is in no answer from then on', async (t) => {
  const plane = casePlane(t, 16, 5000)
  const vectors = clustered(5, 500, 16, 10, 0.4)
  const ids = vectors.map((vector) => plane.insert(vector))
  for (let i = 0; i < 500; i += 2) {
    const before = plane.search(vectors[i], 5, 64)
    plane.remove(ids[i])
    for (const hits of [plane.searchSync(vectors[i], 5, 64), await plane.search(vectors[i], 5, 64), plane.searchExact(vectors[i])]) {
      assert.ok(!wf(hits).ids.includes(ids[i]))
    }
    wf(await before)
    assert.equal(plane.getById(ids[i]), undefined)
    assert.equal(plane.keyOf(ids[i]), undefined)
  }
  assert.equal(plane.count, 250)
})

test('removeBatch counts what it removed', async (t) => {
  for (const remove of [(plane, ids) => plane.removeBatch(ids), (plane, ids) => plane.removeBatchAsync(ids)]) {
    const plane = optionsPlane(t, { dims: 8 })
    const { ids } = await plane.insertBatch(randVec(rng(1), 8 * 50))
    assert.equal(await remove(plane, ids.subarray(10, 20)), 10)
    assert.equal(await remove(plane, Uint32Array.of(ids[10], ids[25], ids[25], 4000, 0xffffffff)), 1)
    assert.equal(await remove(plane, new Uint32Array(0)), 0)
    assert.equal(plane.count, 39)
    for (const wrong of [undefined, null, 3, [1], 'x', new Int32Array(1), new Float64Array(1)]) {
      const error = await failure(() => remove(plane, wrong))
      assert.equal(error.code, 'ERR_INVALID_ARG_TYPE')
      assert.match(error.message, /^ids must be a Uint32Array/)
    }
  }
})

test('removeBatchAsync waits for the batches before it', async (t) => {
  const plane = optionsPlane(t, { dims: 8 })
  const vectors = randVec(rng(1), 8 * 2000)
  const inserting = plane.insertBatch(vectors)
  const removing = plane.removeBatchAsync(Uint32Array.from({ length: 2000 }, (_, i) => i))
  assert.equal((await inserting).ids.length, 2000)
  assert.equal(await removing, 2000)
  assert.equal(plane.count, 0)
})

test('ids that are no ids are named', async (t) => {
  const plane = optionsPlane(t, { dims: 8 })
  plane.insert(randVec(rng(1), 8))
  for (const call of [(id) => plane.remove(id), (id) => plane.getById(id), (id) => plane.keyOf(id)]) {
    for (const id of [-1, 0.5, NaN, Infinity, 2 ** 32, 2 ** 53]) {
      const error = await failure(() => call(id))
      assert.ok(error instanceof RangeError && error.code === 'ERR_OUT_OF_RANGE')
      assert.match(error.message, /^id must be/)
    }
    for (const id of ['0', null, undefined, {}, 0n, true]) {
      const error = await failure(() => call(id))
      assert.ok(error instanceof TypeError && error.code === 'ERR_INVALID_ARG_TYPE')
      assert.match(error.message, /^id must be/)
    }
  }
  assert.equal(plane.count, 1)
})

test('removing in the middle of everything leaves a sound plane', async (t) => {
  const plane = optionsPlane(t, { dims: 16 })
  const vectors = clustered(8, 2000, 16, 20, 0.4)
  const { ids } = await plane.insertBatch(pack(vectors))
  const inserting = plane.insertBatch(pack(clustered(9, 2000, 16, 20, 0.4)))
  for (let i = 0; i < 1000; i++) {
    assert.equal(plane.remove(ids[i]), true)
    if (i % 50 === 0) wf(await plane.search(vectors[i], 10))
  }
  await inserting
  const report = await plane.verify()
  assert.deepEqual({ ok: report.ok, live: report.live }, { ok: true, live: 3000 })
  assert.equal(await selfMisses(plane, vectors.slice(1000), ids.subarray(1000), 10, 128), 0)
})
