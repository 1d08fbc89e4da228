// What `searchWithPredicate` costs, and how many records it asks about, for predicates that let a share of the records in.
//
//     npm run bench:predicate -- [--set sift] [--rows 20000] [--queries 200] [--ef 100] [--shares 50,10,1,0.1] [--rounds 5]
//                                [--form options|positional] [--json]
//
// Measures any package with the published API (HNSW_PACKAGE_ROOT), with `--form positional` by the calls that all of them have: int8
// codes, 32 links on layer 0, and here no exact copies. One search at a time; the cost is processor time of all threads, the median
// of the rounds, in which the shares and a plain search take turns. Recall counts the true neighbours among the records let in.
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { parseArgs } from 'node:util'
import { rowOf } from '../fixtures/load.mjs'
import { countRight } from '../fixtures/recall.mjs'
import { loadSet } from './lib/data.mjs'
import { loadEngine } from './lib/engine.mjs'
import { cpuSince, machine, spread } from './lib/measure.mjs'
import { exactNeighbours } from './truth.mjs'

const K = 10

const { values: options } = parseArgs({
  options: {
    set: { type: 'string', default: 'sift' },
    rows: { type: 'string', default: '20000' },
    queries: { type: 'string', default: '200' },
    ef: { type: 'string', default: '100' },
    shares: { type: 'string', default: '50,10,1,0.1' },
    rounds: { type: 'string', default: '5' },
    form: { type: 'string', default: 'options' },
    json: { type: 'boolean', default: false },
  },
})
const ef = whole('ef')
if (!['options', 'positional'].includes(options.form)) throw new RangeError(`form: ${options.form} is neither options nor positional`)

const engine = loadEngine()
const set = loadSet(options.set, whole('rows'), whole('queries'))
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-predicate-'))
try {
  const { plane, rowOfId } = await build(path.join(folder, 'predicate.hnsw'))
  const cases = options.shares.split(',').map((share) => caseOf(Number(share), rowOfId))
  const plain = { name: 'plain search', times: [], search: (query) => plane.search(query, K, ef) }
  for (const each of cases) each.search = (query) => plane.searchWithPredicate(query, K, ef, each.predicate)
  // The first round is the warm-up, and counts what is found.
  for (let round = 0; round <= whole('rounds'); round++) {
    for (const each of [plain, ...cases]) await ask(each, round === 0, rowOfId)
  }
  await plane.close?.()
  report(plain, cases)
} finally {
  fs.rmSync(folder, { recursive: true })
}

async function build(file) {
  const { dims, base } = set
  const positional = options.form === 'positional'
  const plane = positional
    ? engine.Plane.create(file, dims, 32, base.rows, 0, undefined, 'int8')
    : engine.Plane.create(file, { dims })
  const { ids, rejected } = await (positional ? plane.insertBatch(base.data, undefined, undefined, 1) : plane.insertBatch(base.data, { threads: 1 }))
  if (rejected.length > 0) throw new Error(`row ${rejected[0].index} was rejected: ${rejected[0].reason}`)
  return { plane, rowOfId: new Map(Array.from(ids, (id, row) => [id, row])) }
}

/** Rows picked by a generator that is the same everywhere, a predicate that looks them up, and the truth among them. */
function caseOf(percent, rowOfId) {
  if (!(percent > 0 && percent <= 100)) throw new RangeError(`a share must be above 0 and at most 100, not ${percent}`)
  let state = 12_345
  const random = () => (state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0) / 2 ** 32
  const letIn = Uint8Array.from({ length: set.base.rows }, () => (random() * 100 < percent ? 1 : 0))
  const rows = Array.from(letIn.keys()).filter((row) => letIn[row] === 1)
  const data = new Float32Array(rows.length * set.dims)
  rows.forEach((row, at) => data.set(rowOf(set.base, row), at * set.dims))
  const truth = exactNeighbours({ base: { data, rows: rows.length, dims: set.dims }, queries: set.queries }, Math.min(K, rows.length))
  const each = { name: `${percent}%`, percent, rows, truth, times: [], asked: 0 }
  each.predicate = (ids) => {
    each.asked += ids.length
    return Uint8Array.from(ids, (id) => letIn[rowOfId.get(id)])
  }
  return each
}

/** All queries once. The round that `counts` tells what was found and asked, the others how long it takes. */
async function ask(each, counts, rowOfId) {
  const answers = []
  const started = process.cpuUsage()
  for (let q = 0; q < set.queries.rows; q++) answers.push(await each.search(rowOf(set.queries, q)))
  if (!counts) each.times.push(cpuSince(started) / set.queries.rows)
  else if (each.truth) count(each, answers, rowOfId)
}

function count(each, answers, rowOfId) {
  const k = each.truth.neighbours.dims
  const placeOf = new Map(each.rows.map((row, at) => [row, at]))
  let right = 0
  answers.forEach(({ ids }, q) => {
    const places = Array.from(ids, (id) => placeOf.get(rowOfId.get(id)))
    if (places.includes(undefined)) throw new Error(`query ${q} returned a record that was not let in`)
    right += countRight(each.truth, q, places, k)
  })
  each.recall = right / (k * set.queries.rows)
  each.askedPerQuery = each.asked / set.queries.rows
}

function report(plain, cases) {
  const rows = cases.map((each) => ({
    let_in: each.name,
    us: spread(each.times),
    recall_at_10: each.recall,
    asked: each.askedPerQuery,
  }))
  const about = { engine: engine.name, version: engine.version, set: options.set, rows: set.base.rows, queries: set.queries.rows, ef }
  if (options.json) {
    console.log(JSON.stringify({ ...about, form: options.form, machine: machine(), plain_us: spread(plain.times), rows }, null, 2))
    return
  }
  const { processor, node, load } = machine()
  const us = ({ median, min, max }) => `${median.toFixed(0)} (${min.toFixed(0)}–${max.toFixed(0)})`
  console.log(`${engine.name} ${engine.version ?? ''}, ${options.form} form, ${options.set} ${set.base.rows}, ef ${ef}, ${set.queries.rows} queries`)
  console.log(`${processor}, Node ${node}, load ${load.toFixed(1)}; plain search ${us(spread(plain.times))} µs\n`)
  console.log('| Let in | µs | recall@10 | records asked about |')
  console.log('| --- | ---: | ---: | ---: |')
  for (const row of rows) console.log(`| ${row.let_in} | ${us(row.us)} | ${row.recall_at_10.toFixed(4)} | ${Math.round(row.asked)} |`)
}

function whole(name) {
  const number = Number(options[name])
  if (!Number.isSafeInteger(number) || number < 1) throw new RangeError(`${name} must be a whole number from 1, not ${options[name]}`)
  return number
}
