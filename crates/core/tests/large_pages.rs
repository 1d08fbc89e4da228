//! What a flush writes to the disk, on Linux, where the kernel may keep a file in large pieces and writes each whole.
#![cfg(target_os = "linux")]

mod common;

use std::path::Path;

use common::Rng;
use vecplane_core::{Batch, CompactOptions, CreateOptions, Plane, Rerank};

const DIMS: usize = 512;

/// Bytes that this process had written to the disk.
fn written() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text.lines().find(|line| line.starts_with("write_bytes: ")).unwrap();
    line["write_bytes: ".len()..].parse().unwrap()
}

/// A plane with more slots than fit the part of a file that comes without huge pages.
fn load(path: &Path, rng: &mut Rng) -> Plane {
    let options = CreateOptions {
        rerank: Rerank::None,
        m: 8,
        layer0_cap: 16,
        ef_construction: 8,
        ..CreateOptions::new(DIMS as u32)
    };
    let plane = Plane::create(path, &options).unwrap();
    for _ in 0..70 {
        let vectors = rng.gaussian(DIMS * 1000);
        let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
        assert!(plane.insert_batch(batch, 2, &|_| true).unwrap().fault.is_none());
    }
    plane.flush(None).unwrap();
    plane
}

/// Bytes that a flush after ten inserts writes.
fn bytes_for_ten(plane: &Plane, rng: &mut Rng) -> u64 {
    let before = written();
    for _ in 0..10 {
        plane.insert(&rng.gaussian(DIMS), b"").unwrap();
    }
    plane.flush(None).unwrap();
    written() - before
}

/// An insert changes its own slot and those of a few others, each on a page of its own at worst.
const AT_MOST: u64 = 10 * 40 * 4096;

/// A load is flushed in huge pages. What an insert changes is split off before: also the first flush costs what was changed.
#[test]
fn flushes_of_a_few_inserts_cost_what_they_changed_from_the_first_one_on() {
    let mut rng = Rng::for_test("flushes_of_a_few_inserts_cost_what_they_changed_from_the_first_one_on");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let before = written();
    let plane = load(&path, &mut rng);
    let slots = plane.count().unwrap() * u64::from(plane.stats().unwrap().slot_bytes);
    if written() - before < slots {
        eprintln!("SKIPPED: {} is not on a disk whose writes are counted", dir.path().display());
        return;
    }
    assert!(AT_MOST * 20 < slots);
    for flush in 0..3 {
        let bytes = bytes_for_ten(&plane, &mut rng);
        assert!(bytes < AT_MOST, "{bytes} bytes for 10 inserts, of {slots} in slots, at flush {flush}");
    }
    // Another load changes everything, and what comes after it costs little again.
    let vectors = rng.gaussian(DIMS * 10_000);
    let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
    assert!(plane.insert_batch(batch, 2, &|_| true).unwrap().fault.is_none());
    plane.flush(None).unwrap();
    for flush in 0..2 {
        let bytes = bytes_for_ten(&plane, &mut rng);
        assert!(bytes < AT_MOST, "{bytes} bytes for 10 inserts at flush {flush} after the second load");
    }
    // So does a compacted plane, whose slots are written to huge pages from the first one on.
    plane.compact(&CompactOptions { renumber: true, ..CompactOptions::default() }, &|_, _| true).unwrap();
    for flush in 0..2 {
        let bytes = bytes_for_ten(&plane, &mut rng);
        assert!(bytes < AT_MOST, "{bytes} bytes for 10 inserts at flush {flush} after the compaction");
    }
}
