//! What the fuzz targets do, and `crates/core/tests/fuzz_corpus.rs` with the inputs that they have found: an input says which
//! valid file to start from and which of its bytes to change.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | which valid file, modulo their number |
//! | 1 | bits 0 and 1: 0 or 3 as it is, 1 as a killed process leaves it, 2 as a crashed machine does; bit 2: superblocks get the checksums that they then should have; bit 3: extent table too; bit 4: read-only |
//! | from 2 | changes: u24 offset (modulo the length), u8 length (1 to 8, modulo), so many bytes; a length byte of 255: cut off there |

#![allow(dead_code)] // Each target uses a part of this.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use vecplane_core::testing;
use vecplane_core::{CreateOptions, Metric, OpenOptions, Plane, Precision, Rerank, SearchOptions};

const SHARED: usize = 8192;
const DIRTY: usize = SHARED + 128;
const BOOT: usize = DIRTY + 16;
const FILE_ID: usize = BOOT + 16;
const EXTENT_TABLE: usize = 32_768;
const DIMS: usize = 8;

/// Small numbers with no pattern, the same each time.
fn vector(n: u32) -> Vec<f32> {
    let mut state = n.wrapping_mul(0x9E37_79B1) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..DIMS).map(|_| next()).collect()
}

/// Where this process keeps its files.
fn directory() -> &'static PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        remove_leftovers(&parent);
        let directory = parent.join(format!("vecplane-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for files");
        directory
    })
}

/// A fuzzer ends without running anything to its end, so the next one removes what it left.
fn remove_leftovers(parent: &Path) {
    let names = std::fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for name in names.filter_map(|name| name.into_string().ok()) {
        let pid = name.strip_prefix("vecplane-fuzz-").filter(|_| Path::new("/proc/self").exists());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(parent.join(name));
        }
    }
}

fn options(kind: usize) -> CreateOptions {
    let metrics = [Metric::Cosine, Metric::L2, Metric::InnerProduct];
    let precisions = [Precision::Int8, Precision::Int16, Precision::F16, Precision::F32];
    let reranks = [Rerank::F32, Rerank::F16, Rerank::None];
    CreateOptions {
        metric: metrics[kind % 3],
        precision: precisions[kind % 4],
        rerank: reranks[kind / 2 % 3],
        m: 4,
        layer0_cap: 8,
        ef_construction: 16,
        key_cap: if kind == 3 { 0 } else { 12 },
        unique_keys: kind.is_multiple_of(2),
        max_nodes: (kind != 5).then_some(1000),
        ..CreateOptions::new(DIMS as u32)
    }
}

/// Valid files of every kind: each metric and precision, with and without keys; empty, closed, in use.
fn valid_files() -> &'static [Vec<u8>] {
    static FILES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| (0..8).map(valid_file).collect())
}

fn valid_file(kind: usize) -> Vec<u8> {
    let path = directory().join("valid");
    let options = CreateOptions { overwrite: true, ..options(kind) };
    testing::fix_random(Some([kind as u8 + 1; 24]));
    let plane = Plane::create(&path, &options).expect("a new plane");
    testing::fix_random(None);
    let key = |n: u32| match options.key_cap {
        0 => String::new(),
        _ if n.is_multiple_of(7) => format!("{n} {}", "long".repeat(n as usize % 40)),
        _ => n.to_string(),
    };
    if kind != 7 {
        for n in 0..120 {
            plane.insert(&vector(n), key(n).as_bytes()).expect("an insert");
        }
        plane.flush(Some(7)).expect("a flush");
    }
    if kind < 5 {
        for id in (0..120).step_by(9) {
            plane.remove(id).expect("a removal");
        }
        for n in 200..206 {
            plane.insert(&vector(n), key(n).as_bytes()).expect("an insert");
        }
        if options.unique_keys {
            plane.upsert(b"1", &vector(300)).expect("an upsert");
        }
    }
    // As it is while the plane is open, or closed after a flush.
    let bytes = std::fs::read(&path);
    let bytes = if kind.is_multiple_of(3) {
        plane.flush(None).expect("a flush");
        drop(plane);
        std::fs::read(&path)
    } else {
        bytes
    };
    bytes.expect("the file")
}

fn set_checksums(bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(4096).take(2) {
        block[16..24].fill(0);
        let sum = xxh3(block, 0);
        block[16..24].copy_from_slice(&sum.to_le_bytes());
    }
}

fn set_extent_checksums(bytes: &mut [u8]) {
    let uuid: [u8; 16] = bytes[32..48].try_into().expect("sixteen bytes");
    for at in (EXTENT_TABLE..EXTENT_TABLE + 32 * 32).step_by(32) {
        let mut input = [0; 40];
        input[..24].copy_from_slice(&bytes[at..at + 24]);
        input[24..].copy_from_slice(&uuid);
        let sum = xxh3(&input, 0x45_58_54);
        bytes[at + 24..at + 32].copy_from_slice(&sum.to_le_bytes());
    }
}

fn xxh3(bytes: &[u8], seed: u64) -> u64 {
    testing::xxh3(bytes, seed)
}

/// The file that an input stands for, and whether it is to be opened for reading only.
fn file(input: &[u8]) -> Option<(Vec<u8>, u8)> {
    let [kind, mode, changes @ ..] = input else { return None };
    let files = valid_files();
    let mut bytes = files[*kind as usize % files.len()].clone();
    if mode & 3 == 2 {
        bytes[BOOT..BOOT + 16].fill(0xB7);
        bytes[DIRTY] = 1;
    }
    let mut changes = changes;
    while let [a, b, c, length, rest @ ..] = changes {
        let at = u32::from_le_bytes([*a, *b, *c, 0]) as usize % bytes.len();
        if *length == 255 {
            bytes.truncate(at);
            break;
        }
        let length = (*length as usize % 8 + 1).min(rest.len()).min(bytes.len() - at);
        bytes[at..at + length].copy_from_slice(&rest[..length]);
        changes = &rest[length..];
    }
    if bytes.len() > 131_072 {
        if mode & 4 != 0 {
            set_checksums(&mut bytes);
        }
        if mode & 8 != 0 {
            set_extent_checksums(&mut bytes);
        }
    }
    Some((bytes, *mode))
}

/// Puts the file in place; as a killed process leaves it, it names itself.
fn put(input: &[u8]) -> Option<(PathBuf, OpenOptions)> {
    let (bytes, mode) = file(input)?;
    // One file a thread: tests run several.
    let path = directory().join(format!("{:?}", std::thread::current().id()));
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, &bytes).expect("a file");
    #[cfg(unix)]
    if mode & 3 == 1 && bytes.len() > 131_072 {
        use std::os::unix::fs::{FileExt, MetadataExt};
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        let metadata = file.metadata().expect("its attributes");
        let id = [metadata.dev().to_le_bytes(), metadata.ino().to_le_bytes()].concat();
        file.write_all_at(&id, FILE_ID as u64).expect("its identity");
        // The boot is this one's: files are made in it.
        file.write_all_at(&valid_files()[0][BOOT..BOOT + 16], BOOT as u64).expect("its boot");
    }
    Some((path, OpenOptions { read_only: mode & 16 != 0, lock_timeout: Duration::from_millis(200) }))
}

fn clean_up(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// Opens the file that an input stands for, twice.
pub fn open(input: &[u8]) {
    let Some((path, options)) = put(input) else { return };
    for _ in 0..2 {
        match Plane::open(&path, &options) {
            Ok(plane) => {
                let _ = (plane.count(), plane.id_high_water(), plane.stats(), plane.entry_point());
            }
            Err(error) => assert!(!error.code().is_empty() && !error.to_string().is_empty()),
        }
    }
    clean_up(&path);
}

/// Opens the file that an input stands for and makes every kind of call.
pub fn open_and_use(input: &[u8]) {
    let Some((path, options)) = put(input) else { return };
    if let Ok(plane) = Plane::open(&path, &options) {
        read(&plane);
        write(&plane);
        read(&plane);
        drop(plane);
        // And once more what that has left.
        if let Ok(plane) = Plane::open(&path, &options) {
            read(&plane);
        }
    }
    clean_up(&path);
}

fn read(plane: &Plane) {
    let dims = plane.config().dims as usize;
    if dims > 4096 {
        return;
    }
    for n in 0..4 {
        let query: Vec<f32> = vector(n * 40).into_iter().cycle().take(dims).collect();
        let filter = [0xF0, 0x7F, 1, 0, 0xFF];
        let filter = (n % 2 == 1).then_some(&filter[..]);
        let options = SearchOptions { filter, rerank: n != 2, ..SearchOptions::new(1 + 50 * n as usize) };
        if let Ok(hits) = plane.search(&query, &options) {
            assert!(hits.len() <= options.k && hits.distances.len() == hits.len());
            (0..hits.len()).for_each(|i| assert!(hits.key(i).len() <= 65_535));
        }
        let _ = plane.search_exact(&query, 5, filter);
    }
    for id in [0, 1, 9, 63, 119, 125, 1 << 20, u32::MAX] {
        let _ = (plane.vector(id), plane.key(id), plane.get(id.to_string().as_bytes()));
    }
    let _ = (plane.count(), plane.stats(), plane.entry_point(), plane.verify());
}

fn write(plane: &Plane) {
    let dims = plane.config().dims as usize;
    if dims > 4096 {
        return;
    }
    for n in 500..508 {
        let vector: Vec<f32> = vector(n).into_iter().cycle().take(dims).collect();
        let key = if n.is_multiple_of(3) { format!("{n}{}", "x".repeat(90)) } else { n.to_string() };
        let key = if plane.config().key_cap == 0 { String::new() } else { key };
        let _ = plane.insert(&vector, key.as_bytes());
        let _ = plane.upsert((n - 498).to_string().as_bytes(), &vector);
        let _ = plane.remove(n % 130);
        let _ = plane.remove_key((n - 480).to_string().as_bytes());
    }
    let _ = (plane.set_watermark(9), plane.flush(None));
}
