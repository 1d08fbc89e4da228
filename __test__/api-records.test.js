'use strict'

// Records at hand: filters by key, many vectors by key, iteration and how it goes on.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { Plane, PlaneError } = require('..')
const { bitset, closing, exactSearch, failure, optionsPlane, pack, packKeys, randVec, rng, tempPath, wf } = require('./helpers.js')

const DIMS = 8
const vector = (seed) => randVec(rng(seed), DIMS)

async function filled(t, count = 500, options = {}, file = tempPath(t)) {
  const plane = optionsPlane(t, { dims: DIMS, keyCap: 8, ...options }, file)
  const vectors = Array.from({ length: count }, (_, i) => vector(i + 1))
  const names = vectors.map((_, i) => i % 50 === 7 ? `${'long '.repeat(40)}${i}` : `k${i}`)
  const { ids } = await plane.insertBatch(pack(vectors), packKeys(names))
  return { plane, vectors, names, ids, file }
}

test('a filter by keys finds the nearest of their records, in every form of search', async (t) => {
  const { plane, vectors, names, ids } = await filled(t)
  for (const size of [0, 1, 3, 40, 500]) {
    const allowed = names.map((_, i) => i).filter((i) => i * 7 % 500 < size)
    const keys = allowed.map((i) => i % 2 ? names[i] : Buffer.from(names[i]))
    for (const given of [keys, new Set(keys), [...keys, ...keys, 'nobody', '', 'x'.repeat(65_536)]]) {
      const filter = { keys: given }
      for (let q = 0; q < 5; q++) {
        const query = vector(1000 + q)
        const truth = exactSearch(vectors, query, 10, { allowed: (i) => allowed.includes(i) }).map((i) => ids[i])
        const exact = wf(plane.searchExact(query, { filter }))
        assert.deepEqual([...exact.ids].sort(), truth.sort())
        const whole = await plane.searchBatch(query, { filter, ef: 500 })
        for (const hits of [
          wf(plane.searchSync(query, { filter, ef: 500 })), wf(plane.searchSync(query, 10, 500, filter)),
          wf(await plane.search(query, { filter, ef: 500 })), wf(await plane.search(query, 10, 500, filter)),
          wf(await plane.searchExactAsync(query, { filter })), whole,
        ]) assert.deepEqual(hits.ids, exact.ids)
      }
    }
  }
})

test('a filter by keys follows its records when they are replaced, and forgets those that are removed', async (t) => {
  const { plane } = await filled(t, 100)
  const filter = { keys: ['k1', 'k2', 'k3'] }
  const query = vector(7)
  const found = () => [...plane.searchSync(query, { filter })].map((hit) => String(hit.key)).sort()
  assert.deepEqual(found(), ['k1', 'k2', 'k3'])
  plane.upsert('k2', vector(999))
  assert.deepEqual(found(), ['k1', 'k2', 'k3'])
  plane.removeKey('k1')
  assert.deepEqual(found(), ['k2', 'k3'])
  await plane.compact({ renumber: true })
  assert.deepEqual(found(), ['k2', 'k3'])
})

test('what is no filter is refused, and keys need a plane whose keys are unique', async (t) => {
  const { plane } = await filled(t, 10)
  const keyless = optionsPlane(t, { dims: DIMS })
  const repeating = optionsPlane(t, { dims: DIMS, keyCap: 8, uniqueKeys: false })
  const query = vector(1)
  const calls = (plane, filter) => [
    () => plane.searchSync(query, { filter }), () => plane.search(query, { filter }), () => plane.searchBatch(query, { filter }),
    () => plane.searchExact(query, { filter }), () => plane.searchExactAsync(query, { filter }), () => plane.searchSync(query, 10, 64, filter),
  ]
  for (const [filter, code] of [
    ['abc', 'ERR_INVALID_ARG_TYPE'], [7, 'ERR_INVALID_ARG_TYPE'], [[1, 2], 'ERR_INVALID_ARG_TYPE'], [new Uint16Array(4), 'ERR_INVALID_ARG_TYPE'],
    [new ArrayBuffer(4), 'ERR_INVALID_ARG_TYPE'], [{}, 'ERR_INVALID_ARG_TYPE'], [{ key: ['a'] }, 'ERR_INVALID_ARG_VALUE'],
    [{ keys: 'abc' }, 'ERR_INVALID_ARG_TYPE'], [{ keys: Buffer.from('abc') }, 'ERR_INVALID_ARG_TYPE'], [{ keys: 7 }, 'ERR_INVALID_ARG_TYPE'],
    [{ keys: null }, 'ERR_INVALID_ARG_TYPE'], [{ keys: [7] }, 'ERR_INVALID_ARG_TYPE'], [{ keys: [null] }, 'ERR_INVALID_ARG_TYPE'], [{ keys: new Array(3) }, 'ERR_INVALID_ARG_TYPE'],
  ]) {
    for (const call of calls(plane, filter)) {
      const error = await failure(call)
      assert.ok(error instanceof TypeError, String(error))
      assert.equal(error.code, code, error.message)
    }
  }
  for (const other of [keyless, repeating]) {
    for (const call of [...calls(other, { keys: ['a'] }), () => other.getMany(['a']), () => other.records({ after: 'a' })]) {
      assert.equal((await failure(call)).code, 'ERR_INVALID_ARG_VALUE')
    }
  }
})

test('a filter from another, larger plane names ids that are just not there', async (t) => {
  const { plane } = await filled(t, 20)
  const { plane: other } = await filled(t, 3000)
  const bits = bitset(Array.from({ length: 1500 }, (_, i) => 2 * i))
  assert.equal(plane.searchSync(vector(3), { k: 50, filter: bits }).length, 10)
  assert.equal(other.searchSync(vector(3), { k: 50, filter: bits }).length, 50)
})

test('getMany gives the vectors in the order of the keys', async (t) => {
  const { plane, vectors, names } = await filled(t, 100)
  const asked = [names[5], 'nobody', Buffer.from(names[7]), names[5], '']
  const found = plane.getMany(asked)
  assert.ok(Array.isArray(found))
  assert.deepEqual(found, [vectors[5], undefined, vectors[7], vectors[5], undefined])
  found[0][0] = 12345
  assert.deepEqual(plane.get(names[5]), vectors[5], 'the arrays are copies')
  assert.deepEqual(found[3], vectors[5])
  assert.deepEqual(plane.getMany([]), [])
  assert.deepEqual(plane.getMany(new Map([[names[3], 1]]).keys()), [vectors[3]])
  for (const keys of [undefined, null, 'k1', 4, {}, [4], [undefined], Buffer.from('k1')]) {
    assert.equal((await failure(() => plane.getMany(keys))).code, 'ERR_INVALID_ARG_TYPE')
  }
})

test('iteration gives every live record once, by ascending id', async (t) => {
  const { plane, vectors, names, ids } = await filled(t, 3000)
  const removed = new Set([...ids].filter((id) => id % 3 === 0 || id > 2900))
  plane.removeBatch(Uint32Array.from(removed))
  const expected = [...ids.entries()].filter(([, id]) => !removed.has(id)).sort((a, b) => a[1] - b[1])
  for (const iterable of [plane, plane.records(), plane.records({}), plane.records({ after: undefined })]) {
    const records = [...iterable]
    assert.deepEqual(records.map((record) => record.id), expected.map(([, id]) => id))
    for (const [at, record] of records.entries()) {
      const [row] = expected[at]
      assert.ok(Buffer.isBuffer(record.key))
      assert.equal(String(record.key), names[row])
      assert.deepEqual(record.vector, vectors[row])
    }
  }
  const [{ vector: kept, key }] = plane
  assert.deepEqual([kept.buffer.byteLength, key.length], [4 * DIMS, key.length], 'a record that is kept keeps no chunk')
  assert.deepEqual([...optionsPlane(t, { dims: 2 })], [])
})

test('iteration goes on after a key or an id, also in another handle', async (t) => {
  const { plane, names, ids, file } = await filled(t, 2500)
  const all = [...plane].map((record) => record.id)
  const other = closing(t, Plane.open(file, { readOnly: true }))
  for (const row of [0, 1, 1023, 1024, 2000, 2499]) {
    const rest = all.slice(all.indexOf(ids[row]) + 1)
    for (const handle of [plane, other]) {
      assert.deepEqual([...handle.records({ after: names[row] })].map((record) => record.id), rest)
      assert.deepEqual([...handle.records({ after: Buffer.from(names[row]) })].map((record) => record.id), rest)
      assert.deepEqual([...handle.records({ after: ids[row] })].map((record) => record.id), rest)
    }
  }
  assert.deepEqual([...plane.records({ after: 0xffffffff })], [])
  const missing = await failure(() => plane.records({ after: 'nobody' }))
  assert.ok(missing instanceof PlaneError)
  assert.equal(missing.code, 'PLANE_KEY_NOT_FOUND')
  for (const [after, code] of [
    [null, 'ERR_INVALID_ARG_TYPE'], [{}, 'ERR_INVALID_ARG_TYPE'], [true, 'ERR_INVALID_ARG_TYPE'], [[1], 'ERR_INVALID_ARG_TYPE'],
    [-1, 'ERR_OUT_OF_RANGE'], [0.5, 'ERR_OUT_OF_RANGE'], [2 ** 32, 'ERR_OUT_OF_RANGE'], [NaN, 'ERR_OUT_OF_RANGE'],
  ]) assert.equal((await failure(() => plane.records({ after }))).code, code, String(after))
  assert.equal((await failure(() => plane.records({ afterKey: 'a' }))).code, 'ERR_INVALID_ARG_VALUE')
  assert.equal((await failure(() => plane.records(7))).code, 'ERR_INVALID_ARG_TYPE')
})

test('iteration ends though every record is replaced on the way, and leaves out none that stays', async (t) => {
  const { plane, ids } = await filled(t, 3000)
  let steps = 0
  const seen = new Set()
  for (const record of plane) {
    steps += 1
    seen.add(record.id)
    if (record.id % 2) plane.upsert(record.key, vector(record.id + 5000))
  }
  assert.ok(steps <= 6000, `${steps} steps`)
  assert.ok([...ids].filter((id) => id % 2 === 0).every((id) => seen.has(id)))
})

test('iteration goes on through a compaction that keeps the ids, and tells of one that does not', async (t) => {
  const { plane, ids } = await filled(t, 3000)
  const kept = plane.records()
  const seen = [kept.next().value.id]
  await plane.compact()
  for (const { id } of kept) seen.push(id)
  assert.deepEqual(seen, [...ids].sort((a, b) => a - b))
  const renumbered = plane.records()
  renumbered.next()
  await plane.compact({ renumber: true })
  const error = await failure(() => [...renumbered])
  assert.ok(error instanceof PlaneError)
  assert.equal(error.code, 'PLANE_RENUMBERED')
  assert.equal([...plane].length, 3000)
})

test('a closed plane iterates no further', async (t) => {
  const { plane } = await filled(t, 3000)
  const records = plane.records()
  records.next()
  await plane.close()
  assert.equal((await failure(() => [...records])).code, 'PLANE_CLOSED')
  assert.equal((await failure(() => plane.records())).code, 'PLANE_CLOSED')
  assert.equal((await failure(() => plane.getMany([]))).code, 'PLANE_CLOSED')
})
