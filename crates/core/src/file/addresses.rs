//! Shares the addresses of a process out among its planes.
//!
//! A region may grow up to the addresses reserved for it, so a plane wants many of them: terabytes, where vectors are long.
//! A process has 2^47 bytes of addresses. The first planes get all they want, and with more of them open each gets less,
//! so that a program can keep a plane for each of its customers and the process never runs out.

use std::sync::atomic::{AtomicI64, Ordering};

/// Half of the addresses are for planes. Below zero once every plane is down to its minimum.
static LEFT: AtomicI64 = AtomicI64::new(1 << 46);
/// A plane takes at most one of this many parts of what is left.
const PARTS: i64 = 32;

/// Addresses that one plane has reserved, to be counted as free again with it.
pub struct Addresses(i64);

impl Addresses {
    /// How many bytes the next plane should reserve at most.
    pub fn share() -> u64 {
        (LEFT.load(Ordering::Relaxed) / PARTS).max(0) as u64
    }

    /// Counts `bytes` as reserved.
    pub fn take(bytes: u64) -> Self {
        let bytes = bytes.min(1 << 47) as i64;
        LEFT.fetch_sub(bytes, Ordering::Relaxed);
        Addresses(bytes)
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        LEFT.fetch_add(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plane_held_is_shared_out_again() {
        let first = Addresses::take(1 << 46);
        assert!(Addresses::share() <= 1 << 41, "planes of other tests may have come and gone");
        let second = Addresses::take(1 << 46);
        assert_eq!(Addresses::share(), 0);
        drop((first, second));
        assert!(Addresses::share() > 0);
    }
}
