//! What a dead writer left: the cheap repair after a process died, the full one after a machine did.
//!
//! | found at open | what happened | what is done |
//! |---|---|---|
//! | not dirty | last close was clean | nothing |
//! | dirty, same boot and file | processes ended or died; the page cache has every store | intents of the dead, if any |
//! | dirty, anything else, or a failed sync | the machine stopped, or the file is a copy | one scan over all records |
//! | words out of range | the file was damaged | the scan as well |

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{Engine, Operation, lock};
use crate::error::{Error, Result};
use crate::file::header::Superblock;
use crate::file::identity::{Identity, LastWriter};
use crate::file::layout::{EXTENT_COUNT_MAX, HEAP_UNIT, LEVEL_MAX, NONE};
use crate::file::shared::{FLAG_SYNC_FAILED, FLAG_TAGGED, FLAGS_KNOWN, SharedState};
use crate::file::store::Store;
use crate::graph::node::{Node, SlotState};
use crate::heap;
use crate::ids;
use crate::invalidate::is_marked;
use crate::key_index::{self, KeyHash, Shard};
use crate::options::KEY_BYTES_MAX;
use crate::record;
use crate::relink::{Found, relink};
use crate::storage::{LOCK_OPENED, LOCK_RECOVERY};
use crate::tags;
use crate::turn::Patience;

/// Told how far a recovery has come, in slots looked at and in all; false ends it.
pub type Progress<'a> = dyn Fn(u64, u64) -> bool + Sync + 'a;

/// Follows a call that may have to wait: while it does, it is told again how far it had come.
pub struct Follower<'a> {
    progress: &'a Progress<'a>,
    last: [AtomicU64; 2],
}

impl<'a> Follower<'a> {
    /// Passes on to `progress`.
    pub fn new(progress: &'a Progress<'a>) -> Self {
        Follower { progress, last: Default::default() }
    }

    /// See `Progress`.
    pub fn advance(&self, done: u64, total: u64) -> bool {
        self.last[0].store(done, Ordering::Relaxed);
        self.last[1].store(total, Ordering::Relaxed);
        (self.progress)(done, total)
    }

    /// Whether to go on waiting.
    pub fn goes_on(&self) -> bool {
        let [done, total] = [0, 1].map(|i| self.last[i].load(Ordering::Relaxed));
        (self.progress)(done, total)
    }
}

/// Recovers if need be when a process opens the plane; tells whether it had to.
pub fn at_open(
    engine: &Engine,
    identity: &Identity,
    superblock: &Superblock,
    timeout: Duration,
    progress: &Progress<'_>,
) -> Result<bool> {
    let store = &engine.store;
    let damaged = || needs_scan(store, identity, superblock);
    if !damaged()? {
        // One that had not marked the plane has changed nothing: it may have copied it.
        let marked = store.shared().dirty.load(Ordering::Acquire) != 0;
        let died =
            marked && store.shared().writer_pid.load(Ordering::Acquire) != 0 && !store.storage().read_only();
        if died && !store.storage().is_locked_elsewhere(crate::storage::LOCK_WRITER)? {
            // Taking the turn repairs.
            drop(engine.begin_write(Patience::new(timeout))?);
            return Ok(engine.repaired.load(Ordering::Relaxed));
        }
        return Ok(false);
    }
    if store.storage().read_only() {
        return Err(Error::NeedsRecovery { path: engine.path().to_path_buf() });
    }
    // One process recovers, the others wait for it however long it takes: it holds the lock only while it lives.
    let deadline = Instant::now() + timeout.max(Duration::from_secs(600));
    while !store.storage().try_lock(LOCK_RECOVERY)? {
        if Instant::now() > deadline {
            let pid = store.shared().writer_pid.load(Ordering::Relaxed);
            return Err(Error::Locked { path: engine.path().to_path_buf(), pid });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let result = match damaged() {
        Ok(true) => scan(engine, identity, superblock, progress).map(|()| true),
        other => other,
    };
    store.storage().unlock(LOCK_RECOVERY);
    result
}

/// Whether nothing but a scan can tell what the file holds. Maps the extents on the way.
fn needs_scan(store: &Store, identity: &Identity, superblock: &Superblock) -> Result<bool> {
    let shared = store.shared();
    let published = shared.extent_count.load(Ordering::Acquire);
    if published < superblock.commit.extent_count || published > EXTENT_COUNT_MAX as u32 {
        return Ok(true);
    }
    let dirty = shared.dirty.load(Ordering::Acquire);
    let sync_failed = shared.flags.load(Ordering::Relaxed) & FLAG_SYNC_FAILED != 0;
    let vouched = || match identity.last_writer(shared) {
        LastWriter::Here => Ok(true),
        LastWriter::Elsewhere => Ok(false),
        // Whoever has it open in this boot, on whichever mount, has kept it in memory since it found it sound.
        LastWriter::OtherMount => is_open_elsewhere(store),
    };
    if dirty > 1 || sync_failed || dirty == 1 && !vouched()? {
        return Ok(true);
    }
    // Others may be writing: what only grows is read last, so that everything read before fits it.
    let entry = shared.entry.load(Ordering::Acquire);
    let named = id_words(shared).map(|word| word.load(Ordering::Acquire));
    let heap_bump = shared.heap_bump.load(Ordering::Acquire);
    let count = shared.count.load(Ordering::Acquire);
    let index = key_index::Outline::read(store);
    let quiet = shared.dirty.load(Ordering::Acquire) == 0;
    let high_water = shared.id_high_water.load(Ordering::Acquire);
    store.refresh()?;
    let entry_fits = entry == u64::MAX || (entry as u32) < high_water && entry >> 32 <= u64::from(LEVEL_MAX);
    let plausible = high_water <= store.capacity()
        && high_water >= superblock.commit.id_high_water
        && entry_fits
        && (superblock.commit.generation..1 << 62).contains(&shared.generation.load(Ordering::Acquire))
        && named.iter().all(|id| *id == NONE || *id < high_water)
        && u64::from(heap_bump) * HEAP_UNIT <= store.heap_mapped()
        && (0..=i64::from(high_water)).contains(&count)
        && shared.flags.load(Ordering::Relaxed) & !FLAGS_KNOWN == 0
        && index.is_plausible(store, quiet.then_some(count));
    Ok(!plausible)
}

/// Whether another process, or another copy of this code, has opened the file for writing and found it sound.
fn is_open_elsewhere(store: &Store) -> Result<bool> {
    for (_, byte) in store.processes().iter().zip(LOCK_OPENED..) {
        if store.storage().is_locked_elsewhere(byte)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The words that name slots.
pub fn id_words(shared: &SharedState) -> [&AtomicU32; 6] {
    let SharedState { root, free_head, limbo_head, limbo_tail, held_head, held_tail, .. } = shared;
    [root, free_head, limbo_head, limbo_tail, held_head, held_tail]
}

/// Finishes or undoes what each dead writer announced, and takes stock of the lists. Runs with the turn just taken and no other write in flight.
pub fn repair_intents(engine: &Engine) -> Result<()> {
    let store = &engine.store;
    for intent in store.intents() {
        let operation = intent.operation.load(Ordering::Acquire);
        let id = intent.id.load(Ordering::Relaxed);
        if operation == 0 {
            continue;
        }
        if id < store.shared().id_high_water.load(Ordering::Relaxed) {
            match operation {
                o if o == Operation::Insert as u32 => undo_insert(engine, id)?,
                o if o == Operation::Remove as u32 => finish_removal(engine, id)?,
                o if o == Operation::Raw as u32 => engine.repair_raw(id)?,
                o if o == Operation::Upsert as u32 => {
                    undo_insert(engine, id)?;
                    finish_replacement(engine, id, intent.old_id.load(Ordering::Relaxed))?;
                }
                _ => {}
            }
        }
        intent.operation.store(0, Ordering::Release);
    }
    // The dead may have published what the log does not tell of.
    store.tag_log().forget();
    relist(engine)
}

/// Takes stock of all slots by their states: the dead may have left one between two lists, or one that was counted
/// twice. Nobody else writes now, so whatever is not live, waiting or free belongs to nobody.
fn relist(engine: &Engine) -> Result<()> {
    let store = &engine.store;
    let shared = store.shared();
    let limit = shared.id_high_water.load(Ordering::Relaxed);
    let (mut live, mut free, mut waiting) = (0i64, Vec::new(), Vec::new());
    for id in 0..limit {
        let Some(node) = store.node(id) else { break };
        match node.state() {
            Some(SlotState::Live) => live += 1,
            Some(SlotState::Limbo) => {
                waiting.push((node.header().removed_epoch.load(Ordering::Relaxed), id, false))
            }
            Some(SlotState::Replaced) => {
                waiting.push((node.header().removed_epoch.load(Ordering::Relaxed), id, true))
            }
            Some(SlotState::Linking) => {
                remove_key_entry(engine, id);
                let _allocation = lock(&engine.allocation);
                record::release_heap(store, id, node);
                free.push(id);
            }
            // A host's, or such as a host left out.
            Some(SlotState::Cleared | SlotState::Never) => {}
            _ => free.push(id),
        }
    }
    let _allocation = lock(&engine.allocation);
    for word in id_words(shared).into_iter().skip(1) {
        word.store(NONE, Ordering::Relaxed);
    }
    for count in [&shared.free_count, &shared.limbo_count, &shared.held_count] {
        count.store(0, Ordering::Relaxed);
    }
    free.into_iter().rev().for_each(|id| ids::push_free(store, id));
    // Oldest first, as they were removed.
    waiting.sort_unstable();
    waiting.into_iter().for_each(|(_, id, replaced)| ids::push_limbo(store, id, replaced));
    shared.count.store(live, Ordering::Relaxed);
    Ok(())
}

/// A record whose insert was cut off was never acknowledged: its slot goes back.
fn undo_insert(engine: &Engine, id: u32) -> Result<()> {
    let store = &engine.store;
    let Some(node) = store.node(id) else { return Ok(()) };
    match node.state() {
        Some(SlotState::Linking) => {
            remove_key_entry(engine, id);
            let _allocation = lock(&engine.allocation);
            record::release_heap(store, id, node);
            return_slot(store, id, node);
        }
        Some(SlotState::Building) => {
            // The key entry may be half written and its heap block unknown; the upper links' block is in the header.
            let _allocation = lock(&engine.allocation);
            return_slot(store, id, node);
        }
        // Published: complete, whether or not anyone was told. The first record of all is root and entry point as well.
        Some(SlotState::Live) => {
            let shared = store.shared();
            let word = u64::from(node.level()) << 32 | u64::from(id);
            let _ = shared.root.compare_exchange(NONE, id, Ordering::SeqCst, Ordering::Relaxed);
            let _ = shared.entry.compare_exchange(u64::MAX, word, Ordering::SeqCst, Ordering::Relaxed);
        }
        _ => {}
    }
    Ok(())
}

fn return_slot(store: &Store, id: u32, node: Node<'_>) {
    let shared = store.shared();
    if shared.free_head.load(Ordering::Relaxed) == id {
        // Cut off between the state's change and the list's.
        shared.free_head.store(node.header().next.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    ids::push_free(store, id);
}

fn remove_key_entry(engine: &Engine, id: u32) {
    let store = &engine.store;
    if store.config.unique_keys {
        // SAFETY: the record is complete and this thread is its only user: the turn has just been taken.
        if let Some(key) = unsafe { record::key(store, id) } {
            let hash = KeyHash::new(store, key);
            Shard::lock(store, &engine.shards, &engine.allocation, hash).remove(hash, id);
        }
    }
}

/// A removal that began is carried to its end.
fn finish_removal(engine: &Engine, id: u32) -> Result<()> {
    let store = &engine.store;
    let Some(node) = store.node(id) else { return Ok(()) };
    let listed_from = |head: &AtomicU32| {
        let mut at = head.load(Ordering::Relaxed);
        for _ in 0..store.capacity() {
            match store.node(at) {
                Some(_) if at == id => return true,
                Some(next) => at = next.header().next.load(Ordering::Relaxed),
                None => return false,
            }
        }
        false
    };
    let shared = store.shared();
    let listed = listed_from(&shared.limbo_head) || listed_from(&shared.held_head);
    let replaced = node.state() == Some(SlotState::Replaced);
    if (replaced || node.state() == Some(SlotState::Limbo)) && !listed {
        engine.finish_removal(id, node, replaced)?;
    }
    Ok(())
}

/// An upsert whose new record was published takes the old one out.
fn finish_replacement(engine: &Engine, id: u32, old_id: u32) -> Result<()> {
    let store = &engine.store;
    let (Some(new), Some(old)) = (store.node(id), store.node(old_id)) else { return Ok(()) };
    if new.is_live() && store.config.unique_keys {
        // SAFETY: the record is complete and this thread is its only user: the turn has just been taken.
        if let Some(key) = unsafe { record::key(store, id) } {
            let hash = KeyHash::new(store, key);
            let shard = Shard::lock(store, &engine.shards, &engine.allocation, hash);
            if shard.find(hash, |other| other == id).is_none() && !shard.replace(hash, old_id, id) {
                shard.insert(hash, id)?;
            }
        }
    }
    if new.is_live() && old.is_live() {
        old.set_replaced(store.shared().commits.load(Ordering::Acquire).wrapping_add(1));
    }
    if new.is_live() && old.state() == Some(SlotState::Replaced) {
        finish_removal(engine, old_id)?;
    }
    Ok(())
}

/// Rebuilds everything from the records that a checksum confirms (D3). The caller holds the recovery lock.
fn scan(
    engine: &Engine,
    identity: &Identity,
    superblock: &Superblock,
    progress: &Progress<'_>,
) -> Result<()> {
    let store = &engine.store;
    let shared = store.shared();
    let committed = superblock.commit.extent_count;
    let published = shared.extent_count.load(Ordering::Acquire).clamp(committed, EXTENT_COUNT_MAX as u32);
    let file_bytes = store.storage().len()?;
    let usable = store.usable_extents(published, file_bytes);
    if usable < committed {
        // Data that a flush promised is gone: no recovery brings it back, and an empty index would hide it.
        shared.extent_count.store(committed, Ordering::Release);
        store.refresh()?;
        return Err(Error::Corrupt { what: "the extent table ends before the last commit's", offset: 0 });
    }
    shared.extent_count.store(usable, Ordering::Release);
    store.refresh()?;
    let records = find_records(store, superblock, progress)?;
    // Until the end of this, whoever dies leaves a file that matches no boot, so that the next one scans again.
    let known = if is_marked(shared.flags.load(Ordering::SeqCst)) { FLAGS_KNOWN } else { FLAG_SYNC_FAILED };
    shared.flags.fetch_and(known, Ordering::SeqCst);
    shared.boot.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    shared.dirty.store(1, Ordering::SeqCst);
    let sync_failed = shared.flags.load(Ordering::Relaxed) & FLAG_SYNC_FAILED != 0;
    if sync_failed {
        store.dirty_everything();
    }
    engine.sync_data()?;
    // Bytes past the last usable extent would come back in a later one and look like records.
    store.storage().truncate(store.file_end())?;

    let entry = shared.entry.load(Ordering::Acquire);
    reset_words(store, superblock, &records);
    let mut records = rebuild_heap(store, records)?;
    if store.config.unique_keys {
        rebuild_key_index(engine, &mut records)?;
    }
    free_the_rest(store, &records);
    relink(engine, &records, entry)?;
    shared.count.store(records.len() as i64, Ordering::Relaxed);
    engine.sync_data()?;
    if sync_failed {
        // What could not be synced may have been the name under which a compaction left the file.
        store.storage().sync_name()?;
    }
    identity.write(shared);
    shared.flags.fetch_and(!FLAG_SYNC_FAILED, Ordering::SeqCst);
    Ok(())
}

fn find_records(store: &Store, superblock: &Superblock, progress: &Progress<'_>) -> Result<Vec<Found>> {
    let slots = store.slots();
    let mut found = Vec::new();
    for id in 0..slots.limit() {
        let Some(node) = slots.get(id) else { break };
        if id % 4096 == 0 && !progress(u64::from(id), u64::from(slots.limit())) {
            return Err(Error::Aborted);
        }
        let counts = match node.state() {
            Some(SlotState::Live | SlotState::Hidden) => true,
            // What replaced it is not durable, so it may be all that is left of its key. Which of the two stays is decided
            // by generation.
            Some(SlotState::Replaced) => node.is_held_at(superblock.commit.number),
            _ => false,
        };
        if !counts || !intact(store, id, node) {
            continue;
        }
        if node.state() != Some(SlotState::Live) {
            node.set_state(SlotState::Live, node.level());
        }
        let mirrored = node.is_mirrored();
        found.push(Found { id, generation: node.generation(), level: node.level(), mirrored });
    }
    Ok(found)
}

/// Whether a record's bytes are those that were written.
pub fn intact(store: &Store, id: u32, node: Node<'_>) -> bool {
    let level = node.level();
    let sane = (node.state_word() >> 16 == 0 || node.state() == Some(SlotState::Replaced))
        && (node.state_word() >> 8) as u8 <= LEVEL_MAX
        && [node.factor(), node.bias(), node.scale(), node.norm(), node.exact_scale()]
            .iter()
            .all(|x| x.is_finite());
    if !sane || (level > 0) != (node.upper() != 0) {
        return false;
    }
    // SAFETY: the caller is recovering alone, or is pinned and saw the record live.
    let checksum = unsafe { record::checksum(store, id, node, level) };
    checksum == Some(node.header().checksum.load(Ordering::Relaxed))
}

fn reset_words(store: &Store, superblock: &Superblock, records: &[Found]) {
    let shared = store.shared();
    let high_water = records.last().map_or(0, |r| r.id + 1);
    let generation = records.iter().map(|r| r.generation).max().unwrap_or(0);
    shared.id_high_water.store(high_water, Ordering::Relaxed);
    shared.generation.store(generation.max(superblock.commit.generation), Ordering::Relaxed);
    shared.epoch.store(1, Ordering::Relaxed);
    shared.entry.store(u64::MAX, Ordering::Relaxed);
    for word in id_words(shared) {
        word.store(NONE, Ordering::Relaxed);
    }
    for word in [
        &shared.free_count,
        &shared.limbo_count,
        &shared.held_count,
        &shared.handover,
        &shared.writer_pid,
        &shared.heap_bump,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    shared.heap_used.store(0, Ordering::Relaxed);
    shared.long_key_bytes.store(0, Ordering::Relaxed);
    shared.heap_free.iter().for_each(|head| head.store(0, Ordering::Relaxed));
    shared.watermark.store(superblock.commit.watermark, Ordering::Relaxed);
    shared.watermark_pending.store(superblock.commit.watermark, Ordering::Relaxed);
    shared.commits.store(superblock.commit.number, Ordering::Relaxed);
    store.intents().iter().for_each(|intent| intent.operation.store(0, Ordering::Relaxed));
    key_index::clear(store);
    let slots = store.slots();
    let tagged = |r: &Found| slots.get(r.id).is_some_and(|node| node.tags() != 0);
    if superblock.commit.tagged || records.iter().any(tagged) {
        shared.flags.fetch_or(FLAG_TAGGED, Ordering::SeqCst);
    }
    store.tag_log().forget();
}

/// Finds out which heap blocks are in use, and makes free ones of the rest. Where two records claim the same block, the
/// younger has it: the older one was removed, and its block reused, before the crash.
fn rebuild_heap(store: &Store, records: Vec<Found>) -> Result<Vec<Found>> {
    struct Block {
        unit: u32,
        units: u32,
        record: usize,
        key_bytes: usize,
    }
    let slots = store.slots();
    let mut blocks = Vec::new();
    for (i, found) in records.iter().enumerate() {
        let Some(node) = slots.get(found.id) else { continue };
        if found.level > 0 {
            let units = heap::block_units(record::upper_bytes(store, found.level));
            blocks.push(Block { unit: node.upper(), units, record: i, key_bytes: 0 });
        }
        if node.tags() != 0 {
            let units = heap::block_units(tags::used_bytes(store, node));
            blocks.push(Block { unit: node.tags(), units, record: i, key_bytes: 0 });
        }
        if store.layout.key_entry_bytes > 0 {
            let (bytes, unit) = record::read_key_entry(store, found.id);
            if unit != 0 && bytes <= KEY_BYTES_MAX {
                blocks.push(Block { unit, units: heap::block_units(bytes), record: i, key_bytes: bytes });
            }
        }
    }
    blocks.sort_by_key(|block| (block.unit, std::cmp::Reverse(records[block.record].generation)));
    let mut lost = vec![false; records.len()];
    let mut kept: Vec<Block> = Vec::new();
    for block in blocks {
        let outside = store.heap(block.unit, block.units as usize * HEAP_UNIT as usize).is_none();
        if outside {
            lost[block.record] = true;
            continue;
        }
        match kept.last() {
            Some(last) if last.unit + last.units > block.unit => {
                if records[last.record].generation >= records[block.record].generation {
                    lost[block.record] = true;
                } else {
                    lost[last.record] = true;
                    kept.pop();
                    kept.push(block);
                }
            }
            _ => kept.push(block),
        }
    }
    kept.retain(|block| !lost[block.record]);
    let shared = store.shared();
    let mut end = heap::HEAP_FIRST;
    shared.heap_bump.store(kept.last().map_or(end, |b| b.unit + b.units), Ordering::Relaxed);
    for block in &kept {
        heap::release_run(store, end, block.unit.saturating_sub(end));
        end = block.unit + block.units;
        shared.heap_used.fetch_add(u64::from(block.units), Ordering::Relaxed);
        shared.long_key_bytes.fetch_add(block.key_bytes as u64, Ordering::Relaxed);
    }
    Ok(records.into_iter().zip(lost).filter(|(_, lost)| !lost).map(|(found, _)| found).collect())
}

/// Fills the key index; of two records with one key the younger stays.
fn rebuild_key_index(engine: &Engine, records: &mut Vec<Found>) -> Result<()> {
    let store = &engine.store;
    let key_of = |id: u32| {
        // SAFETY: recovery is alone with the file.
        unsafe { record::key(store, id) }
    };
    let mut superseded = std::collections::HashSet::new();
    for found in records.iter() {
        let Some(key) = key_of(found.id) else { continue };
        let hash = KeyHash::new(store, key);
        let shard = Shard::lock(store, &engine.shards, &engine.allocation, hash);
        match shard.find(hash, |other| key_of(other) == Some(key)) {
            None => shard.insert(hash, found.id)?,
            Some(other) => {
                let younger = store.node(other).is_some_and(|node| node.generation() < found.generation);
                if younger {
                    shard.replace(hash, other, found.id);
                }
                superseded.insert(if younger { other } else { found.id });
            }
        }
    }
    let shared = store.shared();
    for found in records.iter().filter(|found| superseded.contains(&found.id)) {
        if let Some(node) = store.node(found.id) {
            let _allocation = lock(&engine.allocation);
            record::release_heap(store, found.id, node);
        }
    }
    records.retain(|found| !superseded.contains(&found.id));
    debug_assert!(shared.free_head.load(Ordering::Relaxed) == NONE);
    Ok(())
}

/// Every slot that holds no confirmed record goes on the free list, or is as good as never used.
fn free_the_rest(store: &Store, records: &[Found]) {
    let slots = store.slots();
    let mirror = records.iter().any(|record| record.mirrored);
    let high_water = records.last().map_or(0, |r| r.id + 1);
    store.shared().id_high_water.store(high_water, Ordering::Relaxed);
    let mut live = records.iter().map(|r| r.id).rev().peekable();
    for id in (0..slots.limit()).rev() {
        if live.peek() == Some(&id) {
            live.next();
            continue;
        }
        let Some(node) = slots.get(id) else { continue };
        node.header().upper.store(0, Ordering::Relaxed);
        node.header().tags.store(0, Ordering::Relaxed);
        if id < high_water {
            // A host's own, or such as a host left out; elsewhere what was lost.
            let hosts =
                node.state() == Some(SlotState::Cleared) || mirror && node.state() == Some(SlotState::Never);
            if !hosts {
                ids::push_free(store, id);
            }
        } else if node.state() != Some(SlotState::Never) {
            node.set_state(SlotState::Never, 0);
        }
    }
}
