'use strict'

// Mirroring a graph that a host keeps: nodes as they come, links as given, and every refusal before anything has changed.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { Plane, PlaneError } = require('..')
const { casePlane, clustered, closing, cosineDistance, exactSearch, failure, optionsPlane, queriesNear, recall, tempPath, wf } = require('./helpers.js')

const DIMS = 4
const code = (...components) => Buffer.from(Int8Array.from(components).buffer)
const none = new Uint32Array()
const one = code(1, 2, 3, 4)

/** Codes, scale and 1 / norm of a vector, as a host with int8 or int16 components has them. */
function raw(vector, precision) {
  const steps = precision === 'int8' ? 127 : 32767
  const largest = vector.reduce((most, x) => Math.max(most, Math.abs(x)), 0)
  const scale = largest / steps
  const codes = Array.from(vector, (x) => Math.round(x / scale))
  const typed = precision === 'int8' ? Int8Array.from(codes) : Int16Array.from(codes)
  return { codes: Buffer.from(typed.buffer), scale, invMag: 1 / Math.hypot(...vector) }
}

/**
 * A small HNSW of the test's own: each node, in order, is linked both ways to diverse ones of its nearest; levels from 0 to 3.
 */
function hostGraph(vectors, cap) {
  const nodes = vectors.map((vector, i) => ({ vector, level: i % 64 === 0 ? 2 : i % 8 === 0 ? 1 : 0 }))
  for (let layer = 0; layer <= 2; layer++) {
    const most = layer === 0 ? cap : cap >> 1
    const here = nodes.map((_, i) => i).filter((i) => nodes[i].level >= layer)
    const distances = new Map(here.map((i) => [i, here.filter((j) => j !== i)
      .map((j) => [cosineDistance(vectors[i], vectors[j]), j]).sort((a, b) => a[0] - b[0]).slice(0, 60)]))
    const lists = new Map(here.map((i) => {
      const kept = []
      for (const [distance, j] of distances.get(i)) {
        if (kept.length === most >> 1) break
        if (kept.every((other) => cosineDistance(vectors[other], vectors[j]) > distance)) kept.push(j)
      }
      return [i, kept]
    }))
    for (const i of here) for (const j of [...lists.get(i)]) if (lists.get(j).length < most && !lists.get(j).includes(i)) lists.get(j).push(i)
    for (const i of here) (nodes[i].lists ??= [])[layer] = Uint32Array.from(lists.get(i))
  }
  return nodes
}

for (const precision of ['int8', 'int16']) {
  test(`a mirrored graph answers as its host's would (${precision})`, async (t) => {
    const dims = 24
    const vectors = clustered(91, 1200, dims, 12, 0.6)
    const nodes = hostGraph(vectors, 32)
    const plane = closing(t, Plane.create(tempPath(t), dims, 32, 5000, 16, undefined, precision))
    // Backwards, and with gaps: every link leads to a node that is still to come, or is not.
    const idOf = (i) => 3 * i + 1
    for (let i = nodes.length - 1; i >= 0; i--) {
      const { codes, scale, invMag } = raw(vectors[i], precision)
      const [links, ...upper] = nodes[i].lists.map((list) => list.map(idOf))
      plane.writeNodeRaw(idOf(i), nodes[i].level, codes, scale, invMag, links, upper, `k${i}`)
    }
    plane.setEntryPoint(idOf(0), 2)
    assert.deepEqual(plane.getEntryPoint(), [idOf(0), 2])
    const queries = queriesNear(vectors, 60, 92)
    const measure = async (over) => {
      let sum = 0
      for (const query of queries) {
        const hits = wf(await over.search(query, 10, 128))
        for (const { id, key } of hits) assert.equal(key.toString(), `k${(id - 1) / 3}`)
        sum += recall(hits.ids, exactSearch(vectors, query, 10).map(idOf))
      }
      return sum / queries.length
    }
    const found = await measure(plane)
    t.diagnostic(`recall ${found}`)
    assert.ok(found >= (precision === 'int8' ? 0.95 : 0.98), `recall ${found}`)
    const report = await plane.verify()
    assert.deepEqual([report.ok, report.live, report.unreachable, report.lostSlots], [true, 1200, 0, 0])
    // Written again as they are, after a flush and a compaction, nothing changes: a host's links are its own.
    plane.flush(7)
    await plane.compact({ relink: true })
    assert.deepEqual(plane.getEntryPoint(), [idOf(0), 2])
    assert.equal(await measure(plane), found)
    for (let i = 0; i < nodes.length; i += 5) {
      const { codes, scale, invMag } = raw(vectors[i], precision)
      const [links, ...upper] = nodes[i].lists.map((list) => list.map(idOf))
      plane.writeNodeRaw(idOf(i), nodes[i].level, codes, scale, invMag, links, upper)
    }
    assert.equal(await measure(plane), found)
    assert.equal(plane.getWatermark(), 7)
  })
}

test('what is cleared is not returned, keeps its id for its host, and takes its key with it', async (t) => {
  const plane = casePlane(t, DIMS, 100, { layer0Cap: 8 })
  plane.writeNodeRaw(5, 0, one, 0.1, 1, Uint32Array.of(6), null, 'five')
  plane.writeNodeRaw(6, 0, one, 0.1, 1, Uint32Array.of(5), undefined, 'six')
  assert.deepEqual(plane.getEntryPoint(), [5, 0])
  assert.equal(plane.clearNode(5), true)
  assert.equal(plane.clearNode(5), false)
  for (const id of [0, 7, 99, 1000, 0xffffffff]) assert.equal(plane.clearNode(id), false)
  assert.deepEqual(plane.getEntryPoint(), [6, 0])
  assert.deepEqual([...wf(plane.searchSync(Float32Array.of(1, 2, 3, 4), 5)).ids], [6])
  assert.equal(plane.writeNodeRawIfAbsent(5, 0, one, 0.1, 1, none), false)
  assert.equal(plane.writeNodeRawIfAbsent(6, 0, one, 0.1, 1, none), false)
  assert.equal(plane.writeNodeRawIfAbsent(2, 0, one, 0.1, 1, none, null, 'two'), true)
  assert.equal(plane.insert(Float32Array.of(1, 1, 1, 1), 'mine'), 7)
  plane.writeNodeRaw(5, 0, one, 0.1, 1, none)
  assert.equal(plane.keyOf(5).length, 0)
  plane.writeNodeRaw(5, 0, one, 0.1, 1, none, null, 'again')
  plane.writeNodeRaw(5, 0, code(4, 3, 2, 1), 0.1, 1, none)
  assert.equal(plane.keyOf(5).toString(), 'again')
  assert.deepEqual([...plane.getById(5)].map((x) => Math.round(10 * x)), [4, 3, 2, 1])
  const { ok, live, lostSlots } = await plane.verify()
  assert.deepEqual([ok, live, lostSlots], [true, 4, 0])
})

test('keys of a plane with unique keys follow the nodes', async (t) => {
  const plane = optionsPlane(t, { dims: DIMS, rerank: 'none', keyCap: 8 })
  plane.writeNodeRaw(1, 0, one, 1, 1, none, null, 'a')
  plane.writeNodeRaw(2, 0, one, 1, 1, none, null, 'b')
  assert.equal((await failure(() => plane.writeNodeRaw(2, 0, one, 1, 1, none, null, 'a'))).code, 'PLANE_KEY_EXISTS')
  assert.equal((await failure(() => plane.writeNodeRaw(3, 0, one, 1, 1, none, null, 'a'))).code, 'PLANE_KEY_EXISTS')
  assert.equal((await failure(() => plane.writeNodeRaw(3, 0, one, 1, 1, none))).code, 'PLANE_KEY_UNSTORABLE')
  plane.writeNodeRaw(1, 0, one, 1, 1, none, null, 'a much longer key than the others')
  assert.deepEqual([plane.idOf('a'), plane.idOf('a much longer key than the others'), plane.idOf('b')], [undefined, 1, 2])
  plane.writeNodeRaw(1, 0, one, 1, 1, none)
  assert.equal(plane.idOf('a much longer key than the others'), 1)
  plane.writeNodeRaw(3, 0, one, 1, 1, none, null, 'a')
  plane.clearNode(2)
  assert.deepEqual([plane.has('b'), plane.idOf('a')], [false, 3])
  assert.equal(plane.upsert('a', Float32Array.of(1, 0, 0, 0)) > 3, true)
  assert.equal(plane.removeKey('a'), true)
  assert.equal((await plane.verify()).ok, true)
})

test('what cannot be a node is refused, the same way each time, and nothing has changed', async (t) => {
  const plane = casePlane(t, DIMS, 100, { layer0Cap: 8 })
  plane.writeNodeRaw(5, 1, one, 0.1, 1, none, [Uint32Array.of(3)], 'five')
  const write = (changes) => () => {
    const node = { id: 5, level: 0, vector: one, scale: 0.1, invMag: 1, neighbors: none, upper: null, key: undefined, ...changes }
    const { id, level, vector, scale, invMag, neighbors, upper, key } = node
    return [plane.writeNodeRaw(id, level, vector, scale, invMag, neighbors, upper, key), plane.writeNodeRawIfAbsent(9, level, vector, scale, invMag, neighbors, upper, key)]
  }
  for (const [changes, Type, errorCode, message] of [
    [{ id: 100 }, RangeError, 'ERR_OUT_OF_RANGE', /^id must be from 0 to 99/],
    [{ id: -1 }, RangeError, 'ERR_OUT_OF_RANGE', /^id must be/],
    [{ id: '5' }, TypeError, 'ERR_INVALID_ARG_TYPE', /^id must be/],
    [{ level: 16 }, RangeError, 'ERR_OUT_OF_RANGE', /^level must be/],
    [{ level: 0.5 }, RangeError, 'ERR_OUT_OF_RANGE', /^level must be/],
    [{ vector: code(1, 2, 3) }, RangeError, 'PLANE_DIMENSION_MISMATCH', /vector is 3 bytes; plane is 4 dims x int8 \(4 bytes\)/],
    [{ vector: new Float32Array(4) }, TypeError, 'ERR_INVALID_ARG_TYPE', /^vector must be/],
    [{ vector: [1, 2, 3, 4] }, TypeError, 'ERR_INVALID_ARG_TYPE', /^vector must be/],
    [{ scale: NaN }, TypeError, 'ERR_INVALID_ARG_VALUE', /^scale must be/],
    [{ scale: 0 }, TypeError, 'ERR_INVALID_ARG_VALUE', /^scale must be/],
    [{ scale: '1' }, TypeError, 'ERR_INVALID_ARG_TYPE', /^scale must be/],
    [{ invMag: Infinity }, TypeError, 'ERR_INVALID_ARG_VALUE', /^invMag must be/],
    [{ invMag: -1 }, TypeError, 'ERR_INVALID_ARG_VALUE', /^invMag must be/],
    [{ invMag: 1e300 }, TypeError, 'ERR_INVALID_ARG_VALUE', /^invMag must be/],
    [{ neighbors: new Uint32Array(9) }, RangeError, 'ERR_OUT_OF_RANGE', /links in neighbors/],
    [{ neighbors: Uint32Array.of(100) }, RangeError, 'ERR_OUT_OF_RANGE', /an id in neighbors/],
    [{ neighbors: [1] }, TypeError, 'ERR_INVALID_ARG_TYPE', /^neighbors must be/],
    [{ upper: [none] }, RangeError, 'ERR_OUT_OF_RANGE', /lists in upper/],
    [{ level: 1, upper: [new Uint32Array(5)] }, RangeError, 'ERR_OUT_OF_RANGE', /links in a list of upper/],
    [{ level: 1, upper: [[1]] }, TypeError, 'ERR_INVALID_ARG_TYPE', /^upper must be/],
    [{ level: 1, upper: none }, TypeError, 'ERR_INVALID_ARG_TYPE', /^upper must be/],
    [{ key: 5 }, TypeError, 'ERR_INVALID_ARG_TYPE', /^key must be/],
    [{ key: 'x'.repeat(65_536) }, PlaneError, 'PLANE_KEY_UNSTORABLE', /65535/],
  ]) {
    for (let round = 0; round < 2; round++) {
      const error = await failure(write(changes))
      assert.ok(error instanceof Type && error.code === errorCode, `${JSON.stringify(changes)}: ${error.code} ${error}`)
      assert.match(error.message, message)
    }
  }
  for (const [call, errorCode] of [
    [() => plane.setEntryPoint(6, 0), 'ERR_INVALID_ARG_VALUE'],
    [() => plane.setEntryPoint(5, 2), 'ERR_OUT_OF_RANGE'],
    [() => plane.setEntryPoint(5, -1), 'ERR_OUT_OF_RANGE'],
    [() => plane.setEntryPoint('5', 0), 'ERR_INVALID_ARG_TYPE'],
    [() => plane.clearNode('5'), 'ERR_INVALID_ARG_TYPE'],
  ]) {
    assert.equal((await failure(call)).code, errorCode)
  }
  assert.deepEqual([plane.count, plane.idHighWater(), plane.keyOf(5).toString()], [1, 6, 'five'])
  assert.equal((await plane.verify()).ok, true)

  const wide = closing(t, Plane.create(tempPath(t), DIMS, 8, 100, 16, undefined, 'int16'))
  const components = Buffer.alloc(8)
  wide.writeNodeRaw(1, 0, components, 0, 0, none)
  assert.equal(wide.searchSync(Float32Array.of(1, 0, 0, 0), 1).distances[0], 1)
  components.writeInt16LE(-32768, 2)
  const least = await failure(() => wide.writeNodeRaw(1, 0, components, 1, 1, none))
  assert.ok(least instanceof TypeError && /32767/.test(least.message))
  assert.match((await failure(() => wide.writeNodeRaw(1, 0, one, 1, 1, none))).message, /vector is 4 bytes; plane is 4 dims x int16 \(8 bytes\)/)
  for (const options of [{}, { precision: 'f32' }, { precision: 'f16', rerank: 'none' }]) {
    const other = optionsPlane(t, { dims: DIMS, ...options })
    assert.equal((await failure(() => other.writeNodeRaw(0, 0, one, 1, 1, none))).code, 'PLANE_NOT_MIRRORABLE')
  }
  const reader = closing(t, Plane.open(plane.path, { readOnly: true }))
  assert.equal((await failure(() => reader.writeNodeRaw(0, 0, one, 1, 1, none))).code, 'PLANE_READ_ONLY')
  await plane.close()
  for (const call of [write({}), () => plane.clearNode(1), () => plane.setEntryPoint(5, 0)]) {
    assert.equal((await failure(call)).code, 'PLANE_CLOSED')
  }
})

test('without maxNodes an id may be up to 1,000,000 past the highest', async (t) => {
  const plane = optionsPlane(t, { dims: DIMS, rerank: 'none' })
  assert.equal((await failure(() => plane.writeNodeRaw(1_000_001, 0, one, 1, 1, none))).code, 'ERR_OUT_OF_RANGE')
  plane.writeNodeRaw(1_000_000, 0, one, 1, 1, none)
  assert.equal(plane.idHighWater(), 1_000_001)
  assert.equal(plane.insert(Float32Array.of(1, 0, 0, 0)), 1_000_001)
  const { ok, live, lostSlots } = await plane.verify()
  assert.deepEqual([ok, live, lostSlots], [true, 2, 0])
})
