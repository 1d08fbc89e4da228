//! The answer to one query.

/// Parallel arrays, ascending by distance, equal distances by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hits {
    /// Ids of the records found.
    pub ids: Vec<u32>,
    /// Distance of each, smaller is nearer.
    pub distances: Vec<f32>,
    /// Keys of all hits, one after the other; empty on planes without keys.
    pub keys: Vec<u8>,
    /// End of each hit's key in `keys`.
    pub key_ends: Vec<u32>,
}

impl Hits {
    /// How many records were found.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Leaves out the hits that are farther away.
    pub(crate) fn cut(&mut self, within: f64) {
        let kept = self.distances.partition_point(|distance| f64::from(*distance) <= within);
        self.ids.truncate(kept);
        self.distances.truncate(kept);
        self.key_ends.truncate(kept);
        self.keys.truncate(self.key_ends.last().map_or(0, |end| *end as usize));
    }

    /// Key of hit `i`.
    pub fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.key_ends[i - 1] as usize };
        &self.keys[start..self.key_ends[i] as usize]
    }
}
