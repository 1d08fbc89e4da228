//! Taking a node out: whoever linked to it is linked to its neighbours instead, at once.
//!
//! Links are one-way, so not every node that links to the removed one is known from its own list. The others are found
//! where they must be, near it: a walk around the removed node looks at the lists of all it meets. What is missed is a
//! link to a dead slot, which readers skip.

use std::sync::atomic::Ordering;

use super::insert::COPIES;
use super::node::{Node, SlotState};
use super::{Graph, Scratch, links, pool};
use crate::file::layout::NONE;

/// Beam of the walk that looks for nodes linking to the removed one.
pub(super) const REPAIR_EF: usize = 96;
/// Neighbours that are asked to link to a node which a removed one linked to.
const WAYS_IN: usize = 3;

impl<'a> Graph<'a> {
    /// Re-links everything around a node that is no longer live but still has its links. The caller is pinned, is the
    /// only one removing, and has seen to the entry point.
    pub fn unlink(&self, id: u32, node: Node<'a>, scratch: &mut Scratch) {
        let level = node.level();
        for layer in (0..=level).rev() {
            let neighbours: Vec<u32> =
                links::ids(self.links(node, layer)).filter(|other| self.is_live_on(*other, layer)).collect();
            self.set_row(&mut scratch.query, id);
            let Scratch { query, walk, edit, .. } = scratch;
            self.start(walk, REPAIR_EF, COPIES);
            self.seed_all(query, walk, &neighbours);
            self.walk_layer(query, walk, layer);
            let near: Vec<u32> = walk.pool.entries().iter().map(|e| pool::id(*e)).collect();
            for &other in &near {
                let links_here =
                    self.slots.get(other).is_some_and(|n| links::contains(self.links(n, layer), id));
                if links_here {
                    self.mend(other, id, &neighbours, layer, edit);
                }
            }
            // Whom the removed node linked to has lost a way in: its own neighbours are asked to be another.
            for &other in &neighbours {
                let Some(reached) = self.slots.get(other) else { continue };
                let ways: Vec<u32> =
                    links::ids(self.links(reached, layer)).filter(|way| *way != id).take(WAYS_IN).collect();
                for way in ways {
                    self.offer(way, other, layer, edit);
                }
            }
            if layer == 0 {
                self.rehome_children(id, node, &near, scratch);
            }
        }
    }

    fn is_live_on(&self, id: u32, layer: u8) -> bool {
        self.slots.get(id).is_some_and(|node| node.is_live() && layer <= node.level())
    }

    /// Gives every child of a removed node another parent.
    fn rehome_children(&self, id: u32, node: Node<'a>, near: &[u32], scratch: &mut Scratch) {
        let graph = self.current();
        let mut children: Vec<(u64, u32)> = links::ids(node.links())
            .filter_map(|other| graph.slots.get(other).map(|n| (other, n)))
            .filter(|(_, n)| n.is_linked() && n.parent() == id)
            .map(|(other, n)| (n.generation(), other))
            .collect();
        // Oldest first: an older child may become the parent of a younger one.
        children.sort_unstable();
        let was_root = graph.root() == Some(id);
        let grandparent = node.parent();
        let edit = &mut scratch.edit;
        for (i, &(_, child)) in children.iter().enumerate() {
            if was_root && i == 0 {
                // The oldest record of all: everything older than another record's parent hangs below it.
                // In this order: a kill in between leaves the child where the next attempt finds it.
                self.store.shared().root.store(child, Ordering::Release);
                if let Some(record) = graph.slots.get(child) {
                    self.set_parent(child, record, NONE);
                }
                continue;
            }
            if self.root() == Some(child) {
                if let Some(record) = graph.slots.get(child) {
                    self.set_parent(child, record, NONE);
                }
                continue;
            }
            let elders = children[..i].iter().map(|(_, other)| *other);
            let candidates: Vec<u32> = near.iter().copied().chain(elders).chain([grandparent]).collect();
            let linked =
                |other: &u32| graph.slots.get(*other).is_some_and(|n| links::contains(n.links(), child));
            let _ = candidates
                .iter()
                .filter(|other| linked(other))
                .any(|other| self.adopt(*other, child, false, edit))
                || candidates.iter().any(|other| self.adopt(*other, child, false, edit))
                || candidates.iter().any(|other| self.adopt(*other, child, true, edit))
                || self.adopt_anywhere(child, edit);
            // The new parent may be far, for want of elders nearby: somebody near should know the way as well.
            let mut near = near.iter().copied().filter(|other| *other != child);
            let _ = near.clone().take(WAYS_IN).any(|other| self.introduce(other, child, false, edit))
                || near.next().is_some_and(|other| self.introduce(other, child, true, edit));
        }
        if was_root && children.is_empty() {
            self.store.shared().root.store(NONE, Ordering::Release);
        }
    }

    /// A live node to start from in place of `id`: the highest one near it, else the highest one there is.
    pub fn next_entry_point(&self, id: u32, node: Node<'a>) -> Option<(u32, u8)> {
        let live = |other: u32| {
            self.slots.get(other).filter(|n| other != id && n.is_live()).map(|n| (other, n.level()))
        };
        for layer in (1..=node.level()).rev() {
            let best = links::ids(self.links(node, layer)).filter_map(live).max_by_key(|(_, level)| *level);
            if let Some(found) = best.filter(|(_, level)| *level >= layer) {
                return Some(found);
            }
        }
        (0..self.slots.limit()).filter_map(live).max_by_key(|(other, level)| (*level, u32::MAX - other))
    }

    /// Takes a node out of readers' sight. From here on no search that starts returns it.
    pub fn unpublish(&self, node: Node<'a>) {
        node.set_state(SlotState::Limbo, node.level());
    }
}
