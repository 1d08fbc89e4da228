'use strict'

// Tags: given with a record, found by, read back, refused when they cannot be.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { Plane, PlaneError } = require('..')
const { bitset, closing, exactSearch, failure, optionsPlane, pack, packKeys, randVec, rng, shuffle, tempPath, wf } = require('./helpers.js')

const DIMS = 8
const vector = (seed) => randVec(rng(seed), DIMS)
const keyed = (t, file = tempPath(t)) => optionsPlane(t, { dims: DIMS, keyCap: 8 }, file)

test('a record keeps the tags that it was given, in every form of writing', async (t) => {
  const plane = keyed(t)
  const tags = ['tenant:42', 7, 'lang:en', '7', 'tenant:42', 0, 0xffffffff, 'Grüße']
  const kept = [0, 7, 0xffffffff, '7', 'Grüße', 'lang:en', 'tenant:42']
  const ids = [
    plane.insert(vector(1), 'a', { tags }), await plane.insertAsync(vector(2), 'b', { tags: new Set(tags) }),
    plane.upsert('c', vector(3), { tags }), await plane.upsertAsync('d', vector(4), { tags }),
    ...(await plane.insertBatch(vector(5), { ...packKeys(['e']), tags: [tags] })).ids,
    ...(await plane.upsertBatch(vector(6), { ...packKeys(['f']), tags: [new Set(tags)] })).ids,
  ]
  for (const id of ids) assert.deepEqual(plane.tagsOf(id), kept)
  for (const record of plane) assert.deepEqual(record.tags, kept)
  const untagged = [
    plane.insert(vector(7), 'g'), plane.insert(vector(8), 'h', {}), plane.insert(vector(9), 'i', { tags: [] }),
    plane.upsert('a', vector(10)), plane.upsert('b', vector(11), { tags: undefined }), plane.upsert('c', vector(12), { tags: null }),
    ...(await plane.insertBatch(pack([vector(13), vector(14), vector(15)]), { ...packKeys(['j', 'k', 'l']), tags: [undefined, null, []] })).ids,
  ]
  for (const id of untagged) assert.deepEqual(plane.tagsOf(id), [])
  assert.equal(plane.tagsOf(1000), undefined)
  plane.removeKey('d')
  assert.equal(plane.tagsOf(ids[3]), undefined)
  assert.equal((await plane.verify()).ok, true)
})

test('searches by tags find the nearest of the records that have them', async (t) => {
  const file = tempPath(t)
  const plane = keyed(t, file)
  const random = rng(5)
  const count = 2000
  const vectors = Array.from({ length: count }, (_, i) => vector(i + 1))
  const names = vectors.map((_, i) => `k${i}`)
  const tags = vectors.map(() => ['a', 'b', 1, '1', 2].filter(() => random() < 0.3))
  const { ids } = await plane.insertBatch(pack(vectors), { ...packKeys(names), tags })
  const bits = bitset(shuffle([...ids], 3).slice(0, 1000))
  const keys = names.filter((_, i) => i % 3 === 0)
  const wanted = ({ anyOf, allOf, noneOf }) => (i) =>
    (anyOf === undefined || anyOf.some((tag) => tags[i].includes(tag))) && (allOf ?? []).every((tag) => tags[i].includes(tag)) &&
    !(noneOf ?? []).some((tag) => tags[i].includes(tag))
  const check = async (plane) => {
    for (const query of [
      { anyOf: ['a'] }, { anyOf: [1] }, { anyOf: ['1'] }, { anyOf: ['a', 2] }, { allOf: ['a', 'b'] }, { allOf: ['a', 'b', 1, '1', 2] }, { noneOf: ['a'] },
      { anyOf: ['a', 'b'], allOf: [1], noneOf: [2] }, { anyOf: ['nobody'] }, { anyOf: ['nobody', 'a'] }, { allOf: ['nobody'] }, { noneOf: ['nobody'] },
      {}, { anyOf: [] }, { allOf: [] }, { noneOf: [] },
    ]) {
      for (const [filter, passes] of [[undefined, () => true], [bits, (i) => bits[ids[i] >> 3] >> (ids[i] & 7) & 1], [{ keys }, (i) => i % 3 === 0]]) {
        const point = vector(9999)
        const allowed = wanted(query)
        const truth = exactSearch(vectors, point, 10, { allowed: (i) => allowed(i) && passes(i) }).map((i) => ids[i])
        const options = { filter, tags: query }
        const exact = wf(plane.searchExact(point, options))
        assert.deepEqual([...exact.ids], truth, JSON.stringify(query))
        for (const hits of [
          wf(plane.searchSync(point, { ...options, ef: 400 })), wf(await plane.search(point, { ...options, ef: 400 })),
          await plane.searchBatch(point, { ...options, ef: 400 }), wf(await plane.searchExactAsync(point, options)),
        ]) assert.deepEqual(hits.ids, exact.ids, JSON.stringify(query))
      }
    }
  }
  await check(plane)
  await plane.compact()
  await check(plane)
  await plane.close()
  await check(closing(t, Plane.open(file, { readOnly: true })))
})

test('bad tags are refused with a code, and rejected in batches', async (t) => {
  const plane = keyed(t)
  const calls = (tags) => [
    () => plane.insert(vector(1), 'x', { tags }), () => plane.insertAsync(vector(1), 'x', { tags }),
    () => plane.upsert('x', vector(1), { tags }), () => plane.upsertAsync('x', vector(1), { tags }),
    () => plane.searchSync(vector(1), { tags: { anyOf: tags } }), () => plane.search(vector(1), { tags: { noneOf: tags } }),
  ]
  const unfit = [[''], ['x'.repeat(256)], ['é'.repeat(128)], [-1], [0.5], [2 ** 32], [NaN], [Infinity]]
  const many = Array.from({ length: 65 }, (_, i) => i)
  for (const tags of unfit) {
    for (const call of calls(tags)) {
      const error = await failure(call)
      assert.ok(error instanceof PlaneError)
      assert.equal(error.code, 'PLANE_TAG_INVALID', String(tags))
    }
  }
  for (const call of calls(many).slice(0, 4)) assert.equal((await failure(call)).code, 'PLANE_TAG_INVALID')
  assert.equal(plane.searchSync(vector(1), { tags: { anyOf: many } }).length, 0, 'a query may name more tags than a record has')
  for (const tags of ['a', 7, true, {}, Buffer.from('a'), [null], [{}], [['a']], [7n], [undefined], [Symbol('a')]]) {
    for (const call of [...calls(tags), () => plane.insertBatch(vector(1), { ...packKeys(['x']), tags: [tags] })]) {
      const error = await failure(call)
      assert.ok(error instanceof TypeError, `${String(error)} for ${typeof tags}`)
      assert.equal(error.code, 'ERR_INVALID_ARG_TYPE')
    }
  }
  assert.equal(plane.count, 0)
  const sets = [...unfit, many, ['good']]
  const names = sets.map((_, i) => `k${i}`)
  const { ids, rejected } = await plane.insertBatch(pack(sets.map((_, i) => vector(i + 1))), { ...packKeys(names), tags: sets })
  assert.deepEqual(rejected.map(({ index, code }) => [index, code]), sets.slice(0, -1).map((_, i) => [i, 'tag-invalid']))
  assert.ok(rejected.every(({ reason }) => reason.length > 10))
  assert.deepEqual([...ids.slice(0, -1)], sets.slice(0, -1).map(() => 0xffffffff))
  assert.deepEqual(plane.tagsOf(ids.at(-1)), ['good'])
  for (const [call, code] of [
    [() => plane.insertBatch(vector(1), { ...packKeys(['x']), tags: [] }), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.insertBatch(vector(1), { ...packKeys(['x']), tags: [[], []] }), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.insertBatch(vector(1), { ...packKeys(['x']), tags: 'a' }), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.insert(vector(1), 'x', { tag: ['a'] }), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.insert(vector(1), 'x', ['a']), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.searchSync(vector(1), { tags: ['a'] }), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.searchSync(vector(1), { tags: { any: ['a'] } }), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.searchExact(vector(1), { tags: { anyOf: 'a' } }), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.tagsOf('a'), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.tagsOf(-1), 'ERR_OUT_OF_RANGE'],
  ]) assert.equal((await failure(call)).code, code, String(call))
  assert.equal(plane.count, 1)
})

test('limits are exact: 64 tags of 255 bytes', async (t) => {
  const plane = keyed(t)
  const tags = Array.from({ length: 64 }, (_, i) => String(i).padStart(255, '0'))
  const id = plane.insert(vector(1), 'a', { tags: [...tags, ...tags] })
  assert.deepEqual(plane.tagsOf(id), tags)
  assert.deepEqual([...plane.searchSync(vector(1), { tags: { allOf: tags } }).ids], [id])
})

test('the event loop turns while a long batch with tags is looked at', async (t) => {
  const plane = optionsPlane(t, { dims: 2, M: 2, layer0Cap: 4, efConstruction: 4 })
  const count = 60_000
  const vectors = Float32Array.from({ length: 2 * count }, (_, i) => Math.sin(i))
  const tags = Array.from({ length: count }, (_, i) => [`t${i % 100}`, i % 1000])
  let last = performance.now()
  let longest = 0
  const tick = () => {
    longest = Math.max(longest, performance.now() - last)
    last = performance.now()
  }
  const timer = setInterval(tick, 1)
  const inserting = plane.insertBatch(vectors, { tags })
  tick()
  const { ids, rejected } = await inserting
  clearInterval(timer)
  assert.equal(rejected.length, 0)
  assert.ok(longest < 500, `${longest} ms`)
  assert.deepEqual(plane.tagsOf(ids[54_321]), [321, 't21'])
  assert.equal(plane.searchExact(Float32Array.of(1, 1), { k: 1000, tags: { allOf: ['t21', 321] } }).length, 60)
})

test('keys of 64 KiB and empty keys, keys on a plane without them, and a key that comes twice have one rule each', async (t) => {
  const plane = keyed(t)
  const repeating = optionsPlane(t, { dims: DIMS, keyCap: 8, uniqueKeys: false })
  const keyless = optionsPlane(t, { dims: DIMS })
  const longest = 'k'.repeat(65_535)
  assert.equal(String(plane.keyOf(plane.insert(vector(1), longest, { tags: ['a'] }))), longest)
  assert.equal((await failure(() => plane.insert(vector(1), `${longest}k`))).code, 'PLANE_KEY_UNSTORABLE')
  assert.equal((await failure(() => plane.insert(vector(1), ''))).code, 'PLANE_KEY_UNSTORABLE')
  assert.deepEqual(repeating.keyOf(repeating.insert(vector(1), '')), Buffer.alloc(0))
  assert.equal((await failure(() => keyless.insert(vector(1), 'a'))).code, 'PLANE_KEY_UNSTORABLE')
  assert.deepEqual(keyless.tagsOf(keyless.insert(vector(1), null, { tags: ['a'] })), ['a'])
  const vectors = pack([vector(1), vector(2), vector(3)])
  const inserted = await plane.insertBatch(vectors, { ...packKeys(['x', 'y', 'x']), tags: [['first'], [], ['last']] })
  assert.deepEqual(inserted.rejected.map(({ index, code }) => [index, code]), [[2, 'key-exists']])
  assert.deepEqual(plane.tagsOf(plane.idOf('x')), ['first'])
  const upserted = await plane.upsertBatch(vectors, { ...packKeys(['x', 'y', 'x']), tags: [['first'], [], ['last']] })
  assert.equal(upserted.ids[0], upserted.ids[2])
  assert.deepEqual(plane.tagsOf(plane.idOf('x')), ['last'])
})
