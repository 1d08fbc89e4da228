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
  const head = ['Engine', ...targets.map((target) => `µs at ${target}`), 'Highest recall', 'Build CPU s']
  const ran = engines.filter((engine) => !engine.error)
  const body = ran.map((engine) => [
    engine.name,
    ...targets.map((target) => cost(engine.targets[target])),
    engine.ceiling?.toFixed(4) ?? '',
    engine.build_cpu_s.toFixed(1),
  ])
  return [
    `### ${name}, ${rows.toLocaleString('en-US')} rows, ${queries} queries`, '',
    `Load of the machine after each round: ${loads.map((load) => load.toFixed(1)).join(', ')}.`, '',
    ...table(head, body), '',
    ...ran.flatMap((engine) => ratioTable(engine.name, ran, targets)),
    ...ran.flatMap(({ name, about }) => [
      ...(about?.compact_cpu_s ? [`- ${name}: ${about.compact_cpu_s.toFixed(1)} s of the build went into compacting it.`] : []),
      ...(about?.calibrate_cpu_s ? [`- ${name}: ${about.calibrate_cpu_s.toFixed(1)} s of the build went into its calibration.`] : []),
    ]),
    ...engines.filter((engine) => engine.error).map((engine) => `- ${engine.name} could not run: ${engine.error}`), '',
  ]
}

/** What the others take in the same turn as one of ours; empty for an engine that none was compared with. */
function ratioTable(ours, engines, targets) {
  const compared = engines.filter((engine) => targets.some((target) => engine.targets[target]?.ratios[ours]))
  if (compared.length === 0) return []
  const body = compared.map((engine) => [engine.name, ...targets.map((target) => ratio(engine.targets[target]?.ratios[ours]))])
  return [`Times what ${ours} takes in the same turn:`, '', ...table(['Engine', ...targets.map((target) => `× at ${target}`)], body), '']
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

function ratio(seen) {
  return seen ? `${seen.median.toFixed(2)} (${seen.min.toFixed(2)}–${seen.max.toFixed(2)})` : ''
}

function digits(value) {
  return value >= 100 ? Math.round(value).toString() : value.toFixed(1)
}

function table(head, body) {
  const line = (cells) => `| ${cells.join(' | ')} |`
  return [line(head), line(head.map((_, i) => (i === 0 ? '---' : '---:'))), ...body.map(line)]
}

function csv({ sets, targets }) {
  const ours = [...new Set(sets.flatMap(({ engines }) => engines.flatMap(({ targets }) => Object.values(targets).flatMap((at) => Object.keys(at.ratios)))))]
  const ratios = ours.flatMap((name) => ['', '_min', '_max'].map((end) => `times_${name}${end}`))
  const head = ['set', 'rows', 'engine', 'version', 'target', 'ef', 'cpu_us', 'cpu_us_min', 'cpu_us_max', ...ratios, 'ceiling', 'build_cpu_s', 'error']
  const three = (seen) => [seen?.median, seen?.min, seen?.max]
  const lines = sets.flatMap(({ name, rows, engines }) =>
    engines.flatMap((engine) =>
      targets.map((target) => {
        const at = engine.targets[target]
        return [
          name, rows, engine.name, engine.about?.version, target, at?.ef, ...three(at?.cpu_us), ...ours.flatMap((one) => three(at?.ratios[one])),
          engine.ceiling, engine.build_cpu_s, engine.error && JSON.stringify(engine.error),
        ]
      }),
    ),
  )
  return [head, ...lines].map((cells) => `${cells.map((cell) => cell ?? '').join(',')}\n`).join('')
}
