// Uses the packed package in every import style under other runtimes, runs tests of the JavaScript surface there, installs
// it with pnpm, and prints the table of docs/runtimes.md. Runtimes come from the npm registry and go under target/; one that
// cannot be had is skipped, and said so.
//
//     node scripts/check-runtimes.mjs [--tests <part of a test's name>]... [runtime ...]
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { STYLES } from '../__test__/import-styles.mjs'
import { pack } from './pack.mjs'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const RUNTIMES = path.join(ROOT, 'target', 'tools', 'runtimes')
const NODE = `node-${process.platform === 'win32' ? 'win' : process.platform}-${process.arch}`
const nodeOf = (version) => ({ name: `Node ${version}`, package: `${NODE}@${version}`, bin: `${NODE}/bin/node`, args: [] })
const KNOWN = [
  ...['20', '22', '24', '26'].map(nodeOf),
  { name: 'Bun', package: 'bun@1.4.5', bin: '.bin/bun', args: ['run'], test: ['test', '--timeout', '60000'], except: /^package/ },
  {
    name: 'Deno',
    package: 'deno@2.9.6',
    bin: '.bin/deno',
    args: ['run', '--allow-all'],
    test: ['test', '--allow-all', '--no-check', '--unstable-detect-cjs'],
    // Children whose program is an argument (-e), and workers whose planes outlive them: see docs/runtimes.md.
    except: /^(package|api-process|case-workers|example)/,
  },
]
const PNPM = 'pnpm@12.23.0'
const TEST_MS_MAX = 300_000

const tests = process.argv.flatMap((argument, i) => (argument === '--tests' ? [process.argv[i + 1]] : []))
const wanted = process.argv.slice(2).filter((argument, i, all) => argument !== '--tests' && all[i - 1] !== '--tests')
const work = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane runtimes '))
let failed = false
try {
  const [main, platform] = pack({ out: path.join(work, 'tarballs') })
  const app = install('npm', ['install', '--offline', '--no-audit', '--no-fund'], main, platform)
  const rows = []
  for (const runtime of KNOWN.filter(({ name }) => wanted.length === 0 || wanted.includes(name))) {
    const bin = obtain(runtime)
    if (bin) rows.push(tryOut(runtime, bin, app))
  }
  const strict = tryPnpm(main, platform)
  if (strict) rows.push(strict)
  table(rows)
} finally {
  fs.rmSync(work, { recursive: true })
}
process.exit(failed ? 1 : 0)

/** Downloads a runtime; undefined, and said so, when that fails. */
function obtain({ name, package: wanted, bin }) {
  const folder = path.join(RUNTIMES, wanted.replaceAll('/', '-'))
  const file = path.join(folder, 'node_modules', bin)
  if (!fs.existsSync(file)) {
    fs.mkdirSync(folder, { recursive: true })
    fs.writeFileSync(path.join(folder, 'package.json'), '{ "private": true }\n')
    const { status, stderr } = call('npm', ['install', '--no-audit', '--no-fund', '--no-package-lock', wanted], folder)
    if (status !== 0 || !fs.existsSync(file)) return skip(`${name} cannot be had: ${stderr.trim().split('\n')[0]}`)
  }
  const { status, stderr } = call(file, ['--version'], folder)
  return status === 0 ? file : skip(`${name} does not start: ${stderr.trim().split('\n')[0]}`)
}

/** An app that depends on the main package alone. */
function install(manager, args, main, platform) {
  const folder = path.join(work, `an app of ${path.basename(manager)}`)
  fs.mkdirSync(folder)
  const overrides = { [platform.name]: `file:${platform.file}` }
  fs.writeFileSync(path.join(folder, 'package.json'), JSON.stringify({ private: true, dependencies: { vecplane: `file:${main.file}` }, overrides }))
  // pnpm reads them from here.
  fs.writeFileSync(path.join(folder, 'pnpm-workspace.yaml'), `overrides:\n  ${platform.name}: 'file:${platform.file}'\n`)
  const { status, stdout, stderr } = call(manager, args, folder)
  if (status !== 0) throw new Error(`${manager} install failed:\n${stdout}${stderr}`)
  for (const { file, source } of STYLES) fs.writeFileSync(path.join(folder, file), source)
  return folder
}

function tryOut({ name, args, test, except }, bin, app) {
  const version = call(bin, ['--version'], app).stdout.trim().split('\n')[0].replace(/^[a-z ]*v?/, '').split(' ')[0]
  console.log(`\n${name}: ${version}`)
  const results = styles(bin, args, app)
  const files = testFiles(except)
  if (files.length > 0) {
    const command = test ? [...test, ...files.map((file) => `./${file}`)] : ['--test', '--test-reporter=dot', ...files]
    const { status, stdout, stderr } = call(bin, command, ROOT, TEST_MS_MAX)
    console.log(`  ${files.length} test files: ${status === 0 ? 'pass' : `FAIL\n${stdout}${stderr}`}`)
    if (status !== 0) failed = true
  }
  return { name: `${name}, ${version}`, results }
}

function testFiles(except) {
  const names = fs.readdirSync(path.join(ROOT, '__test__')).filter((name) => /\.test\.[cm]?js$/.test(name) && !except?.test(name))
  return names.filter((name) => tests.some((part) => name.includes(part))).map((name) => path.posix.join('__test__', name))
}

function styles(bin, args, app) {
  return STYLES.map(({ name, file }) => {
    const { status, signal, stdout, stderr } = call(bin, [...args, file, path.join(app, `${file}.hnsw`)], app)
    fs.rmSync(path.join(app, `${file}.hnsw`), { force: true })
    const works = status === 0 && stdout === 'ok\n'
    console.log(`  ${name}: ${works ? 'works' : `FAILS (${signal ?? status}): ${stdout}${stderr}`}`)
    if (!works) failed = true
    return works
  })
}

/** Node in the strict layout of pnpm, where the app cannot see the platform package. */
function tryPnpm(main, platform) {
  const pnpm = obtain({ name: 'pnpm', package: PNPM, bin: '.bin/pnpm' })
  if (!pnpm) return undefined
  const folder = install(pnpm, ['install', '--offline', '--ignore-scripts'], main, platform)
  if (fs.existsSync(path.join(folder, 'node_modules', platform.name))) throw new Error('this layout is not strict')
  console.log('\npnpm, strict layout')
  return { name: `Node ${process.versions.node}, installed by pnpm ${call(pnpm, ['--version'], folder).stdout.trim()}`, results: styles(process.execPath, [], folder) }
}

function table(rows) {
  console.log(`\n| Runtime | ${STYLES.map(({ name }) => name).join(' | ')} |`)
  console.log(`|---|${STYLES.map(() => '---').join('|')}|`)
  for (const { name, results } of rows) console.log(`| ${name} | ${results.map((works) => (works ? 'works' : '**fails**')).join(' | ')} |`)
}

function call(command, args, cwd, timeout = 120_000) {
  const shell = ['npm'].includes(command) && process.platform === 'win32'
  const { status, signal, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: 'utf8', timeout, shell, maxBuffer: 1 << 28, env: { ...process.env, NO_COLOR: '1' } })
  return { status, signal, stdout: stdout ?? '', stderr: `${stderr ?? ''}${error?.message ?? ''}` }
}

function skip(why) {
  console.error(`!!! SKIPPED: ${why}`)
  return undefined
}
