'use strict'

// What callers hand over as options: checked by name, with the nearest right spelling for a wrong one.

const K_DEFAULT = 10
const LIMIT_DEFAULT = 1000
const LIMIT_MAX = 2 ** 20

const coded = (Type, code, message) => Object.assign(new Type(message), { code })

/** Refuses an argument of the wrong type. */
function must(right, message) {
  if (!right) throw coded(TypeError, 'ERR_INVALID_ARG_TYPE', message)
}

/** What a query asks for, in either form: `(k, ef, filter, filterExpansion)` or `(options)`, whose parts fit each other. */
function asked(names, k, ef, filter, filterExpansion) {
  if (k !== undefined ? typeof k !== 'object' : ef !== undefined || filter !== undefined || filterExpansion !== undefined) {
    return { k, ef, filter, filterExpansion }
  }
  const options = known(names, k)
  if (options.ef !== undefined && options.recall !== undefined) {
    throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', 'ef and recall cannot be given together: each decides on the other')
  }
  if (options.within !== undefined) return within(options)
  if (options.limit !== undefined) {
    throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', 'limit needs within; k says how many nearest neighbours are wanted')
  }
  return options.k === undefined ? { ...options, k: K_DEFAULT } : options
}

/** A query for all within a distance: natively `limit` is `k`. */
function within(options) {
  const { k, recall, limit = LIMIT_DEFAULT } = options
  if (k !== undefined) throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', 'k and within cannot be given together: use limit')
  if (recall !== undefined) {
    throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', 'recall and within cannot be given together: recall counts the k nearest')
  }
  if (typeof limit === 'number' && !(Number.isInteger(limit) && limit >= 0 && limit <= LIMIT_MAX)) {
    throw coded(RangeError, 'ERR_OUT_OF_RANGE', `limit must be an integer from 0 to ${LIMIT_MAX}, got ${limit}`)
  }
  must(typeof limit === 'number', 'limit must be a number')
  return { ...options, k: limit }
}

/** Refuses options that are not among `names`, suggesting the nearest that is. */
function known(names, options = {}) {
  const plain = options !== null && typeof options === 'object' && !Array.isArray(options) && !ArrayBuffer.isView(options) &&
    !(options instanceof ArrayBuffer) && !(options instanceof SharedArrayBuffer)
  must(plain, 'options must be an object')
  for (const name in options) {
    if (names.includes(name)) continue
    const [nearest, edits] = names.map((right) => [right, distance(name, right)]).sort((a, b) => a[1] - b[1])[0]
    const hint = edits <= Math.max(2, name.length / 3) ? `did you mean '${nearest}'?` : `known are ${names.join(', ')}`
    throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', `unknown option '${name}': ${hint}`)
  }
  return options
}

/** How many edits turn one name into the other, whatever their case. */
function distance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const replaced = row[j - 1] + Number(a[i - 1].toLowerCase() !== b[j - 1].toLowerCase())
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, replaced)
    }
    row = next
  }
  return row[b.length]
}

module.exports = { K_DEFAULT, asked, coded, known, must }
