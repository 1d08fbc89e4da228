'use strict'

// Keys, the keyed members, and the limits of a plane: records and room for long keys.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { Plane, PlaneError } = require('..')
const { casePlane, closing, failure, optionsPlane, pack, packKeys, randVec, rng, tempPath, wf } = require('./helpers.js')

const vector = (seed, dims = 8) => randVec(rng(seed), dims)

test('a key is a string, a Buffer or a Uint8Array', async (t) => {
  const plane = optionsPlane(t, { dims: 8, keyCap: 8 })
  const pooled = Buffer.from('Grüße')
  const wide = Buffer.concat([Buffer.from('xx'), pooled, Buffer.from('yy')])
  const offset = new Uint8Array(wide.buffer, wide.byteOffset + 2, pooled.length)
  const id = plane.insert(vector(1), 'Grüße')
  for (const key of ['Grüße', pooled, offset, new Uint8Array(pooled)]) {
    assert.equal(plane.idOf(key), id)
    assert.equal(plane.has(key), true)
    assert.equal((await failure(() => plane.insert(vector(2), key))).code, 'PLANE_KEY_EXISTS')
  }
  assert.deepEqual(plane.keyOf(id), pooled)
  assert.ok(Buffer.isBuffer(plane.keyOf(id)))
  const binary = Buffer.from([0, 255, 0, 128])
  assert.deepEqual(plane.keyOf(plane.insert(vector(3), binary)), binary)
  assert.equal(plane.idOf(binary), 1)
  assert.equal(String(plane.keyOf(plane.insert(vector(4), 'nul\0inside'))), 'nul\0inside')
})

test('what is no key is refused', async (t) => {
  const plane = optionsPlane(t, { dims: 8, keyCap: 8 })
  for (const key of [4, 4n, true, {}, ['a'], Symbol('a'), new Uint16Array(2), new Float32Array(1), new DataView(new ArrayBuffer(2)), new ArrayBuffer(2)]) {
    for (const call of [
      () => plane.insert(vector(1), key), () => plane.insertAsync(vector(1), key), () => plane.idOf(key), () => plane.has(key),
      () => plane.get(key), () => plane.removeKey(key), () => plane.upsert(key, vector(1)), () => plane.upsertAsync(key, vector(1)),
    ]) {
      const error = await failure(call)
      assert.ok(error instanceof TypeError && error.code === 'ERR_INVALID_ARG_TYPE')
      assert.match(error.message, /^key must be a string, Buffer or Uint8Array/)
    }
  }
  for (const key of [undefined, null]) {
    for (const call of [() => plane.idOf(key), () => plane.has(key), () => plane.get(key), () => plane.removeKey(key)]) {
      assert.equal((await failure(call)).code, 'ERR_INVALID_ARG_TYPE')
    }
  }
  assert.equal(plane.count, 0)
})

test('the keyed members follow one record', async (t) => {
  const plane = optionsPlane(t, { dims: 8, keyCap: 8 })
  const id = await plane.insertAsync(vector(1), 'a')
  assert.deepEqual([plane.has('a'), plane.idOf('a'), plane.has('b'), plane.idOf('b')], [true, id, false, undefined])
  assert.deepEqual(plane.get('a'), vector(1))
  assert.equal(plane.get('b'), undefined)
  for (const call of [() => plane.insert(vector(2), 'a'), () => plane.insertAsync(vector(2), 'a')]) {
    const error = await failure(call)
    assert.ok(error instanceof PlaneError)
    assert.equal(error.code, 'PLANE_KEY_EXISTS')
  }
  assert.equal(plane.removeKey('a'), true)
  assert.equal(plane.removeKey('a'), false)
  assert.deepEqual([plane.has('a'), plane.get('a'), plane.keyOf(id), plane.count], [false, undefined, undefined, 0])
  const again = plane.insert(vector(3), 'a')
  assert.equal(plane.idOf('a'), again)
  plane.remove(again)
  assert.equal(plane.has('a'), false, 'remove by id frees the key too')
})

test('keys find their records after reopening', async (t) => {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: 8, keyCap: 4 }, file)
  const names = Array.from({ length: 300 }, (_, i) => `${'long '.repeat(i % 7)}${i}`)
  const vectors = names.map((_, i) => vector(i))
  const { ids } = await plane.insertBatch(pack(vectors), packKeys(names))
  await plane.close()
  const again = closing(t, Plane.open(file))
  names.forEach((name, i) => {
    assert.equal(again.idOf(name), ids[i])
    assert.deepEqual(again.get(name), vectors[i])
    assert.equal(String(again.keyOf(ids[i])), name)
  })
})

test('upsert replaces the record of a key, and no answer has the old one', async (t) => {
  const plane = optionsPlane(t, { dims: 8, keyCap: 8 })
  for (const upsert of [(...record) => plane.upsert(...record), (...record) => plane.upsertAsync(...record)]) {
    const first = await upsert('a', vector(1))
    assert.deepEqual([plane.idOf('a'), plane.get('a')], [first, vector(1)])
    for (let round = 2; round < 50; round++) {
      const id = await upsert('a', vector(round))
      assert.equal(plane.count, 1)
      assert.deepEqual([plane.idOf('a'), plane.get('a')], [id, vector(round)])
      const hits = wf(await plane.search(vector(round - 1), 10))
      assert.deepEqual([...hits.ids], [id])
    }
    for (const [wrong, code] of [[vector(1, 7), 'PLANE_DIMENSION_MISMATCH'], [new Float32Array(8).fill(NaN), 'PLANE_NOT_FINITE']]) {
      assert.equal((await failure(() => upsert('a', wrong))).code, code)
    }
    assert.equal((await failure(() => upsert('', vector(1)))).code, 'PLANE_KEY_UNSTORABLE')
    assert.deepEqual(plane.get('a'), vector(49), 'a refused upsert leaves the old record')
    plane.removeKey('a')
  }
})

test('upsertBatch adds and replaces, and of several records with one key the last counts', async (t) => {
  const plane = optionsPlane(t, { dims: 8, keyCap: 8 })
  const old = plane.insert(vector(100), 'b')
  const vectors = [1, 2, 3, 4, 5].map((i) => vector(i))
  vectors[3][0] = NaN
  const told = []
  const { ids, rejected } = await plane.upsertBatch(pack(vectors), {
    ...packKeys(['a', 'b', 'a', 'c', 'd']), threads: 2, onProgress: (...progress) => told.push(progress),
  })
  assert.deepEqual(rejected.map(({ index, code }) => [index, code]), [[3, 'not-finite']])
  assert.deepEqual([plane.count, told.at(-1)], [3, [5, 5]])
  assert.deepEqual([plane.get('a'), plane.get('b'), plane.get('d')], [vectors[2], vectors[1], vectors[4]])
  assert.deepEqual([...ids], [plane.idOf('a'), plane.idOf('b'), plane.idOf('a'), 0xffffffff, plane.idOf('d')])
  assert.equal(plane.getById(old) === undefined || plane.idOf('b') !== old, true)
  assert.equal((await failure(() => plane.upsertBatch(vector(1)))).code, 'ERR_INVALID_ARG_VALUE', 'keys must be given')
  for (const rest of [[Buffer.from('a'), Uint32Array.of(1)], [null], [{ key: 'a' }]]) {
    assert.ok(await failure(() => plane.upsertBatch(vector(1), ...rest)) instanceof TypeError)
  }
  const stopped = await failure(() => plane.upsertBatch(vector(1), { ...packKeys(['e']), signal: AbortSignal.abort() }))
  assert.deepEqual([stopped.name, stopped.ids.length], ['AbortError', 1])
  assert.equal((await plane.verify()).ok, true)
})

test('planes whose keys may repeat have no keyed members', async (t) => {
  const plane = casePlane(t, 8, 100)
  const ids = [plane.insert(vector(1), 'same'), plane.insert(vector(2), 'same'), plane.insert(vector(3))]
  assert.deepEqual(ids.map((id) => String(plane.keyOf(id))), ['same', 'same', ''])
  for (const call of [() => plane.idOf('same'), () => plane.has('same'), () => plane.get('same'), () => plane.removeKey('same'),
    () => plane.upsert('same', vector(1)), () => plane.upsertAsync('same', vector(1)), () => plane.upsertBatch(vector(1), packKeys(['same']))]) {
    const error = await failure(call)
    assert.ok(error instanceof TypeError)
    assert.equal(error.code, 'ERR_INVALID_ARG_VALUE')
    assert.match(error.message, /uniqueKeys/)
  }
  assert.equal(plane.count, 3)
})

test('a key that cannot be stored is refused, thrown and rejected', async (t) => {
  const keyless = optionsPlane(t, { dims: 8 })
  const unique = optionsPlane(t, { dims: 8, keyCap: 4 })
  for (const [plane, key, message] of [
    [keyless, 'k', /keeps no keys/],
    [unique, 'x'.repeat(65_536), /65535/],
    [unique, '', /empty/],
    [unique, undefined, /empty/],
  ]) {
    for (const call of [() => plane.insert(vector(1), key), () => plane.insertAsync(vector(1), key)]) {
      const error = await failure(call)
      assert.ok(error instanceof PlaneError)
      assert.equal(error.code, 'PLANE_KEY_UNSTORABLE')
      assert.match(error.message, message)
    }
    assert.equal(plane.count, 0)
  }
  const longest = 'x'.repeat(65_535)
  assert.equal(String(unique.keyOf(unique.insert(vector(1), longest))), longest)
  assert.equal(unique.idOf(longest), 0)
})

test('a full plane says so, goes on answering, and takes records again after a remove', async (t) => {
  const file = tempPath(t)
  let plane = casePlane(t, 16, 100, { file })
  const vectors = Array.from({ length: 160 }, (_, i) => vector(i, 16))
  const ids = vectors.slice(0, 100).map((v) => plane.insert(v))
  const full = async () => {
    for (const call of [() => plane.insert(vectors[100]), () => plane.insertAsync(vectors[100])]) {
      const error = await failure(call)
      assert.ok(error instanceof PlaneError)
      assert.equal(error.code, 'PLANE_FULL')
      assert.match(error.message, /full.*maxNodes.*100/)
    }
    ids.forEach((id, i) => assert.equal(wf(plane.searchSync(vectors[i], 1, 128)).ids[0], id))
  }
  await full()
  assert.equal(plane.remove(ids[41]), true)
  vectors[41] = vectors[101]
  assert.equal(plane.insert(vectors[41]), ids[41])
  await full()

  plane.removeBatch(Uint32Array.from(ids.slice(90)))
  const error = await failure(() => plane.insertBatch(pack(vectors.slice(110, 160)), { threads: 4 }))
  assert.equal(error.code, 'PLANE_FULL')
  assert.equal(error.inserted, 10)
  ids.length = 90
  const landed = [...error.ids.entries()].filter(([, id]) => id !== 0xffffffff)
  assert.equal(landed.length, 10)
  const found = landed.map(([i, id]) => [vectors[110 + i], id])
  found.forEach(([v, id], i) => {
    vectors[90 + i] = v
    ids[90 + i] = id
  })
  assert.equal(new Set(ids).size, 100)
  await full()

  await plane.flushAsync()
  await plane.close()
  plane = closing(t, Plane.open(file))
  await full()
})

test('long keys that have used up their room leave short ones working', async (t) => {
  const plane = closing(t, Plane.create(tempPath(t), 16, 32, 100, 8, 20))
  let stored = 0
  const error = await failure(() => {
    for (;; stored++) plane.insert(vector(stored, 16), String(stored).padEnd(200))
  })
  assert.ok(error instanceof PlaneError)
  assert.equal(error.code, 'PLANE_KEYS_FULL')
  assert.ok(stored >= 5 && stored <= 10, `${stored} of 200 bytes fit into 2,000`)
  assert.equal((await failure(() => plane.insertAsync(vector(1, 16), 'y'.repeat(200)))).code, 'PLANE_KEYS_FULL')
  const batch = await failure(() => plane.insertBatch(vector(1, 16), packKeys(['z'.repeat(200)])))
  assert.deepEqual([batch.code, batch.inserted], ['PLANE_KEYS_FULL', 0])
  assert.equal(String(plane.keyOf(plane.insert(vector(77, 16), 'short'))), 'short')
  plane.remove(0)
  const id = plane.insert(vector(78, 16), 'w'.repeat(200))
  assert.equal(String(plane.keyOf(id)), 'w'.repeat(200), 'room of removed keys is used again')
  assert.equal(plane.count, stored + 1)
})
