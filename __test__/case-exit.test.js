'use strict'

// A process ends when its own work does: an open plane, work in flight or the addon itself neither hold it nor crash it.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { Plane } = require('..')
const { closing, runChild, tempPath } = require('./helpers.js')

const COUNT = 20_000

/** What every script can use. `done()` notes the end of the script's own work. */
const PRELUDE = `
  const { Plane } = vecplane
  const file = process.argv[2]
  const vector = (n) => Float32Array.from({ length: 32 }, (_, i) => Math.sin(n * 32 + i * i))
  const done = () => console.log('DONE ' + Date.now())
  const make = (records = 100) => {
    const plane = Plane.create(file, { dims: 32, keyCap: 16 })
    for (let n = 0; n < records; n++) plane.insert(vector(n), 'k' + n)
    return plane
  }
`

/** Runs a script, which must end with `code`, by itself, within `ms` of its last word. */
async function run(t, source, { code = 0, ms = 1000, stderr = '' } = {}) {
  const file = tempPath(t)
  const result = await runChild(PRELUDE + source, [file], { timeout: 30_000 })
  const late = Date.now()
  const words = [...result.stdout.matchAll(/^DONE (\d+)$/gm)]
  assert.deepEqual({ code: result.code, signal: result.signal }, { code, signal: null }, result.stderr)
  if (stderr instanceof RegExp) assert.match(result.stderr, stderr)
  else assert.equal(result.stderr, stderr)
  assert.ok(words.length > 0, 'the script ended before its last word')
  const took = late - Number(words.at(-1)[1])
  t.diagnostic(`ended ${took} ms after its last word`)
  assert.ok(took < ms, `the process ended ${took} ms after its last word`)
  return { ...result, file }
}

test('after loading the addon', async (t) => {
  await run(t, 'done()')
})

test('with a plane that was never closed, whose records are all there', async (t) => {
  const { file } = await run(t, `
    const plane = make(500)
    plane.searchSync(vector(3), 10)
    done()
  `)
  const plane = closing(t, Plane.open(file))
  assert.equal(plane.count, 500)
  assert.equal((await plane.verify()).ok, true)
})

test('with searches that nobody awaits', async (t) => {
  await run(t, `
    const plane = make(2000)
    for (let i = 0; i < 10; i++) plane.search(vector(i), 10, 512)
    done()
  `, { ms: 2000 })
})

for (const [name, call] of [
  ['a batch', 'plane.insertBatch(batch, { keys, keyEnds })'],
  ['a batch, a flush, searches and verify', `
    plane.insertBatch(batch, { keys, keyEnds })
    plane.flushAsync()
    for (let i = 0; i < 20; i++) plane.search(vector(i), 10, 512)
    plane.verify()
  `],
  ['a batch and close', `
    plane.insertBatch(batch, { keys, keyEnds })
    plane.close()
  `],
]) {
  for (const delay of [0, 30]) {
    test(`by process.exit ${delay} ms after ${name} began, and the file opens`, async (t) => {
      const { file } = await run(t, `
        const plane = make()
        const batch = new Float32Array(${COUNT} * 32)
        for (let i = 0; i < batch.length; i++) batch[i] = Math.sin(i * i)
        const parts = Array.from({ length: ${COUNT} }, (_, i) => 'b' + i)
        const keys = Buffer.from(parts.join(''))
        let end = 0
        const keyEnds = Uint32Array.from(parts, (part) => (end += part.length))
        ${call}
        const exit = () => {
          done()
          process.exit(0)
        }
        if (${delay}) setTimeout(exit, ${delay})
        else exit()
      `, { ms: 2000 })
      const plane = closing(t, Plane.open(file))
      assert.ok(plane.count >= 100 && plane.count <= 100 + COUNT)
      assert.equal((await plane.verify()).ok, true)
      assert.equal(plane.searchSync(Float32Array.from({ length: 32 }, (_, i) => Math.sin(32 + i * i)), 1, 128).key(0).toString(), 'k1')
    })
  }
}

test('after the last awaited search', async (t) => {
  await run(t, `
    async function main() {
      const plane = make()
      await plane.search(vector(1), 10)
      done()
    }
    main()
  `)
})

test('by an uncaught error beside a search, with code 1', async (t) => {
  await run(t, `
    const plane = make(2000)
    for (let i = 0; i < 10; i++) plane.search(vector(i), 10, 512)
    setImmediate(() => {
      done()
      throw new Error('of the caller')
    })
  `, { code: 1, stderr: /of the caller/ })
})

test('with a plane kept in a global', async (t) => {
  await run(t, `
    globalThis.plane = make()
    plane.search(vector(1), 10).then(done)
  `)
})

test('after a search in the exit handler', async (t) => {
  const { stdout } = await run(t, `
    const plane = make()
    plane.search(vector(1), 10)
    process.on('exit', () => {
      console.log('found ' + plane.searchSync(vector(7), 1).key(0))
      done()
    })
  `)
  assert.match(stdout, /^found k7$/m)
})

test('an idle plane holds nothing', async (t) => {
  const { stdout } = await run(t, `
    const before = process.getActiveResourcesInfo()
    async function main() {
      const plane = make()
      await plane.insertBatch(vector(1000), { keys: Buffer.from('b'), keyEnds: Uint32Array.of(1) })
      await plane.search(vector(1), 10)
      await plane.flushAsync()
      await plane.verify()
      await new Promise((resolve) => setImmediate(resolve))
      const after = process.getActiveResourcesInfo()
      console.log('HELD ' + JSON.stringify([before, after]))
      done()
    }
    main()
  `)
  const [before, after] = JSON.parse(/^HELD (.*)$/m.exec(stdout)[1])
  assert.deepEqual(after.filter((name) => !before.includes(name)), [])
})
