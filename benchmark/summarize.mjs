// Gathers the graphs of a benchmark run into summary.json, summary.csv and charts.
//
//     node benchmark/summarize.mjs OUT
import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { barChart, recallChart } from './lib/charts.mjs'

const MODES = { sync: 'searchSync, one caller', awaited: 'search, one awaited', awaited6: 'search, six awaited' }

const out = process.argv[2]
if (!out) throw new Error('name the output directory of a run')
const graphs = fs
  .readdirSync(out)
  .map((name) => path.join(out, name))
  .filter((folder) => fs.existsSync(path.join(folder, 'results.json')))
  .map((folder) => ({ ...read(folder, 'results.json'), verification: read(folder, 'verification.json') }))
if (graphs.length === 0) throw new Error(`${out} holds no graphs`)

const rows = graphs.flatMap(({ graph, build, searches, verification }) =>
  searches.map((search) => ({
    graph: graph.name,
    set: graph.set,
    rows: graph.rows,
    dims: graph.dims,
    variant: graph.variant,
    precision: graph.precision,
    layer0_cap: graph.layer0Cap,
    mode: search.mode,
    ef: search.ef,
    recall_at_10: search.recall_at_10,
    qps: search.qps.median,
    qps_min: search.qps.min,
    qps_max: search.qps.max,
    cpu_us: search.cpu_us.median,
    cpu_us_min: search.cpu_us.min,
    cpu_us_max: search.cpu_us.max,
    p50_us: search.p50_us,
    p99_us: search.p99_us,
    insert_s: build.insert_s,
    insert_cpu_us: build.insert_cpu_us,
    flush_ms: build.flush_ms,
    file_bytes: build.file_bytes,
    allocated_bytes: build.allocated_bytes,
    verified: verification?.ok ?? false,
  })),
)
const { engine, machine, command } = graphs[0]
write('summary.json', `${JSON.stringify({ engine, machine, command, rows }, null, 2)}\n`)
write('summary.csv', [Object.keys(rows[0]), ...rows.map(Object.values)].map((cells) => `${cells.join(',')}\n`).join(''))

for (const size of new Set(rows.map((row) => `${row.set}-${row.rows}`))) {
  const of = rows.filter((row) => `${row.set}-${row.rows}` === size)
  for (const mode of new Set(of.map((row) => row.mode))) {
    const series = groupBy(of, (row) => row.graph)
    write(`recall-qps-${size}-${mode}.svg`, recallChart({
      title: `${size}: ${MODES[mode]}`,
      yLabel: 'queries per second',
      series: [...series.values()].map((points) => ({
        name: `${points[0].variant} ${points[0].precision}`,
        points: points.filter((row) => row.mode === mode).map((row) => [row.recall_at_10, row.qps]),
      })),
    }))
  }
}
write('build.svg', barChart({
  title: 'Building',
  xLabel: 'µs of processor time per insert',
  bars: graphs.map(({ graph, build }) => ({ name: graph.name, value: build.insert_cpu_us })),
}))

function groupBy(values, keyOf) {
  const groups = new Map()
  for (const value of values) groups.set(keyOf(value), [...(groups.get(keyOf(value)) ?? []), value])
  return groups
}

function read(folder, name) {
  const file = path.join(folder, name)
  return fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, 'utf8')) : null
}

function write(name, content) {
  fs.writeFileSync(path.join(out, name), content)
}
