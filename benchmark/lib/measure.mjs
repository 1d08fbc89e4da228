// Clocks, percentiles, and what a figure must name to be worth anything.
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import os from 'node:os'
import process from 'node:process'

/** Runs `work`; gives its result, the seconds that passed and the processor seconds of the whole process. */
export async function timed(work) {
  const cpu = process.cpuUsage()
  const started = performance.now()
  const result = await work()
  return { result, wall_s: (performance.now() - started) / 1e3, cpu_s: cpuSince(cpu) / 1e6 }
}

/** Processor time of this process, all threads, since `start`: microseconds. */
export function cpuSince(start) {
  const { user, system } = process.cpuUsage(start)
  return user + system
}

export function percentile(values, share) {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
}

/** Median with its spread. */
export function spread(values) {
  const sorted = Float64Array.from(values).sort()
  const middle = sorted.length >> 1
  const median = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
  return { median, min: sorted[0], max: sorted.at(-1) }
}

/** The machine and the state it is in. */
export function machine() {
  return {
    processor: os.cpus()[0].model,
    threads: os.availableParallelism(),
    memory_gib: Math.round(os.totalmem() / 2 ** 30),
    system: `${os.type()} ${os.release()}`,
    node: process.version,
    load: os.loadavg()[0],
    cpu_set: process.env.BENCH_CPU_SET ?? null,
  }
}

/** Commit of the checkout that an engine was loaded from, and whether its sources differ from it; null outside of one. */
export function commitOf(folder) {
  const git = (...args) => spawnSync('git', ['-C', folder, ...args], { encoding: 'utf8' })
  const top = git('ls-files', '--error-unmatch', 'package.json')
  if (top.error || top.status !== 0) return null
  const commit = git('rev-parse', 'HEAD').stdout.trim()
  const changed = git('status', '--porcelain', '--', 'src', 'crates', 'index.js', 'Cargo.lock').stdout !== ''
  return changed ? `${commit} with changes` : commit
}

export function sha256OfFile(file) {
  return file && createHash('sha256').update(fs.readFileSync(file)).digest('hex')
}

/** Puts a command on the processors that `BENCH_CPU_SET` names, in the form of `taskset -c`. */
export function pinned(command, args) {
  const set = process.env.BENCH_CPU_SET
  return set ? ['taskset', ['-c', set, command, ...args]] : [command, args]
}
