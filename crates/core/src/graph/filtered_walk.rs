//! Walking among allowed records only, over bridges of others.
//!
//! Links lead to the nearest records, of which a filter leaves some: too few to get anywhere. So where a walk expands a
//! record, a neighbour that is not allowed stands for its own neighbours (the two-hop expansion of ACORN, Patel et al.,
//! arXiv:2403.04871). Only allowed records are scored and take places in the beam, which therefore need not be wider; what
//! is paid for instead is reading the links of those in between.
//!
//! Whether there are allowed records near the query at all is found out first, by a narrow walk among all.

use std::sync::atomic::Ordering;

use super::allowed::Allowed;
use super::beam::{CAUTION, Walk, descent_beam};
use super::pool;
use super::search::Ranking;
use super::{Graph, Scratch};
use crate::file::layout::NONE;

/// Beam of the walk that looks for the query's surroundings.
const PROBE_BEAM: usize = 32;
/// Allowed neighbours that one step gathers over bridges.
const STEP_MAX: usize = 32;
/// A walk may look at so many records for each that its beam keeps as `expansion` says, but a beam counts as no narrower.
const BEAM_MIN: usize = 128;
/// Allowed records are called rare near the query when their share of what the narrow walk met is this many times below their
/// share of all. It meets some 500, which tells more than the 32 in its beam: a walk among rare ones ends among those that it
/// came by, and finds 0.90 of the nearest where the 10% farthest from the query are allowed (minilm, 100,000).
const RARE: usize = 4;

impl<'a> Graph<'a> {
    /// The nearest that a walk among allowed records finds; fewer than asked for where there are few near the query, or where it
    /// would take more than `expansion` times `ef` looks.
    pub fn walk_among(
        &self,
        filter: Allowed<'_>,
        allowed: usize,
        ef: usize,
        expansion: usize,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> Vec<u32> {
        let Scratch { query, walk, seeds, .. } = scratch;
        self.descend(query, walk, seeds, 0, descent_beam(PROBE_BEAM));
        self.start(walk, PROBE_BEAM, PROBE_BEAM);
        self.seed_all(query, walk, seeds);
        if let Some(root) = self.root() {
            self.seed(query, walk, root);
        }
        self.walk_layer(query, walk, 0);
        seeds.clear();
        seeds.extend(walk.pool.entries().iter().map(|e| pool::id(*e)));
        let (mut met, mut near) = (0usize, 0usize);
        for id in walk.visited.ids() {
            met += 1;
            near += usize::from(filter.contains(id));
        }
        if (near * 2 + 1) * RARE * self.slots.limit() as usize <= allowed * met * 2 {
            return Vec::new();
        }
        self.start(walk, ef, ranking.candidates());
        let (inside, outside): (Vec<u32>, Vec<u32>) = seeds.iter().partition(|id| filter.contains(**id));
        self.seed_all(query, walk, &inside);
        for id in &outside {
            walk.visited.insert(*id);
        }
        walk.bridges.clear();
        walk.bridges.extend(outside);
        let looks_max = ef.max(BEAM_MIN).saturating_mul(expansion.max(1));
        let mut looks = 0;
        let screen = query.screen(CAUTION);
        loop {
            looks += walk.pending.len();
            if looks > looks_max {
                return Vec::new();
            }
            self.screen_pending(query, &screen, walk);
            if !self.step_among(filter, walk) {
                break;
            }
            self.score_pending(query, walk);
            std::mem::swap(&mut walk.pending, &mut walk.gathered);
        }
        walk.pool.entries().iter().take(ranking.candidates()).map(|e| pool::id(*e)).collect()
    }

    /// Gathers allowed neighbours over the bridges found at the last step, and those of one more record with the next bridges.
    /// False when nothing is left to do.
    #[inline(always)]
    fn step_among(&self, filter: Allowed<'_>, walk: &mut Walk) -> bool {
        let next = walk.pool.expand_next();
        if next.is_none() && walk.bridges.is_empty() && walk.pending.is_empty() {
            return false;
        }
        let mut bridges = std::mem::take(&mut walk.bridges);
        for id in bridges.drain(..) {
            if walk.gathered.len() >= STEP_MAX {
                break;
            }
            self.gather_allowed(id, filter, walk, false);
        }
        walk.bridges = bridges;
        if let Some(id) = next {
            self.gather_allowed(id, filter, walk, true);
        }
        true
    }

    #[inline(always)]
    fn gather_allowed(&self, id: u32, filter: Allowed<'_>, walk: &mut Walk, bridges: bool) {
        let Some(node) = self.slots.get(id) else { return };
        for link in node.links() {
            let id = link.load(Ordering::Relaxed);
            if id == NONE {
                break;
            }
            if id >= self.slots.limit() {
                continue;
            }
            if filter.contains(id) {
                if walk.visited.insert(id) {
                    self.prefetch_first(id);
                    walk.gathered.push(id);
                }
            } else if bridges && walk.visited.insert(id) {
                self.prefetch_links(id);
                walk.bridges.push(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::{Batch, CreateOptions, Metric, Plane, SearchOptions};

    /// A walk that gives up costs its time, and then that of a scan.
    #[test]
    fn walks_among_a_tenth_to_a_quarter_of_the_records_come_to_an_end_and_those_in_vain_do_not_start() {
        let mut state = 11u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let dir = tempfile::tempdir().unwrap();
        let options = CreateOptions { metric: Metric::L2, ..CreateOptions::new(32) };
        let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
        let rows = 20_000;
        let vectors: Vec<f32> = (0..rows * 32).map(|_| random()).collect();
        let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
        plane.insert_batch(batch, 0, &|_| true).unwrap();
        let engine = plane.engine().unwrap();
        let expansion = SearchOptions::new(10).filter_expansion;
        for share in [0.1, 0.15, 0.24] {
            let mut bits = vec![0u8; rows / 8];
            (0..rows).filter(|_| random() + 0.5 < share).for_each(|id| bits[id >> 3] |= 1 << (id & 7));
            let filter = Allowed::Bits(&bits);
            let allowed = filter.count(rows as u32);
            for ef in [128, 160, 320] {
                let query: Vec<f32> = (0..32).map(|_| random()).collect();
                let norm = codec::checked_norm(&query).unwrap();
                let mut pinned = engine.pin().unwrap();
                let ranking = Ranking { k: 10, rerank: true, protected: pinned.protects(), tags: None };
                let (graph, scratch) = pinned.parts();
                scratch.query.set_vector(options.precision, options.metric, &query, norm);
                let found = graph.walk_among(filter, allowed, ef, expansion, ranking, scratch);
                assert_eq!(found.len(), ranking.candidates(), "share {share}, ef {ef}");
                assert!(found.iter().all(|id| filter.contains(*id)));
            }
        }
        // What a walk towards the query comes by is none of the tenth that is farthest from it, and it says so.
        for _ in 0..5 {
            let query: Vec<f32> = (0..32).map(|_| random()).collect();
            let ids = plane.search_exact(&query, rows, None).unwrap().ids;
            let mut bits = vec![0u8; rows / 8];
            ids[rows - rows / 10..].iter().for_each(|id| bits[*id as usize >> 3] |= 1 << (id & 7));
            let norm = codec::checked_norm(&query).unwrap();
            let mut pinned = engine.pin().unwrap();
            let ranking = Ranking { k: 10, rerank: true, protected: pinned.protects(), tags: None };
            let (graph, scratch) = pinned.parts();
            scratch.query.set_vector(options.precision, options.metric, &query, norm);
            let found = graph.walk_among(Allowed::Bits(&bits), rows / 10, 128, expansion, ranking, scratch);
            assert!(found.is_empty(), "{} found", found.len());
        }
    }
}
