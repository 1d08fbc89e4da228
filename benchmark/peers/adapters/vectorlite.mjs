import { createRequire } from 'node:module'
import { rowOf } from '../../../fixtures/load.mjs'
import { EF_CONSTRUCTION, K, M } from '../engines.mjs'

const require = createRequire(import.meta.url)

export async function open({ set }) {
  const { dims, base } = set
  const db = new (require('better-sqlite3'))(':memory:')
  db.loadExtension(require('vectorlite').vectorlitePath())
  db.exec(
    `create virtual table vectors using vectorlite(vector float32[${dims}] cosine, ` +
      `hnsw(max_elements=${base.rows}, M=${M}, ef_construction=${EF_CONSTRUCTION}))`,
  )
  const insert = db.prepare('insert into vectors (rowid, vector) values (?, ?)')
  db.transaction(() => {
    for (let row = 0; row < base.rows; row++) insert.run(row, bytes(rowOf(base, row)))
  })()
  return {
    prepare: bytes,
    search: (ef) => {
      const select = db.prepare(`select rowid, distance from vectors where knn_search(vector, knn_param(?, ${K}, ${ef}))`).raw()
      return (query) => select.all(query)
    },
    rows: (answer) => answer.map(([row]) => row),
    close: () => db.close(),
  }
}

function bytes({ buffer, byteOffset, byteLength }) {
  return Buffer.from(buffer, byteOffset, byteLength)
}
