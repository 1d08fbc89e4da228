//! What the test files share: random numbers, true distances, the model of a plane, children and their ends.
#![allow(dead_code, clippy::undocumented_unsafe_blocks)] // Each test file uses a part of this.

#[cfg(unix)]
pub mod child;
pub mod clock;
#[cfg(unix)]
pub mod disk;
pub mod expected;
pub mod filtered;
pub mod image;
#[cfg(unix)]
pub mod journal;
pub mod run;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use vecplane_core::{
    BatchTags, CreateOptions, Hits, Metric, OpenOptions, Plane, Precision, Rerank, SearchOptions,
};
use vecplane_core::{Tag, TagSet};

/// Whether the long forms were asked for.
pub fn long() -> bool {
    std::env::var_os("VECPLANE_LONG").is_some_and(|value| value == "1")
}

/// `short`, or `long` where the long forms were asked for.
pub fn by_form<T>(short: T, long_form: T) -> T {
    if long() { long_form } else { short }
}

/// Where each key ends when they stand one after another, as batches take them.
pub fn key_ends<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Vec<u32> {
    let mut end = 0;
    let ends = keys.into_iter().map(|key| {
        end += key.as_ref().len() as u32;
        end
    });
    ends.collect()
}

/// SplitMix64 (Steele, Lea and Flood, 2014): small, and the same everywhere.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// A generator seeded by `VECPLANE_SEED`, else by the clock; says which, so that a failure can be repeated.
    pub fn for_test(name: &str) -> Self {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
        let given = std::env::var("VECPLANE_SEED").ok().and_then(|text| text.trim().parse().ok());
        let seed = given.unwrap_or_else(clock);
        println!("{name}: VECPLANE_SEED={seed}");
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A generator of its own for a part of the test.
    pub fn fork(&mut self) -> Self {
        Rng(self.next())
    }

    /// From 0 to `end - 1`.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    pub fn range(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    pub fn gauss(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    pub fn gaussian(&mut self, dims: usize) -> Vec<f32> {
        (0..dims).map(|_| self.gauss()).collect()
    }

    /// What real corpora hold: clusters, outliers, copies, a few odd sizes.
    pub fn vector(&mut self, dims: usize) -> Vec<f32> {
        match self.below(16) {
            0 => self.gaussian(dims).iter().map(|x| x * 1e-6).collect(),
            1 => self.gaussian(dims).iter().map(|x| x * 1e4).collect(),
            // One of a few vectors over and over.
            2 => Rng::new(self.below(3) as u64).gaussian(dims),
            3..8 => self.gaussian(dims),
            _ => {
                let mut centre = Rng::new(1000 + self.below(8) as u64);
                (0..dims).map(|_| centre.gauss() + 0.2 * self.gauss()).collect()
            }
        }
    }
}

/// The distance as the documentation defines it, in f64.
pub fn true_distance(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    let pairs = || a.iter().zip(b).map(|(&x, &y)| (f64::from(x), f64::from(y)));
    let dot: f64 = pairs().map(|(x, y)| x * y).sum();
    match metric {
        Metric::L2 => pairs().map(|(x, y)| (x - y) * (x - y)).sum(),
        Metric::InnerProduct => -dot,
        Metric::Cosine => {
            let norms = norm(a) * norm(b);
            if norms == 0.0 { 1.0 } else { (1.0 - dot / norms).clamp(0.0, 2.0) }
        }
    }
}

pub fn norm(vector: &[f32]) -> f64 {
    vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

/// How far an answer's distance may be from the true one: the rounding of what the plane keeps, and that of f32 sums.
pub fn tolerance(options: &CreateOptions, query: &[f32], vector: &[f32]) -> f64 {
    let (size, query_size) = (norm(vector), norm(query));
    let largest = vector.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
    let root = (vector.len() as f64).sqrt();
    let half = size / 2048.0 + root * 2f64.powi(-24);
    let kept = match (options.precision, options.rerank) {
        (Precision::F32, _) | (_, Rerank::F32) => 0.0,
        (_, Rerank::F16) | (Precision::F16, _) => half,
        (Precision::Int8, _) => root * largest / 253.0,
        (Precision::Int16, _) => root * largest / 65_000.0,
    };
    // Sums in f32 over up to 64 components.
    let sums = 2e-6;
    match options.metric {
        Metric::Cosine if size == 0.0 => 0.0,
        Metric::Cosine => kept / size + sums,
        Metric::InnerProduct => query_size * (kept + size * sums) + 1e-30,
        Metric::L2 => {
            let apart = true_distance(Metric::L2, query, vector).sqrt();
            kept * (2.0 * apart + kept) + (query_size + size).powi(2) * sums + 1e-30
        }
    }
}

/// The tags that a record with this vector has where a test gives tags: none, a few, or a block of some size.
pub fn tags_of(vector: &[f32]) -> TagSet {
    let mut rng = Rng::new(vector.iter().fold(7u64, |sum, x| sum.rotate_left(9) ^ u64::from(x.to_bits())));
    let text = |n: usize| format!("{n}{}", "x".repeat(n * n % 200));
    let count = *rng.pick(&[0, 0, 1, 1, 2, 3, 20]);
    let texts: Vec<String> = (0..count).map(|_| text(rng.below(25))).collect();
    let numbers = (0..count / 2).map(|_| Tag::Number(rng.below(9) as u32));
    TagSet::new(texts.iter().map(|text| Tag::Text(text)).chain(numbers)).unwrap()
}

/// Tags of many records, as batches take them.
pub struct TagColumn<'a> {
    distinct: Vec<Result<Tag<'a>, &'static str>>,
    refs: Vec<u32>,
    ends: Vec<u32>,
}

impl<'a> TagColumn<'a> {
    pub fn new(sets: &'a [TagSet]) -> Self {
        let mut column = TagColumn { distinct: Vec::new(), refs: Vec::new(), ends: Vec::new() };
        for set in sets {
            column.distinct.extend(set.iter().map(Ok));
            column.ends.push(column.distinct.len() as u32);
        }
        column.refs = (0..column.distinct.len() as u32).collect();
        column
    }

    pub fn as_tags(&self) -> BatchTags<'_> {
        BatchTags { distinct: &self.distinct, refs: &self.refs, ends: &self.ends }
    }
}

/// One record of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub vector: Vec<f32>,
    pub key: Vec<u8>,
    pub tags: TagSet,
}

/// What a plane should hold, by id.
#[derive(Clone)]
pub struct Model {
    pub options: CreateOptions,
    pub records: BTreeMap<u32, Record>,
}

impl Model {
    pub fn new(options: &CreateOptions) -> Self {
        Model { options: options.clone(), records: BTreeMap::new() }
    }

    pub fn dims(&self) -> usize {
        self.options.dims as usize
    }

    pub fn some_id(&self, rng: &mut Rng) -> Option<u32> {
        let at = self.records.range(rng.next() as u32..).next().or(self.records.iter().next());
        // Uniform among those given: ids are dense.
        let most = self.records.keys().next_back().map_or(1, |id| *id as usize + 1);
        self.records.range(rng.below(most) as u32..).next().or(at).map(|(id, _)| *id)
    }

    /// Adds a record that the plane says it has stored.
    pub fn add(&mut self, id: u32, vector: &[f32], key: &[u8]) {
        self.add_tagged(id, vector, key, &TagSet::default());
    }

    /// The same with tags.
    pub fn add_tagged(&mut self, id: u32, vector: &[f32], key: &[u8], tags: &TagSet) {
        let record = Record { vector: vector.to_vec(), key: key.to_vec(), tags: tags.clone() };
        assert!(self.records.insert(id, record).is_none(), "id {id} was given twice");
    }

    /// Every hit is a live record with its own key and its own distance, in order; there are as many as there can be.
    pub fn check_hits(&self, query: &[f32], hits: &Hits, k: usize) {
        assert_eq!(hits.len(), k.min(self.records.len()), "hits of {} records", self.records.len());
        assert_eq!((hits.distances.len(), hits.key_ends.len()), (hits.len(), hits.len()));
        assert_eq!(hits.ids.iter().collect::<HashSet<_>>().len(), hits.len(), "ids repeat: {:?}", hits.ids);
        let order: Vec<(f32, u32)> = hits.distances.iter().copied().zip(hits.ids.iter().copied()).collect();
        assert!(
            order.windows(2).all(|w| w[0].0 < w[1].0 || w[0].0 == w[1].0 && w[0].1 < w[1].1),
            "order: {order:?}"
        );
        for (i, id) in hits.ids.iter().enumerate() {
            let record = self.records.get(id).unwrap_or_else(|| panic!("ghost: id {id} is not in the plane"));
            assert_eq!(hits.key(i), record.key, "key of id {id}");
            let (distance, tolerance) = self.distance(query, record);
            let off = (f64::from(hits.distances[i]) - distance).abs();
            assert!(off <= tolerance, "id {id}: distance {} for {distance}, off by {off}", hits.distances[i]);
        }
    }

    /// True distance of a record, with the tolerance that it has.
    pub fn distance(&self, query: &[f32], record: &Record) -> (f64, f64) {
        let distance = true_distance(self.options.metric, query, &record.vector);
        (distance, tolerance(&self.options, query, &record.vector))
    }

    /// Share of the hits that belong among the `k` nearest, ties and rounding allowed for.
    pub fn recall(&self, query: &[f32], hits: &Hits, k: usize) -> f64 {
        let mut all: Vec<(f64, f64)> =
            self.records.values().map(|record| self.distance(query, record)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let nearest = &all[..k.min(all.len())];
        let Some(&(bound, _)) = nearest.last() else { return 1.0 };
        // Rounding may have put any of them behind one that is not.
        let bound_tolerance = nearest.iter().fold(0.0f64, |most, (_, tolerance)| most.max(*tolerance));
        let right = hits.ids.iter().filter(|id| {
            let (distance, tolerance) = self.distance(query, &self.records[id]);
            distance <= bound + tolerance + bound_tolerance
        });
        right.count() as f64 / k.min(all.len()) as f64
    }

    /// The plane says the same as the model of every record and of itself.
    pub fn check_plane(&self, plane: &Plane) {
        check_verified(plane);
        assert_eq!(plane.count().unwrap(), self.records.len() as u64, "count");
        let high_water = plane.id_high_water().unwrap();
        assert!(self.records.keys().next_back().is_none_or(|id| *id < high_water));
        let stats = plane.stats().unwrap();
        let gone = u64::from(high_water) - self.records.len() as u64;
        assert_eq!(u64::from(stats.free) + u64::from(stats.limbo), gone, "free and limbo: {stats:?}");
        assert_eq!(plane.entry_point().unwrap().is_none(), self.records.is_empty());
        for id in 0..high_water + 3 {
            self.check_record(plane, id);
        }
    }

    pub fn check_record(&self, plane: &Plane, id: u32) {
        let record = self.records.get(&id);
        assert_eq!(plane.key(id).unwrap(), record.map(|r| r.key.clone()), "key of id {id}");
        assert_eq!(plane.tags(id).unwrap().as_ref(), record.map(|r| &r.tags), "tags of id {id}");
        let vector = plane.vector(id).unwrap();
        match record {
            None => assert!(vector.is_none(), "ghost: a vector for id {id}"),
            Some(record) => {
                let vector = vector.unwrap_or_else(|| panic!("lost: no vector for id {id}"));
                if exact(&self.options) {
                    assert_eq!(bits(&vector), bits(&record.vector), "vector of id {id}, bit for bit");
                }
                if self.options.unique_keys {
                    assert_eq!(plane.id_of(&record.key).unwrap(), Some(id), "id of the key of {id}");
                }
            }
        }
    }

    /// Share of a sample of records that a search for their own vector finds, ties allowed for.
    pub fn self_recall(&self, plane: &Plane, rng: &mut Rng, samples: usize) -> f64 {
        let options = SearchOptions { ef: Some(128), ..SearchOptions::new(10) };
        let (mut tried, mut found) = (0, 0);
        for _ in 0..samples {
            let Some(id) = self.some_id(rng) else { return 1.0 };
            let vector = &self.records[&id].vector;
            if self.options.metric == Metric::Cosine && norm(vector) == 0.0 {
                continue;
            }
            let hits = plane.search(vector, &options).unwrap();
            self.check_hits(vector, &hits, 10);
            tried += 1;
            // Under inner product a record need not be among its own neighbours.
            let own = self.options.metric != Metric::InnerProduct && hits.ids.contains(&id);
            found += usize::from(own || self.recall(vector, &hits, 10) > 0.99);
        }
        if tried == 0 { 1.0 } else { found as f64 / tried as f64 }
    }
}

/// Whether `Plane::vector` gives the caller's bits back.
pub fn exact(options: &CreateOptions) -> bool {
    options.precision == Precision::F32 || options.rerank == Rerank::F32
}

pub fn bits(vector: &[f32]) -> Vec<u32> {
    vector.iter().map(|x| x.to_bits()).collect()
}

/// `verify` finds nothing wrong, and no record that searches cannot reach.
pub fn check_verified(plane: &Plane) {
    let report = plane.verify().unwrap();
    assert!(report.ok() && report.unreachable == 0, "{report:?}");
    assert_eq!(report.live, plane.count().unwrap(), "{report:?}");
}

pub fn open(path: &Path) -> Plane {
    Plane::open(path, &OpenOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
