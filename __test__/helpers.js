'use strict'

// Shared by all tests: deterministic data, temporary planes, exact answers, and checks that every answer must pass.
// The generators and their seeds are those of the cases that the recall thresholds were calibrated on, so changing
// one bit of their output invalidates the thresholds.

const assert = require('node:assert/strict')
const { spawn } = require('node:child_process')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')

const { Plane } = require('..')

/** Uniform numbers in [0, 1) from a 32-bit seed (mulberry32). */
function rng(seed) {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

/** One draw from the standard normal distribution. */
function gauss(random) {
  let u = 0
  while (u === 0) u = random()
  return Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * random())
}

/** `dims` normal components. */
const randVec = (random, dims) => Float32Array.from({ length: dims }, () => gauss(random))

/** `n` vectors in `clusters` consecutive clusters: vector i belongs to cluster `floor(i * clusters / n)`. */
function clustered(seed, n, dims, clusters, sigma) {
  const random = rng(seed)
  const centres = Array.from({ length: clusters }, () => randVec(random, dims))
  return Array.from({ length: n }, (_, i) => {
    const centre = centres[Math.floor((i * clusters) / n)]
    return Float32Array.from(centre, (x) => x + sigma * gauss(random))
  })
}

/** A shuffled copy. */
function shuffle(items, seed) {
  const random = rng(seed)
  const out = items.slice()
  for (let i = out.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1))
    ;[out[i], out[j]] = [out[j], out[i]]
  }
  return out
}

/** `n` queries, each a random vector of `vectors` plus `noise` times a normal vector. */
function queriesNear(vectors, n, seed, noise = 0.25) {
  const random = rng(seed)
  return Array.from({ length: n }, () => {
    const base = vectors[Math.floor(random() * vectors.length)]
    const offset = randVec(random, base.length)
    return Float32Array.from(base, (x, j) => x + noise * offset[j])
  })
}

/** Row-major concatenation, as `insertBatch` takes it. */
function pack(vectors) {
  const dims = vectors.length === 0 ? 0 : vectors[0].length
  const out = new Float32Array(vectors.length * dims)
  vectors.forEach((vector, i) => out.set(vector, i * dims))
  return out
}

/** Keys as `insertBatch` takes them. */
function packKeys(keys) {
  const parts = keys.map((key) => Buffer.from(key))
  const keyEnds = new Uint32Array(parts.length)
  parts.reduce((end, part, i) => (keyEnds[i] = end + part.length), 0)
  return { keys: Buffer.concat(parts), keyEnds }
}

/** A new directory that disappears after the test. */
function tempDir(t) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-'))
  t.after(() => fs.rmSync(dir, { recursive: true, force: true }))
  return dir
}

/** Path of a file that does not exist yet, in a directory of its own. */
const tempPath = (t, name = 'case.hnsw') => path.join(tempDir(t), name)

/** The plane that the cases take as given: positional form, layer0Cap 32, keyCap 16, int8. Closed after the test. */
function casePlane(t, dims, maxNodes, { layer0Cap = 32, keyCap = 16, file = tempPath(t) } = {}) {
  return closing(t, Plane.create(file, dims, layer0Cap, maxNodes, keyCap))
}

/** A plane by options, in a fresh file. Closed after the test. */
const optionsPlane = (t, options, file = tempPath(t)) => closing(t, Plane.create(file, options))

/** Closes the plane after the test, unless the test has done so. */
function closing(t, plane) {
  t.after(() => plane.close())
  return plane
}

/** The key of hit `i`, from the published arrays. */
const keyAt = (hits, i) => hits.keys.subarray(i ? hits.keyEnds[i - 1] : 0, hits.keyEnds[i])

/** Fails unless the hits are well formed, then returns them. Cosine distances unless another range is given. */
function wf(hits, { min = -1e-6, max = 2 + 1e-3 } = {}) {
  assert.ok(hits.ids instanceof Uint32Array, 'ids is a Uint32Array')
  assert.ok(hits.distances instanceof Float32Array, 'distances is a Float32Array')
  assert.ok(hits.keyEnds instanceof Uint32Array, 'keyEnds is a Uint32Array')
  assert.ok(Buffer.isBuffer(hits.keys), 'keys is a Buffer')
  const n = hits.ids.length
  assert.equal(hits.distances.length, n)
  assert.equal(hits.keyEnds.length, n)
  assert.equal(hits.length, n)
  assert.equal(new Set(hits.ids).size, n, 'ids are distinct')
  for (let i = 0; i < n; i++) {
    const distance = hits.distances[i]
    assert.ok(Number.isFinite(distance) && distance >= min && distance <= max, `distance ${distance} of hit ${i}`)
    assert.ok(i === 0 || hits.keyEnds[i] >= hits.keyEnds[i - 1], 'keyEnds ascend')
    if (i === 0 || distance > hits.distances[i - 1]) continue
    assert.equal(distance, hits.distances[i - 1], 'distances ascend')
    assert.ok(hits.ids[i] > hits.ids[i - 1], 'equal distances are ordered by id')
  }
  assert.equal(n === 0 ? 0 : hits.keyEnds[n - 1], hits.keys.length, 'keyEnds cover keys')
  return hits
}

/** Cosine distance in double precision. */
function cosineDistance(a, b) {
  let dot = 0
  let aa = 0
  let bb = 0
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i]
    aa += a[i] * a[i]
    bb += b[i] * b[i]
  }
  return 1 - dot / Math.sqrt(aa * bb)
}

/** Squared Euclidean distance in double precision. */
const l2Distance = (a, b) => a.reduce((sum, x, i) => sum + (x - b[i]) ** 2, 0)

/** Negated inner product in double precision. */
const innerProductDistance = (a, b) => -a.reduce((sum, x, i) => sum + x * b[i], 0)

/** Positions of the `k` exact neighbours in `vectors`, nearest first; `allowed(i)` leaves positions out. */
function exactSearch(vectors, query, k, { distance = cosineDistance, allowed = () => true } = {}) {
  const found = []
  vectors.forEach((vector, i) => {
    if (vector && allowed(i)) found.push([distance(vector, query), i])
  })
  found.sort((a, b) => a[0] - b[0] || a[1] - b[1])
  return found.slice(0, k).map(([, i]) => i)
}

/** Share of `truth` that is among `found`. */
function recall(found, truth) {
  const set = new Set(found)
  return truth.filter((id) => set.has(id)).length / truth.length
}

/** Mean recall of `queries` against the exact neighbours; `ids[i]` is the id of `vectors[i]`. */
async function meanRecall(plane, vectors, ids, queries, k, ef) {
  let sum = 0
  for (const query of queries) {
    const truth = exactSearch(vectors, query, k).map((i) => ids[i])
    sum += recall(wf(await plane.search(query, k, ef)).ids, truth)
  }
  return sum / queries.length
}

/** How many of `vectors` are missing from their own `k` neighbours at `ef`; `ids[i]` is the id of `vectors[i]`. */
async function selfMisses(plane, vectors, ids, k, ef) {
  let misses = 0
  for (let i = 0; i < vectors.length; i++) {
    if (!wf(await plane.search(vectors[i], k, ef)).ids.includes(ids[i])) misses++
  }
  return misses
}

/** An allow-bitset over ids. */
function bitset(ids, bytes = Math.max(0, ...ids.map((id) => (id >> 3) + 1))) {
  const bits = new Uint8Array(bytes)
  for (const id of ids) bits[id >> 3] |= 1 << (id & 7)
  return bits
}

/** The error that `fn` throws, or that its promise rejects with. */
async function failure(fn) {
  try {
    await fn()
  } catch (error) {
    return error
  }
  assert.fail('expected a failure')
}

/**
 * Runs a script in a Node process of its own; `vecplane` is the package unless `loads` is false, `args` arrive in
 * `process.argv[2...]`.
 */
function runChild(source, args = [], { timeout = 60_000, execArgv = [], loads = true, env = {} } = {}) {
  const prelude = loads ? `const vecplane = require(${JSON.stringify(path.resolve(__dirname, '..'))})\n` : ''
  const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-')), 'child.js')
  fs.writeFileSync(file, prelude + source)
  return new Promise((resolve, reject) => {
    const started = Date.now()
    const child = spawn(process.execPath, [...execArgv, file, ...args.map(String)], {
      stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env },
    })
    const timer = setTimeout(() => child.kill('SIGKILL'), timeout)
    const output = { stdout: '', stderr: '' }
    for (const name of ['stdout', 'stderr']) child[name].on('data', (data) => (output[name] += data))
    child.on('error', reject)
    child.on('close', (code, signal) => {
      clearTimeout(timer)
      fs.rmSync(path.dirname(file), { recursive: true, force: true })
      resolve({ code, signal, ms: Date.now() - started, ...output })
    })
  })
}

module.exports = {
  rng, gauss, randVec, clustered, shuffle, queriesNear, pack, packKeys, bitset,
  tempDir, tempPath, casePlane, optionsPlane, closing, runChild,
  keyAt, wf, failure, cosineDistance, l2Distance, innerProductDistance, exactSearch, recall, meanRecall, selfMisses,
}
