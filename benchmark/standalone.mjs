// The whole standalone benchmark: build and measure, verify in a fresh process, summarize.
//
//     npm run bench:standalone -- [OUT] [options]
//
// OUT must not exist; by default it is a new folder in benchmark/results. Options, also as BENCH_<NAME> in the environment:
// benchmark/lib/options.mjs. BENCH_CPU_SET=0 pins every step with taskset.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { pinned } from './lib/measure.mjs'
import { readOptions, SEARCHERS } from './lib/options.mjs'

const HERE = path.dirname(fileURLToPath(import.meta.url))
const argv = process.argv.slice(2)
const { out: given } = readOptions(argv)
const out = given ?? path.join(HERE, 'results', `standalone-${new Date().toISOString().replaceAll(':', '-').slice(0, 19)}`)
if (fs.existsSync(out)) {
  console.error(`${out} exists; name a directory that does not`)
  process.exit(1)
}
fs.mkdirSync(out, { recursive: true })

const settings = Object.entries(process.env).filter(([name]) => /^BENCH_[A-Z_]+$/.test(name) && name !== 'BENCH_COMMAND')
const flags = argv.filter((argument) => argument !== given)
const env = {
  ...process.env,
  UV_THREADPOOL_SIZE: String(SEARCHERS),
  BENCH_COMMAND: [...settings.map(([name, value]) => `${name}=${value}`), 'npm run bench:standalone', ...(flags.length > 0 ? ['--', ...flags] : [])].join(' '),
}
run('benchmark.mjs', out, ...flags)
const verified = run('verify.mjs', out)
run('summarize.mjs', out)
console.log(`results in ${path.relative(process.cwd(), out)}`)
process.exit(verified)

/** Runs one step; a step other than verification that fails ends the run. */
function run(script, ...args) {
  const [command, all] = pinned(process.execPath, [path.join(HERE, script), ...args])
  const { status, signal, error } = spawnSync(command, all, { env, stdio: 'inherit' })
  if (error) throw error
  if (signal) throw new Error(`${script} ended by ${signal}`)
  if (status !== 0 && script !== 'verify.mjs') process.exit(status)
  return status
}
