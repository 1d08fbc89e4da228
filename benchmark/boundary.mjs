// What a search costs beside the search itself: the way through N-API and back, with the answer's objects.
//
//     npm run bench:boundary -- [--calls 20000] [--rounds 9] [--json]
//
// On a plane so small that searching it costs next to nothing. `searchBatch` with one thread answers the same queries
// in one call, so its processor time per query is that of the engine; what `searchSync` and an awaited `search` take beyond
// that is the way. Most of the latter is the pool's: Node's own `randomFill` of 4 bytes shows what that alone costs here.
import { randomFill } from 'node:crypto'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { parseArgs, promisify } from 'node:util'
import { Plane } from '../index.mjs'
import { cpuSince, machine, spread } from './lib/measure.mjs'

const DIMS = 4
const K = 10
const EF = 10

const { values: options } = parseArgs({
  options: {
    calls: { type: 'string', default: '20000' },
    rounds: { type: 'string', default: '9' },
    json: { type: 'boolean', default: false },
  },
})
const calls = Number(options.calls)

const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-boundary-'))
try {
  const plane = Plane.create(path.join(folder, 'tiny.hnsw'), { dims: DIMS, rerank: 'none', keyCap: 8 })
  for (let i = 0; i < K; i++) plane.insert(Float32Array.of(i + 1, 1, 0, 0), `key ${i}`)
  const query = Float32Array.of(1, 2, 0, 0)
  const queries = new Float32Array(calls * DIMS).map((_, i) => query[i % DIMS])
  const [fill, few] = [promisify(randomFill), Buffer.alloc(4)]
  const ways = {
    engine: async () => plane.searchBatch(queries, { k: K, ef: EF, threads: 1 }),
    pool: async () => {
      for (let i = 0; i < calls; i++) await fill(few)
    },
    searchSync: async () => {
      for (let i = 0; i < calls; i++) plane.searchSync(query, K, EF)
    },
    search: async () => {
      for (let i = 0; i < calls; i++) await plane.search(query, K, EF)
    },
  }
  const costs = Object.fromEntries(Object.keys(ways).map((name) => [name, []]))
  // The first round is the warm-up.
  for (let round = 0; round <= Number(options.rounds); round++) {
    for (const [name, way] of Object.entries(ways)) {
      const started = process.cpuUsage()
      await way()
      if (round > 0) costs[name].push(cpuSince(started) / calls)
    }
  }
  await plane.close()
  report(Object.fromEntries(Object.entries(costs).map(([name, cost]) => [name, spread(cost)])))
} finally {
  fs.rmSync(folder, { recursive: true })
}

function report(costs) {
  const [engine, pool] = [costs.engine.median, costs.pool.median]
  const beyond = { searchSync: costs.searchSync.median - engine, search: costs.search.median - engine }
  if (options.json) return console.log(JSON.stringify({ machine: machine(), k: K, calls, cpu_us: costs, beyond_engine_us: beyond }, null, 2))
  const notes = {
    engine: 'searchBatch, one thread',
    pool: 'a call of Node itself that does next to nothing',
    searchSync: `${beyond.searchSync.toFixed(2)} beyond the engine`,
    search: `${beyond.search.toFixed(2)} beyond the engine, ${(beyond.search - pool).toFixed(2)} of it not the pool's`,
  }
  console.log(`processor time per query, µs, k = ${K}: median (least to most) of ${options.rounds} rounds of ${calls}`)
  for (const [name, { median, min, max }] of Object.entries(costs)) {
    console.log(`${name.padEnd(10)} ${median.toFixed(2)} (${min.toFixed(2)} to ${max.toFixed(2)}): ${notes[name]}`)
  }
}
