'use strict'

// A record that is replaced under its key: the old vector must be gone from every answer at once, the key must never
// belong to two records, and the space must be used again.

const assert = require('node:assert/strict')

const { clustered, cosineDistance, keyAt, randVec, rng, wf } = require('./helpers.js')
const { FORMS, insertAll, keyOf, missing, testForms } = require('./case-helpers.js')

const DIMS = 64
const COUNT = 5000
const UPDATED = 1000
const ROUNDS = 3

/** How a record gets a new vector, and how many ids that may cost beyond the records themselves. */
const UPDATES = [
  {
    name: 'removed and inserted',
    forms: FORMS,
    idsSpare: 1,
    update(plane, id, i, vector) {
      plane.remove(id)
      return plane.insert(vector, keyOf(i))
    },
  },
  {
    name: 'upserted',
    forms: FORMS.filter((form) => form.uniqueKeys),
    // A superseded slot waits for the next flush, so that a power cut finds one of the two.
    idsSpare: UPDATED,
    update: (plane, id, i, vector) => plane.upsert(keyOf(i), vector),
  },
]

/** An answer must not hold a key twice. */
function assertKeysDistinct(hits) {
  const keys = Array.from({ length: hits.length }, (_, j) => keyAt(hits, j).toString())
  assert.equal(new Set(keys).size, keys.length, 'a key occurs twice')
}

for (const { name, forms, idsSpare, update } of UPDATES) {
  testForms(`a key whose record is ${name} never leads to the old vector`, async (t, { create }) => {
    const plane = create(t, DIMS, 6000)
    const vectors = clustered(1, COUNT, DIMS, 50, 0.5)
    const ids = insertAll(plane, vectors)
    for (let round = 1; round <= ROUNDS; round++) {
      const old = vectors.slice(0, UPDATED)
      for (let i = 0; i < UPDATED; i++) {
        vectors[i] = randVec(rng(1000 * round + i), DIMS)
        ids[i] = update(plane, ids[i], i, vectors[i])
      }
      assert.ok(plane.idHighWater() <= COUNT + idsSpare, `idHighWater is ${plane.idHighWater()}`)
      assert.equal(plane.count, COUNT)
      for (let i = 0; i < UPDATED; i++) {
        const hits = wf(await plane.search(vectors[i], 10, 128))
        assert.equal(keyAt(hits, 0).toString(), `k${i}`, `round ${round}: the new vector of k${i} is not its first hit`)
        assert.equal(hits.ids[0], ids[i])
        assert.ok(hits.distances[0] < 1e-3)

        const before = wf(await plane.search(old[i], 10, 128))
        for (let j = 0; j < before.length; j++) {
          if (!keyAt(before, j).equals(keyOf(i))) continue
          const distance = cosineDistance(old[i], vectors[i])
          assert.ok(Math.abs(before.distances[j] - distance) < 0.01, `round ${round}: k${i} is found where it was`)
        }
        if (i % 10 === 0) assertKeysDistinct(wf(await plane.search(vectors[i], 200, 400)))
      }
      await plane.flushAsync()
    }
    const untouched = Array.from({ length: COUNT - UPDATED }, (_, i) => UPDATED + i)
    assert.deepEqual(missing(plane, vectors, ids, untouched, 10, 128), [])
    assert.equal((await plane.verify()).ok, true)
  }, { forms })
}
