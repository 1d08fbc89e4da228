//! Changing a node's links.
//!
//! Links of a published node are changed under the node's lock, one word at a time, while readers walk over them. Two
//! rules keep every moment in between harmless, for readers and for whoever finds the file after a kill:
//! - a link that stays is in the list at every moment (it may be there twice for an instant);
//! - a link to a child (see `parents`) goes only after the child has another parent that links to it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::Graph;
use super::node::Node;
use super::pool::{self, Entry};
use super::rows::Rows;
use super::select::{Rule, Selection};
use crate::distance::{Query, prefetch};
use crate::file::layout::NONE;
use crate::testing::moment;

/// Of a full list's candidates, how many of the farthest are recommended to others when they are dropped.
const FAR: usize = 3;
const LOCKS: usize = 1 << 12;

/// Locks over nodes, by id. They order writers of one process; other processes wait for the turn.
pub struct LinkLocks(Vec<Mutex<()>>);

impl Default for LinkLocks {
    fn default() -> Self {
        LinkLocks((0..LOCKS).map(|_| Mutex::new(())).collect())
    }
}

fn stripe(id: u32) -> usize {
    (id.wrapping_mul(0x9E37_79B1) >> 20) as usize
}

impl LinkLocks {
    /// Waits for a node's lock. A thread holds at most one lock that it waited for.
    pub fn lock(&self, id: u32) -> MutexGuard<'_, ()> {
        self.0[stripe(id)].lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs `work` under the lock of `id` while that of `held` is held already; `None` when it is taken.
    pub fn with_second<T>(&self, held: u32, id: u32, work: impl FnOnce() -> T) -> Option<T> {
        if stripe(held) == stripe(id) {
            return Some(work());
        }
        // Never waits: two threads that each hold the other's second lock would wait for ever.
        let guard = self.0[stripe(id)].try_lock();
        match guard {
            Ok(_guard) => Some(work()),
            Err(std::sync::TryLockError::Poisoned(_guard)) => Some(work()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

/// Scratch for edits.
#[derive(Default)]
pub struct Edit {
    /// The node being edited, in the role of the query.
    base: Query,
    rows: Rows,
    ids: Vec<u32>,
    pub candidates: Vec<Entry>,
    pub selection: Selection,
}

/// Ids in a list of links, in order.
pub fn ids(links: &[AtomicU32]) -> impl Iterator<Item = u32> + '_ {
    links.iter().map(|link| link.load(Ordering::Relaxed)).take_while(|id| *id != NONE)
}

/// Whether a list of links has an id.
pub fn contains(links: &[AtomicU32], id: u32) -> bool {
    ids(links).any(|other| other == id)
}

/// Appends an id where there is room.
pub fn append(links: &[AtomicU32], id: u32) -> bool {
    match links.iter().find(|link| link.load(Ordering::Relaxed) == NONE) {
        Some(link) => {
            link.store(id, Ordering::Release);
            moment();
            true
        }
        None => false,
    }
}

/// Takes an id out: the last link moves to its place, so that nothing that stays is ever missing.
pub fn erase(links: &[AtomicU32], id: u32) {
    while let Some(at) = ids(links).position(|other| other == id) {
        let last = ids(links).count() - 1;
        links[at].store(links[last].load(Ordering::Relaxed), Ordering::Release);
        moment();
        links[last].store(NONE, Ordering::Release);
    }
}

/// Makes the list hold exactly `keep`, whose ids differ.
pub fn rewrite(links: &[AtomicU32], keep: &[u32]) {
    let mut missing = keep.iter().filter(|id| !contains(links, **id));
    let stale = |id: u32| id != NONE && !keep.contains(&id);
    for link in links {
        if stale(link.load(Ordering::Relaxed)) {
            match missing.next() {
                Some(id) => link.store(*id, Ordering::Release),
                None => break,
            }
        }
    }
    for id in missing {
        append(links, *id);
    }
    while let Some(id) = ids(links).find(|id| stale(*id)) {
        erase(links, id);
    }
}

/// What became of an edge that was offered to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The node links to the newcomer.
    Linked,
    /// Others stand for it, or the node is gone.
    Declined,
}

impl<'a> Graph<'a> {
    /// The same graph with everything that exists by now; edits may meet nodes younger than this view.
    pub fn current(&self) -> Graph<'a> {
        Graph { writing: self.writing, ..Graph::new(self.store, self.locks) }
    }

    /// Locks a node for editing.
    pub fn lock(&self, id: u32) -> MutexGuard<'a, ()> {
        self.store.before_change(id);
        self.locks.lock(id)
    }

    /// See `LinkLocks::with_second`.
    pub fn with_second<T>(&self, held: u32, id: u32, work: impl FnOnce() -> T) -> Option<T> {
        self.store.before_change(id);
        self.locks.with_second(held, id, work)
    }

    /// Makes one record the parent of another.
    pub fn set_parent(&self, child: u32, record: Node<'a>, parent: u32) {
        self.store.before_change(child);
        record.set_parent(parent);
    }

    /// As `score`, for records that are linked: live ones, and those whose insert is under way. The caller holds the
    /// lock of a node that links to them, or is pinned and saw them live.
    pub fn score_linked(&self, query: &Query, ids: &[u32], rows: &mut Rows, found: impl FnMut(u32, f32)) {
        self.score_where(query, ids.iter().copied(), rows, Node::is_linked, found);
    }

    /// The one of `others` farthest from a node, or one that is gone. The caller holds the node's lock.
    pub fn farthest(&self, id: u32, others: &[u32], edit: &mut Edit) -> Option<u32> {
        let gone = |other: &&u32| self.slots.get(**other).is_none_or(|n| !n.is_linked());
        if let Some(other) = others.iter().find(gone) {
            return Some(*other);
        }
        self.set_row(&mut edit.base, id);
        let mut far: Option<(f32, u32)> = None;
        self.score_linked(&edit.base, others, &mut edit.rows, |other, distance| {
            if far.is_none_or(|(most, _)| distance > most) {
                far = Some((distance, other));
            }
        });
        far.map(|(_, other)| other)
    }

    /// Asks for the records that a node links to; editing reads them all.
    fn prefetch_neighbours(&self, links: &[AtomicU32]) {
        let bytes = self.slots.header_bytes();
        for id in ids(links).filter(|id| *id < self.slots.limit()) {
            let slot = self.slots.address(id);
            (0..bytes.div_ceil(64)).for_each(|line| prefetch(slot.wrapping_add(64 * line as usize)));
        }
    }

    /// Offers node `id` a link to `newcomer` on a layer. A full list is selected anew, with the newcomer among the
    /// candidates; children that lose their link get another parent first, or stay.
    pub fn offer(&self, id: u32, newcomer: u32, layer: u8, edit: &mut Edit) -> Offer {
        self.offer_by(Rule::STRICT, id, newcomer, layer, edit)
    }

    /// `offer`, with the list selected by `rule`.
    pub fn offer_by(&self, rule: Rule, id: u32, newcomer: u32, layer: u8, edit: &mut Edit) -> Offer {
        let _guard = self.lock(id);
        let graph = self.current();
        let Some(node) = graph.slots.get(id).filter(|node| node.is_linked() && layer <= node.level()) else {
            return Offer::Declined;
        };
        let links = graph.links(node, layer);
        if contains(links, newcomer) {
            graph.adopt_under_lock(id, node, newcomer, layer);
            return Offer::Linked;
        }
        if append(links, newcomer) {
            graph.adopt_under_lock(id, node, newcomer, layer);
            return Offer::Linked;
        }
        graph.prefetch_neighbours(links);
        edit.ids.clear();
        edit.ids.extend(ids(links).filter(|other| *other != id));
        edit.ids.push(newcomer);
        graph.reselect_by(rule, id, node, layer, edit);
        if contains(links, newcomer) {
            graph.adopt_under_lock(id, node, newcomer, layer);
            Offer::Linked
        } else {
            Offer::Declined
        }
    }

    /// Links a live node to the best, by `rule`, of those that it links to on layer 0 and of `found`.
    pub fn choose_among(&self, id: u32, found: &[u32], rule: Rule, edit: &mut Edit) {
        let _guard = self.lock(id);
        let graph = self.current();
        let Some(node) = graph.slots.get(id).filter(|node| node.is_live()) else { return };
        edit.ids.clear();
        edit.ids.extend(ids(node.links()).filter(|other| *other != id));
        for other in found.iter().filter(|other| **other != id) {
            if !contains(node.links(), *other) {
                edit.ids.push(*other);
            }
        }
        graph.reselect_by(rule, id, node, 0, edit);
    }

    /// Links a node to the best of `edit.ids`. The caller holds its lock.
    fn reselect_by(&self, rule: Rule, id: u32, node: Node<'a>, layer: u8, edit: &mut Edit) {
        let links = self.links(node, layer);
        let Edit { base, rows, ids: wanted, candidates, selection } = edit;
        self.set_row(base, id);
        candidates.clear();
        self.score_linked(base, wanted, rows, |other, distance| {
            candidates.push(pool::entry(distance, other))
        });
        candidates.sort_unstable();
        candidates.dedup();
        self.select_by(rule, candidates, links.len(), selection);
        if layer == 0 {
            self.keep_children(id, candidates, links.len(), selection);
            self.keep_outliers(id, candidates, links.len(), selection);
        }
        self.recommend_far(id, candidates, layer, selection);
        rewrite(links, selection.kept());
    }

    /// Recommends the farthest candidates, when they were dropped, to those that stand for them. An outlier is the
    /// farthest in every list that it is in, and loses its place in all of them as its region fills up: the one that
    /// stands for it is nearer to it, but does not know it.
    fn recommend_far(&self, id: u32, candidates: &[Entry], layer: u8, selection: &Selection) {
        for candidate in candidates.iter().rev().take(FAR) {
            let far = pool::id(*candidate);
            let Some(other) = selection.cover_of(far).filter(|_| !selection.kept().contains(&far)) else {
                continue;
            };
            let Some(node) = self.slots.get(other).filter(|n| layer <= n.level()) else { continue };
            self.with_second(id, other, || {
                let links = self.links(node, layer);
                // Only where there is room: it must not cost anyone a link.
                let _ = node.is_linked() && !contains(links, far) && append(links, far);
            });
        }
    }

    /// Takes dead links out of a node's list and fills it from `extra`, as far as the diversity rule wants them.
    pub fn mend(&self, id: u32, dead: u32, extra: &[u32], layer: u8, edit: &mut Edit) {
        let _guard = self.lock(id);
        let graph = self.current();
        let Some(node) = graph.slots.get(id).filter(|node| node.is_linked() && layer <= node.level()) else {
            return;
        };
        let links = graph.links(node, layer);
        edit.ids.clear();
        edit.ids.extend(ids(links).filter(|other| *other != dead && *other != id));
        for &other in extra {
            let reaches = graph.slots.get(other).is_some_and(|n| n.is_live() && layer <= n.level());
            if other != id && other != dead && reaches && !edit.ids.contains(&other) {
                edit.ids.push(other);
            }
        }
        graph.reselect_by(Rule::STRICT, id, node, layer, edit);
    }
}
