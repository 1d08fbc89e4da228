// Lookups by key on a large plane, and the first one after opening it in a fresh process.
//
//     npm run bench:keys -- [keys] [--json]
//
// Bounds: `idOf` takes at most 2 µs more than a native call that does nothing, and the first keyed call after opening
// is answered within 20 ms. The process ends with code 1 when an answer is wrong or a bound is missed.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { Plane } from '../index.mjs'

const DIMS = 8
const CHUNK = 50_000
/** Calls that are timed together, so that the clock does not weigh on them. */
const CALLS = 200
const ROUNDS = 500
const OPENS = 9
const LOOKUP_BOUND_US = 2
const OPEN_BOUND_MS = 20

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { json: { type: 'boolean', default: false }, open: { type: 'string' } },
})

if (options.open) await openAndLook(options.open, positionals)
else await main(Number(positionals[0] ?? 1_000_000))

async function main(count) {
  if (!(Number.isSafeInteger(count) && count >= CALLS)) throw new RangeError(`keys must be a whole number from ${CALLS}`)
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-keys-'))
  try {
    const file = path.join(folder, 'keys.hnsw')
    const built = await build(file, count)
    const lookups = measureLookups(built.plane, built.ids)
    const stats = built.plane.stats()
    await built.plane.close()
    const opens = measureOpens(file, built.ids)
    report({ count, build_s: built.seconds, file_bytes: stats.fileBytes, heap_bytes: stats.heapBytes, ...lookups, opens })
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
}

function keyOf(i) {
  return `document:${i}`
}

/** A plane of `count` keys whose graph is as cheap as it gets: what is measured here does not walk it. */
async function build(file, count) {
  const plane = Plane.create(file, { dims: DIMS, rerank: 'none', M: 4, efConstruction: 16, keyCap: 24 })
  const ids = new Uint32Array(count)
  const started = performance.now()
  for (let from = 0; from < count; from += CHUNK) {
    const rows = Math.min(CHUNK, count - from)
    const vectors = Float32Array.from({ length: rows * DIMS }, () => Math.random() - 0.5)
    const encoded = Array.from({ length: rows }, (_, i) => Buffer.from(keyOf(from + i)))
    let end = 0
    const keyEnds = Uint32Array.from(encoded, (key) => (end += key.length))
    const result = await plane.insertBatch(vectors, { keys: Buffer.concat(encoded), keyEnds })
    if (result.rejected.length > 0) throw new Error(result.rejected[0].reason)
    ids.set(result.ids, from)
  }
  return { plane, ids, seconds: (performance.now() - started) / 1e3 }
}

/** Microseconds a call: the median of many rounds, the kinds of call taking turns so that a busy moment hits them all. */
function measureLookups(plane, ids) {
  const numbers = Uint32Array.from({ length: CALLS * 64 }, () => Math.floor(Math.random() * ids.length))
  const keys = Array.from(numbers, keyOf)
  const bytes = keys.map((key) => Buffer.from(key))
  const absent = keys.map((key) => `${key}?`)
  for (let i = 0; i < numbers.length; i++) {
    const right = plane.idOf(keys[i]) === ids[numbers[i]] && plane.idOf(bytes[i]) === ids[numbers[i]]
    if (!right || plane.idOf(absent[i]) !== undefined) throw new Error(`idOf is wrong for ${keys[i]}`)
  }
  const kinds = {
    empty_us: () => plane.idHighWater(),
    string_us: (i) => plane.idOf(keys[i]),
    bytes_us: (i) => plane.idOf(bytes[i]),
    absent_us: (i) => plane.idOf(absent[i]),
  }
  const times = Object.fromEntries(Object.keys(kinds).map((name) => [name, []]))
  for (let round = 0; round < ROUNDS; round++) {
    const from = (round % 64) * CALLS
    for (const [name, call] of Object.entries(kinds)) {
      const started = performance.now()
      for (let i = from; i < from + CALLS; i++) call(i)
      times[name].push(((performance.now() - started) * 1e3) / CALLS)
    }
  }
  return Object.fromEntries(Object.entries(times).map(([name, values]) => [name, median(values)]))
}

function measureOpens(file, ids) {
  return Array.from({ length: OPENS }, () => {
    const i = Math.floor(Math.random() * ids.length)
    const script = fileURLToPath(import.meta.url)
    const child = spawnSync(process.execPath, [script, '--open', file, keyOf(i), String(ids[i])], { encoding: 'utf8' })
    if (child.status !== 0) throw new Error(child.stderr)
    return JSON.parse(child.stdout)
  })
}

/** In a fresh process: opens the plane and looks one key up. */
async function openAndLook(file, [key, expected]) {
  const started = performance.now()
  const plane = Plane.open(file)
  const opened = performance.now()
  const id = plane.idOf(key)
  const found = performance.now()
  if (id !== Number(expected)) throw new Error(`${key} has id ${id}, not ${expected}`)
  console.log(JSON.stringify({ open_ms: opened - started, first_ms: found - opened }))
  await plane.close()
}

function report(result) {
  const over = result.string_us - result.empty_us
  const first = result.opens.map(({ open_ms, first_ms }) => open_ms + first_ms)
  const missed = over > LOOKUP_BOUND_US || Math.max(...first) > OPEN_BOUND_MS
  if (missed) process.exitCode = 1
  if (options.json) {
    console.log(JSON.stringify({ ...result, over_empty_us: over, missed }, null, 2))
    return
  }
  const us = (value) => `${value.toFixed(2)} µs`
  console.log(`${result.count} keys, ${DIMS} dims, built in ${result.build_s.toFixed(1)} s`)
  console.log(`file ${(result.file_bytes / 1e6).toFixed(1)} MB, heap ${(result.heap_bytes / 1e6).toFixed(1)} MB`)
  console.log(`${os.cpus()[0].model}, Node ${process.version}\n`)
  console.log(`empty call (idHighWater)   ${us(result.empty_us)}`)
  console.log(`idOf(string)               ${us(result.string_us)}   ${us(over)} over an empty call, bound ${LOOKUP_BOUND_US} µs`)
  console.log(`idOf(Buffer)               ${us(result.bytes_us)}`)
  console.log(`idOf of an absent key      ${us(result.absent_us)}\n`)
  console.log(`fresh process, ${OPENS} times: median (worst)`)
  const row = (name, values) => `${name.padEnd(26)} ${median(values).toFixed(2)} (${Math.max(...values).toFixed(2)}) ms`
  console.log(row('open', result.opens.map((each) => each.open_ms)))
  console.log(row('first idOf', result.opens.map((each) => each.first_ms)))
  console.log(`${row('open and first idOf', first)}, bound ${OPEN_BOUND_MS} ms`)
  if (missed) console.error('a bound is missed')
}

function median(values) {
  return Float64Array.from(values).sort()[values.length >> 1]
}
