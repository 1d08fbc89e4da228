//! Linking a new node in (Malkov and Yashunin, arXiv:1603.09320, algorithm 1), and publishing it last.

use std::sync::atomic::Ordering;

use super::beam::DESCENT_BEAM;
use super::links::{self, Offer};
use super::node::{MARK_OUTLIER, Node, SlotState};
use super::pool;
use super::{Graph, Scratch};
use crate::file::layout::LEVEL_MAX;

/// Copies of one vector that a beam holds while linking: more would leave no room for the way out.
pub const COPIES: usize = 16;
/// Links that a new node gets whatever the diversity rule says. An outlier whose nearest neighbour is another outlier is
/// found through that one alone otherwise, and then not from everywhere.
pub const LINKS_MIN: usize = 4;

/// Well-connected nodes that are made to link to an outlier.
const OUTLIER_WAYS_IN: usize = 8;

/// How many links a new node may choose on layer 0: half as many again as M, with which high recalls take fewer looks
/// (docs/design.md, section 9), but leaving a quarter of the list to those that come later, as far as M allows.
fn links_of_newcomer(m: usize, room: usize) -> usize {
    (room - room / 4).min(m + m / 2).max(m.min(room))
}

/// The level of a record: geometric, so that each layer has one M-th of the nodes of the one below. Drawn from the
/// record's generation and the plane's seed, so that the same inserts make the same graph.
pub fn level_for(generation: u64, seed: u64, m: u32) -> u8 {
    // SplitMix64 (Steele, Lea and Flood, 2014).
    let mut z = generation.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    let uniform = ((z >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    (-uniform.ln() / f64::from(m).ln()).min(f64::from(LEVEL_MAX)) as u8
}

impl<'a> Graph<'a> {
    /// Finds the neighbours of a node that is being built, links it to them and them to it. The node's record is
    /// complete but for its links, `scratch.query` holds it, and the caller is pinned. Afterwards the node has a parent,
    /// unless the plane turned out to be empty.
    pub fn link(&self, id: u32, node: Node<'a>, level: u8, scratch: &mut Scratch) {
        let Some((_, top)) = self.entry_point() else { return };
        let from = level.min(top);
        let Scratch { query, walk, seeds, edit, .. } = scratch;
        self.descend(query, walk, seeds, from, DESCENT_BEAM);
        for layer in (0..=from).rev() {
            self.start(walk, self.store.config.ef_construction as usize, COPIES);
            self.seed_all(query, walk, seeds);
            if layer == 0
                && let Some(root) = self.root()
            {
                self.seed(query, walk, root);
            }
            self.walk_layer(query, walk, layer);
            edit.candidates.clear();
            edit.candidates.extend(walk.pool.entries().iter().map(|e| e & !1).filter(|e| pool::id(*e) != id));
            seeds.clear();
            seeds.extend(edit.candidates.iter().take(DESCENT_BEAM).map(|e| pool::id(*e)));
            let candidates = std::mem::take(&mut edit.candidates);
            let room = self.links(node, layer).len();
            let most = if layer == 0 { links_of_newcomer(self.m, room) } else { self.m.min(room) };
            self.select(&candidates, most, &mut edit.selection);
            // Among a handful of records everyone is far from the others.
            let outlier =
                layer == 0 && edit.selection.kept().len() < LINKS_MIN && candidates.len() > 4 * self.m;
            node.header().marks.store(if outlier { MARK_OUTLIER } else { 0 }, Ordering::Relaxed);
            edit.selection.fill(LINKS_MIN.min(most));
            let chosen: Vec<u32> = edit.selection.kept().to_vec();
            {
                // Others that are being inserted may have added themselves already.
                let _guard = self.lock(id);
                let list = self.links(node, layer);
                for other in &chosen {
                    if !links::contains(list, *other) {
                        links::append(list, *other);
                    }
                }
            }
            let mut linked = false;
            for &other in &chosen {
                linked |= self.offer(other, id, layer, edit) == Offer::Linked;
            }
            if layer == 0 && node.parent() == crate::file::layout::NONE {
                // Every neighbour declined, or those that did not are younger or outliers themselves: the nearest that is
                // well connected makes room, or else any older node found will do.
                let found = candidates.iter().map(|e| pool::id(*e));
                let connected =
                    |other: &u32| self.slots.get(*other).is_some_and(|n| self.is_well_connected(n));
                let _ =
                    found.clone().filter(connected).take(16).any(|other| self.adopt(other, id, true, edit))
                        || found.clone().any(|other| self.adopt(other, id, false, edit))
                        || found.take(64).any(|other| self.adopt(other, id, true, edit));
            } else if !linked && layer > 0 {
                // A node without a link to it on an upper layer is lost to descents there: the nearest makes room.
                self.force_upper(&candidates, id, layer);
            }
            if outlier {
                let found = candidates.iter().map(|e| pool::id(*e));
                let connected =
                    |other: &u32| self.slots.get(*other).is_some_and(|n| self.is_well_connected(n));
                for other in found.filter(connected).take(OUTLIER_WAYS_IN) {
                    self.introduce(other, id, true, edit);
                }
            }
            edit.candidates = candidates;
        }
    }

    /// Lets the nearest node give its last link on an upper layer to a newcomer that nobody there links to.
    fn force_upper(&self, candidates: &[pool::Entry], id: u32, layer: u8) {
        let nearest = candidates.iter().map(|e| pool::id(*e)).find(|other| *other != id);
        let Some(nearest) = nearest else { return };
        let _guard = self.lock(nearest);
        let graph = self.current();
        let Some(node) = graph.slots.get(nearest).filter(|n| n.is_live()) else { return };
        if let Some(last) = graph.links(node, layer).last() {
            last.store(id, Ordering::Release);
        }
    }

    /// Lets readers see a linked node.
    pub fn publish(&self, node: Node<'a>, level: u8) {
        node.set_state(SlotState::Live, level);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::{CreateOptions, Plane};

    #[test]
    fn the_newest_record_has_chosen_half_as_many_links_again_as_m() {
        let dir = tempfile::tempdir().unwrap();
        let options = CreateOptions { m: 4, layer0_cap: 8, ..CreateOptions::new(64) };
        let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
        let mut runner = TestRunner::deterministic();
        let vectors = prop::collection::vec(-1f32..1.0, 64);
        let mut degrees = Vec::new();
        for i in 0..400 {
            let vector = vectors.new_tree(&mut runner).unwrap().current();
            let id = plane.insert(&vector, &[]).unwrap();
            // Nobody has come since: what it did not choose itself was recommended to it, which is rare.
            let engine = plane.engine().unwrap();
            let node = engine.store.node(id).unwrap();
            if i >= 300 {
                degrees.push(links::ids(node.links()).count());
            }
        }
        degrees.sort_unstable();
        assert_eq!(degrees[degrees.len() / 2], 6, "{degrees:?}");
    }

    #[test]
    fn a_newcomer_chooses_no_more_than_fit_and_no_fewer_than_m() {
        assert_eq!(links_of_newcomer(16, 32), 24);
        assert_eq!(links_of_newcomer(16, 64), 24);
        assert_eq!(links_of_newcomer(16, 24), 18);
        assert_eq!(links_of_newcomer(16, 16), 16);
        assert_eq!(links_of_newcomer(16, 8), 8);
        assert_eq!(links_of_newcomer(2, 4), 3);
    }

    #[test]
    fn levels_are_geometric() {
        let mut counts = [0usize; 16];
        for generation in 1..=1_000_000 {
            counts[usize::from(level_for(generation, 7, 16))] += 1;
        }
        let above = |level: usize| counts[level..].iter().sum::<usize>() as f64;
        assert!((above(1) / 62_500.0 - 1.0).abs() < 0.03, "{counts:?}");
        assert!((above(2) / 3906.0 - 1.0).abs() < 0.1, "{counts:?}");
        assert!((above(3) / 244.0 - 1.0).abs() < 0.3, "{counts:?}");
    }
}
