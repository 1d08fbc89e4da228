'use strict'

// Several processes on one file: each sees at once what another has written, writers take turns without losing anything,
// and one that dies holding the file holds up nobody.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { tempPath } = require('./helpers.js')
const { FORMS, LONG, peer } = require('./case-helpers.js')

/** A process with one plane open. Records are numbered; number, vector and key of a record go together. */
const MEMBER = `
  const { keyAt, pack, packKeys, randVec, rng, wf } = helpers
  const { performance } = require('node:perf_hooks')
  const DIMS = 32
  const made = []
  const vectorOf = (n) => (made[n] ??= randVec(rng(18_000 + n), DIMS))
  const numbers = (from, count) => Array.from({ length: count }, (_, i) => from + i)
  let plane
  serve.create = (file, form) => {
    plane = form === 'positional'
      ? vecplane.Plane.create(file, DIMS, 32, 20_000, 16)
      : vecplane.Plane.create(file, { dims: DIMS, keyCap: 16 })
  }
  serve.open = (file, options) => { plane = vecplane.Plane.open(file, options) }
  serve.close = () => plane.close()
  serve.flush = () => plane.flushAsync()
  serve.count = () => plane.count
  serve.verify = () => plane.verify()
  /** Inserts one by one and tells the longest time one took. */
  serve.insert = async (from, count) => {
    const ids = []
    let slowest = 0
    for (const n of numbers(from, count)) {
      const vector = vectorOf(n)
      const start = performance.now()
      ids.push(n % 2 ? plane.insert(vector, 'k' + n) : await plane.insertAsync(vector, 'k' + n))
      slowest = Math.max(slowest, performance.now() - start)
    }
    return { ids, slowest }
  }
  serve.insertBatch = async (from, count) => {
    const { keys, keyEnds } = packKeys(numbers(from, count).map((n) => 'k' + n))
    const { ids, rejected } = await plane.insertBatch(pack(numbers(from, count).map(vectorOf)), keys, keyEnds)
    return { ids: [...ids], rejected }
  }
  serve.insertForEver = (from) => {
    const next = async (n) => {
      await serve.insertBatch(n, 200)
      await next(n + 200)
    }
    next(from)
  }
  serve.remove = (ids) => ids.map((id) => plane.remove(id))
  /** What is wrong when each of these records is looked for: a lost one, or one under another's key or id. */
  serve.look = async (from, count, ids) => {
    const wrong = []
    for (const n of numbers(from, count)) {
      const hits = wf(n % 2 ? plane.searchSync(vectorOf(n), 10, 128) : await plane.search(vectorOf(n), 10, 128))
      const at = hits.ids.indexOf(ids ? ids[n - from] : hits.ids[0])
      if (at < 0 || !(hits.distances[at] < 1e-3)) wrong.push('no ' + n)
      else if (keyAt(hits, at).toString() !== 'k' + n) wrong.push(n + ' has key ' + keyAt(hits, at))
    }
    return wrong
  }
  /** Which of these records are found. */
  serve.found = (from, count) => numbers(from, count).filter((n) => {
    const hits = wf(plane.searchSync(vectorOf(n), 10, 128))
    return hits.length > 0 && hits.distances[0] < 1e-3
  })
`

for (const form of FORMS) {
  test(`two processes write one plane and lose nothing (${form.name})`, { timeout: 120_000 }, async (t) => {
    const file = tempPath(t)
    const [a, b, c, reader] = Array.from({ length: 4 }, () => peer(t, MEMBER))
    await a.call('create', file, form.name)
    const { ids: first } = await a.call('insert', 0, 1000)

    await b.call('open', file)
    await reader.call('open', file, { readOnly: true })
    for (const other of [b, reader]) assert.deepEqual(await other.call('look', 0, 1000, first), [])
    const { ids: second } = await a.call('insert', 1000, 500)
    const told = performance.now()
    for (const other of [b, reader]) {
      assert.deepEqual(await other.call('look', 1000, 500, second), [], 'what another process wrote is not seen')
    }
    assert.ok(performance.now() - told < 1000)
    const { ids: third } = await b.call('insert', 2000, 500)
    for (const other of [a, reader]) assert.deepEqual(await other.call('look', 2000, 500, third), [])
    await assert.rejects(reader.call('insert', 9000, 1), { code: 'PLANE_READ_ONLY' })

    // At the same time: batches first, then one by one.
    const [batchA, batchB] = await Promise.all([a.call('insertBatch', 3000, 1000), b.call('insertBatch', 5000, 1000)])
    assert.deepEqual([batchA.rejected, batchB.rejected], [[], []])
    const [oneA, oneB] = await Promise.all([a.call('insert', 4000, 1000), b.call('insert', 6000, 1000)])
    t.diagnostic(`slowest of 1,000 inserts beside the other's: ${oneA.slowest.toFixed(1)} and ${oneB.slowest.toFixed(1)} ms`)
    assert.ok(Math.max(oneA.slowest, oneB.slowest) < 1000, `an insert waited ${oneA.slowest} or ${oneB.slowest} ms`)
    const idsA = [...batchA.ids, ...oneA.ids]
    const idsB = [...batchB.ids, ...oneB.ids]
    const all = [...first, ...second, ...third, ...idsA, ...idsB]
    assert.equal(new Set(all).size, 6000, 'an id was given twice')

    const removals = await Promise.all([a.call('remove', idsA.slice(0, 200)), b.call('remove', idsB.slice(0, 200))])
    assert.ok(removals.flat().every(Boolean))
    assert.deepEqual(await b.call('found', 3000, 200), [], 'a record that another process removed is found')
    for (const other of [a, reader]) assert.deepEqual(await other.call('found', 5000, 200), [])
    await Promise.all([a.call('flush'), b.call('flush')])
    for (const process of [a, b]) {
      process.leave()
      assert.deepEqual(await process.exited, { code: 0, signal: null })
    }

    await c.call('open', file)
    assert.equal(await c.call('count'), 1000 + 500 + 500 + 4000 - 400)
    const kept = [[0, first], [1000, second], [2000, third], [3200, idsA.slice(200)], [5200, idsB.slice(200)]]
    for (const [from, ids] of kept) assert.deepEqual(await c.call('look', from, ids.length, ids), [])
    assert.deepEqual([await c.call('found', 3000, 200), await c.call('found', 5000, 200)], [[], []])
    assert.equal((await c.call('verify')).ok, true)
  })

  test(`a process killed while it writes holds up no other (${form.name})`, { timeout: 120_000 }, async (t) => {
    const file = tempPath(t)
    const b = peer(t, MEMBER)
    const first = peer(t, MEMBER)
    await first.call('create', file, form.name)
    let { ids } = await first.call('insert', 0, 500)
    first.leave()
    await first.exited
    await b.call('open', file)
    let slowest = 0
    for (let round = 1; round <= (LONG ? 20 : 3); round++) {
      const a = peer(t, MEMBER)
      await a.call('open', file)
      await a.call('insertForEver', 100_000 * round)
      await new Promise((resolve) => setTimeout(resolve, 20 + (50 * round) % 300))
      a.kill()
      await a.exited
      const start = performance.now()
      const { ids: given } = await b.call('insert', 500 * round, 500)
      slowest = Math.max(slowest, performance.now() - start)
      ids = [...ids, ...given]
      assert.equal(new Set(ids).size, ids.length)
      assert.deepEqual(await b.call('look', 0, ids.length, ids), [], `round ${round}`)
    }
    t.diagnostic(`500 inserts after a kill: at most ${slowest.toFixed(1)} ms`)
    assert.ok(slowest < 1000, `500 inserts after a kill took ${slowest} ms`)
    assert.equal((await b.call('verify')).ok, true)
  })
}
