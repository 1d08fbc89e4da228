//! A search that asks its caller which records it may return, a batch at a time.
//!
//! It is a machine that the caller drives: `advance` walks as far as it makes sense without further verdicts and says
//! which records to ask about, `give` takes the verdicts on one batch. Between two calls nothing is pinned, no thread is
//! held and no slot is held back, however long the caller thinks: what was met is kept as id and generation, and looked at
//! again under the next pin.
//!
//! Records are asked about in the order of their distance, so that the search ends with the first few that are let in.
//! Where those come from: a walk with a beam as wide as the share of verdicts so far calls for; where that would cost more
//! than looking at every record's codes, or finds too few, a scan that goes on from the nearest record to the farthest.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::Guard;

use crate::distance::prefetch;
use crate::effort::ef_default_filtered;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::graph::beam::{Walk, descent_beam};
use crate::graph::filter::{LOOKS_PER_BEAM, WALK_FACTOR};
use crate::graph::pool::{self, Entry};
use crate::graph::search::{Candidate, Ranking};
use crate::graph::visited::Visited;
use crate::graph::{Graph, Scratch};
use crate::hits::Hits;
use crate::options::{EF_MAX, K_MAX};
use crate::plane::{Plane, check_range};
use crate::record;

/// Records in the first batch at least, from whose verdicts the share of the others is guessed.
const FIRST_BATCH: usize = 64;
/// Records in one batch at most.
const BATCH_MAX: usize = 4096;
/// Beam that leaves room for every node that the walk starts from.
const BEAM_MIN: usize = 32;
/// Records that a scan keeps at least and at most, nearest first; when all have been asked about, it looks again.
const WINDOW_MIN: usize = 1024;
const WINDOW_MAX: usize = 1 << 20;
/// Records scored together in a scan.
const SCAN_BATCH: usize = 64;

/// What a search with a predicate asks for.
#[derive(Clone, Debug)]
pub struct PredicateOptions {
    /// Hits wanted, 0 to 2^20.
    pub k: usize,
    /// Beam width, raised to `k` when lower; `None` takes that of a search with a filter.
    pub ef: Option<usize>,
    /// Times `ef`: the widest beam that is walked with before a scan takes over.
    pub filter_expansion: usize,
    /// Most records to look at; what cannot be found within is left out of the answer.
    pub visit_budget: Option<usize>,
    /// Score final candidates with the exact copy where one is kept.
    pub rerank: bool,
}

impl PredicateOptions {
    /// `k` hits with the default beam width.
    pub fn new(k: usize) -> Self {
        PredicateOptions { k, ef: None, filter_expansion: 24, visit_budget: None, rerank: true }
    }
}

/// Records to be asked about, with their keys as in `Hits`.
#[derive(Debug, Default)]
pub struct Candidates {
    /// Their ids.
    pub ids: Vec<u32>,
    /// All keys, one after the other.
    pub keys: Vec<u8>,
    /// End of each key in `keys`.
    pub key_ends: Vec<u32>,
}

/// How far a search has come.
#[derive(Debug)]
pub enum PredicateStep {
    /// To be asked about, beside earlier batches. Verdicts are given in the order of the batches.
    Ask(Candidates),
    /// Nothing to do before verdicts on earlier batches are there.
    Wait,
    /// The answer.
    Done {
        /// The nearest records that were let in.
        hits: Hits,
        /// Whether the budget ended the search before it was done.
        truncated: bool,
    },
}

/// Where candidates come from.
enum Source {
    Walk {
        /// Whether the beam as it is now has been walked with.
        walked: bool,
    },
    /// The nearest records that have not been asked about, and how many of them have been since.
    Scan { window: Vec<Entry>, asked: usize, last: bool },
}

/// See the module's first lines.
pub struct PredicateSearch {
    engine: Arc<Engine>,
    scratch: Box<Scratch>,
    ranking: Ranking<'static>,
    ef: usize,
    beam_max: usize,
    beam: usize,
    /// Ids below this are looked at; what is inserted meanwhile may be found or not.
    limit: u32,
    looks: usize,
    truncated: bool,
    source: Source,
    /// What the walk met and its beam had no room for.
    beyond: Vec<Entry>,
    asked: Visited,
    /// Batches without verdicts, oldest first.
    outstanding: VecDeque<Vec<Candidate>>,
    verdicts: usize,
    /// Let in, ascending.
    admitted: Vec<Candidate>,
    admitted_ever: usize,
}

impl Plane {
    /// Starts a search among the records that a predicate lets in, which the caller asks. It goes on with the file that it
    /// began with when a compaction puts another one in its place.
    pub fn search_with_predicate(
        &self,
        vector: &[f32],
        options: &PredicateOptions,
    ) -> Result<PredicateSearch> {
        check_range("k", options.k, 0, K_MAX)?;
        if let Some(ef) = options.ef {
            check_range("ef", ef.max(options.k), 1, EF_MAX)?;
        }
        let query = self.checked_query(vector)?;
        let engine = Guard::into_inner(self.engine()?);
        engine.check_current()?;
        let ef = options.ef.unwrap_or_else(|| ef_default_filtered(&engine, options.k)).max(options.k);
        let config = &engine.store.config;
        let mut scratch = Box::<Scratch>::default();
        scratch.exact.set(config.metric, query.vector, query.norm);
        scratch.query.set_vector(config.precision, config.metric, query.vector, query.norm);
        let beam = ef.max(BEAM_MIN);
        Ok(PredicateSearch {
            scratch,
            ranking: Ranking { k: options.k, rerank: options.rerank, protected: false, tags: None },
            ef: beam,
            beam_max: ef.saturating_mul(options.filter_expansion.max(1)).clamp(beam, EF_MAX),
            beam: 0,
            limit: 0,
            looks: options.visit_budget.unwrap_or(usize::MAX),
            truncated: false,
            source: Source::Walk { walked: false },
            beyond: Vec::new(),
            asked: Visited::default(),
            outstanding: VecDeque::new(),
            verdicts: 0,
            admitted: Vec::new(),
            admitted_ever: 0,
            engine,
        })
    }
}

impl PredicateSearch {
    /// Goes on as far as the verdicts so far allow.
    pub fn advance(&mut self) -> Result<PredicateStep> {
        let engine = Arc::clone(&self.engine);
        let mut pinned = engine.pin()?;
        self.ranking.protected = pinned.protects();
        let (mut graph, _) = pinned.parts();
        if self.beam == 0 {
            self.limit = graph.slots.limit();
        }
        graph.slots = graph.slots.with_limit(self.limit);
        if self.ranking.k == 0 || engine.store.shared().count.load(Ordering::Relaxed) <= 0 {
            return Ok(PredicateStep::Done { hits: Hits::default(), truncated: false });
        }
        if self.beam == 0 {
            self.start(&graph);
        }
        self.forget_removed(&graph);
        while !self.is_settled() {
            self.look_further(&graph);
            if self.is_settled() {
                break;
            }
            let batch = self.next_batch(&graph);
            if !batch.ids.is_empty() {
                return Ok(PredicateStep::Ask(batch));
            }
            if !self.outstanding.is_empty() {
                return Ok(PredicateStep::Wait);
            }
            if self.is_exhausted() {
                break;
            }
        }
        self.admitted.truncate(self.ranking.candidates());
        let hits = graph.answer_met(&self.admitted, self.ranking, &mut self.scratch);
        Ok(PredicateStep::Done { hits, truncated: self.truncated })
    }

    /// Takes the verdicts on the oldest batch without any: one byte for each record, 0 for those to be left out. Tells
    /// whether the next `advance` is likely to have the answer, so that asking about other batches can wait.
    pub fn give(&mut self, verdicts: &[u8]) -> Result<bool> {
        let expected = self.outstanding.front().map_or(0, Vec::len);
        if verdicts.len() != expected {
            let reason = format!("{} verdicts for {expected} records", verdicts.len());
            return Err(Error::InvalidBatch { reason });
        }
        let batch = self.outstanding.pop_front().unwrap_or_default();
        self.verdicts += batch.len();
        let before = self.admitted.len();
        self.admitted
            .extend(batch.iter().zip(verdicts).filter(|(_, verdict)| **verdict != 0).map(|(one, _)| *one));
        self.admitted_ever += self.admitted.len() - before;
        self.admitted.sort_unstable_by_key(|candidate| candidate.entry);
        Ok(self.is_settled())
    }

    fn start(&mut self, graph: &Graph<'_>) {
        self.beam = self.ef;
        self.asked.reset(self.limit);
        let Scratch { query, walk, seeds, .. } = &mut *self.scratch;
        graph.descend(query, walk, seeds, 0, descent_beam(self.ef));
        // Copies of one vector may fill the beam: some may be let in and others not, and a scan gets past them.
        graph.start(walk, self.beam, usize::MAX);
        seeds.extend(graph.root());
        seeds.truncate(self.looks);
        graph.seed_all(query, walk, seeds);
        self.looks -= seeds.len();
    }

    /// Records let in that are still what they were when they were asked about.
    fn forget_removed(&mut self, graph: &Graph<'_>) {
        self.admitted.retain(|candidate| {
            let node = graph.slots.get(pool::id(candidate.entry));
            node.is_some_and(|node| node.is_live() && node.generation() == candidate.generation)
        });
    }

    /// The share of records that the predicate lets in, as far as is known; never 0.
    fn share(&self) -> f64 {
        (self.admitted_ever + 1) as f64 / (self.verdicts + 1) as f64
    }

    /// How wide the beam should be: the fewer are let in, the more must be known for the answer to be among them, though
    /// what a walk misses of many neighbours is a smaller share than what it misses of a few.
    fn beam_wanted(&self) -> usize {
        if self.verdicts == 0 {
            return self.ef;
        }
        let room = 1.5 * self.ranking.candidates() as f64 / self.share();
        (room as usize).clamp(self.ef, self.beam_max)
    }

    /// The last candidate of the answer, where there are enough.
    fn last_wanted(&self) -> Option<Entry> {
        self.admitted.get(self.ranking.candidates() - 1).map(|candidate| candidate.entry)
    }

    /// Whether nothing that could still be found would be in the answer.
    fn is_settled(&self) -> bool {
        let Some(last) = self.last_wanted() else { return false };
        let wide = match &self.source {
            Source::Walk { walked } => *walked && self.beam >= self.beam_wanted() || self.truncated,
            Source::Scan { .. } => true,
        };
        wide && self.outstanding.iter().flatten().all(|candidate| candidate.entry > last)
            && self.nearest_unasked().is_none_or(|entry| entry > last)
    }

    fn nearest_unasked(&self) -> Option<Entry> {
        match &self.source {
            Source::Walk { .. } => self.unasked().next(),
            Source::Scan { window, asked, last } => {
                // Past the window is what is farther than its last.
                let past = window.last().copied().filter(|_| !last);
                window.get(*asked).copied().or(past)
            }
        }
    }

    /// Candidates of the walk that were not asked about, nearest first.
    fn unasked(&self) -> impl Iterator<Item = Entry> {
        let entries = self.scratch.walk.pool.entries().iter();
        entries.map(|entry| pool::unexpanded(*entry)).filter(|entry| !self.asked.contains(pool::id(*entry)))
    }

    /// Whether there is nothing left to ask about.
    fn is_exhausted(&self) -> bool {
        match &self.source {
            Source::Walk { .. } => self.truncated,
            Source::Scan { window, asked, last } => (*last || self.truncated) && *asked == window.len(),
        }
    }

    /// How many candidates of the answer are missing even if batches without verdicts yield what they promise.
    fn short(&self) -> f64 {
        let pending: usize = self.outstanding.iter().map(Vec::len).sum();
        self.ranking.candidates() as f64 - self.admitted.len() as f64 - self.share() * pending as f64
    }

    /// How many more records have to be asked about, as it looks now, and a few to spare.
    fn batch_wanted(&self) -> usize {
        if self.verdicts == 0 {
            return self.ranking.candidates().clamp(FIRST_BATCH, BATCH_MAX);
        }
        match self.last_wanted() {
            // Enough, but for what lies nearer.
            Some(last) => match &self.source {
                Source::Walk { .. } => self.unasked().take_while(|entry| *entry < last).count(),
                Source::Scan { window, asked, .. } => window[*asked..].partition_point(|entry| *entry < last),
            }
            .min(BATCH_MAX),
            // Not before it is known how many of those that wait are let in.
            None if self.short() <= 0.0 => 0,
            None => ((self.short() / self.share() * 1.25) as usize + 16).clamp(FIRST_BATCH, BATCH_MAX),
        }
    }

    /// Makes sure of candidates for the next batch, by a wider walk or a scan.
    fn look_further(&mut self, graph: &Graph<'_>) {
        match &self.source {
            Source::Walk { walked: false } => self.walk(graph),
            Source::Walk { walked: true } => {
                let wanted = self.batch_wanted();
                let known = self.unasked().take(wanted).count();
                // Those that are known may do, if they are let in as often as the others were.
                let promising = known == wanted || known as f64 * self.share() >= self.short();
                if promising && self.beam >= self.beam_wanted() || self.truncated {
                    return;
                }
                // Before the first verdicts are there, the next batch is got ready for. A few verdicts make a rough guess, so
                // that the beam grows step by step and a scan is not begun for a little more than it costs.
                let wanted = self.beam_wanted().max(2 * self.beam).min(self.beam_max);
                let wider = wanted.min(4 * self.beam);
                let looks = |beam: usize| beam.saturating_mul(LOOKS_PER_BEAM * WALK_FACTOR);
                let total = self.limit as usize;
                let worthwhile = looks(wider) < total && looks(wanted) < 2 * total;
                let spent = self.scratch.walk.pool.entries().len() < self.beam;
                if wider > self.beam && !spent && worthwhile {
                    self.beam = wider;
                    self.scratch.walk.pool.widen_to(wider, &mut self.beyond);
                    self.walk(graph);
                } else if self.verdicts > 0 || known == 0 && self.outstanding.is_empty() {
                    self.scan(graph, 0);
                }
            }
            Source::Scan { window, asked, last } => {
                if *asked == window.len() && !last {
                    let after = window.last().map_or(0, |entry| entry + 1);
                    self.scan(graph, after);
                }
            }
        }
    }

    fn walk(&mut self, graph: &Graph<'_>) {
        let Scratch { query, walk, .. } = &mut *self.scratch;
        self.truncated |= !graph.walk_keeping(query, walk, &mut self.beyond, &mut self.looks);
        self.source = Source::Walk { walked: true };
    }

    /// Finds the nearest records from the entry `after` on that have not been asked about.
    fn scan(&mut self, graph: &Graph<'_>, after: Entry) {
        let live = self.engine.store.shared().count.load(Ordering::Relaxed).max(0) as usize;
        if self.looks < live {
            // What the walk found is all there will be.
            self.truncated = true;
            return;
        }
        let before = match &self.source {
            Source::Scan { window, .. } => 4 * window.len(),
            Source::Walk { .. } => 3 * self.batch_wanted(),
        };
        let keep = before.clamp(WINDOW_MIN, WINDOW_MAX);
        let mut window: Vec<Entry> = Vec::with_capacity((2 * keep).min(self.limit as usize));
        let mut bound = Entry::MAX;
        let Scratch { query, walk, .. } = &mut *self.scratch;
        let Walk { rows, .. } = walk;
        let (mut batch, mut next) = (Vec::with_capacity(SCAN_BATCH), Vec::with_capacity(SCAN_BATCH));
        let mut ids = (0..self.limit).filter(|id| !self.asked.contains(*id));
        loop {
            next.clear();
            next.extend(ids.by_ref().take(SCAN_BATCH));
            next.iter().for_each(|id| graph.prefetch_record(*id));
            graph.score(query, batch.drain(..), rows, |id, distance| {
                self.looks = self.looks.saturating_sub(1);
                let entry = pool::entry(distance, id);
                if entry >= after && entry < bound {
                    window.push(entry);
                }
            });
            if window.len() >= 2 * keep {
                bound = *window.select_nth_unstable(keep).1;
                window.truncate(keep);
            }
            if next.is_empty() {
                break;
            }
            std::mem::swap(&mut batch, &mut next);
        }
        let last = bound == Entry::MAX && window.len() <= keep;
        if window.len() > keep {
            window.select_nth_unstable(keep);
            window.truncate(keep);
        }
        window.sort_unstable();
        self.source = Source::Scan { window, asked: 0, last };
    }

    /// Takes the next candidates for a batch, with their keys. What is not live any more is left out.
    fn next_batch(&mut self, graph: &Graph<'_>) -> Candidates {
        let wanted = self.batch_wanted();
        let entries: Vec<Entry> = match &mut self.source {
            Source::Walk { .. } => self.unasked().take(wanted).collect(),
            Source::Scan { window, asked, .. } => {
                let end = (*asked + wanted).min(window.len());
                window[std::mem::replace(asked, end)..end].to_vec()
            }
        };
        let store = &self.engine.store;
        let keyed = store.layout.key_entry_bytes > 0;
        if keyed {
            entries.iter().for_each(|entry| prefetch(store.key_entry(pool::id(*entry))));
        }
        let mut batch = Candidates::default();
        let mut met = Vec::with_capacity(entries.len());
        for entry in entries {
            let id = pool::id(entry);
            self.asked.insert(id);
            let Some(node) = graph.slots.get(id).filter(|node| node.is_live()) else { continue };
            let (start, generation) = (batch.keys.len(), node.generation());
            // SAFETY: pinned, and seen live; without a pin the check below decides.
            if keyed && let Some(key) = unsafe { record::key(store, id) } {
                batch.keys.extend_from_slice(key);
            }
            let unchanged = self.ranking.protected || node.is_live() && node.generation() == generation;
            let Ok(end) = u32::try_from(batch.keys.len()) else { break };
            if !unchanged {
                batch.keys.truncate(start);
                continue;
            }
            batch.ids.push(id);
            batch.key_ends.push(end);
            met.push(Candidate { entry, generation });
        }
        if !met.is_empty() {
            self.outstanding.push_back(met);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::CalibrateOptions;
    use crate::options::{CreateOptions, SearchOptions};

    #[test]
    fn the_default_beam_is_that_of_a_search_with_a_filter() {
        let dir = tempfile::tempdir().unwrap();
        let plane = Plane::create(&dir.path().join("plane"), &CreateOptions::new(16)).unwrap();
        let mut state = 1u64;
        let mut random = || {
            // Knuth's MMIX generator.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let mut vector = || (0..16).map(|_| random()).collect::<Vec<f32>>();
        for _ in 0..1200 {
            plane.insert(&vector(), &[]).unwrap();
        }
        let query = vector();
        let beam = |k| plane.search_with_predicate(&query, &PredicateOptions::new(k)).unwrap().ef;
        let filtered = |k| {
            let all = [0xFF; 150];
            let options = SearchOptions { filter: Some(&all), ..SearchOptions::new(k) };
            plane.beam(&options).unwrap().unwrap().ef
        };
        assert_eq!((beam(10), beam(100)), (160, 400));
        // With 100 samples, neighbours far down the ranking ask for a wide beam.
        plane.calibrate(&CalibrateOptions { k: 500, samples: 100, threads: 1 }, &|_, _| true).unwrap();
        for k in [1, 10, 500] {
            assert_eq!(beam(k), filtered(k), "k {k}");
        }
    }
}
