// Runs the tests of the JavaScript surface on any supported Node (20 takes no globs, 22 and later take no folders).
//
//     node scripts/test-js.mjs [--long] [part of a file name ...]
//
// --long sets VECPLANE_LONG=1, which lets the tests run that take minutes.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const wanted = process.argv.slice(2).filter((argument) => argument !== '--long')
const env = process.argv.includes('--long') ? { ...process.env, VECPLANE_LONG: '1' } : process.env

const files = fs
  .readdirSync(path.join(ROOT, '__test__'))
  .filter((name) => /\.test\.[cm]?js$/.test(name))
  .filter((name) => wanted.length === 0 || wanted.some((part) => name.includes(part)))
  .sort()
  .map((name) => path.join('__test__', name))
if (files.length === 0) {
  console.error(`no test file matches ${wanted.join(', ') || '*.test.js'}`)
  process.exit(1)
}
const runner = ['--test', '--test-reporter=spec', ...files]
const { status, signal } = spawnSync(process.execPath, runner, { cwd: ROOT, env, stdio: 'inherit' })
if (signal) console.error(`the tests ended by ${signal}`)
process.exit(status ?? 1)
