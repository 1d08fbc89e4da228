//! Waiting for the turn: how long, for whom, and how a call is told to stop.

#![cfg(target_os = "linux")]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::child::{self, Running, argument, spawn, wait_until};
use common::{Rng, check_verified};
use vecplane_core::{Batch, CompactOptions, CreateOptions, Error, OpenOptions, Plane};

const DIMS: usize = 8;

#[test]
fn child_process() {
    let Some(_) = child::role() else { return };
    let plane = Plane::open(Path::new(&argument(0)), &OpenOptions::default()).unwrap();
    let slow = |_, _| {
        std::fs::write(argument(1), b"").unwrap();
        std::thread::sleep(Duration::from_secs(600));
        true
    };
    plane.compact(&CompactOptions::default(), &slow).unwrap();
}

fn plane(path: &Path, lock_timeout: Duration) -> Plane {
    let options = CreateOptions { lock_timeout, ..CreateOptions::new(DIMS as u32) };
    let plane = Plane::create(path, &options).unwrap();
    let mut rng = Rng::new(1);
    for _ in 0..100 {
        plane.insert(&rng.gaussian(DIMS), b"").unwrap();
    }
    plane
}

#[test]
fn writes_wait_for_a_compaction_of_their_own_process_until_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(&dir.path().join("plane"), Duration::from_millis(20));
    let (begun, has_begun) = channel();
    let (go_on, goes_on) = channel::<()>();
    let held = std::sync::Mutex::new(Some((begun, goes_on)));
    std::thread::scope(|scope| {
        let compacting = scope.spawn(|| {
            let pause = |_, _| {
                if let Some((begun, goes_on)) = held.lock().unwrap().take() {
                    begun.send(()).unwrap();
                    let _ = goes_on.recv();
                }
                true
            };
            plane.compact(&CompactOptions::default(), &pause)
        });
        has_begun.recv().unwrap();
        assert!(plane.stands_still());
        let inserting = scope.spawn(|| plane.insert(&[1.0; DIMS], b""));
        // Who cannot wait is told that it is this very process that has the turn.
        let hurried = plane.with_lock_timeout_at_most(Duration::from_millis(10)).insert(&[2.0; DIMS], b"");
        let own = std::process::id();
        assert!(matches!(hurried, Err(Error::Locked { pid, .. }) if pid == own), "{hurried:?}");
        std::thread::sleep(Duration::from_millis(200));
        assert!(!inserting.is_finished(), "ten times the time limit, and still no writing");
        drop(go_on);
        compacting.join().unwrap().unwrap();
        let id = inserting.join().unwrap().unwrap();
        assert_eq!(plane.vector(id).unwrap().unwrap(), [1.0; DIMS]);
    });
    assert!(!plane.stands_still());
    assert_eq!(plane.count().unwrap(), 101);
    check_verified(&plane);
}

/// Another process that has the turn until it is killed.
fn busy(dir: &Path) -> Running {
    let mark = dir.join("mark");
    let arguments = [dir.join("plane"), mark.clone()];
    let child = spawn("compact", &arguments.each_ref().map(|path| path.to_str().unwrap()), &dir.join("out"));
    wait_until("the other process to have the turn", Duration::from_secs(60), || mark.exists());
    child
}

#[test]
fn what_waits_for_another_process_ends_soon_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(&dir.path().join("plane"), Duration::from_secs(300));
    let other = busy(dir.path());
    let vectors = [1.0; 3 * DIMS];
    let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
    let started = Instant::now();
    let stop = AtomicBool::new(false);
    let goes_on = || !stop.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let calls = [
            scope
                .spawn(|| plane.insert_batch(batch, 1, &|_| goes_on()).map(|outcome| outcome.fault.unwrap())),
            scope.spawn(|| Ok(plane.remove_batch(&[1, 2], &|_| goes_on()).unwrap_err())),
            scope.spawn(|| {
                Ok(plane.snapshot(&dir.path().join("copy"), false, &|_, _| goes_on()).unwrap_err())
            }),
            scope.spawn(|| Ok(plane.compact(&CompactOptions::default(), &|_, _| goes_on()).unwrap_err())),
        ];
        std::thread::sleep(Duration::from_millis(200));
        assert!(calls.iter().all(|call| !call.is_finished()), "nobody has the turn");
        stop.store(true, Ordering::SeqCst);
        for call in calls {
            let error = call.join().unwrap().unwrap();
            assert!(matches!(error, Error::Aborted), "{error}");
        }
    });
    // The limit is five minutes; a busy machine takes its time.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert!(!dir.path().join("copy").exists());

    // Without patience the other process is named.
    let pid = other.pid() as u32;
    let refused = plane.with_lock_timeout_at_most(Duration::from_millis(20)).insert(&[1.0; DIMS], b"");
    assert!(matches!(refused, Err(Error::Locked { pid: named, .. }) if named == pid), "{refused:?}");
    other.kill();
    plane.insert(&[1.0; DIMS], b"").unwrap();
    assert_eq!(plane.count().unwrap(), 101);
    check_verified(&plane);
}
