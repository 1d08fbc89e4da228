//! Queries for everything up to a distance.
//!
//! The beam starts as wide as that of any query. When more than a few of what it found are within reach, it gets wider with
//! each of them, so that none is dropped and those beyond keep as much room as before: the walk ends when everything in reach that it has met, and the
//! nearest `ef` beyond, have been expanded. Membership is decided by final distances. The codes that the walk goes by are
//! a little off, so it reaches a little farther than asked.

use super::allowed::Allowed;
use super::beam::descent_beam;
use super::filter::{EXACT_MAX, Filter};
use super::pool::{self, Entry};
use super::search::{Ranking, TRIES_MAX};
use super::{Graph, Scratch};
use crate::hits::Hits;

/// Records that tell how far codes are off around here.
const SURVEYED: usize = 32;
/// How much farther than the worst of them the walk allows for.
const CAUTION: f64 = 2.0;
/// Up to one part in so many of the beam may be in reach before the walk goes on with a beam that gets wider.
const FEW_INSIDE: usize = 4;
/// With a filter, so many times what is asked for may be in reach before a scan answers instead.
const FILTERED_MAX: usize = 8;

impl<'a> Graph<'a> {
    /// Records at most `within` away that the filter allows, the nearest `ranking.k` of them. `scratch` holds the query,
    /// prepared; the caller is pinned.
    pub fn search_within(
        &self,
        within: f64,
        ef: usize,
        filter: Option<Filter<'_>>,
        ranking: Ranking,
        scratch: &mut Scratch,
    ) -> Hits {
        let allowed = filter.map(|filter| filter.allowed);
        let few = allowed.is_some_and(|ids| ids.count(self.slots.limit()) <= EXACT_MAX.max(ranking.k));
        let walked = if few { None } else { self.walk_within(within, ef, allowed, ranking, scratch) };
        let mut hits = walked.unwrap_or_else(|| self.current().scan_filtered(filter, ranking, scratch));
        hits.cut(within);
        hits
    }

    /// `None` when there was nothing to start from, or more in reach than is worth keeping.
    fn walk_within(
        &self,
        within: f64,
        ef: usize,
        filter: Option<Allowed<'_>>,
        ranking: Ranking,
        scratch: &mut Scratch,
    ) -> Option<Hits> {
        let graph = (0..TRIES_MAX).map(|_| self.current()).find(|graph| graph.walk_near(ef, scratch))?;
        let reach = graph.reach(within, ranking, scratch);
        let most = ranking.candidates().saturating_mul(if filter.is_some() { FILTERED_MAX } else { 1 });
        let Scratch { query, walk, seeds, .. } = &mut *scratch;
        let inside = walk.pool.entries().partition_point(|entry| *entry < reach);
        if inside * FEW_INSIDE > ef {
            // They leave too little of the beam for what leads to others, or some were dropped already.
            seeds.clear();
            seeds.extend(walk.pool.entries().iter().map(|entry| pool::id(*entry)));
            graph.start_within(walk, ef, reach, most);
            graph.seed_all(query, walk, seeds);
            graph.walk_layer(query, walk, 0);
        }
        let entries = walk.pool.entries();
        let inside = &entries[..entries.partition_point(|entry| *entry < reach)];
        if filter.is_some() && inside.len() >= most {
            return None;
        }
        let found = inside.iter().map(|entry| pool::id(*entry));
        let found: Vec<u32> = found.filter(|id| filter.is_none_or(|filter| filter.contains(*id))).collect();
        Some(graph.answer(&found, ranking, scratch))
    }

    /// Walks as for the nearest `ef`; false when no record was met.
    fn walk_near(&self, ef: usize, scratch: &mut Scratch) -> bool {
        let Scratch { query, walk, seeds, .. } = scratch;
        self.descend(query, walk, seeds, 0, descent_beam(ef));
        self.start(walk, ef, ef);
        self.seed_all(query, walk, seeds);
        if let Some(root) = self.root() {
            self.seed(query, walk, root);
        }
        self.walk_layer(query, walk, 0);
        !walk.pool.entries().is_empty()
    }

    /// How far a walk by codes has to go for everything within a true distance, as the first entry beyond.
    fn reach(&self, within: f64, ranking: Ranking, scratch: &mut Scratch) -> Entry {
        let near: Vec<Entry> = scratch.walk.pool.entries().iter().take(SURVEYED).copied().collect();
        let ids: Vec<u32> = near.iter().map(|entry| pool::id(*entry)).collect();
        let mut ranked = Vec::with_capacity(ids.len());
        self.rank(&ids, ranking, scratch, &mut ranked);
        let mut off = 0.0f64;
        let mut by_code = near.iter();
        for candidate in ranked {
            // Both in one order; a record that was removed meanwhile is in neither or in the first alone.
            let id = pool::id(candidate.entry);
            if let Some(code) = by_code.find(|entry| pool::id(**entry) == id) {
                let difference =
                    f64::from(pool::distance(*code)) - f64::from(pool::distance(candidate.entry));
                off = off.max(difference.abs());
            }
        }
        let reach = (within + CAUTION * off).clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32;
        pool::entry(reach.next_up().min(f32::MAX), 0)
    }
}
