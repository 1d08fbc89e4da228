// Filters: tags, keys and bits decide which records a search may return; the answer still has as many as were asked for.
//
//     node examples/filters.cjs [path]
//
// The path must not exist.
const os = require('node:os')
const path = require('node:path')
const { Plane } = require('..') // require('vecplane') in your own project

const BOOKS = [
  ['moby-dick', [0.9, 0.1, 0.0, 0.2], ['lang:en', 'novel', 1851]],
  ['walden', [0.8, 0.3, 0.1, 0.1], ['lang:en', 'essay', 1854]],
  ['effi-briest', [0.7, 0.2, 0.4, 0.1], ['lang:de', 'novel', 1895]],
  ['germinal', [0.1, 0.9, 0.3, 0.1], ['lang:fr', 'novel', 1885]],
  ['maldoror', [0.0, 0.7, 0.8, 0.1], ['lang:fr', 1869]],
]

async function main(file) {
  const plane = Plane.create(file, { dims: 4, keyCap: 16 })
  for (const [key, vector, tags] of BOOKS) plane.insert(Float32Array.from(vector), key, { tags })
  await plane.flushAsync()

  const query = Float32Array.of(1, 0, 0, 0.2)
  const show = async (what, options) => {
    const hits = await plane.search(query, { k: 2, ...options })
    console.log(`${what}: ${Array.from(hits, ({ key }) => key).join(', ')}`)
  }
  await show('any', {})
  await show('French or German', { tags: { anyOf: ['lang:fr', 'lang:de'] } })
  await show('novels of 1885', { tags: { allOf: ['novel', 1885] } })
  await show('no novels', { tags: { noneOf: ['novel'] } })
  await show('two by name', { filter: { keys: ['germinal', 'maldoror'] } })
  // A filter of your own: one bit an id.
  const filter = new Uint8Array(Math.ceil(plane.idHighWater() / 8))
  for (const { id, tags } of plane.records()) if (tags.some((tag) => tag < 1860)) filter[id >> 3] |= 1 << (id & 7)
  await show('before 1860', { filter })
  await plane.close()
}

const file = process.argv[2] ?? path.join(os.tmpdir(), 'vecplane-filters.hnsw')
main(file).catch((error) => {
  console.error(`${error.code ?? error.name}: ${error.message}`)
  process.exitCode = 1
})
