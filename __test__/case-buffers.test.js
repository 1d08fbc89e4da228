'use strict'

// Arrays are views: of other offsets, of pools, of shared or resizable memory. The bytes in the view are what counts,
// never what lies beside them; and what is not a Float32Array is refused, never reinterpreted.

const assert = require('node:assert/strict')

const { failure, keyAt, packKeys, randVec, rng, wf } = require('./helpers.js')
const { keyOf, testForms } = require('./case-helpers.js')

const DIMS = 32
const BYTES = 4 * DIMS
const COUNT = 1000
const random = rng(11)
const big = randVec(random, COUNT * DIMS)
/** A plain copy of slice i. */
const slice = (i) => Float32Array.from(big.subarray(DIMS * i, DIMS * (i + 1)))

/** A pooled Buffer with the bytes of slice i: Node gives pieces of 8 KiB pools, at multiples of 8. */
function pooled(bytes) {
  const buffer = Buffer.from(bytes)
  assert.equal(buffer.byteOffset % 4, 0)
  // Bun and Deno give each Buffer memory of its own.
  assert.ok(buffer.buffer.byteLength > buffer.length || process.versions.bun || process.versions.deno, 'not pooled')
  return buffer
}

function detached() {
  const vector = slice(0)
  structuredClone(vector, { transfer: [vector.buffer] })
  assert.equal(vector.length, 0)
  return vector
}

/** Views of slice i, each over other memory. */
const VIEWS = {
  'a subarray': (i) => big.subarray(DIMS * i, DIMS * (i + 1)),
  'a view of an ArrayBuffer': (i) => new Float32Array(big.buffer, BYTES * i, DIMS),
  'a view of a pooled Buffer': (i) => {
    const buffer = pooled(new Uint8Array(big.buffer, BYTES * i, BYTES))
    return new Float32Array(buffer.buffer, buffer.byteOffset, DIMS)
  },
  'a view of a SharedArrayBuffer': (i) => {
    const vector = new Float32Array(new SharedArrayBuffer(3 * BYTES), BYTES, DIMS)
    vector.set(slice(i))
    return vector
  },
  'a view of a resizable ArrayBuffer': (i) => {
    const vector = new Float32Array(new ArrayBuffer(3 * BYTES, { maxByteLength: 8 * BYTES }), BYTES, DIMS)
    vector.set(slice(i))
    return vector
  },
}

testForms('a view counts for what it shows, as a record and as a query', async (t, { create }) => {
  const plane = create(t, DIMS, 6000)
  const kinds = Object.entries(VIEWS)
  const ids = []
  for (let i = 0; i < COUNT; i++) {
    const [, view] = kinds[i % kinds.length]
    const vector = view(i)
    ids.push(i % 2 ? plane.insert(vector, keyOf(i)) : await plane.insertAsync(vector, keyOf(i)))
  }
  for (let i = 0; i < COUNT; i++) {
    for (const [name, view] of [['a plain copy', slice], kinds[i % kinds.length], kinds[(i + 1) % kinds.length]]) {
      for (const hits of [plane.searchSync(view(i), 10, 128), await plane.search(view(i), 10, 128)]) {
        assert.equal(wf(hits).ids[0], ids[i], name)
        assert.ok(hits.distances[0] < 1e-3, name)
        assert.equal(keyAt(hits, 0).toString(), `k${i}`)
      }
    }
  }
})

testForms('a batch takes vectors, keys and key ends out of larger arrays', async (t, { create }) => {
  const plane = create(t, DIMS, 6000)
  const from = 300
  const count = 400
  const { keys, keyEnds } = packKeys(Array.from({ length: count }, (_, i) => keyOf(from + i)))
  const wideKeys = Buffer.concat([Buffer.from('xxxxx'), keys, Buffer.from('yyyyyyy')])
  const wideEnds = Uint32Array.from([7, 9, 11, ...keyEnds, 1, 2])
  const { ids, rejected } = await plane.insertBatch(
    big.subarray(DIMS * from, DIMS * (from + count)),
    wideKeys.subarray(5, 5 + keys.length),
    wideEnds.subarray(3, 3 + count),
  )
  assert.deepEqual(rejected, [])
  for (let i = 0; i < count; i++) {
    const hits = wf(await plane.search(slice(from + i), 10, 128))
    assert.equal(hits.ids[0], ids[i])
    assert.ok(hits.distances[0] < 1e-3)
    assert.equal(keyAt(hits, 0).toString(), `k${from + i}`)
  }
})

testForms('keys are the bytes of their views', (t, { create }) => {
  const plane = create(t, DIMS, 6000)
  const wide = Uint8Array.from({ length: 64 }, (_, i) => i)
  const given = [
    pooled(Buffer.from('pooled')), wide.subarray(17, 25), new Uint8Array(wide.buffer, 3, 5), 'text', 'ümläut',
    Buffer.from([0, 255, 0]), new Uint8Array(new SharedArrayBuffer(16), 4, 8).fill(9), pooled(Buffer.alloc(16, 0xff)),
  ]
  const wanted = given.map((key) => Buffer.from(key))
  const ids = given.map((key, i) => plane.insert(slice(i), key))
  wide.fill(0)
  ids.forEach((id, i) => {
    const hits = wf(plane.searchSync(slice(i), 1, 64))
    assert.equal(hits.ids[0], id)
    assert.deepEqual(keyAt(hits, 0), wanted[i])
  })
})

const MISTYPED = {
  Float64Array: () => new Float64Array(DIMS).fill(1),
  Int8Array: () => new Int8Array(DIMS).fill(1),
  'Int8Array of as many bytes': () => new Int8Array(BYTES).fill(1),
  Int32Array: () => new Int32Array(DIMS).fill(1),
  Array: () => Array.from(slice(0)),
  DataView: () => new DataView(slice(0).buffer),
  ArrayBuffer: () => slice(0).buffer,
  'Buffer of as many bytes': () => Buffer.alloc(BYTES, 1),
  'array-like object': () => ({ length: DIMS, ...slice(0) }),
  'something that inherits from a Float32Array': () => Object.create(slice(0)),
}

testForms('wrong element types, wrong lengths and detached arrays are refused', async (t, { create }) => {
  const plane = create(t, DIMS, 6000)
  for (let i = 0; i < 50; i++) plane.insert(slice(i), keyOf(i))
  const calls = {
    insert: (vector) => plane.insert(vector, 'new'),
    insertAsync: (vector) => plane.insertAsync(vector, 'new'),
    insertBatch: (vector) => plane.insertBatch(vector, Buffer.from('new'), Uint32Array.of(3)),
    searchSync: (vector) => plane.searchSync(vector, 10, 64),
    search: (vector) => plane.search(vector, 10, 64),
  }
  for (const [member, call] of Object.entries(calls)) {
    for (const [name, make] of Object.entries(MISTYPED)) {
      const error = await failure(() => call(make()))
      assert.ok(error instanceof TypeError, `${member} of ${name}: ${error}`)
      assert.equal(error.code, 'ERR_INVALID_ARG_TYPE')
      assert.match(error.message, /Float32Array/)
    }
    const gone = await failure(() => call(detached()))
    assert.ok(gone instanceof TypeError, `${member}: ${gone}`)
    assert.match(gone.message, /detached/)
    for (const length of [1, DIMS - 1, DIMS + 1]) {
      const error = await failure(() => call(new Float32Array(length).fill(1)))
      assert.ok(error instanceof TypeError || error instanceof RangeError, `${member}: ${error}`)
      assert.match(error.message, /dim/)
    }
  }
  const keyed = [new Float32Array(2), new Uint16Array(2), 7, ['a'], new ArrayBuffer(2), new DataView(new ArrayBuffer(2))]
  for (const key of keyed) {
    const name = key.constructor.name
    assert.equal((await failure(() => plane.insert(slice(60), key))).code, 'ERR_INVALID_ARG_TYPE', name)
    // Taken for options, bytes of a wrong type would land records without their keys.
    const error = await failure(() => plane.insertBatch(slice(60), key, Uint32Array.of(1)))
    assert.equal(error.code, 'ERR_INVALID_ARG_TYPE', name)
  }
  for (const keyEnds of [new Uint8Array(1), new Float64Array(1), [1], 'a', 1]) {
    const error = await failure(() => plane.insertBatch(slice(60), Buffer.from('a'), keyEnds))
    assert.equal(error.code, 'ERR_INVALID_ARG_TYPE')
  }
  assert.equal(plane.count, 50)
  for (let i = 0; i < 50; i++) assert.equal(keyAt(wf(plane.searchSync(slice(i), 1, 64)), 0).toString(), `k${i}`)
})

