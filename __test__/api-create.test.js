'use strict'

// Plane.create in both forms, Plane.open, and what a plane says of itself.

const assert = require('node:assert/strict')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')
const { pathToFileURL } = require('node:url')

const vecplane = require('..')
const { closing, failure, randVec, rng, runChild, tempDir, tempPath, optionsPlane } = require('./helpers.js')

const { Plane, PlaneError, SearchHits } = vecplane

const told = ({ dims, metric, precision, rerank, M, layer0Cap, efConstruction, keyCap, uniqueKeys, maxNodes }) =>
  ({ dims, metric, precision, rerank, M, layer0Cap, efConstruction, keyCap, uniqueKeys, maxNodes })

test('the options form has the documented defaults', (t) => {
  const plane = optionsPlane(t, { dims: 7 })
  assert.deepEqual(told(plane), {
    dims: 7, metric: 'cosine', precision: 'int8', rerank: 'f32', M: 16, layer0Cap: 32, efConstruction: 200,
    keyCap: 0, uniqueKeys: false, maxNodes: undefined,
  })
  assert.equal(plane.count, 0)
  assert.equal(plane.readOnly, false)
  assert.equal(plane.closed, false)
  assert.equal(plane.openedClean(), true)
  assert.equal(plane.idHighWater(), 0)
  assert.equal(plane.getEntryPoint(), null)
})

test('the options form keeps what it is given', (t) => {
  const options = {
    dims: 5, metric: 'l2', precision: 'int16', rerank: 'none', M: 8, layer0Cap: 20, efConstruction: 50,
    keyCap: 12, uniqueKeys: false, maxNodes: 77,
  }
  const file = tempPath(t)
  const plane = optionsPlane(t, { ...options, keyArenaBytesPerNode: 10, lockTimeout: 100, overwrite: false }, file)
  assert.deepEqual(told(plane), options)
  assert.equal(plane.path, file)
  assert.deepEqual(told(closing(t, Plane.open(file))), options)
})

test('defaults follow from what is given', (t) => {
  assert.equal(optionsPlane(t, { dims: 3, M: 9 }).layer0Cap, 18)
  assert.equal(optionsPlane(t, { dims: 3, keyCap: 1 }).uniqueKeys, true)
  assert.equal(optionsPlane(t, { dims: 3, precision: 'f32' }).rerank, 'none', 'the codes are exact')
  assert.equal(optionsPlane(t, { dims: 3, metric: undefined, M: undefined }).M, 16, 'undefined is not given')
})

test('the positional form makes what was published', (t) => {
  const file = tempPath(t)
  const plane = closing(t, Plane.create(file, 6, 33, 500, 16, 64, 'int16'))
  assert.deepEqual(told(plane), {
    dims: 6, metric: 'cosine', precision: 'int16', rerank: 'none', M: 16, layer0Cap: 33, efConstruction: 200,
    keyCap: 16, uniqueKeys: false, maxNodes: 500,
  })
  const least = closing(t, Plane.create(tempPath(t), 6, 3, 500))
  assert.deepEqual([least.M, least.layer0Cap, least.keyCap, least.precision], [2, 3, 0, 'int8'])
})

test('every metric and precision can be created and searched', async (t) => {
  for (const metric of ['cosine', 'l2', 'inner-product']) {
    for (const precision of ['int8', 'int16', 'f16', 'f32']) {
      for (const rerank of ['f32', 'f16', 'none']) {
        const plane = optionsPlane(t, { dims: 8, metric, precision, rerank })
        assert.equal(plane.metric, metric)
        assert.equal(plane.precision, precision)
        const vector = randVec(rng(1), 8)
        plane.insert(vector)
        assert.deepEqual([...plane.searchSync(vector, 1).ids], [0], `${metric} ${precision} ${rerank}`)
      }
    }
  }
})

test('the options form refuses an existing file unless told to overwrite', async (t) => {
  const file = tempPath(t)
  const first = optionsPlane(t, { dims: 4 }, file)
  first.insert(randVec(rng(1), 4))
  const error = await failure(() => Plane.create(file, { dims: 4 }))
  assert.ok(error instanceof PlaneError)
  assert.equal(error.code, 'PLANE_EXISTS')
  assert.match(error.message, /overwrite/)
  assert.equal(first.count, 1)
  await first.close()
  const second = optionsPlane(t, { dims: 9, overwrite: true }, file)
  assert.deepEqual([second.dims, second.count], [9, 0])
})

test('the positional form replaces an existing file', async (t) => {
  const file = tempPath(t)
  const first = closing(t, Plane.create(file, 4, 8, 10))
  first.insert(randVec(rng(1), 4))
  await first.close()
  const second = closing(t, Plane.create(file, 5, 8, 10))
  assert.deepEqual([second.dims, second.count], [5, 0])
})

test('a handle whose file was replaced says so, thrown and rejected', async (t) => {
  const file = tempPath(t)
  const first = closing(t, Plane.create(file, 4, 8, 10))
  first.insert(randVec(rng(1), 4))
  closing(t, Plane.create(file, 4, 8, 10))
  for (const call of [
    () => first.count, () => first.insert(randVec(rng(1), 4)), () => first.searchSync(randVec(rng(1), 4), 1),
    () => first.search(randVec(rng(1), 4), 1), () => first.insertAsync(randVec(rng(1), 4)), () => first.flushAsync(),
  ]) {
    const error = await failure(call)
    assert.equal(error.code, 'PLANE_REPLACED')
    assert.ok(error instanceof PlaneError)
  }
})

const WRONG_OPTIONS = [
  [{ dims: 0 }, RangeError, 'ERR_OUT_OF_RANGE', /dims/],
  [{ dims: -1 }, RangeError, 'ERR_OUT_OF_RANGE', /dims.*-1/],
  [{ dims: 1.5 }, RangeError, 'ERR_OUT_OF_RANGE', /dims.*1\.5/],
  [{ dims: NaN }, RangeError, 'ERR_OUT_OF_RANGE', /dims.*NaN/],
  [{ dims: Infinity }, RangeError, 'ERR_OUT_OF_RANGE', /dims.*Infinity/],
  [{ dims: 2 ** 31 }, RangeError, 'ERR_OUT_OF_RANGE', /dims/],
  [{ dims: 65_537 }, RangeError, 'ERR_OUT_OF_RANGE', /dims.*65536/],
  [{ dims: '4' }, TypeError, 'ERR_INVALID_ARG_TYPE', /dims.*number.*String/],
  [{ dims: null }, TypeError, 'ERR_INVALID_ARG_TYPE', /dims/],
  [{}, TypeError, 'ERR_INVALID_ARG_TYPE', /dims.*Undefined/],
  [{ dims: 4, M: 1 }, RangeError, 'ERR_OUT_OF_RANGE', /M .*2/],
  [{ dims: 4, M: 257 }, RangeError, 'ERR_OUT_OF_RANGE', /M .*256/],
  [{ dims: 4, layer0Cap: 0 }, RangeError, 'ERR_OUT_OF_RANGE', /layer0Cap/],
  [{ dims: 4, layer0Cap: 513 }, RangeError, 'ERR_OUT_OF_RANGE', /layer0Cap.*512/],
  [{ dims: 4, efConstruction: 0 }, RangeError, 'ERR_OUT_OF_RANGE', /efConstruction/],
  [{ dims: 4, keyCap: 65_536 }, RangeError, 'ERR_OUT_OF_RANGE', /keyCap/],
  [{ dims: 4, keyCap: -1 }, RangeError, 'ERR_OUT_OF_RANGE', /keyCap/],
  [{ dims: 4, maxNodes: 0 }, RangeError, 'ERR_OUT_OF_RANGE', /maxNodes/],
  [{ dims: 4, maxNodes: 2 ** 31 }, RangeError, 'ERR_OUT_OF_RANGE', /maxNodes/],
  [{ dims: 4, lockTimeout: -1 }, RangeError, 'ERR_OUT_OF_RANGE', /lockTimeout/],
  [{ dims: 4, precision: 'float16' }, TypeError, 'ERR_INVALID_ARG_VALUE', /unknown precision 'float16'.*'f16'/],
  [{ dims: 4, precision: 8 }, TypeError, 'ERR_INVALID_ARG_TYPE', /precision/],
  [{ dims: 4, metric: 'dot' }, TypeError, 'ERR_INVALID_ARG_VALUE', /unknown metric 'dot'.*'inner-product'/],
  [{ dims: 4, rerank: 'int8' }, TypeError, 'ERR_INVALID_ARG_VALUE', /unknown rerank/],
  [{ dims: 4, rerank: true }, TypeError, 'ERR_INVALID_ARG_TYPE', /rerank/],
  [{ dims: 4, overwrite: 1 }, TypeError, 'ERR_INVALID_ARG_TYPE', /overwrite.*boolean/],
  [{ dims: 4, uniqueKeys: 'yes' }, TypeError, 'ERR_INVALID_ARG_TYPE', /uniqueKeys/],
  [{ dims: 4, uniqueKeys: true }, TypeError, 'ERR_INVALID_ARG_VALUE', /uniqueKeys.*keyCap/],
  [{ dims: 4, dimensions: 4 }, TypeError, 'ERR_INVALID_ARG_VALUE', /unknown option 'dimensions'/],
  [{ dim: 4 }, TypeError, 'ERR_INVALID_ARG_VALUE', /unknown option 'dim': did you mean 'dims'/],
  [{ dims: 4, m: 8 }, TypeError, 'ERR_INVALID_ARG_VALUE', /did you mean 'M'/],
  [{ dims: 4, efconstruction: 8 }, TypeError, 'ERR_INVALID_ARG_VALUE', /did you mean 'efConstruction'/],
  [{ dims: 4, layerOcap: 8 }, TypeError, 'ERR_INVALID_ARG_VALUE', /did you mean 'layer0Cap'/],
  [{ dims: 4, keycaps: 8 }, TypeError, 'ERR_INVALID_ARG_VALUE', /did you mean 'keyCap'/],
  [{ dims: 4, zzzzzzzz: 8 }, TypeError, 'ERR_INVALID_ARG_VALUE', /known are dims, metric/],
  [[4], TypeError, 'ERR_INVALID_ARG_TYPE', /options/],
]

test('create refuses wrong options before it touches the disk', async (t) => {
  const dir = tempDir(t)
  for (const [options, Type, code, message] of WRONG_OPTIONS) {
    const error = await failure(() => Plane.create(path.join(dir, 'a.hnsw'), options))
    assert.equal(error.code, code, `${JSON.stringify(options)}: ${error.message}`)
    assert.ok(error instanceof Type && !(error instanceof PlaneError), JSON.stringify(options))
    assert.match(error.message, message)
  }
  assert.deepEqual(fs.readdirSync(dir), [])
})

test('create refuses wrong positional arguments and keeps the file that is there', async (t) => {
  const file = tempPath(t)
  const plane = closing(t, Plane.create(file, 4, 8, 10))
  plane.insert(randVec(rng(1), 4))
  for (const [rest, code, message] of [
    [[0, 8, 10], 'ERR_OUT_OF_RANGE', /dims/],
    [[-1, 8, 10], 'ERR_OUT_OF_RANGE', /dims/],
    [[1.5, 8, 10], 'ERR_OUT_OF_RANGE', /dims/],
    [[2 ** 31, 8, 10], 'ERR_OUT_OF_RANGE', /dims/],
    [['4', 8, 10], 'ERR_INVALID_ARG_TYPE', /dims/],
    [[undefined, 8, 10], 'ERR_INVALID_ARG_TYPE', /dims/],
    [[null, 8, 10], 'ERR_INVALID_ARG_TYPE', /dims/],
    [[4, 0, 10], 'ERR_OUT_OF_RANGE', /layer0Cap/],
    [[4, 1, 10], 'ERR_OUT_OF_RANGE', /layer0Cap/],
    [[4, 8.5, 10], 'ERR_OUT_OF_RANGE', /layer0Cap/],
    [[4, '8', 10], 'ERR_INVALID_ARG_TYPE', /layer0Cap/],
    [[4, Symbol('8'), 10], 'ERR_INVALID_ARG_TYPE', /layer0Cap/],
    [[4, undefined, 10], 'ERR_INVALID_ARG_TYPE', /layer0Cap/],
    [[4, 8, 0], 'ERR_OUT_OF_RANGE', /maxNodes/],
    [[4, 8, undefined], 'ERR_INVALID_ARG_TYPE', /maxNodes/],
    [[4, 8, 10, -1], 'ERR_OUT_OF_RANGE', /keyCap/],
    [[4, 8, 10, 8, 1.5], 'ERR_OUT_OF_RANGE', /keyArenaBytesPerNode/],
    [[4, 8, 10, 8, 16, 'float16'], 'ERR_INVALID_ARG_VALUE', /unknown precision/],
  ]) {
    const error = await failure(() => Plane.create(file, ...rest))
    assert.equal(error.code, code, `${String(rest.map(String))}: ${error.message}`)
    assert.match(error.message, message)
  }
  assert.equal(plane.count, 1)
  assert.equal(plane.searchSync(randVec(rng(1), 4), 1).length, 1)
})

test('a path is a non-empty string or a file URL', async (t) => {
  const file = tempPath(t)
  assert.equal(optionsPlane(t, { dims: 4 }, pathToFileURL(file)).path, file)
  assert.equal(closing(t, Plane.open(pathToFileURL(file))).dims, 4)
  for (const wrong of [undefined, null, 4, {}, Buffer.from(file)]) {
    for (const call of [() => Plane.create(wrong, { dims: 4 }), () => Plane.open(wrong)]) {
      const error = await failure(call)
      assert.equal(error.code, 'ERR_INVALID_ARG_TYPE')
      assert.match(error.message, /path/)
    }
  }
  for (const wrong of ['', `${file}\0x`]) {
    assert.equal((await failure(() => Plane.open(wrong))).code, 'ERR_INVALID_ARG_VALUE')
    assert.equal((await failure(() => Plane.create(wrong, { dims: 4 }))).code, 'ERR_INVALID_ARG_VALUE')
  }
})

test('what the operating system refuses keeps its code', async (t) => {
  const dir = tempDir(t)
  for (const [call, code] of [
    [() => Plane.open(path.join(dir, 'missing')), 'ENOENT'],
    [() => Plane.open(dir), 'EISDIR'],
    [() => Plane.create(path.join(dir, 'missing', 'a.hnsw'), { dims: 4 }), 'ENOENT'],
    [() => Plane.create(dir, { dims: 4, overwrite: true }), 'EISDIR'],
    [() => Plane.create(dir, 4, 8, 10), 'EISDIR'],
  ]) {
    const error = await failure(call)
    assert.equal(error.code, code, error.message)
    assert.ok(error instanceof PlaneError)
    assert.match(error.message, new RegExp(code))
  }
})

test('open refuses what is not a plane', async (t) => {
  const dir = tempDir(t)
  const good = path.join(dir, 'good.hnsw')
  const plane = optionsPlane(t, { dims: 4 }, good)
  plane.insert(randVec(rng(1), 4))
  await plane.close()
  const bytes = fs.readFileSync(good)
  for (const [name, content, codes] of [
    ['empty', Buffer.alloc(0), ['PLANE_NOT_A_PLANE']],
    ['text', Buffer.from('not a plane at all\n'.repeat(1000)), ['PLANE_NOT_A_PLANE']],
    ['cut', bytes.subarray(0, 64), ['PLANE_TRUNCATED', 'PLANE_NOT_A_PLANE']],
    ['half', bytes.subarray(0, bytes.length / 2), ['PLANE_TRUNCATED', 'PLANE_CORRUPT']],
  ]) {
    const file = path.join(dir, name)
    fs.writeFileSync(file, content)
    const error = await failure(() => Plane.open(file))
    assert.ok(error instanceof PlaneError)
    assert.ok(codes.includes(error.code), `${name}: ${error.code} ${error.message}`)
    assert.deepEqual(fs.readFileSync(file), content, 'refusing a file changes nothing in it')
  }
})

test('open knows its options', async (t) => {
  const file = tempPath(t)
  await optionsPlane(t, { dims: 4 }, file).close()
  assert.equal(closing(t, Plane.open(file, { readOnly: true })).readOnly, true)
  assert.equal(closing(t, Plane.open(file, {})).readOnly, false)
  for (const [options, code, message] of [
    [{ readonly: true }, 'ERR_INVALID_ARG_VALUE', /did you mean 'readOnly'/],
    [{ readOnly: 1 }, 'ERR_INVALID_ARG_TYPE', /readOnly/],
    [{ lockTimeout: '5' }, 'ERR_INVALID_ARG_TYPE', /lockTimeout/],
    [{ lockTimeout: 0.5 }, 'ERR_OUT_OF_RANGE', /lockTimeout/],
    [null, 'ERR_INVALID_ARG_TYPE', /options/],
    ['r', 'ERR_INVALID_ARG_TYPE', /options/],
  ]) {
    const error = await failure(() => Plane.open(file, options))
    assert.equal(error.code, code, error.message)
    assert.match(error.message, message)
  }
})

test('a second handle on the same path shares the mapping', async (t) => {
  const file = tempPath(t)
  const first = optionsPlane(t, { dims: 4 }, file)
  const second = closing(t, Plane.open(path.join(path.dirname(file), '.', 'case.hnsw')))
  const vector = randVec(rng(1), 4)
  const id = first.insert(vector)
  assert.equal(second.count, 1)
  assert.deepEqual([...second.searchSync(vector, 1).ids], [id])
  second.insert(vector)
  assert.equal(first.count, 2)
  await first.close()
  assert.equal(second.count, 2, 'closing one handle leaves the other open')
  assert.deepEqual((await second.search(vector, 5)).length, 2)
})

test('the package exports the same things to require and import', async () => {
  const esm = await import('../index.mjs')
  const names = ['Plane', 'PlaneError', 'SearchHits', 'invalidatePlane', 'invalidatePlaneAsync', 'stalePathFor']
  assert.deepEqual(Object.keys(vecplane).sort(), names)
  for (const name of Object.keys(vecplane)) assert.equal(esm[name], vecplane[name])
  assert.equal(esm.default, vecplane)
  const child = await runChild('import("file://" + process.argv[2]).then(({ Plane }) => console.log(Plane.name))', [
    path.resolve(__dirname, '../index.mjs'),
  ])
  assert.deepEqual([child.code, child.stdout, child.stderr], [0, 'Plane\n', ''])
})

test('planes come from create and open only', async () => {
  const error = await failure(() => new Plane())
  assert.ok(error instanceof TypeError)
  assert.match(error.message, /Plane\.create/)
  assert.equal(typeof SearchHits, 'function')
})

test('PlaneError is an Error with a name and a code', () => {
  const error = new PlaneError('text', 'PLANE_CLOSED')
  assert.ok(error instanceof Error)
  assert.deepEqual([error.name, error.message, error.code], ['PlaneError', 'text', 'PLANE_CLOSED'])
  assert.match(error.stack, /text/)
})
