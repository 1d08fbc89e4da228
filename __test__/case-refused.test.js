'use strict'

// Files that a newer version wrote, and planes whose disk refused a sync: the first are never read, the second not written
// to before they have been opened again, and both say so in every form.

const assert = require('node:assert/strict')
const fs = require('node:fs')
const { test } = require('node:test')

const { Plane, PlaneError } = require('..')
const { clustered, closing, failure, pack, packKeys, tempPath, wf } = require('./helpers.js')
const { insertAll, keyOf } = require('./case-helpers.js')

const DIMS = 16
const vectors = clustered(8, 200, DIMS, 8, 0.4)

/** Flags in the shared state, and the one that a failed sync sets: `docs/design.md`, section 1. */
const FLAGS_OFFSET = 8192 + 84
const SYNC_FAILED = 8

test('a file of a newer version is refused, and left as it is', async (t) => {
  const path = tempPath(t)
  // Nothing but magic, version 2 and the XXH3-64 of such a superblock: no later field of a newer version is to be relied on.
  const superblock = Buffer.alloc(4096)
  superblock.write('VECPLANE')
  superblock.writeUInt32LE(2, 8)
  superblock.writeBigUInt64LE(0x59b5e9487a19a960n, 16)
  const file = Buffer.concat([superblock, superblock, Buffer.alloc(200_000)])
  fs.writeFileSync(path, file)
  for (const open of [
    () => Plane.open(path),
    () => Plane.open(path, { readOnly: true }),
    () => Plane.openAsync(path),
    () => Plane.openAsync(path, { readOnly: true }),
  ]) {
    const error = await failure(open)
    assert.ok(error instanceof PlaneError)
    assert.equal(error.code, 'PLANE_UNSUPPORTED_VERSION')
    assert.match(error.message, /version 2/)
  }
  assert.deepEqual(fs.readFileSync(path), file)
})

test('after a failed sync every write is refused until the plane is opened again, and searches go on', async (t) => {
  const path = tempPath(t)
  const plane = Plane.create(path, { dims: DIMS, keyCap: 16 })
  const ids = insertAll(plane, vectors.slice(0, 100))
  await plane.flushAsync(3)
  const last = plane.insert(vectors[100], keyOf(100))
  // What the engine does when the disk refuses a sync. The file's pages are the map's.
  const file = fs.openSync(path, 'r+')
  fs.writeSync(file, Buffer.from([SYNC_FAILED]), 0, 1, FLAGS_OFFSET)
  fs.closeSync(file)

  const { keys, keyEnds } = packKeys(['new'])
  for (const [name, write] of Object.entries({
    insert: () => plane.insert(vectors[150], 'new'),
    insertAsync: () => plane.insertAsync(vectors[150], 'new'),
    insertBatch: () => plane.insertBatch(pack([vectors[150]]), keys, keyEnds),
    upsert: () => plane.upsert(keyOf(1), vectors[150]),
    upsertAsync: () => plane.upsertAsync(keyOf(1), vectors[150]),
    upsertBatch: () => plane.upsertBatch(pack([vectors[150]]), { keys, keyEnds }),
    remove: () => plane.remove(ids[2]),
    removeBatch: () => plane.removeBatch(Uint32Array.of(ids[2])),
    removeBatchAsync: () => plane.removeBatchAsync(Uint32Array.of(ids[2])),
    removeKey: () => plane.removeKey(keyOf(2)),
    flush: () => plane.flush(),
    flushAsync: () => plane.flushAsync(),
    setWatermark: () => plane.setWatermark(4),
  })) {
    const error = await failure(write)
    assert.ok(error instanceof PlaneError, name)
    assert.equal(error.code, 'PLANE_SYNC_FAILED', name)
    assert.match(error.message, /open it again/)
  }
  assert.equal(plane.count, 101)
  assert.equal(wf(plane.searchSync(vectors[7], 1, 64)).ids[0], ids[7])
  assert.equal(wf(await plane.search(vectors[100], 1, 64)).ids[0], last)
  // Not everything could be flushed, and the file is given back all the same.
  await assert.rejects(plane.close(), { code: 'PLANE_SYNC_FAILED' })

  const again = closing(t, await Plane.openAsync(path))
  assert.equal(again.openedClean(), false)
  assert.equal(again.count, 101)
  assert.equal(again.getWatermark(), 3)
  for (let i = 0; i <= 100; i++) assert.deepEqual(again.get(keyOf(i)), vectors[i])
  again.insert(vectors[150], 'new')
  await again.flushAsync()
  assert.equal((await again.verify()).ok, true)
})
