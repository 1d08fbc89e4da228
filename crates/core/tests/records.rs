//! Records at hand: filters by key while their records are replaced, and iteration beside writers.

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Rng, by_form};
use vecplane_core::{CompactOptions, CreateOptions, Error, Plane, Records, SearchOptions};

const DIMS: usize = 8;

fn plane(dir: &tempfile::TempDir) -> Plane {
    let options = CreateOptions { key_cap: 8, unique_keys: true, ..CreateOptions::new(DIMS as u32) };
    Plane::create(&dir.path().join("plane"), &options).unwrap()
}

fn key(i: usize) -> Vec<u8> {
    format!("key {i}").into_bytes()
}

fn all(plane: &Plane) -> Result<Records, Error> {
    let mut all = Records::default();
    let mut next = Some(plane.cursor()?);
    while let Some(cursor) = next {
        let (records, more) = plane.records(cursor, 100)?;
        let start = all.keys.len() as u32;
        all.ids.extend(records.ids);
        all.vectors.extend(records.vectors);
        all.keys.extend(records.keys);
        all.key_ends.extend(records.key_ends.iter().map(|end| start + end));
        next = more;
    }
    Ok(all)
}

/// A key has a record at every moment of an upsert, so a filter that names it always finds one.
#[test]
fn keys_that_are_replaced_all_the_time_are_always_found() {
    let mut rng = Rng::for_test("keys_that_are_replaced_all_the_time_are_always_found");
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(&dir);
    for i in 0..200 {
        plane.insert(&rng.gaussian(DIMS), &key(i)).unwrap();
    }
    let keys: Vec<Vec<u8>> = (0..5).map(key).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut writer_rng = rng.fork();
        let (plane, done) = (&plane, &done);
        scope.spawn(move || {
            for i in 0..by_form(3_000, 100_000) {
                plane.upsert(&key(i % 5), &writer_rng.gaussian(DIMS)).unwrap();
                if i % 64 == 0 {
                    plane.flush(None).unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut searches = 0;
        while !done.load(Ordering::Relaxed) || searches == 0 {
            let present = &keys[rng.below(5)];
            assert!(plane.id_of(present).unwrap().is_some(), "id_of, search {searches}");
            assert!(plane.get(present).unwrap().is_some(), "get, search {searches}");
            let options = SearchOptions { keys: Some(&keys), ..SearchOptions::new(10) };
            let query = rng.gaussian(DIMS);
            for hits in [plane.search(&query, &options), plane.search_exact_with(&query, &options)] {
                let hits = hits.unwrap();
                let found: BTreeSet<Vec<u8>> = (0..hits.len()).map(|i| hits.key(i).to_vec()).collect();
                assert_eq!(found, keys.iter().cloned().collect(), "search {searches}");
            }
            searches += 1;
        }
    });
}

#[test]
fn iteration_beside_writers_gives_what_stays_exactly_once_and_whole() {
    let mut rng = Rng::for_test("iteration_beside_writers_gives_what_stays_exactly_once_and_whole");
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(&dir);
    // A record's vector says which key it belongs to.
    let vector = |i: usize| vec![i as f32 + 1.0; DIMS];
    let ids: Vec<u32> = (0..1000).map(|i| plane.insert(&vector(i), &key(i)).unwrap()).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut writer_rng = rng.fork();
        let (plane, done, vector) = (&plane, &done, &vector);
        scope.spawn(move || {
            for _ in 0..by_form(3_000, 50_000) {
                // The even ones stay.
                let i = 2 * writer_rng.below(500) + 1;
                if writer_rng.chance(0.3) {
                    plane.remove_key(&key(i)).unwrap();
                } else {
                    plane.upsert(&key(i), &vector(i)).unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut rounds = 0;
        while !done.load(Ordering::Relaxed) || rounds == 0 {
            rounds += 1;
            let records = all(plane).unwrap();
            assert!(records.ids.is_sorted_by(|a, b| a < b), "ids ascend");
            let mut start = 0;
            for (at, end) in records.key_ends.iter().enumerate() {
                let owner = records.vectors[at * DIMS] as usize - 1;
                assert_eq!(records.vectors[at * DIMS..][..DIMS], vector(owner));
                assert_eq!(records.keys[start..*end as usize], key(owner), "record {}", records.ids[at]);
                start = *end as usize;
            }
            let found: BTreeSet<u32> = records.ids.into_iter().collect();
            assert!(ids.iter().step_by(2).all(|id| found.contains(id)), "one that stays is missing");
        }
    });
}

#[test]
fn an_iteration_ends_where_the_plane_ended_when_it_began_and_not_after_a_renumbering() {
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(&dir);
    for i in 0..300 {
        plane.insert(&[1.0 + i as f32; DIMS], &key(i)).unwrap();
    }
    let (first, next) = plane.records(plane.cursor().unwrap(), 100).unwrap();
    assert_eq!((first.ids.len(), first.ids[99]), (100, 99));
    for i in 300..400 {
        plane.insert(&[1.0; DIMS], &key(i)).unwrap();
    }
    plane.compact(&CompactOptions::default(), &|_, _| true).unwrap();
    let (second, next) = plane.records(next.unwrap(), 1000).unwrap();
    assert_eq!((second.ids.len(), next), (200, None));
    let cursor = plane.cursor_after_key(&key(150)).unwrap();
    assert_eq!(cursor, plane.cursor_after(150).unwrap());
    plane.compact(&CompactOptions { renumber: true, ..Default::default() }, &|_, _| true).unwrap();
    assert!(matches!(plane.records(cursor, 1), Err(Error::Renumbered)));
    assert!(matches!(plane.cursor_after_key(b"nobody"), Err(Error::KeyNotFound)));
    // A copy elsewhere is another plane, whose ids are its own.
    let copy = dir.path().join("copy");
    plane.compact(&CompactOptions { path: Some(copy.clone()), ..Default::default() }, &|_, _| true).unwrap();
    assert_eq!(all(&common::open(&copy)).unwrap(), all(&plane).unwrap());
}
