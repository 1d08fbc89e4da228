//! A disk that is full: a tmpfs of 16 MiB, filled by the plane itself and by another process. Writes are refused with the
//! system's code, reads go on, and writes resume when there is room. Mounting takes root or user namespaces.

#![cfg(target_os = "linux")]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::child::{self, argument, expect_done, spawn_with_own_mounts};
use common::{Rng, check_verified, key_ends, open};
use vecplane_core::{Batch, CreateOptions, Plane, SearchOptions};

const DIMS: usize = 768;

fn options() -> CreateOptions {
    CreateOptions {
        ef_construction: 40,
        key_cap: 16,
        unique_keys: true,
        max_nodes: Some(1_000_000),
        ..CreateOptions::new(DIMS as u32)
    }
}

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    let dir = argument(0);
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "tmpfs", &dir]).status().unwrap();
    assert!(mounted.success());
    match role.as_str() {
        "fill by inserts" => fill_by_inserts(Path::new(&dir)),
        "filled by others" => filled_by_others(Path::new(&dir)),
        _ => panic!("no such role: {role}"),
    }
}

fn run(role: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (small, out) = (dir.path().join("small"), dir.path().join("out"));
    std::fs::create_dir(&small).unwrap();
    if let Some(child) = spawn_with_own_mounts(role, &[small.to_str().unwrap()], &out) {
        expect_done(child, Duration::from_secs(200), &out);
    }
}

#[test]
fn a_plane_that_fills_its_disk_refuses_writes_and_goes_on_when_there_is_room() {
    run("fill by inserts");
}

#[test]
fn a_disk_that_others_fill_gives_errors_with_a_code() {
    run("filled by others");
}

fn vector(i: usize) -> Vec<f32> {
    Rng::new(i as u64).gaussian(DIMS)
}

fn key(i: usize) -> String {
    format!("k{i}")
}

/// Another process takes what room there is.
fn fill(dir: &Path) {
    let to = format!("of={}", dir.join("filler").display());
    let filled = Command::new("dd").args(["if=/dev/zero", &to, "bs=4k"]).output().unwrap();
    assert!(!filled.status.success(), "the disk is not full");
}

fn make_room(dir: &Path) {
    std::fs::remove_file(dir.join("filler")).unwrap();
}

/// A plane, and the numbers of the records that it has acknowledged.
struct Filled {
    plane: Plane,
    live: Vec<usize>,
    next: usize,
}

impl Filled {
    fn new(plane: Plane) -> Self {
        Filled { plane, live: Vec::new(), next: 0 }
    }

    /// Inserts one more record, or is refused for want of room.
    fn insert(&mut self) -> bool {
        let i = self.next;
        self.next += 1;
        match self.plane.insert(&vector(i), key(i).as_bytes()) {
            Ok(_) => self.live.push(i),
            Err(error) => {
                assert_eq!(error.code(), "ENOSPC", "{error}");
                return false;
            }
        }
        true
    }

    /// Inserts until there is no room. A record may need a little less of it than the one before: it takes several refusals.
    fn insert_until_full(&mut self) {
        let mut refused = 0;
        while refused < 20 {
            refused = if self.insert() { 0 } else { refused + 1 };
            assert!(self.next < 100_000, "the disk never fills");
        }
    }

    /// Gives how many landed, and what stopped the batch.
    fn insert_batch(&mut self, count: usize) -> (usize, Option<&'static str>) {
        let first = self.next;
        self.next += count;
        let vectors: Vec<f32> = (first..self.next).flat_map(vector).collect();
        let keys: Vec<String> = (first..self.next).map(key).collect();
        let ends = key_ends(&keys);
        let joined = keys.concat();
        let batch = Batch { vectors: &vectors, keys: joined.as_bytes(), key_ends: &ends };
        let outcome = self.plane.insert_batch(batch, 0, &|_| true).unwrap();
        let landed: Vec<usize> = (0..count).filter(|i| outcome.ids[*i] != u32::MAX).collect();
        self.live.extend(landed.iter().map(|i| first + i));
        (landed.len(), outcome.fault.map(|fault| fault.code()))
    }

    /// Everything acknowledged is there, and nothing else; each record finds itself.
    fn check(&self) {
        assert_eq!(self.plane.count().unwrap(), self.live.len() as u64);
        check_verified(&self.plane);
        for &i in &self.live {
            let found = self.plane.get(key(i).as_bytes()).unwrap();
            let (id, found) = found.unwrap_or_else(|| panic!("lost: {i}"));
            assert_eq!(found, vector(i));
            if i % 16 == 0 {
                let options = SearchOptions { ef: Some(500), ..SearchOptions::new(5) };
                assert!(self.plane.search(&found, &options).unwrap().ids.contains(&id), "record {i}");
            }
        }
    }
}

fn fill_by_inserts(dir: &Path) {
    std::fs::write(dir.join("filler"), vec![1; 6 << 20]).unwrap();
    let path = dir.join("plane");
    let mut filled = Filled::new(Plane::create(&path, &options()).unwrap());
    filled.insert_until_full();
    let count = filled.live.len();
    assert!(count > 500, "{count} records fill 10 MiB");
    let first = filled.live[0];
    assert_eq!(filled.plane.upsert(key(first).as_bytes(), &vector(1)).unwrap_err().code(), "ENOSPC");
    assert_eq!(filled.insert_batch(40).1, Some("ENOSPC"));
    filled.check();
    filled.plane.flush(None).unwrap();
    // What a removal gives back is room enough.
    assert!(filled.plane.remove_key(key(first).as_bytes()).unwrap());
    filled.plane.insert(&vector(first), key(first).as_bytes()).unwrap();
    filled.check();
    // The same as a batch, to the brim.
    make_room(dir);
    let (landed, code) = filled.insert_batch(4000);
    assert_eq!(code, Some("ENOSPC"));
    assert!(landed > 300, "{landed} records in 6 MiB");
    filled.check();
    filled.plane.flush(Some(7)).unwrap();
    let Filled { plane, live, next } = filled;
    drop(plane);
    let again = Filled { plane: open(&path), live, next };
    assert!(again.plane.opened_clean());
    assert_eq!(again.plane.watermark().unwrap(), 7);
    again.check();
}

fn filled_by_others(dir: &Path) {
    let path = dir.join("plane");
    let mut filled = Filled::new(Plane::create(&path, &options()).unwrap());
    (0..200).for_each(|_| assert!(filled.insert()));
    fill(dir);
    filled.insert_until_full();
    filled.check();
    filled.plane.flush(None).unwrap();
    // There is no room for another plane either, and none of it stays behind.
    let error = Plane::create(&dir.join("other"), &options()).err().expect("no room");
    assert_eq!(error.code(), "ENOSPC");
    let names =
        || std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names().len(), 2, "{:?}", names());
    // Opening takes no room, whether or not there is something to recover.
    let Filled { plane, live, next } = filled;
    drop(plane);
    common::image::crash_machine(&path);
    let mut again = Filled { plane: open(&path), live, next };
    assert!(!again.plane.opened_clean());
    again.check();
    again.insert_until_full();
    make_room(dir);
    (0..100).for_each(|_| assert!(again.insert()));
    again.plane.flush(None).unwrap();
    again.check();
}
