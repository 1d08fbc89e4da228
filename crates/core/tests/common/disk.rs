//! A disk that loses its power. Stores into a mapped file reach it at any moment, in any order, in parts: what it holds
//! for certain is what was handed over before the last completed sync.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use super::expected::Expected;
use super::{Rng, image};
use vecplane_core::{Faults, Step, testing};

/// Copies kept of the moments since the last sync.
const COPIES: usize = 6;

/// What the disk holds once the power is back, and what must be found in it.
pub struct Crash {
    pub bytes: Vec<u8>,
    pub expected: Expected,
}

/// A file that is written beside the plane, to take its place or to be a plane of its own.
struct Copying {
    target: PathBuf,
    synced: Vec<u8>,
    later: Vec<Vec<u8>>,
    /// It may have got to its path.
    renamed: bool,
    /// Its directory has been synced since.
    named: bool,
    /// What must be found in it.
    expected: Expected,
    crashes: Vec<Crash>,
}

struct State {
    path: PathBuf,
    rng: Rng,
    synced: Vec<u8>,
    /// The file at moments since, oldest first.
    later: Vec<Vec<u8>>,
    handed_over: Vec<Option<usize>>,
    expected: Expected,
    crashes: Vec<Crash>,
    copying: Option<Copying>,
    /// What is at the path should a power cut lose the name that the file has got.
    nameless: Option<Vec<u8>>,
}

/// Shared by those who watch a plane work and who judge what is left.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// The disk under a file of which everything is synced.
    pub fn new(path: &Path, rng: Rng) -> Self {
        Self::holding(path, image::read(path), rng)
    }

    /// The disk under a file, holding these bytes of it.
    pub fn holding(path: &Path, synced: Vec<u8>, rng: Rng) -> Self {
        Disk(Arc::new(Mutex::new(State {
            path: path.to_path_buf(),
            rng,
            synced,
            later: Vec::new(),
            handed_over: Vec::new(),
            expected: Expected::default(),
            crashes: Vec::new(),
            copying: None,
            nameless: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The disk as the engine's system calls meet it.
    pub fn faults(&self) -> Arc<dyn Faults> {
        Arc::new(self.clone())
    }

    /// Has the file looked at in the middle of what this thread does, now and then.
    pub fn watch(&self, share: f64) {
        let disk = self.clone();
        testing::watch(move || {
            let mut state = disk.state();
            if state.rng.chance(share) {
                state.look();
            }
        });
    }

    /// Looks at the file now.
    pub fn look(&self) {
        self.state().look();
    }

    /// Says what has been acknowledged, or is about to be.
    pub fn expect(&self, change: impl FnOnce(&mut Expected)) {
        change(&mut self.state().expected);
    }

    /// The power goes now.
    pub fn crash(&self) -> Crash {
        let mut state = self.state();
        state.look();
        state.crash()
    }

    /// From here on the plane is copied to `target`, which may be its own path; this must be found in the copy.
    pub fn begin_copy(&self, target: &Path, expected: Expected) {
        let mut state = self.state();
        state.look();
        state.copying = Some(Copying {
            target: target.to_path_buf(),
            synced: Vec::new(),
            later: Vec::new(),
            renamed: false,
            named: false,
            expected,
            crashes: Vec::new(),
        });
    }

    /// The copy is complete; gives what was left of it by power cuts after it had got to its path.
    pub fn end_copy(&self) -> Vec<Crash> {
        let mut state = self.state();
        let copying = state.copying.take().expect("begun");
        if copying.target == state.path {
            state.nameless = (!copying.named).then(|| state.synced.clone());
            state.synced = copying.synced;
            state.later.clear();
            state.handed_over.clear();
        }
        copying.crashes
    }

    /// What was left when the power went in the middle of a call.
    pub fn take_crashes(&self) -> Vec<Crash> {
        std::mem::take(&mut self.state().crashes)
    }
}

impl Faults for Disk {
    fn before(&self, step: Step) -> io::Result<()> {
        let mut state = self.state();
        if state.copying.is_some() {
            state.copy_step(step);
            return Ok(());
        }
        match step {
            Step::HandOver(part) => state.handed_over.push(part),
            Step::WriteHeader => state.look(),
            Step::Sync => state.sync(),
            _ => {}
        }
        Ok(())
    }
}

impl State {
    fn look(&mut self) {
        let copy = image::read(&self.path);
        if self.later.len() == COPIES {
            let at = self.rng.below(COPIES);
            self.later.remove(at);
        }
        self.later.push(copy);
    }

    fn crash(&mut self) -> Crash {
        if let Some(bytes) = self.nameless.clone().filter(|_| self.rng.chance(0.5)) {
            return Crash { bytes, expected: self.expected.clone() };
        }
        let mut later: Vec<&[u8]> = self.later.iter().map(Vec::as_slice).collect();
        if self.rng.chance(0.5) {
            // The latest look is the only one that has what was written just before a sync.
            later.truncate(self.rng.range(1..=later.len()));
        }
        let mut bytes = image::power_cut(&mut self.rng, &self.synced, &later);
        if self.rng.chance(0.2) {
            // Superblocks are what the system writes first, for once.
            let last = later[later.len() - 1];
            let both = 2 * image::SUPERBLOCK_BYTES;
            bytes[..both].copy_from_slice(&last[..both]);
        }
        Crash { bytes, expected: self.expected.clone() }
    }

    /// A step on the way of a copy to its path. The plane itself stands still.
    fn copy_step(&mut self, step: Step) {
        let mut copying = self.copying.take().expect("a copy");
        match step {
            Step::Sync | Step::Rename | Step::SyncDirectory => {
                copying.look();
                for _ in 0..2 {
                    self.cut(&mut copying);
                }
            }
            _ => {
                if self.rng.chance(0.05) {
                    copying.look();
                }
                if self.rng.chance(0.02) {
                    self.cut(&mut copying);
                }
            }
        }
        match step {
            Step::Sync => copying.synced = std::mem::take(&mut copying.later).pop().expect("a look"),
            Step::Rename => {
                // With the mark of a swap under way.
                self.look();
                copying.renamed = true;
            }
            Step::SyncDirectory => copying.named = true,
            _ => {}
        }
        self.copying = Some(copying);
    }

    /// The power goes while a plane is copied.
    fn cut(&mut self, copying: &mut Copying) {
        let there = copying.renamed && (copying.named || self.rng.chance(0.5));
        let in_place = copying.target == self.path;
        if there {
            let later: Vec<&[u8]> = copying.later.iter().map(Vec::as_slice).collect();
            let bytes = image::power_cut(&mut self.rng, &copying.synced, &later);
            match in_place {
                true => self.crashes.push(Crash { bytes, expected: self.expected.clone() }),
                false => copying.crashes.push(Crash { bytes, expected: copying.expected.clone() }),
            }
        }
        if !there || !in_place && self.rng.chance(0.2) {
            let crash = self.crash();
            self.crashes.push(crash);
        }
    }

    fn sync(&mut self) {
        self.look();
        for _ in 0..self.rng.below(3) {
            let crash = self.crash();
            self.crashes.push(crash);
        }
        let now = self.later.pop().expect("a look");
        self.synced.resize(now.len(), 0);
        for part in std::mem::take(&mut self.handed_over) {
            let whole = |region| image::extents(&now, region);
            for (start, end) in part.map_or_else(|| vec![(0, image::HEADER_BYTES)], whole) {
                let end = end.min(now.len());
                self.synced[start..end].copy_from_slice(&now[start..end]);
            }
        }
        self.later.clear();
    }
}

impl Copying {
    /// The new file as it is now, under either of its names.
    fn look(&mut self) {
        let name = self.target.file_name().expect("a file").to_str().expect("a name");
        let is_new = |path: &PathBuf| {
            let other = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            other.starts_with(&format!(".{name}.")) && other.ends_with(".new")
        };
        let dir = std::fs::read_dir(self.target.parent().expect("a directory")).unwrap();
        let new = dir.map(|entry| entry.unwrap().path()).find(is_new);
        self.later.push(image::read(&new.unwrap_or_else(|| self.target.clone())));
    }
}
