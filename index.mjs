import vecplane from './index.js'

export const { Plane, PlaneError, SearchHits } = vecplane
export default vecplane
