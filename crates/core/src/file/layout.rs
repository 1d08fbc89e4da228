//! Where everything lies in the file; `docs/design.md` holds the same tables, and a test compares the two.

use crate::codec;
use crate::config::Config;
use crate::sketch;

/// First bytes of every plane.
pub const MAGIC: [u8; 8] = *b"VECPLANE";
/// Version written by this build, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes of one superblock; there are two, at offsets 0 and `SUPERBLOCK_BYTES`.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// The shared-state page: writer state outside all checksums.
pub const SHARED_OFFSET: usize = 8192;
/// One entry per registered process.
pub const PROCESS_TABLE_OFFSET: usize = 12_288;
pub const PROCESS_COUNT: usize = 64;
/// One entry per writing thread: the slot it is changing.
pub const INTENT_TABLE_OFFSET: usize = 16_384;
pub const INTENT_COUNT: usize = 128;
/// Where each shard of the key index keeps its table.
pub const KEY_SHARDS_OFFSET: usize = 24_576;
pub const KEY_SHARD_COUNT: usize = 256;
/// Recall curves, twice.
pub const CURVES_OFFSET: usize = 28_672;
/// The ids of the records that were added last to a plane with tags: the rest of the page of the shared state.
pub const TAG_LOG_OFFSET: usize = 8_960;
/// The list of extents, in the order in which they were made.
pub const EXTENT_TABLE_OFFSET: usize = 32_768;
pub const EXTENT_COUNT_MAX: usize = 1024;
/// One lane per reading thread: the epoch it is pinned at.
pub const READER_TABLE_OFFSET: usize = 65_536;
pub const READER_COUNT: usize = 1024;
/// Everything above; the first extent starts here.
pub const HEADER_BYTES: usize = 131_072;

/// Extents start and end on multiples of this, which every mapping granularity divides.
pub const EXTENT_ALIGN: u64 = 65_536;
/// Once the file takes `LARGE_FILE`, extents end on multiples of this, and slots lie in the file as in memory modulo this,
/// so that the kernel can map huge pages.
pub const LARGE_ALIGN: u64 = 2 << 20;
/// See `LARGE_ALIGN`. Smaller files would pay for it with space that F1 does not grant: at worst 2 MiB in each of four
/// regions and 2 MiB before them, beside a sixteenth of each, against a quarter and 4 MiB.
pub const LARGE_FILE: u64 = 32 << 20;
/// What slots may not straddle when that wastes little.
pub const PAGE_BYTES: u32 = 4096;
/// Cache line: slots are aligned to it.
pub const LINE_BYTES: u32 = 64;
/// Allocation unit of the heap, so that a u32 addresses 64 GiB of it.
pub const HEAP_UNIT: u64 = 16;
/// Key bytes kept in a record's key entry at most; longer keys go to the heap.
pub const KEY_INLINE_MAX: u32 = 64;
/// Bytes of a node's head: the words that scoring reads besides the codes.
pub const NODE_HEAD_BYTES: u32 = 16;
/// Bytes of the rest of a node's fixed part.
pub const NODE_HEADER_BYTES: u32 = 48;
/// Highest layer a node may have.
pub const LEVEL_MAX: u8 = 15;
/// "No node" in links, parents and lists.
pub const NONE: u32 = u32::MAX;

/// What an extent's bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RegionKind {
    /// Traversal data: head, sketch where there are any, codes, header, layer-0 links.
    Slots = 0,
    /// Exact copies.
    Exact = 1,
    /// Key entries.
    Keys = 2,
    /// Upper links, long keys, key index tables.
    Heap = 3,
}

/// Regions that this version knows.
pub const REGIONS: [RegionKind; 4] =
    [RegionKind::Slots, RegionKind::Exact, RegionKind::Keys, RegionKind::Heap];

/// Sizes and offsets that follow from a plane's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a record's codes.
    pub code_bytes: u32,
    /// Bytes of a record's sketch; 0 when records have none.
    pub sketch_bytes: u32,
    /// Where the head starts in a slot: behind the codes, or before the sketch.
    pub head_offset: u32,
    /// Where the codes start in a slot.
    pub codes_offset: u32,
    /// Where the scale is in a slot.
    pub scale_offset: u32,
    /// Where the node header starts in a slot.
    pub header_offset: u32,
    /// Where layer-0 links start in a slot.
    pub links_offset: u32,
    /// Distance between slots within a page (or everywhere, when contiguous).
    pub slot_bytes: u32,
    /// Slots in a page; 0 when slots are contiguous.
    pub slots_per_page: u32,
    /// Bytes of an exact copy; 0 when none is kept.
    pub exact_bytes: u32,
    /// Bytes of a key entry; 0 when records have no keys.
    pub key_entry_bytes: u32,
    /// Key bytes that fit a key entry.
    pub key_inline: u32,
}

fn align_up(value: u32, to: u32) -> u32 {
    value.div_ceil(to) * to
}

impl Layout {
    /// The layout of a plane with this configuration.
    pub fn new(config: &Config) -> Self {
        let code_bytes = codec::code_bytes(config.precision, config.dims as usize) as u32;
        let sketch_bytes = sketch::bytes(config.precision, config.dims);
        let links_bytes = 4 * config.layer0_cap;
        let (head_offset, codes_offset, scale_offset, header_offset);
        if sketch_bytes == 0 {
            (head_offset, codes_offset) = (align_up(code_bytes, 8), 0);
            (scale_offset, header_offset) = (head_offset + 12, head_offset + NODE_HEAD_BYTES);
        } else {
            // The head's last word is the sketch's.
            (head_offset, codes_offset) = (0, NODE_HEAD_BYTES + sketch_bytes);
            header_offset = align_up(codes_offset + code_bytes + 4, 8);
            scale_offset = header_offset - 4;
        }
        let fixed_bytes = header_offset + NODE_HEADER_BYTES;
        let slot_bytes = align_up(fixed_bytes + links_bytes, LINE_BYTES);
        // Behind a sketch at the slot's end, where they share no line with what other steps of a walk read.
        let links_offset = if sketch_bytes == 0 { fixed_bytes } else { slot_bytes - links_bytes };
        // Whole slots in a page spare a TLB miss per record; above 7% waste that is no longer worth its bytes.
        let per_page = PAGE_BYTES / slot_bytes;
        let waste = PAGE_BYTES - per_page * slot_bytes;
        let slots_per_page = if per_page > 0 && waste * 100 <= PAGE_BYTES * 7 { per_page } else { 0 };
        let key_inline =
            if config.key_cap == 0 { 0 } else { align_up(config.key_cap.clamp(8, KEY_INLINE_MAX), 4) };
        Layout {
            code_bytes,
            sketch_bytes,
            head_offset,
            codes_offset,
            scale_offset,
            header_offset,
            links_offset,
            slot_bytes,
            slots_per_page,
            exact_bytes: codec::exact_bytes(config.rerank, config.dims as usize) as u32,
            key_entry_bytes: if config.key_cap == 0 { 0 } else { 4 + key_inline },
            key_inline,
        }
    }

    /// Records that fit the first `bytes` bytes of a region; `u64::MAX` for regions this plane does not use.
    pub fn records_in(&self, region: RegionKind, bytes: u64) -> u64 {
        match region {
            RegionKind::Slots if self.slots_per_page > 0 => {
                bytes / u64::from(PAGE_BYTES) * u64::from(self.slots_per_page)
            }
            RegionKind::Slots => bytes / u64::from(self.slot_bytes),
            RegionKind::Exact if self.exact_bytes > 0 => bytes / u64::from(self.exact_bytes),
            RegionKind::Keys if self.key_entry_bytes > 0 => bytes / u64::from(self.key_entry_bytes),
            _ => u64::MAX,
        }
    }

    /// Bytes of a region that hold `records` records.
    pub fn bytes_for(&self, region: RegionKind, records: u64) -> u64 {
        match region {
            RegionKind::Slots if self.slots_per_page > 0 => {
                records.div_ceil(u64::from(self.slots_per_page)) * u64::from(PAGE_BYTES)
            }
            RegionKind::Slots => records * u64::from(self.slot_bytes),
            RegionKind::Exact => records * u64::from(self.exact_bytes),
            RegionKind::Keys => records * u64::from(self.key_entry_bytes),
            RegionKind::Heap => 0,
        }
    }

    /// Mean bytes a slot takes, packing included, for reports.
    pub fn slot_bytes_packed(&self) -> u32 {
        if self.slots_per_page > 0 { PAGE_BYTES.div_ceil(self.slots_per_page) } else { self.slot_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Metric, Precision, Rerank};

    fn config(dims: u32, precision: Precision) -> Config {
        Config {
            dims,
            metric: Metric::Cosine,
            precision,
            rerank: Rerank::F32,
            m: 16,
            layer0_cap: 32,
            ef_construction: 200,
            key_cap: 16,
            unique_keys: true,
            max_nodes: None,
            key_arena_bytes_max: None,
            seed: 0,
        }
    }

    #[test]
    fn slots_have_the_sizes_the_design_promises() {
        for (dims, bytes, per_page) in
            [(50, 256, 16), (128, 320, 12), (384, 640, 6), (768, 1088, 0), (1536, 1984, 2)]
        {
            let layout = Layout::new(&config(dims, Precision::Int8));
            assert_eq!((layout.slot_bytes, layout.slots_per_page), (bytes, per_page), "{dims} dims");
            assert_eq!(layout.slot_bytes % LINE_BYTES, 0);
        }
    }

    #[test]
    fn records_and_bytes_agree() {
        for dims in [1, 50, 128, 384, 1000, 1536, 4096] {
            for precision in [Precision::Int8, Precision::Int16, Precision::F32] {
                let layout = Layout::new(&config(dims, precision));
                for region in [RegionKind::Slots, RegionKind::Exact, RegionKind::Keys] {
                    for records in [0, 1, 11, 12, 13, 1000] {
                        assert!(layout.records_in(region, layout.bytes_for(region, records)) >= records);
                    }
                }
            }
        }
    }
}
