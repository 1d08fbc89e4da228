// This project, or the package that HNSW_PACKAGE_ROOT names, through its options form.
import path from 'node:path'
import { loadEngine } from '../../lib/engine.mjs'
import { rowOf } from '../../../fixtures/load.mjs'
import { commitOf, sha256OfFile, timed } from '../../lib/measure.mjs'
import { EF_CONSTRUCTION, K, M } from '../engines.mjs'

/** Fewer records cannot be calibrated. */
const CALIBRATED_MIN = 1000
/** What is asked for in place of an ef. */
const RECALLS = [0.85, 0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.993, 0.995, 0.997, 0.998, 0.9985, 0.999, 0.9993, 0.9996, 0.9998]

export async function open({ set, folder, options: { asksForRecall, compacts, ...options } = {} }) {
  const engine = loadEngine()
  const { dims, base } = set
  const calibrated = asksForRecall && base.rows >= CALIBRATED_MIN
  const plane = engine.Plane.create(path.join(folder, 'plane.hnsw'), { dims, M, efConstruction: EF_CONSTRUCTION, ...options })
  const rowOfId = new Map()
  const { ids, rejected } = await plane.insertBatch(base.data, { threads: 1 })
  if (rejected.length > 0) throw new Error(`row ${rejected[0].index} was rejected: ${rejected[0].reason}`)
  const compacting = compacts && (await timed(() => plane.compact({ renumber: true, relink: true, threads: 1 })))
  const idNow = (id) => compacting?.result.newIds[id] ?? id
  ids.forEach((id, row) => rowOfId.set(idNow(id), row))
  const calibrating = calibrated && (await timed(() => plane.calibrate({ k: K, threads: 1 })))
  const searchOptions = (effort) => (calibrated ? { k: K, recall: effort } : { k: K, ef: effort })
  return {
    about: {
      version: engine.version,
      commit: commitOf(engine.root),
      binary_sha256: sha256OfFile(engine.binary),
      kernels: plane.stats().kernels,
      calibrate_cpu_s: calibrating?.cpu_s,
      compact_cpu_s: compacting?.cpu_s,
    },
    efforts: calibrated && RECALLS.filter((recall) => isReached(plane, set, recall)),
    prepare: (vector) => vector,
    search(effort) {
      const options = searchOptions(effort)
      return (query) => plane.searchSync(query, options)
    },
    searchAsync(effort) {
      const options = searchOptions(effort)
      return (query) => plane.search(query, options)
    },
    rows: ({ ids }) => Array.from(ids, (id) => rowOfId.get(id)),
    close: () => plane.close(),
  }
}

function isReached(plane, set, recall) {
  try {
    plane.searchSync(rowOf(set.queries, 0), { k: K, recall })
    return true
  } catch (error) {
    if (error.code === 'PLANE_RECALL_UNREACHABLE') return false
    throw error
  }
}
