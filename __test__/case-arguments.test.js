'use strict'

// Sizes at and past their edges, and arguments of every wrong kind: the right number of hits or an error that names the
// argument, the same each time, and a plane that goes on answering.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { Plane } = require('..')
const { clustered, failure, randVec, rng, runChild, tempPath, wf } = require('./helpers.js')
const { insertAll, testForms } = require('./case-helpers.js')

const DIMS = 16
const BEAM_MAX = 2 ** 20

for (const live of [1, 5, 300]) {
  testForms(`${live} records give the smaller of k and ${live} hits, whatever ef is`, async (t, { create }) => {
    const plane = create(t, DIMS, 1000)
    const vectors = clustered(3, live, DIMS, 5, 0.5)
    const ids = insertAll(plane, vectors)
    for (const k of [1, 4, 5, 6, 299, 300, 301, 1000, BEAM_MAX]) {
      for (const ef of [1, 3, 5, 300, 1000, BEAM_MAX, undefined]) {
        for (const hits of [plane.searchSync(vectors[0], k, ef), await plane.search(vectors[0], k, ef)]) {
          assert.equal(wf(hits).length, Math.min(k, live), `k ${k}, ef ${ef}`)
          assert.equal(hits.ids[0], ids[0])
        }
      }
    }
    for (const hits of [plane.searchSync(vectors[0], 0, 10), await plane.search(vectors[0], 0, 10)]) {
      assert.equal(wf(hits).length, 0)
    }
  })
}

test('a k of 2^20 takes memory by what is found, not by what is asked', async (t) => {
  const { code, stdout, stderr } = await runChild(`
    const plane = vecplane.Plane.create(process.argv[2], 16, 32, 1000, 16)
    for (let i = 0; i < 300; i++) plane.insert(Float32Array.from({ length: 16 }, (_, j) => Math.sin(i * 16 + j)), 'k' + i)
    const query = Float32Array.from({ length: 16 }, (_, j) => Math.cos(j))
    async function megabytes(k, ef) {
      for (let i = 0; i < 20; i++) plane.searchSync(query, k, ef)
      await Promise.all(Array.from({ length: 20 }, () => plane.search(query, k, ef)))
      return process.resourceUsage().maxRSS / 1024
    }
    megabytes(10, 64).then(async (before) => console.log(await megabytes(2 ** 20, 2 ** 20) - before))
  `, [tempPath(t)])
  assert.equal(stderr, '')
  assert.equal(code, 0)
  t.diagnostic(`${stdout.trim()} MB more`)
  assert.ok(Number(stdout) < 50, `${stdout} MB more`)
})

const SIZES = [0, -1, 1.5, NaN, Infinity, -Infinity, 2 ** 32, 2 ** 53, '3', true, 3n, Symbol('3'), () => 3]
const TYPED = [TypeError, 'ERR_INVALID_ARG_TYPE']
const RANGED = [RangeError, 'ERR_OUT_OF_RANGE']
const SIZED = [RangeError, 'PLANE_DIMENSION_MISMATCH']

const WRONG = [
  ...SIZES.slice(1).flatMap((size) => {
    const expected = typeof size === 'number' ? RANGED : TYPED
    return [
      ['k', expected, (good) => [good, size, 10]],
      ['ef', expected, (good) => [good, 10, size]],
    ]
  }),
  ['k', TYPED, (good) => [good, undefined, 10]],
  ['ef', RANGED, (good) => [good, 10, 0]],
  ['vector', SIZED, () => [new Float32Array(DIMS - 1).fill(1), 10, 10]],
  ['vector', SIZED, () => [new Float32Array(DIMS + 1).fill(1), 10, 10]],
  ['vector', SIZED, () => [new Float32Array(0), 10, 10]],
  ...[
    null, undefined, [], {}, 'vector', 7, Array.from({ length: DIMS }, () => 1), new Float64Array(DIMS).fill(1),
    new Uint8Array(DIMS).fill(1), new Uint8Array(4 * DIMS).fill(1), Buffer.alloc(4 * DIMS, 1), new Int32Array(DIMS).fill(1),
    new DataView(new ArrayBuffer(4 * DIMS)), new ArrayBuffer(4 * DIMS),
  ].map((vector) => ['vector', TYPED, () => [vector, 10, 10]]),
]

testForms('a wrong argument of a search is refused alike each time, and does no harm', async (t, { create }) => {
  const plane = create(t, DIMS, 1000)
  const vectors = clustered(3, 300, DIMS, 5, 0.5)
  insertAll(plane, vectors)
  const before = [...plane.searchSync(vectors[0], 10, 64).ids]

  for (const [name, [Type, code], wrong] of WRONG) {
    const given = wrong(vectors[0])
    const calls = ['searchSync', 'search', 'searchSync', 'search'].map((member) => () => plane[member](...given))
    const errors = []
    for (const call of calls) errors.push(await failure(call))
    const [{ message }] = errors
    for (const error of errors) {
      assert.ok(error instanceof Type, `${name}: ${error}`)
      assert.equal(error.code, code, message)
      assert.equal(error.message, message)
    }
    // A query of the wrong length is told apart by both lengths, which say more than a name.
    if (code !== 'PLANE_DIMENSION_MISMATCH') assert.match(message, new RegExp(`^${name}\\b`))
    else assert.match(message, /dim.*16|16.*dim/)
    assert.deepEqual([...plane.searchSync(vectors[0], 10, 64).ids], before)
  }
})

const WRONG_PLANES = [
  ...[0, -1, 1.5, NaN, Infinity, 2 ** 31, 2 ** 32].map((dims) => ['dims', RANGED, [dims, 32, 100, 16]]),
  ...['16', null, undefined, true].map((dims) => ['dims', TYPED, [dims, 32, 100, 16]]),
  ...[0, 1, -1, 2.5, 513, NaN].map((cap) => ['layer0Cap', RANGED, [DIMS, cap, 100, 16]]),
  ...['32', undefined].map((cap) => ['layer0Cap', TYPED, [DIMS, cap, 100, 16]]),
  ...[0, -1, 1.5, 2 ** 31, NaN].map((nodes) => ['maxNodes', RANGED, [DIMS, 32, nodes, 16]]),
  ...['100', undefined].map((nodes) => ['maxNodes', TYPED, [DIMS, 32, nodes, 16]]),
  ...[-1, 1.5, 65_536].map((cap) => ['keyCap', RANGED, [DIMS, 32, 100, cap]]),
  ...[-1, 1.5].map((bytes) => ['keyArenaBytesPerNode', RANGED, [DIMS, 32, 100, 16, bytes]]),
  ...['float16', 'INT8', ''].map((name) => ['unknown precision', [TypeError, 'ERR_INVALID_ARG_VALUE'], [DIMS, 32, 100, 16, 0, name]]),
  ['precision', TYPED, [DIMS, 32, 100, 16, 0, 8]],
]

test('a plane of impossible measures is refused, and leaves no file', async (t) => {
  const file = tempPath(t)
  for (const [name, [Type, code], args] of WRONG_PLANES) {
    const errors = [await failure(() => Plane.create(file, ...args)), await failure(() => Plane.create(file, ...args))]
    for (const error of errors) {
      assert.ok(error instanceof Type, `${name} ${args}: ${error}`)
      assert.equal(error.code, code, error.message)
      assert.match(error.message, new RegExp(name))
      assert.equal(error.message, errors[0].message)
    }
    assert.equal((await failure(() => Plane.open(file))).code, 'ENOENT', `${name} ${args} left a file`)
  }
  const plane = Plane.create(file, DIMS, 2, 1)
  plane.insert(randVec(rng(1), DIMS))
  assert.equal(plane.count, 1)
  await plane.close()
})
