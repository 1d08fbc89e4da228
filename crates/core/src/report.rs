//! What a plane says of itself: cheap statistics, and the findings of a full check.

/// Sizes and counts, read without a scan.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Live records.
    pub count: u64,
    /// One past the highest id ever given.
    pub id_high_water: u32,
    /// Removed slots waiting for readers or for a flush.
    pub limbo: u32,
    /// Free slots below the high water mark.
    pub free: u32,
    /// Highest layer in use.
    pub max_level: u8,
    /// Apparent size of the file.
    pub file_bytes: u64,
    /// Bytes of one record's slot, padding within a page included.
    pub slot_bytes: u32,
    /// Bytes of one record's exact copy.
    pub exact_bytes: u32,
    /// Bytes of one record's key entry.
    pub key_entry_bytes: u32,
    /// Bytes of the heap in use: upper links, long keys, key index.
    pub heap_bytes: u64,
    /// Bytes of long keys in the heap.
    pub long_key_bytes: u64,
    /// Memory of this process that copies of what searches by tags scan take.
    pub tag_copy_bytes: u64,
    /// Extents in the file.
    pub extents: u32,
    /// Durable commits so far.
    pub flushes: u64,
    /// Name of the distance kernels in use.
    pub kernels: &'static str,
    /// Whether this process holds the writer's turn.
    pub writing: bool,
    /// Whether so much was inserted and removed since a calibration, half as much as there were records, that it may be off.
    pub calibration_stale: bool,
    /// Whether the file system copies what is overwritten, so that a full disk may end a process that writes.
    pub copy_on_write: bool,
}

/// What `verify` found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Live records visited.
    pub live: u64,
    /// Records whose checksum does not match.
    pub checksum_failures: u64,
    /// Links past the id high water mark, to the node itself, or to one that has no such layer.
    pub invalid_links: u64,
    /// Links to slots that hold no live record; searches skip them.
    pub dangling_links: u64,
    /// Live records that no path from the entry point reaches on layer 0.
    pub unreachable: u64,
    /// Live raw nodes that no path from the entry point reaches on layer 0: their host has not linked to them.
    pub unlinked: u64,
    /// Key index entries without their record, or records without their entry.
    pub key_index_mismatches: u64,
    /// Records whose header or key entry is outside its valid range.
    pub invalid_records: u64,
    /// Slots on neither the free list, nor limbo, nor live.
    pub lost_slots: u64,
    /// The first ids concerned, up to 32.
    pub examples: Vec<u32>,
}

impl VerifyReport {
    /// Whether nothing is wrong. Dangling links are allowed: searches skip them and writers clear them.
    pub fn ok(&self) -> bool {
        self.checksum_failures == 0
            && self.invalid_links == 0
            && self.unreachable == 0
            && self.key_index_mismatches == 0
            && self.invalid_records == 0
            && self.lost_slots == 0
    }
}
