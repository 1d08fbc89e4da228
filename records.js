'use strict'

// Records at hand: iteration over all of them, a chunk at a time.

const { coded, known } = require('./options.js')
const { decoded, queryOf } = require('./tags.js')

// What one call into native code copies: so many components, but no more than so many records.
const CHUNK_COMPONENTS = 1 << 18
const CHUNK_RECORDS = 1024

const RECORDS_OPTIONS = ['after']

/** The records of a plane in the order of their ids. What is wrong with the options shows at once, not at the first record. */
function records(native, dims, options) {
  const { after } = known(RECORDS_OPTIONS, options)
  if (after === null) throw coded(TypeError, 'ERR_INVALID_ARG_TYPE', 'after must be a key or an id, got null')
  return walk(native, dims, native.cursor(after))
}

function* walk(native, dims, cursor) {
  const most = Math.max(1, Math.min(CHUNK_RECORDS, Math.floor(CHUNK_COMPONENTS / dims)))
  while (cursor !== undefined) {
    const { ids, vectors, keys, keyEnds, tags, tagEnds, next } = native.records(cursor, most)
    for (let i = 0; i < ids.length; i++) {
      const key = Buffer.from(keys.subarray(i === 0 ? 0 : keyEnds[i - 1], keyEnds[i]))
      const own = decoded(tags.subarray(i === 0 ? 0 : tagEnds[i - 1], tagEnds[i]))
      yield { id: ids[i], key, vector: vectors.slice(i * dims, (i + 1) * dims), tags: own }
    }
    cursor = next
  }
}

/** Makes a plain array of what may be any iterable of keys but a string or bytes, which are one key. */
function keysOf(keys) {
  if (Array.isArray(keys)) return keys.slice()
  if (keys === null || typeof keys !== 'object' || ArrayBuffer.isView(keys) || typeof keys[Symbol.iterator] !== 'function') {
    throw coded(TypeError, 'ERR_INVALID_ARG_TYPE', 'keys must be an array, or another iterable, of keys')
  }
  return Array.from(keys)
}

/** What native code takes for a filter: bits as they are, or an object of our own with all parts. */
function filterOf(filter, tags) {
  const wanted = tags === undefined || tags === null ? undefined : queryOf(tags)
  const bits = filter === null || typeof filter !== 'object' || ArrayBuffer.isView(filter) || Array.isArray(filter) || filter instanceof ArrayBuffer
  if (bits) return wanted === undefined ? filter : { parts: true, bits: filter, tags: wanted }
  const { keys } = known(['keys'], filter)
  if (keys === undefined) throw coded(TypeError, 'ERR_INVALID_ARG_TYPE', 'filter must be a Buffer or Uint8Array of bits, or an object with keys')
  return { parts: true, keys: keysOf(keys), tags: wanted }
}

module.exports = { filterOf, keysOf, records }
