'use strict'

// Vectors that arithmetic chokes on. The rules: what is not finite, or whose norm is not, is refused; a zero vector is
// stored and lies at distance 1 from everything; a zero query has no direction and is refused; scale does not matter.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { failure, keyAt, optionsPlane, pack, packKeys, randVec, rng, wf } = require('./helpers.js')
const { insertAll, keyOf, testForms } = require('./case-helpers.js')

const DIMS = 8
const NONE = 0xffffffff
const random = rng(10)
const normal = Array.from({ length: 100 }, () => randVec(random, DIMS))
const [base] = normal
const scaled = (factor) => base.map((x) => x * factor)
const at = (position, value) => base.map((x, i) => (i === position ? value : x))

const REFUSED = {
  'a NaN': at(3, NaN),
  'an infinity': at(7, Infinity),
  'a negative infinity': at(0, -Infinity),
  'a norm past the largest f32': new Float32Array(DIMS).fill(3e38),
}
const ZERO = { zero: new Float32Array(DIMS), 'negative zero': new Float32Array(DIMS).fill(-0) }
const SCALED = {
  '1e-20': scaled(1e-20),
  '1e-40, subnormal': scaled(1e-40),
  '1e-44, the last bits': scaled(1e-44),
  '1e18': scaled(1e18),
  '1e37': scaled(1e37),
}

testForms('what is not finite is refused, and the next call is fine', async (t, { create }) => {
  const plane = create(t, DIMS, 1000)
  const ids = insertAll(plane, normal)
  const before = [...plane.searchSync(base, 10, 64).ids]
  for (const [name, vector] of Object.entries(REFUSED)) {
    for (const call of [
      () => plane.insert(vector, 'bad'), () => plane.insertAsync(vector, 'bad'),
      () => plane.searchSync(vector, 10, 64), () => plane.search(vector, 10, 64),
      () => plane.searchExact(vector, { k: 10 }),
    ]) {
      const error = await failure(call)
      assert.ok(error instanceof RangeError, `${name}: ${error}`)
      assert.equal(error.code, 'PLANE_NOT_FINITE', name)
      assert.match(error.message, /finite/)
    }
    assert.equal(plane.count, 100)
    assert.equal(wf(plane.searchSync(base, 10, 64)).ids[0], ids[0])
  }
  assert.deepEqual([...plane.searchSync(base, 10, 64).ids], before)
})

testForms('a batch leaves out exactly the records that are not finite', async (t, { create }) => {
  const plane = create(t, DIMS, 1000)
  const rows = normal.slice(0, 10)
  rows[3] = REFUSED['a NaN']
  rows[7] = ZERO.zero
  const { keys, keyEnds } = packKeys(rows.map((_, i) => keyOf(i)))
  const { ids, rejected } = await plane.insertBatch(pack(rows), keys, keyEnds)
  assert.deepEqual(rejected.map(({ index, code }) => [index, code]), [[3, 'not-finite']])
  assert.match(rejected[0].reason, /finite/)
  assert.equal(ids[3], NONE)
  assert.equal(new Set(ids).size, 10)
  assert.equal(plane.count, 9)
  for (const i of [0, 1, 2, 4, 5, 6, 8, 9]) {
    const hits = wf(await plane.search(rows[i], 10, 64))
    assert.equal(hits.length, 9)
    assert.equal(hits.ids[0], ids[i])
    assert.ok(hits.distances[0] < 1e-3)
    assert.equal(keyAt(hits, 0).toString(), `k${i}`)
  }

  const all = Object.values(REFUSED)
  const refused = await plane.insertBatch(pack(all), packKeys(Object.keys(REFUSED)))
  assert.deepEqual(refused.rejected.map(({ index, code }) => [index, code]), all.map((_, i) => [i, 'not-finite']))
  assert.deepEqual([...refused.ids], all.map(() => NONE))
  assert.equal(plane.count, 9)
})

testForms('a zero vector lies at distance 1 from everything, and a zero query is refused', async (t, { create }) => {
  const plane = create(t, DIMS, 1000)
  // First and last, so that one of them is the entry point at some time.
  const zeros = [plane.insert(ZERO.zero, 'z0')]
  const ids = insertAll(plane, normal)
  zeros.push(plane.insert(ZERO['negative zero'], 'z1'), plane.insert(ZERO.zero, 'z2'))
  for (const [i, vector] of normal.entries()) {
    for (const hits of [plane.searchSync(vector, 103, 128), plane.searchExact(vector, { k: 103 })]) {
      assert.equal(wf(hits).length, 103)
      assert.equal(hits.ids[0], ids[i])
      for (const zero of zeros) assert.equal(hits.distances[hits.ids.indexOf(zero)], 1)
    }
  }
  for (const [name, query] of Object.entries(ZERO)) {
    for (const call of [() => plane.searchSync(query, 10, 64), () => plane.search(query, 10, 64)]) {
      const error = await failure(call)
      assert.ok(error instanceof RangeError)
      assert.equal(error.code, 'PLANE_ZERO_QUERY', name)
    }
  }
})

testForms('nothing but zero vectors still answers', async (t, { create }) => {
  const plane = create(t, DIMS, 1000)
  const ids = Array.from({ length: 300 }, (_, i) => plane.insert(ZERO.zero, `z${i}`))
  const hits = wf(await plane.search(base, 300, 300))
  assert.deepEqual([...hits.ids], ids)
  assert.ok(hits.distances.every((distance) => distance === 1))
})

testForms('scale does not matter, however tiny or huge', async (t, { create }) => {
  const plane = create(t, DIMS, 1000)
  const ids = insertAll(plane, normal)
  for (const [name, vector] of Object.entries(SCALED)) {
    // As a query: the answer is that of the vector itself. What few bits a subnormal keeps are its direction.
    const exact = name.startsWith('1e-4') ? 0.05 : 1e-4
    const hits = wf(await plane.search(vector, 10, 128))
    assert.equal(hits.ids[0], ids[0], name)
    assert.ok(hits.distances[0] < Math.max(exact, 1e-3), `${name}: ${hits.distances[0]}`)

    // As a record: at the distances of the vector itself.
    const id = plane.insert(vector, name)
    for (const query of normal) {
      const all = wf(await plane.search(query, 200, 256))
      const distance = all.distances[all.ids.indexOf(id)]
      const wanted = all.distances[all.ids.indexOf(ids[0])]
      assert.ok(Math.abs(distance - wanted) < exact, `${name}: ${distance} instead of ${wanted}`)
    }
    assert.equal(plane.remove(id), true)
  }
})

test('a norm at the edge of f32 is finite or refused, never wrong', async (t) => {
  for (const precision of ['int8', 'int16', 'f16', 'f32']) {
    const plane = optionsPlane(t, { dims: 2, precision })
    const largest = 3.4028234663852886e38
    const id = plane.insert(Float32Array.of(largest, 0))
    const hits = wf(plane.searchSync(Float32Array.of(largest, 0), 1))
    assert.deepEqual([...hits.ids], [id], precision)
    assert.ok(hits.distances[0] < 1e-3, `${precision}: ${hits.distances[0]}`)
    assert.equal((await failure(() => plane.insert(Float32Array.of(largest, largest)))).code, 'PLANE_NOT_FINITE')
  }
})
