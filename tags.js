'use strict'

// Tags: numbers and strings that a record carries, on their way to native code and back.

const { coded, known } = require('./options.js')

const WRITE_OPTIONS = ['tags']
const QUERY_OPTIONS = ['anyOf', 'allOf', 'noneOf']
// Records whose tags are looked at before the event loop turns.
const PIECE_RECORDS = 1 << 14
const TEXT = 1

/** A plain array of what may be any iterable but a string, which is one tag. */
function listed(name, tags) {
  if (Array.isArray(tags)) return tags.slice()
  if (tags === null || typeof tags !== 'object' || ArrayBuffer.isView(tags) || typeof tags[Symbol.iterator] !== 'function') {
    throw coded(TypeError, 'ERR_INVALID_ARG_TYPE', `${name} must be an array, or another iterable, of strings and integers`)
  }
  return Array.from(tags)
}

/** The tags of one record, from the options that it is written with. */
function tagsFrom(options) {
  if (options === undefined) return undefined
  const { tags } = known(WRITE_OPTIONS, options)
  return tags === undefined || tags === null ? undefined : listed('tags', tags)
}

/** What a query asks of tags. */
function queryOf(tags) {
  const query = {}
  const given = known(QUERY_OPTIONS, tags)
  for (const name of QUERY_OPTIONS) if (given[name] !== undefined) query[name] = listed(name, given[name])
  return query
}

/** The tags of a batch's records, a piece at each step: each distinct tag once, and which of them each record has. */
function* columns(tags, count) {
  const sets = listed('tags', tags)
  if (sets.length !== count) {
    throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', `tags has ${sets.length} entries for ${count} records`)
  }
  const numbers = new Map()
  const refs = []
  const ends = new Uint32Array(count)
  for (let i = 0; i < count; i++) {
    if (i > 0 && i % PIECE_RECORDS === 0) yield
    const set = sets[i]
    for (const tag of set === undefined || set === null ? [] : listed(`tags[${i}]`, set)) {
      let number = numbers.get(tag)
      if (number === undefined) numbers.set(tag, number = numbers.size)
      refs.push(number)
    }
    ends[i] = refs.length
  }
  return { distinct: Array.from(numbers.keys()), refs: Uint32Array.from(refs), ends }
}

/** Whether a batch has so many records that looking at their tags takes more than a moment. */
const isLong = (tags) => Array.isArray(tags) && tags.length > PIECE_RECORDS

/** The same at once, for few records. */
function columnOf(tags, count) {
  if (tags === undefined || tags === null) return undefined
  const steps = columns(tags, count)
  let step = steps.next()
  while (!step.done) step = steps.next()
  return step.value
}

/** The same with turns of the event loop in between. */
async function columnInTurns(tags, count) {
  if (tags === undefined || tags === null) return undefined
  const steps = columns(tags, count)
  let step = steps.next()
  while (!step.done) {
    await new Promise((resolve) => setImmediate(resolve))
    step = steps.next()
  }
  return step.value
}

/** Tags as native code gives them: a number is 0 and four bytes, a string 1, its length and its UTF-8. */
function decoded(bytes) {
  const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)
  const tags = []
  for (let at = 0; at < view.length;) {
    if (view[at] === TEXT) {
      const end = at + 2 + view[at + 1]
      tags.push(view.toString('utf8', at + 2, end))
      at = end
    } else {
      tags.push(view.readUInt32LE(at + 1))
      at += 5
    }
  }
  return tags
}

module.exports = { columnInTurns, columnOf, decoded, isLong, queryOf, tagsFrom }
