//! Which slots are in use: the high water mark, the stack of free slots, and limbo, where removed slots wait for the
//! readers that may still see them.
//!
//! Every function here runs under the allocation lock, in the process whose turn it is.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::{IntentGuard, Operation};
use crate::epoch::Readers;
use crate::error::{Error, Result};
use crate::file::layout::NONE;
use crate::file::store::Store;
use crate::graph::node::SlotState;
use crate::options::NODES_MAX;
use crate::protocol;
use crate::record;
use crate::testing::{Planted, is_planted};

/// Slots moved out of limbo at most per call, so that no single insert pays for a mass removal.
const DRAIN_MAX: usize = 64;

/// Takes a slot: a freed one, else a new one; `None` when the plane is full, unless and until limbo gives a slot back.
/// The slot is announced before anything changes, then its state is `Building`.
pub fn allocate(store: &Store, readers: &Readers, intent: &IntentGuard<'_>) -> Result<Option<u32>> {
    let shared = store.shared();
    store.refresh()?;
    drain(store, readers, DRAIN_MAX);
    if let Some(id) = pop(store, intent) {
        return Ok(Some(id));
    }
    let id = shared.id_high_water.load(Ordering::Relaxed);
    let limit = store.config.max_nodes.unwrap_or(NODES_MAX);
    if id >= limit {
        return Ok(None);
    }
    if id >= store.capacity() {
        store.ensure_capacity(id + 1)?;
    }
    let node = store.node(id).ok_or(Error::Full { max_nodes: u64::from(store.capacity()) })?;
    store.before_record(id);
    intent.announce(Operation::Insert, id, NONE);
    node.set_state(SlotState::Building, 0);
    protocol::announce(&shared.id_high_water, id + 1);
    Ok(Some(id))
}

fn pop(store: &Store, intent: &IntentGuard<'_>) -> Option<u32> {
    let shared = store.shared();
    let id = shared.free_head.load(Ordering::Relaxed);
    if id == NONE {
        return None;
    }
    let node = store.node(id).filter(|node| node.state() == Some(SlotState::Free));
    let Some(node) = node else {
        // A damaged list: forget it rather than hand out a slot in use. The slots come back with a full recovery.
        shared.free_head.store(NONE, Ordering::Relaxed);
        shared.free_count.store(0, Ordering::Relaxed);
        return None;
    };
    let next = node.header().next.load(Ordering::Relaxed);
    store.before_record(id);
    intent.announce(Operation::Insert, id, NONE);
    // State first: were the process to die here, the slot's state tells that it is not free, and the list is cut short
    // at worst.
    node.set_state(SlotState::Building, 0);
    shared.free_head.store(next, Ordering::Relaxed);
    let _ =
        shared.free_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(1)));
    Some(id)
}

/// Puts a slot that no reader can see on the free list. What it held in the heap must have been given back.
pub fn push_free(store: &Store, id: u32) {
    let shared = store.shared();
    let Some(node) = store.node(id) else { return };
    node.header().next.store(shared.free_head.load(Ordering::Relaxed), Ordering::Relaxed);
    node.set_state(SlotState::Free, 0);
    shared.free_head.store(id, Ordering::Relaxed);
    shared.free_count.fetch_add(1, Ordering::Relaxed);
}

/// Takes a free slot off the list, wherever on it it is; false when it is not. Hosts that write again what was freed find it
/// near the top.
pub fn unlist(store: &Store, id: u32) -> bool {
    let shared = store.shared();
    let Some(node) = store.node(id) else { return false };
    let mut word = &shared.free_head;
    for _ in 0..shared.id_high_water.load(Ordering::Relaxed) {
        let at = word.load(Ordering::Relaxed);
        if at == id {
            word.store(node.header().next.load(Ordering::Relaxed), Ordering::Relaxed);
            let less = |n: u32| Some(n.saturating_sub(1));
            let _ = shared.free_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            return true;
        }
        let Some(next) = store.node(at) else { return false };
        word = &next.header().next;
    }
    false
}

/// A queue of slots, linked through their headers.
struct Queue<'a> {
    head: &'a AtomicU32,
    tail: &'a AtomicU32,
    count: &'a AtomicU32,
}

impl<'a> Queue<'a> {
    fn limbo(store: &'a Store) -> Self {
        let shared = store.shared();
        Queue { head: &shared.limbo_head, tail: &shared.limbo_tail, count: &shared.limbo_count }
    }

    fn held(store: &'a Store) -> Self {
        let shared = store.shared();
        Queue { head: &shared.held_head, tail: &shared.held_tail, count: &shared.held_count }
    }

    /// Appends the chain of slots from `first` to `last`.
    fn append(&self, store: &Store, first: u32, last: u32, count: u32) {
        match store.node(self.tail.load(Ordering::Relaxed)) {
            Some(tail) if self.head.load(Ordering::Relaxed) != NONE => {
                tail.header().next.store(first, Ordering::Relaxed);
            }
            _ => self.head.store(first, Ordering::Relaxed),
        }
        self.tail.store(last, Ordering::Relaxed);
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    /// Takes the chain from the head to a slot that `next` follows.
    fn cut(&self, next: u32, count: u32) {
        self.head.store(next, Ordering::Relaxed);
        if next == NONE {
            self.tail.store(NONE, Ordering::Relaxed);
        }
        let less = |n: u32| Some(n.saturating_sub(count));
        let _ = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn forget(&self) {
        self.head.store(NONE, Ordering::Relaxed);
        self.tail.store(NONE, Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
    }
}

/// Lets a removed slot wait for the readers pinned at its epoch or before; a replaced one for the next commit first.
pub fn push_limbo(store: &Store, id: u32, replaced: bool) {
    let Some(node) = store.node(id) else { return };
    node.header().next.store(NONE, Ordering::Relaxed);
    let queue = if replaced { Queue::held(store) } else { Queue::limbo(store) };
    queue.append(store, id, id, 1);
}

/// The slots held back so far, as a mark for `release_held`.
pub fn held_mark(store: &Store) -> (u32, u32) {
    let shared = store.shared();
    (shared.held_tail.load(Ordering::Relaxed), shared.held_count.load(Ordering::Relaxed))
}

/// Moves the slots that were held back at the mark to limbo: what replaced them is durable.
pub fn release_held(store: &Store, (last, count): (u32, u32)) {
    let held = Queue::held(store);
    let Some(tail) = store.node(last).filter(|_| count > 0) else { return };
    let first = held.head.load(Ordering::Relaxed);
    let mut id = first;
    for _ in 0..count {
        let Some(node) = store.node(id) else { break };
        node.set_state(SlotState::Limbo, node.level());
        id = node.header().next.load(Ordering::Relaxed);
    }
    held.cut(tail.header().next.load(Ordering::Relaxed), count);
    tail.header().next.store(NONE, Ordering::Relaxed);
    Queue::limbo(store).append(store, first, last, count);
}

/// Moves slots from limbo to the free list, oldest first, as far as readers and commits allow.
pub fn drain(store: &Store, readers: &Readers, most: usize) {
    let shared = store.shared();
    if shared.limbo_head.load(Ordering::Relaxed) == NONE {
        return;
    }
    let oldest_pin = readers.oldest_pin(store);
    for _ in 0..most {
        let id = shared.limbo_head.load(Ordering::Relaxed);
        if id == NONE {
            return;
        }
        let Some(node) = store.node(id).filter(|node| node.state() == Some(SlotState::Limbo)) else {
            // A damaged list, as in `pop`.
            Queue::limbo(store).forget();
            return;
        };
        let header = node.header();
        let reusable = protocol::is_reusable(header.removed_epoch.load(Ordering::Relaxed), oldest_pin);
        if !reusable && !is_planted(Planted::SlotReusedEarly) {
            // Perhaps it is a dead process that holds the epoch back.
            readers.sweep(store);
            return;
        }
        let next = header.next.load(Ordering::Relaxed);
        record::release_heap(store, id, node);
        Queue::limbo(store).cut(next, 1);
        push_free(store, id);
    }
}
