//! Nodes that a host writes: a mirrored graph answers as the one it was copied from, and stays whole through whatever comes.

#![cfg(unix)]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::disk::Disk;
use common::{Rng, by_form, image, open};
use vecplane_core::{
    CompactOptions, CreateOptions, Error, OpenOptions, Plane, Precision, RawNode, Rerank, SearchOptions,
    testing,
};

const DIMS: usize = 160;
const CAP: usize = 8;
const M: usize = 4;

fn options(unique_keys: bool) -> CreateOptions {
    CreateOptions {
        rerank: Rerank::None,
        m: M as u32,
        layer0_cap: CAP as u32,
        ef_construction: 24,
        key_cap: 8,
        unique_keys,
        ..CreateOptions::new(DIMS as u32)
    }
}

/// A node as the model has it.
#[derive(Clone, Debug, PartialEq)]
struct Node {
    level: u8,
    codes: Vec<u8>,
    links: Vec<u32>,
    upper: Vec<Vec<u32>>,
    key: Vec<u8>,
}

impl Node {
    fn random(rng: &mut Rng, ids: usize, key: String) -> Self {
        let level = if rng.chance(0.2) { rng.range(1..=3) as u8 } else { 0 };
        let list = |rng: &mut Rng, most: usize| {
            (0..rng.below(most + 1)).map(|_| rng.below(ids) as u32).collect::<Vec<u32>>()
        };
        Node {
            level,
            codes: rng.bytes(DIMS),
            links: list(rng, CAP),
            upper: (0..level).map(|_| list(rng, M)).collect(),
            key: key.into_bytes(),
        }
    }

    fn raw<'a>(&'a self, key: Option<&'a [u8]>) -> RawNode<'a> {
        RawNode {
            level: self.level,
            codes: &self.codes,
            scale: 0.5,
            inverse_norm: 0.25,
            links: &self.links,
            upper: &self.upper,
            key,
        }
    }

    fn vector(&self) -> Vec<f32> {
        self.codes.iter().map(|code| f32::from(*code as i8) * 0.5).collect()
    }
}

/// The plane holds these raw nodes and nothing else, and nothing is wrong with it.
fn check(plane: &Plane, model: &BTreeMap<u32, Node>) {
    let report = plane.verify().unwrap();
    assert!(report.ok(), "{report:?}");
    assert_eq!((plane.count().unwrap(), report.live), (model.len() as u64, model.len() as u64));
    assert_eq!(plane.entry_point().unwrap().is_none(), model.is_empty());
    for id in 0..plane.id_high_water().unwrap() {
        let node = model.get(&id);
        assert_eq!(plane.vector(id).unwrap(), node.map(Node::vector), "vector of {id}");
        assert_eq!(plane.key(id).unwrap(), node.map(|node| node.key.clone()), "key of {id}");
        if let Some(node) = node.filter(|_| plane.config().unique_keys) {
            assert_eq!(plane.id_of(&node.key).unwrap(), Some(id));
        }
    }
    if let Some((id, node)) = model.iter().next() {
        let hits = plane.search_exact(&node.vector(), 1, None).unwrap();
        assert!(hits.distances[0] < 1e-6, "{id}: {hits:?}");
        assert!(hits.distances[0] >= 0.0);
    }
}

/// One step of a host at work; tells the id that it touched.
fn step(plane: &Plane, model: &mut BTreeMap<u32, Node>, rng: &mut Rng, ids: usize, made: &mut usize) -> u32 {
    let id = rng.below(ids) as u32;
    match rng.below(10) {
        0..2 => assert_eq!(plane.clear_node(id).unwrap(), model.remove(&id).is_some()),
        2 => {
            if let Some(node) = model.get(&id) {
                plane.set_entry_point(id, rng.below(usize::from(node.level) + 1) as u8).unwrap();
            }
        }
        kind => {
            *made += 1;
            let mut node = Node::random(rng, ids, format!("k{made}"));
            match model.get(&id) {
                Some(old) if kind < 6 => {
                    node.key = old.key.clone();
                    assert!(plane.write_node_raw(id, &node.raw(None), false).unwrap());
                }
                old => {
                    let absent = old.is_none() && id >= plane.id_high_water().unwrap();
                    let only_if_absent = absent && kind == 9;
                    assert!(plane.write_node_raw(id, &node.raw(Some(&node.key)), only_if_absent).unwrap());
                }
            }
            model.insert(id, node);
        }
    }
    id
}

#[test]
fn random_writes_over_and_beside_each_other_match_a_model() {
    let mut rng = Rng::for_test("model");
    for unique_keys in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plane");
        let mut plane = Plane::create(&path, &options(unique_keys)).unwrap();
        let (mut model, mut made) = (BTreeMap::new(), 0);
        for round in 0..by_form(1200, 20_000) {
            step(&plane, &mut model, &mut rng, 200, &mut made);
            if round % 200 == 50 {
                check(&plane, &model);
                plane.flush(Some(round as u64)).unwrap();
                match rng.below(3) {
                    0 => {
                        let options = CompactOptions { relink: rng.chance(0.5), ..CompactOptions::default() };
                        plane.compact(&options, &|_, _| true).unwrap();
                    }
                    1 => {
                        let (entry, high_water) =
                            (plane.entry_point().unwrap(), plane.id_high_water().unwrap());
                        drop(plane);
                        image::crash_machine(&path);
                        plane = open(&path);
                        assert_eq!(plane.entry_point().unwrap(), entry, "the host's entry point");
                        assert!(plane.id_high_water().unwrap() <= high_water);
                    }
                    _ => {
                        drop(plane);
                        plane = open(&path);
                    }
                }
                check(&plane, &model);
            }
        }
        // Records that are linked here live beside them.
        let start = model.len();
        let inserted: Vec<u32> = (0..100)
            .map(|i| plane.insert(&rng.gaussian(DIMS), format!("i{i}").as_bytes()).unwrap())
            .collect();
        let report = plane.verify().unwrap();
        assert!(report.ok() && report.live == (start + 100) as u64, "{report:?}");
        for id in inserted {
            let own = plane.vector(id).unwrap().unwrap();
            let options = SearchOptions { ef: Some(200), ..SearchOptions::new(3) };
            assert!(plane.search(&own, &options).unwrap().ids.contains(&id), "{id} is not found");
            match id % 3 {
                0 => assert!(plane.remove(id).unwrap()),
                1 => assert!(plane.clear_node(id).unwrap()),
                _ => {
                    let node = Node::random(&mut rng, 200, format!("r{id}"));
                    assert!(plane.write_node_raw(id, &node.raw(Some(&node.key)), false).unwrap());
                }
            }
        }
        let mirrored: Vec<u32> = model.keys().copied().collect();
        mirrored.iter().for_each(|id| assert!(plane.remove(*id).unwrap()));
        let report = plane.verify().unwrap();
        assert!(report.ok(), "{report:?}");
    }
}

#[test]
fn a_kill_between_any_two_stores_leaves_every_other_node_and_this_one_old_new_or_missing() {
    let mut rng = Rng::for_test("kills");
    let dir = image::memory_dir();
    let (path, left) = (dir.path().join("plane"), dir.path().join("left"));
    let plane = Plane::create(&path, &options(true)).unwrap();
    let (mut model, mut made) = (BTreeMap::new(), 0);
    for _ in 0..by_form(120, 2000) {
        let before = model.clone();
        let copies = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let (sink, from) = (copies.clone(), path.clone());
        testing::watch(move || sink.borrow_mut().push(image::read(&from)));
        let id = step(&plane, &mut model, &mut rng, 24, &mut made);
        testing::unwatch();
        let copies = copies.take();
        let share = (6.0 / (copies.len() + 1) as f64).min(1.0);
        for bytes in copies.into_iter().filter(|_| rng.chance(share)) {
            image::write_as_killed(&left, &bytes);
            let plane = open(&left);
            // Its writer is dead: taking the turn repairs.
            plane.set_watermark(1).unwrap();
            let now = plane.vector(id).unwrap();
            let mut expected = before.clone();
            expected.remove(&id);
            for state in [before.get(&id), model.get(&id)].into_iter().flatten() {
                let key = plane.key(id).unwrap();
                if now == Some(state.vector()) && key.as_ref() == Some(&state.key) {
                    expected.insert(id, state.clone());
                }
            }
            check(&plane, &expected);
            drop(plane);
            std::fs::remove_file(&left).unwrap();
        }
    }
}

#[test]
fn a_power_cut_takes_only_what_was_written_since_the_flush() {
    let mut rng = Rng::for_test("power cuts");
    for _ in 0..by_form(25, 500) {
        let dir = image::evidence_dir();
        let (path, left) = (dir.path().join("plane"), dir.path().join("left"));
        drop(Plane::create(&path, &options(true)).unwrap());
        let disk = Disk::new(&path, rng.fork());
        let plane = testing::open(&path, &OpenOptions::default(), disk.faults()).unwrap();
        let (mut model, mut made) = (BTreeMap::new(), 0);
        for _ in 0..60 {
            step(&plane, &mut model, &mut rng, 60, &mut made);
        }
        plane.flush(Some(60)).unwrap();
        let mut flushed = model.clone();
        disk.watch(0.2);
        for _ in 0..30 {
            flushed.remove(&step(&plane, &mut model, &mut rng, 60, &mut made));
        }
        testing::unwatch();
        for _ in 0..3 {
            let mut bytes = disk.crash().bytes;
            image::set_other_boot(&mut bytes);
            std::fs::write(&left, bytes).unwrap();
            let plane = open(&left);
            assert_eq!(plane.watermark().unwrap(), 60);
            let report = plane.verify().unwrap();
            assert!(report.ok(), "{report:?}");
            for (id, node) in &flushed {
                assert_eq!(plane.vector(*id).unwrap(), Some(node.vector()), "node {id}");
                assert_eq!(plane.key(*id).unwrap().as_ref(), Some(&node.key));
            }
            // The host plays its log again.
            for (id, node) in &model {
                plane
                    .write_node_raw(*id, &node.raw(Some(&node.key)), false)
                    .or_else(|error| match error {
                        // The key has moved since: its old node comes later in the log.
                        Error::KeyExists { id: other } => {
                            plane.clear_node(other)?;
                            plane.write_node_raw(*id, &node.raw(Some(&node.key)), false)
                        }
                        error => Err(error),
                    })
                    .unwrap();
            }
            drop(plane);
            std::fs::remove_file(&left).unwrap();
        }
    }
}

#[test]
fn a_reader_that_does_not_leave_keeps_the_node_as_it_is() {
    let mut rng = Rng::for_test("readers");
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::create(&dir.path().join("plane"), &options(true)).unwrap();
    let node = Node::random(&mut rng, 10, "one".into());
    plane.write_node_raw(3, &node.raw(Some(b"one")), false).unwrap();
    let held = testing::hold(&plane).unwrap();
    let other = Node::random(&mut rng, 10, "two".into());
    assert!(matches!(plane.write_node_raw(3, &other.raw(Some(b"two")), false), Err(Error::InUse { id: 3 })));
    assert!(matches!(plane.clear_node(3), Err(Error::InUse { id: 3 })));
    check(&plane, &BTreeMap::from([(3, node)]));
    // One that leaves in time is waited for.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        plane.write_node_raw(3, &other.raw(Some(b"two")), false).unwrap();
    });
    check(&plane, &BTreeMap::from([(3, other)]));
}

#[test]
fn searches_beside_writes_see_whole_nodes() {
    let mut rng = Rng::for_test("beside searches");
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::create(&dir.path().join("plane"), &options(true)).unwrap();
    let ring = |id: u32| vec![(id + 1) % 40, (id + 39) % 40, (id + 7) % 40];
    let versions: Vec<Vec<Node>> = (0..40u32)
        .map(|id| {
            (0..3)
                .map(|_| Node { links: ring(id), ..Node::random(&mut rng, 40, format!("key {id}")) })
                .collect()
        })
        .collect();
    let write = |id: usize, version: usize| {
        let node = &versions[id][version];
        plane.write_node_raw(id as u32, &node.raw(Some(&node.key)), false).unwrap()
    };
    for id in 0..40 {
        assert!(write(id, 0));
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut threads: Vec<Rng> = (0..3).map(|_| rng.fork()).collect();
    std::thread::scope(|scope| {
        for rng in &mut threads {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let query = rng.gaussian(DIMS);
                    let hits = plane.search(&query, &SearchOptions::new(10)).unwrap();
                    for (i, id) in hits.ids.iter().enumerate() {
                        assert_eq!(hits.key(i), format!("key {id}").as_bytes());
                        let right = versions[*id as usize].iter().any(|node| {
                            let true_distance =
                                common::true_distance(vecplane_core::Metric::Cosine, &query, &node.vector());
                            (true_distance - f64::from(hits.distances[i])).abs() < 0.02
                        });
                        assert!(right, "a distance of {id} is of none of its versions");
                    }
                }
            });
        }
        for _ in 0..by_form(600, 20_000) {
            write(rng.below(40), rng.below(3));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let report = plane.verify().unwrap();
    assert!(report.ok(), "{report:?}");
}

#[test]
fn what_cannot_be_a_node_is_refused_before_anything_changes() {
    let mut rng = Rng::for_test("refusals");
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::create(&dir.path().join("plane"), &options(true)).unwrap();
    let node = Node { level: 1, upper: vec![vec![2]], ..Node::random(&mut rng, 10, "one".into()) };
    let good = node.raw(Some(b"one"));
    plane.write_node_raw(3, &good, false).unwrap();
    let (long, longer) = ([1; CAP + 1], vec![vec![1; M + 1]]);
    for (raw, code) in [
        (RawNode { codes: &node.codes[1..], ..good }, "PLANE_DIMENSION_MISMATCH"),
        (RawNode { level: 16, ..good }, "ERR_OUT_OF_RANGE"),
        (RawNode { level: 0, ..good }, "ERR_OUT_OF_RANGE"),
        (RawNode { links: &long, ..good }, "ERR_OUT_OF_RANGE"),
        (RawNode { links: &[u32::MAX], ..good }, "ERR_OUT_OF_RANGE"),
        (RawNode { upper: &longer, ..good }, "ERR_OUT_OF_RANGE"),
        (RawNode { scale: f32::NAN, ..good }, "ERR_INVALID_ARG_VALUE"),
        (RawNode { scale: 0.0, ..good }, "ERR_INVALID_ARG_VALUE"),
        (RawNode { inverse_norm: -1.0, ..good }, "ERR_INVALID_ARG_VALUE"),
        (RawNode { inverse_norm: f32::INFINITY, ..good }, "ERR_INVALID_ARG_VALUE"),
        (RawNode { key: Some(b""), ..good }, "PLANE_KEY_UNSTORABLE"),
    ] {
        assert_eq!(plane.write_node_raw(3, &raw, false).unwrap_err().code(), code, "{raw:?}");
    }
    let high = plane.id_high_water().unwrap();
    assert_eq!(plane.write_node_raw(high + 1_000_001, &good, false).unwrap_err().code(), "ERR_OUT_OF_RANGE");
    assert!(matches!(plane.write_node_raw(4, &good, false), Err(Error::KeyExists { id: 3 })));
    assert_eq!(
        plane.write_node_raw(5, &RawNode { key: None, ..good }, false).unwrap_err().code(),
        "PLANE_KEY_UNSTORABLE"
    );
    assert!(!plane.write_node_raw(3, &good, true).unwrap());
    assert_eq!(plane.set_entry_point(9, 0).unwrap_err().code(), "ERR_INVALID_ARG_VALUE");
    assert_eq!(plane.set_entry_point(3, 2).unwrap_err().code(), "ERR_OUT_OF_RANGE");
    check(&plane, &BTreeMap::from([(3, node.clone())]));
    // Far ahead, with nothing in between.
    let far = plane.id_high_water().unwrap() + 100_000;
    plane.write_node_raw(far, &RawNode { key: Some(b"far"), ..good }, true).unwrap();
    assert_eq!((plane.id_high_water().unwrap(), plane.stats().unwrap().free), (far + 1, 0));
    assert!(plane.verify().unwrap().ok());
    assert_eq!(plane.insert(&rng.gaussian(DIMS), b"next").unwrap(), far + 1);
    for (precision, rerank) in
        [(Precision::F16, Rerank::None), (Precision::F32, Rerank::None), (Precision::Int8, Rerank::F32)]
    {
        let other = CreateOptions { precision, rerank, ..options(true) };
        let plane = Plane::create(&dir.path().join(format!("{precision:?}")), &other).unwrap();
        assert!(matches!(plane.write_node_raw(3, &good, false), Err(Error::NotMirrorable)));
    }
    let wide = CreateOptions { precision: Precision::Int16, max_nodes: Some(10), ..options(false) };
    let plane = Plane::create(&dir.path().join("wide"), &wide).unwrap();
    let mut codes = [3; 2 * DIMS];
    let raw = RawNode { codes: &codes, ..good };
    plane.write_node_raw(9, &raw, false).unwrap();
    assert_eq!(plane.write_node_raw(10, &raw, false).unwrap_err().code(), "ERR_OUT_OF_RANGE");
    codes[2..4].copy_from_slice(&i16::MIN.to_le_bytes());
    let error = plane.write_node_raw(1, &RawNode { codes: &codes, ..good }, false).unwrap_err();
    assert!(error.code() == "ERR_INVALID_ARG_VALUE" && error.to_string().contains("32767"), "{error}");
    assert!(plane.verify().unwrap().ok());
}
