/// <reference types="node" />

// What `Plane.searchWithPredicate` takes and gives; see `index.d.ts`.

import type { SearchHits, SearchOptions } from './index.js'

/**
 * Which records a search may return: called with ids, with all their keys one after the other, and with the end of each key in
 * `keys`; returns a verdict for each id, in order, or a promise of them. In a `Uint8Array` or Buffer 0 leaves a record out and
 * anything else lets it in; in an array the verdicts are 0, 1, false or true. The arguments are the predicate's own to keep.
 */
export type SearchPredicate = (
  ids: number[],
  keys: Buffer,
  keyEnds: Uint32Array,
) => Verdicts | PromiseLike<Verdicts>
/** One verdict for each id that a {@link SearchPredicate} was asked about. */
export type Verdicts = Uint8Array | Uint8ClampedArray | ReadonlyArray<number | boolean>

/** How `searchWithPredicate` searches. */
export interface PredicateSearchOptions {
  /** As in {@link SearchOptions}. Default 10. */
  k?: number
  /** As in {@link SearchOptions}; the fewer records are let in, the wider the beam gets. Default `max(128, 4 * k)`. */
  ef?: number
  /**
   * Times `ef`, the widest beam that the graph is walked with before a scan of all records takes over; it never shortens an
   * answer. 1 to 1,048,576, default 24. Fails with `ERR_OUT_OF_RANGE`.
   */
  filterExpansion?: number
  /**
   * Most records that the search may look at, at least 1. An answer that this made shorter or worse has `truncated` set.
   * Default: no limit. Fails with `ERR_OUT_OF_RANGE`.
   */
  visitBudget?: number
  /** As in {@link SearchOptions}. Default true. */
  rerank?: boolean
  /** Ends the search at once with `ABORT_ERR`, also while the predicate has not answered. */
  signal?: AbortSignal
}

/** The answer to a search with a predicate. */
export interface PredicateHits extends SearchHits {
  /** Whether `visitBudget` ended the search before it was done: there may be nearer hits, or more. */
  readonly truncated: boolean
}
