//! Writing nodes as a host has them: codes, links and level given, nothing searched for and nothing of the graph changed.
//!
//! A host that keeps a graph of its own mirrors it here. Its nodes are the host's: no list but a node's own is written, they
//! have no parents (I4 is about records that were linked here), and slots that it clears stay its own. Over a live node a write
//! is done in place: the node is taken from readers' sight, those who may still be reading it are waited for, and it is
//! published again with what is new. Until that wait is over the old node is whole, and comes back if the wait is in vain.
//!
//! | state of the slot | what a kill leaves | what the repair does |
//! |---|---|---|
//! | *hidden* | the old record, whole | publishes it |
//! | *building* | half a record | clears the slot |
//! | *live* | the new record, whole | nothing |

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::codec;
use crate::engine::{Engine, IntentGuard, Operation, lock};
use crate::error::{Error, Result};
use crate::file::layout::{LEVEL_MAX, NONE};
use crate::graph::node::{Node, SlotState};
use crate::heap;
use crate::ids;
use crate::key_index::KeyHash;
use crate::options::{NODES_MAX, Precision, Rerank};
use crate::plane::{Plane, check_range};
use crate::protocol;
use crate::record;
use crate::testing::moment;
use crate::write::entry_word;

/// How far past the ids given so far a node may be written, on planes without `maxNodes`.
const AHEAD_MAX: u32 = 1_000_000;
/// How long a node in use is waited for.
const READERS_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is looked at.
const POLL: Duration = Duration::from_micros(200);

/// A node as its host has it.
#[derive(Clone, Copy, Debug)]
pub struct RawNode<'a> {
    /// Highest layer that the node is on.
    pub level: u8,
    /// int8: a byte a component; int16: two, little-endian, none -32768.
    pub codes: &'a [u8],
    /// Component = code * scale. Above 0; 0 is taken for a vector of zeros.
    pub scale: f32,
    /// 1 / norm of the vector; as `scale`.
    pub inverse_norm: f32,
    /// Links on layer 0.
    pub links: &'a [u32],
    /// Links on layer 1 and up.
    pub upper: &'a [Vec<u32>],
    /// `None` keeps the key that the node has.
    pub key: Option<&'a [u8]>,
}

/// Heap room taken in advance.
struct Room {
    key_unit: u32,
    upper: u32,
}

impl Plane {
    /// Writes a node under an id of the host's choice; with `only_if_absent` only where none has ever been. Tells whether it
    /// was written. Waits up to two seconds for readers of the node that was there (`Error::InUse`).
    pub fn write_node_raw(&self, id: u32, node: &RawNode<'_>, only_if_absent: bool) -> Result<bool> {
        self.check_raw(node)?;
        self.write(|engine| engine.write_raw(id, node, only_if_absent))
    }

    /// Takes a node out, and nothing else: links to it stay, and its slot is the host's to write again. False when there is
    /// none. Waits as `write_node_raw` does. A record that was linked here is removed as by `remove`.
    pub fn clear_node(&self, id: u32) -> Result<bool> {
        self.write(|engine| engine.clear_raw(id))
    }

    /// Lets searches start at a live record, on its highest layer or below.
    pub fn set_entry_point(&self, id: u32, level: u8) -> Result<()> {
        self.write(|engine| {
            let _removal = lock(&engine.removal);
            let _entry = lock(&engine.entry);
            let shared = engine.store.shared();
            let known = id < shared.id_high_water.load(Ordering::Acquire);
            let Some(node) = engine.store.node(id).filter(|node| known && node.is_live()) else {
                return Err(Error::InvalidOption { name: "id", reason: "is no live record's" });
            };
            check_range("level", level.into(), 0, node.level().into())?;
            shared.entry.store(entry_word(id, level), Ordering::Release);
            Ok(())
        })
    }

    fn check_raw(&self, node: &RawNode<'_>) -> Result<()> {
        let config = self.config();
        let integers = matches!(config.precision, Precision::Int8 | Precision::Int16);
        if !integers || config.rerank != Rerank::None {
            return Err(Error::NotMirrorable);
        }
        let expected = codec::code_bytes(config.precision, config.dims as usize);
        if node.codes.len() != expected {
            let (precision, dims) = (config.precision, config.dims);
            return Err(Error::RawLength { bytes: node.codes.len(), dims, precision, expected });
        }
        let least = i16::MIN.to_le_bytes();
        if config.precision == Precision::Int16 && node.codes.as_chunks::<2>().0.contains(&least) {
            return Err(Error::InvalidOption {
                name: "vector",
                reason: "has a component of -32768: int16 components must stay within +/-32767",
            });
        }
        let zeros = node.codes.iter().all(|byte| *byte == 0);
        for (name, value) in [("scale", node.scale), ("invMag", node.inverse_norm)] {
            let positive = value > 0.0 || zeros && value == 0.0;
            if !(positive && value.is_finite()) {
                return Err(Error::InvalidOption {
                    name,
                    reason: "must be a finite number above 0; 0 goes with a vector of zeros only",
                });
            }
        }
        check_range("level", node.level.into(), 0, LEVEL_MAX.into())?;
        check_range("links in neighbors", node.links.len(), 0, config.layer0_cap as usize)?;
        check_range("lists in upper", node.upper.len(), 0, node.level.into())?;
        for list in node.upper {
            check_range("links in a list of upper", list.len(), 0, config.m as usize)?;
        }
        let limit = config.max_nodes.unwrap_or(NODES_MAX) as usize;
        for id in node.upper.iter().flatten().chain(node.links) {
            check_range("an id in neighbors or upper", *id as usize, 0, limit - 1)?;
        }
        node.key.map_or(Ok(()), |key| record::check_key(config, key))
    }
}

impl Engine {
    fn write_raw(&self, id: u32, raw: &RawNode<'_>, only_if_absent: bool) -> Result<bool> {
        let _alone = lock(&self.raw);
        let store = &self.store;
        self.check_raw_id(id)?;
        let known = id < store.shared().id_high_water.load(Ordering::Acquire);
        let there = store.node(id).filter(|_| known);
        if only_if_absent && there.is_some_and(|node| node.state() != Some(SlotState::Never)) {
            return Ok(false);
        }
        let key = match raw.key {
            Some(key) => key.to_vec(),
            None => self.stored_key(id, there)?,
        };
        record::check_key(&store.config, &key)?;
        let hash = store.config.unique_keys.then(|| KeyHash::new(store, &key));
        if there.is_some_and(|node| node.is_live() && !node.is_mirrored()) {
            if let Some(other) = hash.and_then(|hash| self.other_with_key(hash, &key, id)) {
                return Err(Error::KeyExists { id: other });
            }
            // Linked here: whoever relies on its links is seen to.
            self.remove(id)?;
        }
        let intent = self.intent();
        let room = self.take_room(raw, &key)?;
        let taken = self.take_for_raw(&intent, id, &key, hash);
        let node = match taken {
            Ok(node) => node,
            Err(error) => {
                self.give_room_back(room, &key, raw.level);
                return Err(error);
            }
        };
        let replaces = node.state() == Some(SlotState::Hidden);
        let _removal = lock(&self.removal);
        // SAFETY: hidden, with nobody left who saw it live: this thread is the record's only user.
        let old_key = if replaces { unsafe { record::key(store, id) } } else { None };
        let old_key = old_key.unwrap_or_default().to_vec();
        if let Some(hash) = hash {
            // Held until the record is there: nobody else may claim the key while it has none.
            let shard = self.shard(hash);
            let claimed = match shard.find(hash, |other| other != id && self.has_key(other, &key)) {
                Some(other) => Err(Error::KeyExists { id: other }),
                None if replaces && old_key == key => Ok(()),
                None => shard.insert(hash, id),
            };
            if let Err(error) = claimed {
                drop(shard);
                match replaces {
                    true => node.set_state(SlotState::Live, node.level()),
                    false => node.set_state(SlotState::Cleared, 0),
                }
                self.give_room_back(room, &key, raw.level);
                return Err(error);
            }
            if replaces && old_key != key {
                let old = KeyHash::new(store, &old_key);
                // No lookup leads here any more when the old key goes.
                match old.shard() == hash.shard() {
                    true => shard.remove(old, id),
                    false => self.shard(old).remove(old, id),
                };
            }
            self.put(id, node, raw, &key, room, replaces);
        } else {
            self.put(id, node, raw, &key, room, replaces);
        }
        Ok(true)
    }

    fn check_raw_id(&self, id: u32) -> Result<()> {
        let most = match self.store.config.max_nodes {
            Some(max_nodes) => max_nodes - 1,
            None => {
                let high_water = self.store.shared().id_high_water.load(Ordering::Acquire);
                (high_water + AHEAD_MAX).min(NODES_MAX - 1)
            }
        };
        check_range("id", id as usize, 0, most as usize)
    }

    /// The key of the record that is there; empty when there is none.
    fn stored_key(&self, id: u32, node: Option<Node<'_>>) -> Result<Vec<u8>> {
        let _pinned = self.pin()?;
        let live = node.is_some_and(|node| node.is_live());
        // SAFETY: pinned, and seen live.
        let key = if live { unsafe { record::key(&self.store, id) } } else { None };
        Ok(key.unwrap_or_default().to_vec())
    }

    fn other_with_key(&self, hash: KeyHash, key: &[u8], id: u32) -> Option<u32> {
        let _pinned = self.pin().ok()?;
        self.shard(hash).find(hash, |other| other != id && self.has_key(other, key))
    }

    fn take_room(&self, raw: &RawNode<'_>, key: &[u8]) -> Result<Room> {
        let _allocation = lock(&self.allocation);
        self.store.refresh()?;
        let key_unit = record::allocate_key(&self.store, key)?;
        if raw.level == 0 {
            return Ok(Room { key_unit, upper: 0 });
        }
        match heap::allocate(&self.store, record::upper_bytes(&self.store, raw.level)) {
            Ok(upper) => Ok(Room { key_unit, upper }),
            Err(error) => {
                record::release_key(&self.store, key_unit, key.len());
                Err(error)
            }
        }
    }

    fn give_room_back(&self, room: Room, key: &[u8], level: u8) {
        let _allocation = lock(&self.allocation);
        record::release_key(&self.store, room.key_unit, key.len());
        if room.upper != 0 {
            heap::release(&self.store, room.upper, record::upper_bytes(&self.store, level));
        }
    }

    /// Takes the slot: *building* where it held nothing; *hidden*, with its record whole and read by nobody, where it did.
    fn take_for_raw(
        &self,
        intent: &IntentGuard<'_>,
        id: u32,
        key: &[u8],
        hash: Option<KeyHash>,
    ) -> Result<Node<'_>> {
        let store = &self.store;
        if let Some(other) = hash.and_then(|hash| self.other_with_key(hash, key, id)) {
            return Err(Error::KeyExists { id: other });
        }
        let deadline = Instant::now() + READERS_TIMEOUT;
        loop {
            {
                let allocation = lock(&self.allocation);
                if let Some(node) = self.take_empty(intent, id, &allocation)? {
                    return Ok(node);
                }
            }
            let node = store.node(id).ok_or(Error::Full { max_nodes: u64::from(store.capacity()) })?;
            if node.is_live() && node.is_mirrored() {
                intent.announce(Operation::Raw, id, NONE);
                self.hide(id, node, deadline)?;
                return Ok(node);
            }
            // Removed, and in the way of readers or of a commit; or another thread is just inserting it.
            if node.state() == Some(SlotState::Replaced) {
                self.commit(None)?;
            }
            if Instant::now() > deadline {
                return Err(Error::InUse { id });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Takes a slot that holds nothing and is nobody's, under the allocation lock.
    fn take_empty(
        &self,
        intent: &IntentGuard<'_>,
        id: u32,
        _allocation: &MutexGuard<'_, ()>,
    ) -> Result<Option<Node<'_>>> {
        let (store, shared) = (&self.store, self.store.shared());
        if id >= store.capacity() {
            store.ensure_capacity(id + 1)?;
        }
        let node = store.node(id).ok_or(Error::Full { max_nodes: u64::from(store.capacity()) })?;
        let fresh = id >= shared.id_high_water.load(Ordering::Relaxed);
        ids::drain(store, &self.readers, usize::MAX);
        match node.state() {
            Some(SlotState::Never | SlotState::Cleared) => {}
            Some(SlotState::Free) => {
                intent.announce(Operation::Raw, id, NONE);
                if !ids::unlist(store, id) {
                    return Err(Error::Corrupt { what: "a free slot is on no list", offset: 0 });
                }
            }
            _ if fresh => {}
            _ => return Ok(None),
        }
        intent.announce(Operation::Raw, id, NONE);
        node.header().upper.store(0, Ordering::Relaxed);
        node.set_state(SlotState::Building, 0);
        if fresh {
            // What lies between is as it was made: never used, and on no list.
            protocol::announce(&shared.id_high_water, id + 1);
        }
        Ok(Some(node))
    }

    /// Takes a live node from readers' sight and waits until none can be reading it; else it is as it was.
    fn hide(&self, id: u32, node: Node<'_>, deadline: Instant) -> Result<()> {
        let (store, level) = (&self.store, node.level());
        {
            let _removal = lock(&self.removal);
            let _guard = self.links.lock(id);
            node.set_state(SlotState::Hidden, level);
        }
        let removed = protocol::retire(&store.shared().epoch);
        node.header().removed_epoch.store(removed, Ordering::Relaxed);
        // Without locks: others that hold a pin may wait for them.
        while !protocol::is_reusable(removed, self.readers.oldest_pin(store)) {
            if Instant::now() > deadline {
                node.set_state(SlotState::Live, level);
                return Err(Error::InUse { id });
            }
            self.readers.sweep(store);
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Writes the record and publishes it. The slot is this thread's.
    fn put(&self, id: u32, node: Node<'_>, raw: &RawNode<'_>, key: &[u8], room: Room, replaces: bool) {
        let (store, shared) = (&self.store, self.store.shared());
        let level = node.level();
        node.set_state(SlotState::Building, level);
        if replaces {
            let _allocation = lock(&self.allocation);
            record::release_heap(store, id, node);
        }
        record::write_raw(store, id, node, raw, key, room.key_unit);
        let header = node.header();
        header.upper.store(room.upper, Ordering::Relaxed);
        header
            .generation
            .store(shared.generation.fetch_add(1, Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        put_links(node.links(), id, raw.links);
        let m = store.config.m as usize;
        let upper = store.heap_words(room.upper, usize::from(raw.level) * m).unwrap_or(&[]);
        for (layer, list) in upper.chunks(m).enumerate() {
            put_links(list, id, raw.upper.get(layer).map_or(&[], Vec::as_slice));
        }
        moment();
        // SAFETY: this thread is building the record.
        let checksum = unsafe { record::checksum(store, id, node, raw.level) };
        header.checksum.store(checksum.unwrap_or(0), Ordering::Relaxed);
        self.publish_raw(id, node, raw.level);
        if !replaces {
            shared.count.fetch_add(1, Ordering::Relaxed);
        }
        shared.churn.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets readers see a raw node. The first one of a plane is where searches start until its host says otherwise.
    pub(crate) fn publish_raw(&self, id: u32, node: Node<'_>, level: u8) {
        node.set_state(SlotState::Live, level);
        // Raw nodes have no tags; the record that was here before may have had some.
        self.tag_index.note(&self.store, id);
        let _entry = lock(&self.entry);
        let word = &self.store.shared().entry;
        let now = word.load(Ordering::Acquire);
        // A search that starts on a layer above the node's would find no links there.
        let too_high = now as u32 == id && now >> 32 > u64::from(level);
        if now == u64::MAX || too_high {
            word.store(entry_word(id, level), Ordering::Release);
        }
    }

    fn clear_raw(&self, id: u32) -> Result<bool> {
        let _alone = lock(&self.raw);
        let (store, shared) = (&self.store, self.store.shared());
        let known = id < shared.id_high_water.load(Ordering::Acquire);
        let Some(node) = store.node(id).filter(|node| known && node.is_live()) else { return Ok(false) };
        if !node.is_mirrored() {
            return self.remove(id);
        }
        let intent = self.intent();
        intent.announce(Operation::Raw, id, NONE);
        self.hide(id, node, Instant::now() + READERS_TIMEOUT)?;
        let _removal = lock(&self.removal);
        self.leave_entry_point(id, node)?;
        if store.config.unique_keys {
            // SAFETY: hidden, with nobody left who saw it live: this thread is the record's only user.
            let key = unsafe { record::key(store, id) }.unwrap_or_default();
            let hash = KeyHash::new(store, key);
            self.shard(hash).remove(hash, id);
        }
        let _allocation = lock(&self.allocation);
        node.set_state(SlotState::Building, node.level());
        record::release_heap(store, id, node);
        node.set_state(SlotState::Cleared, 0);
        shared.count.fetch_sub(1, Ordering::Relaxed);
        shared.churn.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Lets searches start elsewhere than at a node that is going.
    fn leave_entry_point(&self, id: u32, node: Node<'_>) -> Result<()> {
        let mut pinned = self.pin()?;
        let (graph, _) = pinned.parts();
        let _entry = lock(&self.entry);
        let entry = &self.store.shared().entry;
        if entry.load(Ordering::Acquire) as u32 == id {
            let next = graph.next_entry_point(id, node);
            entry.store(next.map_or(u64::MAX, |(id, level)| entry_word(id, level)), Ordering::Release);
        }
        Ok(())
    }

    /// Ends what a dead writer began with a raw node: see the table at the top. Runs alone.
    pub(crate) fn repair_raw(&self, id: u32) -> Result<()> {
        let store = &self.store;
        let Some(node) = store.node(id) else { return Ok(()) };
        match node.state() {
            Some(SlotState::Hidden) => node.set_state(SlotState::Live, node.level()),
            Some(SlotState::Building) => {
                // Its blocks in the heap are unknown; the next scan finds them.
                node.header().upper.store(0, Ordering::Relaxed);
                if store.layout.key_entry_bytes > 0 {
                    record::write_key_entry(store, id, &[], 0);
                }
                node.set_state(SlotState::Cleared, 0);
            }
            _ => {}
        }
        if node.is_live() {
            self.publish_raw(id, node, node.level());
        } else {
            self.leave_entry_point(id, node)?;
        }
        if !store.config.unique_keys {
            return Ok(());
        }
        let key = if node.is_live() { self.stored_key(id, Some(node))? } else { Vec::new() };
        let hash = KeyHash::new(store, &key);
        crate::key_index::purge(store, id, node.is_live().then_some(hash));
        let shard = self.shard(hash);
        if node.is_live() && shard.find(hash, |other| other == id).is_none() {
            shard.insert(hash, id)?;
        }
        Ok(())
    }
}

/// A list as its host has it, without links to the node itself and repetitions.
fn put_links(list: &[std::sync::atomic::AtomicU32], id: u32, links: &[u32]) {
    let mut kept: Vec<u32> = Vec::with_capacity(links.len());
    for other in links {
        if *other != id && !kept.contains(other) {
            kept.push(*other);
        }
    }
    for (word, other) in list.iter().zip(kept.into_iter().chain(std::iter::repeat(NONE))) {
        word.store(other, Ordering::Relaxed);
    }
}
