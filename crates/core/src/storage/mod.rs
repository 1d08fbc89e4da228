//! The seam every durable step crosses: allocate, write, sync, rename, lock. A test can make the n-th one fail.
//!
//! | file | responsibility |
//! |---|---|
//! | `unix.rs`, `windows.rs` | the system calls behind each step |

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::testing::{Planted, is_planted};

#[cfg(unix)]
#[path = "unix.rs"]
mod os;
#[cfg(windows)]
#[path = "windows.rs"]
mod os;

/// The durable steps, as a fault plan sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reserve blocks for an extent.
    Allocate,
    /// Map an extent or the header.
    Map,
    /// Hand stores into the map of a region (by number), or of the header, over to the next sync.
    HandOver(Option<usize>),
    /// Bring written bytes to the disk.
    Sync,
    /// Make a name durable.
    SyncDirectory,
    /// Write a superblock, or bytes of a copy.
    WriteHeader,
    /// Read the header at open.
    ReadHeader,
    /// Put a new file in place of an old one.
    Rename,
    /// Remove a file beside the plane.
    Remove,
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
/// Held by process entry i's owner at `LOCK_OPENED + i` once it has found the file sound.
pub const LOCK_OPENED: u64 = LOCK_PROCESS + 64;

/// An open plane file.
pub struct Storage {
    file: File,
    path: PathBuf,
    read_only: bool,
    faults: Option<Arc<dyn Faults>>,
}

/// Tells files apart: device and inode, or what the system has instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

impl Storage {
    /// Opens an existing file.
    pub fn open(path: &Path, read_only: bool, faults: Option<Arc<dyn Faults>>) -> Result<Self> {
        let file = os::open(OpenOptions::new().read(true).write(!read_only), path)
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
        let file = os::open(OpenOptions::new().read(true).write(true).create_new(true), path)
            .map_err(|e| Error::io(e, "create", path))?;
        os::write_in_place(&file);
        Ok(Storage { file, path: path.to_path_buf(), read_only: false, faults })
    }

    /// The file's path as it was given, or as it is after `rename`.
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

    /// Whether a store to a mapped page may run out of space although its block is allocated.
    pub fn copies_on_write(&self) -> bool {
        os::copies_on_write(&self.file)
    }

    /// The fault plan, for other files that the same call touches.
    pub fn faults(&self) -> Option<Arc<dyn Faults>> {
        self.faults.clone()
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
        os::file_id(&self.file).map_err(|e| Error::io(e, "read the attributes of", &self.path))
    }

    /// Tells the mount that the file was opened through from others, also from one of the same file system; 0 where the
    /// system does not say.
    pub fn mount(&self) -> u64 {
        os::mount(&self.file)
    }

    /// Reserves blocks for `offset..offset + bytes` and extends the file over them (F2): after this, touching a page
    /// of the range cannot run out of space.
    pub fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.step(Step::Allocate)
            .and_then(|()| os::allocate(&self.file, offset, bytes))
            .map_err(|e| Error::io(e, "allocate space in", &self.path))
    }

    /// Writes bytes at an offset; used for superblocks only, everything else goes through the map.
    pub fn write_header(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.step(Step::WriteHeader)
            .and_then(|()| os::write_all_at(&self.file, bytes, offset))
            .map_err(|e| Error::io(e, "write the superblock of", &self.path))
    }

    /// Reads the first `bytes` bytes.
    pub fn read_header(&self, bytes: usize) -> Result<Vec<u8>> {
        let mut header = vec![0; bytes];
        self.step(Step::ReadHeader)
            .and_then(|()| os::read_exact_at(&self.file, &mut header, 0))
            .map_err(|e| Error::io(e, "read the header of", &self.path))?;
        Ok(header)
    }

    /// Returns when everything written so far is on the disk; stores into the map too, once `Map::flush` has handed them
    /// over. `Store::sync` does both.
    pub fn sync(&self) -> Result<()> {
        self.step(Step::Sync)
            .and_then(|()| os::sync(&self.file))
            .map_err(|e| Error::io(e, "sync", &self.path))
    }

    /// Cuts the file off; only recovery does, before anything past `bytes` is mapped.
    pub fn truncate(&self, bytes: u64) -> Result<()> {
        self.step(Step::Allocate)
            .and_then(|()| {
                if self.file.metadata()?.len() > bytes { os::truncate(&self.file, bytes) } else { Ok(()) }
            })
            .map_err(|e| Error::io(e, "truncate", &self.path))
    }

    /// Reads bytes that others may be writing through their maps; each aligned word is as somebody wrote it.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        os::read_exact_at(&self.file, bytes, offset).map_err(|e| Error::io(e, "read", &self.path))
    }

    /// Writes bytes of a file that nobody has mapped yet.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.step(Step::WriteHeader)
            .and_then(|()| os::write_all_at(&self.file, bytes, offset))
            .map_err(|e| Error::io(e, "write", &self.path))
    }

    /// How many names the file has.
    pub fn names(&self) -> Result<u64> {
        os::names(&self.file).map_err(|e| Error::io(e, "read the attributes of", &self.path))
    }

    /// Lets whoever may use `other` use this file: a copy should neither be open to more people than what it is a copy of,
    /// nor to fewer.
    pub fn share_like(&self, other: &Storage) -> Result<()> {
        os::share_like(&self.file, &other.file)
            .map_err(|e| Error::io(e, "set the permissions of", &self.path))
    }

    /// Moves the file to `path`, replacing what is there. Not durable before `sync_name`.
    pub fn rename(&mut self, path: &Path) -> Result<()> {
        self.step(Step::Rename)
            .and_then(|()| std::fs::rename(&self.path, path))
            .map_err(|e| Error::io(e, "move the new file to", path))?;
        self.path = path.to_path_buf();
        Ok(())
    }

    /// Makes the file's name durable.
    pub fn sync_name(&self) -> Result<()> {
        if is_planted(Planted::DirectoryNotSynced) {
            return Ok(());
        }
        self.step(Step::SyncDirectory)
            // Where a symbolic link leads.
            .and_then(|()| std::fs::canonicalize(&self.path))
            .and_then(|path| os::sync_directory(&path))
            .map_err(|e| Error::io(e, "sync the directory of", &self.path))
    }

    /// Moves the file to `path`, replacing what is there, and makes the move durable.
    #[cfg(test)]
    pub fn publish(&mut self, path: &Path) -> Result<()> {
        self.rename(path)?;
        self.sync_name()
    }

    /// The file has got a name at `path`: makes that durable.
    pub fn moved(&mut self, path: &Path) -> Result<()> {
        self.path = path.to_path_buf();
        self.sync_name()
    }

    /// Tries to take the kernel lock on one byte for this open file; it goes with the file, however the process ends.
    pub fn try_lock(&self, byte: u64) -> Result<bool> {
        self.step(Step::Lock)
            .and_then(|()| os::lock::try_lock(&self.file, byte))
            .map_err(|e| Error::io(e, "lock", &self.path))
    }

    /// Gives a lock back.
    pub fn unlock(&self, byte: u64) {
        // Nothing sensible can be done about a failing unlock, and closing the file releases the lock all the same.
        let _ = os::lock::unlock(&self.file, byte);
    }

    /// Whether another open file holds the lock on a byte.
    pub fn is_locked_elsewhere(&self, byte: u64) -> Result<bool> {
        self.step(Step::Lock)
            .and_then(|()| os::lock::is_locked_elsewhere(&self.file, byte))
            .map_err(|e| Error::io(e, "test the lock of", &self.path))
    }
}

/// Reserves space where the file system has no call for it.
fn write_zeros(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let zeros = vec![0u8; (bytes as usize).min(1 << 20)];
    let mut at = 0;
    while at < bytes {
        let step = (bytes - at).min(zeros.len() as u64);
        os::write_all_at(file, &zeros[..step as usize], offset + at)?;
        at += step;
    }
    Ok(())
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
    fn a_lock_given_back_can_be_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let a = Storage::create_new(&path, None).unwrap();
        let b = Storage::open(&path, false, None).unwrap();
        assert!(!a.is_locked_elsewhere(LOCK_WRITER).unwrap());
        assert!(a.try_lock(LOCK_WRITER).unwrap());
        a.unlock(LOCK_WRITER);
        assert!(!b.is_locked_elsewhere(LOCK_WRITER).unwrap());
        assert!(b.try_lock(LOCK_WRITER).unwrap());
    }

    #[test]
    fn files_are_told_apart_and_known_again() {
        let dir = tempfile::tempdir().unwrap();
        let a = Storage::create_new(&dir.path().join("a"), None).unwrap();
        let b = Storage::create_new(&dir.path().join("b"), None).unwrap();
        assert_ne!(a.file_id().unwrap(), b.file_id().unwrap());
        let again = Storage::open(a.path(), true, None).unwrap();
        assert_eq!(a.file_id().unwrap(), again.file_id().unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_mount_has_one_id_for_all_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let a = Storage::create_new(&dir.path().join("a"), None).unwrap();
        let b = Storage::create_new(&dir.path().join("b"), None).unwrap();
        let elsewhere = Storage::open(Path::new("/proc/self/status"), true, None).unwrap();
        assert_eq!(a.mount(), b.mount());
        // Kernels from before 5.8 do not say.
        assert!(a.mount() == 0 || a.mount() != elsewhere.mount());
    }

    #[test]
    fn a_file_that_is_open_can_be_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut new = Storage::create_new(&dir.path().join("new"), None).unwrap();
        let path = dir.path().join("f");
        let old = Storage::create_new(&path, None).unwrap();
        old.allocate(0, 65_536).unwrap();
        new.publish(&path).unwrap();
        let now = Storage::open(&path, true, None).unwrap();
        assert_eq!(now.file_id().unwrap(), new.file_id().unwrap());
        assert_eq!(old.len().unwrap(), 65_536);
        std::fs::remove_file(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_is_refused_as_one() {
        let dir = tempfile::tempdir().unwrap();
        for read_only in [false, true] {
            let error = Storage::open(dir.path(), read_only, None).err().expect("a directory is no plane");
            assert_eq!(error.code(), "EISDIR");
        }
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
