import * as vecplane from './index.js'

export * from './index.js'
export default vecplane
