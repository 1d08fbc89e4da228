//! Making a new plane, in place of an old one if asked to: a crash leaves the old file or the new one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::file::header::Superblock;
use crate::file::layout::{HEADER_BYTES, NONE, SUPERBLOCK_BYTES};
use crate::file::store::Store;
use crate::new_file::{self, NewFile};
use crate::options::CreateOptions;
use crate::recover;
use crate::storage::{Faults, Storage};

/// Writes a new plane to `path`.
pub fn create(path: &Path, options: &CreateOptions, faults: Option<Arc<dyn Faults>>) -> Result<()> {
    options.check()?;
    new_file::check_target(path, options.overwrite)?;
    let random: [u8; 24] = new_file::random(path)?;
    let file = NewFile::beside(path, faults)?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&random[..16]);
    let seed = u64::from_le_bytes(random[16..].try_into().expect("eight bytes"));
    let mut superblock = Superblock::new(options, uuid, seed);
    superblock.commit.number = 2;
    write_empty(&file, &superblock)?.sync()?;
    new_file::put(file, options.overwrite, options.lock_timeout)
}

/// Writes the header of a plane that holds nothing yet, and maps it.
pub fn write_empty(file: &NewFile, superblock: &Superblock) -> Result<Store> {
    let storage = file.open()?;
    storage.allocate(0, HEADER_BYTES as u64)?;
    write_superblocks(&storage, superblock)?;
    let store = Store::new(storage, superblock.config.clone(), superblock.uuid, 0)?;
    let shared = store.shared();
    shared.epoch.store(1, Ordering::Relaxed);
    shared.entry.store(u64::MAX, Ordering::Relaxed);
    for word in recover::id_words(shared) {
        word.store(NONE, Ordering::Relaxed);
    }
    shared.commits.store(superblock.commit.number, Ordering::Relaxed);
    Ok(store)
}

/// Writes a superblock, and the one before it: both are valid from the start, so that a flipped bit in one of them is no
/// loss.
pub fn write_superblocks(storage: &Storage, superblock: &Superblock) -> Result<()> {
    let mut earlier = superblock.clone();
    earlier.commit.number -= 1;
    storage.write_header(0, &earlier.encode())?;
    storage.write_header(SUPERBLOCK_BYTES as u64, &superblock.encode())
}
