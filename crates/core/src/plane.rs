//! Open, insert, remove, search, flush: the sequence of steps, none of their detail.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::batch::{Batch, BatchOutcome, Mode};
use crate::codec;
use crate::config::Config;
use crate::create;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::graph::search::Ranking;
use crate::hits::Hits;
use crate::key_index::{self, KeyHash};
use crate::options::{CreateOptions, EF_MAX, K_MAX, Metric, OpenOptions, Precision, Rerank, SearchOptions};
use crate::record::{self, NewVector};
use crate::recover::Progress;
use crate::registry;
use crate::report::{Stats, VerifyReport};
use crate::verify;

/// Largest watermark: the largest integer that a JavaScript number holds exactly.
const WATERMARK_MAX: u64 = (1 << 53) - 1;

/// A handle on an open plane. Clones share it, as do other handles of this process on the same file; the file is given
/// back when the last one is dropped.
#[derive(Clone)]
pub struct Plane {
    engine: Arc<Engine>,
    path: PathBuf,
    read_only: bool,
    lock_timeout: Duration,
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
        let engine = registry::open(path, options.read_only, options.lock_timeout, progress, None)?;
        Ok(Self::over(engine, path, options))
    }

    pub(crate) fn over(engine: Arc<Engine>, path: &Path, options: &OpenOptions) -> Plane {
        Plane {
            engine,
            path: path.to_path_buf(),
            read_only: options.read_only,
            lock_timeout: options.lock_timeout,
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Starts a write on behalf of this handle.
    pub(crate) fn begin_write(&self) -> Result<crate::turn::TurnGuard<'_>> {
        if self.read_only { Err(Error::ReadOnly) } else { self.engine().begin_write(self.lock_timeout) }
    }

    /// The same plane, whose writes wait for another process no longer than `most`.
    pub fn with_lock_timeout_at_most(&self, most: Duration) -> Plane {
        Plane { lock_timeout: self.lock_timeout.min(most), ..self.clone() }
    }

    /// What the plane was made with.
    pub fn config(&self) -> &Config {
        &self.engine().store.config
    }

    /// The path that the handle was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the handle refuses writes.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether this process had nothing to recover when it opened the file.
    pub fn opened_clean(&self) -> bool {
        self.engine().opened_clean()
    }

    /// Live records.
    pub fn count(&self) -> Result<u64> {
        self.engine().check_current()?;
        Ok(self.engine().store.shared().count.load(Ordering::Relaxed).max(0) as u64)
    }

    /// One past the highest id ever given.
    pub fn id_high_water(&self) -> Result<u32> {
        self.engine().check_current()?;
        Ok(self.engine().store.shared().id_high_water.load(Ordering::Acquire))
    }

    /// Where searches start, with its level; `None` when the plane is empty.
    pub fn entry_point(&self) -> Result<Option<(u32, u8)>> {
        let mut pinned = self.engine().pin()?;
        Ok(pinned.parts().0.entry_point())
    }

    /// Inserts one record; `key` is empty on planes without keys. Returns its id.
    pub fn insert(&self, vector: &[f32], key: &[u8]) -> Result<u32> {
        let new = NewVector::check(&self.engine().store, vector)?;
        record::check_key(&self.engine().store, key)?;
        let _turn = self.begin_write()?;
        self.engine().insert(new, key)
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
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        crate::batch::run(self, self.engine(), batch, Mode::Insert, threads, progress)
    }

    /// Inserts a record, or replaces the one that has its key. Returns the new id.
    pub fn upsert(&self, key: &[u8], vector: &[f32]) -> Result<u32> {
        self.needs_unique_keys()?;
        let new = NewVector::check(&self.engine().store, vector)?;
        record::check_key(&self.engine().store, key)?;
        let _turn = self.begin_write()?;
        self.engine().upsert(new, key)
    }

    /// `upsert` for many records, as `insert_batch`; of several with one key the last one counts, and all of them get
    /// its id.
    pub fn upsert_batch(
        &self,
        batch: Batch<'_>,
        threads: usize,
        progress: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<BatchOutcome> {
        self.needs_unique_keys()?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        crate::batch::run(self, self.engine(), batch, Mode::Upsert, threads, progress)
    }

    /// Removes the record with this key; false when there is none.
    pub fn remove_key(&self, key: &[u8]) -> Result<bool> {
        self.needs_unique_keys()?;
        let _turn = self.begin_write()?;
        self.engine().remove_key(key)
    }

    /// Removes many records; returns how many there were.
    pub fn remove_batch(&self, ids: &[u32], progress: &dyn Fn(usize) -> bool) -> Result<u64> {
        let mut removed = 0;
        let mut done = 0;
        for chunk in ids.chunks(64) {
            let _turn = self.begin_write()?;
            for &id in chunk {
                removed += u64::from(self.engine().remove(id)?);
            }
            done += chunk.len();
            if !progress(done) {
                return Err(Error::Aborted);
            }
        }
        Ok(removed)
    }

    fn needs_unique_keys(&self) -> Result<()> {
        if self.config().unique_keys {
            return Ok(());
        }
        Err(Error::InvalidOption { name: "uniqueKeys", reason: "is needed to reach records by key" })
    }

    /// Removes one record: no search that starts later returns it. False when there is none with this id.
    pub fn remove(&self, id: u32) -> Result<bool> {
        let _turn = self.begin_write()?;
        self.engine().remove(id)
    }

    /// The nearest live records.
    pub fn search(&self, vector: &[f32], options: &SearchOptions<'_>) -> Result<Hits> {
        check_range("k", options.k, 0, K_MAX)?;
        let ef = options.ef.unwrap_or_else(|| (4 * options.k).clamp(128, EF_MAX)).max(options.k);
        check_range("ef", ef, 1, EF_MAX)?;
        let engine = self.engine();
        let config = &engine.store.config;
        let query = self.checked_query(vector)?;
        let mut pinned = engine.pin()?;
        let ranking = Ranking { k: options.k, rerank: options.rerank, protected: pinned.protects() };
        let (graph, scratch) = pinned.parts();
        if options.k == 0 || engine.store.shared().count.load(Ordering::Relaxed) <= 0 {
            return Ok(Hits::default());
        }
        scratch.exact.set(config.metric, query.vector, query.norm);
        scratch.query.set_vector(config.precision, config.metric, query.vector, query.norm);
        if let Some(filter) = options.filter {
            return Ok(graph.search_filtered(filter, ef, options.filter_expansion, ranking, scratch));
        }
        Ok(graph.search(ef, ranking, scratch))
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
        check_range("k", k, 0, K_MAX)?;
        let engine = self.engine();
        let query = self.checked_query(vector)?;
        let mut pinned = engine.pin()?;
        let ranking = Ranking { k, rerank: true, protected: pinned.protects() };
        let (graph, scratch) = pinned.parts();
        if k == 0 {
            return Ok(Hits::default());
        }
        scratch.exact.set(engine.store.config.metric, query.vector, query.norm);
        Ok(graph.scan(filter, ranking, scratch))
    }

    fn checked_query<'v>(&self, vector: &'v [f32]) -> Result<NewVector<'v>> {
        let query = NewVector::check(&self.engine().store, vector)?;
        if self.config().metric == Metric::Cosine && query.norm == 0.0 {
            return Err(Error::ZeroQuery);
        }
        Ok(query)
    }

    /// The id of the live record with this key.
    pub fn id_of(&self, key: &[u8]) -> Result<Option<u32>> {
        self.needs_unique_keys()?;
        let _pinned = self.engine().pin()?;
        Ok(self.find(key))
    }

    /// The id and the vector of the live record with this key; the vector as `vector` gives it.
    pub fn get(&self, key: &[u8]) -> Result<Option<(u32, Vec<f32>)>> {
        self.needs_unique_keys()?;
        // One pin over both steps: the record found is the one whose vector is read.
        let _pinned = self.engine().pin()?;
        Ok(self.find(key).and_then(|id| Some((id, self.read_vector(id)?))))
    }

    /// The caller is pinned.
    fn find(&self, key: &[u8]) -> Option<u32> {
        let store = &self.engine().store;
        key_index::find(store, KeyHash::new(store, key), |id| {
            let live = store.node(id).is_some_and(|node| node.is_live());
            // SAFETY: pinned, and seen live.
            live && unsafe { record::key(store, id) } == Some(key)
        })
    }

    /// A live record's vector: the caller's own bits where an f32 copy is kept, else what the codes decode to.
    pub fn vector(&self, id: u32) -> Result<Option<Vec<f32>>> {
        let _pinned = self.engine().pin()?;
        let live = self.engine().store.node(id).is_some_and(|node| node.is_live());
        Ok(if live { self.read_vector(id) } else { None })
    }

    /// The caller is pinned and has seen the record live since; by now it may be on its way out.
    fn read_vector(&self, id: u32) -> Option<Vec<f32>> {
        let (store, config) = (&self.engine().store, &self.engine().store.config);
        let node = store.node(id)?;
        let mut vector = vec![0.0; config.dims as usize];
        if config.rerank != Rerank::None {
            // SAFETY: pinned, and seen live; the length is the layout's.
            let bytes =
                unsafe { std::slice::from_raw_parts(store.exact(id), store.layout.exact_bytes as usize) };
            codec::read_exact(config.rerank, node.exact_scale(), bytes, &mut vector);
        } else {
            // SAFETY: as above.
            let codes = unsafe { std::slice::from_raw_parts(node.codes(), store.layout.code_bytes as usize) };
            codec::decode(config.precision, node.scale(), codes, &mut vector);
        }
        Some(vector)
    }

    /// A live record's key.
    pub fn key(&self, id: u32) -> Result<Option<Vec<u8>>> {
        let engine = self.engine();
        let _pinned = engine.pin()?;
        let live = engine.store.node(id).is_some_and(|node| node.is_live());
        // SAFETY: pinned, and seen live.
        Ok(if live { unsafe { record::key(&engine.store, id) }.map(<[u8]>::to_vec) } else { None })
    }

    /// Makes everything acknowledged so far durable, and the watermark with it, if one is given.
    pub fn flush(&self, watermark: Option<u64>) -> Result<()> {
        check_range("watermark", watermark.unwrap_or(0) as usize, 0, WATERMARK_MAX as usize)?;
        if self.read_only { Err(Error::ReadOnly) } else { self.engine().flush(self.lock_timeout, watermark) }
    }

    /// Whether this process has written something since its last flush.
    pub fn needs_flush(&self) -> bool {
        !self.read_only && self.engine().needs_flush()
    }

    /// The watermark of the last completed flush.
    pub fn watermark(&self) -> Result<u64> {
        self.engine().check_current()?;
        Ok(self.engine().store.shared().watermark.load(Ordering::Acquire))
    }

    /// Sets the watermark that the next flush makes durable.
    pub fn set_watermark(&self, watermark: u64) -> Result<()> {
        check_range("watermark", watermark as usize, 0, WATERMARK_MAX as usize)?;
        let _turn = self.begin_write()?;
        self.engine().store.shared().watermark_pending.store(watermark, Ordering::Relaxed);
        Ok(())
    }

    /// Sizes and counts, without a scan.
    pub fn stats(&self) -> Result<Stats> {
        verify::stats(self.engine())
    }

    /// Walks everything and reports what is wrong. Meant for quiet times: beside writers, records that are being
    /// written may be counted as wrong.
    pub fn verify(&self) -> Result<VerifyReport> {
        verify::verify(self.engine())
    }

    /// Whether `vector` gives the caller's own bits (or their f16 rounding) back.
    pub fn has_exact_vectors(&self) -> bool {
        self.config().precision == Precision::F32 || self.config().rerank != Rerank::None
    }
}

fn check_range(name: &'static str, value: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::OutOfRange { name, value: value as u64, min: min as u64, max: max as u64 })
}
