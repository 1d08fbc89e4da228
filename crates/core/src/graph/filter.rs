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
use super::copied::{Copied, Kind};
use super::pool::{self, Entry};
use super::search::{Best, Candidate, Ranking, SCAN_BATCH};
use super::{Graph, Scratch};
use crate::copies::CopiesOf;
use crate::hits::Hits;
use crate::options::EF_MAX;

/// Up to this many records, looking at exact distances at once costs no more than looking at codes first.
pub(super) const EXACT_MAX: usize = 1024;
/// Codes put records that are all about equally far in a poor order: of a scan by codes so many are ranked exactly,
const SCAN_KEPT: usize = 224;
/// about so many others, for how far codes are off,
const SURVEYED: usize = 32;
/// and up to so many where that tells that others may be as near.
const SCAN_RANKED_MAX: usize = 4096;
/// What a walk among all records costs at least, and what for each record that its beam keeps, in records scanned. Measured.
const WIDE_COST: (usize, usize) = (300, 16);
/// The same among the allowed ones, where waiting for links is most of it: the least, and what for each record in ns.
const AMONG_LEAST: usize = 600;
const AMONG_NS: usize = 3300;
/// From this share of allowed records on, in percent, a wider beam among all records costs less than leaving any out. Measured.
const WIDE_PERCENT: usize = 25;
/// Nodes that a walk looks at for each one that its beam keeps: measured 14 to 20 on real vectors.
pub const LOOKS_PER_BEAM: usize = 17;
/// What one look costs in a walk, against one in a scan: the walk's are at random places and lead to others.
pub const WALK_FACTOR: usize = 2;

/// What a query may return.
#[derive(Clone, Copy)]
pub struct Filter<'f> {
    pub allowed: Allowed<'f>,
    /// Where copies of what scans read are kept; `None` for what is not asked for again.
    pub copies: Option<CopiesOf<'f>>,
}

impl Filter<'_> {
    /// The answer of `scan` in a copy, where there is one that gives an answer.
    fn copied(
        &self,
        graph: &Graph<'_>,
        kind: Kind,
        scan: impl FnOnce(&Copied) -> Option<Hits>,
    ) -> Option<Hits> {
        let copies = self.copies?;
        let hits = scan(&*copies.get(graph, self.allowed, kind)?);
        if hits.is_none() {
            copies.forget(kind);
        }
        hits
    }
}

impl<'a> Graph<'a> {
    /// Nearest of the records that the filter allows. `scratch` holds the query, prepared; the caller is pinned. A walk looks at
    /// no more than `expansion` times `ef` records.
    pub fn search_filtered(
        &self,
        filter: Filter<'_>,
        ef: usize,
        expansion: usize,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> Hits {
        let total = self.slots.limit() as usize;
        let allowed = filter.allowed.count(self.slots.limit());
        if allowed <= EXACT_MAX.max(ranking.k) {
            return self.scan_filtered(Some(filter), ranking, scratch);
        }
        let ef = ef.max(ranking.k);
        let wide = ef.saturating_mul(total).div_ceil(allowed);
        let is_wide = allowed * 100 >= total * WIDE_PERCENT;
        let among = (AMONG_LEAST, AMONG_NS / scan_ns(self.store.layout.code_bytes as usize));
        let (beam, (least, each)) = if is_wide { (wide, WIDE_COST) } else { (ef, among) };
        if beam.saturating_mul(each).saturating_add(least) < allowed {
            let found = match is_wide {
                true => self.walk_wide(filter.allowed, wide, ranking, scratch),
                false => self.walk_among(filter.allowed, allowed, ef, expansion, ranking, scratch),
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

    /// `scan`, in a copy where there is one.
    pub fn scan_filtered(
        &self,
        filter: Option<Filter<'_>>,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> Hits {
        let kind = self.final_kind(ranking);
        let copied = filter.and_then(|filter| {
            filter.copied(self, kind, |copied| self.scan_copied(copied, ranking, scratch))
        });
        copied.unwrap_or_else(|| self.scan(filter.map(|filter| filter.allowed), ranking, scratch))
    }

    /// The best of all allowed records by their codes, ranked like a walk's.
    fn scan_codes(&self, filter: Filter<'_>, ranking: Ranking<'_>, scratch: &mut Scratch) -> Hits {
        let in_copy = |copied: &Copied| self.scan_copied_codes(copied, ranking, scratch);
        if let Some(hits) = filter.copied(self, Kind::Codes, in_copy) {
            return hits;
        }
        let Scratch { query, walk: Walk { rows, .. }, .. } = &mut *scratch;
        let mut best = Best::new(most_ranked(ranking));
        let mut scored: Vec<Entry> = Vec::with_capacity(SCAN_BATCH);
        let mut ids = filter.allowed.ids(self.slots.limit());
        let mut batch: Vec<u32> = Vec::with_capacity(SCAN_BATCH);
        let mut next: Vec<u32> = Vec::with_capacity(SCAN_BATCH);
        loop {
            next.clear();
            next.extend(ids.by_ref().take(SCAN_BATCH));
            for id in &next {
                self.prefetch_record(*id);
            }
            self.score(query, batch.drain(..), rows, |id, distance| scored.push(pool::entry(distance, id)));
            best.extend(scored.drain(..));
            if next.is_empty() {
                break;
            }
            std::mem::swap(&mut batch, &mut next);
        }
        self.answer_scanned(best.nearest(), |entry| Some(pool::id(entry)), ranking, scratch)
    }

    /// Ranks what a scan by codes found nearest, in any order, and copies the best out. `id_of` tells whose entry one is, if it
    /// still is. First the nearest, and a few others: they tell how far codes are off, and so which more may be as near.
    pub(super) fn answer_scanned(
        &self,
        found: &mut [Entry],
        id_of: impl Fn(Entry) -> Option<u32>,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> Hits {
        let kept = ranking.candidates().max(SCAN_KEPT).min(found.len());
        if kept > 0 {
            found.select_nth_unstable(kept - 1);
        }
        let (nearest, others) = found.split_at(kept);
        let step = (others.len() / SURVEYED).max(1);
        let first = nearest.iter().chain(others.iter().step_by(step));
        let first: Vec<(u32, Entry)> = first.filter_map(|entry| Some((id_of(*entry)?, *entry))).collect();
        let ids: Vec<u32> = first.iter().map(|(id, _)| *id).collect();
        let mut ranked = Vec::with_capacity(ids.len());
        self.rank(&ids, ranking, scratch, &mut ranked);
        if let Some(reach) = reach_of(&first, &mut ranked, ranking).filter(|_| !others.is_empty()) {
            let near = others.iter().enumerate().filter(|(at, entry)| at % step != 0 && **entry < reach);
            let ids: Vec<u32> = near.filter_map(|(_, entry)| id_of(*entry)).collect();
            ids.chunks(SCAN_KEPT).for_each(|ids| self.rank(ids, ranking, scratch, &mut ranked));
        }
        ranked.sort_unstable();
        self.hits(&ranked, ranking)
    }
}

/// The first entry by codes that lies too far for one of the `ranking.k` nearest: farther than the last of those known by as
/// much as codes were too far at most, and half as much again as they differ in that. `None` when not so many are known, which
/// only happens beside removals.
fn reach_of(scored: &[(u32, Entry)], ranked: &mut [Candidate], ranking: Ranking<'_>) -> Option<Entry> {
    let (mut least, mut most) = (f64::MAX, f64::MIN);
    let mut by_code = scored.iter();
    for candidate in ranked.iter() {
        // Both in one order; a record that was removed meanwhile is in neither or in the first alone.
        let (_, entry) = by_code.find(|(id, _)| *id == pool::id(candidate.entry))?;
        let off = f64::from(pool::distance(*entry)) - f64::from(pool::distance(candidate.entry));
        (least, most) = (least.min(off), most.max(off));
    }
    let (_, last, _) = ranked.select_nth_unstable(ranking.k.checked_sub(1).filter(|k| *k < ranked.len())?);
    let reach = f64::from(pool::distance(last.entry)) + most + (most - least) / 2.0;
    let reach = reach.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32;
    Some(pool::entry(reach.next_up().min(f32::MAX), 0))
}

/// What a record costs in a scan by codes: 24, 29 and 46 ns with 50, 128 and 384 bytes of them.
fn scan_ns(code_bytes: usize) -> usize {
    20 + code_bytes / 15
}

/// Most records that a scan by codes ranks by their final distances.
pub(super) fn most_ranked(ranking: Ranking<'_>) -> usize {
    ranking.candidates().max(SCAN_RANKED_MAX)
}
