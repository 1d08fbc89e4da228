'use strict'

// Records that come and go for ever: recall must not drift, removed space must be used again, and inserting must not
// get slower.

const assert = require('node:assert/strict')
const fs = require('node:fs')

const { clustered, gauss, queriesNear, randVec, rng, shuffle, tempPath } = require('./helpers.js')
const { LONG, exactNeighbours, insertAll, positionsOf, recallOf, testForms } = require('./case-helpers.js')

const DIMS = 64
const LIVE = 10_000
const CLUSTERS = 100
const SIGMA = 0.5
const CHURNED = 2000
const ROUNDS = LONG ? 20 : 3
const MEASURED_EVERY = LONG ? 5 : ROUNDS

testForms('churn costs no recall, no ids and no space', async (t, form) => {
  const file = tempPath(t)
  const plane = form.create(t, DIMS, 12_000, file)
  const vectors = shuffle(clustered(41, LIVE, DIMS, CLUSTERS, SIGMA), 9)
  const centreNoise = rng(41)
  const centres = Array.from({ length: CLUSTERS }, () => randVec(centreNoise, DIMS))
  const ids = insertAll(plane, vectors)
  await plane.flushAsync()

  const recall = () => {
    const queries = queriesNear(vectors, 100, 77)
    return recallOf(plane, queries, exactNeighbours(vectors, queries, 10), ids, 128)
  }
  const recallFirst = recall()
  const random = rng(43)
  const rates = []
  let blocksFirst
  for (let round = 1; round <= ROUNDS; round++) {
    const chosen = shuffle(positionsOf(vectors), 100 + round).slice(0, CHURNED)
    for (const i of chosen) assert.equal(plane.remove(ids[i]), true)
    for (const i of chosen) {
      const centre = centres[Math.floor(random() * CLUSTERS)]
      vectors[i] = Float32Array.from(centre, (x) => x + SIGMA * gauss(random))
    }
    const start = performance.now()
    for (const i of chosen) ids[i] = plane.insert(vectors[i], `r${round}:${i}`)
    rates.push(CHURNED / (performance.now() - start))
    await plane.flushAsync()
    blocksFirst ??= fs.statSync(file).blocks
    if (round % MEASURED_EVERY !== 0) continue

    const recallNow = recall()
    t.diagnostic(`round ${round}: recall ${recallNow}, at first ${recallFirst}; ${plane.idHighWater()} ids`)
    assert.ok(recallNow >= recallFirst - 0.01, `round ${round}: recall ${recallNow}, at first ${recallFirst}`)
    assert.ok(recallNow >= form.floor(0.975), `round ${round}: recall ${recallNow}`)
    assert.ok(plane.idHighWater() <= 12_000)
    assert.equal(plane.count, LIVE)
  }
  const blocks = fs.statSync(file).blocks
  t.diagnostic(`blocks ${blocksFirst} -> ${blocks}; inserts per ms ${rates.map((rate) => rate.toFixed(1))}`)
  assert.ok(blocks <= 1.05 * blocksFirst, `${blocksFirst} blocks became ${blocks}`)
  assert.ok(Math.min(...rates) >= 0.5 * rates[0], `inserts per ms: ${rates}`)
  assert.equal((await plane.verify()).ok, true)
}, { timeout: LONG ? 300_000 : 60_000 })
