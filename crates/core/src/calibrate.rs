//! Measuring recall on a plane's own vectors, each held out of the graph while it is the query.
//!
//! A record that is asked for by its own vector must not find itself, and must not lead to its neighbours either: both
//! would make the graph look better than it is to queries from outside. So walks take it for absent.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::batch::on_threads;
use crate::calibration::{
    Calibration, Found, K_CALIBRATED_MAX, RECORDS_MIN, SAMPLES_MAX, SAMPLES_MIN, ladder,
};
use crate::codec;
use crate::distance::Query;
use crate::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::graph::held_out::{Detours, HeldOut};
use crate::graph::node::Node;
use crate::graph::pool::{self, Pool};
use crate::graph::rows::Rows;
use crate::graph::search::Ranking;
use crate::graph::stop::{self, Beam, Log, Stop};
use crate::graph::{Graph, Scratch};
use crate::options::Metric;
use crate::plane::{check_range, read_vector};
use crate::recover::Progress;

/// Samples that a thread takes at a time: so many share each look at a record.
const GROUP: usize = 64;
/// Records scored for all samples of a group before the next ones are.
const BLOCK: u32 = 64;
/// Records looked at under one pin, which holds back the reuse of removed slots.
const PINNED: u32 = 1 << 14;
/// Beam widths in a row at which a sample found all: it would with wider ones.
const COMPLETE: usize = 2;
/// Samples whose walks tell which factors stand for which beam widths. What the factors find is measured with all samples.
const LOGGED: usize = 256;

/// How a plane is calibrated.
#[derive(Clone, Copy, Debug)]
pub struct CalibrateOptions {
    /// Neighbours to ask for, 1 to 1,024.
    pub k: usize,
    /// Vectors to ask with, 100 to 100,000; all of a plane that has fewer.
    pub samples: usize,
    /// Threads to work on, 0 for every hardware thread.
    pub threads: usize,
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        CalibrateOptions { k: 10, samples: 4000, threads: 0 }
    }
}

/// Measures recall for one `k`. Does not change the plane.
pub fn measure(engine: &Engine, options: &CalibrateOptions, progress: &Progress<'_>) -> Result<Calibration> {
    check_range("k", options.k, 1, K_CALIBRATED_MAX)?;
    check_range("samples", options.samples, SAMPLES_MIN, SAMPLES_MAX)?;
    let shared = engine.store.shared();
    let count = shared.count.load(Ordering::Relaxed).max(0) as u64;
    let churn = shared.churn.load(Ordering::Relaxed);
    let min = RECORDS_MIN.max(2 * options.k as u64);
    if count < min {
        return Err(Error::TooSmall { count, min });
    }
    let ids = sample(engine, options.samples)?;
    let run = Run {
        engine,
        k: options.k,
        threads: options.threads,
        efs: ladder(options.k),
        ids: &ids,
        done: AtomicUsize::new(0),
        stopped: AtomicBool::new(false),
        progress,
    };
    let factors = run.factors()?;
    let found = Mutex::new(Vec::new());
    run.over(ids.chunks(GROUP), |ids| run.group(ids, &factors, &found))?;
    let found = found.into_inner().unwrap_or_else(|e| e.into_inner());
    if found.is_empty() {
        // All removed meanwhile, or without a direction.
        return Err(Error::TooSmall { count: 0, min });
    }
    Ok(Calibration::fit(options.k, &run.efs, &factors, &found, count, churn))
}

/// Picks ids evenly among those of live records, in ascending order.
fn sample(engine: &Engine, wanted: usize) -> Result<Vec<u32>> {
    let mut state = engine.store.config.seed;
    let mut random = move || {
        // SplitMix64 (Steele, Lea and Flood, 2014): the same plane gives the same samples.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let mut pinned = engine.pin()?;
    let (graph, _) = pinned.parts();
    // Every walk starts from these two: one without them would tell nothing of the others.
    let starts = [graph.entry_point().map(|(id, _)| id), graph.root()];
    let live =
        |id: &u32| graph.slots.get(*id).is_some_and(|node| node.is_live()) && !starts.contains(&Some(*id));
    let mut ids: Vec<u32> = Vec::new();
    for (seen, id) in (0..graph.slots.limit()).filter(live).enumerate() {
        // Reservoir sampling (Vitter, 1985, algorithm R).
        if ids.len() < wanted {
            ids.push(id);
        } else if let Some(place) = ids.get_mut((random() % (seen as u64 + 1)) as usize) {
            *place = id;
        }
    }
    ids.sort_unstable();
    Ok(ids)
}

/// A measurement under way, shared by its threads.
struct Run<'a> {
    engine: &'a Engine,
    k: usize,
    threads: usize,
    efs: Vec<usize>,
    ids: &'a [u32],
    done: AtomicUsize,
    stopped: AtomicBool,
    progress: &'a Progress<'a>,
}

/// A record in the role of a query.
struct Sample {
    id: u32,
    vector: Vec<f32>,
    norm: f64,
}

impl Sample {
    fn prepare(&self, engine: &Engine, scratch: &mut Scratch) {
        let config = &engine.store.config;
        scratch.exact.set(config.metric, &self.vector, self.norm);
        scratch.query.set_vector(config.precision, config.metric, &self.vector, self.norm);
    }
}

impl Run<'_> {
    /// Works on parts of the samples side by side, until there are none left or one fails.
    fn over<'a>(
        &self,
        parts: impl ExactSizeIterator<Item = &'a [u32]> + Clone + Sync,
        work: impl Fn(&[u32]) -> Result<()> + Sync,
    ) -> Result<()> {
        let (next, fault) = (AtomicUsize::new(0), Mutex::new(None));
        on_threads(self.threads, parts.len(), || {
            while let Some(ids) = parts.clone().nth(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = work(ids) {
                    self.stopped.store(true, Ordering::Relaxed);
                    lock(&fault).get_or_insert(error);
                    return;
                }
            }
        });
        fault.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
    }

    fn go_on(&self) -> Result<()> {
        let going = !self.stopped.load(Ordering::Relaxed)
            && (self.progress)(self.done.load(Ordering::Relaxed) as u64, self.ids.len() as u64);
        if going { Ok(()) } else { Err(Error::Aborted) }
    }

    /// A factor for each beam width, with which walks that end by distance go as far on average; none for inner products,
    /// which are no distances.
    fn factors(&self) -> Result<Vec<f32>> {
        if self.engine.store.config.metric == Metric::InnerProduct {
            return Ok(Vec::new());
        }
        let logged: Vec<u32> = self.ids.iter().copied().step_by(self.ids.len().div_ceil(LOGGED)).collect();
        let logs: Mutex<Vec<Log>> = Mutex::default();
        self.over(logged.chunks(GROUP / 4), |ids| {
            for sample in self.samples(ids)? {
                self.go_on()?;
                let mut held_out = self.hold_out(sample.id)?;
                held_out.given = Detours::Two;
                let log = self
                    .without(&mut held_out, &sample, |graph, _, scratch| graph.log_walk(self.k, scratch))?;
                lock(&logs).push(log);
            }
            Ok(())
        })?;
        let logs = logs.into_inner().unwrap_or_else(|e| e.into_inner());
        Ok(self.efs.iter().map(|ef| stop::fit(&logs, *ef)).collect())
    }

    fn group(&self, ids: &[u32], factors: &[f32], found: &Mutex<Vec<Found>>) -> Result<()> {
        let samples = self.samples(ids)?;
        let truth = self.truth(&samples)?;
        for (sample, farthest) in samples.iter().zip(truth) {
            let mut held_out = self.hold_out(sample.id)?;
            let plain = self.efs.iter().map(|ef| Beam::plain(*ef));
            let adaptive = self
                .efs
                .iter()
                .zip(factors)
                .map(|(ef, factor)| Beam { ef: *ef, stop: Some(Stop { rank: self.k, factor: *factor }) });
            let plain = self.climb(sample, farthest, &mut held_out, plain)?;
            held_out.given = Detours::Two;
            let adaptive = self.climb(sample, farthest, &mut held_out, adaptive)?;
            lock(found).push(Found { plain, adaptive });
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        // Those that were removed meanwhile.
        self.done.fetch_add(ids.len() - samples.len(), Ordering::Relaxed);
        self.go_on()
    }

    fn samples(&self, ids: &[u32]) -> Result<Vec<Sample>> {
        let store = &self.engine.store;
        let _pinned = self.engine.pin()?;
        let sample = |&id: &u32| {
            store.node(id).filter(|node| node.is_live())?;
            let vector = read_vector(store, id)?;
            let norm = codec::checked_norm(&vector).ok()?;
            // A zero vector is refused as a query.
            (store.config.metric != Metric::Cosine || norm > 0.0).then_some(Sample { id, vector, norm })
        };
        Ok(ids.iter().filter_map(sample).collect())
    }

    /// How far the k-th nearest of each sample is: all codes are looked at, and several times k of the nearest ranked by
    /// their final distances.
    fn truth(&self, samples: &[Sample]) -> Result<Vec<f32>> {
        let config = &self.engine.store.config;
        let mut scans: Vec<(u32, Query, Pool)> = samples
            .iter()
            .map(|sample| {
                let (mut query, mut best) = (Query::new(), Pool::default());
                query.set_vector(config.precision, config.metric, &sample.vector, sample.norm);
                best.reset(4 * self.k + 64);
                (sample.id, query, best)
            })
            .collect();
        let limit = self.engine.store.shared().id_high_water.load(Ordering::Acquire);
        let mut rows = Rows::default();
        for from in (0..limit).step_by(PINNED as usize) {
            self.go_on()?;
            let mut pinned = self.engine.pin()?;
            let (graph, _) = pinned.parts();
            let to = from.saturating_add(PINNED).min(limit);
            for from in (from..to).step_by(BLOCK as usize) {
                graph.collect(from..(from + BLOCK).min(to), &mut rows, Node::is_live);
                for (own, query, best) in &mut scans {
                    graph.score_collected(query, &mut rows, |id, distance| {
                        if id != *own {
                            best.insert(pool::entry(distance, id));
                        }
                    });
                }
            }
        }
        scans.into_iter().zip(samples).map(|((_, _, best), sample)| self.farthest(&best, sample)).collect()
    }

    fn farthest(&self, best: &Pool, sample: &Sample) -> Result<f32> {
        let mut pinned = self.engine.pin()?;
        let ranking = Ranking { k: self.k, rerank: true, protected: pinned.protects(), tags: None };
        let (graph, scratch) = pinned.parts();
        sample.prepare(self.engine, scratch);
        let found: Vec<u32> = best.entries().iter().map(|entry| pool::id(*entry)).collect();
        let hits = graph.answer(&found, ranking, scratch);
        // Fewer, when records were removed meanwhile.
        Ok(if hits.len() < self.k { f32::INFINITY } else { hits.distances[self.k - 1] })
    }

    fn hold_out(&self, id: u32) -> Result<HeldOut> {
        let mut pinned = self.engine.pin()?;
        let (graph, scratch) = pinned.parts();
        Ok(graph.hold_out(id, scratch))
    }

    /// Has a sample's walk take its record for absent.
    fn without<T>(
        &self,
        held_out: &mut HeldOut,
        sample: &Sample,
        walk: impl FnOnce(Graph<'_>, Ranking<'_>, &mut Scratch) -> T,
    ) -> Result<T> {
        let mut pinned = self.engine.pin()?;
        let ranking = Ranking { k: self.k, rerank: true, protected: pinned.protects(), tags: None };
        let (graph, scratch) = pinned.parts();
        std::mem::swap(&mut scratch.walk.held_out, held_out);
        sample.prepare(self.engine, scratch);
        let found = walk(graph, ranking, scratch);
        std::mem::swap(&mut scratch.walk.held_out, held_out);
        Ok(found)
    }

    /// How many of its k nearest the sample finds with each of these beams, ascending. One as near as the k-th counts, whichever
    /// it is.
    fn climb(
        &self,
        sample: &Sample,
        farthest: f32,
        held_out: &mut HeldOut,
        beams: impl ExactSizeIterator<Item = Beam>,
    ) -> Result<Vec<u32>> {
        let points = beams.len();
        let mut found = Vec::with_capacity(points);
        for beam in beams {
            self.go_on()?;
            let search = |graph: Graph<'_>, ranking: Ranking<'_>, scratch: &mut Scratch| {
                graph.search(beam, ranking, scratch)
            };
            let hits = self.without(held_out, sample, search)?;
            found.push(hits.distances.iter().filter(|distance| **distance <= farthest).count() as u32);
            let complete = found.iter().rev().take_while(|found| **found as usize == self.k).count();
            if complete == COMPLETE {
                found.resize(points, self.k as u32);
                break;
            }
        }
        Ok(found)
    }
}
