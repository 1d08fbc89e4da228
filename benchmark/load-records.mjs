// The records of benchmark/load.mjs: number `serial` has a vector and a key that follow from it, so that any worker can
// check any answer.

/** Places in the shared words. */
export const STOP = 0
/** Counts removals: what was removed at a number up to this one must not be found by a search that starts now. */
export const CLOCK = 1
/** The next serial. */
export const NEXT = 2
/** Live records, as far as the workers have noted it. */
export const LIVE_COUNT = 3
/** What the searcher's times are counted under. */
export const PHASE = 4
/** How many of the spinners are to spin. */
export const SPINNING = 5
export const WORDS = 8

// What the shared states say of a record: 0 when nothing is known yet, then live, then claimed by the remover, then the
// number of its removal.
export const LIVE = -1
export const LEAVING = -2

const CENTRES = 64
const centres = new Map()

/** Uniform numbers in [0, 1) from a seed. */
export function mulberry(seed) {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

export function keyOf(serial) {
  return `k${serial}`
}

/** A point about one of some centres. */
export function vectorOf(serial, dims) {
  const centre = centreOf(serial % CENTRES, dims)
  const random = mulberry(Math.imul(serial, 0x9e3779b1))
  return centre.map((x) => x + 0.8 * (random() - 0.5))
}

function centreOf(number, dims) {
  let centre = centres.get(number)
  if (!centre) {
    const random = mulberry(0xce47 + number)
    centre = Float32Array.from({ length: dims }, () => 2 * random() - 1)
    centres.set(number, centre)
  }
  return centre
}
