// npm run demo: index 5,000 real text embeddings, flush, reopen the file in a fresh process and ask it questions.
//
// The vectors are sentence embeddings of package summaries; see fixtures/README.md. This process builds the plane;
// `demo-search.mjs`, started as a process of its own, opens and searches it.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { fixtures } from '../fixtures/load.mjs'
import { Plane } from '../index.mjs'
import { count, fact, heading, megabytes, milliseconds, progressBar } from './layout.mjs'

const SEARCHER = path.join(path.dirname(fileURLToPath(import.meta.url)), 'demo-search.mjs')

const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-demo-'))
try {
  const file = path.join(folder, 'packages.hnsw')
  await build(file)
  const { status, signal } = spawnSync(process.execPath, [SEARCHER, file], { stdio: 'inherit' })
  if (status !== 0) console.error(`the searching process ended with ${signal ?? `exit code ${status}`}`)
  process.exitCode = status ?? 1
} finally {
  fs.rmSync(folder, { recursive: true })
}

async function build(file) {
  const { base, keys, dims } = fixtures().load('minilm')
  heading(`Indexing ${count(base.rows)} summaries of Python packages, as embeddings of ${dims} dimensions`)
  const plane = Plane.create(file, { dims, metric: 'cosine', keyCap: 64 })

  const started = performance.now()
  const cpu = process.cpuUsage()
  const { rejected } = await plane.insertBatch(base.data, { ...packKeys(keys), onProgress: progressBar('insertBatch') })
  if (rejected.length > 0) throw new Error(`row ${rejected[0].index} was rejected: ${rejected[0].reason}`)
  const took = performance.now() - started
  const { user, system } = process.cpuUsage(cpu)

  const flushing = performance.now()
  await plane.flushAsync()
  const flushed = performance.now() - flushing
  await plane.close()

  const bytes = fs.statSync(file).size
  const raw = base.data.byteLength
  fact('insert rate', `${count((base.rows / took) * 1000)} a second`, `on ${os.availableParallelism()} threads`)
  fact('insert cost', `${count((user + system) / base.rows)} µs`, 'of processor time each')
  fact('flush', milliseconds(flushed), 'all of it is on disk now')
  fact('file size', megabytes(bytes), `${(bytes / raw).toFixed(2)} x the ${megabytes(raw)} of float32 vectors it indexes`)
}

/** Keys one after the other, with the offset at which each ends: what `insertBatch` takes. */
function packKeys(keys) {
  const buffers = keys.map((key) => Buffer.from(key))
  let end = 0
  return { keys: Buffer.concat(buffers), keyEnds: Uint32Array.from(buffers, (buffer) => (end += buffer.length)) }
}
