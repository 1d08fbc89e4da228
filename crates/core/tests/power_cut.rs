//! Power cuts, by the thousand: a plane works on a simulated disk, the power goes at random moments, and what is left is
//! opened as another boot finds it. Then the same with faults planted in the engine, each of which must be caught.
//!
//! `VECPLANE_IMAGES` sets how many images are tried, `VECPLANE_SEED` where the random numbers start.

#![cfg(unix)]

mod common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::disk::{Crash, Disk};
use common::expected::{Expected, Vectors};
use common::{Rng, TagColumn, by_form, check_verified, image, key_ends, open, tags_of};
use vecplane_core::testing::{self, Planted};
use vecplane_core::{Batch, CompactOptions, CreateOptions, OpenOptions, Plane, Precision, Rerank, TagSet};

/// A plane at work on a disk, and the records that it has acknowledged.
struct Work {
    plane: Plane,
    path: PathBuf,
    disk: Disk,
    rng: Rng,
    live: Vectors,
    removed: Vec<Vec<u8>>,
    made: usize,
    flushes: u64,
    images: usize,
    _dir: image::Evidence,
}

fn options(rng: &mut Rng) -> CreateOptions {
    let (m, layer0_cap) = *rng.pick(&[(16, 32), (4, 8), (2, 4)]);
    let precision = *rng.pick(&[Precision::Int8, Precision::Int8, Precision::F16, Precision::F32]);
    CreateOptions {
        precision,
        // Bit for bit is what is promised of what keeps the caller's bits.
        rerank: Rerank::F32,
        m,
        layer0_cap,
        ef_construction: 24,
        key_cap: *rng.pick(&[1, 16]),
        unique_keys: true,
        ..CreateOptions::new(*rng.pick(&[3, 16, 16, 64, 400]))
    }
}

impl Work {
    fn new(mut rng: Rng) -> Self {
        let dir = image::evidence_dir();
        let path = dir.path().join("plane");
        let options = options(&mut rng);
        println!("{options:?}");
        testing::fix_random(Some(std::array::from_fn(|_| rng.next() as u8)));
        drop(Plane::create(&path, &options).unwrap());
        testing::fix_random(None);
        let disk = Disk::new(&path, rng.fork());
        let plane = testing::open(&path, &OpenOptions::default(), disk.faults()).unwrap();
        Work {
            plane,
            path,
            disk,
            rng,
            live: Vectors::new(),
            removed: Vec::new(),
            made: 0,
            flushes: 0,
            images: 0,
            _dir: dir,
        }
    }

    fn dims(&self) -> usize {
        self.plane.config().dims as usize
    }

    /// A new key: short ones of equal length, some that go to the heap, some that were in use before.
    fn key(&mut self) -> Vec<u8> {
        self.made += 1;
        if !self.removed.is_empty() && self.rng.chance(0.2) {
            let at = self.rng.below(self.removed.len());
            let key = self.removed.swap_remove(at);
            if !self.live.contains_key(&key) {
                return key;
            }
        }
        let mut key = format!("k{:05}", self.made).into_bytes();
        if self.rng.chance(0.15) {
            key.extend(std::iter::repeat_n(b'x', self.rng.range(60..=500)));
        }
        key
    }

    /// Announces that a key may come to have a vector.
    fn may_have(&self, key: &[u8], vector: &[f32]) {
        self.disk.expect(|it| it.since.entry(key.to_vec()).or_default().push(vector.to_vec()));
    }

    fn insert(&mut self) {
        let (key, vector) = (self.key(), self.rng.gaussian(self.dims()));
        self.may_have(&key, &vector);
        self.plane.insert_tagged(&vector, &key, &tags_of(&vector)).unwrap();
        self.live.insert(key, vector);
    }

    fn insert_batch(&mut self) {
        let count = self.rng.range(2..=8);
        let mut records = Vectors::new();
        for _ in 0..count {
            let (key, vector) = (self.key(), self.rng.gaussian(self.dims()));
            self.may_have(&key, &vector);
            records.insert(key, vector);
        }
        let keys: Vec<u8> = records.keys().flatten().copied().collect();
        let vectors: Vec<f32> = records.values().flatten().copied().collect();
        let batch = Batch { vectors: &vectors, keys: &keys, key_ends: &key_ends(records.keys()) };
        // On this thread, which is the one that is watched.
        let tags: Vec<TagSet> = records.values().map(|vector| tags_of(vector)).collect();
        let tags = TagColumn::new(&tags);
        let outcome = self.plane.insert_batch_tagged(batch, tags.as_tags(), 1, &|_| true).unwrap();
        assert!(outcome.fault.is_none() && outcome.rejected.is_empty(), "{outcome:?}");
        self.live.append(&mut records);
    }

    fn some_key(&mut self) -> Option<Vec<u8>> {
        let at = self.rng.below(self.live.len().max(1));
        self.live.keys().nth(at).cloned()
    }

    fn upsert(&mut self) {
        let Some(key) = self.some_key() else { return };
        let vector = self.rng.gaussian(self.dims());
        self.may_have(&key, &vector);
        self.plane.upsert_tagged(&key, &vector, &tags_of(&vector)).unwrap();
        self.live.insert(key, vector);
    }

    fn remove(&mut self) {
        let Some(key) = self.some_key() else { return };
        self.disk.expect(|it| {
            it.removed_since.insert(key.clone());
        });
        assert!(self.plane.remove_key(&key).unwrap());
        self.live.remove(&key);
        self.removed.push(key);
    }

    /// From one flush to the next, with the power going many times.
    fn segment(&mut self) {
        // Few live records keep an image small, and slots in use.
        let removals = if self.live.len() > 50 { 0.7 } else { *self.rng.pick(&[0.05, 0.3, 0.5]) };
        let upserts = *self.rng.pick(&[0.0, 0.1, 0.4]);
        self.disk.watch(0.02);
        for _ in 0..self.rng.range(3..=40) {
            match self.rng.unit() {
                x if x < removals => self.remove(),
                x if x < removals + upserts => self.upsert(),
                x if x > 0.97 => self.insert_batch(),
                _ => self.insert(),
            }
            if self.rng.chance(0.1) {
                self.disk.look();
            }
        }
        testing::unwatch();
        // Everything is right before any crash.
        check_verified(&self.plane);
        for _ in 0..5 {
            let crash = self.disk.crash();
            self.check(crash);
        }
        match self.rng.unit() {
            x if x < 0.2 => self.compact(),
            x if x > 0.9 => self.snapshot(),
            _ => {}
        }
        // The power goes in the middle of a flush as well. Until that has returned it has promised nothing new, but who finds
        // its watermark finds all that it speaks of.
        self.flushes += 1;
        let flushing = Some((self.flushes, self.live.clone()));
        self.disk.expect(|it| it.flushing = flushing);
        self.plane.flush(Some(self.flushes)).unwrap();
        for crash in self.disk.take_crashes() {
            self.check(crash);
        }
        let everything = self.everything();
        self.disk.expect(|it| *it = everything);
        if self.rng.chance(0.3) {
            let crash = self.disk.crash();
            self.check(crash);
        }
    }

    /// What has been acknowledged by now, as a flush would make it durable.
    fn everything(&self) -> Expected {
        Expected { flushed: self.live.clone(), ..Expected::default() }
    }

    /// The plane is written anew, and the power goes before the new file is in its place, while it gets there, and after.
    fn compact(&mut self) {
        self.disk.begin_copy(&self.path, self.everything());
        let (renumber, relink) = (self.rng.chance(0.3), self.rng.chance(0.3));
        let options = CompactOptions { renumber, relink, ..CompactOptions::default() };
        self.plane.compact(&options, &|_, _| true).unwrap();
        self.disk.end_copy();
        for crash in self.disk.take_crashes() {
            self.check(crash);
        }
        let everything = self.everything();
        self.disk.expect(|it| *it = everything);
        let crash = self.disk.crash();
        self.check(crash);
    }

    /// The plane is copied; neither it nor what is found at the copy's path may have suffered by a power cut.
    fn snapshot(&mut self) {
        let copy = self.path.with_file_name("copy");
        self.disk.begin_copy(&copy, self.everything());
        self.plane.snapshot(&copy, false, &|_, _| true).unwrap();
        let of_the_copy = self.disk.end_copy();
        std::fs::remove_file(&copy).unwrap();
        for crash in self.disk.take_crashes().into_iter().chain(of_the_copy) {
            self.check(crash);
        }
    }

    /// Opens what is left as another boot finds it. Sometimes the power goes again while it recovers.
    fn check(&mut self, mut crash: Crash) {
        self.images += 1;
        let path = self.path.with_file_name("image");
        let mut dirty = put(&path, &mut crash.bytes);
        if self.rng.chance(0.15) {
            let disk = Disk::holding(&path, crash.bytes.clone(), self.rng.fork());
            disk.watch(0.01);
            let recovered = testing::open(&path, &OpenOptions::default(), disk.faults()).unwrap();
            testing::unwatch();
            let mut crashes = disk.take_crashes();
            crashes.push(disk.crash());
            drop(recovered);
            let at = self.rng.below(crashes.len());
            dirty = put(&path, &mut crashes.swap_remove(at).bytes);
        }
        let plane = open(&path);
        // Before the first write there is nothing to recover.
        assert_eq!(plane.opened_clean(), !dirty);
        crash.expected.check(&plane);
        if self.rng.chance(0.2) {
            self.use_it(plane, &path, &crash.expected);
        }
    }

    /// A recovered plane works as any other.
    fn use_it(&mut self, plane: Plane, path: &Path, expected: &Expected) {
        let ids: Vec<u32> = (0..6)
            .map(|i| plane.insert(&self.rng.gaussian(self.dims()), format!("after {i}").as_bytes()).unwrap())
            .collect();
        ids.iter().for_each(|id| assert!(plane.remove(*id).unwrap()));
        plane.flush(None).unwrap();
        expected.check(&plane);
        drop(plane);
        let plane = open(path);
        assert!(plane.opened_clean());
        expected.check(&plane);
    }
}

/// Puts an image in place, as a machine that has started again finds it; tells whether it was being written.
fn put(path: &Path, bytes: &mut [u8]) -> bool {
    image::set_other_boot(bytes);
    // A file of its own each time: nothing of a plane that was open is taken for this one's.
    let _ = std::fs::remove_file(path);
    std::fs::write(path, &*bytes).unwrap();
    std::fs::write(path.with_extension("before"), &*bytes).unwrap();
    bytes[image::DIRTY] != 0
}

fn wanted(short: usize, long_form: usize) -> usize {
    let given = std::env::var("VECPLANE_IMAGES").ok().and_then(|text| text.trim().parse().ok());
    given.unwrap_or_else(|| by_form(short, long_form))
}

/// Has planes work until so many images have been checked; gives how many there were.
fn power_cuts(rng: &mut Rng, wanted: usize, counted: &AtomicUsize) {
    while counted.load(Ordering::Relaxed) < wanted {
        let mut work = Work::new(rng.fork());
        for _ in 0..8 {
            work.segment();
            counted.fetch_add(std::mem::take(&mut work.images), Ordering::Relaxed);
        }
    }
}

#[test]
fn a_power_cut_at_any_moment_takes_nothing_that_was_flushed() {
    let mut rng = Rng::for_test("a_power_cut_at_any_moment_takes_nothing_that_was_flushed");
    let (started, counted) = (std::time::Instant::now(), AtomicUsize::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (mut rng, counted) = (rng.fork(), &counted);
            scope.spawn(move || power_cuts(&mut rng, wanted(2000, 25_000), counted));
        }
    });
    println!("{} images in {:?}", counted.into_inner(), started.elapsed());
}

/// The same with a fault in the engine: some image must be found wrong.
fn expect_caught(fault: Planted) {
    // Many seeds, since the planes' own random numbers come on top; the first few images are enough, as it is.
    let mut rng = Rng::for_test(&format!("{fault:?}"));
    image::discard_evidence();
    let counted = AtomicUsize::new(0);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        // Each plane starts sound; then the fault is planted, and taken out by the end of this thread at the latest.
        testing::plant(Some(fault));
        power_cuts(&mut rng, 3000, &counted);
    }));
    testing::plant(None);
    testing::unwatch();
    assert!(caught.is_err(), "{fault:?} goes unseen in {counted:?} images");
    println!("{fault:?} is caught after {counted:?} images, see above");
}

#[test]
fn a_superblock_written_before_its_data_is_caught() {
    expect_caught(Planted::SuperblockFirst);
}

#[test]
fn a_missing_sync_of_the_slots_is_caught() {
    expect_caught(Planted::NotSynced(0));
}

#[test]
fn a_missing_sync_of_the_exact_copy_is_caught() {
    expect_caught(Planted::NotSynced(1));
}

#[test]
fn a_missing_sync_of_the_keys_is_caught() {
    expect_caught(Planted::NotSynced(2));
}

#[test]
fn a_missing_sync_of_the_heap_is_caught() {
    expect_caught(Planted::NotSynced(3));
}

#[test]
fn a_checksum_that_skips_the_key_is_caught() {
    expect_caught(Planted::ChecksumSkipsKey);
}

#[test]
fn a_new_file_in_its_place_before_it_is_synced_is_caught() {
    expect_caught(Planted::NewFileNotSynced);
}

#[test]
fn a_swap_whose_directory_is_not_synced_is_caught() {
    expect_caught(Planted::DirectoryNotSynced);
}

#[test]
fn an_identity_check_that_always_says_same_is_caught() {
    expect_caught(Planted::IdentityAlwaysSame);
}

/// Stops a process at the moments of its work: what is in the page cache then is what a kill leaves. `every_store.rs` does it
/// at every instruction, where it can.
fn kill_at_moments(rng: &mut Rng, wanted: usize) -> usize {
    let dir = image::evidence_dir();
    let (path, image_path) = (dir.path().join("plane"), dir.path().join("image"));
    let options = CreateOptions { key_cap: 16, unique_keys: true, m: 4, ..CreateOptions::new(16) };
    let plane = Plane::create(&path, &options).unwrap();
    let mut live = Vectors::new();
    let mut images = 0;
    for i in 0.. {
        if images >= wanted {
            break;
        }
        let vector = rng.gaussian(16);
        let (before, mut after) = (live.clone(), live.clone());
        let some = live.keys().nth(rng.below(live.len().max(1))).cloned();
        let copies = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let (into, from) = (std::sync::Arc::clone(&copies), path.clone());
        testing::watch(move || into.lock().unwrap().push(image::read(&from)));
        match (i % 4, some) {
            (1, Some(key)) => {
                plane.upsert_tagged(&key, &vector, &tags_of(&vector)).unwrap();
                after.insert(key, vector);
            }
            (2, Some(key)) => {
                assert!(plane.remove_key(&key).unwrap());
                after.remove(&key);
            }
            _ => {
                let key = format!("k{i}").into_bytes();
                plane.insert_tagged(&vector, &key, &tags_of(&vector)).unwrap();
                after.insert(key, vector);
            }
        }
        testing::unwatch();
        let copies = std::mem::take(&mut *copies.lock().unwrap());
        for copy in copies {
            images += 1;
            image::write_as_killed(&image_path, &copy);
            let killed = open(&image_path);
            check_verified(&killed);
            let ids = 0..killed.id_high_water().unwrap();
            let found: Vectors =
                ids.filter_map(|id| Some((killed.key(id).unwrap()?, killed.vector(id).unwrap()?))).collect();
            assert!(found == before || found == after, "neither before nor after");
        }
        live = after;
        if i % 16 == 15 {
            plane.flush(None).unwrap();
        }
    }
    images
}

#[test]
fn a_process_killed_at_any_moment_leaves_what_was_before_or_what_comes_after() {
    let mut rng = Rng::for_test("a_process_killed_at_any_moment_leaves_what_was_before_or_what_comes_after");
    println!("{} images", kill_at_moments(&mut rng, by_form(500, 20_000)));
}

#[test]
fn a_slot_called_live_before_its_record_is_caught() {
    let mut rng = Rng::for_test("a_slot_called_live_before_its_record_is_caught");
    image::discard_evidence();
    testing::plant(Some(Planted::LiveFirst));
    let caught = catch_unwind(AssertUnwindSafe(|| kill_at_moments(&mut rng, 500)));
    testing::plant(None);
    testing::unwatch();
    assert!(caught.is_err(), "goes unseen");
}

/// While a reader is at work, no slot that it may be looking at is given to another record.
fn reuse_under_a_reader() -> bool {
    let dir = image::evidence_dir();
    let plane = Plane::create(&dir.path().join("plane"), &CreateOptions::new(4)).unwrap();
    let mut rng = Rng::new(1);
    let ids: Vec<u32> = (0..20).map(|_| plane.insert(&rng.gaussian(4), b"").unwrap()).collect();
    let reader = testing::hold(&plane).unwrap();
    ids.iter().for_each(|id| assert!(plane.remove(*id).unwrap()));
    let given: Vec<u32> = (0..40).map(|_| plane.insert(&rng.gaussian(4), b"").unwrap()).collect();
    let reused = given.iter().any(|id| ids.contains(id));
    drop(reader);
    // Once it has gone, all of them are.
    let given: Vec<u32> = (0..20).map(|_| plane.insert(&rng.gaussian(4), b"").unwrap()).collect();
    assert!(reused || ids.iter().all(|id| given.contains(id)), "slots are lost: {given:?}");
    reused
}

#[test]
fn a_slot_is_reused_when_its_readers_have_left() {
    assert!(!reuse_under_a_reader(), "reused under a reader");
}

#[test]
fn a_slot_reused_before_its_readers_left_is_caught() {
    testing::plant(Some(Planted::SlotReusedEarly));
    let caught = reuse_under_a_reader();
    testing::plant(None);
    assert!(caught, "goes unseen");
}

/// The directory of a plane: its names, as a power cut leaves them.
struct Names {
    dir: PathBuf,
    /// Name and contents, as they were at the last sync of the directory.
    durable: std::sync::Mutex<BTreeMap<PathBuf, Vec<u8>>>,
}

fn names(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

impl vecplane_core::Faults for Names {
    fn before(&self, step: vecplane_core::Step) -> std::io::Result<()> {
        if step == vecplane_core::Step::SyncDirectory {
            *self.durable.lock().unwrap() = names(&self.dir);
        }
        Ok(())
    }
}

/// Creates a plane in the place of another; tells whether the new one is there after a power cut.
fn created_and_cut(overwrite: bool) -> bool {
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    let options = CreateOptions { overwrite, ..CreateOptions::new(4) };
    if overwrite {
        let old = Plane::create(&path, &options).unwrap();
        old.insert(&[1.0; 4], b"").unwrap();
        old.flush(None).unwrap();
    }
    let durable = std::sync::Mutex::new(names(dir.path()));
    let disk = std::sync::Arc::new(Names { dir: dir.path().to_path_buf(), durable });
    testing::create(&path, &options, disk.clone()).unwrap();
    match disk.durable.lock().unwrap().get(&path) {
        None => false,
        Some(bytes) => {
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, bytes).unwrap();
            open(&path).count().unwrap() == 0
        }
    }
}

#[test]
fn a_plane_that_was_created_is_there_after_a_power_cut() {
    assert!(created_and_cut(false) && created_and_cut(true));
}

#[test]
fn a_missing_sync_of_the_directory_is_caught() {
    testing::plant(Some(Planted::DirectoryNotSynced));
    let kept = [created_and_cut(false), created_and_cut(true)];
    testing::plant(None);
    assert_eq!(kept, [false, false], "goes unseen");
}
