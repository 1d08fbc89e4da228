// The engines that are compared. Each adapter exports `open({ set, folder, options })`, which builds an index and gives
//
//     prepare(vector)   a query in the form the engine takes fastest; not timed
//     search(ef)        a function of a prepared query that gives an answer, or a promise of one
//     efforts           what to give it in place of each ef, ascending; for engines that take something else
//     searchAsync(ef)   the same off the event loop, where the engine has a form for it beside a synchronous one
//     rows(answer)      row numbers of an answer, nearest first; not timed
//     close()
//
// `efMatters` is false for engines that compare the query with every row; `efMin` is the lowest ef an engine takes. `package` is what a user would install.

export const ENGINES = {
  vecplane: { adapter: 'vecplane', options: { asksForRecall: true }, what: 'HNSW over int8, exact rerank, asked for a recall' },
  'vecplane-ef': { adapter: 'vecplane', what: 'the same, asked with an ef' },
  'vecplane-compact': { adapter: 'vecplane', options: { asksForRecall: true, compacts: true }, what: 'after compact({ renumber, relink })' },
  'vecplane-cap64': { adapter: 'vecplane', options: { asksForRecall: true, layer0Cap: 64 }, what: '64 links on layer 0' },
  'hnswlib-node': { adapter: 'hnswlib-node', package: 'hnswlib-node', what: 'HNSW over f32, built as npm builds it' },
  'hnswlib-node-native': { adapter: 'hnswlib-node', package: 'hnswlib-node-native', what: 'the same, rebuilt with -march=native' },
  vectorlite: { adapter: 'vectorlite', package: 'vectorlite', what: 'HNSW over f32 in SQLite' },
  zvec: { adapter: 'zvec', package: '@zvec/zvec', what: 'HNSW over f32' },
  usearch: { adapter: 'usearch', package: 'usearch', what: 'HNSW over f32' },
  'published-int8': { adapter: 'published', package: '@harperfast/hnsw-linux-x64-glibc', options: { precision: 'int8' }, what: 'HNSW over int8' },
  'published-int16': { adapter: 'published', package: '@harperfast/hnsw-linux-x64-glibc', options: { precision: 'int16' }, what: 'HNSW over int16' },
  lancedb: { adapter: 'lancedb', package: '@lancedb/lancedb', what: 'IVF_HNSW_SQ, 8 bits' },
  'lancedb-refine': { adapter: 'lancedb', package: '@lancedb/lancedb', options: { refineFactor: 3 }, efMin: 30, what: 'the same, refineFactor 3' },
  'sqlite-vec': { adapter: 'sqlite-vec', package: 'sqlite-vec', queriesMax: 50, efMatters: false, what: 'compares with every row' },
}

export const M = 16
export const EF_CONSTRUCTION = 200
export const K = 10
