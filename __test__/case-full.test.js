'use strict'

// A plane at its limit says so with a code and keeps what it has; a batch that hits the limit tells what landed.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { Plane, PlaneError } = require('..')
const { closing, failure, keyAt, pack, packKeys, randVec, rng, tempPath, wf } = require('./helpers.js')
const { insertAll, keyOf, missing, positionsOf, testForms } = require('./case-helpers.js')

const DIMS = 16
const LIMIT = 100
const NONE = 0xffffffff
const random = rng(14)
const vectors = Array.from({ length: 300 }, () => randVec(random, DIMS))

/** One more record is refused in every form, and those that are there are found. */
async function assertFull(plane, live, ids) {
  const { keys, keyEnds } = packKeys(['one more'])
  for (const call of [
    () => plane.insert(vectors[299], 'one more'),
    () => plane.insertAsync(vectors[299], 'one more'),
    () => plane.insertBatch(vectors[299], keys, keyEnds),
  ]) {
    const error = await failure(call)
    assert.ok(error instanceof PlaneError)
    assert.equal(error.code, 'PLANE_FULL')
    assert.match(error.message, /full/)
    assert.match(error.message, /maxNodes/)
    assert.match(error.message, /100/)
  }
  assert.equal(plane.count, LIMIT)
  assert.deepEqual(missing(plane, live, ids, positionsOf(live), 1, 64), [])
}

testForms('a full plane refuses the next record, and takes it when one has gone', async (t, { create }) => {
  const file = tempPath(t)
  let plane = create(t, DIMS, LIMIT, file)
  const live = vectors.slice(0, LIMIT)
  const ids = insertAll(plane, live)
  await assertFull(plane, live, ids)

  plane.remove(ids[42])
  live[42] = vectors[150]
  const given = plane.insert(live[42], 'again')
  assert.equal(given, ids[42], 'the freed id is given again')
  await assertFull(plane, live, ids)

  // A batch of 50 into 10 free slots.
  const gone = positionsOf(live).slice(20, 30)
  for (const i of gone) plane.remove(ids[i])
  const batch = vectors.slice(200, 250)
  const { keys, keyEnds } = packKeys(batch.map((_, i) => `b${i}`))
  const error = await failure(() => plane.insertBatch(pack(batch), keys, keyEnds))
  assert.equal(error.code, 'PLANE_FULL')
  assert.equal(error.inserted, 10)
  assert.equal(error.ids.length, 50)
  const landed = positionsOf(batch).filter((i) => error.ids[i] !== NONE)
  assert.equal(landed.length, 10)
  assert.deepEqual(landed.map((i) => error.ids[i]).sort((a, b) => a - b), gone.map((i) => ids[i]).sort((a, b) => a - b))
  landed.forEach((i, n) => {
    live[gone[n]] = batch[i]
    ids[gone[n]] = error.ids[i]
    const hits = wf(plane.searchSync(batch[i], 1, 64))
    assert.equal(hits.ids[0], error.ids[i])
    assert.equal(keyAt(hits, 0).toString(), `b${i}`)
  })
  await assertFull(plane, live, ids)
  const others = positionsOf(batch).filter((i) => error.ids[i] === NONE)
  for (const i of others) assert.ok(wf(plane.searchSync(batch[i], 1, 64)).distances[0] > 1e-3, `record ${i} landed`)

  await plane.flushAsync()
  await plane.close()
  plane = closing(t, Plane.open(file))
  await assertFull(plane, live, ids)
  plane.remove(ids[0])
  assert.equal(plane.insert(live[0], 'last'), ids[0])
  await assertFull(plane, live, ids)
  assert.equal((await plane.verify()).ok, true)
})

test('when the room for long keys is used up, short keys still land', async (t) => {
  const plane = closing(t, Plane.create(tempPath(t), DIMS, 32, LIMIT, 8, 20))
  const long = (i) => `${i}`.padEnd(200, '.')
  const ids = []
  let error
  while (!error && ids.length < LIMIT) {
    try {
      ids.push(plane.insert(vectors[ids.length], long(ids.length)))
    } catch (thrown) {
      error = thrown
    }
  }
  // 20 bytes for each of 100 records make room for 10 keys of 200 bytes at most.
  assert.ok(ids.length >= 5 && ids.length <= 10, `${ids.length} long keys landed`)
  assert.ok(error instanceof PlaneError)
  assert.equal(error.code, 'PLANE_KEYS_FULL')
  assert.equal((await failure(() => plane.insertAsync(vectors[50], long(50)))).code, 'PLANE_KEYS_FULL')
  assert.equal(plane.count, ids.length)

  const short = plane.insert(vectors[50], 'short')
  const hits = wf(plane.searchSync(vectors[50], 1, 64))
  assert.deepEqual([...hits.ids], [short])
  assert.equal(keyAt(hits, 0).toString(), 'short')
  ids.forEach((id, i) => {
    const [hit] = plane.searchSync(vectors[i], 1, 64)
    assert.deepEqual([hit.id, hit.key.toString()], [id, long(i)])
  })

  // The room of a removed key is used again.
  assert.equal(plane.remove(ids[0]), true)
  await plane.flushAsync()
  const again = plane.insert(vectors[60], long(60))
  const [hit] = plane.searchSync(vectors[60], 1, 64)
  assert.deepEqual([hit.id, hit.key.toString()], [again, long(60)])
  for (let i = 61; plane.count < LIMIT; i++) plane.insert(vectors[i], keyOf(i))
  assert.equal((await plane.verify()).ok, true)
})
