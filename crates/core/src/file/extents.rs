//! The extent table: which parts of the file belong to which region.

use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::layout::{EXTENT_ALIGN, HEADER_BYTES, REGIONS, RegionKind};
use super::shared::ExtentEntry;

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts in the file.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// What it belongs to.
    pub region: RegionKind,
}

impl Extent {
    /// One past its last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    fn checksum(offset: u64, bytes: u64, region_and_index: u64, uuid: &[u8; 16]) -> u64 {
        let mut input = [0u8; 40];
        input[..8].copy_from_slice(&offset.to_le_bytes());
        input[8..16].copy_from_slice(&bytes.to_le_bytes());
        input[16..24].copy_from_slice(&region_and_index.to_le_bytes());
        input[24..].copy_from_slice(uuid);
        xxh3_64_with_seed(&input, 0x45_58_54)
    }

    /// Writes the entry at `index`. It counts only once `extent_count` names it.
    pub fn write(&self, entry: &ExtentEntry, index: u32, uuid: &[u8; 16]) {
        let region_and_index = u64::from(self.region as u16) | u64::from(index) << 32;
        entry.offset.store(self.offset, Ordering::Relaxed);
        entry.bytes.store(self.bytes, Ordering::Relaxed);
        entry.region_and_index.store(region_and_index, Ordering::Relaxed);
        let checksum = Self::checksum(self.offset, self.bytes, region_and_index, uuid);
        entry.checksum.store(checksum, Ordering::Relaxed);
    }

    /// Reads the entry at `index`; `None` unless it is whole, aligned, known, and starts where nothing else does.
    pub fn read(entry: &ExtentEntry, index: u32, uuid: &[u8; 16]) -> Option<Extent> {
        let offset = entry.offset.load(Ordering::Relaxed);
        let bytes = entry.bytes.load(Ordering::Relaxed);
        let region_and_index = entry.region_and_index.load(Ordering::Relaxed);
        let region = *REGIONS.get((region_and_index & 0xFFFF_FFFF) as usize)?;
        let whole = Self::checksum(offset, bytes, region_and_index, uuid)
            == entry.checksum.load(Ordering::Relaxed)
            && region_and_index >> 32 == u64::from(index);
        let aligned = offset.is_multiple_of(EXTENT_ALIGN) && bytes.is_multiple_of(EXTENT_ALIGN) && bytes > 0;
        let placed =
            offset >= HEADER_BYTES as u64 && offset.checked_add(bytes).is_some_and(|end| end < 1 << 61);
        (whole && aligned && placed).then_some(Extent { offset, bytes, region })
    }
}
