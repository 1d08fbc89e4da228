// What `Plane.snapshot` and `Plane.compact` take and give.

/** How `snapshot` copies. */
export interface SnapshotOptions {
  /** Whether to replace a file that is at the path, atomically, instead of failing with `PLANE_EXISTS`. Default false. */
  overwrite?: boolean
  /** Told how many bytes are copied, about ten times a second and once at the end. What it throws ends the call, which rejects with it. */
  onProgress?: (done: number, total: number) => void
  /** Ends the call with `ABORT_ERR`, and nothing is left behind. */
  signal?: AbortSignal
}

/** How `compact` goes about it. */
export interface CompactOptions {
  /** Where the compacted plane goes. Default: in the place of the plane itself. */
  path?: string | URL
  /** With `path`: as in {@link SnapshotOptions}. Without: `ERR_INVALID_ARG_VALUE`. */
  overwrite?: boolean
  /**
   * Whether records get new ids, without gaps and near their neighbours': the file loses the room of removed records, and
   * searches find what they read closer together. Ids that the caller has kept are worth nothing then, but for
   * {@link CompactResult.newIds}; keys stay. Default false.
   */
  renumber?: boolean
  /**
   * Whether every record chooses its links anew, among all that are there by now: those that came early chose among few. Worth
   * it once a plane has grown by many small batches or single inserts: searches then have about a tenth less to look at for the same
   * recall, after another {@link Plane.calibrate} if they are asked for one. Takes a quarter as long as inserting the records
   * did. A plane that was filled by one `insertBatch` has this behind it. Nodes that a host has written keep their links, and so do
   * planes of inner products. Default false.
   */
  relink?: boolean
  /** Threads that choose links with `relink`, 1 to 1,024. Default: every hardware thread. Fails with `ERR_OUT_OF_RANGE`. */
  threads?: number
  /** Told how many steps are done, one for each record, two with `relink`, about ten times a second and once at the end. What it throws ends the call, which rejects with it. */
  onProgress?: (done: number, total: number) => void
  /** Ends the call with `ABORT_ERR`; the plane is as it was, and nothing is left behind. */
  signal?: AbortSignal
}

/** What `compact` did. */
export interface CompactResult {
  /** Size of the file before, in bytes. */
  bytesBefore: number
  /** Size of the new file, in bytes. */
  bytesAfter: number
  /** Only with `renumber`: the new id of each old one, `0xFFFFFFFF` where there was no record. The caller's own. */
  newIds?: Uint32Array
}
