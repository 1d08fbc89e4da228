// What a call that fails throws, when it is no wrong argument.

/** Codes of {@link PlaneError}. One that has been published never changes; the operating system's come as they are. */
export type PlaneErrorCode =
  /** The plane is closed. */
  | 'PLANE_CLOSED'
  /** `create` found a file, and `overwrite` was not set. */
  | 'PLANE_EXISTS'
  /** The file is not a plane. */
  | 'PLANE_NOT_A_PLANE'
  /** The file was written by a later version. */
  | 'PLANE_UNSUPPORTED_VERSION'
  /** The file ends before data that it says is there. */
  | 'PLANE_TRUNCATED'
  /** The file contradicts itself; the message says where. */
  | 'PLANE_CORRUPT'
  /** The plane must recover from a crash first, which a read-only handle cannot do. */
  | 'PLANE_NEEDS_RECOVERY'
  /** The handle was opened read-only. */
  | 'PLANE_READ_ONLY'
  /** Another process is writing; the message names its pid. */
  | 'PLANE_LOCKED'
  /** `create` or `snapshot` put another plane at this path. After `compact` handles follow by themselves. */
  | 'PLANE_REPLACED'
  /** The file has other names (hard links), which `compact` would part from this one. */
  | 'PLANE_LINKED'
  /** A sync to disk failed: nothing can be written until the plane is closed and opened again. */
  | 'PLANE_SYNC_FAILED'
  /** The plane holds `maxNodes` records. */
  | 'PLANE_FULL'
  /** Long keys have used up the room that `keyArenaBytesPerNode` gives them. */
  | 'PLANE_KEYS_FULL'
  /** Raw nodes need precision int8 or int16 and no exact copy. */
  | 'PLANE_NOT_MIRRORABLE'
  /** A reader, or another writer, has not let go of a node for two seconds. */
  | 'PLANE_IN_USE'
  /** The plane was invalidated by its host: it can only be created anew. */
  | 'PLANE_INVALIDATED'
  /** Neither mark of an invalidation could be made; the message has both causes. */
  | 'PLANE_NOT_INVALIDATED'
  /** A live record has the key, and the plane has `uniqueKeys`. */
  | 'PLANE_KEY_EXISTS'
  /** The key is too long, or the plane keeps no keys. */
  | 'PLANE_KEY_UNSTORABLE'
  /** A tag is empty, too long, or no integer from 0 to 4,294,967,295; or a record was given more than 64. */
  | 'PLANE_TAG_INVALID'
  /** No record has the key after which an iteration was to go on. */
  | 'PLANE_KEY_NOT_FOUND'
  /** `compact` gave the records new ids while they were iterated over. */
  | 'PLANE_RENUMBERED'
  /** A search asked for a `recall`, and the plane was never calibrated: call `calibrate()`, or give `ef`. */
  | 'PLANE_NOT_CALIBRATED'
  /** No walk that was measured gives the `recall` that was asked for; the message names the best. */
  | 'PLANE_RECALL_UNREACHABLE'
  /** Too few records to calibrate with. */
  | 'PLANE_TOO_SMALL'
  /** A fault in vecplane itself; please report it. */
  | 'PLANE_INTERNAL'
  /** The caller's signal stopped the call; `name` is `'AbortError'` and `cause` the signal's reason. */
  | 'ABORT_ERR'
  /** The operating system's refusals: `'ENOENT'`, `'EACCES'`, `'ENOSPC'`, `'EISDIR'`, ... */
  | (string & {})

/** Any failure that is not a wrong argument. */
export class PlaneError extends Error {
  constructor(message: string, code: PlaneErrorCode)
  /** What happened, in a form that never changes. */
  readonly code: PlaneErrorCode
  /** Only when `insertBatch` stopped before its end: the id of each record in input order, `0xFFFFFFFF` where it did not land. */
  readonly ids?: Uint32Array
  /** Only when `insertBatch` stopped before its end: how many records landed. */
  readonly inserted?: number
}
