//! What is left after a crash: of the machine, of a process, of a recovery.

#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::child::{self, argument, expect_done, spawn, wait_until};
use common::expected::Expected;
use common::journal::{self, Habits, check_against, options, read_logs, vector_of};
use common::{Rng, by_form, check_verified, image, open, tags_of};
use vecplane_core::{
    CompactOptions, CreateOptions, Error, OpenOptions, Plane, Precision, Rerank, SearchOptions,
};

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    match role.as_str() {
        "write" => journal::write_role(journal::ORDINARY, 3),
        "write little" => {
            journal::write_role(Habits { live: 3, flush_every: 200, batches: false, long_keys: 0.3 }, 3)
        }
        "write more" => journal::write_role(Habits { live: 40, ..journal::ORDINARY }, 3),
        "open" => {
            std::fs::write(argument(1), b"opening").unwrap();
            drop(open(Path::new(&argument(0))));
        }
        "opened clean" => assert!(open(Path::new(&argument(0))).opened_clean()),
        "open and check" => {
            while !Path::new(&argument(1)).exists() {
                std::hint::spin_loop();
            }
            check_numbered(&open(Path::new(&argument(0))), argument(2).parse().unwrap());
        }
        _ => panic!("no such role: {role}"),
    }
}

/// A closed and flushed plane with the records 0 to `count - 1`.
fn numbered(path: &Path, count: usize) {
    let plane = Plane::create(path, &CreateOptions { ef_construction: 40, ..options() }).unwrap();
    let keys: Vec<String> = (0..count).map(|i| i.to_string()).collect();
    journal::insert_batch(&plane, &keys);
    plane.flush(None).unwrap();
}

/// First what a caller would do at once; then everything.
fn check_numbered(plane: &Plane, count: usize) {
    let hits = plane.search(&vector_of("query"), &SearchOptions::new(100)).unwrap();
    assert_eq!(hits.len(), 100, "hits of the first search");
    assert_eq!(plane.count().unwrap(), count as u64);
    for i in 0..count {
        let key = i.to_string();
        let id = plane.id_of(key.as_bytes()).unwrap().unwrap_or_else(|| panic!("lost: {key}"));
        assert_eq!(plane.vector(id).unwrap().unwrap(), vector_of(&key), "vector of {key}");
    }
    check_verified(plane);
}

#[test]
fn a_machine_crash_is_recovered_from_once() {
    let mut rng = Rng::for_test("a_machine_crash_is_recovered_from_once");
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    for (precision, rerank, unique_keys) in [
        (Precision::Int8, Rerank::F32, true),
        (Precision::Int16, Rerank::F16, true),
        (Precision::F32, Rerank::None, false),
        (Precision::F16, Rerank::None, false),
    ] {
        let options = CreateOptions {
            precision,
            rerank,
            key_cap: 8,
            unique_keys,
            overwrite: true,
            ..CreateOptions::new(20)
        };
        let mut model = common::Model::new(&options);
        let plane = Plane::create(&path, &options).unwrap();
        for i in 0..600 {
            if i % 3 == 2 {
                let id = model.some_id(&mut rng).unwrap();
                assert!(plane.remove(id).unwrap());
                model.records.remove(&id);
                continue;
            }
            let (vector, long) = (rng.vector(20), rng.chance(0.1));
            let key = if long { format!("{i}{}", "x".repeat(rng.below(500))) } else { i.to_string() };
            let id = plane.insert(&vector, key.as_bytes()).unwrap();
            model.add(id, &vector, key.as_bytes());
        }
        plane.flush(Some(11)).unwrap();
        drop(plane);
        image::crash_machine(&path);
        let refused = Plane::open(&path, &OpenOptions { read_only: true, ..OpenOptions::default() });
        assert!(matches!(refused, Err(Error::NeedsRecovery { .. })), "{:?}", refused.err());
        let plane = open(&path);
        assert!(!plane.opened_clean());
        assert_eq!(plane.watermark().unwrap(), 11);
        model.check_plane(&plane);
        assert!(model.self_recall(&plane, &mut rng, 100) > 0.97);
        for i in 0..100 {
            let vector = rng.vector(20);
            let key = format!("new {i}");
            let id = plane.insert(&vector, key.as_bytes()).unwrap();
            model.add(id, &vector, key.as_bytes());
        }
        model.check_plane(&plane);
        drop(plane);
        let plane = open(&path);
        assert!(plane.opened_clean(), "one recovery is enough");
        model.check_plane(&plane);
    }
}

/// A flush was the last thing that the disk has seen, later stores are there in part, and the open that finds them gives up.
/// A file system that was mounted anew has lost what was in memory, like one whose machine has started anew.
#[test]
fn a_plane_written_through_another_mount_is_scanned_unless_somebody_has_kept_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let (path, image_path) = (dir.path().join("plane"), dir.path().join("image"));
    numbered(&path, 50);
    let plane = open(&path);
    plane.insert(&vector_of("50"), b"50").unwrap();
    image::write_as_killed(&image_path, &image::read(&path));
    let killed = open(&image_path);
    assert!(killed.opened_clean(), "the same mount: only the process was killed");
    // The same file reached from somewhere else, as another copy of this code would.
    image::move_to_other_mount(&image_path);
    let out = dir.path().join("out");
    let child = spawn("opened clean", &[image_path.to_str().unwrap()], &out);
    expect_done(child, Duration::from_secs(60), &out);
    drop(killed);
    let mut bytes = image::read(&image_path);
    bytes[image::DIRTY] = 1;
    image::write_as_killed(&image_path, &bytes);
    image::move_to_other_mount(&image_path);
    assert!(!open(&image_path).opened_clean(), "nobody has kept it in memory");
    check_verified(&open(&image_path));
}

#[test]
fn a_recovery_that_was_given_up_does_not_make_a_file_clean() {
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    numbered(&path, 300);
    let mut bytes = std::fs::read(&path).unwrap();
    image::set_other_boot(&mut bytes);
    bytes[image::DIRTY] = 1;
    bytes[image::SETTLED] = 1;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let given_up = Plane::open_with_progress(&path, &OpenOptions::default(), &|_, _| false);
    assert!(matches!(given_up, Err(Error::Aborted)));
    let plane = open(&path);
    assert!(!plane.opened_clean(), "nobody has looked at the records");
    check_numbered(&plane, 300);
}

/// Nothing was written since the last flush: there is nothing to recover, wherever the file is taken.
#[test]
fn a_copy_of_a_closed_plane_opens_clean_and_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("plane"), dir.path().join("copy"));
    numbered(&path, 200);
    std::fs::copy(&path, &copy).unwrap();
    image::move_to_other_boot(&copy);
    let plane = Plane::open(&copy, &OpenOptions { read_only: true, ..OpenOptions::default() });
    let plane = plane.unwrap_or_else(|e| panic!("a copy of a closed plane: {e}"));
    assert!(plane.opened_clean());
    check_numbered(&plane, 200);
}

#[test]
fn a_recovery_that_is_killed_is_done_again() {
    let mut rng = Rng::for_test("a_recovery_that_is_killed_is_done_again");
    let dir = image::evidence_dir();
    let (good, path) = (dir.path().join("good"), dir.path().join("plane"));
    let count = by_form(4000, 20_000);
    numbered(&good, count);
    image::crash_machine(&good);
    let bytes = std::fs::read(&good).unwrap();
    // How long a recovery takes here, to die somewhere in it.
    std::fs::write(&path, &bytes).unwrap();
    let started = Instant::now();
    assert!(!open(&path).opened_clean());
    let recovery = started.elapsed();
    println!("{count} records are recovered in {recovery:?}");
    for round in 0..by_form(25, 300) {
        let (path, mark, out) =
            (dir.path().join(format!("plane{round}")), dir.path().join("mark"), dir.path().join("out"));
        std::fs::write(&path, &bytes).unwrap();
        let _ = std::fs::remove_file(&mark);
        let child = spawn("open", &[path.to_str().unwrap(), mark.to_str().unwrap()], &out);
        wait_until("the child to open the plane", Duration::from_secs(10), || mark.exists());
        std::thread::sleep(recovery.mul_f64(rng.unit()));
        child.kill();
        check_numbered(&open(&path), count);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn whoever_opens_a_crashed_plane_finds_it_whole() {
    let dir = image::evidence_dir();
    let good = dir.path().join("good");
    let count = by_form(4000, 20_000);
    numbered(&good, count);
    image::crash_machine(&good);
    for round in 0..by_form(4, 50) {
        let path = dir.path().join(format!("threads{round}"));
        std::fs::copy(&good, &path).unwrap();
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    check_numbered(&open(&path), count);
                });
            }
        });
        let (path, go) =
            (dir.path().join(format!("processes{round}")), dir.path().join(format!("go{round}")));
        std::fs::copy(&good, &path).unwrap();
        let out = |i: usize| dir.path().join(format!("out{i}"));
        let arguments = [path.to_str().unwrap(), go.to_str().unwrap(), &count.to_string()];
        let children: Vec<_> = (0..3).map(|i| spawn("open and check", &arguments, &out(i))).collect();
        std::thread::sleep(Duration::from_millis(30));
        std::fs::write(&go, b"").unwrap();
        for (i, child) in children.into_iter().enumerate() {
            expect_done(child, Duration::from_secs(60), &out(i));
        }
    }
}

#[test]
fn everything_acknowledged_outlives_a_killed_process() {
    let mut rng = Rng::for_test("everything_acknowledged_outlives_a_killed_process");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let mut logs = Vec::<PathBuf>::new();
    for round in 0..by_form(10, 200) {
        let name = format!("w{round}");
        let child = journal::busy_writer("write", dir.path(), &name);
        logs.push(dir.path().join(format!("{name}.log")));
        std::thread::sleep(Duration::from_micros(rng.below(100_000) as u64));
        child.kill();
        let started = Instant::now();
        let plane = open(&path);
        let opened = started.elapsed();
        assert!(opened < Duration::from_secs(1), "opening took {opened:?}");
        let live = check_against(&plane, &read_logs(&logs));
        let id = plane.insert(&vector_of("after"), b"after").unwrap();
        assert!(plane.remove(id).unwrap());
        println!("round {round}: {live} records, opened in {opened:?}");
    }
}

/// What stands in the file when all threads of a writer are stopped at once is what a kill at that moment leaves: so a
/// child dies many times, and lives on.
#[test]
fn a_process_stopped_at_any_moment_leaves_what_it_acknowledged() {
    let dir = image::evidence_dir();
    let (path, image_path) = (dir.path().join("plane"), dir.path().join("image"));
    let mut rng = Rng::for_test("a_process_stopped_at_any_moment_leaves_what_it_acknowledged");
    // A new child now and then: the longer the log, the more there is to be checked.
    for round in 0..by_form(2, 100) {
        let role = ["write little", "write more"][round % 2];
        let _ = std::fs::remove_file(&path);
        drop(Plane::create(&path, &options()).unwrap());
        let name = format!("writer{round}");
        let log = dir.path().join(format!("{name}.log"));
        let child = journal::busy_writer(role, dir.path(), &name);
        for _ in 0..60 {
            std::thread::sleep(Duration::from_micros(rng.below(1000) as u64));
            // Until the check is over: a child that runs meanwhile has more to be checked each time.
            child.freeze();
            let bytes = image::read(&path);
            image::write_as_killed(&image_path, &bytes);
            std::fs::write(image_path.with_file_name("before"), &bytes).unwrap();
            check_against(&open(&image_path), &read_logs(std::slice::from_ref(&log)));
            child.thaw();
        }
    }
}

/// A plane whose machine loses its power, again and again.
struct PowerCuts {
    plane: Plane,
    path: PathBuf,
    image_path: PathBuf,
    rng: Rng,
    live: BTreeMap<Vec<u8>, (u32, Vec<f32>)>,
    expected: Expected,
    next_key: usize,
    images: usize,
    _dir: image::Evidence,
}

impl PowerCuts {
    fn new(mut rng: Rng) -> Self {
        let dir = image::evidence_dir();
        let path = dir.path().join("plane");
        let (m, layer0_cap) = *rng.pick(&[(16, 32), (16, 32), (8, 16)]);
        let options = CreateOptions {
            precision: *rng.pick(&[Precision::Int8, Precision::Int8, Precision::Int16, Precision::F32]),
            m,
            layer0_cap,
            key_cap: *rng.pick(&[1, 16]),
            unique_keys: true,
            ..CreateOptions::new(*rng.pick(&[3, 16, 100, 500]))
        };
        println!("{options:?}");
        let plane = Plane::create(&path, &options).unwrap();
        PowerCuts {
            plane,
            image_path: dir.path().join("image"),
            path,
            rng,
            live: BTreeMap::new(),
            expected: Expected::default(),
            next_key: 0,
            images: 0,
            _dir: dir,
        }
    }

    fn insert(&mut self) {
        let dims = self.plane.config().dims as usize;
        let vector = self.rng.gaussian(dims);
        self.next_key += 1;
        let mut key = format!("k{}", self.next_key).into_bytes();
        // A key that was removed, perhaps since the last flush; or one that goes to the heap.
        if let Some(gone) = self.expected.removed_since.iter().find(|key| !self.live.contains_key(*key))
            && self.rng.chance(0.2)
        {
            key = gone.clone();
        } else if self.rng.chance(0.15) {
            key.extend(std::iter::repeat_n(b'x', self.rng.range(60..=700)));
        }
        self.expected.since.entry(key.clone()).or_default().push(vector.clone());
        let id = self.plane.insert_tagged(&vector, &key, &tags_of(&vector)).unwrap();
        self.live.insert(key, (id, vector));
    }

    /// Another vector for a key: a flushed key has one of the two at every moment.
    fn upsert(&mut self) {
        let at = self.rng.below(self.live.len().max(1));
        let Some(key) = self.live.keys().nth(at).cloned() else { return };
        let vector = self.rng.gaussian(self.plane.config().dims as usize);
        self.expected.since.entry(key.clone()).or_default().push(vector.clone());
        let id = self.plane.upsert_tagged(&key, &vector, &tags_of(&vector)).unwrap();
        self.live.insert(key, (id, vector));
    }

    fn remove(&mut self) {
        let at = self.rng.below(self.live.len().max(1));
        let Some((key, (id, _))) =
            self.live.iter().nth(at).map(|(key, record)| (key.clone(), record.clone()))
        else {
            return;
        };
        self.expected.removed_since.insert(key.clone());
        assert!(self.plane.remove(id).unwrap());
        self.live.remove(&key);
    }

    /// Works for a while, with copies of the file taken at random moments.
    fn work(&mut self, removals: f64, upserts: f64) -> Vec<Vec<u8>> {
        let path = self.path.clone();
        let (done, mut timing) = (AtomicBool::new(false), self.rng.fork());
        let mut copies = std::thread::scope(|scope| {
            let copier = scope.spawn(|| {
                let mut copies = Vec::new();
                while !done.load(Ordering::SeqCst) && copies.len() < 8 {
                    std::thread::sleep(Duration::from_micros(timing.below(1500) as u64));
                    copies.push(image::read(&path));
                }
                copies
            });
            for _ in 0..self.rng.range(5..=120) {
                match self.rng.unit() {
                    x if x < removals => self.remove(),
                    x if x < removals + upserts => self.upsert(),
                    _ => self.insert(),
                }
            }
            done.store(true, Ordering::SeqCst);
            copier.join().unwrap()
        });
        copies.push(image::read(&self.path));
        copies
    }

    /// Opens an image as another boot finds it. Sometimes the power goes again while it recovers.
    fn check_image(&mut self, mut bytes: Vec<u8>, expected: &Expected) {
        self.images += 1;
        image::set_other_boot(&mut bytes);
        let _ = std::fs::remove_file(&self.image_path);
        std::fs::write(&self.image_path, &bytes).unwrap();
        std::fs::write(self.image_path.with_file_name("before"), &bytes).unwrap();
        if self.rng.chance(0.2) {
            let done = AtomicBool::new(false);
            let copies = std::thread::scope(|scope| {
                let recovery = scope.spawn(|| {
                    drop(open(&self.image_path));
                    done.store(true, Ordering::SeqCst);
                });
                let mut copies = Vec::new();
                while !done.load(Ordering::SeqCst) && copies.len() < 50 && !recovery.is_finished() {
                    copies.push(image::read(&self.image_path));
                }
                recovery.join().unwrap();
                // Marked clean: what the recovery did was synced before that.
                copies.retain(|copy| copy[image::DIRTY] != 0);
                copies
            });
            let later: Vec<&[u8]> =
                copies.iter().map(Vec::as_slice).filter(|_| self.rng.chance(0.5)).collect();
            let mut again = image::power_cut(&mut self.rng, &bytes, &later);
            image::set_other_boot(&mut again);
            std::fs::remove_file(&self.image_path).unwrap();
            std::fs::write(&self.image_path, &again).unwrap();
            std::fs::write(self.image_path.with_file_name("before"), &again).unwrap();
        }
        let plane = open(&self.image_path);
        // Before the first write there is nothing to recover.
        assert_eq!(plane.opened_clean(), bytes[image::DIRTY] == 0);
        expected.check(&plane);
        // It works as any other.
        let dims = plane.config().dims as usize;
        let ids: Vec<u32> = (0..10)
            .map(|i| plane.insert(&self.rng.gaussian(dims), format!("after {i}").as_bytes()).unwrap())
            .collect();
        ids.iter().for_each(|id| assert!(plane.remove(*id).unwrap()));
        plane.flush(None).unwrap();
        expected.check(&plane);
        drop(plane);
        let plane = open(&self.image_path);
        assert!(plane.opened_clean());
        expected.check(&plane);
    }

    /// From one completed flush to the next.
    fn segment(&mut self, synced: &[u8], images: usize, upserts: f64) -> Vec<u8> {
        let removals = *self.rng.pick(&[0.05, 0.3, 0.55, 0.9]);
        let copies = self.work(removals, upserts);
        // Everything is right before any crash.
        check_verified(&self.plane);
        let expected = self.expected.clone();
        for _ in 0..images {
            let mut later: Vec<&[u8]> = copies.iter().map(Vec::as_slice).collect();
            later.truncate(self.rng.range(1..=copies.len()));
            let mut bytes = image::power_cut(&mut self.rng, synced, &later);
            // The mark of a writer is on the disk before anything else is.
            let mark = image::DIRTY..image::FILE_ID + 16;
            bytes[mark.clone()].copy_from_slice(&copies[copies.len() - 1][mark]);
            self.check_image(bytes, &expected);
        }
        if self.rng.chance(0.25) {
            return self.compact();
        }
        let before = image::read(&self.path);
        self.plane.flush(None).unwrap();
        let flushed = self.live.iter().map(|(key, (_, vector))| (key.clone(), vector.clone())).collect();
        let earlier = std::mem::replace(&mut self.expected, Expected { flushed, ..Expected::default() });
        let after = image::read(&self.path);
        // Between the two syncs of a flush: all data is there, the superblock is half written.
        let mut bytes = before;
        for sector in (0..2 * image::SUPERBLOCK_BYTES).step_by(image::SECTOR).filter(|_| self.rng.chance(0.5))
        {
            bytes[sector..sector + image::SECTOR].copy_from_slice(&after[sector..sector + image::SECTOR]);
        }
        // The flush has not returned: a value that was replaced, and whose key was then removed, may be there as well.
        let mut expected = Expected { since: earlier.since, ..self.expected.clone() };
        for (key, vector) in earlier.flushed {
            expected.since.entry(key).or_default().push(vector);
        }
        self.check_image(bytes, &expected);
        after
    }

    /// A flush of another kind: whichever file a power cut leaves at the path, it holds everything.
    fn compact(&mut self) -> Vec<u8> {
        let renumber = self.rng.chance(0.5);
        let options = CompactOptions { renumber, relink: self.rng.chance(0.3), ..CompactOptions::default() };
        let compacted = self.plane.compact(&options, &|_, _| true).unwrap();
        if renumber {
            self.live.values_mut().for_each(|(id, _)| *id = compacted.new_ids[*id as usize]);
        }
        let flushed = self.live.iter().map(|(key, (_, vector))| (key.clone(), vector.clone())).collect();
        self.expected = Expected { flushed, ..Expected::default() };
        let after = image::read(&self.path);
        let expected = self.expected.clone();
        self.check_image(after.clone(), &expected);
        after
    }
}

/// Copies are taken by another thread here, at any moment; `power_cut.rs` has the many.
fn power_cuts(name: &str, upserts: f64) {
    let mut rng = Rng::for_test(name);
    let (wanted, mut images) = (by_form(75, 3000), 0);
    while images < wanted {
        let mut run = PowerCuts::new(rng.fork());
        let mut synced = image::read(&run.path);
        for _ in 0..5 {
            synced = run.segment(&synced, 4, upserts);
        }
        images += run.images;
    }
    println!("{images} images");
}

#[test]
fn a_power_cut_takes_nothing_that_was_flushed() {
    power_cuts("a_power_cut_takes_nothing_that_was_flushed", 0.0);
}

#[test]
fn a_power_cut_leaves_an_upserted_key_one_of_its_values() {
    power_cuts("a_power_cut_leaves_an_upserted_key_one_of_its_values", 0.3);
}
