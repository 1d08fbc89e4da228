//! Which ids a query may return.

use super::search::allows;

/// A set of ids, in the form in which it came or is cheapest to hold.
#[derive(Clone, Copy, Debug)]
pub enum Allowed<'a> {
    /// Bit `i & 7` of byte `i >> 3`; missing bits mean not allowed.
    Bits(&'a [u8]),
    /// Ascending, each once.
    Ids(&'a [u32]),
}

impl Allowed<'_> {
    /// Whether an id is in the set.
    #[inline(always)]
    pub fn contains(&self, id: u32) -> bool {
        match self {
            Allowed::Bits(bits) => allows(bits, id),
            Allowed::Ids(ids) => ids.binary_search(&id).is_ok(),
        }
    }

    /// How many of its ids are below `limit`.
    pub fn count(&self, limit: u32) -> usize {
        match self {
            Allowed::Bits(bits) => count_bits(bits, limit as usize),
            Allowed::Ids(ids) => ids.partition_point(|id| *id < limit),
        }
    }

    /// Its ids below `limit`, ascending.
    pub fn ids(&self, limit: u32) -> Ids<'_> {
        match self {
            Allowed::Bits(bits) => Ids::Bits { bits, limit, word: 0, next: 0 },
            Allowed::Ids(ids) => Ids::Ids(ids[..ids.partition_point(|id| *id < limit)].iter()),
        }
    }
}

fn count_bits(bits: &[u8], limit: usize) -> usize {
    let whole = &bits[..bits.len().min(limit / 8)];
    let (words, rest) = whole.as_chunks::<8>();
    let words: usize = words.iter().map(|word| u64::from_le_bytes(*word).count_ones() as usize).sum();
    let rest: usize = rest.iter().map(|byte| byte.count_ones() as usize).sum();
    let last = (limit / 8 * 8..limit).filter(|id| allows(bits, *id as u32)).count();
    words + rest + last
}

/// See `Allowed::ids`.
pub enum Ids<'a> {
    /// `word` holds the bits not given yet of the 64 ids before `next`.
    Bits {
        bits: &'a [u8],
        limit: u32,
        word: u64,
        next: u64,
    },
    Ids(std::slice::Iter<'a, u32>),
}

impl Iterator for Ids<'_> {
    type Item = u32;

    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        match self {
            Ids::Ids(ids) => ids.next().copied(),
            Ids::Bits { bits, limit, word, next } => {
                while *word == 0 {
                    let at = (*next / 8) as usize;
                    if *next >= u64::from(*limit) || at >= bits.len() {
                        return None;
                    }
                    *word = match bits[at..].first_chunk() {
                        Some(bytes) => u64::from_le_bytes(*bytes),
                        None => bits[at..].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
                    };
                    *next += 64;
                }
                let id = *next - 64 + u64::from(word.trailing_zeros());
                *word &= *word - 1;
                // Ids ascend, so all that follow are past the limit as well.
                (id < u64::from(*limit)).then_some(id as u32)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_and_ids_are_the_same_set(bits in prop::collection::vec(any::<u8>(), 0..40), limit in 0u32..400) {
            let set = Allowed::Bits(&bits);
            let ids: Vec<u32> = (0..limit).filter(|id| allows(&bits, *id)).collect();
            prop_assert_eq!(set.ids(limit).collect::<Vec<_>>(), ids.clone());
            prop_assert_eq!(set.count(limit), ids.len());
            let all: Vec<u32> = set.ids(u32::MAX).collect();
            let listed = Allowed::Ids(&all);
            prop_assert_eq!(listed.count(limit), ids.len());
            prop_assert_eq!(listed.ids(limit).collect::<Vec<_>>(), ids);
            prop_assert!((0..400).all(|id| set.contains(id) == listed.contains(id)));
        }
    }

    #[test]
    fn a_last_id_at_the_limit_is_left_out() {
        let bits = [0xFF; 8];
        assert_eq!(Allowed::Bits(&bits).ids(63).count(), 63);
        assert_eq!(Allowed::Bits(&bits).ids(64).last(), Some(63));
        assert_eq!(Allowed::Bits(&[]).ids(9).next(), None);
    }
}
