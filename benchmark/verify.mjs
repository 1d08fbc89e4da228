// Opens every graph of a benchmark run again, in this fresh process, and checks that it is what was measured.
//
//     node benchmark/verify.mjs DIR ...
//
// DIR is a graph's folder or the output directory of a run. Writes verification.json beside results.json; ends with a
// status other than 0 when anything does not match.
import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { rowOf } from '../fixtures/load.mjs'
import { countRight } from '../fixtures/recall.mjs'
import { loadSet } from './lib/data.mjs'
import { loadEngine } from './lib/engine.mjs'
import { sha256OfFile } from './lib/measure.mjs'

// How far a reported distance may be from the exact one, by what the graph keeps of a component.
const DISTANCE_ERROR_MAX = { int8: 0.02, int16: 1e-3, f16: 2e-3, f32: 1e-4 }

const folders = process.argv.slice(2).flatMap(graphsIn)
if (folders.length === 0) throw new Error('name one or more output directories that hold graphs')
const { Plane, version, binary } = loadEngine()
const sets = new Map()

for (const folder of folders) {
  const results = JSON.parse(fs.readFileSync(path.join(folder, 'results.json'), 'utf8'))
  const checks = await verifyGraph(folder, results)
  const mismatches = checks.filter((check) => !check.ok)
  const report = { graph: results.graph.name, ok: mismatches.length === 0, engine_version: version, checks }
  fs.writeFileSync(path.join(folder, 'verification.json'), `${JSON.stringify(report, null, 2)}\n`)
  console.log(`${results.graph.name}: ${report.ok ? `${checks.length} checks passed` : 'MISMATCH'}`)
  for (const { what, expected, actual } of mismatches) console.error(`  ${what}: expected ${expected}, found ${actual}`)
  if (!report.ok) process.exitCode = 1
}

function graphsIn(folder) {
  if (fs.existsSync(path.join(folder, 'results.json'))) return [folder]
  const inside = fs.readdirSync(folder).map((name) => path.join(folder, name))
  return inside.filter((one) => fs.existsSync(path.join(one, 'results.json'))).sort()
}

async function verifyGraph(folder, { graph, data, engine, searches, k }) {
  const checks = []
  const check = (what, actual, expected, ok = Object.is(actual, expected)) => checks.push({ what, ok, expected, actual })
  const set = load(graph)
  check('corpus', set.digests.base, data.base)
  check('queries', set.digests.queries, data.queries)
  check('ground truth', set.digests.neighbours, data.neighbours)
  check('binary', sha256OfFile(binary), engine.binary_sha256)
  let plane
  try {
    plane = Plane.open(path.join(folder, 'graph.hnsw'))
  } catch (error) {
    check('opens', error.message, 'no error')
    return checks
  }
  check('precision', plane.precision, graph.precision)
  check('dims', plane.dims, graph.dims)
  check('layer-0 cap', plane.layer0Cap, graph.layer0Cap)
  check('nodes', plane.idHighWater(), graph.rows)
  check('watermark', plane.getWatermark(), graph.rows)
  const rowOfId = new Map()
  JSON.parse(fs.readFileSync(path.join(folder, 'row-to-id.json'), 'utf8')).forEach((id, row) => rowOfId.set(id, row))
  check('rows with an id of their own', rowOfId.size, graph.rows)
  for (const ef of new Set(searches.map((row) => row.ef))) {
    const seen = await searchAll(plane, set, rowOfId, ef, k)
    const measured = searches.find((row) => row.ef === ef).recall_at_10
    check(`ef ${ef}: recall`, seen.recall, measured)
    check(`ef ${ef}: answers that differ between search and searchSync`, seen.different, 0)
    check(`ef ${ef}: answers that are short, repeat a row or are out of order`, seen.malformed, 0)
    const max = DISTANCE_ERROR_MAX[graph.precision]
    check(`ef ${ef}: largest error of a distance`, seen.distanceError, `at most ${max}`, seen.distanceError <= max)
  }
  await plane.close?.()
  return checks
}

function load({ set, rows, queries }) {
  const key = `${set} ${rows} ${queries}`
  if (!sets.has(key)) {
    sets.clear()
    sets.set(key, loadSet(set, rows, queries))
  }
  return sets.get(key)
}

/** Every query, in both forms. */
async function searchAll(plane, set, rowOfId, ef, k) {
  const seen = { right: 0, different: 0, malformed: 0, distanceError: 0 }
  for (let q = 0; q < set.queries.rows; q++) {
    const query = rowOf(set.queries, q)
    const { ids, distances } = plane.searchSync(query, k, ef)
    const awaited = await plane.search(query, k, ef)
    if (String(ids) !== String(awaited.ids) || String(distances) !== String(awaited.distances)) seen.different++
    const rows = Array.from(ids, (id) => rowOfId.get(id))
    const ascending = distances.every((distance, i) => i === 0 || distances[i - 1] <= distance)
    if (ids.length !== k || new Set(rows).size !== k || rows.includes(undefined) || !ascending) {
      seen.malformed++
      continue
    }
    seen.right += countRight(set, q, rows, k)
    rows.forEach((row, i) => {
      seen.distanceError = Math.max(seen.distanceError, Math.abs(distances[i] - cosineDistance(query, rowOf(set.base, row))))
    })
  }
  return { ...seen, recall: seen.right / (set.queries.rows * k) }
}

function cosineDistance(a, b) {
  let [ab, aa, bb] = [0, 0, 0]
  for (let i = 0; i < a.length; i++) {
    ab += a[i] * b[i]
    aa += a[i] * a[i]
    bb += b[i] * b[i]
  }
  return 1 - ab / Math.sqrt(aa * bb)
}
