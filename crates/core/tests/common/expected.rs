//! What a power cut may leave, and what must be found in it.

use std::collections::{BTreeMap, BTreeSet};

use super::{bits, check_verified, tags_of};
use vecplane_core::{Plane, SearchOptions};

/// What a power cut may leave, and what must be found in it.
#[derive(Clone, Default)]
pub struct Expected {
    /// By key: at the last completed flush.
    pub flushed: BTreeMap<Vec<u8>, Vec<f32>>,
    /// By key: inserted since, perhaps under a key that was in use before.
    pub since: BTreeMap<Vec<u8>, Vec<Vec<f32>>>,
    pub removed_since: BTreeSet<Vec<u8>>,
}

impl Expected {
    pub fn check(&self, plane: &Plane) {
        check_verified(plane);
        for key in self.flushed.keys() {
            let there = plane.id_of(key).unwrap().is_some();
            assert!(there || self.removed_since.contains(key), "lost: {:?}", String::from_utf8_lossy(key));
        }
        for id in 0..plane.id_high_water().unwrap() {
            let (Some(key), Some(vector)) = (plane.key(id).unwrap(), plane.vector(id).unwrap()) else {
                continue;
            };
            let since = self.since.get(&key).into_iter().flatten();
            let mut known = self.flushed.get(&key).into_iter().chain(since);
            let name = String::from_utf8_lossy(&key);
            assert_eq!(plane.tags(id).unwrap(), Some(tags_of(&vector)), "tags of {name:?}");
            assert!(
                known.any(|one| bits(one) == bits(&vector)),
                "ghost: {name:?} with a vector that it never had"
            );
        }
        let k = 20.min(plane.count().unwrap() as usize);
        let query =
            self.flushed.values().next().cloned().unwrap_or_else(|| vec![1.0; plane.config().dims as usize]);
        assert_eq!(plane.search(&query, &SearchOptions::new(20)).unwrap().len(), k, "hits");
    }
}
