import { createRequire } from 'node:module'
import { rowOf } from '../../../fixtures/load.mjs'
import { K } from '../engines.mjs'

const require = createRequire(import.meta.url)

export async function open({ set }) {
  const { dims, base } = set
  const db = new (require('better-sqlite3'))(':memory:')
  require('sqlite-vec').load(db)
  db.exec(`create virtual table vectors using vec0(vector float[${dims}] distance_metric=cosine)`)
  const insert = db.prepare('insert into vectors (rowid, vector) values (?, ?)')
  db.transaction(() => {
    for (let row = 0; row < base.rows; row++) insert.run(BigInt(row), rowOf(base, row))
  })()
  const select = db.prepare(`select rowid, distance from vectors where vector match ? and k = ${K}`).raw()
  return {
    prepare: (vector) => vector,
    search: () => (query) => select.all(query),
    rows: (answer) => answer.map(([row]) => row),
    close: () => db.close(),
  }
}
