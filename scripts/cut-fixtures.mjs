// Cuts fixtures/ from the full data sets and computes the exact neighbours.
//
//     node scripts/cut-fixtures.mjs [data-dir]        (or VECTOR_DATA_DIR=data-dir)
//
// The same input gives the same files. fixtures/minilm/keys.txt and query_keys.txt say which texts are taken, so they
// are read and not written.
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { gunzipSync, gzipSync } from 'node:zlib'
import { readBvecs, readF16, rowOf } from '../fixtures/load.mjs'

const OUT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..', 'fixtures')
const NEIGHBOURS = 100
const SIFT_ROWS = 10_000
const SIFT_QUERIES = 200

const from = process.argv[2] ?? process.env.VECTOR_DATA_DIR
if (!from) {
  console.error('usage: node scripts/cut-fixtures.mjs <data-dir>')
  process.exit(2)
}
cutSift(path.join(from, 'sift'), path.join(OUT, 'sift'))
cutMinilm(path.join(from, 'minilm'), path.join(OUT, 'minilm'))

function cutSift(source, out) {
  const about = readJson(path.join(source, 'sift.json'))
  const rowBytes = 4 + about.dims
  copyStart(path.join(source, about.files[0]), path.join(out, 'sift_base.bvecs'), SIFT_ROWS * rowBytes)
  copyStart(path.join(source, about.query_file), path.join(out, 'sift_query.bvecs'), SIFT_QUERIES * rowBytes)
  const base = readBvecs(path.join(out, 'sift_base.bvecs'))
  const queries = readBvecs(path.join(out, 'sift_query.bvecs'))
  const truth = writeTruth(out, base, nearest(base, queries, compareIntegerCosine))
  writeJson(path.join(out, 'sift.json'), {
    files: ['sift_base.bvecs'],
    rows: base.rows,
    dims: base.dims,
    dtype: 'uint8',
    query_file: 'sift_query.bvecs',
    query_rows: queries.rows,
    ...truth,
  })
}

function cutMinilm(source, out) {
  const about = readJson(path.join(source, 'minilm.json'))
  const rowBytes = about.dims * 2
  const parts = about.files.map((file) => fs.readFileSync(path.join(source, file)))
  const texts = gunzipSync(fs.readFileSync(path.join(source, 'texts.tsv.gz'))).toString('utf8').trimEnd().split('\n')
  const pick = (wanted, all, bytes, lines, file) => {
    const rowOfKey = new Map(all.map((key, row) => [key, row]))
    const rows = wanted.map((key) => rowOfKey.get(key) ?? fail(`${key} is not in the full set`))
    const row = (i) => bytes.subarray(i * rowBytes, (i + 1) * rowBytes)
    fs.writeFileSync(path.join(out, file), Buffer.concat(rows.map(row)))
    return rows.map((i) => lines[i])
  }
  const wanted = readLines(path.join(out, 'keys.txt'))
  const wantedQueries = readLines(path.join(out, 'query_keys.txt'))
  const keys = readLines(path.join(source, 'keys.txt'))
  const queryKeys = readLines(path.join(source, 'query_keys.txt'))
  const queryBytes = fs.readFileSync(path.join(source, about.query_file))
  const picked = [
    ...pick(wanted, keys, Buffer.concat(parts), texts, 'minilm_base.f16'),
    ...pick(wantedQueries, queryKeys, queryBytes, texts.slice(about.rows), 'minilm_query.f16'),
  ]
  fs.writeFileSync(path.join(out, 'texts.tsv.gz'), gzipSync(picked.join('\n') + '\n', { level: 9 }))
  const base = readF16(path.join(out, 'minilm_base.f16'), about.dims)
  const queries = readF16(path.join(out, 'minilm_query.f16'), about.dims)
  const truth = writeTruth(out, base, nearest(base, queries, (a, b) => b.cosine - a.cosine))
  writeJson(path.join(out, 'minilm.json'), {
    files: ['minilm_base.f16'],
    rows: base.rows,
    dims: base.dims,
    dtype: 'float16',
    query_file: 'minilm_query.f16',
    query_rows: queries.rows,
    keys: 'keys.txt',
    query_keys: 'query_keys.txt',
    ...truth,
  })
}

/** For each query its nearest rows in float64, nearest first, equal ones by row number. */
function nearest(base, queries, compare) {
  const squares = Array.from({ length: base.rows }, (_, row) => dot(rowOf(base, row), rowOf(base, row)))
  return Array.from({ length: queries.rows }, (_, q) => {
    const query = rowOf(queries, q)
    const square = dot(query, query)
    const scored = squares.map((rowSquare, row) => {
      const product = dot(query, rowOf(base, row))
      return { row, product, square: rowSquare, cosine: product / Math.sqrt(square * rowSquare) }
    })
    return scored.sort((a, b) => compare(a, b) || a.row - b.row).slice(0, NEIGHBOURS)
  })
}

/** Orders by cosine; where float64 could not tell rows apart, by exact integers (components are 0 to 255). */
function compareIntegerCosine(a, b) {
  if (Math.abs(a.cosine - b.cosine) > 1e-12) return b.cosine - a.cosine
  const left = BigInt(a.product) ** 2n * BigInt(b.square)
  const right = BigInt(b.product) ** 2n * BigInt(a.square)
  return left === right ? 0 : left > right ? -1 : 1
}

function dot(a, b) {
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i]
  return sum
}

/** Writes the neighbours and their distances; returns what the JSON says of them. */
function writeTruth(out, base, answers) {
  const name = `gt_${base.rows}_cosine`
  const rows = answers.map((hits) => Int32Array.from(hits, (hit) => hit.row))
  const distances = answers.map((hits) => Float32Array.from(hits, (hit) => 1 - hit.cosine))
  writeVecs(path.join(out, `${name}.ivecs`), rows)
  writeVecs(path.join(out, `${name}.fvecs`), distances)
  const ties = (rank) => distances.filter((d) => d[rank - 1] === d[rank]).length
  const mean = (rank) => distances.reduce((sum, d) => sum + d[rank - 1], 0) / distances.length
  return {
    [name]: {
      rows: base.rows,
      queries: answers.length,
      k: NEIGHBOURS,
      float32_equal_at_rank_10: ties(10),
      mean_distance_rank_1: mean(1),
      mean_distance_rank_10: mean(10),
      mean_distance_rank_100: mean(100),
    },
  }
}

/** TEXMEX layout: every row is an int32 with the dimension, then the values. */
function writeVecs(file, rows) {
  const parts = rows.flatMap((row) => [Int32Array.of(row.length), row])
  fs.writeFileSync(file, Buffer.concat(parts.map((part) => Buffer.from(part.buffer))))
}

function copyStart(source, out, bytes) {
  fs.writeFileSync(out, fs.readFileSync(source).subarray(0, bytes))
}

function readJson(file) {
  return JSON.parse(fs.readFileSync(file, 'utf8'))
}

function writeJson(file, value) {
  fs.writeFileSync(file, JSON.stringify(value, null, 2) + '\n')
}

function readLines(file) {
  return fs.readFileSync(file, 'utf8').trimEnd().split('\n')
}

function fail(message) {
  throw new Error(message)
}
