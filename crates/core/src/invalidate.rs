//! Declaring a plane invalid for good: its host found that it does not mirror what it should, and nobody shall go on with
//! it, whatever happens next.
//!
//! Two marks say so, and either alone suffices: a flag in the file, which every handle of every process sees at once, and
//! a file beside it, which can be made where the plane cannot be written. Each is on the disk when the call returns. Nothing
//! takes the flag away again; the sidecar goes when another plane has taken the place of the invalid one.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::Guard;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::file::header::Superblock;
use crate::file::layout::{HEADER_BYTES, SHARED_OFFSET, SUPERBLOCK_BYTES};
use crate::file::shared::{FLAG_INVALIDATED, FLAGS_KNOWN, SharedState};
use crate::file::store::Store;
use crate::plane::Plane;
use crate::storage::{Faults, Step, Storage};

/// How often in a row a path may turn out to have got another file just now.
const FOLLOWS_MAX: usize = 64;

/// Which marks an invalidation has made.
#[derive(Debug)]
pub struct Invalidation {
    /// The flag in the file, or why it could not be set.
    pub in_band: Result<()>,
    /// The file beside it, or why it could not be made.
    pub sidecar: Result<()>,
}

/// Where the sidecar of a plane is.
pub fn stale_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".stale");
    name.into()
}

/// Invalidates the plane at a path, which need not be open, or whole. Fails only when neither mark could be made durable.
pub fn invalidate_plane(path: &Path) -> Result<Invalidation> {
    invalidate_at(path, None)
}

pub(crate) fn invalidate_at(path: &Path, faults: Option<Arc<dyn Faults>>) -> Result<Invalidation> {
    // The sidecar first: it needs nothing of the plane.
    let sidecar = make_sidecar(path, &faults);
    let in_band = mark_file(path, &faults);
    match (&in_band, &sidecar) {
        (Err(in_band), Err(sidecar)) => Err(Error::NotInvalidated {
            path: path.to_path_buf(),
            in_band: in_band.to_string(),
            sidecar: sidecar.to_string(),
        }),
        _ => Ok(Invalidation { in_band, sidecar }),
    }
}

fn make_sidecar(path: &Path, faults: &Option<Arc<dyn Faults>>) -> Result<()> {
    let stale = stale_path(path);
    let make = |e| Error::io(e, "create", &stale);
    let step = |step| faults.as_ref().map_or(Ok(()), |f| f.before(step));
    let file = File::options().write(true).create(true).truncate(false).open(&stale).map_err(make)?;
    step(Step::Sync).and_then(|()| file.sync_all()).map_err(|e| Error::io(e, "sync", &stale))?;
    Storage::open(&stale, false, faults.clone())?.sync_name()
}

/// Sets the flag in whatever file is at the path when this returns.
fn mark_file(path: &Path, faults: &Option<Arc<dyn Faults>>) -> Result<()> {
    for _ in 0..FOLLOWS_MAX {
        let storage = Storage::open(path, false, faults.clone())?;
        if storage.len()? < HEADER_BYTES as u64 {
            return Err(Error::NotAPlane { path: path.to_path_buf(), reason: "it is shorter than a header" });
        }
        let header = storage.read_header(2 * SUPERBLOCK_BYTES)?;
        let (superblock, _) = Superblock::choose(&header, path)?;
        let store = Store::new(storage, superblock.config, superblock.uuid, 0)?;
        mark(store.shared());
        store.sync()?;
        // A compaction that saw no flag has moved its file here before it looked.
        if Storage::open(path, true, None)?.file_id()? == store.file_id()? {
            return Ok(());
        }
    }
    Err(Error::Superseded { path: path.to_path_buf() })
}

fn mark(shared: &SharedState) {
    shared.flags.fetch_or(FLAG_INVALIDATED, Ordering::SeqCst);
    shared.watermark.store(0, Ordering::SeqCst);
}

/// Whether the flag is set. Flags that no version sets are damage, and say nothing.
pub fn is_marked(flags: u32) -> bool {
    flags & FLAG_INVALIDATED != 0 && flags & !FLAGS_KNOWN == 0
}

/// Whether the sidecar is there.
pub fn has_sidecar(path: &Path) -> bool {
    stale_path(path).symlink_metadata().is_ok()
}

/// Refuses an invalid plane before anything of it is mapped or repaired.
pub fn check_path(path: &Path) -> Result<()> {
    let invalidated = || Error::Invalidated { path: path.to_path_buf() };
    if has_sidecar(path) {
        return Err(invalidated());
    }
    let storage = Storage::open(path, true, None)?;
    if storage.len()? >= HEADER_BYTES as u64 {
        let mut word = [0; 4];
        let at = SHARED_OFFSET + std::mem::offset_of!(SharedState, flags);
        storage.read_at(at as u64, &mut word)?;
        // Of something else's file no word means anything.
        let header = storage.read_header(2 * SUPERBLOCK_BYTES)?;
        if is_marked(u32::from_le_bytes(word)) && Superblock::choose(&header, path).is_ok() {
            return Err(invalidated());
        }
    }
    Ok(())
}

/// For a plane that has just come to be at its path: what was said of the one before does not concern it. Only now, since
/// until then the one before would have passed for valid.
pub fn remove_sidecar(storage: &Storage) -> Result<()> {
    let stale = stale_path(storage.path());
    if stale.symlink_metadata().is_err() {
        return Ok(());
    }
    storage
        .step(Step::Remove)
        .and_then(|()| std::fs::remove_file(&stale))
        .map_err(|e| Error::io(e, "remove", &stale))?;
    storage.sync_name()
}

impl Engine {
    /// Whether the flag is set in this file.
    pub fn is_invalidated(&self) -> bool {
        is_marked(self.store.shared().flags.load(Ordering::SeqCst))
    }
}

impl Plane {
    /// Sets the mark in the file that this handle has open, wherever its path leads, durably.
    pub fn invalidate(&self) -> Result<()> {
        if self.read_only() {
            return Err(Error::ReadOnly);
        }
        let mut engine = Guard::into_inner(self.engine()?);
        for _ in 0..FOLLOWS_MAX {
            engine.check_current()?;
            mark(engine.store.shared());
            engine.sync_data()?;
            // A compaction that was under way has seen the mark, or this handle sees the new file.
            let now = Guard::into_inner(self.engine()?);
            if Arc::ptr_eq(&now, &engine) {
                return Ok(());
            }
            engine = now;
        }
        Err(Error::Superseded { path: self.path().to_path_buf() })
    }

    /// Makes both marks, at this handle's path. Fails only when neither could be made durable.
    pub fn invalidate_file(&self) -> Result<Invalidation> {
        let faults = self.engine()?.store.storage().faults();
        invalidate_at(self.path(), faults)
    }

    /// Whether either mark is there.
    pub fn is_invalidated(&self) -> Result<bool> {
        let engine = self.engine()?;
        engine.check_current()?;
        Ok(engine.is_invalidated() || has_sidecar(self.path()))
    }

    /// Refuses to make more of an invalid plane.
    pub(crate) fn check_valid(&self) -> Result<()> {
        if self.is_invalidated()? {
            return Err(Error::Invalidated { path: self.path().to_path_buf() });
        }
        Ok(())
    }
}
