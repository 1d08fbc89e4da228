'use strict'

const { fileURLToPath } = require('node:url')
const { isLarge, pieces } = require('./input.js')
const binding = require('./load.js')
const { K_DEFAULT, asked, coded, known, must } = require('./options.js')
const { filterOf, keysOf, records } = require('./records.js')
const mirror = require('./mirror.js')
const { askedSearch } = require('./predicate.js')
const { columnInTurns, columnOf, decoded, isLong, tagsFrom } = require('./tags.js')

const dispose = Symbol.dispose ?? Symbol.for('nodejs.dispose')
const asyncDispose = Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')
const PROGRESS_INTERVAL_MS = 100

/** Every failure that is not a wrong argument; `code` says which. An aborted call is named as everywhere in Node. */
class PlaneError extends Error {
  static { Object.defineProperty(this.prototype, 'name', { value: 'PlaneError', writable: true, configurable: true }) }

  constructor(message, code) {
    super(message)
    this.code = code
    if (code === 'ABORT_ERR') this.name = 'AbortError'
  }
}
binding.setPlaneError(PlaneError)

/** The answer to one query: parallel arrays, nearest first, all of them views of one buffer made for this answer. */
class SearchHits {
  /** Native code fills the buffer with ids, distances, key ends and keys, and hands over the view of the ids. */
  constructor(ids) {
    const { buffer, length } = ids
    this.ids = ids
    this.distances = new Float32Array(buffer, 4 * length, length)
    this.keys = Buffer.from(buffer, 12 * length)
    this.keyEnds = new Uint32Array(buffer, 8 * length, length)
  }

  get length() { return this.ids.length }

  key(i) {
    if (!Number.isInteger(i) || i < 0 || i >= this.length) {
      throw coded(RangeError, 'ERR_OUT_OF_RANGE', `there is no hit ${String(i)} among ${this.length}`)
    }
    return this.keys.subarray(i === 0 ? 0 : this.keyEnds[i - 1], this.keyEnds[i])
  }

  *[Symbol.iterator]() {
    for (let i = 0; i < this.length; i++) yield { id: this.ids[i], distance: this.distances[i], key: this.key(i) }
  }
}

const CREATE_OPTIONS = ['dims', 'metric', 'precision', 'rerank', 'M', 'layer0Cap', 'efConstruction', 'keyCap',
  'uniqueKeys', 'maxNodes', 'keyArenaBytesPerNode', 'overwrite', 'lockTimeout']
const OPEN_OPTIONS = ['readOnly', 'lockTimeout']
const OPEN_ASYNC_OPTIONS = [...OPEN_OPTIONS, 'onProgress', 'signal']
const BATCH_OPTIONS = ['keys', 'keyEnds', 'tags', 'threads', 'onProgress', 'signal']
const SNAPSHOT_OPTIONS = ['overwrite', 'onProgress', 'signal']
const COMPACT_OPTIONS = ['path', 'overwrite', 'renumber', 'relink', 'threads', 'onProgress', 'signal']
const CALIBRATE_OPTIONS = ['k', 'samples', 'threads', 'onProgress', 'signal']
const EXACT_OPTIONS = ['k', 'filter', 'tags', 'within', 'limit']
const SEARCH_SYNC_OPTIONS = ['k', 'ef', 'recall', 'filter', 'tags', 'rerank', 'within', 'limit']
const SEARCH_OPTIONS = [...SEARCH_SYNC_OPTIONS, 'signal']
const PREDICATE_OPTIONS = ['k', 'ef', 'filterExpansion', 'visitBudget', 'rerank', 'signal']
const SEARCH_BATCH_OPTIONS = [...SEARCH_SYNC_OPTIONS, 'threads']

class Plane {
  #native
  #info
  #closing
  /** Settles when the last large batch has been copied; undefined when none is being copied. */
  #copying

  constructor(native) {
    if (!(native instanceof binding.NativePlane)) {
      throw coded(TypeError, 'ERR_ILLEGAL_CONSTRUCTOR', 'use Plane.create or Plane.open')
    }
    this.#native = native
    this.#info = native.info()
  }

  static create(path, dims, layer0Cap, maxNodes, keyCap = 0, keyArenaBytesPerNode = undefined, precision = 'int8') {
    if (dims !== null && typeof dims === 'object') {
      return new Plane(binding.NativePlane.create(fileOf(path), { ...known(CREATE_OPTIONS, dims) }))
    }
    return new Plane(binding.NativePlane.create(fileOf(path), {
      dims, layer0Cap: required(layer0Cap), maxNodes: required(maxNodes), keyCap, keyArenaBytesPerNode, precision,
      // As published: whatever is at the path is replaced, keys may repeat, and no exact copy is kept.
      overwrite: true, uniqueKeys: false, rerank: 'none', M: typeof layer0Cap === 'number' ? Math.max(2, layer0Cap >> 1) : 2,
    }))
  }

  static open(path, options) {
    return new Plane(binding.NativePlane.open(fileOf(path), { ...known(OPEN_OPTIONS, options) }))
  }

  static async openAsync(path, options) {
    const { onProgress, signal, ...rest } = known(OPEN_ASYNC_OPTIONS, options)
    const start = (control) => binding.NativePlane.openAsync(fileOf(path), rest, control)
    return new Plane(await followed(start, signal, onProgress))
  }

  get path() { return this.#info.path }
  get readOnly() { return this.#info.readOnly }
  get dims() { return this.#info.dims }
  get metric() { return this.#info.metric }
  get precision() { return this.#info.precision }
  get rerank() { return this.#info.rerank }
  get M() { return this.#info.M }
  get layer0Cap() { return this.#info.layer0Cap }
  get efConstruction() { return this.#info.efConstruction }
  get keyCap() { return this.#info.keyCap }
  get uniqueKeys() { return this.#info.uniqueKeys }
  get maxNodes() { return this.#info.maxNodes }
  get count() { return this.#native.count() }
  get closed() { return this.#closing !== undefined }

  openedClean() { return this.#info.openedClean }
  idHighWater() { return this.#native.idHighWater() }
  getEntryPoint() { return this.#native.entryPoint() }
  stats() { return this.#native.stats() }
  async verify() { return this.#native.verify() }

  close() { return (this.#closing ??= this.#native.close()) }
  [dispose]() { this.close() }
  [asyncDispose]() { return this.close() }

  insert(vector, key, options) { return this.#native.insert(vector, key, tagsFrom(options)) }
  async insertAsync(vector, key, options) { return this.#native.insertAsync(vector, key, tagsFrom(options)) }
  async insertBatch(vectors, keys, keyEnds, threads) { return this.#writeBatch(false, vectors, keys, keyEnds, threads) }

  upsert(key, vector, options) { return this.#native.upsert(key, vector, tagsFrom(options)) }
  async upsertAsync(key, vector, options) { return this.#native.upsertAsync(key, vector, tagsFrom(options)) }
  async upsertBatch(vectors, options) { return this.#writeBatch(true, vectors, known(BATCH_OPTIONS, options)) }

  #writeBatch(upsert, vectors, keys, keyEnds, threads) {
    const positional = keys === null || typeof keys !== 'object' || ArrayBuffer.isView(keys) || keys instanceof ArrayBuffer ||
      keyEnds !== undefined || threads !== undefined
    const given = positional ? { keys, keyEnds, threads } : known(BATCH_OPTIONS, keys)
    const start = (control) => this.#inTurn(() => {
      if (isLarge(vectors) || isLarge(given.keys) || isLong(given.tags)) return this.#writeLarge(upsert, vectors, given, control)
      // What is no typed array is for native code to refuse.
      const tags = columnOf(given.tags, ArrayBuffer.isView(vectors) ? vectors.length / this.dims : NaN)
      return this.#native.writeBatch(upsert, vectors, given.keys, given.keyEnds, given.threads, tags, control)
    })
    return followed(start, given.signal, given.onProgress, () => vectors.length / this.dims)
  }

  /** Copies piece by piece, so that the event loop turns in between; what is called meanwhile and must come later waits. */
  async #writeLarge(upsert, vectors, { keys, keyEnds, tags, threads }, control) {
    this.#native.stage(control)
    const copy = async () => {
      for await (const piece of pieces('vectors', vectors)) control.stageVectors(piece, vectors.length)
      for await (const piece of pieces('keys', keys)) control.stageKeys(piece, keys.length)
      return columnInTurns(tags, vectors.length / this.dims)
    }
    const copying = copy()
    const done = copying.catch(() => {}).then(() => { if (this.#copying === done) this.#copying = undefined })
    this.#copying = done
    // What was copied holds the plane, and the control may outlive the call by long: nobody says when it is collected.
    const column = await copying.catch((error) => { control.discard(); throw error })
    return control.write(upsert, keyEnds, threads, column)
  }

  /** Calls at once, or after the large batches that were given earlier have been copied. */
  #inTurn(call) { return this.#copying === undefined ? call() : this.#copying.then(() => this.#inTurn(call)) }

  remove(id) { return this.#native.remove(id) }
  removeBatch(ids) { return this.#native.removeBatch(ids) }
  async removeBatchAsync(ids) { return this.#inTurn(() => this.#native.removeBatchAsync(ids)) }
  removeKey(key) { return this.#native.removeKey(key) }

  has(key) { return this.#native.idOf(key) !== null }
  idOf(key) { return this.#native.idOf(key) ?? undefined }
  keyOf(id) { return this.#native.keyOf(id) ?? undefined }
  get(key) { return this.#native.get(key) ?? undefined }
  getById(id) { return this.#native.getById(id) ?? undefined }
  tagsOf(id) {
    const tags = this.#native.tagsOf(id)
    return tags === null ? undefined : decoded(tags)
  }
  getMany(keys) { return this.#native.getMany(keysOf(keys)) }
  records(options) { return records(this.#native, this.dims, options) }
  [Symbol.iterator]() { return this.records() }

  searchSync(vector, ...limits) {
    const { k, ef, filter, tags, filterExpansion, rerank, recall, within } = asked(SEARCH_SYNC_OPTIONS, ...limits)
    return new SearchHits(this.#native.searchSync(vector, k, ef, filterOf(filter, tags), filterExpansion, rerank, recall, within))
  }

  async search(vector, ...limits) {
    const { k, ef, filter, tags, filterExpansion, rerank, recall, within, signal } = asked(SEARCH_OPTIONS, ...limits)
    const start = (control) => this.#native.search(vector, k, ef, filterOf(filter, tags), filterExpansion, rerank, recall, within, control)
    const ids = await (signal === undefined ? start() : followed(start, signal))
    if (signal?.aborted) throw Object.assign(new PlaneError('the search was aborted', 'ABORT_ERR'), { cause: signal.reason })
    return new SearchHits(ids)
  }

  async searchWithPredicate(vector, ...rest) {
    const positional = typeof rest[0] !== 'function'
    const [k, ef, , filterExpansion, visitBudget] = rest
    const predicate = positional ? rest[2] : rest[0]
    const given = positional ? { k, ef, filterExpansion, visitBudget } : { k: K_DEFAULT, ...known(PREDICATE_OPTIONS, rest[1]) }
    must(typeof predicate === 'function', 'predicate must be a function')
    const stop = watched(given.signal)
    try {
      if (given.signal?.aborted) await stop.aborted
      const search = this.#native.searchWithPredicate(
        vector, given.k, given.ef, given.filterExpansion, given.visitBudget, given.rerank)
      const { hits, truncated } = await askedSearch(search, predicate, stop.aborted)
      return Object.assign(new SearchHits(hits), { truncated })
    } finally {
      stop.end()
    }
  }

  async searchBatch(vectors, options) {
    const { k, ef, filter, tags, rerank, recall, within, threads } = asked(SEARCH_BATCH_OPTIONS, options)
    const searching = this.#native.searchBatch(vectors, k, ef, filterOf(filter, tags), rerank, recall, within, threads)
    const queries = vectors.length / this.dims
    const ids = await searching
    const keys = Buffer.from(ids.buffer, 12 * ids.length + 4 * queries)
    const counts = new Uint32Array(ids.buffer, 12 * ids.length, queries)
    const { distances, keyEnds } = new SearchHits(ids)
    return { ids, distances, keys, keyEnds, counts }
  }

  searchExact(vector, options) {
    const { k, filter, tags, within } = asked(EXACT_OPTIONS, options)
    return new SearchHits(this.#native.searchExact(vector, k, filterOf(filter, tags), within))
  }

  async searchExactAsync(vector, options) {
    const { k, filter, tags, within } = asked(EXACT_OPTIONS, options)
    return new SearchHits(await this.#native.searchExactAsync(vector, k, filterOf(filter, tags), within))
  }

  async calibrate(options) {
    const { k = K_DEFAULT, samples, threads, onProgress, signal } = known(CALIBRATE_OPTIONS, options)
    const start = (control) => this.#inTurn(() => this.#native.calibrate(k, samples, threads, control))
    return followed(start, signal, onProgress)
  }

  calibration() { return this.#native.calibration() }

  flush(watermark) { return this.#native.flush(watermark) }
  async flushAsync(watermark) { return this.#native.flushAsync(watermark) }
  getWatermark() { return this.#native.watermark() }
  setWatermark(watermark) { return this.#native.setWatermark(watermark) }

  setEntryPoint(id, level) { return this.#native.setEntryPoint(id, level) }
  writeNodeRaw(...node) { mirror.writeRaw(this.#native, false, ...node) }
  writeNodeRawIfAbsent(...node) { return mirror.writeRaw(this.#native, true, ...node) }
  clearNode(id) { return this.#native.clearNode(id) }

  invalidate() { return this.#native.invalidate() }
  invalidateFile() { return this.#native.invalidateFile() }
  invalidated() { return this.#native.invalidated() }

  async snapshot(path, options) {
    const { overwrite, onProgress, signal } = known(SNAPSHOT_OPTIONS, options)
    await followed((control) => this.#native.snapshot(fileOf(path), overwrite, control), signal, onProgress)
  }

  async compact(options) {
    const given = typeof options === 'string' || options instanceof URL ? { path: options } : known(COMPACT_OPTIONS, options)
    const { path, overwrite, renumber, relink, threads, onProgress, signal } = given
    if (overwrite && path === undefined) throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', 'overwrite needs a path')
    const native = (control) => this.#native.compact(fileOf(path), overwrite, renumber, relink, threads, control)
    return followed((control) => this.#inTurn(() => native(control)), signal, onProgress)
  }
}

const fileOf = (path) => path instanceof URL ? fileURLToPath(path) : path
// The native side takes undefined for "not given"; what must be given arrives there as null, and is refused.
const required = (value) => value === undefined ? null : value

/** A promise that rejects when a signal fires; nothing without a signal. */
function watched(signal) {
  must(signal === undefined || (typeof signal === 'object' && signal !== null && 'aborted' in signal), 'signal must be an AbortSignal')
  if (signal === undefined) return { end() {} }
  const { promise: aborted, reject } = withReject()
  const abort = () => reject(Object.assign(new PlaneError('the search was aborted', 'ABORT_ERR'), { cause: signal.reason }))
  if (signal.aborted) abort()
  signal.addEventListener('abort', abort)
  return { aborted, end: () => signal.removeEventListener('abort', abort) }
}

/** A promise whose rejection need not be handled. */
function withReject() {
  let reject
  const promise = new Promise((_, rejects) => (reject = rejects))
  promise.catch(() => {})
  return { promise, reject }
}

/** Runs a call that `signal` can stop and whose progress is told; the promise settles once the call has stopped. */
async function followed(start, signal, onProgress, total) {
  must(signal === undefined || (typeof signal === 'object' && signal !== null && 'aborted' in signal), 'signal must be an AbortSignal')
  must(onProgress === undefined || typeof onProgress === 'function', 'onProgress must be a function')
  const control = new binding.NativeControl()
  const abort = () => control.abort()
  let failed
  const report = () => {
    try {
      onProgress(control.done, total?.() ?? control.total)
    } catch (error) {
      failed ??= { error }
      abort()
    }
  }
  if (signal?.aborted) abort()
  signal?.addEventListener('abort', abort)
  const timer = onProgress && setInterval(report, PROGRESS_INTERVAL_MS)
  try {
    const result = await start(control)
    if (onProgress) report()
    return result
  } catch (error) {
    if (error.code === 'ABORT_ERR') error.cause = signal?.reason
    throw error
  } finally {
    clearInterval(timer)
    signal?.removeEventListener('abort', abort)
    if (failed) throw failed.error
  }
}

module.exports = { Plane, PlaneError, SearchHits, ...mirror.functions }
