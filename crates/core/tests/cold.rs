//! Planes that are not in memory: same answers, sooner than one page after the other.
#![cfg(target_os = "linux")]

#[path = "common/data.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod data;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use data::{K, Set};
use vecplane_core::testing::{Planted, asks_for_pages, plant};
use vecplane_core::{Batch, CreateOptions, Hits, OpenOptions, Plane, SearchOptions};

const EF: usize = 100;
const PAGE: usize = 4096;
/// A prime, larger than what is read around a page.
const PAGES_APART: usize = 1009;

/// A plane of a set's base vectors, all of it on the disk.
fn on_disk(path: &Path, set: &Set) -> Plane {
    let plane = Plane::create(path, &CreateOptions::new(set.base.dims as u32)).unwrap();
    let batch = Batch { vectors: &set.base.data, keys: &[], key_ends: &[] };
    plane.insert_batch(batch, 0, &|_| true).unwrap();
    plane.flush(None).unwrap();
    drop(plane);
    Plane::open(path, &OpenOptions::default()).unwrap()
}

/// A part of a file that this process has mapped.
struct Part {
    start: usize,
    bytes: usize,
    /// Where in the file it begins.
    offset: usize,
}

/// What this process has mapped of a file.
fn maps(path: &Path) -> Vec<Part> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|line| line.ends_with(path.to_str().unwrap()));
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let part = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = fields[0].split_once('-').unwrap();
        Part { start: number(start), bytes: number(end) - number(start), offset: number(fields[2]) }
    };
    lines.map(part).collect()
}

/// Has the system read single pages of a file, and not their neighbourhood with them.
fn read_single_pages(path: &Path) {
    for Part { start, bytes, .. } in maps(path) {
        // SAFETY: advice on a range that is mapped.
        unsafe { libc::madvise(start as *mut _, bytes, libc::MADV_RANDOM) };
    }
}

/// Has the system forget one page of a file, the `index`-th of those that are mapped.
fn drop_page(parts: &[Part], file: &File, mut index: usize) {
    for Part { start, bytes, offset } in parts {
        let pages = bytes / PAGE;
        if index < pages {
            let at = PAGE * index;
            // SAFETY: advice on a page that is mapped; a shared file mapping reads what is dropped from the file again.
            unsafe {
                libc::madvise((start + at) as *mut _, PAGE, libc::MADV_DONTNEED);
                libc::posix_fadvise(
                    file.as_raw_fd(),
                    (offset + at) as i64,
                    PAGE as i64,
                    libc::POSIX_FADV_DONTNEED,
                );
            }
            return;
        }
        index -= pages;
    }
}

/// Drops so many pages before each of many searches, and returns the median milliseconds of a search, and the share of searches
/// that left walks asking for pages.
fn with_pages_missing(plane: &Plane, path: &Path, set: &Set, missing: usize, searches: usize) -> (f64, f64) {
    let (parts, file) = (maps(path), File::open(path).unwrap());
    let pages = parts.iter().map(|part| part.bytes / PAGE).sum::<usize>();
    std::fs::read(path).unwrap();
    let (mut times, mut asking, mut index) = (Vec::new(), 0, 0);
    for i in 0..searches {
        for _ in 0..missing {
            // Far apart, and each page comes up.
            index = (index + PAGES_APART) % pages;
            drop_page(&parts, &file, index);
        }
        let started = Instant::now();
        assert_eq!(search(plane, set, i % set.queries.rows()).len(), K);
        times.push(started.elapsed().as_secs_f64() * 1e3);
        asking += usize::from(asks_for_pages(plane));
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], asking as f64 / searches as f64)
}

/// Has the system forget the pages of a file, and returns the share of them that is in memory all the same.
fn drop_pages(path: &Path, file: &File) -> f64 {
    let (mut resident, mut all) = (0, 0);
    // SAFETY: advice on ranges that are mapped; a shared file mapping reads what is dropped from the file again.
    unsafe {
        for Part { start, bytes, .. } in maps(path) {
            libc::madvise(start as *mut _, bytes, libc::MADV_DONTNEED);
        }
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        for Part { start, bytes, .. } in maps(path) {
            let mut pages = vec![0u8; bytes.div_ceil(PAGE)];
            libc::mincore(start as *mut _, bytes, pages.as_mut_ptr());
            resident += pages.iter().filter(|page| **page & 1 != 0).count();
            all += pages.len();
        }
    }
    resident as f64 / all as f64
}

fn search(plane: &Plane, set: &Set, query: usize) -> Hits {
    let options = SearchOptions { ef: Some(EF), ..SearchOptions::new(K) };
    plane.search(set.queries.row(query), &options).unwrap()
}

/// Median milliseconds of a search that finds nothing in memory, in the order `ahead` says: with pages asked for, or not.
fn median_ms(plane: &Plane, path: &Path, set: &Set, ahead: bool) -> f64 {
    let file = File::open(path).unwrap();
    plant((!ahead).then_some(Planted::NeverAsksForPages));
    let mut times: Vec<f64> = (0..set.queries.rows())
        .map(|query| {
            assert!(drop_pages(path, &file) < 0.01, "pages stay in memory");
            let started = Instant::now();
            assert_eq!(search(plane, set, query).len(), K);
            started.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    plant(None);
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A folder on a disk, not in memory as `/tmp` may be; `None`, and says so, when there is none.
fn folder_on_disk() -> Option<tempfile::TempDir> {
    let near = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let dir = tempfile::tempdir_in(near).unwrap();
    let path = dir.path().join("probe");
    std::fs::write(&path, vec![1u8; 1 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: a read-only shared mapping of a file of this length that nobody cuts off.
    let resident = unsafe {
        let at =
            libc::mmap(std::ptr::null_mut(), 1 << 20, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        let mut pages = [0u8; 256];
        libc::mincore(at, 1 << 20, pages.as_mut_ptr());
        libc::munmap(at, 1 << 20);
        pages.iter().any(|page| page & 1 != 0)
    };
    if resident {
        println!("skipped: this file system keeps its files in memory");
        return None;
    }
    Some(dir)
}

#[test]
fn a_plane_that_is_not_in_memory_gives_the_answers_of_one_that_is() {
    let Some(dir) = folder_on_disk() else { return };
    let path = dir.path().join("cold.plane");
    let set = data::shipped_sift().ask(50);
    let plane = on_disk(&path, &set);
    let file = File::open(&path).unwrap();
    let warm: Vec<Hits> = (0..set.queries.rows()).map(|query| search(&plane, &set, query)).collect();
    assert!(!asks_for_pages(&plane), "everything was in memory");

    // So small a file would otherwise come into memory with a few faults, each of which reads its neighbourhood.
    read_single_pages(&path);
    let mut same = 0;
    for (query, warm) in warm.iter().enumerate() {
        drop_pages(&path, &file);
        let cold = search(&plane, &set, query);
        assert_eq!(cold.len(), K);
        for (id, distance) in cold.ids.iter().zip(&cold.distances) {
            if let Some(at) = warm.ids.iter().position(|other| other == id) {
                assert_eq!(distance.to_bits(), warm.distances[at].to_bits());
                same += 1;
            }
        }
    }
    assert!(asks_for_pages(&plane), "the disk was read all the time");
    // Several expansions at a time go another way now and then.
    assert!(same >= warm.len() * K * 98 / 100, "{same} of {} hits", warm.len() * K);

    for round in 0..200 {
        search(&plane, &set, round % set.queries.rows());
    }
    assert!(!asks_for_pages(&plane), "nothing was read for long");
}

/// Asking takes longer than reading a page.
#[test]
fn a_page_missing_here_and_there_has_walks_ask_no_more() {
    let Some(dir) = folder_on_disk() else { return };
    let path = dir.path().join("mostly.plane");
    let set = data::shipped_sift().ask(50);
    let plane = on_disk(&path, &set);
    read_single_pages(&path);
    drop_pages(&path, &File::open(&path).unwrap());
    (0..4).for_each(|query| drop(search(&plane, &set, query)));
    assert!(asks_for_pages(&plane), "all was read from the disk");
    let (_, asking) = with_pages_missing(&plane, &path, &set, 1, 500);
    assert!(asking < 0.5, "after {asking} of the searches walks ask");
}

/// `cargo test --release -p vecplane-core --test cold -- --include-ignored --nocapture`
#[test]
#[ignore = "long: 200,000 records"]
fn a_plane_that_is_mostly_in_memory_is_hardly_slower_than_without_asking() {
    let (Some(full), Some(dir)) = (data::full(), folder_on_disk()) else { return };
    let path = dir.path().join("mostly.plane");
    let set = data::sift(&full, 200_000).ask(200);
    let plane = on_disk(&path, &set);
    read_single_pages(&path);
    for missing in [0, 1, 10, 100, 1000, 10_000] {
        let [(never, _), (ahead, share), (never_again, _), (ahead_again, share_again)] =
            [false, true, false, true].map(|ahead| {
                plant((!ahead).then_some(Planted::NeverAsksForPages));
                let result = with_pages_missing(&plane, &path, &set, missing, 400);
                plant(None);
                result
            });
        println!(
            "{missing} pages dropped before each search: {never:.3} and {never_again:.3} ms, asking {ahead:.3} and \
             {ahead_again:.3} ms, asked after {share:.3} and {share_again:.3} of the searches"
        );
        let ratio = (ahead + ahead_again) / (never + never_again);
        assert!(ratio < 2.0, "{missing} pages: {ratio}");
    }
}

/// `cargo test --release -p vecplane-core --test cold -- --include-ignored --nocapture`
#[test]
#[ignore = "long: 200,000 records"]
fn asking_for_pages_halves_the_time_of_a_cold_search() {
    let (Some(full), Some(dir)) = (data::full(), folder_on_disk()) else { return };
    let path = dir.path().join("cold.plane");
    let set = data::sift(&full, 200_000).ask(60);
    let plane = on_disk(&path, &set);
    let medians = [false, true, false, true].map(|ahead| median_ms(&plane, &path, &set, ahead));
    let ratio = (medians[1] + medians[3]) / (medians[0] + medians[2]);
    println!(
        "p50 of cold searches, ef {EF}: one page after the other, ahead, and again: {medians:.1?} ms: {ratio:.2}"
    );
    assert!(ratio <= 0.5);
}
