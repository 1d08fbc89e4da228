// Uses every declared member the way callers do. Checked against the installed package as CommonJS and as a module;
// compiled, never run.
import { Plane, PlaneError, SearchHits, invalidatePlane, invalidatePlaneAsync, stalePathFor } from 'vecplane'
import type {
  AsyncSearchOptions,
  BatchSearchOptions,
  CalibrateOptions,
  Calibration,
  BatchSearchResult,
  CompactOptions,
  CompactResult,
  CreateOptions,
  ExactSearchOptions,
  Filter,
  Hit,
  InsertBatchOptions,
  InsertBatchResult,
  Invalidation,
  Key,
  KeyFilter,
  Metric,
  OpenAsyncOptions,
  OpenOptions,
  PlaneErrorCode,
  PlaneRecord,
  Precision,
  RecordsOptions,
  PredicateHits,
  PredicateSearchOptions,
  Rejection,
  Rerank,
  SearchOptions,
  SearchPredicate,
  SnapshotOptions,
  Stats,
  Tag,
  TagQuery,
  Verdicts,
  VerifyReport,
  WriteOptions,
} from 'vecplane'

const vector = new Float32Array(4)
const keys = Buffer.from('article:1article:2')
const keyEnds = Uint32Array.of(9, 18)
const signal: AbortSignal = new AbortController().signal

export function create(): Plane {
  const metric: Metric = 'cosine'
  const precision: Precision = 'int8'
  const rerank: Rerank = 'f32'
  const options: CreateOptions = {
    dims: 4,
    metric,
    precision,
    rerank,
    M: 16,
    layer0Cap: 32,
    efConstruction: 200,
    keyCap: 16,
    uniqueKeys: true,
    maxNodes: 1000,
    keyArenaBytesPerNode: 64,
    overwrite: true,
    lockTimeout: 100,
  }
  Plane.create('docs.hnsw', 4, 32, 1000)
  Plane.create('docs.hnsw', 4, 32, 1000, 16, 64, 'int16')
  // @ts-expect-error dims has no default
  Plane.create('docs.hnsw', {})
  // @ts-expect-error a plane is made by create or open
  new Plane()
  return Plane.create(new URL('file:///docs.hnsw'), options)
}

export async function open(): Promise<void> {
  const watched: OpenAsyncOptions = { onProgress: (done: number, total: number) => void (done / total), signal }
  await (await Plane.openAsync('docs.hnsw', watched)).close()
  const options: OpenOptions = { readOnly: true, lockTimeout: 100 }
  await using scoped = Plane.open('docs.hnsw', options)
  using briefly = Plane.open('docs.hnsw')
  const described: (string | number | boolean | undefined)[] = [
    scoped.path,
    scoped.readOnly,
    scoped.closed,
    scoped.dims,
    scoped.metric,
    scoped.precision,
    scoped.rerank,
    scoped.M,
    scoped.layer0Cap,
    scoped.efConstruction,
    scoped.keyCap,
    scoped.uniqueKeys,
    scoped.maxNodes,
    scoped.count,
    scoped.openedClean(),
    scoped.idHighWater(),
  ]
  // @ts-expect-error what a file says of itself cannot be assigned
  briefly.dims = described.length
  const entry: [id: number, level: number] | null = briefly.getEntryPoint()
  briefly[Symbol.dispose]()
  await scoped[Symbol.asyncDispose]()
  const closed: void = await briefly.close()
  return entry === null ? undefined : closed
}

export async function change(plane: Plane): Promise<number> {
  const key: Key = 'article:1'
  const write: WriteOptions = { tags: new Set<Tag>(['lang:en', 7]) }
  const ids: number[] = [
    plane.insert(vector),
    plane.insert(vector, key),
    plane.insert(vector, null, { tags: ['tenant:42', 7] }),
    await plane.insertAsync(vector, key, write),
    plane.upsert(key, vector, write),
    await plane.upsertAsync(key, vector, write),
    plane.insert(vector, Buffer.from('article:2')),
    await plane.insertAsync(vector, new Uint8Array(4)),
    plane.upsert(key, vector),
    await plane.upsertAsync(key, vector),
  ]
  const options: InsertBatchOptions = {
    keys,
    keyEnds,
    tags: [['lang:en'], undefined, null, new Set([7])],
    threads: 2,
    onProgress: (done: number, total: number) => ids.push(done, total),
    signal,
  }
  const result: InsertBatchResult = await plane.insertBatch(vector, options)
  await plane.insertBatch(vector, keys, keyEnds, 2)
  await plane.upsertBatch(vector, { keys, keyEnds })
  const rejection: Rejection | undefined = result.rejected[0]
  if (rejection?.code === 'not-finite') ids.push(rejection.index, rejection.reason.length)
  // @ts-expect-error number arrays are refused
  plane.insert([1, 2, 3, 4])
  const removed: boolean[] = [plane.remove(1), plane.removeKey(key)]
  return removed.length + plane.removeBatch(result.ids) + (await plane.removeBatchAsync(result.ids))
}

export function read(plane: Plane): (Float32Array | undefined)[] {
  const id: number | undefined = plane.idOf('article:1')
  const key: Buffer | undefined = id === undefined ? undefined : plane.keyOf(id)
  const tags: Tag[] | undefined = plane.tagsOf(0)
  if (tags === undefined) return []
  const many: (Float32Array | undefined)[] = plane.getMany([key ?? 'a', new Uint8Array(1)])
  return key && plane.has(key) ? [plane.get(key), plane.getById(0), ...many] : []
}

export function* iterate(plane: Plane): Generator<number> {
  const options: RecordsOptions = { after: 'article:1' }
  const places: RecordsOptions[] = [options, {}, { after: 7 }, { after: new Uint8Array(1) }]
  for (const place of places) {
    for (const { id, key, vector, tags } of plane.records(place)) yield id + key.length + vector.length + tags.length
  }
  const records: PlaneRecord[] = [...plane]
  yield records.length
}

export async function search(plane: Plane): Promise<Hit[]> {
  const tags: TagQuery = { anyOf: ['a', 7], allOf: new Set(['b']), noneOf: [] }
  const options: SearchOptions = { k: 5, ef: 64, filter: new Uint8Array(8), tags, rerank: true }
  const byKey: KeyFilter = { keys: new Set<Key>(['article:1', new Uint8Array(4)]) }
  const filters: Filter[] = [byKey, new Uint8Array(4), { keys: ['article:2'] }]
  const exact: ExactSearchOptions = { k: 5, tags, filter: filters[0] ?? null }
  const cancellable: AsyncSearchOptions = { ...options, signal }
  const answers: SearchHits[] = [
    plane.searchSync(vector),
    plane.searchSync(vector, options),
    plane.searchSync(vector, 10, 128, null, 24),
    plane.searchSync(vector, 10, 128, byKey),
    plane.searchExact(vector, exact),
    await plane.search(vector, cancellable),
    await plane.search(vector, 10, 128, new Uint8Array(8), 24),
    await plane.searchExactAsync(vector),
  ]
  // @ts-expect-error a search that blocks cannot be stopped
  plane.searchSync(vector, cancellable as { signal: AbortSignal })
  return answers.flatMap((hits) => {
    const parallel: [Uint32Array, Float32Array, Buffer, Uint32Array] = [hits.ids, hits.distances, hits.keys, hits.keyEnds]
    const first: Buffer | undefined = hits.length > 0 ? hits.key(0) : undefined
    const found: Hit[] = [...hits]
    return found.filter(({ id, distance, key }) => id + distance + key.length + parallel.length > 0 && first !== key)
  })
}

export async function searchMany(plane: Plane): Promise<number> {
  const options: BatchSearchOptions = { k: 5, ef: 64, filter: null, rerank: true, threads: 2 }
  const { ids, distances, keys, keyEnds, counts }: BatchSearchResult = await plane.searchBatch(vector, options)
  const parallel: (Uint32Array | Float32Array | Buffer)[] = [ids, distances, keys, keyEnds, counts]
  return parallel.reduce((sum, array) => sum + array.length, 0)
}

export async function searchAsked(plane: Plane): Promise<number> {
  const predicate: SearchPredicate = (ids, keys, keyEnds) => Uint8Array.from(ids, (id) => Number(id < keys.length + keyEnds.length))
  const verdicts: Verdicts = [true, 0]
  const options: PredicateSearchOptions = {
    k: 5, ef: 64, filterExpansion: 8, visitBudget: 1000, rerank: true, signal: AbortSignal.timeout(1),
  }
  const hits: PredicateHits = await plane.searchWithPredicate(vector, predicate, options)
  const later: PredicateHits = await plane.searchWithPredicate(vector, async (ids) => ids.map((id) => id > 3), {})
  const same: PredicateHits = await plane.searchWithPredicate(vector, 10, undefined, (ids) => Buffer.alloc(ids.length), 24, null)
  return hits.truncated ? hits.length : later.length + same.key(0).length + verdicts.length
}

export async function calibrated(plane: Plane): Promise<number> {
  const options: CalibrateOptions = { k: 5, samples: 1000, threads: 1, onProgress: (done, total) => done / total, signal }
  const { k, samples, count, stale, curve }: Calibration = await plane.calibrate(options)
  const curves: Calibration[] = [...plane.calibration(), await plane.calibrate()]
  const points: { ef: number; recall: number; adaptiveRecall?: number }[] = stale ? [] : curve
  const asked: SearchHits = await plane.search(vector, { k, recall: 0.99 })
  const within: SearchHits[] = [
    await plane.search(vector, { within: 0.3, limit: 50, ef: 200, filter: null }),
    plane.searchExact(vector, { within: 0.3, limit: 5 }),
  ]
  return samples + count + curves.length + points.length + asked.length + within.length
}

export async function maintain(plane: Plane): Promise<number> {
  plane.setWatermark(7)
  plane.flush()
  plane.flush(8)
  await plane.flushAsync(plane.getWatermark())
  const copying: SnapshotOptions = { overwrite: true, onProgress: (done, total) => done / total }
  await plane.snapshot(new URL('file:///tmp/copy.hnsw'), copying)
  const compacting: CompactOptions = { path: 'compacted.hnsw', overwrite: true, renumber: true, relink: true, threads: 2, signal: AbortSignal.timeout(1) }
  const { bytesBefore, bytesAfter, newIds }: CompactResult = await plane.compact(compacting)
  const smaller: number = bytesBefore - bytesAfter + (newIds?.length ?? 0)
  await plane.compact('elsewhere.hnsw')
  plane.flush(smaller)
  const stats: Stats = plane.stats()
  const { writing, copyOnWrite, calibrationStale, kernels, ...sizes }: Stats = stats
  const report: VerifyReport = await plane.verify()
  const { ok, examples, ...findings } = report
  const counts: number[] = [...Object.values(sizes), ...Object.values(findings), ...examples]
  const named: number[] = [
    stats.count,
    stats.idHighWater,
    stats.limbo,
    stats.free,
    stats.maxLevel,
    stats.fileBytes,
    stats.slotBytes,
    stats.exactBytes,
    stats.keyEntryBytes,
    stats.heapBytes,
    stats.longKeyBytes,
    stats.tagCopyBytes,
    stats.extents,
    stats.flushes,
    report.live,
    report.checksumFailures,
    report.invalidLinks,
    report.danglingLinks,
    report.unreachable,
    report.unlinked,
    report.keyIndexMismatches,
    report.invalidRecords,
    report.lostSlots,
  ]
  return ok && writing && !copyOnWrite ? kernels.length + counts.length : named.length
}

export function mirrored(plane: Plane): boolean {
  plane.writeNodeRaw(7, 1, Buffer.from([1, 2, 3, 4]), 0.5, 1, Uint32Array.of(3), [Uint32Array.of(4)], 'key')
  plane.writeNodeRaw(8, 0, new Uint8Array(4), 0, 0, new Uint32Array())
  plane.setEntryPoint(7, 1)
  const written: boolean = plane.writeNodeRawIfAbsent(9, 0, new Uint8Array(4), 0, 0, keyEnds, null, null)
  return plane.clearNode(8) && written
}

export async function giveUp(plane: Plane): Promise<string> {
  plane.invalidate()
  const { inBand, sidecar, inBandError, sidecarError }: Invalidation = plane.invalidateFile()
  const again: Invalidation[] = [invalidatePlane(plane.path), await invalidatePlaneAsync(new URL('file:///tmp/a.hnsw'))]
  return `${plane.invalidated()} ${inBand} ${sidecar} ${inBandError ?? ''}${sidecarError ?? ''} ${again.length} ${stalePathFor(plane.path)}`
}

export function explain(error: unknown): string {
  if (!(error instanceof PlaneError)) return String(error)
  const code: PlaneErrorCode = error.code
  const landed: Uint32Array | undefined = error.ids
  return `${code} ${error.message} ${landed?.length ?? 0} ${error.inserted ?? 0}`
}
