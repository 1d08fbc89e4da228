'use strict'

// A handle's life: close and dispose, read-only handles, flush and watermark, stats and verify.

const assert = require('node:assert/strict')
const fs = require('node:fs')
const { test } = require('node:test')

const { Plane, PlaneError } = require('..')
const {
  clustered, closing, failure, optionsPlane, pack, packKeys, randVec, rng, runChild, tempPath, wf,
} = require('./helpers.js')

const vector = randVec(rng(1), 8)

/** Every member that works on the plane, with arguments that are right. `writes` is what a read-only handle refuses, with another code where it looks at that first. */
const MEMBERS = {
  count: { call: (plane) => plane.count },
  idHighWater: { call: (plane) => plane.idHighWater() },
  getEntryPoint: { call: (plane) => plane.getEntryPoint() },
  stats: { call: (plane) => plane.stats() },
  verify: { call: (plane) => plane.verify(), promise: true },
  insert: { call: (plane) => plane.insert(vector, 'new'), writes: true },
  insertAsync: { call: (plane) => plane.insertAsync(vector, 'new'), writes: true, promise: true },
  insertBatch: { call: (plane) => plane.insertBatch(vector, packKeys(['new'])), writes: true, promise: true },
  upsert: { call: (plane) => plane.upsert('old', vector), writes: true },
  upsertAsync: { call: (plane) => plane.upsertAsync('old', vector), writes: true, promise: true },
  upsertBatch: { call: (plane) => plane.upsertBatch(vector, packKeys(['old'])), writes: true, promise: true },
  remove: { call: (plane) => plane.remove(0), writes: true },
  removeBatch: { call: (plane) => plane.removeBatch(Uint32Array.of(0)), writes: true },
  removeBatchAsync: { call: (plane) => plane.removeBatchAsync(Uint32Array.of(0)), writes: true, promise: true },
  removeKey: { call: (plane) => plane.removeKey('old'), writes: true },
  has: { call: (plane) => plane.has('old') },
  idOf: { call: (plane) => plane.idOf('old') },
  keyOf: { call: (plane) => plane.keyOf(0) },
  tagsOf: { call: (plane) => plane.tagsOf(0) },
  get: { call: (plane) => plane.get('old') },
  getMany: { call: (plane) => plane.getMany(['old']) },
  records: { call: (plane) => [...plane.records()] },
  getById: { call: (plane) => plane.getById(0) },
  search: { call: (plane) => plane.search(vector, 1), promise: true },
  'search with options': { call: (plane) => plane.search(vector, { signal: new AbortController().signal }), promise: true },
  searchSync: { call: (plane) => plane.searchSync(vector, 1) },
  searchBatch: { call: (plane) => plane.searchBatch(vector, { k: 1 }), promise: true },
  searchWithPredicate: { call: (plane) => plane.searchWithPredicate(vector, 1, 8, (ids) => ids.map(() => 1)), promise: true },
  searchExact: { call: (plane) => plane.searchExact(vector) },
  searchExactAsync: { call: (plane) => plane.searchExactAsync(vector), promise: true },
  flush: { call: (plane) => plane.flush(), writes: true },
  flushAsync: { call: (plane) => plane.flushAsync(3), writes: true, promise: true },
  getWatermark: { call: (plane) => plane.getWatermark() },
  calibrate: { call: (plane) => plane.calibrate(), writes: true, promise: true },
  calibration: { call: (plane) => plane.calibration() },
  snapshot: { call: (plane) => plane.snapshot(`${plane.path}.snapshot`, { overwrite: true }), promise: true },
  compact: { call: (plane) => plane.compact(), writes: true, promise: true },
  'compact to a path': { call: (plane) => plane.compact({ path: `${plane.path}.compacted`, overwrite: true }), promise: true },
  setWatermark: { call: (plane) => plane.setWatermark(3), writes: true },
  writeNodeRaw: { call: (plane) => plane.writeNodeRaw(1, 0, Buffer.alloc(8, 1), 1, 0.3, Uint32Array.of(0)), writes: 'PLANE_NOT_MIRRORABLE' },
  writeNodeRawIfAbsent: { call: (plane) => plane.writeNodeRawIfAbsent(1, 0, Buffer.alloc(8, 1), 1, 0.3, Uint32Array.of(0)), writes: 'PLANE_NOT_MIRRORABLE' },
  clearNode: { call: (plane) => plane.clearNode(0), writes: true },
  setEntryPoint: { call: (plane) => plane.setEntryPoint(0, 0), writes: true },
  invalidate: { call: (plane) => plane.invalidate(), writes: true },
  invalidated: { call: (plane) => plane.invalidated() },
}

/** Fails unless the member throws, or its promise rejects, as it should, with this code. */
async function refuses(plane, name, code) {
  const { call, promise = false } = MEMBERS[name]
  let error
  try {
    const pending = call(plane)
    assert.ok(promise, `${name} should have thrown`)
    error = await failure(() => pending)
  } catch (thrown) {
    assert.ok(!promise, `${name} should have rejected, not thrown`)
    error = thrown
  }
  assert.ok(error instanceof PlaneError, `${name}: ${error.stack}`)
  assert.equal(error.name, 'PlaneError')
  assert.equal(error.code, code, name)
}

test('the grid below knows every member', () => {
  const others = ['constructor', 'close', 'openedClean', 'path', 'readOnly', 'closed', 'dims', 'metric', 'precision', 'rerank',
    // Works on the file of a handle that is read-only too.
    'invalidateFile',
    'M', 'layer0Cap', 'efConstruction', 'keyCap', 'uniqueKeys', 'maxNodes']
  const known = Object.keys(MEMBERS).filter((name) => !name.includes(' '))
  assert.deepEqual(Object.getOwnPropertyNames(Plane.prototype).sort(), [...known, ...others].sort())
})

test('a closed plane refuses every member at once', async (t) => {
  const plane = optionsPlane(t, { dims: 8, keyCap: 8 })
  plane.insert(vector, 'old')
  const closed = plane.close()
  assert.equal(plane.closed, true)
  for (const name of Object.keys(MEMBERS)) await refuses(plane, name, 'PLANE_CLOSED')
  await closed
  for (const name of Object.keys(MEMBERS)) await refuses(plane, name, 'PLANE_CLOSED')
  assert.equal(plane.dims, 8, 'what never changes can still be read')
  assert.equal(plane.openedClean(), true)
})

test('a read-only plane answers and refuses every change', async (t) => {
  const file = tempPath(t)
  const writer = optionsPlane(t, { dims: 8, keyCap: 8 }, file)
  writer.insert(vector, 'old')
  await writer.close()
  const before = fs.readFileSync(file)
  const plane = closing(t, Plane.open(file, { readOnly: true }))
  for (const [name, { call, writes = false }] of Object.entries(MEMBERS)) {
    if (writes) await refuses(plane, name, writes === true ? 'PLANE_READ_ONLY' : writes)
    else await call(plane)
  }
  assert.equal(plane.count, 1)
  assert.equal(wf(await plane.search(vector, 1)).length, 1)
  await plane.close()
  assert.ok(before.equals(fs.readFileSync(file)), 'the file is as it was')
})

test('a file that cannot be written can be opened read-only', { skip: process.getuid?.() === 0 }, async (t) => {
  const file = tempPath(t)
  await optionsPlane(t, { dims: 8 }, file).close()
  fs.chmodSync(file, 0o444)
  assert.equal((await failure(() => Plane.open(file))).code, 'EACCES')
  assert.equal(closing(t, Plane.open(file, { readOnly: true })).count, 0)
})

test('calls in flight finish before a close resolves', async (t) => {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: 32, keyCap: 8 }, file)
  const vectors = clustered(1, 3000, 32, 20, 0.4)
  await plane.insertBatch(pack(vectors.slice(0, 1000)), packKeys(vectors.slice(0, 1000).map((_, i) => `a${i}`)))
  const settled = []
  const follow = (name, promise) => promise.then((value) => {
    settled.push(name)
    return value
  })
  const batches = [1, 2].map((i) => follow('batch', plane.insertBatch(
    pack(vectors.slice(1000 * i, 1000 * (i + 1))), packKeys(vectors.slice(0, 1000).map((_, j) => `${i}b${j}`)))))
  const searches = vectors.slice(0, 300).map((query) => follow('search', plane.search(query, 1, 64)))
  const inserts = [0, 1, 2].map((i) => follow('insert', plane.insertAsync(vectors[i], `c${i}`)))
  const verified = follow('verify', plane.verify())
  const closed = plane.close().then(() => settled.push('close'))
  assert.equal((await failure(() => plane.searchSync(vectors[0], 1))).code, 'PLANE_CLOSED')
  await closed
  assert.equal(settled.length, 2 + 300 + 3 + 1 + 1)
  assert.equal(settled.at(-1), 'close')
  for (const hits of await Promise.all(searches)) assert.equal(wf(hits).length, 1)
  for (const { rejected } of await Promise.all(batches)) assert.deepEqual(rejected, [])
  await Promise.all([...inserts, verified])
  const again = closing(t, Plane.open(file))
  assert.equal(again.openedClean(), true)
  assert.equal(again.count, 3003)
  assert.equal((await again.verify()).ok, true)
})

test('close is idempotent', async (t) => {
  const plane = optionsPlane(t, { dims: 8 })
  const first = plane.close()
  assert.equal(plane.close(), first)
  assert.equal(await first, undefined)
  assert.equal(plane.close(), first)
  plane[Symbol.dispose]()
  await plane[Symbol.asyncDispose]()
})

test('close gives the file back', { skip: process.platform !== 'linux' }, async (t) => {
  const file = tempPath(t)
  const open = () => fs.readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return fs.readlinkSync(`/proc/self/fd/${fd}`) === file
    } catch {
      return false
    }
  }).length
  const mapped = () => fs.readFileSync('/proc/self/maps', 'utf8').includes(file)
  const plane = optionsPlane(t, { dims: 8 }, file)
  const second = closing(t, Plane.open(file))
  plane.insert(vector)
  assert.ok(open() > 0 && mapped())
  await plane.close()
  assert.ok(mapped(), 'the other handle still has it')
  await second.close()
  assert.deepEqual([open(), mapped()], [0, false])
})

test('dispose closes', async (t) => {
  const dispose = Symbol.dispose ?? Symbol.for('nodejs.dispose')
  const asyncDispose = Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')
  const one = optionsPlane(t, { dims: 8 })
  assert.equal(one[dispose](), undefined)
  assert.equal((await failure(() => one.count)).code, 'PLANE_CLOSED')
  await one.close()
  const other = optionsPlane(t, { dims: 8 })
  other.insert(vector)
  assert.equal(await other[asyncDispose](), undefined)
  assert.equal((await failure(() => other.insertAsync(vector))).code, 'PLANE_CLOSED')
})

test('close flushes what the handle wrote', async (t) => {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: 8 }, file)
  const flushes = plane.stats().flushes
  plane.insert(vector)
  plane.setWatermark(41)
  await plane.close()
  const reader = closing(t, Plane.open(file))
  assert.equal(reader.getWatermark(), 41)
  assert.equal(reader.stats().flushes, flushes + 1)
  await reader.close()
  const third = closing(t, Plane.open(file))
  assert.equal(third.stats().flushes, flushes + 1, 'a handle that wrote nothing flushes nothing')
  third.insert(vector)
  third.flush()
  await third.close()
  assert.equal(closing(t, Plane.open(file)).stats().flushes, flushes + 2, 'nor does one that has flushed')
})

test('the watermark is set by flush, or before it, and is durable with it', async (t) => {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: 8 }, file)
  assert.equal(plane.getWatermark(), 0)
  plane.flush(7)
  assert.equal(plane.getWatermark(), 7)
  await plane.flushAsync(Number.MAX_SAFE_INTEGER)
  assert.equal(plane.getWatermark(), Number.MAX_SAFE_INTEGER)
  plane.setWatermark(5)
  assert.equal(plane.getWatermark(), Number.MAX_SAFE_INTEGER, 'not before it is durable')
  plane.flush()
  assert.equal(plane.getWatermark(), 5)
  await plane.flushAsync()
  assert.equal(plane.getWatermark(), 5)
  for (const call of [(n) => plane.flush(n), (n) => plane.flushAsync(n), (n) => plane.setWatermark(n)]) {
    for (const n of [-1, 0.5, NaN, Infinity, 2 ** 53]) {
      const error = await failure(() => call(n))
      assert.ok(error instanceof RangeError && error.code === 'ERR_OUT_OF_RANGE')
      assert.match(error.message, /^watermark must be/)
    }
    for (const n of ['1', 1n, null, {}]) assert.equal((await failure(() => call(n))).code, 'ERR_INVALID_ARG_TYPE')
  }
  assert.equal((await failure(() => plane.setWatermark())).code, 'ERR_INVALID_ARG_TYPE')
  const child = await runChild('console.log(vecplane.Plane.open(process.argv[2]).getWatermark())', [file])
  assert.equal(child.stdout, '5\n')
})

test('what was flushed is found by another process', async (t) => {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: 8, keyCap: 8 }, file)
  const vectors = clustered(3, 200, 8, 5, 0.4)
  const { ids } = await plane.insertBatch(pack(vectors), packKeys(vectors.map((_, i) => `k${i}`)))
  await plane.flushAsync()
  const child = await runChild(`
    const plane = vecplane.Plane.open(process.argv[2])
    const hits = plane.searchSync(plane.get('k17'), 1)
    console.log(plane.count, hits.ids[0], String(hits.key(0)), plane.idOf('k199'))
  `, [file])
  assert.deepEqual([child.code, child.stdout, child.stderr], [0, `200 ${ids[17]} k17 ${ids[199]}\n`, ''])
})

test('stats tell sizes and counts', async (t) => {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: 100, keyCap: 16 }, file)
  plane.insert(randVec(rng(1), 100), 'short')
  plane.insert(randVec(rng(2), 100), 'long'.repeat(20))
  plane.insert(randVec(rng(3), 100), 'gone')
  plane.remove(2)
  const stats = plane.stats()
  assert.deepEqual([stats.count, stats.idHighWater, stats.limbo + stats.free, stats.writing], [2, 3, 1, false])
  assert.equal(typeof stats.copyOnWrite, 'boolean')
  assert.deepEqual([stats.calibrationStale, stats.tagCopyBytes], [false, 0])
  assert.equal(stats.fileBytes, fs.statSync(file).size)
  assert.equal(stats.exactBytes, 400)
  assert.equal(stats.longKeyBytes, 80)
  assert.ok(stats.slotBytes >= 100 + 4 * 32)
  assert.ok(stats.keyEntryBytes >= 16 && stats.heapBytes >= 80 && stats.extents >= 1)
  plane.flush()
  assert.equal(plane.stats().flushes, stats.flushes + 1)
  assert.match(stats.kernels, /^\w+/)
})

test('verify finds a sound plane sound', async (t) => {
  const plane = optionsPlane(t, { dims: 16, keyCap: 8 })
  assert.equal((await plane.verify()).ok, true)
  const vectors = clustered(4, 1000, 16, 20, 0.3)
  await plane.insertBatch(pack(vectors), packKeys(vectors.map((_, i) => `k${i}`)))
  for (let i = 0; i < 300; i++) plane.removeKey(`k${3 * i}`)
  const { danglingLinks, examples, ...report } = await plane.verify()
  assert.deepEqual(report, {
    ok: true, live: 700, checksumFailures: 0, invalidLinks: 0, unreachable: 0, unlinked: 0, keyIndexMismatches: 0, invalidRecords: 0, lostSlots: 0,
  })
  assert.ok(danglingLinks >= 0)
  assert.deepEqual(examples, new Uint32Array(0))
})
