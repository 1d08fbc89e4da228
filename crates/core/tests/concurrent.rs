//! Threads on one plane: searches beside inserts, removals, growth and flushes.

mod common;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use common::{Rng, by_form, check_verified, open, true_distance};
use vecplane_core::{Batch, CreateOptions, Error, Hits, Metric, Plane, Precision, SearchOptions};

/// The vector of the record with this number, which is its key: so that every hit can be checked by itself.
fn vector_of(number: u64, dims: usize) -> Vec<f32> {
    Rng::new(number.wrapping_mul(0x2545_F491_4F6C_DD1D)).gaussian(dims)
}

fn key_of(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn keyed(dims: u32) -> CreateOptions {
    CreateOptions { key_cap: 8, unique_keys: true, ..CreateOptions::new(dims) }
}

/// What several threads know of the records, by number.
struct Ledger {
    dims: usize,
    next: AtomicUsize,
    /// The id of each record, from whoever saw it first.
    ids: Vec<AtomicU32>,
    /// When the removal of each record had returned; 0 for never.
    removed_at: Vec<AtomicU64>,
    clock: AtomicU64,
    live: Mutex<Vec<(u64, u32)>>,
}

impl Ledger {
    fn new(dims: usize, most: usize) -> Self {
        Ledger {
            dims,
            next: AtomicUsize::new(0),
            ids: (0..most).map(|_| AtomicU32::new(u32::MAX)).collect(),
            removed_at: (0..most).map(|_| AtomicU64::new(0)).collect(),
            clock: AtomicU64::new(1),
            live: Mutex::new(Vec::new()),
        }
    }

    fn insert(&self, plane: &Plane) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.ids.len() {
            return None;
        }
        let number = number as u64;
        let id = plane.insert(&vector_of(number, self.dims), &key_of(number)).unwrap();
        self.saw(number, id);
        self.live.lock().unwrap().push((number, id));
        Some(number)
    }

    /// A record keeps its id.
    fn saw(&self, number: u64, id: u32) {
        let first =
            self.ids[number as usize].compare_exchange(u32::MAX, id, Ordering::SeqCst, Ordering::SeqCst);
        assert!(first.is_ok() || first == Err(id), "record {number} has id {id} and id {first:?}");
    }

    fn remove_one(&self, plane: &Plane, rng: &mut Rng) {
        let (number, id) = {
            let mut live = self.live.lock().unwrap();
            if live.is_empty() {
                return;
            }
            let at = rng.below(live.len());
            live.swap_remove(at)
        };
        assert!(plane.remove(id).unwrap(), "record {number} was not under its id {id}");
        let now = self.clock.fetch_add(1, Ordering::SeqCst);
        self.removed_at[number as usize].store(now, Ordering::SeqCst);
    }

    /// Checks every hit of a search that started at `started` on the ledger's clock.
    fn check(&self, query: &[f32], hits: &Hits, started: u64) {
        assert_eq!(hits.ids.iter().collect::<HashSet<_>>().len(), hits.len(), "ids repeat");
        assert!(hits.distances.is_sorted(), "{:?}", hits.distances);
        for (i, &id) in hits.ids.iter().enumerate() {
            let number = u64::from_be_bytes(hits.key(i).try_into().expect("a key of eight bytes"));
            assert!((number as usize) < self.ids.len(), "key {number} was never given");
            self.saw(number, id);
            let distance = true_distance(Metric::Cosine, query, &vector_of(number, self.dims));
            let off = (f64::from(hits.distances[i]) - distance).abs();
            assert!(off < 1e-5, "record {number}: distance {} for {distance}", hits.distances[i]);
            let removed = self.removed_at[number as usize].load(Ordering::SeqCst);
            assert!(
                removed == 0 || removed >= started,
                "record {number} was removed before the search started"
            );
        }
    }

    fn search(&self, plane: &Plane, rng: &mut Rng) -> Hits {
        let query = rng.gaussian(self.dims);
        let started = self.clock.load(Ordering::SeqCst);
        let hits = if rng.chance(0.02) {
            plane.search_exact(&query, 10, None).unwrap()
        } else {
            let ef = rng.range(10..=100);
            plane.search(&query, &SearchOptions { ef: Some(ef), ..SearchOptions::new(10) }).unwrap()
        };
        self.check(&query, &hits, started);
        hits
    }

    /// After everything: the plane holds the live records, each under its id, key and vector.
    fn check_plane(&self, plane: &Plane) {
        check_verified(plane);
        let live = self.live.lock().unwrap();
        assert_eq!(plane.count().unwrap(), live.len() as u64);
        for &(number, id) in live.iter() {
            assert_eq!(plane.id_of(&key_of(number)).unwrap(), Some(id), "record {number}");
            assert_eq!(plane.key(id).unwrap().as_deref(), Some(&key_of(number)[..]), "record {number}");
            assert_eq!(plane.vector(id).unwrap().unwrap(), vector_of(number, self.dims), "record {number}");
        }
    }
}

/// Sets a flag when a thread ends, however it ends: the others must not run for ever after a failure.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Threads, and what each of them does over and over.
type Work<'a> = (usize, &'a (dyn Fn(&mut Rng) + Sync));

/// Runs `work` again and again on `threads` threads until the time is over or one of them fails.
fn run_for(time: Duration, rng: &mut Rng, works: &[Work<'_>]) {
    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + time;
    std::thread::scope(|scope| {
        for &(threads, work) in works {
            for _ in 0..threads {
                let (mut rng, stop) = (rng.fork(), &stop);
                scope.spawn(move || {
                    let _stop = StopOnDrop(stop);
                    while !stop.load(Ordering::SeqCst) && Instant::now() < deadline {
                        work(&mut rng);
                    }
                });
            }
        }
    });
}

#[test]
fn a_search_that_starts_after_a_removal_returned_never_yields_the_record() {
    let mut rng = Rng::for_test("a_search_that_starts_after_a_removal_returned_never_yields_the_record");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &keyed(16)).unwrap();
    let ledger = Ledger::new(16, by_form(2_000_000, 20_000_000));
    for _ in 0..1000 {
        ledger.insert(&plane);
    }
    let (searches, short) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let search = |rng: &mut Rng| {
        let hits = ledger.search(&plane, rng);
        searches.fetch_add(1, Ordering::Relaxed);
        short.fetch_add(usize::from(hits.len() < 10), Ordering::Relaxed);
    };
    let insert = |_: &mut Rng| {
        // Keeps the plane small, so that searches meet what is removed, and slots are used again at once.
        match ledger.live.lock().unwrap().len() {
            0..1500 => {}
            _ => return std::thread::sleep(Duration::from_micros(100)),
        }
        ledger.insert(&plane).expect("the ledger is long enough");
    };
    let remove = |rng: &mut Rng| {
        // Were it faster than the inserters, the plane would run empty.
        if ledger.live.lock().unwrap().len() > 500 {
            ledger.remove_one(&plane, rng);
        }
    };
    run_for(
        by_form(Duration::from_secs(5), Duration::from_secs(30)),
        &mut rng,
        &[(8, &search), (2, &insert), (1, &remove)],
    );
    let (searches, short) = (searches.into_inner(), short.into_inner());
    println!("{searches} searches, {} inserts, {short} short answers", ledger.next.load(Ordering::Relaxed));
    assert_eq!(short, 0, "answers with fewer than k hits, of a plane with hundreds of records");
    ledger.check_plane(&plane);
    drop(plane);
    ledger.check_plane(&open(&path));
}

#[test]
fn batches_from_several_threads_land_whole() {
    let mut rng = Rng::for_test("batches_from_several_threads_land_whole");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &keyed(24)).unwrap();
    let (threads, batches, rows) = (4, 3, by_form(400, 4000));
    let ids = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (plane, ids) = (&plane, &ids);
            scope.spawn(move || {
                for batch in 0..batches {
                    let first = ((thread * batches + batch) * rows) as u64;
                    let numbers = first..first + rows as u64;
                    let vectors: Vec<f32> = numbers.clone().flat_map(|n| vector_of(n, 24)).collect();
                    let keys: Vec<u8> = numbers.clone().flat_map(key_of).collect();
                    let key_ends: Vec<u32> = (1..=rows as u32).map(|i| 8 * i).collect();
                    let batch = Batch { vectors: &vectors, keys: &keys, key_ends: &key_ends };
                    let outcome = plane.insert_batch(batch, 1 + thread % 3, &|_| true).unwrap();
                    assert!(outcome.fault.is_none() && outcome.rejected.is_empty(), "{outcome:?}");
                    ids.lock().unwrap().extend(numbers.zip(outcome.ids));
                }
            });
        }
    });
    let ids = ids.into_inner().unwrap();
    let total = threads * batches * rows;
    assert_eq!(ids.len(), total);
    assert_eq!(ids.iter().map(|(_, id)| id).collect::<HashSet<_>>().len(), total, "ids repeat");
    assert_eq!((plane.count().unwrap(), plane.id_high_water().unwrap()), (total as u64, total as u32));
    check_verified(&plane);
    let options = SearchOptions { ef: Some(128), ..SearchOptions::new(10) };
    let found = ids.iter().filter(|(number, id)| {
        let hits = plane.search(&vector_of(*number, 24), &options).unwrap();
        let own = hits.ids.iter().position(|other| other == id);
        own.is_some_and(|at| hits.key(at) == key_of(*number) && hits.distances[at] < 1e-5)
    });
    let recall = found.count() as f64 / total as f64;
    assert!(recall >= 0.999, "self-recall {recall}");
    // Somebody else's keys, and one's own again: everything is rejected, nothing lands.
    let first = rng.below(total - 10) as u64;
    let vectors: Vec<f32> = (first..first + 10).flat_map(|n| vector_of(n, 24)).collect();
    let keys: Vec<u8> = (first..first + 10).flat_map(key_of).collect();
    let key_ends: Vec<u32> = (1..=10).map(|i| 8 * i).collect();
    let again = plane
        .insert_batch(Batch { vectors: &vectors, keys: &keys, key_ends: &key_ends }, 2, &|_| true)
        .unwrap();
    assert_eq!((again.rejected.len(), again.ids), (10, vec![u32::MAX; 10]));
    assert_eq!(plane.count().unwrap(), total as u64);
}

#[test]
fn one_key_claimed_by_many_threads_belongs_to_one_record() {
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::create(&dir.path().join("plane"), &keyed(4)).unwrap();
    let (threads, keys) = (4, by_form(300, 3000));
    let barrier = Barrier::new(threads);
    let landed: Vec<AtomicUsize> = (0..keys).map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (plane, barrier, landed) = (&plane, &barrier, &landed);
            scope.spawn(move || {
                for (key, landed) in landed.iter().enumerate() {
                    barrier.wait();
                    match plane.insert(&vector_of(thread, 4), &key_of(key as u64)) {
                        Ok(_) => drop(landed.fetch_add(1, Ordering::Relaxed)),
                        Err(Error::KeyExists { .. }) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
    });
    assert!(landed.iter().all(|n| n.load(Ordering::Relaxed) == 1));
    assert_eq!(plane.count().unwrap(), keys as u64);
    check_verified(&plane);
}

#[test]
fn a_plane_grows_from_nothing_under_its_searchers() {
    let mut rng = Rng::for_test("a_plane_grows_from_nothing_under_its_searchers");
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { precision: Precision::Int16, ef_construction: 60, ..keyed(256) };
    let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
    let ledger = Ledger::new(256, by_form(6000, 60_000));
    let (tried, found) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let _done = StopOnDrop(&done);
                while ledger.insert(&plane).is_some() {}
            });
        }
        for _ in 0..3 {
            let mut rng = rng.fork();
            let (plane, ledger, tried, found, done) = (&plane, &ledger, &tried, &found, &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    ledger.search(plane, &mut rng);
                    // What was acknowledged before the search starts is found by it.
                    let Some(&(number, id)) = ledger.live.lock().unwrap().last() else { continue };
                    let query = vector_of(number, 256);
                    let hits = plane
                        .search(&query, &SearchOptions { ef: Some(200), ..SearchOptions::new(10) })
                        .unwrap();
                    ledger.check(&query, &hits, 0);
                    tried.fetch_add(1, Ordering::Relaxed);
                    found.fetch_add(usize::from(hits.ids.contains(&id)), Ordering::Relaxed);
                }
            });
        }
    });
    let (tried, found) = (tried.into_inner(), found.into_inner());
    assert!(
        tried > 100 && plane.stats().unwrap().extents > 20,
        "{tried} searches, {:?}",
        plane.stats().unwrap()
    );
    assert!(found as f64 >= 0.99 * tried as f64, "{found} of {tried} found themselves");
    ledger.check_plane(&plane);
}

#[test]
fn flushes_beside_writers_keep_what_they_promise() {
    let mut rng = Rng::for_test("flushes_beside_writers_keep_what_they_promise");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &keyed(16)).unwrap();
    let ledger = Ledger::new(16, 2_000_000);
    let watermark = AtomicU64::new(0);
    let flush = |_: &mut Rng| {
        let next = watermark.load(Ordering::SeqCst) + 1;
        plane.flush(Some(next)).unwrap();
        watermark.store(next, Ordering::SeqCst);
        assert_eq!(plane.watermark().unwrap(), next);
    };
    let write = |rng: &mut Rng| {
        let live = ledger.live.lock().unwrap().len();
        if live > 1500 || live > 50 && rng.chance(0.4) {
            ledger.remove_one(&plane, rng);
        } else {
            ledger.insert(&plane).unwrap();
        }
    };
    let search = |rng: &mut Rng| drop(ledger.search(&plane, rng));
    run_for(
        by_form(Duration::from_millis(1500), Duration::from_secs(15)),
        &mut rng,
        &[(1, &flush), (2, &write), (1, &search)],
    );
    let flushes = watermark.load(Ordering::SeqCst);
    assert!(flushes > 10 && plane.stats().unwrap().flushes == flushes, "{flushes} flushes");
    ledger.check_plane(&plane);
    drop(plane);
    let plane = open(&path);
    assert_eq!(plane.watermark().unwrap(), flushes);
    ledger.check_plane(&plane);
}

#[test]
fn a_plane_that_empties_and_fills_again_and_again_loses_nobody() {
    let mut rng = Rng::for_test("a_plane_that_empties_and_fills_again_and_again_loses_nobody");
    let dir = tempfile::tempdir().unwrap();
    for layer0_cap in [32, 4] {
        let options = CreateOptions { layer0_cap, m: layer0_cap / 2, ..keyed(4) };
        let plane = Plane::create(&dir.path().join(format!("plane{layer0_cap}")), &options).unwrap();
        let ledger = Ledger::new(4, 10_000_000);
        for _ in 0..by_form(400, 8000) {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let mut rng = rng.fork();
                    let (plane, ledger) = (&plane, &ledger);
                    scope.spawn(move || {
                        for _ in 0..rng.range(1..=20) {
                            let live = ledger.live.lock().unwrap().len();
                            if live > 6 || rng.chance(0.5) {
                                ledger.remove_one(plane, &mut rng);
                            } else {
                                ledger.insert(plane).unwrap();
                            }
                        }
                    });
                }
            });
            check_verified(&plane);
        }
        ledger.check_plane(&plane);
    }
}

/// Searches and inserts start at the entry point and at the oldest record; these go first here, often both in one.
#[test]
fn where_searches_start_can_be_removed_under_them() {
    let mut rng = Rng::for_test("where_searches_start_can_be_removed_under_them");
    let dir = tempfile::tempdir().unwrap();
    let plane = Plane::create(&dir.path().join("plane"), &keyed(8)).unwrap();
    let ledger = Ledger::new(8, 10_000_000);
    while ledger.live.lock().unwrap().len() < 200 {
        ledger.insert(&plane);
    }
    let (searches, short) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let shortest = AtomicUsize::new(10);
    let remove = |rng: &mut Rng| {
        let entry = plane.entry_point().unwrap().map(|(id, _)| id);
        let mut live = ledger.live.lock().unwrap();
        if live.len() < 100 {
            return;
        }
        let at = live.iter().position(|(_, id)| Some(*id) == entry).filter(|_| rng.chance(0.5)).unwrap_or(0);
        let (number, id) = live.remove(at);
        assert!(plane.remove(id).unwrap(), "record {number}");
    };
    let insert = |_: &mut Rng| {
        if ledger.live.lock().unwrap().len() < 200 {
            ledger.insert(&plane).unwrap();
        }
    };
    let search = |rng: &mut Rng| {
        let hits = ledger.search(&plane, rng);
        searches.fetch_add(1, Ordering::Relaxed);
        short.fetch_add(usize::from(hits.len() < 10), Ordering::Relaxed);
        shortest.fetch_min(hits.len(), Ordering::Relaxed);
    };
    let time = by_form(Duration::from_secs(2), Duration::from_secs(30));
    run_for(time, &mut rng, &[(1, &remove), (3, &insert), (3, &search)]);
    let (searches, short) = (searches.into_inner(), short.into_inner());
    println!("{searches} searches, {} inserts", ledger.next.load(Ordering::Relaxed));
    let shortest = shortest.into_inner();
    assert_eq!(
        shortest, 10,
        "{short} of {searches} answers are too short, of a plane that always held 100 records"
    );
    ledger.check_plane(&plane);
    for &(number, id) in ledger.live.lock().unwrap().iter() {
        let hits = plane.search(&vector_of(number, 8), &SearchOptions::new(10)).unwrap();
        assert!(hits.ids.contains(&id), "record {number} does not find itself");
    }
}

/// Each thread frees a slot before it asks for one, so there is always one to be had.
#[test]
fn threads_that_replace_records_of_a_full_plane_are_never_told_that_it_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { max_nodes: Some(64), ..keyed(8) };
    let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
    let ledger = Ledger::new(8, 10_000_000);
    while ledger.live.lock().unwrap().len() < 64 {
        ledger.insert(&plane);
    }
    let slowest = AtomicU64::new(0);
    let replace = |rng: &mut Rng| {
        let started = Instant::now();
        ledger.remove_one(&plane, rng);
        ledger.insert(&plane).unwrap();
        slowest.fetch_max(started.elapsed().as_millis() as u64, Ordering::Relaxed);
    };
    let mut rng =
        Rng::for_test("threads_that_replace_records_of_a_full_plane_are_never_told_that_it_is_full");
    run_for(by_form(Duration::from_millis(1000), Duration::from_secs(10)), &mut rng, &[(3, &replace)]);
    ledger.check_plane(&plane);
    let slowest = slowest.into_inner();
    assert!(slowest < 1000, "a replacement took {slowest} ms");
}

/// Handles are shared: what one does the other sees, and dropping one does not disturb the other.
#[test]
fn handles_on_one_file_share_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let one = Plane::create(&path, &keyed(4)).unwrap();
    let two = open(&path);
    let clone = one.clone();
    let id = one.insert(&[1.0, 2.0, 3.0, 4.0], b"a").unwrap();
    assert_eq!(two.id_of(b"a").unwrap(), Some(id));
    drop(one);
    assert!(clone.remove(id).unwrap() && two.id_of(b"a").unwrap().is_none());
    drop(clone);
    #[cfg(target_os = "linux")]
    assert_eq!(open_count(&path), 1);
    drop(two);
    #[cfg(target_os = "linux")]
    assert_eq!(open_count(&path), 0, "given back with the last handle");
}

/// Descriptors of this process on a file.
#[cfg(target_os = "linux")]
fn open_count(path: &Path) -> usize {
    let path = path.canonicalize().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .filter(|fd| fd.as_ref().is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)))
        .count()
}
