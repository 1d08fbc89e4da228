// Cost at a recall that no measured ef hits exactly.

export const TARGETS = [0.95, 0.99, 0.995, 0.999]

/** The ef worth timing: for each target the last below it and the first that reaches it. */
export function efsAround(curve) {
  const wanted = new Set()
  for (const target of TARGETS) {
    const at = curve.findIndex((point) => point.recall >= target)
    if (at >= 0) wanted.add(curve[at].ef)
    if (at > 0) wanted.add(curve[at - 1].ef)
  }
  // An engine that reaches no target is timed where it comes nearest.
  wanted.add(curve.reduce((best, point) => (point.recall > best.recall ? point : best)).ef)
  return [...wanted].sort((a, b) => a - b)
}

/**
 * `{ cpu_us, ef }` at a target recall, on a straight line between the two neighbouring points over log(1 - recall), which is
 * close to how graph searches behave; `lowest` when the lowest ef is already past the target, and null past the ceiling.
 */
export function costAt(curve, costs, target) {
  const at = curve.findIndex((point) => point.recall >= target)
  if (at < 0) return null
  const above = curve[at]
  if (at === 0) return { cpu_us: costs[above.ef], ef: above.ef, lowest: true }
  const below = curve[at - 1]
  const share = (missed(below.recall) - missed(target)) / (missed(below.recall) - missed(above.recall))
  const between = (a, b) => a + (b - a) * share
  return { cpu_us: between(costs[below.ef], costs[above.ef]), ef: Math.round(between(below.ef, above.ef)), lowest: false }
}

function missed(recall) {
  return Math.log(Math.max(1 - recall, 1e-5))
}
