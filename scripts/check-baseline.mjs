// Shows that the x86-64 addon runs on any 64-bit processor: what goes beyond SSE2 is only in kernels that are chosen at
// run time, and a search works on an emulated processor without AVX. Needs objdump and qemu-x86_64; says so where they
// are missing.
//
//     node scripts/check-baseline.mjs [addon]
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const ADDON = path.resolve(process.argv[2] ?? path.join(ROOT, 'vecplane.linux-x64-gnu.node'))
/** Functions that are only called once the processor was seen to have what they need. */
const DISPATCHED = /^(vecplane_core::distance::x86_64::avx(2|512)::|half::binary16::arch::x86::)/
/** AVX and what came with it start with v or work on mask registers; the others are SSE3 to SSE4.2, BMI, AES, SHA. */
const BEYOND_SSE2 = new RegExp('^(v(?!err|erw|mcall|mxo)|k(mov|or|and|xor|not|add|test|shift|unpck|xnor)|pshufb|palignr|pabs|psign|' +
  'pmaddubsw|pmulhrsw|ph(add|sub)|pmulld|pmuldq|pmov[sz]x|p(min|max)(s[bd]|u[wd])|pextr[bdq]|pinsr[bdq]|pblend|blend|dpp|round|' +
  'ptest|packusdw|pcmpeqq|pcmpgtq|pcmp[ei]str|insertps|extractps|mpsadbw|movntdqa|lddqu|mov(d|sh|sl)dup|h(add|sub)p|addsubp|' +
  'crc32|popcnt|lzcnt|andn$|bextr|bls|bzhi|mulx|pdep|pext$|rorx|s[ah][rl]x|aes|pclmul|sha[12])')
/** A processor of 2008: SSE4.2, no AVX. */
const OLD_CPU = 'Nehalem'

if (!fs.existsSync(ADDON)) fail(`${ADDON} does not exist: run npm run build`)
if (available('objdump')) checkInstructions()
if (available('qemu-x86_64')) checkOldProcessor()

function checkInstructions() {
  const { status, stdout, stderr } = spawnSync('objdump', ['--disassemble', '--demangle', '--no-show-raw-insn', ADDON], {
    encoding: 'utf8',
    maxBuffer: 1 << 30,
    // The lines are parsed, so they must be in one language.
    env: { ...process.env, LC_ALL: 'C' },
  })
  if (status !== 0) fail(`objdump failed: ${stderr}`)
  const found = new Map()
  let name = '(no name)'
  for (const line of stdout.split('\n')) {
    const start = /^[0-9a-f]+ <(.*)>:$/.exec(line)
    if (start) name = start[1]
    const instruction = line.split('\t')[1]?.trim().split(/\s/)[0]
    if (!instruction || !BEYOND_SSE2.test(instruction)) continue
    if (!found.has(name)) found.set(name, new Set())
    found.get(name).add(instruction)
  }
  const [kernels, others] = [true, false].map((dispatched) => [...found].filter(([name]) => DISPATCHED.test(name) === dispatched))
  // Kernels in which nothing is found mean that the search for such instructions does not work.
  if (kernels.length < 5) fail(`only ${kernels.length} dispatched kernels use AVX: is the addon for x86-64, and does it have its symbols?`)
  for (const [name, instructions] of others) console.error(`${name} uses ${[...instructions].join(', ')}`)
  if (others.length > 0) fail(`${others.length} functions need more than SSE2 and are not dispatched`)
  console.log(`instructions: ${kernels.length} dispatched functions go beyond SSE2, no other does`)
}

function checkOldProcessor() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-baseline-'))
  try {
    const avx = path.join(folder, 'avx')
    fs.writeFileSync(avx, avxProgram(), { mode: 0o755 })
    // Without this the emulator might just let AVX pass.
    const [old, modern] = [OLD_CPU, 'max'].map((cpu) => spawnSync('qemu-x86_64', ['-cpu', cpu, avx]))
    if (modern.status !== 0) return skip(`this qemu-x86_64 cannot run AVX at all: ${modern.signal ?? modern.stderr}`)
    if (old.signal !== 'SIGILL') fail(`the emulated ${OLD_CPU} runs AVX: ${old.signal ?? old.status}`)
    const addon = path.join(ROOT, 'scripts', 'smoke.cjs')
    const { status, signal, stdout, stderr } = spawnSync('qemu-x86_64', ['-cpu', OLD_CPU, process.execPath, '--jitless', addon], {
      encoding: 'utf8',
      env: { ...process.env, NAPI_RS_NATIVE_LIBRARY_PATH: ADDON },
    })
    if (status !== 0) fail(`on an emulated ${OLD_CPU} the addon failed (${signal ?? status}): ${stderr}`)
    const { kernels } = JSON.parse(stdout)
    if (kernels !== 'scalar') fail(`on an emulated ${OLD_CPU} the addon chose the ${kernels} kernels`)
    console.log(`emulated ${OLD_CPU}: every precision builds and searches, with the ${kernels} kernels`)
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
}

/** A whole Linux program that executes one AVX instruction and leaves with 0. */
function avxProgram() {
  // vzeroupper; mov eax, 60 (exit); xor edi, edi; syscall
  const code = Buffer.from('c5f877b83c00000031ff0f05', 'hex')
  const base = 0x400000n
  const headers = Buffer.alloc(64 + 56)
  headers.write('\x7fELF\x02\x01\x01', 0, 'latin1')
  headers.writeUInt16LE(2, 16) // executable
  headers.writeUInt16LE(62, 18) // x86-64
  headers.writeUInt32LE(1, 20)
  headers.writeBigUInt64LE(base + BigInt(headers.length), 24) // entry
  headers.writeBigUInt64LE(64n, 32) // program headers
  headers.writeUInt16LE(64, 52)
  headers.writeUInt16LE(56, 54)
  headers.writeUInt16LE(1, 56)
  headers.writeUInt32LE(1, 64) // load
  headers.writeUInt32LE(5, 68) // readable, executable
  headers.writeBigUInt64LE(base, 80)
  headers.writeBigUInt64LE(base, 88)
  headers.writeBigUInt64LE(BigInt(headers.length + code.length), 96)
  headers.writeBigUInt64LE(BigInt(headers.length + code.length), 104)
  headers.writeBigUInt64LE(0x1000n, 112)
  return Buffer.concat([headers, code])
}

function available(tool) {
  const { error } = spawnSync(tool, ['--version'])
  if (error) skip(`${tool} is not available`)
  return !error
}

function skip(why) {
  console.error(`!!! SKIPPED: ${why}`)
}

function fail(why) {
  console.error(why)
  process.exit(1)
}
