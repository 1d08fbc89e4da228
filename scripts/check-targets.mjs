// Builds the addon for the other kinds of Linux, installs it from tarballs as it would be there, and uses it under a Node
// of that kind: musl on x64, and arm64 under an emulator with glibc and with musl. What cannot be had here is skipped, and
// said so; the release builds and tests on the real thing.
//
//     node scripts/check-targets.mjs [platform ...]
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { FOREIGN, foreignNode, pythonTools, startable } from './foreign-node.mjs'
import { pack, platforms } from './pack.mjs'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const ADDONS = path.join(ROOT, 'target', 'addons')
/** Binaries run with this glibc and later ones; zig links against any version that the target names. */
const GLIBC = '2.17'
const BUILD_TOOLS = ['ziglang==0.17.0', 'cargo-zigbuild==0.24.0']
/** Whether it can be built and used does not hang on the optimisation across crates, which takes most of a release's build. */
const QUICK = { CARGO_PROFILE_RELEASE_LTO: 'off', CARGO_PROFILE_RELEASE_CODEGEN_UNITS: '16' }

const wanted = process.argv.slice(2)
let skipped = 0
if (process.platform !== 'linux' || process.arch !== 'x64') {
  skip('foreign targets are built on Linux x64 only')
} else {
  const tools = attempt('zig and cargo-zigbuild', () => pythonTools(...BUILD_TOOLS))
  for (const platform of Object.keys(FOREIGN).filter((name) => wanted.length === 0 || wanted.includes(name))) {
    if (tools) check(platforms().find((known) => known.platform === platform), tools)
  }
}
if (skipped > 0) console.error(`!!! ${skipped} parts of the check of other targets were skipped`)

function check(target, tools) {
  const { platform } = target
  const std = attempt(`the standard library for ${target.target}`, () => run('rustup', ['target', 'add', target.target]))
  if (std === undefined) return
  const addon = build(target, tools)
  const { emulator } = FOREIGN[platform]
  if (emulator && !startable(emulator)) return skip(`${platform} is built but not run: ${emulator} is not available`)
  const node = attempt(`a Node for ${platform}`, () => foreignNode(platform, addon))
  if (!node) return
  const works = spawnSync(node.command, [...node.args, '--version'], { encoding: 'utf8' })
  if (works.status !== 0) return skip(`${platform} is built but not run: its Node does not start (${works.signal ?? works.stderr})`)
  use(target, node)
}

function build({ target, addon, libc }, tools) {
  fs.mkdirSync(ADDONS, { recursive: true })
  const versioned = libc === 'glibc' ? `${target}.${GLIBC}` : target
  // --js and --dts keep the generated files out of the tree: they are the same for every target.
  run('npx', ['napi', 'build', '--platform', '--release', '--cross-compile', '--target', versioned, '--js', 'binding.js', '--dts', 'binding.d.ts', '--output-dir', ADDONS], {
    ...QUICK,
    PATH: `${tools}${path.delimiter}${process.env.PATH}`,
  })
  const file = path.join(ADDONS, addon)
  const versions = [...fs.readFileSync(file, 'latin1').matchAll(/GLIBC_2\.(\d+)/g)].map(([, minor]) => Number(minor))
  const newest = Math.max(0, ...versions)
  if (newest > Number(GLIBC.split('.')[1])) throw new Error(`${addon} needs glibc 2.${newest}, more than ${GLIBC}`)
  console.log(`${addon}: built, ${fs.statSync(file).size} bytes${newest > 0 ? `, glibc 2.${newest}` : ''}`)
  return file
}

/** Installs from tarballs as on that platform, and runs the program that tries every precision. */
function use({ platform, name, os: system, cpu, libc }, { command, args, env }) {
  const work = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-target-'))
  try {
    const packed = pack({ out: work, addons: ADDONS })
    const fileOf = (wanted) => `file:${packed.find(({ name }) => name === wanted).file}`
    const manifest = { private: true, dependencies: { vecplane: fileOf('vecplane') }, overrides: { [name]: fileOf(name) } }
    fs.writeFileSync(path.join(work, 'package.json'), JSON.stringify(manifest))
    run('npm', ['install', '--offline', '--no-audit', '--no-fund', `--os=${system}`, `--cpu=${cpu}`, `--libc=${libc}`], {}, work)
    const installed = fs.readdirSync(path.join(work, 'node_modules')).filter((folder) => folder.startsWith('vecplane-'))
    if (String(installed) !== name) throw new Error(`npm installed ${installed} instead of ${name}`)
    const said = run(command, [...args, path.join(ROOT, 'scripts', 'smoke.cjs'), path.join(work, 'node_modules', 'vecplane')], env)
    const { arch, version, kernels } = JSON.parse(said)
    if (arch !== cpu) throw new Error(`that was Node for ${arch}`)
    console.log(`${platform}: every precision builds and searches under Node ${version}${args[0] === '-L' ? ', emulated' : ''}, with the ${kernels} kernels`)
  } finally {
    fs.rmSync(work, { recursive: true })
  }
}

/** What `get` returns; undefined, and said so, when it fails. */
function attempt(what, get) {
  try {
    return get()
  } catch (error) {
    skip(`${what} cannot be had: ${error.message.trim().split('\n').slice(0, 3).join(' ')}`)
    return undefined
  }
}

function run(command, args, env = {}, cwd = ROOT) {
  const { status, signal, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: 'utf8', env: { ...process.env, ...env } })
  if (error) throw error
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${signal ?? status}:\n${stdout}${stderr}`)
  return stdout
}

function skip(why) {
  skipped++
  console.error(`!!! SKIPPED: ${why}`)
}
