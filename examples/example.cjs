// Three keyed vectors: insert, flush, search.
//
//     node examples/example.cjs [path]
//
// The path must not exist: a plane is never overwritten unless `overwrite: true` asks for it.
const os = require('node:os')
const path = require('node:path')
const { Plane } = require('..') // require('vecplane') in your own project

const ARTICLES = {
  'article:1': [0.9, 0.1, 0.0, 0.2],
  'article:2': [0.8, 0.2, 0.1, 0.1],
  'article:3': [0.0, 0.9, 0.8, 0.1],
}

async function main(file) {
  const plane = Plane.create(file, { dims: 4, keyCap: 16 })
  for (const [key, vector] of Object.entries(ARTICLES)) {
    plane.insert(Float32Array.from(vector), key)
  }
  await plane.flushAsync()
  console.log(`${plane.count} articles are on disk in ${file}`)

  const hits = await plane.search(Float32Array.of(1, 0, 0, 0.2), { k: 2 })
  for (const { key, distance } of hits) {
    console.log(`${key}  distance ${distance.toFixed(4)}`)
  }
  await plane.close()
}

const file = process.argv[2] ?? path.join(os.tmpdir(), 'vecplane-example.hnsw')
main(file).catch((error) => {
  const hint = error.code === 'PLANE_EXISTS' ? '\nRemove the file or give another path.' : ''
  console.error(`${error.code ?? error.name}: ${error.message}${hint}`)
  process.exitCode = 1
})
