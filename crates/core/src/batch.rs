//! Many records in one call: its input, and what became of each.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::config::Config;
use crate::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::file::layout::INTENT_COUNT;
use crate::graph::second_pass;
use crate::hits::Hits;
use crate::options::SearchOptions;
use crate::plane::Plane;
use crate::record::{self, NewVector};
use crate::tags::{Tag, TagSet};

/// Records to insert. `vectors` is row-major; record i's key is `keys[key_ends[i - 1]..key_ends[i]]`.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// `count x dims` components.
    pub vectors: &'a [f32],
    /// All keys, one after the other.
    pub keys: &'a [u8],
    /// End of each record's key; empty when the records have no keys.
    pub key_ends: &'a [u32],
}

/// Tags of a batch's records: record i has `distinct[r]` for each r in `refs[ends[i - 1]..ends[i]]`. Without `ends` none has any.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchTags<'a> {
    /// The tags, each once; for what cannot be one, the reason.
    pub distinct: &'a [std::result::Result<Tag<'a>, &'static str>],
    /// Positions in `distinct`.
    pub refs: &'a [u32],
    /// End of each record's tags in `refs`.
    pub ends: &'a [u32],
}

impl BatchTags<'_> {
    fn check(&self, count: usize) -> Result<()> {
        let fits = match self.ends {
            [] => self.refs.is_empty(),
            [.., last] => {
                self.ends.len() == count && self.ends.is_sorted() && *last as usize == self.refs.len()
            }
        };
        if fits && self.refs.iter().all(|r| (*r as usize) < self.distinct.len()) {
            return Ok(());
        }
        Err(Error::InvalidBatch { reason: format!("tags must be one set for each of {count} records") })
    }

    /// A record's tags.
    fn set(&self, i: usize) -> Result<TagSet> {
        let Some(&end) = self.ends.get(i) else { return Ok(TagSet::default()) };
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        let refs = &self.refs[start as usize..end as usize];
        if let Some(reason) = refs.iter().find_map(|r| self.distinct[*r as usize].err()) {
            return Err(Error::TagInvalid { reason });
        }
        TagSet::new(refs.iter().filter_map(|r| self.distinct[*r as usize].ok()))
    }
}

/// Why one record of a batch was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionCode {
    /// NaN, an infinity, or a norm past the largest f32.
    NotFinite,
    /// The key is too long, or the plane keeps no keys.
    KeyUnstorable,
    /// A tag cannot be one, or there are too many.
    TagInvalid,
    /// The vector has the wrong length.
    DimensionMismatch,
    /// A live record, or an earlier one of this batch, has the key.
    KeyExists,
}

impl RejectionCode {
    /// The published string.
    pub fn as_str(self) -> &'static str {
        match self {
            RejectionCode::NotFinite => "not-finite",
            RejectionCode::KeyUnstorable => "key-unstorable",
            RejectionCode::TagInvalid => "tag-invalid",
            RejectionCode::DimensionMismatch => "dimension-mismatch",
            RejectionCode::KeyExists => "key-exists",
        }
    }
}

/// One record that was left out.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Position in the batch.
    pub index: u32,
    /// Stable code.
    pub code: RejectionCode,
    /// For a person.
    pub reason: String,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub struct BatchOutcome {
    /// Id of each record in input order; `u32::MAX` where it did not land.
    pub ids: Vec<u32>,
    /// Records that were left out for their own sake, by index.
    pub rejected: Vec<Rejection>,
    /// What stopped the batch before its end, if anything did; the records with an id have landed all the same.
    pub fault: Option<Error>,
}

/// Records that a thread takes at a time. Between two such chunks a batch gives way to other processes and is
/// cancelled.
const CHUNK: usize = 32;

/// Batches of fewer records are no load.
const LOAD_MIN: usize = 2 * CHUNK;

/// Of the work on a record that is inserted and linked again, the part that linking it again takes is one in so many.
const RELINKING: usize = 5;

/// What happens to a record whose key is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Insert,
    Upsert,
}

/// See `Plane::insert_batch` and `Plane::upsert_batch`.
pub(crate) fn run(
    plane: &Plane,
    batch: Batch<'_>,
    tags: BatchTags<'_>,
    mode: Mode,
    threads: usize,
    progress: &(dyn Fn(usize) -> bool + Sync),
) -> Result<BatchOutcome> {
    let rows = Rows::check(plane.config(), batch, tags)?;
    let Sorted { mut rejected, superseded } = rows.sort_out(plane.config(), mode);
    let relinks = second_pass::helps(plane.config().metric) && is_load(&rows, plane.count()?);
    plane.engine()?.store.expect(rows.count);
    let ids: Vec<AtomicU32> = (0..rows.count).map(|_| AtomicU32::new(u32::MAX)).collect();
    let skip: HashSet<usize> =
        rejected.iter().map(|r| r.index as usize).chain(superseded.keys().copied()).collect();
    let run = Run {
        mode,
        plane,
        rows,
        skip,
        ids,
        relinks,
        landed: AtomicUsize::new(0),
        relinked: AtomicUsize::new(0),
        stopped: AtomicBool::new(false),
        fault: Mutex::new(None),
        rejected: Mutex::new(Vec::new()),
        progress,
    };
    run.all(threads, &run.landed, Run::insert);
    if relinks {
        run.all(threads, &run.relinked, Run::relink);
    }
    for (early, last) in superseded {
        run.ids[early].store(run.ids[last].load(Ordering::Relaxed), Ordering::Relaxed);
    }
    rejected.append(&mut run.rejected.into_inner().unwrap_or_else(|e| e.into_inner()));
    rejected.sort_by_key(|r| r.index);
    Ok(BatchOutcome {
        ids: run.ids.into_iter().map(AtomicU32::into_inner).collect(),
        rejected,
        fault: run.fault.into_inner().unwrap_or_else(|e| e.into_inner()),
    })
}

/// Whether a batch will make up most of the plane: its records choose their links again once all are there. Those of a batch
/// that adds to a larger plane would meet nearly the same records as before.
fn is_load(rows: &Rows<'_>, live: u64) -> bool {
    rows.count >= LOAD_MIN && rows.count as u64 > live
}

/// Runs `work` on this thread and others, `threads` in all (0 for every hardware thread), but no more than the hardware
/// has, or than there are pieces of it.
pub(crate) fn on_threads(threads: usize, pieces: usize, work: impl Fn() + Sync) {
    // More threads than the hardware has gain nothing here, and take the processor from the caller's event loop.
    let hardware = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { hardware } else { threads.min(hardware) }.min(INTENT_COUNT);
    std::thread::scope(|scope| {
        for i in 1..threads.min(pieces) {
            // A system that gives no more threads slows the batch down, no more.
            let _ = std::thread::Builder::new().name(format!("vecplane-{i}")).spawn_scoped(scope, &work);
        }
        work();
    });
}

/// See `Plane::search_batch`.
pub(crate) fn search(
    plane: &Plane,
    queries: &[f32],
    options: &SearchOptions<'_>,
    threads: usize,
) -> Result<Vec<Hits>> {
    let dims = plane.config().dims as usize;
    if !queries.len().is_multiple_of(dims) {
        let reason = format!(
            "vectors has {} components, which is no multiple of the plane's dims, {dims}",
            queries.len()
        );
        return Err(Error::InvalidBatch { reason });
    }
    let answers: Vec<OnceLock<Result<Hits>>> = (0..queries.len() / dims).map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    on_threads(threads, answers.len(), || {
        while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < answers.len()) {
            let _ = answers[i].set(plane.search(&queries[i * dims..(i + 1) * dims], options));
        }
    });
    answers.into_iter().filter_map(OnceLock::into_inner).collect()
}

/// What a first look at a batch tells.
struct Sorted {
    /// Records that cannot be written whatever the plane holds.
    rejected: Vec<Rejection>,
    /// Records whose key comes again later, with the position of the last one that has it.
    superseded: HashMap<usize, usize>,
}

/// A batch whose arrays fit each other.
struct Rows<'a> {
    batch: Batch<'a>,
    tags: BatchTags<'a>,
    dims: usize,
    count: usize,
}

impl<'a> Rows<'a> {
    fn check(config: &Config, batch: Batch<'a>, tags: BatchTags<'a>) -> Result<Self> {
        let dims = config.dims as usize;
        let invalid = |reason: String| Err(Error::InvalidBatch { reason });
        if !batch.vectors.len().is_multiple_of(dims) {
            return invalid(format!(
                "vectors has {} components, which is no multiple of the plane's dims, {dims}",
                batch.vectors.len()
            ));
        }
        let count = batch.vectors.len() / dims;
        if batch.key_ends.is_empty() && !batch.keys.is_empty() {
            return invalid("keys without keyEnds: where does each key end?".into());
        }
        if !batch.key_ends.is_empty() {
            if batch.key_ends.len() != count {
                return invalid(format!("keyEnds has {} entries for {count} records", batch.key_ends.len()));
            }
            if let Some(at) = batch.key_ends.windows(2).position(|pair| pair[0] > pair[1]) {
                return invalid(format!("keyEnds decreases at index {}", at + 1));
            }
            let end = batch.key_ends.last().map_or(0, |end| *end as usize);
            if end != batch.keys.len() {
                return invalid(format!("keyEnds ends at {end}, but keys has {} bytes", batch.keys.len()));
            }
        }
        if config.unique_keys && batch.key_ends.is_empty() && count > 0 {
            return invalid("the plane has unique keys: every record needs one".into());
        }
        tags.check(count)?;
        Ok(Rows { batch, tags, dims, count })
    }

    fn vector(&self, i: usize) -> &'a [f32] {
        &self.batch.vectors[i * self.dims..(i + 1) * self.dims]
    }

    fn key(&self, i: usize) -> &'a [u8] {
        let Some(&end) = self.batch.key_ends.get(i) else { return &[] };
        let start = if i == 0 { 0 } else { self.batch.key_ends[i - 1] };
        &self.batch.keys[start as usize..end as usize]
    }

    /// Finds what need not be tried. Of several records with one key an insert takes the first, an upsert the last.
    fn sort_out(&self, config: &Config, mode: Mode) -> Sorted {
        let mut rejected = Vec::new();
        let mut superseded = HashMap::new();
        let mut keys = HashMap::new();
        for i in 0..self.count {
            let key = self.key(i);
            let checked = NewVector::check(config, self.vector(i)).map(drop);
            let checked = checked.and_then(|()| record::check_key(config, key));
            let checked = checked.and_then(|()| self.tags.set(i).map(drop));
            match checked {
                Err(error) => rejected.extend(rejection(i, &error)),
                Ok(()) if !config.unique_keys => {}
                Ok(()) => match (mode, keys.get(key).copied()) {
                    (Mode::Insert, Some(_)) => rejected.push(Rejection {
                        index: i as u32,
                        code: RejectionCode::KeyExists,
                        reason: "an earlier record of the batch has the key".into(),
                    }),
                    (_, earlier) => {
                        keys.insert(key, i);
                        superseded.extend(earlier.map(|earlier| (earlier, i)));
                    }
                },
            }
        }
        // Chains end at the last record of each key.
        let last: HashMap<usize, usize> = superseded.keys().map(|i| (*i, keys[self.key(*i)])).collect();
        Sorted { rejected, superseded: last }
    }
}

/// What an error means for the one record that met it; `None` when it is the plane's fault.
fn rejection(index: usize, error: &Error) -> Option<Rejection> {
    let code = match error {
        Error::NotFinite { .. } => RejectionCode::NotFinite,
        Error::KeyUnstorable { .. } => RejectionCode::KeyUnstorable,
        Error::TagInvalid { .. } => RejectionCode::TagInvalid,
        Error::DimensionMismatch { .. } => RejectionCode::DimensionMismatch,
        Error::KeyExists { .. } => RejectionCode::KeyExists,
        _ => return None,
    };
    Some(Rejection { index: index as u32, code, reason: error.to_string() })
}

/// A batch under way, shared by its threads.
struct Run<'a> {
    mode: Mode,
    plane: &'a Plane,
    rows: Rows<'a>,
    skip: HashSet<usize>,
    ids: Vec<AtomicU32>,
    /// Whether records are linked again once all have landed.
    relinks: bool,
    landed: AtomicUsize,
    relinked: AtomicUsize,
    stopped: AtomicBool,
    fault: Mutex<Option<Error>>,
    rejected: Mutex<Vec<Rejection>>,
    progress: &'a (dyn Fn(usize) -> bool + Sync),
}

impl Run<'_> {
    /// Does something with all records, chunk by chunk, and counts those that it is done with.
    fn all(&self, threads: usize, done: &AtomicUsize, each: fn(&Self, &Engine, usize) -> Result<()>) {
        let next = AtomicUsize::new(0);
        on_threads(threads, self.rows.count.div_ceil(CHUNK), || {
            while self.goes_on() {
                let start = next.fetch_add(CHUNK, Ordering::Relaxed);
                if start >= self.rows.count {
                    return;
                }
                let end = (start + CHUNK).min(self.rows.count);
                let chunk = |engine: &Engine| {
                    let mut records = (start..end).filter(|i| !self.skip.contains(i));
                    records.try_for_each(|i| if self.is_stopped() { Ok(()) } else { each(self, engine, i) })
                };
                if let Err(error) = self.plane.write_while(&|| self.goes_on(), chunk) {
                    self.stop(error);
                    return;
                }
                done.fetch_add(end - start, Ordering::Relaxed);
            }
        });
    }

    fn insert(&self, engine: &Engine, i: usize) -> Result<()> {
        let inserted = NewVector::check(&engine.store.config, self.rows.vector(i)).and_then(|new| {
            let tags = self.rows.tags.set(i)?;
            match self.mode {
                Mode::Insert => engine.insert(new, self.rows.key(i), &tags),
                Mode::Upsert => engine.upsert(new, self.rows.key(i), &tags),
            }
        });
        match inserted {
            Ok(id) => self.ids[i].store(id, Ordering::Relaxed),
            Err(error) => match rejection(i, &error) {
                Some(rejection) => lock(&self.rejected).push(rejection),
                None => return Err(error),
            },
        }
        Ok(())
    }

    fn relink(&self, engine: &Engine, i: usize) -> Result<()> {
        let id = self.ids[i].load(Ordering::Relaxed);
        let mut pinned = engine.pin()?;
        let (graph, scratch) = pinned.parts();
        // Others may have removed it meanwhile, and it may be another record by now: that one is linked as well, then.
        graph.choose_again(id, scratch);
        Ok(())
    }

    /// Records that the batch is done with, for its caller.
    fn done(&self) -> usize {
        let [landed, relinked] = [&self.landed, &self.relinked].map(|count| count.load(Ordering::Relaxed));
        if self.relinks { landed - landed / RELINKING + relinked / RELINKING } else { landed }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether to go on, which the caller is asked.
    fn goes_on(&self) -> bool {
        !self.is_stopped() && {
            let wanted = (self.progress)(self.done());
            if !wanted {
                self.stop(Error::Aborted);
            }
            wanted
        }
    }

    fn stop(&self, error: Error) {
        self.stopped.store(true, Ordering::Relaxed);
        lock(&self.fault).get_or_insert(error);
    }
}
