'use strict'

// Input is copied before a call returns, so that its arrays may be used again at once. What would take longer than a moment
// (a megabyte takes up to a millisecond) is copied in pieces between which the event loop turns.

const { coded } = require('./options.js')

const LARGE_BYTES = 16 << 20
const PIECE_BYTES = 4 << 20

/** Whether an argument is a typed array to be copied in pieces. */
const isLarge = (array) => ArrayBuffer.isView(array) && !(array instanceof DataView) && array.byteLength > LARGE_BYTES

/** The pieces of a typed array, each in a turn of its own; of anything else, the whole. */
async function* pieces(name, array) {
  if (!isLarge(array)) {
    if (array !== undefined && array !== null) yield array
    return
  }
  const { length } = array
  const step = Math.floor(PIECE_BYTES / array.BYTES_PER_ELEMENT)
  for (let at = 0; at < length; at += step) {
    if (at > 0) await new Promise((resolve) => setImmediate(resolve))
    if (array.length !== length) {
      throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', `${name} was detached or resized while it was copied`)
    }
    yield array.subarray(at, at + step)
  }
}

module.exports = { isLarge, pieces }
