//! Bytes that nobody wrote: whatever a file holds, opening and using it gives errors or answers, and no more than that.
//!
//! Children do it, so that a fault that no test can catch, a hang included, is seen as the failure it is.

#![cfg(unix)]

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::child::{self, End, argument, spawn};
use common::{Rng, by_form, image};
use vecplane_core::{CreateOptions, Hits, Metric, OpenOptions, Plane, Precision, SearchOptions};

const DIMS: usize = 24;
/// How long one damaged file may keep a child busy.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    assert_eq!(role, "use damaged files");
    let (dir, next) = (PathBuf::from(argument(0)), PathBuf::from(argument(1)));
    let (seed, count): (u64, u64) = (argument(2).parse().unwrap(), argument(4).parse().unwrap());
    let first: u64 = argument(3).parse().unwrap();
    for case in first..count {
        std::fs::write(&next, case.to_string()).unwrap();
        let mut rng = Rng::new(seed ^ case.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let kind = rng.below(3);
        let mut bytes = std::fs::read(dir.join(format!("good{kind}"))).unwrap();
        damage(&mut rng, &mut bytes);
        let path = dir.join("damaged");
        let _ = std::fs::remove_file(&path);
        match rng.below(3) {
            // As if its writers had died just now; or as it is, which is mostly a copy of a closed file.
            0 => image::write_as_killed(&path, &bytes),
            _ => std::fs::write(&path, &bytes).unwrap(),
        }
        for _ in 0..2 {
            use_it(&path, &mut rng);
        }
    }
    std::fs::write(&next, "done").unwrap();
}

/// Files with everything in them: long keys, upper layers, free slots, limbo, records under way.
fn good_files(dir: &Path) {
    for (kind, (metric, precision)) in [
        (Metric::Cosine, Precision::Int8),
        (Metric::L2, Precision::F32),
        (Metric::InnerProduct, Precision::Int16),
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.join(format!("good{kind}"));
        let options = CreateOptions {
            metric,
            precision,
            m: 4,
            layer0_cap: 12,
            ef_construction: 40,
            key_cap: 12,
            unique_keys: true,
            ..CreateOptions::new(DIMS as u32)
        };
        let plane = Plane::create(&path, &options).unwrap();
        let mut rng = Rng::new(kind as u64);
        for i in 0..500 {
            let key = if i % 5 == 0 { format!("{i}{}", "long".repeat(i)) } else { i.to_string() };
            plane.insert(&rng.gaussian(DIMS), key.as_bytes()).unwrap();
        }
        plane.flush(None).unwrap();
        for id in (0..500).step_by(9) {
            plane.remove(id).unwrap();
        }
        for i in 0..30 {
            plane.insert(&rng.gaussian(DIMS), format!("again {i}").as_bytes()).unwrap();
        }
        if kind == 0 {
            plane.flush(None).unwrap();
        }
    }
}

/// Where damage hurts most: a part of the header, or a place in the data.
fn place(rng: &mut Rng, length: usize) -> usize {
    let parts = [
        (0, 256),
        (4096, 256),
        (image::SHARED, 64 * 12),
        (16_384, 64 * 4),
        (24_576, 4096),
        (32_768, 32 * 20),
        (65_536, 64 * 8),
    ];
    if rng.chance(0.4) {
        let (start, bytes) = *rng.pick(&parts);
        start + rng.below(bytes)
    } else {
        rng.range(image::HEADER_BYTES..=length - 1)
    }
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..*rng.pick(&[1, 1, 1, 3, 20, 200]) {
        let at = place(rng, bytes.len());
        let end = |count: usize| (at + count).min(bytes.len());
        let word = at / 4 * 4;
        match rng.below(8) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next() as u8,
            // Numbers just in and just out of range, where a number may be.
            2..5 => {
                let value =
                    *rng.pick(&[0, 1, 2, 5, 499, 500, 501, 530, 1 << 20, 0x7FFF_FFFE, 1 << 31, u32::MAX]);
                bytes[word..word + 4].copy_from_slice(&value.to_le_bytes());
            }
            5 => {
                let range = at..end(64);
                let noise = rng.bytes(range.len());
                bytes[range].copy_from_slice(&noise);
            }
            6 => {
                let (range, value) = (at..end(rng.range(1..=4096)), *rng.pick(&[0, 0xFF]));
                bytes[range].fill(value);
            }
            _ => {
                let (from, count) = (rng.below(bytes.len() - 512), 512.min(bytes.len() - at));
                let copy = bytes[from..from + count].to_vec();
                bytes[at..at + count].copy_from_slice(&copy);
            }
        }
    }
    if rng.chance(0.05) {
        let length = rng.below(bytes.len());
        bytes.truncate(length);
    }
    if bytes.len() > image::FILE_ID + 16 && rng.chance(0.3) {
        image::set_other_boot(bytes);
        bytes[image::DIRTY..image::DIRTY + 4].copy_from_slice(&1u32.to_le_bytes());
    }
}

fn check(hits: &Hits, k: usize) {
    assert!(hits.len() <= k);
    assert_eq!((hits.distances.len(), hits.key_ends.len()), (hits.len(), hits.len()));
    (0..hits.len()).for_each(|i| assert!(hits.key(i).len() <= 65_535));
}

/// Every kind of call. What it answers is of no interest, as long as it answers.
fn use_it(path: &Path, rng: &mut Rng) {
    let options = OpenOptions { read_only: rng.chance(0.2), lock_timeout: Duration::from_secs(1) };
    let Ok(plane) = Plane::open(path, &options) else { return };
    for i in 0..20 {
        let query = rng.gaussian(DIMS);
        let k = rng.range(1..=600);
        if let Ok(hits) = plane.search(&query, &SearchOptions { rerank: i % 4 != 0, ..SearchOptions::new(k) })
        {
            check(&hits, k);
        }
        let filter = rng.bytes(70);
        if let Ok(hits) =
            plane.search(&query, &SearchOptions { filter: Some(&filter), ..SearchOptions::new(k) })
        {
            check(&hits, k);
        }
    }
    if let Ok(hits) = plane.search_exact(&rng.gaussian(DIMS), 10, None) {
        check(&hits, 10);
    }
    for _ in 0..30 {
        let id = *rng.pick(&[0, 9, 17, 499, 530, 600, u32::MAX]);
        let _ = (plane.vector(id), plane.key(id), plane.id_of(id.to_string().as_bytes()));
    }
    let _ = (plane.count(), plane.stats(), plane.entry_point(), plane.verify());
    for i in 0..20 {
        let _ = plane.insert(&rng.gaussian(DIMS), format!("hostile {i}{}", "x".repeat(i * i)).as_bytes());
        let _ = plane.upsert(format!("{}", rng.below(500)).as_bytes(), &rng.gaussian(DIMS));
        let _ = plane.remove(rng.below(540) as u32);
    }
    let _ = (plane.flush(None), plane.verify());
}

/// Runs the cases from `first` on in one child; gives the case that it did not survive, and how it ended.
fn run_child(dir: &Path, name: &str, seed: u64, first: u64, count: u64) -> Option<(u64, End, String)> {
    let (next, out) = (dir.join("next"), dir.join("out"));
    std::fs::write(&next, first.to_string()).unwrap();
    let arguments = [
        dir.to_str().unwrap(),
        next.to_str().unwrap(),
        &seed.to_string(),
        &first.to_string(),
        &count.to_string(),
    ];
    let mut child = spawn(name, &arguments, &out);
    let (mut case, mut since) = (first.to_string(), Instant::now());
    loop {
        let running = child.is_running();
        let now = std::fs::read_to_string(&next).unwrap();
        if now != case && !now.is_empty() {
            (case, since) = (now, Instant::now());
        }
        if !running || since.elapsed() > PATIENCE {
            let end = child.wait(Duration::ZERO);
            let printed = std::fs::read_to_string(&out).unwrap_or_default();
            return (end != End::Done).then(|| (case.parse().unwrap_or(first), end, printed));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn damaged_files_give_errors_or_answers() {
    let mut rng = Rng::for_test("damaged_files_give_errors_or_answers");
    let dir = image::memory_dir();
    good_files(dir.path());
    let (seed, count) = (rng.next(), by_form(300, 20_000));
    let mut first = 0;
    let mut failures = Vec::new();
    while let Some((case, end, printed)) = run_child(dir.path(), "use damaged files", seed, first, count) {
        let panic =
            printed.split("panicked at").nth(1).unwrap_or("").lines().take(2).collect::<Vec<_>>().join(" ");
        failures.push(format!("case {case}: {end:?} {panic}"));
        first = case + 1;
    }
    assert!(failures.is_empty(), "{} of {count} files:\n{}", failures.len(), failures.join("\n"));
}
