// Makes a clone ready to run: installs the development packages and builds the addon, each only when needed.
// Says nothing and takes a moment when nothing is to be done.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const SOURCES = ['src', 'crates', 'build.rs', 'Cargo.toml', 'Cargo.lock']

if (!packagesAreCurrent()) {
  say('Installing the development packages ...')
  npm('ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error')
}
if (!addonIsCurrent()) {
  requireCargo()
  say('Building the addon (about a minute the first time) ...')
  npm('run', '--silent', 'build')
  if (!addonIsCurrent()) fail(`The build left no current ${addonName()}.`)
}

/** Whether node_modules holds what package-lock.json asks for; packages for other platforms may be absent. */
function packagesAreCurrent() {
  const wanted = readPackages('package-lock.json')
  const present = readPackages('node_modules/.package-lock.json')
  if (!wanted || !present) return false
  return Object.entries(wanted).every(([place, { version, optional }]) => {
    if (place === '') return true
    return present[place] ? present[place].version === version : optional
  })
}

function readPackages(file) {
  try {
    return JSON.parse(fs.readFileSync(path.join(ROOT, file), 'utf8')).packages
  } catch (error) {
    if (error.code === 'ENOENT') return null
    throw error
  }
}

/** Whether the addon is at least as new as each of its sources. */
function addonIsCurrent() {
  const addon = fs.statSync(path.join(ROOT, addonName()), { throwIfNoEntry: false })
  return addon !== undefined && SOURCES.every((source) => newest(path.join(ROOT, source)) <= addon.mtimeMs)
}

/** The file that `napi build --platform` makes on this machine. */
function addonName() {
  const { platform, arch } = process
  const abi = platform === 'linux' ? (hasGlibc() ? '-gnu' : '-musl') : platform === 'win32' ? '-msvc' : ''
  return `vecplane.${platform}-${arch}${abi}.node`
}

function hasGlibc() {
  process.report.excludeNetwork = true
  return Boolean(process.report.getReport().header.glibcVersionRuntime)
}

/** Latest modification below a path, in milliseconds; tests and benches of the crates do not go into the addon. */
function newest(place) {
  const stat = fs.statSync(place)
  if (!stat.isDirectory()) return stat.mtimeMs
  const entries = fs.readdirSync(place).filter((name) => name !== 'tests' && name !== 'benches')
  return Math.max(0, ...entries.map((name) => newest(path.join(place, name))))
}

function requireCargo() {
  if (!spawnSync('cargo', ['--version'], { cwd: ROOT }).error) return
  fail(
    'The addon is not built and cargo was not found.\n' +
      'Install Rust from https://rustup.rs (a minimal toolchain will do), open a new shell and run this again.',
  )
}

function npm(...args) {
  const launcher = process.env.npm_execpath ?? ''
  const cli = path.basename(launcher) === 'npm-cli.js' ? launcher : null
  const [command, first] = cli ? [process.execPath, [cli]] : ['npm', []]
  const shell = !cli && process.platform === 'win32'
  const { status, error } = spawnSync(command, [...first, ...args], { cwd: ROOT, stdio: ['ignore', 2, 2], shell })
  if (error) fail(`npm could not be started: ${error.message}`)
  if (status !== 0) fail(`npm ${args[0] === 'ci' ? 'ci' : 'run build'} failed; its messages are above.`)
}

function say(text) {
  process.stderr.write(`${text}\n`)
}

function fail(text) {
  say(text)
  process.exit(1)
}
