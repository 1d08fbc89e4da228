//! Making a new plane, in place of an old one if asked to: a crash leaves the old file or the new one.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::file::header::Superblock;
use crate::file::layout::{HEADER_BYTES, NONE, SUPERBLOCK_BYTES};
use crate::file::store::Store;
use crate::options::CreateOptions;
use crate::recover;
use crate::storage::{Faults, LOCK_WRITER, Step, Storage};
use crate::testing;
use crate::turn;

/// Writes a new plane to `path`.
pub fn create(path: &Path, options: &CreateOptions, faults: Option<Arc<dyn Faults>>) -> Result<()> {
    options.check()?;
    let present = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            return Err(Error::io(io::Error::from(io::ErrorKind::IsADirectory), "create", path));
        }
        Ok(_) => true,
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(Error::io(e, "create", path)),
    };
    if present && !options.overwrite {
        return Err(Error::Exists { path: path.to_path_buf() });
    }
    let (temporary, random) = temporary_path(path)?;
    let _remove = RemoveOnDrop(temporary.clone());
    let storage = Storage::create_new(&temporary, faults.clone())?;
    write_new(storage, options, random)?;
    // Whoever has the old plane open must neither lose a write that it was told of, nor go on as if nothing happened:
    // its turn is taken for the moment of the swap, and it is marked before the turn is given back.
    let old = if present { hold_old(path, options.lock_timeout, faults.clone())? } else { None };
    let mut storage = Storage::open(&temporary, false, faults)?;
    let published = if options.overwrite { storage.publish(path) } else { publish_new(&mut storage, path) };
    if let Some(old) = old {
        // Also when the new name is there but could not be made durable.
        if storage.path() == path {
            old.shared().replacements.fetch_add(1, Ordering::SeqCst);
        }
        old.storage().unlock(LOCK_WRITER);
    }
    published
}

/// The temporary name, which is gone already after a rename.
struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        // Left behind at worst; its name says what it is.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn temporary_path(path: &Path) -> Result<(PathBuf, [u8; 24])> {
    let mut random = [0u8; 24];
    match testing::fixed_random() {
        Some(fixed) => random = fixed,
        None => getrandom::fill(&mut random)
            .map_err(|_| Error::io(io::Error::other("no random numbers"), "create", path))?,
    }
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or_else(|| {
        Error::io(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"), "create", path)
    })?);
    let tag = u32::from_le_bytes([random[0], random[1], random[2], random[3]]);
    name.push(format!(".{tag:08x}.new"));
    Ok((path.with_file_name(name), random))
}

fn write_new(storage: Storage, options: &CreateOptions, random: [u8; 24]) -> Result<()> {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&random[..16]);
    let seed = u64::from_le_bytes(random[16..].try_into().expect("eight bytes"));
    let mut superblock = Superblock::new(options, uuid, seed);
    storage.allocate(0, HEADER_BYTES as u64)?;
    // Both are valid from the start, so that a flipped bit in one of them is no loss.
    storage.write_header(0, &superblock.encode())?;
    superblock.commit.number = 2;
    storage.write_header(SUPERBLOCK_BYTES as u64, &superblock.encode())?;
    let store = Store::new(storage, superblock.config, superblock.uuid, 0)?;
    let shared = store.shared();
    shared.epoch.store(1, Ordering::Relaxed);
    shared.entry.store(u64::MAX, Ordering::Relaxed);
    for word in recover::id_words(shared) {
        word.store(NONE, Ordering::Relaxed);
    }
    shared.commits.store(2, Ordering::Relaxed);
    store.sync()
}

/// The old plane with its turn taken; `None` when what is there is no plane.
fn hold_old(path: &Path, timeout: Duration, faults: Option<Arc<dyn Faults>>) -> Result<Option<Store>> {
    let Ok(storage) = Storage::open(path, false, faults) else { return Ok(None) };
    if storage.len()? < HEADER_BYTES as u64 {
        return Ok(None);
    }
    let header = storage.read_header(2 * SUPERBLOCK_BYTES)?;
    let Ok((superblock, _)) = Superblock::choose(&header, path) else { return Ok(None) };
    let store = Store::new(storage, superblock.config, superblock.uuid, 0)?;
    turn::acquire(&store, Instant::now() + timeout)?;
    Ok(Some(store))
}

/// Moves the new file to a path where there must be none.
fn publish_new(storage: &mut Storage, path: &Path) -> Result<()> {
    let temporary = storage.path().to_path_buf();
    // A hard link, unlike a rename, fails when something came to be at the path meanwhile.
    let linked = storage.step(Step::Rename).and_then(|()| std::fs::hard_link(&temporary, path));
    match linked {
        Ok(()) => storage.moved(path),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(Error::Exists { path: path.to_path_buf() }),
        // No hard links here.
        Err(_) => storage.publish(path),
    }
}
