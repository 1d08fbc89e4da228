'use strict'

// Files that are short, damaged or something else: opening one gives an error that says what is wrong, or a plane that
// can be used without harm. Each is tried in a process of its own kind, since what we rule out is the end of it.

const assert = require('node:assert/strict')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')

const { Plane } = require('..')
const { clustered, rng, tempDir } = require('./helpers.js')
const { FORMS, LONG, insertAll, peer } = require('./case-helpers.js')

const DIMS = 32
const COUNT = 2000
const REFUSALS = ['PLANE_NOT_A_PLANE', 'PLANE_UNSUPPORTED_VERSION', 'PLANE_TRUNCATED', 'PLANE_CORRUPT']
const PAGE = 4096
const HEADER = 131_072
const EXTENT = 65_536

/** Opens a file and uses it: 20 searches, an insert, a remove, a flush, a close. */
const USER = `
  const { clustered, keyAt, wf } = helpers
  const vectors = clustered(17, ${COUNT}, ${DIMS}, 20, 0.5)
  const attempt = async (report, step, work) => {
    try {
      return await work()
    } catch (error) {
      report.failed[step] = { code: error.code, message: error.message }
    }
  }
  serve.use = async (file) => {
    const report = { failed: {}, count: 0, found: 0, hits: 0 }
    const plane = await attempt(report, 'open', () => vecplane.Plane.open(file))
    if (plane) {
      report.count = plane.count
      for (let i = 0; i < 20; i++) {
        await attempt(report, 'search', async () => {
          const hits = i % 2 ? plane.searchSync(vectors[97 * i], 10, 64) : await plane.search(vectors[97 * i], 10, 64)
          if (!hits.ids.every((id) => id < plane.idHighWater())) throw new Error('an id past the last')
          report.hits += hits.length
          if (hits.length && keyAt(hits, 0).toString() === 'k' + 97 * i) report.found++
          wf(hits)
        })
      }
      const id = await attempt(report, 'insert', () => plane.insert(vectors[0].map((x) => -x), 'new'))
      await attempt(report, 'remove', () => plane.remove(7))
      if (id !== undefined) await attempt(report, 'removeNew', () => plane.remove(id))
      await attempt(report, 'flush', () => plane.flushAsync())
      await attempt(report, 'close', () => plane.close())
    }
    return { ...report, megabytes: process.resourceUsage().maxRSS / 1024 }
  }
`

/** A sound file's bytes. */
async function soundFile(t, form) {
  const file = path.join(tempDir(t), 'sound.hnsw')
  const plane = form.create(t, DIMS, 4000, file)
  insertAll(plane, clustered(17, COUNT, DIMS, 20, 0.5))
  await plane.close()
  return fs.readFileSync(file)
}

/** A function that tries one file after another, and starts another process when one has ended. */
function user(t) {
  const dir = tempDir(t)
  let process
  let number = 0
  return async (bytes) => {
    process ??= peer(t, USER, { timeout: 5000 })
    const file = path.join(dir, `${number++}.hnsw`)
    fs.writeFileSync(file, bytes)
    try {
      return await process.call('use', file)
    } catch (error) {
      process = undefined
      return { died: error.message }
    } finally {
      fs.rmSync(file)
    }
  }
}

/** What is wrong with how a file was dealt with. */
function faults({ died, failed, megabytes }, codes = REFUSALS) {
  if (died) return [died]
  const wrong = Object.entries(failed).filter(([, { code }]) => !codes.includes(code))
  const text = wrong.map(([step, { code, message }]) => `${step}: ${code}: ${message}`)
  return megabytes < 1024 ? text : [...text, `${megabytes} MB in use`]
}

const copyOf = (bytes, change) => {
  const copy = Buffer.from(bytes)
  change(copy)
  return copy
}

/** Tries each of the files, which must be refused or usable; all of them usable with all their records, if `count` is given. */
async function tryAll(t, files, count) {
  const use = user(t)
  const wrong = []
  let refused = 0
  let total = 0
  for (const [name, bytes] of files) {
    const report = await use(bytes)
    total++
    if (report.failed?.open) refused++
    for (const fault of faults(report)) wrong.push(`${name}: ${fault}`)
    if (count !== undefined && (report.count !== count || report.found !== 20)) {
      wrong.push(`${name}: ${report.count} records, ${report.found} of 20 found, ${report.failed?.open?.message}`)
    }
  }
  t.diagnostic(`${total} files, ${refused} of them refused`)
  assert.deepEqual(wrong, [])
}

for (const form of FORMS) {
  test(`damaged files (${form.name})`, { timeout: 120_000 }, async (t) => {
    const sound = await soundFile(t, form)

    await t.test('an undamaged copy is used as the original', async (t) => {
      const report = await user(t)(sound)
      assert.deepEqual(faults(report), [])
      assert.deepEqual([report.failed, report.count, report.found], [{}, COUNT, 20])
    })

    await t.test('a truncated file is refused, and never an empty plane', async (t) => {
      const use = user(t)
      for (const length of [0, 1, 64, 4095, 4096, 8192, HEADER - 1, HEADER, sound.length >> 1, sound.length - PAGE, sound.length - 1]) {
        const report = await use(sound.subarray(0, length))
        assert.deepEqual(faults(report), [], `${length} bytes`)
        if (report.failed.open) assert.match(report.failed.open.message, /truncated|not a plane|empty|end/i, `${length} bytes`)
        // The last extent's tail may be unused; then nothing is missing.
        else assert.deepEqual([length > sound.length - EXTENT, report.count, report.found], [true, COUNT, 20], `${length} bytes`)
      }
    })

    await t.test('bytes past the end do no harm', async (t) => {
      const random = rng(170)
      const extra = Buffer.from(Uint8Array.from({ length: PAGE }, () => 256 * random()))
      const report = await user(t)(Buffer.concat([sound, extra]))
      assert.deepEqual(faults(report), [])
      assert.deepEqual([report.failed, report.count, report.found], [{}, COUNT, 20])
    })

    await t.test('with any one of the first 256 bytes flipped the other superblock serves, and nothing is lost', async (t) => {
      const step = LONG || form.name === 'positional' ? 1 : 4
      const flipped = (at) => [`byte ${at}`, copyOf(sound, (bytes) => (bytes[at] ^= 0xff))]
      await tryAll(t, Array.from({ length: 256 / step }, (_, i) => flipped(step * i)), COUNT)
    })

    await t.test('the same byte of both superblocks flipped', async (t) => {
      await tryAll(t, Array.from({ length: 48 }, (_, i) => [`byte ${5 * i}`, copyOf(sound, (bytes) => {
        bytes[5 * i] ^= 0xff
        bytes[PAGE + 5 * i] ^= 0xff
      })]))
    })

    await t.test('64 random bytes overwritten anywhere', async (t) => {
      const seed = Number(process.env.VECPLANE_SEED ?? Date.now() % 1e9)
      t.diagnostic(`VECPLANE_SEED=${seed}`)
      await tryAll(t, Array.from({ length: 100 }, (_, i) => [`seed ${seed}, file ${i}`, copyOf(sound, (bytes) => {
        const random = rng(seed + i)
        // Half of them in the header, which is small and says where everything is.
        const end = i % 2 ? HEADER : bytes.length
        for (let n = 0; n < 64; n++) bytes[Math.floor(random() * end)] = 256 * random()
      })]))
    })

    for (const value of [0xff, 0]) {
      await t.test(`any page of the header, and any extent, full of ${value}`, async (t) => {
        const ranges = []
        for (let at = 0; at < HEADER; at += PAGE) ranges.push([at, PAGE])
        for (let at = HEADER; at < sound.length; at += EXTENT) ranges.push([at, EXTENT])
        await tryAll(t, ranges.map(([at, length]) => [`${length} at ${at}`, copyOf(sound, (bytes) => bytes.fill(value, at, at + length))]))
      })
    }

    await t.test('a later format version is refused by name', async (t) => {
      const report = await user(t)(copyOf(sound, (bytes) => [0, PAGE].forEach((block) => bytes.writeUInt32LE(2, block + 8))))
      assert.deepEqual(faults(report), [])
      assert.ok(report.failed.open)
    })
  })
}

test('what is no plane is refused, with the reason', async (t) => {
  const dir = tempDir(t)
  const process = peer(t, USER, { timeout: 5000 })
  const made = (name, bytes) => {
    fs.writeFileSync(path.join(dir, name), bytes)
    return name
  }
  const png = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64')
  fs.mkdirSync(path.join(dir, 'folder'))
  fs.symlinkSync('loop', path.join(dir, 'loop'))
  fs.symlinkSync('absent', path.join(dir, 'dangling'))
  const places = [
    [made('picture.png', png), 'PLANE_NOT_A_PLANE'],
    [made('padded.png', Buffer.concat([png, Buffer.alloc(1 << 20)])), 'PLANE_NOT_A_PLANE'],
    [made('text', 'VECPLANE'), 'PLANE_TRUNCATED'],
    [made('zeros', Buffer.alloc(1 << 20)), 'PLANE_NOT_A_PLANE'],
    [made('ones', Buffer.alloc(1 << 20, 0xff)), 'PLANE_NOT_A_PLANE'],
    ['folder', 'EISDIR'], ['loop', 'ELOOP'], ['dangling', 'ENOENT'], ['absent', 'ENOENT'], ['folder/absent', 'ENOENT'],
    ['text/below', 'ENOTDIR'],
  ]
  for (const [name, code] of places) {
    const { failed } = await process.call('use', path.join(dir, name))
    assert.equal(failed.open?.code, code, `${name}: ${failed.open?.message}`)
    assert.ok(/truncated/.test(failed.open.message) || failed.open.message.includes(name), failed.open.message)
  }
  assert.equal(fs.existsSync(path.join(dir, 'absent')), false)
  for (const special of ['/dev/null', '/dev/zero']) {
    const { failed } = await process.call('use', special)
    assert.ok(failed.open, special)
  }
  assert.throws(() => Plane.open(path.join(dir, 'folder')), { code: 'EISDIR' })
})
