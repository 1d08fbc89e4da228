// This project, or the package that HNSW_PACKAGE_ROOT names, through its options form.
import path from 'node:path'
import { loadEngine } from '../../lib/engine.mjs'
import { commitOf, sha256OfFile } from '../../lib/measure.mjs'
import { EF_CONSTRUCTION, K, M } from '../engines.mjs'

export async function open({ set, folder, options = {} }) {
  const engine = loadEngine()
  const { dims, base } = set
  const plane = engine.Plane.create(path.join(folder, 'plane.hnsw'), { dims, M, efConstruction: EF_CONSTRUCTION, ...options })
  const rowOfId = new Map()
  const { ids, rejected } = await plane.insertBatch(base.data, { threads: 1 })
  if (rejected.length > 0) throw new Error(`row ${rejected[0].index} was rejected: ${rejected[0].reason}`)
  ids.forEach((id, row) => rowOfId.set(id, row))
  return {
    about: {
      version: engine.version,
      commit: commitOf(engine.root),
      binary_sha256: sha256OfFile(engine.binary),
      kernels: plane.stats().kernels,
    },
    prepare: (vector) => vector,
    search: (ef) => (query) => plane.searchSync(query, K, ef),
    searchAsync: (ef) => (query) => plane.search(query, K, ef),
    rows: ({ ids }) => Array.from(ids, (id) => rowOfId.get(id)),
    close: () => plane.close(),
  }
}
