// What the standalone benchmark runs, from flags or from the environment: `--rounds 1` or `BENCH_ROUNDS=1`.
import process from 'node:process'
import { parseArgs } from 'node:util'
import { rowsAtHand } from './data.mjs'

export const K = 10
export const SEARCHERS = 6

const DEFAULTS = {
  set: 'sift',
  sizes: '', // rows:queries, rows:queries, ...
  precisions: 'int8,int16',
  variants: 'cap64,default',
  efs: '40,80,160,320',
  modes: 'sync,awaited,awaited6',
  rounds: '3',
  searches: '10000',
  chunk: '10000',
  threads: '', // of insertBatch; empty leaves the engine's default
}

/** `{ out, ...options }` with numbers and lists in place of text. */
export function readOptions(argv) {
  const { values, positionals } = parseArgs({
    args: argv,
    allowPositionals: true,
    options: Object.fromEntries(
      Object.entries(DEFAULTS).map(([name, value]) => [
        name,
        { type: 'string', default: process.env[`BENCH_${name.toUpperCase()}`] ?? value },
      ]),
    ),
  })
  if (positionals.length > 1) throw new Error(`one output directory at most, not ${positionals.join(', ')}`)
  return {
    out: positionals[0],
    set: values.set,
    sizes: values.sizes ? list(values.sizes).map(size) : sizesAtHand(values.set),
    precisions: list(values.precisions),
    variants: oneOf(list(values.variants), ['cap64', 'cap32', 'default'], 'variants'),
    efs: list(values.efs).map(whole),
    modes: oneOf(list(values.modes), ['sync', 'awaited', 'awaited6'], 'modes'),
    rounds: whole(values.rounds),
    searches: whole(values.searches),
    chunk: whole(values.chunk),
    threads: values.threads === '' ? undefined : whole(values.threads),
  }
}

/** 20,000 and 200,000 rows where the data sets have them, else all that ship with the project. */
function sizesAtHand(set) {
  const rows = rowsAtHand(set)
  if (rows < 20000) return [{ rows, queries: set === 'minilm' ? 100 : 200 }]
  const small = { rows: 20000, queries: 200 }
  return rows < 100000 ? [small] : [small, { rows: Math.min(rows, 200000), queries: 500 }]
}

function size(text) {
  const [rows, queries = '200'] = text.split(':')
  return { rows: whole(rows), queries: whole(queries) }
}

function list(text) {
  return text.split(',').map((part) => part.trim()).filter(Boolean)
}

function whole(text) {
  const number = Number(text)
  if (!Number.isSafeInteger(number) || number < 1) throw new RangeError(`${text} is not a whole number from 1`)
  return number
}

function oneOf(given, known, what) {
  for (const name of given) {
    if (!known.includes(name)) throw new RangeError(`${what}: ${name} is none of ${known.join(', ')}`)
  }
  return given
}
