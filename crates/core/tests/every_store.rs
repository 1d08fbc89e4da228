//! A process may die between any two instructions. Here one is stepped through its work instruction by instruction, and
//! each time that a byte of the file has changed, what a kill at that moment would leave is opened and checked.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::child::{self, Running, argument, spawn};
use common::{Rng, by_form, check_verified, image, open, tags_of};
use vecplane_core::{CreateOptions, Plane, Precision};

const DIMS: usize = 4;

/// What a child does to a plane, step by step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Insert(u32),
    /// With a key that goes to the heap.
    InsertLong(u32),
    Remove(u32),
    Upsert(u32),
    Flush,
}
use Step::*;

fn key_of(step: Step) -> Vec<u8> {
    match step {
        InsertLong(n) => format!("{n} {}", "long".repeat(30)).into_bytes(),
        Insert(n) | Remove(n) | Upsert(n) => n.to_string().into_bytes(),
        Flush => Vec::new(),
    }
}

fn vector_of(n: u32, version: u32) -> Vec<f32> {
    Rng::new(u64::from(n) << 32 | u64::from(version)).gaussian(DIMS)
}

/// The steps that are looked at, by script; `prepare` is done before, at full speed.
struct Script {
    name: &'static str,
    prepare: Vec<Step>,
    steps: Vec<Step>,
}

fn scripts() -> Vec<Script> {
    let inserts = |range: std::ops::Range<u32>| range.map(Insert).collect::<Vec<_>>();
    let then = |mut first: Vec<Step>, rest: &[Step]| {
        first.extend(rest);
        first
    };
    // Instructions are many: the short form keeps one step of each kind.
    let steps = |short: &[Step], rest: &[Step]| then(short.to_vec(), by_form(&[][..], rest));
    vec![
        Script {
            name: "the first records, and none again",
            prepare: then(inserts(0..1), &[Remove(0)]),
            steps: vec![Insert(1), Insert(2), Remove(1), Remove(2), Insert(3), Remove(3)],
        },
        Script {
            name: "new slots, used slots, long keys",
            prepare: then(inserts(0..8), &[Remove(3), Remove(5)]),
            steps: steps(&[Insert(20), InsertLong(21)], &[Insert(22), Remove(20), InsertLong(23), Flush]),
        },
        Script {
            name: "removals, the root and the entry point among them",
            prepare: inserts(0..12),
            steps: steps(&[Remove(0), Remove(7)], &[Remove(1), Remove(2), Remove(11), Remove(3)]),
        },
        Script {
            name: "upserts",
            prepare: then(inserts(0..6), &[Flush]),
            steps: steps(
                &[Upsert(2), Upsert(30), Flush, Upsert(1)],
                &[Upsert(2), Upsert(0), Upsert(1), Flush, Upsert(1), Remove(2)],
            ),
        },
        Script {
            name: "growth",
            // 512 slots of 128 bytes fill the first extent.
            prepare: inserts(0..512),
            steps: steps(&[Insert(512)], &(513..530).map(Insert).collect::<Vec<_>>()),
        },
    ]
}

/// Key and vector of each record.
type Records = BTreeMap<Vec<u8>, Vec<f32>>;

/// What each step leaves.
fn play(records: &mut Records, versions: &mut BTreeMap<u32, u32>, step: Step) {
    match step {
        Insert(n) | InsertLong(n) => {
            records.insert(key_of(step), vector_of(n, 0));
        }
        Upsert(n) => {
            let version = versions.entry(n).or_default();
            *version += 1;
            records.insert(key_of(step), vector_of(n, *version));
        }
        Remove(_) => {
            records.remove(&key_of(step));
        }
        Flush => {}
    }
}

fn work(plane: &Plane, versions: &mut BTreeMap<u32, u32>, step: Step) {
    match step {
        Insert(n) | InsertLong(n) => {
            let vector = vector_of(n, 0);
            plane.insert_tagged(&vector, &key_of(step), &tags_of(&vector)).unwrap();
        }
        Upsert(n) => {
            let version = versions.entry(n).or_default();
            *version += 1;
            let vector = vector_of(n, *version);
            plane.upsert_tagged(&key_of(step), &vector, &tags_of(&vector)).unwrap();
        }
        Remove(_) => {
            let id = plane.id_of(&key_of(step)).unwrap().expect("a record to remove");
            assert!(plane.remove(id).unwrap());
        }
        Flush => plane.flush(None).unwrap(),
    }
}

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    let script = scripts().into_iter().find(|script| script.name == role).unwrap();
    let plane = open(Path::new(&argument(0)));
    let mut versions = BTreeMap::new();
    script.prepare.iter().for_each(|step| work(&plane, &mut versions, *step));
    // Only this thread is traced: the parent steps it from the first stop to the second.
    // SAFETY: a system call without arguments.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    // SAFETY: a system call without pointers.
    if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } != 0 {
        std::fs::write(argument(1), "refused").unwrap();
        return;
    }
    std::fs::write(argument(1), format!("{thread}.")).unwrap();
    for step in script.steps {
        stop();
        work(&plane, &mut versions, step);
    }
    stop();
}

fn stop() {
    // SAFETY: raises a signal, which the tracer waits for.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// A stepped thread of a child.
struct Traced {
    thread: i32,
    child: Running,
}

/// The kernel keeps a traced thread for its tracer, and its process with it.
impl Drop for Traced {
    fn drop(&mut self) {
        self.child.signal(libc::SIGKILL);
        // SAFETY: waits for a thread that this process traces; no status is asked for.
        while unsafe { libc::waitpid(self.thread, std::ptr::null_mut(), libc::__WALL) } == self.thread {}
    }
}

#[derive(PartialEq)]
enum Event {
    Stepped,
    Stopped,
    Gone,
}

impl Traced {
    fn wait(&self) -> Event {
        let mut status = 0;
        // SAFETY: waits for a thread that this process traces; `status` outlives the call.
        let pid = unsafe { libc::waitpid(self.thread, &mut status, libc::__WALL) };
        assert_eq!(pid, self.thread, "{}", std::io::Error::last_os_error());
        if !libc::WIFSTOPPED(status) {
            return Event::Gone;
        }
        match libc::WSTOPSIG(status) {
            libc::SIGTRAP => Event::Stepped,
            libc::SIGSTOP => Event::Stopped,
            signal => panic!("the child got signal {signal}"),
        }
    }

    fn go_on(&self, request: libc::c_uint) {
        // SAFETY: a system call without pointers, on a thread that this process traces.
        let done = unsafe { libc::ptrace(request, self.thread, 0, 0) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

/// The file, as the child's stores change it.
struct Watch {
    path: PathBuf,
    file: std::fs::File,
    map: *const u8,
    seen: Vec<u8>,
    /// Pages that have changed before, which are looked at after every step; the others now and then.
    hot: Vec<usize>,
    looks: usize,
}

const PAGE: usize = 4096;

impl Watch {
    fn new(path: &Path) -> Self {
        let file = std::fs::File::open(path).unwrap();
        let mut watch = Watch {
            path: path.to_path_buf(),
            file,
            map: std::ptr::null(),
            seen: Vec::new(),
            hot: Vec::new(),
            looks: 0,
        };
        watch.remap();
        watch
    }

    fn remap(&mut self) {
        use std::os::fd::AsRawFd;
        if !self.map.is_null() {
            // SAFETY: the map is this watch's own, that long, and nothing borrows from it.
            unsafe { libc::munmap(self.map.cast_mut().cast(), self.seen.len()) };
        }
        self.seen = std::fs::read(&self.path).unwrap();
        let (bytes, fd) = (self.seen.len(), self.file.as_raw_fd());
        let map =
            // SAFETY: a fresh read-only mapping at an address of the kernel's choice.
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        assert!(map != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        self.map = map.cast();
    }

    fn page(&self, page: usize) -> &[u8] {
        // SAFETY: the page lies inside the map; the child, which alone writes to it, is stopped.
        unsafe { std::slice::from_raw_parts(self.map.add(page * PAGE), PAGE) }
    }

    /// Whether something changed since the last look. The child is stopped.
    fn changed(&mut self) -> bool {
        self.looks += 1;
        let differs = |page: &usize| self.page(*page) != &self.seen[page * PAGE..(page + 1) * PAGE];
        let pages = self.seen.len() / PAGE;
        let changed: Vec<usize> = match self.looks % 50 {
            0 => (0..pages).filter(differs).collect(),
            _ => self.hot.iter().copied().filter(|page| *page < pages).filter(differs).collect(),
        };
        for &page in &changed {
            let now = self.page(page).to_vec();
            self.seen[page * PAGE..(page + 1) * PAGE].copy_from_slice(&now);
            if !self.hot.contains(&page) {
                self.hot.push(page);
            }
        }
        !changed.is_empty()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the map is this watch's own, that long, and nothing borrows from it.
        unsafe { libc::munmap(self.map.cast_mut().cast(), self.seen.len()) };
    }
}

fn records(plane: &Plane) -> Records {
    let ids = 0..plane.id_high_water().unwrap();
    ids.filter_map(|id| {
        let (key, vector) = (plane.key(id).unwrap()?, plane.vector(id).unwrap()?);
        assert_eq!(
            plane.tags(id).unwrap(),
            Some(tags_of(&vector)),
            "tags of {:?}",
            String::from_utf8_lossy(&key)
        );
        Some((key, vector))
    })
    .collect()
}

/// What is wrong with a plane whose writer died between these two states of it, if anything is.
fn find_fault(path: &Path, bytes: &[u8], before: &Records, after: &Records, step: Step) -> Option<String> {
    image::write_as_killed(path, bytes);
    let check = || {
        let plane = open(path);
        check_verified(&plane);
        let found = records(&plane);
        assert!(found == *before || found == *after, "neither before nor after {step:?}: {:?}", found.keys());
        assert_eq!(plane.count().unwrap(), found.len() as u64, "count");
        found.keys().for_each(|key| assert!(plane.id_of(key).unwrap().is_some(), "key {key:?}"));
        // The repair left everything as it should be for whoever writes next.
        for n in 1000..1004 {
            let vector = vector_of(n, 0);
            plane.insert_tagged(&vector, n.to_string().as_bytes(), &tags_of(&vector)).unwrap();
        }
        check_verified(&plane);
        for key in found.keys().take(3) {
            assert!(plane.remove_key(key).unwrap());
        }
        check_verified(&plane);
        assert_eq!(plane.count().unwrap(), found.len() as u64 + 4 - found.len().min(3) as u64);
    };
    // Failures are collected, not printed one by one.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).err();
    std::panic::set_hook(hook);
    let caught = caught?;
    let text = caught.downcast_ref::<String>().cloned();
    Some(text.unwrap_or_else(|| caught.downcast_ref::<&str>().unwrap_or(&"a panic").to_string()))
}

/// Keeps this thread, and the children that it starts, on one processor: a step then costs no wake-up of another one.
fn stay_on_one_processor() {
    // SAFETY: the set is plain data of ours, and the calls only read it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Steps a child through a script; gives how many images were looked at, and what was wrong with some.
fn run(script: &Script, options: &CreateOptions) -> (usize, BTreeMap<String, usize>) {
    let dir = image::memory_dir();
    let (path, image_path, mark) =
        (dir.path().join("plane"), dir.path().join("image"), dir.path().join("thread"));
    drop(Plane::create(&path, options).unwrap());
    let child =
        spawn(script.name, &[path.to_str().unwrap(), mark.to_str().unwrap()], &dir.path().join("out"));
    let thread = loop {
        match std::fs::read_to_string(&mark).unwrap_or_default().as_str() {
            "refused" => return (0, BTreeMap::new()),
            text => match text.strip_suffix('.').unwrap_or_default().parse() {
                Ok(thread) => break Traced { thread, child },
                Err(_) => std::thread::yield_now(),
            },
        }
    };
    assert!(thread.wait() == Event::Stopped);
    let (mut images, mut faults) = (0, BTreeMap::new());
    let (mut before, mut versions) = (Records::new(), BTreeMap::new());
    script.prepare.iter().for_each(|step| play(&mut before, &mut versions, *step));
    let mut watch = Watch::new(&path);
    for step in &script.steps {
        let mut after = before.clone();
        play(&mut after, &mut versions, *step);
        loop {
            thread.go_on(libc::PTRACE_SINGLESTEP);
            let event = thread.wait();
            if event == Event::Gone {
                panic!("the child ended:\n{}", std::fs::read_to_string(dir.path().join("out")).unwrap());
            }
            if watch.changed() {
                images += 1;
                if let Some(fault) = find_fault(&image_path, &watch.seen, &before, &after, *step) {
                    *faults.entry(format!("{step:?}: {fault}")).or_default() += 1;
                }
            }
            if watch.looks.is_multiple_of(50)
                && watch.file.metadata().unwrap().len() != watch.seen.len() as u64
            {
                watch.remap();
            }
            if event == Event::Stopped {
                break;
            }
        }
        before = after;
    }
    (images, faults)
}

#[test]
fn a_kill_between_any_two_stores_is_repaired() {
    let options = CreateOptions {
        precision: Precision::F32,
        m: 2,
        layer0_cap: 4,
        ef_construction: 8,
        key_cap: 16,
        unique_keys: true,
        ..CreateOptions::new(DIMS as u32)
    };
    stay_on_one_processor();
    let mut wrong = String::new();
    for script in scripts() {
        let started = std::time::Instant::now();
        let (images, faults) = run(&script, &options);
        let wrong_here: usize = faults.values().sum();
        println!("{}: {images} images, {wrong_here} wrong, {:?}", script.name, started.elapsed());
        for (fault, times) in faults {
            wrong += &format!("{}: {times} times {fault}\n", script.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
