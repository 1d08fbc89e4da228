'use strict'

// Opening off the event loop, and what a crash of the machine leaves to be done at opening.

const assert = require('node:assert/strict')
const fs = require('node:fs')
const { test } = require('node:test')

const { Plane, PlaneError } = require('..')
const { clustered, packKeys, pack, tempPath } = require('./helpers.js')

const DIMS = 16
const vectors = clustered(3, 6000, DIMS, 20, 0.4)
const keyOf = (i) => `k${i}`

/** Where the shared state keeps the boot id of the machine that last wrote: `docs/design.md`, section 1. */
const BOOT_OFFSET = 8192 + 144

/** A copy of a plane that was being written when its machine stopped. */
async function crashed(t) {
  const path = tempPath(t)
  const plane = Plane.create(path, { dims: DIMS, keyCap: 8 })
  await plane.insertBatch(pack(vectors), packKeys(vectors.map((_, i) => keyOf(i))))
  await plane.flushAsync(41)
  const copy = `${path}.copy`
  fs.copyFileSync(path, copy)
  await plane.close()
  // The copy is another file, which is reason enough; another boot makes it a crash.
  const file = fs.openSync(copy, 'r+')
  fs.writeSync(file, Buffer.alloc(16, 7), 0, 16, BOOT_OFFSET)
  fs.closeSync(file)
  return copy
}

test('openAsync opens a plane as open does', async (t) => {
  const path = tempPath(t)
  const made = Plane.create(path, { dims: DIMS, keyCap: 8 })
  made.insert(vectors[0], 'k0')
  await made.close()
  const plane = await Plane.openAsync(path, { lockTimeout: 10 })
  t.after(() => plane.close())
  assert.ok(plane instanceof Plane)
  assert.equal(plane.openedClean(), true)
  assert.equal(plane.idOf('k0'), 0)
})

test('openAsync rejects as open throws', async (t) => {
  const path = tempPath(t)
  await assert.rejects(Plane.openAsync(path), (error) => error instanceof PlaneError && error.code === 'ENOENT')
  fs.writeFileSync(path, Buffer.alloc(200_000, 'no plane'))
  await assert.rejects(Plane.openAsync(path), { code: 'PLANE_NOT_A_PLANE' })
  await assert.rejects(Plane.openAsync(7), { name: 'TypeError', code: 'ERR_INVALID_ARG_TYPE' })
  await assert.rejects(Plane.openAsync(path, { readonly: true }), { code: 'ERR_INVALID_ARG_VALUE', message: /'readOnly'/ })
  await assert.rejects(Plane.openAsync(path, { onProgress: 1 }), { code: 'ERR_INVALID_ARG_TYPE' })
})

test('after a crash of the machine openAsync recovers every flushed record and tells its progress', async (t) => {
  const path = await crashed(t)
  const told = []
  const plane = await Plane.openAsync(path, { onProgress: (done, total) => told.push([done, total]) })
  t.after(() => plane.close())
  assert.equal(plane.openedClean(), false)
  assert.ok(told.length > 0 && told.every(([done, total]) => done <= total), JSON.stringify(told))
  assert.equal(plane.count, vectors.length)
  assert.equal(plane.getWatermark(), 41)
  for (let i = 0; i < vectors.length; i += 100) assert.deepEqual(plane.get(keyOf(i)), vectors[i])
  const report = await plane.verify()
  assert.equal(report.ok, true, JSON.stringify(report))
})

test('a read-only handle does not recover: it says that somebody must', async (t) => {
  const path = await crashed(t)
  assert.throws(() => Plane.open(path, { readOnly: true }), { code: 'PLANE_NEEDS_RECOVERY' })
  await assert.rejects(Plane.openAsync(path, { readOnly: true }), { code: 'PLANE_NEEDS_RECOVERY' })
  await Plane.open(path).close()
  const plane = Plane.open(path, { readOnly: true })
  t.after(() => plane.close())
  assert.equal(plane.count, vectors.length)
})

test('an aborted openAsync leaves the file to be recovered by the next one', async (t) => {
  const path = await crashed(t)
  await assert.rejects(Plane.openAsync(path, { signal: AbortSignal.abort() }), { name: 'AbortError', code: 'ABORT_ERR' })
  const plane = await Plane.openAsync(path)
  t.after(() => plane.close())
  assert.equal(plane.openedClean(), false)
  assert.equal(plane.count, vectors.length)
})
