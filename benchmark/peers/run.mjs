// Compares vecplane with what a user would install instead: back to back, on the same data, in processor time.
//
//     npm run bench:peers -- [OUT] [--sets sift:200000,minilm:100000,glove50:200000] [--engines vecplane,zvec,...]
//                            [--queries 500] [--rounds 3] [--ms 200] [--builds 1] [--efs 10,16,...]
//                            [--build-timeout 900] [--no-small]
//
// Every engine builds in a process of its own (`--builds` at a time), answers all queries at rising ef (vecplane: asked for
// rising recalls, after a calibration that is timed apart) until recall@10 is past the last target, and then takes turns with
// vecplane, as it comes and compacted: A A' B A A' C A A' D, `--rounds` times over. Cost at a target recall is
// interpolated between the two ef around it. Writes peers.json, peers.csv, peers.md and charts into OUT, which must not exist.
import { spawn } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { loadSet } from '../lib/data.mjs'
import { machine, pinned, spread } from '../lib/measure.mjs'
import { EF_CONSTRUCTION, ENGINES, K, M } from './engines.mjs'
import { installPeers } from './install.mjs'
import { costAt, efsAround, TARGETS } from './interpolate.mjs'
import { writeReport } from './report.mjs'

const HERE = path.dirname(fileURLToPath(import.meta.url))
/** What every other engine takes turns with. */
const OURS = ['vecplane', 'vecplane-compact']
const SMALL = { rows: 524, queries: 200, dims: 1024, ef: 100 }

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    sets: { type: 'string', default: process.env.BENCH_SETS ?? 'sift:200000,minilm:100000,glove50:200000' },
    engines: { type: 'string', default: Object.keys(ENGINES).join(',') },
    efs: { type: 'string', default: '10,14,20,28,40,56,80,112,160,226,320,452,640,905,1280,1810,2560' },
    queries: { type: 'string', default: '500' },
    rounds: { type: 'string', default: '3' },
    ms: { type: 'string', default: '200' },
    builds: { type: 'string', default: '1' },
    'build-timeout': { type: 'string', default: '900' },
    'no-small': { type: 'boolean', default: false },
  },
})
const out = positionals[0] ?? path.join(HERE, '..', 'results', `peers-${new Date().toISOString().replaceAll(':', '-').slice(0, 19)}`)
if (fs.existsSync(out)) {
  console.error(`${out} exists; name a directory that does not`)
  process.exit(1)
}
const names = values.engines.split(',')
const unknown = names.find((name) => !ENGINES[name])
if (unknown) throw new Error(`${unknown} is none of ${Object.keys(ENGINES).join(', ')}`)
const efs = values.efs.split(',').map(Number)

const notInstalled = installPeers()
fs.mkdirSync(out, { recursive: true })
const work = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-peers-work-'))
const children = new Set()
process.on('exit', () => {
  // A process that is busy building does not notice that its parent has gone.
  for (const child of children) child.kill('SIGKILL')
  fs.rmSync(work, { recursive: true, force: true })
})
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.on(signal, () => {
    console.error(`stopped by ${signal}`)
    process.exit(1)
  })
}
const flags = process.argv.slice(2).filter((argument) => argument !== positionals[0])
const report = {
  command: `npm run bench:peers${flags.length > 0 ? ` -- ${flags.join(' ')}` : ''}`,
  machine: machine(), started: new Date().toISOString(), k: K, M, efConstruction: EF_CONSTRUCTION, targets: TARGETS, sets: [], small: null,
}
if (!values['no-small']) {
  report.small = await compareSearchers()
  writeReport(out, report)
}
for (const text of values.sets.split(',').filter(Boolean)) {
  const [name, rows] = text.split(':')
  report.sets.push(await compare(name, Number(rows)))
  writeReport(out, report)
}
console.log(`results in ${path.relative(process.cwd(), out)}`)

/** An engine's process. Requests are answered one at a time; a process that ends answers with its end. */
function start(name) {
  const replies = new EventEmitter()
  const [command, args] = pinned(process.execPath, [path.join(HERE, 'child.mjs'), name])
  const child = spawn(command, args, { stdio: ['ignore', 'ignore', 'pipe', 'ipc'], env: { ...process.env, BENCH_WORK: work } })
  children.add(child)
  let stderr = ''
  child.stderr.on('data', (chunk) => (stderr = (stderr + chunk).slice(-2000)))
  let ended = null
  child.on('message', (message) => replies.emit('reply', message))
  child.on('exit', (code, signal) => {
    children.delete(child)
    ended = `the process ended by ${signal ?? `status ${code}`}${stderr && `: ${stderr.trim().split('\n').at(-1)}`}`
    replies.emit('reply', { error: ended })
  })
  const ask = async (message, timeout_s) => {
    if (ended) throw new Error(ended)
    const timer = timeout_s && setTimeout(() => replies.emit('reply', { error: `gave up after ${timeout_s} s` }), timeout_s * 1e3)
    if (message) child.send(message)
    const [reply] = await once(replies, 'reply')
    clearTimeout(timer)
    if (reply.error) throw new Error(reply.error)
    return reply.result
  }
  return { name, ask, ready: ask(null), kill: () => child.kill('SIGKILL') }
}

/** Starts and builds every engine; one that fails is given with its error in place of a process. */
async function buildAll(request) {
  const engines = names.map((name) => ({ name, what: ENGINES[name].what }))
  const waiting = [...engines]
  const builder = async () => {
    for (let engine = waiting.shift(); engine; engine = waiting.shift()) {
      const reason = notInstalled[ENGINES[engine.name].package]
      if (reason !== undefined) {
        engine.error = `not installed: ${reason}`
        continue
      }
      await attempt(engine, async () => {
        engine.process = start(engine.name)
        await engine.process.ready
        engine.build = await engine.process.ask({ command: 'build', ...request }, Number(values['build-timeout']))
        console.log(`${engine.name}: built, ${engine.build.cpu_s.toFixed(1)} s of processor time`)
      })
    }
  }
  await Promise.all(Array.from({ length: Number(values.builds) }, builder))
  return engines
}

/** Does something with an engine; its failure ends the engine, not the comparison. */
async function attempt(engine, work) {
  try {
    return await work()
  } catch (error) {
    engine.error = error.message
    engine.process?.kill()
    console.error(`${engine.name}: ${error.message}`)
    return undefined
  }
}

async function compare(name, rows) {
  console.log(`${name}, ${rows} rows`)
  // Ground truth that is not at hand is computed here, once, and read by every engine's process.
  loadSet(name, rows, Number(values.queries))
  const engines = await buildAll({ name, rows, queries: Number(values.queries) })
  for (const engine of engines.filter((one) => !one.error)) {
    engine.curve = await attempt(engine, () => engine.process.ask({ command: 'curve', efs, enough: TARGETS.at(-1) }))
    if (engine.curve) engine.timed = efsAround(engine.curve)
  }
  const ours = engines.filter((engine) => OURS.includes(engine.name))
  const peers = engines.filter((engine) => !ours.includes(engine))
  const time = (engine) => engine.process.ask({ command: 'time', efs: engine.timed, ms: Number(values.ms) })
  const loads = []
  for (let round = 0; round < Number(values.rounds); round++) {
    const order = peers.map((_, i) => peers[(i + round) % peers.length]).filter((peer) => !peer.error)
    for (const peer of order) {
      const beside = {}
      for (const one of ours.filter((engine) => !engine.error)) {
        beside[one.name] = await attempt(one, () => time(one))
        if (beside[one.name]) (one.rounds ??= []).push({ costs: beside[one.name] })
      }
      const costs = await attempt(peer, () => time(peer))
      if (costs) (peer.rounds ??= []).push({ costs, beside })
    }
    loads.push(os.loadavg()[0])
    console.log(`round ${round + 1}: load ${loads.at(-1).toFixed(1)}`)
  }
  for (const engine of engines) engine.process?.kill()
  return { name, rows, queries: Number(values.queries), loads, engines: engines.map((engine) => resultOf(engine, ours)) }
}

/** Cost at each target, and the ratios to ours in the same turn. */
function resultOf({ name, what, error, build, curve, rounds = [] }, ours) {
  const of = (costs, target) => costAt(curve, costs, target)
  const targets = {}
  for (const target of curve && rounds.length > 0 ? TARGETS : []) {
    const costs = rounds.map((round) => of(round.costs, target)).filter(Boolean)
    if (costs.length === 0) continue
    const ratios = {}
    for (const one of ours) {
      const pairs = rounds.filter((round) => round.beside?.[one.name])
      const taken = pairs.map((round) => of(round.costs, target).cpu_us / (costAt(one.curve, round.beside[one.name], target)?.cpu_us ?? NaN))
      if (taken.some(Number.isFinite)) ratios[one.name] = spread(taken.filter(Number.isFinite))
    }
    targets[target] = {
      ef: costs[0].ef,
      at_lowest_ef: costs[0].lowest,
      cpu_us: spread(costs.map((cost) => cost.cpu_us)),
      ratios,
    }
  }
  const points = curve?.map(({ ef, recall }) => {
    const costs = rounds.map((round) => round.costs[ef]).filter((cost) => cost !== undefined)
    return { ef, recall, cpu_us: costs.length > 0 ? spread(costs).median : null }
  })
  return { name, what, error, about: build?.about, build_cpu_s: build?.cpu_s, build_wall_s: build?.wall_s, ceiling: curve && Math.max(...curve.map((point) => point.recall)), targets, points }
}

/** A published workload: few vectors of many dimensions, one searcher and eight. */
async function compareSearchers() {
  console.log(`${SMALL.rows} vectors of ${SMALL.dims} dimensions, 1 and 8 searchers`)
  const engines = await buildAll(SMALL)
  for (let round = 0; round < Number(values.rounds); round++) {
    for (const engine of engines.filter((one) => !one.error)) {
      for (const searchers of [1, 8]) {
        const ms = Number(values.ms)
        const seen = await attempt(engine, () => engine.process.ask({ command: 'searchers', ef: SMALL.ef, searchers, ms }))
        if (seen) ((engine.rounds ??= {})[searchers] ??= []).push(seen)
      }
    }
  }
  for (const engine of engines.filter((one) => !one.error)) {
    const [point] = (await attempt(engine, () => engine.process.ask({ command: 'curve', efs: [SMALL.ef], enough: 1 }))) ?? []
    engine.recall = point?.recall
    engine.process.kill()
  }
  return {
    ...SMALL,
    engines: engines.map(({ name, error, recall, rounds = {} }) => ({
      name, error, recall,
      searchers: Object.fromEntries(
        Object.entries(rounds).map(([count, all]) => [count, Object.fromEntries(Object.keys(all[0]).map((key) => [key, spread(all.map((one) => one[key]))]))]),
      ),
    })),
  }
}
