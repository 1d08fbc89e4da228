//! What a flush writes to the disk, on Linux, where the kernel may keep a file in huge pages.
#![cfg(target_os = "linux")]

mod common;

use common::Rng;
use vecplane_core::{Batch, CreateOptions, Plane, Rerank};

/// Bytes that this process had written to the disk.
fn written() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text.lines().find(|line| line.starts_with("write_bytes: ")).unwrap();
    line["write_bytes: ".len()..].parse().unwrap()
}

/// A load is flushed in huge pages, of which one changed byte costs the whole page; the first flush of a few inserts
/// splits them, and the next ones cost what they changed.
#[test]
fn flushes_of_a_few_inserts_cost_what_they_changed() {
    let mut rng = Rng::for_test("flushes_of_a_few_inserts_cost_what_they_changed");
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions {
        rerank: Rerank::None,
        m: 8,
        layer0_cap: 16,
        ef_construction: 8,
        ..CreateOptions::new(512)
    };
    let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
    let before = written();
    for _ in 0..70 {
        let vectors = rng.gaussian(512 * 1000);
        let batch = Batch { vectors: &vectors, keys: &[], key_ends: &[] };
        assert!(plane.insert_batch(batch, 2, &|_| true).unwrap().fault.is_none());
    }
    plane.flush(None).unwrap();
    let slots = plane.count().unwrap() * u64::from(plane.stats().unwrap().slot_bytes);
    if written() - before < slots {
        eprintln!("SKIPPED: {} is not on a disk whose writes are counted", dir.path().display());
        return;
    }
    let mut flush_after = |count: usize| {
        let before = written();
        for _ in 0..count {
            plane.insert(&rng.gaussian(512), b"").unwrap();
        }
        plane.flush(None).unwrap();
        written() - before
    };
    flush_after(10);
    let bytes = flush_after(10);
    // An insert changes its own slot and those of a few others, each on a page of its own at worst.
    assert!(
        bytes < 10 * 40 * 4096 && bytes * 20 < slots,
        "{bytes} bytes for 10 inserts, of {slots} in slots"
    );
}
