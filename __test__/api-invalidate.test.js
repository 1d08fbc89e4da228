'use strict'

// Declaring a plane invalid: on every handle at once, for ever, whichever of the two marks could be made.

const assert = require('node:assert/strict')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')

const { Plane, PlaneError, invalidatePlane, invalidatePlaneAsync, stalePathFor } = require('..')
const { peer } = require('./case-helpers.js')
const { closing, failure, tempDir, tempPath, wf } = require('./helpers.js')

const vector = Float32Array.of(1, 2, 3, 4)
const ROOT_READS_ALL = process.getuid?.() === 0

/** A plane with one flushed record and watermark 7. */
function marked(t, file = tempPath(t)) {
  const plane = closing(t, Plane.create(file, { dims: 4, keyCap: 8 }))
  plane.insert(vector, 'one')
  plane.flush(7)
  return { file, plane }
}

async function assertRefused(file) {
  for (const open of [() => Plane.open(file), () => Plane.open(file, { readOnly: true }), () => Plane.openAsync(file)]) {
    const error = await failure(open)
    assert.ok(error instanceof PlaneError && error.code === 'PLANE_INVALIDATED', `${error.code}: ${error}`)
    assert.ok(error.message.includes('invalidated') && error.message.includes(file))
  }
}

const WAYS = {
  'invalidate()': { run: ({ plane }) => plane.invalidate(), sidecar: false, report: undefined },
  'invalidateFile()': { run: ({ plane }) => plane.invalidateFile(), sidecar: true, report: { inBand: true, sidecar: true } },
  'invalidatePlane()': { run: ({ file }) => invalidatePlane(file), sidecar: true, report: { inBand: true, sidecar: true } },
  'invalidatePlaneAsync()': { run: ({ file }) => invalidatePlaneAsync(file), sidecar: true, report: { inBand: true, sidecar: true } },
}

for (const [name, { run, sidecar, report }] of Object.entries(WAYS)) {
  test(`after ${name} every handle reads watermark 0, and open refuses`, async (t) => {
    const { file, plane } = marked(t)
    const other = closing(t, Plane.open(file))
    const reader = closing(t, Plane.open(file, { readOnly: true }))
    const process = peer(t, `
      let plane
      serve.open = (file) => { plane = vecplane.Plane.open(file) }
      serve.look = () => [plane.getWatermark(), plane.invalidated()]`)
    await process.call('open', file)
    assert.deepEqual(await process.call('look'), [7, false])
    assert.deepEqual(await run({ file, plane }), report)
    assert.equal(fs.existsSync(stalePathFor(file)), sidecar)
    for (const handle of [plane, other, reader]) assert.deepEqual([handle.getWatermark(), handle.invalidated()], [0, true])
    assert.deepEqual(await process.call('look'), [0, true])
    // Those who have it open may go on, but no watermark comes back.
    const id = plane.insert(vector, 'two')
    assert.deepEqual([...wf(plane.searchSync(vector, 2)).ids], [0, id])
    plane.setWatermark(8)
    plane.flush(9)
    await plane.flushAsync(10)
    for (const handle of [plane, other, reader]) assert.deepEqual([handle.getWatermark(), handle.invalidated()], [0, true])
    await assertRefused(file)
    for (const copy of [
      () => plane.snapshot(`${file}.copy`), () => plane.compact(), () => plane.compact(`${file}.copy`), () => reader.snapshot(`${file}.copy`),
    ]) {
      assert.equal((await failure(copy)).code, 'PLANE_INVALIDATED')
    }
    assert.equal(fs.existsSync(`${file}.copy`), false)
    // Saying it again is no harm, and nothing takes it back.
    assert.deepEqual(await run({ file, plane }), report)
    process.kill()
    await Promise.all([plane.close(), other.close(), reader.close(), process.exited])
    await assertRefused(file)
    if (sidecar) fs.unlinkSync(stalePathFor(file))
    await assertRefused(file)
  })
}

test('the sidecar alone suffices', async (t) => {
  const { file, plane } = marked(t)
  fs.writeFileSync(stalePathFor(file), '')
  assert.deepEqual([plane.getWatermark(), plane.invalidated()], [0, true])
  await assertRefused(file)
  assert.equal((await failure(() => plane.compact())).code, 'PLANE_INVALIDATED')
})

for (const [name, create] of Object.entries({
  'with overwrite': (file) => Plane.create(file, { dims: 4, overwrite: true }),
  'by position': (file) => Plane.create(file, 4, 8, 100),
})) {
  test(`create ${name} over an invalid plane starts afresh`, async (t) => {
    const { file, plane } = marked(t)
    plane.invalidateFile()
    const fresh = closing(t, create(file))
    assert.equal(fs.existsSync(stalePathFor(file)), false)
    assert.deepEqual([fresh.getWatermark(), fresh.invalidated(), fresh.count], [0, false, 0])
    fresh.insert(vector)
    fresh.flush(3)
    assert.equal(closing(t, Plane.open(file)).getWatermark(), 3)
    assert.equal((await failure(() => plane.invalidated())).code, 'PLANE_REPLACED')
    assert.equal((await failure(() => plane.invalidate())).code, 'PLANE_REPLACED')
  })
}

test('a sidecar that was left behind does not concern a plane that is created or copied there', async (t) => {
  const { plane } = marked(t)
  for (const make of [
    async (file) => Plane.create(file, { dims: 4 }).close(),
    (file) => plane.snapshot(file),
    (file) => plane.compact(file),
  ]) {
    const file = tempPath(t)
    fs.writeFileSync(stalePathFor(file), '')
    await assertRefused(file).catch(() => {})
    await make(file)
    assert.equal(fs.existsSync(stalePathFor(file)), false)
    closing(t, Plane.open(file))
  }
  const kept = marked(t)
  kept.plane.invalidateFile()
  assert.equal((await failure(() => Plane.create(kept.file, { dims: 4 }))).code, 'PLANE_EXISTS')
  await assertRefused(kept.file)
})

test('one mark that cannot be made is told, and the other one made', async (t) => {
  const missing = tempPath(t)
  for (const run of [invalidatePlane, invalidatePlaneAsync]) {
    const { inBand, sidecar, inBandError } = await run(missing)
    assert.deepEqual([inBand, sidecar], [false, true])
    assert.match(inBandError, /ENOENT/)
  }
  const junk = tempPath(t)
  fs.writeFileSync(junk, 'hello')
  const report = invalidatePlane(junk)
  assert.deepEqual([report.inBand, report.sidecar, Object.keys(report).length], [false, true, 3])
  assert.equal(fs.readFileSync(junk, 'utf8'), 'hello')

  const { file, plane } = marked(t)
  fs.mkdirSync(stalePathFor(file))
  const half = plane.invalidateFile()
  assert.deepEqual([half.inBand, half.sidecar, Object.keys(half).length], [true, false, 3])
  assert.match(half.sidecarError, /\.stale/)
  await assertRefused(file)
})

test('with no mark made the call fails and names both causes', async (t) => {
  const nowhere = path.join(tempDir(t), 'missing', 'case.hnsw')
  for (const run of [invalidatePlane, invalidatePlaneAsync]) {
    const error = await failure(() => run(nowhere))
    assert.ok(error instanceof PlaneError && error.code === 'PLANE_NOT_INVALIDATED', `${error.code}: ${error}`)
    assert.match(error.message, /in-band: .*ENOENT.*sidecar: .*ENOENT/)
  }
})

test('a read-only handle sets no flag of its own, and invalidateFile works where the file may be written', async (t) => {
  const { file } = marked(t)
  const reader = closing(t, Plane.open(file, { readOnly: true }))
  assert.equal((await failure(() => reader.invalidate())).code, 'PLANE_READ_ONLY')
  assert.deepEqual([reader.getWatermark(), reader.invalidated()], [7, false])
  assert.deepEqual(reader.invalidateFile(), { inBand: true, sidecar: true })
  assert.deepEqual([reader.getWatermark(), reader.invalidated()], [0, true])
})

test('a plane that may not be written gets the sidecar', { skip: ROOT_READS_ALL && 'root may write everything' }, async (t) => {
  const { file, plane } = marked(t)
  await plane.close()
  fs.chmodSync(file, 0o444)
  const { inBand, sidecar, inBandError } = invalidatePlane(file)
  assert.deepEqual([inBand, sidecar], [false, true])
  assert.match(inBandError, /EACCES/)
  await assertRefused(file)
})

test('wrong arguments, and closed planes', async (t) => {
  for (const run of [invalidatePlane, invalidatePlaneAsync, stalePathFor]) {
    for (const wrong of [undefined, null, 5, {}]) {
      const error = await failure(() => run(wrong))
      assert.ok(error instanceof TypeError && error.code === 'ERR_INVALID_ARG_TYPE', `${error}`)
    }
    for (const wrong of ['', 'a\0b']) assert.equal((await failure(() => run(wrong))).code, 'ERR_INVALID_ARG_VALUE')
  }
  assert.equal(stalePathFor('/a/b.hnsw'), '/a/b.hnsw.stale')
  const { pathToFileURL } = require('node:url')
  const file = tempPath(t)
  assert.equal(stalePathFor(pathToFileURL(file)), `${file}.stale`)
  const { plane } = marked(t)
  await plane.close()
  for (const name of ['invalidate', 'invalidateFile', 'invalidated']) {
    assert.equal((await failure(() => plane[name]())).code, 'PLANE_CLOSED')
  }
})
