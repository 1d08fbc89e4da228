// Asking for a recall instead of a beam width: calibrate once, then say how good answers shall be.
//
//     node examples/recall.cjs [path]
//
// The path must not exist. The vectors are made up: 200 topics with 100 records each.
const os = require('node:os')
const path = require('node:path')
const { Plane } = require('..') // require('vecplane') in your own project

const DIMS = 32
const TOPICS = 200
const RECORDS = 20_000
const QUERIES = 200

/** Numbers that look random and are the same every time (mulberry32). */
let state = 7
function random() {
  state = (state + 0x6d2b79f5) | 0
  let t = Math.imul(state ^ (state >>> 15), 1 | state)
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296
}
const spread = () => random() + random() + random() - 1.5
const topics = Array.from({ length: TOPICS }, () => Array.from({ length: DIMS }, spread))
const near = (topic) => topic.map((x) => x + 0.6 * spread())
const made = (count) => Float32Array.from(Array.from({ length: count }, (_, i) => near(topics[i % TOPICS])).flat())

async function main(file) {
  const plane = Plane.create(file, { dims: DIMS })
  await plane.insertBatch(made(RECORDS))

  const { samples, curve } = await plane.calibrate({ k: 10, samples: 1000 })
  const widths = curve.filter(({ recall }) => recall >= 0.9).length
  console.log(`measured with ${samples} of ${plane.count} records: ${widths} of ${curve.length} beam widths find 90% or more`)

  const queries = made(QUERIES)
  for (const recall of [0.9, 0.99]) {
    let found = 0
    for (let at = 0; at < queries.length; at += DIMS) {
      const query = queries.subarray(at, at + DIMS)
      const nearest = new Set(plane.searchExact(query, { k: 10 }).ids)
      const hits = await plane.search(query, { k: 10, recall })
      found += hits.ids.filter((id) => nearest.has(id)).length
    }
    console.log(`asked for ${recall}, found ${(found / (10 * QUERIES)).toFixed(3)}`)
  }

  const [nearest] = await plane.search(queries.subarray(0, DIMS), { k: 1 })
  const close = await plane.search(queries.subarray(0, DIMS), { within: 1.5 * nearest.distance })
  console.log(`${close.length} records are at most one and a half times as far away as the nearest`)
  await plane.close()
}

const file = process.argv[2] ?? path.join(os.tmpdir(), 'vecplane-recall.hnsw')
main(file).catch((error) => {
  console.error(`${error.code ?? error.name}: ${error.message}`)
  process.exitCode = 1
})
