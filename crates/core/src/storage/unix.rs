//! Files on Unix: identity, allocation, sync, byte locks.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::{FileId, write_zeros};

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
compile_error!("a lock must end with the open file that holds it: this system has no such byte locks");

/// Opens as the options say, without waiting: a pipe would keep its opener until somebody takes the other end.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // Means nothing for regular files, which is what the caller goes on with.
    options.custom_flags(libc::O_NONBLOCK).open(path)
}

/// Device and inode of a file.
pub fn file_id(file: &File) -> io::Result<FileId> {
    let metadata = file.metadata()?;
    Ok(FileId { device: metadata.dev(), inode: metadata.ino() })
}

/// The mount that a file was opened through; 0 where the kernel does not tell (before Linux 5.8).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn mount(file: &File) -> u64 {
    /// `STATX_MNT_ID` and, for one that is never given twice, `STATX_MNT_ID_UNIQUE` (Linux 6.8).
    const MOUNT_ID: u32 = 0x1000 | 0x4000;
    // `struct statx`: the low half of double word 0 is the mask of what is valid, double word 18 the mount.
    let mut known = [0u64; 32];
    // SAFETY: the descriptor is open, the path is empty and ends with a zero, and a statx has 256 bytes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_statx,
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            MOUNT_ID,
            known.as_mut_ptr(),
        )
    };
    if result == 0 && known[0] as u32 & MOUNT_ID != 0 { known[18] } else { 0 }
}

#[cfg(target_vendor = "apple")]
pub fn mount(_file: &File) -> u64 {
    0
}

/// How many names a file has.
pub fn names(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.nlink())
}

/// Gives a file the permissions of another, and its owner where that is allowed.
pub fn share_like(file: &File, other: &File) -> io::Result<()> {
    let (own, wanted) = (file.metadata()?, other.metadata()?);
    if (own.uid(), own.gid()) != (wanted.uid(), wanted.gid()) {
        // Only the superuser may give files away; whoever else makes a copy owns it.
        let _ = std::os::unix::fs::fchown(file, Some(wanted.uid()), Some(wanted.gid()));
    }
    // Its owner can write it, as whoever makes it has to.
    file.set_permissions(Permissions::from_mode(wanted.mode() | 0o200))
}

pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

pub fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(bytes, offset)
}

/// Cuts the file off.
pub fn truncate(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn sync(file: &File) -> io::Result<()> {
    // Also writes pages dirtied through a shared map, and the file size.
    file.sync_data()
}

#[cfg(target_vendor = "apple")]
pub fn sync(file: &File) -> io::Result<()> {
    // The standard library sends F_FULLFSYNC: fsync alone stops at the drive's cache.
    file.sync_all()
}

/// Makes a name durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn allocate(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    loop {
        // SAFETY: a system call on an open descriptor, with no pointers. The raw call, not posix_fallocate: libc's
        // emulation of that one writes to each block without regard to other writers.
        let result =
            unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, bytes as libc::off_t) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => continue,
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return write_zeros(file, offset, bytes),
            _ => return Err(error),
        }
    }
}

#[cfg(target_vendor = "apple")]
pub fn allocate(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let (len, end) = (file.metadata()?.len(), offset + bytes);
    if end <= len {
        // An extension that no extent came to name. Whether its blocks are there is not known.
        return write_zeros(file, offset, bytes);
    }
    // Blocks behind the last one that the file has, which is at least where it ends: all of them or none.
    let mut request = libc::fstore_t {
        fst_flags: libc::F_ALLOCATEALL,
        fst_posmode: libc::F_PEOFPOSMODE,
        fst_offset: 0,
        fst_length: (end - len) as libc::off_t,
        fst_bytesalloc: 0,
    };
    // SAFETY: the descriptor is open and `request` is a valid fstore_t for the duration of the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_PREALLOCATE, &raw mut request) } {
        -1 => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::ENOTSUP | libc::EOPNOTSUPP | libc::EINVAL)) => {
                write_zeros(file, offset, bytes)
            }
            e => Err(e),
        },
        // The file ends before the blocks do until its length says otherwise.
        _ => file.set_len(end),
    }
}

/// Asks that a new, empty file be written in place where its file system would rather copy: a copy needs room, and on a full
/// disk a store to a mapped page that finds none ends the process.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn write_in_place(file: &File) {
    let Some(flags) = flags(file) else { return };
    let wanted: libc::c_long = flags | NO_COPY_ON_WRITE;
    // SAFETY: the descriptor is open and the request reads one long. A refusal, as by most file systems, changes nothing, and
    // `copies_on_write` tells of it.
    unsafe { libc::ioctl(file.as_raw_fd(), SET_FLAGS as _, &raw const wanted) };
}

/// Whether stores to pages of the file may need new blocks although those of the file are allocated.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn copies_on_write(file: &File) -> bool {
    /// btrfs, ZFS, bcachefs.
    const COPYING: [u32; 3] = [0x9123_683E, 0x2FC1_2FC1, 0xCA45_1A4E];
    // SAFETY: statfs is plain data; all zeros is a value of it.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `system` is a valid statfs for the duration of the call.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut system) } == 0;
    known
        && COPYING.contains(&(system.f_type as u32))
        && flags(file).is_none_or(|flags| flags & NO_COPY_ON_WRITE == 0)
}

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`: their type differs among C libraries.
#[cfg(any(target_os = "linux", target_os = "android"))]
const GET_FLAGS: u32 = 0x8000_6601 | (size_of::<libc::c_long>() as u32) << 16;
#[cfg(any(target_os = "linux", target_os = "android"))]
const SET_FLAGS: u32 = 0x4000_6602 | (size_of::<libc::c_long>() as u32) << 16;

/// `FS_NOCOW_FL`.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NO_COPY_ON_WRITE: libc::c_long = 0x0080_0000;

#[cfg(any(target_os = "linux", target_os = "android"))]
fn flags(file: &File) -> Option<libc::c_long> {
    let mut flags: libc::c_long = 0;
    // SAFETY: the descriptor is open and the request writes at most one long.
    let known = unsafe { libc::ioctl(file.as_raw_fd(), GET_FLAGS as _, &raw mut flags) } == 0;
    known.then_some(flags)
}

#[cfg(target_vendor = "apple")]
pub fn write_in_place(_file: &File) {
    // APFS copies only what clones and snapshots share.
}

#[cfg(target_vendor = "apple")]
pub fn copies_on_write(_file: &File) -> bool {
    false
}

/// Open-file-description locks: owned by the open file, so they survive nothing that the file does not. macOS has had
/// them since 10.11 (xnu-3248, `bsd/kern/kern_descrip.c`), with Linux's names and rules.
pub mod lock {
    use super::*;

    fn request(kind: libc::c_int, byte: u64) -> libc::flock {
        // SAFETY: flock is plain data; all zeros is a value of it.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = byte as libc::off_t;
        lock.l_len = 1;
        lock
    }

    fn control(file: &File, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
        // SAFETY: the descriptor is open and `lock` is a valid flock for the duration of the call.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, lock as *mut libc::flock) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    pub fn try_lock(file: &File, byte: u64) -> io::Result<bool> {
        match control(file, libc::F_OFD_SETLK, &mut request(libc::F_WRLCK as libc::c_int, byte)) {
            Ok(()) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub fn unlock(file: &File, byte: u64) -> io::Result<()> {
        control(file, libc::F_OFD_SETLK, &mut request(libc::F_UNLCK as libc::c_int, byte))
    }

    pub fn is_locked_elsewhere(file: &File, byte: u64) -> io::Result<bool> {
        let mut lock = request(libc::F_WRLCK as libc::c_int, byte);
        control(file, libc::F_OFD_GETLK, &mut lock)?;
        Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
    }
}
