'use strict'

// Filters that admit everything, little, nothing, or only what lies far from the query: the answer holds the nearest
// that are allowed, as many as were asked for, and never anything else.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { bitset, clustered, queriesNear, rng, shuffle, wf } = require('./helpers.js')
const { FORMS, exactNeighbours, insertAllBatch, median, positionsOf } = require('./case-helpers.js')

const DIMS = 64
const COUNT = 20_000
const CLUSTERS = 100
const K = 10
const EFS = [64, 128]

const numbered = shuffle(clustered(41, COUNT, DIMS, CLUSTERS, 0.5).map((vector, i) => ({ vector, cluster: Math.floor(i * CLUSTERS / COUNT) })), 9)
const vectors = numbered.map(({ vector }) => vector)
const queries = queriesNear(vectors, 50, 13)
const random = rng(14)
const draws = vectors.map(() => random())
const all = positionsOf(vectors)
const below = (share) => all.filter((i) => draws[i] < share)

const FILTERS = {
  'one record': [4321],
  'a thousandth': below(0.001),
  'a hundredth': below(0.01),
  'a tenth': below(0.1),
  'a half': below(0.5),
  'everything': all,
  'one cluster, far from most queries': all.filter((i) => numbered[i].cluster === 17),
}
const TRUTH = Object.fromEntries(Object.entries(FILTERS).map(([name, allowed]) => [name, exactNeighbours(vectors, queries, K, allowed)]))

test('the filters are those that the thresholds were measured on', () => {
  assert.deepEqual(Object.values(FILTERS).map((allowed) => allowed.length), [1, 20, 206, 1964, 9921, 20_000, 200])
})

for (const form of FORMS) {
  test(`filters (${form.name})`, { timeout: 60_000 }, async (t) => {
    const plane = form.create(t, DIMS, COUNT)
    const ids = await insertAllBatch(plane, vectors, 2)
    const end = plane.idHighWater()
    const bits = (allowed, bytes = Math.ceil(end / 8)) => bitset(allowed.map((i) => ids[i]), bytes)
    const timed = async (query, ef, filter) => {
      const start = performance.now()
      const hits = plane.searchSync(query, K, ef, filter)
      const ms = performance.now() - start
      assert.deepEqual(wf(await plane.search(query, K, ef, filter)), hits)
      return { hits: wf(hits), ms }
    }

    const slowdown = {}
    const unfiltered = {}
    for (const ef of [...EFS, ...EFS]) {
      unfiltered[ef] = median(await Promise.all(queries.map(async (query) => (await timed(query, ef)).ms)))
    }

    for (const [name, allowed] of Object.entries(FILTERS)) {
      await t.test(`${name}: the nearest that are allowed, and nothing else`, async (t) => {
        const filter = bits(allowed)
        const permitted = new Set(allowed.map((i) => ids[i]))
        for (const ef of EFS) {
          let found = 0
          const times = []
          for (const [i, query] of queries.entries()) {
            const { hits, ms } = await timed(query, ef, filter)
            times.push(ms)
            assert.equal(hits.length, Math.min(K, allowed.length))
            assert.ok(hits.ids.every((id) => permitted.has(id)), 'an id outside the filter')
            const truth = new Set(TRUTH[name][i].map((position) => ids[position]))
            found += hits.ids.filter((id) => truth.has(id)).length / truth.size
          }
          const recall = found / queries.length
          const ms = median(times)
          slowdown[name] = Math.max(slowdown[name] ?? 0, ms / unfiltered[ef])
          t.diagnostic(`ef ${ef}: recall ${recall}, median ${ms.toFixed(3)} ms, unfiltered ${unfiltered[ef].toFixed(3)} ms`)
          if (ef === 128 || allowed.length <= 206) assert.ok(recall >= form.floor(0.97), `ef ${ef}: recall ${recall}`)
        }
      })
      await t.test(`${name}: in at most 5 times as long as without a filter`, () => {
        assert.ok(slowdown[name] <= 5, `${slowdown[name]} times as long`)
      })
    }

    await t.test('none: an empty answer, at once', async () => {
      for (const filter of [bits([]), new Uint8Array(0), Buffer.alloc(0), Buffer.alloc(1_000_000)]) {
        const times = []
        for (const query of queries.slice(0, 9)) {
          const { hits, ms } = await timed(query, 128, filter)
          assert.equal(hits.length, 0)
          times.push(ms)
        }
        assert.ok(median(times) < 5, `took ${times} ms`)
      }
    })

    await t.test('missing bits mean not allowed, and bits past the last id mean nothing', async () => {
      const short = new Uint8Array(125).fill(0xff)
      const long = new Uint8Array(end).fill(0xff)
      const view = new Uint8Array(end + 64).fill(0xff).subarray(3, 3 + 25)
      for (const query of queries) {
        for (const [filter, least] of [[short, 1000], [view, 200], [short.subarray(0, 1), 8]]) {
          const { hits } = await timed(query, 128, filter)
          assert.equal(hits.length, Math.min(K, least))
          assert.ok(hits.ids.every((id) => id < least), 'an id past the end of the filter')
        }
        const { hits } = await timed(query, 128, long)
        const { hits: whole } = await timed(query, 128, bits(all))
        assert.deepEqual(hits, whole)
      }
    })

    await t.test('a removed record is not found through a filter that still names it', async () => {
      const [victim] = FILTERS['one record']
      const filter = bits([victim])
      assert.equal(plane.remove(ids[victim]), true)
      for (const query of queries.slice(0, 10)) assert.equal((await timed(query, 128, filter)).hits.length, 0)
    })
  })
}
