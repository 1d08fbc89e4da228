//! Processes on one plane: writers in turn, a writer killed in the middle, planes opened beside a writer.
//!
//! Children log to a file what they are about to do and what the plane has acknowledged; the file outlives them.

#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::child::{self, Running, argument, expect_done, spawn, wait_until};
use common::{Rng, by_form, check_verified, open};
use vecplane_core::{Batch, CreateOptions, Error, OpenOptions, Plane, SearchOptions};

const DIMS: usize = 16;
/// For children: more work than anybody waits for.
const FOR_EVER: &str = "1000000000";

fn vector_of(key: &str) -> Vec<f32> {
    let seed = key.bytes().fold(7u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    Rng::new(seed).gaussian(DIMS)
}

fn options() -> CreateOptions {
    CreateOptions { key_cap: 16, unique_keys: true, ..CreateOptions::new(DIMS as u32) }
}

fn open_patiently(path: &Path) -> Plane {
    Plane::open(path, &OpenOptions { lock_timeout: Duration::from_secs(30), ..OpenOptions::default() })
        .unwrap()
}

/// Appends a line in one write, which a kill does not tear.
fn log(file: &mut File, what: char, key: &str) {
    file.write_all(format!("{what}{key}\n").as_bytes()).unwrap();
}

/// What a log says of each key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// The insert was under way.
    Inserting,
    Live,
    /// The removal was under way.
    Removing,
    Removed,
}

fn read_log(path: &Path) -> BTreeMap<String, Fate> {
    let mut fates = BTreeMap::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        let Some((what, key)) = line.split_at_checked(1) else { continue };
        let fate = match what {
            "i" => Fate::Inserting,
            "I" => Fate::Live,
            "r" => Fate::Removing,
            "R" => Fate::Removed,
            _ => continue,
        };
        fates.insert(key.to_string(), fate);
    }
    fates
}

/// Inserts and removes its own records.
fn write(path: &Path, name: &str, log_path: &Path, count: usize) {
    let plane = open_patiently(path);
    let mut file = File::options().append(true).create(true).open(log_path).unwrap();
    let mut rng = Rng::new(name.bytes().map(u64::from).sum());
    let mut live: Vec<(String, u32)> = Vec::new();
    for i in 0..count {
        if live.len() > 40 && rng.chance(0.4) {
            let (key, id) = live.swap_remove(rng.below(live.len()));
            log(&mut file, 'r', &key);
            assert!(plane.remove(id).unwrap(), "{key} is not under its id {id} any more");
            log(&mut file, 'R', &key);
            continue;
        }
        let batch = if rng.chance(0.02) { 40 } else { 1 };
        let keys: Vec<String> = (0..batch).map(|j| format!("{name}:{i}:{j}")).collect();
        keys.iter().for_each(|key| log(&mut file, 'i', key));
        let ids = if batch == 1 {
            vec![plane.insert(&vector_of(&keys[0]), keys[0].as_bytes()).unwrap()]
        } else {
            let vectors: Vec<f32> = keys.iter().flat_map(|key| vector_of(key)).collect();
            let (key_bytes, mut end) = (keys.concat(), 0);
            let key_ends: Vec<u32> = keys
                .iter()
                .map(|key| {
                    end += key.len() as u32;
                    end
                })
                .collect();
            let batch = Batch { vectors: &vectors, keys: key_bytes.as_bytes(), key_ends: &key_ends };
            let outcome = plane.insert_batch(batch, 2, &|_| true).unwrap();
            assert!(outcome.fault.is_none() && outcome.rejected.is_empty(), "{outcome:?}");
            outcome.ids
        };
        keys.iter().for_each(|key| log(&mut file, 'I', key));
        live.extend(keys.into_iter().zip(ids));
        if i % 20 == 0 {
            let query = vector_of(&live[rng.below(live.len())].0);
            let hits = plane.search(&query, &SearchOptions::new(10)).unwrap();
            check_hits(&query, &hits);
        }
        if i % 100 == 0 {
            plane.flush(None).unwrap();
        }
    }
}

/// Only inserts: what a plane looks like whose counts always agree.
fn insert_only(path: &Path) {
    let plane = open_patiently(path);
    for i in 0.. {
        plane.insert(&vector_of(&format!("o:{i}")), format!("o:{i}").as_bytes()).unwrap();
    }
}

/// Keys tell vectors, so every hit of every process can be checked by anyone.
fn check_hits(query: &[f32], hits: &vecplane_core::Hits) {
    for i in 0..hits.len() {
        let key = String::from_utf8(hits.key(i).to_vec()).expect("a key");
        let distance = common::true_distance(vecplane_core::Metric::Cosine, query, &vector_of(&key));
        assert!(
            (distance - f64::from(hits.distances[i])).abs() < 1e-5,
            "{key}: {} for {distance}",
            hits.distances[i]
        );
    }
}

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    let path = PathBuf::from(argument(0));
    match role.as_str() {
        "write" => write(&path, &argument(1), Path::new(&argument(2)), argument(3).parse().unwrap()),
        "insert only" => insert_only(&path),
        "remove" => assert!(open_patiently(&path).remove(argument(1).parse().unwrap()).unwrap()),
        _ => panic!("no such role: {role}"),
    }
}

fn writer(dir: &Path, name: &str, count: &str) -> Running {
    let (plane, log) = (dir.join("plane"), dir.join(format!("{name}.log")));
    let arguments = [plane.to_str().unwrap(), name, log.to_str().unwrap(), count];
    spawn("write", &arguments, &dir.join(format!("{name}.out")))
}

/// Everything that the logs call live is there, everything removed is not, and nobody else is.
fn check_against_logs(plane: &Plane, logs: &[PathBuf]) -> usize {
    check_verified(plane);
    let mut known = 0;
    for (key, fate) in logs.iter().flat_map(|path| read_log(path)) {
        let id = plane.id_of(key.as_bytes()).unwrap();
        match fate {
            Fate::Live => assert!(id.is_some(), "lost: {key}"),
            Fate::Removed => assert!(id.is_none(), "ghost: {key}"),
            Fate::Inserting | Fate::Removing => {}
        }
        if let Some(id) = id {
            known += 1;
            assert_eq!(plane.key(id).unwrap().as_deref(), Some(key.as_bytes()));
            assert_eq!(plane.vector(id).unwrap().unwrap(), vector_of(&key), "vector of {key}");
            let hits = plane.search(&vector_of(&key), &SearchOptions::new(10)).unwrap();
            check_hits(&vector_of(&key), &hits);
            assert!(hits.ids.contains(&id), "{key} does not find itself");
        }
    }
    assert_eq!(plane.count().unwrap(), known as u64, "records that no log knows of");
    known
}

#[test]
fn two_processes_write_in_turn_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let count = by_form("1500", "20000");
    let names = ["a", "b"];
    let children = names.map(|name| writer(dir.path(), name, count));
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
    let live = check_against_logs(&plane, &logs);
    println!("{live} records");
    drop(plane);
    check_against_logs(&open(&path), &logs);
}

#[test]
fn a_writer_killed_in_the_middle_holds_nobody_up_and_loses_nothing() {
    let mut rng = Rng::for_test("a_writer_killed_in_the_middle_holds_nobody_up_and_loses_nothing");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let steady = writer(dir.path(), "steady", FOR_EVER);
    let steady_log = dir.path().join("steady.log");
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let mut logs = vec![steady_log.clone()];
    for round in 0..by_form(10, 200) {
        let name = format!("victim{round}");
        let log = dir.path().join(format!("{name}.log"));
        let victim = writer(dir.path(), &name, FOR_EVER);
        wait_until("the victim's first record", Duration::from_secs(20), || bytes(&log) > 0);
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
    check_against_logs(&plane, &logs);
    // And the plane takes writes as before.
    let id = plane.insert(&vector_of("last"), b"last").unwrap();
    assert!(plane.remove(id).unwrap());
    plane.flush(None).unwrap();
    check_against_logs(&plane, &logs);
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
            let log = dir.path().join(format!("{name}.log"));
            let waiter = writer(dir.path(), &name, FOR_EVER);
            wait_until("the waiter's first record", Duration::from_secs(20), || log.exists());
            std::thread::sleep(Duration::from_micros(rng.below(20_000) as u64));
            waiter.kill();
        }
        done.store(true, Ordering::SeqCst);
        busy.join().unwrap();
    });
    let after = insert(300);
    println!("300 inserts took {before:?}, then {after:?}");
    assert!(
        after < before * 3,
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
