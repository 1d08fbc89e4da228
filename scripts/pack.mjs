// Makes the tarballs that are published: the main package, which names every platform package as an optional dependency,
// and a platform package for each addon that is there. Tests and the release install the very same tarballs.
//
//     node scripts/pack.mjs <out> [--addons <folder>] [--all]
//
// --all fails unless there is an addon for every platform.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { thirdPartyLicences } from './licences.mjs'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')

/** What users need of package.json; the rest is for those who work on a clone. */
const UNPUBLISHED = ['scripts', 'devDependencies']

/** Every platform, as `{ platform, name, version, os, cpu, libc, addon, target }`. */
export function platforms() {
  return fs.readdirSync(path.join(ROOT, 'npm')).sort().map((platform) => {
    const { name, version, os, cpu, libc, main } = readJson(path.join(ROOT, 'npm', platform, 'package.json'))
    return { platform, name, version, os: os[0], cpu: cpu[0], libc: libc?.[0], addon: main, target: targetOf(os[0], cpu[0], libc?.[0]) }
  })
}

function targetOf(os, cpu, libc) {
  const arch = cpu === 'x64' ? 'x86_64' : 'aarch64'
  const system = { linux: `unknown-linux-${libc === 'musl' ? 'musl' : 'gnu'}`, darwin: 'apple-darwin', win32: 'pc-windows-msvc' }[os]
  return `${arch}-${system}`
}

/** The manifest that the main package is published with. */
export function publishedManifest() {
  const manifest = readJson(path.join(ROOT, 'package.json'))
  for (const field of UNPUBLISHED) delete manifest[field]
  manifest.optionalDependencies = Object.fromEntries(platforms().map(({ name, version }) => [name, version]))
  return manifest
}

/**
 * Packs the main package and the platform packages whose addons are in `addons`. Returns what npm says of each: `file`,
 * `name`, `files`, `size` and `unpackedSize` in bytes.
 */
export function pack({ out, addons = ROOT, all = false }) {
  fs.mkdirSync(out, { recursive: true })
  const present = platforms().filter(({ addon }) => fs.existsSync(path.join(addons, addon)))
  const absent = platforms().filter((platform) => !present.some(({ name }) => name === platform.name))
  if (all && absent.length > 0) throw new Error(`there is no addon for ${absent.map(({ platform }) => platform).join(', ')} in ${addons}`)
  return [packMain(out), ...present.map((platform) => packPlatform(platform, addons, out))]
}

function packMain(out) {
  return staged(out, (stage) => {
    const manifest = publishedManifest()
    for (const file of ['README.md', 'LICENSE', ...manifest.files]) fs.copyFileSync(path.join(ROOT, file), path.join(stage, file))
    writeJson(path.join(stage, 'package.json'), manifest)
  })
}

function packPlatform({ platform, addon, target }, addons, out) {
  return staged(out, (stage) => {
    fs.cpSync(path.join(ROOT, 'npm', platform), stage, { recursive: true })
    fs.copyFileSync(path.join(ROOT, 'LICENSE'), path.join(stage, 'LICENSE'))
    fs.copyFileSync(path.join(addons, addon), path.join(stage, addon))
    fs.writeFileSync(path.join(stage, 'THIRD-PARTY-LICENSES.txt'), thirdPartyLicences(target))
  })
}

/** Packs what `fill` puts into an empty folder. */
function staged(out, fill) {
  const stage = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-pack-'))
  try {
    fill(stage)
    const [packed] = JSON.parse(npm(['pack', '--json', '--pack-destination', path.resolve(out)], stage))
    const { name, filename, size, unpackedSize, files } = packed
    return { name, file: path.resolve(out, filename), size, unpackedSize, files: files.map((file) => file.path).sort() }
  } finally {
    fs.rmSync(stage, { recursive: true })
  }
}

function npm(args, cwd) {
  const { status, stdout, stderr, error } = spawnSync('npm', args, { cwd, encoding: 'utf8', shell: process.platform === 'win32' })
  if (error) throw error
  if (status !== 0) throw new Error(`npm ${args[0]} failed:\n${stdout}${stderr}`)
  return stdout
}

function readJson(file) {
  return JSON.parse(fs.readFileSync(file, 'utf8'))
}

function writeJson(file, value) {
  fs.writeFileSync(file, `${JSON.stringify(value, null, 2)}\n`)
}

function main([out, ...flags]) {
  if (!out || out.startsWith('-')) {
    console.error('usage: node scripts/pack.mjs <out> [--addons <folder>] [--all]')
    process.exit(2)
  }
  const at = flags.indexOf('--addons')
  const packed = pack({ out, addons: at < 0 ? ROOT : flags[at + 1], all: flags.includes('--all') })
  for (const { file, size, unpackedSize, files } of packed) {
    console.log(`${path.basename(file)}: ${size} bytes, ${unpackedSize} unpacked: ${files.join(', ')}`)
  }
}

if (process.argv[1] && fs.realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) main(process.argv.slice(2))
