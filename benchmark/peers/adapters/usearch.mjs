// usearch takes the beam width of searches when an index is made, so each width has an index of its own, loaded from one file.
import { createRequire } from 'node:module'
import path from 'node:path'
import { rowOf } from '../../../fixtures/load.mjs'
import { EF_CONSTRUCTION, K, M } from '../engines.mjs'

const { Index, MetricKind, ScalarKind } = createRequire(import.meta.url)('usearch')

export async function open({ set, folder }) {
  const { dims, base } = set
  const make = (ef) =>
    new Index({
      dimensions: dims,
      metric: MetricKind.Cos,
      quantization: ScalarKind.F32,
      connectivity: M,
      expansion_add: EF_CONSTRUCTION,
      expansion_search: ef,
      multi: false,
    })
  const built = make(64)
  for (let row = 0; row < base.rows; row++) built.add(BigInt(row), rowOf(base, row), 1)
  const file = path.join(folder, 'index.usearch')
  built.save(file)
  const loaded = new Map()
  return {
    prepare: (vector) => vector,
    search: (ef) => {
      if (!loaded.has(ef)) {
        const index = make(ef)
        index.load(file)
        loaded.set(ef, index)
      }
      const index = loaded.get(ef)
      return (query) => index.search(query, K, 1)
    },
    rows: ({ keys }) => Array.from(keys, Number),
    close: () => {},
  }
}
