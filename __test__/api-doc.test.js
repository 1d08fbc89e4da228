const assert = require('node:assert/strict')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')
const ts = require('typescript')

const ROOT = path.join(__dirname, '..')
const read = (file) => fs.readFileSync(path.join(ROOT, file), 'utf8')

/** Names of what a declaration file exports to be called: members of its classes, and functions; not private constructors. */
function callable(file) {
  const source = ts.createSourceFile(file, read(file), ts.ScriptTarget.Latest, true)
  const names = new Set()
  const visit = (node) => {
    const named = ts.isMethodDeclaration(node) || ts.isMethodSignature(node) || ts.isPropertyDeclaration(node) || ts.isFunctionDeclaration(node)
    const inPlane = (ts.isClassDeclaration(node.parent ?? node) || ts.isInterfaceDeclaration(node.parent ?? node)) && node.parent?.name?.text === 'Plane'
    if (named && node.name && ts.isIdentifier(node.name) && (inPlane || ts.isFunctionDeclaration(node))) names.add(node.name.text)
    ts.forEachChild(node, visit)
  }
  visit(source)
  return names
}

test('the API document names every member and option', () => {
  const files = fs.readdirSync(ROOT).filter((name) => name.endsWith('.d.ts'))
  const members = new Set(files.flatMap((file) => [...callable(file)]))
  for (const known of ['create', 'insertBatch', 'searchSync', 'compact', 'verify', 'count']) assert.ok(members.has(known), known)
  const document = read('docs/api.md')
  const code = [...document.matchAll(/`([^`]+)`|```js\n([\s\S]*?)```/g)].map(([, inline, block]) => inline ?? block).join('\n')
  const missing = [...members].filter((name) => !new RegExp(`\\b${name}\\b`).test(code))
  assert.deepEqual(missing, [])
})
