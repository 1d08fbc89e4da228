//! Searching what is not in memory.
//!
//! A walk that touches a page which the system does not have in memory waits for the disk, for one page after the other.
//! Once that has been seen, walks ask for all pages of several expansions before they touch the first, so that the disk
//! works on them side by side: the beam that DiskANN (Subramanya et al., NeurIPS 2019) reads from an SSD with, over a map.
//!
//! A plane in memory pays for a look at the clock every eight expansions. Only when one took much too long is the
//! system asked whether it read from the disk for this thread, and only then do walks ask for pages; they stop when a
//! number of searches in a row have read nothing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::testing::{Planted, is_planted};

/// Searches that go on asking after the last one for which the disk was read.
const ARMED_SEARCHES: u32 = 64;
/// Expansions between two looks at the clock.
const LOOK_EVERY: u32 = 8;
/// So many expansions take a tenth of this in memory, and one page from a disk about all of it.
const SLOW: Duration = Duration::from_micros(100);

/// Whether walks over a plane should ask for pages; shared by all threads.
#[derive(Default)]
pub struct Cold {
    searches_left: AtomicU32,
}

impl Cold {
    /// Whether walks ask for pages.
    pub fn is_armed(&self) -> bool {
        self.searches_left.load(Ordering::Relaxed) != 0 && !is_planted(Planted::NeverAsksForPages)
    }

    fn arm(&self) {
        self.searches_left.store(ARMED_SEARCHES, Ordering::Relaxed);
    }

    /// After a search that read nothing. One that is lost between two threads only delays the end.
    fn calm(&self) {
        let left = self.searches_left.load(Ordering::Relaxed);
        self.searches_left.store(left.saturating_sub(1), Ordering::Relaxed);
    }
}

/// One search's eye on whether it waits for the disk. Other walks, which do not begin one, ask for nothing.
#[derive(Default)]
pub struct Watch {
    begun: bool,
    armed: bool,
    /// What the disk had read when this search first asked.
    reads: Option<u64>,
    expansions: u32,
    looked: Option<Instant>,
}

impl Watch {
    /// A search begins.
    pub fn begin(&mut self, cold: &Cold) {
        let armed = cold.is_armed();
        *self = Watch { begun: true, armed, reads: armed.then(disk_reads), ..Watch::default() };
    }

    /// Whether the walk should ask for pages before it touches them.
    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// The walk expands a node.
    #[inline(always)]
    pub fn expanded(&mut self, cold: &Cold) {
        self.expansions += 1;
        if self.expansions.is_multiple_of(LOOK_EVERY) && self.begun && !self.armed {
            self.look(cold);
        }
    }

    #[cold]
    fn look(&mut self, cold: &Cold) {
        let now = Instant::now();
        let slow = self.looked.is_some_and(|before| now - before > SLOW);
        self.looked = Some(now);
        if !slow || is_planted(Planted::NeverAsksForPages) {
            return;
        }
        // Another thread may have had the processor, or the disk: it counts only what was read between two slow looks.
        let reads = disk_reads();
        if self.reads.replace(reads).is_some_and(|before| before != reads) {
            self.armed = true;
            cold.arm();
        }
    }

    /// The search ends.
    pub fn end(&mut self, cold: &Cold) {
        if self.armed {
            if self.reads == Some(disk_reads()) { cold.calm() } else { cold.arm() }
        }
        *self = Watch::default();
    }
}

/// Grows when the disk is read on behalf of this thread, or, where the system does not tell threads apart, of the process.
#[cfg(unix)]
fn disk_reads() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const WHOSE: libc::c_int = libc::RUSAGE_THREAD;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const WHOSE: libc::c_int = libc::RUSAGE_SELF;
    // SAFETY: a struct of numbers, for which all zeros is a value; the call fills it or leaves it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(WHOSE, &mut usage);
        usage
    };
    // Pages waited for, and blocks asked for: a page that was asked for in time is only in the second.
    (usage.ru_majflt as u64).wrapping_add(usage.ru_inblock as u64)
}

/// Windows counts no reads by page, so walks there never ask.
#[cfg(not(unix))]
fn disk_reads() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_stop_asking_when_nothing_was_read_for_a_while() {
        let cold = Cold::default();
        cold.arm();
        for left in (0..ARMED_SEARCHES).rev() {
            let mut watch = Watch::default();
            watch.begin(&cold);
            assert!(watch.is_armed());
            watch.end(&cold);
            assert_eq!(cold.searches_left.load(Ordering::Relaxed), left);
        }
        let mut watch = Watch::default();
        watch.begin(&cold);
        assert!(!watch.is_armed());
    }
}
