//! Queries with a filter: which way to the answer costs least.
//!
//! - Few records allowed: their exact distances, all of them.
//! - A moderate share: the codes of all allowed records, then the exact distances of the best.
//! - A large share: the graph, with a beam widened by the share that is let through. Where the walk comes back with too
//!   few, because what is allowed lies far from the query, the scan answers after all: a filter never shortens an answer.

use super::allowed::Allowed;
use super::beam::descent_beam;
use super::pool;
use super::search::Ranking;
use super::{Graph, Scratch};
use crate::distance::prefetch;
use crate::hits::Hits;
use crate::options::EF_MAX;

/// Up to this many records, looking at exact distances at once costs no more than looking at codes first.
pub(super) const EXACT_MAX: usize = 512;
/// Nodes that a walk looks at for each one that its beam keeps: measured 14 to 20 on real vectors.
pub const LOOKS_PER_BEAM: usize = 17;
/// What one look costs in a walk, against one in a scan: the walk's are at random places and lead to others.
pub const WALK_FACTOR: usize = 2;
/// Records scored together.
const BATCH: usize = 64;

impl<'a> Graph<'a> {
    /// Nearest of the records that the filter allows. `scratch` holds the query, prepared; the caller is pinned. With a
    /// widened beam the walk keeps at most `expansion` times `ef`.
    pub fn search_filtered(
        &self,
        filter: Allowed<'_>,
        ef: usize,
        expansion: usize,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> Hits {
        let allowed = filter.count(self.slots.limit());
        if allowed <= EXACT_MAX.max(ranking.k) {
            return self.scan(Some(filter), ranking, scratch);
        }
        let total = self.slots.limit() as usize;
        let wide =
            ef.saturating_mul(total).div_ceil(allowed).min(ef.saturating_mul(expansion.max(1))).min(EF_MAX);
        if wide.saturating_mul(LOOKS_PER_BEAM * WALK_FACTOR) < allowed {
            let Scratch { query, walk, seeds, .. } = scratch;
            self.descend(query, walk, seeds, 0, descent_beam(wide));
            self.start(walk, wide, ranking.candidates());
            self.seed_all(query, walk, seeds);
            self.walk_layer(query, walk, 0);
            let found = walk.pool.entries().iter().map(|e| pool::id(*e)).filter(|id| filter.contains(*id));
            let found: Vec<u32> = found.take(ranking.candidates()).collect();
            if found.len() >= ranking.candidates().min(ef) {
                return self.answer(&found, ranking, scratch);
            }
        }
        self.scan_codes(filter, ranking, scratch)
    }

    /// The best of all allowed records by their codes, ranked like a walk's.
    fn scan_codes(&self, filter: Allowed<'_>, ranking: Ranking<'_>, scratch: &mut Scratch) -> Hits {
        let Scratch { query, walk, .. } = scratch;
        self.start(walk, ranking.candidates(), usize::MAX);
        let mut ids = filter.ids(self.slots.limit());
        let mut batch: Vec<u32> = Vec::with_capacity(BATCH);
        let mut next: Vec<u32> = Vec::with_capacity(BATCH);
        loop {
            next.clear();
            next.extend(ids.by_ref().take(BATCH));
            for id in &next {
                prefetch(self.slots.address(*id));
            }
            let super::beam::Walk { pool, rows, .. } = walk;
            self.score(query, batch.drain(..), rows, |id, distance| {
                pool.insert(pool::entry(distance, id));
            });
            if next.is_empty() {
                break;
            }
            std::mem::swap(&mut batch, &mut next);
        }
        let found: Vec<u32> = walk.pool.entries().iter().map(|e| pool::id(*e)).collect();
        self.answer(&found, ranking, scratch)
    }
}
