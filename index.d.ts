/// <reference types="node" />

/**
 * A persistent vector index: one memory-mapped file, an HNSW graph, nearest neighbours of embeddings.
 *
 * ```js
 * const { Plane } = require('vecplane')
 * const plane = Plane.create('docs.hnsw', { dims: 384, keyCap: 32 })
 * plane.insert(embedding, 'article:1')
 * await plane.flushAsync()
 * for (const { key, distance } of await plane.search(query, { k: 5 })) console.log(String(key), distance)
 * ```
 *
 * **Arguments.** Vectors are `Float32Array`s, at any offset of any buffer; number arrays, other typed arrays and Buffers
 * are refused and never reinterpreted. Keys are strings (stored as UTF-8), Buffers or Uint8Arrays. Every call copies what
 * it is given before it returns, promise or not, so the caller may reuse or transfer its arrays at once.
 *
 * **Results.** Every array that a call returns is the caller's own memory and stays as it is whatever happens to the plane.
 *
 * **Failures.** A wrong argument is a `TypeError` (`ERR_INVALID_ARG_TYPE`, `ERR_INVALID_ARG_VALUE`) or a `RangeError`
 * (`ERR_OUT_OF_RANGE`, and `PLANE_DIMENSION_MISMATCH`, `PLANE_NOT_FINITE`, `PLANE_ZERO_QUERY` for vectors); everything
 * else is a {@link PlaneError}. Members that return promises reject with what the others throw. Any member may fail with
 * `PLANE_CLOSED` and `PLANE_REPLACED`; any that changes the plane also with `PLANE_READ_ONLY`, `PLANE_LOCKED`,
 * `PLANE_SYNC_FAILED`, and with the operating system's `ENOSPC` when the disk is full.
 *
 * **Distances** are smaller when nearer: `1 - a.b / (|a| |b|)` in [0, 2] for `'cosine'`, the squared Euclidean distance
 * for `'l2'`, `-a.b` for `'inner-product'`.
 *
 * @packageDocumentation
 */

import type { CompactOptions, CompactResult, SnapshotOptions } from './copies.js'
import type { PlaneError } from './errors.js'
import type { Filter, PlaneRecord, RecordsOptions, Tag, TagQuery, WriteOptions } from './records.js'
import type { CalibrateOptions, Calibration, Stats, VerifyReport } from './reports.js'

export type { CompactOptions, CompactResult, SnapshotOptions } from './copies.js'
export { PlaneError } from './errors.js'
export type { PlaneErrorCode } from './errors.js'
// Members of `Plane` that are declared beside their types: `searchWithPredicate` in predicate.d.ts; `invalidate`,
// `invalidateFile`, `invalidated` and what else hosts of a mirror need in mirror.d.ts.
export { invalidatePlane, invalidatePlaneAsync, stalePathFor } from './mirror.js'
export type { Invalidation } from './mirror.js'
export type { PredicateHits, PredicateSearchOptions, SearchPredicate, Verdicts } from './predicate.js'
export type { Filter, KeyFilter, PlaneRecord, RecordsOptions, Tag, TagQuery, WriteOptions } from './records.js'
export type { CalibrateOptions, Calibration, Stats, VerifyReport } from './reports.js'

/** How the distance between two vectors is defined. Cosine similarity is `1 - distance`. */
export type Metric = 'cosine' | 'l2' | 'inner-product'

/**
 * How components are kept for the walk through the graph: `'int8'` and `'int16'` with a scale per vector, `'f16'`, or
 * `'f32'` as given. One, two, two and four bytes a component.
 */
export type Precision = 'int8' | 'int16' | 'f16' | 'f32'

/**
 * The exact copy that final candidates are scored with inside the search: the vector as given (`'f32'`, four bytes a
 * component), in half precision (`'f16'`, two bytes), or none. Always `'none'` with precision `'f32'`.
 */
export type Rerank = 'f32' | 'f16' | 'none'

/** A record's key: a string stands for its UTF-8 bytes. */
export type Key = string | Uint8Array

/** What `Plane.create` makes a plane with. All but `dims` have defaults. Out of range: `ERR_OUT_OF_RANGE`. */
export interface CreateOptions {
  /** Components of every vector, 1 to 65,536. */
  dims: number
  /** Default `'cosine'`. Unknown: `ERR_INVALID_ARG_VALUE`. */
  metric?: Metric
  /** Default `'int8'`. Unknown: `ERR_INVALID_ARG_VALUE`. */
  precision?: Precision
  /** Default `'f32'`. Unknown: `ERR_INVALID_ARG_VALUE`. */
  rerank?: Rerank
  /** Links a record keeps on each layer above 0, 2 to 256. More find more and cost memory. Default 16. */
  M?: number
  /**
   * Links a record keeps on layer 0, 2 to 512. Default `2 * M`. A new one chooses at most `1.5 * M` of them itself, or three
   * quarters of this if that is fewer, but not below `M`; the others come from its neighbours.
   */
  layer0Cap?: number
  /** Beam width while inserting, 1 to 1,048,576. More give a better graph and slower inserts. Default 200. */
  efConstruction?: number
  /** Bytes of a key stored beside its record, 0 to 65,535; longer keys cost extra room. 0, the default: no keys. */
  keyCap?: number
  /** Whether a key belongs to at most one record; the keyed members need it. Default: whether `keyCap` is above 0. */
  uniqueKeys?: boolean
  /** Most records the plane may hold, 1 to 2,147,483,646. Default: no limit; the file grows as needed either way. */
  maxNodes?: number
  /** With `maxNodes`: keys longer than `keyCap` may take this many bytes times `maxNodes`. Default: no limit. */
  keyArenaBytesPerNode?: number
  /** Whether to replace an existing file, atomically, instead of failing with `PLANE_EXISTS`. Default false. */
  overwrite?: boolean
  /** Milliseconds a write waits while another process is writing, before `PLANE_LOCKED`. Default 5,000. */
  lockTimeout?: number
}

export interface OpenOptions {
  /** Refuse every change (`PLANE_READ_ONLY`), and open files that cannot be written. Default false. */
  readOnly?: boolean
  /** Milliseconds a write waits while another process is writing, before `PLANE_LOCKED`. Default 5,000. */
  lockTimeout?: number
}

/** How `openAsync` opens an existing plane. */
export interface OpenAsyncOptions extends OpenOptions {
  /**
   * Called about ten times a second while a recovery looks through the file, with slots looked at and slots in all, and
   * once at the end. What it throws ends the call, which rejects with it.
   */
  onProgress?: (done: number, total: number) => void
  /** Ends the call with `ABORT_ERR`; the file is as it was. */
  signal?: AbortSignal
}

/** What a query asks for. */
export interface SearchOptions {
  /** Hits wanted, 0 to 1,048,576. Fewer matches give a shorter answer, never an error. Default 10. Fails with `ERR_OUT_OF_RANGE`. */
  k?: number
  /**
   * Beam width, 1 to 1,048,576, raised to `k` when lower. More find more of the true neighbours and take longer.
   * Default: none, but a `recall` of 0.98, when the plane has a calibration that is not stale; else `max(160, 4 * k)`, which gives as
   * much on the vectors it was measured with. A search with a filter takes the larger of the two widths. Fails with `ERR_OUT_OF_RANGE`.
   */
  ef?: number
  /**
   * Share of the true neighbours to find on average, above 0 and below 1, instead of `ef` (both: a `TypeError` with
   * `ERR_INVALID_ARG_VALUE`). How far walks go comes from {@link Plane.calibrate}, and aims at no more than
   * `min(0.005, (1 - recall) / 2)` below; `docs/tuning.md` has what it came to on real vectors. For a calibrated `k`, and below the
   * smallest one, walks end early for easy queries and go on for hard ones, which takes less time than a beam width that finds as much;
   * another `k` goes by the beam widths of the nearest ones, and so does a search with a filter. A plane of up to 1,000 records
   * looks at all of them and needs no calibration. Fails with `ERR_OUT_OF_RANGE` (also for 1: `searchExact` finds all),
   * `PLANE_NOT_CALIBRATED`, `PLANE_RECALL_UNREACHABLE`.
   */
  recall?: number
  /**
   * Instead of the `k` nearest: all records whose distance is at most this, the nearest `limit` of them. A finite number; not
   * below 0 for `'cosine'` and `'l2'`. Fails with `ERR_OUT_OF_RANGE`, and together with `k` or `recall` with
   * `ERR_INVALID_ARG_VALUE`. Found by a walk like all else: a higher `ef` misses fewer.
   */
  within?: number
  /** With `within`: most hits wanted, 0 to 1,048,576. Default 1,000. Fails with `ERR_OUT_OF_RANGE`; without `within`: `ERR_INVALID_ARG_VALUE`. */
  limit?: number
  /** Which records may be returned. Default: all of them. */
  filter?: Filter | null
  /** Which tags records must have or not, besides what `filter` allows. Default: any. */
  tags?: TagQuery | null
  /** Whether to score final candidates with the exact copy, where the plane keeps one. Default true. */
  rerank?: boolean
}

export interface AsyncSearchOptions extends SearchOptions {
  /** Stops the search: a queued one is not run, and the promise rejects with `ABORT_ERR` unless it was settled before. */
  signal?: AbortSignal
}

/** What `searchExact` looks for. */
export interface ExactSearchOptions {
  /** Hits wanted, 0 to 1,048,576. Default 10. Fails with `ERR_OUT_OF_RANGE`. */
  k?: number
  /** As in {@link SearchOptions}. */
  filter?: Filter | null
  /** As in {@link SearchOptions}; all that are there, for certain. */
  within?: number
  /** As in {@link SearchOptions}. */
  limit?: number
  /** As in {@link SearchOptions}. */
  tags?: TagQuery | null
}

export interface InsertBatchOptions {
  /** All keys, one after the other; record i has `keys.subarray(keyEnds[i - 1] ?? 0, keyEnds[i])`. Default: no keys. */
  keys?: Uint8Array | null
  /** Where each record's key ends in `keys`: one ascending number a record. Malformed: `ERR_INVALID_ARG_VALUE`. */
  keyEnds?: Uint32Array | null
  /**
   * Each record's tags, as in {@link WriteOptions}: as many entries as records (`ERR_INVALID_ARG_VALUE`), undefined or null for
   * none. A record whose tags cannot be stored is rejected. With more than 16,384 records they are looked at piece by piece, as large
   * arrays are copied. Default: no tags.
   */
  tags?: Iterable<Iterable<Tag> | null | undefined> | null
  /** Threads to insert with, 1 to 1,024. Default: every hardware thread. Fails with `ERR_OUT_OF_RANGE`. */
  threads?: number
  /**
   * Told how many records are done, about ten times a second and once at the end; in a load, the last fifth counts up while links
   * are chosen anew. What it throws stops the batch and is what the promise rejects with.
   */
  onProgress?: (done: number, total: number) => void
  /** Stops the batch. The promise rejects with `ABORT_ERR` once inserts in flight have finished; see {@link PlaneError.ids}. */
  signal?: AbortSignal
}

/** What every query of a `searchBatch` asks for. */
export interface BatchSearchOptions extends SearchOptions {
  /** Threads to search with, 1 to 1,024. Default: every hardware thread. Fails with `ERR_OUT_OF_RANGE`. */
  threads?: number
}

/**
 * The answers to many queries, one after the other: query 0 has the first `counts[0]` hits, query 1 the next `counts[1]`, and
 * so on, each ascending by distance. The arrays are the caller's own memory, all views of one ArrayBuffer.
 */
export interface BatchSearchResult {
  ids: Uint32Array
  distances: Float32Array
  /** Keys of all hits, one after the other. */
  keys: Buffer
  /** End of each hit's key in `keys`. */
  keyEnds: Uint32Array
  /** How many hits each query has. */
  counts: Uint32Array
}

/** A record of a batch that was left out for its own sake. */
export interface Rejection {
  /** Its position in the batch. */
  index: number
  /** NaN, infinity or a norm past f32; a key too long or on a plane without keys; a wrong length; a key in use; a bad tag. */
  code: 'not-finite' | 'key-unstorable' | 'dimension-mismatch' | 'key-exists' | 'tag-invalid'
  /** For a person. */
  reason: string
}

export interface InsertBatchResult {
  /** Id of each record in input order, `0xFFFFFFFF` where it was rejected. The caller's own. */
  ids: Uint32Array
  /** Records that were left out, by ascending index. */
  rejected: Rejection[]
}

/** One hit of an answer. */
export interface Hit {
  id: number
  distance: number
  /** View of the answer's `keys`; empty when the record has no key. */
  key: Buffer
}

/**
 * The answer to one query: parallel arrays, ascending by distance, equal distances by id. They are the caller's own memory,
 * all views of one ArrayBuffer made for this answer, so transferring one of them transfers them all.
 */
export class SearchHits implements Iterable<Hit> {
  private constructor()
  /** Ids of the records found. */
  readonly ids: Uint32Array
  /** Distance of each from the query, smaller is nearer. */
  readonly distances: Float32Array
  /** Keys of all hits, one after the other. */
  readonly keys: Buffer
  /** End of each hit's key in `keys`. */
  readonly keyEnds: Uint32Array
  /** How many records were found. */
  get length(): number
  /** Key of hit `i` as a view of `keys`; empty when it has none. Fails with `ERR_OUT_OF_RANGE` past the last hit. */
  key(i: number): Buffer
  [Symbol.iterator](): IterableIterator<Hit>
}

/**
 * A handle on a plane. Handles of one process on the same file share its mapping, and any number of processes may have it
 * open. An idle handle does not keep the process alive.
 */
export class Plane {
  private constructor()

  /**
   * Creates a plane. An existing file is refused with `PLANE_EXISTS` unless `overwrite` is set.
   *
   * Fails with `ERR_INVALID_ARG_TYPE`, `ERR_INVALID_ARG_VALUE` (an unknown option, named with the nearest right spelling;
   * `uniqueKeys` without `keyCap`), `ERR_OUT_OF_RANGE`, and the operating system's codes (`ENOENT`, `EACCES`, `ENOSPC`, ...).
   */
  static create(path: string | URL, options: CreateOptions): Plane
  /**
   * Creates a plane with the published defaults, and **replaces** whatever is at `path`, atomically: a crash leaves the old
   * file or the new one. Metric cosine, no exact copy, `M = max(2, layer0Cap >> 1)`, keys may belong to several records.
   * Prefer the form with options. Fails like it.
   */
  static create(
    path: string | URL,
    dims: number,
    layer0Cap: number,
    maxNodes: number,
    keyCap?: number,
    keyArenaBytesPerNode?: number,
    precision?: Precision,
  ): Plane

  /**
   * Opens a plane. Takes milliseconds after a clean close or a killed process; after a crash of the machine it recovers first.
   *
   * Fails with `PLANE_INVALIDATED`, `PLANE_NOT_A_PLANE`, `PLANE_UNSUPPORTED_VERSION`, `PLANE_TRUNCATED`, `PLANE_CORRUPT`, `PLANE_NEEDS_RECOVERY`
   * (`readOnly` only), and the operating system's codes (`ENOENT`, `EACCES`, `EISDIR`, ...).
   */
  static open(path: string | URL, options?: OpenOptions): Plane

  /**
   * As `open`, off the event loop: after a crash of the machine, opening takes a scan of the whole file, up to some
   * seconds per million records. Rejects as `open` throws, and with `ABORT_ERR`.
   */
  static openAsync(path: string | URL, options?: OpenAsyncOptions): Promise<Plane>

  /** Path of the file. */
  readonly path: string
  /** Whether the handle was opened with `readOnly`. */
  readonly readOnly: boolean
  /** Whether `close` has been called. */
  readonly closed: boolean
  /** Components of every vector. */
  readonly dims: number
  readonly metric: Metric
  readonly precision: Precision
  readonly rerank: Rerank
  /** Links a record keeps on each layer above 0. */
  readonly M: number
  /** Links a record keeps on layer 0. */
  readonly layer0Cap: number
  /** Beam width while inserting. */
  readonly efConstruction: number
  /** Bytes of a key stored beside its record; 0 when records have no keys. */
  readonly keyCap: number
  /** Whether a key belongs to at most one record. */
  readonly uniqueKeys: boolean
  /** Most records the plane may hold; undefined without a limit. */
  readonly maxNodes: number | undefined
  /** Live records. */
  readonly count: number

  /** Whether no recovery ran when the plane was opened. */
  openedClean(): boolean
  /** One past the highest id ever given. Ids of removed records are given again before it grows. */
  idHighWater(): number
  /** `[id, level]` of the record where every search starts; null when there are none. */
  getEntryPoint(): [id: number, level: number] | null
  /** Sizes and counts, read without a scan. */
  stats(): Stats
  /** Walks the whole plane, on a thread of its own, and tells what is wrong with it. Takes seconds per million records. */
  verify(): Promise<VerifyReport>

  /**
   * Refuses new calls at once (`PLANE_CLOSED`), lets those in flight finish, flushes if this handle changed anything, and
   * resolves when the file is given back. Rejects if the flush failed; the file is given back all the same. Calling it again
   * returns the same promise.
   */
  close(): Promise<void>
  /**
   * Starts to close, for `using`. Whoever must know when the file is given back, or handle a flush that fails, uses
   * `await using` or `close`: here a failed flush becomes an unhandled rejection.
   */
  [Symbol.dispose](): void
  /** Closes, for `await using`. */
  [Symbol.asyncDispose](): Promise<void>

  /**
   * Adds one record and returns its id. With `uniqueKeys` every record needs a key of its own. Cosine planes take zero
   * vectors too; their distance to everything is 1.
   *
   * Fails with `PLANE_DIMENSION_MISMATCH`, `PLANE_NOT_FINITE` (a NaN, an infinity, or a norm past the largest f32),
   * `PLANE_FULL`, `PLANE_KEY_UNSTORABLE`, `PLANE_KEYS_FULL`, `PLANE_KEY_EXISTS` (with `uniqueKeys`), `PLANE_TAG_INVALID`.
   */
  insert(vector: Float32Array, key?: Key | null, options?: WriteOptions): number
  /** {@link Plane.insert} on the libuv pool. */
  insertAsync(vector: Float32Array, key?: Key | null, options?: WriteOptions): Promise<number>

  /**
   * Adds many records, on threads of its own: `vectors` holds `count * dims` components, one record after the other.
   * Batches on one handle run one after another, in the order of the calls, and searches go on beside them. The arrays are
   * copied before the call returns up to 16 MiB; larger ones 4 MiB at a time, with turns of the event loop in between,
   * so leave them as they are until the promise settles (`ERR_INVALID_ARG_VALUE` when one is detached meanwhile).
   *
   * A load, a batch of 64 or more records that is larger than what the plane holds, goes over its records a second time once all have
   * landed: each chooses its links anew, among all of them. That takes a quarter as long again, and searches have a tenth less
   * to look at. What came in smaller batches gets the same from {@link Plane.compact} with `relink`. Planes of inner
   * products have no second pass.
   *
   * A record that is bad for its own sake is listed in `rejected`, and the others land. Whatever stops the batch as a whole
   * (`PLANE_FULL`, `PLANE_KEYS_FULL`, `ENOSPC`, `ABORT_ERR`, ...) rejects once inserts in flight have finished, with an
   * error whose {@link PlaneError.ids} and {@link PlaneError.inserted} tell what landed. Malformed input
   * (`vectors` no multiple of `dims`, `keyEnds` that do not fit: `ERR_INVALID_ARG_VALUE`) rejects before anything is added.
   */
  insertBatch(vectors: Float32Array, options?: InsertBatchOptions): Promise<InsertBatchResult>
  insertBatch(
    vectors: Float32Array,
    keys?: Uint8Array | null,
    keyEnds?: Uint32Array | null,
    threads?: number,
  ): Promise<InsertBatchResult>

  /**
   * Removes a record: no search that starts later returns it. Returns whether there was one; an id that is dead or was never
   * given is no error. Fails with `ERR_OUT_OF_RANGE` unless `id` is an integer from 0 to 4,294,967,295.
   */
  remove(id: number): boolean
  /** Removes many records and returns how many there were. */
  removeBatch(ids: Uint32Array): number
  /** {@link Plane.removeBatch} on a thread of its own, in turn with `insertBatch`. */
  removeBatchAsync(ids: Uint32Array): Promise<number>

  /**
   * Adds a record under `key`, in place of the one that has it, and returns its id. At every moment a lookup finds the old
   * record or the new one, and no answer has both. Needs `uniqueKeys` (`ERR_INVALID_ARG_VALUE`). Fails like
   * {@link Plane.insert}.
   */
  upsert(key: Key, vector: Float32Array, options?: WriteOptions): number
  /** {@link Plane.upsert} on the libuv pool. */
  upsertAsync(key: Key, vector: Float32Array, options?: WriteOptions): Promise<number>
  /**
   * {@link Plane.upsert} for many records, in the manner of {@link Plane.insertBatch}. `keys` and `keyEnds` must be given.
   * Of several records with one key the last counts, and all of them get its id.
   */
  upsertBatch(vectors: Float32Array, options: InsertBatchOptions): Promise<InsertBatchResult>
  /** Removes the record of a key; returns whether there was one. Needs `uniqueKeys` (`ERR_INVALID_ARG_VALUE`). */
  removeKey(key: Key): boolean
  /** Whether a live record has the key. Needs `uniqueKeys` (`ERR_INVALID_ARG_VALUE`). */
  has(key: Key): boolean
  /** Id of the record that has the key, if any. Needs `uniqueKeys` (`ERR_INVALID_ARG_VALUE`). */
  idOf(key: Key): number | undefined
  /** Key of a live record, empty when it has none; undefined when there is no such record. The caller's own. */
  keyOf(id: number): Buffer | undefined
  /**
   * Vector of the record that has the key, if any: bit for bit as given where an f32 copy is kept, else as decoded from what
   * is kept. Needs `uniqueKeys` (`ERR_INVALID_ARG_VALUE`). The caller's own.
   */
  get(key: Key): Float32Array | undefined
  /** Vector of a live record, as in {@link Plane.get}; undefined when there is no such record. The caller's own. */
  getById(id: number): Float32Array | undefined
  /**
   * Tags of a live record, numbers first and ascending, then strings in the order of their bytes; undefined when there is no such
   * record. The caller's own.
   */
  tagsOf(id: number): Tag[] | undefined
  /**
   * {@link Plane.get} for many keys at once: in the order of the keys, the vector of each, or undefined where no record has
   * it. Needs `uniqueKeys` (`ERR_INVALID_ARG_VALUE`). The arrays are the caller's own.
   */
  getMany(keys: Iterable<Key>): (Float32Array | undefined)[]
  /**
   * Iterates over all live records, ascending by id, reading about a megabyte at a time, so that memory is bounded whatever
   * the plane holds. To go on later, in this process or another, pass the last key (or id) as `after`.
   *
   * It may run beside writers, and ends whatever they add. A record that keeps its id from the first step to the last is given
   * exactly once, as it is; one that is added, removed or replaced meanwhile may be given or not (an `upsert` gives the key
   * another id, so it may even be given as it was and again as it is). When `compact` with `renumber` gives the records new
   * ids, the next chunk fails with `PLANE_RENUMBERED`; other compactions do not disturb it.
   *
   * Fails at once with `ERR_INVALID_ARG_VALUE`, `ERR_OUT_OF_RANGE`, `PLANE_KEY_NOT_FOUND`.
   */
  records(options?: RecordsOptions): IterableIterator<PlaneRecord>
  /** {@link Plane.records} from the first record on. */
  [Symbol.iterator](): IterableIterator<PlaneRecord>

  /**
   * Finds nearest neighbours, on the libuv pool.
   *
   * Fails with `PLANE_DIMENSION_MISMATCH`, `PLANE_NOT_FINITE`, `PLANE_ZERO_QUERY` (cosine: no direction to compare with),
   * `ERR_OUT_OF_RANGE` (`k`, `ef`, `recall`, `within`, `limit`), `ERR_INVALID_ARG_VALUE` (an unknown option, or two that exclude
   * each other), `PLANE_NOT_CALIBRATED` and `PLANE_RECALL_UNREACHABLE` (`recall`), `ABORT_ERR`.
   */
  search(vector: Float32Array, options?: AsyncSearchOptions): Promise<SearchHits>
  /**
   * The same by position. `filterExpansion` (1 to 1,048,576, default 40) times `ef` (but at least 128) is how many records a walk
   * among allowed ones may look at before an exact scan takes over; it never shortens an answer.
   */
  search(
    vector: Float32Array,
    k: number,
    ef?: number,
    filter?: Filter | null,
    filterExpansion?: number,
  ): Promise<SearchHits>
  /** {@link Plane.search} on the calling thread. Fails like it. */
  searchSync(vector: Float32Array, options?: SearchOptions): SearchHits
  searchSync(
    vector: Float32Array,
    k: number,
    ef?: number,
    filter?: Filter | null,
    filterExpansion?: number,
  ): SearchHits
  /**
   * Answers many queries in one call, on threads of its own: `vectors` holds them one after the other. Fails like `search`,
   * and with `ERR_INVALID_ARG_VALUE` when `vectors` is no multiple of `dims`; one bad query fails them all.
   */
  searchBatch(vectors: Float32Array, options?: BatchSearchOptions): Promise<BatchSearchResult>
  /** Compares the query with every record: the true neighbours, for small planes and for measuring recall. Fails like `search`. */
  searchExact(vector: Float32Array, options?: ExactSearchOptions): SearchHits
  /** {@link Plane.searchExact} on the libuv pool. */
  searchExactAsync(vector: Float32Array, options?: ExactSearchOptions): Promise<SearchHits>

  /**
   * Measures which share of the true neighbours searches find with an `ef` from `max(k, 4)` to 4,096, and keeps the curve in
   * the file: searches that ask for a `recall`, or for nothing, go by it from then on, in every process. Records are asked for their own
   * neighbours, each taken for absent meanwhile; the truth is a scan of all records. On threads of its own, after batches of
   * the same handle; searches go on, and writes too, though much writing blurs the result. Records are not changed, and the
   * curve is on the disk when the promise resolves. It survives `snapshot` and `compact`. Curves of up to 5 `k` are kept; a
   * sixth takes the place of the oldest.
   *
   * Measure again after the plane has changed much ({@link Stats.calibrationStale}). For the time it takes see `docs/tuning.md`.
   *
   * Fails with `PLANE_TOO_SMALL` (fewer records than 1,000 or `2 * k`: a plane of up to 1,000 needs no calibration),
   * `PLANE_READ_ONLY`, `PLANE_LOCKED`, `ABORT_ERR`, `ERR_OUT_OF_RANGE`.
   */
  calibrate(options?: CalibrateOptions): Promise<Calibration>
  /** What `calibrate` has found, by ascending `k`; empty before the first time. The caller's own. */
  calibration(): Calibration[]

  /**
   * Makes everything that was acknowledged before the call durable: it survives a killed process, a crashed system and a
   * power cut. Then sets the watermark, if one is given.
   *
   * Costs what was changed. On Linux it may write as much as the slots take (`stats().slotBytes * count`) when the file lies in
   * memory in large pieces, after a load or a copy, and another process has it open as well. Blocks until the disk has answered;
   * prefer {@link Plane.flushAsync}. A failed sync (`EIO`, `ENOSPC`, ...) stops all writes with `PLANE_SYNC_FAILED` until the
   * plane is opened again.
   */
  flush(watermark?: number): void
  /** {@link Plane.flush} on the libuv pool. */
  flushAsync(watermark?: number): Promise<void>
  /**
   * The caller's own number, kept with the data, for instance the last log position that was indexed. 0 at first, and for ever
   * once the plane is invalidated.
   */
  getWatermark(): number
  /**
   * Sets the watermark that the next flush makes durable; it never gets ahead of the data. Fails with `ERR_OUT_OF_RANGE`
   * unless it is an integer from 0 to `Number.MAX_SAFE_INTEGER`.
   */
  setWatermark(watermark: number): void

  /**
   * Copies the plane to another file: everything acknowledged before the call, and whatever came in until one moment before
   * it resolves. The copy is on the disk then, opens clean, holds what the plane holds under the same ids and keys, and is a
   * plane of its own. Searches go on, and writes wait only while what has changed during the copying is copied again. Other
   * processes may have the plane open. Restoring is opening the copy, or moving it to where it is wanted.
   *
   * Fails with `PLANE_EXISTS`, `PLANE_LOCKED`, `PLANE_SYNC_FAILED`, `ABORT_ERR`, `ERR_INVALID_ARG_VALUE` (the path is the
   * plane's own), the operating system's codes (`ENOENT`: no such directory, `EACCES`, `ENOSPC`, ...), and `PLANE_READ_ONLY` when the
   * file cannot be written and another process was changing it. Whatever it fails with leaves nothing behind.
   */
  snapshot(path: string | URL, options?: SnapshotOptions): Promise<void>

  /**
   * Writes the plane anew and puts the new file in the place of the old one, atomically: a crash leaves one or the other,
   * whole, and what is there afterwards is on the disk. Records keep their ids, keys, vectors and neighbours, and the
   * watermark is set as by a flush. What goes is the room behind the last record, and what long keys, links and the key index
   * have left unused; the room of records removed before the last one stays for new ones, unless `renumber` is set.
   *
   * All handles on the plane, in all processes, go on with the new file from their next operation; searches under way end on
   * the old one, whose room the system gets back when nobody uses it any more. Searches do not wait. Writes do: the promise
   * forms called in this process before it end first, later ones wait while it runs, synchronous ones up to 50 ms, and those of
   * other processes up to their `lockTimeout`, before they fail with `PLANE_LOCKED`; later calls and batches of the same
   * handle come in turn. The new file is written beside the old one, so there must be room for both.
   *
   * With `path`, or a path as the only argument, the new file goes there and the plane stays as it is.
   *
   * Fails with `PLANE_LOCKED`, `PLANE_READ_ONLY`, `PLANE_LINKED`, `PLANE_CORRUPT` (a record does not match its checksum),
   * `PLANE_SYNC_FAILED`, `ABORT_ERR`, the operating system's codes (`ENOSPC`, `EACCES`, ...); with `path` also like
   * {@link Plane.snapshot}. Whatever it fails with leaves the plane as it was and nothing behind.
   */
  compact(options?: CompactOptions | string | URL): Promise<CompactResult>
}
