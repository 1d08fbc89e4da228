'use strict'

// For hosts that mirror a graph or a log of their own in a plane.

const { fileURLToPath } = require('node:url')
const binding = require('./load.js')
const { must } = require('./options.js')

const fileOf = (path) => path instanceof URL ? fileURLToPath(path) : path
const stalePathFor = (path) => binding.stalePathFor(fileOf(path))
const invalidatePlane = (path) => binding.invalidatePlane(fileOf(path))
const invalidatePlaneAsync = async (path) => binding.invalidatePlaneAsync(fileOf(path))

/** Writes a node; the lists above layer 0 go over as one. */
function writeRaw(native, onlyIfAbsent, id, level, vector, scale, invMag, neighbors, upper, key) {
  const lists = upper ?? []
  must(Array.isArray(lists) && lists.every((list) => list instanceof Uint32Array), 'upper must be an array of Uint32Arrays, or null')
  const ends = new Uint32Array(lists.length)
  lists.reduce((end, list, i) => (ends[i] = end + list.length), 0)
  const links = new Uint32Array(ends.at(-1) ?? 0)
  lists.forEach((list, i) => links.set(list, i === 0 ? 0 : ends[i - 1]))
  return native.writeNodeRaw(onlyIfAbsent, id, level, vector, scale, invMag, neighbors, links, ends, key)
}

module.exports = { functions: { invalidatePlane, invalidatePlaneAsync, stalePathFor }, writeRaw }
