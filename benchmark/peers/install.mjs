// Installs the peers into this folder and nowhere else. One that cannot be installed is left out, with the reason kept.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const HERE = path.dirname(fileURLToPath(import.meta.url))
const MODULES = path.join(HERE, 'node_modules')
const NATIVE = 'hnswlib-node-native'

/** `{ [package]: reason }` of the peers that are not there afterwards. */
export function installPeers() {
  const { optionalDependencies: wanted } = JSON.parse(fs.readFileSync(path.join(HERE, 'package.json'), 'utf8'))
  const missing = () => Object.keys(wanted).filter((name) => !fs.existsSync(path.join(MODULES, name)))
  if (missing().length > 0) {
    console.log('installing the peers into benchmark/peers ...')
    const { status, stderr } = npm(HERE, 'install')
    if (status !== 0) throw new Error(`the peers could not be installed: ${lastLine(stderr)}`)
    rebuildNative()
  }
  return Object.fromEntries(missing().map((name) => [name, reasonFor(name, wanted[name])]))
}

/** The same sources as hnswlib-node, compiled for this processor: as published, they are built without AVX. */
function rebuildNative() {
  const folder = path.join(MODULES, NATIVE)
  if (!fs.existsSync(folder)) return
  const env = { ...process.env, CXXFLAGS: '-O3 -march=native' }
  const { status, stderr } = npm(HERE, 'rebuild', [NATIVE], env)
  if (status !== 0) {
    console.error(`${NATIVE} could not be rebuilt: ${lastLine(stderr)}`)
    fs.rmSync(folder, { recursive: true })
  }
}

/** npm drops an optional package without a word; asking for it alone, elsewhere, brings the error out. */
function reasonFor(name, version) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-peer-'))
  try {
    fs.writeFileSync(path.join(folder, 'package.json'), JSON.stringify({ private: true, dependencies: { [name]: version } }))
    const { status, stderr } = npm(folder, 'install')
    return status === 0 ? 'installs alone, but not with the others' : lastLine(stderr)
  } finally {
    fs.rmSync(folder, { recursive: true, force: true })
  }
}

function npm(cwd, verb, more = [], env = process.env) {
  const shell = process.platform === 'win32'
  return spawnSync('npm', [verb, '--no-audit', '--no-fund', '--loglevel=error', ...more], { cwd, env, shell, encoding: 'utf8' })
}

function lastLine(text) {
  const lines = text.split('\n').filter((line) => /npm error/.test(line) && !/complete log|logs/.test(line))
  return lines.map((line) => line.replace('npm error', '').trim()).filter(Boolean).slice(0, 3).join('; ') || 'npm gave no reason'
}
