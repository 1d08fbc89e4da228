'use strict'

// Batches on many threads: the graph must be as good as one built serially, ids must match their records, and searches
// and timers must go on beside them.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { clustered, pack, packKeys, queriesNear, shuffle, wf } = require('./helpers.js')
const {
  FORMS, LONG, exactNeighbours, insertAllBatch, keyOf, missing, positionsOf, recallOf, testForms,
} = require('./case-helpers.js')

const DIMS = 48
const COUNT = 20_000
const sorted = clustered(21, COUNT, DIMS, 200, 0.5)
const vectors = shuffle(sorted, 5)
const queries = queriesNear(sorted, 200, 99)
const truth = exactNeighbours(vectors, queries, 10)
const all = positionsOf(vectors)

/** Every record is found under the id it was given; returns the recall at ef 64. */
async function checked(t, name, plane, ids) {
  assert.equal(plane.count, COUNT)
  assert.equal(new Set(ids).size, COUNT)
  assert.deepEqual(missing(plane, vectors, ids, LONG ? all : all.filter((i) => i % 3 === 0), 10, 64), [], name)
  assert.equal((await plane.verify()).ok, true)
  const recall = recallOf(plane, queries, truth, ids, 64)
  t.diagnostic(`${name}: recall ${recall} at ef 64`)
  return recall
}

/** Runs `work` and meanwhile searches every 10 ms; returns the longest gap between two ticks of a 1 ms timer. */
async function beside(plane, work) {
  let gap = 0
  let last = performance.now()
  const ticks = setInterval(() => {
    const now = performance.now()
    gap = Math.max(gap, now - last)
    last = now
  }, 1)
  const searches = []
  const searching = setInterval(() => searches.push(plane.search(queries[searches.length % queries.length], 10, 64)), 10)
  const result = await work()
  clearInterval(ticks)
  clearInterval(searching)
  const answers = await Promise.all(searches)
  const end = plane.idHighWater()
  for (const hits of answers) assert.ok(wf(hits).ids.every((id) => id < end))
  return { result, gap, searches: answers.length }
}

const [positional, reranked] = FORMS

/** Recall at ef 64 of a plane built on one thread. */
let serial

test('one thread', { timeout: 60_000 }, async (t) => {
  const plane = positional.create(t, DIMS, COUNT)
  serial = await checked(t, '1 thread', plane, await insertAllBatch(plane, vectors, 1))
  assert.ok(serial >= 0.98)
})

for (const threads of [undefined, 8, 32]) {
  const name = threads === undefined ? 'every hardware thread' : `${threads} threads`
  test(`${name} build what one builds, and block neither timers nor searches`, { timeout: 60_000 }, async (t) => {
    const plane = positional.create(t, DIMS, COUNT)
    const { keys, keyEnds } = packKeys(all.map((i) => keyOf(i)))
    const packed = pack(vectors)
    const { result, gap, searches } = await beside(plane, () => plane.insertBatch(packed, keys, keyEnds, threads))
    t.diagnostic(`${name}: longest gap ${gap.toFixed(1)} ms, ${searches} searches`)
    assert.ok(gap < 100, `the event loop stood still for ${gap} ms`)
    assert.ok(searches > 10, `only ${searches} searches ran beside the batch`)
    assert.ok(await checked(t, name, plane, result.ids) >= serial - 0.01)
  })
}

test('a parallel batch after a single record builds what one thread builds', { timeout: 60_000 }, async (t) => {
  const plane = positional.create(t, DIMS, COUNT)
  const first = plane.insert(vectors[0], keyOf(0))
  const rest = await insertAllBatch(plane, vectors.slice(1), 8, (i) => keyOf(i + 1))
  assert.ok(await checked(t, 'after a single record', plane, [first, ...rest]) >= serial - 0.01)
})

test('batches that are not awaited one by one all land', { timeout: 60_000 }, async (t) => {
  const plane = positional.create(t, DIMS, COUNT)
  const batches = Array.from({ length: 20 }, (_, n) => (
    insertAllBatch(plane, vectors.slice(1000 * n, 1000 * (n + 1)), undefined, (i) => keyOf(1000 * n + i))
  ))
  const ids = (await Promise.all(batches)).flatMap((part) => [...part])
  assert.ok(await checked(t, '20 batches', plane, ids) >= serial - 0.01)
})

test('with rerank a parallel batch has no ceiling', { timeout: 60_000 }, async (t) => {
  for (const threads of LONG ? [undefined, 1, 8, 32] : [8]) {
    const plane = reranked.create(t, DIMS, COUNT)
    assert.ok(await checked(t, `${threads} threads`, plane, await insertAllBatch(plane, vectors, threads)) >= 0.99)
  }
})

testForms('an empty batch resolves empty', async (t, { create }) => {
  const plane = create(t, DIMS, COUNT)
  const { ids, rejected } = await plane.insertBatch(new Float32Array(0))
  assert.ok(ids instanceof Uint32Array)
  assert.equal(ids.length, 0)
  assert.deepEqual(rejected, [])
  assert.equal(plane.count, 0)
})
