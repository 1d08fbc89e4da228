'use strict'

// Removing everything, or nearly everything: the entry point goes, neighbourhoods go, and whoever is left must be found
// as well and as fast as before.

const assert = require('node:assert/strict')

const { clustered, failure, queriesNear, shuffle, tempPath, wf } = require('./helpers.js')
const {
  exactNeighbours, insertAll, keyOf, median, medianMs, missing, peer, positionsOf, recallOf, testForms,
} = require('./case-helpers.js')

/** An empty plane answers with nothing, at once. */
async function assertNothing(plane, query) {
  const times = []
  for (let i = 0; i < 5; i++) {
    const start = performance.now()
    assert.equal(wf(await plane.search(query, 10, 64)).length, 0)
    times.push(performance.now() - start)
  }
  assert.ok(median(times) < 50, `took ${times} ms`)
  assert.equal(plane.count, 0)
  assert.equal(plane.getEntryPoint(), null)
}

const REOPENED = `
  const { clustered } = helpers
  const { insertAll, keyOf, missing, positionsOf } = tools
  serve.check = async (file) => {
    const plane = vecplane.Plane.open(file)
    const vectors = clustered(2, 1000, 32, 20, 0.5).slice(0, 500)
    const before = (await plane.search(vectors[0], 10, 64)).length
    const ids = insertAll(plane, vectors)
    return { before, count: plane.count, ids, missing: missing(plane, vectors, ids, positionsOf(vectors), 1, 64) }
  }
`

testForms('a plane emptied in any order is empty, and fills again', async (t, { create }) => {
  const file = tempPath(t)
  const plane = create(t, 32, 2000, file)
  const vectors = clustered(2, 1000, 32, 20, 0.5)
  const all = positionsOf(vectors)
  await assertNothing(plane, vectors[0])

  for (const id of insertAll(plane, vectors)) assert.equal(plane.remove(id), true)
  await assertNothing(plane, vectors[0])

  const ids = [plane.insert(vectors[0], keyOf(0))]
  const only = wf(await plane.search(vectors[0], 10, 64))
  assert.deepEqual([...only.ids], ids)
  assert.ok(only.distances[0] < 1e-3)

  for (const i of all.slice(1)) ids.push(plane.insert(vectors[i], keyOf(i)))
  assert.deepEqual(missing(plane, vectors, ids, all, 1, 64), [])
  assert.equal(plane.idHighWater(), 1000, 'ids of removed records are given again')

  for (const id of ids.reverse()) plane.remove(id)
  await assertNothing(plane, vectors[0])
  plane.flush()
  const other = peer(t, REOPENED)
  const { ids: given, ...report } = await other.call('check', file)
  assert.deepEqual(report, { before: 0, count: 500, missing: [] })
  assert.equal(new Set(given).size, 500)
})

testForms('removing what is not there is a no-op', async (t, { create }) => {
  const plane = create(t, 32, 2000)
  const vectors = clustered(2, 1000, 32, 20, 0.5)
  const ids = insertAll(plane, vectors)
  const victim = ids[400]
  assert.equal(plane.remove(victim), true)

  const answers = () => Promise.all(vectors.map(async (vector) => [...wf(await plane.search(vector, 10, 64)).ids]))
  const before = await answers()
  for (const id of [victim, victim, 1000, 1999, 2000, 0x7fffffff, 0xffffffff]) assert.equal(plane.remove(id), false, `id ${id}`)
  for (const id of [-1, 1.5, 2 ** 32, NaN]) {
    assert.equal((await failure(() => plane.remove(id))).code, 'ERR_OUT_OF_RANGE', `id ${id}`)
  }
  assert.deepEqual(await answers(), before)

  // A double remove that freed the slot twice would hand it to two of these.
  const given = [0, 1, 2].map((i) => plane.insert(vectors[400 + i], `again${i}`))
  assert.equal(new Set(given).size, 3)
  assert.ok(given.includes(victim), 'the freed id is given again')
  const live = new Set(ids.filter((id) => id !== victim))
  assert.ok(given.every((id) => !live.has(id)), 'an id that is in use was given')
  assert.equal(plane.count, 1002)
})

testForms('nine tenths removed leave the rest as easy and as quick to find', async (t, form) => {
  const vectors = shuffle(clustered(31, 10_000, 64, 100, 0.5), 6)
  const queries = queriesNear(vectors, 100, 77)
  const order = shuffle(positionsOf(vectors), 8)
  const plane = form.create(t, 64, 12_000)
  const ids = insertAll(plane, vectors)
  const ms = () => medianMs(queries, (query) => plane.searchSync(query, 10, 128))
  ms()
  const msFull = ms()

  for (const [from, to] of [[0, 5000], [5000, 7000], [7000, 9000]]) {
    for (const i of order.slice(from, to)) assert.equal(plane.remove(ids[i]), true)
    const truth = exactNeighbours(vectors, queries, 10, order.slice(to))
    const recall = recallOf(plane, queries, truth, ids, 128)
    t.diagnostic(`recall with ${10_000 - to} left: ${recall}`)
    assert.ok(recall >= form.floor(0.98), `recall ${recall} with ${10_000 - to} left`)
    for (const query of queries) assert.equal(wf(await plane.search(query, 10, 128)).length, 10)
  }
  const survivors = order.slice(9000)
  assert.deepEqual(missing(plane, vectors, ids, survivors, 1, 128), [])

  const fresh = form.create(t, 64, 12_000)
  insertAll(fresh, survivors.map((i) => vectors[i]))
  medianMs(queries, (query) => fresh.searchSync(query, 10, 128))
  const msFresh = medianMs(queries, (query) => fresh.searchSync(query, 10, 128))
  const msLeft = ms()
  t.diagnostic(`median search: ${msFull} ms full, ${msLeft} ms with 1,000 left, ${msFresh} ms on a fresh 1,000`)
  assert.ok(msLeft <= 2 * msFresh, `${msLeft} ms, on a fresh plane ${msFresh} ms`)
  assert.equal((await plane.verify()).ok, true)
})
