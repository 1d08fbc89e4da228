//! What a scan of a set of ids reads, copied to one place: memory in order instead of a wait or more for each record.
//!
//! A copy stands for the records of a set as long as none has been published since, which whoever keeps it has to know. Those that
//! were removed are still in it: so each record that could be a hit is looked at in its slot, and where too many are gone, a
//! scan of the slots answers.

use std::sync::atomic::{Ordering, fence};

use super::allowed::Allowed;
use super::filter::most_ranked;
use super::node::{Node, SlotState};
use super::pool;
use super::search::{Best, Candidate, Ranking, SCAN_BATCH};
use super::{Graph, Scratch};
use crate::distance::{CodeRow, ExactRow, prefetch};
use crate::file::layout::LINE_BYTES;
use crate::hits::Hits;
use crate::options::Rerank;

/// What of each record is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The codes.
    Codes,
    /// The exact copy.
    Exact,
}

/// A cache line, on which rows start.
#[derive(Clone)]
#[repr(align(64))]
struct Line([u8; LINE_BYTES as usize]);

/// What a record has beside its row.
#[derive(Clone, Copy)]
struct Terms {
    generation: u64,
    id: u32,
    /// Of the codes, or of the exact copy.
    scale: f32,
    /// Of the codes; of an exact copy the norm.
    factor: f32,
    bias: f32,
}

/// See the module's first lines.
pub struct Copied {
    kind: Kind,
    lines: Vec<Line>,
    /// Lines of one row.
    stride: usize,
    terms: Vec<Terms>,
}

impl Copied {
    fn row(&self, index: usize) -> *const u8 {
        self.lines[index * self.stride].0.as_ptr()
    }
}

impl<'a> Graph<'a> {
    /// What of records a scan with final distances reads.
    pub fn final_kind(&self, ranking: Ranking<'_>) -> Kind {
        let exact = ranking.rerank && self.store.config.rerank != Rerank::None;
        if exact { Kind::Exact } else { Kind::Codes }
    }

    fn row_bytes(&self, kind: Kind) -> usize {
        let layout = &self.store.layout;
        (if kind == Kind::Codes { layout.code_bytes } else { layout.exact_bytes }) as usize
    }

    /// What a copy of so many records takes.
    pub fn copied_bytes(&self, kind: Kind, count: usize) -> usize {
        let lines = self.row_bytes(kind).div_ceil(LINE_BYTES as usize);
        count * (lines * size_of::<Line>() + size_of::<Terms>())
    }

    /// Copies the live records among those allowed; `None` when one is hidden just now. The caller is pinned.
    pub fn copy_rows(&self, allowed: Allowed<'_>, kind: Kind) -> Option<Copied> {
        // The set may be younger than this view, and name records past its end.
        let graph = self.current();
        let count = allowed.count(graph.slots.limit());
        let stride = self.row_bytes(kind).div_ceil(LINE_BYTES as usize);
        let (lines, terms) = (Vec::with_capacity(count * stride), Vec::with_capacity(count));
        let mut copied = Copied { kind, lines, stride, terms };
        let mut ids = allowed.ids(graph.slots.limit());
        let mut batch: Vec<u32> = Vec::with_capacity(SCAN_BATCH);
        loop {
            batch.clear();
            batch.extend(ids.by_ref().take(SCAN_BATCH));
            if batch.is_empty() {
                break;
            }
            batch.iter().for_each(|id| graph.prefetch_row(*id, kind));
            for (id, node) in batch.iter().filter_map(|id| Some((*id, graph.slots.get(*id)?))) {
                let generation = node.header().generation.load(Ordering::Acquire);
                let state = match node.state() {
                    Some(SlotState::Live) => graph.copy_row(id, generation, node, &mut copied),
                    other => other,
                };
                // It may be shown again as it was, which nobody would hear of.
                if state == Some(SlotState::Hidden) {
                    return None;
                }
            }
        }
        Some(copied)
    }

    fn prefetch_row(&self, id: u32, kind: Kind) {
        self.prefetch_record(id);
        if kind == Kind::Exact {
            let at = self.store.exact(id);
            let bytes = self.row_bytes(kind);
            (0..bytes.div_ceil(LINE_BYTES as usize))
                .for_each(|line| prefetch(at.wrapping_add(line * LINE_BYTES as usize)));
        }
    }

    /// Copies a record that was just seen live, unless it has gone meanwhile; says what its slot holds now.
    fn copy_row(&self, id: u32, generation: u64, node: Node<'a>, copied: &mut Copied) -> Option<SlotState> {
        let (row, scale, factor) = match copied.kind {
            Kind::Codes => (node.codes().cast_const(), node.scale(), node.factor()),
            Kind::Exact => (self.store.exact(id).cast_const(), node.exact_scale(), node.norm()),
        };
        // SAFETY: the record was live when its state was loaded (Acquire) under the caller's pin, so its codes and its exact copy
        // are complete, have the layout's lengths, and nobody writes them.
        let row = unsafe { std::slice::from_raw_parts(row, self.row_bytes(copied.kind)) };
        for bytes in row.chunks(LINE_BYTES as usize) {
            let mut line = Line([0; LINE_BYTES as usize]);
            line.0[..bytes.len()].copy_from_slice(bytes);
            copied.lines.push(line);
        }
        copied.terms.push(Terms { generation, id, scale, factor, bias: node.bias() });
        // For a caller that holds no slots back: what was read was read before this.
        fence(Ordering::Acquire);
        let state = node.state();
        if state != Some(SlotState::Live) || node.generation() != generation {
            copied.terms.pop();
            copied.lines.truncate(copied.terms.len() * copied.stride);
        }
        state
    }

    /// As `scan`, among the records of a copy; `None` when so many of them are gone that others may belong into the answer. The
    /// caller is pinned.
    pub fn scan_copied(&self, copied: &Copied, ranking: Ranking<'_>, scratch: &mut Scratch) -> Option<Hits> {
        let mut best = Best::new(ranking.candidates());
        let mut ranked = Vec::with_capacity(SCAN_BATCH);
        for start in (0..copied.terms.len()).step_by(SCAN_BATCH) {
            let end = copied.terms.len().min(start + SCAN_BATCH);
            self.rank_copied(copied, start..end, scratch, &mut ranked);
            best.extend(ranked.drain(..));
        }
        let nearest = best.nearest();
        nearest.sort_unstable();
        nearest.retain(|candidate| self.holds(pool::id(candidate.entry), candidate.generation));
        let hits = self.hits(nearest, ranking);
        (hits.len() >= ranking.k.min(copied.terms.len())).then_some(hits)
    }

    /// Final distances of some records of a copy.
    fn rank_copied(
        &self,
        copied: &Copied,
        range: std::ops::Range<usize>,
        scratch: &mut Scratch,
        ranked: &mut Vec<Candidate>,
    ) {
        let config = &self.store.config;
        let terms = &copied.terms[range.clone()];
        let rows = range.zip(terms).map(|(index, terms)| (copied.row(index), terms));
        let mut distances = [0.0; SCAN_BATCH];
        let distances = &mut distances[..terms.len()];
        match copied.kind {
            Kind::Exact => {
                let row =
                    |(bytes, terms): (_, &Terms)| ExactRow { bytes, scale: terms.scale, norm: terms.factor };
                let rows: Vec<ExactRow> = rows.map(row).collect();
                // SAFETY: the rows are exact copies of the plane's kind and dimensions, in memory of our own.
                unsafe { scratch.exact.score(config.rerank, &rows, distances) };
            }
            Kind::Codes => {
                let row =
                    |(codes, terms): (_, &Terms)| CodeRow { codes, scale: terms.scale, factor: terms.factor };
                let rows: Vec<CodeRow> = rows.map(row).collect();
                // SAFETY: as above, for the codes.
                unsafe { scratch.exact.refine(config.precision, &rows, distances) };
            }
        }
        ranked.extend(terms.iter().zip(distances).map(|(terms, distance)| Candidate {
            entry: pool::entry(*distance, terms.id),
            generation: terms.generation,
        }));
    }

    /// As `scan_codes`, among the records of a copy of codes; `None`, and the caller, as for `scan_copied`.
    pub fn scan_copied_codes(
        &self,
        copied: &Copied,
        ranking: Ranking<'_>,
        scratch: &mut Scratch,
    ) -> Option<Hits> {
        let mut best = Best::new(most_ranked(ranking));
        let mut rows = Vec::with_capacity(SCAN_BATCH);
        let mut dots = [0.0; SCAN_BATCH];
        for (batch, terms) in copied.terms.chunks(SCAN_BATCH).enumerate() {
            let start = batch * SCAN_BATCH;
            rows.clear();
            rows.extend((start..start + terms.len()).map(|index| copied.row(index)));
            // SAFETY: the rows have the plane's format and dimensions, and are memory of our own.
            unsafe { (self.dot)(&scratch.query, &rows, &mut dots) };
            // Places in the copy stand for ids, which ascend with them.
            best.extend(terms.iter().zip(dots).zip(start..).map(|((terms, dot), index)| {
                let bias = if self.has_bias { terms.bias } else { 0.0 };
                pool::entry(scratch.query.distance(terms.factor, bias, dot), index as u32)
            }));
        }
        let id_of = |entry| {
            let terms = &copied.terms[pool::id(entry) as usize];
            self.holds(terms.id, terms.generation).then_some(terms.id)
        };
        let hits = self.answer_scanned(best.nearest(), id_of, ranking, scratch);
        (hits.len() >= ranking.k.min(copied.terms.len())).then_some(hits)
    }

    /// Whether a slot still holds the record that was copied.
    fn holds(&self, id: u32, generation: u64) -> bool {
        self.slots.get(id).is_some_and(|node| node.is_live() && node.generation() == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Plane};

    /// As happens to a search whose set was looked up just before.
    #[test]
    fn a_record_in_the_slot_of_one_that_was_copied_is_no_hit() {
        let dir = tempfile::tempdir().unwrap();
        let plane = Plane::create(&dir.path().join("plane"), &CreateOptions::new(4)).unwrap();
        for i in 0..40 {
            plane.insert(&[1.0, i as f32, 0.0, 0.0], b"").unwrap();
        }
        let engine = plane.engine().unwrap();
        let ids: Vec<u32> = (0..40).collect();
        let copied = [Kind::Exact, Kind::Codes].map(|kind| {
            let mut pinned = engine.pin().unwrap();
            pinned.parts().0.copy_rows(Allowed::Ids(&ids), kind).unwrap()
        });
        assert!(plane.remove(0).unwrap());
        assert_eq!(plane.insert(&[-1.0, 0.0, 0.0, 0.0], b"").unwrap(), 0);
        let mut pinned = engine.pin().unwrap();
        let ranking = Ranking { k: 5, rerank: true, protected: true, tags: None };
        let (graph, scratch) = pinned.parts();
        let (metric, vector) = (engine.store.config.metric, [1.0, 0.0, 0.0, 0.0]);
        scratch.exact.set(metric, &vector, 1.0);
        scratch.query.set_vector(engine.store.config.precision, metric, &vector, 1.0);
        let hits = graph.scan_copied(&copied[0], ranking, scratch).unwrap();
        assert_eq!(hits.ids, [1, 2, 3, 4, 5]);
        let hits = graph.scan_copied_codes(&copied[1], ranking, scratch).unwrap();
        assert_eq!(hits.ids, [1, 2, 3, 4, 5]);
        // Too many gone: others may be nearer than what is left.
        (1..20).for_each(|id| assert!(plane.remove(id).unwrap()));
        assert_eq!(graph.scan_copied(&copied[0], ranking, scratch), None);
    }
}
