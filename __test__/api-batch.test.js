'use strict'

// insertBatch: both forms, what it rejects, progress, signals, faults, order, and what goes on beside it.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { PlaneError } = require('..')
const { casePlane, failure, optionsPlane, pack, packKeys, randVec, rng, runChild, wf } = require('./helpers.js')

const NONE = 0xffffffff

const records = (seed, n, dims) => {
  const random = rng(seed)
  return Array.from({ length: n }, () => randVec(random, dims))
}

test('both forms add all records and tell their ids in input order', async (t) => {
  const vectors = records(1, 500, 16)
  const { keys, keyEnds } = packKeys(vectors.map((_, i) => `key ${i}`))
  for (const insert of [
    (plane) => plane.insertBatch(pack(vectors), keys, keyEnds, 2),
    (plane) => plane.insertBatch(pack(vectors), keys, keyEnds),
    (plane) => plane.insertBatch(pack(vectors), { keys, keyEnds, threads: 2 }),
    (plane) => plane.insertBatch(pack(vectors), { keys: new Uint8Array(keys), keyEnds, threads: 1 }),
  ]) {
    const plane = optionsPlane(t, { dims: 16, keyCap: 16 })
    const { ids, rejected } = await insert(plane)
    assert.ok(ids instanceof Uint32Array)
    assert.deepEqual(rejected, [])
    assert.equal(new Set(ids).size, 500)
    assert.equal(plane.count, 500)
    for (let i = 0; i < 500; i += 7) {
      const hits = wf(await plane.search(vectors[i], 1, 64))
      assert.equal(hits.ids[0], ids[i])
      assert.equal(String(hits.key(0)), `key ${i}`)
    }
  }
})

test('keys are optional where they need not be unique', async (t) => {
  const plane = optionsPlane(t, { dims: 4, keyCap: 8, uniqueKeys: false })
  for (const rest of [[], [undefined], [null, null], [{}], [{ keys: null, keyEnds: null }], [undefined, undefined, 1]]) {
    const { ids } = await plane.insertBatch(randVec(rng(1), 12), ...rest)
    assert.equal(ids.length, 3)
    assert.equal(plane.keyOf(ids[0]).length, 0)
  }
})

test('nothing to add is no error', async (t) => {
  const plane = optionsPlane(t, { dims: 4 })
  for (const rest of [[], [{ threads: 8 }], [{ onProgress() {} }]]) {
    const { ids, rejected } = await plane.insertBatch(new Float32Array(0), ...rest)
    assert.deepEqual([ids.length, rejected], [0, []])
  }
  assert.equal(plane.count, 0)
})

test('records that are bad for their own sake are listed', async (t) => {
  const plane = optionsPlane(t, { dims: 4, keyCap: 8 })
  plane.insert(randVec(rng(99), 4), 'taken')
  const vectors = records(2, 6, 4)
  vectors[1][0] = NaN
  vectors[5][3] = -Infinity
  const listed = packKeys(['a', 'b', 'taken', 'a', 'x'.repeat(65_536), 'c'])
  const { ids, rejected } = await plane.insertBatch(pack(vectors), listed)
  assert.deepEqual(rejected.map(({ index, code }) => [index, code]), [
    [1, 'not-finite'], [2, 'key-exists'], [3, 'key-exists'], [4, 'key-unstorable'], [5, 'not-finite'],
  ])
  for (const { reason } of rejected) assert.ok(reason.length > 10)
  assert.deepEqual([...ids.subarray(1)], [NONE, NONE, NONE, NONE, NONE])
  assert.equal(plane.count, 2)
  assert.equal(plane.idOf('a'), ids[0])
  const keyless = optionsPlane(t, { dims: 4 })
  const refused = await keyless.insertBatch(pack(vectors.slice(2, 4)), packKeys(['k', '']))
  assert.deepEqual(refused.rejected.map(({ index, code }) => [index, code]), [[0, 'key-unstorable']])
})

test('malformed batches are refused before anything is added', async (t) => {
  const plane = optionsPlane(t, { dims: 4, keyCap: 8, uniqueKeys: false })
  const vectors = randVec(rng(1), 12)
  const keys = Buffer.from('abc')
  for (const [input, rest, code, message] of [
    [randVec(rng(1), 13), [], 'ERR_INVALID_ARG_VALUE', /dims/],
    [randVec(rng(1), 3), [], 'ERR_INVALID_ARG_VALUE', /dims/],
    [vectors, [keys, Uint32Array.of(1, 2)], 'ERR_INVALID_ARG_VALUE', /keyEnds/],
    [vectors, [keys, Uint32Array.of(1, 2, 3, 3)], 'ERR_INVALID_ARG_VALUE', /keyEnds/],
    [vectors, [keys, Uint32Array.of(2, 1, 3)], 'ERR_INVALID_ARG_VALUE', /keyEnds/],
    [vectors, [keys, Uint32Array.of(1, 2, 4)], 'ERR_INVALID_ARG_VALUE', /keyEnds/],
    [vectors, [keys, Uint32Array.of(1, 2, NONE)], 'ERR_INVALID_ARG_VALUE', /keyEnds/],
    [vectors, [keys, Uint32Array.of(NONE, 2, 3)], 'ERR_INVALID_ARG_VALUE', /keyEnds/],
    [vectors, [keys], 'ERR_INVALID_ARG_VALUE', /keyEnds/],
    [vectors, [null, Uint32Array.of(1, 2, 3)], 'ERR_INVALID_ARG_VALUE', /keyEnds/],
    [vectors, [keys, [1, 2, 3]], 'ERR_INVALID_ARG_TYPE', /keyEnds must be a Uint32Array, got Array/],
    [vectors, [keys, Float64Array.of(1, 2, 3)], 'ERR_INVALID_ARG_TYPE', /keyEnds/],
    [vectors, ['abc', Uint32Array.of(1, 2, 3)], 'ERR_INVALID_ARG_TYPE', /keys/],
    [vectors, [{ keys: ['a', 'b', 'c'] }], 'ERR_INVALID_ARG_TYPE', /keys/],
    [vectors, [['a', 'b', 'c']], 'ERR_INVALID_ARG_TYPE', /options/],
    [vectors, [{ threads: 0 }], 'ERR_OUT_OF_RANGE', /threads/],
    [vectors, [{ threads: 1.5 }], 'ERR_OUT_OF_RANGE', /threads/],
    [vectors, [{ threads: 1025 }], 'ERR_OUT_OF_RANGE', /threads/],
    [vectors, [null, null, -1], 'ERR_OUT_OF_RANGE', /threads/],
    [vectors, [null, null, '2'], 'ERR_INVALID_ARG_TYPE', /threads/],
    [vectors, [{ onProgress: 1 }], 'ERR_INVALID_ARG_TYPE', /onProgress/],
    [vectors, [{ onProgress: null }], 'ERR_INVALID_ARG_TYPE', /onProgress/],
    [vectors, [{ signal: {} }], 'ERR_INVALID_ARG_TYPE', /signal/],
    [vectors, [{ thread: 1 }], 'ERR_INVALID_ARG_VALUE', /did you mean 'threads'/],
    [vectors, [{ keyends: Uint32Array.of(1) }], 'ERR_INVALID_ARG_VALUE', /did you mean 'keyEnds'/],
    [vectors, [{ onprogress() {} }], 'ERR_INVALID_ARG_VALUE', /did you mean 'onProgress'/],
  ]) {
    const error = await failure(() => plane.insertBatch(input, ...rest))
    assert.equal(error.code, code, `${message}: ${error.message}`)
    assert.match(error.message, message)
    assert.ok(error instanceof (code === 'ERR_OUT_OF_RANGE' ? RangeError : TypeError))
  }
  assert.equal(plane.count, 0)
  const keyed = optionsPlane(t, { dims: 4, keyCap: 8 })
  assert.equal((await failure(() => keyed.insertBatch(vectors))).code, 'ERR_INVALID_ARG_VALUE', 'unique keys must be given')
})

test('a full plane stops a batch, which tells what landed', async (t) => {
  const plane = casePlane(t, 16, 100)
  const vectors = records(3, 150, 16)
  await plane.insertBatch(pack(vectors.slice(0, 90)))
  const error = await failure(() => plane.insertBatch(pack(vectors.slice(90, 140)), { threads: 2 }))
  assert.ok(error instanceof PlaneError)
  assert.equal(error.code, 'PLANE_FULL')
  assert.match(error.message, /full.*maxNodes/)
  assert.ok(error.ids instanceof Uint32Array)
  assert.equal(error.ids.length, 50)
  assert.equal(error.inserted, 10)
  assert.equal(error.ids.filter((id) => id !== NONE).length, 10)
  assert.equal(plane.count, 100)
  error.ids.forEach((id, i) => {
    if (id !== NONE) assert.equal(wf(plane.searchSync(vectors[90 + i], 1, 128)).ids[0], id)
  })
})

test('progress is told and ends at the total', async (t) => {
  const plane = optionsPlane(t, { dims: 64 })
  const told = []
  const { ids } = await plane.insertBatch(pack(records(4, 4000, 64)), {
    threads: 1,
    onProgress: (done, total) => told.push([done, total]),
  })
  assert.equal(ids.length, 4000)
  assert.ok(told.length >= 2, `told ${told.length} times`)
  assert.ok(told.every(([done, total], i) => total === 4000 && done >= (i ? told[i - 1][0] : 0)))
  assert.deepEqual(told.at(-1), [4000, 4000])
})

test('what onProgress throws stops the batch and is the rejection', async (t) => {
  const plane = optionsPlane(t, { dims: 64 })
  const thrown = new Error('stop here')
  const error = await failure(() => plane.insertBatch(pack(records(4, 8000, 64)), {
    threads: 1,
    onProgress() { throw thrown },
  }))
  assert.equal(error, thrown)
  assert.ok(plane.count < 8000)
})

test('a signal stops a batch, which tells what landed', async (t) => {
  const plane = optionsPlane(t, { dims: 64 })
  const controller = new AbortController()
  const inserting = plane.insertBatch(pack(records(4, 8000, 64)), { signal: controller.signal, threads: 1 })
  setTimeout(() => controller.abort(), 30)
  const error = await failure(() => inserting)
  assert.ok(error instanceof PlaneError)
  assert.deepEqual([error.name, error.code, error.cause], ['AbortError', 'ABORT_ERR', controller.signal.reason])
  assert.equal(error.ids.length, 8000)
  assert.equal(error.inserted, plane.count)
  assert.ok(error.inserted < 8000)
  assert.equal((await plane.verify()).ok, true)

  const before = plane.count
  const early = await failure(() => plane.insertBatch(pack(records(5, 500, 64)), { signal: AbortSignal.abort() }))
  assert.equal(early.code, 'ABORT_ERR')
  assert.equal(plane.count - before, early.inserted)
  assert.ok(early.inserted < 500)
})

test('batches of one handle run one after another in call order', async (t) => {
  const plane = optionsPlane(t, { dims: 16 })
  const order = []
  const batches = Array.from({ length: 6 }, (_, i) =>
    plane.insertBatch(pack(records(i, 300, 16)), { threads: 2 }).then(({ ids }) => {
      order.push(i)
      return ids
    }))
  const ids = await Promise.all(batches)
  assert.deepEqual(order, [0, 1, 2, 3, 4, 5])
  ids.forEach((batch, i) => assert.ok(batch.every((id) => id >= 300 * i && id < 300 * (i + 1)), 'no two were mixed'))
})

test('searches and timers go on beside batches', async (t) => {
  const plane = optionsPlane(t, { dims: 64 })
  const vectors = records(6, 5000, 64)
  await plane.insertBatch(pack(vectors.slice(0, 100)))
  let busy = true
  const inserting = Promise.all([1, 2, 3, 4, 5, 6].map((i) => plane.insertBatch(pack(vectors.slice(700 * i, 700 * (i + 1))), { threads: 1 })))
    .finally(() => { busy = false })
  let longest = 0
  let searches = 0
  for (let last = performance.now(); busy; searches++) {
    assert.equal(wf(await plane.search(vectors[searches % 100], 1, 64)).length, 1)
    await new Promise(setImmediate)
    longest = Math.max(longest, performance.now() - last)
    last = performance.now()
  }
  const results = await inserting
  assert.equal(results.length, 6)
  assert.ok(searches > 20, `${searches} searches went on`)
  assert.ok(longest < 1000, `a search took ${longest} ms`)
})

test('the event loop is free while a batch runs', async () => {
  const child = await runChild(`
    const file = require('node:path').join(require('node:fs').mkdtempSync(require('node:os').tmpdir() + '/vecplane-'), 'a')
    const plane = vecplane.Plane.create(file, { dims: 64 })
    let longest = 0, last = performance.now()
    const timer = setInterval(() => { longest = Math.max(longest, performance.now() - last); last = performance.now() }, 1)
    plane.insertBatch(Float32Array.from({ length: 64 * 5000 }, () => Math.random() - 0.5)).then(async ({ ids }) => {
      clearInterval(timer)
      await plane.close()
      require('node:fs').rmSync(require('node:path').dirname(file), { recursive: true })
      console.log(ids.length, longest < 100)
    })
  `)
  assert.deepEqual([child.code, child.signal, child.stdout, child.stderr], [0, null, '5000 true\n', ''])
})
