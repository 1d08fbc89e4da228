// Terminal layout for the demo: headings, aligned columns, a progress bar; plain text when the output is not a terminal.
import process from 'node:process'

const out = process.stdout
const colours = out.isTTY && !process.env.NO_COLOR && process.env.TERM !== 'dumb'
const style = (code) => (text) => (colours ? `\x1b[${code}m${text}\x1b[0m` : String(text))

export const bold = style(1)
export const dim = style(2)
export const green = style(32)
export const cyan = style(36)

const WIDTH = Math.max(60, Math.min(out.columns || 100, 110))
const LABEL = 20
const VALUE = 16
const BAR = 32

export function heading(text) {
  out.write(`\n${bold(text)}\n`)
}

/** One line of a section: what, then the figure, then what it means. */
export function fact(label, value, remark = '') {
  out.write(`  ${label.padEnd(LABEL)}${green(value.padEnd(remark ? VALUE : 0))}${remark && ` ${dim(remark)}`}\n`)
}

/** A query and its hits: `{ key, text, distance }`, aligned on the longest key. */
export function answer(query, hits) {
  const keyWidth = Math.min(30, Math.max(...hits.map(({ key }) => key.length)))
  out.write(`\n  ${cyan(query.key)}  ${clip(query.text, WIDTH - 4 - query.key.length)}\n`)
  for (const { key, text, distance } of hits) {
    const room = WIDTH - 4 - 8 - keyWidth - 2
    out.write(`    ${green(distance.toFixed(4))}  ${clip(key, keyWidth).padEnd(keyWidth)}  ${dim(clip(text, room))}\n`)
  }
}

/** Rows of figures under their names, right-aligned. */
export function table(names, rows) {
  const widths = names.map((name, i) => Math.max(name.length, ...rows.map((row) => row[i].length)))
  const line = (cells) => `  ${cells.map((cell, i) => cell.padStart(widths[i])).join('   ')}\n`
  out.write(`\n${dim(line(names))}`)
  for (const row of rows) out.write(line(row))
}

/** A bar to call with what is done: redraws one line on a terminal; elsewhere prints it once, at the end. */
export function progressBar(label) {
  let ended = false
  return (done, total) => {
    if (ended) return
    ended = done === total
    const filled = Math.round((BAR * done) / total)
    const bar = '█'.repeat(filled) + '░'.repeat(BAR - filled)
    const text = `  ${label.padEnd(LABEL)}${bar} ${count(done)} of ${count(total)}`
    if (out.isTTY) out.write(`\r${text}${ended ? '\n' : ''}`)
    else if (ended) out.write(`${text}\n`)
  }
}

export function count(number) {
  return Math.round(number).toLocaleString('en-US')
}

export function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(1)} MB`
}

export function milliseconds(ms) {
  return ms < 10 ? `${ms.toFixed(2)} ms` : ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(2)} s`
}

export function percentile(values, share) {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
}

/** The text on one line of at most `width` characters, control characters dropped. */
function clip(text, width) {
  const characters = Array.from(text.replace(/[\p{Cc}\p{Cf}\uFE0F]+/gu, ' ').trim())
  return characters.length <= width ? characters.join('') : `${characters.slice(0, width - 1).join('').trimEnd()}…`
}
