// Exact cosine neighbours for a number of rows that the data sets have none for.
import { rowOf } from '../fixtures/load.mjs'

/** `{ neighbours, distances }` of every query in float64, nearest first, equal distances by row number. */
export function exactNeighbours({ base, queries }, k) {
  const norms = Float64Array.from({ length: base.rows }, (_, row) => Math.sqrt(dot(rowOf(base, row), rowOf(base, row))))
  const neighbours = { data: new Int32Array(queries.rows * k), rows: queries.rows, dims: k }
  const distances = { data: new Float32Array(queries.rows * k), rows: queries.rows, dims: k }
  const nearest = new Float64Array(k)
  for (let q = 0; q < queries.rows; q++) {
    const query = rowOf(queries, q)
    const norm = Math.sqrt(dot(query, query))
    const rows = neighbours.data.subarray(q * k, (q + 1) * k)
    nearest.fill(Infinity)
    for (let row = 0; row < base.rows; row++) {
      const distance = 1 - dotAt(query, base.data, row * base.dims) / (norm * norms[row])
      // Rows come in ascending order, so an equal distance stays behind those already there.
      if (!(distance < nearest[k - 1])) continue
      let at = k - 1
      for (; at > 0 && distance < nearest[at - 1]; at--) {
        nearest[at] = nearest[at - 1]
        rows[at] = rows[at - 1]
      }
      nearest[at] = distance
      rows[at] = row
    }
    distances.data.set(nearest, q * k)
  }
  return { neighbours, distances }
}

function dot(a, b) {
  return dotAt(a, b, 0)
}

function dotAt(a, b, offset) {
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += a[i] * b[offset + i]
  return sum
}
