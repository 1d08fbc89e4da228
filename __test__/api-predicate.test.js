'use strict'

// searchWithPredicate: the nearest records that a function of the caller's lets in, whatever that function does.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { Plane, PlaneError, SearchHits } = require('..')
const {
  clustered, closing, exactSearch, failure, keyAt, optionsPlane, pack, packKeys, queriesNear, randVec, recall, rng, runChild,
  shuffle, tempPath, wf,
} = require('./helpers.js')

const DIMS = 32
const COUNT = 6000
const vectors = shuffle(clustered(71, COUNT, DIMS, 60, 0.5), 3)
const queries = queriesNear(vectors, 30, 72)
const everything = (ids) => new Uint8Array(ids.length).fill(1)
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function filled(t, { count = COUNT, file = tempPath(t), ...options } = {}) {
  const plane = optionsPlane(t, { dims: DIMS, keyCap: 16, efConstruction: 100, ...options }, file)
  const some = vectors.slice(0, count)
  if (count > 0) await plane.insertBatch(pack(some), { ...packKeys(some.map((_, i) => `k${i}`)), threads: 1 })
  return plane
}

/** Each way to hand over the same predicate. */
const forms = (plane, query, k, ef, predicate) => [
  () => plane.searchWithPredicate(query, k, ef, predicate),
  () => plane.searchWithPredicate(query, predicate, { k, ef }),
]

for (const share of [1, 0.5, 0.1, 0.01, 0.001, 0]) {
  test(`a predicate that lets ${share} of the records in: as many hits as there are, the true ones`, async (t) => {
    const plane = await filled(t)
    const seed = 1000 + Math.floor(Math.random() * 1e6)
    t.diagnostic(`seed ${seed}`)
    const random = rng(seed)
    const allowed = vectors.map(() => random() < share)
    const matches = allowed.filter(Boolean).length
    let found = 0
    for (const query of queries) {
      const asked = new Set()
      const predicate = (ids, keys, keyEnds) => {
        assert.ok(Array.isArray(ids) && Buffer.isBuffer(keys) && keyEnds instanceof Uint32Array && ids.length > 0)
        ids.forEach((id, i) => {
          assert.ok(!asked.has(id), `record ${id} is asked about twice`)
          asked.add(id)
          assert.equal(keyAt({ keys, keyEnds }, i).toString(), `k${id}`)
        })
        return Uint8Array.from(ids, (id) => Number(allowed[id]))
      }
      for (const form of forms(plane, query, 10, 100, predicate)) {
        asked.clear()
        const hits = wf(await form())
        assert.ok(hits instanceof SearchHits)
        assert.equal(hits.truncated, false)
        assert.equal(hits.length, Math.min(10, matches))
        for (const { id, key } of hits) assert.ok(allowed[id] && key.toString() === `k${id}`)
        if (matches > 0) found += recall(hits.ids, exactSearch(vectors, query, 10, { allowed: (i) => allowed[i] }))
      }
    }
    if (matches > 0) assert.ok(found / (2 * queries.length) >= 0.99, `recall ${found / (2 * queries.length)}`)
  })
}

test('a predicate opposed to the query still gives k hits', async (t) => {
  const plane = await filled(t)
  for (const query of queries.slice(0, 5)) {
    const far = exactSearch(vectors, query, COUNT).slice(-15)
    const hits = wf(await plane.searchWithPredicate(query, 10, 64, (ids) => ids.map((id) => far.includes(id))))
    assert.deepEqual([...hits.ids], far.slice(0, 10))
  }
})

test('copies of one vector do not hide the one copy that is let in', async (t) => {
  const plane = await filled(t, { count: 0 })
  for (let i = 0; i < 600; i++) plane.insert(vectors[0], `copy ${i}`)
  for (let i = 1; i < 400; i++) plane.insert(vectors[i], `other ${i}`)
  const hits = wf(await plane.searchWithPredicate(vectors[0], 1, 50, (ids) => ids.map((id) => id === 417)))
  assert.deepEqual([...hits.ids], [417])
  const others = wf(await plane.searchWithPredicate(vectors[0], 5, 50, (ids) => ids.map((id) => id >= 600)))
  assert.deepEqual([...others.ids], exactSearch(vectors.slice(1, 400), vectors[0], 5).map((i) => 600 + i))
})

test('the same predicate as a promise, a Buffer, an array of numbers or of booleans gives the same answer', async (t) => {
  const plane = await filled(t)
  const bytes = (ids) => Uint8Array.from(ids, (id) => id % 7 === 0)
  const expected = await plane.searchWithPredicate(queries[0], 10, 100, bytes)
  for (const predicate of [
    async (ids) => bytes(ids),
    async (ids) => (await pause(1), bytes(ids)),
    (ids) => ({ then: (resolve) => resolve(bytes(ids)) }),
    (ids) => Buffer.from(bytes(ids)),
    (ids) => Uint8Array.from(ids, (id) => (id % 7 === 0 ? 255 : 0)),
    (ids) => new Uint8ClampedArray(bytes(ids)),
    (ids) => [...bytes(ids)],
    (ids) => ids.map((id) => id % 7 === 0),
  ]) {
    assert.deepEqual(wf(await plane.searchWithPredicate(queries[0], 10, 100, predicate)), expected)
  }
})

test('what a predicate throws, or its promise rejects with, is what the search rejects with', async (t) => {
  const plane = await filled(t)
  for (const thrown of [new Error('mine'), 'a string', undefined]) {
    for (const fail of [() => { throw thrown }, () => Promise.reject(thrown), async () => { await pause(1); throw thrown }]) {
      let calls = 0
      const late = (ids) => (++calls < 2 ? new Uint8Array(ids.length) : fail())
      for (const predicate of [fail, late]) {
        for (const form of forms(plane, queries[0], 10, 64, predicate)) {
          calls = 0
          const outcome = await form().then(() => assert.fail('resolved'), (error) => ({ error }))
          assert.equal(outcome.error, thrown)
        }
      }
    }
  }
  assert.equal((await plane.searchWithPredicate(queries[0], 10, 64, everything)).length, 10)
})

test('verdicts of a wrong length or type are a TypeError that says which', async (t) => {
  const plane = await filled(t)
  for (const [verdicts, message] of [
    [(ids) => new Uint8Array(ids.length - 1), /returned 63 verdicts for 64 ids/],
    [(ids) => new Uint8Array(ids.length + 1), /returned 65 verdicts for 64 ids/],
    [() => [], /returned 0 verdicts for 64 ids/],
    [() => undefined, /got undefined/],
    [() => null, /got null/],
    [() => true, /got boolean/],
    [() => 'yes', /got string/],
    [(ids) => new Float32Array(ids.length), /got Float32Array/],
    [(ids) => new Set(ids), /got Set/],
    [(ids) => new DataView(new ArrayBuffer(ids.length)), /got DataView/],
    [() => Object.create(null), /got an object/],
    [(ids) => ids.map(() => 2), /verdict 0 must be 0, 1, false or true, got 2/],
    [(ids) => ids.map((_, i) => (i < 3 ? 1 : 'y')), /verdict 3 must be 0, 1, false or true, got y/],
    [(ids) => Array(ids.length), /verdict 0 must be .*, got undefined/],
  ]) {
    for (const predicate of [verdicts, async (ids) => verdicts(ids)]) {
      const error = await failure(() => plane.searchWithPredicate(queries[0], 10, 64, predicate))
      assert.ok(error instanceof TypeError && error.code === 'ERR_INVALID_RETURN_VALUE', `${error}`)
      assert.match(error.message, message)
    }
  }
})

test('a wrong argument is refused before the predicate is called', async (t) => {
  const plane = await filled(t, { count: 100 })
  const never = () => assert.fail('called')
  const query = queries[0]
  for (const [call, Type, code, message] of [
    [() => plane.searchWithPredicate(query, 10, 64), TypeError, 'ERR_INVALID_ARG_TYPE', /^predicate must be a function/],
    [() => plane.searchWithPredicate(query, 10, 64, 5), TypeError, 'ERR_INVALID_ARG_TYPE', /^predicate must be a function/],
    [() => plane.searchWithPredicate(query, -1, 64, never), RangeError, 'ERR_OUT_OF_RANGE', /^k must be/],
    [() => plane.searchWithPredicate(query, 10, 0, never), RangeError, 'ERR_OUT_OF_RANGE', /^ef must be/],
    [() => plane.searchWithPredicate(query, 10, 64, never, 0), RangeError, 'ERR_OUT_OF_RANGE', /^filterExpansion must be/],
    [() => plane.searchWithPredicate(query, 10, 64, never, 24, 0), RangeError, 'ERR_OUT_OF_RANGE', /^visitBudget must be/],
    [() => plane.searchWithPredicate(query, 10, 64, never, 24, '9'), TypeError, 'ERR_INVALID_ARG_TYPE', /^visitBudget must be/],
    [() => plane.searchWithPredicate(query, never, { visitBudgte: 9 }), TypeError, 'ERR_INVALID_ARG_VALUE', /did you mean 'visitBudget'/],
    [() => plane.searchWithPredicate(query, never, { signal: 5 }), TypeError, 'ERR_INVALID_ARG_TYPE', /^signal must be/],
    [() => plane.searchWithPredicate(query.subarray(1), 10, 64, never), RangeError, 'PLANE_DIMENSION_MISMATCH', /components/],
    [() => plane.searchWithPredicate(new Float32Array(DIMS), 10, 64, never), RangeError, 'PLANE_ZERO_QUERY', /direction/],
    [() => plane.searchWithPredicate([1], 10, 64, never), TypeError, 'ERR_INVALID_ARG_TYPE', /^vector must be/],
  ]) {
    const error = await failure(call)
    assert.ok(error instanceof Type && error.code === code, `${error.code}: ${error}`)
    assert.match(error.message, message)
  }
  assert.equal((await plane.searchWithPredicate(query, 0, 64, never)).length, 0)
  const empty = await filled(t, { count: 0 })
  assert.equal((await empty.searchWithPredicate(query, 10, 64, never)).length, 0)
})

test('a budget may shorten the answer, which then says so', async (t) => {
  const plane = await filled(t)
  const seldom = (ids) => ids.map((id) => id % 1000 === 0)
  const whole = await plane.searchWithPredicate(queries[0], 5, 64, seldom)
  assert.deepEqual([whole.length, whole.truncated], [5, false])
  const short = await plane.searchWithPredicate(queries[0], 5, 64, seldom, undefined, 300)
  assert.ok(short.length < 5 && short.truncated, `${short.length} hits`)
  let asked = 0
  await plane.searchWithPredicate(queries[0], seldomCounted, { k: 5, ef: 64, visitBudget: 300 })
  function seldomCounted(ids) { asked += ids.length; return seldom(ids) }
  assert.ok(asked <= 300, `${asked} records were asked about`)
  const ample = await plane.searchWithPredicate(queries[0], 5, 64, seldom, 24, 1e9)
  assert.deepEqual([ample.length, ample.truncated], [5, false])
  assert.equal((await plane.searchWithPredicate(queries[0], 5, 64, everything, 24, 1)).truncated, true)
})

test('a narrow expansion never shortens an answer', async (t) => {
  const plane = await filled(t)
  for (const expansion of [1, 2, 1000]) {
    const hits = await plane.searchWithPredicate(queries[1], 5, 32, (ids) => ids.map((id) => id % 1000 === 7), expansion)
    assert.deepEqual([...hits.ids], exactSearch(vectors, queries[1], 5, { allowed: (i) => i % 1000 === 7 }))
  }
})

test('records that are removed, replaced and inserted while the predicate thinks', async (t) => {
  const plane = await filled(t, { count: 2000 })
  const query = queries[2]
  const nearest = exactSearch(vectors.slice(0, 2000), query, 40)
  let calls = 0
  const hits = wf(await plane.searchWithPredicate(query, 10, 64, (ids) => {
    if (calls++ === 0) {
      // The slots of the removed are given to others at once, under the verdicts of the first.
      nearest.slice(0, 10).forEach((id) => plane.remove(id))
      for (let i = 0; i < 10; i++) plane.insert(vectors[3000 + i], `later ${i}`)
      plane.upsert(`k${nearest[10]}`, vectors[4000])
    }
    return everything(ids)
  }))
  assert.equal(hits.length, 10)
  for (const { id, key } of hits) {
    assert.equal(plane.keyOf(id)?.toString(), key.toString())
    assert.ok(!nearest.slice(0, 11).some((gone) => key.toString() === `k${gone}`))
  }
  assert.equal((await plane.verify()).ok, true)
})

test('a predicate that thinks for long holds back no slot that is removed meanwhile', async (t) => {
  const plane = await filled(t, { count: 500 })
  const searching = plane.searchWithPredicate(queries[0], async (ids) => (await pause(300), everything(ids)), { k: 5 })
  await pause(20)
  const high = plane.idHighWater()
  for (let i = 0; i < 200; i++) {
    plane.remove(i)
    plane.insert(vectors[1000 + i], `n${i}`)
  }
  assert.equal(plane.idHighWater(), high)
  assert.equal(plane.stats().limbo, 0)
  assert.equal((await searching).length, 5)
})

for (const renumber of [false, true]) {
  test(`a compaction meanwhile${renumber ? ', with new ids' : ''}: the search ends on the plane that it began with`, async (t) => {
    const plane = await filled(t, { count: 3000 })
    for (let i = 0; i < 3000; i += 3) plane.remove(i)
    const predicate = (ids) => ids.map((id) => id % 50 === 1)
    const expected = await plane.searchWithPredicate(queries[3], 10, 64, predicate)
    let calls = 0
    const hits = wf(await plane.searchWithPredicate(queries[3], 10, 64, async (ids) => {
      if (calls++ === 0) {
        await plane.compact({ renumber })
        plane.insert(queries[3], 'after the compaction')
      }
      return predicate(ids)
    }))
    assert.deepEqual(hits, expected)
    const now = await plane.searchWithPredicate(queries[3], 1, 64, everything)
    assert.equal(now.key(0).toString(), 'after the compaction')
  })
}

test('another plane at the path meanwhile: PLANE_REPLACED', async (t) => {
  const file = tempPath(t)
  const plane = await filled(t, { count: 500, file })
  const error = await failure(() => plane.searchWithPredicate(queries[0], 5, 64, (ids) => {
    closing(t, Plane.create(file, { dims: DIMS, overwrite: true }))
    return new Uint8Array(ids.length)
  }))
  assert.equal(error.code, 'PLANE_REPLACED')
})

test('close meanwhile: the search ends first, and no other begins', async (t) => {
  const plane = await filled(t, { count: 500 })
  const order = []
  const searching = plane.searchWithPredicate(queries[0], async (ids) => (await pause(30), everything(ids)), { k: 5 })
  const closed = plane.close().then(() => order.push('closed'))
  assert.equal((await failure(() => plane.searchWithPredicate(queries[0], 5, 64, everything))).code, 'PLANE_CLOSED')
  assert.equal((await searching.then((hits) => (order.push('found'), hits))).length, 5)
  await closed
  assert.deepEqual(order, ['found', 'closed'])
})

test('a search that failed or was aborted does not keep the plane from closing, though its predicate never answers', async (t) => {
  const plane = await filled(t, { count: 500 })
  const controller = new AbortController()
  const reason = new Error('enough')
  const never = plane.searchWithPredicate(queries[0], () => new Promise(() => {}), { k: 5, signal: controller.signal })
  setTimeout(() => controller.abort(reason), 20)
  const error = await failure(() => never)
  assert.ok(error instanceof PlaneError && error.code === 'ABORT_ERR' && error.name === 'AbortError' && error.cause === reason)
  const early = await failure(() => plane.searchWithPredicate(queries[0], () => assert.fail('called'), { signal: controller.signal }))
  assert.equal(early.code, 'ABORT_ERR')
  await failure(() => plane.searchWithPredicate(queries[0], 5, 64, () => { throw new Error('mine') }))
  await plane.close()
})

test('100 searches with predicates at once give what they give one by one', async (t) => {
  const plane = await filled(t)
  const ask = (i) => plane.searchWithPredicate(queries[i % queries.length], 10, 64, (ids) => ids.map((id) => id % (1 + (i % 40)) === 0))
  const together = await Promise.all(Array.from({ length: 100 }, (_, i) => ask(i)))
  for (let i = 0; i < 100; i++) assert.deepEqual(wf(together[i]), await ask(i))
})

test('slow predicates keep no other search waiting, with one thread in the pool', async (t) => {
  const file = tempPath(t)
  await (await filled(t, { count: 1000, file })).close()
  const child = await runChild(`
    const plane = vecplane.Plane.open(process.argv[2])
    const query = Float32Array.from({ length: ${DIMS} }, (_, i) => Math.cos(i))
    ;(async () => {
      const slow = (ids) => new Promise((resolve) => setTimeout(resolve, 400, new Uint8Array(ids.length).fill(1)))
      let open = 20
      const searches = Array.from({ length: 20 }, () => plane.searchWithPredicate(query, 5, 64, slow).then((hits) => (open--, hits)))
      await new Promise((resolve) => setTimeout(resolve, 50))
      let served = 0
      while (open === 20) served += (await plane.search(query, 5)).length
      const sizes = (await Promise.all(searches)).map((hits) => hits.length)
      await plane.close()
      console.log(JSON.stringify({ served, sizes }))
    })()`, [file], { env: { UV_THREADPOOL_SIZE: '1' } })
  assert.deepEqual([child.code, child.signal, child.stderr], [0, null, ''])
  const { served, sizes } = JSON.parse(child.stdout)
  assert.ok(served >= 5 * 20, `${served} hits came through`)
  assert.deepEqual(sizes, Array(20).fill(5))
})

test('workers that are terminated in the middle, and searches that are forgotten, give the plane back', async (t) => {
  const file = tempPath(t)
  await (await filled(t, { count: 2000, file })).close()
  const child = await runChild(`
    const fs = require('node:fs')
    const { Worker } = require('node:worker_threads')
    const file = process.argv[2]
    const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
    const maps = () => process.platform === 'linux' ? fs.readFileSync('/proc/self/maps', 'utf8').split('\\n').filter((line) => line.includes(file)).length : 0
    const body = \`
      const { Plane } = require(\${JSON.stringify(require.resolve(${JSON.stringify(require.resolve('..'))}))})
      const { parentPort, workerData } = require('node:worker_threads')
      const plane = Plane.open(workerData)
      const query = Float32Array.from({ length: ${DIMS} }, (_, i) => Math.cos(i))
      const slow = (ids) => new Promise((resolve) => setTimeout(resolve, 1, new Uint8Array(ids.length)))
      for (let i = 0; i < 10; i++) (async () => { for (;;) await plane.searchWithPredicate(query, 5, 64, i % 2 ? slow : (ids) => new Uint8Array(ids.length)) })()
      setTimeout(() => parentPort.postMessage('busy'), 5)\`
    ;(async () => {
      for (let i = 0; i < 30; i++) {
        const worker = new Worker(body, { eval: true, workerData: file })
        await new Promise((resolve, reject) => { worker.once('message', resolve); worker.once('error', reject) })
        await pause(i % 7)
        await worker.terminate()
      }
      let plane = vecplane.Plane.open(file)
      const query = Float32Array.from({ length: ${DIMS} }, (_, i) => Math.cos(i))
      for (let i = 0; i < 50; i++) plane.searchWithPredicate(query, 5, 64, () => new Promise(() => {}))
      await pause(50)
      plane = undefined
      for (let i = 0; i < 6; i++) { gc(); await pause(20) }
      const left = maps()
      const { ok, live } = await vecplane.Plane.open(file).verify()
      console.log(JSON.stringify({ left, ok, live }))
    })()`, [file], { execArgv: ['--expose-gc'] })
  assert.deepEqual([child.code, child.signal, child.stderr], [0, null, ''])
  assert.deepEqual(JSON.parse(child.stdout), { left: 0, ok: true, live: 2000 })
})
