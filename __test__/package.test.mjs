// Packs what is published, installs it as a user would and uses it there: in a folder with spaces in its name, offline,
// and with nothing but Node to be found. Then takes parts away and sees these very checks fail.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import process from 'node:process'
import { after, before, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { buildSync } from 'esbuild'
import ts from 'typescript'

import { pack, platforms } from '../scripts/pack.mjs'
import { STYLES } from './import-styles.mjs'

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')
const TYPE_TESTS = path.join(ROOT, '__test__', 'types')
const MAIN = [
  'CHANGELOG.md', 'LICENSE', 'README.md', 'binding.js', 'copies.d.ts', 'errors.d.ts', 'index.d.mts', 'index.d.ts', 'index.js', 'index.mjs', 'input.js',
  'load.js', 'mirror.d.ts', 'mirror.js', 'options.js', 'package.json', 'predicate.d.ts', 'predicate.js', 'records.d.ts', 'records.js', 'reports.d.ts',
  'tags.js',
]
const PLATFORM_BYTES_MAX = 5_000_000
const VALUES = ['Plane', 'PlaneError', 'SearchHits', 'invalidatePlane', 'invalidatePlaneAsync', 'stalePathFor']
const HERE = platforms().find(({ addon }) => fs.existsSync(path.join(ROOT, addon)))

let work
let main
let platform
let app
let bare

before(() => {
  assert.ok(HERE, 'the addon is built')
  work = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane package '))
  ;[main, platform] = pack({ out: path.join(work, 'tarballs') })
  bare = bareEnvironment()
  app = path.join(work, 'an app')
  install(app)
})

after(() => fs.rmSync(work, { recursive: true }))

/** An environment in which there is Node and no compiler, Python or shell tools. */
function bareEnvironment() {
  const bin = path.join(work, 'bin')
  fs.mkdirSync(bin)
  if (process.platform === 'win32') return { ...process.env, PATH: path.dirname(process.execPath) }
  fs.symlinkSync(process.execPath, path.join(bin, 'node'))
  const { HOME, TMPDIR, npm_config_cache } = process.env
  return Object.fromEntries(Object.entries({ PATH: bin, HOME, TMPDIR, npm_config_cache }).filter(([, value]) => value !== undefined))
}

/** npm's own program, so that it needs no PATH to be found. */
function npmCli() {
  const node = path.dirname(fs.realpathSync(process.execPath))
  const onPath = process.env.PATH.split(path.delimiter).map((folder) => path.join(folder, 'npm')).filter(fs.existsSync)
  const found = [
    ...[process.env.npm_execpath].filter(Boolean).map((file) => path.join(path.dirname(file), 'npm-cli.js')),
    path.join(node, '..', 'lib', 'node_modules', 'npm', 'bin', 'npm-cli.js'),
    path.join(node, 'node_modules', 'npm', 'bin', 'npm-cli.js'),
    ...onPath.map((file) => fs.realpathSync(file)).filter((file) => path.basename(file) === 'npm-cli.js'),
  ].find(fs.existsSync)
  assert.ok(found, 'npm-cli.js is found')
  return found
}

/** Installs the tarballs into a new app, which depends on the main package alone; returns the milliseconds it took. */
function install(folder, ...flags) {
  fs.mkdirSync(folder)
  const manifest = { name: 'app', private: true, dependencies: { vecplane: `file:${main.file}` }, overrides: { [platform.name]: `file:${platform.file}` } }
  fs.writeFileSync(path.join(folder, 'package.json'), JSON.stringify(manifest))
  const started = performance.now()
  run(process.execPath, [npmCli(), 'install', '--offline', '--no-audit', '--no-fund', ...flags], folder)
  return performance.now() - started
}

function run(command, args, cwd, env = bare) {
  const { status, signal, stdout, stderr, error } = spawnSync(command, args, { cwd, env, encoding: 'utf8' })
  if (error) throw error
  assert.equal(status, 0, `${path.basename(command)} ${args.slice(0, 2).join(' ')} ended with ${signal ?? status}:\n${stdout}${stderr}`)
  return stdout
}

/** Runs each program in its own process. */
function checkStyles(folder, styles = STYLES) {
  for (const { name, file, source } of styles) {
    fs.writeFileSync(path.join(folder, file), source)
    const said = run(process.execPath, [file, path.join(folder, `${file}.hnsw`)], folder)
    assert.equal(said, 'ok\n', name)
    fs.rmSync(path.join(folder, `${file}.hnsw`))
  }
}

/** All forms export the same, which is what the declarations promise. */
function checkExports(folder) {
  const declared = ts.createSourceFile('index.d.ts', fs.readFileSync(path.join(folder, 'node_modules', 'vecplane', 'index.d.ts'), 'utf8'), ts.ScriptTarget.Latest, true)
  const exported = declared.statements.filter((node) => node.modifiers?.some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword))
  const passedOn = declared.statements.filter((node) => ts.isExportDeclaration(node) && !node.isTypeOnly && node.exportClause)
  const values = [
    ...exported.filter((node) => ts.isClassDeclaration(node) || ts.isFunctionDeclaration(node)).map((node) => node.name.text),
    ...passedOn.flatMap((node) => node.exportClause.elements.map(({ name }) => name.text)),
  ]
  const variables = exported.filter(ts.isVariableStatement).flatMap((node) => node.declarationList.declarations.map(({ name }) => name.text))
  assert.ok(values.length >= VALUES.length && VALUES.every((name) => values.includes(name)))
  const script = `import { createRequire } from 'node:module'
    import * as all from 'vecplane'
    const names = (object) => Object.keys(object).filter((name) => object[name] !== undefined).sort()
    console.log(JSON.stringify([names(createRequire(import.meta.url)('vecplane')), names(all.default), names(all)]))`
  fs.writeFileSync(path.join(folder, 'exports.mjs'), script)
  const [required, defaults, named] = JSON.parse(run(process.execPath, ['exports.mjs'], folder))
  const wanted = [...new Set([...values, ...variables])].sort()
  assert.deepEqual(required, wanted)
  assert.deepEqual(defaults, wanted)
  assert.deepEqual(named, [...wanted, 'default'].sort())
}

const RESOLUTIONS = [
  { module: 'node16', moduleResolution: 'node16' },
  { module: 'nodenext', moduleResolution: 'nodenext' },
  { module: 'preserve', moduleResolution: 'bundler' },
]

/** Type-checks one program as CommonJS and as a module; throws with what the compiler says. */
function checkTypes(folder, resolution) {
  for (const name of ['node', 'undici-types']) {
    const to = path.join(folder, 'node_modules', ...(name === 'node' ? ['@types', 'node'] : [name]))
    fs.mkdirSync(path.dirname(to), { recursive: true })
    if (!fs.existsSync(to)) fs.symlinkSync(path.join(ROOT, 'node_modules', ...(name === 'node' ? ['@types', 'node'] : [name])), to, 'junction')
  }
  for (const extension of ['cts', 'mts']) fs.copyFileSync(path.join(TYPE_TESTS, 'usage.ts'), path.join(folder, `usage.${extension}`))
  const { compilerOptions } = ts.readConfigFile(path.join(TYPE_TESTS, 'tsconfig.json'), (file) => fs.readFileSync(file, 'utf8')).config
  assert.ok(compilerOptions.strict && !compilerOptions.skipLibCheck)
  const { options, errors } = ts.convertCompilerOptionsFromJson({ ...compilerOptions, ...resolution }, folder)
  assert.deepEqual(errors, [])
  const program = ts.createProgram({ rootNames: ['cts', 'mts'].map((extension) => path.join(folder, `usage.${extension}`)), options })
  const found = ts.getPreEmitDiagnostics(program)
  assert.equal(found.length, 0, ts.formatDiagnostics(found, { getCurrentDirectory: () => folder, getCanonicalFileName: (name) => name, getNewLine: () => '\n' }))
}

test('the packages hold what they should, and no more', (t) => {
  assert.deepEqual(main.files, MAIN)
  assert.deepEqual(platform.files, ['LICENSE', 'README.md', 'THIRD-PARTY-LICENSES.txt', 'package.json', HERE.addon].sort())
  assert.ok(platform.unpackedSize < PLATFORM_BYTES_MAX, `${platform.unpackedSize} bytes`)
  for (const { name, size, unpackedSize } of [main, platform]) t.diagnostic(`${name}: ${size} bytes packed, ${unpackedSize} unpacked`)
  const manifest = JSON.parse(fs.readFileSync(path.join(app, 'node_modules', 'vecplane', 'package.json'), 'utf8'))
  assert.equal(manifest.license, 'Apache-2.0')
  for (const field of ['scripts', 'dependencies', 'peerDependencies', 'devDependencies']) assert.equal(manifest[field], undefined, field)
  const all = Object.fromEntries(platforms().map(({ name }) => [name, manifest.version]))
  assert.equal(Object.keys(all).length, 8)
  assert.deepEqual(manifest.optionalDependencies, all)
})

test('platform packages say where they belong', () => {
  for (const { platform, name, addon, os, cpu, libc, target } of platforms()) {
    const [system, processor, abi] = platform.split('-')
    assert.deepEqual([name, addon, os, cpu], [`vecplane-${platform}`, `vecplane.${platform}.node`, system, processor])
    assert.equal(libc, { gnu: 'glibc', musl: 'musl' }[abi])
    assert.ok(JSON.parse(fs.readFileSync(path.join(ROOT, 'package.json'), 'utf8')).napi.targets.includes(target), target)
  }
})

test('it installs offline without tools, and every import style works', (t) => {
  for (const tool of ['cargo', 'gcc', 'cc', 'python3', 'make']) assert.ok(spawnSync(tool, ['--version'], { env: bare }).error, tool)
  const milliseconds = install(path.join(work, 'another app'))
  t.diagnostic(`npm install took ${Math.round(milliseconds)} ms`)
  checkStyles(app)
  checkExports(app)
})

test('it works in a layout where packages see only what they depend on', () => {
  const strict = path.join(work, 'strict app')
  install(strict, '--install-strategy=linked')
  assert.deepEqual(fs.readdirSync(path.join(strict, 'node_modules')).filter((name) => !name.startsWith('.')), ['vecplane'])
  checkStyles(strict, STYLES.slice(0, 2))
})

test('a bundle that leaves the package external runs', () => {
  for (const { name, file, source } of STYLES.filter(({ file }) => !file.startsWith('worker'))) {
    fs.writeFileSync(path.join(app, file), source)
    const module = file.endsWith('.mjs')
    const outfile = `bundled-${file}`
    const { warnings } = buildSync({
      absWorkingDir: app, entryPoints: [file], outfile, bundle: true, platform: 'node', format: module ? 'esm' : 'cjs', external: ['vecplane'], logLevel: 'silent',
    })
    assert.deepEqual(warnings, [], name)
    assert.equal(run(process.execPath, [outfile, path.join(app, `${outfile}.hnsw`)], app), 'ok\n', name)
  }
})

for (const resolution of RESOLUTIONS) {
  test(`the declarations hold in both module kinds under ${resolution.moduleResolution}`, () => checkTypes(app, resolution))
}

test('the type test uses every declared name', () => {
  const parse = (file) => ts.createSourceFile(file, fs.readFileSync(file, 'utf8'), ts.ScriptTarget.Latest, true)
  const visit = (node, see) => {
    see(node)
    ts.forEachChild(node, (child) => visit(child, see))
  }
  const used = new Set()
  visit(parse(path.join(TYPE_TESTS, 'usage.ts')), (node) => ts.isIdentifier(node) && used.add(node.text))
  const missing = []
  const look = (node) => {
    const isType = ts.isClassDeclaration(node) || ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node)
    const declared = isType || ts.isTypeElement(node) || ts.isClassElement(node)
    if (declared && node.name && ts.isIdentifier(node.name) && !used.has(node.name.text)) missing.push(node.name.text)
  }
  for (const file of MAIN.filter((name) => name.endsWith('.d.ts'))) visit(parse(path.join(ROOT, file)), look)
  assert.deepEqual(missing, [])
})

test('on a platform that has no binary the error says which have one', () => {
  const script = `Object.defineProperty(process, 'platform', { value: 'sunos' })
    try { require('vecplane') } catch ({ code, platform, arch, package: wanted, message }) { console.log(JSON.stringify({ code, platform, arch, wanted, message })) }`
  const { message, ...rest } = JSON.parse(run(process.execPath, ['-e', script], app))
  assert.deepEqual(rest, { code: 'PLANE_BINARY_MISSING', platform: 'sunos', arch: process.arch, wanted: `vecplane-sunos-${process.arch}` })
  for (const { name } of platforms()) assert.ok(message.includes(name), name)
  assert.match(message, /Unsupported OS: sunos[^]*build one from source/)
})

// The checks above are worth what they catch.
for (const [name, spoil, check, expected] of [
  [
    'a missing platform package',
    (installed) => fs.rmSync(path.join(installed, '..', HERE.name), { recursive: true }),
    (folder) => checkStyles(folder, STYLES.slice(0, 1)),
    new RegExp(`no native binary that it can load on ${process.platform} ${process.arch}[^]*tried: Cannot find module '${HERE?.name}'[^]*` +
      `npm install ${HERE?.name}@[^]*lock file[^]*PLANE_BINARY_MISSING`),
  ],
  [
    'a binary of another version',
    (installed) => spoilJson(path.join(installed, 'package.json'), (manifest) => { manifest.version = '99.0.0' }),
    (folder) => checkStyles(folder, STYLES.slice(0, 1)),
    /vecplane 99\.0\.0 loaded a native binary of version \d[^]*lock file[^]*PLANE_BINARY_MISMATCH/,
  ],
  [
    'missing declarations',
    (installed) => fs.rmSync(path.join(installed, 'index.d.ts')),
    (folder) => checkTypes(folder, RESOLUTIONS[0]),
    /index\.d\.mts/,
  ],
  [
    'an export that only require has',
    (installed) => spoilText(path.join(installed, 'index.mjs'), ', SearchHits,', ','),
    checkExports,
    /SearchHits/,
  ],
  [
    'an export that no form has',
    (installed) => spoilText(path.join(installed, 'index.js'), 'PlaneError, SearchHits,', 'PlaneError,'),
    checkExports,
    /SearchHits/,
  ],
]) {
  test(`these checks notice ${name}`, () => {
    const folder = path.join(work, `without ${name}`)
    fs.cpSync(app, folder, { recursive: true, verbatimSymlinks: true })
    check(folder)
    spoil(path.join(folder, 'node_modules', 'vecplane'))
    assert.throws(() => check(folder), expected)
  })
}

function spoilJson(file, change) {
  const value = JSON.parse(fs.readFileSync(file, 'utf8'))
  change(value)
  fs.writeFileSync(file, JSON.stringify(value))
}

function spoilText(file, from, to) {
  const text = fs.readFileSync(file, 'utf8')
  assert.ok(text.includes(from), `${path.basename(file)} has ${from}`)
  fs.writeFileSync(file, text.replace(from, to))
}
