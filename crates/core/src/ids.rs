//! Which slots are in use: the high water mark, the stack of free slots, and limbo, where removed slots wait for the
//! readers that may still see them.
//!
//! Every function here runs under the allocation lock, in the process whose turn it is.

use std::sync::atomic::Ordering;

use crate::engine::{IntentGuard, Operation};
use crate::epoch::Readers;
use crate::error::{Error, Result};
use crate::file::layout::NONE;
use crate::file::store::Store;
use crate::graph::node::SlotState;
use crate::options::NODES_MAX;
use crate::record;

/// Slots moved out of limbo at most per call, so that no single insert pays for a mass removal.
const DRAIN_MAX: usize = 64;

/// Takes a slot: a freed one, else a new one. It is announced before anything changes, then its state is `Building`.
pub fn allocate(store: &Store, readers: &Readers, intent: &IntentGuard<'_>) -> Result<u32> {
    let shared = store.shared();
    store.refresh()?;
    drain(store, readers, DRAIN_MAX)?;
    if let Some(id) = pop(store, intent) {
        return Ok(id);
    }
    let id = shared.id_high_water.load(Ordering::Relaxed);
    let limit = store.config.max_nodes.unwrap_or(NODES_MAX);
    if id >= limit {
        // What is in limbo is room too, as soon as the searches that hold it are done; those are short.
        for _ in 0..2000 {
            if shared.limbo_count.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
            drain(store, readers, DRAIN_MAX)?;
            if let Some(id) = pop(store, intent) {
                return Ok(id);
            }
        }
        return Err(Error::Full { max_nodes: u64::from(limit) });
    }
    if id >= store.capacity() {
        store.ensure_capacity(id + 1)?;
    }
    let node = store.node(id).ok_or(Error::Full { max_nodes: u64::from(store.capacity()) })?;
    intent.announce(Operation::Insert, id, NONE);
    node.set_state(SlotState::Building, 0);
    shared.id_high_water.store(id + 1, Ordering::Release);
    Ok(id)
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

/// Lets a removed slot wait for the readers pinned at its epoch or before.
pub fn push_limbo(store: &Store, id: u32) {
    let shared = store.shared();
    let Some(node) = store.node(id) else { return };
    node.header().next.store(NONE, Ordering::Relaxed);
    let tail = shared.limbo_tail.load(Ordering::Relaxed);
    match store.node(tail) {
        Some(last) if shared.limbo_head.load(Ordering::Relaxed) != NONE => {
            last.header().next.store(id, Ordering::Relaxed);
        }
        _ => shared.limbo_head.store(id, Ordering::Relaxed),
    }
    shared.limbo_tail.store(id, Ordering::Relaxed);
    shared.limbo_count.fetch_add(1, Ordering::Relaxed);
}

/// Moves slots from limbo to the free list, oldest first, as far as readers and commits allow.
pub fn drain(store: &Store, readers: &Readers, most: usize) -> Result<()> {
    let shared = store.shared();
    if shared.limbo_head.load(Ordering::Relaxed) == NONE {
        return Ok(());
    }
    let oldest_pin = readers.oldest_pin(store);
    for _ in 0..most {
        let id = shared.limbo_head.load(Ordering::Relaxed);
        if id == NONE {
            return Ok(());
        }
        let Some(node) = store.node(id).filter(|node| node.state() == Some(SlotState::Limbo)) else {
            // A damaged list, as in `pop`.
            shared.limbo_head.store(NONE, Ordering::Relaxed);
            shared.limbo_tail.store(NONE, Ordering::Relaxed);
            shared.limbo_count.store(0, Ordering::Relaxed);
            return Ok(());
        };
        let header = node.header();
        if header.removed_epoch.load(Ordering::Relaxed) >= oldest_pin {
            // Perhaps it is a dead process that holds the epoch back.
            return readers.sweep(store);
        }
        if header.hold_commit.load(Ordering::Relaxed) > shared.commits.load(Ordering::Acquire) {
            return Ok(());
        }
        let next = header.next.load(Ordering::Relaxed);
        record::release_heap(store, id, node);
        shared.limbo_head.store(next, Ordering::Relaxed);
        if next == NONE {
            shared.limbo_tail.store(NONE, Ordering::Relaxed);
        }
        let _ = shared
            .limbo_count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(1)));
        push_free(store, id);
    }
    Ok(())
}
