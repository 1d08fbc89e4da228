//! The seam every durable step crosses: allocate, write, sync, rename, lock. A test can make the n-th one fail.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

/// The durable steps, as a fault plan sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reserve blocks for an extent.
    Allocate,
    /// Map an extent or the header.
    Map,
    /// Bring written bytes to the disk.
    Sync,
    /// Write a superblock.
    WriteHeader,
    /// Read the header at open.
    ReadHeader,
    /// Put a new file in place of an old one.
    Rename,
    /// Take or test a kernel lock.
    Lock,
}

/// Decides which steps fail.
pub trait Faults: Send + Sync {
    /// Called before each step; an error stands for the operating system's.
    fn before(&self, step: Step) -> io::Result<()>;
}

/// Where a kernel lock lies: bytes far past any data, which byte-range locks allow.
pub const LOCK_WRITER: u64 = 1 << 62;
/// Held while a process recovers the plane; others wait.
pub const LOCK_RECOVERY: u64 = LOCK_WRITER + 1;
/// Process entry i is owned by who holds `LOCK_PROCESS + i`.
pub const LOCK_PROCESS: u64 = LOCK_WRITER + 64;

/// An open plane file.
pub struct Storage {
    file: File,
    path: PathBuf,
    read_only: bool,
    faults: Option<Arc<dyn Faults>>,
}

/// Tells files apart: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

impl Storage {
    /// Opens an existing file.
    pub fn open(path: &Path, read_only: bool, faults: Option<Arc<dyn Faults>>) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(!read_only)
            .open(path)
            .map_err(|e| Error::io(e, "open", path))?;
        let kind = file.metadata().map_err(|e| Error::io(e, "read the attributes of", path))?;
        if kind.is_dir() {
            return Err(Error::io(io::Error::from(io::ErrorKind::IsADirectory), "open", path));
        }
        if !kind.is_file() {
            return Err(Error::NotAPlane { path: path.to_path_buf(), reason: "it is not a regular file" });
        }
        Ok(Storage { file, path: path.to_path_buf(), read_only, faults })
    }

    /// Creates a file that must not exist yet.
    pub fn create_new(path: &Path, faults: Option<Arc<dyn Faults>>) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|e| Error::io(e, "create", path))?;
        Ok(Storage { file, path: path.to_path_buf(), read_only: false, faults })
    }

    /// The file's path as it was given, or as it is after `publish`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file was opened without write access.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The open file, for mapping.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Runs the fault plan's say on a step.
    pub fn step(&self, step: Step) -> io::Result<()> {
        self.faults.as_ref().map_or(Ok(()), |f| f.before(step))
    }

    /// Apparent size.
    pub fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|e| Error::io(e, "read the size of", &self.path))?.len())
    }

    /// Device and inode.
    pub fn file_id(&self) -> Result<FileId> {
        let metadata =
            self.file.metadata().map_err(|e| Error::io(e, "read the attributes of", &self.path))?;
        Ok(file_id(&metadata))
    }

    /// Reserves blocks for `offset..offset + bytes` and extends the file over them (F2): after this, touching a page
    /// of the range cannot run out of space.
    pub fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.step(Step::Allocate)
            .and_then(|()| allocate(&self.file, offset, bytes))
            .map_err(|e| Error::io(e, "allocate space in", &self.path))
    }

    /// Writes bytes at an offset; used for superblocks only, everything else goes through the map.
    pub fn write_header(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.step(Step::WriteHeader)
            .and_then(|()| write_all_at(&self.file, bytes, offset))
            .map_err(|e| Error::io(e, "write the superblock of", &self.path))
    }

    /// Reads the first `bytes` bytes.
    pub fn read_header(&self, bytes: usize) -> Result<Vec<u8>> {
        let mut header = vec![0; bytes];
        self.step(Step::ReadHeader)
            .and_then(|()| read_exact_at(&self.file, &mut header, 0))
            .map_err(|e| Error::io(e, "read the header of", &self.path))?;
        Ok(header)
    }

    /// Returns when everything written so far, stores into the map included, is on the disk.
    pub fn sync(&self) -> Result<()> {
        self.step(Step::Sync).and_then(|()| sync(&self.file)).map_err(|e| Error::io(e, "sync", &self.path))
    }

    /// Cuts the file off; only recovery does, before anything past `bytes` is mapped.
    pub fn truncate(&self, bytes: u64) -> Result<()> {
        self.step(Step::Allocate)
            .and_then(
                |()| if self.file.metadata()?.len() > bytes { self.file.set_len(bytes) } else { Ok(()) },
            )
            .map_err(|e| Error::io(e, "truncate", &self.path))
    }

    /// Moves the file to `path`, replacing what is there, and makes the move durable.
    pub fn publish(&mut self, path: &Path) -> Result<()> {
        self.step(Step::Rename)
            .and_then(|()| std::fs::rename(&self.path, path))
            .map_err(|e| Error::io(e, "move the new file to", path))?;
        self.moved(path)
    }

    /// The file has got a name at `path`: makes that durable.
    pub fn moved(&mut self, path: &Path) -> Result<()> {
        self.path = path.to_path_buf();
        self.step(Step::Sync)
            .and_then(|()| sync_directory(path))
            .map_err(|e| Error::io(e, "sync the directory of", path))
    }

    /// Tries to take the kernel lock on one byte for this open file; it goes with the file, however the process ends.
    pub fn try_lock(&self, byte: u64) -> Result<bool> {
        self.step(Step::Lock)
            .and_then(|()| lock::try_lock(&self.file, byte))
            .map_err(|e| Error::io(e, "lock", &self.path))
    }

    /// Gives a lock back.
    pub fn unlock(&self, byte: u64) {
        // Nothing sensible can be done about a failing unlock, and closing the file releases the lock all the same.
        let _ = lock::unlock(&self.file, byte);
    }

    /// Whether another open file holds the lock on a byte.
    pub fn is_locked_elsewhere(&self, byte: u64) -> Result<bool> {
        lock::is_locked_elsewhere(&self.file, byte).map_err(|e| Error::io(e, "test the lock of", &self.path))
    }
}

/// Device and inode of a file.
#[cfg(unix)]
pub fn file_id(metadata: &std::fs::Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    FileId { device: metadata.dev(), inode: metadata.ino() }
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn sync(file: &File) -> io::Result<()> {
    // Also writes pages dirtied through a shared map, and the file size.
    file.sync_data()
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn sync(file: &File) -> io::Result<()> {
    // The standard library sends F_FULLFSYNC on Apple systems.
    file.sync_all()
}

#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn allocate(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
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

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn allocate(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    write_zeros(file, offset, bytes)
}

/// Reserves space where the file system has no call for it.
#[cfg(unix)]
fn write_zeros(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let zeros = vec![0u8; (bytes as usize).min(1 << 20)];
    let mut at = 0;
    while at < bytes {
        let step = (bytes - at).min(zeros.len() as u64);
        write_all_at(file, &zeros[..step as usize], offset + at)?;
        at += step;
    }
    Ok(())
}

/// Open-file-description locks: owned by the open file, so they survive nothing that the file does not.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod lock {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

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
        match control(file, libc::F_OFD_SETLK, &mut request(libc::F_WRLCK, byte)) {
            Ok(()) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub fn unlock(file: &File, byte: u64) -> io::Result<()> {
        control(file, libc::F_OFD_SETLK, &mut request(libc::F_UNLCK, byte))
    }

    pub fn is_locked_elsewhere(file: &File, byte: u64) -> io::Result<bool> {
        let mut lock = request(libc::F_WRLCK, byte);
        control(file, libc::F_OFD_GETLK, &mut lock)?;
        Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
    }
}

/// Without open-file-description locks one whole-file lock stands for them all: one process at a time.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
mod lock {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    pub fn try_lock(file: &File, _byte: u64) -> io::Result<bool> {
        // SAFETY: a system call on an open descriptor, with no pointers.
        match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
            0 => Ok(true),
            _ => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
                e => Err(e),
            },
        }
    }

    pub fn unlock(_file: &File, _byte: u64) -> io::Result<()> {
        // Kept until the file is closed: the other bytes' holders stand behind the same lock.
        Ok(())
    }

    pub fn is_locked_elsewhere(_file: &File, _byte: u64) -> io::Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_exclude_other_open_files_and_go_with_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let a = Storage::create_new(&path, None).unwrap();
        let b = Storage::open(&path, false, None).unwrap();
        assert!(a.try_lock(LOCK_WRITER).unwrap());
        assert!(!b.try_lock(LOCK_WRITER).unwrap());
        assert!(b.is_locked_elsewhere(LOCK_WRITER).unwrap());
        assert!(b.try_lock(LOCK_PROCESS).unwrap());
        drop(a);
        assert!(b.try_lock(LOCK_WRITER).unwrap());
    }

    #[test]
    fn allocation_extends_the_file_with_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::create_new(&dir.path().join("f"), None).unwrap();
        storage.allocate(0, 65_536).unwrap();
        write_zeros(storage.file(), 65_536, 3 << 20).unwrap();
        assert_eq!(storage.len().unwrap(), 65_536 + (3 << 20));
        assert!(storage.read_header(1024).unwrap().iter().all(|b| *b == 0));
    }
}
