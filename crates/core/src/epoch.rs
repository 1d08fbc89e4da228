//! When may a removed slot be used again? Readers pin the epoch in a lane of the file's reader table; removals advance
//! it. A slot removed at epoch r is reusable once every pinned lane shows an epoch above r (epoch-based reclamation,
//! Fraser, "Practical lock-freedom", 2004).
//!
//! Lanes belong to processes, processes to kernel locks: a lane whose process is gone is swept, never waited for.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::file::layout::{PROCESS_COUNT, READER_COUNT};
use crate::file::shared::ReaderLane;
use crate::file::store::Store;
use crate::protocol;
use crate::storage::{LOCK_OPENED, LOCK_PROCESS};

/// This process's place in the plane's tables.
pub struct Readers {
    /// Index of the process entry; `None` for handles that cannot register (read-only file, full table).
    process: Option<u32>,
    last_sweep: Mutex<Option<Instant>>,
}

/// A pinned lane; dropping it lets go. Without a lane nothing is held back, and hits are checked again instead.
pub struct Pin<'a> {
    lane: Option<&'a ReaderLane>,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            protocol::unpin(&lane.pinned);
        }
    }
}

impl Pin<'_> {
    /// Whether removed slots are held back for this reader.
    pub fn protects(&self) -> bool {
        self.lane.is_some()
    }
}

impl Readers {
    /// Registers this process, taking over a dead one's entry where there is one.
    pub fn register(store: &Store) -> Result<Self> {
        let mut process = None;
        if !store.storage().read_only() {
            for i in 0..PROCESS_COUNT as u32 {
                if store.storage().try_lock(LOCK_PROCESS + u64::from(i))? {
                    release_lanes(store, i);
                    store.processes()[i as usize].pid.store(std::process::id(), Ordering::Relaxed);
                    process = Some(i);
                    break;
                }
            }
        }
        Ok(Readers { process, last_sweep: Mutex::new(None) })
    }

    /// Says that this process has found the file sound, or has made it so. Others that come through another mount can rely
    /// on the memory that it is kept in.
    pub fn vouch(&self, store: &Store) -> Result<()> {
        if let Some(i) = self.process {
            // Nobody else takes it without owning the entry.
            store.storage().try_lock(LOCK_OPENED + u64::from(i))?;
        }
        Ok(())
    }

    /// Gives the entry back.
    pub fn deregister(&self, store: &Store) {
        if let Some(i) = self.process {
            release_lanes(store, i);
            store.processes()[i as usize].pid.store(0, Ordering::Relaxed);
            store.storage().unlock(LOCK_OPENED + u64::from(i));
            store.storage().unlock(LOCK_PROCESS + u64::from(i));
        }
    }

    /// Takes a free lane for one thread's use; `None` when this process is not registered or all are taken.
    pub fn claim_lane(&self, store: &Store) -> Option<u32> {
        let owner = self.process? + 1;
        for (i, lane) in store.lanes().iter().enumerate() {
            let free = lane.owner.load(Ordering::Relaxed) == 0;
            if free && lane.owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                store.shared().lane_high_water.fetch_max(i as u32 + 1, Ordering::SeqCst);
                return Some(i as u32);
            }
        }
        None
    }

    /// Pins a lane at the present epoch. A lane is used by one thread at a time.
    #[inline]
    pub fn pin<'a>(&self, store: &'a Store, lane: Option<u32>) -> Pin<'a> {
        let lane = lane.map(|i| &store.lanes()[i as usize]);
        if let Some(lane) = lane {
            protocol::pin(&store.shared().epoch, &lane.pinned);
        }
        Pin { lane }
    }

    /// The lowest epoch that any reader is pinned at; `u64::MAX` when none is.
    pub fn oldest_pin(&self, store: &Store) -> u64 {
        // Before the count of lanes as before the lanes: a lane that is not counted yet is pinned after this.
        fence(Ordering::SeqCst);
        let used = (store.shared().lane_high_water.load(Ordering::SeqCst) as usize).min(READER_COUNT);
        protocol::oldest_pin(store.lanes()[..used].iter().map(|lane| &lane.pinned))
    }

    /// Frees the lanes of processes that are gone; looks at most twenty times a second. One whose lock cannot be tested is
    /// taken to be there.
    pub fn sweep(&self, store: &Store) {
        let mut last: MutexGuard<'_, Option<Instant>> =
            self.last_sweep.lock().unwrap_or_else(|e| e.into_inner());
        if last.is_some_and(|at| at.elapsed() < Duration::from_millis(50)) {
            return;
        }
        *last = Some(Instant::now());
        let claimed = |i: u32| store.lanes().iter().any(|lane| lane.owner.load(Ordering::Relaxed) == i + 1);
        for i in (0..PROCESS_COUNT as u32).filter(|i| Some(*i) != self.process && claimed(*i)) {
            let byte = LOCK_PROCESS + u64::from(i);
            if store.storage().try_lock(byte).unwrap_or(false) {
                release_lanes(store, i);
                store.processes()[i as usize].pid.store(0, Ordering::Relaxed);
                store.storage().unlock(byte);
            }
        }
    }
}

/// Clears every lane of a process entry whose lock the caller holds.
fn release_lanes(store: &Store, process: u32) {
    for lane in store.lanes().iter().filter(|lane| lane.owner.load(Ordering::Relaxed) == process + 1) {
        lane.pinned.store(0, Ordering::SeqCst);
        lane.owner.store(0, Ordering::SeqCst);
    }
}
