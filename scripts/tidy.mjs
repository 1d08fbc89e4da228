// Style as a test: what no compiler checks and a reader would trip over.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const LINES_MAX = 650
const GENERATED = new Set(['binding.js', 'package-lock.json', 'Cargo.lock'])
const SKIPPED = new Set(['.git', 'node_modules', 'target'])
const CRATES_INDEX = 'registry+https://github.com/rust-lang/crates.io-index'

const problems = []
const files = walk('.')
checkLineCounts()
checkLockFiles()
checkVersions()
checkLinks()
checkEngineKnowsNoNode()
checkBuffersAreOfTheHost()
checkCodesAreExplained()
for (const problem of problems) console.error(problem)
process.exit(problems.length > 0 ? 1 : 0)

function checkLineCounts() {
  for (const file of files.filter((name) => /\.(rs|[cm]?[jt]s)$/.test(name) && !GENERATED.has(name))) {
    const lines = read(file).split('\n').length - 1
    if (lines > LINES_MAX) problems.push(`${file}: ${lines} lines, more than ${LINES_MAX}: look for the noun that wants its own file`)
  }
}

/** Lock files name versions and checksums; where packages come from is each machine's own business. */
function checkLockFiles() {
  for (const file of files.filter((name) => path.basename(name) === 'package-lock.json')) {
    for (const [place, { resolved }] of Object.entries(JSON.parse(read(file)).packages)) {
      if (resolved !== undefined) problems.push(`${file}: ${place} has an address (resolved: ${resolved})`)
    }
  }
  for (const file of files.filter((name) => path.basename(name) === 'Cargo.lock')) {
    for (const [, source] of read(file).matchAll(/^source = "(.*)"$/gm)) {
      if (source !== CRATES_INDEX) problems.push(`${file}: a package comes from ${source}`)
    }
  }
}

function checkVersions() {
  const { version } = JSON.parse(read('package.json'))
  const [, crates] = read('Cargo.toml').match(/^\[workspace\.package\]\nversion = "(.*)"/m) ?? []
  if (crates !== version) problems.push(`Cargo.toml says version ${crates}, package.json says ${version}`)
  for (const file of files.filter((name) => /^npm\/[^/]+\/package\.json$/.test(name))) {
    const platform = JSON.parse(read(file))
    if (platform.version !== version) problems.push(`${file} says version ${platform.version}, package.json says ${version}`)
    for (const field of ['os', 'cpu', 'license']) {
      if (!platform[field]) problems.push(`${file} has no ${field}`)
    }
    if (platform.os[0] === 'linux' && !platform.libc) problems.push(`${file} has no libc`)
  }
}

/** Relative links of the documents lead to files that exist. */
function checkLinks() {
  for (const file of files.filter((name) => name.endsWith('.md'))) {
    for (const [, target] of read(file).matchAll(/\]\(([^)#\s]+)[^)]*\)/g)) {
      if (/^[a-z]+:/.test(target)) continue
      if (!fs.existsSync(path.join(ROOT, path.dirname(file), target))) problems.push(`${file}: ${target} does not exist`)
    }
  }
}

function checkEngineKnowsNoNode() {
  const tree = spawnSync('cargo', ['tree', '--package', 'vecplane-core', '--prefix', 'none'], { cwd: ROOT, encoding: 'utf8' })
  if (tree.status !== 0) problems.push(`cargo tree failed: ${tree.error?.message ?? tree.stderr}`)
  else if (/^napi/m.test(tree.stdout)) problems.push('vecplane-core depends on a Node crate')
}

/** Electron's V8 aborts on buffers whose memory is not its own, which is what these make. */
function checkBuffersAreOfTheHost() {
  const external = /napi_create_external\w*|\b(?:Buffer|BufferSlice|ArrayBuffer|[A-Z]\w*Array)::(?:new|from|from_data|from_external)\b/
  for (const file of files.filter((name) => /^src\/.*\.rs$/.test(name))) {
    const found = external.exec(read(file))
    if (found) problems.push(`${file}: ${found[0]} makes a buffer of foreign memory`)
  }
}

/** Whoever looks up an error code finds what to do. */
function checkCodesAreExplained() {
  const page = 'docs/troubleshooting.md'
  const explained = read(page)
  for (const file of ['crates/core/src/error.rs', 'src/error.rs', 'errors.d.ts', 'load.js']) {
    for (const [code] of read(file).matchAll(/\b(?:PLANE|ERR|ABORT)_[A-Z_]*[A-Z]\b/g)) {
      if (!explained.includes(`\`${code}\``)) problems.push(`${page} does not explain ${code} of ${file}`)
    }
  }
}

function walk(folder) {
  return fs.readdirSync(path.join(ROOT, folder), { withFileTypes: true }).flatMap((entry) => {
    const name = path.posix.join(folder, entry.name)
    if (entry.isDirectory()) return SKIPPED.has(entry.name) ? [] : walk(name)
    return [name]
  })
}

function read(file) {
  return fs.readFileSync(path.join(ROOT, file), 'utf8')
}
