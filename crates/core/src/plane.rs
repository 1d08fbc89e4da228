//! Open, insert, remove, search, flush: the sequence of steps, none of their detail.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::batch::{Batch, BatchOutcome, BatchTags, Mode};
use crate::calibrate::{self, CalibrateOptions};
use crate::calibration::Calibration;
use crate::codec;
use crate::compact::{self, CompactOptions, Compacted};
use crate::config::Config;
use crate::create;
use crate::effort::{self, Effort};
use crate::engine::{Engine, Pinned};
use crate::error::{Error, Result};
use crate::file::store::Store;
use crate::filtering;
use crate::graph::filter::Filter;
use crate::graph::search::Ranking;
use crate::graph::stop::Beam;
use crate::graph::{Graph, Scratch};
use crate::handle::{Current, Handle};
use crate::hits::Hits;
use crate::invalidate;
use crate::key_index::{self, KeyHash};
use crate::options::{CreateOptions, K_MAX, Metric, OpenOptions, Precision, Rerank, SearchOptions};
use crate::record::{self, NewVector};
use crate::recover::{Follower, Progress};
use crate::registry;
use crate::report::{Stats, VerifyReport};
use crate::snapshot;
use crate::tags::TagSet;
use crate::turn::Patience;
use crate::verify;

/// Largest watermark: the largest integer that a JavaScript number holds exactly.
const WATERMARK_MAX: u64 = (1 << 53) - 1;

/// A handle on an open plane. Clones share it, as do other handles of this process on the same file; the file is given
/// back when the last one is dropped.
#[derive(Clone)]
pub struct Plane {
    handle: Arc<Handle>,
    lock_timeout: Duration,
    /// Waits no longer than this, not even for this process's own compactions.
    wait_at_most: Option<Duration>,
}

impl Plane {
    /// Creates a plane and opens it. An existing file is refused unless `overwrite` is set; then it is replaced
    /// atomically, and handles still open on it fail with `Error::Replaced` from their next call on.
    pub fn create(path: &Path, options: &CreateOptions) -> Result<Plane> {
        create::create(path, options, None)?;
        Self::open(path, &OpenOptions { read_only: false, lock_timeout: options.lock_timeout })
    }

    /// Opens an existing plane. Recovers it first if the machine stopped while it was being written.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Plane> {
        Self::open_with_progress(path, options, &|_, _| true)
    }

    /// `open`, with `progress(done, total)` called now and then while a recovery looks through the slots of the file.
    /// When it returns false, opening ends with `Error::Aborted` and the file is as it was.
    pub fn open_with_progress(path: &Path, options: &OpenOptions, progress: &Progress<'_>) -> Result<Plane> {
        invalidate::check_path(path)?;
        let engine = registry::open(path, options.read_only, options.lock_timeout, progress, None)?;
        let plane = Self::over(engine, path, options);
        // Again: it may have been invalidated while it was recovered.
        plane.check_valid()?;
        Ok(plane)
    }

    pub(crate) fn over(engine: Arc<Engine>, path: &Path, options: &OpenOptions) -> Plane {
        Plane {
            handle: Arc::new(Handle::new(path, options.read_only, engine)),
            lock_timeout: options.lock_timeout,
            wait_at_most: None,
        }
    }

    pub(crate) fn engine(&self) -> Result<Current> {
        self.handle.current()
    }

    /// Runs one write, or a few, on behalf of this handle.
    pub(crate) fn write<T>(&self, write: impl FnMut(&Engine) -> Result<T>) -> Result<T> {
        self.write_while(&|| true, write)
    }

    /// `write` that ends with `Error::Aborted` when it still waits for its turn and `goes_on` says no.
    pub(crate) fn write_while<T>(
        &self,
        goes_on: &dyn Fn() -> bool,
        mut write: impl FnMut(&Engine) -> Result<T>,
    ) -> Result<T> {
        if self.handle.read_only {
            return Err(Error::ReadOnly);
        }
        self.handle.run(|engine| {
            let _turn = engine.begin_write(self.patience().while_it(goes_on))?;
            write(engine)
        })
    }

    fn patience(&self) -> Patience<'static> {
        let patience = Patience::new(self.lock_timeout);
        self.wait_at_most.map_or(patience, |most| patience.at_most(most))
    }

    /// The same plane, whose writes wait no longer than `most`: neither for another process, nor for a compaction or a
    /// snapshot of this one, which they wait for until it ends otherwise.
    pub fn with_lock_timeout_at_most(&self, most: Duration) -> Plane {
        Plane { wait_at_most: Some(most), ..self.clone() }
    }

    /// Whether writes wait for a compaction or a snapshot that this process makes of the plane.
    pub fn stands_still(&self) -> bool {
        self.engine().is_ok_and(|engine| engine.stands_still())
    }

    /// Tells the plane from every other one; snapshots and compactions keep it.
    pub fn uuid(&self) -> [u8; 16] {
        self.handle.uuid
    }

    /// What the plane was made with.
    pub fn config(&self) -> &Config {
        &self.handle.config
    }

    /// The path that the handle was opened with.
    pub fn path(&self) -> &Path {
        &self.handle.path
    }

    /// Whether the handle refuses writes.
    pub fn read_only(&self) -> bool {
        self.handle.read_only
    }

    /// Whether this process had nothing to recover when it opened the file.
    pub fn opened_clean(&self) -> bool {
        self.handle.opened_clean
    }

    /// Live records.
    pub fn count(&self) -> Result<u64> {
        let engine = self.engine()?;
        engine.check_current()?;
        Ok(engine.store.shared().count.load(Ordering::Relaxed).max(0) as u64)
    }

    /// One past the highest id ever given.
    pub fn id_high_water(&self) -> Result<u32> {
        let engine = self.engine()?;
        engine.check_current()?;
        Ok(engine.store.shared().id_high_water.load(Ordering::Acquire))
    }

    /// Where searches start, with its level; `None` when the plane is empty.
    pub fn entry_point(&self) -> Result<Option<(u32, u8)>> {
        let engine = self.engine()?;
        let mut pinned = engine.pin()?;
        Ok(pinned.parts().0.entry_point())
    }

    /// Inserts one record; `key` is empty on planes without keys. Returns its id.
    pub fn insert(&self, vector: &[f32], key: &[u8]) -> Result<u32> {
        self.insert_tagged(vector, key, &TagSet::default())
    }

    /// Inserts one record with tags.
    pub fn insert_tagged(&self, vector: &[f32], key: &[u8], tags: &TagSet) -> Result<u32> {
        let new = NewVector::check(self.config(), vector)?;
        record::check_key(self.config(), key)?;
        self.write(|engine| engine.insert(new, key, tags))
    }

    /// Inserts many records on `threads` threads, 0 for every hardware thread. A bad record is left out and listed; a
    /// fault of the plane ends the batch, and what had landed by then has its id. `progress(done)` is called now and
    /// then, from any of the threads; when it returns false the batch ends with `Error::Aborted`.
    pub fn insert_batch(
        &self,
        batch: Batch<'_>,
        threads: usize,
        progress: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<BatchOutcome> {
        self.insert_batch_tagged(batch, BatchTags::default(), threads, progress)
    }

    /// `insert_batch` of records with tags.
    pub fn insert_batch_tagged(
        &self,
        batch: Batch<'_>,
        tags: BatchTags<'_>,
        threads: usize,
        progress: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<BatchOutcome> {
        if self.handle.read_only {
            return Err(Error::ReadOnly);
        }
        crate::batch::run(self, batch, tags, Mode::Insert, threads, progress)
    }

    /// Inserts a record, or replaces the one that has its key. Returns the new id.
    pub fn upsert(&self, key: &[u8], vector: &[f32]) -> Result<u32> {
        self.upsert_tagged(key, vector, &TagSet::default())
    }

    /// `upsert` of a record with tags, which replace those of the one that had the key.
    pub fn upsert_tagged(&self, key: &[u8], vector: &[f32], tags: &TagSet) -> Result<u32> {
        self.needs_unique_keys()?;
        let new = NewVector::check(self.config(), vector)?;
        record::check_key(self.config(), key)?;
        self.write(|engine| engine.upsert(new, key, tags))
    }

    /// `upsert` for many records, as `insert_batch`; of several with one key the last one counts, and all of them get
    /// its id.
    pub fn upsert_batch(
        &self,
        batch: Batch<'_>,
        threads: usize,
        progress: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<BatchOutcome> {
        self.upsert_batch_tagged(batch, BatchTags::default(), threads, progress)
    }

    /// `upsert_batch` of records with tags.
    pub fn upsert_batch_tagged(
        &self,
        batch: Batch<'_>,
        tags: BatchTags<'_>,
        threads: usize,
        progress: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<BatchOutcome> {
        self.needs_unique_keys()?;
        if self.handle.read_only {
            return Err(Error::ReadOnly);
        }
        crate::batch::run(self, batch, tags, Mode::Upsert, threads, progress)
    }

    /// Removes the record with this key; false when there is none.
    pub fn remove_key(&self, key: &[u8]) -> Result<bool> {
        self.needs_unique_keys()?;
        self.write(|engine| engine.remove_key(key))
    }

    /// Removes many records; returns how many there were.
    pub fn remove_batch(&self, ids: &[u32], progress: &dyn Fn(usize) -> bool) -> Result<u64> {
        let mut removed = 0;
        let mut done = 0;
        for chunk in ids.chunks(64) {
            self.write_while(&|| progress(done), |engine| {
                for &id in chunk {
                    removed += u64::from(engine.remove(id)?);
                }
                Ok(())
            })?;
            done += chunk.len();
            if !progress(done) {
                return Err(Error::Aborted);
            }
        }
        Ok(removed)
    }

    pub(crate) fn needs_unique_keys(&self) -> Result<()> {
        if self.config().unique_keys {
            return Ok(());
        }
        Err(Error::InvalidOption { name: "uniqueKeys", reason: "is needed to reach records by key" })
    }

    /// Removes one record: no search that starts later returns it. False when there is none with this id.
    pub fn remove(&self, id: u32) -> Result<bool> {
        self.write(|engine| engine.remove(id))
    }

    /// The nearest live records.
    pub fn search(&self, vector: &[f32], options: &SearchOptions<'_>) -> Result<Hits> {
        check_range("k", options.k, 0, K_MAX)?;
        let query = self.checked_query(vector)?;
        let engine = self.engine()?;
        filtering::check(&engine.store, options)?;
        let effort = Effort::of(&engine, options)?;
        let config = self.config();
        let mut pinned = engine.pin()?;
        let ranking = ranking(options, &pinned);
        let (graph, scratch) = pinned.parts();
        if options.k == 0 || engine.store.shared().count.load(Ordering::Relaxed) <= 0 {
            return Ok(Hits::default());
        }
        scratch.exact.set(config.metric, query.vector, query.norm);
        scratch.query.set_vector(config.precision, config.metric, query.vector, query.norm);
        Ok(filtering::search(&engine, graph, options, ranking, scratch, |graph, filter, scratch| {
            match (effort, options.within) {
                (Effort::All, _) => graph.scan_filtered(filter, ranking, scratch),
                (Effort::Beam(beam), Some(within)) => {
                    graph.search_within(within, beam.ef, filter, ranking, scratch)
                }
                (Effort::Beam(beam), None) => match filter {
                    Some(filter) => {
                        graph.search_filtered(filter, beam.ef, options.filter_expansion, ranking, scratch)
                    }
                    None => graph.search(beam, ranking, scratch),
                },
            }
        }))
    }

    /// How far the walk of such a search goes; `None` when it looks at every record.
    pub fn beam(&self, options: &SearchOptions<'_>) -> Result<Option<Beam>> {
        Ok(match Effort::of(&*self.engine()?, options)? {
            Effort::Beam(beam) => Some(beam),
            Effort::All => None,
        })
    }

    /// `search` for many queries, row-major, on `threads` threads, 0 for every hardware thread. Answers come in the order
    /// of the queries.
    pub fn search_batch(
        &self,
        queries: &[f32],
        options: &SearchOptions<'_>,
        threads: usize,
    ) -> Result<Vec<Hits>> {
        crate::batch::search(self, queries, options, threads)
    }

    /// The nearest live records by looking at every one: the truth that `search` is measured against.
    pub fn search_exact(&self, vector: &[f32], k: usize, filter: Option<&[u8]>) -> Result<Hits> {
        self.search_exact_with(vector, &SearchOptions { filter, ..SearchOptions::new(k) })
    }

    /// `search_exact` with everything that options can allow, within a distance too; those of walks mean nothing here.
    pub fn search_exact_with(&self, vector: &[f32], options: &SearchOptions<'_>) -> Result<Hits> {
        check_range("k", options.k, 0, K_MAX)?;
        let query = self.checked_query(vector)?;
        let engine = self.engine()?;
        filtering::check(&engine.store, options)?;
        effort::check_within(self.config().metric, options.within)?;
        let mut pinned = engine.pin()?;
        let ranking = ranking(options, &pinned);
        let (graph, scratch) = pinned.parts();
        if options.k == 0 {
            return Ok(Hits::default());
        }
        scratch.exact.set(engine.store.config.metric, query.vector, query.norm);
        let scan = |graph: Graph<'_>, filter: Option<Filter<'_>>, scratch: &mut Scratch| {
            graph.scan(filter.map(|filter| filter.allowed), ranking, scratch)
        };
        let mut hits = filtering::search(&engine, graph, options, ranking, scratch, scan);
        if let Some(within) = options.within {
            hits.cut(within);
        }
        Ok(hits)
    }

    /// Measures how recall grows with the beam width, on the plane's own vectors, and keeps the result in the file, durably:
    /// searches that ask for a recall go by it, in every process. `progress(done, total)` is called now and then, in samples;
    /// when it returns false the call ends with `Error::Aborted` and nothing has changed.
    pub fn calibrate(&self, options: &CalibrateOptions, progress: &Progress<'_>) -> Result<Calibration> {
        if self.handle.read_only {
            return Err(Error::ReadOnly);
        }
        let engine = self.engine()?;
        let curve = calibrate::measure(&engine, options, progress)?;
        drop(engine);
        self.write(|engine| {
            engine.curves.put(&engine.store, curve.clone());
            engine.sync_data()
        })?;
        Ok(curve)
    }

    /// What `calibrate` found, by ascending k.
    pub fn calibrations(&self) -> Result<Vec<Calibration>> {
        let engine = self.engine()?;
        engine.check_current()?;
        let mut curves = engine.curves.get(&engine.store).curves.clone();
        curves.iter_mut().for_each(|curve| curve.stale = engine.is_stale(curve));
        Ok(curves)
    }

    pub(crate) fn checked_query<'v>(&self, vector: &'v [f32]) -> Result<NewVector<'v>> {
        let query = NewVector::check(self.config(), vector)?;
        if self.config().metric == Metric::Cosine && query.norm == 0.0 {
            return Err(Error::ZeroQuery);
        }
        Ok(query)
    }

    /// The id of the live record with this key.
    pub fn id_of(&self, key: &[u8]) -> Result<Option<u32>> {
        self.needs_unique_keys()?;
        let engine = self.engine()?;
        let _pinned = engine.pin()?;
        Ok(find(&engine.store, key))
    }

    /// The id and the vector of the live record with this key; the vector as `vector` gives it.
    pub fn get(&self, key: &[u8]) -> Result<Option<(u32, Vec<f32>)>> {
        self.needs_unique_keys()?;
        let engine = self.engine()?;
        // One pin over both steps: the record found is the one whose vector is read.
        let _pinned = engine.pin()?;
        Ok(find(&engine.store, key).and_then(|id| Some((id, read_vector(&engine.store, id)?))))
    }

    /// A live record's vector: the caller's own bits where an f32 copy is kept, else what the codes decode to.
    pub fn vector(&self, id: u32) -> Result<Option<Vec<f32>>> {
        let engine = self.engine()?;
        let _pinned = engine.pin()?;
        let live = engine.store.node(id).is_some_and(|node| node.is_live());
        Ok(if live { read_vector(&engine.store, id) } else { None })
    }

    /// A live record's key.
    pub fn key(&self, id: u32) -> Result<Option<Vec<u8>>> {
        let engine = self.engine()?;
        let _pinned = engine.pin()?;
        let live = engine.store.node(id).is_some_and(|node| node.is_live());
        // SAFETY: pinned, and seen live.
        Ok(if live { unsafe { record::key(&engine.store, id) }.map(<[u8]>::to_vec) } else { None })
    }

    /// Makes everything acknowledged so far durable, and the watermark with it, if one is given.
    pub fn flush(&self, watermark: Option<u64>) -> Result<()> {
        check_range("watermark", watermark.unwrap_or(0) as usize, 0, WATERMARK_MAX as usize)?;
        if self.handle.read_only {
            return Err(Error::ReadOnly);
        }
        self.handle.run(|engine| engine.flush(self.patience(), watermark))
    }

    /// Whether this process has written something since its last flush.
    pub fn needs_flush(&self) -> bool {
        // A plane that cannot be reached any more has nothing that could be flushed.
        !self.handle.read_only && self.engine().is_ok_and(|engine| engine.needs_flush())
    }

    /// The watermark of the last completed flush.
    pub fn watermark(&self) -> Result<u64> {
        if self.is_invalidated()? {
            return Ok(0);
        }
        Ok(self.engine()?.store.shared().watermark.load(Ordering::Acquire))
    }

    /// Sets the watermark that the next flush makes durable.
    pub fn set_watermark(&self, watermark: u64) -> Result<()> {
        check_range("watermark", watermark as usize, 0, WATERMARK_MAX as usize)?;
        self.write(|engine| {
            engine.store.shared().watermark_pending.store(watermark, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Sizes and counts, without a scan.
    pub fn stats(&self) -> Result<Stats> {
        let engine = self.engine()?;
        verify::stats(&engine)
    }

    /// Walks everything and reports what is wrong. Meant for quiet times: beside writers, records that are being
    /// written may be counted as wrong.
    pub fn verify(&self) -> Result<VerifyReport> {
        let engine = self.engine()?;
        verify::verify(&engine)
    }

    /// Copies the plane, as it is at one moment of the call, to `path`, durably; writers wait only while what has changed
    /// meanwhile is copied again. Something at the path is refused unless `overwrite` is set. `progress(done, total)` is
    /// called now and then, in bytes; when it returns false the call ends with `Error::Aborted`. Whatever makes it fail
    /// leaves nothing behind.
    pub fn snapshot(&self, path: &Path, overwrite: bool, progress: &Progress<'_>) -> Result<()> {
        self.check_valid()?;
        let follower = Follower::new(progress);
        let (goes_on, progress) = (|| follower.goes_on(), |done, total| follower.advance(done, total));
        let patience = self.patience().while_it(&goes_on);
        self.with_source(|engine| snapshot::snapshot(engine, path, overwrite, patience, &progress))
    }

    /// Writes the plane anew, without the room that removals left, and puts the new file in the place of the old one: all
    /// handles of all processes go on with it from their next operation. With a path in the options the new file goes there
    /// instead, and the plane stays as it is. Writers wait, searches do not. `progress(done, total)` is called now and
    /// then, in records; when it returns false the call ends with `Error::Aborted`. Whatever makes it fail leaves nothing
    /// behind.
    pub fn compact(&self, options: &CompactOptions, progress: &Progress<'_>) -> Result<Compacted> {
        self.check_valid()?;
        let follower = Follower::new(progress);
        let (goes_on, progress) = (|| follower.goes_on(), |done, total| follower.advance(done, total));
        let patience = self.patience().while_it(&goes_on);
        let compact = |engine: &Engine| compact::compact(engine, self.path(), options, patience, &progress);
        if options.path.is_some() {
            return self.with_source(compact);
        }
        if self.handle.read_only {
            return Err(Error::ReadOnly);
        }
        let compacted = self.handle.run(compact)?;
        // This handle need not wait for its next operation to let go of the old file.
        let _ = self.engine();
        Ok(compacted)
    }

    /// Runs `copy` on an engine that can make the plane stand still, also for a handle that may not write. Where not even
    /// the file may be written, the copy is what tells whether it stood still.
    fn with_source<T>(&self, mut copy: impl FnMut(&Engine) -> Result<T>) -> Result<T> {
        self.handle.run(|current| match self.handle.writable() {
            Ok(engine) => copy(&engine),
            Err(Error::Io { source, .. }) if is_refusal(&source) => copy(current),
            Err(error) => Err(error),
        })
    }

    /// Whether `vector` gives the caller's own bits (or their f16 rounding) back.
    pub fn has_exact_vectors(&self) -> bool {
        self.config().precision == Precision::F32 || self.config().rerank != Rerank::None
    }
}

/// Whether the operating system does not let this process write a file.
fn is_refusal(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Kind;
    matches!(error.kind(), Kind::PermissionDenied | Kind::ReadOnlyFilesystem)
}

/// The caller is pinned.
pub fn find(store: &Store, key: &[u8]) -> Option<u32> {
    key_index::find(store, KeyHash::new(store, key), |id| {
        let live = store.node(id).is_some_and(|node| node.is_live());
        // SAFETY: pinned, and seen live.
        live && unsafe { record::key(store, id) } == Some(key)
    })
}

/// The caller is pinned and has seen the record live since; by now it may be on its way out.
fn ranking<'q>(options: &SearchOptions<'q>, pinned: &Pinned<'_>) -> Ranking<'q> {
    Ranking { k: options.k, rerank: options.rerank, protected: pinned.protects(), tags: options.tags }
}

pub fn read_vector(store: &Store, id: u32) -> Option<Vec<f32>> {
    let config = &store.config;
    let node = store.node(id)?;
    let mut vector = vec![0.0; config.dims as usize];
    if config.rerank != Rerank::None {
        // SAFETY: pinned, and seen live; the length is the layout's.
        let bytes = unsafe { std::slice::from_raw_parts(store.exact(id), store.layout.exact_bytes as usize) };
        codec::read_exact(config.rerank, node.exact_scale(), bytes, &mut vector);
    } else {
        // SAFETY: as above.
        let codes = unsafe { std::slice::from_raw_parts(node.codes(), store.layout.code_bytes as usize) };
        codec::decode(config.precision, node.scale(), codes, &mut vector);
    }
    Some(vector)
}

pub(crate) fn check_range(name: &'static str, value: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::OutOfRange { name, value: value as u64, min: min as u64, max: max as u64 })
}
