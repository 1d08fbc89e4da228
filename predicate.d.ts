/// <reference types="node" />

// `Plane.searchWithPredicate`, what it takes and what it gives.

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
  /**
   * As in {@link SearchOptions}; the fewer records are let in, the wider the beam gets. Default: that of a search with a filter, what
   * the plane's calibration gives for a recall of 0.98, but at least `max(160, 4 * k)`.
   */
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

declare module './index.js' {
  interface Plane {
    /**
     * Finds the nearest records that a predicate lets in. It is asked in batches, nearest candidates first and about no record
     * twice, until the answer is certain: as many hits as were asked for, whenever so many are let in. Where few are, that means
     * asking about many; a {@link SearchOptions.filter} answers faster when the ids are known beforehand.
     *
     * The search runs on the libuv pool in steps, and holds no thread, no slot of a removed record and no other search up while
     * the predicate is at work. Records that are removed or replaced meanwhile are not returned; those inserted meanwhile may be. The
     * search ends on the file it began with when `compact` puts another in its place: its ids are those from before. `close` waits
     * for it.
     *
     * Rejects with whatever the predicate throws or its promise rejects with; with a `TypeError` (`ERR_INVALID_RETURN_VALUE`) when
     * the verdicts are of a wrong type or number; and as {@link Plane.search}.
     */
    searchWithPredicate(
      vector: Float32Array,
      predicate: SearchPredicate,
      options?: PredicateSearchOptions,
    ): Promise<PredicateHits>
    /** The same by position; {@link PredicateSearchOptions} explains the numbers. */
    searchWithPredicate(
      vector: Float32Array,
      k: number,
      ef: number | undefined,
      predicate: SearchPredicate,
      filterExpansion?: number,
      visitBudget?: number | null,
    ): Promise<PredicateHits>
  }
}
