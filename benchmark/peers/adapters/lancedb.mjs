// One partition, so that the graph and not the partitioning decides what is found.
import { createRequire } from 'node:module'
import path from 'node:path'
import { EF_CONSTRUCTION, K, M } from '../engines.mjs'

const require = createRequire(import.meta.url)
const lancedb = require('@lancedb/lancedb')
const { Field, FixedSizeList, Float32, Int32, makeData, makeVector, Table } = require('apache-arrow')

export async function open({ set, folder, options = {} }) {
  const { dims, base } = set
  const type = new FixedSizeList(dims, new Field('item', new Float32(), true))
  const values = makeData({ type: new Float32(), data: base.data })
  const vectors = makeVector(makeData({ type, length: base.rows, nullCount: 0, child: values }))
  const rows = makeVector(makeData({ type: new Int32(), data: Int32Array.from({ length: base.rows }, (_, row) => row) }))
  const db = await lancedb.connect(path.join(folder, 'lance'))
  const table = await db.createTable('vectors', new Table({ row: rows, vector: vectors }))
  const config = lancedb.Index.hnswSq({ distanceType: 'cosine', numPartitions: 1, m: M, efConstruction: EF_CONSTRUCTION })
  await table.createIndex('vector', { config })
  return {
    prepare: (vector) => vector,
    search: (ef) => (query) => {
      const asked = table.query().nearestTo(query).distanceType('cosine').nprobes(1).ef(ef).limit(K).select(['row', '_distance'])
      return (options.refineFactor ? asked.refineFactor(options.refineFactor) : asked).toArray()
    },
    rows: (answer) => answer.map(({ row }) => row),
    close: () => db.close(),
  }
}
