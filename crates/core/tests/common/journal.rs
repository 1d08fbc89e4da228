//! Writers that can be killed: they log what they are about to do and what the plane has acknowledged, and every key
//! tells the vector that belongs to it. So whoever has the logs can say what a plane must hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::child::{Running, argument, spawn};
use super::{Rng, TagColumn, check_verified, key_ends, tags_of};
use vecplane_core::{Batch, CreateOptions, Hits, Metric, OpenOptions, Plane, SearchOptions, TagSet};

pub const DIMS: usize = 16;
/// More work than anybody waits for.
pub const FOR_EVER: &str = "1000000000";

pub fn vector_of(key: &str) -> Vec<f32> {
    let seed = key.bytes().fold(7u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    Rng::new(seed).gaussian(DIMS)
}

pub fn options() -> CreateOptions {
    CreateOptions { key_cap: 16, unique_keys: true, ..CreateOptions::new(DIMS as u32) }
}

pub fn open_patiently(path: &Path) -> Plane {
    Plane::open(path, &OpenOptions { lock_timeout: Duration::from_secs(30), ..OpenOptions::default() })
        .unwrap()
}

/// Appends a line in one write, which a kill does not tear.
fn log(file: &File, what: char, key: &str) {
    (&mut &*file).write_all(format!("{what}{key}\n").as_bytes()).unwrap();
}

/// What a log says of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// The insert was under way.
    Inserting,
    Live,
    /// The removal was under way.
    Removing,
    Removed,
}

pub fn fates(log: &str) -> BTreeMap<String, Fate> {
    let mut fates = BTreeMap::new();
    for line in log.lines() {
        let Some((what, key)) = line.split_at_checked(1) else { continue };
        let fate = match what {
            "i" => Fate::Inserting,
            "I" => Fate::Live,
            "r" => Fate::Removing,
            "R" => Fate::Removed,
            _ => continue,
        };
        fates.insert(key.to_string(), fate);
    }
    fates
}

pub fn read_logs(paths: &[PathBuf]) -> BTreeMap<String, Fate> {
    paths.iter().flat_map(|path| fates(&std::fs::read_to_string(path).unwrap_or_default())).collect()
}

/// How a writer behaves.
#[derive(Clone, Copy)]
pub struct Habits {
    /// Live records that it keeps, more or less.
    pub live: usize,
    /// Operations between two flushes.
    pub flush_every: usize,
    /// Whether it also inserts batches.
    pub batches: bool,
    /// Share of keys too long for their entry.
    pub long_keys: f64,
}

pub const ORDINARY: Habits = Habits { live: 400, flush_every: 100, batches: true, long_keys: 0.05 };

/// Inserts and removes its own records, until it has done so `count` times, or a file `stop` is there.
pub fn write(plane: &Plane, name: &str, file: &File, count: usize, habits: Habits) {
    let stop = plane.path().with_file_name("stop");
    let mut rng = Rng::new(name.bytes().map(u64::from).sum());
    let mut live: Vec<(String, u32)> = Vec::new();
    for i in 0..count {
        if i % 16 == 0 && stop.exists() {
            break;
        }
        if !live.is_empty() && rng.chance(0.5 * live.len() as f64 / habits.live as f64) {
            let (key, id) = live.swap_remove(rng.below(live.len()));
            log(file, 'r', &key);
            assert!(plane.remove(id).unwrap(), "{key} is not under its id {id} any more");
            log(file, 'R', &key);
            continue;
        }
        let batch = if habits.batches && rng.chance(0.02) { 40 } else { 1 };
        let mut key = |j: usize| match rng.chance(habits.long_keys) {
            true => format!("{name}:{i}:{j}:{}", "long".repeat(20 + i % 50)),
            false => format!("{name}:{i}:{j}"),
        };
        let keys: Vec<String> = (0..batch).map(&mut key).collect();
        keys.iter().for_each(|key| log(file, 'i', key));
        let ids = if batch == 1 {
            let vector = vector_of(&keys[0]);
            vec![plane.insert_tagged(&vector, keys[0].as_bytes(), &tags_of(&vector)).unwrap()]
        } else {
            insert_batch(plane, &keys)
        };
        keys.iter().for_each(|key| log(file, 'I', key));
        live.extend(keys.into_iter().zip(ids));
        if i % 20 == 0 {
            let query = vector_of(&live[rng.below(live.len())].0);
            let hits = plane.search(&query, &SearchOptions::new(10)).unwrap();
            check_hits(&query, &hits);
        }
        if i % habits.flush_every == 0 {
            plane.flush(None).unwrap();
        }
    }
}

/// Inserts the records of these keys, all of which must land.
pub fn insert_batch(plane: &Plane, keys: &[String]) -> Vec<u32> {
    let key_bytes = keys.concat();
    let vectors: Vec<f32> = keys.iter().flat_map(|key| vector_of(key)).collect();
    let batch = Batch { vectors: &vectors, keys: key_bytes.as_bytes(), key_ends: &key_ends(keys) };
    let tags: Vec<TagSet> = keys.iter().map(|key| tags_of(&vector_of(key))).collect();
    let tags = TagColumn::new(&tags);
    let outcome = plane.insert_batch_tagged(batch, tags.as_tags(), 2, &|_| true).unwrap();
    assert!(outcome.fault.is_none() && outcome.rejected.is_empty(), "{outcome:?}");
    outcome.ids
}

/// A child's part in `writer`.
pub fn write_role(habits: Habits, threads: usize) {
    let plane = open_patiently(Path::new(&argument(0)));
    let file = File::options().append(true).create(true).open(argument(2)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (plane, file) = (&plane, &file);
            let name = if threads == 1 { argument(1) } else { format!("{}{thread}", argument(1)) };
            scope.spawn(move || write(plane, &name, file, argument(3).parse().unwrap(), habits));
        }
    });
}

/// Starts a child in a role that calls `write_role`, on `<dir>/plane`; it logs to `<dir>/<name>.log`.
pub fn writer(role: &str, dir: &Path, name: &str, count: &str) -> Running {
    let (plane, log) = (dir.join("plane"), dir.join(format!("{name}.log")));
    let arguments = [plane.to_str().unwrap(), name, log.to_str().unwrap(), count];
    spawn(role, &arguments, &dir.join(format!("{name}.out")))
}

/// Starts a child that writes for ever, and waits for its first line.
pub fn busy_writer(role: &str, dir: &Path, name: &str) -> Running {
    let mut child = writer(role, dir, name, FOR_EVER);
    let (log, out) = (dir.join(format!("{name}.log")), dir.join(format!("{name}.out")));
    let started = Instant::now();
    while std::fs::metadata(&log).map_or(0, |log| log.len()) == 0 {
        let (running, waited) = (child.is_running(), started.elapsed());
        if !running || waited > Duration::from_secs(30) {
            let out = std::fs::read_to_string(&out).unwrap_or_default();
            panic!("{name} has written nothing in {waited:?}, running {running}:\n{out}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// Keys tell vectors, so everyone can check every hit.
pub fn check_hits(query: &[f32], hits: &Hits) {
    for i in 0..hits.len() {
        let key = String::from_utf8(hits.key(i).to_vec()).expect("a key");
        let distance = super::true_distance(Metric::Cosine, query, &vector_of(&key));
        assert!(
            (distance - f64::from(hits.distances[i])).abs() < 1e-5,
            "{key}: {} for {distance}",
            hits.distances[i]
        );
    }
}

/// Everything that the logs call live is there, what they call removed is not, and nobody else is.
pub fn check_against(plane: &Plane, fates: &BTreeMap<String, Fate>) -> usize {
    check_verified(plane);
    let mut known = 0;
    for (key, fate) in fates {
        let id = plane.id_of(key.as_bytes()).unwrap();
        match fate {
            Fate::Live => assert!(id.is_some(), "lost: {key}"),
            Fate::Removed => assert!(id.is_none(), "ghost: {key}"),
            Fate::Inserting | Fate::Removing => {}
        }
        if let Some(id) = id {
            known += 1;
            assert_eq!(plane.key(id).unwrap().as_deref(), Some(key.as_bytes()));
            assert_eq!(plane.vector(id).unwrap().unwrap(), vector_of(key), "vector of {key}");
            assert_eq!(plane.tags(id).unwrap(), Some(tags_of(&vector_of(key))), "tags of {key}");
            if known % 8 == 0 {
                let hits = plane.search(&vector_of(key), &SearchOptions::new(10)).unwrap();
                check_hits(&vector_of(key), &hits);
                assert!(hits.ids.contains(&id), "{key} does not find itself");
            }
        }
    }
    assert_eq!(plane.count().unwrap(), known as u64, "records that no log knows of");
    known
}
