//! Which nodes a search has met: a bitset that costs what was visited to clear.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::file::layout::NONE;

/// A set of ids below a limit.
#[derive(Default)]
pub struct Visited {
    words: Vec<u64>,
    touched: Vec<u32>,
}

impl Visited {
    /// Empties the set and makes room for ids below `limit`.
    pub fn reset(&mut self, limit: u32) {
        for at in self.touched.drain(..) {
            self.words[at as usize] = 0;
        }
        let words = (limit as usize).div_ceil(64);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    /// Whether an id below the limit is in the set.
    #[inline(always)]
    pub fn contains(&self, id: u32) -> bool {
        self.words[id as usize >> 6] >> (id & 63) & 1 != 0
    }

    /// The ids in the set, in no order.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.touched.iter().flat_map(|&at| {
            let mut left = self.words[at as usize];
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(at << 6 | bit)
            })
        })
    }

    /// Adds the links below `limit`, up to the first `NONE`, and appends those that were not in the set to `new`. Without a branch
    /// for each: whether one was met before is as good as random, and a processor that guesses wrong loses some fifteen cycles.
    #[inline(always)]
    pub fn insert_new(&mut self, links: &[AtomicU32], limit: u32, new: &mut Vec<u32>) {
        let (mut count, mut touched) = (new.len(), self.touched.len());
        new.resize(count + links.len(), 0);
        self.touched.resize(touched + links.len(), 0);
        for link in links {
            let id = link.load(Ordering::Relaxed);
            if id == NONE {
                break;
            }
            if id >= limit {
                continue;
            }
            let word = &mut self.words[id as usize >> 6];
            let (before, bit) = (*word, 1u64 << (id & 63));
            *word = before | bit;
            self.touched[touched] = id >> 6;
            touched += usize::from(before == 0);
            new[count] = id;
            count += usize::from(before & bit == 0);
        }
        new.truncate(count);
        self.touched.truncate(touched);
    }

    /// Adds an id below the limit; false when it was in the set already.
    #[inline(always)]
    pub fn insert(&mut self, id: u32) -> bool {
        let word = &mut self.words[id as usize >> 6];
        let bit = 1u64 << (id & 63);
        if *word & bit != 0 {
            return false;
        }
        if *word == 0 {
            self.touched.push(id >> 6);
        }
        *word |= bit;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn links_are_added_as_they_are_one_by_one(lists in prop::collection::vec(prop::collection::vec(0u32..300, 0..40), 0..20)) {
            const LIMIT: u32 = 280;
            let (mut together, mut one_by_one) = (Visited::default(), Visited::default());
            for round in 0..2 {
                together.reset(LIMIT);
                one_by_one.reset(LIMIT);
                for list in &lists {
                    // Ids from 290 on stand for the end of a list, with more behind it.
                    let list = list.iter().map(|id| if *id >= 290 { NONE } else { *id });
                    let links: Vec<AtomicU32> = list.clone().map(AtomicU32::new).collect();
                    let mut new = vec![7];
                    together.insert_new(&links, LIMIT, &mut new);
                    let linked = list.take_while(|id| *id != NONE).filter(|id| *id < LIMIT);
                    let expected: Vec<u32> = [7].into_iter().chain(linked.filter(|id| one_by_one.insert(*id))).collect();
                    prop_assert_eq!(new, expected, "round {}", round);
                }
                let sorted = |set: &Visited| {
                    let mut ids: Vec<u32> = set.ids().collect();
                    ids.sort_unstable();
                    ids
                };
                prop_assert_eq!(sorted(&together), sorted(&one_by_one));
            }
        }
    }

    #[test]
    fn reset_forgets_everything() {
        let mut visited = Visited::default();
        visited.reset(1000);
        for round in 0..3 {
            for id in (0..1000).step_by(7) {
                assert!(visited.insert(id), "round {round}");
                assert!(!visited.insert(id));
            }
            let mut ids: Vec<u32> = visited.ids().collect();
            ids.sort_unstable();
            assert!(ids.into_iter().eq((0..1000).step_by(7)));
            visited.reset(1000 + round);
        }
    }
}
