//! A plane against a model: a map from ids to records, searched by brute force. No ghosts, none lost, right keys.

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;

use common::{Model, Rng, by_form, open};
use vecplane_core::{
    Batch, CompactOptions, CreateOptions, Error, Metric, Plane, Precision, Rerank, SearchOptions,
};

const PRECISIONS: [Precision; 4] = [Precision::Int8, Precision::Int16, Precision::F16, Precision::F32];
const RERANKS: [Rerank; 3] = [Rerank::F32, Rerank::None, Rerank::F16];
const METRICS: [Metric; 3] = [Metric::Cosine, Metric::L2, Metric::InnerProduct];
const DIMS: [u32; 4] = [1, 3, 17, 64];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    None,
    Repeating,
    Unique,
}

/// A plane, its model, and the random numbers that drive both.
struct Run {
    plane: Option<Plane>,
    path: PathBuf,
    model: Model,
    rng: Rng,
    keys: Keys,
    next_key: u64,
    /// Removed ids that have not been given again.
    freed: BTreeSet<u32>,
    _dir: common::image::Evidence,
}

impl Run {
    fn new(options: CreateOptions, keys: Keys, rng: Rng) -> Self {
        let dir = common::image::evidence_dir();
        let path = dir.path().join("plane");
        let plane = Plane::create(&path, &options).unwrap();
        Run {
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

    fn plane(&self) -> &Plane {
        self.plane.as_ref().unwrap()
    }

    fn key(&mut self) -> Vec<u8> {
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

    fn vector(&mut self) -> Vec<f32> {
        let dims = self.model.dims();
        if self.rng.chance(0.01) { vec![0.0; dims] } else { self.rng.vector(dims) }
    }

    fn query(&mut self) -> Vec<f32> {
        let near = self.model.some_id(&mut self.rng).filter(|_| self.rng.chance(0.5));
        let query = near.map(|id| self.model.records[&id].vector.iter().map(|x| x * 1.001 + 1e-7).collect());
        query.unwrap_or_else(|| self.rng.vector(self.model.dims()))
    }

    /// The id is one that is free, as long as there is any.
    fn check_given(&mut self, id: u32, high_water: u32) {
        if self.freed.is_empty() {
            assert_eq!(id, high_water, "ids are dense");
        } else {
            assert!(self.freed.remove(&id), "id {id} given while {} slots are free", self.freed.len());
        }
    }

    fn insert(&mut self) -> u32 {
        let (vector, key) = (self.vector(), self.key());
        let high_water = self.plane().id_high_water().unwrap();
        let id = self.plane().insert(&vector, &key).unwrap();
        self.check_given(id, high_water);
        self.model.add(id, &vector, &key);
        id
    }

    fn insert_batch(&mut self, count: usize, threads: usize) {
        let records: Vec<_> = (0..count).map(|_| (self.vector(), self.key())).collect();
        let vectors: Vec<f32> = records.iter().flat_map(|(vector, _)| vector.iter().copied()).collect();
        let keys: Vec<u8> = records.iter().flat_map(|(_, key)| key.iter().copied()).collect();
        let mut end = 0;
        let key_ends: Vec<u32> = records
            .iter()
            .map(|(_, key)| {
                end += key.len() as u32;
                end
            })
            .collect();
        let key_ends = if self.keys == Keys::None { &[][..] } else { &key_ends };
        let batch = Batch { vectors: &vectors, keys: &keys, key_ends };
        let outcome = self.plane().insert_batch(batch, threads, &|_| true).unwrap();
        assert!(outcome.fault.is_none() && outcome.rejected.is_empty(), "{outcome:?}");
        assert_eq!(outcome.ids.len(), count);
        for ((vector, key), id) in records.iter().zip(outcome.ids) {
            self.freed.remove(&id);
            self.model.add(id, vector, key);
        }
    }

    fn remove(&mut self, id: u32) {
        assert!(self.plane().remove(id).unwrap());
        assert!(self.model.records.remove(&id).is_some());
        self.freed.insert(id);
    }

    fn search(&mut self) {
        let query = self.query();
        let options =
            SearchOptions { ef: Some(self.rng.range(1..=200)), ..SearchOptions::new(self.rng.range(1..=30)) };
        if self.model.options.metric == Metric::Cosine && common::norm(&query) == 0.0 {
            assert!(matches!(self.plane().search(&query, &options), Err(Error::ZeroQuery)));
            return;
        }
        let hits = self.plane().search(&query, &options).unwrap();
        self.model.check_hits(&query, &hits, options.k);
    }

    fn search_exact(&mut self) {
        let query = self.query();
        if self.model.options.metric == Metric::Cosine && common::norm(&query) == 0.0 {
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
    fn misuse(&mut self) {
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

    fn reopen(&mut self) {
        let (count, entry) = (self.plane().count().unwrap(), self.plane().entry_point().unwrap());
        self.plane = None;
        self.plane = Some(open(&self.path));
        assert!(self.plane().opened_clean());
        assert_eq!((self.plane().count().unwrap(), self.plane().entry_point().unwrap()), (count, entry));
    }

    /// The plane written anew, in place or elsewhere, with the ids it had or others: the same records, with less room.
    fn compact(&mut self) {
        let renumber = self.rng.chance(0.5);
        let elsewhere = self.rng.chance(0.3).then(|| self.path.with_extension("compacted"));
        let options = CompactOptions { path: elsewhere.clone(), overwrite: true, renumber };
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
    fn snapshot(&mut self) {
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

    fn steps(&mut self, count: usize, removals: f64) {
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
                63..88 => self.search(),
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

    fn check(&mut self, phase: &str, self_recall_min: f64) {
        self.model.check_plane(self.plane());
        let recall = self.model.self_recall(self.plane.as_ref().unwrap(), &mut self.rng, 50);
        assert!(
            recall >= self_recall_min,
            "{phase}: self-recall {recall} of {} records",
            self.model.records.len()
        );
    }

    fn remove_all(&mut self) {
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

/// What searches with ef 128 find of the records themselves. Two links a node are no graph to speak of: everything can be
/// reached, but not by a narrow beam; and under inner product a few long vectors are everyone's neighbours.
fn self_recall_min(options: &CreateOptions) -> f64 {
    match (options.metric, options.layer0_cap) {
        (Metric::InnerProduct, 32..) if options.dims > 3 => 0.3,
        (Metric::InnerProduct, _) => 0.0,
        (_, 0..4) => 0.5,
        (_, 4..8) => 0.8,
        (_, 8..24) => 0.9,
        _ => 0.96,
    }
}

/// `links`: M and layer 0 cap, in turn.
fn options(rng: &mut Rng, case: usize, links: &[(u32, u32)], keys: Keys) -> CreateOptions {
    let (m, layer0_cap) = links[case % links.len()];
    CreateOptions {
        metric: METRICS[case % 3],
        precision: *rng.pick(&PRECISIONS),
        rerank: *rng.pick(&RERANKS),
        m,
        layer0_cap,
        ef_construction: *rng.pick(&[20, 100, 200]),
        key_cap: if keys == Keys::None { 0 } else { *rng.pick(&[1, 12, 64, 500]) },
        unique_keys: keys == Keys::Unique,
        ..CreateOptions::new(DIMS[rng.below(4)])
    }
}

fn life(rng: &mut Rng, case: usize, links: &[(u32, u32)]) {
    let keys = *rng.pick(&[Keys::None, Keys::Repeating, Keys::Unique]);
    let options = options(rng, case, links, keys);
    println!("case {case}: {keys:?} {options:?}");
    let floor = self_recall_min(&options);
    let mut run = Run::new(options, keys, rng.fork());
    run.search();
    run.model.check_plane(run.plane());
    run.steps(by_form(250, 1500), 0.1);
    run.check("growth", floor);
    run.reopen();
    run.steps(by_form(150, 1000), 0.55);
    run.check("churn", floor);
    run.compact();
    run.check("compacted", floor);
    run.snapshot();
    run.remove_all();
    run.check("empty", 1.0);
    run.snapshot();
    run.compact();
    run.search();
    let count = run.rng.range(1..=300);
    run.insert_batch(count, 2);
    run.check("refill", floor);
    run.plane().flush(Some(case as u64)).unwrap();
    run.reopen();
    assert_eq!(run.plane().watermark().unwrap(), case as u64);
    run.steps(by_form(60, 300), 0.4);
    run.check("end", floor);
}

#[test]
fn a_plane_agrees_with_its_model() {
    let mut rng = Rng::for_test("a_plane_agrees_with_its_model");
    for case in 0..by_form(40, 1500) {
        life(&mut rng, case, &[(16, 32), (8, 24)]);
    }
}

#[test]
fn a_plane_with_few_links_agrees_with_its_model() {
    let mut rng = Rng::for_test("a_plane_with_few_links_agrees_with_its_model");
    for case in 0..by_form(40, 1500) {
        life(&mut rng, case, &[(4, 8), (2, 4), (2, 2), (8, 9)]);
    }
}

/// Copies are each other's nearest neighbours, so that a few nodes become parents of all the others; when such a one is
/// removed, its children must find new parents among nodes that have no link to spare.
#[test]
fn copies_stay_reachable_while_old_records_give_way_to_new_ones() {
    let mut rng = Rng::for_test("copies_stay_reachable_while_old_records_give_way_to_new_ones");
    for distinct in [1, 5, 40] {
        let originals: Vec<Vec<f32>> = (0..distinct).map(|_| rng.gaussian(8)).collect();
        let mut run = Run::new(CreateOptions::new(8), Keys::None, rng.fork());
        let mut oldest_first = Vec::new();
        for step in 0..by_form(6000, 100_000) {
            if oldest_first.len() > 50 && run.rng.chance(0.47) {
                let at =
                    if run.rng.chance(0.3) { run.rng.below(oldest_first.len()) } else { run.rng.below(10) };
                run.remove(oldest_first.remove(at));
            } else {
                let vector = run.rng.pick(&originals).clone();
                let id = run.plane().insert(&vector, b"").unwrap();
                run.freed.remove(&id);
                run.model.add(id, &vector, b"");
                oldest_first.push(id);
            }
            if step % 100 == 0 {
                common::check_verified(run.plane());
            }
        }
        run.check("churned", 0.98);
    }
}

#[test]
fn larger_planes_keep_every_record_and_their_recall() {
    let mut rng = Rng::for_test("larger_planes_keep_every_record_and_their_recall");
    for (case, precision) in PRECISIONS.iter().enumerate() {
        let options =
            CreateOptions { precision: *precision, key_cap: 8, unique_keys: true, ..CreateOptions::new(24) };
        let mut run = Run::new(options, Keys::Unique, rng.fork());
        run.insert_batch(by_form(2500, 30_000), 2);
        run.check("built", 0.999);
        let mut recall = 0.0;
        for _ in 0..50 {
            let query = run.query();
            let hits = run
                .plane()
                .search(&query, &SearchOptions { ef: Some(128), ..SearchOptions::new(10) })
                .unwrap();
            run.model.check_hits(&query, &hits, 10);
            recall += run.model.recall(&query, &hits, 10) / 50.0;
        }
        assert!(recall >= 0.99, "{precision:?}: recall {recall}");
        for id in 0..run.model.records.len() as u32 {
            if id % 10 != case as u32 {
                run.remove(id);
            }
        }
        run.check("a tenth left", 0.95);
        run.reopen();
        run.insert_batch(500, 2);
        run.check("grown again", 0.95);
    }
}

/// Removals mend the graph around them; when nine in ten are gone, nothing but such mends is left.
#[test]
fn survivors_of_many_removals_find_themselves() {
    let (mut tried, mut missed) = (0, 0);
    for seed in 0..by_form(8, 80) {
        // In tight clusters a group that is cut off is not met by chance.
        let mut rng = Rng::new(77 * seed + 5);
        let centres: Vec<Vec<f32>> = (0..8).map(|_| rng.gaussian(24)).collect();
        let mut run = Run::new(CreateOptions::new(24), Keys::None, rng.fork());
        for _ in 0..2500 {
            let vector: Vec<f32> = run.rng.pick(&centres).clone();
            let vector: Vec<f32> = vector.iter().map(|x| x + 0.2 * run.rng.gauss()).collect();
            let id = run.plane().insert(&vector, b"").unwrap();
            run.model.add(id, &vector, b"");
        }
        (0..2500).filter(|id| id % 10 != 3).for_each(|id| run.remove(id));
        run.model.check_plane(run.plane());
        let options = SearchOptions { ef: Some(128), ..SearchOptions::new(10) };
        for (id, record) in &run.model.records {
            tried += 1;
            missed += usize::from(!run.plane().search(&record.vector, &options).unwrap().ids.contains(id));
        }
    }
    assert!(
        missed * 2000 <= tried,
        "{missed} of {tried} survivors are not found by their own vectors at ef 128"
    );
}

#[test]
fn a_freed_id_is_the_next_one_given() {
    let mut rng = Rng::for_test("a_freed_id_is_the_next_one_given");
    let mut run = Run::new(CreateOptions::new(3), Keys::None, rng.fork());
    run.insert_batch(200, 1);
    for step in 0..500 {
        let id = run.model.some_id(&mut run.rng).unwrap();
        run.remove(id);
        if step % 7 == 0 {
            run.search();
        }
        if step % 50 == 0 {
            run.reopen();
        }
        assert_eq!(run.insert(), id);
    }
    // Also when the whole plane is one record, which is entry point and root at once.
    let mut run = Run::new(CreateOptions::new(3), Keys::None, rng.fork());
    let id = run.insert();
    for _ in 0..20 {
        run.remove(id);
        assert_eq!(run.insert(), id);
        run.model.check_plane(run.plane());
    }
}

#[test]
fn a_freed_id_is_the_next_one_given_after_many_removals_too() {
    let mut rng = Rng::for_test("a_freed_id_is_the_next_one_given_after_many_removals_too");
    let mut run = Run::new(CreateOptions::new(3), Keys::None, rng.fork());
    run.insert_batch(500, 1);
    (0..400).for_each(|id| run.remove(id));
    for _ in 0..50 {
        let id = run.model.some_id(&mut run.rng).unwrap();
        run.remove(id);
        assert_eq!(run.insert(), id);
    }
}

#[test]
fn a_full_plane_says_so_and_takes_what_a_removal_frees() {
    let mut rng = Rng::for_test("a_full_plane_says_so_and_takes_what_a_removal_frees");
    for most in [1u32, 2, 100, 700] {
        let keyed = rng.chance(0.5);
        let options = CreateOptions {
            max_nodes: Some(most),
            key_cap: if keyed { 8 } else { 0 },
            ..CreateOptions::new(16)
        };
        let mut run = Run::new(options, if keyed { Keys::Repeating } else { Keys::None }, rng.fork());
        for round in 0..3 {
            run.insert_batch(most as usize - run.model.records.len(), 2);
            let (vector, key) = (run.vector(), run.key());
            let full = run.plane().insert(&vector, &key);
            assert!(
                matches!(full, Err(Error::Full { max_nodes }) if max_nodes == u64::from(most)),
                "{full:?}"
            );
            run.check("full", 0.99);
            let id = run.model.some_id(&mut run.rng).unwrap();
            run.remove(id);
            assert_eq!(run.insert(), id);
            // A batch into too little room: what it says has landed has, and nothing else.
            let room = run.rng.below(most as usize) / 2;
            for _ in 0..room {
                let id = run.model.some_id(&mut run.rng).unwrap();
                run.remove(id);
            }
            let vectors: Vec<f32> = (0..room + 5).flat_map(|_| run.rng.gaussian(16)).collect();
            let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
            let outcome = run.plane().insert_batch(batch, 2, &|_| true).unwrap();
            assert!(matches!(outcome.fault, Some(Error::Full { .. })), "{:?}", outcome.fault);
            let landed = outcome.ids.iter().filter(|id| **id != u32::MAX).count();
            assert_eq!(landed, room, "round {round} of {most}");
            for (id, vector) in outcome.ids.iter().zip(vectors.chunks(16)).filter(|(id, _)| **id != u32::MAX)
            {
                run.freed.remove(id);
                run.model.add(*id, vector, b"");
            }
            run.check("full by batch", 0.99);
            run.reopen();
            assert!(matches!(run.plane().insert(&[1.0; 16], b""), Err(Error::Full { .. })));
            let ids: Vec<u32> = run.model.records.keys().copied().collect();
            let keep = run.rng.below(most as usize);
            ids[keep..].iter().for_each(|id| run.remove(*id));
        }
    }
}

#[test]
fn a_full_key_arena_refuses_long_keys_and_nothing_else() {
    let mut rng = Rng::for_test("a_full_key_arena_refuses_long_keys_and_nothing_else");
    let options = CreateOptions {
        max_nodes: Some(100),
        key_cap: 8,
        unique_keys: true,
        key_arena_bytes_per_node: Some(40),
        ..CreateOptions::new(4)
    };
    let mut run = Run::new(options, Keys::Unique, rng.fork());
    let long_key = |i: usize| [format!("{i:03}").into_bytes(), vec![b'x'; 197]].concat();
    let mut ids = Vec::new();
    // 100 x 40 bytes hold 20 keys of 200 bytes.
    for i in 0..20 {
        let vector = run.vector();
        let id = run.plane().insert(&vector, &long_key(i)).unwrap();
        run.model.add(id, &vector, &long_key(i));
        ids.push(id);
    }
    assert_eq!(run.plane().stats().unwrap().long_key_bytes, 4000);
    for round in 0..30 {
        let refused = run.plane().insert(&[1.0; 4], &long_key(500 + round));
        assert!(matches!(refused, Err(Error::KeysFull { bytes_max: 4000 })), "{refused:?}");
        assert_eq!(run.plane().stats().unwrap().long_key_bytes, 4000);
    }
    assert_eq!(run.plane().id_of(&long_key(500)).unwrap(), None);
    let vector = run.vector();
    let id = run.plane().insert(&vector, b"short").unwrap();
    run.model.add(id, &vector, b"short");
    run.check("arena full", 0.99);
    for round in 0..50 {
        let at = run.rng.below(ids.len());
        run.remove(ids[at]);
        if round % 10 == 0 {
            run.reopen();
        }
        let (vector, key) = (run.vector(), long_key(100 + round));
        ids[at] = run.plane().insert(&vector, &key).unwrap();
        run.freed.remove(&ids[at]);
        run.model.add(ids[at], &vector, &key);
    }
    run.check("arena churned", 0.99);
}

#[test]
fn long_keys_come_back_whole_and_their_space_is_used_again() {
    let mut rng = Rng::for_test("long_keys_come_back_whole_and_their_space_is_used_again");
    let options = CreateOptions { key_cap: 1, unique_keys: true, ..CreateOptions::new(2) };
    let mut run = Run::new(options, Keys::Unique, rng.fork());
    let lengths = [1, 8, 9, 12, 63, 64, 65, 66, 127, 128, 129, 1000, 4095, 4096, 65_534, 65_535];
    let mut grown = 0;
    for round in 0..20u8 {
        for (i, length) in lengths.iter().enumerate() {
            let mut key = run.rng.bytes(*length);
            key[0] = ((i as u8) << 4) | (round % 16);
            let vector = run.vector();
            let id = run.plane().insert(&vector, &key).unwrap();
            run.freed.remove(&id);
            run.model.add(id, &vector, &key);
        }
        let refused = run.plane().insert(&[1.0; 2], &vec![7; 65_536]);
        assert!(matches!(refused, Err(Error::KeyUnstorable { bytes: 65_536, .. })), "{refused:?}");
        assert!(matches!(run.plane().insert(&[1.0; 2], b""), Err(Error::KeyUnstorable { bytes: 0, .. })));
        run.check("keys of all lengths", 0.9);
        run.reopen();
        let ids: Vec<u32> = run.model.records.keys().copied().collect();
        ids.iter().for_each(|id| run.remove(*id));
        let bytes = run.plane().stats().unwrap().file_bytes;
        // Four rounds settle what lies where; after that no round needs more than the one before.
        if round == 4 {
            grown = bytes;
        } else if round > 4 {
            assert!(bytes <= grown, "round {round}: {bytes} bytes, {grown} before");
        }
    }
    // What the last ones held goes back with the next insert.
    run.plane().insert(&[1.0; 2], b"a").unwrap();
    assert_eq!(run.plane().stats().unwrap().long_key_bytes, 0);
}
