//! The log through which processes learn which records of a tagged plane are new: a ring of the last ids, in the header.
//!
//! An id is appended once its record is live, and before its insert is acknowledged. Whoever keeps an index of tags reads what
//! was appended since, or, having fallen too far behind, looks at all records again. The writer whose turn it is appends.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Entries of the ring.
pub const TAG_LOG_ENTRIES: usize = 408;

/// The log, as it lies in the file.
#[repr(C, align(64))]
pub struct TagLog {
    /// How many ids were ever appended.
    pub appended: AtomicU64,
    _pad: [u64; 7],
    /// Number n of the appended is entry n modulo their count: the low half of n, then the id.
    pub entries: [AtomicU64; TAG_LOG_ENTRIES],
}

const _: () = assert!(size_of::<TagLog>() == 3328);

impl TagLog {
    /// How many ids were ever appended.
    #[inline]
    pub fn appended(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// Appends an id. One thread at a time does.
    pub fn append(&self, id: u32) {
        let number = self.appended.load(Ordering::Relaxed);
        self.entries[number as usize % TAG_LOG_ENTRIES]
            .store(number << 32 | u64::from(id), Ordering::Release);
        // Release: who sees the number sees the entry, and the record that it speaks of.
        self.appended.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Makes everyone look at all records again: what was appended is not all that is new.
    pub fn forget(&self) {
        self.appended.fetch_add(TAG_LOG_ENTRIES as u64 + 1, Ordering::Release);
    }

    /// The ids appended from number `from` to before `to`; `None` when some are not there any more.
    pub fn since(&self, from: u64, to: u64) -> Option<Vec<u32>> {
        let count = to.wrapping_sub(from);
        if count > TAG_LOG_ENTRIES as u64 {
            return None;
        }
        let mut ids = Vec::with_capacity(count as usize);
        for step in 0..count {
            let number = from.wrapping_add(step);
            let entry = self.entries[number as usize % TAG_LOG_ENTRIES].load(Ordering::Acquire);
            if (entry >> 32) as u32 != number as u32 {
                return None;
            }
            ids.push(entry as u32);
        }
        // An entry that was read may have been overwritten since, but not by one with the same number.
        fence(Ordering::Acquire);
        Some(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> TagLog {
        TagLog {
            appended: AtomicU64::new(0),
            _pad: [0; 7],
            entries: [const { AtomicU64::new(0) }; TAG_LOG_ENTRIES],
        }
    }

    #[test]
    fn what_was_appended_is_read_in_order_as_long_as_it_is_there() {
        let log = log();
        for start in [0, (1 << 32) - 600] {
            log.appended.store(start, Ordering::Relaxed);
            assert_eq!(log.since(start, start), Some(vec![]));
            for i in 0..2000u32 {
                log.append(i);
                let to = log.appended();
                let behind = (i + 1).min(TAG_LOG_ENTRIES as u32);
                let ids = log.since(to.wrapping_sub(behind.into()), to).unwrap();
                assert!(ids.into_iter().eq(i + 1 - behind..=i));
                assert_eq!(log.since(to.wrapping_sub(TAG_LOG_ENTRIES as u64 + 1), to), None);
            }
            let before = log.appended();
            log.forget();
            assert_eq!(log.since(before, log.appended()), None);
        }
    }
}
