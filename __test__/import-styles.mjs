// Every way to get at the package, each as a program for an installed copy: it stores a vector, finds it, and prints 'ok'.
// Shared by the packaging test and by the check of other runtimes.

const use = `
const vector = Float32Array.of(1, 0)
const plane = Plane.create(process.argv.at(-1), { dims: 2, keyCap: 8 })
plane.insert(vector, 'east')
const hits = await plane.search(Float32Array.of(1, 1), { k: 1 })
if (!(hits instanceof SearchHits) || hits.key(0).toString() !== 'east') throw new Error('the installed package found nothing')
try {
  plane.insert(vector, 'east')
  throw new Error('a key was stored twice')
} catch (error) {
  if (!(error instanceof PlaneError) || error.code !== 'PLANE_KEY_EXISTS') throw error
}
await plane.close()
console.log('ok')
`
const required = (source) => `'use strict'\n${source}\n;(async () => {${use}})()\n`
const imported = (source) => `${source}\n${use}`

/** `file` is what the program must be called, `source` its text; the last argument is where it may put a plane. */
export const STYLES = [
  { name: 'require', file: 'require.cjs', source: required("const { Plane, PlaneError, SearchHits } = require('vecplane')") },
  { name: 'named import', file: 'named.mjs', source: imported("import { Plane, PlaneError, SearchHits } from 'vecplane'") },
  {
    name: 'default import',
    file: 'default.mjs',
    source: imported("import vecplane from 'vecplane'\nconst { Plane, PlaneError, SearchHits } = vecplane"),
  },
  { name: 'namespace import', file: 'namespace.mjs', source: imported("import * as all from 'vecplane'\nconst { Plane, PlaneError, SearchHits } = all") },
  {
    name: 'dynamic import',
    file: 'dynamic.mjs',
    source: imported("const { Plane, PlaneError, SearchHits } = await import('vecplane')"),
  },
  {
    name: 'dynamic import from CommonJS',
    file: 'dynamic.cjs',
    source: `'use strict'\n;(async () => {const { Plane, PlaneError, SearchHits } = await import('vecplane')\n${use}})()\n`,
  },
  {
    name: 'createRequire',
    file: 'create-require.mjs',
    source: imported("import { createRequire } from 'node:module'\nconst { Plane, PlaneError, SearchHits } = createRequire(import.meta.url)('vecplane')"),
  },
  {
    name: 'worker thread',
    file: 'worker.cjs',
    source: `'use strict'
const { Worker, isMainThread, workerData } = require('node:worker_threads')
if (isMainThread) {
  new Worker(__filename, { workerData: process.argv.at(-1) }).on('exit', (code) => { process.exitCode = code })
} else {
  const { Plane, PlaneError, SearchHits } = require('vecplane')
  process.argv.push(workerData)
  ;(async () => {${use}})()
}
`,
  },
]
