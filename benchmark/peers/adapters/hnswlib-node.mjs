// hnswlib-node takes and gives plain arrays of numbers.
import { createRequire } from 'node:module'
import { rowOf } from '../../../fixtures/load.mjs'
import { EF_CONSTRUCTION, K, M } from '../engines.mjs'

export async function open({ set, packageName }) {
  const { HierarchicalNSW } = createRequire(import.meta.url)(packageName)
  const { dims, base } = set
  const index = new HierarchicalNSW('cosine', dims)
  index.initIndex(base.rows, M, EF_CONSTRUCTION, 100)
  for (let row = 0; row < base.rows; row++) index.addPoint(Array.from(rowOf(base, row)), row)
  return {
    prepare: (vector) => Array.from(vector),
    search: (ef) => {
      index.setEf(ef)
      return (query) => index.searchKnn(query, K)
    },
    rows: ({ neighbors }) => neighbors,
    close: () => {},
  }
}
