// Data sets for the benchmarks, each with exact neighbours: read where they are known, else computed once and kept.
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { fixtures, loadShared, readBvecs, readFvecs, readIvecs } from '../../fixtures/load.mjs'
import { exactNeighbours } from '../truth.mjs'

const BENCHMARK = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const TRUTH_K = 100

/**
 * The first `rows` rows and `queries` queries of a set, with exact cosine neighbours and the SHA-256 of everything.
 *
 * Looked for in turn: `<set>_base.fvecs` or `.bvecs` with `<set>_query.*` in `VECTOR_DATA_DIR`; the folder `<set>` there or
 * in the shared data; the vectors that ship with the project. The first place that has enough rows is taken.
 */
export function loadSet(name, rows, queries) {
  const set = fromVecs(name, rows, queries) ?? fromFolders(name, rows, queries)
  if (!set) throw new Error(`no set ${name} with ${rows} rows is at hand: see VECTOR_DATA_DIR in docs/benchmarks.md`)
  const digests = { base: sha256(set.base.data), queries: sha256(set.queries.data) }
  const known = set.neighbours?.rows >= set.queries.rows
  const truth = known ? { neighbours: set.neighbours, distances: set.distances, file: null } : cachedTruth(set, digests)
  digests.neighbours = sha256(truth.neighbours.data)
  return { ...set, ...truth, digests }
}

/** The most rows that any place has for a set. */
export function rowsAtHand(name) {
  const file = vecsFile(name, 'base')
  const sets = [loadShared(), fixtures()].filter((data) => data?.names.includes(name))
  const counts = sets.map((data) => JSON.parse(fs.readFileSync(path.join(data.dir, name, `${name}.json`), 'utf8')).rows)
  return Math.max(0, ...counts, file ? rowsOfVecs(file) : 0)
}

/** Seeded normal deviates in place of a set, for workloads defined by their size alone. */
export function syntheticSet(rows, queries, dims, seed = 1) {
  const random = mulberry32(seed)
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random())
  const matrix = (count) => ({ data: Float32Array.from({ length: count * dims }, normal), rows: count, dims })
  const set = { name: `normal-${dims}`, dims, base: matrix(rows), queries: matrix(queries) }
  return { ...set, ...exactNeighbours(set, Math.min(rows, TRUTH_K)) }
}

function fromVecs(name, rows, queries) {
  const [base, query] = [vecsFile(name, 'base'), vecsFile(name, 'query')]
  if (!base || !query || rowsOfVecs(base) < rows) return null
  const read = (file, max) => (file.endsWith('.bvecs') ? readBvecs(file, max) : readFvecs(file, max))
  const matrix = read(base, rows)
  return { name, dims: matrix.dims, base: matrix, queries: read(query, queries), neighbours: null, distances: null }
}

function fromFolders(name, rows, queries) {
  for (const data of [fixtures(), loadShared()]) {
    if (!data?.names.includes(name)) continue
    const set = data.load(name, { rows, queries })
    // Both have the same rows in the same order, but the larger set has more queries.
    if (set.base.rows === rows && set.queries.rows === queries) return set
  }
  return null
}

function vecsFile(name, part) {
  const folder = process.env.VECTOR_DATA_DIR
  if (!folder) return null
  const files = ['fvecs', 'bvecs'].map((ending) => path.join(folder, `${name}_${part}.${ending}`))
  return files.find((file) => fs.existsSync(file)) ?? null
}

function rowsOfVecs(file) {
  const { dims } = (file.endsWith('.bvecs') ? readBvecs : readFvecs)(file, 1)
  return fs.statSync(file).size / (4 + dims * (file.endsWith('.bvecs') ? 1 : 4))
}

/** The name holds a digest of what was compared, so other data never meets an old answer. */
function cachedTruth(set, digests) {
  const folder = process.env.BENCH_TRUTH_DIR ?? path.join(BENCHMARK, 'results', 'truth')
  const digest = sha256(Buffer.from(digests.base + digests.queries)).slice(0, 12)
  const stem = path.join(folder, `${set.name}_${set.base.rows}_${set.queries.rows}_${digest}`)
  if (!fs.existsSync(`${stem}.ivecs`)) {
    const { neighbours, distances } = exactNeighbours(set, Math.min(TRUTH_K, set.base.rows))
    fs.mkdirSync(folder, { recursive: true })
    writeVecs(`${stem}.fvecs`, distances)
    writeVecs(`${stem}.ivecs`, neighbours)
  }
  return { neighbours: readIvecs(`${stem}.ivecs`), distances: readFvecs(`${stem}.fvecs`), file: path.basename(stem) }
}

/** Written under another name first: a file that is there is whole. */
function writeVecs(file, { data, rows, dims }) {
  const bytes = Buffer.alloc(rows * (4 + dims * 4))
  for (let row = 0; row < rows; row++) {
    const at = row * (4 + dims * 4)
    bytes.writeInt32LE(dims, at)
    Buffer.from(data.buffer, data.byteOffset + row * dims * 4, dims * 4).copy(bytes, at + 4)
  }
  const part = `${file}.${process.pid}`
  fs.writeFileSync(part, bytes)
  fs.renameSync(part, file)
}

function sha256(view) {
  return createHash('sha256').update(Buffer.from(view.buffer, view.byteOffset, view.byteLength)).digest('hex')
}

function mulberry32(state) {
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

