//! Searching what is not in memory.
//!
//! A walk that touches a page which the system does not have in memory waits for the disk, for one page after the other.
//! Once that has been seen, walks ask for all pages of several expansions before they touch the first, so that the disk
//! works on them side by side: the beam that DiskANN (Subramanya et al., NeurIPS 2019) reads from an SSD with, over a map.
//!
//! A plane in memory pays for a look at the clock every eight expansions. Only when one took much too long is the
//! system asked whether it read from the disk for this thread, and only then do walks ask for pages.
//!
//! Asking costs as much as reading a number of pages, wherever they are. So the first searches that ask find out whether it
//! pays: each page that was read in one lets further ones ask, each search uses one up, and a plane of which only a page here and
//! there is missing has soon gone back to reading those one by one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::testing::{Planted, is_planted};

/// Searches that ask for pages once the disk was seen to be read.
const ARMED_FIRST: u32 = 4;
/// Searches that go on asking after the last one that read much.
const ARMED_MAX: u32 = 64;
/// A search that reads so many pages lets another one ask. Asking took as long as reading 10 to 20 of them (docs/benchmarks.md,
/// "Cold searches").
const PAGES_PER_SEARCH: u64 = 16;
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
        self.searches_left.fetch_max(ARMED_FIRST, Ordering::Relaxed);
    }

    /// After a search that asked, and while which so many pages were read. What is lost between two threads does no harm.
    fn asked(&self, pages: u64) {
        let left = self.searches_left.load(Ordering::Relaxed).saturating_sub(1);
        let more = u32::try_from(pages / PAGES_PER_SEARCH).unwrap_or(ARMED_MAX);
        self.searches_left.store(left.saturating_add(more).min(ARMED_MAX), Ordering::Relaxed);
    }
}

/// One search's eye on whether it waits for the disk. Other walks, which do not begin one, ask for nothing.
#[derive(Default)]
pub struct Watch {
    begun: bool,
    armed: bool,
    /// Pages that had been read when this search first looked.
    read: Option<u64>,
    expansions: u32,
    looked: Option<Instant>,
}

impl Watch {
    /// A search begins.
    pub fn begin(&mut self, cold: &Cold) {
        let armed = cold.is_armed();
        *self = Watch { begun: true, armed, read: armed.then(pages_read), ..Watch::default() };
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
        let read = pages_read();
        if self.read.replace(read).is_some_and(|before| before != read) {
            self.armed = true;
            cold.arm();
        }
    }

    /// The search ends.
    pub fn end(&mut self, cold: &Cold) {
        if self.armed {
            let before = self.read.unwrap_or(0);
            cold.asked(pages_read().saturating_sub(before));
        }
        *self = Watch::default();
    }
}

/// Pages read from the disk so far on behalf of this thread, or, where the system does not tell threads apart, of the process.
#[cfg(unix)]
fn pages_read() -> u64 {
    /// Blocks of 512 bytes, and elsewhere whole reads.
    const BLOCKS_PER_PAGE: u64 = if cfg!(any(target_os = "linux", target_os = "android")) { 8 } else { 1 };
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
    (usage.ru_majflt as u64).max(usage.ru_inblock as u64 / BLOCKS_PER_PAGE)
}

/// Windows counts no reads by page, so walks there never ask.
#[cfg(not(unix))]
fn pages_read() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches that ask until none does any more, each of which reads as many pages as `read` gives it, or nothing.
    fn searches_until_calm(cold: &Cold, read: impl IntoIterator<Item = u64>) -> u32 {
        let mut read = read.into_iter();
        let mut searches = 0;
        while cold.is_armed() {
            cold.asked(read.next().unwrap_or(0));
            searches += 1;
        }
        searches
    }

    #[test]
    fn a_search_that_waited_for_the_disk_has_a_few_more_ask() {
        let cold = Cold::default();
        assert!(!cold.is_armed());
        for _ in 0..3 {
            cold.arm();
            assert_eq!(searches_until_calm(&cold, []), ARMED_FIRST);
        }
    }

    #[test]
    fn walks_go_on_asking_as_long_as_much_is_read() {
        let cold = Cold::default();
        cold.arm();
        assert_eq!(searches_until_calm(&cold, [u64::MAX]), 1 + ARMED_MAX);
        cold.arm();
        let reads = std::iter::repeat_n(2 * PAGES_PER_SEARCH, 1000);
        assert_eq!(searches_until_calm(&cold, reads), 1000 + ARMED_MAX);
    }

    #[test]
    fn a_page_here_and_there_has_nobody_ask_for_long() {
        let cold = Cold::default();
        cold.arm();
        let reads = std::iter::repeat_n(PAGES_PER_SEARCH - 1, 1000);
        assert_eq!(searches_until_calm(&cold, reads), ARMED_FIRST);
    }

    #[test]
    fn a_search_that_asks_counts_down() {
        let cold = Cold::default();
        cold.arm();
        for left in (0..ARMED_FIRST).rev() {
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
