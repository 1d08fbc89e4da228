//! Mapping on Unix: mmap, with MAP_FIXED into ranges reserved before.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use crate::file::layout::PAGE_BYTES;

/// A mapped part of the file, wherever the kernel put it.
pub struct View {
    start: *mut u8,
    bytes: usize,
}

impl View {
    /// Maps a part of the file.
    pub fn new(file: &File, offset: u64, bytes: usize, writable: bool) -> io::Result<Self> {
        let start = map_file(null_mut(), file, offset, bytes, writable)?;
        Ok(View { start, bytes })
    }

    /// Its first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Hands stores over to the file.
    pub fn flush(&self) -> io::Result<()> {
        flush(self.start, self.bytes)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        unmap(self.start, self.bytes);
    }
}

/// Addresses reserved without memory behind them, for parts of the file to be mapped into.
pub struct Range {
    start: *mut u8,
    bytes: usize,
}

impl Range {
    /// Reserves addresses.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice disturbs nothing.
        let address = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Range { start: address.cast(), bytes })
    }

    /// First address.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Maps a part of the file at `at` bytes into the range, over addresses that were not mapped yet.
    pub fn map(&self, at: usize, file: &File, offset: u64, bytes: usize, writable: bool) -> io::Result<()> {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes), "a map past its range");
        map_file(self.start.wrapping_add(at), file, offset, bytes, writable).map(|_| ())
    }

    /// Asks that pages of the `bytes` mapped bytes at `at` that are not in memory yet come as huge ones, or do not.
    pub fn advise_huge(&self, at: usize, bytes: usize, huge: bool) {
        advise_huge(self.start.wrapping_add(at), bytes, huge);
    }

    /// Splits the pieces that lie partly in the `bytes` mapped bytes at `at`, and partly outside.
    pub fn split(&self, at: usize, bytes: usize) {
        split(self.start.wrapping_add(at), bytes);
    }

    /// Hands stores into the `bytes` mapped bytes at `at` over to the file.
    pub fn flush(&self, at: usize, bytes: usize) -> io::Result<()> {
        flush(self.start.wrapping_add(at), bytes)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        unmap(self.start, self.bytes);
    }
}

fn map_file(at: *mut u8, file: &File, offset: u64, bytes: usize, writable: bool) -> io::Result<*mut u8> {
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let flags = libc::MAP_SHARED | if at.is_null() { 0 } else { libc::MAP_FIXED };
    // SAFETY: MAP_FIXED only ever replaces addresses inside a `Range` (asserted in its `map`) that lie past what `Map`
    // calls mapped, so no reference into them exists.
    let address =
        unsafe { libc::mmap(at.cast(), bytes, protection, flags, file.as_raw_fd(), offset as libc::off_t) };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address.cast()) }
}

/// Asks for the pages of `bytes` mapped bytes at `at` to be read into memory, and does not wait for them.
pub fn will_need(at: *mut u8, bytes: usize) {
    let before = at as usize % PAGE_BYTES as usize;
    // SAFETY: advice changes nothing in memory, and addresses that are not mapped are refused.
    unsafe { libc::madvise(at.wrapping_sub(before).cast(), before + bytes, libc::MADV_WILLNEED) };
}

/// Whether this system keeps files in pieces that can be split.
pub const SPLITS: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Bytes of a page of the processor.
pub fn page_bytes() -> usize {
    // SAFETY: a system call without pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE_BYTES as usize)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn advise_huge(start: *mut u8, bytes: usize, huge: bool) {
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // Kernels without huge pages for files refuse, and nothing is lost.
    // SAFETY: the range is mapped; advice changes none of its contents.
    unsafe { libc::madvise(start.cast(), bytes, advice) };
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn split(start: *mut u8, bytes: usize) {
    // A piece of which a part is said to be cold is split, to tell that part from the rest (Linux 5.4), if it is clean and no
    // other process has mapped it.
    // SAFETY: the range is mapped; advice changes none of its contents.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_COLD) };
}

#[cfg(target_vendor = "apple")]
fn advise_huge(_start: *mut u8, _bytes: usize, _huge: bool) {}

#[cfg(target_vendor = "apple")]
fn split(_start: *mut u8, _bytes: usize) {}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn flush(_start: *mut u8, _bytes: usize) -> io::Result<()> {
    // Map and file share their pages, and fdatasync writes them.
    Ok(())
}

#[cfg(target_vendor = "apple")]
fn flush(start: *mut u8, bytes: usize) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // Elsewhere msync alone is promised to find the pages that stores into a map have dirtied.
    // SAFETY: the range is mapped; the call changes none of it.
    match unsafe { libc::msync(start.cast(), bytes, libc::MS_SYNC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: the range was mapped by this module for the value being dropped, and every reference into it borrows from
    // the `Map` that owns that value.
    unsafe { libc::munmap(start.cast(), bytes) };
}
