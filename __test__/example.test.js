const assert = require('node:assert/strict')
const { spawnSync } = require('node:child_process')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
const { after, before, test } = require('node:test')

const ROOT = path.join(__dirname, '..')
const EXAMPLE = path.join(ROOT, 'examples', 'example.cjs')

/** Opens the plane in a process of its own and prints what it finds. */
const READER = `
  const { Plane } = require(${JSON.stringify(ROOT)})
  const plane = Plane.open(process.argv[1])
  const hits = plane.searchSync(Float32Array.of(0, 1, 1, 0), { k: 3 })
  const keys = Array.from(hits, (hit) => hit.key.toString())
  plane.verify().then(({ ok }) => {
    console.log(JSON.stringify({ count: plane.count, clean: plane.openedClean(), keys, ok }))
  })
`

let folder
before(() => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vecplane-example-'))
})
after(() => fs.rmSync(folder, { recursive: true }))

function run(...args) {
  return spawnSync(process.execPath, args, { encoding: 'utf8', timeout: 60_000 })
}

test('the example stores three articles that another process finds, and refuses to run over them', () => {
  const file = path.join(folder, 'articles.hnsw')

  const first = run(EXAMPLE, file)
  assert.equal(first.stderr, '')
  assert.equal(first.status, 0)
  const [summary, ...hits] = first.stdout.trimEnd().split('\n')
  assert.match(summary, /^3 articles are on disk/)
  assert.deepEqual(
    hits.map((line) => line.split(' ')[0]),
    ['article:1', 'article:2'],
  )

  const reader = run('-e', READER, file)
  assert.equal(reader.stderr, '')
  assert.deepEqual(JSON.parse(reader.stdout), {
    count: 3,
    clean: true,
    keys: ['article:3', 'article:2', 'article:1'],
    ok: true,
  })

  const bytes = fs.readFileSync(file)
  const second = run(EXAMPLE, file)
  assert.equal(second.status, 1)
  assert.match(second.stderr, /^PLANE_EXISTS: /)
  assert.ok(second.stderr.includes(file), 'the message names the path')
  assert.deepEqual(fs.readFileSync(file), bytes, 'a refused run leaves the file as it was')
})

test('the example says what is wrong when its path has no folder', () => {
  const { status, stderr } = run(EXAMPLE, path.join(folder, 'absent', 'articles.hnsw'))
  assert.equal(status, 1)
  assert.match(stderr, /^ENOENT: /)
})

test('the example on recall gets what it asks for', () => {
  const { status, stdout, stderr } = run(path.join(ROOT, 'examples', 'recall.cjs'), path.join(folder, 'recall.hnsw'))
  assert.deepEqual({ status, stderr }, { status: 0, stderr: '' })
  assert.match(stdout, /^measured with 1000 of 20000 records/)
  const asked = [...stdout.matchAll(/^asked for ([\d.]+), found ([\d.]+)$/gm)].map(([, asked, found]) => [Number(asked), Number(found)])
  assert.deepEqual(asked.map(([recall]) => recall), [0.9, 0.99])
  for (const [recall, found] of asked) assert.ok(found >= recall - 0.02, `${recall} asked, ${found} found`)
  assert.match(stdout, /^\d+ records are at most/m)
})

test('the example of filters finds what each of them allows', () => {
  const { status, stdout, stderr } = run(path.join(ROOT, 'examples', 'filters.cjs'), path.join(folder, 'books.hnsw'))
  assert.equal(stderr, '')
  assert.equal(status, 0)
  assert.deepEqual(stdout.trimEnd().split('\n'), [
    'any: moby-dick, walden',
    'French or German: effi-briest, germinal',
    'novels of 1885: germinal',
    'no novels: walden, maldoror',
    'two by name: germinal, maldoror',
    'before 1860: moby-dick, walden',
  ])
})
