'use strict'

// What order records come in must not matter: outliers before, amid or after a tight cluster, and sorted input, are
// where graphs that keep only the nearest links fall apart.

const assert = require('node:assert/strict')

const { clustered, gauss, queriesNear, randVec, rng, shuffle } = require('./helpers.js')
const { exactNeighbours, insertAllBatch, keyOf, missing, positionsOf, recallOf, testForms } = require('./case-helpers.js')

{
  const DIMS = 96
  const OUTLIERS = 20
  const random = rng(5)
  const centre = randVec(random, DIMS)
  const tight = Array.from({ length: 5000 }, () => Float32Array.from(centre, (x) => x + 0.15 * gauss(random)))
  const outliers = Array.from({ length: OUTLIERS }, () => randVec(random, DIMS))
  /** The outliers, then the tight cluster. */
  const vectors = [...outliers, ...tight]
  const first = positionsOf(vectors)
  const last = [...first.slice(OUTLIERS), ...first.slice(0, OUTLIERS)]
  const amid = [...first.slice(OUTLIERS, 2520), ...first.slice(0, OUTLIERS), ...first.slice(2520)]

  for (const [name, order] of [['before', first], ['amid', amid], ['after', last]]) {
    testForms(`outliers inserted ${name} a tight cluster stay reachable`, async (t, { create }) => {
      const plane = create(t, DIMS, 6000)
      const ids = []
      for (const i of order) ids[i] = plane.insert(vectors[i], keyOf(i))
      const isolated = first.slice(0, OUTLIERS)
      const lost = missing(plane, vectors, ids, isolated, 1, 64)
      t.diagnostic(`${OUTLIERS - lost.length} of ${OUTLIERS} first at ef 64`)
      assert.deepEqual(missing(plane, vectors, ids, isolated, 10, 256), [])
      if (order === first) assert.ok(lost.length <= 5, `${lost.length} of ${OUTLIERS} are not their own first hit at ef 64`)
      const some = first.slice(OUTLIERS).filter((i) => i % 10 === 0)
      assert.deepEqual(missing(plane, vectors, ids, some, 10, 256), [], 'of the tight cluster')
      assert.equal((await plane.verify()).ok, true)
    })
  }
}

{
  const vectors = clustered(21, 20_000, 48, 200, 0.5)
  const queries = queriesNear(vectors, 200, 99)
  const truth = exactNeighbours(vectors, queries, 10)
  const sorted = positionsOf(vectors)

  testForms('sorted input gives the recall of shuffled input', async (t, form) => {
    const recalls = []
    for (const order of [sorted, shuffle(sorted, 5)]) {
      const plane = form.create(t, 48, 20_000)
      const given = await insertAllBatch(plane, order.map((i) => vectors[i]), form.threads)
      const ids = []
      order.forEach((i, row) => (ids[i] = given[row]))
      const at64 = recallOf(plane, queries, truth, ids, 64)
      const at128 = recallOf(plane, queries, truth, ids, 128)
      const lost = missing(plane, vectors, ids, positionsOf(vectors, 10), 10, 64)
      const name = order === sorted ? 'sorted' : 'shuffled'
      t.diagnostic(`${name}: recall ${at64} at ef 64, ${at128} at ef 128; ${lost.length} missing`)
      assert.ok(at64 >= form.floor(0.98), `${name}: recall ${at64} at ef 64`)
      assert.ok(at128 >= form.floor(0.98), `${name}: recall ${at128} at ef 128`)
      assert.deepEqual(lost, [])
      recalls.push([at64, at128])
    }
    const [[sorted64, sorted128], [shuffled64, shuffled128]] = recalls
    assert.ok(Math.abs(sorted64 - shuffled64) <= 0.005, `ef 64: ${sorted64} sorted, ${shuffled64} shuffled`)
    assert.ok(Math.abs(sorted128 - shuffled128) <= 0.005, `ef 128: ${sorted128} sorted, ${shuffled128} shuffled`)
  })
}
