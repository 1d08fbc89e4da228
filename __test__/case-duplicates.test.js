'use strict'

// Many records with one and the same vector: all of them must be found, and none of the others may become unreachable
// behind them.

const assert = require('node:assert/strict')
const process = require('node:process')

const { clustered, shuffle, wf } = require('./helpers.js')
const { insertAll, keyOf, missing, positionsOf, testForms } = require('./case-helpers.js')

const COPIES = 1000
const vectors = clustered(7, 4000, 64, 40, 0.4)
const distinct = vectors.slice(1)
/** The copies, then the distinct vectors. */
const items = [...Array.from({ length: COPIES }, () => vectors[0]), ...distinct]
const all = positionsOf(items)

const last = [...all.slice(COPIES), ...all.slice(0, COPIES)]

for (const [name, order] of [['among', shuffle(all, 11)], ['before', all], ['after', last]]) {
  testForms(`1,000 equal vectors inserted ${name} the others hide none of them`, async (t, { create }) => {
    const plane = create(t, 64, 6000)
    const ids = []
    // Processor time: what else runs on the machine does not count.
    const ms = []
    for (const i of order) {
      const start = process.cpuUsage()
      ids[i] = plane.insert(items[i], keyOf(i))
      const { user, system } = process.cpuUsage(start)
      ms[i] = (user + system) / 1000
    }

    const copies = new Set(ids.slice(0, COPIES))
    for (const k of [50, COPIES]) {
      const hits = wf(await plane.search(vectors[0], k, 128))
      assert.equal(hits.length, k)
      assert.ok(hits.distances.every((distance) => distance < 1e-3))
      assert.ok(hits.ids.every((id) => copies.has(id)))
    }
    const lost = missing(plane, items, ids, all.slice(COPIES), 10, 256)
    t.diagnostic(`${lost.length} of ${distinct.length} missing`)
    // A beam that fills with copies, or copies that link to nothing but copies, hide what is next to them.
    assert.ok(lost.length <= 1, `${lost.length} of ${distinct.length} are not among their own 10 nearest`)

    // Copies that link only to copies make every further one walk them all.
    const isCopy = (i) => i < COPIES
    const sum = (positions) => positions.reduce((total, i) => total + ms[i], 0)
    const lastCopies = order.filter(isCopy).slice(-100)
    // Others that were inserted at about the same time, since an insert costs more the more records there are.
    const at = (i) => order.indexOf(i)
    const then = at(lastCopies[0])
    const others = order.filter((i) => !isCopy(i)).map((i) => [Math.abs(at(i) - then), i]).sort(([a], [b]) => a - b)
    const msCopies = sum(lastCopies)
    const msDistinct = sum(others.slice(0, 100).map(([, i]) => i))
    t.diagnostic(`last 100 copies ${msCopies.toFixed(1)} ms, 100 distinct then ${msDistinct.toFixed(1)} ms`)
    assert.ok(msCopies <= 5 * msDistinct, `last 100 copies ${msCopies} ms, 100 distinct then ${msDistinct} ms`)
    assert.equal((await plane.verify()).ok, true)
  })
}
