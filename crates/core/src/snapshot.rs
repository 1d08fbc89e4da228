//! A copy of the plane as it is at one moment, made while others write.
//!
//! The file is copied beside the writers, page by page, with a hash of each page kept. Then the plane is made to stand
//! still for as long as it takes to look at every page again and copy those that have another hash by now: what is there
//! then is the plane between two operations. What only running processes mean is left out of the copy, which is written
//! out as after a flush.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::create::write_superblocks;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::file::extents::Extent;
use crate::file::header::Superblock;
use crate::file::layout::HEADER_BYTES;
use crate::file::shared::FLAG_TAGGED;
use crate::file::store::Store;
use crate::new_file::{self, NewFile};
use crate::recover::Progress;
use crate::storage::Storage;
use crate::testing::{Planted, is_planted};
use crate::turn::{Patience, TurnGuard};

/// What is compared and copied as one.
const PAGE: usize = 4096;
/// What is read at a time.
const CHUNK: usize = 1 << 20;
/// Looks beside the writers at most: each finds what was changed during the one before.
const LOOKS_MAX: usize = 5;
/// So little is copied while the writers wait that another look beside them would gain nothing.
const FEW: u64 = 4 << 20;

/// Copies the plane to `target`.
pub fn snapshot(
    engine: &Engine,
    target: &Path,
    overwrite: bool,
    patience: Patience<'_>,
    progress: &Progress<'_>,
) -> Result<()> {
    let source = engine.store.storage();
    check_elsewhere(source, target, overwrite)?;
    new_file::sweep(target);
    let file = NewFile::beside(target, source.faults())?;
    file.storage().share_like(source)?;
    let seed = u64::from_le_bytes(new_file::random(target)?);
    let mut copy = Copy { source, target: file.storage(), end: 0, pages: Vec::new(), seed };
    file.storage().allocate(0, HEADER_BYTES as u64)?;

    engine.store.refresh()?;
    let (mut looks, mut before) = (0, u64::MAX);
    loop {
        let changed = copy.look(&engine.store.extents(), progress, looks == 0)?;
        looks += 1;
        if changed <= FEW || changed > before / 2 || looks == LOOKS_MAX {
            break;
        }
        before = changed;
        engine.store.refresh()?;
    }
    let still = Still::begin(engine, patience)?;
    copy.look(&engine.store.extents(), progress, false)?;
    let mut header = vec![0; HEADER_BYTES];
    source.read_at(0, &mut header)?;
    let superblock = engine.next_superblock()?;
    still.end(engine)?;

    file.storage().write_at(0, &header)?;
    finish(&file, &superblock)?;
    new_file::put(file, overwrite, patience.timeout())
}

/// Refuses a path that has something which may not be replaced, the plane itself above all.
pub fn check_elsewhere(source: &Storage, target: &Path, overwrite: bool) -> Result<()> {
    let own = Storage::open(target, true, None).and_then(|found| found.file_id()).ok();
    if own == Some(source.file_id()?) {
        return Err(Error::InvalidOption { name: "path", reason: "is the plane's own file" });
    }
    new_file::check_target(target, overwrite)
}

/// A plane that stands still: by the turn, or, where the file cannot be written, because nobody has it open for writing.
pub struct Still<'a> {
    turn: Option<TurnGuard<'a>>,
    commits: u64,
}

impl<'a> Still<'a> {
    /// Waits for writes in flight, and keeps others from beginning.
    pub fn begin(engine: &'a Engine, patience: Patience<'_>) -> Result<Self> {
        let may_write = !engine.store.storage().read_only();
        let turn = if may_write { Some(engine.stand_still(patience)?) } else { None };
        let still = Still { turn, commits: engine.store.shared().commits.load(Ordering::Acquire) };
        still.check(engine)?;
        engine.store.refresh()?;
        Ok(still)
    }

    /// Lets writes go on; fails when there was no way to stop them and some were made.
    pub fn end(self, engine: &Engine) -> Result<()> {
        self.check(engine)
    }

    fn check(&self, engine: &Engine) -> Result<()> {
        let shared = engine.store.shared();
        // A writer marks the plane first, and takes the mark away only after a flush.
        let unwritten = shared.dirty.load(Ordering::Acquire) == 0
            && shared.commits.load(Ordering::Acquire) == self.commits;
        if self.turn.is_some() || unwritten { Ok(()) } else { Err(Error::ReadOnly) }
    }
}

/// A copy under way.
struct Copy<'a> {
    source: &'a Storage,
    target: &'a Storage,
    /// How far the target has room.
    end: u64,
    /// Hash of each page as it was copied; 0 for none. The seed is random, so that no data can be made to collide.
    pages: Vec<u64>,
    seed: u64,
}

impl Copy<'_> {
    /// Copies the pages that are not as they were copied last, and returns how many bytes those are.
    fn look(&mut self, extents: &[Extent], progress: &Progress<'_>, first: bool) -> Result<u64> {
        let total: u64 = extents.iter().map(|extent| extent.bytes).sum();
        let (mut done, mut changed) = (0, 0);
        let mut chunk = vec![0; CHUNK];
        for extent in extents {
            if extent.end() > self.end {
                self.target.allocate(extent.offset, extent.bytes)?;
                self.end = extent.end();
                self.pages.resize(self.end as usize / PAGE, 0);
            }
            let mut at = extent.offset;
            while at < extent.end() {
                let bytes = (extent.end() - at).min(CHUNK as u64) as usize;
                self.source.read_at(at, &mut chunk[..bytes])?;
                changed += self.take(at, &chunk[..bytes])?;
                at += bytes as u64;
                done += bytes as u64;
                if !progress(if first { done } else { total }, total) {
                    return Err(Error::Aborted);
                }
            }
        }
        Ok(changed)
    }

    /// Writes the pages of a chunk that have changed, neighbours at once.
    fn take(&mut self, offset: u64, chunk: &[u8]) -> Result<u64> {
        let (mut changed, mut run) = (0, 0..0);
        for (i, page) in chunk.chunks(PAGE).enumerate() {
            let hash = xxh3_64_with_seed(page, self.seed) | 1;
            let known = &mut self.pages[offset as usize / PAGE + i];
            if *known == hash {
                continue;
            }
            *known = hash;
            let at = i * PAGE;
            if run.end != at {
                self.write(offset, chunk, &run)?;
                run.start = at;
            }
            run.end = at + page.len();
            changed += page.len() as u64;
        }
        self.write(offset, chunk, &run)?;
        Ok(changed)
    }

    fn write(&self, offset: u64, chunk: &[u8], run: &std::ops::Range<usize>) -> Result<()> {
        if run.is_empty() {
            return Ok(());
        }
        self.target.write_at(offset + run.start as u64, &chunk[run.clone()])
    }
}

/// Makes a plane of its own of a copy: clean, as after a flush, and without a trace of those who have the source open.
fn finish(file: &NewFile, superblock: &Superblock) -> Result<()> {
    let nodes = u64::from(superblock.commit.id_high_water);
    let store = Store::new(file.open()?, superblock.config.clone(), superblock.uuid, nodes)?;
    let shared = store.shared();
    let clear = |words: &[&AtomicU32]| words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    shared.flags.fetch_and(FLAG_TAGGED, Ordering::Relaxed);
    clear(&[
        &shared.lane_high_water,
        &shared.replacements,
        &shared.supersessions,
        &shared.dirty,
        &shared.writer_pid,
        &shared.handover,
        &shared.settled,
    ]);
    let identity: [&AtomicU64; 5] =
        [&shared.boot[0], &shared.boot[1], &shared.device, &shared.inode, &shared.mount];
    identity.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    store.processes().iter().for_each(|process| clear(&[&process.pid]));
    store.intents().iter().for_each(|intent| clear(&[&intent.operation]));
    for lane in store.lanes() {
        lane.pinned.store(0, Ordering::Relaxed);
        clear(&[&lane.owner]);
    }
    shared.watermark.store(superblock.commit.watermark, Ordering::Relaxed);
    shared.commits.store(superblock.commit.number, Ordering::Relaxed);
    write_superblocks(store.storage(), superblock)?;
    if is_planted(Planted::NewFileNotSynced) { Ok(()) } else { store.sync() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::options::{CreateOptions, OpenOptions};
    use crate::plane::Plane;
    use crate::registry;

    /// Where the file may not be written there is no turn to take: a plane that nobody writes is copied, another is not.
    #[test]
    fn without_write_access_only_a_plane_at_rest_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("plane"), dir.path().join("copy"));
        let timeout = Duration::from_secs(5);
        let patience = Patience::new(timeout);
        let plane = Plane::create(&path, &CreateOptions::new(2)).unwrap();
        plane.insert(&[1.0, 2.0], b"").unwrap();
        plane.flush(None).unwrap();
        let reader = registry::open(&path, true, timeout, &|_, _| true, None).unwrap();
        let refused = snapshot(&reader, &copy, false, patience, &|_, _| true);
        assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
        drop(plane);
        let interfere = |done, total| {
            if done == total && !copy.exists() {
                let plane = Plane::open(&path, &OpenOptions::default()).unwrap();
                plane.insert(&[2.0, 1.0], b"").unwrap();
                plane.flush(None).unwrap();
            }
            true
        };
        let refused = snapshot(&reader, &copy, false, patience, &interfere);
        assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
        snapshot(&reader, &copy, false, patience, &|_, _| true).unwrap();
        let count = Plane::open(&copy, &OpenOptions::default()).unwrap().count().unwrap();
        assert!(count > 1, "{count}");
    }
}
