//! Planes as files: their size, how they are made, replaced, opened and refused.

#![cfg(unix)]

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::child::{self, argument, expect_done, spawn, wait_until};
use common::{Rng, by_form, check_verified, image, open};
use vecplane_core::{CreateOptions, Error, OpenOptions, Plane, Precision, Rerank, Result, SearchOptions};
use xxhash_rust::xxh3::xxh3_64;

const READ_ONLY: OpenOptions = OpenOptions { read_only: true, lock_timeout: Duration::from_secs(5) };

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    let path = PathBuf::from(argument(0));
    match role.as_str() {
        "replace for ever" => loop {
            std::fs::write(argument(1), b"started").unwrap();
            drop(Plane::create(&path, &CreateOptions { overwrite: true, ..CreateOptions::new(4) }).unwrap());
        },
        "read as nobody" => read_as_nobody(&path),
        "open" => println!("{:?}", Plane::open(&path, &READ_ONLY).map(drop).map_err(|e| e.code())),
        _ => panic!("no such role: {role}"),
    }
}

/// A closed plane with a few keyed records.
fn small_plane(path: &Path, count: usize) {
    let options = CreateOptions { key_cap: 8, unique_keys: true, overwrite: true, ..CreateOptions::new(4) };
    let plane = Plane::create(path, &options).unwrap();
    for i in 0..count {
        plane.insert(&Rng::new(i as u64).gaussian(4), format!("{i}").as_bytes()).unwrap();
    }
    plane.flush(None).unwrap();
}

/// The bound of F1, for a plane from which nothing was removed.
fn check_size(plane: &Plane) {
    let stats = plane.stats().unwrap();
    let record =
        u64::from(stats.slot_bytes) + u64::from(stats.exact_bytes) + u64::from(stats.key_entry_bytes);
    let data = stats.count * record + stats.heap_bytes;
    let most = data * 5 / 4 + (4 << 20);
    assert!(stats.file_bytes <= most, "{} bytes for {data} bytes of data: {stats:?}", stats.file_bytes);
    let metadata = std::fs::metadata(plane.path()).unwrap();
    assert_eq!(metadata.len(), stats.file_bytes);
    // Nothing sparse: what the file says it has, the disk has.
    assert!(
        metadata.blocks() * 512 >= metadata.len(),
        "{} blocks for {} bytes",
        metadata.blocks(),
        metadata.len()
    );
}

/// Vectors that cost little to make; what they are does not matter for sizes.
fn fill(plane: &Plane, rng: &mut Rng, count: usize, check_every: usize) {
    let dims = plane.config().dims as usize;
    let mut vector = rng.gaussian(dims);
    for i in 0..count {
        vector[rng.below(dims)] = rng.gauss();
        plane.insert(&vector, format!("key {i}").as_bytes()).unwrap();
        if i % check_every == 0 {
            check_size(plane);
        }
    }
    check_size(plane);
}

#[test]
fn the_file_is_as_big_as_its_data() {
    let mut rng = Rng::new(3);
    let dir = image::memory_dir();
    let path = dir.path().join("plane");
    for dims in [128, 1024, 2048] {
        for rerank in [Rerank::F32, Rerank::None] {
            let options = CreateOptions {
                rerank,
                ef_construction: 10,
                key_cap: 16,
                unique_keys: true,
                overwrite: true,
                ..CreateOptions::new(dims)
            };
            let plane = Plane::create(&path, &options).unwrap();
            check_size(&plane);
            assert!(plane.stats().unwrap().file_bytes <= 1 << 20, "an empty plane");
            fill(&plane, &mut rng, 1000, 1);
            println!("{dims} dims, {rerank:?}: {:?}", plane.stats().unwrap());
        }
    }
}

/// From 32 MiB of file on, slots lie in the file as in their region modulo 2 MiB, as huge pages need it.
fn check_large_extents(path: &Path) {
    const LARGE: usize = 2 << 20;
    let mut header = vec![0; image::HEADER_BYTES];
    let mut file = std::fs::File::open(path).unwrap();
    std::io::Read::read_exact(&mut file, &mut header).unwrap();
    let file_bytes = file.metadata().unwrap().len() as usize;
    let (mut at, mut large) = (0, 0);
    for (start, end) in image::extents(&header, 0) {
        if start >= 16 * LARGE {
            assert_eq!((start % LARGE, end % LARGE), (at % LARGE, 0), "slots {at} to {}", at + end - start);
            large += 1;
        }
        at += end - start;
    }
    assert!(large > 0 || file_bytes < 20 * LARGE, "{file_bytes} bytes without large extents");
}

/// Cheap graphs, so that the file passes through many sizes, small steps and large ones.
#[test]
fn the_file_stays_as_big_as_its_data_while_it_grows() {
    let mut rng = Rng::new(4);
    let dir = image::memory_dir();
    let path = dir.path().join("plane");
    let shapes = [
        (128, 200_000, Precision::Int8),
        (1024, 200_000, Precision::Int8),
        (2048, 200_000, Precision::Int8),
        (24, 400_000, Precision::F32),
    ];
    for (dims, most, precision) in shapes {
        let options = CreateOptions {
            precision,
            m: 2,
            layer0_cap: 4,
            ef_construction: 1,
            key_cap: 16,
            unique_keys: true,
            overwrite: true,
            ..CreateOptions::new(dims)
        };
        let plane = Plane::create(&path, &options).unwrap();
        fill(&plane, &mut rng, by_form(most / 20, most), 100);
        check_large_extents(&path);
        println!("{dims} dims: {:?}", plane.stats().unwrap());
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn create_refuses_what_it_may_not_replace_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    small_plane(&path, 5);
    let before = std::fs::read(&path).unwrap();
    let new = CreateOptions::new(4);
    assert!(matches!(Plane::create(&path, &new), Err(Error::Exists { .. })));
    // Options that are wrong are refused before anything is touched.
    for bad in [
        CreateOptions { dims: 0, overwrite: true, ..new.clone() },
        CreateOptions { dims: 65_537, overwrite: true, ..new.clone() },
        CreateOptions { m: 1, overwrite: true, ..new.clone() },
        CreateOptions { layer0_cap: 513, overwrite: true, ..new.clone() },
        CreateOptions { max_nodes: Some(0), overwrite: true, ..new.clone() },
        CreateOptions { unique_keys: true, overwrite: true, ..new.clone() },
    ] {
        let code = Plane::create(&path, &bad).map(drop).unwrap_err().code();
        assert!(code == "ERR_OUT_OF_RANGE" || code == "ERR_INVALID_ARG_VALUE", "{code}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let overwrite = CreateOptions { overwrite: true, ..new.clone() };
    std::fs::create_dir(dir.path().join("directory")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    std::fs::write(dir.path().join("file"), b"").unwrap();
    for (name, expected) in
        [("directory", "EISDIR"), ("missing/plane", "ENOENT"), ("loop", "ELOOP"), ("file/plane", "ENOTDIR")]
    {
        for options in [&new, &overwrite] {
            assert_eq!(
                Plane::create(&dir.path().join(name), options).map(drop).unwrap_err().code(),
                expected,
                "{name}"
            );
        }
    }
    assert_eq!(entries(dir.path()), ["directory", "file", "loop", "plane"]);
    // A file that is no plane is replaced like any other, when that was asked for.
    assert!(matches!(Plane::create(&dir.path().join("file"), &new), Err(Error::Exists { .. })));
    drop(Plane::create(&dir.path().join("file"), &overwrite).unwrap());
    assert_eq!(Plane::create(&path, &overwrite).unwrap().count().unwrap(), 0);
    assert_eq!(entries(dir.path()), ["directory", "file", "loop", "plane"]);
}

#[test]
fn a_create_killed_in_the_middle_leaves_the_old_file_or_the_new_one() {
    let mut rng = Rng::for_test("a_create_killed_in_the_middle_leaves_the_old_file_or_the_new_one");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let (mark, log) = (dir.path().join("mark"), dir.path().join("log"));
    let mut kept = 0;
    for _ in 0..by_form(10, 200) {
        small_plane(&path, 5);
        let _ = std::fs::remove_file(&mark);
        let child = spawn("replace for ever", &[path.to_str().unwrap(), mark.to_str().unwrap()], &log);
        wait_until("the child's start", Duration::from_secs(10), || mark.exists());
        std::thread::sleep(Duration::from_micros(rng.below(3000) as u64));
        child.kill();
        let plane = open(&path);
        let old = plane.config().unique_keys;
        kept += usize::from(old);
        assert_eq!(plane.count().unwrap(), if old { 5 } else { 0 });
        check_verified(&plane);
        plane.insert(&[1.0; 4], if old { b"new" } else { b"" }).unwrap();
    }
    println!("the old file was kept {kept} times");
}

/// Every call on a handle, by name.
fn all_calls(plane: &Plane) -> Vec<(&'static str, Result<()>)> {
    let vector = [1.0; 4];
    let batch = || vecplane_core::Batch { vectors: &vector, keys: b"k", key_ends: &[1] };
    let outcome = |outcome: vecplane_core::BatchOutcome| outcome.fault.map_or(Ok(()), Err);
    vec![
        ("count", plane.count().map(drop)),
        ("id_high_water", plane.id_high_water().map(drop)),
        ("entry_point", plane.entry_point().map(drop)),
        ("search", plane.search(&vector, &SearchOptions::new(1)).map(drop)),
        ("search_exact", plane.search_exact(&vector, 1, None).map(drop)),
        ("id_of", plane.id_of(b"1").map(drop)),
        ("vector", plane.vector(0).map(drop)),
        ("key", plane.key(0).map(drop)),
        ("stats", plane.stats().map(drop)),
        ("verify", plane.verify().map(drop)),
        ("watermark", plane.watermark().map(drop)),
        ("insert", plane.insert(&vector, b"new").map(drop)),
        ("insert_batch", plane.insert_batch(batch(), 1, &|_| true).and_then(outcome)),
        ("upsert", plane.upsert(b"1", &vector).map(drop)),
        ("remove", plane.remove(0).map(drop)),
        ("remove_key", plane.remove_key(b"2").map(drop)),
        ("set_watermark", plane.set_watermark(1)),
        ("flush", plane.flush(None)),
    ]
}

#[test]
fn handles_on_a_replaced_plane_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    small_plane(&path, 5);
    let (one, two) = (open(&path), open(&path));
    let reader = Plane::open(&path, &READ_ONLY).unwrap();
    one.insert(&[1.0; 4], b"unflushed").unwrap();
    let new = Plane::create(&path, &CreateOptions { overwrite: true, ..CreateOptions::new(4) }).unwrap();
    for (name, handle) in [("one", &one), ("two", &two), ("reader", &reader)] {
        for (call, result) in all_calls(handle) {
            let read_only = handle.read_only() && matches!(result, Err(Error::ReadOnly));
            assert!(read_only || matches!(result, Err(Error::Replaced { .. })), "{name}.{call}: {result:?}");
        }
    }
    assert_eq!(new.insert(&[1.0; 4], b"").unwrap(), 0);
    drop((one, two, reader));
    assert_eq!((new.count().unwrap(), open(&path).count().unwrap()), (1, 1));
}

/// The old file may have other names, and what is under them is a plane like before for whoever opens it now.
#[test]
fn a_plane_replaced_under_one_name_lives_on_under_its_others() {
    let dir = tempfile::tempdir().unwrap();
    let (path, backup) = (dir.path().join("plane"), dir.path().join("backup"));
    let overwrite = CreateOptions { overwrite: true, ..CreateOptions::new(4) };
    small_plane(&path, 5);
    std::fs::hard_link(&path, &backup).unwrap();
    drop(Plane::create(&path, &overwrite).unwrap());
    assert_eq!(open(&path).count().unwrap(), 0);
    assert_eq!(open(&backup).count().unwrap_or_else(|e| panic!("the backup: {e}")), 5);
    // A symbolic link is followed or replaced; where it led there is a plane that works.
    let link = dir.path().join("link");
    small_plane(&path, 5);
    symlink(&path, &link).unwrap();
    drop(Plane::create(&link, &overwrite).unwrap());
    assert_eq!(open(&link).count().unwrap(), 0);
    open(&path).count().unwrap_or_else(|e| panic!("behind the link: {e}"));
}

#[test]
fn read_only_handles_read_and_do_not_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    small_plane(&path, 50);
    let before = std::fs::read(&path).unwrap();
    {
        let reader = Plane::open(&path, &READ_ONLY).unwrap();
        let writes = ["insert", "insert_batch", "upsert", "remove", "remove_key", "set_watermark", "flush"];
        for (call, result) in all_calls(&reader) {
            match writes.contains(&call) {
                true => assert!(matches!(result, Err(Error::ReadOnly)), "{call}: {result:?}"),
                false => assert!(result.is_ok(), "{call}: {result:?}"),
            }
        }
        check_verified(&reader);
    }
    assert!(std::fs::read(&path).unwrap() == before, "a reader changed the file");
    // It sees what a writer does, growth included.
    let (reader, writer) = (Plane::open(&path, &READ_ONLY).unwrap(), open(&path));
    for i in 50..3000 {
        let id = writer.insert(&Rng::new(i).gaussian(4), format!("{i}").as_bytes()).unwrap();
        if i % 100 == 0 {
            assert_eq!(reader.id_of(format!("{i}").as_bytes()).unwrap(), Some(id));
            assert_eq!(reader.search(&Rng::new(i).gaussian(4), &SearchOptions::new(1)).unwrap().ids, [id]);
            assert!(writer.remove(id).unwrap());
            assert!(
                !reader.search(&Rng::new(i).gaussian(4), &SearchOptions::new(9)).unwrap().ids.contains(&id)
            );
        }
    }
}

fn read_as_nobody(path: &Path) {
    // SAFETY: system calls without pointers.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: system calls without pointers.
        assert_eq!(unsafe { (libc::setgid(65_534), libc::setuid(65_534)) }, (0, 0));
    }
    assert_eq!(Plane::open(path, &OpenOptions::default()).map(drop).unwrap_err().code(), "EACCES");
    let plane = Plane::open(path, &READ_ONLY).unwrap();
    assert_eq!(plane.search(&Rng::new(7).gaussian(4), &SearchOptions::new(1)).unwrap().key(0), b"7");
    check_verified(&plane);
    let overwrite = CreateOptions { overwrite: true, ..CreateOptions::new(4) };
    assert_eq!(Plane::create(path, &overwrite).map(drop).unwrap_err().code(), "EACCES");
}

#[test]
fn a_file_that_may_not_be_written_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    small_plane(&path, 50);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let out = dir.path().join("out");
    let child = spawn("read as nobody", &[path.to_str().unwrap()], &out);
    expect_done(child, Duration::from_secs(20), &out);
}

fn open_code(path: &Path, options: &OpenOptions) -> &'static str {
    Plane::open(path, options).map(drop).map_or_else(|e| e.code(), |()| "opened")
}

#[test]
fn what_is_not_a_plane_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("directory")).unwrap();
    symlink("loop", at("loop")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    std::fs::write(at("empty"), b"").unwrap();
    std::fs::write(at("png"), [&b"\x89PNG\r\n\x1a\n"[..], &[7; 300_000]].concat()).unwrap();
    std::fs::write(at("zeros"), vec![0; 1 << 20]).unwrap();
    std::fs::write(at("short"), b"text").unwrap();
    std::fs::write(at("magic"), b"VECPLANE").unwrap();
    std::fs::write(at("magic and zeros"), [&b"VECPLANE"[..], &vec![0; 1 << 20]].concat()).unwrap();
    for (name, code) in [
        ("missing", "ENOENT"),
        ("directory", "EISDIR"),
        ("loop", "ELOOP"),
        ("dangling", "ENOENT"),
        ("empty", "PLANE_NOT_A_PLANE"),
        ("png", "PLANE_NOT_A_PLANE"),
        ("zeros", "PLANE_NOT_A_PLANE"),
        ("short", "PLANE_NOT_A_PLANE"),
        ("magic", "PLANE_TRUNCATED"),
        ("magic and zeros", "PLANE_CORRUPT"),
        ("empty/plane", "ENOTDIR"),
    ] {
        for options in [OpenOptions::default(), READ_ONLY] {
            assert_eq!(open_code(&at(name), &options), code, "{name}, read-only {}", options.read_only);
        }
    }
    assert_eq!(open_code(Path::new("/dev/null"), &READ_ONLY), "PLANE_NOT_A_PLANE");
    assert_eq!(open_code(Path::new(""), &READ_ONLY), "ENOENT");
}

/// A pipe makes whoever opens it wait for the other end.
#[test]
fn a_pipe_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (dir.path().join("pipe"), dir.path().join("out"));
    let pipe = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    let child = spawn("open", &[path.to_str().unwrap()], &out);
    expect_done(child, Duration::from_secs(3), &out);
    assert!(std::fs::read_to_string(out).unwrap().contains("PLANE_NOT_A_PLANE"));
}

#[test]
fn a_truncated_file_is_refused_and_never_taken_for_an_empty_plane() {
    let mut rng = Rng::for_test("a_truncated_file_is_refused_and_never_taken_for_an_empty_plane");
    let dir = image::memory_dir();
    let (good, path) = (dir.path().join("good"), dir.path().join("plane"));
    small_plane(&good, 3000);
    let bytes = std::fs::read(&good).unwrap();
    let full = bytes.len();
    let mut lengths: Vec<usize> = (0..100).chain((0..full).step_by(65_536)).collect();
    lengths.extend([
        4095,
        4096,
        4097,
        8191,
        8192,
        65_535,
        131_071,
        131_072,
        131_073,
        full - 4096,
        full - 1,
        full / 2,
    ]);
    lengths.extend((0..by_form(100, 2000)).map(|_| rng.below(full)));
    for length in lengths {
        for crashed in [false, true] {
            std::fs::write(&path, &bytes[..length]).unwrap();
            if crashed && length > image::FILE_ID {
                image::crash_machine(&path);
            }
            for options in [READ_ONLY, OpenOptions::default()] {
                let code = open_code(&path, &options);
                let expected = match (length, crashed && options.read_only) {
                    (0, _) => &["PLANE_NOT_A_PLANE"][..],
                    (_, true) => &["PLANE_TRUNCATED", "PLANE_CORRUPT", "PLANE_NEEDS_RECOVERY"],
                    (_, false) => &["PLANE_TRUNCATED", "PLANE_CORRUPT"],
                };
                assert!(expected.contains(&code), "{length} of {full} bytes, crashed {crashed}: {code}");
            }
            assert_eq!(std::fs::metadata(&path).unwrap().len(), length as u64, "refused, but changed");
        }
    }
    // Bytes past the end are no harm.
    std::fs::write(&path, [&bytes[..], &rng.bytes(5000)].concat()).unwrap();
    let plane = open(&path);
    assert_eq!(plane.count().unwrap(), 3000);
    for i in 0..500 {
        plane.insert(&Rng::new(i).gaussian(4), format!("more {i}").as_bytes()).unwrap();
    }
    check_verified(&plane);
}

/// Changes both superblocks, and gives them the checksum of what they now say.
fn forge(bytes: &mut [u8], change: impl Fn(&mut [u8])) {
    for block in bytes.chunks_mut(image::SUPERBLOCK_BYTES).take(2) {
        change(block);
        block[16..24].fill(0);
        let checksum = xxh3_64(block);
        block[16..24].copy_from_slice(&checksum.to_le_bytes());
    }
}

#[test]
fn superblocks_are_checked_before_they_are_believed() {
    let dir = image::memory_dir();
    let (good, path) = (dir.path().join("good"), dir.path().join("plane"));
    small_plane(&good, 20);
    let bytes = std::fs::read(&good).unwrap();
    let code = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        open_code(&path, &OpenOptions::default())
    };
    let forged = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = bytes.clone();
        forge(&mut bytes, change);
        bytes
    };
    assert_eq!(code(&forged(&|_| {})), "opened");
    for version in [0u32, 2, 3, u32::MAX] {
        let newer = forged(&|block| block[8..12].copy_from_slice(&version.to_le_bytes()));
        assert_eq!(code(&newer), "PLANE_UNSUPPORTED_VERSION", "version {version}");
    }
    // Any byte of one superblock may be damaged, and the same byte of both makes the file one that is refused.
    for at in (0..256).chain([300, 1000, 4095]) {
        for block in [0, image::SUPERBLOCK_BYTES] {
            let mut damaged = bytes.clone();
            damaged[block + at] ^= 0x10;
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(open(&path).count().unwrap(), 20, "byte {at} of the superblock at {block}");
        }
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        damaged[image::SUPERBLOCK_BYTES + at] ^= 0x10;
        let found = code(&damaged);
        assert!(
            found == "PLANE_CORRUPT" || at < 8 && found == "PLANE_NOT_A_PLANE",
            "byte {at} of both: {found}"
        );
    }
    // Numbers out of range under a right checksum: dims, metric, codes, exact copy, flags, M, cap, ef, layout.
    for (at, value) in
        [(56, 0u32), (56, 65_537), (56, 5), (60, 0x09), (60, 0x0900), (60, 0x09_0000), (60, 0x8000_0000)]
            .into_iter()
            .chain([
                (64, 0),
                (64, 100_000),
                (68, 1),
                (68, 600),
                (72, 0),
                (76, 70_000),
                (80, u32::MAX),
                (96, 7),
                (104, 1 << 30),
            ])
            .chain([(120, 2000), (124, u32::MAX), (176, 33), (12, 4096)])
    {
        let bad = forged(&|block| block[at..at + 4].copy_from_slice(&value.to_le_bytes()));
        assert_eq!(code(&bad), "PLANE_CORRUPT", "{value} at {at}");
    }
    // A section that this version does not know: one that may be ignored, one that may not.
    for (required, expected) in [(0, "opened"), (1, "PLANE_UNSUPPORTED_VERSION")] {
        let unknown = forged(&|block| {
            block[176] = 2;
            block[208..211].copy_from_slice(&[77, 0, required]);
        });
        assert_eq!(code(&unknown), expected);
    }
}

/// Nothing helps whoever touches a page that is gone, but a file that was cut off is not made longer again as if all were well.
#[test]
fn a_file_that_was_cut_off_while_open_does_not_grow() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane");
    let plane = Plane::create(&path, &CreateOptions::new(4)).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let whole = file.metadata().unwrap().len();
    // The end of the reader table, which one thread does not come to.
    file.set_len(whole - 4096).unwrap();
    assert_eq!(plane.insert(&[1.0; 4], b"").unwrap_err().code(), "PLANE_TRUNCATED");
    file.set_len(whole).unwrap();
    plane.insert(&[1.0; 4], b"").unwrap();
}
