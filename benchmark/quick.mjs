// A quick look at speed and recall on this machine.
//
//     npm run bench -- [rows] [--set sift|minilm] [--precision int8|int16|f32] [--threads n] [--json]
//
// Uses the vectors in fixtures/. More rows than those come from the full data sets: see `loadShared` in
// fixtures/load.mjs. Searches run one after the other on one thread; their cost is processor time.
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { parseArgs } from 'node:util'
import { fixtures, loadShared, rowOf } from '../fixtures/load.mjs'
import { countRight } from '../fixtures/recall.mjs'
import { Plane } from '../index.mjs'
import { exactNeighbours } from './truth.mjs'

const K = 10
const EFS = [40, 80, 160, 320]
const RECALL_FLOOR = 0.99
const ROUND_MS = 300
const ROUNDS = 5

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    set: { type: 'string', default: 'sift' },
    precision: { type: 'string', default: 'int8' },
    threads: { type: 'string', default: String(os.availableParallelism()) },
    json: { type: 'boolean', default: false },
  },
})

const set = load(options.set, positionals[0] === undefined ? undefined : Number(positionals[0]))
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-bench-'))
try {
  const result = await measure(path.join(folder, 'quick.hnsw'))
  if (options.json) console.log(JSON.stringify(result, null, 2))
  else print(result)
  if (result.searches.at(-1).recall_at_10 < RECALL_FLOOR) {
    console.error(`recall@10 at ef ${EFS.at(-1)} is below ${RECALL_FLOOR}: something is wrong, whatever the speed`)
    process.exitCode = 1
  }
} finally {
  fs.rmSync(folder, { recursive: true })
}

/** The shipped rows, or as many as asked for, with their exact neighbours. */
function load(name, rows) {
  if (rows !== undefined && !(Number.isSafeInteger(rows) && rows >= 2 * K)) {
    throw new RangeError(`rows must be a whole number from ${2 * K}`)
  }
  let set = fixtures().load(name, { rows })
  if (rows > set.base.rows) {
    const shared = loadShared()
    if (!shared) throw new Error(`fixtures/${name} has ${set.base.rows} rows, and the full data sets are not at hand (VECTOR_DATA_DIR)`)
    set = shared.load(name, { rows })
  }
  return set.neighbours ? set : { ...set, ...exactNeighbours(set, 2 * K) }
}

async function measure(file) {
  const plane = Plane.create(file, { dims: set.dims, precision: options.precision })
  const rowOfId = new Map()
  const build = await timed(async () => {
    const { ids, rejected } = await plane.insertBatch(set.base.data, { threads: Number(options.threads) })
    if (rejected.length > 0) throw new Error(`row ${rejected[0].index} was rejected: ${rejected[0].reason}`)
    ids.forEach((id, row) => rowOfId.set(id, row))
  })
  const flush = await timed(() => plane.flushAsync())
  const searches = EFS.map((ef) => measureSearches(plane, rowOfId, ef))
  const { metric, precision, rerank, M, efConstruction } = plane
  const { kernels } = plane.stats()
  await plane.close()
  return {
    set: set.name,
    rows: set.base.rows,
    dims: set.dims,
    queries: set.queries.rows,
    metric,
    precision,
    rerank,
    M,
    efConstruction,
    kernels,
    threads: Number(options.threads),
    processor: os.cpus()[0].model,
    node: process.version,
    build_s: build.wall_us / 1e6,
    insert_cpu_us: build.cpu_us / set.base.rows,
    flush_ms: flush.wall_us / 1e3,
    file_bytes: fs.statSync(file).size,
    searches,
  }
}

/** Recall over all queries, then rounds of searches; the cost is the median of the rounds. */
function measureSearches(plane, rowOfId, ef) {
  const { queries } = set
  let right = 0
  for (let query = 0; query < queries.rows; query++) {
    const { ids } = plane.searchSync(rowOf(queries, query), { k: K, ef })
    right += countRight(set, query, Array.from(ids, (id) => rowOfId.get(id)), K)
  }
  const times = []
  const costs = []
  for (let round = 0; round < ROUNDS; round++) {
    const cpu = process.cpuUsage()
    const started = performance.now()
    let count = 0
    for (let now = started; now - started < ROUND_MS; count++) {
      plane.searchSync(rowOf(queries, count % queries.rows), { k: K, ef })
      const end = performance.now()
      times.push((end - now) * 1e3)
      now = end
    }
    costs.push(cpuSince(cpu) / count)
  }
  return {
    ef,
    recall_at_10: right / (queries.rows * K),
    cpu_us: percentile(costs, 0.5),
    cpu_us_min: Math.min(...costs),
    cpu_us_max: Math.max(...costs),
    p50_us: percentile(times, 0.5),
    p99_us: percentile(times, 0.99),
  }
}

async function timed(work) {
  const cpu = process.cpuUsage()
  const started = performance.now()
  await work()
  return { wall_us: (performance.now() - started) * 1e3, cpu_us: cpuSince(cpu) }
}

/** Processor time of this process since `start`, in microseconds. */
function cpuSince(start) {
  const { user, system } = process.cpuUsage(start)
  return user + system
}

function percentile(values, share) {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
}

function print(result) {
  const { set, rows, dims, metric, precision, rerank, M, efConstruction, kernels, threads, processor, node } = result
  console.log(`${set} ${rows} x ${dims}, ${metric}, ${precision}, rerank ${rerank}, M ${M}, efConstruction ${efConstruction}`)
  console.log(`${processor}, ${kernels}, Node ${node}; build on ${threads} threads, searchSync on one\n`)
  console.log(`build        ${result.build_s.toFixed(2)} s`)
  console.log(`insert       ${result.insert_cpu_us.toFixed(0)} µs of processor time each`)
  console.log(`flush        ${result.flush_ms.toFixed(0)} ms`)
  console.log(`file         ${(result.file_bytes / 1e6).toFixed(1)} MB\n`)
  console.log('   ef   recall@10   CPU µs/query (min to max)   p50 µs   p99 µs')
  for (const row of result.searches) {
    const spread = `${row.cpu_us.toFixed(0)} (${row.cpu_us_min.toFixed(0)} to ${row.cpu_us_max.toFixed(0)})`
    const cells = [
      String(row.ef).padStart(5),
      row.recall_at_10.toFixed(4).padStart(11),
      spread.padStart(27),
      row.p50_us.toFixed(0).padStart(8),
      row.p99_us.toFixed(0).padStart(8),
    ]
    console.log(cells.join(' '))
  }
}
