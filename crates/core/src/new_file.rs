//! A file in the making: written under another name beside the path it is for, complete and durable before it gets there.
//!
//! Whoever writes one holds a lock on it, so that files whose maker died are known by their free locks, and removed.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::file::header::Superblock;
use crate::file::layout::{HEADER_BYTES, SUPERBLOCK_BYTES};
use crate::file::store::Store;
use crate::invalidate;
use crate::storage::{Faults, FileId, LOCK_WRITER, Step, Storage};
use crate::testing;
use crate::turn;

const SUFFIX: &str = ".new";

/// See the module's first line. Dropped before it is published, it is removed.
pub struct NewFile {
    storage: Storage,
    target: PathBuf,
    published: bool,
}

impl NewFile {
    /// An empty file beside `target`.
    pub fn beside(target: &Path, faults: Option<Arc<dyn Faults>>) -> Result<Self> {
        loop {
            let path = temporary_path(target)?;
            let storage = Storage::create_new(&path, faults.clone())?;
            let file = NewFile { storage, target: target.to_path_buf(), published: false };
            // Between its creation and its lock somebody may have taken it for one whose maker died.
            let locked = file.storage.try_lock(LOCK_WRITER)?;
            if locked && leads_to(&path, file.storage.file_id()?) {
                return Ok(file);
            }
        }
    }

    /// The file itself.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The same file opened once more, for a `Store` to own.
    pub fn open(&self) -> Result<Storage> {
        Storage::open(self.storage.path(), false, self.storage.faults())
    }

    /// Moves the file to its path, in the place of what is there.
    pub fn replace(&mut self) -> Result<()> {
        self.storage.rename(&self.target)?;
        self.published = true;
        self.storage.sync_name()
    }

    /// Moves the file to its path, where there must be none.
    pub fn publish(&mut self) -> Result<()> {
        let temporary = self.storage.path().to_path_buf();
        // A hard link, unlike a rename, fails when something came to be at the path meanwhile.
        let linked =
            self.storage.step(Step::Rename).and_then(|()| std::fs::hard_link(&temporary, &self.target));
        match linked {
            Ok(()) => {
                self.published = true;
                let _ = std::fs::remove_file(&temporary);
                self.storage.moved(&self.target)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Err(Error::Exists { path: self.target.clone() })
            }
            // No hard links here.
            Err(_) => self.replace(),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.published {
            // Left behind at worst; its name says what it is.
            let _ = std::fs::remove_file(self.storage.path());
        }
    }
}

/// Refuses a path for a new file that has something which may not be replaced.
pub fn check_target(path: &Path, overwrite: bool) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            Err(Error::io(io::Error::from(io::ErrorKind::IsADirectory), "create", path))
        }
        Ok(_) if !overwrite => Err(Error::Exists { path: path.to_path_buf() }),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io(e, "create", path)),
    }
}

/// Puts a complete and durable file at its path; with `overwrite`, in the place of a plane that is there.
pub fn put(mut file: NewFile, overwrite: bool, timeout: Duration) -> Result<()> {
    if !overwrite {
        file.publish()?;
        return invalidate::remove_sidecar(&file.storage);
    }
    // Whoever has the old plane open must neither lose a write that it was told of, nor go on as if nothing happened:
    // its turn is taken for the moment of the swap, and it is marked before the turn is given back.
    let old = hold_old(&file.target, timeout, file.storage.faults())?;
    let replaced = file.replace();
    if let Some(old) = old {
        // Also when the new name is there but could not be made durable.
        if file.published {
            old.shared().replacements.fetch_add(1, Ordering::SeqCst);
        }
        old.storage().unlock(LOCK_WRITER);
    }
    replaced?;
    invalidate::remove_sidecar(&file.storage)
}

/// The old plane with its turn taken; `None` when what is there is no plane.
fn hold_old(path: &Path, timeout: Duration, faults: Option<Arc<dyn Faults>>) -> Result<Option<Store>> {
    let deadline = Instant::now() + timeout;
    loop {
        let Ok(storage) = Storage::open(path, false, faults.clone()) else { return Ok(None) };
        if storage.len()? < HEADER_BYTES as u64 {
            return Ok(None);
        }
        let header = storage.read_header(2 * SUPERBLOCK_BYTES)?;
        let Ok((superblock, _)) = Superblock::choose(&header, path) else { return Ok(None) };
        let store = Store::new(storage, superblock.config, superblock.uuid, 0)?;
        turn::acquire(&store, deadline, &|| true)?;
        // Whoever had the turn before may have put another file there.
        if leads_to(path, store.file_id()?) {
            return Ok(Some(store));
        }
    }
}

fn leads_to(path: &Path, file: FileId) -> bool {
    Storage::open(path, true, None).and_then(|found| found.file_id()).is_ok_and(|found| found == file)
}

/// Removes what makers of files for this path left behind when they were killed.
pub fn sweep(target: &Path) {
    let Ok(prefix) = prefix(target) else { return };
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A directory that cannot be read is swept by nobody.
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let tag = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
        let tag = tag.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
        if tag.is_some_and(|tag| tag.len() == 8 && tag.iter().all(u8::is_ascii_hexdigit)) {
            let abandoned = |file: &Storage| file.try_lock(LOCK_WRITER).unwrap_or(false);
            if Storage::open(&entry.path(), false, None).is_ok_and(|file| abandoned(&file)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn prefix(target: &Path) -> Result<OsString> {
    let mut name = OsString::from(".");
    name.push(target.file_name().ok_or_else(|| {
        Error::io(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"), "create", target)
    })?);
    name.push(".");
    Ok(name)
}

fn temporary_path(target: &Path) -> Result<PathBuf> {
    let mut name = prefix(target)?;
    name.push(format!("{:08x}{SUFFIX}", u32::from_le_bytes(random(target)?)));
    Ok(target.with_file_name(name))
}

/// Random bytes for a new file.
pub fn random<const N: usize>(path: &Path) -> Result<[u8; N]> {
    let mut random = [0; N];
    if let Some(fixed) = testing::fixed_random() {
        random.copy_from_slice(&fixed[..N]);
        return Ok(random);
    }
    getrandom::fill(&mut random)
        .map_err(|_| Error::io(io::Error::other("no random numbers"), "create", path))?;
    Ok(random)
}
