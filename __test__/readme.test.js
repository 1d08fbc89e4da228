const assert = require('node:assert/strict')
const { spawnSync } = require('node:child_process')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
const { test } = require('node:test')

const ROOT = path.join(__dirname, '..')

/** What the example of the README leaves to its reader. */
const GIVEN = `
  const embedding = new Float32Array(384).fill(1)
  const embeddings = Float32Array.from({ length: 2 * 384 }, (_, i) => Math.sin(i))
  const keys = Buffer.from('article:2article:3')
  const keyEnds = Uint32Array.of(9, 18)
  const query = embedding
`

/** Programs in the documents, as opposed to fragments, start like this. */
const PROGRAM = "const { Plane } = require('vecplane')"

test('the programs in the documents run as they stand', () => {
  const programs = fs.readdirSync(path.join(ROOT, 'docs')).filter((name) => name.endsWith('.md')).flatMap((name) => {
    const text = fs.readFileSync(path.join(ROOT, 'docs', name), 'utf8')
    return [...text.matchAll(/```js\n([\s\S]*?)```/g)].map(([, source]) => ({ name, source })).filter(({ source }) => source.startsWith(PROGRAM))
  })
  assert.ok(programs.length > 0)
  for (const { name, source } of programs) {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-document-'))
    try {
      const program = `;(async () => {${source.replaceAll("'vecplane'", JSON.stringify(ROOT))}})()`
      const { status, stderr } = spawnSync(process.execPath, ['-e', program], { cwd: folder, encoding: 'utf8' })
      assert.deepEqual({ name, status, stderr }, { name, status: 0, stderr: '' })
    } finally {
      fs.rmSync(folder, { recursive: true })
    }
  }
})

test('the example of the README runs as it stands', () => {
  const readme = fs.readFileSync(path.join(ROOT, 'README.md'), 'utf8')
  const [, example] = readme.match(/```js\n([\s\S]*?)```/)
  const [first, ...rest] = example.split('\n')
  assert.match(first, /require\('vecplane'\)/)

  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-readme-'))
  try {
    const program = `${first.replace("'vecplane'", JSON.stringify(ROOT))}\n${GIVEN}\n;(async () => {${rest.join('\n')}})()`
    const { status, stdout, stderr } = spawnSync(process.execPath, ['-e', program], { cwd: folder, encoding: 'utf8' })
    assert.equal(stderr, '')
    assert.equal(status, 0)
    const keys = stdout.trimEnd().split('\n').map((line) => line.split(' ')[1])
    assert.equal(keys[0], 'article:1')
    assert.deepEqual(keys.toSorted(), ['article:1', 'article:2', 'article:3'])
    assert.deepEqual(fs.readdirSync(folder), ['articles.hnsw'])
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
})
