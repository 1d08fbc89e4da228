/// <reference types="node" />

// For hosts that mirror a graph or a log of their own in a plane; see `docs/mirroring.md`.

import type { Plane } from './index.js'

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
