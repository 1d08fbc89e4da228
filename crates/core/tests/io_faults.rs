//! System calls that fail, and threads that panic, at every point of a plane's life: each gives an error with a code,
//! takes nothing that was acknowledged, and holds nobody up.

#![cfg(unix)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Model, Rng, bits, check_verified, image, key_ends, open};
use vecplane_core::{
    Batch, CreateOptions, Error, Faults, OpenOptions, Plane, Rerank, Result, SearchOptions, Step, testing,
};

/// So long that a few records fill an extent.
const DIMS: usize = 500;

fn options() -> CreateOptions {
    CreateOptions {
        m: 4,
        layer0_cap: 8,
        ef_construction: 16,
        key_cap: 16,
        unique_keys: true,
        overwrite: true,
        lock_timeout: Duration::from_millis(500),
        ..CreateOptions::new(DIMS as u32)
    }
}

/// Lets the n-th call of some kind fail, or that one and all after it.
struct Plan {
    kind: Kind,
    n: usize,
    for_good: bool,
    calls: AtomicUsize,
    failed: Mutex<Vec<Step>>,
}

impl Plan {
    fn new(kind: Kind, n: usize, for_good: bool) -> Arc<Self> {
        Arc::new(Plan { kind, n, for_good, calls: AtomicUsize::new(0), failed: Mutex::default() })
    }

    fn failed(&self) -> Vec<Step> {
        self.failed.lock().unwrap().clone()
    }
}

impl Faults for Plan {
    fn before(&self, step: Step) -> io::Result<()> {
        if !(self.kind)(step) {
            return Ok(());
        }
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if call == self.n || self.for_good && call > self.n {
            self.failed.lock().unwrap().push(step);
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }
}

/// Which calls may fail.
type Kind = fn(Step) -> bool;

const KINDS: [(&str, Kind); 10] = [
    ("allocation", |step| step == Step::Allocate),
    ("map", |step| step == Step::Map),
    ("sync", |step| step == Step::Sync),
    ("handing over", |step| matches!(step, Step::HandOver(_))),
    ("sync of a directory", |step| step == Step::SyncDirectory),
    ("superblock write", |step| step == Step::WriteHeader),
    ("header read", |step| step == Step::ReadHeader),
    ("rename", |step| step == Step::Rename),
    ("lock", |step| step == Step::Lock),
    ("call of any kind", |_| true),
];

/// What a plane is put through, with what it must hold.
struct Life {
    path: PathBuf,
    plan: Arc<Plan>,
    rng: Rng,
    /// By key: acknowledged.
    live: BTreeMap<String, Vec<f32>>,
    /// Removed since the last flush: a scan may find what a removed record had replaced.
    removed: BTreeSet<String>,
    made: usize,
}

impl Life {
    fn patient(&self) -> bool {
        !self.plan.for_good
    }

    /// Makes a call; one more time when it fails, since only one call does.
    fn insist<T>(&mut self, what: &str, call: impl Fn(&Self) -> Result<T>) -> Option<T> {
        for _ in 0..2 {
            match call(self) {
                Ok(value) => return Some(value),
                Err(error) => self.expect_error(what, &error),
            }
        }
        assert!(!self.patient(), "{what} fails again");
        None
    }

    fn expect_error(&self, what: &str, error: &Error) {
        assert!(!self.plan.failed().is_empty(), "{what} fails without a reason: {error}");
        assert!(matches!(error.code(), "EIO" | "PLANE_SYNC_FAILED"), "{what}: {} {error}", error.code());
    }

    fn open(&mut self) -> Option<Plane> {
        let options = OpenOptions { lock_timeout: Duration::from_millis(500), ..OpenOptions::default() };
        self.insist("open", |life| {
            testing::open(&life.path, &options, Arc::clone(&life.plan) as Arc<dyn Faults>)
        })
    }

    /// Everything acknowledged is there, and only that; `unsure` may be there or not.
    fn check(&self, plane: &Plane, unsure: Option<&str>) {
        check_verified(plane);
        let mut found = 0;
        for (key, vector) in &self.live {
            let there = plane.get(key.as_bytes()).unwrap();
            assert!(there.is_some() || unsure == Some(key), "lost: {key}");
            if let Some((_, there)) = there {
                found += 1;
                assert!(bits(&there) == bits(vector) || unsure == Some(key), "{key} has another vector");
            }
        }
        let new = unsure.is_some_and(|key| {
            !self.live.contains_key(key) && plane.id_of(key.as_bytes()).unwrap().is_some()
        });
        assert_eq!(plane.count().unwrap(), found + u64::from(new), "count");
        let query = vec![1.0; DIMS];
        let hits = plane.search(&query, &SearchOptions::new(10)).unwrap();
        assert_eq!(hits.len() as u64, 10.min(plane.count().unwrap()));
    }

    /// The same for a plane that was opened after a failed sync: removals that were not flushed may be undone.
    fn check_opened(&mut self, plane: &Plane) {
        if !plane.opened_clean() {
            for key in std::mem::take(&mut self.removed) {
                if let Some((_, vector)) = plane.get(key.as_bytes()).unwrap() {
                    self.live.entry(key).or_insert(vector);
                }
            }
        }
        self.check(plane, None);
    }

    /// One write; `key` is what it changes, to `vector` or to nothing. False when the plane must be opened again.
    fn write(
        &mut self,
        plane: &Plane,
        key: &str,
        vector: Option<Vec<f32>>,
        call: impl Fn(&Plane) -> Result<()>,
    ) -> bool {
        for _ in 0..2 {
            let error = match call(plane) {
                Ok(()) => {
                    match vector {
                        Some(vector) => self.live.insert(key.to_string(), vector),
                        None => {
                            self.removed.insert(key.to_string());
                            self.live.remove(key)
                        }
                    };
                    return true;
                }
                Err(error) => error,
            };
            self.expect_error(key, &error);
            if self.is_stopped(&error) {
                self.check(plane, Some(key));
                return self.expect_stopped(plane);
            }
            // A refusal: nothing has changed.
            self.check(plane, None);
        }
        assert!(!self.patient(), "writing {key} fails again");
        true
    }

    fn is_stopped(&self, error: &Error) -> bool {
        let last = self.plan.failed().last().copied();
        matches!(error, Error::SyncFailed)
            || matches!(last, Some(Step::Sync | Step::HandOver(_) | Step::WriteHeader))
    }

    /// After a failed sync no write goes on, in whatever form, and every read does.
    fn expect_stopped(&self, plane: &Plane) -> bool {
        let vector = vec![1.0; DIMS];
        let batch = Batch { vectors: &vector, keys: b"no", key_ends: &[2] };
        let outcome = plane.insert_batch(batch, 1, &|_| true).map(|outcome| outcome.fault);
        let batch_error = match outcome {
            Ok(fault) => fault.expect("a batch is refused"),
            Err(error) => error,
        };
        for (what, error) in [
            ("insert", plane.insert(&vector, b"no").err()),
            ("insert_batch", Some(batch_error)),
            ("upsert", plane.upsert(b"no", &vector).err()),
            ("remove", plane.remove(0).err()),
            ("remove_key", plane.remove_key(b"0").err()),
            ("flush", plane.flush(None).err()),
            ("set_watermark", plane.set_watermark(1).err()),
        ] {
            let code = error.map(|error| error.code());
            assert_eq!(code, Some("PLANE_SYNC_FAILED"), "{what} after a failed sync");
        }
        false
    }

    fn key(&mut self) -> String {
        self.made += 1;
        match self.made % 5 {
            0 => format!("{} {}", self.made, "long".repeat(40)),
            _ => self.made.to_string(),
        }
    }

    /// Inserts, replaces, removes, flushes; false when the plane must be opened again first.
    fn work(&mut self, plane: &Plane, rounds: usize) -> bool {
        for round in 0..rounds {
            let (key, vector) = (self.key(), self.rng.gaussian(DIMS));
            let inserted = vector.clone();
            let id = key.clone();
            let mut going = self.write(plane, &key, Some(vector), move |plane| {
                plane.insert(&inserted, id.as_bytes()).map(drop)
            });
            let some = self.live.keys().nth(self.rng.below(self.live.len().max(1))).cloned();
            if let Some(key) = some.filter(|_| going) {
                going = if round % 3 == 0 {
                    let name = key.clone();
                    self.write(plane, &key, None, move |plane| plane.remove_key(name.as_bytes()).map(drop))
                } else {
                    let vector = self.rng.gaussian(DIMS);
                    let (name, upserted) = (key.clone(), vector.clone());
                    self.write(plane, &key, Some(vector), move |plane| {
                        plane.upsert(name.as_bytes(), &upserted).map(drop)
                    })
                };
            }
            if going && round % 8 == 7 {
                going = self.batch(plane);
            }
            if going && round % 10 == 9 {
                going = self.flush(plane, round as u64);
            }
            if !going {
                return false;
            }
        }
        true
    }

    /// Flushes, unless a call fails for another reason than the disk; false when the plane must be opened again.
    fn flush(&mut self, plane: &Plane, watermark: u64) -> bool {
        for _ in 0..2 {
            match plane.flush(Some(watermark)) {
                Ok(()) => {
                    self.removed.clear();
                    return true;
                }
                Err(error) => {
                    self.expect_error("flush", &error);
                    self.check(plane, None);
                    if self.is_stopped(&error) {
                        return self.expect_stopped(plane);
                    }
                }
            }
        }
        assert!(!self.patient(), "a flush fails again");
        true
    }

    /// Three records at once: those with an id have landed.
    fn batch(&mut self, plane: &Plane) -> bool {
        let keys: Vec<String> = (0..3).map(|_| self.key()).collect();
        let vectors: Vec<Vec<f32>> = (0..3).map(|_| self.rng.gaussian(DIMS)).collect();
        let ends = key_ends(&keys);
        let joined = keys.concat();
        let batch = Batch { vectors: &vectors.concat(), keys: joined.as_bytes(), key_ends: &ends };
        let outcome = match plane.insert_batch(batch, 1, &|_| true) {
            Ok(outcome) => outcome,
            Err(error) => {
                self.expect_error("batch", &error);
                return !self.is_stopped(&error) || self.expect_stopped(plane);
            }
        };
        for (i, key) in keys.into_iter().enumerate() {
            if outcome.ids[i] != u32::MAX {
                self.live.insert(key, vectors[i].clone());
            }
        }
        let Some(fault) = outcome.fault else { return true };
        self.expect_error("batch", &fault);
        self.check(plane, None);
        !self.is_stopped(&fault) || self.expect_stopped(plane)
    }

    /// From creation to the last close. The plane is opened anew whenever it says that it must be, and after a crash of the
    /// machine.
    fn live(&mut self) {
        let made = self.insist("create", |life| {
            testing::create(&life.path, &options(), Arc::clone(&life.plan) as Arc<dyn Faults>)
        });
        if made.is_none() {
            return;
        }
        for stage in 0..3 {
            let Some(plane) = self.open() else { return };
            self.check_opened(&plane);
            let mut going = self.work(&plane, 22);
            if going && stage == 1 {
                // What was not flushed may be gone after a crash of the machine, removals among it.
                going = self.flush(&plane, 100);
            }
            self.check(&plane, None);
            drop(plane);
            if !going {
                let Some(plane) = self.open() else { return };
                assert!(!self.patient() || !plane.opened_clean(), "a failed sync is recovered from");
                self.check_opened(&plane);
                self.work(&plane, 5);
            } else if stage == 1 {
                image::crash_machine(&self.path);
            }
        }
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let plane = self.insist("open read-only", |life| {
            testing::open(&life.path, &options, Arc::clone(&life.plan) as Arc<dyn Faults>)
        });
        plane.inspect(|plane| self.check_opened(plane));
    }
}

/// Runs a life on a thread of its own, so that one that stands still is seen.
fn within_reason(what: String, run: impl FnOnce() + Send + 'static) {
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _ended = ended;
        run();
    });
    match end.recv_timeout(Duration::from_secs(120)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what}: stands still"),
        _ => thread.join().unwrap_or_else(|_| panic!("{what}: see above")),
    }
}

fn fail_every_call(for_good: bool) {
    let dir = image::evidence_dir();
    let mut runs = 0;
    for (name, kind) in KINDS {
        // One after the other at first, then in growing steps where there are many.
        let (mut n, mut step) = (1, 1);
        loop {
            let path = dir.path().join("plane");
            let _ = std::fs::remove_file(&path);
            let plan = Plan::new(kind, n, for_good);
            let mut life = Life {
                path: path.clone(),
                plan: Arc::clone(&plan),
                rng: Rng::new(n as u64),
                live: BTreeMap::new(),
                removed: BTreeSet::new(),
                made: 0,
            };
            within_reason(format!("{name} {n} fails"), move || {
                life.live();
                // Whatever became of the disk, the next start finds everything: the page cache has it.
                if life.path.exists() {
                    life.check_opened(&open(&life.path));
                }
            });
            runs += 1;
            if plan.failed().is_empty() {
                break;
            }
            if common::long() {
                n += 1;
            } else {
                step += usize::from(n >= 40);
                n += step;
            }
        }
        println!("{name}: {n} calls at least");
    }
    println!("{runs} runs, failing {}", if for_good { "for good" } else { "once" });
}

#[test]
fn any_call_that_fails_once_gives_an_error_and_takes_nothing() {
    fail_every_call(false);
}

#[test]
fn a_disk_that_fails_for_good_takes_nothing_that_was_acknowledged() {
    fail_every_call(true);
}

/// A panic in a writing thread is a dead writer: what it announced is repaired before the next write.
#[test]
fn a_thread_that_panics_while_it_writes_is_repaired_after() {
    let mut rng = Rng::for_test("a_thread_that_panics_while_it_writes_is_repaired_after");
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    let options = CreateOptions { rerank: Rerank::F32, ..CreateOptions { dims: 8, ..options() } };
    let plane = Plane::create(&path, &options).unwrap();
    let mut model = Model::new(&options);
    for i in 0..12 {
        let vector = rng.gaussian(8);
        let id = plane.insert(&vector, i.to_string().as_bytes()).unwrap();
        model.add(id, &vector, i.to_string().as_bytes());
    }
    let mut panics = 0;
    // The second panic, if any, comes while the first is repaired.
    for again in [None, Some(1), Some(3)] {
        for what in ["insert", "long key", "remove", "upsert", "batch"] {
            for n in 1.. {
                let key = match what {
                    "long key" => format!("{again:?} {what} {n} {}", "x".repeat(300)),
                    _ => format!("{again:?} {what} {n}"),
                };
                for i in model.records.len()..8 {
                    let (vector, key) = (rng.gaussian(8), format!("{again:?} {what} {n} {i}"));
                    let id = plane.insert(&vector, key.as_bytes()).unwrap();
                    model.add(id, &vector, key.as_bytes());
                }
                let vector = rng.gaussian(8);
                let old = model.some_id(&mut rng).unwrap();
                let old_key = model.records[&old].key.clone();
                let before = plane.count().unwrap();
                panic_at(n);
                let panicked = catch_unwind(AssertUnwindSafe(|| match what {
                    "remove" => plane.remove(old).map(drop).unwrap(),
                    "upsert" => plane.upsert(&old_key, &vector).map(drop).unwrap(),
                    "batch" => {
                        let ends = [key.len() as u32];
                        let batch = Batch { vectors: &vector, keys: key.as_bytes(), key_ends: &ends };
                        assert!(plane.insert_batch(batch, 1, &|_| true).unwrap().fault.is_none());
                    }
                    _ => plane.insert(&vector, key.as_bytes()).map(drop).unwrap(),
                }))
                .is_err();
                testing::unwatch();
                if let Some(again) = again.filter(|_| panicked) {
                    panic_at(again);
                    let _ = catch_unwind(AssertUnwindSafe(|| plane.set_watermark(1)));
                    testing::unwatch();
                }
                // The next write, whichever it is, finds everything in order.
                plane.set_watermark(n as u64).unwrap();
                match what {
                    "remove" => {
                        if plane.key(old).unwrap().is_none() {
                            model.records.remove(&old);
                        }
                    }
                    _ => {
                        let key = if what == "upsert" { old_key } else { key.into_bytes() };
                        let id = plane.id_of(&key).unwrap();
                        assert!(what != "upsert" || id.is_some(), "the key is lost");
                        if what == "upsert" && id != Some(old) {
                            model.records.remove(&old);
                        }
                        if let Some(id) = id.filter(|id| !model.records.contains_key(id)) {
                            model.add(id, &vector, &key);
                        }
                    }
                }
                assert!(plane.count().unwrap().abs_diff(before) <= 1);
                check_model(&model, &plane);
                if !panicked {
                    break;
                }
                panics += 1;
                // So that the plane stays small and its slots are used again.
                while model.records.len() > 14 {
                    let id = model.some_id(&mut rng).unwrap();
                    assert!(plane.remove(id).unwrap());
                    model.records.remove(&id);
                }
                if n % 7 == 0 {
                    plane.flush(None).unwrap();
                }
            }
        }
    }
    println!("{panics} panics");
    assert!(panics > 100, "{panics} panics");
    drop(plane);
    check_model(&model, &open(&path));
}

/// Slots that wait for the next commit count as neither free nor in limbo, so those are left out of the sum.
fn check_model(model: &Model, plane: &Plane) {
    check_verified(plane);
    assert_eq!(plane.count().unwrap(), model.records.len() as u64);
    for id in 0..plane.id_high_water().unwrap() {
        model.check_record(plane, id);
    }
}

/// Panics at the n-th change that this thread makes.
fn panic_at(n: usize) {
    let mut left = n;
    testing::watch(move || {
        left -= usize::from(left > 0);
        if left == 0 {
            panic!("planted");
        }
    });
}

/// What stands at a path after `create` failed or was cut off is the plane from before, or the new one.
#[test]
fn a_create_that_fails_leaves_the_plane_that_was_there() {
    let dir = image::evidence_dir();
    let path = dir.path().join("plane");
    for n in 1.. {
        let _ = std::fs::remove_file(&path);
        let old = Plane::create(&path, &options()).unwrap();
        old.insert(&vec![1.0; DIMS], b"old").unwrap();
        let plan = Plan::new(|_| true, n, false);
        let made = testing::create(&path, &options(), Arc::clone(&plan) as Arc<dyn Faults>);
        let there = open(&path).count().unwrap();
        // Nobody goes on writing to a plane that is not at its path any more.
        let stale = matches!(old.insert(&vec![1.0; DIMS], b"new"), Err(Error::Replaced { .. }));
        assert_eq!(stale, there == 0, "after {:?}", plan.failed());
        if let Err(error) = &made {
            assert_eq!(error.code(), "EIO", "{error}");
            // Once the name is there, a directory that cannot be synced makes no difference to who looks.
            let renamed = plan.failed() == [Step::SyncDirectory];
            assert_eq!(there, u64::from(!renamed), "after {:?}", plan.failed());
        } else {
            assert_eq!(there, 0);
        }
        assert_eq!(leftovers(dir.path()), Vec::<PathBuf>::new(), "after {:?}", plan.failed());
        if plan.failed().is_empty() {
            break;
        }
    }
}

fn leftovers(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "new")).collect()
}
