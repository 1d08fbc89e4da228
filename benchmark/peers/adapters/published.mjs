// The package that the positional form of the API comes from. 32 links on layer 0, as M = 16 gives everywhere else.
import { createRequire } from 'node:module'
import path from 'node:path'
import { K, M } from '../engines.mjs'

const { Plane } = createRequire(import.meta.url)('@harperfast/hnsw-linux-x64-glibc')

export async function open({ set, folder, options: { precision, layer0Cap = 2 * M } }) {
  const { dims, base } = set
  const plane = Plane.create(path.join(folder, 'plane.hnsw'), dims, layer0Cap, base.rows, 0, undefined, precision)
  const rowOfId = new Map()
  const { ids, rejected } = await plane.insertBatch(base.data, undefined, undefined, 1)
  if (rejected.length > 0) throw new Error(`row ${rejected[0].index} was rejected`)
  ids.forEach((id, row) => rowOfId.set(id, row))
  return {
    prepare: (vector) => vector,
    search: (ef) => (query) => plane.searchSync(query, K, ef),
    searchAsync: (ef) => (query) => plane.search(query, K, ef),
    rows: ({ ids }) => Array.from(ids, (id) => rowOfId.get(id)),
    close: () => {},
  }
}
