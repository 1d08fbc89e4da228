//! The tree of protected links: why every record can be reached.
//!
//! Every record but the root has a parent: an **older** record that links to it on layer 0, by a link that may not be
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

impl<'a> Graph<'a> {
    /// Makes `id` the parent of a record that has none, when it is older. The caller holds the lock of `id`, which links
    /// to the record.
    pub fn adopt_under_lock(&self, id: u32, node: Node<'a>, child: u32, layer: u8) {
        if layer == 0
            && let Some(record) = self.slots.get(child)
            && record.parent() == NONE
            && node.generation() < record.generation()
            && self.store.shared().root.load(Ordering::Acquire) != child
        {
            record.set_parent(id);
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

    /// Finds another parent for a child of `id` among those kept, the one that stands for it first.
    fn hand_on(&self, id: u32, child: u32, record: Node<'a>, selection: &Selection) -> bool {
        let cover = selection.cover_of(child);
        let others = selection.kept().iter().copied().filter(|other| Some(*other) != cover);
        cover.into_iter().chain(others).any(|other| {
            let Some(parent) = self.slots.get(other) else { return false };
            if parent.generation() >= record.generation() {
                return false;
            }
            // Only the one that stands for the child spends a link on it; any other must have it already.
            let may_append = Some(other) == cover;
            let adopted = self.with_second(id, other, || {
                let linked = parent.is_live()
                    && (contains(parent.links(), child) || may_append && append(parent.links(), child));
                if linked {
                    record.set_parent(other);
                }
                linked
            });
            adopted == Some(true)
        })
    }

    /// Makes `id` the parent of a record that lost its own, or never had one. With `force` a link that is no child's
    /// gives way. Only the record's builder, or its old parent's remover, calls this.
    pub fn adopt(&self, id: u32, child: u32, force: bool, edit: &mut Edit) -> bool {
        if id == child {
            return false;
        }
        let _guard = self.lock(id);
        let graph = self.current();
        let (Some(node), Some(record)) = (graph.slots.get(id), graph.slots.get(child)) else { return false };
        if !node.is_live() || node.generation() >= record.generation() {
            return false;
        }
        let links = node.links();
        if contains(links, child) || append(links, child) || force && graph.displace(id, node, child, edit) {
            record.set_parent(id);
            return true;
        }
        false
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

    /// Finds a parent anywhere: the tree from its root down, older records only.
    pub fn adopt_anywhere(&self, child: u32, edit: &mut Edit) -> bool {
        let graph = self.current();
        let Some(generation) = graph.slots.get(child).map(|n| n.generation()) else { return false };
        let mut queue: VecDeque<u32> = graph.root().into_iter().collect();
        let mut left = graph.slots.limit();
        while let Some(id) = queue.pop_front() {
            if graph.adopt(id, child, true, edit) {
                return true;
            }
            let Some(node) = graph.slots.get(id) else { continue };
            let older = |other: &u32| {
                graph
                    .slots
                    .get(*other)
                    .is_some_and(|n| n.parent() == id && n.is_live() && n.generation() < generation)
            };
            queue.extend(links::ids(node.links()).filter(older));
            left = left.saturating_sub(1);
            if left == 0 {
                break;
            }
        }
        false
    }
}
