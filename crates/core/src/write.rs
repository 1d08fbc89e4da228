//! Inserting and removing one record: the steps, in the order that keeps every moment recoverable.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::engine::{Engine, IntentGuard, Operation, lock};
use crate::error::{Error, Result};
use crate::file::layout::NONE;
use crate::file::shared::FLAG_TAGGED;
use crate::graph::insert::level_for;
use crate::graph::node::{Node, SlotState};
use crate::graph::{Graph, Scratch, links};
use crate::ids;
use crate::key_index::{KeyHash, Shard};
use crate::options::NODES_MAX;
use crate::protocol;
use crate::record::{self, NewVector};
use crate::tag_index;
use crate::tags::TagSet;
use crate::testing::{Planted, is_planted, moment};

/// How often a node asks for a parent while everything that could be one is still being linked in.
const PARENT_TRIES: usize = 100_000;

/// Slots that a removal takes out of limbo: more than it puts there.
const DRAIN_AT_REMOVAL: usize = 4;
/// How long an insert into a full plane waits for removed slots that readers still hold.
const LIMBO_TIMEOUT: Duration = Duration::from_secs(2);

/// A slot taken for a new record.
pub(crate) struct Slot {
    pub id: u32,
    key_unit: u32,
    pub level: u8,
}

impl Engine {
    /// Inserts one record. The caller has begun a write and checked vector and key.
    pub fn insert(&self, new: NewVector<'_>, key: &[u8], tags: &TagSet) -> Result<u32> {
        let hash = self.store.config.unique_keys.then(|| KeyHash::new(&self.store, key));
        if let Some(hash) = hash {
            let _pinned = self.pin()?;
            if let Some(id) = self.shard(hash).find(hash, |id| self.has_key(id, key)) {
                return Err(Error::KeyExists { id });
            }
        }
        let intent = self.intent();
        let slot = self.take_slot(&intent, key, tags)?;
        let mut pinned = self.pin()?;
        let id = slot.id;
        let node = self.store.node(id).ok_or(Error::Full { max_nodes: u64::from(self.store.capacity()) })?;
        self.write_record(node, &slot, new, key);
        if let Some(hash) = hash
            && let Err(error) = self.claim_key(hash, key, id)
        {
            self.give_back(id, node);
            return Err(error);
        }
        let (graph, scratch) = pinned.parts();
        let config = &self.store.config;
        scratch.query.set_vector(config.precision, config.metric, new.vector, new.norm);
        self.link_and_publish(graph.for_writing(), scratch, id, node, slot.level);
        Ok(id)
    }

    pub(crate) fn shard(&self, hash: KeyHash) -> Shard<'_> {
        Shard::lock(&self.store, &self.shards, &self.allocation, hash)
    }

    /// Whether a slot holds, or is about to hold, a record with this key. The caller is pinned.
    pub(crate) fn has_key(&self, id: u32, key: &[u8]) -> bool {
        let held = self.store.node(id).is_some_and(|node| node.is_linked() || node.is_hidden());
        // SAFETY: pinned, and seen complete; a hidden record stays so while its key's shard is locked.
        held && unsafe { record::key(&self.store, id) } == Some(key)
    }

    fn claim_key(&self, hash: KeyHash, key: &[u8], id: u32) -> Result<()> {
        let shard = self.shard(hash);
        // Again, now that nobody else can claim it.
        match shard.find(hash, |other| other != id && self.has_key(other, key)) {
            Some(id) => Err(Error::KeyExists { id }),
            None => shard.insert(hash, id),
        }
    }

    /// Takes a slot and heap room for its key and upper links, or nothing at all. The caller must not be pinned: on a full
    /// plane this waits for slots in limbo, which its own pin might be what holds back.
    pub(crate) fn take_slot(&self, intent: &IntentGuard<'_>, key: &[u8], tags: &TagSet) -> Result<Slot> {
        let store = &self.store;
        if !tags.is_empty() && !tag_index::is_tagged(store) {
            // Before there is one: from here on every record is told of in the log.
            store.shared().flags.fetch_or(FLAG_TAGGED, Ordering::SeqCst);
        }
        let deadline = Instant::now() + LIMBO_TIMEOUT;
        loop {
            if let Some(slot) = self.try_take_slot(intent, key, tags)? {
                return Ok(slot);
            }
            // Replaced records' slots are room too, once what replaced them is durable.
            if store.shared().held_count.load(Ordering::Relaxed) > 0 {
                self.commit(None)?;
                continue;
            }
            // So are removed ones, as soon as the searches that hold them are done; those are short.
            if store.shared().limbo_count.load(Ordering::Relaxed) == 0 || Instant::now() > deadline {
                let max_nodes = store.config.max_nodes.map_or(u64::from(NODES_MAX), u64::from);
                return Err(Error::Full { max_nodes });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn try_take_slot(&self, intent: &IntentGuard<'_>, key: &[u8], tags: &TagSet) -> Result<Option<Slot>> {
        let _allocation = lock(&self.allocation);
        let store = &self.store;
        let Some(id) = ids::allocate(store, &self.readers, intent)? else { return Ok(None) };
        let node = store.node(id).ok_or(Error::Full { max_nodes: u64::from(store.capacity()) })?;
        let header = node.header();
        header.upper.store(0, Ordering::Relaxed);
        header.tags.store(0, Ordering::Relaxed);
        let generation = store.shared().generation.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let level = level_for(generation, store.config.seed, store.config.m);
        match record::allocate_heap(store, key, tags, level) {
            Ok(room) => {
                header.generation.store(generation, Ordering::Relaxed);
                header.upper.store(room.upper, Ordering::Relaxed);
                header.tags.store(room.tags, Ordering::Relaxed);
                Ok(Some(Slot { id, key_unit: room.key, level }))
            }
            Err(e) => {
                ids::push_free(store, id);
                Err(e)
            }
        }
    }

    pub(crate) fn write_record(&self, node: Node<'_>, slot: &Slot, new: NewVector<'_>, key: &[u8]) {
        let store = &self.store;
        if is_planted(Planted::LiveFirst) {
            node.set_state(SlotState::Live, slot.level);
        }
        record::write(store, slot.id, node, new, key, slot.key_unit);
        moment();
        if slot.level > 0 {
            let words = usize::from(slot.level) * store.config.m as usize;
            let upper = store.heap_words(node.upper(), words).unwrap_or(&[]);
            upper.iter().for_each(|link| link.store(NONE, Ordering::Relaxed));
        }
        // SAFETY: this thread is building the record.
        let checksum = unsafe { record::checksum(store, slot.id, node, slot.level) };
        node.header().checksum.store(checksum.unwrap_or(0), Ordering::Relaxed);
        node.set_state(SlotState::Linking, slot.level);
    }

    fn give_back(&self, id: u32, node: Node<'_>) {
        let _allocation = lock(&self.allocation);
        record::release_heap(&self.store, id, node);
        ids::push_free(&self.store, id);
    }

    fn link_and_publish(&self, graph: Graph<'_>, scratch: &mut Scratch, id: u32, node: Node<'_>, level: u8) {
        let shared = self.store.shared();
        if shared.root.load(Ordering::Acquire) != NONE || !self.publish_first(graph, id, node, level) {
            graph.link(id, node, level, scratch);
            if node.parent() == NONE {
                self.find_parent(graph, scratch, id, node);
            }
            self.publish_linked(graph, id, node, level);
        }
        shared.churn.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets readers see a node that is linked in.
    pub(crate) fn publish_linked(&self, graph: Graph<'_>, id: u32, node: Node<'_>, level: u8) {
        graph.publish(node, level);
        self.tag_index.note(&self.store, id);
        self.store.shared().count.fetch_add(1, Ordering::Relaxed);
        self.raise_entry_point(id, node, level);
    }

    /// Undoes what was done for a node that was linked in but not published: as if it had been removed. The caller holds
    /// the removal lock.
    pub(crate) fn abandon(&self, id: u32, node: Node<'_>) -> Result<()> {
        {
            let graph = Graph::new(&self.store, &self.links);
            let _guard = graph.lock(id);
            graph.unpublish(node);
        }
        self.finish_removal(id, node, false)
    }

    /// The first record of an empty plane is root and entry point at once.
    fn publish_first(&self, graph: Graph<'_>, id: u32, node: Node<'_>, level: u8) -> bool {
        let _removal = lock(&self.removal);
        let _entry = lock(&self.entry);
        let shared = self.store.shared();
        if shared.root.load(Ordering::Acquire) != NONE {
            return false;
        }
        graph.publish(node, level);
        self.tag_index.note(&self.store, id);
        shared.count.fetch_add(1, Ordering::Relaxed);
        shared.root.store(id, Ordering::Release);
        // Unless a host's nodes are there, which have an entry point and no root.
        let first = entry_word(id, level);
        let _ = shared.entry.compare_exchange(u64::MAX, first, Ordering::Release, Ordering::Relaxed);
        true
    }

    /// For a node that found no parent among its neighbours: they were all removed meanwhile, or are all younger.
    pub(crate) fn find_parent(&self, graph: Graph<'_>, scratch: &mut Scratch, id: u32, node: Node<'_>) {
        let shared = self.store.shared();
        for _ in 0..PARENT_TRIES {
            let removal = lock(&self.removal);
            let graph = graph.current();
            let Some(root) = graph.root() else {
                shared.root.store(id, Ordering::Release);
                return;
            };
            if root == id || graph.adopt_anywhere(id, &mut scratch.edit) {
                return;
            }
            if let Some(record) = graph.slots.get(root)
                && record.generation() > node.generation()
            {
                // Older than everything that is left: it becomes the root, and the root its child.
                let list = node.links();
                if !links::contains(list, root) && !links::append(list, root) {
                    list[0].store(root, Ordering::Release);
                }
                graph.set_parent(root, record, id);
                shared.root.store(id, Ordering::Release);
                return;
            }
            // The root is older, but another thread is still linking it in.
            drop(removal);
            std::thread::yield_now();
        }
    }

    fn raise_entry_point(&self, id: u32, node: Node<'_>, level: u8) {
        let shared = self.store.shared();
        let higher = |word: u64| word == u64::MAX || (word >> 32) < u64::from(level);
        if !higher(shared.entry.load(Ordering::Acquire)) {
            return;
        }
        let _entry = lock(&self.entry);
        // It may have been removed already: whoever removes it looks at the entry point under this lock.
        if higher(shared.entry.load(Ordering::Acquire)) && node.is_live() {
            shared.entry.store(entry_word(id, level), Ordering::Release);
        }
    }

    /// Removes one record; false when there is none. The caller has begun a write.
    pub fn remove(&self, id: u32) -> Result<bool> {
        self.remove_if(id, |_| true)
    }

    /// Removes one record if, seen live, it is the one that the caller means.
    pub(crate) fn remove_if(&self, id: u32, is_meant: impl Fn(u32) -> bool) -> Result<bool> {
        let intent = self.intent();
        let _removal = lock(&self.removal);
        let live =
            self.store.node(id).filter(|_| id < self.store.shared().id_high_water.load(Ordering::Acquire));
        // Under the removal lock a live record stays live.
        let Some(node) = live.filter(|node| node.is_live() && is_meant(id)) else { return Ok(false) };
        intent.announce(Operation::Remove, id, NONE);
        {
            // Under its lock, so that nobody is just taking it for a parent.
            let graph = Graph::new(&self.store, &self.links);
            let _guard = graph.lock(id);
            graph.unpublish(node);
        }
        self.store.shared().count.fetch_sub(1, Ordering::Relaxed);
        self.finish_removal(id, node, false)?;
        // Without readers in the way the slot is the next one handed out.
        let _allocation = lock(&self.allocation);
        ids::drain(&self.store, &self.readers, DRAIN_AT_REMOVAL);
        Ok(true)
    }

    /// The rest of a removal, for a slot in limbo that is not listed there yet. Runs once more after a kill. The slot of a
    /// record that another one `replaced` is not reused before the next commit.
    pub fn finish_removal(&self, id: u32, node: Node<'_>, replaced: bool) -> Result<()> {
        let store = &self.store;
        let shared = store.shared();
        let mut pinned = self.pin()?;
        node.header().removed_epoch.store(protocol::retire(&shared.epoch), Ordering::Relaxed);
        if store.config.unique_keys {
            // SAFETY: in limbo but not listed there, so nobody reuses it before this returns.
            if let Some(key) = unsafe { record::key(store, id) } {
                let hash = KeyHash::new(store, key);
                self.shard(hash).remove(hash, id);
            }
        }
        let (graph, scratch) = pinned.parts();
        {
            let _entry = lock(&self.entry);
            if shared.entry.load(Ordering::Acquire) as u32 == id {
                let next = graph.next_entry_point(id, node);
                shared
                    .entry
                    .store(next.map_or(u64::MAX, |(id, level)| entry_word(id, level)), Ordering::Release);
            }
        }
        moment();
        graph.unlink(id, node, scratch);
        moment();
        shared.churn.fetch_add(1, Ordering::Relaxed);
        let _allocation = lock(&self.allocation);
        ids::push_limbo(store, id, replaced);
        Ok(())
    }
}

pub(crate) fn entry_word(id: u32, level: u8) -> u64 {
    u64::from(level) << 32 | u64::from(id)
}
