//! A plane beside its model: random steps on both, and what they must agree on.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::filtered::check_filtered;
use super::{Model, Rng, TagColumn, key_ends, open, tags_of};
use vecplane_core::{Batch, CompactOptions, CreateOptions, Error, Metric, Plane, SearchOptions, TagSet};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keys {
    None,
    Repeating,
    Unique,
}

/// A plane, its model, and the random numbers that drive both.
pub struct Run {
    plane: Option<Plane>,
    pub path: PathBuf,
    pub model: Model,
    pub rng: Rng,
    pub keys: Keys,
    /// Whether records are given tags.
    pub tagged: bool,
    pub next_key: u64,
    /// Removed ids that have not been given again.
    pub freed: BTreeSet<u32>,
    _dir: super::image::Evidence,
}

impl Run {
    pub fn new(options: CreateOptions, keys: Keys, rng: Rng) -> Self {
        let dir = super::image::evidence_dir();
        let path = dir.path().join("plane");
        let plane = Plane::create(&path, &options).unwrap();
        let mut rng = rng;
        Run {
            tagged: rng.chance(0.6),
            plane: Some(plane),
            path,
            model: Model::new(&options),
            rng,
            keys,
            next_key: 0,
            freed: BTreeSet::new(),
            _dir: dir,
        }
    }

    pub fn plane(&self) -> &Plane {
        self.plane.as_ref().unwrap()
    }

    pub fn key(&mut self) -> Vec<u8> {
        self.next_key += 1;
        let length = match self.rng.below(40) {
            0 => self.rng.range(64..=70),
            1 => self.rng.range(100..=3000),
            2..6 => 12,
            _ => 0,
        };
        let mut key = match self.keys {
            Keys::None => return Vec::new(),
            Keys::Repeating => format!("{}", self.rng.below(20)).into_bytes(),
            Keys::Unique => format!("key {}", self.next_key).into_bytes(),
        };
        if length > key.len() {
            let filler = self.rng.bytes(length - key.len());
            key.extend(filler);
        }
        key
    }

    pub fn vector(&mut self) -> Vec<f32> {
        let dims = self.model.dims();
        if self.rng.chance(0.01) { vec![0.0; dims] } else { self.rng.vector(dims) }
    }

    fn tags(&self, vector: &[f32]) -> TagSet {
        if self.tagged { tags_of(vector) } else { TagSet::default() }
    }

    fn search_filtered(&mut self) {
        let query = self.query();
        if self.model.options.metric != Metric::Cosine || super::norm(&query) > 0.0 {
            let plane = self.plane.as_ref().unwrap();
            check_filtered(plane, &self.model, &mut self.rng, &query);
        }
    }

    pub fn query(&mut self) -> Vec<f32> {
        let near = self.model.some_id(&mut self.rng).filter(|_| self.rng.chance(0.5));
        let query = near.map(|id| self.model.records[&id].vector.iter().map(|x| x * 1.001 + 1e-7).collect());
        query.unwrap_or_else(|| self.rng.vector(self.model.dims()))
    }

    /// The id is one that is free, as long as there is any.
    pub fn check_given(&mut self, id: u32, high_water: u32) {
        if self.freed.is_empty() {
            assert_eq!(id, high_water, "ids are dense");
        } else {
            assert!(self.freed.remove(&id), "id {id} given while {} slots are free", self.freed.len());
        }
    }

    pub fn insert(&mut self) -> u32 {
        let (vector, key) = (self.vector(), self.key());
        let high_water = self.plane().id_high_water().unwrap();
        let tags = self.tags(&vector);
        let id = self.plane().insert_tagged(&vector, &key, &tags).unwrap();
        self.check_given(id, high_water);
        self.model.add_tagged(id, &vector, &key, &tags);
        id
    }

    pub fn insert_batch(&mut self, count: usize, threads: usize) {
        let records: Vec<_> = (0..count).map(|_| (self.vector(), self.key())).collect();
        let vectors: Vec<f32> = records.iter().flat_map(|(vector, _)| vector.iter().copied()).collect();
        let keys: Vec<u8> = records.iter().flat_map(|(_, key)| key.iter().copied()).collect();
        let key_ends = key_ends(records.iter().map(|(_, key)| key));
        let key_ends = if self.keys == Keys::None { &[][..] } else { &key_ends };
        let batch = Batch { vectors: &vectors, keys: &keys, key_ends };
        let tags: Vec<TagSet> = records.iter().map(|(vector, _)| self.tags(vector)).collect();
        let column = TagColumn::new(&tags);
        let outcome = self.plane().insert_batch_tagged(batch, column.as_tags(), threads, &|_| true).unwrap();
        assert!(outcome.fault.is_none() && outcome.rejected.is_empty(), "{outcome:?}");
        assert_eq!(outcome.ids.len(), count);
        for (((vector, key), id), tags) in records.iter().zip(outcome.ids).zip(&tags) {
            self.freed.remove(&id);
            self.model.add_tagged(id, vector, key, tags);
        }
    }

    pub fn remove(&mut self, id: u32) {
        assert!(self.plane().remove(id).unwrap());
        assert!(self.model.records.remove(&id).is_some());
        self.freed.insert(id);
    }

    pub fn search(&mut self) {
        let query = self.query();
        let options =
            SearchOptions { ef: Some(self.rng.range(1..=200)), ..SearchOptions::new(self.rng.range(1..=30)) };
        if self.model.options.metric == Metric::Cosine && super::norm(&query) == 0.0 {
            assert!(matches!(self.plane().search(&query, &options), Err(Error::ZeroQuery)));
            return;
        }
        let hits = self.plane().search(&query, &options).unwrap();
        self.model.check_hits(&query, &hits, options.k);
    }

    pub fn search_exact(&mut self) {
        let query = self.query();
        if self.model.options.metric == Metric::Cosine && super::norm(&query) == 0.0 {
            return;
        }
        let k = self.rng.range(1..=30);
        let hits = self.plane().search_exact(&query, k, None).unwrap();
        self.model.check_hits(&query, &hits, k);
        assert_eq!(self.model.recall(&query, &hits, k), 1.0, "an exact search missed one");
        let filter = self.rng.bytes(self.model.records.len() / 8 + 1);
        let allowed = |id: &u32| filter.get(*id as usize / 8).is_some_and(|byte| byte >> (id % 8) & 1 == 1);
        let mut some = self.model.clone();
        some.records.retain(|id, _| allowed(id));
        let exact = self.plane().search_exact(&query, k, Some(&filter)).unwrap();
        some.check_hits(&query, &exact, k);
        assert_eq!(some.recall(&query, &exact, k), 1.0);
        let filtered = SearchOptions { filter: Some(&filter), ..SearchOptions::new(k) };
        let hits = self.plane().search(&query, &filtered).unwrap();
        some.check_hits(&query, &hits, k);
    }

    /// No-ops, refusals, and what must not have changed after them.
    pub fn misuse(&mut self) {
        let dead = self.freed.iter().next().copied().unwrap_or(u32::MAX);
        for id in [dead, self.plane().id_high_water().unwrap(), u32::MAX] {
            assert!(!self.plane().remove(id).unwrap());
        }
        let dims = self.model.dims();
        let key = if self.keys == Keys::None { Vec::new() } else { b"never stored".to_vec() };
        let mut bad = vec![1.0; dims];
        assert!(matches!(
            self.plane().insert(&vec![1.0; dims + 1], &key),
            Err(Error::DimensionMismatch { .. })
        ));
        bad[self.rng.below(dims)] = *self.rng.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        assert!(matches!(self.plane().insert(&bad, &key), Err(Error::NotFinite { .. })));
        assert!(matches!(self.plane().search(&bad, &SearchOptions::new(3)), Err(Error::NotFinite { .. })));
        if let Some(id) = self.model.some_id(&mut self.rng).filter(|_| self.keys == Keys::Unique) {
            let key = self.model.records[&id].key.clone();
            let refused = self.plane().insert(&vec![1.0; dims], &key);
            assert!(matches!(refused, Err(Error::KeyExists { id: other }) if other == id), "{refused:?}");
        }
    }

    pub fn reopen(&mut self) {
        let (count, entry) = (self.plane().count().unwrap(), self.plane().entry_point().unwrap());
        self.plane = None;
        self.plane = Some(open(&self.path));
        assert!(self.plane().opened_clean());
        assert_eq!((self.plane().count().unwrap(), self.plane().entry_point().unwrap()), (count, entry));
    }

    /// The plane written anew, in place or elsewhere, with the ids and links it had or others: the same records, with less
    /// room.
    pub fn compact(&mut self) {
        let renumber = self.rng.chance(0.5);
        let elsewhere = self.rng.chance(0.3).then(|| self.path.with_extension("compacted"));
        let (relink, threads) = (self.rng.chance(0.3), 1 + self.rng.below(2));
        let options = CompactOptions { path: elsewhere.clone(), overwrite: true, renumber, relink, threads };
        // The slot goes with the file if nobody has it any more, and another handle finds the new one as well.
        let other = open(&self.path);
        let compacted = self.plane().compact(&options, &|_, _| true).unwrap();
        let mut model = self.model.clone();
        if renumber {
            let new_id = |old: u32| compacted.new_ids[old as usize];
            model.records = model.records.into_iter().map(|(id, record)| (new_id(id), record)).collect();
            assert_eq!(model.records.len(), self.model.records.len());
        }
        let used = model.records.keys().next_back().map_or(0, |id| id + 1);
        let Some(copy) = elsewhere else {
            assert_eq!(self.plane().id_high_water().unwrap(), used);
            self.model = model;
            self.freed.retain(|id| *id < used && !renumber);
            self.model.check_plane(&other);
            return;
        };
        let plane = open(&copy);
        assert!(plane.opened_clean() && plane.id_high_water().unwrap() == used);
        model.check_plane(&plane);
    }

    /// A copy holds what the plane holds, and takes records of its own.
    pub fn snapshot(&mut self) {
        let path = self.path.with_extension("snapshot");
        self.plane().snapshot(&path, true, &|_, _| true).unwrap();
        let copy = open(&path);
        assert!(copy.opened_clean());
        assert_eq!(copy.entry_point().unwrap(), self.plane().entry_point().unwrap());
        self.model.check_plane(&copy);
        if self.keys != Keys::Unique {
            let mut model = self.model.clone();
            let vector = self.vector();
            let key = if self.keys == Keys::None { &b""[..] } else { b"of the copy" };
            model.add(copy.insert(&vector, key).unwrap(), &vector, key);
            model.check_plane(&copy);
        }
    }

    pub fn steps(&mut self, count: usize, removals: f64) {
        for _ in 0..count {
            match self.rng.below(100) {
                0..60 if self.rng.chance(removals) => {
                    if let Some(id) = self.model.some_id(&mut self.rng) {
                        self.remove(id);
                    }
                }
                0..60 => drop(self.insert()),
                60..63 => {
                    let (count, threads) = (self.rng.range(0..=80), self.rng.range(1..=2));
                    self.insert_batch(count, threads);
                }
                63..82 => self.search(),
                82..88 => self.search_filtered(),
                88..95 => self.search_exact(),
                95..97 => self.plane().flush(None).unwrap(),
                97 => self.reopen(),
                98 => match self.rng.below(3) {
                    0 => self.compact(),
                    1 => self.snapshot(),
                    _ => {}
                },
                _ => self.misuse(),
            }
        }
    }

    pub fn check(&mut self, phase: &str, self_recall_min: f64) {
        self.model.check_plane(self.plane());
        let recall = self.model.self_recall(self.plane.as_ref().unwrap(), &mut self.rng, 50);
        assert!(
            recall >= self_recall_min,
            "{phase}: self-recall {recall} of {} records",
            self.model.records.len()
        );
    }

    pub fn remove_all(&mut self) {
        let mut ids: Vec<u32> = self.model.records.keys().copied().collect();
        match self.rng.below(3) {
            0 => {}
            1 => ids.reverse(),
            _ => (1..ids.len()).for_each(|i| ids.swap(i, self.rng.below(i + 1))),
        }
        let checks = [ids.len() / 2, ids.len().saturating_sub(10), ids.len().saturating_sub(1)];
        for (i, id) in ids.iter().enumerate() {
            if checks.contains(&i) {
                self.model.check_plane(self.plane());
            }
            self.remove(*id);
            if i % 16 == 0 {
                self.search();
            }
        }
    }
}
