//! An open plane's file: typed views of its parts, and growth.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::addresses::Addresses;
use super::curves::CurveTable;
use super::extents::Extent;
use super::layout::{
    CURVES_OFFSET, EXTENT_ALIGN, EXTENT_COUNT_MAX, EXTENT_TABLE_OFFSET, HEADER_BYTES, HEAP_UNIT,
    INTENT_COUNT, INTENT_TABLE_OFFSET, KEY_SHARD_COUNT, KEY_SHARDS_OFFSET, LARGE_ALIGN, LARGE_FILE, Layout,
    PROCESS_COUNT, PROCESS_TABLE_OFFSET, READER_COUNT, READER_TABLE_OFFSET, REGIONS, RegionKind,
    SHARED_OFFSET, TAG_LOG_OFFSET,
};
use super::shared::{ExtentEntry, Intent, KeyShard, ProcessEntry, ReaderLane, SharedState};
use crate::cold::Cold;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::graph::node::{Node, Slots};
use crate::map::{self, Map};
use crate::options::NODES_MAX;
use crate::protocol;
use crate::storage::{FileId, LOCK_PROCESS, Step, Storage};
use crate::tag_log::TagLog;
use crate::testing::{Planted, is_planted, moment};

/// Addresses are reserved for this many records, unless the plane's own limit is lower or the file already larger.
const RESERVED_NODES: u64 = 1 << 28;
/// With many planes open, for at least this many.
const RESERVED_NODES_MIN: u64 = 1 << 20;
/// The heap's units are numbered by a u32.
const RESERVED_HEAP: u64 = (u32::MAX as u64) * HEAP_UNIT;
/// Where addresses are short, for a heap that has this many bytes a record, but not less than a gibibyte.
const HEAP_BYTES_PER_NODE: u64 = 1 << 10;
const RESERVED_HEAP_MIN: u64 = 1 << 30;

/// How far this process has mapped the file.
struct Growth {
    extents: u32,
    file_end: u64,
}

/// The file, its maps, and the facts that every view of it rests on.
pub struct Store {
    storage: Storage,
    map: Map,
    _addresses: Addresses,
    /// The plane's fixed properties.
    pub config: Config,
    /// Sizes and offsets that follow from them.
    pub layout: Layout,
    uuid: [u8; 16],
    growth: Mutex<Growth>,
    mapped_extents: AtomicU32,
    capacity: AtomicU32,
    /// Whether walks ask for pages before they touch them.
    pub cold: Cold,
    /// The last record's generation at the last flush.
    flushed: AtomicU64,
}

/// Bytes of addresses to reserve for each region of a plane that grows to `nodes` records and has `file_bytes` now.
fn reserve_for(config: &Config, layout: &Layout, nodes: u64, file_bytes: u64) -> [usize; REGIONS.len()] {
    let heap = (nodes * HEAP_BYTES_PER_NODE)
        .max(file_bytes.saturating_mul(2))
        .clamp(RESERVED_HEAP_MIN, RESERVED_HEAP);
    REGIONS.map(|region| {
        let bytes = match region {
            RegionKind::Heap if config.key_cap == 0 => {
                heap.min(RESERVED_HEAP / 16).max(file_bytes.min(RESERVED_HEAP))
            }
            RegionKind::Heap => heap,
            // Extents run ahead of the records by up to an eighth.
            _ => layout.bytes_for(region, nodes) / 8 * 9,
        };
        if bytes == 0 { 0 } else { (bytes.div_ceil(EXTENT_ALIGN) * EXTENT_ALIGN + (1 << 20)) as usize }
    })
}

impl Store {
    /// Maps a file whose superblock has been read and checked. `nodes` is a lower bound of the records it holds.
    pub fn new(storage: Storage, config: Config, uuid: [u8; 16], nodes: u64) -> Result<Self> {
        let layout = Layout::new(&config);
        let wanted =
            config.max_nodes.map_or(RESERVED_NODES, u64::from).max(nodes * 4).min(u64::from(NODES_MAX) + 1);
        let fail = |e| Error::io(e, "map", storage.path());
        storage.step(Step::Map).map_err(fail)?;
        let file_bytes = storage.len()?;
        let reserve = |reserved| reserve_for(&config, &layout, reserved, file_bytes);
        let bytes = |reserved| reserve(reserved).iter().map(|bytes| *bytes as u64).sum::<u64>();
        let mut reserved = wanted.max(1024);
        // Other planes want addresses too.
        while reserved / 2 >= RESERVED_NODES_MIN.max(nodes * 2) && bytes(reserved) > Addresses::share() {
            reserved /= 2;
        }
        // Where the process has few (ulimit -v), a smaller reservation does as well for long.
        let map = loop {
            match Map::new(storage.file(), !storage.read_only(), reserve(reserved)) {
                Ok(map) => break map,
                Err(e) if reserved / 4 <= nodes.max(1 << 16) => return Err(fail(e)),
                Err(_) => reserved /= 4,
            }
        };
        let addresses = Addresses::take(bytes(reserved));
        Ok(Store {
            storage,
            map,
            _addresses: addresses,
            config,
            layout,
            uuid,
            growth: Mutex::new(Growth { extents: 0, file_end: HEADER_BYTES as u64 }),
            mapped_extents: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            cold: Cold::default(),
            flushed: AtomicU64::new(0),
        })
    }

    /// The file itself.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Device and inode.
    pub fn file_id(&self) -> Result<FileId> {
        self.storage.file_id()
    }

    /// Returns when everything written so far, stores into the maps included, is on the disk.
    pub fn sync(&self) -> Result<()> {
        for part in [None].into_iter().chain(REGIONS.map(Some)) {
            if part.is_some_and(|region| is_planted(Planted::NotSynced(region as usize))) {
                continue;
            }
            self.storage
                .step(Step::HandOver(part.map(|region| region as usize)))
                .and_then(|()| self.map.flush(part))
                .map_err(|e| Error::io(e, "sync", self.storage.path()))?;
        }
        self.storage.sync()
    }

    /// See `Map::dirty_everything`.
    pub fn dirty_everything(&self) {
        self.map.dirty_everything();
    }

    fn header_part<T>(&self, offset: usize, count: usize) -> &[T] {
        assert!(offset + count * std::mem::size_of::<T>() <= HEADER_BYTES);
        // SAFETY: the header stays mapped as long as `self`; the assertion keeps the part inside it; offsets are
        // multiples of 4096 and the types consist of atomics only, for which every bit pattern is a value.
        unsafe { std::slice::from_raw_parts(self.map.header().add(offset).cast::<T>(), count) }
    }

    /// Words that processes share.
    pub fn shared(&self) -> &SharedState {
        &self.header_part(SHARED_OFFSET, 1)[0]
    }

    /// Registered processes.
    pub fn processes(&self) -> &[ProcessEntry] {
        self.header_part(PROCESS_TABLE_OFFSET, PROCESS_COUNT)
    }

    /// What writing threads are changing.
    pub fn intents(&self) -> &[Intent] {
        self.header_part(INTENT_TABLE_OFFSET, INTENT_COUNT)
    }

    /// Places of reading threads.
    pub fn lanes(&self) -> &[ReaderLane] {
        self.header_part(READER_TABLE_OFFSET, READER_COUNT)
    }

    /// Where recall curves are kept.
    pub fn curve_tables(&self) -> &[CurveTable; 2] {
        self.header_part(CURVES_OFFSET, 2).try_into().expect("two tables")
    }

    /// Shards of the key index.
    pub fn key_shards(&self) -> &[KeyShard] {
        self.header_part(KEY_SHARDS_OFFSET, KEY_SHARD_COUNT)
    }

    /// The last records that were added to a plane with tags.
    pub fn tag_log(&self) -> &TagLog {
        &self.header_part(TAG_LOG_OFFSET, 1)[0]
    }

    fn extent_entries(&self) -> &[ExtentEntry] {
        self.header_part(EXTENT_TABLE_OFFSET, EXTENT_COUNT_MAX)
    }

    /// Records that every region has room for, as mapped here. Only grows.
    pub fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Acquire)
    }

    /// Slots that are mapped here.
    pub fn slots(&self) -> Slots<'_> {
        // SAFETY: `capacity` counts whole records inside the mapped part of the slot region, which stays mapped as long
        // as `self`.
        unsafe {
            let base = self.map.base(RegionKind::Slots);
            Slots::new(base, self.capacity(), &self.layout, self.config.layer0_cap)
        }
    }

    /// One node; `None` when its slot is not mapped here.
    pub fn node(&self, id: u32) -> Option<Node<'_>> {
        self.slots().get(id)
    }

    /// First byte of a record's exact copy. Same rules as for codes.
    pub fn exact(&self, id: u32) -> *mut u8 {
        assert!(id < self.capacity() && self.layout.exact_bytes > 0);
        self.map.base(RegionKind::Exact).wrapping_add(id as usize * self.layout.exact_bytes as usize)
    }

    /// Asks the system to read a record's slot from the disk, without waiting for it.
    pub fn ask_for_slot(&self, id: u32) {
        map::will_need(self.slots().address(id), self.layout.slot_bytes as usize);
    }

    /// The same for what is copied into an answer, and looked at to rank it.
    pub fn ask_for_copy_and_key(&self, id: u32) {
        let (exact, key) = (self.layout.exact_bytes as usize, self.layout.key_entry_bytes as usize);
        if exact > 0 {
            map::will_need(self.exact(id), exact);
        }
        if key > 0 {
            map::will_need(self.key_entry(id), key);
        }
    }

    /// The same for words of the heap.
    pub fn ask_for_heap(&self, unit: u32, bytes: usize) {
        if let Some(at) = self.heap(unit, bytes) {
            map::will_need(at, bytes);
        }
    }

    /// First byte of a record's key entry. Same rules as for codes.
    pub fn key_entry(&self, id: u32) -> *mut u8 {
        assert!(id < self.capacity() && self.layout.key_entry_bytes > 0);
        self.map.base(RegionKind::Keys).wrapping_add(id as usize * self.layout.key_entry_bytes as usize)
    }

    /// First of `bytes` bytes of the heap at `unit`; `None` unless all of them are mapped here.
    #[inline]
    pub fn heap(&self, unit: u32, bytes: usize) -> Option<*mut u8> {
        let start = unit as usize * HEAP_UNIT as usize;
        let end = start.checked_add(bytes)?;
        (unit > 0 && end <= self.map.mapped(RegionKind::Heap))
            .then(|| self.map.base(RegionKind::Heap).wrapping_add(start))
    }

    /// Bytes of the heap that are mapped here.
    pub fn heap_mapped(&self) -> u64 {
        self.map.mapped(RegionKind::Heap) as u64
    }

    /// `count` words of the heap at `unit`.
    pub fn heap_words(&self, unit: u32, count: usize) -> Option<&[AtomicU32]> {
        // SAFETY: `heap` gave the whole range, units are 16-byte aligned, and the words are atomics.
        self.heap(unit, 4 * count).map(|at| unsafe { std::slice::from_raw_parts(at.cast(), count) })
    }

    /// `count` double words of the heap at `unit`.
    pub fn heap_double_words(&self, unit: u32, count: usize) -> Option<&[AtomicU64]> {
        // SAFETY: as for `heap_words`.
        self.heap(unit, 8 * count).map(|at| unsafe { std::slice::from_raw_parts(at.cast(), count) })
    }

    /// Maps extents that were published since the last look: one load when there are none.
    #[inline]
    pub fn refresh(&self) -> Result<()> {
        let published = protocol::announced(&self.shared().extent_count);
        if published == self.mapped_extents.load(Ordering::Acquire) {
            Ok(())
        } else {
            self.map_published(published)
        }
    }

    #[cold]
    fn map_published(&self, published: u32) -> Result<()> {
        let mut growth = self.growth.lock().unwrap_or_else(|e| e.into_inner());
        let file_bytes = self.storage.len()?;
        let published = published.min(EXTENT_COUNT_MAX as u32);
        while growth.extents < published {
            let index = growth.extents;
            let at = (EXTENT_TABLE_OFFSET + index as usize * size_of::<ExtentEntry>()) as u64;
            let extent = Extent::read(&self.extent_entries()[index as usize], index, &self.uuid)
                .ok_or(Error::Corrupt { what: "extent table entry", offset: at })?;
            if extent.offset < growth.file_end {
                return Err(Error::Corrupt { what: "extents overlap", offset: at });
            }
            if extent.end() > file_bytes {
                return Err(Error::Truncated { bytes: file_bytes, expected: extent.end() });
            }
            self.map_extent(&mut growth, extent)?;
        }
        Ok(())
    }

    fn map_extent(&self, growth: &mut Growth, extent: Extent) -> Result<()> {
        if !self.map.has_room(extent.region, extent.bytes as usize) {
            return Err(Error::Full { max_nodes: u64::from(self.capacity()) });
        }
        self.storage
            .step(Step::Map)
            .and_then(|()| {
                self.map.append(self.storage.file(), extent.region, extent.offset, extent.bytes as usize)
            })
            .map_err(|e| Error::io(e, "map", self.storage.path()))?;
        growth.extents += 1;
        growth.file_end = extent.end();
        let records = REGIONS.iter().map(|r| self.layout.records_in(*r, self.map.mapped(*r) as u64)).min();
        let capacity = records.unwrap_or(0).min(u64::from(NODES_MAX) + 1);
        self.capacity.store(capacity as u32, Ordering::Release);
        self.mapped_extents.store(growth.extents, Ordering::Release);
        Ok(())
    }

    /// Drops extents from `count` on that recovery found unusable; nothing in them was ever committed.
    pub fn usable_extents(&self, published: u32, file_bytes: u64) -> u32 {
        let mut end = HEADER_BYTES as u64;
        let entries = self.extent_entries().iter().take(published as usize);
        for (index, entry) in entries.enumerate() {
            match Extent::read(entry, index as u32, &self.uuid) {
                Some(extent) if extent.offset >= end && extent.end() <= file_bytes => end = extent.end(),
                _ => return index as u32,
            }
        }
        published
    }

    /// Adds an extent to a region, large enough for `bytes` more. The caller holds the writer's turn.
    pub fn grow(&self, region: RegionKind, bytes: u64) -> Result<()> {
        self.refresh()?;
        let mut growth = self.growth.lock().unwrap_or_else(|e| e.into_inner());
        // Cut off under its maps, a file is no place for more: an extension would put zeros where records were.
        let file_bytes = self.storage.len()?;
        if file_bytes < growth.file_end {
            return Err(Error::Truncated { bytes: file_bytes, expected: growth.file_end });
        }
        let mapped = self.map.mapped(region) as u64;
        // So much at a time keeps the slack of all regions together under F1's bound, and the table short.
        let large = growth.file_end + bytes >= LARGE_FILE;
        let wanted = bytes.max(mapped / if large { 16 } else { 8 }).max(1);
        let (bytes, offset) = if large {
            // The first large step of the slots begins in the middle of a large piece, where the small ones ended.
            let into = if region == RegionKind::Slots { mapped % LARGE_ALIGN } else { 0 };
            let offset = growth.file_end.saturating_sub(into).next_multiple_of(LARGE_ALIGN) + into;
            ((into + wanted).next_multiple_of(LARGE_ALIGN) - into, offset)
        } else {
            (wanted.next_multiple_of(EXTENT_ALIGN), growth.file_end)
        };
        if growth.extents as usize >= EXTENT_COUNT_MAX || !self.map.has_room(region, bytes as usize) {
            return Err(Error::Full { max_nodes: u64::from(self.capacity()) });
        }
        let extent = Extent { offset, bytes, region };
        // With what is skipped for the alignment: the file has no holes.
        self.storage.allocate(growth.file_end, extent.offset + extent.bytes - growth.file_end)?;
        let index = growth.extents;
        moment();
        extent.write(&self.extent_entries()[index as usize], index, &self.uuid);
        moment();
        self.map_extent(&mut growth, extent)?;
        let shared = self.shared();
        let unflushed =
            shared.generation.load(Ordering::Relaxed).saturating_sub(self.flushed.load(Ordering::Relaxed));
        if large && region == RegionKind::Slots && self.is_load(unflushed) && !self.is_shared() {
            // Whoever fills it dirties all of it. Walks over huge pages take three quarters to four fifths of the time.
            self.map.load_into(region, mapped as usize);
        }
        protocol::announce(&self.shared().extent_count, index + 1);
        moment();
        Ok(())
    }

    /// Whether so many new records are much of the plane: then a flush writes most of it anyway.
    fn is_load(&self, records: u64) -> bool {
        records * 8 >= self.shared().count.load(Ordering::Relaxed).max(0) as u64
    }

    /// Whether another process has the plane open: then pages that both have mapped cannot be split.
    fn is_shared(&self) -> bool {
        let registered = self.processes().iter().zip(LOCK_PROCESS..);
        let mut registered = registered.filter(|(process, _)| process.pid.load(Ordering::Relaxed) != 0);
        registered.any(|(_, byte)| self.storage.is_locked_elsewhere(byte).unwrap_or(true))
    }

    /// Told before a batch of so many records.
    pub fn expect(&self, records: usize) {
        if self.is_load(records as u64) {
            self.map.keep_whole();
        }
    }

    /// Told at open, with the last record's generation at the last flush.
    pub fn opened_at(&self, generation: u64) {
        self.flushed.store(generation, Ordering::Relaxed);
    }

    /// Told after a flush, with the last record's generation at that moment.
    pub fn flushed_at(&self, generation: u64) {
        self.flushed.store(generation, Ordering::Relaxed);
        self.map.keep_small();
    }

    /// Before a node's header or links are changed: see `Map::before_change`.
    #[inline]
    pub fn before_change(&self, id: u32) {
        if id < self.capacity() {
            let at = self.slots().address(id).addr() - self.map.base(RegionKind::Slots).addr();
            self.map.before_change(RegionKind::Slots, at, self.layout.slot_bytes as usize);
        }
    }

    /// The same before a record is written.
    pub fn before_record(&self, id: u32) {
        self.before_change(id);
        for (region, bytes) in
            [(RegionKind::Exact, self.layout.exact_bytes), (RegionKind::Keys, self.layout.key_entry_bytes)]
        {
            if bytes > 0 {
                self.map.before_change(region, id as usize * bytes as usize, bytes as usize);
            }
        }
    }

    /// Makes room for `records` records in every region. The caller holds the writer's turn.
    pub fn ensure_capacity(&self, records: u32) -> Result<()> {
        self.refresh()?;
        for region in [RegionKind::Slots, RegionKind::Exact, RegionKind::Keys] {
            let needed = self.layout.bytes_for(region, u64::from(records));
            let mapped = self.map.mapped(region) as u64;
            if needed > mapped {
                self.grow(region, needed - mapped)?;
            }
        }
        Ok(())
    }

    /// Tells one plane from another; copies and compactions keep it.
    pub fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// The extents that are mapped here, in the order of the file.
    pub fn extents(&self) -> Vec<Extent> {
        let mapped = self.mapped_extents.load(Ordering::Acquire) as usize;
        let entries = self.extent_entries()[..mapped].iter().enumerate();
        // Checked when they were mapped, and never changed since.
        entries.filter_map(|(index, entry)| Extent::read(entry, index as u32, &self.uuid)).collect()
    }

    /// Apparent size that the extents account for.
    pub fn file_end(&self) -> u64 {
        self.growth.lock().unwrap_or_else(|e| e.into_inner()).file_end
    }
}
