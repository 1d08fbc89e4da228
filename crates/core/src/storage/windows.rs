//! Files on Windows: identity, allocation, sync, byte locks.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::Path;

use windows_sys::Win32::Foundation::{
    ERROR_DISK_FULL, ERROR_IO_PENDING, ERROR_LOCK_VIOLATION, ERROR_NOT_LOCKED, ERROR_USER_MAPPED_FILE,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_ALLOCATION_INFO, FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE,
    FileAllocationInfo, GetFileInformationByHandle, LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY,
    LockFileEx, SetFileInformationByHandle, UnlockFileEx,
};
use windows_sys::Win32::System::IO::{OVERLAPPED, OVERLAPPED_0, OVERLAPPED_0_0};

use super::{FileId, write_zeros};

/// Opens as the options say, so that others may read, write, rename, replace and delete the file meanwhile: as on Unix.
/// Replacing an open file takes the POSIX form of a rename, which `std::fs::rename` falls back to.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE);
    options.open(path).map_err(|e| match e.kind() {
        // A directory takes a flag of its own to open; without it the system speaks of permissions.
        io::ErrorKind::PermissionDenied if path.is_dir() => io::Error::from(io::ErrorKind::IsADirectory),
        _ => e,
    })
}

/// Serial number of the volume, and the file's index on it.
pub fn file_id(file: &File) -> io::Result<FileId> {
    let info = information(file)?;
    let inode = (u64::from(info.nFileIndexHigh) << 32) | u64::from(info.nFileIndexLow);
    Ok(FileId { device: u64::from(info.dwVolumeSerialNumber), inode })
}

/// Windows has no such number.
pub fn mount(_file: &File) -> u64 {
    0
}

/// How many names a file has.
pub fn names(file: &File) -> io::Result<u64> {
    Ok(information(file)?.nNumberOfLinks.into())
}

fn information(file: &File) -> io::Result<BY_HANDLE_FILE_INFORMATION> {
    let mut info = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open, and `info` is the structure that the call fills.
    check(unsafe { GetFileInformationByHandle(file.as_raw_handle(), &mut info) })?;
    Ok(info)
}

/// Nothing to do: a new file inherits what its directory grants.
pub fn share_like(_file: &File, _other: &File) -> io::Result<()> {
    Ok(())
}

pub fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset)? {
            0 => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            written => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
        }
    }
    Ok(())
}

pub fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.seek_read(bytes, offset)? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            read => {
                bytes = &mut bytes[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}

/// Cuts the file off, unless a map is in the way: then it stays as long as it is. That is no harm, since `allocate`
/// writes zeros over whatever it finds.
pub fn truncate(file: &File, bytes: u64) -> io::Result<()> {
    match file.set_len(bytes) {
        Err(e) if is(&e, ERROR_USER_MAPPED_FILE) => Ok(()),
        result => result,
    }
}

/// `FlushFileBuffers`, which also empties the drive's cache. What was stored through a map has to be handed to the file
/// first: `Map::flush`.
pub fn sync(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// NTFS writes in place, and ReFS copies only what clones share.
pub fn write_in_place(_file: &File) {}

pub fn copies_on_write(_file: &File) -> bool {
    false
}

/// Nothing to do: names are in the file system's journal, and there is no call that would write a directory.
pub fn sync_directory(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// Reserves blocks. Zeros are written even where the system has found room: only pages that have been written once are
/// the file's own, and a leftover of an unfinished growth may hold anything.
pub fn allocate(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let end = offset + bytes;
    // Below the file's length this call would cut the file off.
    if end > file.metadata()?.len() {
        let room = FILE_ALLOCATION_INFO { AllocationSize: end as i64 };
        // SAFETY: the handle is open, and the structure is the one that the class names, of the size given.
        let result = check(unsafe {
            SetFileInformationByHandle(
                file.as_raw_handle(),
                FileAllocationInfo,
                (&raw const room).cast(),
                size_of::<FILE_ALLOCATION_INFO>() as u32,
            )
        });
        match result {
            // Before anything was changed. Every other refusal only means that the file system cannot do it at once.
            Err(e) if is(&e, ERROR_DISK_FULL) => return Err(e),
            _ => {}
        }
    }
    write_zeros(file, offset, bytes)
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code as i32)
}

/// `LockFileEx` locks. They belong to the handle, and the system gives them back when the handle or its process ends.
/// They are mandatory, which does not matter so far past the data; nor do they touch what goes through a map. Unlike on
/// Unix a handle cannot take a byte that it holds already.
pub mod lock {
    use super::*;

    fn at(byte: u64) -> OVERLAPPED {
        let place = OVERLAPPED_0_0 { Offset: byte as u32, OffsetHigh: (byte >> 32) as u32 };
        OVERLAPPED { Anonymous: OVERLAPPED_0 { Anonymous: place }, ..Default::default() }
    }

    pub fn try_lock(file: &File, byte: u64) -> io::Result<bool> {
        let flags = LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY;
        // SAFETY: the handle is open, for calls that return when they are done, so the OVERLAPPED is only read.
        match check(unsafe { LockFileEx(file.as_raw_handle(), flags, 0, 1, 0, &mut at(byte)) }) {
            Ok(()) => Ok(true),
            Err(e) if is(&e, ERROR_LOCK_VIOLATION) || is(&e, ERROR_IO_PENDING) => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub fn unlock(file: &File, byte: u64) -> io::Result<()> {
        // SAFETY: as for `try_lock`.
        match check(unsafe { UnlockFileEx(file.as_raw_handle(), 0, 1, 0, &mut at(byte)) }) {
            Err(e) if is(&e, ERROR_NOT_LOCKED) => Ok(()),
            result => result,
        }
    }

    pub fn is_locked_elsewhere(file: &File, byte: u64) -> io::Result<bool> {
        // There is no call that only asks. Whoever wants the byte in between tries again.
        if !try_lock(file, byte)? {
            return Ok(true);
        }
        unlock(file, byte)?;
        Ok(false)
    }
}
