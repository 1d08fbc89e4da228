//! Mapping on Windows: views that replace pieces of a placeholder, an address range reserved for nothing else. Windows
//! has had placeholders since Windows 10 1803 and Windows Server 2019.

use std::fs::File;
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use windows_sys::Win32::Foundation::ERROR_LOCK_VIOLATION;
use windows_sys::Win32::System::Memory::{
    CreateFileMappingW, FlushViewOfFile, MEM_PRESERVE_PLACEHOLDER, MEM_RELEASE, MEM_REPLACE_PLACEHOLDER,
    MEM_RESERVE, MEM_RESERVE_PLACEHOLDER, MEMORY_MAPPED_VIEW_ADDRESS, MapViewOfFile3, PAGE_NOACCESS,
    PAGE_READONLY, PAGE_READWRITE, UnmapViewOfFile, VirtualAlloc2, VirtualFree,
};
use windows_sys::Win32::System::SystemServices::MEM_COALESCE_PLACEHOLDERS;
use windows_sys::Win32::System::Threading::GetCurrentProcess;

/// How often a flush that met another one is tried again, a little later each time.
const FLUSH_TRIES: u32 = 12;

/// A mapped part of the file. It keeps the file's section alive by itself.
pub struct View {
    start: *mut u8,
}

impl View {
    /// Maps a part of the file, wherever the system puts it.
    pub fn new(file: &File, offset: u64, bytes: usize, writable: bool) -> io::Result<Self> {
        Self::map(null_mut(), file, offset, bytes, writable)
    }

    /// Maps a part of the file over the placeholder that starts at `at` and is as long, or anywhere when `at` is null.
    fn map(at: *mut u8, file: &File, offset: u64, bytes: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable { PAGE_READWRITE } else { PAGE_READONLY };
        // The section ends where the view does, which the file reaches: a longer one would lengthen the file.
        let end = offset + bytes as u64;
        // SAFETY: the handle is open; there are no attributes and no name.
        let section = unsafe {
            CreateFileMappingW(
                file.as_raw_handle(),
                null(),
                protection,
                (end >> 32) as u32,
                end as u32,
                null(),
            )
        };
        if section.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a handle just made, owned by nobody else.
        let section = unsafe { OwnedHandle::from_raw_handle(section) };
        let kind = if at.is_null() { 0 } else { MEM_REPLACE_PLACEHOLDER };
        // SAFETY: the call only takes addresses of the system's choice, or those of a placeholder, which nobody can
        // have touched.
        let view = unsafe {
            MapViewOfFile3(
                section.as_raw_handle(),
                GetCurrentProcess(),
                at.cast(),
                offset,
                bytes,
                kind,
                protection,
                null_mut(),
                0,
            )
        };
        if view.Value.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(View { start: view.Value.cast() })
    }

    /// Its first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Hands stores over to the file.
    pub fn flush(&self) -> io::Result<()> {
        flush(self.start)
    }
}

/// Writes a view's dirty pages to the file. `Storage::sync` then sees to the drive.
fn flush(view: *mut u8) -> io::Result<()> {
    let mut pause = Duration::from_millis(1);
    for _ in 0..FLUSH_TRIES {
        // SAFETY: zero bytes stand for all of the view, of which the call changes nothing; the system checks the address.
        if unsafe { FlushViewOfFile(view.cast(), 0) } != 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // The system's own writer may have the pages at this moment.
        if error.raw_os_error() != Some(ERROR_LOCK_VIOLATION as i32) {
            return Err(error);
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    Err(io::Error::from_raw_os_error(ERROR_LOCK_VIOLATION as i32))
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the view is this value's own, and every reference into it borrows from the `Map` that owns the value.
        unsafe { UnmapViewOfFile(MEMORY_MAPPED_VIEW_ADDRESS { Value: self.start.cast() }) };
    }
}

/// Asks for pages to be read into memory. Walks do not get here: see `cold.rs`.
pub fn will_need(_at: *mut u8, _bytes: usize) {}

/// Windows keeps no files in pieces that could be split.
pub const SPLITS: bool = false;

/// What `SPLITS` makes unimportant.
pub fn page_bytes() -> usize {
    4096
}

/// Addresses reserved without memory behind them, for parts of the file to be mapped into.
pub struct Range {
    start: *mut u8,
    bytes: usize,
    /// In order of address, each with its place in the range and its length.
    views: Mutex<Vec<(usize, usize, View)>>,
}

impl Range {
    /// Reserves addresses.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let kind = MEM_RESERVE | MEM_RESERVE_PLACEHOLDER;
        // SAFETY: a fresh reservation at an address of the system's choice disturbs nothing.
        let start =
            unsafe { VirtualAlloc2(GetCurrentProcess(), null(), bytes, kind, PAGE_NOACCESS, null_mut(), 0) };
        if start.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Range { start: start.cast(), bytes, views: Mutex::new(Vec::new()) })
    }

    /// First address.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    fn views(&self) -> MutexGuard<'_, Vec<(usize, usize, View)>> {
        self.views.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Maps a part of the file at `at` bytes into the range, behind everything mapped so far and before its end.
    pub fn map(&self, at: usize, file: &File, offset: u64, bytes: usize, writable: bool) -> io::Result<()> {
        let mut views = self.views();
        let before = views.last().map_or(0, |(at, bytes, _)| at + bytes);
        // Strictly before the end: a piece is cut from a longer placeholder, which leaves one behind it.
        assert!(
            at >= before && at.checked_add(bytes).is_some_and(|end| end < self.bytes),
            "a map past its range"
        );
        let piece = self.start.wrapping_add(at);
        // SAFETY: the piece lies in this range's own placeholder (asserted above), where nothing is mapped.
        if unsafe { VirtualFree(piece.cast(), bytes, MEM_RELEASE | MEM_PRESERVE_PLACEHOLDER) } == 0 {
            return Err(io::Error::last_os_error());
        }
        match View::map(piece, file, offset, bytes, writable) {
            Ok(view) => {
                views.push((at, bytes, view));
                Ok(())
            }
            Err(error) => {
                // One placeholder again, so that the next attempt can cut a piece of another length.
                let rest = self.start.wrapping_add(before);
                // SAFETY: the placeholders behind the last view are this range's own.
                unsafe {
                    VirtualFree(rest.cast(), self.bytes - before, MEM_RELEASE | MEM_COALESCE_PLACEHOLDERS)
                };
                Err(error)
            }
        }
    }

    /// Windows has no huge pages for files.
    pub fn advise_huge(&self, _at: usize, _bytes: usize, _huge: bool) {}

    /// See `advise_huge`.
    pub fn split(&self, _at: usize, _bytes: usize) {}

    /// Hands stores into the `bytes` mapped bytes at `at` over to the file.
    pub fn flush(&self, at: usize, bytes: usize) -> io::Result<()> {
        // One call cannot flush several views. The lock is not kept: views stay until the range is dropped, and growth
        // need not wait for a disk.
        let views = self.views();
        let wanted = views.iter().filter(|(start, len, _)| *start < at + bytes && start + len > at);
        let wanted: Vec<_> = wanted.map(|(_, _, view)| view.start()).collect();
        drop(views);
        wanted.into_iter().try_for_each(flush)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let views = std::mem::take(&mut *self.views());
        // What is left of the placeholder: a piece before the first view, where there is one, and the one behind the
        // last. Views follow each other without a gap, since each is mapped where the last one ended.
        let mut end = 0;
        for (at, bytes, view) in views {
            if at > end {
                self.release(end);
            }
            end = at + bytes;
            drop(view);
        }
        self.release(end);
    }
}

impl Range {
    /// Gives the placeholder that starts at `at` back.
    fn release(&self, at: usize) {
        // SAFETY: the placeholder is this range's own, and no reference can point into one.
        unsafe { VirtualFree(self.start.wrapping_add(at).cast(), 0, MEM_RELEASE) };
    }
}
