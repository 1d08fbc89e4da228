// What `stats`, `verify` and `calibrate` tell.

import type { Plane } from './index.js'

/** Sizes and counts, read without a scan. Sizes are in bytes. */
export interface Stats {
  /** Live records. */
  count: number
  /** One past the highest id ever given. */
  idHighWater: number
  /** Removed slots that wait for readers or for a flush before they can be used again. */
  limbo: number
  /** Slots below `idHighWater` that are free for new records. */
  free: number
  /** Highest layer of the graph in use. */
  maxLevel: number
  /** Size of the file. */
  fileBytes: number
  /** One record's slot: codes (and a sketch of them in int8 planes of more than 128 dimensions), links of layer 0, padding within a page. */
  slotBytes: number
  /** One record's exact copy. */
  exactBytes: number
  /** One record's key entry. */
  keyEntryBytes: number
  /** Heap in use: upper links, long keys, key index. */
  heapBytes: number
  /** Long keys in the heap. */
  longKeyBytes: number
  /**
   * Memory of this process taken by copies of what searches with a `tags` filter scan. They are made for filters that are asked for
   * again and again while nothing is written, and take at most an eighth of the file's size, and 64 MiB.
   */
  tagCopyBytes: number
  /** Extents that the file consists of. */
  extents: number
  /** Flushes that made something durable, ever. */
  flushes: number
  /** Distance kernels in use on this machine, for instance `'avx512'`. */
  kernels: string
  /** Whether this process is changing the plane at this moment. */
  writing: boolean
  /**
   * Whether the file system copies what is overwritten (ZFS, bcachefs, btrfs unless it could be asked not to). There even
   * allocated space may run out under a mapped page, and a full disk may end the process: keep some of it free.
   */
  copyOnWrite: boolean
  /** Whether any calibration is stale: see {@link Calibration.stale}. False when there is none. */
  calibrationStale: boolean
}

/** How `calibrate` measures. */
export interface CalibrateOptions {
  /** Neighbours to ask for, 1 to 1,024. Default 10. Fails with `ERR_OUT_OF_RANGE`. */
  k?: number
  /** Records to ask with, 100 to 100,000; all but two of a plane that has fewer. Default 4,000. Fails with `ERR_OUT_OF_RANGE`. */
  samples?: number
  /** Threads to measure with, 1 to 1,024. Default: every hardware thread. Fails with `ERR_OUT_OF_RANGE`. */
  threads?: number
  /** Told how many samples are done, about ten times a second and once at the end. What it throws ends the call, which rejects with it. */
  onProgress?: (done: number, total: number) => void
  /** Ends the call with `ABORT_ERR`; what was stored before stays. */
  signal?: AbortSignal
}

/** What `calibrate` found for one `k`. The caller's own. */
export interface Calibration {
  /** Neighbours that were asked for. */
  k: number
  /** Records that were asked with. */
  samples: number
  /** Records that the plane held. */
  count: number
  /** Whether half as many records as it held were inserted and removed since, so that the curve may be off. */
  stale: boolean
  /**
   * What searches found, at up to 20 beam widths; all ascend. `recall`: mean share of the true neighbours found by searches with
   * this `ef`, and by those with a filter. `adaptiveRecall`: by searches that go on for hard queries and end early for easy
   * ones, and follow the links of `ef` records on average, as those without a filter that ask for a `recall` or for nothing do
   * where it is higher. Missing for `'ip'`, whose distances cannot be compared in that way.
   */
  curve: { ef: number; recall: number; adaptiveRecall?: number }[]
}

/** What `verify` found; all counts are 0 in a sound plane, but for `live`, `danglingLinks` and `unlinked`. */
export interface VerifyReport {
  /** Whether nothing is wrong. */
  ok: boolean
  /** Live records visited. */
  live: number
  /** Records whose bytes do not match their checksum. */
  checksumFailures: number
  /** Links past `idHighWater`, to the record itself, or to one that has no such layer. */
  invalidLinks: number
  /** Links to slots without a live record. Allowed: searches skip them and writers clear them. */
  danglingLinks: number
  /** Live records that no path from the entry point reaches. */
  unreachable: number
  /** Live nodes written raw that no path from the entry point reaches: their host has not linked to them. No fault. */
  unlinked: number
  /** Key index entries without their record, or records without their entry. */
  keyIndexMismatches: number
  /** Records whose header or key entry is outside its valid range. */
  invalidRecords: number
  /** Slots that are neither live, nor free, nor waiting to be free. */
  lostSlots: number
  /** The first ids concerned, up to 32. The caller's own. */
  examples: Uint32Array
}
