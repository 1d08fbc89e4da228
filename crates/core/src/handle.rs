//! A handle's way to its plane: the path it was opened with, and the engine that the path led to last.
//!
//! A compaction puts another file at the path. Every handle notices at its next operation, by a word of the old file, and
//! opens the path again; what is under way on the old file ends there, on the old map.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use crate::config::Config;
use crate::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::registry;
use crate::storage::{FileId, Storage};

/// An engine in use: it stays, whatever comes to be at the path.
pub type Current = Guard<Arc<Engine>>;

/// How often in a row a path may turn out to have got another file just now.
const FOLLOWS_MAX: usize = 64;
/// How long opening the new file waits for whoever repairs it, should its writer have died already.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(5);

/// What the clones of a `Plane` share.
pub struct Handle {
    pub path: PathBuf,
    pub read_only: bool,
    pub uuid: [u8; 16],
    /// Compaction does not change it.
    pub config: Config,
    /// As the file was found when this handle was opened.
    pub opened_clean: bool,
    engine: ArcSwap<Engine>,
    /// One thread opens the path again, the others wait for it.
    following: Mutex<()>,
}

impl Handle {
    /// A handle on an engine that `path` led to.
    pub fn new(path: &Path, read_only: bool, engine: Arc<Engine>) -> Self {
        Handle {
            path: path.to_path_buf(),
            read_only,
            uuid: *engine.store.uuid(),
            config: engine.store.config.clone(),
            opened_clean: engine.opened_clean(),
            engine: ArcSwap::new(engine),
            following: Mutex::default(),
        }
    }

    /// The engine to work with now.
    #[inline]
    pub fn current(&self) -> Result<Current> {
        let engine = self.engine.load();
        if engine.is_superseded() { self.follow() } else { Ok(engine) }
    }

    /// Runs `work` on the current engine, again if that one's file was replaced before it could begin.
    pub fn run<T>(&self, mut work: impl FnMut(&Engine) -> Result<T>) -> Result<T> {
        for _ in 0..FOLLOWS_MAX {
            let engine = self.current()?;
            match work(&engine) {
                Err(Error::Superseded { .. }) => {}
                result => return result,
            }
        }
        Err(Error::Superseded { path: self.path.clone() })
    }

    #[cold]
    fn follow(&self) -> Result<Current> {
        let _following = lock(&self.following);
        for _ in 0..FOLLOWS_MAX {
            let engine = self.engine.load();
            if !engine.is_superseded() {
                return Ok(engine);
            }
            // Before the path is looked at: a swap that begins afterwards shows in the next look.
            let swaps = engine.swaps();
            let unfinished = !swaps.is_multiple_of(2);
            match self.leads_to(engine.store.file_id()?) {
                Ok(false) => {}
                // The swap came to nothing.
                Ok(true) if !unfinished => {
                    engine.stay(swaps);
                    continue;
                }
                // Nothing is lost by going on here: nobody writes while a swap is under way, nor before somebody has found out
                // how it ended.
                Ok(true) => return Ok(engine),
                Err(_) if unfinished => return Ok(engine),
                Err(error) => return Err(error),
            }
            let next = self.open(self.read_only, &engine)?;
            if next.store.uuid() != engine.store.uuid() {
                // Another plane was created over the compacted one.
                return Err(Error::Replaced { path: self.path.clone() });
            }
            self.engine.store(next);
        }
        Err(Error::Superseded { path: self.path.clone() })
    }

    /// What is at the path now.
    fn open(&self, read_only: bool, before: &Engine) -> Result<Arc<Engine>> {
        let faults = before.store.storage().faults();
        registry::open(&self.path, read_only, REPAIR_TIMEOUT, &|_, _| true, faults)
    }

    fn leads_to(&self, file: FileId) -> Result<bool> {
        Ok(Storage::open(&self.path, true, None)?.file_id()? == file)
    }

    /// An engine that can make the plane stand still, also for a handle that is read-only.
    pub fn writable(&self) -> Result<Arc<Engine>> {
        let current = Guard::into_inner(self.current()?);
        if !self.read_only {
            return Ok(current);
        }
        let engine = self.open(false, &current)?;
        match engine.store.uuid() == current.store.uuid() {
            true => Ok(engine),
            false => Err(Error::Replaced { path: self.path.clone() }),
        }
    }
}
