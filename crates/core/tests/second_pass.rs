//! Loads, whose records choose their links a second time: what that gains, what it may meet, and what a kill leaves of it.

#![cfg(target_os = "linux")]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::child::{self, argument, spawn};
use common::{Rng, by_form, check_verified, image, journal, open};
use vecplane_core::{Batch, CreateOptions, Error, Plane, SearchOptions};

/// Records of a load.
const COUNT: usize = 2000;
const DIMS: usize = 24;

fn options() -> CreateOptions {
    CreateOptions { m: 8, ..CreateOptions::new(DIMS as u32) }
}

fn keys() -> Vec<String> {
    (0..COUNT).map(|i| i.to_string()).collect()
}

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    assert_eq!(role, "load");
    journal::insert_batch(&journal::open_patiently(Path::new(&argument(0))), &keys());
    std::fs::write(argument(1), b"done").unwrap();
    loop {
        std::thread::park();
    }
}

fn insert(plane: &Plane, vectors: &[f32], threads: usize) {
    let batch = Batch { vectors, keys: &[], key_ends: &[] };
    let outcome = plane.insert_batch(batch, threads, &|_| true).unwrap();
    assert!(outcome.fault.is_none() && outcome.rejected.is_empty(), "{outcome:?}");
}

/// Recall of narrow searches.
fn recall(plane: &Plane, queries: &[Vec<f32>]) -> f64 {
    let narrow = SearchOptions { ef: Some(10), ..SearchOptions::new(10) };
    let found = |query: &Vec<f32>| {
        let exact = plane.search_exact(query, 10, None).unwrap().distances;
        let hits = plane.search(query, &narrow).unwrap().distances;
        hits.iter().filter(|distance| **distance <= exact[9]).count()
    };
    queries.iter().map(found).sum::<usize>() as f64 / (10 * queries.len()) as f64
}

#[test]
fn a_load_finds_more_than_the_same_records_one_after_the_other() {
    let mut rng = Rng::for_test("a_load_finds_more_than_the_same_records_one_after_the_other");
    let dir = tempfile::tempdir().unwrap();
    let vectors: Vec<f32> = (0..COUNT).flat_map(|_| rng.gaussian(DIMS)).collect();
    let queries: Vec<Vec<f32>> = (0..300).map(|_| rng.gaussian(DIMS)).collect();
    let plane = |name: &str| Plane::create(&dir.path().join(name), &options()).unwrap();
    let (load, single) = (plane("load"), plane("single"));
    insert(&load, &vectors, 2);
    for vector in vectors.chunks(DIMS) {
        single.insert(vector, &[]).unwrap();
    }
    let (load, single) = (recall(&load, &queries), recall(&single, &queries));
    println!("{load} of a load, {single} one after the other");
    assert!(load > single + 0.02, "{load}, {single}");
}

#[test]
fn progress_rises_to_the_number_of_records_and_a_load_that_is_given_up_keeps_what_landed() {
    let mut rng = Rng::for_test("progress_rises_to_the_number_of_records");
    let dir = tempfile::tempdir().unwrap();
    let vectors: Vec<f32> = (0..COUNT).flat_map(|_| rng.gaussian(DIMS)).collect();
    let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
    // From here on all have landed, and links are chosen again.
    for stop_at in [usize::MAX, COUNT * 9 / 10] {
        let plane = Plane::create(&dir.path().join(stop_at.to_string()), &options()).unwrap();
        let told = std::sync::Mutex::new(Vec::new());
        let progress = |done| {
            told.lock().unwrap().push(done);
            done < stop_at
        };
        let outcome = plane.insert_batch(batch, 1, &progress).unwrap();
        let told = told.into_inner().unwrap();
        assert!(told.is_sorted() && told[told.len() - 1] <= COUNT, "{told:?}");
        match outcome.fault {
            None => assert_eq!((stop_at, told[told.len() - 1]), (usize::MAX, COUNT)),
            Some(Error::Aborted) => assert!(told[told.len() - 1] >= stop_at),
            Some(other) => panic!("{other}"),
        }
        assert!(outcome.ids.iter().all(|id| *id != u32::MAX));
        assert_eq!(plane.count().unwrap(), COUNT as u64);
        check_verified(&plane);
    }
}

#[test]
fn records_may_go_and_be_searched_for_while_a_load_links_them_again() {
    let mut rng = Rng::for_test("records_may_go_and_be_searched_for_while_a_load_links_them_again");
    for _ in 0..by_form(6, 100) {
        let dir = tempfile::tempdir().unwrap();
        let plane = Plane::create(&dir.path().join("plane"), &options()).unwrap();
        let vectors: Vec<f32> = (0..COUNT).flat_map(|_| rng.gaussian(DIMS)).collect();
        let done = AtomicBool::new(false);
        let removed: usize = std::thread::scope(|scope| {
            let others: Vec<_> = (0..3)
                .map(|i| {
                    let (mut rng, plane, done) = (rng.fork(), &plane, &done);
                    scope.spawn(move || {
                        let mut removed = 0;
                        while !done.load(Ordering::SeqCst) {
                            if i == 0 {
                                plane.search(&rng.gaussian(DIMS), &SearchOptions::new(10)).unwrap();
                            } else if plane.count().unwrap() > COUNT as u64 / 2 {
                                removed += usize::from(plane.remove(rng.below(COUNT) as u32).unwrap());
                            }
                        }
                        removed
                    })
                })
                .collect();
            insert(&plane, &vectors, 2);
            done.store(true, Ordering::SeqCst);
            others.into_iter().map(|other| other.join().unwrap()).sum()
        });
        println!("{removed} removed beside the load");
        assert_eq!(plane.count().unwrap(), (COUNT - removed) as u64);
        check_verified(&plane);
    }
}

/// What stands in the file when all threads are stopped at once is what a kill at that moment leaves.
#[test]
fn a_load_that_is_killed_at_any_moment_leaves_a_graph_that_is_whole() {
    let mut rng = Rng::for_test("a_load_that_is_killed_at_any_moment_leaves_a_graph_that_is_whole");
    let dir = image::evidence_dir();
    let (path, image_path, done) =
        (dir.path().join("plane"), dir.path().join("image"), dir.path().join("done"));
    let mut landed = 0;
    for _ in 0..by_form(2, 40) {
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_file(&done);
        drop(Plane::create(&path, &CreateOptions { ef_construction: 20, ..journal::options() }).unwrap());
        let arguments = [path.to_str().unwrap(), done.to_str().unwrap()];
        let child = spawn("load", &arguments, &dir.path().join("log"));
        while !done.exists() {
            std::thread::sleep(Duration::from_micros(rng.below(8000) as u64));
            child.freeze();
            image::write_as_killed(&image_path, &image::read(&path));
            let plane = open(&image_path);
            let count = plane.count().unwrap();
            landed += usize::from(count == COUNT as u64 && !done.exists());
            check_verified(&plane);
            for key in keys().iter().step_by(7) {
                if let Some(id) = plane.id_of(key.as_bytes()).unwrap() {
                    let hits = plane.search(&journal::vector_of(key), &SearchOptions::new(1)).unwrap();
                    assert!(hits.distances[0] < 1e-5, "{key}, {id}: {hits:?}");
                }
            }
            child.thaw();
        }
        child.kill();
    }
    assert!(landed > 0, "no kill met a load that linked its records again");
}
