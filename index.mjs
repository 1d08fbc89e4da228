import vecplane from './index.js'

export const { Plane, PlaneError, SearchHits, invalidatePlane, invalidatePlaneAsync, stalePathFor } = vecplane
export default vecplane
