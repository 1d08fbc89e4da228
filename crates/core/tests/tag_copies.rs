//! Copies of what searches by tags scan: answers are those of a scan of the records, whatever is written, and by whom.

mod common;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Rng, TagColumn, by_form, check_verified};
use vecplane_core::{
    Batch, CompactOptions, CreateOptions, Error, Hits, Metric, OpenOptions, Plane, Precision, RawNode,
    Rerank, SearchOptions, Tag, TagQuery, TagSet, testing,
};

const DIMS: usize = 8;
/// More scans than it takes for a copy.
const OFTEN: usize = 12;

fn options() -> CreateOptions {
    CreateOptions {
        key_cap: 8,
        unique_keys: true,
        m: 4,
        ef_construction: 20,
        ..CreateOptions::new(DIMS as u32)
    }
}

/// A handle with an engine of its own, which learns of this process's writes as another process would.
fn stranger(path: &Path) -> Plane {
    Plane::open(path, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap()
}

fn number(tag: u32) -> TagSet {
    TagSet::new([Tag::Number(tag)]).unwrap()
}

fn any(tag: u32) -> TagQuery {
    TagQuery { any_of: Some(number(tag)), ..TagQuery::default() }
}

fn none(tag: u32) -> TagQuery {
    TagQuery { none_of: number(tag), ..TagQuery::default() }
}

/// Records `first..first + count`, the key of each its number, all with one tag.
fn fill(plane: &Plane, first: usize, count: usize, tag: u32, rng: &mut Rng) {
    let keys: Vec<String> = (first..first + count).map(|i| format!("{i}")).collect();
    let vectors: Vec<f32> = (0..count).flat_map(|_| rng.gaussian(DIMS)).collect();
    let sets = vec![number(tag); count];
    let column = TagColumn::new(&sets);
    let (key_bytes, key_ends) = (keys.concat(), common::key_ends(&keys));
    let batch = Batch { vectors: &vectors, keys: key_bytes.as_bytes(), key_ends: &key_ends };
    let outcome = plane.upsert_batch_tagged(batch, column.as_tags(), 1, &|_| true).unwrap();
    assert!(outcome.fault.is_none() && outcome.rejected.is_empty());
}

/// Records of tag 0, 200 of tag 1, which are scanned exactly, and 1,500 of tag 2, which are scanned by their codes first.
fn few_and_many(path: &Path, rng: &mut Rng) -> Plane {
    let plane = Plane::create(path, &options()).unwrap();
    fill(&plane, 0, 5_000, 0, rng);
    for (tag, count) in [(1, 200), (2, 1_500)] {
        fill(&plane, 10_000 * tag as usize, count, tag, rng);
    }
    plane
}

fn ask(plane: &Plane, vector: &[f32], tags: &TagQuery, rerank: bool) -> Hits {
    let options = SearchOptions { tags: Some(tags), rerank, ..SearchOptions::new(10) };
    plane.search(vector, &options).unwrap()
}

fn copy_bytes(plane: &Plane) -> u64 {
    plane.stats().unwrap().tag_copy_bytes
}

/// Asks until the answers come from a copy.
fn warm(plane: &Plane, tags: &TagQuery, rng: &mut Rng) {
    for _ in 0..OFTEN {
        ask(plane, &rng.gaussian(DIMS), tags, true);
    }
    assert!(copy_bytes(plane) > 0, "no copy");
}

/// The handle answers as it does with one more filter, of which it keeps no copies: that the record has an id.
fn check(plane: &Plane, tags: &TagQuery, vector: &[f32], rerank: bool) {
    let all = vec![0xFF; plane.id_high_water().unwrap().div_ceil(8) as usize];
    let options = SearchOptions { tags: Some(tags), rerank, filter: Some(&all), ..SearchOptions::new(10) };
    let expected = plane.search(vector, &options).unwrap();
    assert_eq!(ask(plane, vector, tags, rerank), expected);
}

/// Few records, of which exact copies are scanned, and so many that codes come first; all kinds of each, and all metrics.
#[test]
fn answers_from_a_copy_are_those_of_the_records() {
    let mut rng = Rng::for_test("answers_from_a_copy_are_those_of_the_records");
    let kinds = [
        (Metric::Cosine, Precision::Int8, Rerank::F32),
        (Metric::L2, Precision::Int8, Rerank::F16),
        (Metric::InnerProduct, Precision::Int16, Rerank::None),
        (Metric::L2, Precision::F16, Rerank::None),
        (Metric::Cosine, Precision::F32, Rerank::None),
        (Metric::L2, Precision::Int8, Rerank::None),
    ];
    for (metric, precision, rerank) in kinds {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plane");
        let plane = Plane::create(&path, &CreateOptions { metric, precision, rerank, ..options() }).unwrap();
        fill(&plane, 0, 5_000, 0, &mut rng);
        fill(&plane, 5_000, 300, 1, &mut rng);
        fill(&plane, 6_000, 1_500, 2, &mut rng);
        // Some are gone, and some are each other's copies.
        (5_000..5_050).chain(6_000..6_200).for_each(|i| {
            assert!(plane.remove_key(format!("{i}").as_bytes()).unwrap());
        });
        for i in 5_060..5_090 {
            plane.upsert_tagged(format!("{i}").as_bytes(), &[0.5; DIMS], &number(1)).unwrap();
        }
        for tag in [1, 2] {
            for query in
                [any(tag), TagQuery { all_of: number(tag), none_of: number(0), ..Default::default() }]
            {
                let before = copy_bytes(&plane);
                (0..OFTEN).for_each(|_| drop(ask(&plane, &[0.5; DIMS], &query, true)));
                assert!(
                    copy_bytes(&plane) > before,
                    "no copy for {tag}: {metric:?} {precision:?} {rerank:?}"
                );
                for vector in (0..by_form(10, 200)).map(|_| rng.gaussian(DIMS)).chain([vec![0.5; DIMS]]) {
                    check(&plane, &query, &vector, true);
                }
                // Without exact copies as well.
                (0..OFTEN).for_each(|_| drop(ask(&plane, &[0.5; DIMS], &query, false)));
                (0..5).for_each(|_| check(&plane, &query, &rng.gaussian(DIMS), false));
                let wide = SearchOptions { tags: Some(&query), within: Some(0.9), ..SearchOptions::new(50) };
                let vector = rng.gaussian(DIMS);
                let found = plane.search(&vector, &wide).unwrap();
                let all = [0xFF; 1_000];
                let expected = plane.search(&vector, &SearchOptions { filter: Some(&all), ..wide }).unwrap();
                assert_eq!(found, expected);
            }
        }
    }
}

/// What is written, by the name of its kind, to the plane at which all look; and what must be so afterwards.
const KINDS: [&str; 9] = [
    "insert",
    "remove",
    "remove by key",
    "upsert",
    "other tags",
    "batch",
    "remove batch",
    "compact",
    "renumber",
];

fn write(plane: &Plane, kind: &str, near: &[f32], step: usize, tag: u32) {
    let nearest = |plane: &Plane| ask(plane, near, &any(tag), true);
    let key = format!("n{step}");
    match kind {
        "insert" => drop(plane.insert_tagged(near, key.as_bytes(), &number(tag)).unwrap()),
        "remove" => assert!(plane.remove(nearest(plane).ids[0]).unwrap()),
        "remove by key" => assert!(plane.remove_key(nearest(plane).key(0)).unwrap()),
        "upsert" => {
            let far: Vec<f32> = near.iter().map(|x| -x).collect();
            plane.upsert_tagged(nearest(plane).key(0), &far, &number(tag)).unwrap();
            plane.upsert_tagged(nearest(plane).key(1), near, &number(tag)).unwrap();
        }
        "other tags" => drop(plane.upsert_tagged(nearest(plane).key(0), near, &number(tag + 100)).unwrap()),
        "batch" => {
            let sets = [number(tag), number(tag)];
            let batch = Batch {
                vectors: &[near, near].concat(),
                keys: key.as_bytes(),
                key_ends: &[1, key.len() as u32],
            };
            drop(plane.upsert_batch_tagged(batch, TagColumn::new(&sets).as_tags(), 1, &|_| true).unwrap());
        }
        // More than a copy has to spare.
        "remove batch" => {
            let tags = any(tag);
            let options = SearchOptions { tags: Some(&tags), ..SearchOptions::new(40) };
            let ids = plane.search(near, &options).unwrap().ids;
            assert_eq!(plane.remove_batch(&ids, &|_| true).unwrap(), 40);
        }
        "compact" | "renumber" => {
            let options = CompactOptions { renumber: kind == "renumber", ..Default::default() };
            plane.compact(&options, &|_, _| true).unwrap();
        }
        other => panic!("{other}"),
    }
}

/// The writer's own handle and one that hears of writes as another process does, both with a copy: after each kind of write
/// both answer as the records are.
#[test]
fn after_any_kind_of_write_no_copy_is_used_that_it_has_made_wrong() {
    let mut rng = Rng::for_test("after_any_kind_of_write_no_copy_is_used_that_it_has_made_wrong");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = few_and_many(&path, &mut rng);
    let other = stranger(&path);
    for step in 0..by_form(1, 10) * 2 * KINDS.len() {
        let (kind, tag) = (KINDS[step / 2 % KINDS.len()], 1 + step as u32 % 2);
        println!("step {step}: {kind}, tag {tag}");
        let near = rng.gaussian(DIMS);
        for handle in [&plane, &other] {
            warm(handle, &any(tag), &mut rng);
            check(handle, &any(tag), &near, true);
        }
        write(&plane, kind, &near, step, tag);
        for handle in [&plane, &other] {
            check(handle, &any(tag), &near, true);
            warm(handle, &any(tag), &mut rng);
            check(handle, &any(tag), &near, true);
        }
    }
    check_verified(&plane);
}

/// The same for nodes that a host writes, clears, and writes over in place.
#[test]
fn a_node_written_over_in_place_is_found_as_it_is_now() {
    let mut rng = Rng::for_test("a_node_written_over_in_place_is_found_as_it_is_now");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane =
        Plane::create(&path, &CreateOptions { unique_keys: false, rerank: Rerank::None, ..options() })
            .unwrap();
    let codes = |rng: &mut Rng| -> Vec<u8> { rng.bytes(DIMS).iter().map(|code| (*code).max(129)).collect() };
    let write = |id: u32, codes: &[u8]| {
        let raw =
            RawNode { level: 0, codes, scale: 0.5, inverse_norm: 0.25, links: &[], upper: &[], key: None };
        plane.write_node_raw(id, &raw, false).unwrap()
    };
    (0..300).for_each(|id| assert!(write(id, &codes(&mut rng))));
    // Until here nothing has tags, so nothing is told of new records.
    let query = none(7);
    (0..OFTEN).for_each(|_| drop(ask(&plane, &rng.gaussian(DIMS), &query, true)));
    assert_eq!(copy_bytes(&plane), 0);
    plane.insert_tagged(&[1.0; DIMS], b"", &number(7)).unwrap();
    let other = stranger(&path);
    for step in 0..by_form(20, 200) {
        let near = rng.gaussian(DIMS);
        [&plane, &other].iter().for_each(|handle| warm(handle, &query, &mut rng));
        let id = ask(&plane, &near, &query, true).ids[0];
        match step % 4 {
            0 => assert!(plane.clear_node(id).unwrap()),
            1 => assert!(write(300 + step as u32, &codes(&mut rng))),
            _ => assert!(write(id, &codes(&mut rng))),
        }
        [&plane, &other].iter().for_each(|handle| check(handle, &query, &near, true));
    }
}

/// Whoever reads a node keeps it from being written over, and it is shown again after it was hidden for a while: it is not
/// missing from copies that were made meanwhile.
#[test]
fn a_node_that_was_hidden_for_a_while_is_found_afterwards() {
    let mut rng = Rng::for_test("a_node_that_was_hidden_for_a_while_is_found_afterwards");
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { unique_keys: false, rerank: Rerank::None, ..options() };
    let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
    plane.insert_tagged(&[1.0; DIMS], b"", &number(7)).unwrap();
    let codes: Vec<Vec<u8>> =
        (0..100).map(|_| rng.bytes(DIMS).iter().map(|code| code / 2).collect()).collect();
    let raw = |codes| RawNode {
        level: 0,
        codes,
        scale: 0.5,
        inverse_norm: 0.25,
        links: &[],
        upper: &[],
        key: None,
    };
    for (id, codes) in (1..).zip(&codes) {
        assert!(plane.write_node_raw(id, &raw(codes), false).unwrap());
    }
    let vector: Vec<f32> = codes[4].iter().map(|code| f32::from(*code as i8)).collect();
    let query = none(7);
    assert_eq!(ask(&plane, &vector, &query, true).ids[0], 5);
    let held = testing::hold(&plane).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| plane.write_node_raw(5, &raw(&codes[0]), false));
        while plane.vector(5).unwrap().is_some() {
            std::thread::yield_now();
        }
        (0..OFTEN).for_each(|_| assert_ne!(ask(&plane, &vector, &query, true).ids[0], 5));
        assert!(matches!(writer.join().unwrap(), Err(Error::InUse { id: 5 })));
    });
    drop(held);
    (0..2 * OFTEN).for_each(|_| assert_eq!(ask(&plane, &vector, &query, true).ids[0], 5));
    assert!(copy_bytes(&plane) > 0);
}

#[cfg(unix)]
#[test]
fn child_process() {
    use common::child::{argument, role};
    let Some(role) = role() else { return };
    let plane = common::open(Path::new(&argument(0)));
    let step: usize = argument(1).parse().unwrap();
    let near: Vec<f32> = argument(2).split(',').map(|x| x.parse().unwrap()).collect();
    write(&plane, &role, &near, step, 1 + step as u32 % 2);
}

/// And for what another process writes.
#[cfg(unix)]
#[test]
fn what_another_process_writes_is_seen_by_the_next_search() {
    use common::child::{expect_done, spawn};
    let mut rng = Rng::for_test("what_another_process_writes_is_seen_by_the_next_search");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = few_and_many(&path, &mut rng);
    for step in 0..2 * KINDS.len() {
        let (kind, tag) = (KINDS[step / 2], 1 + step as u32 % 2);
        println!("step {step}: {kind}, tag {tag}");
        let near = rng.gaussian(DIMS);
        warm(&plane, &any(tag), &mut rng);
        let text = near.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
        let log = dir.path().join("out");
        let child = spawn(kind, &[path.to_str().unwrap(), &step.to_string(), &text], &log);
        expect_done(child, Duration::from_secs(60), &log);
        check(&plane, &any(tag), &near, true);
    }
}

/// No more memory than they may take, whatever is asked for; and what is asked for often stays.
#[test]
fn copies_keep_to_their_bound_and_the_least_recently_used_go_first() {
    let mut rng = Rng::for_test("copies_keep_to_their_bound_and_the_least_recently_used_go_first");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &options()).unwrap();
    (0..40).for_each(|tag| fill(&plane, 1_000 * tag as usize, 200, tag, &mut rng));
    let most = plane.stats().unwrap().file_bytes / 8;
    let mut largest = 0;
    for round in 0..by_form(300, 3_000) {
        let tag = if round % 3 == 0 { 0 } else { rng.below(40) as u32 };
        for _ in 0..OFTEN {
            ask(&plane, &rng.gaussian(DIMS), &any(tag), true);
            let bytes = copy_bytes(&plane);
            assert!(bytes <= most, "{bytes} bytes, at most {most}");
            largest = largest.max(bytes);
        }
    }
    assert!(largest > most / 2, "{largest} bytes of {most}");
    // One more of another makes room by dropping what was not used for longest, which is not this one.
    let one = copy_bytes(&plane);
    ask(&plane, &rng.gaussian(DIMS), &any(0), true);
    assert_eq!(copy_bytes(&plane), one);
    // Half of all is more than the bound allows.
    let half =
        TagQuery { any_of: Some(TagSet::new((0..39).map(Tag::Number)).unwrap()), ..Default::default() };
    let vector = rng.gaussian(DIMS);
    let wide = SearchOptions { tags: Some(&half), ef: Some(1_000), ..SearchOptions::new(10) };
    (0..OFTEN).for_each(|_| drop(plane.search(&vector, &wide).unwrap()));
    assert_eq!(copy_bytes(&plane), one);
    // A write leaves nothing to be kept.
    plane.insert_tagged(&vector, b"new", &number(0)).unwrap();
    ask(&plane, &vector, &any(0), true);
    assert_eq!(copy_bytes(&plane), 0);
}

/// A record whose removal has returned is in no answer to a search that starts later, and one whose insert has is in all, beside
/// threads that make copies and use them.
#[test]
fn beside_writers_no_search_finds_what_was_removed_or_misses_what_was_there() {
    let mut rng = Rng::for_test("beside_writers_no_search_finds_what_was_removed_or_misses_what_was_there");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &options()).unwrap();
    fill(&plane, 0, 5_000, 0, &mut rng);
    fill(&plane, 10_000, 200, 1, &mut rng);
    let other = stranger(&path);
    let near = [1.0; DIMS];
    // Keys of the records at `near` that were inserted, and of those that were removed.
    let there = Mutex::new((HashSet::<String>::new(), HashSet::<String>::new()));
    let done = AtomicBool::new(false);
    let copied = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for handle in [&plane, &plane, &other] {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let (inserted, removed) = there.lock().unwrap().clone();
                    let hits = ask(handle, &near, &any(1), true);
                    let keys: HashSet<String> =
                        (0..hits.len()).map(|i| String::from_utf8(hits.key(i).to_vec()).unwrap()).collect();
                    assert!(keys.is_disjoint(&removed), "{keys:?} has one of {removed:?}");
                    let (still, _) = there.lock().unwrap().clone();
                    let missing: Vec<_> =
                        inserted.intersection(&still).filter(|key| !keys.contains(*key)).collect();
                    assert!(missing.is_empty(), "{keys:?} lacks {missing:?}");
                    copied.fetch_or(copy_bytes(handle) > 0, Ordering::Relaxed);
                }
            });
        }
        for i in 0..by_form(400, 10_000) {
            let key = format!("x{i}");
            plane.insert_tagged(&near, key.as_bytes(), &number(1)).unwrap();
            there.lock().unwrap().0.insert(key.clone());
            if rng.chance(0.5) {
                std::thread::sleep(Duration::from_micros(rng.below(2_000) as u64));
            }
            let mut now = there.lock().unwrap();
            if now.0.len() > 3 {
                let oldest = now.0.iter().next().unwrap().clone();
                // On its way: neither is it sure to be found, nor to be missing.
                now.0.remove(&oldest);
                drop(now);
                assert!(plane.remove_key(oldest.as_bytes()).unwrap());
                there.lock().unwrap().1.insert(oldest);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(copied.load(Ordering::Relaxed), "no copy was made");
    check(&plane, &any(1), &near, true);
    check_verified(&plane);
}
