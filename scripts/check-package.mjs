// Packs what would be published, installs it into an empty project and uses it there: by require, by import, and by
// TypeScript in both module kinds. Needs the addon to be built.
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import ts from 'typescript'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const TYPE_TESTS = path.join(ROOT, '__test__', 'types')
const PUBLISHED = [
  'CHANGELOG.md',
  'LICENSE',
  'README.md',
  'binding.js',
  'index.d.mts',
  'index.d.ts',
  'index.js',
  'index.mjs',
  'options.js',
  'package.json',
]
const USE = `
  const file = require('node:path').join(process.cwd(), process.argv[1])
  const plane = Plane.create(file, { dims: 2, keyCap: 8 })
  plane.insert(Float32Array.of(1, 0), Buffer.from('east'))
  const { length } = plane.searchSync(Float32Array.of(1, 1), { k: 1 })
  if (length !== 1) throw new Error('the installed package found nothing')
`

const work = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-package-'))
try {
  const app = path.join(work, 'app')
  fs.mkdirSync(app)
  fs.writeFileSync(path.join(app, 'package.json'), '{ "name": "app", "version": "1.0.0", "private": true }\n')
  const tarballs = [pack(ROOT, PUBLISHED), packPlatform()]
  run('npm', ['install', '--offline', '--ignore-scripts', '--no-audit', '--no-fund', ...tarballs], app)
  checkModules(app)
  checkUsageIsComplete()
  checkTypes(app)
} finally {
  fs.rmSync(work, { recursive: true })
}

/** Packs a folder after checking that exactly the expected files go in. */
function pack(folder, expected) {
  const [{ filename, files }] = JSON.parse(run('npm', ['pack', '--json', '--pack-destination', work], folder))
  const names = files.map((file) => file.path).sort()
  if (String(names) !== String([...expected].sort())) {
    throw new Error(`the package holds\n  ${names.join('\n  ')}\ninstead of\n  ${expected.join('\n  ')}`)
  }
  return path.join(work, filename)
}

/** The package of this machine's platform, with the addon that was built here. */
function packPlatform() {
  const addon = fs.readdirSync(ROOT).find((name) => /^vecplane\..*\.node$/.test(name))
  if (!addon) throw new Error('the addon is not built: run npm run build')
  const platform = addon.slice('vecplane.'.length, -'.node'.length)
  const folder = path.join(work, platform)
  fs.cpSync(path.join(ROOT, 'npm', platform), folder, { recursive: true })
  fs.copyFileSync(path.join(ROOT, addon), path.join(folder, addon))
  return pack(folder, ['README.md', addon, 'package.json'])
}

function checkModules(app) {
  run(process.execPath, ['-e', `const { Plane } = require('vecplane');${USE}`, 'required.hnsw'], app)
  const imported = `import { createRequire } from 'node:module'
    import { Plane } from 'vecplane'
    const require = createRequire(import.meta.url)${USE}`
  run(process.execPath, ['--input-type=module', '-e', imported, 'imported.hnsw'], app)
  console.log('require and import work from the installed package')
}

/** Every name that index.d.ts declares to the public occurs in the type test. */
function checkUsageIsComplete() {
  const parse = (file) => ts.createSourceFile(file, fs.readFileSync(file, 'utf8'), ts.ScriptTarget.Latest, true)
  const visit = (node, see) => {
    see(node)
    ts.forEachChild(node, (child) => visit(child, see))
  }
  const used = new Set()
  visit(parse(path.join(TYPE_TESTS, 'usage.ts')), (node) => ts.isIdentifier(node) && used.add(node.text))
  const missing = []
  visit(parse(path.join(ROOT, 'index.d.ts')), (node) => {
    const isType = ts.isClassDeclaration(node) || ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node)
    const declared = isType || ts.isTypeElement(node) || ts.isClassElement(node)
    if (declared && node.name && ts.isIdentifier(node.name) && !used.has(node.name.text)) missing.push(node.name.text)
  })
  if (missing.length > 0) throw new Error(`__test__/types/usage.ts does not use ${missing.join(', ')}`)
}

/** The same program, checked as CommonJS and as a module against the installed declarations. */
function checkTypes(app) {
  for (const extension of ['cts', 'mts']) {
    fs.copyFileSync(path.join(TYPE_TESTS, 'usage.ts'), path.join(app, `usage.${extension}`))
  }
  fs.copyFileSync(path.join(TYPE_TESTS, 'tsconfig.json'), path.join(app, 'tsconfig.json'))
  fs.mkdirSync(path.join(app, 'node_modules', '@types'))
  fs.symlinkSync(path.join(ROOT, 'node_modules', '@types', 'node'), path.join(app, 'node_modules', '@types', 'node'), 'junction')
  fs.symlinkSync(path.join(ROOT, 'node_modules', 'undici-types'), path.join(app, 'node_modules', 'undici-types'), 'junction')
  run(process.execPath, [path.join(ROOT, 'node_modules', 'typescript', 'bin', 'tsc'), '--project', app], app)
  console.log('the declarations hold as CommonJS and as a module')
}

function run(command, args, cwd) {
  const shell = command === 'npm' && process.platform === 'win32'
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: 'utf8', shell })
  if (error) throw error
  if (status !== 0) throw new Error(`${command} ${args.slice(0, 2).join(' ')} failed:\n${stdout}${stderr}`)
  return stdout
}
