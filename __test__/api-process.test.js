'use strict'

// Several processes on one file: they see each other's records, take turns to write, and say whom they wait for.

const assert = require('node:assert/strict')
const { spawn } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')

const { Plane, PlaneError } = require('..')
const { closing, failure, optionsPlane, randVec, rng, runChild, tempPath, wf } = require('./helpers.js')

const ROOT = JSON.stringify(path.resolve(__dirname, '..'))

test('another process sees what this one writes, and writes in its turn', async (t) => {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: 8, keyCap: 8 }, file)
  plane.insert(randVec(rng(1), 8), 'ours')
  const child = await runChild(`
    const plane = vecplane.Plane.open(process.argv[2])
    const seen = [plane.count, plane.idOf('ours')].join()
    plane.insert(Float32Array.from({ length: 8 }, (_, i) => i + 1), 'theirs')
    console.log(seen, plane.count)
  `, [file])
  assert.deepEqual([child.code, child.stdout, child.stderr], [0, '1,0 2\n', ''])
  assert.equal(plane.count, 2)
  assert.equal(plane.idOf('theirs'), 1)
  assert.equal(wf(plane.searchSync(Float32Array.from({ length: 8 }, (_, i) => i + 1), 1)).ids[0], 1)
  plane.insert(randVec(rng(2), 8), 'again')
  assert.equal((await plane.verify()).ok, true)
})

test('a process that never ends its turn is named', { skip: process.platform === 'win32', timeout: 30_000 }, async (t) => {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: 128, lockTimeout: 100 }, file)
  await plane.insertBatch(randVec(rng(1), 128 * 100))
  const child = spawn(process.execPath, ['-e', `
    const { Plane } = require(${ROOT})
    const plane = Plane.open(${JSON.stringify(file)})
    const vectors = Float32Array.from({ length: 128 * 20000 }, () => Math.random() - 0.5)
    ;(async () => { for (;;) await plane.insertBatch(vectors.subarray(0, vectors.length), { threads: 2 }) })()
    process.stdout.write('writing')`])
  t.after(() => child.kill('SIGKILL'))
  await new Promise((resolve) => child.stdout.once('data', resolve))
  // Stopped between two chunks it has given the turn back; then the next try finds it in the middle of one.
  let error
  for (let tries = 0; !error && tries < 20; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 30))
    child.kill('SIGSTOP')
    error = await plane.insertAsync(randVec(rng(2), 128)).then(() => undefined, (reason) => reason)
    if (!error) child.kill('SIGCONT')
  }
  for (const refused of [error, await failure(() => plane.insert(randVec(rng(2), 128)))]) {
    assert.ok(refused instanceof PlaneError)
    assert.equal(refused.code, 'PLANE_LOCKED')
    assert.match(refused.message, new RegExp(String(child.pid)))
  }
  const batch = await failure(() => plane.insertBatch(randVec(rng(3), 128)))
  assert.deepEqual([batch.code, batch.inserted, [...batch.ids]], ['PLANE_LOCKED', 0, [0xffffffff]])
  assert.equal(wf(plane.searchSync(randVec(rng(2), 128), 5)).length, 5, 'readers wait for nobody')
  const ended = new Promise((resolve) => child.once('exit', resolve))
  child.kill('SIGKILL')
  await ended
  assert.equal(typeof plane.insert(randVec(rng(2), 128)), 'number', 'a dead process holds no turn')
  assert.equal((await plane.verify()).ok, true)
})

test('a damaged header is told', async (t) => {
  const file = tempPath(t)
  const plane = optionsPlane(t, { dims: 8 }, file)
  plane.insert(randVec(rng(1), 8))
  await plane.close()
  const good = fs.readFileSync(file)
  const spoiled = (change) => {
    const bytes = Buffer.from(good)
    for (const superblock of [0, 4096]) change(bytes.subarray(superblock))
    const copy = `${file}.${Math.random()}`
    fs.writeFileSync(copy, bytes)
    return copy
  }
  const damaged = await failure(() => Plane.open(spoiled((bytes) => { bytes[100] ^= 1 })))
  assert.ok(damaged instanceof PlaneError)
  assert.equal(damaged.code, 'PLANE_CORRUPT')
  const one = Buffer.from(good)
  one[100] ^= 1
  fs.writeFileSync(`${file}.one`, one)
  assert.equal(closing(t, Plane.open(`${file}.one`)).count, 1, 'one good superblock is enough')
})
