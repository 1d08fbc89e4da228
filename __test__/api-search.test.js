'use strict'

// search, searchSync, searchExact and their promise forms: arguments, options, filters, signals, answers.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { PlaneError, SearchHits } = require('..')
const {
  bitset, casePlane, clustered, exactSearch, failure, innerProductDistance, keyAt, l2Distance, optionsPlane, pack, packKeys,
  queriesNear, randVec, recall, rng, wf,
} = require('./helpers.js')

/** A plane whose ids are the positions in `vectors`: one thread gives them in input order. */
async function filled(t, n, dims = 16) {
  const plane = casePlane(t, dims, 1000)
  const random = rng(9)
  const vectors = Array.from({ length: n }, () => randVec(random, dims))
  await plane.insertBatch(pack(vectors), { ...packKeys(vectors.map((_, i) => `k${i}`)), threads: 1 })
  return { plane, vectors }
}

/** Every way to ask for k hits, in both forms. */
const asks = (plane, query, k, ef) => ({
  'search(v, k, ef)': () => plane.search(query, k, ef),
  'searchSync(v, k, ef)': () => plane.searchSync(query, k, ef),
  'search(v, { k, ef })': () => plane.search(query, { k, ef }),
  'searchSync(v, { k, ef })': () => plane.searchSync(query, { k, ef }),
})

for (const n of [0, 1, 5, 300]) {
  test(`${n} records: every valid k and ef gives min(k, live) hits`, async (t) => {
    const { plane } = await filled(t, n)
    const query = randVec(rng(1), 16)
    for (const k of [0, 1, 4, 5, 6, 1000, 2 ** 20]) {
      for (const ef of [1, 3, 5, 1000, undefined]) {
        for (const [how, ask] of Object.entries(asks(plane, query, k, ef))) {
          assert.equal(wf(await ask()).length, Math.min(k, n), `${how} with ${k}, ${ef}`)
        }
      }
      assert.equal(wf(plane.searchExact(query, { k })).length, Math.min(k, n))
    }
  })
}

test('a large k does not allocate by k', async (t) => {
  const { plane } = await filled(t, 300)
  const query = randVec(rng(1), 16)
  plane.searchSync(query, 10)
  const before = process.memoryUsage.rss()
  for (let i = 0; i < 20; i++) plane.searchSync(query, 2 ** 20, 1)
  assert.ok(process.memoryUsage.rss() - before < 50e6)
})

test('an invalid k or ef is named, the same way each time', async (t) => {
  const { plane, vectors } = await filled(t, 5)
  const query = randVec(rng(1), 16)
  for (const value of [-1, -0.5, 1.5, NaN, Infinity, -Infinity, 2 ** 20 + 1, 2 ** 32, 2 ** 53, 1e300]) {
    for (const call of [
      ...Object.values(asks(plane, query, value, 64)), () => plane.searchExact(query, { k: value }),
      () => plane.searchExactAsync(query, { k: value }),
    ]) {
      const error = await failure(call)
      assert.ok(error instanceof RangeError && error.code === 'ERR_OUT_OF_RANGE', `k ${value}: ${error}`)
      assert.match(error.message, /^k must be/)
    }
    for (const call of Object.values(asks(plane, query, 5, value))) {
      const error = await failure(call)
      assert.ok(error instanceof RangeError && error.code === 'ERR_OUT_OF_RANGE', `ef ${value}: ${error}`)
      assert.match(error.message, /^ef must be/)
    }
  }
  for (const call of Object.values(asks(plane, query, 5, 0))) {
    assert.match((await failure(call)).message, /^ef must be/)
  }
  for (const value of ['3', true, Symbol('k'), 3n, () => 3]) {
    for (const call of Object.values(asks(plane, query, value, 64))) {
      const error = await failure(call)
      assert.ok(error instanceof TypeError && error.code === 'ERR_INVALID_ARG_TYPE', `k ${String(value)}: ${error}`)
      assert.match(error.message, /^k must be/)
    }
    for (const call of Object.values(asks(plane, query, 5, value))) {
      assert.match((await failure(call)).message, /^ef must be a number/)
    }
  }
  for (const call of [() => plane.search(query, undefined, 64), () => plane.searchSync(query, undefined, 64)]) {
    const error = await failure(call)
    assert.equal(error.code, 'ERR_INVALID_ARG_TYPE', 'by position, k must be given')
    assert.match(error.message, /^k must be/)
  }
  for (const value of [0, -1, 1.5, NaN, 'x', null]) {
    const error = await failure(() => plane.searchSync(query, 5, 64, undefined, value))
    assert.match(error.message, /^filterExpansion must be/)
  }
  assert.equal(wf(await plane.search(vectors[2], 1)).ids[0], 2)
})

test('k is 10 unless given, and undefined options are not given', async (t) => {
  const { plane } = await filled(t, 30)
  const query = randVec(rng(1), 16)
  for (const hits of [
    await plane.search(query), plane.searchSync(query), await plane.search(query, {}), plane.searchSync(query, undefined),
    plane.searchSync(query, { k: undefined, ef: undefined, filter: undefined, rerank: undefined }),
    await plane.search(query, { signal: undefined }), plane.searchExact(query), await plane.searchExactAsync(query, {}),
  ]) {
    assert.equal(wf(hits).length, 10)
  }
})

test('unknown options are named with the nearest right spelling', async (t) => {
  const { plane } = await filled(t, 5)
  const query = randVec(rng(1), 16)
  for (const [options, message] of [
    [{ K: 5 }, /unknown option 'K': did you mean 'k'\?/],
    [{ topK: 5 }, /unknown option 'topK'/],
    [{ efs: 5 }, /did you mean 'ef'\?/],
    [{ fliter: new Uint8Array(1) }, /did you mean 'filter'\?/],
    [{ rernk: true }, /did you mean 'rerank'\?/],
    [{ completelyOther: 1 }, /known are k, ef, recall, filter/],
    [Object.create({ inherited: 1 }), /unknown option 'inherited'/],
  ]) {
    for (const call of [() => plane.search(query, options), () => plane.searchSync(query, options)]) {
      const error = await failure(call)
      assert.ok(error instanceof TypeError)
      assert.equal(error.code, 'ERR_INVALID_ARG_VALUE')
      assert.match(error.message, message)
    }
  }
  assert.match((await failure(() => plane.searchExact(query, { ef: 4 }))).message, /unknown option 'ef'/)
  const signal = new AbortController().signal
  assert.match((await failure(() => plane.searchSync(query, { signal }))).message, /unknown option 'signal'/)
  for (const options of [null, [], new Uint8Array(4)]) {
    for (const call of [() => plane.search(query, options), () => plane.searchSync(query, options)]) {
      assert.equal((await failure(call)).code, 'ERR_INVALID_ARG_TYPE')
    }
  }
  for (const rerank of [1, 'yes', null]) {
    assert.match((await failure(() => plane.searchSync(query, { rerank }))).message, /^rerank must be a boolean/)
  }
})

test('both forms and both calls give the same answer', async (t) => {
  const { plane } = await filled(t, 300)
  for (const query of queriesNear([randVec(rng(1), 16)], 20, 4)) {
    const answers = await Promise.all(Object.values(asks(plane, query, 7, 90)).map((ask) => ask()))
    for (const hits of answers) assert.deepEqual(hits, answers[0])
    assert.deepEqual([...plane.searchExact(query, { k: 7 }).ids], [...(await plane.searchExactAsync(query, { k: 7 })).ids])
  }
})

test('searchBatch gives the answers of search, one after the other', async (t) => {
  const { plane, vectors } = await filled(t, 300)
  const queries = queriesNear(vectors, 40, 4)
  const filter = bitset([1, 5, 9], 40)
  for (const options of [undefined, {}, { k: 3 }, { k: 7, ef: 90, threads: 1 }, { k: 5, filter, threads: 3 }, { rerank: false }, { k: 0 }]) {
    const { threads, ...each } = options ?? {}
    const block = pack(queries)
    const searching = plane.searchBatch(block, options)
    block.fill(0)
    const { ids, distances, keys, keyEnds, counts } = await searching
    assert.equal(counts.length, 40)
    let start = 0
    for (const [i, query] of queries.entries()) {
      const hits = plane.searchSync(query, each)
      const end = start + counts[i]
      assert.deepEqual(ids.slice(start, end), hits.ids)
      assert.deepEqual(distances.slice(start, end), hits.distances)
      for (let j = start; j < end; j++) assert.equal(String(keys.subarray(j ? keyEnds[j - 1] : 0, keyEnds[j])), `k${ids[j]}`)
      start = end
    }
    assert.deepEqual([ids.length, distances.length, keyEnds.length, keys.length], [start, start, start, keyEnds.at(-1) ?? 0])
  }
  assert.deepEqual([...(await plane.searchBatch(new Float32Array(0))).counts], [])
  for (const [input, options, Type, code, message] of [
    [pack(queries).subarray(1), {}, TypeError, 'ERR_INVALID_ARG_VALUE', /dims/],
    [[1], {}, TypeError, 'ERR_INVALID_ARG_TYPE', /vectors/],
    [pack(queries), { threads: 0 }, RangeError, 'ERR_OUT_OF_RANGE', /threads/],
    [pack(queries), { k: -1 }, RangeError, 'ERR_OUT_OF_RANGE', /^k /],
    [pack(queries), { thread: 1 }, TypeError, 'ERR_INVALID_ARG_VALUE', /did you mean 'threads'/],
    [pack([vectors[0], new Float32Array(16)]), {}, RangeError, 'PLANE_ZERO_QUERY', /zero/],
    [pack([vectors[0], new Float32Array(16).fill(NaN)]), {}, RangeError, 'PLANE_NOT_FINITE', /finite/],
  ]) {
    const error = await failure(() => plane.searchBatch(input, options))
    assert.ok(error instanceof Type && error.code === code, `${error}`)
    assert.match(error.message, message)
  }
})

test('an answer is made of parallel arrays and can be iterated', async (t) => {
  const { plane, vectors } = await filled(t, 30)
  const hits = wf(await plane.search(vectors[4], 3))
  assert.ok(hits instanceof SearchHits)
  assert.deepEqual(Object.keys(hits), ['ids', 'distances', 'keys', 'keyEnds'])
  assert.equal(hits.length, 3)
  const listed = [...hits]
  assert.deepEqual(listed.map((hit) => hit.id), [...hits.ids])
  assert.deepEqual(listed.map((hit) => hit.distance), [...hits.distances])
  listed.forEach((hit, i) => {
    assert.deepEqual(hit.key, keyAt(hits, i))
    assert.deepEqual(hits.key(i), keyAt(hits, i))
    assert.equal(String(hit.key), `k${hit.id}`)
  })
  for (const i of [3, -1, 1.5, 'a']) assert.equal((await failure(() => hits.key(i))).code, 'ERR_OUT_OF_RANGE')
  const bare = wf(optionsPlane(t, { dims: 4 }).searchSync(randVec(rng(1), 4)))
  assert.deepEqual([...bare], [])
})

test('records without keys have empty ones', (t) => {
  const plane = optionsPlane(t, { dims: 4 })
  plane.insert(randVec(rng(1), 4))
  plane.insert(randVec(rng(2), 4), null)
  const hits = wf(plane.searchSync(randVec(rng(1), 4)))
  assert.deepEqual([hits.keys.length, [...hits.keyEnds]], [0, [0, 0]])
  assert.equal(hits.key(1).length, 0)
})

test('a filter admits exactly the ids whose bit is set', async (t) => {
  const { plane, vectors } = await filled(t, 300)
  const query = vectors[17]
  const truth = (allowed) => exactSearch(vectors, query, 10, { allowed: (id) => allowed.includes(id) })
  for (const allowed of [[], [17], [3], [1, 2, 3, 250, 299], vectors.map((_, i) => i)]) {
    const filter = bitset(allowed, 40)
    for (const hits of [
      plane.searchSync(query, 10, 200, filter), await plane.search(query, 10, 200, filter, 4),
      plane.searchSync(query, { filter, ef: 200 }), await plane.search(query, { filter, ef: 200 }),
      plane.searchExact(query, { filter }), await plane.searchExactAsync(query, { filter }),
    ]) {
      assert.equal(wf(hits).length, Math.min(10, allowed.length))
      assert.ok([...hits.ids].every((id) => allowed.includes(id)))
      if (allowed.length > 0) assert.ok(recall(hits.ids, truth(allowed)) >= 0.9)
    }
  }
})

test('missing bits of a filter mean not allowed, surplus ones nothing', async (t) => {
  const { plane, vectors } = await filled(t, 30)
  assert.equal(wf(plane.searchSync(vectors[20], 10, 64, new Uint8Array(0))).length, 0)
  assert.deepEqual([...plane.searchSync(vectors[20], 30, 64, Uint8Array.of(255)).ids].sort((a, b) => a - b), [0, 1, 2, 3, 4, 5, 6, 7])
  assert.equal(wf(plane.searchSync(vectors[20], 50, 64, new Uint8Array(10_000).fill(255))).length, 30)
  assert.equal(wf(plane.searchSync(vectors[20], 50, 64, Buffer.alloc(4, 255).subarray(1))).length, 24)
  assert.equal(wf(plane.searchSync(vectors[20], 50, 64, null)).length, 30)
  for (const filter of [[1], 'all', 7, new Uint32Array(1), new Float32Array(1), new DataView(new ArrayBuffer(4))]) {
    for (const call of [
      () => plane.searchSync(vectors[0], 5, 64, filter), () => plane.search(vectors[0], { filter }),
      () => plane.searchExact(vectors[0], { filter }),
    ]) {
      const error = await failure(call)
      assert.equal(error.code, 'ERR_INVALID_ARG_TYPE')
      assert.match(error.message, /^filter must be/)
    }
  }
})

test('rerank scores with the exact copy', async (t) => {
  const plane = optionsPlane(t, { dims: 24 })
  const vectors = clustered(3, 400, 24, 8, 0.3)
  await plane.insertBatch(pack(vectors))
  const query = vectors[33]
  const [exact] = wf(plane.searchSync(query, { k: 1, ef: 400 })).distances
  const [coded] = wf(plane.searchSync(query, { k: 1, ef: 400, rerank: false })).distances
  assert.ok(Math.abs(exact) < 1e-6)
  assert.ok(coded >= 0 && coded < 1e-3)
  assert.notEqual(exact, coded)
})

test('distances are those of the metric', async (t) => {
  const random = rng(2)
  const vectors = Array.from({ length: 200 }, () => randVec(random, 12))
  for (const [metric, distance, range] of [
    ['l2', l2Distance, { min: -1e-6, max: 1e9 }],
    ['inner-product', innerProductDistance, { min: -1e9, max: 1e9 }],
  ]) {
    const plane = optionsPlane(t, { dims: 12, metric })
    const { ids } = await plane.insertBatch(pack(vectors))
    for (const query of vectors.slice(0, 20)) {
      const truth = exactSearch(vectors, query, 10, { distance }).map((i) => ids[i])
      const hits = wf(await plane.search(query, { ef: 200 }), range)
      assert.ok(recall(hits.ids, truth) >= 0.9, metric)
      hits.ids.forEach((id, i) => {
        const expected = distance(vectors[ids.indexOf(id)], query)
        assert.ok(Math.abs(hits.distances[i] - expected) < 1e-3 * Math.max(1, Math.abs(expected)), `${metric} ${expected}`)
      })
    }
    if (metric === 'l2') assert.equal(wf(plane.searchSync(new Float32Array(12), 5), range).length, 5, 'zero is a point like others')
  }
})

test('a signal stops a search', async (t) => {
  const { plane } = await filled(t, 300)
  const query = randVec(rng(1), 16)
  const reason = new Error('no longer wanted')
  const early = AbortSignal.abort(reason)
  const late = new AbortController()
  const stopped = failure(() => plane.search(query, { signal: late.signal }))
  late.abort(reason)
  for (const error of [await failure(() => plane.search(query, { signal: early })), await stopped]) {
    assert.ok(error instanceof PlaneError)
    assert.deepEqual([error.name, error.code, error.cause], ['AbortError', 'ABORT_ERR', reason])
  }
  const unused = new AbortController()
  assert.equal(wf(await plane.search(query, { signal: unused.signal })).length, 10)
  unused.abort()
  for (const signal of [null, 1, {}, 'abort']) {
    const error = await failure(() => plane.search(query, { signal }))
    assert.equal(error.code, 'ERR_INVALID_ARG_TYPE')
    assert.match(error.message, /^signal must be/)
  }
})

test('many searches at once all resolve, each with its own answer', async (t) => {
  const { plane, vectors } = await filled(t, 300)
  const answers = await Promise.all(Array.from({ length: 3000 }, (_, i) => plane.search(vectors[i % 300], 1, 64)))
  answers.forEach((hits, i) => assert.equal(wf(hits).ids[0], i % 300))
})
