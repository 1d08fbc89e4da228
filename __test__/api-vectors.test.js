'use strict'

// What goes in comes out: views and element types, extreme values, keys; one record at a time and in batches.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { PlaneError } = require('..')
const { casePlane, cosineDistance, failure, keyAt, optionsPlane, pack, packKeys, randVec, rng, wf } = require('./helpers.js')

const DIMS = 32

/** Fails unless `call`, which may throw or reject, refuses its argument as of the wrong type. */
async function refusesType(call, argument) {
  const error = await failure(call)
  assert.ok(error instanceof TypeError, `${argument}: ${error.name} ${error.message}`)
  assert.equal(error.code, 'ERR_INVALID_ARG_TYPE')
  assert.match(error.message, new RegExp(`^${argument} must be`))
}

test('vectors may be views of any buffer at any offset', async (t) => {
  const big = randVec(rng(3), 1000 * DIMS)
  const slice = (i) => Float32Array.from(big.subarray(DIMS * i, DIMS * i + DIMS))
  const plane = casePlane(t, DIMS, 4000)
  const ids = []
  for (let i = 0; i < 1000; i++) ids.push(plane.insert(big.subarray(DIMS * i, DIMS * i + DIMS), `k${i}`))
  const pooled = Buffer.from(slice(7).buffer)
  const aligned = pooled.byteOffset % 4 === 0 ? pooled : Buffer.concat([pooled])
  const shared = new Float32Array(new SharedArrayBuffer(4 * DIMS + 4), 4, DIMS)
  shared.set(slice(7))
  const resizable = new Float32Array(new ArrayBuffer(4 * DIMS, { maxByteLength: 8 * DIMS }))
  resizable.set(slice(7))
  const queries = {
    subarray: big.subarray(DIMS * 7, DIMS * 8),
    'view of a larger buffer': new Float32Array(big.buffer, 4 * DIMS * 7, DIMS),
    'pooled buffer': new Float32Array(aligned.buffer, aligned.byteOffset, DIMS),
    shared,
    resizable,
    copy: slice(7),
  }
  for (const [what, query] of Object.entries(queries)) {
    for (const hits of [plane.searchSync(query, 1, 128), await plane.search(query, 1, 128), plane.searchExact(query, { k: 1 })]) {
      assert.equal(wf(hits).ids[0], ids[7], what)
      assert.ok(hits.distances[0] < 1e-3, what)
      assert.equal(String(keyAt(hits, 0)), 'k7', what)
    }
    const id = plane.insert(query, what.slice(0, 16))
    assert.ok(cosineDistance(plane.getById(id), slice(7)) < 1e-3, what)
    plane.remove(id)
  }
})

test('a batch may be views of larger arrays', async (t) => {
  const plane = casePlane(t, DIMS, 4000)
  const vectors = randVec(rng(4), 12 * DIMS)
  const { keys, keyEnds } = packKeys(['a', 'bb', '', 'dddd'])
  const wide = { keys: Buffer.concat([Buffer.from('xx'), keys]), keyEnds: Uint32Array.of(9, 9, ...keyEnds) }
  const { ids } = await plane.insertBatch(vectors.subarray(DIMS, 5 * DIMS), wide.keys.subarray(2), wide.keyEnds.subarray(2))
  for (const [i, key] of ['a', 'bb', '', 'dddd'].entries()) {
    const hits = wf(plane.searchSync(vectors.slice(DIMS * (i + 1), DIMS * (i + 2)), 1))
    assert.equal(hits.ids[0], ids[i])
    assert.equal(String(hits.key(0)), key)
    assert.equal(String(plane.keyOf(ids[i])), key)
  }
})

test('a detached or wrongly long vector is refused', async (t) => {
  const plane = casePlane(t, DIMS, 100)
  plane.insert(randVec(rng(1), DIMS))
  const detached = new Float32Array(DIMS)
  structuredClone(detached, { transfer: [detached.buffer] })
  const calls = (vector) => [
    () => plane.insert(vector), () => plane.insertAsync(vector), () => plane.searchSync(vector, 1),
    () => plane.search(vector, 1), () => plane.searchExact(vector), () => plane.searchExactAsync(vector),
  ]
  for (const call of [...calls(detached), () => plane.insertBatch(detached)]) {
    const error = await failure(call)
    assert.ok(error instanceof TypeError)
    assert.equal(error.code, 'ERR_INVALID_ARG_VALUE')
    assert.match(error.message, /detached/)
  }
  for (const length of [0, 1, DIMS - 1, DIMS + 1, 2 * DIMS]) {
    for (const call of calls(new Float32Array(length))) {
      const error = await failure(call)
      assert.ok(error instanceof RangeError, `${length}`)
      assert.equal(error.code, 'PLANE_DIMENSION_MISMATCH')
      assert.match(error.message, /dims/)
    }
  }
  assert.equal(plane.count, 1)
})

test('anything but a Float32Array is refused and never reinterpreted', async (t) => {
  const plane = casePlane(t, DIMS, 100)
  plane.insert(randVec(rng(1), DIMS))
  const wrong = [
    null, undefined, 4, 'vector', true, {}, [], Array(DIMS).fill(1), new Float64Array(DIMS), new Int8Array(DIMS),
    new Uint8Array(4 * DIMS), new Uint32Array(DIMS), new BigInt64Array(DIMS), Buffer.alloc(4 * DIMS), Symbol('v'), 1n,
    new DataView(new ArrayBuffer(4 * DIMS)), new ArrayBuffer(4 * DIMS), { length: DIMS }, () => {},
  ]
  for (const vector of wrong) {
    for (const call of [
      () => plane.insert(vector), () => plane.insertAsync(vector), () => plane.searchSync(vector, 1),
      () => plane.search(vector, 1), () => plane.searchExact(vector), () => plane.searchExactAsync(vector),
    ]) {
      await refusesType(call, 'vector')
    }
    await refusesType(() => plane.insertBatch(vector), 'vectors')
  }
  assert.match((await failure(() => plane.insert([1]))).message, /Float32Array, got Array/)
  assert.match((await failure(() => plane.insert(new Float64Array(1)))).message, /got Float64Array/)
  assert.match((await failure(() => plane.insert(new DataView(new ArrayBuffer(4))))).message, /got DataView/)
  assert.equal(plane.count, 1)
  assert.equal(wf(plane.searchSync(randVec(rng(1), DIMS), 1)).length, 1)
})

test('zero, tiny, huge and non-finite vectors follow one rule each', async (t) => {
  const plane = casePlane(t, 8, 1000)
  const random = rng(66)
  const normal = Array.from({ length: 100 }, () => randVec(random, 8))
  normal.forEach((vector, i) => plane.insert(vector, `k${i}`))
  const scaled = (factor) => Float32Array.from(normal[0], (x) => x * factor)
  const poisoned = (value) => Float32Array.from(normal[1], (x, i) => (i === 3 ? value : x))

  for (const vector of [poisoned(NaN), poisoned(Infinity), poisoned(-Infinity), new Float32Array(8).fill(3e38)]) {
    for (const call of [
      () => plane.insert(vector), () => plane.insertAsync(vector), () => plane.searchSync(vector, 5),
      () => plane.search(vector, 5), () => plane.searchExact(vector), () => plane.searchExactAsync(vector),
    ]) {
      const error = await failure(call)
      assert.ok(error instanceof RangeError && !(error instanceof PlaneError))
      assert.equal(error.code, 'PLANE_NOT_FINITE')
      assert.match(error.message, /finite/)
    }
  }
  for (const zero of [new Float32Array(8), new Float32Array(8).fill(-0)]) {
    for (const call of [() => plane.searchSync(zero, 5), () => plane.search(zero, 5), () => plane.searchExact(zero)]) {
      const error = await failure(call)
      assert.ok(error instanceof RangeError)
      assert.equal(error.code, 'PLANE_ZERO_QUERY')
    }
    const id = plane.insert(zero, 'zero')
    const hits = wf(plane.searchSync(normal[5], 200, 400))
    assert.equal(hits.length, plane.count)
    assert.equal(hits.distances[hits.ids.indexOf(id)], 1, 'a zero vector is at distance 1 from everything')
    assert.notEqual(hits.ids[0], id)
  }
  for (const factor of [1e-20, 1e18, 1e-30]) {
    const id = plane.insert(scaled(factor), 'scaled')
    for (const query of [normal[0], normal[9], scaled(factor)]) {
      const hits = wf(plane.searchSync(query, 200, 400))
      assert.ok(Math.abs(hits.distances[hits.ids.indexOf(id)] - hits.distances[hits.ids.indexOf(0)]) < 1e-4, `${factor}`)
    }
    plane.remove(id)
  }
  const subnormal = plane.insert(scaled(1e-40), 'subnormal')
  const hits = wf(plane.searchSync(normal[9], 200, 400))
  assert.ok(hits.ids.includes(subnormal), 'found at whatever distance, which wf has found finite and in range')
  try {
    wf(plane.searchSync(scaled(1e-40), 5))
  } catch (error) {
    assert.equal(error.code, 'PLANE_ZERO_QUERY')
  }
  assert.equal(wf(plane.searchSync(normal[3], 1)).ids[0], 3)
})

test('a batch lists its bad records and lands the rest', async (t) => {
  const plane = casePlane(t, 8, 1000)
  const random = rng(5)
  const vectors = Array.from({ length: 10 }, () => randVec(random, 8))
  vectors[3][2] = NaN
  vectors[7].fill(0)
  const { ids, rejected } = await plane.insertBatch(pack(vectors))
  assert.equal(ids.length, 10)
  assert.deepEqual(rejected.map(({ index, code }) => ({ index, code })), [{ index: 3, code: 'not-finite' }])
  assert.match(rejected[0].reason, /finite/)
  assert.equal(ids[3], 0xffffffff)
  assert.equal(plane.count, 9)
  for (const i of [0, 1, 2, 4, 5, 6, 8, 9]) assert.equal(wf(plane.searchSync(vectors[i], 1)).ids[0], ids[i])
})

test('get and getById give back what was stored', (t) => {
  const vector = randVec(rng(8), 19)
  for (const metric of ['cosine', 'l2', 'inner-product']) {
    for (const precision of ['int8', 'int16', 'f16', 'f32']) {
      const exact = optionsPlane(t, { dims: 19, keyCap: 4, metric, precision })
      const id = exact.insert(vector, 'v')
      assert.deepEqual(exact.getById(id), vector, `${metric} ${precision}: bit for bit`)
      assert.deepEqual(exact.get('v'), vector)
      const decoded = optionsPlane(t, { dims: 19, keyCap: 4, metric, precision, rerank: 'none' })
      const near = decoded.getById(decoded.insert(vector, 'v'))
      const step = { int8: 1 / 127, int16: 1 / 32767, f16: 1 / 1024, f32: 0 }[precision] * Math.max(...vector.map(Math.abs))
      near.forEach((x, i) => assert.ok(Math.abs(x - vector[i]) <= step, `${metric} ${precision}: ${x} for ${vector[i]}`))
    }
  }
  const plane = optionsPlane(t, { dims: 19 })
  assert.equal(plane.getById(0), undefined)
  assert.equal(plane.getById(0xffffffff), undefined)
})

test('what is returned is the caller\'s own', async (t) => {
  const plane = casePlane(t, 8, 100)
  const vector = randVec(rng(1), 8)
  const id = plane.insert(vector, 'mine')
  plane.getById(id).fill(7)
  plane.keyOf(id).fill(0)
  const hits = plane.searchSync(vector, 1)
  hits.keys.fill(0)
  hits.ids.fill(9)
  const again = wf(await plane.search(vector, 1))
  assert.deepEqual([again.ids[0], String(again.key(0)), String(plane.keyOf(id))], [id, 'mine', 'mine'])
  assert.ok(cosineDistance(plane.getById(id), vector) < 1e-3)
  const moved = structuredClone(again.ids, { transfer: [again.ids.buffer] })
  assert.equal(moved[0], id)
})

test('what is given is copied before the call returns', async (t) => {
  const dims = 128
  const plane = casePlane(t, dims, 10_000)
  const random = rng(12)
  const vectors = Array.from({ length: 2000 }, () => randVec(random, dims))
  const block = pack(vectors)
  const { keys, keyEnds } = packKeys(vectors.map((_, i) => `k${i}`))
  const inserting = plane.insertBatch(block, { keys, keyEnds })
  block.fill(0)
  keys.fill(0)
  keyEnds.fill(0)
  const { ids, rejected } = await inserting
  assert.deepEqual(rejected, [])

  const one = Float32Array.from(vectors[1500])
  const alone = plane.search(one, 10, 256)
  one.fill(0)
  assert.equal(wf(await alone).ids[0], ids[1500])

  const reused = new Float32Array(dims)
  const answers = await Promise.all(vectors.slice(0, 1000).map((vector) => {
    reused.set(vector)
    return plane.search(reused, 1, 64)
  }))
  answers.forEach((hits, i) => {
    assert.equal(wf(hits).ids[0], ids[i])
    assert.equal(String(hits.key(0)), `k${i}`)
  })

  const filter = new Uint8Array(300)
  filter[ids[3] >> 3] = 1 << (ids[3] & 7)
  const filtered = plane.search(vectors[5], 10, 64, filter)
  filter.fill(0)
  assert.deepEqual([...(await filtered).ids], [ids[3]])

  const key = Buffer.from('before')
  const late = plane.insertAsync(Float32Array.from(vectors[0]), key)
  key.write('after!')
  assert.equal(String(plane.keyOf(await late)), 'before')
})
