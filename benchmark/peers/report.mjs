// Tables and charts of a comparison.
import fs from 'node:fs'
import path from 'node:path'
import { barChart, recallChart } from '../lib/charts.mjs'

export function writeReport(out, report) {
  const write = (name, content) => fs.writeFileSync(path.join(out, name), content)
  write('peers.json', `${JSON.stringify(report, null, 2)}\n`)
  write('peers.csv', csv(report))
  write('peers.md', `${[...report.sets.flatMap((set) => setTables(set, report.targets)), ...smallTable(report.small)].join('\n')}\n`)
  for (const set of report.sets) {
    const done = set.engines.filter((engine) => engine.points)
    write(`peers-${set.name}-${set.rows}.svg`, recallChart({
      title: `${set.name}, ${set.rows.toLocaleString('en-US')} rows, one thread`,
      yLabel: 'queries per second of processor time',
      series: done.map(({ name, points }) => ({ name, points: points.filter((p) => p.cpu_us !== null).map((p) => [p.recall, 1e6 / p.cpu_us]) })),
    }))
    write(`peers-${set.name}-${set.rows}-build.svg`, barChart({
      title: `Building ${set.name}, ${set.rows.toLocaleString('en-US')} rows`,
      xLabel: 'seconds of processor time',
      bars: done.map(({ name, build_cpu_s }) => ({ name, value: build_cpu_s })),
    }))
  }
}

function setTables({ name, rows, queries, loads, engines }, targets) {
  const head = ['Engine', ...targets.map((target) => `µs at ${target}`), ...targets.map((target) => `× at ${target}`), 'Highest recall', 'Build CPU s']
  const body = engines.filter((engine) => !engine.error).map((engine) => [
    engine.name,
    ...targets.map((target) => cost(engine.targets[target])),
    ...targets.map((target) => ratio(engine.targets[target])),
    engine.ceiling?.toFixed(4) ?? '',
    engine.build_cpu_s.toFixed(1),
  ])
  return [
    `### ${name}, ${rows.toLocaleString('en-US')} rows, ${queries} queries`, '',
    `Load of the machine after each round: ${loads.map((load) => load.toFixed(1)).join(', ')}.`, '',
    ...table(head, body), '',
    ...engines.filter((engine) => engine.about?.calibrate_cpu_s).map((engine) => `- ${engine.name}: ${engine.about.calibrate_cpu_s.toFixed(1)} s of the build went into its calibration.`),
    ...engines.filter((engine) => engine.error).map((engine) => `- ${engine.name} could not run: ${engine.error}`), '',
  ]
}

function smallTable(small) {
  if (!small) return []
  const cells = (seen) => (seen ? [seen.qps.median.toFixed(0), seen.cpu_us.median.toFixed(0), seen.p50_us.median.toFixed(0), seen.p99_us.median.toFixed(0)] : ['', '', '', ''])
  const head = ['Engine', 'recall@10', ...[1, 8].flatMap((count) => [`QPS, ${count}`, `CPU µs, ${count}`, `p50 µs, ${count}`, `p99 µs, ${count}`])]
  const body = small.engines.filter((engine) => !engine.error).map(({ name, recall, searchers }) => [name, recall?.toFixed(3) ?? '', ...cells(searchers[1]), ...cells(searchers[8])])
  return [
    `### ${small.rows} vectors of ${small.dims} dimensions, ef ${small.ef}, 1 and 8 searchers`, '',
    ...table(head, body), '',
    ...small.engines.filter((engine) => engine.error).map((engine) => `- ${engine.name} could not run: ${engine.error}`),
  ]
}

function cost(at) {
  if (!at) return 'not reached'
  const { median, min, max } = at.cpu_us
  return `${at.at_lowest_ef ? '≤ ' : ''}${digits(median)} (${digits(min)}–${digits(max)})`
}

function ratio(at) {
  return at?.ratio ? `${at.ratio.median.toFixed(2)} (${at.ratio.min.toFixed(2)}–${at.ratio.max.toFixed(2)})` : ''
}

function digits(value) {
  return value >= 100 ? Math.round(value).toString() : value.toFixed(1)
}

function table(head, body) {
  const line = (cells) => `| ${cells.join(' | ')} |`
  return [line(head), line(head.map((_, i) => (i === 0 ? '---' : '---:'))), ...body.map(line)]
}

function csv({ sets, targets }) {
  const head = ['set', 'rows', 'engine', 'version', 'target', 'ef', 'cpu_us', 'cpu_us_min', 'cpu_us_max', 'ratio', 'ratio_min', 'ratio_max', 'ceiling', 'build_cpu_s', 'error']
  const lines = sets.flatMap(({ name, rows, engines }) =>
    engines.flatMap((engine) =>
      targets.map((target) => {
        const at = engine.targets[target]
        return [
          name, rows, engine.name, engine.about?.version, target, at?.ef, at?.cpu_us.median, at?.cpu_us.min, at?.cpu_us.max,
          at?.ratio?.median, at?.ratio?.min, at?.ratio?.max, engine.ceiling, engine.build_cpu_s, engine.error && JSON.stringify(engine.error),
        ]
      }),
    ),
  )
  return [head, ...lines].map((cells) => `${cells.map((cell) => cell ?? '').join(',')}\n`).join('')
}
