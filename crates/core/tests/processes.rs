//! Processes on one plane: writers in turn, a writer killed in the middle, planes opened beside a writer.
//!
//! Children log to a file what they are about to do and what the plane has acknowledged; the file outlives them.

#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::child::{self, Running, argument, expect_done, spawn};
use common::journal::{
    self, DIMS, busy_writer, check_against, check_hits, open_patiently, options, read_logs, vector_of, writer,
};
use common::{Rng, by_form, check_verified, open};
use vecplane_core::{Error, OpenOptions, Plane, SearchOptions};

/// Only inserts: what a plane looks like whose counts always agree.
fn insert_only(path: &Path) {
    let plane = open_patiently(path);
    for i in 0.. {
        plane.insert(&vector_of(&format!("o:{i}")), format!("o:{i}").as_bytes()).unwrap();
    }
}

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    let path = PathBuf::from(argument(0));
    match role.as_str() {
        "write" => journal::write_role(journal::ORDINARY, 1),
        "insert only" => insert_only(&path),
        "remove" => assert!(open_patiently(&path).remove(argument(1).parse().unwrap()).unwrap()),
        _ => panic!("no such role: {role}"),
    }
}

#[test]
fn two_processes_write_in_turn_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let count = by_form("1500", "20000");
    let names = ["a", "b"];
    let children = names.map(|name| writer("write", dir.path(), name, count));
    // A third one searches meanwhile, and sees the others' records come and go.
    let plane = open_patiently(&path);
    let mut rng = Rng::new(1);
    let mut seen = 0;
    let mut children: Vec<_> = children.into_iter().collect();
    while children.iter_mut().any(Running::is_running) {
        let query = rng.gaussian(DIMS);
        let hits = plane.search(&query, &SearchOptions::new(10)).unwrap();
        check_hits(&query, &hits);
        seen = seen.max(plane.count().unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
    for (child, name) in children.into_iter().zip(names) {
        expect_done(child, Duration::from_secs(60), &dir.path().join(format!("{name}.out")));
    }
    assert!(seen > 100, "a searcher saw {seen} records at most");
    let logs = names.map(|name| dir.path().join(format!("{name}.log")));
    let live = check_against(&plane, &read_logs(&logs));
    println!("{live} records");
    drop(plane);
    check_against(&open(&path), &read_logs(&logs));
}

/// Every hit is a record that somebody inserts, with the distance and the vector that its key tells.
fn search_and_check_all(plane: &Plane, rng: &mut Rng) -> usize {
    let query = rng.gaussian(DIMS);
    let hits = plane.search(&query, &SearchOptions::new(10)).unwrap();
    check_hits(&query, &hits);
    for i in 0..hits.len() {
        let key = hits.key(i);
        // Gone by now, or whole.
        if let Some((_, vector)) = plane.get(key).unwrap() {
            assert_eq!(vector, vector_of(std::str::from_utf8(key).unwrap()), "vector of {key:?}");
        }
    }
    hits.len()
}

#[test]
fn four_processes_insert_remove_and_search_at_once_and_end_with_what_they_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let names = ["a", "b", "c", "d"];
    let children = names.map(|name| writer("write", dir.path(), name, journal::FOR_EVER));
    // A fifth checks every hit that it gets.
    let plane = open_patiently(&path);
    let mut rng = Rng::for_test("four_processes_insert_remove_and_search_at_once");
    let (mut searches, mut hits) = (0, 0);
    let until = Instant::now() + by_form(Duration::from_secs(2), Duration::from_secs(60));
    // However slow the machine: until there was something to find.
    while Instant::now() < until || hits < 100 {
        hits += search_and_check_all(&plane, &mut rng);
        searches += 1;
    }
    std::fs::write(dir.path().join("stop"), b"").unwrap();
    for (child, name) in children.into_iter().zip(names) {
        expect_done(child, Duration::from_secs(60), &dir.path().join(format!("{name}.out")));
    }
    let logs = names.map(|name| dir.path().join(format!("{name}.log")));
    let fates = read_logs(&logs);
    let live = check_against(&plane, &fates);
    for name in names {
        let own = fates.keys().filter(|key| key.starts_with(&format!("{name}:"))).count();
        assert!(own > 0, "{name} has written nothing");
    }
    println!("{searches} searches, {hits} hits checked; {} keys, {live} live", fates.len());
    drop(plane);
    check_against(&open(&path), &fates);
}

#[test]
fn a_search_beside_a_process_that_inserts_sees_whole_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let mut child = spawn("insert only", &[path.to_str().unwrap()], &dir.path().join("out"));
    // One handle registers as a reader; the other cannot, and checks its hits again.
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let planes = [open_patiently(&path), Plane::open(&path, &read_only).unwrap()];
    let mut rng = Rng::for_test("a_search_beside_a_process_that_inserts_sees_whole_records");
    let (mut searches, mut hits) = (0, 0);
    let until = Instant::now() + by_form(Duration::from_secs(2), Duration::from_secs(60));
    while Instant::now() < until || hits < 100 {
        hits += search_and_check_all(&planes[searches % 2], &mut rng);
        searches += 1;
        assert!(child.is_running(), "{}", std::fs::read_to_string(dir.path().join("out")).unwrap());
    }
    child.kill();
    println!("{searches} searches, {hits} hits checked of {} records", planes[0].count().unwrap());
}

#[test]
fn a_writer_killed_in_the_middle_holds_nobody_up_and_loses_nothing() {
    let mut rng = Rng::for_test("a_writer_killed_in_the_middle_holds_nobody_up_and_loses_nothing");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let steady = busy_writer("write", dir.path(), "steady");
    let steady_log = dir.path().join("steady.log");
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let mut logs = vec![steady_log.clone()];
    for round in 0..by_form(10, 200) {
        let name = format!("victim{round}");
        let log = dir.path().join(format!("{name}.log"));
        let victim = busy_writer("write", dir.path(), &name);
        std::thread::sleep(Duration::from_micros(rng.below(80_000) as u64));
        victim.kill();
        logs.push(log);
        // The other one goes on, at once.
        let before = bytes(&steady_log);
        let out = || std::fs::read_to_string(dir.path().join("steady.out")).unwrap_or_default();
        let deadline = Instant::now() + Duration::from_secs(2);
        while bytes(&steady_log) < before + 200 {
            assert!(Instant::now() < deadline, "round {round}: the other writer stands still\n{}", out());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    steady.kill();
    let plane = open_patiently(&path);
    check_against(&plane, &read_logs(&logs));
    // And the plane takes writes as before.
    let id = plane.insert(&vector_of("last"), b"last").unwrap();
    assert!(plane.remove(id).unwrap());
    plane.flush(None).unwrap();
    check_against(&plane, &read_logs(&logs));
}

#[test]
fn opening_beside_a_writer_is_not_taken_for_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let mut child = spawn("insert only", &[path.to_str().unwrap()], &dir.path().join("out"));
    let (mut opened, mut wrong) = (0, BTreeMap::<String, usize>::new());
    let until = Instant::now() + by_form(Duration::from_secs(2), Duration::from_secs(30));
    while Instant::now() < until {
        for read_only in [false, true] {
            opened += 1;
            match Plane::open(&path, &OpenOptions { read_only, ..OpenOptions::default() }) {
                Ok(plane) if plane.opened_clean() => {}
                Ok(_) => *wrong.entry("recovered beside the writer".to_string()).or_default() += 1,
                Err(e) => *wrong.entry(e.to_string()).or_default() += 1,
            }
        }
    }
    let out = std::fs::read_to_string(dir.path().join("out")).unwrap_or_default();
    assert!(child.is_running(), "the writer has ended:\n{out}");
    child.kill();
    let plane = open_patiently(&path);
    check_verified(&plane);
    let count = plane.count().unwrap();
    for i in 0..count {
        let key = format!("o:{i}");
        let id = plane.id_of(key.as_bytes()).unwrap().unwrap_or_else(|| panic!("lost: {key} of {count}"));
        assert_eq!(plane.vector(id).unwrap().unwrap(), vector_of(&key));
    }
    assert!(wrong.is_empty(), "of {opened} opens {wrong:?}");
}

/// A process that dies while it waits for the turn leaves nothing behind that slows the others down.
#[test]
fn a_process_killed_while_it_waits_for_the_turn_leaves_no_trace() {
    let mut rng = Rng::for_test("a_process_killed_while_it_waits_for_the_turn_leaves_no_trace");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &options()).unwrap();
    let next = AtomicUsize::new(0);
    let insert = |count: usize| {
        let started = Instant::now();
        for _ in 0..count {
            let key = format!("p:{}", next.fetch_add(1, Ordering::Relaxed));
            plane.insert(&vector_of(&key), key.as_bytes()).unwrap();
        }
        started.elapsed()
    };
    insert(1000);
    let before = insert(300);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                insert(20);
            }
        });
        for round in 0..by_form(8, 40) {
            let name = format!("waiter{round}");
            let waiter = busy_writer("write", dir.path(), &name);
            std::thread::sleep(Duration::from_micros(rng.below(20_000) as u64));
            waiter.kill();
        }
        done.store(true, Ordering::SeqCst);
        busy.join().unwrap();
    });
    let after = insert(300);
    println!("300 inserts took {before:?}, then {after:?}");
    assert!(
        after < before * 8,
        "300 inserts took {before:?} before, and {after:?} after waiters were killed"
    );
}

#[test]
fn a_removal_in_one_process_is_seen_by_the_next_search_in_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &options()).unwrap();
    let ids: Vec<u32> = (0..20)
        .map(|i| plane.insert(&vector_of(&format!("{i}")), format!("{i}").as_bytes()).unwrap())
        .collect();
    let reader = Plane::open(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    for (i, id) in ids.iter().enumerate().take(by_form(3, 15)) {
        let child = spawn("remove", &[path.to_str().unwrap(), &id.to_string()], &dir.path().join("out"));
        expect_done(child, Duration::from_secs(20), &dir.path().join("out"));
        for handle in [&plane, &reader] {
            let hits = handle.search(&vector_of(&format!("{i}")), &SearchOptions::new(20)).unwrap();
            assert_eq!(hits.len(), 19 - i);
            assert!(!hits.ids.contains(id));
        }
        assert!(matches!(reader.remove(*id), Err(Error::ReadOnly)));
    }
}
