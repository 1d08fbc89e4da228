//! Which nodes a search has met: a bitset that costs what was visited to clear.

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
