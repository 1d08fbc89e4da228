'use strict'

// For hosts that mirror a graph or a log of their own in a plane.

const { fileURLToPath } = require('node:url')
const binding = require('./load.js')

const fileOf = (path) => path instanceof URL ? fileURLToPath(path) : path
const stalePathFor = (path) => binding.stalePathFor(fileOf(path))
const invalidatePlane = (path) => binding.invalidatePlane(fileOf(path))
const invalidatePlaneAsync = async (path) => binding.invalidatePlaneAsync(fileOf(path))

module.exports = { invalidatePlane, invalidatePlaneAsync, stalePathFor }
