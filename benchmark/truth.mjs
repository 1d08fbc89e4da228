// Exact cosine neighbours for a number of rows that the data sets have none for.
import { rowOf } from '../fixtures/load.mjs'

/** `{ neighbours, distances }` of every query in float64, nearest first, equal distances by row number. */
export function exactNeighbours({ base, queries }, k) {
  const norms = Float64Array.from({ length: base.rows }, (_, row) => Math.sqrt(dot(rowOf(base, row), rowOf(base, row))))
  const neighbours = { data: new Int32Array(queries.rows * k), rows: queries.rows, dims: k }
  const distances = { data: new Float32Array(queries.rows * k), rows: queries.rows, dims: k }
  const scored = new Float64Array(base.rows)
  const order = new Int32Array(base.rows)
  for (let q = 0; q < queries.rows; q++) {
    const query = rowOf(queries, q)
    const norm = Math.sqrt(dot(query, query))
    for (let row = 0; row < base.rows; row++) {
      scored[row] = 1 - dot(query, rowOf(base, row)) / (norm * norms[row])
      order[row] = row
    }
    order.sort((a, b) => scored[a] - scored[b] || a - b)
    neighbours.data.set(order.subarray(0, k), q * k)
    distances.data.set(Float32Array.from(order.subarray(0, k), (row) => scored[row]), q * k)
  }
  return { neighbours, distances }
}

function dot(a, b) {
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i]
  return sum
}
