// The second half of `npm run demo`: opens the plane that demo.mjs built, in a process that has never seen it.
import process from 'node:process'
import { fixtures, rowOf } from '../fixtures/load.mjs'
import { countRight } from '../fixtures/recall.mjs'
import { Plane } from '../index.mjs'
import { answer, count, fact, heading, milliseconds, percentile, table } from './layout.mjs'

const ENTRIES = ['numpy', 'openpyxl', 'black']
const QUESTIONS = ['plotly', 'memory-profiler', 'html-for-docx', 'ocifs']
const NEIGHBOURS_SHOWN = 4
const ROUNDS = 20

const set = fixtures().load('minilm')
const textOf = new Map(set.keys.map((key, row) => [key, set.texts[row]]))
const rowOfKey = new Map(set.keys.map((key, row) => [key, row]))

const started = performance.now()
const plane = Plane.open(process.argv[2], { readOnly: true })
const opened = performance.now()
plane.searchSync(rowOf(set.queries, 0), { k: 10 })
const answered = performance.now()

heading('Opening the file in a fresh process')
fact('open', milliseconds(opened - started), `${count(plane.count)} records, nothing read or rebuilt`)
fact('first answer', milliseconds(answered - opened), 'the pages it touches are mapped on the way')

heading('Neighbours of entries (cosine distance, smaller is nearer)')
for (const key of ENTRIES) {
  const hits = plane.searchSync(rowOf(set.base, rowOfKey.get(key)), { k: NEIGHBOURS_SHOWN + 1 })
  const others = named(hits).filter((hit) => hit.key !== key)
  answer({ key, text: textOf.get(key) }, others.slice(0, NEIGHBOURS_SHOWN))
}

heading('Neighbours of texts the plane has never seen')
for (const key of QUESTIONS) {
  const query = set.queryKeys.indexOf(key)
  const hits = await plane.search(rowOf(set.queries, query), { k: NEIGHBOURS_SHOWN })
  answer({ key, text: set.queryTexts[query] }, named(hits))
}

heading(`Recall and speed over the ${set.queries.rows} held-out texts, against an exact scan`)
table(
  ['ef', 'recall@10', 'searches/s', 'p50', 'p99'],
  [32, 64, 128].map((ef) => measure(ef)),
)
await measureAsync()
await plane.close()

function named(hits) {
  return Array.from(hits, ({ key, distance }) => ({ key: key.toString(), text: textOf.get(key.toString()), distance }))
}

/** One row of the table: one thread, one search after the other. */
function measure(ef) {
  let right = 0
  const times = []
  for (let round = 0; round < ROUNDS; round++) {
    for (let query = 0; query < set.queries.rows; query++) {
      const from = performance.now()
      const hits = plane.searchSync(rowOf(set.queries, query), { k: 10, ef })
      times.push(performance.now() - from)
      if (round === 0) right += countRight(set, query, Array.from(hits, (hit) => rowOfKey.get(hit.key.toString())))
    }
  }
  const seconds = times.reduce((sum, ms) => sum + ms, 0) / 1000
  return [
    String(ef),
    (right / (set.queries.rows * 10)).toFixed(3),
    count(times.length / seconds),
    `${(percentile(times, 0.5) * 1000).toFixed(0)} µs`,
    `${(percentile(times, 0.99) * 1000).toFixed(0)} µs`,
  ]
}

/** The promise form, all queries in flight at once: what a server would do. */
async function measureAsync() {
  const from = performance.now()
  for (let round = 0; round < ROUNDS; round++) {
    const all = Array.from({ length: set.queries.rows }, (_, query) => plane.search(rowOf(set.queries, query), { k: 10 }))
    await Promise.all(all)
  }
  const rate = (ROUNDS * set.queries.rows * 1000) / (performance.now() - from)
  console.log()
  fact('off the event loop', `${count(rate)} a second`, `${set.queries.rows} promises at a time, default ef`)
}
