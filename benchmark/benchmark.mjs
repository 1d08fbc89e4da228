// Builds a fresh graph per size, variant and precision, and measures it through published members only.
//
//     UV_THREADPOOL_SIZE=6 node benchmark/benchmark.mjs OUT [options]
//
// `npm run bench:standalone` runs this, then verify.mjs and summarize.mjs. Options: benchmark/lib/options.mjs. The engine is
// this project's, or the one in the folder that HNSW_PACKAGE_ROOT names. Writes OUT/<graph>/results.json and
// row-to-id.json, and OUT/provenance.json. A rejected record, a short answer or an id given twice ends the run.
import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { rowOf } from '../fixtures/load.mjs'
import { countRight } from '../fixtures/recall.mjs'
import { loadSet } from './lib/data.mjs'
import { loadEngine } from './lib/engine.mjs'
import { commitOf, cpuSince, machine, percentile, sha256OfFile, spread, timed } from './lib/measure.mjs'
import { K, readOptions, SEARCHERS } from './lib/options.mjs'

const options = readOptions(process.argv.slice(2))
if (!options.out) throw new Error('name an output directory')
if (Number(process.env.UV_THREADPOOL_SIZE) < SEARCHERS || !process.env.UV_THREADPOOL_SIZE) {
  throw new Error(`set UV_THREADPOOL_SIZE=${SEARCHERS} for ${SEARCHERS} awaited searches in flight; npm run bench:standalone does`)
}
const engine = loadEngine()
const about = {
  engine: { name: engine.name, version: engine.version, commit: commitOf(engine.root), binary_sha256: sha256OfFile(engine.binary) },
  machine: machine(),
  command: process.env.BENCH_COMMAND ?? `node benchmark/benchmark.mjs ${process.argv.slice(2).join(' ')}`,
  started: new Date().toISOString(),
}
fs.mkdirSync(options.out, { recursive: true })

const corpora = []
for (const { rows, queries } of options.sizes) {
  const set = loadSet(options.set, rows, queries)
  corpora.push({ set: set.name, rows, queries: set.queries.rows, dims: set.dims, sha256: set.digests, truth: set.file ?? 'with the set' })
  for (const variant of options.variants) {
    for (const precision of options.precisions) await measureGraph(set, variant, precision)
  }
}
fs.writeFileSync(path.join(options.out, 'provenance.json'), json({ ...about, options, corpora, ended_load: machine().load }))

async function measureGraph(set, variant, precision) {
  const name = `${set.name}-${set.base.rows}-${variant}-${precision}`
  const folder = path.join(options.out, name)
  fs.mkdirSync(folder)
  const file = path.join(folder, 'graph.hnsw')
  const plane = create(file, set, variant, precision)
  if (!plane) {
    fs.rmdirSync(folder)
    return console.log(`${name}: this engine has no such form, skipped`)
  }
  const build = await insertAll(plane, set)
  const flush = await timed(() => plane.flushAsync(set.base.rows))
  const { size, blocks } = fs.statSync(file)
  const searches = await measureSearches(plane, set, build.rowOfId)
  const results = {
    graph: { name, set: set.name, rows: set.base.rows, dims: set.dims, queries: set.queries.rows, variant, precision, layer0Cap: plane.layer0Cap },
    // Members that only some engines have; a missing one is left out.
    parameters: { M: plane.M, efConstruction: plane.efConstruction, rerank: plane.rerank, kernels: plane.stats?.().kernels },
    ...about,
    data: set.digests,
    k: K,
    rounds: options.rounds,
    searches_per_round: options.searches,
    build: {
      threads: options.threads ?? 'default',
      chunk: options.chunk,
      insert_s: build.wall_s,
      insert_cpu_us: (build.cpu_s * 1e6) / set.base.rows,
      flush_ms: flush.wall_s * 1e3,
      file_bytes: size,
      allocated_bytes: blocks * 512,
    },
    searches,
  }
  await plane.close?.()
  fs.writeFileSync(path.join(folder, 'row-to-id.json'), json(Array.from(build.ids)))
  fs.writeFileSync(path.join(folder, 'results.json'), json(results))
  const best = searches.find((row) => row.mode === options.modes[0] && row.recall_at_10 >= 0.99)
  const at = best ? `${best.cpu_us.median.toFixed(0)} µs at recall ${best.recall_at_10.toFixed(4)}` : 'recall stays below 0.99'
  console.log(`${name}: insert ${results.build.insert_cpu_us.toFixed(0)} µs of processor time, ${at}`)
}

/** The published form with its layer-0 cap, or the options form with its defaults; null where the engine lacks the latter. */
function create(file, { dims, base }, variant, precision) {
  if (variant !== 'default') {
    return engine.Plane.create(file, dims, variant === 'cap64' ? 64 : 32, base.rows, 0, undefined, precision)
  }
  try {
    return engine.Plane.create(file, { dims, precision, M: 16, efConstruction: 200 })
  } catch (error) {
    // An engine of the published form alone takes the second argument for the dimension.
    if (engine.Plane.prototype.close === undefined) return null
    throw error
  }
}

async function insertAll(plane, { base, dims }) {
  const ids = new Uint32Array(base.rows)
  const rowOfId = new Map()
  const { wall_s, cpu_s } = await timed(async () => {
    for (let row = 0; row < base.rows; row += options.chunk) {
      const chunk = base.data.subarray(row * dims, Math.min(row + options.chunk, base.rows) * dims)
      const given = await plane.insertBatch(chunk, undefined, undefined, options.threads)
      if (given.rejected.length > 0) throw new Error(`row ${row + given.rejected[0].index} was rejected: ${given.rejected[0].reason}`)
      if (given.ids.length !== chunk.length / dims) throw new Error(`${given.ids.length} ids for ${chunk.length / dims} rows`)
      ids.set(given.ids, row)
    }
  })
  ids.forEach((id, row) => {
    if (rowOfId.has(id)) throw new Error(`rows ${rowOfId.get(id)} and ${row} both have id ${id}`)
    rowOfId.set(id, row)
  })
  if (plane.idHighWater() !== base.rows) throw new Error(`${plane.idHighWater()} ids were given for ${base.rows} rows`)
  return { ids, rowOfId, wall_s, cpu_s }
}

/** Every ef in every mode, in an order that moves on by one each round, so that none always runs first. */
async function measureSearches(plane, set, rowOfId) {
  const cases = options.efs.flatMap((ef) => options.modes.map((mode) => ({ ef, mode, qps: [], cpu_us: [], times: [] })))
  const recalls = new Map(options.efs.map((ef) => [ef, recallOf(plane, set, rowOfId, ef)]))
  for (let round = 0; round < options.rounds; round++) {
    for (let i = 0; i < cases.length; i++) {
      const one = cases[(i + round) % cases.length]
      const { wall_s, cpu_us, times } = await searchRound(plane, set, one, round)
      one.qps.push(options.searches / wall_s)
      one.cpu_us.push(cpu_us / options.searches)
      one.times.push(times)
    }
  }
  return cases.map(({ ef, mode, qps, cpu_us, times }) => {
    const all = Float64Array.from(times.flatMap((part) => Array.from(part)))
    return {
      ef, mode, recall_at_10: recalls.get(ef), qps: spread(qps), cpu_us: spread(cpu_us),
      p50_us: percentile(all, 0.5), p99_us: percentile(all, 0.99),
    }
  })
}

/** Recall over all queries; also the warm-up. */
function recallOf(plane, set, rowOfId, ef) {
  let right = 0
  for (let query = 0; query < set.queries.rows; query++) {
    const { ids } = plane.searchSync(rowOf(set.queries, query), K, ef)
    if (ids.length !== K || new Set(ids).size !== K) throw new Error(`query ${query} at ef ${ef} was answered with ${ids.length} hits: ${ids}`)
    right += countRight(set, query, Array.from(ids, (id) => rowOfId.get(id)), K)
  }
  return right / (set.queries.rows * K)
}

async function searchRound(plane, { queries }, { ef, mode }, round) {
  const times = new Float64Array(options.searches)
  let next = 0
  const answered = (hits, started) => {
    if (hits.ids.length !== K) throw new Error(`an answer at ef ${ef} has ${hits.ids.length} hits`)
    return (performance.now() - started) * 1e3
  }
  const query = (i) => rowOf(queries, (i + round * 7) % queries.rows)
  const caller = async () => {
    while (next < times.length) {
      const i = next++
      const started = performance.now()
      times[i] = answered(await plane.search(query(i), K, ef), started)
    }
  }
  const cpu = process.cpuUsage()
  const started = performance.now()
  if (mode === 'sync') {
    for (let i = 0; i < times.length; i++) {
      const begun = performance.now()
      times[i] = answered(plane.searchSync(query(i), K, ef), begun)
    }
  } else {
    await Promise.all(Array.from({ length: mode === 'awaited' ? 1 : SEARCHERS }, caller))
  }
  return { wall_s: (performance.now() - started) / 1e3, cpu_us: cpuSince(cpu), times }
}

function json(value) {
  return `${JSON.stringify(value, null, Array.isArray(value) ? 0 : 2)}\n`
}
