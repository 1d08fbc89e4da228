//! The key index: from a key to the id of its record, in the file.
//!
//! 256 shards, each an open-addressing table of 8-byte entries with linear probing. An entry keeps 32 bits of the key's
//! hash beside the id, so that a table grows without reading keys; equality is decided by the record's own key. Writers
//! hold the shard's lock; readers take none. A reader whose table was replaced while it looked starts again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Error, Result};
use crate::file::layout::{HEAP_UNIT, KEY_SHARD_COUNT};
use crate::file::shared::KeyShard;
use crate::file::store::Store;
use crate::heap;
use crate::testing::moment;

const EMPTY: u64 = 0;
const REMOVED: u64 = 1;
const LOG2_MIN: u32 = 3;
const LOG2_MAX: u32 = 28;

/// A key's hash, split into the parts that the index uses.
#[derive(Clone, Copy)]
pub struct KeyHash {
    shard: usize,
    bits: u32,
}

impl KeyHash {
    /// Hashes a key with the plane's seed, which makes crafted collisions hard.
    pub fn new(store: &Store, key: &[u8]) -> Self {
        let hash = xxh3_64_with_seed(key, store.config.seed);
        KeyHash { shard: (hash >> 56) as usize, bits: hash as u32 }
    }

    /// Which shard the key belongs to.
    pub fn shard(self) -> usize {
        self.shard
    }

    fn entry(self, id: u32) -> u64 {
        // Ids end below 2^31, so id + 2 fits and never meets EMPTY or REMOVED.
        u64::from(self.bits) << 32 | u64::from(id + 2)
    }
}

/// Locks of the shards, in this process; other processes wait for the turn.
pub struct ShardLocks(Vec<Mutex<()>>);

impl Default for ShardLocks {
    fn default() -> Self {
        ShardLocks((0..KEY_SHARD_COUNT).map(|_| Mutex::new(())).collect())
    }
}

/// A shard held for writing.
pub struct Shard<'a> {
    store: &'a Store,
    shard: &'a KeyShard,
    /// Serialises heap allocation.
    allocation: &'a Mutex<()>,
    _lock: MutexGuard<'a, ()>,
}

fn table(store: &Store, word: u64) -> Option<&[AtomicU64]> {
    let (unit, log2) = (word as u32, (word >> 32) as u32);
    (LOG2_MIN..=LOG2_MAX).contains(&log2).then(|| store.heap_double_words(unit, 1 << log2)).flatten()
}

/// How often one entry may turn out to have changed just now.
const REREADS_MAX: usize = 1024;

/// Walks the entries that may belong to a hash, until `found` takes one or the run ends. At most one full round.
fn probe(
    entries: &[AtomicU64],
    hash: KeyHash,
    mut found: impl FnMut(usize, u64) -> bool,
) -> Option<(usize, u64)> {
    let mask = entries.len() - 1;
    for step in 0..entries.len() {
        let at = (hash.bits as usize + step) & mask;
        match entries[at].load(Ordering::Acquire) {
            EMPTY => return None,
            REMOVED => {}
            mut entry => {
                // An upsert lets the entry name another record, and takes the one that it named from readers: whoever has
                // read the one just before, and sees the other, looks again. The bound is for hostile files.
                for _ in 0..REREADS_MAX {
                    if (entry >> 32) as u32 == hash.bits && found(at, entry) {
                        return Some((at, entry));
                    }
                    let now = entries[at].load(Ordering::Acquire);
                    if now == entry || now <= REMOVED {
                        break;
                    }
                    entry = now;
                }
            }
        }
    }
    None
}

fn id_of(entry: u64) -> u32 {
    (entry as u32).wrapping_sub(2)
}

/// Finds the id whose record `is` this key's. Takes no lock; the caller is pinned.
pub fn find(store: &Store, hash: KeyHash, is: impl Fn(u32) -> bool) -> Option<u32> {
    let shard = &store.key_shards()[hash.shard];
    // A table is replaced only when it has doubled, so a handful of tries is plenty; the bound is for hostile files.
    for _ in 0..64 {
        let word = shard.table.load(Ordering::Acquire);
        let _ = store.refresh();
        let found = table(store, word).and_then(|entries| probe(entries, hash, |_, entry| is(id_of(entry))));
        if found.is_some() || shard.table.load(Ordering::Acquire) == word {
            return found.map(|(_, entry)| id_of(entry));
        }
    }
    None
}

impl<'a> Shard<'a> {
    /// Locks the shard of a hash.
    pub fn lock(store: &'a Store, locks: &'a ShardLocks, allocation: &'a Mutex<()>, hash: KeyHash) -> Self {
        let lock = locks.0[hash.shard].lock().unwrap_or_else(|e| e.into_inner());
        Shard { store, shard: &store.key_shards()[hash.shard], allocation, _lock: lock }
    }

    fn entries(&self) -> Option<&'a [AtomicU64]> {
        table(self.store, self.shard.table.load(Ordering::Relaxed))
    }

    /// The id whose record `is` this key's.
    pub fn find(&self, hash: KeyHash, is: impl Fn(u32) -> bool) -> Option<u32> {
        probe(self.entries()?, hash, |_, entry| is(id_of(entry))).map(|(_, entry)| id_of(entry))
    }

    /// Adds an entry; the caller knows that the key has none.
    pub fn insert(&self, hash: KeyHash, id: u32) -> Result<()> {
        let (used, removed) = (
            self.shard.used.load(Ordering::Relaxed) as usize,
            self.shard.removed.load(Ordering::Relaxed) as usize,
        );
        let entries = match self.entries() {
            // At most three quarters taken keeps runs short.
            Some(entries) if (used + removed + 1) * 4 <= entries.len() * 3 => entries,
            _ => self.rebuild(used + 1)?,
        };
        let mask = entries.len() - 1;
        for step in 0..entries.len() {
            let slot = &entries[(hash.bits as usize + step) & mask];
            let present = slot.load(Ordering::Relaxed);
            if present == EMPTY || present == REMOVED {
                slot.store(hash.entry(id), Ordering::Release);
                moment();
                self.shard.used.fetch_add(1, Ordering::Relaxed);
                if present == REMOVED {
                    self.subtract_removed();
                }
                return Ok(());
            }
        }
        Err(Error::Corrupt { what: "a key index shard has no free entry", offset: 0 })
    }

    /// Lets the entry of one id name another, in one store.
    pub fn replace(&self, hash: KeyHash, old: u32, new: u32) -> bool {
        let Some(entries) = self.entries() else { return false };
        match probe(entries, hash, |_, entry| id_of(entry) == old) {
            Some((at, _)) => {
                entries[at].store(hash.entry(new), Ordering::Release);
                moment();
                true
            }
            None => false,
        }
    }

    /// Takes an id's entry out.
    pub fn remove(&self, hash: KeyHash, id: u32) -> bool {
        let Some(entries) = self.entries() else { return false };
        match probe(entries, hash, |_, entry| id_of(entry) == id) {
            Some((at, _)) => {
                entries[at].store(REMOVED, Ordering::Release);
                moment();
                let _ = self
                    .shard
                    .used
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(1)));
                self.shard.removed.fetch_add(1, Ordering::Relaxed);
                true
            }
            None => false,
        }
    }

    fn subtract_removed(&self) {
        let removed = &self.shard.removed;
        let _ = removed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(1)));
    }

    /// Makes the first table of a shard that is going to hold `count` entries.
    pub fn reserve(&self, count: usize) -> Result<()> {
        if self.entries().is_none() && count > 0 {
            self.rebuild(count)?;
        }
        Ok(())
    }

    /// Moves the entries into a table with room for `count`, without those removed.
    fn rebuild(&self, count: usize) -> Result<&'a [AtomicU64]> {
        let _allocation = self.allocation.lock().unwrap_or_else(|e| e.into_inner());
        let log2 = log2_for(count);
        if log2 > LOG2_MAX {
            return Err(Error::Full { max_nodes: u64::from(self.store.capacity()) });
        }
        let unit = heap::allocate(self.store, 8 << log2)?;
        let fresh = self
            .store
            .heap_double_words(unit, 1 << log2)
            .ok_or(Error::Corrupt { what: "key index table outside the heap", offset: 0 })?;
        fresh.iter().for_each(|entry| entry.store(EMPTY, Ordering::Relaxed));
        let word = self.shard.table.load(Ordering::Relaxed);
        let mask = fresh.len() - 1;
        let mut moved = 0;
        for entry in self.entries().unwrap_or(&[]) {
            let entry = entry.load(Ordering::Relaxed);
            if entry != EMPTY && entry != REMOVED && moved < mask {
                let mut at = (entry >> 32) as usize & mask;
                while fresh[at].load(Ordering::Relaxed) != EMPTY {
                    at = (at + 1) & mask;
                }
                fresh[at].store(entry, Ordering::Relaxed);
                moved += 1;
            }
        }
        self.shard.table.store(u64::from(log2) << 32 | u64::from(unit), Ordering::Release);
        moment();
        self.shard.used.store(moved as u32, Ordering::Relaxed);
        self.shard.removed.store(0, Ordering::Relaxed);
        if let Some(old) = table(self.store, word) {
            heap::release(self.store, word as u32, 8 * old.len());
        }
        Ok(fresh)
    }
}

/// Half full after growing: a table that is rebuilt for its removed entries alone keeps its size.
fn log2_for(count: usize) -> u32 {
    (count * 2).next_power_of_two().trailing_zeros().max(LOG2_MIN)
}

/// Heap bytes of the table that `Shard::reserve` makes for `count` entries.
pub fn table_bytes(count: usize) -> usize {
    if count == 0 { 0 } else { HEAP_UNIT as usize * heap::block_units(8 << log2_for(count)) as usize }
}

/// How many of the keys each shard holds.
pub fn counts(hashes: &[(KeyHash, u32)]) -> impl Iterator<Item = usize> + use<> {
    let mut counts = [0; KEY_SHARD_COUNT];
    hashes.iter().for_each(|(hash, _)| counts[hash.shard] += 1);
    counts.into_iter()
}

/// Where the tables are and how much they hold, for a first look at a file.
pub struct Outline {
    tables: Vec<u64>,
    used: i64,
}

impl Outline {
    /// Reads it; nothing for planes without the index.
    pub fn read(store: &Store) -> Self {
        let shards = if store.config.unique_keys { store.key_shards() } else { &[] };
        Outline {
            used: shards.iter().map(|shard| i64::from(shard.used.load(Ordering::Acquire))).sum(),
            tables: shards.iter().map(|shard| shard.table.load(Ordering::Acquire)).collect(),
        }
    }

    /// Whether every table lies in the heap, as mapped after the outline was read, and the entries are as many as the
    /// records, where nobody was writing.
    pub fn is_plausible(&self, store: &Store, count: Option<i64>) -> bool {
        let placed = self.tables.iter().all(|word| *word == 0 || table(store, *word).is_some());
        placed && (self.tables.is_empty() || count.is_none_or(|count| count == self.used))
    }
}

/// Every (shard, id) in the index, for `verify`.
pub fn ids(store: &Store) -> impl Iterator<Item = u32> + '_ {
    let tables =
        store.key_shards().iter().filter_map(|shard| table(store, shard.table.load(Ordering::Acquire)));
    tables.flatten().map(|entry| entry.load(Ordering::Acquire)).filter(|e| *e > REMOVED).map(id_of)
}

/// Takes out every entry of an id but that under its own hash, for a repair that is alone.
pub fn purge(store: &Store, id: u32, own: Option<KeyHash>) {
    for (i, shard) in store.key_shards().iter().enumerate() {
        let is_own = |entry: u64| own.is_some_and(|own| own.shard == i && (entry >> 32) as u32 == own.bits);
        let entries = table(store, shard.table.load(Ordering::Acquire)).unwrap_or(&[]);
        for slot in entries {
            let entry = slot.load(Ordering::Relaxed);
            if entry > REMOVED && id_of(entry) == id && !is_own(entry) {
                slot.store(REMOVED, Ordering::Release);
                shard.removed.fetch_add(1, Ordering::Relaxed);
            }
        }
        // A writer that died may have stored an entry that it had not counted.
        let used = entries.iter().filter(|slot| slot.load(Ordering::Relaxed) > REMOVED).count();
        shard.used.store(used as u32, Ordering::Relaxed);
    }
}

/// Empties the index, for recovery, which fills it again.
pub fn clear(store: &Store) {
    for shard in store.key_shards() {
        shard.table.store(0, Ordering::Relaxed);
        shard.used.store(0, Ordering::Relaxed);
        shard.removed.store(0, Ordering::Relaxed);
    }
}
