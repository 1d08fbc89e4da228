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
const STEP_MAX: usize = 24;
/// A walk may look at so many records for each that its beam keeps as `expansion` says, but a beam counts as no narrower.
const BEAM_MIN: usize = 128;
/// Allowed records are called rare near the query when their share there is this many times below their share of all.
const RARE: usize = 8;

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
        let near = seeds.iter().filter(|id| filter.contains(**id)).count();
        if (near * 2 + 1) * RARE * self.slots.limit() as usize <= allowed * seeds.len() * 2 {
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
