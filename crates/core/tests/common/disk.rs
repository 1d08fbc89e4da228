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
const EXTENT_COUNT: usize = image::SHARED + 64;
const EXTENT_TABLE: usize = 32_768;
const EXTENT_ENTRY: usize = 32;

/// What the disk holds once the power is back, and what must be found in it.
pub struct Crash {
    pub bytes: Vec<u8>,
    pub expected: Expected,
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

    /// What was left when the power went in the middle of a call.
    pub fn take_crashes(&self) -> Vec<Crash> {
        std::mem::take(&mut self.state().crashes)
    }
}

impl Faults for Disk {
    fn before(&self, step: Step) -> io::Result<()> {
        let mut state = self.state();
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
        let mut later: Vec<&[u8]> = self.later.iter().map(Vec::as_slice).collect();
        later.truncate(self.rng.range(1..=later.len()));
        let mut bytes = image::power_cut(&mut self.rng, &self.synced, &later);
        if self.rng.chance(0.2) {
            // Superblocks are what the system writes first, for once.
            let last = later[later.len() - 1];
            let both = 2 * image::SUPERBLOCK_BYTES;
            bytes[..both].copy_from_slice(&last[..both]);
        }
        Crash { bytes, expected: self.expected.clone() }
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
            for (start, end) in ranges(&now, part) {
                self.synced[start..end].copy_from_slice(&now[start..end]);
            }
        }
        self.later.clear();
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(wide)
}

/// Where the header, or a region, lies in a file.
fn ranges(bytes: &[u8], part: Option<usize>) -> Vec<(usize, usize)> {
    let Some(region) = part else { return vec![(0, image::HEADER_BYTES)] };
    let entries = (0..number::<4>(bytes, EXTENT_COUNT) as usize).map(|i| EXTENT_TABLE + i * EXTENT_ENTRY);
    entries
        .filter(|at| number::<4>(bytes, at + 16) as usize == region)
        .map(|at| (number::<8>(bytes, at) as usize, number::<8>(bytes, at + 8) as usize))
        .map(|(offset, length)| (offset, (offset + length).min(bytes.len())))
        .collect()
}
