'use strict'

// Uses a package in every precision and says what it saw, in one line of JSON. Small enough for an emulated processor.
//
//     node scripts/smoke.cjs [package or path]

const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')

const DIMS = 40
const RECORDS = 60
const ALONE = 20
/** Few, because each maps much of the address space, which costs an emulator seconds. */
const PLANES = [['int8', 'cosine', 'f32'], ['int16', 'inner-product', 'f32'], ['f16', 'l2', 'f16'], ['f32', 'l2', 'none']]
const { Plane } = require(process.argv[2] ?? '..')

let state = 1
const random = () => (state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff) / 0x7fffffff - 0.5
const vectors = Array.from({ length: RECORDS }, () => Float32Array.from({ length: DIMS }, random))

async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-smoke-'))
  const said = { arch: process.arch, version: process.version, kernels: '' }
  for (const [precision, metric, rerank] of PLANES) {
    const plane = Plane.create(path.join(folder, `${precision}-${metric}.hnsw`), { dims: DIMS, keyCap: 8, precision, metric, rerank })
    vectors.slice(0, ALONE).forEach((vector, i) => plane.insert(vector, `k${i}`))
    const keys = vectors.slice(ALONE).map((_, i) => `k${i + ALONE}`)
    let end = 0
    const keyEnds = Uint32Array.from(keys, (key) => (end += key.length))
    const rest = Float32Array.from(vectors.slice(ALONE).flatMap((vector) => [...vector]))
    await plane.insertBatch(rest, { keys: Buffer.from(keys.join('')), keyEnds })
    await plane.flushAsync()
    for (const vector of vectors.slice(0, ALONE)) {
      const found = await plane.search(vector, { k: 3, ef: RECORDS })
      const exact = plane.searchExact(vector, { k: 3 })
      if (String([...found.ids]) !== String([...exact.ids])) throw new Error(`${precision} ${metric}: ${found.ids} instead of ${exact.ids}`)
    }
    const { ok } = await plane.verify()
    if (!ok) throw new Error(`${precision} ${metric}: verify failed`)
    said.kernels = plane.stats().kernels
    await plane.close()
  }
  fs.rmSync(folder, { recursive: true })
  console.log(JSON.stringify(said))
}

main().catch((error) => {
  console.error(error)
  process.exitCode = 1
})
