// The engine under test: any package with the published API, or a folder that holds nothing but its addon.
import fs from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const require = createRequire(import.meta.url)
const PROJECT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..', '..')

/**
 * Loads the package in `root` (default: the folder that `HNSW_PACKAGE_ROOT` names, or this project).
 *
 * `binary` is the addon that the process really loaded, `root` the folder it came from.
 */
export function loadEngine(root = process.env.HNSW_PACKAGE_ROOT ?? PROJECT) {
  const folder = path.resolve(root)
  const before = new Set(loadedAddons())
  const { Plane } = require(entryOf(folder))
  if (typeof Plane?.create !== 'function') throw new Error(`${folder} exports no Plane`)
  const binary = loadedAddons().find((file) => !before.has(file)) ?? null
  const { name = path.basename(folder), version = null } = readJson(path.join(folder, 'package.json')) ?? {}
  return { Plane, name, version, root: folder, binary }
}

/** What to give to `require`: a package's folder, or the one addon in a folder without a manifest. */
function entryOf(folder) {
  if (fs.existsSync(path.join(folder, 'package.json'))) return folder
  const addons = fs.readdirSync(folder).filter((name) => name.endsWith('.node'))
  if (addons.length !== 1) throw new Error(`${folder} has no package.json and ${addons.length} .node files, instead of one`)
  return path.join(folder, addons[0])
}

function loadedAddons() {
  process.report.excludeNetwork = true
  return process.report.getReport().sharedObjects.filter((file) => file.endsWith('.node'))
}

function readJson(file) {
  return fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, 'utf8')) : null
}
