'use strict'

// Asked-for recall and searches within a distance: calibrate, calibration, `recall`, `within`, `limit`.

const assert = require('node:assert/strict')
const { test } = require('node:test')

const { PlaneError } = require('..')
const {
  bitset, clustered, exactSearch, failure, optionsPlane, pack, queriesNear, runChild, shuffle, wf,
} = require('./helpers.js')

const DIMS = 24
const vectors = shuffle(clustered(77, 3000, DIMS, 30, 0.7), 3)
const queries = queriesNear(vectors, 100, 5)

/** A plane with ids that are positions in `vectors`. */
async function filled(t, options) {
  const plane = optionsPlane(t, { dims: DIMS, ...options })
  await plane.insertBatch(pack(vectors), { threads: 1 })
  return plane
}

const RECALL = (recall) => ({ k: 10, recall })

test('calibrate measures a curve that searches then go by, in every process', async (t) => {
  const plane = await filled(t)
  assert.deepEqual(plane.calibration(), [])
  const told = []
  const curve = await plane.calibrate({ k: 10, samples: 500, onProgress: (done, total) => told.push([done, total]) })
  assert.deepEqual({ ...curve, curve: undefined }, { k: 10, samples: 500, count: 3000, stale: false, curve: undefined })
  assert.deepEqual(told.at(-1), [500, 500])
  const { ef, recall, adaptiveRecall } = curve.curve[0]
  assert.deepEqual([ef, curve.curve.at(-1).ef, curve.curve.length], [10, 4096, 20])
  assert.ok(recall > 0.2 && recall <= curve.curve.at(-1).recall)
  assert.ok(adaptiveRecall > 0.2 && adaptiveRecall <= curve.curve.at(-1).adaptiveRecall)
  assert.deepEqual(plane.calibration(), [curve])
  assert.equal(plane.stats().calibrationStale, false)

  for (const wanted of [0.8, 0.9, 0.95, 0.99]) {
    let right = 0
    for (const query of queries) {
      const nearest = exactSearch(vectors, query, 10)
      right += wf(plane.searchSync(query, RECALL(wanted))).ids.filter((id) => nearest.includes(id)).length
    }
    // 1,000 neighbours: three standard errors, when they are missed in threes.
    const noise = 3 * Math.sqrt((3 * wanted * (1 - wanted)) / 1000)
    assert.ok(right / 1000 >= wanted - Math.min(0.005, (1 - wanted) / 2) - noise, `${wanted} asked, ${right / 1000} found`)
  }
  const batch = await plane.searchBatch(pack(queries), RECALL(0.9))
  assert.deepEqual([...batch.counts], Array(100).fill(10))

  await plane.close()
  const { stdout } = await runChild(`
    const plane = vecplane.Plane.open(process.argv[2])
    plane.search(Float32Array.from({ length: ${DIMS} }, (_, i) => i), { recall: 0.95 })
      .then(({ length }) => console.log(JSON.stringify([length, plane.calibration()])))
  `, [plane.path])
  assert.deepEqual(JSON.parse(stdout), [10, [curve]])
})

test('a recall that no calibration tells how to reach is refused with its code', async (t) => {
  const plane = await filled(t, { rerank: 'none' })
  const asked = (options) => failure(() => plane.search(queries[0], options))
  assert.deepEqual([(await asked(RECALL(0.9))).code, (await asked(RECALL(0.9))).constructor], ['PLANE_NOT_CALIBRATED', PlaneError])
  assert.throws(() => plane.searchSync(queries[0], RECALL(0.9)), { code: 'PLANE_NOT_CALIBRATED', message: /calibrate\(\)/ })
  await plane.calibrate({ samples: 300 })
  const error = await asked(RECALL(0.9999999))
  assert.equal(error.code, 'PLANE_RECALL_UNREACHABLE')
  const best = Number(/is (0\.\d+)$/.exec(error.message)[1])
  assert.equal(wf(await plane.search(queries[0], RECALL(best))).length, 10, 'the best that is named can be had')
})

test('options that do not fit are refused before anything happens', async (t) => {
  const plane = await filled(t)
  const query = queries[0]
  const cases = [
    [RangeError, 'ERR_OUT_OF_RANGE', [0, 1, 1.01, -0.5, NaN, Infinity].map((recall) => ({ recall }))],
    [TypeError, 'ERR_INVALID_ARG_TYPE', ['0.9', null, {}, true].map((recall) => ({ recall }))],
    [TypeError, 'ERR_INVALID_ARG_VALUE', [{ recall: 0.9, ef: 100 }, { recall: 0.9, within: 1 }, { k: 10, within: 1 }, { limit: 10 }]],
    [RangeError, 'ERR_OUT_OF_RANGE', [-1e-9, NaN, Infinity, -Infinity].map((within) => ({ within }))],
    [TypeError, 'ERR_INVALID_ARG_TYPE', ['1', null, []].map((within) => ({ within }))],
    [RangeError, 'ERR_OUT_OF_RANGE', [-1, 1.5, NaN, 2 ** 20 + 1].map((limit) => ({ within: 1, limit }))],
    [TypeError, 'ERR_INVALID_ARG_TYPE', ['10', null].map((limit) => ({ within: 1, limit }))],
  ]
  for (const [Type, code, wrong] of cases) {
    for (const options of wrong) {
      const calls = [
        () => plane.search(query, options), () => plane.searchSync(query, options), () => plane.searchBatch(query, options),
        ...('recall' in options || 'ef' in options ? [] : [() => plane.searchExact(query, options), () => plane.searchExactAsync(query, options)]),
      ]
      for (const call of calls) {
        const error = await failure(async () => call())
        assert.ok(error instanceof Type, `${JSON.stringify(options)}: ${error}`)
        assert.equal(error.code, code, `${JSON.stringify(options)}: ${error.message}`)
      }
    }
  }
  for (const options of [{ k: 0 }, { k: 1025 }, { k: NaN }, { samples: 99 }, { samples: 100_001 }, { threads: 0 }]) {
    assert.equal((await failure(() => plane.calibrate(options))).code, 'ERR_OUT_OF_RANGE')
  }
  for (const options of [{ k: '10' }, { samples: null }, { onProgress: 1 }, { signal: 1 }, 5]) {
    assert.equal((await failure(() => plane.calibrate(options))).code, 'ERR_INVALID_ARG_TYPE')
  }
  assert.match((await failure(() => plane.calibrate({ sample: 5 }))).message, /did you mean 'samples'/)
  assert.equal(wf(await plane.search(query)).length, 10)
})

test('planes of no, one and three vectors are too small to calibrate and give any recall', async (t) => {
  for (const count of [0, 1, 3]) {
    const plane = optionsPlane(t, { dims: DIMS })
    for (const vector of vectors.slice(0, count)) plane.insert(vector)
    const error = await failure(() => plane.calibrate())
    assert.deepEqual([error.constructor, error.code], [PlaneError, 'PLANE_TOO_SMALL'])
    assert.equal(wf(await plane.search(queries[0], RECALL(0.999))).length, count)
    assert.equal(wf(plane.searchSync(queries[0], { within: 2 })).length, count)
  }
})

test('a calibration is stopped by its signal or by what onProgress throws, and stores nothing', async (t) => {
  const plane = await filled(t)
  const early = await failure(() => plane.calibrate({ signal: AbortSignal.abort(new Error('no more')) }))
  assert.deepEqual([early.code, early.name, early.cause.message], ['ABORT_ERR', 'AbortError', 'no more'])
  const controller = new AbortController()
  const late = failure(() => plane.calibrate({ k: 100, samples: 3000, signal: controller.signal }))
  setTimeout(() => controller.abort(), 20)
  assert.equal((await late).code, 'ABORT_ERR')
  const thrown = new Error('mine')
  const mine = await failure(() => plane.calibrate({ k: 100, samples: 3000, onProgress: () => { throw thrown } }))
  assert.equal(mine, thrown)
  // The last report comes when the work is done; all others stop it.
  assert.ok(plane.calibration().every(({ k }) => k === 100))
  assert.equal((await plane.calibrate({ samples: 100 })).k, 10)
})

test('changes to half of a plane make its calibration stale', async (t) => {
  const plane = await filled(t)
  await plane.calibrate({ samples: 100 })
  const stale = () => [plane.stats().calibrationStale, plane.calibration()[0].stale]
  plane.removeBatch(Uint32Array.from({ length: 1499 }, (_, id) => id))
  assert.deepEqual(stale(), [false, false])
  plane.remove(2000)
  assert.deepEqual(stale(), [true, true])
  assert.equal(wf(await plane.search(queries[0], RECALL(0.9))).length, 10, 'it is used all the same')
})

test('within finds everything up to a distance, the nearest first, up to limit', async (t) => {
  for (const metric of ['cosine', 'l2', 'inner-product']) {
    const plane = await filled(t, { metric })
    let [found, there] = [0, 0]
    const bounds = { min: -Infinity, max: Infinity }
    for (const query of queries.slice(0, 30)) {
      const all = plane.searchExact(query, { k: 301 })
      const within = (all.distances[299] + all.distances[300]) / 2
      const exact = wf(plane.searchExact(query, { within }), bounds)
      assert.deepEqual(exact.ids, all.ids.slice(0, exact.length))
      const hits = wf(await plane.search(query, { within, ef: 200 }), bounds)
      assert.ok(hits.distances.every((d) => d <= within) && hits.ids.every((id) => exact.ids.includes(id)), metric)
      found += hits.length
      there += exact.length
      assert.equal(wf(plane.searchSync(query, { within, limit: 7, ef: 200 }), bounds).length, 7)
      const even = bitset(vectors.map((_, id) => id).filter((id) => id % 2 === 0))
      const filtered = wf(await plane.search(query, { within, ef: 200, filter: even }), bounds)
      assert.ok(filtered.ids.every((id) => id % 2 === 0 && exact.ids.includes(id)))
    }
    assert.ok(found >= 0.98 * there, `${metric}: ${found} of ${there}`)
    const [{ id, distance }] = plane.searchExact(vectors[5], { k: 1 })
    const reached = plane.searchSync(vectors[5], { within: distance })
    assert.equal(reached.ids[0], id, 'a distance from an answer reaches its record')
    assert.equal(wf(await plane.search(queries[0], { within: 1e6 }), bounds).length, 1000, 'the default limit')
  }
  const plane = await filled(t, { metric: 'inner-product' })
  assert.equal(plane.searchSync(queries[0], { within: -1e6 }).length, 0, 'inner products have distances below 0')
})
