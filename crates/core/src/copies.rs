//! Which sets of ids are scanned so often that what their scans read is kept in one place (`graph/copied.rs`), and how much of it.
//!
//! A set has a `Place` for its copies, and whoever made the set forgets both with the next record that is published, by any
//! process. So a copy is made for sets that are scanned again and again meanwhile, and its making costs little beside the scans
//! before it.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::engine::lock;
use crate::graph::Graph;
use crate::graph::allowed::Allowed;
use crate::graph::copied::{Copied, Kind};

/// The scan that makes a copy.
const SCANS: u32 = 8;
/// All copies together take at most this, and
const BYTES_MAX: u64 = 64 << 20;
/// one part in so many of the file's size.
const PART_OF_FILE: u64 = 8;

/// The copies of a process on one plane.
#[derive(Default)]
pub struct Copies {
    /// Counts uses.
    clock: AtomicU64,
    places: Mutex<Vec<Weak<Place>>>,
}

/// Where the copies of one set are: of the codes, and of the exact copies.
#[derive(Default)]
pub struct Place {
    /// `Copies::clock` at the last use.
    used: AtomicU64,
    by_kind: [Mutex<Held>; 2],
}

#[derive(Default)]
struct Held {
    scans: u32,
    /// What the copy takes, or the one that is being made.
    bytes: usize,
    copied: Option<Arc<Copied>>,
}

impl Place {
    fn bytes(&self) -> usize {
        self.by_kind.iter().map(|held| lock(held).bytes).sum()
    }

    fn empty(&self) {
        self.by_kind.iter().for_each(|held| *lock(held) = Held::default());
    }
}

/// The copies of a set that a query is answered from.
#[derive(Clone, Copy)]
pub struct CopiesOf<'a> {
    pub copies: &'a Copies,
    pub place: &'a Arc<Place>,
}

impl CopiesOf<'_> {
    /// Counts a scan of the set, `allowed`, and gives the copy to scan instead if there is one, or is to be. The caller is pinned.
    pub fn get(&self, graph: &Graph<'_>, allowed: Allowed<'_>, kind: Kind) -> Option<Arc<Copied>> {
        self.place.used.store(self.copies.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let held = &self.place.by_kind[kind as usize];
        {
            let mut held = lock(held);
            if held.copied.is_some() {
                return held.copied.clone();
            }
            held.scans += 1;
            // One thread makes it.
            if held.scans != SCANS {
                return None;
            }
        }
        let bytes = graph.copied_bytes(kind, allowed.count(u32::MAX));
        let most = graph.store.storage().len().map_or(0, |length| length / PART_OF_FILE).min(BYTES_MAX);
        let room = self.copies.make_room(self.place, kind, bytes, most as usize);
        let copied = if room { graph.copy_rows(allowed, kind).map(Arc::new) } else { None };
        let mut held = lock(held);
        // Otherwise the room was needed for others meanwhile.
        let copied = copied.filter(|_| held.bytes == bytes);
        *held = Held { scans: 0, bytes: copied.as_ref().map_or(0, |_| bytes), copied };
        held.copied.clone()
    }

    /// Makes room for a new copy: much of the one that there was is of records that are gone.
    pub fn forget(&self, kind: Kind) {
        *lock(&self.place.by_kind[kind as usize]) = Held::default();
    }
}

impl Copies {
    /// Memory that they take.
    pub fn bytes(&self) -> u64 {
        let places = lock(&self.places);
        let bytes = |place: Arc<Place>| place.bytes() as u64;
        places.iter().filter_map(Weak::upgrade).map(bytes).sum()
    }

    /// Drops those that were not used for longest until there is room for a copy of `place`, within `most`; false when it is
    /// too large.
    fn make_room(&self, place: &Arc<Place>, kind: Kind, bytes: usize, most: usize) -> bool {
        let mut places = lock(&self.places);
        let mut taken = bytes.saturating_add(place.bytes());
        if taken > most {
            return false;
        }
        let mut others: Vec<Arc<Place>> = places.iter().filter_map(Weak::upgrade).collect();
        others.retain(|other| !Arc::ptr_eq(other, place));
        others.sort_unstable_by_key(|other| Reverse(other.used.load(Ordering::Relaxed)));
        others.retain(|other| {
            let bytes = other.bytes();
            taken += bytes;
            let fits = taken <= most;
            if !fits {
                taken -= bytes;
                other.empty();
            }
            fits && bytes > 0
        });
        lock(&place.by_kind[kind as usize]).bytes = bytes;
        others.push(Arc::clone(place));
        *places = others.iter().map(Arc::downgrade).collect();
        true
    }
}
