//! Writing by key: replacing a record without a moment in which the key has none, and removing one by its key.

use std::sync::atomic::Ordering;

use crate::engine::{Engine, Operation, lock};
use crate::error::{Error, Result};
use crate::file::layout::NONE;
use crate::key_index::{KeyHash, Shard};
use crate::record::{self, NewVector};
use crate::tags::TagSet;

impl Engine {
    /// Inserts a record, or puts it in the place of the one that has its key. Returns the new record's id. The caller
    /// has begun a write and checked vector and key.
    ///
    /// The new record is linked and published before the old one goes, so a lookup finds one or the other at every
    /// moment; a search that meets both keeps the younger. The old slot is not reused before the next flush: until the
    /// new record is durable, the old one is what a power cut leaves (D1).
    pub fn upsert(&self, new: NewVector<'_>, key: &[u8], tags: &TagSet) -> Result<u32> {
        let hash = KeyHash::new(&self.store, key);
        let intent = self.intent();
        let slot = self.take_slot(&intent, key, tags)?;
        let mut pinned = self.pin()?;
        let id = slot.id;
        let node = self.store.node(id).ok_or(Error::Full { max_nodes: u64::from(self.store.capacity()) })?;
        self.write_record(node, &slot, new, key);
        let (graph, scratch) = pinned.parts();
        let graph = graph.for_writing();
        let config = &self.store.config;
        scratch.query.set_vector(config.precision, config.metric, new.vector, new.norm);
        graph.link(id, node, slot.level, scratch);
        if node.parent() == NONE {
            // Also on an empty plane, whose root it becomes.
            self.find_parent(graph, scratch, id, node);
        }
        loop {
            let removal = lock(&self.removal);
            let shard = Shard::lock(&self.store, &self.shards, &self.allocation, hash);
            let old = shard.find(hash, |other| other != id && self.has_key(other, key));
            let old_node = old.and_then(|old| self.store.node(old).map(|node| (old, node)));
            if old_node.is_some_and(|(_, node)| !node.is_live()) {
                // Another thread is just inserting the key: its record counts as the older one, once it is there.
                drop((shard, removal));
                std::thread::yield_now();
                continue;
            }
            intent.announce(Operation::Upsert, id, old.unwrap_or(NONE));
            let Some((old, old_node)) = old_node else {
                if let Err(error) = shard.insert(hash, id) {
                    drop(shard);
                    self.abandon(id, node)?;
                    return Err(error);
                }
                self.publish_linked(graph, id, node, slot.level);
                return Ok(id);
            };
            self.publish_linked(graph, id, node, slot.level);
            shard.replace(hash, old, id);
            {
                let _guard = graph.lock(old);
                old_node.set_replaced(self.store.shared().commits.load(Ordering::Acquire).wrapping_add(1));
            }
            drop(shard);
            self.store.shared().count.fetch_sub(1, Ordering::Relaxed);
            self.finish_removal(old, old_node, true)?;
            drop(removal);
            return Ok(id);
        }
    }

    /// Removes the record with this key; false when there is none. The caller has begun a write.
    pub fn remove_key(&self, key: &[u8]) -> Result<bool> {
        let hash = KeyHash::new(&self.store, key);
        loop {
            let id = {
                let _pinned = self.pin()?;
                let shard = Shard::lock(&self.store, &self.shards, &self.allocation, hash);
                match shard.find(hash, |id| self.has_key(id, key)) {
                    Some(id) => id,
                    None => return Ok(false),
                }
            };
            // Between the two the record may have been replaced or removed, and its slot may hold another.
            let is_still = |id: u32| {
                // SAFETY: called with the record seen live, and it stays so, since only this thread may remove now.
                let found = unsafe { record::key(&self.store, id) };
                found == Some(key)
            };
            match self.remove_if(id, is_still)? {
                true => return Ok(true),
                false => std::thread::yield_now(),
            }
        }
    }
}
