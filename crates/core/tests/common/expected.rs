//! What a power cut may leave, and what must be found in it.

use std::collections::{BTreeMap, BTreeSet};

use super::{bits, check_verified, tags_of};
use vecplane_core::{Plane, SearchOptions};

/// Vectors by key.
pub type Vectors = BTreeMap<Vec<u8>, Vec<f32>>;

/// What a power cut may leave, and what must be found in it.
#[derive(Clone, Default)]
pub struct Expected {
    /// By key: at the last completed flush.
    pub flushed: Vectors,
    /// By key: inserted since, perhaps under a key that was in use before.
    pub since: BTreeMap<Vec<u8>, Vec<Vec<f32>>>,
    pub removed_since: BTreeSet<Vec<u8>>,
    /// The watermark of the flush that is under way, and what is live at it: a plane with that watermark holds all of it.
    pub flushing: Option<(u64, Vectors)>,
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
        if let Some((watermark, live)) = &self.flushing
            && plane.watermark().unwrap() == *watermark
        {
            for (key, vector) in live {
                let id = plane.id_of(key).unwrap();
                let found = id.and_then(|id| plane.vector(id).unwrap());
                let same = found.is_some_and(|found| bits(&found) == bits(vector));
                assert!(same, "behind its watermark: {:?}", String::from_utf8_lossy(key));
            }
        }
        let k = 20.min(plane.count().unwrap() as usize);
        let query =
            self.flushed.values().next().cloned().unwrap_or_else(|| vec![1.0; plane.config().dims as usize]);
        assert_eq!(plane.search(&query, &SearchOptions::new(20)).unwrap().len(), k, "hits");
    }
}
