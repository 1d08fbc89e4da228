// Line and bar charts as SVG text.
//
// Written out here because the packages that draw SVG without a browser bring 50 MB or dozens of dependencies to every
// clone, and all that is needed is two kinds of chart.

const WIDTH = 760
const HEIGHT = 420
const LEFT = 72
const RIGHT = 190
const TOP = 44
const BOTTOM = 52
const COLOURS = ['#0b6e99', '#d9480f', '#2b8a3e', '#862e9c', '#c2255c', '#5c940d', '#1864ab', '#e67700', '#495057', '#087f5b', '#a61e4d']

/**
 * Lines of (x, y) points: recall along x, spread out towards 1, and a logarithmic y.
 *
 * @param series  `[{ name, points: [[recall, value], ...] }]`
 */
export function recallChart({ title, yLabel, series }) {
  const drawn = series.filter(({ points }) => points.length > 0)
  const recalls = drawn.flatMap(({ points }) => points.map(([recall]) => recall))
  const values = drawn.flatMap(({ points }) => points.map(([, value]) => value))
  const lowest = Math.min(0.95, Math.max(0.5, Math.min(...recalls)))
  const x = scale(nines(lowest), nines(0.9999), LEFT, WIDTH - RIGHT)
  const y = scale(Math.log10(Math.min(...values)) - 0.05, Math.log10(Math.max(...values)) + 0.05, HEIGHT - BOTTOM, TOP)
  const parts = []
  for (const recall of [0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999].filter((tick) => tick >= lowest)) {
    parts.push(vertical(x(nines(recall)), recall === 0.9999 ? '1' : String(recall)))
  }
  for (const tick of logTicks(Math.min(...values), Math.max(...values))) parts.push(horizontal(y(Math.log10(tick)), count(tick)))
  drawn.forEach(({ name, points }, i) => {
    const colour = COLOURS[i % COLOURS.length]
    const shown = points.filter(([recall]) => recall >= lowest)
    const at = shown.map(([recall, value]) => [x(nines(recall)).toFixed(1), y(Math.log10(value)).toFixed(1)])
    parts.push(`<polyline fill="none" stroke="${colour}" stroke-width="2" points="${at.map((point) => point.join(',')).join(' ')}"/>`)
    at.forEach(([cx, cy], j) => {
      parts.push(`<circle cx="${cx}" cy="${cy}" r="3" fill="${colour}"><title>${escape(name)}: ${shown[j][0].toFixed(4)}, ${count(shown[j][1])}</title></circle>`)
    })
    parts.push(legend(i, name, colour))
  })
  return svg(title, 'recall@10', yLabel, parts)
}

/**
 * Horizontal bars.
 *
 * @param bars  `[{ name, value }]`
 */
export function barChart({ title, xLabel, bars }) {
  const rowHeight = 26
  const left = 230
  const height = TOP + bars.length * rowHeight + BOTTOM
  const x = scale(0, Math.max(...bars.map((bar) => bar.value)), left, WIDTH - 80)
  const parts = bars.map(({ name, value }, i) => {
    const top = TOP + i * rowHeight
    return [
      text(left - 8, top + 15, name, 'end'),
      `<rect x="${left}" y="${top + 3}" width="${(x(value) - left).toFixed(1)}" height="17" fill="${COLOURS[0]}"/>`,
      text(x(value) + 6, top + 16, count(value), 'start'),
    ].join('')
  })
  return svg(title, xLabel, '', parts, height, (left + WIDTH - 80) / 2)
}

/** Each further nine of recall is as far from the last as that one from the one before; 1 stands at four nines. */
function nines(recall) {
  return -Math.log10(Math.max(1 - recall, 1e-4))
}

function scale(from, to, start, end) {
  return (value) => start + ((value - from) / (to - from || 1)) * (end - start)
}

function logTicks(min, max) {
  const ticks = []
  for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power++) {
    for (const digit of [1, 2, 5]) ticks.push(digit * 10 ** power)
  }
  return ticks.filter((tick) => tick >= min * 0.9 && tick <= max * 1.1)
}

function vertical(x, label) {
  return `<line x1="${x}" x2="${x}" y1="${TOP}" y2="${HEIGHT - BOTTOM}" stroke="#dee2e6"/>${text(x, HEIGHT - BOTTOM + 18, label, 'middle')}`
}

function horizontal(y, label) {
  return `<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${y}" y2="${y}" stroke="#dee2e6"/>${text(LEFT - 8, y + 4, label, 'end')}`
}

function legend(i, name, colour) {
  const y = TOP + 12 + i * 20
  return `<rect x="${WIDTH - RIGHT + 16}" y="${y - 9}" width="12" height="12" fill="${colour}"/>${text(WIDTH - RIGHT + 34, y + 1, name, 'start')}`
}

function svg(title, xLabel, yLabel, parts, height = HEIGHT, middle = (LEFT + WIDTH - RIGHT) / 2) {
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" font-family="system-ui, sans-serif" font-size="12">`,
    `<rect width="${WIDTH}" height="${height}" fill="#ffffff"/>`,
    `<text x="16" y="24" font-size="15" font-weight="600" fill="#212529">${escape(title)}</text>`,
    ...parts,
    text(middle, height - 12, xLabel, 'middle'),
    yLabel && `<text transform="translate(18 ${height / 2}) rotate(-90)" text-anchor="middle" fill="#343a40">${escape(yLabel)}</text>`,
    '</svg>\n',
  ].filter(Boolean).join('\n')
}

function text(x, y, content, anchor) {
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}" fill="#343a40">${escape(content)}</text>`
}

function count(value) {
  if (value >= 100) return Math.round(value).toLocaleString('en-US')
  return String(Number(value.toPrecision(3)))
}

function escape(content) {
  return String(content).replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
}
