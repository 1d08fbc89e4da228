//! Compaction: the plane written anew without the room that removals left, and swapped for the old file.
//!
//! The plane stands still from before the first record is read until the new file is in its place. Handles find out by
//! `SharedState::supersessions` of the old file, which is odd while the swap is under way: whoever sees another number
//! than before looks at its path. A compaction that is killed leaves the old file at the path or the new one, each
//! complete, and nobody has written since to the one that is not.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::file::shared::{FLAG_INVALIDATED, FLAG_SYNC_FAILED};
use crate::file::store::Store;
use crate::graph::second_pass;
use crate::new_file::{self, NewFile};
use crate::numbering::Numbering;
use crate::recover::Progress;
use crate::rewrite::rewrite;
use crate::snapshot::{Still, check_elsewhere};
use crate::storage::Storage;
use crate::turn::Patience;

/// How a plane is compacted.
#[derive(Clone, Debug, Default)]
pub struct CompactOptions {
    /// Where the compacted plane goes; `None`: in the place of the plane itself, whose handles follow.
    pub path: Option<PathBuf>,
    /// With `path`: replace what is there.
    pub overwrite: bool,
    /// Give every record a new id, without gaps and near its neighbours'.
    pub renumber: bool,
    /// Let every record choose its links anew, among all that are there by now; not done where the metric is the inner product.
    pub relink: bool,
    /// Threads that link; 0: one for each hardware thread.
    pub threads: usize,
}

/// What a compaction did.
#[derive(Clone, Debug, Default)]
pub struct Compacted {
    /// Size of the file before.
    pub bytes_before: u64,
    /// Size of the new one.
    pub bytes_after: u64,
    /// With `renumber`, by old id: the new one, `u32::MAX` where there was no record. Else empty.
    pub new_ids: Vec<u32>,
}

/// Compacts a plane that its handle reached by `path`.
pub fn compact(
    engine: &Engine,
    path: &Path,
    options: &CompactOptions,
    patience: Patience<'_>,
    progress: &Progress<'_>,
) -> Result<Compacted> {
    match &options.path {
        None => in_place(engine, path, options, patience, progress),
        Some(target) => {
            check_elsewhere(engine.store.storage(), target, options.overwrite)?;
            new_file::sweep(target);
            let still = Still::begin(engine, patience)?;
            let (file, outcome) = write(engine, target, options, progress)?;
            still.end(engine)?;
            new_file::put(file, options.overwrite, patience.timeout())?;
            Ok(outcome)
        }
    }
}

fn in_place(
    engine: &Engine,
    path: &Path,
    options: &CompactOptions,
    patience: Patience<'_>,
    progress: &Progress<'_>,
) -> Result<Compacted> {
    // A symbolic link stays one.
    let path = std::fs::canonicalize(path).map_err(|e| Error::io(e, "find", path))?;
    let _still = engine.stand_still(patience)?;
    let found = Storage::open(&path, true, None)?;
    if found.file_id()? != engine.store.file_id()? {
        // Moved away by somebody, who then put something else there.
        return Err(Error::Replaced { path });
    }
    new_file::sweep(&path);
    let names = found.names()?;
    if names > 1 {
        return Err(Error::Linked { path, names });
    }
    let (mut file, outcome) = write(engine, &path, options, progress)?;
    // Nobody can write to the new file before its lock is given back, which is after the swap.
    let _swap = Swap::begin(&engine.store);
    if let Err(error) = file.replace() {
        // The new file may be in its place, but a power cut may bring back the old one: writers stop until that is settled.
        if let Ok(store) = file.open().and_then(|storage| header_of(engine, storage)) {
            store.shared().flags.fetch_or(FLAG_SYNC_FAILED, Ordering::SeqCst);
        }
        return Err(error);
    }
    if engine.is_invalidated() {
        // Meanwhile. From here on whoever sets the mark finds that the plane has another file, and sets it there as well.
        let store = header_of(engine, file.open()?)?;
        store.shared().flags.fetch_or(FLAG_INVALIDATED, Ordering::SeqCst);
        store.sync()?;
    }
    Ok(outcome)
}

/// A complete file beside `target`. The engine's plane stands still.
fn write(
    engine: &Engine,
    target: &Path,
    options: &CompactOptions,
    progress: &Progress<'_>,
) -> Result<(NewFile, Compacted)> {
    let source = &engine.store;
    let numbering =
        if options.renumber { Numbering::by_neighbourhood(source) } else { Numbering::kept(source) };
    let file = NewFile::beside(target, source.storage().faults())?;
    file.storage().share_like(source.storage())?;
    let relinks = options.relink && second_pass::helps(source.config.metric);
    let relink = relinks.then_some(options.threads);
    rewrite(source, &engine.next_superblock()?, &file, &numbering, relink, progress)?;
    let outcome = Compacted {
        bytes_before: source.storage().len()?,
        bytes_after: file.storage().len()?,
        new_ids: if options.renumber { numbering.new_of } else { Vec::new() },
    };
    Ok((file, outcome))
}

fn header_of(engine: &Engine, storage: Storage) -> Result<Store> {
    Store::new(storage, engine.store.config.clone(), *engine.store.uuid(), 0)
}

/// The moment in which one file takes the other's place. However it ends, everyone looks at the path afterwards.
struct Swap<'a>(&'a Store);

impl<'a> Swap<'a> {
    fn begin(store: &'a Store) -> Self {
        store.shared().supersessions.fetch_add(1, Ordering::SeqCst);
        Swap(store)
    }
}

impl Drop for Swap<'_> {
    fn drop(&mut self) {
        self.0.shared().supersessions.fetch_add(1, Ordering::SeqCst);
    }
}
