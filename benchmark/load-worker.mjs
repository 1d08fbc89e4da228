// One worker of benchmark/load.mjs: searches, inserts or removes on the plane that all of them have open, until told to
// stop. Which records are live is kept in memory that all workers share. A spinner only keeps a core busy.
import v8 from 'node:v8'
import { parentPort, workerData } from 'node:worker_threads'
import { Plane } from '../index.mjs'
import { CLOCK, LEAVING, LIVE, LIVE_COUNT, NEXT, PHASE, SPINNING, STOP, keyOf, mulberry, vectorOf } from './load-records.mjs'

const { role, index, file, dims, target, words, states, serialOf, heaps, queries } = workerData
const K = 10
const EF = 128
/** A cosine distance that was scored with the f32 copy is within this of the true one: docs/accuracy.md. */
const DISTANCE_ERROR = 3e-6
const EXAMPLES_MAX = 5

const plane = Plane.open(file)
const random = mulberry(1000 + index)
const found = { role, calls: 0, records: 0, malformed: 0, ghosts: 0, examples: [] }
const stopped = () => Atomics.load(words, STOP) !== 0
/** Lets callbacks of promises and timers run, and tells how much memory JavaScript has here. */
const breathe = () => {
  const { total_physical_size, external_memory } = v8.getHeapStatistics()
  heaps[index] = total_physical_size + external_memory
  return new Promise((resolve) => setImmediate(resolve))
}
const roles = { searcher, inserter, remover, timer, spinner }

await roles[role]()
await plane.close()
parentPort.postMessage(found)

function complain(kind, text) {
  found[kind]++
  if (found.examples.length < EXAMPLES_MAX) found.examples.push(`${kind}: ${text}`)
}

async function searcher() {
  const filter = new Uint8Array(1 << 16).fill(0xff)
  const forms = {
    searchExact: (query) => plane.searchExact(query, { k: K }),
    searchExactAsync: (query) => plane.searchExactAsync(query, { k: K, filter }),
    'searchSync with a filter': (query) => plane.searchSync(query, { k: K, ef: EF, filter }),
    searchSync: (query) => plane.searchSync(query, { k: K, ef: EF }),
    search: (query) => plane.search(query, { k: K, ef: EF }),
  }
  const rare = { 0: 'searchExact', 1: 'searchExactAsync', 10: 'searchSync with a filter', 42: 'searchSync with a filter' }
  while (!stopped()) {
    const turn = found.calls % 64
    const form = rare[turn] ?? (index % 2 === 0 ? 'searchSync' : 'search')
    const query = someQuery()
    // What was removed up to now must not be found from now on.
    const clock = Atomics.load(words, CLOCK)
    check(form, query, await forms[form](query), clock)
    if (turn % 16 === 5) await searchMany()
    found.calls++
    if (found.calls % 16 === 0) await breathe()
  }
}

async function searchMany() {
  const asked = [someQuery(), someQuery(), someQuery()]
  const clock = Atomics.load(words, CLOCK)
  const { ids, distances, keys, keyEnds, counts } = await plane.searchBatch(Float32Array.from(asked.flatMap((q) => [...q])), {
    k: K,
    ef: EF,
    threads: 1,
  })
  let from = 0
  asked.forEach((query, i) => {
    const to = from + counts[i]
    const start = from === 0 ? 0 : keyEnds[from - 1]
    const hits = {
      ids: ids.subarray(from, to),
      distances: distances.subarray(from, to),
      keys: keys.subarray(start, to === 0 ? 0 : keyEnds[to - 1]),
      keyEnds: keyEnds.slice(from, to).map((end) => end - start),
    }
    check('searchBatch', query, hits, clock)
    from = to
  })
}

/** A record's vector, or one near it. */
function someQuery() {
  const vector = vectorOf(Math.floor(random() * Math.max(1, Atomics.load(words, NEXT))), dims)
  return random() < 0.5 ? vector : vector.map((x) => x + 0.2 * (random() - 0.5))
}

function check(form, query, { ids, distances, keys, keyEnds }, clock) {
  const wrong = (text) => complain('malformed', `${form}: ${text}`)
  if (ids.length !== K || distances.length !== K || keyEnds.length !== K) return wrong(`${ids.length} hits`)
  if (new Set(ids).size !== K) return wrong(`ids repeat: ${ids}`)
  const serials = new Set()
  for (let i = 0; i < K; i++) {
    const key = String(keys.subarray(i === 0 ? 0 : keyEnds[i - 1], keyEnds[i]))
    const serial = Number(key.slice(1))
    if (key !== keyOf(serial) || serials.has(serial)) return wrong(`key ${key} of hit ${i}`)
    serials.add(serial)
    const unordered = i > 0 && !(distances[i] > distances[i - 1] || (distances[i] === distances[i - 1] && ids[i] > ids[i - 1]))
    if (unordered) return wrong(`hit ${i} is out of order: ${distances}`)
    const truth = cosineDistance(query, vectorOf(serial, dims))
    if (!(Math.abs(distances[i] - truth) <= DISTANCE_ERROR)) return wrong(`${key} is at ${distances[i]}, not ${truth}`)
    const removed = Atomics.load(states, serial)
    if (removed > 0 && removed <= clock) complain('ghosts', `${form}: ${key} was removed at ${removed}, searched at ${clock}`)
  }
}

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

async function inserter() {
  while (!stopped()) {
    if (Atomics.load(words, LIVE_COUNT) >= target) {
      await new Promise((resolve) => setTimeout(resolve, 1))
      continue
    }
    const form = found.calls % 8
    const count = form === 0 ? 64 : 1
    const first = Atomics.add(words, NEXT, count)
    if (first + count > states.length) throw new Error('more records than there is room to follow')
    const serials = Array.from({ length: count }, (_, i) => first + i)
    if (form === 0) await insertMany(serials)
    else if (form % 2 === 0) landed(serials[0], await plane.insertAsync(vectorOf(serials[0], dims), keyOf(serials[0])))
    else landed(serials[0], plane.insert(vectorOf(serials[0], dims), keyOf(serials[0])))
    found.calls++
    if (found.calls % 16 === 0) await breathe()
  }
}

async function insertMany(serials) {
  const vectors = new Float32Array(serials.length * dims)
  serials.forEach((serial, i) => vectors.set(vectorOf(serial, dims), i * dims))
  const keys = serials.map((serial) => Buffer.from(keyOf(serial)))
  let end = 0
  const keyEnds = Uint32Array.from(keys, (key) => (end += key.length))
  const { ids, rejected } = await plane.insertBatch(vectors, { keys: Buffer.concat(keys), keyEnds, threads: 1 })
  if (rejected.length > 0) complain('malformed', `rejected: ${rejected[0].reason}`)
  serials.forEach((serial, i) => landed(serial, ids[i]))
}

function landed(serial, id) {
  Atomics.store(states, serial, LIVE)
  Atomics.store(serialOf, id, serial + 1)
  Atomics.add(words, LIVE_COUNT, 1)
  found.records++
}

async function remover() {
  while (!stopped()) {
    if (Atomics.load(words, LIVE_COUNT) < 0.95 * target) {
      await new Promise((resolve) => setTimeout(resolve, 1))
      continue
    }
    const form = found.calls % 8
    const claimed = Array.from({ length: form < 2 ? 16 : 1 }, claim)
    const ids = Uint32Array.from(claimed, ({ id }) => id)
    let removed
    if (form === 0) removed = plane.removeBatch(ids)
    else if (form === 1) removed = await plane.removeBatchAsync(ids)
    else if (form % 2 === 0) removed = Number(plane.remove(ids[0]))
    else removed = Number(plane.removeKey(keyOf(claimed[0].serial)))
    if (removed !== ids.length) complain('malformed', `${removed} of ${ids.length} were removed`)
    const clock = Atomics.add(words, CLOCK, 1) + 1
    for (const { serial } of claimed) {
      Atomics.store(states, serial, clock)
      Atomics.sub(words, LIVE_COUNT, 1)
      found.records++
    }
    found.calls++
    if (found.calls % 16 === 0) await breathe()
  }
}

/** Any live record, which nobody else will remove. */
function claim() {
  const highWater = plane.idHighWater()
  for (;;) {
    const id = Math.floor(random() * highWater)
    const serial = Atomics.load(serialOf, id) - 1
    if (serial < 0) continue
    if (Atomics.compareExchange(states, serial, LIVE, LEAVING) === LIVE) return { id, serial }
  }
}

/** Times one search after the other, apart for each phase that the main thread says it is in; 0 is not timed. */
async function timer() {
  const times = []
  const count = queries.length / dims
  for (let i = 0; !stopped(); i++) {
    const query = queries.subarray((i % count) * dims, ((i % count) + 1) * dims)
    const phase = Atomics.load(words, PHASE)
    const started = performance.now()
    plane.searchSync(query, { k: K, ef: EF })
    const took = (performance.now() - started) * 1e3
    if (phase > 0 && phase === Atomics.load(words, PHASE)) (times[phase] ??= []).push(took)
  }
  found.phases = times.map((values) => {
    const sorted = Float64Array.from(values).sort()
    const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]
    return { count: sorted.length, p50_us: at(0.5), p99_us: at(0.99), max_us: sorted.at(-1) }
  })
}

/** Keeps a core busy and touches nothing, while it is told to. */
function spinner() {
  while (!stopped()) {
    const spinning = Atomics.load(words, SPINNING)
    if (spinning > index) for (let i = 0; i < 1e4; i++) random()
    else Atomics.wait(words, SPINNING, spinning, 20)
  }
}
