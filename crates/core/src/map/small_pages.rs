//! Has a page lie by itself in memory before it is changed.
//!
//! A kernel keeps a file in memory in pieces (folios) of up to 2 MiB, and a sync writes each piece whole of which one byte
//! was changed. Large pieces make walks faster, so they stay as long as nobody writes, and while a load changes everything
//! anyway. In between, a piece is split when the first of its pages is about to be changed. What was found to be small is
//! marked, so that each place is looked at once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages that one mark stands for: advice on the middle two splits any piece that they are in.
pub const BLOCK_PAGES: usize = 4;
/// Blocks whose marks are allocated at once.
const CHUNK: usize = 1 << 16;

type Marks = Box<[AtomicU64]>;

/// Which blocks of a region have been seen to.
pub struct Blocks(Box<[OnceLock<Marks>]>);

impl Blocks {
    /// For a region of at most so many blocks.
    pub fn new(most: usize) -> Self {
        Blocks((0..most.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect())
    }

    /// Marks a block; true when it was not marked yet.
    #[inline]
    pub fn mark(&self, block: usize) -> bool {
        let Some(chunk) = self.0.get(block / CHUNK) else { return false };
        let marks = chunk.get_or_init(|| (0..CHUNK / 64).map(|_| AtomicU64::new(0)).collect());
        let (word, bit) = (&marks[block % CHUNK / 64], 1 << (block % 64));
        // Nearly always it is.
        word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Takes all marks away.
    pub fn clear(&self) {
        let marks = self.0.iter().filter_map(OnceLock::get).flat_map(|marks| marks.iter());
        marks.for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Whether pages are to lie by themselves now.
pub struct Mode {
    small: AtomicBool,
    /// Some splits may have failed, since a piece with changed pages in it cannot be split.
    unsettled: AtomicBool,
}

impl Mode {
    /// Whoever filled the file, or read it, may have left large pieces.
    pub fn new(possible: bool) -> Self {
        Mode { small: AtomicBool::new(possible), unsettled: AtomicBool::new(true) }
    }

    /// Whether pages are split before they are changed.
    #[inline(always)]
    pub fn is_small(&self) -> bool {
        self.small.load(Ordering::Relaxed)
    }

    /// For a load: pieces stay whole.
    pub fn whole(&self) {
        self.small.store(false, Ordering::Relaxed);
    }

    /// After a sync, when everything is clean and can be split. True when all places should be looked at once more: what
    /// was being changed when the mode changed, or when the file was opened, is clean now for the first time.
    pub fn small(&self) -> bool {
        if self.small.swap(true, Ordering::Relaxed) {
            return self.unsettled.swap(false, Ordering::Relaxed);
        }
        self.unsettled.store(true, Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_marked_once_until_all_marks_are_taken_away() {
        let blocks = Blocks::new(3 * CHUNK);
        for block in [0, 1, 63, 64, CHUNK - 1, CHUNK, 3 * CHUNK - 1] {
            assert!(blocks.mark(block) && !blocks.mark(block), "{block}");
        }
        assert!(!blocks.mark(3 * CHUNK), "past the region");
        blocks.clear();
        assert!(blocks.mark(64) && blocks.mark(CHUNK) && !blocks.mark(64));
    }

    #[test]
    fn every_place_is_looked_at_again_after_the_second_flush() {
        let mode = Mode::new(true);
        assert!(mode.is_small() && mode.small() && !mode.small(), "an open plane");
        mode.whole();
        assert!(!mode.is_small());
        assert!(!mode.small() && mode.is_small() && mode.small() && !mode.small(), "after a load");
    }
}
