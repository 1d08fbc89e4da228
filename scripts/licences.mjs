// The licences of what an addon is linked from: the Rust crates that the engine and the Node layer use, on one target.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')

/** Licences that ask for no more than to be passed on with the binary. */
const PERMISSIVE = ['MIT', 'Apache-2.0', 'BSD-2-Clause', 'BSD-3-Clause', 'BSL-1.0', 'ISC', 'Unicode-3.0', 'Unlicense', 'Zlib']

/** The text that goes into a platform package. Fails when a crate has a licence that is not permissive. */
export function thirdPartyLicences(target) {
  const sections = crates(target).map(({ name, version, license, folder }) => {
    const choices = (license ?? '').split(/ OR |\//)
    if (!choices.some((choice) => PERMISSIVE.includes(choice))) throw new Error(`${name} ${version} has the licence ${license}`)
    return `${name} ${version}, ${license}\n\n${licenceText(folder) ?? `The crate comes without a copy of its licence; see https://spdx.org/licenses/${choices[0]}`}`
  })
  const rust = 'The Rust standard library, MIT OR Apache-2.0\n\nhttps://github.com/rust-lang/rust/blob/main/COPYRIGHT'
  return `The binary in this package contains code of these projects.\n\n${[...sections, rust].join(`\n\n${'-'.repeat(80)}\n\n`)}\n`
}

/** Crates from elsewhere that end up in the addon; build tools and macros do not. */
function crates(target) {
  const { status, stdout, stderr, error } = spawnSync('cargo', ['metadata', '--format-version', '1', '--locked', '--filter-platform', target], {
    cwd: ROOT,
    encoding: 'utf8',
    maxBuffer: 1 << 30,
  })
  if (error) throw error
  if (status !== 0) throw new Error(`cargo metadata failed: ${stderr}`)
  const { packages, resolve } = JSON.parse(stdout)
  const byId = new Map(packages.map((crate) => [crate.id, crate]))
  const dependencies = new Map(resolve.nodes.map(({ id, deps }) => [id, deps]))
  const linked = new Set()
  const visit = (id) => {
    if (linked.has(id) || byId.get(id).targets.some(({ kind }) => kind.includes('proc-macro'))) return
    linked.add(id)
    for (const { pkg, dep_kinds } of dependencies.get(id)) {
      if (dep_kinds.some(({ kind }) => kind === null)) visit(pkg)
    }
  }
  visit(packages.find(({ name }) => name === 'vecplane').id)
  return [...linked].map((id) => byId.get(id)).filter(({ source }) => source !== null)
    .map((crate) => ({ ...crate, folder: path.dirname(crate.manifest_path) }))
    .sort((a, b) => a.name.localeCompare(b.name))
}

function licenceText(folder) {
  const names = fs.readdirSync(folder).filter((name) => /^(licen[cs]e|copying|unlicense)/i.test(name)).sort()
  const name = names.find((name) => /mit/i.test(name)) ?? names[0]
  return name && fs.readFileSync(path.join(folder, name), 'utf8').trim()
}
