import { createRequire } from 'node:module'
import path from 'node:path'
import { rowOf } from '../../../fixtures/load.mjs'
import { EF_CONSTRUCTION, K, M } from '../engines.mjs'

const zvec = createRequire(import.meta.url)('@zvec/zvec')
const CHUNK = 1000

export async function open({ set, folder }) {
  const { dims, base } = set
  zvec.ZVecInitialize({ logLevel: zvec.ZVecLogLevel.ERROR, queryThreads: 1, optimizeThreads: 1 })
  const indexType = zvec.ZVecIndexType.HNSW
  const schema = new zvec.ZVecCollectionSchema({
    name: 'bench',
    vectors: {
      name: 'vector',
      dataType: zvec.ZVecDataType.VECTOR_FP32,
      dimension: dims,
      indexParams: { indexType, metricType: zvec.ZVecMetricType.COSINE, m: M, efConstruction: EF_CONSTRUCTION },
    },
  })
  const collection = zvec.ZVecCreateAndOpen(path.join(folder, 'collection'), schema)
  for (let row = 0; row < base.rows; row += CHUNK) {
    const docs = []
    for (let i = row; i < Math.min(row + CHUNK, base.rows); i++) docs.push({ id: String(i), vectors: { vector: rowOf(base, i) } })
    const refused = collection.insertSync(docs).find((status) => !status.ok)
    if (refused) throw new Error(`a document was refused: ${JSON.stringify(refused)}`)
  }
  // Until then, new rows are compared one by one.
  collection.optimizeSync({ concurrency: 1 })
  const asked = (vector, ef) => ({ fieldName: 'vector', topk: K, vector, outputFields: [], params: { indexType, ef } })
  return {
    prepare: (vector) => vector,
    search: (ef) => (query) => collection.querySync(asked(query, ef)),
    searchAsync: (ef) => (query) => collection.query(asked(query, ef)),
    rows: (answer) => answer.map(({ id }) => Number(id)),
    close: () => collection.closeSync(),
  }
}
