// Checks that take a nightly compiler or many minutes, each by name:
//
//     node scripts/deep.mjs power-cuts | kills | processes | loom | miri | tsan | fuzz | million [arguments for the check]
import { spawnSync } from 'node:child_process'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const CORE = ['test', '--release', '--package', 'vecplane-core']
const HOST = run('rustc', ['-vV'], { stdio: 'pipe' }).stdout.match(/^host: (.*)$/m)[1]
/** Parts that work on memory alone, since miri knows no mapped files; without the sweeps over all lengths, which take it hours. */
const WITHOUT_FILES = ['codec::', 'distance::', 'graph::node', 'graph::links', 'graph::pool', 'graph::visited', 'graph::select', 'file::header', '--skip', 'their_rows', '--skip', 'longest_vectors', '--skip', 'newer_valid']
const FUZZ_TARGETS = ['open', 'use']

const CHECKS = {
  // At least 25,000 images of power cuts, and the planted faults.
  'power-cuts': () => cargo([...CORE, '--test', 'power_cut', '--', '--nocapture', ...rest], { VECPLANE_IMAGES: '25000' }),
  // 200 kills of a writing process, by itself and beside another one; kills during recovery.
  kills: () => cargo([...CORE, '--test', 'recovery', '--test', 'processes', '--', '--nocapture', 'kill', ...rest], { VECPLANE_LONG: '1' }),
  // Four processes for a minute, and a minute of checking every hit beside a process that inserts.
  processes: () => cargo([...CORE, '--test', 'processes', '--', '--nocapture', 'four_processes', 'whole_records', ...rest], { VECPLANE_LONG: '1' }),
  // Every interleaving of the slot and growth protocols.
  loom: () => cargo([...CORE, '--test', 'loom', '--target-dir', 'target/loom', ...rest], { RUSTFLAGS: '--cfg loom' }),
  // Undefined behaviour in record views and scalar paths.
  miri() {
    component('miri')
    cargo(['+nightly', 'miri', 'test', '--package', 'vecplane-core', '--lib', '--target-dir', 'target/miri', '--', ...(rest.length ? rest : WITHOUT_FILES)],
      { MIRIFLAGS: '-Zmiri-disable-isolation', PROPTEST_CASES: '4' })
  },
  // Data races in the stress tests. Its own standard library, since that one must be watched too.
  tsan() {
    component('rust-src')
    cargo(['+nightly', 'test', '-Zbuild-std', '--release', '--target', HOST, '--target-dir', 'target/tsan', '--package', 'vecplane-core', '--test', 'concurrent', ...rest],
      { RUSTFLAGS: '-Zsanitizer=thread', TSAN_OPTIONS: 'halt_on_error=1' })
  },
  // Ten minutes of each fuzz target, from the corpus in the repository. What is found stays in fuzz/artifacts and target/fuzz.
  fuzz() {
    if (spawnSync('cargo', ['fuzz', '--version']).status !== 0) cargo(['+nightly', 'install', 'cargo-fuzz', '--locked'])
    const options = rest.length ? rest : ['-max_total_time=600']
    for (const target of FUZZ_TARGETS) {
      run('mkdir', ['-p', `target/fuzz/${target}`])
      cargo(['+nightly', 'fuzz', 'run', target, `target/fuzz/${target}`, `fuzz/corpus/${target}`, '--', '-timeout=20', '-rss_limit_mb=4096', ...options])
    }
  },
  // What opening, recovering and flushing cost on a million records.
  million: () => cargo([...CORE, '--test', 'million', '--', '--ignored', '--nocapture', ...rest]),
}

const [name, ...rest] = process.argv.slice(2)
if (!CHECKS[name]) {
  console.error(`which check? ${Object.keys(CHECKS).join(', ')}`)
  process.exit(1)
}
CHECKS[name]()

function component(name) {
  run('rustup', ['component', 'add', '--toolchain', 'nightly', name])
}

function cargo(args, env = {}) {
  run('cargo', args, { env: { ...process.env, ...env } })
}

function run(command, args, options = {}) {
  const result = spawnSync(command, args, { cwd: ROOT, stdio: 'inherit', encoding: 'utf8', ...options })
  if (result.error) console.error(`${command}: ${result.error.message}`)
  if (result.status !== 0) process.exit(result.status ?? 1)
  return result
}
