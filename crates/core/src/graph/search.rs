//! One query, from vector to hits; and the exact scan that answers without the graph.

use std::sync::atomic::Ordering;

use super::allowed::Allowed;
use super::beam::descent_beam;
use super::pool::{self, Entry};
use super::stop::Beam;
use super::{Graph, Scratch};
use crate::distance::{CodeRow, ExactRow, prefetch};
use crate::filtering::has_tags;
use crate::hits::Hits;
use crate::options::Rerank;
use crate::record;
use crate::tags::TagQuery;

/// Walks tried before a scan answers, and scans tried before a short answer is given.
pub(super) const TRIES_MAX: usize = 4;
/// Records scored together in a scan.
pub(super) const SCAN_BATCH: usize = 64;

/// Final candidates, with what a later check compares. In order of distance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    pub entry: Entry,
    pub generation: u64,
}

/// The smallest of many values that come by: candidates, or entries.
pub(super) struct Best<T> {
    keep: usize,
    values: Vec<T>,
}

impl<T: Ord + Copy> Best<T> {
    pub fn new(keep: usize) -> Self {
        Best { keep, values: Vec::new() }
    }

    pub fn extend(&mut self, values: impl Iterator<Item = T>) {
        self.values.extend(values);
        // Seldom, so that looking at all of them costs little for each.
        if self.values.len() >= 2 * self.keep + 8 * SCAN_BATCH {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.values.len() > self.keep {
            self.values.select_nth_unstable(self.keep - 1);
            self.values.truncate(self.keep);
        }
    }

    /// As many as are kept, in no order.
    pub fn nearest(&mut self) -> &mut Vec<T> {
        self.cut();
        &mut self.values
    }
}

/// How an answer is ranked and copied.
#[derive(Clone, Copy)]
pub struct Ranking<'q> {
    pub k: usize,
    /// Use the exact copy where there is one.
    pub rerank: bool,
    /// The caller's pin holds removed slots back; without one each hit is checked again after it was copied.
    pub protected: bool,
    /// Tags that hits must have: the ids that a walk or scan may return are those that had them a moment ago.
    pub tags: Option<&'q TagQuery>,
}

impl Ranking<'_> {
    /// Candidates whose final distances are computed: a few more than asked for, since the codes' order is not quite the
    /// true one.
    pub fn candidates(&self) -> usize {
        candidates(self.k)
    }
}

/// See `Ranking::candidates`.
pub(super) fn candidates(k: usize) -> usize {
    (2 * k).max(k + 10)
}

/// Whether an allow-bitset has an id; missing bits mean not allowed.
pub fn allows(filter: &[u8], id: u32) -> bool {
    filter.get(id as usize >> 3).is_some_and(|byte| byte >> (id & 7) & 1 != 0)
}

impl<'a> Graph<'a> {
    /// Nearest records by the graph. `scratch` holds the query, prepared; the caller is pinned.
    pub fn search(&self, beam: Beam, ranking: Ranking<'_>, scratch: &mut Scratch) -> Hits {
        scratch.walk.watch.begin(&self.store.cold);
        let hits = self.search_watched(beam, ranking, scratch);
        scratch.walk.watch.end(&self.store.cold);
        hits
    }

    fn search_watched(&self, beam: Beam, ranking: Ranking<'_>, scratch: &mut Scratch) -> Hits {
        // Entry point and root may both be removed between being read and being scored, which leaves nothing to start
        // from; their successors are known by then.
        for _ in 0..TRIES_MAX {
            let graph = self.current();
            let Scratch { query, walk, seeds, .. } = &mut *scratch;
            graph.descend(query, walk, seeds, 0, descent_beam(beam.ef));
            graph.start(walk, beam.width().max(ranking.k), ranking.candidates());
            if let Some(stop) = beam.stop {
                walk.pool.stop_at(stop, candidates(stop.rank.max(ranking.k)));
            }
            graph.seed_all(query, walk, seeds);
            if let Some(root) = graph.root() {
                graph.seed(query, walk, root);
            }
            graph.walk_layer(query, walk, 0);
            let found = walk.pool.entries().iter().take(ranking.candidates()).map(|e| pool::id(*e));
            let found: Vec<u32> = found.collect();
            let hits = graph.answer(&found, ranking, scratch);
            let live = graph.store.shared().count.load(Ordering::Relaxed).max(0) as usize;
            if hits.len() >= ranking.k.min(live) {
                return hits;
            }
        }
        self.current().scan(None, ranking, scratch)
    }

    /// Ranks candidates by their final distances and copies the best out.
    pub fn answer(&self, found: &[u32], ranking: Ranking<'_>, scratch: &mut Scratch) -> Hits {
        if scratch.walk.watch.is_armed() {
            found.iter().for_each(|id| self.store.ask_for_copy_and_key(*id));
        }
        let mut ranked = Vec::with_capacity(found.len());
        self.rank(found, ranking, scratch, &mut ranked);
        ranked.sort_unstable_by_key(|c| c.entry);
        self.hits(&ranked, ranking)
    }

    /// `answer` for candidates met under an earlier pin: those whose slots hold other records by now are left out.
    pub fn answer_met(&self, met: &[Candidate], ranking: Ranking, scratch: &mut Scratch) -> Hits {
        let found: Vec<u32> = met.iter().map(|candidate| pool::id(candidate.entry)).collect();
        let mut ranked = Vec::with_capacity(found.len());
        self.rank(&found, ranking, scratch, &mut ranked);
        // Some may be missing by now, but the order is the same.
        let mut met = met.iter();
        ranked.retain(|now| {
            let id = pool::id(now.entry);
            let then = met.by_ref().find(|then| pool::id(then.entry) == id);
            then.is_some_and(|then| then.generation == now.generation)
        });
        ranked.sort_unstable_by_key(|c| c.entry);
        self.hits(&ranked, ranking)
    }

    /// Nearest records by looking at every one that the filter allows.
    pub fn scan(&self, filter: Option<Allowed<'_>>, ranking: Ranking<'_>, scratch: &mut Scratch) -> Hits {
        let mut hits = Hits::default();
        for _ in 0..TRIES_MAX {
            let seen;
            (hits, seen) = self.current().scan_once(filter, ranking, scratch);
            // More candidates than the spare ones may be removed while a scan runs.
            if hits.len() >= ranking.k.min(seen) {
                break;
            }
        }
        hits
    }

    /// One scan: its answer, and how many live records it came by.
    fn scan_once(
        &self,
        filter: Option<Allowed<'_>>,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> (Hits, usize) {
        let limit = self.slots.limit();
        match filter {
            Some(filter) => self.scan_ids(filter.ids(limit), ranking, scratch),
            None => self.scan_ids(0..limit, ranking, scratch),
        }
    }

    fn scan_ids(
        &self,
        mut ids: impl Iterator<Item = u32>,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> (Hits, usize) {
        let mut seen = 0;
        let mut best = Best::new(ranking.candidates());
        let mut ranked = Vec::with_capacity(SCAN_BATCH);
        let mut batch = Vec::with_capacity(SCAN_BATCH);
        loop {
            batch.clear();
            batch.extend(ids.by_ref().take(SCAN_BATCH));
            if batch.is_empty() {
                break;
            }
            self.rank(&batch, ranking, scratch, &mut ranked);
            seen += ranked.len();
            best.extend(ranked.drain(..));
        }
        let nearest = best.nearest();
        nearest.sort_unstable();
        (self.hits(nearest, ranking), seen)
    }

    /// Final distances of the live records among `ids`.
    pub(super) fn rank(
        &self,
        ids: &[u32],
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
        ranked: &mut Vec<Candidate>,
    ) {
        let config = &self.store.config;
        let exact = ranking.rerank && config.rerank != Rerank::None;
        if exact {
            let bytes = self.store.layout.exact_bytes as usize;
            for &id in ids.iter().filter(|id| **id < self.slots.limit()) {
                let at = self.store.exact(id);
                (0..bytes.div_ceil(64)).for_each(|line| prefetch(at.wrapping_add(64 * line)));
            }
        }
        let nodes = ids.iter().filter_map(|id| self.slots.get(*id).map(|node| (*id, node)));
        let live: Vec<_> = nodes.filter(|(_, node)| node.is_live()).collect();
        let mut distances = vec![0.0; live.len()];
        if exact {
            let row = |(id, node): &(u32, super::node::Node<'a>)| ExactRow {
                bytes: self.store.exact(*id),
                scale: node.exact_scale(),
                norm: node.norm(),
            };
            let rows: Vec<ExactRow> = live.iter().map(row).collect();
            // SAFETY: each record was live when its state was loaded (Acquire) under the caller's pin, so its exact copy
            // is complete and nobody writes it; it has the plane's kind and dimensions.
            unsafe { scratch.exact.score(config.rerank, &rows, &mut distances) };
        } else {
            let rows: Vec<CodeRow> = live
                .iter()
                .map(|(_, node)| CodeRow { codes: node.codes(), scale: node.scale(), factor: node.factor() })
                .collect();
            // SAFETY: as above, for the codes.
            unsafe { scratch.exact.refine(config.precision, &rows, &mut distances) };
        }
        ranked.extend(live.iter().zip(&distances).map(|((id, node), distance)| Candidate {
            entry: pool::entry(*distance, *id),
            generation: node.generation(),
        }));
    }

    /// Copies the first k candidates out of the file.
    pub(super) fn hits(&self, ranked: &[Candidate], ranking: Ranking<'_>) -> Hits {
        let mut hits = Hits::default();
        let mut tags = Vec::new();
        let expected = ranked.len().min(ranking.k);
        hits.ids.reserve(expected);
        hits.distances.reserve(expected);
        hits.key_ends.reserve(expected);
        for candidate in ranked {
            if hits.ids.len() == ranking.k {
                break;
            }
            let id = pool::id(candidate.entry);
            let Some(node) = self.slots.get(id).filter(|node| node.is_live()) else { continue };
            if let Some(query) = ranking.tags
                && !has_tags(self.store, id, query, &mut tags)
            {
                continue;
            }
            let start = hits.keys.len();
            // SAFETY: pinned, and live when ranked and again now; without a pin the check below decides.
            if let Some(key) = unsafe { record::key(self.store, id) } {
                hits.keys.extend_from_slice(key);
            }
            let unchanged = ranking.protected || node.is_live() && node.generation() == candidate.generation;
            if !unchanged {
                hits.keys.truncate(start);
                continue;
            }
            if let Some(at) = self.same_key(&hits, start) {
                // Met in the middle of an upsert: the younger record is the key's.
                hits.keys.truncate(start);
                let older =
                    self.slots.get(hits.ids[at]).is_some_and(|other| other.generation() < node.generation());
                if older {
                    hits.ids[at] = id;
                    hits.distances[at] = pool::distance(candidate.entry);
                }
                continue;
            }
            hits.ids.push(id);
            hits.distances.push(pool::distance(candidate.entry));
            hits.key_ends.push(hits.keys.len() as u32);
        }
        hits
    }

    /// The earlier hit that has the key which starts at `start`, on planes whose keys are unique.
    fn same_key(&self, hits: &Hits, start: usize) -> Option<usize> {
        if !self.store.config.unique_keys {
            return None;
        }
        let key = &hits.keys[start..];
        (0..hits.ids.len()).find(|at| hits.key(*at) == key)
    }
}
