/// <reference types="node" />

// For hosts that mirror a graph or a log of their own in a plane; see `docs/mirroring.md`.

import type { Key, Plane } from './index.js'

/** Which marks an invalidation has made: at least one of them. */
export interface Invalidation {
  /** Whether the mark in the file was set. */
  inBand: boolean
  /** Whether the file {@link stalePathFor} was made. */
  sidecar: boolean
  /** Why `inBand` is false. */
  inBandError?: string
  /** Why `sidecar` is false. */
  sidecarError?: string
}

/**
 * Declares the plane at a path invalid, as {@link Plane.invalidate} does, whether or not it is open here, can be written, or is a
 * plane at all: by a mark in the file, and by an empty file beside it, either of which suffices. What was made is on the disk when the call returns.
 * Fails with `PLANE_NOT_INVALIDATED` only when neither could be made, naming both causes.
 */
export function invalidatePlane(path: string | URL): Invalidation
/** {@link invalidatePlane} on the libuv pool. */
export function invalidatePlaneAsync(path: string | URL): Promise<Invalidation>
/** Where the second mark of a plane is: its path with `.stale` at the end. `create`, `snapshot` and `compact` to the path remove it. */
export function stalePathFor(path: string | URL): string

declare module './index.js' {
  interface Plane {
    /**
     * Writes a node of a graph that its host keeps: under an id of the host's choice, with links of its own. Nothing else of the
     * graph is changed. A live node of that id is written over: searches that start meanwhile do not find it, those under way
     * are waited for, up to two seconds (`PLANE_IN_USE`, and the node is as it was). A node that `insert` made is removed first.
     *
     * Needs `precision` int8 or int16 and no exact copy (`PLANE_NOT_MIRRORABLE`), as the positional `create` makes them. Lists that
     * name the node itself or another twice are stored without; nodes that are not there yet may be named.
     *
     * Fails with `ERR_INVALID_ARG_TYPE`; `ERR_OUT_OF_RANGE` (an id at or above `maxNodes`, or without one above
     * `idHighWater() + 1,000,000`; a level; a list longer than `layer0Cap` or `M`, or more lists than layers; an id in a list);
     * `PLANE_DIMENSION_MISMATCH` (the vector's bytes); `ERR_INVALID_ARG_VALUE` (a component of -32768, `scale` or `invMag`);
     * and as `insert` with `PLANE_KEY_UNSTORABLE`, `PLANE_KEYS_FULL` and `PLANE_KEY_EXISTS` (another record has the key). In all
     * these cases nothing has changed.
     *
     * @param id From 0.
     * @param level Highest layer that the node is on, 0 to 15.
     * @param vector int8: one signed byte a component; int16: two bytes, little-endian, from -32767 to 32767.
     * @param scale What a component is multiplied by. Above 0; 0 only with a vector of zeros.
     * @param invMag 1 / norm of the vector, kept with it. As `scale`. Distances divide by the norm of the components as they are.
     * @param neighbors Links on layer 0, at most `layer0Cap`.
     * @param upper Links on layers 1 to `level`, at most `M` each. Default: none.
     * @param key Undefined or null keeps the key that the node has, or gives none.
     */
    writeNodeRaw(
      id: number,
      level: number,
      vector: Uint8Array,
      scale: number,
      invMag: number,
      neighbors: Uint32Array,
      upper?: readonly Uint32Array[] | null,
      key?: Key | null,
    ): void
    /**
     * {@link Plane.writeNodeRaw} where no record has ever been, and nothing elsewhere. Returns whether the node was written: false
     * for a slot that holds a record, has held one, or was cleared.
     */
    writeNodeRawIfAbsent(
      id: number,
      level: number,
      vector: Uint8Array,
      scale: number,
      invMag: number,
      neighbors: Uint32Array,
      upper?: readonly Uint32Array[] | null,
      key?: Key | null,
    ): boolean
    /**
     * Takes a node out, and with it its key: searches do not return it. Links to it stay, and its id remains the host's, for
     * `writeNodeRaw` to fill again. Returns whether there was one. Waits as `writeNodeRaw` does (`PLANE_IN_USE`); a record that
     * `insert` made is removed as by `remove`.
     */
    clearNode(id: number): boolean
    /**
     * Lets searches start at a live record, on a layer that it is on. The first record of a plane is the entry point by itself,
     * and when it goes another one takes its place. Fails with `ERR_INVALID_ARG_VALUE` (no live record), `ERR_OUT_OF_RANGE`.
     */
    setEntryPoint(id: number, level: number): void
    /**
     * Declares the plane invalid, for a host that finds that it does not mirror what it should: every handle in every process reads
     * watermark 0 from now on, for ever, `open`, `snapshot` and `compact` refuse it (`PLANE_INVALIDATED`), and only `create` makes a
     * plane there again. Handles that are open go on searching and writing. This sets the mark in the file that the handle
     * has open, and returns when it is on the disk; {@link Plane.invalidateFile} also makes the other one. Fails with
     * `PLANE_READ_ONLY` and the operating system's codes.
     */
    invalidate(): void
    /** {@link invalidatePlane} for the path of this handle, which may be read-only. */
    invalidateFile(): Invalidation
    /** Whether the plane was invalidated: whether either mark is there. */
    invalidated(): boolean
  }
}
