//! Keeps writes that wait for a compaction off the libuv pool, whose few threads searches need.
//!
//! Shared by all handles that this process has on a plane, in all its threads: the pool is one, too. A compaction begins when
//! the writes that were given to the pool before it have ended; those given later wait for it on threads of their own.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::Outcome;
use crate::task::Control;

/// How often a compaction that waits looks whether it was aborted.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A compaction does not wait for writes of which none ends for so long: they wait for somebody else.
const PATIENCE: Duration = Duration::from_secs(5);

/// By the plane's own id, which a compaction keeps.
static GATES: LazyLock<Mutex<HashMap<[u8; 16], Weak<Gate>>>> = LazyLock::new(Mutex::default);

/// What goes on with one plane.
#[derive(Default)]
pub struct Gate {
    counts: Mutex<Counts>,
    write_ended: Condvar,
}

#[derive(Default)]
struct Counts {
    /// Writes that were given to the pool and have not ended.
    writes: usize,
    /// Compactions that were asked for and have not ended.
    compactions: usize,
}

impl Gate {
    /// The gate of the plane with this id.
    pub fn of(uuid: [u8; 16]) -> Arc<Gate> {
        let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = gates.get(&uuid).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::<Gate>::default();
        gates.insert(uuid, Arc::downgrade(&gate));
        gate
    }

    /// Lets a write onto the pool; `None` while a compaction is under way or about to begin.
    pub fn write(self: &Arc<Self>) -> Option<PoolWrite> {
        let mut counts = self.counts();
        if counts.compactions > 0 {
            return None;
        }
        counts.writes += 1;
        Some(PoolWrite(Arc::clone(self)))
    }

    /// Registers a compaction, on the thread that makes the calls.
    pub fn compaction(self: &Arc<Self>) -> Compaction {
        self.counts().compactions += 1;
        Compaction(Arc::clone(self))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write on the pool, until it is dropped.
pub struct PoolWrite(Arc<Gate>);

impl Drop for PoolWrite {
    fn drop(&mut self) {
        self.0.counts().writes -= 1;
        self.0.write_ended.notify_all();
    }
}

/// A compaction, from its call until it is dropped.
pub struct Compaction(Arc<Gate>);

impl Compaction {
    /// Waits for the writes that the pool was given before.
    pub fn wait_for_writes(&self, control: &Control) -> Outcome<()> {
        let mut counts = self.0.counts();
        let (mut left, mut since) = (counts.writes, Instant::now());
        while counts.writes > 0 && since.elapsed() < PATIENCE {
            control.check()?;
            let wait = self.0.write_ended.wait_timeout(counts, LOOK_EVERY);
            (counts, _) = wait.unwrap_or_else(PoisonError::into_inner);
            if counts.writes != left {
                (left, since) = (counts.writes, Instant::now());
            }
        }
        Ok(())
    }
}

impl Drop for Compaction {
    fn drop(&mut self) {
        self.0.counts().compactions -= 1;
    }
}
