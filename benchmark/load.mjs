// A plane under load, and what the load does to those who search.
//
//     npm run bench:load -- [minutes] [--records n] [--only mixed|promises|beside] [--json]
//
// - mixed: 4 searchers, 2 inserters and 1 remover, each a worker thread, with a flush a second, for some minutes (default
//   1). Every answer is checked: well formed, true distances, nothing that was removed before the search began.
// - promises: how long each promise form holds up the event loop. Bound: 20 ms.
// - beside: latency of searches beside `insertBatch` with one and two threads, against that of an idle plane. Bound: with
//   one thread a p99 of at most 3 times the idle one, given a core for each. Whether it is given one shows beside threads
//   that only keep a core busy: whatever those cost comes from the operating system's turns.
//
// A wrong answer ends the process with code 1. A missed bound is only printed: other programs on the machine move times.
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import v8 from 'node:v8'
import { Worker } from 'node:worker_threads'
import { fixtures, rowOf } from '../fixtures/load.mjs'
import { Plane } from '../index.mjs'
import { LIVE, LIVE_COUNT, NEXT, PHASE, SPINNING, STOP, WORDS, keyOf, vectorOf } from './load-records.mjs'

const DIMS = 64
const K = 10
const EF = 128
const SELF_RECALL_MIN = 0.999
const LOOP_BOUND_MS = 20
const BESIDE_BOUND = 3
/** More than any machine inserts in a second. */
const RECORDS_PER_SECOND_MAX = 40_000
const REPEATS = 5
const PHASE_MS = 1_500
const ROLES = ['searcher', 'searcher', 'searcher', 'searcher', 'inserter', 'inserter', 'remover']
/** Phases of a round beside batches, in order: threads of a batch, and threads that only keep a core busy. */
const PHASES = [
  { label: 'idle' },
  { label: '1 busy core', spinning: 1 },
  { label: 'insertBatch, 1 thread', threads: 1 },
  { label: 'idle' },
  { label: '2 busy cores', spinning: 2 },
  { label: 'insertBatch, 2 threads', threads: 2 },
  { label: 'idle' },
]

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { records: { type: 'string', default: '20000' }, only: { type: 'string' }, json: { type: 'boolean', default: false } },
})
const minutes = Number(positionals[0] ?? 1)
const target = Number(options.records)
if (!(minutes > 0 && minutes <= 60)) throw new RangeError('minutes must be a number up to 60')
if (!(Number.isSafeInteger(target) && target >= 1000)) throw new RangeError('records must be a whole number from 1,000')

const parts = { mixed, promises, beside }
if (options.only !== undefined && !(options.only in parts)) throw new RangeError(`--only is one of ${Object.keys(parts)}`)
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-load-'))
const say = options.json ? () => {} : console.log
say(`${os.cpus()[0].model}, ${os.availableParallelism()} hardware threads, Node ${process.version}`)
try {
  const results = {}
  for (const [name, part] of Object.entries(parts)) {
    if (options.only === undefined || options.only === name) results[name] = await part()
  }
  if (options.json) console.log(JSON.stringify(results, null, 2))
} finally {
  fs.rmSync(folder, { recursive: true })
}

function startWorker(role, index, data) {
  const worker = new Worker(new URL('load-worker.mjs', import.meta.url), { workerData: { role, index, ...data } })
  return new Promise((resolve, reject) => {
    worker.once('message', resolve)
    worker.once('error', reject)
    worker.once('exit', (code) => reject(new Error(`a ${role} ended with code ${code}`)))
  })
}

async function mixed() {
  const file = path.join(folder, 'mixed.hnsw')
  const plane = Plane.create(file, { dims: DIMS, keyCap: 12 })
  const seconds = minutes * 60
  const capacity = target + Math.ceil(seconds * RECORDS_PER_SECOND_MAX)
  const shared = (length) => new Int32Array(new SharedArrayBuffer(4 * length))
  const words = shared(WORDS)
  const heaps = new Float64Array(new SharedArrayBuffer(8 * ROLES.length))
  // Written once, so that following the records does not look like growth of the plane's memory.
  const data = { file, dims: DIMS, target, words, states: shared(capacity).fill(0), serialOf: shared(2 * target), heaps }
  await fillUp(plane, data)
  say(`\nmixed load: ${target} records of ${DIMS} dims, ${minutes} min, 4 searchers, 2 inserters, 1 remover, a flush a second`)
  say('     s    records   inserted   RSS MB   anonymous   not JavaScript   file MB   flush ms')
  const workers = Promise.all(ROLES.map((role, index) => startWorker(role, index, data)))
  let failed
  workers.catch((error) => (failed = error))
  const samples = []
  const started = performance.now()
  while (performance.now() - started < seconds * 1e3 && !failed) {
    const flushed = performance.now()
    await plane.flushAsync()
    samples.push({ s: (performance.now() - started) / 1e3, flush_ms: performance.now() - flushed, ...sample(plane, data) })
    if ((samples.length - 1) % Math.max(1, Math.round(seconds / 12)) === 0) sayLine(samples.at(-1))
    await sleep(1_000)
  }
  Atomics.store(words, STOP, 1)
  const found = await workers
  const after = await examine(plane, data)
  await plane.close()
  return reportMixed(found, samples, after)
}

/** The records to begin with, so that the searchers have something to find from the start. */
async function fillUp(plane, { words, states, serialOf }) {
  const vectors = new Float32Array(target * DIMS)
  const keys = []
  for (let serial = 0; serial < target; serial++) {
    vectors.set(vectorOf(serial, DIMS), serial * DIMS)
    keys.push(Buffer.from(keyOf(serial)))
  }
  let end = 0
  const keyEnds = Uint32Array.from(keys, (key) => (end += key.length))
  const { ids } = await plane.insertBatch(vectors, { keys: Buffer.concat(keys), keyEnds })
  ids.forEach((id, serial) => {
    states[serial] = LIVE
    serialOf[id] = serial + 1
  })
  words[NEXT] = words[LIVE_COUNT] = target
}

function sample(plane, { words, heaps }) {
  const { total_physical_size, external_memory } = v8.getHeapStatistics()
  const rss = process.memoryUsage.rss()
  const anonymous = anonymousBytes()
  const native = anonymous - heaps.reduce((sum, bytes) => sum + bytes, total_physical_size + external_memory)
  return { live: plane.count, serials: Atomics.load(words, NEXT), rss, anonymous, native, file: plane.stats().fileBytes }
}

/** Resident memory without the pages of the mapped file; NaN where the system does not tell. */
function anonymousBytes() {
  try {
    return 1024 * Number(fs.readFileSync('/proc/self/status', 'utf8').match(/^RssAnon:\s*(\d+)/m)[1])
  } catch {
    return NaN
  }
}

function sayLine({ s, live, serials, rss, anonymous, native, file, flush_ms }) {
  const sizes = [rss, anonymous, native, file].map((bytes) => (bytes / 1e6).toFixed(1))
  const cells = [s.toFixed(0), live, serials, ...sizes, flush_ms.toFixed(0)]
  say(cells.map((cell, i) => String(cell).padStart([6, 11, 11, 9, 12, 17, 10, 11][i])).join(''))
}

/** At the quiet point after the load: the plane holds what the workers left in it, and every record finds itself. */
async function examine(plane, { words, states }) {
  const report = await plane.verify()
  const wrong = []
  let live = 0
  let found = 0
  for (let serial = 0; serial < words[NEXT]; serial++) {
    const id = plane.idOf(keyOf(serial))
    if ((id !== undefined) !== (states[serial] === LIVE)) wrong.push(keyOf(serial))
    if (id === undefined) continue
    live++
    if (plane.searchSync(vectorOf(serial, DIMS), { k: K, ef: EF }).ids.includes(id)) found++
  }
  return { verified: report.ok && report.unreachable === 0, report, live, count: plane.count, expected: words[LIVE_COUNT], wrong, self_recall: found / live }
}

function reportMixed(found, samples, after) {
  const sum = (name, role) => found.filter((each) => !role || each.role === role).reduce((total, each) => total + each[name], 0)
  const result = {
    minutes,
    searches: sum('calls', 'searcher'),
    inserted: sum('records', 'inserter'),
    removed: sum('records', 'remover'),
    malformed: sum('malformed'),
    ghosts: sum('ghosts'),
    examples: found.flatMap((each) => each.examples),
    samples,
    ...after,
  }
  const right = after.verified && after.wrong.length === 0 && after.live === after.count && after.live === after.expected
  const good = right && result.malformed === 0 && result.ghosts === 0 && after.self_recall >= SELF_RECALL_MIN
  if (!good) process.exitCode = 1
  const quarter = (from) => samples.slice(Math.floor((from / 4) * samples.length), Math.ceil(((from + 1) / 4) * samples.length))
  const mean = (list, name) => list.reduce((total, each) => total + each[name], 0) / list.length / 1e6
  say(`\nsearches ${result.searches}, inserted ${result.inserted}, removed ${result.removed}`)
  say(`malformed answers ${result.malformed}, removed records returned ${result.ghosts}`)
  result.examples.forEach((text) => say(`  ${text}`))
  say(`afterwards: ${after.count} records for ${after.expected}, keys astray ${after.wrong.length}, verify ${after.verified ? 'ok' : JSON.stringify(after.report)}`)
  say(`self-recall@${K} at ef ${EF}: ${after.self_recall.toFixed(5)}, at least ${SELF_RECALL_MIN}`)
  for (const name of ['rss', 'anonymous', 'native', 'file']) {
    say(`${name.padEnd(9)} MB, mean of each quarter: ${[0, 1, 2, 3].map((i) => mean(quarter(i), name).toFixed(1)).join(', ')}`)
  }
  return result
}

/** Runs each promise form, and looks at how late a timer of a millisecond comes meanwhile. */
async function promises() {
  const set = fixtures().load('sift')
  const file = path.join(folder, 'promises.hnsw')
  const plane = Plane.create(file, { dims: set.dims, keyCap: 12 })
  const keysFor = (name) => {
    const keys = Array.from({ length: set.base.rows }, (_, i) => Buffer.from(`${name}${i}`))
    let end = 0
    return { keyEnds: Uint32Array.from(keys, (key) => (end += key.length)), keys: Buffer.concat(keys) }
  }
  const query = rowOf(set.queries, 0)
  let round = 0
  const forms = {
    'nothing, 500 ms': () => sleep(500),
    'insertBatch, 10,000 x 128': () => plane.insertBatch(set.base.data, keysFor(`${round}:`)),
    'upsertBatch, 10,000 x 128': () => plane.upsertBatch(set.base.data, keysFor(`${round}:`)),
    'insertAsync, 200 at once': () => Promise.all(Array.from({ length: 200 }, (_, i) => plane.insertAsync(query, `${round}+${i}`))),
    'upsertAsync, 200 at once': () => Promise.all(Array.from({ length: 200 }, (_, i) => plane.upsertAsync(`${round}+${i}`, query))),
    'search, 500 at once': () => Promise.all(Array.from({ length: 500 }, (_, i) => plane.search(rowOf(set.queries, i % set.queries.rows)))),
    'searchBatch, 200': () => plane.searchBatch(set.queries.data, { k: K }),
    'searchExactAsync, 50 at once': () => Promise.all(Array.from({ length: 50 }, () => plane.searchExactAsync(query))),
    'flushAsync': () => plane.flushAsync(),
    'verify': () => plane.verify(),
    'removeBatchAsync, 5,000': () => plane.removeBatchAsync(Uint32Array.from({ length: 5_000 }, (_, i) => i + 5_000 * round)),
    'openAsync and close': async () => (await Plane.openAsync(file)).close(),
  }
  say('\npromise forms: the call itself, and the longest gap between two runs of a timer of 1 ms, median (worst) of', REPEATS)
  const results = {}
  for (; round < REPEATS; round++) {
    for (const [name, call] of Object.entries(forms)) {
      const { call_ms, gap_ms } = await watched(call)
      const row = (results[name] ??= { call_ms: [], gap_ms: [] })
      row.call_ms.push(call_ms)
      row.gap_ms.push(gap_ms)
    }
  }
  await plane.close()
  for (const [name, { call_ms, gap_ms }] of Object.entries(results)) {
    const cell = (values) => `${median(values).toFixed(1)} (${Math.max(...values).toFixed(1)}) ms`.padStart(20)
    say(`${name.padEnd(30)} call ${cell(call_ms)}   gap ${cell(gap_ms)}${median(gap_ms) > LOOP_BOUND_MS ? `   over ${LOOP_BOUND_MS} ms` : ''}`)
  }
  return results
}

async function watched(call) {
  let gap = 0
  let last = performance.now()
  const look = () => {
    const now = performance.now()
    gap = Math.max(gap, now - last)
    last = now
  }
  const timer = setInterval(look, 1)
  await sleep(5)
  gap = 0
  last = performance.now()
  const promise = call()
  const call_ms = performance.now() - last
  await promise
  look()
  clearInterval(timer)
  return { call_ms, gap_ms: gap }
}

async function beside() {
  const set = fixtures().load('sift')
  say(`\nsearches beside insertBatch: SIFT ${set.base.rows} x ${set.dims} growing to ${3 * set.base.rows}, k ${K}, ef ${EF}, one searcher in a worker`)
  const rounds = []
  for (let round = 0; round < REPEATS; round++) rounds.push(await besideRound(set, round))
  const times = (phase, name) => rounds.map((each) => each[phase][name])
  say('phase                     searches   p50 µs   p99 µs   max µs   p99 over the idle one before it, median (worst)')
  const table = PHASES.map(({ label }, phase) => {
    const idle = PHASES.findLastIndex((each, i) => i <= phase && each.label === 'idle')
    const ratios = rounds.map((each) => each[phase].p99_us / each[idle].p99_us)
    const cells = ['count', 'p50_us', 'p99_us', 'max_us'].map((name) => median(times(phase, name)).toFixed(0).padStart(9))
    const ratio = phase === idle ? '' : `${median(ratios).toFixed(2)} (${Math.max(...ratios).toFixed(2)})`
    say(`${label.padEnd(25)}${cells.join('')}   ${ratio}`)
    return { label, ratio: median(ratios) }
  })
  if (table.find(({ label }) => label.endsWith('1 thread')).ratio > BESIDE_BOUND) say(`beside one thread: over ${BESIDE_BOUND} times`)
  return { rounds, table }
}

async function besideRound(set, round) {
  const file = path.join(folder, `beside-${round}.hnsw`)
  const plane = Plane.create(file, { dims: set.dims })
  await plane.insertBatch(set.base.data)
  const words = new Int32Array(new SharedArrayBuffer(4 * WORDS))
  const data = { file, dims: set.dims, words, queries: set.queries.data }
  const workers = Promise.all([startWorker('timer', 0, data), startWorker('spinner', 0, data), startWorker('spinner', 1, data)])
  // Vectors near those that are there, so that inserts and searches meet in the same places.
  const near = () => set.base.data.map((x) => Math.max(0, x + Math.round(8 * (Math.random() - 0.5))))
  const batches = [near(), near()]
  await sleep(500)
  for (const [phase, { threads, spinning = 0 }] of PHASES.entries()) {
    Atomics.store(words, SPINNING, spinning)
    Atomics.notify(words, SPINNING)
    Atomics.store(words, PHASE, phase + 1)
    if (threads) await plane.insertBatch(batches.pop(), { threads })
    else await sleep(PHASE_MS)
    Atomics.store(words, PHASE, 0)
    Atomics.store(words, SPINNING, 0)
    await sleep(50)
  }
  Atomics.store(words, STOP, 1)
  const [{ phases }] = await workers
  await plane.close()
  fs.rmSync(file)
  return phases.slice(1)
}

function median(values) {
  return Float64Array.from(values).sort()[values.length >> 1]
}
