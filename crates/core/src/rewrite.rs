//! A plane written anew: its records and their graph, each checked on the way, and nothing else.
//!
//! The source stands still and the target is nobody else's, so none of the usual locks are taken, but
//! for those over links while several threads choose them anew.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::batch::on_threads;
use crate::create::{write_empty, write_superblocks};
use crate::error::{Error, Result};
use crate::file::curves;
use crate::file::header::Superblock;
use crate::file::layout::{HEAP_UNIT, NONE, RegionKind};
use crate::file::shared::FLAG_TAGGED;
use crate::file::store::Store;
use crate::graph::links::{self, LinkLocks};
use crate::graph::node::{Node, SlotState};
use crate::graph::{Graph, Scratch};
use crate::heap;
use crate::ids;
use crate::key_index::{self, KeyHash, Shard, ShardLocks};
use crate::new_file::NewFile;
use crate::numbering::Numbering;
use crate::record;
use crate::recover::{Progress, intact};
use crate::tags;
use crate::testing::{Planted, is_planted};

/// Records between two looks at the caller's wishes.
const STEP: usize = 1024;
/// Records that a thread takes at a time to link them anew.
const CHUNK: u32 = 32;

/// Writes the records of `source` to `file`, under the ids that `numbering` gives them; durable when it returns. With
/// `relink`, a number of threads, records choose their links anew there.
pub fn rewrite(
    source: &Store,
    superblock: &Superblock,
    file: &NewFile,
    numbering: &Numbering,
    relink: Option<usize>,
    progress: &Progress<'_>,
) -> Result<()> {
    let target = &write_empty(file, superblock)?;
    let rewrite = Rewrite { source, target, numbering };
    let records = numbering.old_of.iter().filter(|old| **old != NONE).count();
    let hashes = rewrite.prepare(records)?;
    let slots = numbering.old_of.len() as u64;
    let steps = if relink.is_some() { 2 * slots } else { slots };
    for (new, &old) in numbering.old_of.iter().enumerate() {
        if old != NONE {
            rewrite.record(old, new as u32)?;
        }
        if new % STEP == 0 && !progress(new as u64, steps) {
            return Err(Error::Aborted);
        }
    }
    rewrite.index_keys(hashes)?;
    // The lowest ids are given first.
    let free = |new: &usize| numbering.old_of[*new] == NONE;
    for new in (0..numbering.old_of.len() as u32).rev().filter(|new| free(&(*new as usize))) {
        // Ids are kept, so this is the slot's own state: what a host left out, or cleared, stays the host's.
        let state = if !numbering.renumbers { source.node(new).and_then(|node| node.state()) } else { None };
        match state {
            Some(SlotState::Never) => {}
            Some(SlotState::Cleared) => {
                if let Some(node) = target.node(new) {
                    node.set_state(SlotState::Cleared, 0);
                }
            }
            _ => ids::push_free(target, new),
        }
    }
    rewrite.words(superblock, records);
    if let Some(threads) = relink {
        relink_all(target, threads, &|done| progress(slots + done, steps))?;
        // Recall that was measured before is that of another graph.
        target.shared().churn.fetch_add(records as u64, Ordering::Relaxed);
    }
    let mut superblock = superblock.clone();
    superblock.commit.extent_count = target.extents().len() as u32;
    superblock.commit.id_high_water = numbering.old_of.len() as u32;
    write_superblocks(target.storage(), &superblock)?;
    if !progress(steps, steps) {
        return Err(Error::Aborted);
    }
    if is_planted(Planted::NewFileNotSynced) { Ok(()) } else { target.sync() }
}

/// Lets every record choose its links anew. Nobody else has the plane yet, and it is given up when this fails.
fn relink_all(target: &Store, threads: usize, progress: &(dyn Fn(u64) -> bool + Sync)) -> Result<()> {
    let (locks, next, aborted) = (LinkLocks::default(), AtomicU32::new(0), AtomicBool::new(false));
    let graph = Graph::new(target, &locks);
    let limit = graph.slots.limit();
    on_threads(threads, limit.div_ceil(CHUNK) as usize, || {
        let mut scratch = Scratch::default();
        while !aborted.load(Ordering::Relaxed) {
            let start = next.fetch_add(CHUNK, Ordering::Relaxed);
            if start >= limit {
                return;
            }
            (start..limit.min(start + CHUNK)).for_each(|id| graph.choose_again(id, &mut scratch));
            if !progress(u64::from(start)) {
                aborted.store(true, Ordering::Relaxed);
            }
        }
    });
    if aborted.into_inner() { Err(Error::Aborted) } else { Ok(()) }
}

struct Rewrite<'a> {
    source: &'a Store,
    target: &'a Store,
    numbering: &'a Numbering,
}

impl Rewrite<'_> {
    /// Makes room for all of it at once, and returns the hashes of the keys, by new id.
    fn prepare(&self, records: usize) -> Result<Vec<(KeyHash, u32)>> {
        let (source, target) = (self.source, self.target);
        let mut hashes = Vec::with_capacity(if source.config.unique_keys { records } else { 0 });
        let mut units = u64::from(heap::HEAP_FIRST);
        for (new, &old) in self.numbering.old_of.iter().enumerate().filter(|(_, old)| **old != NONE) {
            let node = self.checked(old)?;
            if node.level() > 0 {
                units += u64::from(heap::block_units(record::upper_bytes(source, node.level())));
            }
            let tags = tags::used_bytes(source, node);
            if tags > 0 {
                units += u64::from(heap::block_units(tags));
            }
            let key = self.key(old)?;
            if key.len() > source.layout.key_inline as usize {
                units += u64::from(heap::block_units(key.len()));
            }
            if source.config.unique_keys {
                hashes.push((KeyHash::new(source, key), new as u32));
            }
        }
        let tables: usize = key_index::counts(&hashes).map(key_index::table_bytes).sum();
        units += (tables as u64).div_ceil(HEAP_UNIT);
        target.ensure_capacity(self.numbering.old_of.len() as u32)?;
        let room = units * HEAP_UNIT;
        if records > 0 && room > target.heap_mapped() {
            target.grow(RegionKind::Heap, room - target.heap_mapped())?;
        }
        Ok(hashes)
    }

    /// A record whose bytes are those that were written: a new checksum must not cover up an old fault.
    fn checked(&self, old: u32) -> Result<Node<'_>> {
        let node = self.source.node(old).filter(|node| intact(self.source, old, *node));
        node.ok_or(Error::Corrupt {
            what: "a record does not match its checksum; verify() names it",
            offset: 0,
        })
    }

    fn key(&self, old: u32) -> Result<&[u8]> {
        // SAFETY: the source stands still, so a live record stays as it is.
        unsafe { record::key(self.source, old) }.ok_or(Error::Corrupt { what: "key entry", offset: 0 })
    }

    fn tags(&self, from: Node<'_>) -> Result<Vec<u8>> {
        let mut own = Vec::new();
        match tags::read(self.source, from, &mut own) {
            true => Ok(own),
            false => Err(Error::Corrupt { what: "tags outside the heap", offset: 0 }),
        }
    }

    fn record(&self, old: u32, new: u32) -> Result<()> {
        let (source, target) = (self.source, self.target);
        let full = Error::Full { max_nodes: u64::from(target.capacity()) };
        let (Some(from), Some(to)) = (source.node(old), target.node(new)) else { return Err(full) };
        let level = from.level();
        let layout = &source.layout;
        // SAFETY: both planes have one layout. The source's record is live and stands still; the target's slot was never
        // used and is known to nobody else.
        unsafe {
            let (start, bytes) = from.vector_bytes(layout);
            std::ptr::copy_nonoverlapping(start, to.vector_bytes(layout).0, bytes);
            if layout.exact_bytes > 0 {
                let (from, to) = (source.exact(old), target.exact(new));
                std::ptr::copy_nonoverlapping(from, to, layout.exact_bytes as usize);
            }
        }
        if layout.key_entry_bytes > 0 {
            let key = self.key(old)?;
            let unit = record::allocate_key(target, key)?;
            record::write_key_entry(target, new, key, unit);
        }
        let (have, give) = (from.header(), to.header());
        for (have, give) in [
            (&from.head().factor, &to.head().factor),
            (&from.head().bias, &to.head().bias),
            (from.scale_word(), to.scale_word()),
            (&have.norm, &give.norm),
            (&have.exact_scale, &give.exact_scale),
            (&have.marks, &give.marks),
        ] {
            give.store(have.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        give.generation.store(from.generation(), Ordering::Relaxed);
        give.tags.store(tags::store(target, self.tags(from)?.as_slice())?, Ordering::Relaxed);
        to.set_parent(self.numbering.new_id(from.parent()).unwrap_or(NONE));
        self.links(old, 0, from.links(), to.links());
        if level > 0 {
            self.upper_links(old, from, to)?;
        }
        // SAFETY: this thread is building the record.
        let checksum = unsafe { record::checksum(target, new, to, level) };
        give.checksum.store(checksum.unwrap_or(0), Ordering::Relaxed);
        to.set_state(SlotState::Live, level);
        Ok(())
    }

    fn upper_links(&self, old: u32, from: Node<'_>, to: Node<'_>) -> Result<()> {
        let (source, target) = (self.source, self.target);
        let m = source.config.m as usize;
        let words = usize::from(from.level()) * m;
        let outside = Error::Corrupt { what: "upper links outside the heap", offset: 0 };
        let Some(have) = source.heap_words(from.upper(), words) else { return Err(outside) };
        let unit = heap::allocate(target, record::upper_bytes(target, from.level()))?;
        let Some(give) = target.heap_words(unit, words) else { return Err(outside) };
        for (layer, (have, give)) in have.chunks(m).zip(give.chunks(m)).enumerate() {
            self.links(old, layer as u8 + 1, have, give);
        }
        to.header().upper.store(unit, Ordering::Relaxed);
        Ok(())
    }

    /// One list of links, without those that lead to nothing any more.
    fn links(&self, old: u32, layer: u8, have: &[AtomicU32], give: &[AtomicU32]) {
        let hosts = !self.numbering.renumbers && self.source.node(old).is_some_and(|node| node.is_mirrored());
        if hosts {
            // As its host has them, also those to nodes that are still to come.
            have.iter().zip(give).for_each(|(have, give)| {
                give.store(have.load(Ordering::Relaxed), Ordering::Relaxed);
            });
            return;
        }
        let reaches =
            |other: &u32| *other != old && self.source.node(*other).is_some_and(|node| node.level() >= layer);
        let kept = links::ids(have).filter(reaches).filter_map(|other| self.numbering.new_id(other));
        for (word, id) in give.iter().zip(kept.chain(std::iter::repeat(NONE))) {
            word.store(id, Ordering::Relaxed);
        }
    }

    fn index_keys(&self, hashes: Vec<(KeyHash, u32)>) -> Result<()> {
        let (locks, allocation) = (ShardLocks::default(), Mutex::new(()));
        let counts: Vec<usize> = key_index::counts(&hashes).collect();
        for (hash, new) in hashes {
            let shard = Shard::lock(self.target, &locks, &allocation, hash);
            shard.reserve(counts[hash.shard()])?;
            shard.insert(hash, new)?;
        }
        Ok(())
    }

    /// The shared words, as after a flush.
    fn words(&self, superblock: &Superblock, records: usize) {
        let (source, shared) = (self.source.shared(), self.target.shared());
        let live = || self.numbering.old_of.iter().enumerate().filter(|(_, old)| **old != NONE);
        let node = |new: u32| self.target.node(new);
        let named = |old: u32| self.numbering.new_id(old);
        // What the source names, unless it names none: then it does not know that it holds records.
        let root = named(source.root.load(Ordering::Relaxed)).or_else(|| {
            let generation = |new: &u32| node(*new).map_or(u64::MAX, |node| node.generation());
            let linked = |new: &u32| node(*new).is_some_and(|node| !node.is_mirrored());
            live().map(|(new, _)| new as u32).filter(linked).min_by_key(generation)
        });
        let entry = named(source.entry.load(Ordering::Relaxed) as u32).or_else(|| {
            let level = |new: &u32| node(*new).map_or(0, |node| node.level());
            live().map(|(new, _)| new as u32).max_by_key(level)
        });
        shared.root.store(root.unwrap_or(NONE), Ordering::Relaxed);
        let entry = entry.and_then(|new| Some(u64::from(node(new)?.level()) << 32 | u64::from(new)));
        shared.entry.store(entry.unwrap_or(u64::MAX), Ordering::Relaxed);
        shared.id_high_water.store(self.numbering.old_of.len() as u32, Ordering::Relaxed);
        shared.count.store(records as i64, Ordering::Relaxed);
        shared.generation.store(superblock.commit.generation, Ordering::Relaxed);
        shared.watermark.store(superblock.commit.watermark, Ordering::Relaxed);
        shared.watermark_pending.store(superblock.commit.watermark, Ordering::Relaxed);
        shared.churn.store(source.churn.load(Ordering::Relaxed), Ordering::Relaxed);
        shared.flags.fetch_or(source.flags.load(Ordering::Relaxed) & FLAG_TAGGED, Ordering::Relaxed);
        let moved = u32::from(self.numbering.renumbers);
        let renumberings = source.renumberings.load(Ordering::Relaxed).wrapping_add(moved);
        shared.renumberings.store(renumberings, Ordering::Relaxed);
        curves::copy(self.source, self.target);
    }
}
