//! What this crate's own tests reach into it with: calls that fail, moments at which to look, planted faults.
//!
//! Not part of the API. All of it needs the feature `testing`; without it `moment` is nothing and `is_planted` is a
//! constant, so that the engine pays for neither.

/// A fault that a test plants to see that its harness catches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A flush writes the superblock first and syncs once, at the end.
    SuperblockFirst,
    /// Stores into a region (by number, as in `docs/design.md`) are not handed over to the disk.
    NotSynced(usize),
    /// `create` returns before the directory is synced.
    DirectoryNotSynced,
    /// A copy or a compacted file gets to its path before it is synced.
    NewFileNotSynced,
    /// The record's checksum leaves the key out.
    ChecksumSkipsKey,
    /// Removed slots are reused whether or not a reader may still see them.
    SlotReusedEarly,
    /// A slot is called live before its record is written.
    LiveFirst,
    /// Whoever opens a file is taken for the one who wrote it.
    IdentityAlwaysSame,
    /// Walks over a plane that is not in memory read one page after the other.
    NeverAsksForPages,
    /// Walks read the codes of all that they meet.
    IgnoresSketches,
}

#[cfg(not(feature = "testing"))]
mod hooks {
    use super::Planted;

    #[inline(always)]
    pub fn moment() {}

    #[inline(always)]
    pub fn is_planted(_: Planted) -> bool {
        false
    }

    pub fn fixed_random() -> Option<[u8; 24]> {
        None
    }
}

#[cfg(feature = "testing")]
mod hooks {
    use std::cell::{Cell, RefCell};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::JoinHandle;

    use super::Planted;
    use crate::error::Result;
    use crate::options::{CreateOptions, OpenOptions};
    use crate::plane::Plane;
    use crate::storage::Faults;
    use crate::{create, registry};

    type Watcher = Box<dyn FnMut()>;

    thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
        static RANDOM: Cell<Option<[u8; 24]>> = const { Cell::new(None) };
        static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
    }

    /// Plants a fault in what this thread does from here on; `None` takes it out.
    pub fn plant(fault: Option<Planted>) {
        PLANTED.set(fault);
    }

    /// Whether this thread has the fault planted.
    pub fn is_planted(fault: Planted) -> bool {
        PLANTED.get() == Some(fault)
    }

    /// Gives the planes that this thread creates these random numbers, so that what it does can be repeated.
    pub fn fix_random(random: Option<[u8; 24]>) {
        RANDOM.set(random);
    }

    /// See `fix_random`.
    pub fn fixed_random() -> Option<[u8; 24]> {
        RANDOM.get()
    }

    /// The checksum that the file uses: XXH3-64.
    pub fn xxh3(bytes: &[u8], seed: u64) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed)
    }

    /// Calls `watcher` each time that this thread has changed something in a plane's file that others may see.
    pub fn watch(watcher: impl FnMut() + 'static) {
        WATCHER.set(Some(Box::new(watcher)));
    }

    /// Ends `watch`.
    pub fn unwatch() {
        WATCHER.set(None);
    }

    /// Something has changed. A watcher may look at the file, or panic as the engine itself might.
    pub fn moment() {
        if std::thread::panicking() {
            return;
        }
        // What the watcher itself does with planes is not watched.
        if let Some(mut watcher) = WATCHER.take() {
            struct PutBack(Option<Watcher>);
            impl Drop for PutBack {
                fn drop(&mut self) {
                    WATCHER.set(self.0.take());
                }
            }
            let mut put_back = PutBack(None);
            watcher();
            put_back.0 = Some(watcher);
        }
    }

    /// `Plane::open`, with steps that may fail. A plane that this process has open already is shared as it is.
    pub fn open(path: &Path, options: &OpenOptions, faults: Arc<dyn Faults>) -> Result<Plane> {
        let engine =
            registry::open(path, options.read_only, options.lock_timeout, &|_, _| true, Some(faults))?;
        Ok(Plane::over(engine, path, options))
    }

    /// What `Plane::create` does before it opens the plane, with steps that may fail.
    pub fn create(path: &Path, options: &CreateOptions, faults: Arc<dyn Faults>) -> Result<()> {
        create::create(path, options, Some(faults))
    }

    /// Whether walks ask for pages before they touch them.
    pub fn asks_for_pages(plane: &Plane) -> bool {
        plane.engine().is_ok_and(|engine| engine.store.cold.is_armed())
    }

    /// Holds removed slots back, as a search does while it runs, until what it gives is dropped.
    pub fn hold(plane: &Plane) -> Result<impl Drop + use<>> {
        let current = plane.engine()?;
        let engine = Arc::clone(&current);
        let (held, is_held) = channel();
        let (release, released) = channel::<()>();
        // A pin borrows from its engine, so both live on a thread.
        let holder = std::thread::spawn(move || match engine.pin() {
            Ok(_pinned) => {
                let _ = held.send(Ok(()));
                let _ = released.recv();
            }
            Err(error) => drop(held.send(Err(error))),
        });
        is_held.recv().expect("the holder says so")?;
        Ok(Held(Some(release), Some(holder)))
    }

    /// What `hold` gives.
    struct Held(Option<Sender<()>>, Option<JoinHandle<()>>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0 = None;
            let _ = self.1.take().map(JoinHandle::join);
        }
    }
}

pub use hooks::*;
