//! Memory maps: the header, and one contiguous range of addresses for each region.
//!
//! A region's extents lie anywhere in the file, but are mapped one after the other into a range reserved for the
//! region, far longer than it is now. So record i is at `base + i * stride`, growth maps one more extent, and nothing
//! that is mapped ever moves. Addresses past `mapped` are reserved without access: touching them would be a fault, and
//! every accessor checks against `mapped` first.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::file::layout::{HEADER_BYTES, LARGE_ALIGN, REGIONS, RegionKind};

/// A region's range of addresses.
struct RegionMap {
    /// What was reserved, which may start a little before `base`.
    reservation: (*mut u8, usize),
    base: *mut u8,
    reserved: usize,
    mapped: AtomicUsize,
}

/// All of a file's maps. Dropping it gives them back.
pub struct Map {
    header: *mut u8,
    regions: [RegionMap; REGIONS.len()],
    writable: bool,
}

// SAFETY: `Map` owns its address ranges, which no thread's identity is tied to; what the ranges hold is reached through
// atomics or under the protocol of `graph::node`.
unsafe impl Send for Map {}
// SAFETY: as above; the only mutable field is atomic.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the header and reserves `reserve[i]` bytes of addresses for region i.
    pub fn new(file: &File, writable: bool, reserve: [usize; REGIONS.len()]) -> io::Result<Self> {
        let header = os::map_file(std::ptr::null_mut(), file, 0, HEADER_BYTES, writable)?;
        let mut map = Map {
            header,
            regions: std::array::from_fn(|_| RegionMap {
                reservation: (std::ptr::null_mut(), 0),
                base: std::ptr::null_mut(),
                reserved: 0,
                mapped: AtomicUsize::new(0),
            }),
            writable,
        };
        for (region, bytes) in map.regions.iter_mut().zip(reserve) {
            if bytes > 0 {
                let align = LARGE_ALIGN as usize;
                let start = os::reserve(bytes + align)?;
                region.reservation = (start, bytes + align);
                region.base = start.wrapping_add(start.align_offset(align));
                region.reserved = bytes;
            }
        }
        Ok(map)
    }

    /// First byte of the header, `HEADER_BYTES` long.
    pub fn header(&self) -> *mut u8 {
        self.header
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
        let at = region.base.wrapping_add(mapped);
        os::map_file(at, file, offset, bytes, self.writable)?;
        region.mapped.store(mapped + bytes, Ordering::Release);
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        os::unmap(self.header, HEADER_BYTES);
        for region in &self.regions {
            if region.reserved > 0 {
                os::unmap(region.reservation.0, region.reservation.1);
            }
        }
    }
}

#[cfg(unix)]
mod os {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    /// Reserves addresses without memory behind them.
    pub fn reserve(bytes: usize) -> io::Result<*mut u8> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice disturbs nothing.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address.cast()) }
    }

    /// Maps a part of the file, at `at` inside a reservation, or anywhere when `at` is null.
    pub fn map_file(
        at: *mut u8,
        file: &File,
        offset: u64,
        bytes: usize,
        writable: bool,
    ) -> io::Result<*mut u8> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let flags = libc::MAP_SHARED | if at.is_null() { 0 } else { libc::MAP_FIXED };
        // SAFETY: MAP_FIXED only ever replaces addresses inside a range that `reserve` gave to this `Map` and that lie
        // past `mapped`, so no reference into them exists.
        let address = unsafe {
            libc::mmap(at.cast(), bytes, protection, flags, file.as_raw_fd(), offset as libc::off_t)
        };
        if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address.cast()) }
    }

    pub fn unmap(at: *mut u8, bytes: usize) {
        // SAFETY: the range was mapped by this module for the `Map` being dropped, and every reference into it borrows
        // from that `Map`.
        unsafe { libc::munmap(at.cast(), bytes) };
    }
}
