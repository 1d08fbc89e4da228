//! The slot and growth protocols in every interleaving that the memory model allows: the functions that the engine calls,
//! over the model checker's words. `npm run test:loom`.

#![cfg(loom)]

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use vecplane_core::protocol::{self, Word};

struct W32(loom::sync::atomic::AtomicU32);
struct W64(loom::sync::atomic::AtomicU64);

macro_rules! word {
    ($word:ty, $atomic:ty, $value:ty) => {
        impl Word for $word {
            type Value = $value;

            fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order)
            }

            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_add(value, order)
            }

            fn fence(order: Ordering) {
                loom::sync::atomic::fence(order)
            }
        }

        impl $word {
            fn new(value: $value) -> Self {
                Self(<$atomic>::new(value))
            }
        }
    };
}
word!(W32, loom::sync::atomic::AtomicU32, u32);
word!(W64, loom::sync::atomic::AtomicU64, u64);

const BUILDING: u32 = 1;
const LIVE: u32 = 2;
const LIMBO: u32 = 3;

/// A slot with its codes: two cells, so that half a record would be seen. The checker itself finds reads beside writes.
struct Slot {
    state: W32,
    codes: [UnsafeCell<u64>; 2],
}

impl Slot {
    fn new(state: u32, record: u64) -> Self {
        Slot { state: W32::new(state), codes: [UnsafeCell::new(record), UnsafeCell::new(record)] }
    }

    /// As an inserter: the slot is its own.
    fn write(&self, record: u64) {
        protocol::turn_to(&self.state, BUILDING);
        // SAFETY: what is being checked.
        self.codes.iter().for_each(|code| code.with_mut(|code| unsafe { *code = record }));
        protocol::turn_to(&self.state, LIVE);
    }

    /// As a reader that is pinned.
    fn read(&self) -> Option<u64> {
        (protocol::see(&self.state) == LIVE).then(|| {
            // SAFETY: what is being checked.
            let [first, second] = [0, 1].map(|i| self.codes[i].with(|code| unsafe { *code }));
            assert_eq!(first, second, "half a record");
            first
        })
    }
}

struct Plane {
    epoch: W64,
    lanes: Vec<W64>,
    slot: Slot,
}

impl Plane {
    fn new(lanes: usize) -> Self {
        Plane {
            epoch: W64::new(1),
            lanes: (0..lanes).map(|_| W64::new(0)).collect(),
            slot: Slot::new(LIVE, 1),
        }
    }

    fn search(&self, lane: usize) {
        protocol::pin(&self.epoch, &self.lanes[lane]);
        self.slot.read();
        protocol::unpin(&self.lanes[lane]);
    }

    fn remove(&self) -> u64 {
        protocol::turn_to(&self.slot.state, LIMBO);
        protocol::retire(&self.epoch)
    }

    /// Puts another record in the slot if nobody can see the old one any more.
    fn reuse(&self, removed: u64, record: u64) -> bool {
        let reusable = protocol::is_reusable(removed, protocol::oldest_pin(self.lanes.iter()));
        if reusable {
            self.slot.write(record);
        }
        reusable
    }
}

#[test]
fn a_record_is_seen_whole_or_not_at_all() {
    loom::model(|| {
        let slot = Arc::new(Slot::new(0, 0));
        let inserter = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.write(7))
        };
        assert!(matches!(slot.read(), None | Some(7)));
        inserter.join().unwrap();
        assert_eq!(slot.read(), Some(7));
    });
}

#[test]
fn a_slot_is_not_reused_under_a_reader() {
    loom::model(|| {
        let plane = Arc::new(Plane::new(1));
        let reader = {
            let plane = Arc::clone(&plane);
            thread::spawn(move || plane.search(0))
        };
        let removed = plane.remove();
        plane.reuse(removed, 2);
        reader.join().unwrap();
        assert!(plane.slot.read() == Some(2) || plane.reuse(removed, 2), "the slot is lost");
    });
}

/// A lane is pinned again as soon as its reader comes back: an earlier search's reads are still covered.
#[test]
fn a_slot_is_not_reused_under_a_reader_that_searches_again() {
    loom::model(|| {
        let plane = Arc::new(Plane::new(1));
        let reader = {
            let plane = Arc::clone(&plane);
            thread::spawn(move || {
                plane.search(0);
                plane.search(0);
            })
        };
        let removed = plane.remove();
        plane.reuse(removed, 2);
        reader.join().unwrap();
    });
}

#[test]
fn a_slot_is_not_reused_under_either_of_two_readers() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let plane = Arc::new(Plane::new(2));
        let readers = [0, 1].map(|lane| {
            let plane = Arc::clone(&plane);
            thread::spawn(move || plane.search(lane))
        });
        let removed = plane.remove();
        plane.reuse(removed, 2);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// The harness sees a reuse that does not ask for readers.
#[test]
#[should_panic]
fn a_reuse_that_does_not_wait_is_caught() {
    loom::model(|| {
        let plane = Arc::new(Plane::new(1));
        let reader = {
            let plane = Arc::clone(&plane);
            thread::spawn(move || plane.search(0))
        };
        plane.remove();
        plane.slot.write(2);
        reader.join().unwrap();
    });
}

/// Growth: whoever sees the count sees the entry that it counts, and may touch what that names.
#[test]
fn an_extent_is_announced_when_its_entry_is_complete() {
    loom::model(|| {
        let file = Arc::new((W32::new(0), UnsafeCell::new(0u64), W64::new(0)));
        let grower = {
            let file = Arc::clone(&file);
            thread::spawn(move || {
                let (extents, entry, word) = &*file;
                // SAFETY: what is being checked.
                entry.with_mut(|entry| unsafe { *entry = 65_536 });
                // As the entries of the file are written.
                word.store(65_536, Ordering::Relaxed);
                protocol::announce(extents, 1);
            })
        };
        let (extents, entry, word) = &*file;
        if protocol::announced(extents) == 1 {
            // SAFETY: what is being checked.
            assert_eq!(entry.with(|entry| unsafe { *entry }), 65_536);
            assert_eq!(word.load(Ordering::Relaxed), 65_536);
        }
        grower.join().unwrap();
    });
}

/// A new slot's mark: ids below it have a slot whose state is theirs.
#[test]
fn an_id_is_given_out_when_its_slot_exists() {
    loom::model(|| {
        let plane = Arc::new((W32::new(0), W32::new(9)));
        let inserter = {
            let plane = Arc::clone(&plane);
            thread::spawn(move || {
                protocol::turn_to(&plane.1, BUILDING);
                protocol::announce(&plane.0, 1);
                protocol::turn_to(&plane.1, LIVE);
            })
        };
        if protocol::announced(&plane.0) == 1 {
            assert!(matches!(protocol::see(&plane.1), BUILDING | LIVE));
        }
        inserter.join().unwrap();
    });
}
