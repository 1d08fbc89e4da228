'use strict'

// Loads the addon. binding.js, which is generated, knows where binaries may be; this file says what to do when it finds
// none, and refuses one that was not built together with these sources.

const path = require('node:path')
const { version, name, optionalDependencies } = require('./package.json')

const HELP = `https://github.com/vecplane/vecplane/blob/main/docs/troubleshooting.md#the-native-binary`
const REINSTALL = 'delete node_modules and the lock file (package-lock.json, pnpm-lock.yaml, yarn.lock, bun.lock) and install again'

/** What decides which binary fits; `libc` only on Linux, where there are two. */
function machine() {
  const { platform, arch } = process
  if (platform !== 'linux') return { platform, arch, package: `${name}-${platform}-${arch}${platform === 'win32' ? '-msvc' : ''}` }
  const glibc = glibcVersion()
  const libc = glibc ? `glibc ${glibc}` : 'musl'
  return { platform, arch, libc, package: `${name}-${platform}-${arch}-${glibc ? 'gnu' : 'musl'}` }
}

function glibcVersion() {
  const { report } = process
  if (!report?.getReport) return 'of unknown version'
  report.excludeNetwork = true
  return report.getReport().header.glibcVersionRuntime
}

/** The first line of each error on the way, oldest first. */
function tried(error) {
  const lines = []
  for (let at = error.cause; at; at = at.cause) lines.unshift(at.message.split('\n')[0])
  // The generated loader looks for a WebAssembly build as well, which this package does not have.
  return lines.filter((line) => !line.includes('wasi'))
}

function missing(error) {
  const here = machine()
  const where = `${here.platform} ${here.arch}${here.libc ? ` (${here.libc})` : ''}`
  const offered = Object.keys(optionalDependencies ?? {})
  // Only what is published has them.
  const steps = offered.length === 0 ? ['This is a clone: npm run build makes a binary for this machine.'] : offered.includes(here.package) ? [
    `Install the package for this machine: npm install ${here.package}@${version}`,
    'If it should have been installed: a lock file made on another platform, --omit=optional or --no-optional leave it out, ' +
      `and so does a node_modules folder copied from another machine; ${REINSTALL}.`,
    `If the program is bundled, keep ${name} out of the bundle ("external") and ship node_modules/${name}* beside it.`,
  ] : [`There are binaries for ${offered.join(', ')}; for other machines build one from source.`]
  const message = [
    `${name} ${version} found no native binary that it can load on ${where}, Node ABI ${process.versions.modules}.`,
    ...tried(error).map((line) => `  tried: ${line}`),
    ...steps,
    `More: ${HELP}`,
  ].join('\n')
  return Object.assign(new Error(message, { cause: error }), { code: 'PLANE_BINARY_MISSING', ...here })
}

function mismatched(binding) {
  const file = Object.keys(require.cache ?? {}).find((file) => require.cache[file]?.exports === binding)
  const found = typeof binding.version === 'function' ? `version ${binding.version()}` : 'an unknown version'
  const from = file ? ` (${path.normalize(file)})` : ''
  const message = `${name} ${version} loaded a native binary of ${found}${from}. Both must be of one version: ${REINSTALL}.\nMore: ${HELP}`
  return Object.assign(new Error(message), { code: 'PLANE_BINARY_MISMATCH', ...machine() })
}

function load() {
  let binding
  try {
    binding = require('./binding.js')
  } catch (error) {
    throw missing(error)
  }
  if (typeof binding.version !== 'function' || binding.version() !== version) throw mismatched(binding)
  return binding
}

module.exports = load()
