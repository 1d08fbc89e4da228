'use strict'

// What a call was given is copied before it returns: a caller may overwrite, transfer or drop its arrays while the call
// is in flight.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { keyAt, pack, packKeys, randVec, rng, runChild, tempPath, wf } = require('./helpers.js')
const { LONG, keyOf, testForms } = require('./case-helpers.js')

const DIMS = 128
const COUNT = 20_000
const random = rng(12)
const records = Array.from({ length: COUNT }, () => randVec(random, DIMS))

async function filled(t, { create, name }) {
  const plane = create(t, DIMS, COUNT + 1)
  const vectors = records.slice(0, LONG || name === 'positional' ? COUNT : 5000)
  const packed = pack(vectors)
  const { keys, keyEnds } = packKeys(vectors.map((_, i) => keyOf(i)))
  const call = plane.insertBatch(packed, keys, keyEnds)
  packed.fill(0)
  keys.fill(0)
  keyEnds.fill(0)
  return { plane, vectors, ...(await call) }
}

testForms('arrays may be overwritten as soon as a call returns', async (t, form) => {
  const { plane, vectors, ids, rejected } = await filled(t, form)
  assert.deepEqual(rejected, [])
  assert.equal(new Set(ids).size, vectors.length)
  for (let i = 0; i < vectors.length; i += 17) {
    const hits = wf(await plane.search(vectors[i], 10, 256))
    assert.equal(hits.ids[0], ids[i], `record ${i} is not what was passed`)
    assert.ok(hits.distances[0] < 1e-3)
    assert.equal(keyAt(hits, 0).toString(), `k${i}`)
  }
  for (let i = 0; i < 100; i++) {
    const query = Float32Array.from(vectors[i])
    const call = plane.search(query, 10, 256)
    query.fill(0)
    assert.equal(wf(await call).ids[0], ids[i])
  }

  const query = new Float32Array(DIMS)
  const filter = new Uint8Array(COUNT / 8)
  const calls = []
  for (let i = 0; i < 1000; i++) {
    query.set(vectors[i])
    filter.fill(0)
    filter[ids[i] >> 3] = 1 << (ids[i] & 7)
    calls.push(plane.search(query, 10, 256), plane.search(query, 10, 64, filter))
  }
  query.fill(NaN)
  filter.fill(0xff)
  const answers = await Promise.all(calls)
  for (let i = 0; i < 1000; i++) {
    assert.deepEqual(wf(answers[2 * i]), plane.searchSync(vectors[i], 10, 256), `answer ${i} is to another query`)
    assert.deepEqual([...wf(answers[2 * i + 1]).ids], [ids[i]], `answer ${i} is through another filter`)
  }

  const vector = randVec(random, DIMS)
  const wanted = Float32Array.from(vector)
  const key = Buffer.from('in flight')
  const insert = plane.insertAsync(vector, key)
  vector.fill(0)
  key.fill(0)
  const id = await insert
  const hits = wf(await plane.search(wanted, 1, 256))
  assert.equal(hits.ids[0], id)
  assert.equal(keyAt(hits, 0).toString(), 'in flight')
})

test('arrays may be transferred or collected as soon as a call returns', { timeout: 90_000 }, async (t) => {
  const { code, signal, stderr, stdout } = await runChild(`
    const { Worker } = require('node:worker_threads')
    const DIMS = 128
    const worker = new Worker('require("node:worker_threads").parentPort.on("message", (array) => array.fill(0))', { eval: true })
    const plane = vecplane.Plane.create(process.argv[2], { dims: DIMS, keyCap: 16 })
    const random = () => Float32Array.from({ length: DIMS }, () => Math.random() - 0.5)
    const end = Date.now() + 1000 * process.argv[3]
    let searches = 0
    let records = 0
    async function main() {
      while (Date.now() < end) {
        const batch = Float32Array.from({ length: 100 * DIMS }, () => Math.random() - 0.5)
        const wanted = batch.slice(0, DIMS)
        const keys = new Uint8Array(new ArrayBuffer(400))
        const keyEnds = Uint32Array.from({ length: 100 }, (_, i) => 4 * (i + 1))
        for (let i = 0; i < 100; i++) new DataView(keys.buffer).setUint32(4 * i, records + i)
        const insert = plane.insertBatch(batch, keys, keyEnds)
        for (const { buffer } of [batch, keys, keyEnds]) worker.postMessage(new Uint8Array(buffer), [buffer])
        const calls = []
        for (let i = 0; i < 50; i++) {
          let query = i % 2 ? random() : wanted.slice()
          calls.push(plane.search(query, 10, 256))
          if (i % 3 === 0) worker.postMessage(query, [query.buffer])
          query = null
          if (i % 10 === 0) gc()
        }
        const { ids } = await insert
        await Promise.all(calls)
        searches += calls.length
        const [hit] = await plane.search(wanted, 1, 256)
        if (hit.id !== ids[0] || hit.key.readUInt32BE() !== records) throw new Error('a record is not what was passed')
        records += 100
      }
      await plane.close()
      await worker.terminate()
      console.log(searches, records)
    }
    main()
  `, [tempPath(t), LONG ? 30 : 2], { execArgv: ['--expose-gc'], timeout: 80_000 })
  assert.equal(stderr, '')
  assert.deepEqual({ code, signal }, { code: 0, signal: null })
  t.diagnostic(`searches and records: ${stdout.trim()}`)
  assert.match(stdout, /^\d+ \d+\n$/)
})
