//! The tree of protected links: why every record can be reached.
//!
//! Every record that was linked here, but the root, has a parent: an **older** record that links to it on layer 0, by a link that may not be
//! dropped. "Older" means a lower generation, so parents form no cycle, and the root, the oldest record, has a path to
//! every other one. Choosing links for diversity alone gives no such promise: it strands outliers and copies.
//!
//! A child's `parent` word is changed only under the lock of the parent it names, or by the remover of that parent.
//! When a full node wants to drop a child, the child is handed to another older record that links to it, or that has
//! room for a link; failing that, the link stays and another one goes.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::Graph;
use super::links::{self, Edit, append, contains};
use super::node::Node;
use super::pool::{self, Entry};
use super::select::Selection;
use crate::file::layout::NONE;

/// How often in a row a full record may hand a child to one that hands one on in turn.
const HANDS_MAX: usize = 8;

/// Links to outliers that a full list keeps.
const OUTLIERS_MAX: usize = 4;

impl<'a> Graph<'a> {
    /// Whether a node has enough links to be a good way to others: an outlier, itself found through one link alone, is
    /// none.
    pub fn is_well_connected(&self, node: Node<'a>) -> bool {
        links::ids(node.links()).count() * 2 >= self.m
    }

    /// Makes `id` the parent of a record that has none, when it is older and well connected. The caller holds the lock of `id`, which links
    /// to the record.
    pub fn adopt_under_lock(&self, id: u32, node: Node<'a>, child: u32, layer: u8) {
        if layer == 0
            && let Some(record) = self.slots.get(child)
            && record.parent() == NONE
            && node.is_live()
            && !node.is_mirrored()
            && self.is_well_connected(node)
            && node.generation() < record.generation()
            && self.store.shared().root.load(Ordering::Acquire) != child
        {
            self.set_parent(child, record, id);
        }
    }

    /// Keeps a node's children through a selection: each one dropped is handed on, or takes the place of the farthest
    /// link that is no child. The caller holds the lock of `id`.
    pub fn keep_children(&self, id: u32, candidates: &[Entry], most: usize, selection: &mut Selection) {
        let mut stuck = Vec::new();
        for &candidate in candidates {
            let child = pool::id(candidate);
            let Some(record) = self.slots.get(child) else { continue };
            if record.parent() == id
                && !selection.kept().contains(&child)
                && !self.hand_on(id, child, record, selection)
            {
                stuck.push(child);
            }
        }
        for child in stuck {
            let kept = selection.kept_mut();
            if kept.len() == most {
                let is_child = |other: &u32| self.slots.get(*other).is_some_and(|n| n.parent() == id);
                match kept.iter().rposition(|other| !is_child(other)) {
                    Some(at) => drop(kept.remove(at)),
                    // As many children as links: they were there before, so they fit, and the newcomer is not among them.
                    None => return,
                }
            }
            kept.push(child);
        }
    }

    /// Keeps a few links to outliers through a selection, nearest first, in the place of the farthest that are neither
    /// children nor outliers. The caller holds the lock of `id`.
    pub fn keep_outliers(&self, id: u32, candidates: &[Entry], most: usize, selection: &mut Selection) {
        let is_outlier = |other: u32| self.slots.get(other).is_some_and(|n| n.is_outlier());
        let mut outliers =
            candidates.iter().map(|e| pool::id(*e)).filter(|other| is_outlier(*other)).take(OUTLIERS_MAX);
        if outliers.clone().next().is_none() {
            return;
        }
        let kept = selection.kept_mut();
        let is_loose =
            |other: &u32| !is_outlier(*other) && self.slots.get(*other).is_none_or(|n| n.parent() != id);
        for other in outliers.by_ref().filter(|other| !kept.contains(other)).collect::<Vec<_>>() {
            if kept.len() == most {
                match kept.iter().rposition(is_loose) {
                    Some(at) => drop(kept.remove(at)),
                    None => return,
                }
            }
            kept.push(other);
        }
    }

    /// Finds another parent for a child of `id` among those kept, the one that stands for it first.
    fn hand_on(&self, id: u32, child: u32, record: Node<'a>, selection: &Selection) -> bool {
        let cover = selection.cover_of(child);
        let others = selection.kept().iter().copied().filter(|other| Some(*other) != cover);
        cover.into_iter().chain(others).any(|other| {
            let Some(parent) = self.slots.get(other) else { return false };
            if parent.generation() >= record.generation() || parent.is_mirrored() {
                return false;
            }
            // Only the one that stands for the child spends a link on it; any other must have it already.
            let may_append = Some(other) == cover;
            let adopted = self.with_second(id, other, || {
                let linked = parent.is_live()
                    && (contains(parent.links(), child) || may_append && append(parent.links(), child));
                if linked {
                    self.set_parent(child, record, other);
                }
                linked
            });
            adopted == Some(true)
        })
    }

    /// Makes `id` the parent of a record that lost its own, or never had one. With `force` a link that is no child's
    /// gives way. Only the record's builder, or its old parent's remover, calls this.
    pub fn adopt(&self, id: u32, child: u32, force: bool, edit: &mut Edit) -> bool {
        let _guard = self.lock(id);
        self.current().adopt_locked(id, child, force, edit)
    }

    /// `adopt`, with the lock of `id` held.
    fn adopt_locked(&self, id: u32, child: u32, force: bool, edit: &mut Edit) -> bool {
        let (Some(node), Some(record)) = (self.slots.get(id), self.slots.get(child)) else { return false };
        if id == child || !node.is_live() || node.is_mirrored() || node.generation() >= record.generation() {
            return false;
        }
        let links = node.links();
        if contains(links, child) || append(links, child) || force && self.displace(id, node, child, edit) {
            self.set_parent(child, record, id);
            return true;
        }
        false
    }

    /// Lets a node link to another that is not its child; with `force` a link that is no child's gives way.
    pub fn introduce(&self, id: u32, other: u32, force: bool, edit: &mut Edit) -> bool {
        let _guard = self.lock(id);
        let graph = self.current();
        let Some(node) = graph.slots.get(id).filter(|node| node.is_live()) else { return false };
        contains(node.links(), other)
            || append(node.links(), other)
            || force && graph.displace(id, node, other, edit)
    }

    /// Puts a child in the place of the farthest link that is no child. The caller holds the lock of `id`.
    fn displace(&self, id: u32, node: Node<'a>, child: u32, edit: &mut Edit) -> bool {
        let loose: Vec<u32> = links::ids(node.links())
            .filter(|other| self.slots.get(*other).is_none_or(|n| !n.is_linked() || n.parent() != id))
            .collect();
        let Some(farthest) = self.farthest(id, &loose, edit) else { return false };
        match node.links().iter().find(|link| link.load(Ordering::Relaxed) == farthest) {
            Some(link) => {
                link.store(child, Ordering::Release);
                true
            }
            None => false,
        }
    }

    /// Finds a parent anywhere: among the older records, from the root down. Where they all have as many children as
    /// links, one of them hands its youngest child on, which has more records to choose from. The caller holds the lock
    /// over removals.
    pub fn adopt_anywhere(&self, child: u32, edit: &mut Edit) -> bool {
        let graph = self.current();
        let Some(generation) = graph.slots.get(child).map(|n| n.generation()) else { return false };
        if graph.adopt_below_root(child, generation, edit) {
            return true;
        }
        graph.elders(generation).iter().any(|elder| {
            graph.hand_youngest_on(*elder, generation, edit, HANDS_MAX)
                && graph.adopt(*elder, child, true, edit)
        })
    }

    /// Goes down the tree until an older record takes the child. Straight down, since it is at the ends that records have
    /// links to spare, and each time another way, or the tree would become a chain.
    fn adopt_below_root(&self, child: u32, generation: u64, edit: &mut Edit) -> bool {
        let mut ahead: Vec<u32> = self.root().into_iter().collect();
        for step in 0..self.slots.limit() {
            let Some(id) = ahead.pop() else { return false };
            if self.adopt(id, child, true, edit) {
                return true;
            }
            let from = ahead.len();
            ahead.extend(self.older_children(id, generation));
            if let Some(children) = ahead.get_mut(from..).filter(|children| !children.is_empty()) {
                let turn = child.wrapping_add(step).wrapping_mul(0x9E37_79B9) >> 16;
                children.rotate_left(turn as usize % children.len());
            }
        }
        false
    }

    fn older_children(&self, id: u32, generation: u64) -> impl Iterator<Item = u32> + use<'_, 'a> {
        let links = self.slots.get(id).map(|node| links::ids(node.links()));
        links.into_iter().flatten().filter(move |other| {
            let child = self.slots.get(*other).filter(|n| n.is_live() && n.parent() == id);
            child.is_some_and(|n| n.generation() < generation)
        })
    }

    /// Every live record older than a generation, from the root down the tree.
    fn elders(&self, generation: u64) -> Vec<u32> {
        let older = |id: u32| self.slots.get(id).is_some_and(|n| n.is_live() && n.generation() < generation);
        let mut queue: VecDeque<u32> = self.root().into_iter().filter(|root| older(*root)).collect();
        let mut elders = Vec::new();
        while let Some(id) = queue.pop_front() {
            elders.push(id);
            queue.extend(self.older_children(id, generation));
            if elders.len() >= self.slots.limit() as usize {
                break;
            }
        }
        elders
    }

    /// Gives the youngest child of `id` another parent, if it is younger than `generation`.
    fn hand_youngest_on(&self, id: u32, generation: u64, edit: &mut Edit, hands: usize) -> bool {
        let Some(node) = self.slots.get(id).filter(|_| hands > 0) else { return false };
        let child_of = |other: u32| {
            self.slots
                .get(other)
                .filter(|n| n.is_linked() && n.parent() == id)
                .map(|n| (n.generation(), other))
        };
        let youngest = links::ids(node.links()).filter_map(child_of).max();
        let Some((age, child)) = youngest.filter(|(age, _)| *age > generation) else { return false };
        let elders = self.elders(age);
        let mut others = elders.iter().copied().filter(|other| *other != id);
        let placed = others.any(|other| {
            let _guard = self.lock(id);
            // Its parent may have handed it on by itself meanwhile.
            let still = self.slots.get(child).is_some_and(|n| n.parent() == id);
            !still
                || self.with_second(id, other, || self.adopt_locked(other, child, true, edit)) == Some(true)
        });
        placed
            || elders.iter().filter(|other| **other != id).any(|other| {
                self.hand_youngest_on(*other, age, edit, hands - 1) && {
                    let _guard = self.lock(id);
                    self.with_second(id, *other, || self.adopt_locked(*other, child, true, edit))
                        == Some(true)
                }
            })
    }
}
