// One engine and one data set in a process of their own. Does what the parent asks over the channel between them.
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { rowOf } from '../../fixtures/load.mjs'
import { countRight } from '../../fixtures/recall.mjs'
import { loadSet, syntheticSet } from '../lib/data.mjs'
import { cpuSince, percentile, timed } from '../lib/measure.mjs'
import { ENGINES, K } from './engines.mjs'

const WARM_UP = 50
const ERROR_MAX = 120

const engine = ENGINES[process.argv[2]]
const work = fs.mkdtempSync(path.join(process.env.BENCH_WORK ?? os.tmpdir(), 'vecplane-peers-'))
process.on('exit', () => fs.rmSync(work, { recursive: true, force: true }))
process.on('disconnect', () => process.exit(0))
let set
let index
let queries

const commands = {
  /** Loads the data and builds; reports what it cost. */
  async build({ name, rows, queries: wanted, dims }) {
    set = dims ? syntheticSet(rows, wanted, dims) : loadSet(name, rows, wanted)
    const { open } = await import(`./adapters/${engine.adapter}.mjs`)
    const built = await timed(() => open({ set, folder: work, options: engine.options, packageName: engine.package }))
    index = built.result
    const count = Math.min(set.queries.rows, engine.queriesMax ?? Infinity)
    queries = Array.from({ length: count }, (_, i) => index.prepare(rowOf(set.queries, i)))
    return { cpu_s: built.cpu_s, wall_s: built.wall_s, about: { version: versionOf(engine.package), ...index.about } }
  },

  /** Recall at each ef, or what stands for it, in turn, up to the first that reaches `enough`. */
  async curve({ efs, enough }) {
    const curve = []
    const taken = index.efforts || efs.filter((ef) => ef >= (engine.efMin ?? K))
    for (const ef of engine.efMatters === false ? taken.slice(0, 1) : taken) {
      const search = index.search(ef)
      let right = 0
      for (let i = 0; i < queries.length; i++) {
        const rows = index.rows(await search(queries[i]))
        if (rows.length !== K || new Set(rows).size !== K) throw new Error(`query ${i} at ef ${ef} was answered with rows ${rows}`)
        right += countRight(set, i, rows, K)
      }
      curve.push({ ef, recall: right / (queries.length * K) })
      if (curve.at(-1).recall >= enough) break
    }
    return curve
  },

  /** Processor time per query at each ef: whole passes over the queries until `ms` have gone by. */
  async time({ efs, ms }) {
    const costs = {}
    for (const ef of efs) costs[ef] = await timeOne(index.search(ef), ms)
    return costs
  },

  /** Searches kept in flight for `ms`: synchronous ones come one after the other whatever `searchers` says. */
  async searchers({ ef, searchers, ms }) {
    const search = (index.searchAsync ?? index.search)(ef)
    const times = []
    const cpu = process.cpuUsage()
    const started = performance.now()
    const caller = async (first) => {
      for (let i = first; performance.now() - started < ms; i += searchers) {
        const begun = performance.now()
        const answer = search(queries[i % queries.length])
        if (typeof answer.then === 'function') await answer
        times.push((performance.now() - begun) * 1e3)
      }
    }
    await Promise.all(Array.from({ length: searchers }, (_, i) => caller(i)))
    const wall_s = (performance.now() - started) / 1e3
    return { qps: times.length / wall_s, cpu_us: cpuSince(cpu) / times.length, p50_us: percentile(times, 0.5), p99_us: percentile(times, 0.99) }
  },

  async close() {
    await index?.close()
    setImmediate(() => process.exit(0))
  },
}

process.on('message', async ({ command, ...asked }) => {
  try {
    process.send({ result: await commands[command](asked) })
  } catch (error) {
    process.send({ error: error.message.split('\n')[0].slice(0, ERROR_MAX) })
  }
})
process.send({ result: 'ready' })

async function timeOne(search, ms) {
  // A promise costs a turn of the loop that a synchronous engine's users do not pay.
  const sync = typeof search(queries[0])?.then !== 'function'
  // The other engine's turn has left the caches full of its own data.
  for (const query of queries.slice(0, WARM_UP)) await search(query)
  let count = 0
  const cpu = process.cpuUsage()
  const started = performance.now()
  do {
    for (const query of queries) {
      if (sync) search(query)
      else await search(query)
    }
    count += queries.length
  } while (performance.now() - started < ms)
  return cpuSince(cpu) / count
}

function versionOf(name) {
  if (!name) return null
  // The manifest is read as a file: not every package exports it.
  const folder = path.join(path.dirname(fileURLToPath(import.meta.url)), 'node_modules')
  return JSON.parse(fs.readFileSync(path.join(folder, name, 'package.json'), 'utf8')).version
}
