//! Compaction: the same records in less room, handles that follow to the new file, and kills at any moment.

#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use common::child::{self, Running, argument, expect_done, spawn};
use common::journal::{
    self, busy_writer, check_against, open_patiently, options, read_logs, vector_of, writer,
};
use common::{Model, Rng, by_form, check_verified, image, open};
use vecplane_core::{
    CompactOptions, CreateOptions, Error, Faults, OpenOptions, Plane, SearchOptions, Step, testing,
};

/// `supersessions` in the shared-state page.
const SUPERSESSIONS: u64 = image::SHARED as u64 + 96;

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    let plane = open_patiently(Path::new(&argument(0)));
    match role.as_str() {
        "write" => journal::write_role(journal::ORDINARY, 1),
        "compact for ever" => loop {
            compact(&plane);
            std::fs::write(argument(1), b"once").unwrap();
        },
        "compact" => (0..argument(1).parse().unwrap()).for_each(|_| compact(&plane)),
        _ => panic!("no such role: {role}"),
    }
}

fn compact(plane: &Plane) {
    plane.compact(&CompactOptions::default(), &|_, _| true).unwrap();
}

fn renumber(plane: &Plane) -> Vec<u32> {
    plane
        .compact(&CompactOptions { renumber: true, ..CompactOptions::default() }, &|_, _| true)
        .unwrap()
        .new_ids
}

fn names(dir: &Path) -> BTreeSet<String> {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().ino()
}

/// A plane with records of all kinds, and its model.
fn planted(path: &Path, count: usize, rng: &mut Rng) -> (Plane, Model) {
    let options = CreateOptions { key_cap: 8, unique_keys: true, ..CreateOptions::new(32) };
    let plane = Plane::create(path, &options).unwrap();
    let mut model = Model::new(&options);
    for i in 0..count {
        let long = rng.chance(0.1);
        let key = format!("{i}{}", if long { "x".repeat(rng.below(300)) } else { String::new() });
        let vector = rng.vector(32);
        model.add(plane.insert(&vector, key.as_bytes()).unwrap(), &vector, key.as_bytes());
    }
    (plane, model)
}

fn remove(plane: &Plane, model: &mut Model, gone: impl Fn(u32) -> bool) {
    let ids: Vec<u32> = model.records.keys().copied().filter(|id| gone(*id)).collect();
    assert_eq!(plane.remove_batch(&ids, &|_| true).unwrap(), ids.len() as u64);
    model.records.retain(|id, _| !gone(*id));
}

/// The bound that the design sets on a file from which nothing was removed.
fn assert_as_big_as_its_data(plane: &Plane) {
    let stats = plane.stats().unwrap();
    let record = u64::from(stats.slot_bytes + stats.exact_bytes + stats.key_entry_bytes);
    let data = stats.count * record + stats.heap_bytes;
    let most = data + data / 4 + (4 << 20);
    assert!(stats.file_bytes <= most, "{} bytes for {data} of data", stats.file_bytes);
}

#[test]
fn a_plane_that_lost_nine_tenths_is_as_small_as_if_it_had_never_had_them() {
    let mut rng = Rng::for_test("a_plane_that_lost_nine_tenths_is_as_small_as_if_it_had_never_had_them");
    let dir = image::evidence_dir();
    for newest in [true, false] {
        let path = dir.path().join(format!("plane {newest}"));
        let (plane, mut model) = planted(&path, by_form(20_000, 100_000), &mut rng);
        let most = model.records.len() as u32;
        remove(&plane, &mut model, |id| if newest { id >= most / 10 } else { id % 10 != 3 });
        let before = std::fs::metadata(&path).unwrap().len();
        if newest {
            compact(&plane);
        } else {
            let new_ids = renumber(&plane);
            model.records =
                model.records.into_iter().map(|(id, record)| (new_ids[id as usize], record)).collect();
        }
        let after = std::fs::metadata(&path).unwrap().len();
        println!("newest {newest}: {before} bytes, then {after}");
        assert!(after < before / 4, "{before} bytes, then {after}");
        assert_as_big_as_its_data(&plane);
        model.check_plane(&plane);
        assert!(model.self_recall(&plane, &mut rng, 200) > 0.97);
        // And grows again like any other.
        for i in 0..500 {
            let vector = rng.vector(32);
            let key = format!("new {i}");
            model.add(plane.insert(&vector, key.as_bytes()).unwrap(), &vector, key.as_bytes());
        }
        model.check_plane(&plane);
        drop(plane);
        model.check_plane(&open(&path));
    }
}

/// With ids kept, the graph is what it was: every search takes the same way to the same answer.
#[test]
fn searches_answer_as_before() {
    let mut rng = Rng::for_test("searches_answer_as_before");
    let dir = image::evidence_dir();
    let (plane, mut model) = planted(&dir.path().join("plane"), 3000, &mut rng);
    remove(&plane, &mut model, |id| id % 3 == 1);
    plane.set_watermark(77).unwrap();
    let queries: Vec<Vec<f32>> = (0..200).map(|_| rng.vector(32)).collect();
    let ask = |plane: &Plane| -> Vec<(Vec<u32>, Vec<f32>)> {
        let few = SearchOptions { ef: Some(12), ..SearchOptions::new(10) };
        let hits = queries.iter().map(|query| plane.search(query, &few).unwrap());
        hits.map(|hits| (hits.ids, hits.distances)).collect()
    };
    let (before, entry) = (ask(&plane), plane.entry_point().unwrap());
    compact(&plane);
    assert_eq!(ask(&plane), before);
    assert_eq!(plane.entry_point().unwrap(), entry);
    assert_eq!(plane.watermark().unwrap(), 77, "a compaction is a flush as well");
    model.check_plane(&plane);
    let new_ids = renumber(&plane);
    let answers = ask(&plane);
    assert_eq!(new_ids.iter().filter(|id| **id != u32::MAX).count(), model.records.len());
    model.records = model.records.into_iter().map(|(id, record)| (new_ids[id as usize], record)).collect();
    model.check_plane(&plane);
    // Copies are told apart by their ids, so a walk may take another way now; but not to worse answers.
    let recall = |answers: &[(Vec<u32>, Vec<f32>)]| -> f64 {
        let of = |(query, (_, distances)): (&Vec<f32>, &(Vec<u32>, Vec<f32>))| {
            let exact = plane.search_exact(query, 10, None).unwrap().distances;
            distances.iter().filter(|distance| **distance <= exact[9]).count() as f64 / 10.0
        };
        queries.iter().zip(answers).map(of).sum::<f64>() / queries.len() as f64
    };
    let (old, new) = (recall(&before), recall(&answers));
    println!("recall {old} with the old ids, {new} with the new ones");
    assert!(new > old - 0.03 && new > 0.7, "recall {old}, then {new}");
}

#[test]
fn every_handle_follows_and_a_search_under_way_ends_where_it_began() {
    let mut rng = Rng::for_test("every_handle_follows_and_a_search_under_way_ends_where_it_began");
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    let (plane, mut model) = planted(&path, 2000, &mut rng);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (other, reader) = (open(&path), Plane::open(&path, &read_only).unwrap());
    let done = AtomicBool::new(false);
    let searches = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for handle in [&plane, &other, &reader] {
            let (mut rng, done, searches) = (rng.fork(), &done, &searches);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let hits = handle.search(&rng.vector(32), &SearchOptions::new(10)).unwrap();
                    assert_eq!(hits.len(), 10);
                    searches.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..by_form(20, 300) {
            let before = inode(&path);
            let vector = rng.vector(32);
            let key = format!("round {round}");
            // The other handle writes to whatever is at the path now.
            model.add(other.insert(&vector, key.as_bytes()).unwrap(), &vector, key.as_bytes());
            compact(&plane);
            assert_ne!(inode(&path), before);
            for handle in [&other, &reader] {
                assert!(handle.id_of(key.as_bytes()).unwrap().is_some());
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    println!("{} searches", searches.load(Ordering::Relaxed));
    for handle in [&plane, &other, &reader] {
        model.check_plane(handle);
    }
    assert!(matches!(reader.compact(&CompactOptions::default(), &|_, _| true), Err(Error::ReadOnly)));
    assert_eq!(names(dir.path()).len(), 1);
}

#[test]
fn writers_in_other_processes_lose_nothing_to_compactions() {
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let count = by_form("600", "20000");
    let writers = ["a", "b"].map(|name| writer("write", dir.path(), name, count));
    let plane = open_patiently(&path);
    let mut compactions = 0;
    let mut writers: Vec<_> = writers.into_iter().collect();
    while writers.iter_mut().any(Running::is_running) {
        compact(&plane);
        compactions += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    for (child, name) in writers.into_iter().zip(["a", "b"]) {
        expect_done(child, Duration::from_secs(100), &dir.path().join(format!("{name}.out")));
    }
    let logs = ["a.log", "b.log"].map(|name| dir.path().join(name));
    let live = check_against(&plane, &read_logs(&logs));
    println!("{compactions} compactions, {live} records");
    drop(plane);
    check_against(&open(&path), &read_logs(&logs));
}

#[test]
fn compactions_at_once_follow_one_another() {
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &options()).unwrap();
    let keys: Vec<String> = (0..300).map(|i| i.to_string()).collect();
    journal::insert_batch(&plane, &keys);
    let arguments = [path.to_str().unwrap(), by_form("10", "200")];
    let out = |i: usize| dir.path().join(format!("out{i}"));
    let children: Vec<_> = (0..2).map(|i| spawn("compact", &arguments, &out(i))).collect();
    let barrier = Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let own = open_patiently(&path);
                barrier.wait();
                (0..by_form(10, 200)).for_each(|_| compact(&own));
            });
        }
    });
    for (i, child) in children.into_iter().enumerate() {
        expect_done(child, Duration::from_secs(100), &out(i));
    }
    check_verified(&plane);
    for key in &keys {
        let id = plane.id_of(key.as_bytes()).unwrap().unwrap_or_else(|| panic!("lost: {key}"));
        assert_eq!(plane.vector(id).unwrap().unwrap(), vector_of(key));
    }
    assert!(names(dir.path()).iter().all(|name| !name.ends_with(".new")));
}

#[test]
fn a_killed_compaction_leaves_the_old_file_or_the_new_one() {
    let mut rng = Rng::for_test("a_killed_compaction_leaves_the_old_file_or_the_new_one");
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let steady = busy_writer("write", dir.path(), "steady");
    let old_handle = open_patiently(&path);
    let mut own = Vec::new();
    for round in 0..by_form(20, 300) {
        let mark = dir.path().join(format!("mark{round}"));
        let arguments = [path.to_str().unwrap(), mark.to_str().unwrap()];
        let out = dir.path().join("out");
        let victim = spawn("compact for ever", &arguments, &out);
        child::wait_until("a first compaction", Duration::from_secs(60), || mark.exists());
        std::thread::sleep(Duration::from_micros(rng.below(20_000) as u64));
        victim.kill();
        // A handle from long before, and one from now, see each other's records.
        let key = format!("own:{round}");
        old_handle.insert(&vector_of(&key), key.as_bytes()).unwrap();
        assert!(open_patiently(&path).id_of(key.as_bytes()).unwrap().is_some(), "{key} went elsewhere");
        own.push(key);
    }
    steady.kill();
    compact(&old_handle);
    let left: Vec<String> = names(dir.path()).into_iter().filter(|name| name.ends_with(".new")).collect();
    assert!(left.is_empty(), "the killed left {left:?}");
    for key in &own {
        let id = old_handle.id_of(key.as_bytes()).unwrap().unwrap_or_else(|| panic!("lost: {key}"));
        assert!(old_handle.remove(id).unwrap());
    }
    check_against(&old_handle, &read_logs(&[dir.path().join("steady.log")]));
    drop(old_handle);
    check_against(&open(&path), &read_logs(&[dir.path().join("steady.log")]));
}

fn begin_swap(path: &Path) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut word = [0; 4];
    file.read_exact_at(&mut word, SUPERSESSIONS).unwrap();
    let swaps = u32::from_le_bytes(word);
    assert_eq!(swaps % 2, 0, "no swap is under way");
    file.write_all_at(&(swaps + 1).to_le_bytes(), SUPERSESSIONS).unwrap();
}

/// What a compaction leaves that is killed between its mark and its rename: the old file, and handles that must go on.
#[test]
fn a_mark_without_a_swap_hinders_nobody() {
    let mut rng = Rng::for_test("a_mark_without_a_swap_hinders_nobody");
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    let (plane, mut model) = planted(&path, 300, &mut rng);
    let other = open(&path);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let reader = Plane::open(&path, &read_only).unwrap();
    begin_swap(&path);
    let late = open(&path);
    for handle in [&plane, &reader, &late] {
        model.check_plane(handle);
    }
    let vector = rng.vector(32);
    model.add(other.insert(&vector, b"after the mark").unwrap(), &vector, b"after the mark");
    for handle in [&plane, &other, &reader, &late] {
        model.check_plane(handle);
    }
    begin_swap(&path);
    compact(&late);
    let vector = rng.vector(32);
    model.add(plane.insert(&vector, b"after the swap").unwrap(), &vector, b"after the swap");
    for handle in [&plane, &other, &reader, &late, &open(&path)] {
        model.check_plane(handle);
    }
}

/// What one leaves that is killed between its rename and its second mark: the new file, which everyone must find.
#[test]
fn a_swap_that_nobody_announced_is_noticed() {
    let mut rng = Rng::for_test("a_swap_that_nobody_announced_is_noticed");
    let dir = image::evidence_dir();
    let (path, elsewhere) = (dir.path().join("plane"), dir.path().join("elsewhere"));
    for writes_first in [true, false] {
        let _ = std::fs::remove_file(&path);
        let (plane, mut model) = planted(&path, 300, &mut rng);
        let (other, options) = (open(&path), OpenOptions { read_only: true, ..OpenOptions::default() });
        let reader = Plane::open(&path, &options).unwrap();
        let compacted = CompactOptions { path: Some(elsewhere.clone()), ..CompactOptions::default() };
        plane.compact(&compacted, &|_, _| true).unwrap();
        begin_swap(&path);
        std::fs::rename(&elsewhere, &path).unwrap();
        let (first, second) = if writes_first { (&plane, &other) } else { (&other, &plane) };
        if !writes_first {
            model.check_plane(first);
        }
        let vector = rng.vector(32);
        model.add(second.insert(&vector, b"new").unwrap(), &vector, b"new");
        for handle in [&plane, &other, &reader, &open(&path)] {
            model.check_plane(handle);
        }
    }
}

#[test]
fn a_plane_created_over_a_compacted_one_is_another_plane() {
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &options()).unwrap();
    let idle = open(&path);
    journal::insert_batch(&plane, &["a".to_string()]);
    compact(&plane);
    let fresh = Plane::create(&path, &CreateOptions { overwrite: true, ..options() }).unwrap();
    for stale in [&plane, &idle] {
        assert!(matches!(stale.count(), Err(Error::Replaced { .. })), "{:?}", stale.count());
        let refused = stale.insert(&vector_of("b"), b"b");
        assert!(matches!(refused, Err(Error::Replaced { .. })), "{refused:?}");
    }
    assert_eq!(fresh.count().unwrap(), 0);
}

#[test]
fn names_and_permissions_stay() {
    let dir = image::evidence_dir();
    let (path, link, second) = (dir.path().join("plane"), dir.path().join("link"), dir.path().join("second"));
    let plane = Plane::create(&path, &options()).unwrap();
    journal::insert_batch(&plane, &["a".to_string()]);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    symlink("plane", &link).unwrap();
    let linked = open(&link);
    let before = inode(&path);
    compact(&linked);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_ne!(inode(&path), before, "what the link leads to is compacted");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    assert_eq!(plane.count().unwrap(), 1);

    std::fs::hard_link(&path, &second).unwrap();
    let (before, refused) = (inode(&path), plane.compact(&CompactOptions::default(), &|_, _| true));
    assert!(matches!(refused, Err(Error::Linked { names: 2, .. })), "{refused:?}");
    assert_eq!(inode(&path), before);
    std::fs::remove_file(&second).unwrap();
    compact(&plane);

    // Moved away, with another plane in its place: that one is none of this handle's business.
    std::fs::rename(&path, &second).unwrap();
    std::fs::copy(&second, &path).unwrap();
    let refused = plane.compact(&CompactOptions::default(), &|_, _| true);
    assert!(matches!(refused, Err(Error::Replaced { .. })), "{refused:?}");
    assert_eq!(linked.count().unwrap(), 1);
}

#[test]
fn what_fails_leaves_the_plane_and_its_directory_as_they_were() {
    let mut rng = Rng::for_test("what_fails_leaves_the_plane_and_its_directory_as_they_were");
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    let (plane, model) = planted(&path, 1500, &mut rng);
    plane.flush(None).unwrap();
    let (before, listed) = (image::read(&path), names(dir.path()));
    let to = |path: PathBuf| CompactOptions { path: Some(path), ..CompactOptions::default() };
    let code = |options: &CompactOptions| plane.compact(options, &|_, _| true).unwrap_err().code();
    assert_eq!(code(&to(dir.path().join("no/such/directory"))), "ENOENT");
    assert_eq!(code(&to(path.clone())), "ERR_INVALID_ARG_VALUE");
    assert_eq!(code(&to(dir.path().to_path_buf())), "EISDIR");
    std::fs::write(dir.path().join("taken"), b"something").unwrap();
    assert_eq!(code(&to(dir.path().join("taken"))), "PLANE_EXISTS");
    assert_eq!(std::fs::read(dir.path().join("taken")).unwrap(), b"something");
    std::fs::remove_file(dir.path().join("taken")).unwrap();
    for calls in 0..3 {
        for options in [CompactOptions::default(), to(dir.path().join("copy"))] {
            let left = AtomicUsize::new(calls);
            let go_on =
                |_, _| left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
            let aborted = plane.compact(&options, &go_on);
            assert!(matches!(aborted, Err(Error::Aborted)), "{aborted:?}");
        }
    }
    assert_eq!(names(dir.path()), listed);
    assert!(image::read(&path) == before, "the file changed");
    model.check_plane(&plane);
    drop(plane);
    // A record that is not what was written must not get a new checksum.
    let mut bytes = image::read(&path);
    let vector = model.records[&700].vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let at = bytes.windows(vector.len()).position(|part| part == vector).expect("the exact copy");
    bytes[at] ^= 1;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let plane = open(&path);
    let before = image::read(&path);
    let refused = plane.compact(&CompactOptions::default(), &|_, _| true);
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    assert_eq!(names(dir.path()), listed);
    assert!(image::read(&path) == before, "the file changed");
}

/// Records of more than 128 components have sketches, by which walks tell who is near.
#[test]
fn every_record_finds_itself_after_a_compaction_that_copied_its_sketch() {
    let mut rng = Rng::for_test("every_record_finds_itself_after_a_compaction_that_copied_its_sketch");
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &CreateOptions::new(150)).unwrap();
    let vectors: Vec<Vec<f32>> = (0..1_000).map(|_| rng.gaussian(150)).collect();
    for vector in &vectors {
        plane.insert(vector, b"").unwrap();
    }
    assert!(plane.remove(0).unwrap());
    for _ in 0..2 {
        for (id, vector) in vectors.iter().enumerate().skip(1) {
            let hits =
                plane.search(vector, &SearchOptions { ef: Some(32), ..SearchOptions::new(1) }).unwrap();
            assert_eq!((hits.ids[0] as usize, hits.distances[0] < 1e-5), (id, true));
        }
        plane.compact(&CompactOptions::default(), &|_, _| true).unwrap();
    }
    check_verified(&plane);
}

#[test]
fn an_empty_plane_and_a_full_one_are_compacted_like_any_other() {
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    let options = CreateOptions { max_nodes: Some(50), ..CreateOptions::new(4) };
    let plane = Plane::create(&path, &options).unwrap();
    let mut rng = Rng::new(5);
    for round in 0..3 {
        compact(&plane);
        assert!(renumber(&plane).iter().all(|id| *id == u32::MAX));
        assert_eq!((plane.count().unwrap(), plane.id_high_water().unwrap()), (0, 0));
        check_verified(&plane);
        let ids: Vec<u32> = (0..50).map(|_| plane.insert(&rng.gaussian(4), b"").unwrap()).collect();
        compact(&plane);
        assert!(matches!(plane.insert(&rng.gaussian(4), b""), Err(Error::Full { max_nodes: 50 })));
        assert!(plane.remove(ids[round]).unwrap());
        compact(&plane);
        assert_eq!(plane.insert(&rng.gaussian(4), b"").unwrap(), ids[round]);
        check_verified(&plane);
        assert_eq!(plane.remove_batch(&ids, &|_| true).unwrap(), 50);
    }
}

/// A file system of its own, of a few megabytes.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` where mounting is not allowed.
    fn mount(bytes: usize) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        let tmpfs = c"tmpfs".as_ptr();
        // SAFETY: all strings end with a NUL and outlive the call.
        let mounted = unsafe { libc::mount(tmpfs, path.as_ptr(), tmpfs, 0, options.as_ptr().cast()) };
        (mounted == 0).then_some(SmallDisk(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let path = std::ffi::CString::new(self.0.path().to_str().unwrap()).unwrap();
        // SAFETY: as above.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_full_disk_refuses_copies_and_compactions_and_harms_nothing() {
    let mut rng = Rng::for_test("a_full_disk_refuses_copies_and_compactions_and_harms_nothing");
    let Some(disk) = SmallDisk::mount(4 << 20) else {
        println!("skipped: mounting a small file system takes privileges that this process has not");
        return;
    };
    let path = disk.0.path().join("plane");
    let (plane, mut model) = planted(&path, 4000, &mut rng);
    // Another process takes all that is left.
    let (copy, filler) = (disk.0.path().join("copy"), disk.0.path().join("filler"));
    let full = std::fs::write(&filler, vec![1; 8 << 20]).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    let elsewhere = CompactOptions { path: Some(copy.clone()), ..CompactOptions::default() };
    let refusals = [
        plane.snapshot(&copy, false, &|_, _| true).unwrap_err(),
        plane.compact(&elsewhere, &|_, _| true).unwrap_err(),
        plane.compact(&CompactOptions::default(), &|_, _| true).unwrap_err(),
    ];
    assert_eq!(refusals.map(|error| error.code()), ["ENOSPC"; 3]);
    assert_eq!(names(disk.0.path()), BTreeSet::from(["filler".to_string(), "plane".to_string()]));
    model.check_plane(&plane);
    std::fs::remove_file(&filler).unwrap();
    remove(&plane, &mut model, |id| id >= 400);
    compact(&plane);
    plane.snapshot(&copy, false, &|_, _| true).unwrap();
    model.check_plane(&plane);
    model.check_plane(&open(&copy));
}

/// Lets the n-th system call from now on fail, whatever it is.
#[derive(Default)]
struct FailNext {
    left: AtomicUsize,
    failed: Mutex<Option<Step>>,
    /// Syncs of a directory so far.
    directories: AtomicUsize,
}

impl Faults for FailNext {
    fn before(&self, step: Step) -> io::Result<()> {
        self.directories.fetch_add(usize::from(step == Step::SyncDirectory), Ordering::SeqCst);
        let last = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, last) == Ok(1) {
            *self.failed.lock().unwrap() = Some(step);
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }
}

#[test]
fn a_call_that_fails_spoils_neither_the_plane_nor_its_directory() {
    let mut rng = Rng::for_test("a_call_that_fails_spoils_neither_the_plane_nor_its_directory");
    let dir = image::evidence_dir();
    let (path, copy) = (dir.path().join("plane"), dir.path().join("copy"));
    let elsewhere = CompactOptions { path: Some(copy.clone()), ..CompactOptions::default() };
    for what in ["snapshot", "compact to a path", "compact"] {
        for n in 1.. {
            let _ = (std::fs::remove_file(&path), std::fs::remove_file(&copy));
            let (plane, mut model) = planted(&path, 60, &mut rng);
            drop(plane);
            let plan = Arc::new(FailNext::default());
            let faults = Arc::clone(&plan) as Arc<dyn Faults>;
            let plane = testing::open(&path, &OpenOptions::default(), faults).unwrap();
            plan.left.store(n, Ordering::SeqCst);
            let done = match what {
                "snapshot" => plane.snapshot(&copy, false, &|_, _| true),
                "compact to a path" => plane.compact(&elsewhere, &|_, _| true).map(drop),
                _ => plane.compact(&CompactOptions::default(), &|_, _| true).map(drop),
            };
            plan.left.store(0, Ordering::SeqCst);
            let failed = *plan.failed.lock().unwrap();
            if let Err(error) = &done {
                assert!(failed.is_some() && error.code() == "EIO", "{what}: {error}");
            }
            model.check_plane(&plane);
            assert!(names(dir.path()).iter().all(|name| !name.ends_with(".new")), "{what}: {failed:?}");
            // What is at a path is whole, also when its name could not be made durable.
            if copy.exists() {
                model.check_plane(&open(&copy));
            }
            let vector = rng.vector(32);
            model.add(plane.insert(&vector, b"after").unwrap(), &vector, b"after");
            // A name that could not be made durable is made so before anything is written under it.
            let unsure = what == "compact" && failed == Some(Step::SyncDirectory);
            assert!(!unsure || plan.directories.load(Ordering::SeqCst) == 2, "the directory is synced again");
            drop(plane);
            model.check_plane(&open(&path));
            if failed.is_none() {
                println!("{what}: {} calls", n - 1);
                break;
            }
        }
    }
}
