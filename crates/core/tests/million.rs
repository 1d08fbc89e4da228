//! What opening, recovering and flushing cost on a plane of a million records. Takes minutes and a gigabyte of disk:
//!
//!     cargo test --release -p vecplane-core --test million -- --ignored --nocapture
//!
//! `VECPLANE_MILLION_DIR` names a directory on a real disk in which the plane is kept for the next run.

#![cfg(target_os = "linux")]

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::child::{self, argument, spawn, wait_until};
use common::{Rng, image, open};
use vecplane_core::{Batch, CreateOptions, Plane, SearchOptions};

const DIMS: usize = 128;
const COUNT: usize = 1_000_000;
const PAGE: usize = 4096;

/// Clustered, like what is searched for in earnest.
fn vector(i: usize) -> Vec<f32> {
    let mut centre = Rng::new(1_000_000_000 + (i % 4000) as u64);
    let mut own = Rng::new(i as u64);
    (0..DIMS).map(|_| centre.gauss() + 0.6 * own.gauss()).collect()
}

fn rows(range: std::ops::Range<usize>) -> Vec<f32> {
    range.flat_map(vector).collect()
}

/// A plane of so many records, flushed.
fn make(path: &Path, count: usize) -> Plane {
    let options = CreateOptions { ef_construction: 40, overwrite: true, ..CreateOptions::new(DIMS as u32) };
    let plane = Plane::create(path, &options).unwrap();
    for first in (0..count).step_by(20_000) {
        let vectors = rows(first..first + 20_000);
        let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
        assert!(plane.insert_batch(batch, 0, &|_| true).unwrap().fault.is_none());
    }
    plane.flush(None).unwrap();
    plane
}

/// Takes a file's pages out of memory. All of it must be on the disk.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: a system call on an open descriptor, without pointers.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
}

fn warm(path: &Path) {
    std::io::copy(&mut File::open(path).unwrap(), &mut std::io::sink()).unwrap();
}

/// A hash of each page of a file.
fn page_hashes(path: &Path) -> Vec<u64> {
    let file = File::open(path).unwrap();
    let mut block = vec![0; 256 * PAGE];
    let mut hashes = Vec::new();
    loop {
        let read = file.read_at(&mut block, hashes.len() as u64 * PAGE as u64).unwrap();
        if read == 0 {
            return hashes;
        }
        hashes.extend(block[..read].chunks(PAGE).map(|page| {
            let mut hasher = DefaultHasher::new();
            hasher.write(page);
            hasher.finish()
        }));
    }
}

/// Bytes written so far to the device that a file is on.
fn device_bytes(path: &Path) -> u64 {
    let device = std::fs::metadata(path).unwrap().dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"));
    let stat = stat.expect("a file on a disk: set VECPLANE_MILLION_DIR");
    stat.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap() * 512
}

fn process_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find(|line| line.starts_with("write_bytes")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Microseconds a search takes, and how much of the file is in large pages of the processor meanwhile.
fn search_us(plane: &Plane) -> f64 {
    let options = SearchOptions { ef: Some(64), ..SearchOptions::new(10) };
    let queries: Vec<Vec<f32>> = (0..2000).map(|i| vector(COUNT + 7 * i)).collect();
    for query in &queries {
        plane.search(query, &options).unwrap();
    }
    let mut best = f64::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        for query in &queries {
            assert_eq!(plane.search(query, &options).unwrap().len(), 10);
        }
        best = best.min(started.elapsed().as_secs_f64() * 1e6 / queries.len() as f64);
    }
    best
}

/// Inserts a thousand new records and flushes. Gives how many bytes went to the device for each byte of a page that was changed.
fn flush_after_a_thousand(what: &str, path: &Path, plane: Plane, before: &[u64]) -> f64 {
    let first = COUNT + plane.count().unwrap() as usize;
    let vectors = rows(first..first + 1000);
    let (device, process) = (device_bytes(path), process_bytes());
    for vector in vectors.chunks(DIMS) {
        plane.insert(vector, b"").unwrap();
    }
    let started = Instant::now();
    plane.flush(None).unwrap();
    let took = started.elapsed();
    let (device, process) = (device_bytes(path) - device, process_bytes() - process);
    drop(plane);
    let after = page_hashes(path);
    let changed = (0..after.len()).filter(|page| before.get(*page) != Some(&after[*page])).count();
    let changed_bytes = changed * PAGE;
    println!(
        "{what}: {changed} pages changed, {device} bytes to the device, {process} by the process, {took:?}"
    );
    device as f64 / changed_bytes as f64
}

/// The same for the first flush after a load, with huge pages under it; and searches before and after.
fn flush_after_a_load(dir: &Path) -> f64 {
    let path = dir.join("loaded.plane");
    let started = Instant::now();
    let plane = make(&path, COUNT);
    println!("{COUNT} x {DIMS} built in {:?}", started.elapsed());
    println!("search at ef 64, just loaded: {:.1} us", search_us(&plane));
    let before = page_hashes(&path);
    let times = flush_after_a_thousand("first flush after a load", &path, plane.clone(), &before);
    println!("search at ef 64, after it: {:.1} us", search_us(&plane));
    drop(plane);
    std::fs::rename(&path, dir.join("million.plane")).unwrap();
    times
}

#[test]
fn child_process() {
    let Some(_) = child::role() else { return };
    let plane = open(Path::new(&argument(0)));
    for i in 0.. {
        plane.insert(&vector(2 * COUNT + i), b"").unwrap();
        if i == 100 {
            std::fs::write(argument(1), b"").unwrap();
        }
    }
}

fn open_time(path: &Path) -> (Duration, bool) {
    let started = Instant::now();
    let plane = open(path);
    let took = started.elapsed();
    (took, plane.opened_clean())
}

#[test]
#[ignore = "takes minutes and a gigabyte of disk"]
fn opening_and_flushing_a_million_records_cost_what_was_changed() {
    let kept = std::env::var_os("VECPLANE_MILLION_DIR").map(PathBuf::from);
    let temporary = tempfile::tempdir().unwrap();
    let dir = kept.as_deref().unwrap_or(temporary.path());
    let path = dir.join("million.plane");
    let mut over = HashMap::new();
    let mut expect = |what: &'static str, value: f64, most: f64| {
        println!("{what}: {value:.1}, at most {most}");
        if value > most {
            over.insert(what, value);
        }
    };

    let limit = "flush, bytes to the device per byte of changed pages";
    if !path.exists() {
        expect(limit, flush_after_a_load(dir), 3.0);
    }
    forget(&path);
    println!("open, nothing in memory: {:?}", open_time(&path));
    let (mut clean, mut searched) = (Duration::MAX, 0.0);
    for _ in 0..5 {
        clean = clean.min(open_time(&path).0);
    }
    expect("clean open, ms", clean.as_secs_f64() * 1e3, 20.0);
    for name in ["mapped first", "read first"] {
        forget(&path);
        if name == "read first" {
            warm(&path);
        }
        searched = search_us(&open(&path));
        println!("search at ef 64, file {name}: {searched:.1} us");
    }
    assert!(searched > 0.0);

    for name in ["file mapped first", "file read first", "file mapped first"] {
        let before = page_hashes(&path);
        forget(&path);
        let read = name == "file read first";
        if read {
            warm(&path);
        }
        let times = flush_after_a_thousand(name, &path, open(&path), &before);
        // Then header and heap lie in large pieces too, which are not split: `docs/design.md`, section 9.
        expect(limit, times, if read { f64::INFINITY } else { 3.0 });
    }

    let work = dir.join("million.work");
    std::fs::copy(&path, &work).unwrap();
    warm(&work);
    let mut killed = Duration::MAX;
    for round in 0..3 {
        let mark = dir.join(format!("mark{round}"));
        let child = spawn("insert", &[work.to_str().unwrap(), mark.to_str().unwrap()], &dir.join("out"));
        wait_until("the child to insert", Duration::from_secs(60), || mark.exists());
        child.kill();
        std::fs::remove_file(&mark).unwrap();
        killed = killed.min(open_time(&work).0);
    }
    expect("open after a kill, ms", killed.as_secs_f64() * 1e3, 100.0);
    let mut scan = Duration::MAX;
    for _ in 0..2 {
        image::crash_machine(&work);
        let (took, was_clean) = open_time(&work);
        assert!(!was_clean);
        scan = scan.min(took);
    }
    expect("full recovery scan, s", scan.as_secs_f64(), 2.0);
    common::check_verified(&open(&work));
    for file in ["million.work", "out"] {
        let _ = std::fs::remove_file(dir.join(file));
    }
    assert!(over.is_empty(), "over: {over:?}");
}
