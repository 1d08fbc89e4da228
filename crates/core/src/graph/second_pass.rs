//! Links chosen anew in a graph that is complete. A record that came early has chosen among the few that were there; asked
//! again it finds nearer ones, and ways between them that nobody could offer it then. Vamana goes over its nodes a second
//! time for the same reason, and keeps more links there by a slack in the rule (Subramanya et al., DiskANN, NeurIPS 2019).

use super::insert::{COPIES, LINKS_MIN};
use super::links;
use super::pool;
use super::select::Rule;
use super::{Graph, Scratch};
use crate::options::Metric;

/// Candidates that a walk from a node to itself finds. With three times as many it takes three times as long, and searches look at
/// as many records afterwards (docs/design.md, section 9).
const BEAM: usize = 32;
/// With some slack; without, records would choose fewer links than they have.
const RULE: Rule = Rule { slack: 1.1, least: LINKS_MIN };

/// Whether a second pass gains anything. Inner products are not distances: slack means nothing there.
pub fn helps(metric: Metric) -> bool {
    metric != Metric::InnerProduct
}

impl Graph<'_> {
    /// Lets a live record choose its links on layer 0 among those that it has and what a walk from it finds, and offers it to
    /// those that are new to it. The edits are those of an insert: every record stays reachable at every moment. The caller is
    /// pinned, or has the plane for itself.
    pub fn choose_again(&self, id: u32, scratch: &mut Scratch) {
        let Some(node) = self.slots.get(id).filter(|node| node.is_live() && !node.is_mirrored()) else {
            return;
        };
        let Scratch { query, walk, seeds, edit, .. } = scratch;
        seeds.clear();
        seeds.extend(links::ids(node.links()));
        self.set_row(query, id);
        self.start(walk, BEAM, COPIES);
        walk.visited.insert(id);
        self.seed_all(query, walk, seeds);
        self.walk_layer(query, walk, 0);
        let found: Vec<u32> = walk.pool.entries().iter().map(|entry| pool::id(*entry)).collect();
        self.choose_among(id, &found, RULE, edit);
        let is_own = |other: &u32| self.slots.get(*other).is_some_and(|other| !other.is_mirrored());
        let new: Vec<u32> = links::ids(node.links()).filter(|other| !seeds.contains(other)).collect();
        for other in new.into_iter().filter(is_own) {
            self.offer_by(RULE, other, id, 0, edit);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use crate::graph::links;
    use crate::{CompactOptions, CreateOptions, Plane, SearchOptions};

    const DIMS: usize = 24;

    /// Recall of narrow searches, and how many links records have on layer 0.
    fn measured(plane: &Plane, queries: &[Vec<f32>]) -> (f64, f64) {
        let mut found = 0;
        for query in queries {
            let exact = plane.search_exact(query, 10, None).unwrap().distances;
            let options = SearchOptions { ef: Some(10), ..SearchOptions::new(10) };
            let near = plane.search(query, &options).unwrap().distances;
            found += near.iter().filter(|distance| **distance <= exact[9]).count();
        }
        let engine = plane.engine().unwrap();
        let count = plane.count().unwrap() as u32;
        let links: usize =
            (0..count).map(|id| links::ids(engine.store.node(id).unwrap().links()).count()).sum();
        (found as f64 / (10 * queries.len()) as f64, links as f64 / f64::from(count))
    }

    #[test]
    fn narrow_searches_find_more_after_a_second_pass() {
        let dir = tempfile::tempdir().unwrap();
        let options = CreateOptions { m: 8, ..CreateOptions::new(DIMS as u32) };
        let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
        let mut runner = TestRunner::deterministic();
        let mut vector = || prop::collection::vec(-1f32..1.0, DIMS).new_tree(&mut runner).unwrap().current();
        for _ in 0..3000 {
            plane.insert(&vector(), &[]).unwrap();
        }
        let queries: Vec<Vec<f32>> = (0..300).map(|_| vector()).collect();
        let (before, links_before) = measured(&plane, &queries);
        let options = CompactOptions { relink: true, threads: 1, ..CompactOptions::default() };
        plane.compact(&options, &|_, _| true).unwrap();
        let (after, links_after) = measured(&plane, &queries);
        println!("recall {before} with {links_before} links, then {after} with {links_after}");
        assert!(after > before && links_after > links_before);
        let report = plane.verify().unwrap();
        assert!(report.ok(), "{report:?}");
    }
}
