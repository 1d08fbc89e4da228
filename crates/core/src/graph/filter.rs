//! Queries with a filter: which way to the answer costs least.
//!
//! - Few records allowed: their exact distances, all of them.
//! - A moderate share: the codes of all allowed records, then the exact distances of the best.
//! - A large share: the graph. A walk among the allowed records (`filtered_walk`), or, where nearly everything is allowed, one
//!   among all of them with a beam that is so much wider.
//!
//! Where a walk comes back with too few, because what is allowed lies far from the query, the scan answers after all: a filter
//! never shortens an answer.

use super::allowed::Allowed;
use super::beam::{Walk, descent_beam};
use super::pool;
use super::search::Ranking;
use super::{Graph, Scratch};
use crate::hits::Hits;
use crate::options::EF_MAX;

/// Up to this many records, looking at exact distances at once costs no more than looking at codes first.
pub(super) const EXACT_MAX: usize = 1024;
/// Codes put records that are all about equally far in a poor order: of a scan by codes so many are ranked exactly.
const SCAN_KEPT: usize = 256;
/// What a walk costs at least, and what for each record that its beam keeps, in records scanned. Measured: among all records,
/// and among the allowed ones.
const WIDE_COST: (usize, usize) = (300, 16);
const AMONG_COST: (usize, usize) = (600, 56);
/// From this share of allowed records on, in percent, a wider beam among all records costs less than leaving any out. Measured.
const WIDE_PERCENT: usize = 25;
/// Nodes that a walk looks at for each one that its beam keeps: measured 14 to 20 on real vectors.
pub const LOOKS_PER_BEAM: usize = 17;
/// What one look costs in a walk, against one in a scan: the walk's are at random places and lead to others.
pub const WALK_FACTOR: usize = 2;
/// Records scored together.
const BATCH: usize = 64;

impl<'a> Graph<'a> {
    /// Nearest of the records that the filter allows. `scratch` holds the query, prepared; the caller is pinned. A walk looks at
    /// no more than `expansion` times `ef` records.
    pub fn search_filtered(
        &self,
        filter: Allowed<'_>,
        ef: usize,
        expansion: usize,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> Hits {
        let total = self.slots.limit() as usize;
        let allowed = filter.count(self.slots.limit());
        if allowed <= EXACT_MAX.max(ranking.k) {
            return self.scan(Some(filter), ranking, scratch);
        }
        let ef = ef.max(ranking.k);
        let wide = ef.saturating_mul(total).div_ceil(allowed);
        let is_wide = allowed * 100 >= total * WIDE_PERCENT;
        let (beam, (least, each)) = if is_wide { (wide, WIDE_COST) } else { (ef, AMONG_COST) };
        if beam.saturating_mul(each).saturating_add(least) < allowed {
            let found = match is_wide {
                true => self.walk_wide(filter, wide, ranking, scratch),
                false => self.walk_among(filter, allowed, ef, expansion, ranking, scratch),
            };
            if found.len() >= ranking.candidates().min(ef) {
                return self.answer(&found, ranking, scratch);
            }
        }
        self.scan_codes(filter, ranking, scratch)
    }

    /// The nearest that a walk among all records comes by.
    fn walk_wide(
        &self,
        filter: Allowed<'_>,
        ef: usize,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> Vec<u32> {
        let Scratch { query, walk, seeds, .. } = scratch;
        self.descend(query, walk, seeds, 0, descent_beam(ef));
        self.start(walk, ef.min(EF_MAX), ranking.candidates());
        self.seed_all(query, walk, seeds);
        self.walk_layer(query, walk, 0);
        let found = walk.pool.entries().iter().map(|e| pool::id(*e)).filter(|id| filter.contains(*id));
        found.take(ranking.candidates()).collect()
    }

    /// The best of all allowed records by their codes, ranked like a walk's.
    fn scan_codes(&self, filter: Allowed<'_>, ranking: Ranking<'_>, scratch: &mut Scratch) -> Hits {
        let Scratch { query, walk, .. } = scratch;
        self.start(walk, ranking.candidates().max(SCAN_KEPT), usize::MAX);
        let Walk { pool, rows, .. } = walk;
        let mut ids = filter.ids(self.slots.limit());
        let mut batch: Vec<u32> = Vec::with_capacity(BATCH);
        let mut next: Vec<u32> = Vec::with_capacity(BATCH);
        loop {
            next.clear();
            next.extend(ids.by_ref().take(BATCH));
            for id in &next {
                self.prefetch_record(*id);
            }
            self.score(query, batch.drain(..), rows, |id, distance| {
                pool.insert(pool::entry(distance, id));
            });
            if next.is_empty() {
                break;
            }
            std::mem::swap(&mut batch, &mut next);
        }
        let found: Vec<u32> = pool.entries().iter().map(|e| pool::id(*e)).collect();
        self.answer(&found, ranking, scratch)
    }
}
