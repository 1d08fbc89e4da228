'use strict'

// Searches that ask the caller which records they may return. The native side walks in steps on the pool and hands out
// batches of candidates. No thread waits for the predicate, and a search that JavaScript forgets is collected with everything
// it holds.

const { coded } = require('./options.js')

/** A predicate that takes longer than this is worth a step beside it, which knows less than one after it would. */
const SLOW_MS = 0.1

/** Runs a native search to its end; `aborted` is a promise that rejects when the caller's signal fires, if there is one. */
async function askedSearch(search, predicate, aborted) {
  const unless = (promise) => aborted === undefined ? promise : Promise.race([promise, aborted])
  const batches = []
  let slow = false
  let next = search.step()
  let verdicts
  try {
    for (;;) {
      const { asked, hits, truncated } = await unless(next)
      next = undefined
      if (hits !== undefined) return { hits, truncated }
      if (asked !== undefined) batches.push(asked)
      // With enough let in, what has not been asked about yet probably need not be.
      const settled = verdicts !== undefined && search.give(verdicts)
      verdicts = undefined
      if (!settled && batches.length > 0) {
        // The traversal goes on with the verdicts so far while a slow predicate is at work.
        if (slow) next = search.step()
        const batch = batches.shift()
        const start = performance.now()
        let answer = ask(predicate, batch)
        const promised = typeof answer?.then === 'function'
        slow ||= promised || performance.now() - start > SLOW_MS
        if (promised) {
          next ??= search.step()
          answer = await unless(answer)
        }
        verdicts = checked(answer, batch.length)
        if (next === undefined) {
          search.give(verdicts)
          verdicts = undefined
        }
      }
      next ??= search.step()
    }
  } finally {
    // When the predicate failed, the step that went on meanwhile still ends, and nobody waits for how.
    next?.catch(() => {})
    search.end()
  }
}

function ask(predicate, ids) {
  const { buffer, length } = ids
  const numbers = new Array(length)
  for (let i = 0; i < length; i++) numbers[i] = ids[i]
  return predicate(numbers, Buffer.from(buffer, 8 * length), new Uint32Array(buffer, 4 * length, length))
}

/** One byte for each record. */
function checked(answer, length) {
  const bytes = answer instanceof Uint8Array || answer instanceof Uint8ClampedArray
  if (!bytes && !Array.isArray(answer)) {
    const got = answer === null ? 'null' : typeof answer === 'object' ? answer.constructor?.name ?? 'an object' : typeof answer
    throw wrong(`the predicate must return a Uint8Array, a Buffer or an array with a verdict for each id, got ${got}`)
  }
  if (answer.length !== length) throw wrong(`the predicate returned ${answer.length} verdicts for ${length} ids`)
  if (bytes) return answer instanceof Uint8ClampedArray ? Uint8Array.from(answer) : answer
  return Uint8Array.from(answer, (verdict, i) => {
    if (verdict === 1 || verdict === true) return 1
    if (verdict === 0 || verdict === false) return 0
    throw wrong(`the predicate's verdict ${i} must be 0, 1, false or true, got ${String(verdict)}`)
  })
}

const wrong = (message) => coded(TypeError, 'ERR_INVALID_RETURN_VALUE', message)

module.exports = { askedSearch }
