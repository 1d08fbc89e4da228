//! A record that walks take for absent, so that its own vector can ask for its neighbours as one from outside would.
//!
//! Skipping the record is not enough. Others gave up links to each other because it stood between them (the diversity rule),
//! and without it there would be fewer ways to its neighbours than if it had never been inserted: recall would come out far
//! too low. So each of those that link to it gets one link in its place, chosen as a removal would choose, for this one walk.

use super::insert::COPIES;
use super::pool::{self, Entry};
use super::remove::REPAIR_EF;
use super::{Graph, Scratch, links};

/// Links that a node gets in the place of one to the held-out record. Lists are as full with a record as without it, so each
/// that names it would name one other instead.
const FREED: usize = 1;

/// See the module's first line. Nothing is held out by default.
#[derive(Default)]
pub struct HeldOut {
    pub id: Option<u32>,
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
        at.map_or(&[], |at| &self.detours[at].1)
    }
}

impl Graph<'_> {
    /// What makes walks take a record for absent. The caller is pinned.
    pub fn hold_out(&self, id: u32, scratch: &mut Scratch) -> HeldOut {
        let gone = HeldOut { id: Some(id), detours: Vec::new() };
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
        let near: Vec<u32> = walk.pool.entries().iter().map(|entry| pool::id(*entry)).collect();
        let mut detours = Vec::new();
        for other in near.into_iter().filter(|other| *other != id) {
            let Some(node) = self.slots.get(other) else { continue };
            let own: Vec<u32> = links::ids(node.links()).collect();
            if own.contains(&id) {
                detours.push((other, self.detours_of(other, &own, id, &neighbours, scratch)));
            }
        }
        detours.sort_unstable();
        HeldOut { detours, ..gone }
    }

    /// Which of the held-out record's neighbours a node would link to in its place.
    fn detours_of(
        &self,
        id: u32,
        own: &[u32],
        held_out: u32,
        neighbours: &[u32],
        scratch: &mut Scratch,
    ) -> Vec<u32> {
        let Scratch { query, walk, edit, .. } = scratch;
        self.set_row(query, id);
        let candidates =
            own.iter().chain(neighbours).copied().filter(|other| *other != id && *other != held_out);
        let mut entries: Vec<Entry> = Vec::with_capacity(own.len() + neighbours.len());
        self.score(query, candidates, &mut walk.rows, |other, distance| {
            entries.push(pool::entry(distance, other));
        });
        entries.sort_unstable();
        entries.dedup();
        let most = self.store.config.layer0_cap as usize;
        self.select(&entries, most, &mut edit.selection);
        let new = edit.selection.kept().iter().copied().filter(|other| !own.contains(other));
        new.take(FREED).collect()
    }
}
