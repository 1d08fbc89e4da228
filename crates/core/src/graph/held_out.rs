//! A record that walks take for absent, so that its own vector can ask for its neighbours as one from outside would.
//!
//! Skipping the record is not enough. Younger ones chose it for a neighbour, and would have chosen another one if it had never
//! been inserted: without a link in its place there would be fewer ways around, and recall would come out too low. So each of
//! them gets one or two for this one walk: the nearest that the held-out record stood for by the diversity rule. Older ones were not
//! asked for a link before it came, and get none: one would only tell the walk what the record's own insertion found out.

use super::insert::COPIES;
use super::pool::{self, Entry};
use super::remove::REPAIR_EF;
use super::{Graph, Scratch, links};

/// How many links a younger node gets in the place of one to the held-out record: what makes the misses most nearly those of
/// vectors that are in no plane (docs/design.md, section 9).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Detours {
    /// For walks that expand their beam: one. With two, up to a fifth of the misses is not seen.
    #[default]
    One = 1,
    /// For walks that end by distance, which end before they have found a way around: two. With one they seem to miss 1.1 to
    /// 2.2 times as many as they do.
    Two = 2,
}

/// See the module's first line. Nothing is held out by default.
#[derive(Default)]
pub struct HeldOut {
    pub id: Option<u32>,
    /// How many of the detours are there.
    pub given: Detours,
    /// What nodes would link to in its place on layer 0, by ascending node.
    detours: Vec<(u32, Vec<u32>)>,
}

impl HeldOut {
    /// What a node links to besides its own links.
    #[inline(always)]
    pub fn detours(&self, id: u32) -> &[u32] {
        if self.detours.is_empty() { &[] } else { self.look_up(id) }
    }

    #[cold]
    fn look_up(&self, id: u32) -> &[u32] {
        let at = self.detours.binary_search_by_key(&id, |(node, _)| *node);
        let all = at.map_or(&[][..], |at| &self.detours[at].1);
        &all[..all.len().min(self.given as usize)]
    }
}

/// A record near the held-out one.
#[derive(Clone, Copy)]
struct Away {
    id: u32,
    /// From the held-out one.
    distance: f32,
}

impl Graph<'_> {
    /// What makes walks take a record for absent. The caller is pinned.
    pub fn hold_out(&self, id: u32, scratch: &mut Scratch) -> HeldOut {
        let gone = HeldOut { id: Some(id), ..HeldOut::default() };
        let Some(node) = self.slots.get(id).filter(|node| node.is_live()) else { return gone };
        let live = |other: &u32| self.slots.get(*other).is_some_and(|node| node.is_live());
        let neighbours: Vec<u32> =
            links::ids(node.links()).filter(|other| *other != id).filter(live).collect();
        // As a removal does: whoever links to it is near it.
        self.set_row(&mut scratch.query, id);
        let Scratch { query, walk, .. } = &mut *scratch;
        self.start(walk, REPAIR_EF, COPIES);
        self.seed_all(query, walk, &neighbours);
        self.walk_layer(query, walk, 0);
        let entries = walk.pool.entries().iter();
        let away = entries.map(|entry| Away { id: pool::id(*entry), distance: pool::distance(*entry) });
        let mut near: Vec<Away> = away.filter(|other| other.id != id).collect();
        near.sort_unstable_by_key(|other| other.id);
        let mut detours = Vec::new();
        for other in &near {
            let Some(younger) =
                self.slots.get(other.id).filter(|other| other.generation() > node.generation())
            else {
                continue;
            };
            let own: Vec<u32> = links::ids(younger.links()).collect();
            if own.contains(&id) {
                detours.push((other.id, self.detours_of(*other, &own, id, &near, scratch)));
            }
        }
        HeldOut { detours, ..gone }
    }

    /// What a node would link to in the place of the held-out record: of those near that, which by the diversity rule it kept out
    /// of the node's list and no other does, the nearest.
    fn detours_of(
        &self,
        node: Away,
        own: &[u32],
        held_out: u32,
        near: &[Away],
        scratch: &mut Scratch,
    ) -> Vec<u32> {
        let Scratch { query, walk, edit, .. } = scratch;
        self.set_row(query, node.id);
        let others = |id: &u32| *id != node.id && *id != held_out;
        let mut entries: Vec<Entry> = Vec::with_capacity(own.len() + near.len());
        self.score(query, own.iter().copied().filter(others), &mut walk.rows, |other, distance| {
            entries.push(pool::entry(distance, other));
        });
        let candidates = near.iter().map(|other| other.id).filter(others);
        self.score(query, candidates.filter(|id| !own.contains(id)), &mut walk.rows, |other, distance| {
            let at = near.binary_search_by_key(&other, |other| other.id);
            let stood_for = at.is_ok_and(|at| near[at].distance <= distance && node.distance < distance);
            if stood_for {
                entries.push(pool::entry(distance, other));
            }
        });
        entries.sort_unstable();
        let most = self.store.config.layer0_cap as usize;
        self.select(&entries, most, &mut edit.selection);
        let new = edit.selection.kept().iter().copied().filter(|other| !own.contains(other));
        new.take(Detours::Two as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Plane};

    /// What is shown of recall depends on it: links for older ones as well, or more than one, hide misses.
    #[test]
    fn younger_records_get_one_or_two_links_in_the_place_of_theirs_and_older_ones_none() {
        let dir = tempfile::tempdir().unwrap();
        let options = CreateOptions { m: 6, ef_construction: 60, ..CreateOptions::new(8) };
        let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        for _ in 0..1_000 {
            let vector: Vec<f32> = (0..8).map(|_| random()).collect();
            plane.insert(&vector, b"").unwrap();
        }
        let engine = plane.engine().unwrap();
        let mut pinned = engine.pin().unwrap();
        let (graph, scratch) = pinned.parts();
        let links_of = |id| links::ids(graph.slots.get(id).unwrap().links()).collect::<Vec<u32>>();
        let (mut met, mut older, mut with_link, mut with_two) = (0, 0, 0, 0);
        for held_out in (0..1_000).step_by(7) {
            let mut gone = graph.hold_out(held_out, scratch);
            assert_eq!((gone.id, gone.given), (Some(held_out), Detours::One));
            // One thread inserted them, in the order of their ids.
            for id in (0..1_000).filter(|id| *id != held_out && links_of(*id).contains(&held_out)) {
                gone.given = Detours::Two;
                with_two += gone.detours(id).len() / 2;
                gone.given = Detours::One;
                let detours = gone.detours(id);
                if id < held_out {
                    older += 1;
                    assert_eq!(detours, [0; 0], "{id} is older than {held_out}");
                    continue;
                }
                met += 1;
                with_link += detours.len();
                assert!(detours.len() <= 1, "{id} has {} links for {held_out}", detours.len());
                let own = links_of(id);
                assert!(detours.iter().all(|to| *to != id && *to != held_out && !own.contains(to)));
            }
            let linked = |(id, _): &(u32, Vec<u32>)| links_of(*id).contains(&held_out);
            assert!(gone.detours.iter().all(linked), "a link for one that had none");
        }
        assert!(
            older > 300 && met > 300 && with_link * 2 > met && with_two * 4 > met,
            "{older} older, {with_link} of {met} younger with one, {with_two} with two"
        );
    }
}
