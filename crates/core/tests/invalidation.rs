//! A plane that was declared invalid stays so: after power cuts, recoveries and failing calls, and beside compactions.

#![cfg(unix)]

mod common;

use std::io;
use std::path::Path;
use std::sync::Arc;

use common::disk::Disk;
use common::{Rng, by_form, image};
use vecplane_core::testing;
use vecplane_core::{
    CompactOptions, CreateOptions, Error, Faults, OpenOptions, Plane, Step, invalidate_plane, stale_path,
};

const DIMS: usize = 8;

fn options() -> CreateOptions {
    CreateOptions { key_cap: 8, ef_construction: 24, ..CreateOptions::new(DIMS as u32) }
}

fn is_refused(path: &Path) -> bool {
    [false, true].into_iter().all(|read_only| {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        matches!(Plane::open(path, &options), Err(Error::Invalidated { .. }))
    })
}

fn insert(plane: &Plane, rng: &mut Rng, count: usize) {
    for i in 0..count {
        plane.insert(&rng.gaussian(DIMS), format!("{i}").as_bytes()).unwrap();
    }
}

#[test]
fn a_power_cut_after_the_call_leaves_the_plane_invalid() {
    let mut rng = Rng::for_test("power cuts");
    for round in 0..by_form(30, 1000) {
        let dir = image::evidence_dir();
        let path = dir.path().join("plane");
        drop(Plane::create(&path, &options()).unwrap());
        let disk = Disk::new(&path, rng.fork());
        let plane = testing::open(&path, &OpenOptions::default(), disk.faults()).unwrap();
        let count = rng.below(40);
        insert(&plane, &mut rng, count);
        if rng.chance(0.5) {
            plane.flush(Some(7)).unwrap();
        }
        plane.invalidate().unwrap();
        insert(&plane, &mut rng, 3);
        if rng.chance(0.5) {
            plane.flush(Some(9)).unwrap();
            insert(&plane, &mut rng, 3);
        }
        assert_eq!(plane.watermark().unwrap(), 0);
        let left = dir.path().join("left");
        for _ in 0..4 {
            let mut bytes = disk.crash().bytes;
            image::set_other_boot(&mut bytes);
            std::fs::write(&left, bytes).unwrap();
            assert!(is_refused(&left), "round {round}");
            // Nor does a recovery make it valid.
            let plane = testing::open(&left, &OpenOptions::default(), Arc::new(Failing(None))).unwrap();
            assert!(plane.is_invalidated().unwrap());
            assert_eq!(plane.watermark().unwrap(), 0);
            plane.flush(Some(11)).unwrap();
            drop(plane);
            assert!(is_refused(&left), "round {round}, recovered");
            std::fs::remove_file(&left).unwrap();
        }
    }
}

/// Lets every step of one kind fail.
struct Failing(Option<Step>);

impl Faults for Failing {
    fn before(&self, step: Step) -> io::Result<()> {
        if Some(step) == self.0 { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }
}

#[test]
fn a_mark_that_did_not_reach_the_disk_is_an_error() {
    let mut rng = Rng::for_test("failing syncs");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    drop(Plane::create(&path, &options()).unwrap());
    let plane = testing::open(&path, &OpenOptions::default(), Arc::new(Failing(Some(Step::Sync)))).unwrap();
    assert_eq!(plane.invalidate().unwrap_err().code(), "EIO");
    assert!(matches!(plane.insert(&rng.gaussian(DIMS), b"x"), Err(Error::SyncFailed)));
    // Neither the flag nor the sidecar can be synced.
    let error = plane.invalidate_file().unwrap_err();
    assert!(
        matches!(&error, Error::NotInvalidated { in_band, sidecar, .. } if in_band.contains("EIO") && sidecar.contains("EIO"))
    );
}

#[test]
fn a_plane_created_over_an_invalid_one_is_valid_once_its_sidecar_is_gone_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let over = CreateOptions { overwrite: true, ..options() };
    drop(Plane::create(&path, &options()).unwrap());
    // The sidecar alone: nothing in the old file says that it is invalid.
    std::fs::write(stale_path(&path), "").unwrap();
    for step in [Step::Rename, Step::Remove, Step::SyncDirectory] {
        assert!(testing::create(&path, &over, Arc::new(Failing(Some(step)))).is_err(), "{step:?}");
        assert!(is_refused(&path), "{step:?}");
    }
    testing::create(&path, &over, Arc::new(Failing(None))).unwrap();
    drop(Plane::open(&path, &OpenOptions::default()).unwrap());
}

#[test]
fn a_plane_invalidated_while_it_is_compacted_is_invalid_afterwards() {
    let mut rng = Rng::for_test("compaction");
    let ways: [fn(&Plane, &Path); 2] =
        [|plane, _| plane.invalidate().unwrap(), |_, path| drop(invalidate_plane(path).unwrap())];
    for way in ways {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plane");
        let plane = Plane::create(&path, &options()).unwrap();
        insert(&plane, &mut rng, 50);
        plane.flush(Some(7)).unwrap();
        let other = Plane::open(&path, &OpenOptions::default()).unwrap();
        plane
            .compact(&CompactOptions::default(), &|done, total| {
                if done == total {
                    way(&other, &path);
                }
                true
            })
            .unwrap();
        // What says so must be the new file.
        let _ = std::fs::remove_file(stale_path(&path));
        assert!(is_refused(&path));
        for plane in [&plane, &other] {
            assert!(plane.is_invalidated().unwrap());
            assert_eq!(plane.watermark().unwrap(), 0);
        }
        assert!(matches!(
            plane.compact(&CompactOptions::default(), &|_, _| true),
            Err(Error::Invalidated { .. })
        ));
    }
}

#[test]
fn a_handle_that_has_not_noticed_a_compaction_invalidates_the_new_file() {
    let mut rng = Rng::for_test("late handle");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &options()).unwrap();
    insert(&plane, &mut rng, 20);
    let late = Plane::open(&path, &OpenOptions::default()).unwrap();
    plane.compact(&CompactOptions::default(), &|_, _| true).unwrap();
    late.invalidate().unwrap();
    assert!(is_refused(&path));
    assert!(plane.is_invalidated().unwrap());
}
