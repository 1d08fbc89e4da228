//! Memory maps: the header, and one contiguous range of addresses for each region.
//!
//! A region's extents lie anywhere in the file, but are mapped one after the other into a range reserved for the
//! region, far longer than it is now. So record i is at `base + i * stride`, growth maps one more extent, and nothing
//! that is mapped ever moves. Addresses past `mapped` are reserved without access: touching them would be a fault, and
//! every accessor checks against `mapped` first.
//!
//! | file | responsibility |
//! |---|---|
//! | `unix.rs`, `windows.rs` | `View`, a mapped part of the file; `Range`, reserved addresses to map parts into |
//! | `small_pages.rs` | when a page is split off a larger piece before it is changed |

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

pub use os::will_need;
use os::{Range, View};
use small_pages::{BLOCK_PAGES, Blocks, Mode};

use crate::file::layout::{HEADER_BYTES, LARGE_ALIGN, PAGE_BYTES, REGIONS, RegionKind};

mod small_pages;

#[cfg(unix)]
#[path = "unix.rs"]
mod os;
#[cfg(windows)]
#[path = "windows.rs"]
mod os;

/// A region's range of addresses.
struct RegionMap {
    /// What was reserved, for a region that the plane uses.
    range: Option<Range>,
    /// Where in the range the region starts: a little way in, so that its address is a multiple of `LARGE_ALIGN`.
    start: usize,
    base: *mut u8,
    /// Bytes that may come to be mapped from `base` on. The range is longer.
    reserved: usize,
    mapped: AtomicUsize,
    /// Those whose pages lie by themselves.
    small: Blocks,
}

/// All of a file's maps. Dropping it gives them back.
pub struct Map {
    header: View,
    regions: [RegionMap; REGIONS.len()],
    writable: bool,
    mode: Mode,
    /// Huge pages were asked for.
    advised: AtomicBool,
    block_bytes: usize,
}

// SAFETY: `Map` owns its address ranges, which no thread's identity is tied to; what the ranges hold is reached through
// atomics or under the protocol of `graph::node`.
unsafe impl Send for Map {}
// SAFETY: as above; what changes in it is atomic or behind a lock.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the header and reserves `reserve[i]` bytes of addresses for region i.
    pub fn new(file: &File, writable: bool, reserve: [usize; REGIONS.len()]) -> io::Result<Self> {
        let header = View::new(file, 0, HEADER_BYTES, writable)?;
        let block_bytes = BLOCK_PAGES * os::page_bytes();
        let mut map = Map {
            header,
            regions: std::array::from_fn(|_| RegionMap {
                range: None,
                start: 0,
                base: std::ptr::null_mut(),
                reserved: 0,
                mapped: AtomicUsize::new(0),
                small: Blocks::new(0),
            }),
            writable,
            mode: Mode::new(os::SPLITS),
            advised: AtomicBool::new(false),
            block_bytes,
        };
        for (region, bytes) in map.regions.iter_mut().zip(reserve) {
            if bytes > 0 {
                let align = LARGE_ALIGN as usize;
                let range = Range::reserve(bytes + align)?;
                region.start = range.start().align_offset(align);
                region.base = range.start().wrapping_add(region.start);
                region.reserved = bytes;
                region.range = Some(range);
                region.small = Blocks::new(bytes.div_ceil(block_bytes));
            }
        }
        Ok(map)
    }

    /// First byte of the header, `HEADER_BYTES` long.
    pub fn header(&self) -> *mut u8 {
        self.header.start()
    }

    /// First byte of a region. Only the first `mapped` bytes may be touched.
    pub fn base(&self, region: RegionKind) -> *mut u8 {
        self.regions[region as usize].base
    }

    /// Bytes of a region that are mapped. Only grows.
    pub fn mapped(&self, region: RegionKind) -> usize {
        // Acquire: pairs with the Release in `append`, after which the addresses are usable.
        self.regions[region as usize].mapped.load(Ordering::Acquire)
    }

    /// Whether a region has addresses left for `bytes` more.
    pub fn has_room(&self, region: RegionKind, bytes: usize) -> bool {
        let region = &self.regions[region as usize];
        region.mapped.load(Ordering::Relaxed).checked_add(bytes).is_some_and(|end| end <= region.reserved)
    }

    /// Maps `bytes` of the file at `offset` behind what the region has. The caller holds the lock that makes it the
    /// only one growing this map, has checked `has_room`, and knows that the file reaches that far.
    pub fn append(&self, file: &File, region: RegionKind, offset: u64, bytes: usize) -> io::Result<()> {
        assert!(self.has_room(region, bytes), "growth past the reserved addresses");
        let region = &self.regions[region as usize];
        let mapped = region.mapped.load(Ordering::Relaxed);
        let range = region.range.as_ref().expect("a region with room has a range");
        range.map(region.start + mapped, file, offset, bytes, self.writable)?;
        region.mapped.store(mapped + bytes, Ordering::Release);
        Ok(())
    }

    /// For a load: asks for huge pages from `at` on in a region, where pages not yet touched become huge, and leaves those
    /// that are there whole.
    pub fn load_into(&self, region: RegionKind, at: usize) {
        let region = &self.regions[region as usize];
        if let Some(range) = &region.range {
            range.advise_huge(region.start + at, self.mapped_from(region, at), true);
            self.advised.store(true, Ordering::Relaxed);
        }
        self.keep_whole();
    }

    /// Until the next `keep_small`, changes leave large pieces as they are.
    pub fn keep_whole(&self) {
        self.mode.whole();
    }

    /// From here on, what is changed is split off first. After a sync, when all of it can be.
    pub fn keep_small(&self) {
        if !os::SPLITS {
            return;
        }
        if self.mode.small() {
            self.regions.iter().for_each(|region| region.small.clear());
        }
    }

    /// Before `bytes` bytes at `at` in a region are changed: sees to it that a sync need not write much more than those.
    #[inline]
    pub fn before_change(&self, region: RegionKind, at: usize, bytes: usize) {
        if self.mode.is_small() {
            let region = &self.regions[region as usize];
            for block in at / self.block_bytes..=(at + bytes.max(1) - 1) / self.block_bytes {
                if region.small.mark(block) {
                    self.split(region, block);
                }
            }
        }
    }

    #[cold]
    fn split(&self, region: &RegionMap, block: usize) {
        if self.advised.swap(false, Ordering::Relaxed) {
            // From now on, what has to be read from the disk again comes in small pages.
            for region in &self.regions {
                if let Some(range) = &region.range {
                    range.advise_huge(region.start, self.mapped_from(region, 0), false);
                }
            }
        }
        let page = self.block_bytes / BLOCK_PAGES;
        let at = block * self.block_bytes;
        if let Some(range) = region.range.as_ref().filter(|_| at < region.mapped.load(Ordering::Acquire)) {
            range.split(region.start + at + page, 2 * page);
        }
    }

    fn mapped_from(&self, region: &RegionMap, at: usize) -> usize {
        region.mapped.load(Ordering::Acquire).saturating_sub(at)
    }

    /// Has the next sync write every page of the header and of the regions again. For recovery, which is alone with them:
    /// after a failed sync a kernel may hold pages that the disk never got for clean.
    pub fn dirty_everything(&self) {
        assert!(self.writable, "a map that cannot be written");
        // SAFETY: these parts are mapped, and writable; the caller is alone with them.
        unsafe { dirty_pages(self.header.start(), HEADER_BYTES) };
        for region in &self.regions {
            // SAFETY: as above.
            unsafe { dirty_pages(region.base, region.mapped.load(Ordering::Acquire)) };
        }
    }

    /// Hands everything stored through the map of the header, or of a region, over to the file, for a sync of the file to
    /// write. Nothing to do where the file and its maps are one and the same to a sync.
    pub fn flush(&self, region: Option<RegionKind>) -> io::Result<()> {
        let Some(region) = region else { return self.header.flush() };
        let region = &self.regions[region as usize];
        match &region.range {
            Some(range) => range.flush(region.start, region.mapped.load(Ordering::Acquire)),
            None => Ok(()),
        }
    }
}

/// Stores into each page of a range what it holds, so that the kernel takes it for changed.
///
/// # Safety
/// `bytes` bytes at `start`, a multiple of a page's, are mapped for writing, and nobody holds references into them other than
/// to atomics.
unsafe fn dirty_pages(start: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(PAGE_BYTES as usize) {
        // SAFETY: inside the range, and aligned as every page is; an atomic has no invalid bit patterns.
        let word = unsafe { &*start.add(at).cast::<AtomicU32>() };
        let now = word.load(Ordering::Relaxed);
        // Compilers make a plain load of an addition of nothing, but not of this. Where it fails, somebody else has stored.
        let _ = word.compare_exchange(now, now, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::layout::EXTENT_ALIGN;
    use crate::storage::Storage;

    const STEP: usize = EXTENT_ALIGN as usize;

    fn storage(dir: &tempfile::TempDir, extents: u64) -> Storage {
        let storage = Storage::create_new(&dir.path().join("f"), None).unwrap();
        storage.allocate(0, HEADER_BYTES as u64 + extents * EXTENT_ALIGN).unwrap();
        storage
    }

    fn extent(index: u64) -> u64 {
        HEADER_BYTES as u64 + index * EXTENT_ALIGN
    }

    fn read(storage: &Storage, offset: u64) -> u8 {
        storage.read_header(offset as usize + 1).unwrap()[offset as usize]
    }

    #[test]
    fn extents_follow_each_other_in_memory_wherever_they_lie_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(&dir, 6);
        let map = Map::new(storage.file(), true, [8 * STEP, 0, 2 * STEP, 0]).unwrap();
        assert_eq!(map.base(RegionKind::Slots).addr() % LARGE_ALIGN as usize, 0);
        for (region, index, extents) in [
            (RegionKind::Slots, 1, 2),
            (RegionKind::Keys, 0, 1),
            (RegionKind::Slots, 4, 2),
            (RegionKind::Keys, 3, 1),
        ] {
            let before = map.mapped(region);
            map.append(storage.file(), region, extent(index), extents * STEP).unwrap();
            assert_eq!(map.mapped(region), before + extents * STEP);
        }
        assert!(!map.has_room(RegionKind::Keys, 1) && !map.has_room(RegionKind::Exact, 1));
        for (at, byte) in [(0, 1), (2 * STEP - 1, 2), (2 * STEP, 3), (4 * STEP - 1, 4)] {
            // SAFETY: four extents of the region are mapped, and this thread alone uses them.
            unsafe { map.base(RegionKind::Slots).add(at).write(byte) };
        }
        map.flush(Some(RegionKind::Slots)).unwrap();
        storage.sync().unwrap();
        let end = EXTENT_ALIGN - 1;
        let found = [extent(1), extent(2) + end, extent(4), extent(5) + end].map(|at| read(&storage, at));
        assert_eq!(found, [1, 2, 3, 4]);
        assert_eq!(storage.len().unwrap(), extent(6), "mapping does not lengthen a file");
    }

    #[test]
    fn a_plane_can_be_mapped_twice_and_through_a_read_only_file() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(&dir, 1);
        let other = Storage::open(storage.path(), true, None).unwrap();
        let maps = [(&storage, true), (&storage, true), (&other, false)].map(|(storage, writable)| {
            let map = Map::new(storage.file(), writable, [STEP, 0, 0, 0]).unwrap();
            map.append(storage.file(), RegionKind::Slots, extent(0), STEP).unwrap();
            map
        });
        // SAFETY: one extent of the region is mapped, and this thread alone uses it.
        unsafe { maps[0].base(RegionKind::Slots).write_volatile(7) };
        for map in &maps {
            // SAFETY: as above.
            assert_eq!(unsafe { map.base(RegionKind::Slots).read_volatile() }, 7);
        }
    }

    /// Unix maps what is not there, and a touch ends the process: there callers compare with the file's length.
    #[cfg(windows)]
    #[test]
    fn growth_goes_on_after_a_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(&dir, 1);
        let read_only = Storage::open(storage.path(), true, None).unwrap();
        let map = Map::new(storage.file(), true, [8 * STEP, 0, 0, 0]).unwrap();
        // A writable view of a file that is not.
        let refused = |bytes| map.append(read_only.file(), RegionKind::Slots, extent(0), bytes).is_err();
        assert!(refused(STEP) && refused(STEP));
        map.append(storage.file(), RegionKind::Slots, extent(0), STEP).unwrap();
        storage.allocate(extent(1), 4 * EXTENT_ALIGN).unwrap();
        assert!(refused(STEP));
        map.append(storage.file(), RegionKind::Slots, extent(1), 4 * STEP).unwrap();
        assert_eq!(map.mapped(RegionKind::Slots), 5 * STEP);
        drop(map);
        storage.truncate(extent(0)).unwrap();
        assert_eq!(storage.len().unwrap(), extent(0));
    }

    #[test]
    fn a_mapped_file_can_be_cut_where_its_maps_end() {
        let dir = tempfile::tempdir().unwrap();
        let storage = storage(&dir, 3);
        let map = Map::new(storage.file(), true, [STEP, 0, 0, 0]).unwrap();
        map.append(storage.file(), RegionKind::Slots, extent(0), STEP).unwrap();
        storage.truncate(extent(1)).unwrap();
        // Windows may refuse, which is no error.
        if cfg!(unix) {
            assert_eq!(storage.len().unwrap(), extent(1));
        }
    }
}
