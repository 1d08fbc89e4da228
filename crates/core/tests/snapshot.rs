//! Snapshots: the plane as it was at one moment, whoever writes meanwhile, and nothing half done left behind.

#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::child::{self, Running, argument, spawn};
use common::journal::{self, open_patiently, options, vector_of};
use common::{Rng, by_form, check_verified, image, open};
use vecplane_core::{CreateOptions, Error, OpenOptions, Plane};

/// Records that a windowed writer keeps.
const WINDOW: u64 = 200;

/// Inserts `<name>:0`, `<name>:1`, ... and removes each again `WINDOW` later, telling how far it has come.
fn write_in_order(plane: &Plane, name: &str, begun: &AtomicU64, done: &AtomicU64, stop: &AtomicBool) {
    for i in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        begun.store(i + 1, Ordering::SeqCst);
        let key = format!("{name}:{i}");
        plane.insert(&vector_of(&key), key.as_bytes()).unwrap();
        if i >= WINDOW {
            assert!(plane.remove_key(format!("{name}:{}", i - WINDOW).as_bytes()).unwrap());
        }
        done.store(i + 1, Ordering::SeqCst);
    }
}

/// The snapshot is what a writer in order had at one moment: an unbroken run of records, of which it returns the end.
fn end_of_run(plane: &Plane, name: &str) -> u64 {
    let mut numbers = BTreeSet::new();
    for id in 0..plane.id_high_water().unwrap() {
        let Some(key) = plane.key(id).unwrap() else { continue };
        let key = String::from_utf8(key).unwrap();
        assert_eq!(plane.vector(id).unwrap().unwrap(), vector_of(&key), "vector of {key}");
        if let Some((writer, number)) = key.split_once(':')
            && writer == name
        {
            assert!(numbers.insert(number.parse::<u64>().unwrap()), "{key} is there twice");
        }
    }
    let Some((&first, &last)) = numbers.first().zip(numbers.last()) else { return 0 };
    assert_eq!(last - first + 1, numbers.len() as u64, "{name}: holes between {first} and {last}");
    let window = numbers.len() as u64;
    assert!(
        first == 0 && last < WINDOW || window == WINDOW || window == WINDOW + 1,
        "{name}: {first} to {last}"
    );
    last + 1
}

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    let plane = open_patiently(Path::new(&argument(0)));
    match role.as_str() {
        "write" => {
            let counter = AtomicU64::new(0);
            write_in_order(&plane, &argument(1), &counter, &counter, &AtomicBool::new(false));
        }
        "snapshot for ever" => loop {
            plane.snapshot(Path::new(&argument(1)), true, &|_, _| true).unwrap();
        },
        _ => panic!("no such role: {role}"),
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn snapshot(plane: &Plane, path: &Path) {
    plane.snapshot(path, true, &|_, _| true).unwrap();
}

#[test]
fn a_snapshot_is_the_plane_at_one_moment_of_the_call() {
    let dir = image::evidence_dir();
    let (path, copy) = (dir.path().join("plane"), dir.path().join("copy"));
    let plane = Plane::create(&path, &options()).unwrap();
    let child = spawn("write", &[path.to_str().unwrap(), "child"], &dir.path().join("out"));
    let counters: Vec<(AtomicU64, AtomicU64)> = (0..2).map(|_| Default::default()).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (i, (begun, done)) in counters.iter().enumerate() {
            let (plane, stop) = (&plane, &stop);
            scope.spawn(move || write_in_order(plane, &format!("t{i}"), begun, done, stop));
        }
        let mut children = 0;
        for round in 0..by_form(25, 1000) {
            let acknowledged: Vec<u64> =
                counters.iter().map(|(_, done)| done.load(Ordering::SeqCst)).collect();
            snapshot(&plane, &copy);
            let copied = open(&copy);
            assert!(copied.opened_clean(), "round {round}");
            check_verified(&copied);
            for (i, (begun, _)) in counters.iter().enumerate() {
                let end = end_of_run(&copied, &format!("t{i}"));
                let most = begun.load(Ordering::SeqCst);
                assert!((acknowledged[i]..=most).contains(&end), "{end} of {} to {most}", acknowledged[i]);
            }
            let end = end_of_run(&copied, "child");
            assert!(end >= children, "the child's records go back");
            children = end;
        }
        stop.store(true, Ordering::SeqCst);
        println!("{children} records of the child, {counters:?}");
        assert!(children > 0, "{}", std::fs::read_to_string(dir.path().join("out")).unwrap());
    });
    child.kill();
}

/// Writers stand still only while what has changed is copied again: on the whole, they are hardly slower than alone.
#[test]
fn writers_go_on_while_a_large_plane_is_copied() {
    let mut rng = Rng::for_test("writers_go_on_while_a_large_plane_is_copied");
    let dir = image::evidence_dir();
    let (path, copy) = (dir.path().join("plane"), dir.path().join("copy"));
    let options = CreateOptions { ef_construction: 10, m: 4, layer0_cap: 8, ..CreateOptions::new(1024) };
    let plane = Plane::create(&path, &options).unwrap();
    for _ in 0..by_form(10_000, 100_000) {
        plane.insert(&rng.gaussian(1024), b"").unwrap();
    }
    let (inserted, copying) = (AtomicUsize::new(0), AtomicBool::new(true));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while copying.load(Ordering::SeqCst) {
                plane.insert(&rng.gaussian(1024), b"").unwrap();
                inserted.fetch_add(1, Ordering::SeqCst);
            }
        });
        let (started, mut during) = (Instant::now(), 0);
        let before = inserted.load(Ordering::SeqCst);
        let progress = |done, total| {
            assert!(done <= total);
            true
        };
        plane.snapshot(&copy, false, &progress).unwrap();
        during += inserted.load(Ordering::SeqCst) - before;
        copying.store(false, Ordering::SeqCst);
        println!("{during} inserts during a snapshot of {:?}", started.elapsed());
        assert!(during > 0, "the writer stood still all the time");
    });
    check_verified(&open(&copy));
}

#[test]
fn the_source_is_not_touched() {
    let dir = image::evidence_dir();
    let (path, copy) = (dir.path().join("plane"), dir.path().join("copy"));
    let plane = Plane::create(&path, &options()).unwrap();
    let keys: Vec<String> = (0..500).map(|i| format!("{i}")).collect();
    journal::insert_batch(&plane, &keys);
    plane.set_watermark(3).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let before = image::read(&path);
    snapshot(&plane, &copy);
    assert!(image::read(&path) == before, "the source changed");
    assert_eq!(std::fs::metadata(&copy).unwrap().mode() & 0o777, 0o600, "no more people may read the copy");
    let copied = open(&copy);
    assert_eq!(copied.watermark().unwrap(), 3, "as if it had been flushed at that moment");
    assert_eq!(copied.count().unwrap(), 500);
    drop(copied);
    // Also through a handle that may not write, of a plane that is closed.
    drop(plane);
    let plane = Plane::open(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    snapshot(&plane, &copy);
    assert_eq!(open(&copy).count().unwrap(), 500);
    // A copy is copied like any other, and moved to where the plane was it is the plane.
    let second = dir.path().join("second");
    snapshot(&open(&copy), &second);
    drop(plane);
    std::fs::rename(&second, &path).unwrap();
    assert_eq!(open(&path).count().unwrap(), 500);
}

#[test]
fn a_killed_snapshot_leaves_the_file_before_or_a_whole_one() {
    let mut rng = Rng::for_test("a_killed_snapshot_leaves_the_file_before_or_a_whole_one");
    let dir = image::evidence_dir();
    let (path, copy) = (dir.path().join("plane"), dir.path().join("copy"));
    let plane = Plane::create(&path, &options()).unwrap();
    let mut writer = spawn("write", &[path.to_str().unwrap(), "child"], &dir.path().join("out"));
    snapshot(&plane, &copy);
    let mut end = 0;
    for _ in 0..by_form(20, 300) {
        let victim = spawn(
            "snapshot for ever",
            &[path.to_str().unwrap(), copy.to_str().unwrap()],
            &dir.path().join("victim"),
        );
        let first = std::fs::metadata(&copy).unwrap().ino();
        child::wait_until("a first snapshot", Duration::from_secs(60), || {
            std::fs::metadata(&copy).is_ok_and(|copy| copy.ino() != first)
        });
        std::thread::sleep(Duration::from_micros(rng.below(20_000) as u64));
        victim.kill();
        let copied = open(&copy);
        assert!(copied.opened_clean());
        check_verified(&copied);
        let now = end_of_run(&copied, "child");
        assert!(now >= end, "an older file came back");
        end = now;
    }
    assert!(Running::is_running(&mut writer), "{}", std::fs::read_to_string(dir.path().join("out")).unwrap());
    writer.kill();
    snapshot(&plane, &copy);
    let left: Vec<String> = names(dir.path()).into_iter().filter(|name| name.ends_with(".new")).collect();
    assert!(left.is_empty(), "the killed left {left:?}");
    check_verified(&plane);
}

#[test]
fn what_fails_leaves_nothing_behind() {
    let dir = image::evidence_dir();
    let (path, copy) = (dir.path().join("plane"), dir.path().join("copy"));
    let plane = Plane::create(&path, &options()).unwrap();
    journal::insert_batch(&plane, &(0..100).map(|i| i.to_string()).collect::<Vec<_>>());
    let code = |path: &Path, overwrite| plane.snapshot(path, overwrite, &|_, _| true).unwrap_err().code();
    assert_eq!(code(&dir.path().join("no/such/directory"), false), "ENOENT");
    assert_eq!(code(&path, true), "ERR_INVALID_ARG_VALUE");
    assert_eq!(code(dir.path(), true), "EISDIR");
    std::fs::write(&copy, b"something").unwrap();
    assert_eq!(code(&copy, false), "PLANE_EXISTS");
    assert_eq!(std::fs::read(&copy).unwrap(), b"something");
    for calls in 0..4 {
        let left = AtomicUsize::new(calls);
        let go_on =
            |_, _| left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        assert!(matches!(plane.snapshot(&copy, true, &go_on), Err(Error::Aborted)), "after {calls} calls");
        assert_eq!(std::fs::read(&copy).unwrap(), b"something");
    }
    assert_eq!(names(dir.path()), BTreeSet::from(["copy".to_string(), "plane".to_string()]));
    snapshot(&plane, &copy);
    // A plane that is open where the snapshot goes is replaced, and its handles are told.
    let replaced = open(&copy);
    snapshot(&plane, &copy);
    assert!(matches!(replaced.count(), Err(Error::Replaced { .. })), "{:?}", replaced.count());
    assert_eq!(open(&copy).count().unwrap(), 100);
    plane.insert(&vector_of("more"), b"more").unwrap();
    check_verified(&plane);
}
