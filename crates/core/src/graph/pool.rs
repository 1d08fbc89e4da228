//! The beam: the nearest nodes found so far, in one sorted array, each marked once its links have been followed.

use super::stop::Stop;

/// A node with its distance, as one number: sorts by distance, then by id. Bit 0 means "expanded".
pub type Entry = u64;

const EXPANDED: u64 = 1;

/// Packs a distance and an id. Distances are never NaN; ids are below 2^31.
#[inline(always)]
pub fn entry(distance: f32, id: u32) -> Entry {
    let bits = distance.to_bits();
    // Flips the sign of positive numbers and all bits of negative ones, which makes unsigned order that of the floats.
    let ordered = bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000);
    u64::from(ordered) << 32 | u64::from(id) << 1
}

/// The id in an entry.
#[inline(always)]
pub fn id(entry: Entry) -> u32 {
    (entry as u32) >> 1
}

/// The entry without its mark.
#[inline(always)]
pub fn unexpanded(entry: Entry) -> Entry {
    entry & !EXPANDED
}

/// The distance in an entry.
#[inline(always)]
pub fn distance(entry: Entry) -> f32 {
    let ordered = (entry >> 32) as u32;
    let mask = (((ordered ^ 0x8000_0000) as i32 >> 31) as u32) | 0x8000_0000;
    f32::from_bits(ordered ^ mask)
}

/// How many times its first capacity a pool may grow to, by copies.
const WIDER: usize = 4;

/// At most `capacity` entries, ascending.
#[derive(Default)]
pub struct Pool {
    entries: Vec<Entry>,
    capacity: usize,
    /// `widen` goes no further than this.
    capacity_max: usize,
    /// Nothing before this is unexpanded.
    cursor: usize,
    /// What is dropped although there would be room.
    stop: Option<Stop>,
    /// Nearest entries that are kept however far they are; 0 without a stop.
    kept: usize,
    /// By the stop, entries from here on are not expanded,
    reach: Entry,
    /// and from here on not kept either.
    far: Entry,
}

impl Pool {
    /// Empties the pool; it will keep the `capacity` nearest.
    pub fn reset(&mut self, capacity: usize) {
        self.entries.clear();
        // Not all at once: a caller may ask for a million out of a thousand.
        self.entries.reserve(capacity.min(1024));
        self.capacity = capacity;
        self.capacity_max = capacity.saturating_mul(WIDER);
        self.cursor = 0;
        self.stop = None;
        self.kept = 0;
        self.reach = Entry::MAX;
        self.far = Entry::MAX;
    }

    /// From now on leaves out what the stop says is too far; the nearest `kept`, at least as many as its rank, are in the pool
    /// all the same.
    pub fn stop_at(&mut self, stop: Stop, kept: usize) {
        self.stop = Some(stop);
        self.kept = kept.max(stop.rank);
    }

    /// The entries, ascending.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Only a smaller entry than this would be kept.
    #[inline(always)]
    pub fn bound(&self) -> Entry {
        if self.entries.len() < self.capacity { self.far } else { self.entries[self.capacity - 1] }
    }

    /// Lets `widen` go as far as this.
    pub fn widen_up_to(&mut self, capacity: usize) {
        self.capacity_max = capacity.max(self.capacity);
    }

    /// Makes room for one more.
    pub fn widen(&mut self) {
        self.capacity = (self.capacity + 1).min(self.capacity_max);
    }

    /// Where an entry belongs.
    #[inline(always)]
    pub fn place(&self, entry: Entry) -> usize {
        self.entries.partition_point(|other| *other < entry)
    }

    /// When entries have the very same distance as one that belongs `at` a place: one of them, and how many there are, counting no
    /// further than `most`.
    #[inline(always)]
    pub fn ties(&self, at: usize, entry: Entry, most: usize) -> Option<(u32, usize)> {
        let same = |other: Option<&Entry>| other.is_some_and(|other| other >> 32 == entry >> 32);
        // Nearly always neither neighbour has the distance, and that is all there is to know.
        let alone = !same(self.entries.get(at)) && !same(self.entries[..at].last());
        if alone {
            return None;
        }
        let before = self.entries[..at].iter().rev().take_while(|other| same(Some(other))).take(most).count();
        let after = self.entries[at..].iter().take_while(|other| same(Some(other))).take(most).count();
        Some((id(self.entries[at - before]), before + after))
    }

    /// Adds an entry when it is among the nearest, and tells whether it is.
    #[inline(always)]
    pub fn insert(&mut self, entry: Entry) -> bool {
        let is_near = entry < self.bound();
        if is_near {
            self.insert_at(self.place(entry), entry);
        }
        is_near
    }

    /// Adds an entry below the bound at its place.
    #[inline(always)]
    pub fn insert_at(&mut self, at: usize, entry: Entry) {
        if self.entries.len() < self.capacity {
            self.entries.push(entry);
        }
        let last = self.entries.len() - 1;
        self.entries.copy_within(at..last, at + 1);
        self.entries[at] = entry;
        self.cursor = self.cursor.min(at);
        if at < self.kept {
            self.drop_far();
        }
    }

    /// Drops what is too far by now: the nearest have changed. They only come nearer, so nothing is missing that would be kept.
    #[inline(always)]
    fn drop_far(&mut self) {
        let Some(stop) = self.stop.filter(|_| self.entries.len() >= self.kept) else { return };
        self.reach = entry(distance(self.entries[stop.rank - 1]) * stop.factor, 0);
        // The first entry after the last one that is kept, whether that one's links have been followed or not.
        self.far = self.reach.max((self.entries[self.kept - 1] | EXPANDED) + 1);
        let left = self.entries.iter().rposition(|entry| *entry < self.far).map_or(0, |last| last + 1);
        self.entries.truncate(left);
    }

    /// How many times as far as the `rank`-th nearest the node is that was expanded last; 0 until there are `kept`.
    pub fn how_far(&self, rank: usize, kept: usize) -> f32 {
        let last = self.cursor - 1;
        if self.entries.len() < kept.max(rank) || distance(self.entries[last]) <= 0.0 {
            return 0.0;
        }
        // Infinite for copies of the query.
        distance(self.entries[last]) / distance(self.entries[rank - 1])
    }

    /// `insert` that gives back what finds no room: the entry itself, or the farthest one that gave way to it.
    #[inline(always)]
    pub fn insert_or_return(&mut self, entry: Entry) -> Option<Entry> {
        let farthest = self.entries.last().copied().filter(|_| self.entries.len() == self.capacity);
        if self.insert(entry) { farthest } else { Some(entry) }
    }

    /// Makes room for `capacity` entries, and fills it with the nearest of `beyond`, which had found none.
    pub fn widen_to(&mut self, capacity: usize, beyond: &mut Vec<Entry>) {
        self.capacity = self.capacity.max(capacity);
        let room = self.capacity - self.entries.len();
        if room < beyond.len() {
            beyond.select_nth_unstable(room);
        }
        beyond.drain(..room.min(beyond.len())).for_each(|entry| self.entries.push(entry));
        self.entries.sort_unstable();
        self.cursor = 0;
    }

    /// The nearest node not yet expanded, which now is; `None` when there is no other, or only ones too far.
    #[inline(always)]
    pub fn expand_next(&mut self) -> Option<u32> {
        while let Some(entry) = self.entries.get_mut(self.cursor).filter(|entry| **entry < self.reach) {
            self.cursor += 1;
            if *entry & EXPANDED == 0 {
                *entry |= EXPANDED;
                return Some(id(*entry));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_sort_as_their_distances(a in any::<f32>(), b in any::<f32>(), x in 0u32..1 << 31, y in 0u32..1 << 31) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            let (one, two) = (entry(a, x), entry(b, y));
            prop_assert_eq!((id(one), distance(one).to_bits()), (x, a.to_bits()));
            if a < b {
                prop_assert!(one < two);
            }
        }

        #[test]
        fn the_pool_keeps_the_nearest_in_order(distances in prop::collection::vec(0u32..1000, 0..200), capacity in 1usize..64) {
            let mut pool = Pool::default();
            pool.reset(capacity);
            let all: Vec<Entry> = distances.iter().enumerate().map(|(i, d)| entry(*d as f32, i as u32)).collect();
            for (i, one) in all.iter().enumerate() {
                pool.insert(*one);
                if i % 3 == 0 {
                    pool.expand_next();
                }
            }
            let mut expected = all.clone();
            expected.sort_unstable();
            expected.truncate(capacity);
            let kept: Vec<Entry> = pool.entries().iter().map(|e| e & !EXPANDED).collect();
            prop_assert_eq!(kept, expected);
            while pool.expand_next().is_some() {}
            prop_assert!(pool.entries().iter().all(|e| e & EXPANDED == 1));
        }

        #[test]
        fn a_pool_with_a_stop_keeps_what_is_near_enough(
            distances in prop::collection::vec(0u32..1000, 0..200), capacity in 20usize..64, rank in 1usize..10, more in 0usize..8,
            factor in 1.0f32..4.0,
        ) {
            let mut pool = Pool::default();
            pool.reset(capacity);
            let kept = rank + more;
            pool.stop_at(Stop { rank, factor }, kept);
            let mut expected: Vec<Entry> =
                distances.iter().enumerate().map(|(i, d)| entry(*d as f32, i as u32)).collect();
            for (i, one) in expected.iter().enumerate() {
                let bound = pool.bound();
                prop_assert_eq!(pool.insert(*one), *one < bound);
                if i % 3 == 0 {
                    pool.expand_next();
                }
            }
            expected.sort_unstable();
            expected.truncate(capacity);
            if expected.len() >= kept {
                let reach = distance(expected[rank - 1]) * factor;
                let near = expected.partition_point(|entry| distance(*entry) < reach).max(kept);
                expected.truncate(near);
            }
            let left: Vec<Entry> = pool.entries().iter().map(|e| e & !EXPANDED).collect();
            prop_assert_eq!(left, expected);
            while pool.expand_next().is_some() {}
            let reach = if pool.entries().len() < kept { f32::MAX } else { distance(pool.entries()[rank - 1]) * factor };
            let open = pool.entries().iter().filter(|e| **e & EXPANDED == 0);
            prop_assert!(open.clone().all(|e| distance(*e) >= reach));
            let near = pool.entries().iter().filter(|e| distance(**e) < reach);
            prop_assert!(near.into_iter().all(|e| e & EXPANDED == 1));
        }

        #[test]
        fn a_pool_that_is_widened_holds_what_a_wide_one_holds(
            distances in prop::collection::vec(0u32..1000, 0..200), narrow in 1usize..32, wider in 0usize..64,
        ) {
            let mut pool = Pool::default();
            pool.reset(narrow);
            let mut beyond = Vec::new();
            let mut expected: Vec<Entry> =
                distances.iter().enumerate().map(|(i, d)| entry(*d as f32, i as u32)).collect();
            for (i, one) in expected.iter().enumerate() {
                beyond.extend(pool.insert_or_return(*one));
                if i % 3 == 0 {
                    pool.expand_next();
                }
            }
            let unexpanded = beyond.iter().chain(pool.entries()).filter(|e| **e & EXPANDED == 0).count();
            pool.widen_to(narrow + wider, &mut beyond);
            expected.sort_unstable();
            let kept: Vec<Entry> = pool.entries().iter().map(|e| e & !EXPANDED).collect();
            prop_assert_eq!(&kept[..], &expected[..expected.len().min(narrow + wider)]);
            prop_assert_eq!(kept.len() + beyond.len(), expected.len());
            let left = beyond.iter().filter(|e| **e & EXPANDED == 0).count();
            prop_assert_eq!(std::iter::from_fn(|| pool.expand_next()).count(), unexpanded - left);
        }
    }
}
