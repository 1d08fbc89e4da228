'use strict'

// Batches of many megabytes, which are copied in pieces: their order among other calls, and what may happen to them on the way.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { failure, optionsPlane, packKeys } = require('./helpers.js')

const DIMS = 1024
/** 20 MB, five pieces. */
const ROWS = 5120
/** Links cost time and do not matter here. */
const OPTIONS = { dims: DIMS, M: 2, efConstruction: 1, rerank: 'none', keyCap: 8, uniqueKeys: true }

/** Row i points to axis i % DIMS, with a little of the next one that grows from one round of the axes to the next. */
function axes() {
  const vectors = new Float32Array(ROWS * DIMS)
  for (let i = 0; i < ROWS; i++) {
    vectors[i * DIMS + (i % DIMS)] = 1
    vectors[i * DIMS + ((i + 1) % DIMS)] = Math.floor(i / DIMS) / 8
  }
  return vectors
}

const turn = () => new Promise(setImmediate)
const keysOf = (prefix, count) => packKeys(Array.from({ length: count }, (_, i) => `${prefix}${i}`))

test('a batch of several pieces lands whole and in order', async (t) => {
  const plane = optionsPlane(t, OPTIONS)
  const vectors = axes()
  let turns = 0
  const counting = setInterval(() => turns++, 0)
  const { ids, rejected } = await plane.insertBatch(vectors, { ...keysOf('r', ROWS), threads: 1 })
  clearInterval(counting)
  assert.deepEqual(rejected, [])
  assert.ok(turns > 2, `${turns} turns of the event loop`)
  for (let i = 0; i < ROWS; i += 97) {
    assert.equal(plane.idOf(`r${i}`), ids[i])
    const kept = plane.getById(ids[i])
    assert.ok(Math.abs(kept[(i + 1) % DIMS] - Math.floor(i / DIMS) / 8) < 0.01)
  }
})

test('what is called later comes later, and close waits', async (t) => {
  const plane = optionsPlane(t, OPTIONS)
  const large = plane.insertBatch(axes(), keysOf('r', ROWS))
  const small = plane.insertBatch(new Float32Array(DIMS).fill(1), keysOf('r', 1))
  const second = plane.upsertBatch(axes(), keysOf('r', ROWS))
  const removed = plane.removeBatchAsync(new Uint32Array([0]))
  const { ids, rejected } = await large
  assert.deepEqual(rejected, [])
  // The large batch came first: its record has the key.
  assert.deepEqual((await small).rejected.map(({ code }) => code), ['key-exists'])
  await second
  assert.notEqual(plane.idOf('r0'), ids[0])
  // The second one replaced every record before any could be removed.
  assert.equal(await removed, 0)

  const last = plane.insertBatch(axes(), keysOf('s', ROWS))
  await turn()
  const closing = plane.close()
  assert.equal((await failure(() => plane.insertBatch(axes(), keysOf('t', ROWS)))).code, 'PLANE_CLOSED')
  assert.equal((await last).ids.length, ROWS)
  await closing
})

test('an abort, a transfer and a wrong type on the way add nothing', async (t) => {
  const plane = optionsPlane(t, OPTIONS)
  const controller = new AbortController()
  const aborted = failure(() => plane.insertBatch(axes(), { ...keysOf('r', ROWS), signal: controller.signal }))
  await turn()
  controller.abort()
  assert.equal((await aborted).code, 'ABORT_ERR')

  const vectors = axes()
  const detached = failure(() => plane.insertBatch(vectors, keysOf('r', ROWS)))
  await turn()
  structuredClone(vectors.buffer, { transfer: [vectors.buffer] })
  const error = await detached
  assert.deepEqual([error.name, error.code], ['TypeError', 'ERR_INVALID_ARG_VALUE'])
  assert.match(error.message, /vectors was detached/)

  for (const wrong of [new Float64Array(3 << 20), new DataView(new ArrayBuffer(24 << 20))]) {
    assert.equal((await failure(() => plane.insertBatch(wrong, keysOf('r', ROWS)))).code, 'ERR_INVALID_ARG_TYPE')
  }
  const { keys, keyEnds } = keysOf('r', ROWS)
  assert.equal((await failure(() => plane.insertBatch(axes(), keys, keyEnds.subarray(1)))).code, 'ERR_INVALID_ARG_VALUE')
  assert.equal(plane.count, 0)
  assert.equal((await plane.insertBatch(new Float32Array(DIMS).fill(1), keysOf('r', 1))).ids.length, 1)
})

test('close ends soon after a batch that broke off while it was copied', { timeout: 60_000 }, async (t) => {
  const plane = optionsPlane(t, OPTIONS)
  const vectors = axes()
  const detached = failure(() => plane.insertBatch(vectors, keysOf('r', ROWS)))
  await turn()
  structuredClone(vectors.buffer, { transfer: [vectors.buffer] })
  assert.equal((await detached).code, 'ERR_INVALID_ARG_VALUE')
  // Nothing may hold the plane until a garbage collection comes along.
  await plane.close()
})
