/// <reference types="node" />

// What records carry, how they are iterated over, and which of them a query may return.

import type { Key, Plane } from './index.js'

/**
 * Which records a query may return: bit `id & 7` of byte `id >> 3`, where missing bits mean not allowed and bits past the
 * last id mean nothing; or those with certain keys. A filter never shortens an answer: `k` hits come back whenever `k`
 * allowed records exist.
 */
export type Filter = Uint8Array | KeyFilter

/** The records with these keys; keys that no record has mean nothing. Needs `uniqueKeys` (`ERR_INVALID_ARG_VALUE`). */
export interface KeyFilter {
  /** Looked up at the time of the search, and copied before the call returns. */
  keys: Iterable<Key>
}

/**
 * A tag: a string of 1 to 255 bytes of UTF-8, or an integer from 0 to 4,294,967,295. `7` and `'7'` are different tags. Another
 * value of these types: `PLANE_TAG_INVALID`; any other type: `ERR_INVALID_ARG_TYPE`.
 */
export type Tag = string | number

/** What else a record is written with. */
export interface WriteOptions {
  /**
   * The record's tags, at most 64 different ones (`PLANE_TAG_INVALID`). They stay as they are for as long as the record lives;
   * an upsert replaces them, also with none. Default: none.
   */
  tags?: Iterable<Tag> | null
}

/** Which tags records must have or not; all parts that are given must hold. Any number of tags may be named. */
export interface TagQuery {
  /** At least one of these; an empty list allows nothing. */
  anyOf?: Iterable<Tag>
  /** Every one of these; an empty list allows everything. */
  allOf?: Iterable<Tag>
  /** Not one of these; an empty list allows everything. */
  noneOf?: Iterable<Tag>
}

/** Where an iteration begins. */
export interface RecordsOptions {
  /**
   * Goes on behind the record that has this key (needs `uniqueKeys`; `PLANE_KEY_NOT_FOUND` when no record has it), or behind
   * an id given as a number. Default: begins with the first record.
   */
  after?: Key | number
}

/** A record, as iteration gives it. All of it is the caller's own. */
export interface PlaneRecord {
  id: number
  /** Empty when the record has no key. */
  key: Buffer
  /** As {@link Plane.getById} gives it. */
  vector: Float32Array
  /** As {@link Plane.tagsOf} gives them. */
  tags: Tag[]
}
