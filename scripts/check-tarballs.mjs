// Installs tarballs as a user of this machine would, and uses the package in every import style and precision. Needs
// nothing but Node and npm: no compiler, no development packages, no network.
//
//     node scripts/check-tarballs.mjs <folder with tarballs>
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { STYLES } from '../__test__/import-styles.mjs'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')

const [folder] = process.argv.slice(2)
if (!folder) {
  console.error('usage: node scripts/check-tarballs.mjs <folder with tarballs>')
  process.exit(2)
}
const tarballs = fs.readdirSync(folder).filter((name) => name.endsWith('.tgz')).map((name) => path.resolve(folder, name))
const { version } = JSON.parse(fs.readFileSync(path.join(ROOT, 'package.json'), 'utf8'))
const fileOf = (name) => tarballs.find((file) => path.basename(file) === `${name}-${version}.tgz`)

const app = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane tarballs '))
try {
  // Overrides stand in for the registry: npm still chooses by os, cpu and libc which of them to install.
  const names = fs.readdirSync(path.join(ROOT, 'npm')).map((platform) => `vecplane-${platform}`).filter(fileOf)
  const overrides = Object.fromEntries(names.map((name) => [name, `file:${fileOf(name)}`]))
  fs.writeFileSync(path.join(app, 'package.json'), JSON.stringify({ private: true, dependencies: { vecplane: `file:${fileOf('vecplane')}` }, overrides }))
  run('npm', ['install', '--offline', '--no-audit', '--no-fund'])
  const installed = fs.readdirSync(path.join(app, 'node_modules')).filter((name) => name.startsWith('vecplane-'))
  if (installed.length !== 1) throw new Error(`npm installed ${installed.length} platform packages: ${installed}`)
  for (const { name, file, source } of STYLES) {
    fs.writeFileSync(path.join(app, file), source)
    const said = run(process.execPath, [file, path.join(app, `${file}.hnsw`)])
    if (said !== 'ok\n') throw new Error(`${name}: ${said}`)
  }
  console.log(`${installed[0]} works by ${STYLES.map(({ name }) => name).join(', ')}`)
  console.log(run(process.execPath, [path.join(ROOT, 'scripts', 'smoke.cjs'), path.join(app, 'node_modules', 'vecplane')]).trim())
} finally {
  fs.rmSync(app, { recursive: true })
}

function run(command, args) {
  const shell = command === 'npm' && process.platform === 'win32'
  const { status, signal, stdout, stderr, error } = spawnSync(command, args, { cwd: app, encoding: 'utf8', shell })
  if (error) throw error
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${signal ?? status}:\n${stdout}${stderr}`)
  return stdout
}
