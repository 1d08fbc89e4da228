//! The class behind `Plane`: each method reads check -> call core -> convert.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use napi::bindgen_prelude::{BufferSlice, Object};
use napi::{Env, JsValue, sys};
use napi_derive::napi;
use vecplane_core::{
    CalibrateOptions, CompactOptions, Compacted, Error, Plane, PredicateOptions, RawNode, Result,
    SearchOptions, VerifyReport,
};

use crate::calibration::calibration_to_js;
use crate::control::{NativeControl, Staged};
use crate::convert::*;
use crate::error::{self, Failure, Outcome, guarded};
use crate::mirror::invalidation;
use crate::options::{METRICS, PRECISIONS, RERANKS, create_options, name, open_options};
use crate::predicate::NativePredicateSearch;
use crate::task::{Shared, on_pool, on_pool_in_turn, on_thread};

/// How long a synchronous write waits for another process.
const SYNC_LOCK_TIMEOUT: Duration = Duration::from_millis(50);

/// Takes the class that engine errors are made with.
#[napi]
pub fn set_plane_error(env: Env, plane_error: Any) -> napi::Result<()> {
    error::set_plane_error_class(env.raw(), plane_error.0.raw())
}

/// An open plane; empty once closed.
#[napi]
pub struct NativePlane(RefCell<Option<Arc<Shared>>>);

#[napi]
impl NativePlane {
    #[napi(factory)]
    pub fn create(env: Env, path: FilePath, options: Any) -> napi::Result<NativePlane> {
        opened(env, || Ok(Plane::create(&path.0, &create_options(options.0)?)?))
    }

    #[napi(factory)]
    pub fn open(env: Env, path: FilePath, options: Any) -> napi::Result<NativePlane> {
        opened(env, || Ok(Plane::open(&path.0, &open_options(options.0)?)?))
    }

    #[napi]
    pub fn open_async(
        env: Env,
        path: FilePath,
        options: Any,
        control: &NativeControl,
    ) -> napi::Result<Returned> {
        let options = open_options(options.0).map_err(|failure| failure.raise(env.raw()))?;
        let control = control.shared();
        let open = move || {
            control.check()?;
            Ok(Plane::open_with_progress(&path.0, &options, &|done, total| control.advance_of(done, total))?)
        };
        let convert = |env, plane| to_js(env, NativePlane(RefCell::new(Some(Shared::new(plane)))));
        on_thread(&env, None, open, convert)
    }

    #[napi]
    pub fn close(&self, env: Env) -> napi::Result<Returned> {
        let shared = self.shared(env)?;
        self.0.take();
        shared.close(&env)
    }

    /// What never changes while the plane is open.
    #[napi]
    pub fn info<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        let shared = self.shared(*env)?;
        let plane = shared.plane();
        let config = plane.config();
        let mut info = Object::new(env)?;
        info.set("path", plane.path().to_string_lossy().as_ref())?;
        info.set("readOnly", plane.read_only())?;
        info.set("openedClean", plane.opened_clean())?;
        info.set("dims", config.dims)?;
        info.set("metric", name(&METRICS, config.metric))?;
        info.set("precision", name(&PRECISIONS, config.precision))?;
        info.set("rerank", name(&RERANKS, config.rerank))?;
        info.set("M", config.m)?;
        info.set("layer0Cap", config.layer0_cap)?;
        info.set("efConstruction", config.ef_construction)?;
        info.set("keyCap", config.key_cap)?;
        info.set("uniqueKeys", config.unique_keys)?;
        config.max_nodes.map_or(Ok(()), |max_nodes| info.set("maxNodes", max_nodes))?;
        Ok(info)
    }

    #[napi]
    pub fn count(&self, env: Env) -> napi::Result<f64> {
        self.read(env, |plane| Ok(plane.count()? as f64))
    }

    #[napi]
    pub fn id_high_water(&self, env: Env) -> napi::Result<u32> {
        self.read(env, |plane| plane.id_high_water())
    }

    #[napi]
    pub fn entry_point(&self, env: Env) -> napi::Result<Option<Vec<u32>>> {
        self.read(env, |plane| Ok(plane.entry_point()?.map(|(id, level)| vec![id, level.into()])))
    }

    #[napi]
    pub fn insert(
        &self,
        env: Env,
        vector: Vector,
        key: OptionalKey,
        tags: OptionalTags,
    ) -> napi::Result<u32> {
        self.write(env, |plane| plane.insert_tagged(&vector.0, &key.0, &tags.0))
    }

    #[napi]
    pub fn insert_async(
        &self,
        env: Env,
        vector: Vector,
        key: OptionalKey,
        tags: OptionalTags,
    ) -> napi::Result<Returned> {
        self.write_async(&env, move |plane| plane.insert_tagged(&vector.0, &key.0, &tags.0))
    }

    #[napi]
    pub fn upsert(&self, env: Env, key: Key, vector: Vector, tags: OptionalTags) -> napi::Result<u32> {
        self.write(env, |plane| plane.upsert_tagged(&key.0, &vector.0, &tags.0))
    }

    #[napi]
    pub fn upsert_async(
        &self,
        env: Env,
        key: Key,
        vector: Vector,
        tags: OptionalTags,
    ) -> napi::Result<Returned> {
        self.write_async(&env, move |plane| plane.upsert_tagged(&key.0, &vector.0, &tags.0))
    }

    /// `insertBatch`, or `upsertBatch`.
    #[napi]
    #[allow(clippy::too_many_arguments)] // As many as `index.js` has to hand over.
    pub fn write_batch(
        &self,
        env: Env,
        upsert: bool,
        vectors: Vectors,
        keys: Keys,
        key_ends: KeyEnds,
        threads: Threads,
        tags: TagColumn,
        control: &NativeControl,
    ) -> napi::Result<Returned> {
        let staged = Staged { shared: self.shared(env)?, vectors: vectors.0, keys: keys.0 };
        staged.write(env, upsert, key_ends, threads, tags, control)
    }

    /// Starts a batch that `control` takes piece by piece; a handle that is closed meanwhile waits for it.
    #[napi]
    pub fn stage(&self, env: Env, control: &NativeControl) -> napi::Result<()> {
        control.stage(self.shared(env)?);
        Ok(())
    }

    #[napi]
    pub fn remove(&self, env: Env, id: Id) -> napi::Result<bool> {
        self.write(env, |plane| plane.remove(id.0))
    }

    #[napi]
    pub fn remove_batch(&self, env: Env, ids: Ids) -> napi::Result<f64> {
        self.write(env, |plane| Ok(plane.remove_batch(&ids.0, &|_| true)? as f64))
    }

    #[napi]
    pub fn remove_batch_async(&self, env: Env, ids: Ids) -> napi::Result<Returned> {
        let shared = self.shared(env)?;
        let lane = Some(Arc::clone(&shared));
        on_thread(&env, lane, move || Ok(shared.writing().remove_batch(&ids.0, &|_| true)? as f64), to_js)
    }

    #[napi]
    pub fn remove_key(&self, env: Env, key: Key) -> napi::Result<bool> {
        self.write(env, |plane| plane.remove_key(&key.0))
    }

    #[napi]
    pub fn id_of(&self, env: Env, key: Key) -> napi::Result<Option<u32>> {
        self.read(env, |plane| plane.id_of(&key.0))
    }

    #[napi]
    pub fn key_of<'env>(&self, env: &'env Env, id: Id) -> napi::Result<Option<BufferSlice<'env>>> {
        let key = self.read(*env, |plane| plane.key(id.0))?;
        key.map(|key| BufferSlice::copy_from(env, key)).transpose()
    }

    #[napi]
    pub fn get(&self, env: Env, key: Key) -> napi::Result<Option<Returned>> {
        vector(env.raw(), self.read(env, |plane| Ok(plane.get(&key.0)?.map(|(_, vector)| vector)))?)
    }

    #[napi]
    pub fn get_by_id(&self, env: Env, id: Id) -> napi::Result<Option<Returned>> {
        vector(env.raw(), self.read(env, |plane| plane.vector(id.0))?)
    }

    #[napi]
    #[allow(clippy::too_many_arguments)] // An object would cost more to read than the search has to spare.
    pub fn search_sync(
        &self,
        env: Env,
        vector: Vector,
        k: K,
        ef: Ef,
        filter: Filter,
        expansion: Expansion,
        rerank: Rerank,
        recall: Recall,
        within: Within,
    ) -> napi::Result<Returned> {
        let query = Query(vector, k, ef, filter, expansion, rerank, recall, within);
        hits(env.raw(), self.read(env, |plane| query.search(plane))?).map(Returned)
    }

    #[napi]
    #[allow(clippy::too_many_arguments)] // As above.
    pub fn search(
        &self,
        env: Env,
        vector: Vector,
        k: K,
        ef: Ef,
        filter: Filter,
        expansion: Expansion,
        rerank: Rerank,
        recall: Recall,
        within: Within,
        control: Option<&NativeControl>,
    ) -> napi::Result<Returned> {
        let shared = self.shared(env)?;
        let query = Query(vector, k, ef, filter, expansion, rerank, recall, within);
        let control = control.map(|control| control.shared()).unwrap_or_default();
        let search = move || {
            control.check()?;
            Ok(query.search(shared.plane())?)
        };
        on_pool(&env, search, hits)
    }

    #[napi]
    #[allow(clippy::too_many_arguments)] // As above.
    pub fn search_batch(
        &self,
        env: Env,
        vectors: Vectors,
        k: K,
        ef: Ef,
        filter: Filter,
        rerank: Rerank,
        recall: Recall,
        within: Within,
        threads: Threads,
    ) -> napi::Result<Returned> {
        let shared = self.shared(env)?;
        let query = Query(Vector(vectors.0), k, ef, filter, Expansion(None), rerank, recall, within);
        on_thread(&env, None, move || Ok(query.search_batch(shared.plane(), threads.0)?), answers)
    }

    #[napi]
    pub fn search_exact(
        &self,
        env: Env,
        vector: Vector,
        k: K,
        filter: Filter,
        within: Within,
    ) -> napi::Result<Returned> {
        let mut options = SearchOptions::new(k.0);
        filter.0.apply(&mut options);
        options.within = within.0;
        let found = self.read(env, |plane| plane.search_exact_with(&vector.0, &options))?;
        hits(env.raw(), found).map(Returned)
    }

    #[napi]
    pub fn search_exact_async(
        &self,
        env: Env,
        vector: Vector,
        k: K,
        filter: Filter,
        within: Within,
    ) -> napi::Result<Returned> {
        let shared = self.shared(env)?;
        let search = move || {
            let mut options = SearchOptions::new(k.0);
            filter.0.apply(&mut options);
            options.within = within.0;
            Ok(shared.plane().search_exact_with(&vector.0, &options)?)
        };
        on_pool(&env, search, hits)
    }

    #[napi]
    #[allow(clippy::too_many_arguments)] // As above.
    pub fn search_with_predicate(
        &self,
        env: Env,
        vector: Vector,
        k: K,
        ef: Ef,
        expansion: Expansion,
        budget: Budget,
        rerank: Rerank,
    ) -> napi::Result<NativePredicateSearch> {
        let shared = self.shared(env)?;
        let mut options = PredicateOptions::new(k.0);
        options.ef = ef.0;
        options.filter_expansion = expansion.0.unwrap_or(options.filter_expansion);
        options.visit_budget = budget.0;
        options.rerank = rerank.0;
        let start = || NativePredicateSearch::start(shared, &vector.0, &options);
        guarded(start).map_err(|failure| failure.raise(env.raw()))
    }

    #[napi]
    pub fn calibrate(
        &self,
        env: Env,
        k: CalibratedK,
        samples: Samples,
        threads: Threads,
        control: &NativeControl,
    ) -> napi::Result<Returned> {
        let (shared, control) = (self.shared(env)?, control.shared());
        let lane = Some(Arc::clone(&shared));
        let default = CalibrateOptions::default();
        let samples = samples.0.unwrap_or(default.samples);
        let options = CalibrateOptions { k: k.0, samples, threads: threads.0 };
        let calibrate = move || {
            control.check()?;
            Ok(shared.writing().calibrate(&options, &|done, total| control.advance_of(done, total))?)
        };
        on_thread(&env, lane, calibrate, |env, curve| calibration_to_js(env, &curve))
    }

    #[napi]
    pub fn calibration(&self, env: Env) -> napi::Result<Vec<Returned>> {
        let curves = self.read(env, |plane| plane.calibrations())?;
        curves.iter().map(|curve| calibration_to_js(env.raw(), curve).map(Returned)).collect()
    }

    #[napi]
    pub fn flush(&self, env: Env, watermark: OptionalWatermark) -> napi::Result<()> {
        self.read(env, |plane| plane.flush(watermark.0))
    }

    #[napi]
    pub fn flush_async(&self, env: Env, watermark: OptionalWatermark) -> napi::Result<Returned> {
        on_pool_in_turn(&env, self.shared(env)?, move |shared| Ok(shared.plane().flush(watermark.0)?), to_js)
    }

    #[napi]
    pub fn watermark(&self, env: Env) -> napi::Result<f64> {
        self.read(env, |plane| Ok(plane.watermark()? as f64))
    }

    #[napi]
    pub fn set_watermark(&self, env: Env, watermark: Watermark) -> napi::Result<()> {
        self.write(env, |plane| plane.set_watermark(watermark.0))
    }

    #[napi]
    #[allow(clippy::too_many_arguments)] // As published.
    pub fn write_node_raw(
        &self,
        env: Env,
        only_if_absent: bool,
        id: Id,
        level: Level,
        vector: RawVector,
        scale: Scale,
        inv_mag: InvMag,
        neighbors: Neighbors,
        upper: Upper,
        upper_ends: UpperEnds,
        key: MaybeKey,
    ) -> napi::Result<bool> {
        let mut start = 0;
        let ends = upper_ends.0.iter().map(|end| *end as usize);
        let upper: Vec<Vec<u32>> =
            ends.map(|end| upper.0[std::mem::replace(&mut start, end)..end].to_vec()).collect();
        let node = RawNode {
            level: level.0,
            codes: &vector.0,
            scale: scale.0,
            inverse_norm: inv_mag.0,
            links: &neighbors.0,
            upper: &upper,
            key: key.0.as_deref(),
        };
        self.write(env, |plane| plane.write_node_raw(id.0, &node, only_if_absent))
    }

    #[napi]
    pub fn clear_node(&self, env: Env, id: Id) -> napi::Result<bool> {
        self.write(env, |plane| plane.clear_node(id.0))
    }

    #[napi]
    pub fn set_entry_point(&self, env: Env, id: Id, level: Level) -> napi::Result<()> {
        self.write(env, |plane| plane.set_entry_point(id.0, level.0))
    }

    #[napi]
    pub fn invalidate(&self, env: Env) -> napi::Result<()> {
        self.read(env, |plane| plane.invalidate())
    }

    #[napi]
    pub fn invalidate_file(&self, env: &Env) -> napi::Result<Returned> {
        let done = self.read(*env, |plane| plane.invalidate_file())?;
        invalidation(env.raw(), done).map(Returned)
    }

    #[napi]
    pub fn invalidated(&self, env: Env) -> napi::Result<bool> {
        self.read(env, |plane| plane.is_invalidated())
    }

    #[napi]
    pub fn snapshot(
        &self,
        env: Env,
        path: FilePath,
        overwrite: Overwrite,
        control: &NativeControl,
    ) -> napi::Result<Returned> {
        let (shared, control) = (self.shared(env)?, control.shared());
        let copy = move || {
            let progress = |done, total| control.advance_of(done, total);
            Ok(shared.plane().snapshot(&path.0, overwrite.0, &progress)?)
        };
        on_thread(&env, None, copy, to_js)
    }

    #[napi]
    #[allow(clippy::too_many_arguments)] // One for each option.
    pub fn compact(
        &self,
        env: Env,
        path: OptionalPath,
        overwrite: Overwrite,
        renumber: Renumber,
        relink: Relink,
        threads: Threads,
        control: &NativeControl,
    ) -> napi::Result<Returned> {
        let (shared, control) = (self.shared(env)?, control.shared());
        let options = CompactOptions {
            path: path.0,
            overwrite: overwrite.0,
            renumber: renumber.0,
            relink: relink.0,
            threads: threads.0,
        };
        let (lane, compaction) = (Arc::clone(&shared), shared.gate.compaction());
        let compact = move || {
            control.check()?;
            compaction.wait_for_writes(&control)?;
            let progress = |done, total| control.advance_of(done, total);
            let plane = shared.plane();
            let ids = options.renumber;
            Ok((plane.compact(&options, &progress)?, ids))
        };
        on_thread(&env, Some(lane), compact, compacted_to_js)
    }

    #[napi]
    pub fn stats<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        let stats = self.read(*env, |plane| plane.stats())?;
        let mut object = Object::new(env)?;
        for (name, number) in [
            ("count", stats.count),
            ("idHighWater", stats.id_high_water.into()),
            ("limbo", stats.limbo.into()),
            ("free", stats.free.into()),
            ("maxLevel", stats.max_level.into()),
            ("fileBytes", stats.file_bytes),
            ("slotBytes", stats.slot_bytes.into()),
            ("exactBytes", stats.exact_bytes.into()),
            ("keyEntryBytes", stats.key_entry_bytes.into()),
            ("heapBytes", stats.heap_bytes),
            ("longKeyBytes", stats.long_key_bytes),
            ("tagCopyBytes", stats.tag_copy_bytes),
            ("extents", stats.extents.into()),
            ("flushes", stats.flushes),
        ] {
            object.set(name, number as f64)?;
        }
        object.set("kernels", stats.kernels)?;
        object.set("writing", stats.writing)?;
        object.set("copyOnWrite", stats.copy_on_write)?;
        object.set("calibrationStale", stats.calibration_stale)?;
        Ok(object)
    }

    #[napi]
    pub fn verify(&self, env: Env) -> napi::Result<Returned> {
        let shared = self.shared(env)?;
        on_thread(&env, None, move || Ok(shared.plane().verify()?), report_to_js)
    }
}

impl NativePlane {
    /// A share of the plane for one call.
    fn shared(&self, env: Env) -> napi::Result<Arc<Shared>> {
        self.0.borrow().clone().ok_or_else(|| Failure::from(Error::Closed).raise(env.raw()))
    }

    pub fn read<T>(&self, env: Env, call: impl FnOnce(&Plane) -> Result<T>) -> napi::Result<T> {
        let shared = self.shared(env)?;
        guarded(|| Ok(call(shared.plane())?)).map_err(|failure| failure.raise(env.raw()))
    }

    fn write_async(
        &self,
        env: &Env,
        call: impl FnOnce(&Plane) -> Result<u32> + Send + 'static,
    ) -> napi::Result<Returned> {
        on_pool_in_turn(env, self.shared(*env)?, |shared| Ok(call(shared.writing())?), to_js)
    }

    fn write<T>(&self, env: Env, call: impl FnOnce(&Plane) -> Result<T>) -> napi::Result<T> {
        let shared = self.shared(env)?;
        // The event loop stands still meanwhile, so another process's turn is waited for only briefly.
        let plane = shared.writing().with_lock_timeout_at_most(SYNC_LOCK_TIMEOUT);
        guarded(|| Ok(call(&plane)?)).map_err(|failure| failure.raise(env.raw()))
    }
}

fn opened(env: Env, open: impl FnOnce() -> Outcome<Plane>) -> napi::Result<NativePlane> {
    let plane = guarded(open).map_err(|failure| failure.raise(env.raw()))?;
    Ok(NativePlane(RefCell::new(Some(Shared::new(plane)))))
}

fn compacted_to_js(env: sys::napi_env, compacted: (Compacted, bool)) -> napi::Result<sys::napi_value> {
    let (compacted, renumbered) = compacted;
    let mut object = Object::new(&Env::from_raw(env))?;
    object.set("bytesBefore", compacted.bytes_before as f64)?;
    object.set("bytesAfter", compacted.bytes_after as f64)?;
    if renumbered {
        object.set("newIds", ids(env, &compacted.new_ids)?)?;
    }
    Ok(object.raw())
}

fn report_to_js(env: sys::napi_env, report: VerifyReport) -> napi::Result<sys::napi_value> {
    let mut object = Object::new(&Env::from_raw(env))?;
    object.set("ok", report.ok())?;
    for (name, number) in [
        ("live", report.live),
        ("checksumFailures", report.checksum_failures),
        ("invalidLinks", report.invalid_links),
        ("danglingLinks", report.dangling_links),
        ("unreachable", report.unreachable),
        ("unlinked", report.unlinked),
        ("keyIndexMismatches", report.key_index_mismatches),
        ("invalidRecords", report.invalid_records),
        ("lostSlots", report.lost_slots),
    ] {
        object.set(name, number as f64)?;
    }
    object.set("examples", ids(env, &report.examples)?)?;
    Ok(object.raw())
}
