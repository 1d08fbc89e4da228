'use strict'

// A disk that is full: a tmpfs of 16 MiB that the plane fills, or another process. Each write that finds no room rejects with
// ENOSPC and changes nothing, searches go on, writes resume when there is room, and nothing ends the process.

const assert = require('node:assert/strict')
const { spawn, spawnSync } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')

const { tempDir } = require('./helpers.js')

/** Own mounts go with the process however it ends. Root has them; others are root in a namespace of their own. */
const APART = process.getuid?.() === 0 ? ['-m'] : ['-rm']

/** Why no file system can be mounted here; empty when one can. */
function mountRefusal() {
  if (process.platform !== 'linux') return `there is no tmpfs on ${process.platform}`
  const { status, error, stderr } = spawnSync('unshare', [...APART, 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt'])
  return status === 0 ? '' : `mounting is refused: ${error?.message ?? stderr}`
}

/** Runs a script with `small` mounted; it must end by itself, without a signal. */
async function onSmallDisk(t, source) {
  const refusal = mountRefusal()
  if (refusal) {
    console.error(`!!! SKIPPED: a full disk cannot be had here: ${refusal}`)
    return t.skip(refusal)
  }
  const dir = tempDir(t)
  const small = path.join(dir, 'small')
  fs.mkdirSync(small)
  const file = path.join(dir, 'child.js')
  fs.writeFileSync(file, `
    const assert = require('node:assert/strict')
    const { execFileSync, spawnSync } = require('node:child_process')
    const fs = require('node:fs')
    const { Plane, PlaneError } = require(${JSON.stringify(path.resolve(__dirname, '..'))})
    const helpers = require(${JSON.stringify(path.join(__dirname, 'helpers.js'))})
    const { failure, pack, packKeys, randVec, rng, wf } = helpers
    const small = ${JSON.stringify(small)}
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=16m', 'tmpfs', small])
    ${SHARED}
    ;(async () => { ${source} })().catch((error) => {
      console.error(error)
      process.exitCode = 1
    })
  `)
  const child = spawn('unshare', [...APART, process.execPath, file], { stdio: ['ignore', 'inherit', 'pipe'] })
  let printed = ''
  child.stderr.on('data', (data) => (printed += data))
  t.after(() => child.kill('SIGKILL'))
  const end = await new Promise((resolve) => child.on('close', (code, signal) => resolve({ code, signal })))
  assert.deepEqual(end, { code: 0, signal: null }, printed)
}

const SHARED = `
  const DIMS = 768
  const options = { dims: DIMS, efConstruction: 40, keyCap: 16, maxNodes: 1_000_000 }
  const path = small + '/plane'
  const vectorOf = (i) => randVec(rng(i + 1), DIMS)
  const keyOf = (i) => 'k' + i

  /** Another process takes what room there is. */
  function fill() {
    const { status } = spawnSync('dd', ['if=/dev/zero', 'of=' + small + '/filler', 'bs=4k'])
    assert.notEqual(status, 0, 'the disk is full')
  }
  const makeRoom = () => fs.rmSync(small + '/filler')

  function assertFull(error) {
    assert.ok(error instanceof PlaneError, String(error?.stack))
    assert.equal(error.code, 'ENOSPC')
  }

  /** Numbers of the records that the plane has acknowledged, and the next one. */
  const live = new Set()
  let next = 0

  /** Inserts until there is no room. A record may need a little less of it than the one before: it takes several refusals. */
  async function insertUntilFull(plane) {
    for (let refused = 0; refused < 20; next++) {
      assert.ok(next < 100_000, 'the disk fills')
      try {
        if (next % 2) plane.insert(vectorOf(next), keyOf(next))
        else await plane.insertAsync(vectorOf(next), keyOf(next))
        live.add(next)
        refused = 0
      } catch (error) {
        assertFull(error)
        refused++
      }
    }
  }

  /** A batch that finds no room for all of it; gives the error. */
  async function insertTooMany(plane, count) {
    const numbers = Array.from({ length: count }, (_, i) => next + i)
    next += count
    const { keys, keyEnds } = packKeys(numbers.map(keyOf))
    const error = await failure(() => plane.insertBatch(pack(numbers.map(vectorOf)), keys, keyEnds))
    assertFull(error)
    numbers.forEach((number, i) => error.ids[i] !== 0xffffffff && live.add(number))
    return error
  }

  /** Everything acknowledged is there and is found, and nothing else is. */
  async function check(plane) {
    assert.equal(plane.count, live.size)
    for (const i of live) {
      assert.ok(plane.has(keyOf(i)), 'record ' + i)
      if (i % 7) continue
      const vector = vectorOf(i)
      assert.deepEqual(plane.get(keyOf(i)), vector)
      const hits = wf(i % 2 ? plane.searchSync(vector, 3, 400) : await plane.search(vector, 3, 400))
      assert.ok(hits.ids.includes(plane.idOf(keyOf(i))), 'record ' + i + ' finds itself')
    }
    const report = await plane.verify()
    assert.ok(report.ok, JSON.stringify(report))
  }
`

test('a plane that fills its disk refuses writes with ENOSPC, and goes on when there is room', async (t) => {
  await onSmallDisk(t, `
    fs.writeFileSync(small + '/filler', Buffer.alloc(8 << 20, 1))
    const plane = Plane.create(path, options)
    await insertUntilFull(plane)
    assert.ok(live.size > 300, live.size + ' records fill 8 MiB')
    const [first] = live
    assertFull(await failure(() => plane.upsert(keyOf(first), vectorOf(1))))
    assertFull(await failure(() => plane.upsertAsync(keyOf(first), vectorOf(1))))
    await insertTooMany(plane, 1000)
    await check(plane)
    await plane.flushAsync(5)
    plane.flush()

    // What a removal gives back is room enough.
    assert.equal(plane.removeKey(keyOf(first)), true)
    plane.insert(vectorOf(first), keyOf(first))

    makeRoom()
    const { inserted } = await insertTooMany(plane, 2500)
    assert.ok(inserted > 300, inserted + ' records in 8 MiB')
    await check(plane)
    await plane.flushAsync()
    await plane.close()
    const again = Plane.open(path)
    assert.equal(again.openedClean(), true)
    assert.equal(again.getWatermark(), 5)
    await check(again)
    await again.close()
  `)
})

test('a disk that another process fills between two inserts gives ENOSPC, and is used again when there is room', async (t) => {
  await onSmallDisk(t, `
    const plane = Plane.create(path, options)
    for (; next < 150; next++) live.add(next) && plane.insert(vectorOf(next), keyOf(next))
    fill()
    await insertUntilFull(plane)
    await plane.flushAsync()
    await check(plane)
    // No room for another plane, and nothing of it stays behind.
    assertFull(await failure(() => Plane.create(small + '/other', options)))
    assert.deepEqual(fs.readdirSync(small).sort(), ['filler', 'plane'])
    await plane.close()
    const again = Plane.open(path)
    await insertUntilFull(again)
    makeRoom()
    for (let i = 0; i < 100; i++, next++) live.add(next) && again.insert(vectorOf(next), keyOf(next))
    await again.flushAsync()
    await check(again)
    await again.close()
  `)
})
