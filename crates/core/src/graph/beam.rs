//! Walking one layer: the beam search of Malkov and Yashunin (arXiv:1603.09320, algorithm 2), arranged around memory.
//!
//! Nearly all the time of a search goes to waiting for records. So an expansion is split in three: *gather* reads a node's
//! links, keeps those not met before and asks for the first line of their slots; *screen* drops those whose sketches say
//! that they are too far, and asks for the codes of the others; *score* computes the distances. Between screening and
//! scoring another expansion is gathered, which gives the lines time to arrive. The walk thus runs one expansion ahead of
//! what it knows, and visits a few nodes more than it had to.

use std::sync::atomic::AtomicU32;

use super::Graph;
use super::held_out::HeldOut;
use super::node::Node;
use super::pool::{self, Entry, Pool};
use super::rows::Rows;
use super::visited::Visited;
use crate::cold::Watch;
use crate::distance::{Query, Screen, prefetch};
use crate::file::layout::{LINE_BYTES, NONE};
use crate::sketch::Terms;

/// Candidates that an insert carries down the layers above 0. One alone lands in the wrong basin on clustered data, and
/// no beam width on layer 0 gets out of it.
pub const DESCENT_BEAM: usize = 16;

/// Expansions whose records are read from the disk side by side.
const EXPANSIONS_COLD: usize = 4;

/// How far below its estimate a distance is thought possible, in mean errors of sketches. Half of one takes 0.9 of the time on
/// minilm, at the same recall, but costs one hit in a hundred where vectors lie in loose clusters (`tests/sketches.rs`).
pub const CAUTION: f32 = 1.0;

/// Candidates that a search with this `ef` carries down. What was inserted with more is found with few (docs/design.md,
/// section 9).
pub fn descent_beam(ef: usize) -> usize {
    (ef / 64).clamp(4, 8)
}

/// What a walk needs besides the graph; reused from one to the next.
#[derive(Default)]
pub struct Walk {
    pub visited: Visited,
    pub pool: Pool,
    /// Gathered, on their way from memory.
    pub(super) pending: Vec<u32>,
    pub(super) gathered: Vec<u32>,
    /// Met on a walk among allowed records, and not allowed: their neighbours are.
    pub(super) bridges: Vec<u32>,
    pub rows: Rows,
    /// Of the rows that were scored, those near enough for the beam.
    near: Vec<Entry>,
    /// How many copies of one vector the beam may hold.
    copies: usize,
    pub watch: Watch,
    /// Nearer entries than this make the beam wider, so that none of them is dropped; 0 in searches for the k nearest.
    reach: Entry,
    /// Nothing but while recall is measured.
    pub held_out: HeldOut,
}

impl<'a> Graph<'a> {
    /// A node's links on a layer; none where the node, or what the file says of its links, does not reach that layer.
    #[inline(always)]
    pub fn links(&self, node: Node<'a>, layer: u8) -> &'a [AtomicU32] {
        if layer == 0 { node.links() } else { self.upper_links(node, layer) }
    }

    fn upper_links(&self, node: Node<'a>, layer: u8) -> &'a [AtomicU32] {
        let (level, m) = (node.level(), self.m);
        if layer > level {
            return &[];
        }
        let words = self.store.heap_words(node.upper(), usize::from(level) * m);
        words.map_or(&[], |words| &words[usize::from(layer - 1) * m..usize::from(layer) * m])
    }

    /// Asks for the lines of a record that scoring reads.
    #[inline(always)]
    pub fn prefetch_record(&self, id: u32) {
        self.prefetch_looked_at(id, self.score_bytes);
    }

    /// Asks for the lines of a record that the next step of a walk reads: those of its sketch where it has one.
    #[inline(always)]
    pub(super) fn prefetch_first(&self, id: u32) {
        self.prefetch_looked_at(id, self.look_bytes);
    }

    /// Asks for a slot's lines up to a byte in the order in which they are read: where there are no sketches, the state word is
    /// in the last one.
    #[inline(always)]
    fn prefetch_looked_at(&self, id: u32, to: u32) {
        let slot = self.slots.address(id);
        let last = (to - 1) / LINE_BYTES * LINE_BYTES;
        if self.dot_sketch.is_some() {
            self.prefetch_lines(id, 0, to);
        } else {
            prefetch(slot.wrapping_add(last as usize));
            self.prefetch_lines(id, 0, last);
        }
    }

    #[inline(always)]
    fn prefetch_lines(&self, id: u32, from: u32, to: u32) {
        let slot = self.slots.address(id);
        let mut at = from / LINE_BYTES * LINE_BYTES;
        while at < to {
            prefetch(slot.wrapping_add(at as usize));
            at += LINE_BYTES;
        }
    }

    /// Asks for the lines of a record's layer-0 links.
    #[inline(always)]
    pub(super) fn prefetch_links(&self, id: u32) {
        let (start, bytes) = self.slots.links_range();
        self.prefetch_lines(id, start, start + bytes);
    }

    /// Starts a walk: empties the sets. `ef` is how many nodes the beam keeps, `copies` how many of them may be copies of
    /// one vector.
    pub fn start(&self, walk: &mut Walk, ef: usize, copies: usize) {
        walk.visited.reset(self.slots.limit());
        if let Some(id) = walk.held_out.id.filter(|id| *id < self.slots.limit()) {
            walk.visited.insert(id);
        }
        walk.pool.reset(ef);
        walk.copies = copies;
        walk.reach = 0;
        walk.pending.clear();
        walk.gathered.clear();
    }

    /// Starts a walk that keeps everything nearer than `reach`, up to `most` nodes, and `ef` beyond.
    pub fn start_within(&self, walk: &mut Walk, ef: usize, reach: Entry, most: usize) {
        self.start(walk, ef, usize::MAX);
        walk.pool.widen_up_to(most.saturating_add(ef));
        walk.reach = reach;
    }

    /// Adds a node to start from, if it holds a record and was not met before.
    pub fn seed(&self, query: &Query, walk: &mut Walk, id: u32) {
        if id < self.slots.limit() && walk.visited.insert(id) {
            self.prefetch_record(id);
            walk.pending.push(id);
            self.score_pending(query, walk);
        }
    }

    /// Adds many nodes to start from.
    pub fn seed_all(&self, query: &Query, walk: &mut Walk, ids: &[u32]) {
        for &id in ids {
            if id < self.slots.limit() && walk.visited.insert(id) {
                self.prefetch_record(id);
                walk.pending.push(id);
            }
        }
        self.score_pending(query, walk);
    }

    /// Walks a layer until every node in the beam, as far as its stop, has been expanded. What the beam holds then is the answer.
    pub fn walk_layer(&self, query: &Query, walk: &mut Walk, layer: u8) {
        let screen = query.screen(CAUTION);
        loop {
            self.screen_pending(query, &screen, walk);
            match walk.pool.expand_next() {
                Some(id) if walk.watch.is_armed() => self.gather_cold(id, layer, walk),
                Some(id) => self.gather(id, layer, walk, Self::prefetch_first),
                None if walk.pending.is_empty() => return,
                None => {}
            }
            self.score_pending(query, walk);
            std::mem::swap(&mut walk.pending, &mut walk.gathered);
        }
    }

    /// Walks layer 0 on, with what finds no room in the beam kept in `beyond`, so that the beam can be widened and walked
    /// again. Counts the records it looks at off `looks`, and ends when that is used up: false, with nodes in the beam whose
    /// links were not followed.
    pub fn walk_keeping(
        &self,
        query: &Query,
        walk: &mut Walk,
        beyond: &mut Vec<Entry>,
        looks: &mut usize,
    ) -> bool {
        loop {
            match walk.pool.expand_next() {
                // Distances are wanted of all.
                Some(id) => self.gather(id, 0, walk, Self::prefetch_record),
                None if walk.pending.is_empty() => return true,
                None => {}
            }
            if walk.pending.len() > *looks {
                walk.pending.clear();
                walk.gathered.clear();
                *looks = 0;
                return false;
            }
            *looks -= walk.pending.len();
            let Walk { pool, pending, rows, .. } = &mut *walk;
            self.score(query, pending.drain(..), rows, |id, distance| {
                let entry = pool::entry(distance, id);
                match pool.insert_or_return(entry) {
                    Some(left) if left == entry => beyond.push(left),
                    left => {
                        beyond.extend(left);
                        self.prefetch_links(id);
                    }
                }
            });
            std::mem::swap(&mut walk.pending, &mut walk.gathered);
        }
    }

    /// Gathers several expansions at once, and has the disk read all that they lead to.
    #[cold]
    fn gather_cold(&self, id: u32, layer: u8, walk: &mut Walk) {
        let mut expanding = [NONE; EXPANSIONS_COLD];
        for (i, slot) in expanding.iter_mut().enumerate() {
            let next = if i == 0 { Some(id) } else { walk.pool.expand_next() };
            let Some(next) = next else { break };
            *slot = next;
            if layer > 0
                && let Some(node) = self.slots.get(next)
            {
                self.store.ask_for_heap(node.upper(), 4 * self.m * usize::from(node.level()));
            }
        }
        for id in expanding.into_iter().take_while(|id| *id != NONE) {
            self.gather(id, layer, walk, Self::prefetch_first);
        }
        walk.gathered.iter().for_each(|id| self.store.ask_for_slot(*id));
    }

    #[inline(always)]
    pub(super) fn gather(&self, id: u32, layer: u8, walk: &mut Walk, ask: impl Fn(&Self, u32)) {
        walk.watch.expanded(&self.store.cold);
        let Some(node) = self.slots.get(id) else { return };
        let before = walk.gathered.len();
        walk.visited.insert_new(self.links(node, layer), self.slots.limit(), &mut walk.gathered);
        walk.gathered[before..].iter().for_each(|id| ask(self, *id));
        for &id in walk.held_out.detours(id).iter().take(if layer == 0 { usize::MAX } else { 0 }) {
            if id < self.slots.limit() && walk.visited.insert(id) {
                ask(self, id);
                walk.gathered.push(id);
            }
        }
    }

    /// Drops what is pending and, by its sketch, too far for the beam; asks for the codes of the rest.
    #[inline(always)]
    pub(super) fn screen_pending(&self, query: &Query, screen: &Screen, walk: &mut Walk) {
        let Some(dot_sketch) = self.dot_sketch else { return };
        let Walk { pool, pending, rows, reach, .. } = walk;
        let bound = pool.bound().max(*reach);
        let far = if bound == Entry::MAX { f32::INFINITY } else { pool::distance(bound) };
        self.collect_rows(pending.drain(..), rows, |node| self.is_readable(node), Node::sketch);
        // SAFETY: as in `measure`, for the sketches, which have a level for each of the query's codes.
        let sketched = unsafe { rows.dots(query, dot_sketch) };
        keep(
            pending,
            sketched.map(|(head, dot)| {
                let least = screen.least(head.factor, head.bias, Terms::decode(head.terms), dot);
                let too_far = least > far;
                (head.id, !too_far)
            }),
        );
        pending.iter().for_each(|id| self.prefetch_lines(*id, self.look_bytes, self.score_bytes));
    }

    /// Whether this walk may read a record.
    #[inline(always)]
    fn is_readable(&self, node: &Node<'a>) -> bool {
        if self.writing { node.is_linked() } else { node.is_live() }
    }

    #[inline(always)]
    pub(super) fn score_pending(&self, query: &Query, walk: &mut Walk) {
        let Walk { pool, pending, rows, near, copies, reach, .. } = walk;
        self.collect(pending.drain(..), rows, |node| self.is_readable(node));
        let bound = pool.bound();
        near.clear();
        keep(
            near,
            self.measure(query, rows).map(|(id, distance)| {
                let entry = pool::entry(distance, id);
                (entry, entry < bound)
            }),
        );
        for &entry in &*near {
            // Those before it may have moved the bound.
            if entry >= pool.bound() {
                continue;
            }
            let (id, at) = (pool::id(entry), pool.place(entry));
            // Copies of one vector must not fill the beam, for there would be no way past them: they take nobody else's
            // place, and of a thousand only some are let in.
            if let Some((other, count)) = pool.ties(at, entry, *copies)
                && self.are_copies(id, other)
            {
                if count >= *copies {
                    continue;
                }
                pool.widen();
            }
            if entry < *reach {
                // What lies beyond the reach keeps its room.
                pool.widen();
            }
            pool.insert_at(at, entry);
            // It will be expanded, sooner or later: its links should be there by then.
            self.prefetch_links(id);
        }
    }

    /// Whether two records that were just scored have the same codes.
    #[cold]
    fn are_copies(&self, one: u32, other: u32) -> bool {
        let (Some(one), Some(other)) = (self.slots.get(one), self.slots.get(other)) else { return false };
        let bytes = self.store.layout.code_bytes as usize;
        // SAFETY: both were seen complete under the caller's pin, since they were scored, and so stay as they are.
        let codes = |node: Node<'a>| unsafe { std::slice::from_raw_parts(node.codes(), bytes) };
        codes(one) == codes(other)
    }

    /// Distances of the records among `ids` that are live.
    #[inline(always)]
    pub fn score(
        &self,
        query: &Query,
        ids: impl Iterator<Item = u32>,
        rows: &mut Rows,
        found: impl FnMut(u32, f32),
    ) {
        self.score_where(query, ids, rows, Node::is_live, found);
    }

    /// Distances of the records among `ids` whose state `readable` accepts.
    #[inline(always)]
    pub fn score_where(
        &self,
        query: &Query,
        ids: impl Iterator<Item = u32>,
        rows: &mut Rows,
        readable: impl Fn(&Node<'a>) -> bool,
        found: impl FnMut(u32, f32),
    ) {
        self.collect(ids, rows, readable);
        self.score_collected(query, rows, found);
    }

    /// Puts the records among `ids` whose state `readable` accepts into `rows`.
    #[inline(always)]
    pub fn collect(
        &self,
        ids: impl Iterator<Item = u32>,
        rows: &mut Rows,
        readable: impl Fn(&Node<'a>) -> bool,
    ) {
        self.collect_rows(ids, rows, readable, Node::codes);
    }

    /// As `collect`, with what of a record is its row.
    #[inline(always)]
    fn collect_rows(
        &self,
        ids: impl Iterator<Item = u32>,
        rows: &mut Rows,
        readable: impl Fn(&Node<'a>) -> bool,
        row: impl Fn(&Node<'a>) -> *mut u8,
    ) {
        rows.clear();
        for id in ids {
            if let Some(node) = self.slots.get(id)
                && readable(&node)
            {
                rows.push(id, node, if self.has_bias { node.bias() } else { 0.0 }, row(&node));
            }
        }
    }

    /// Distances of the rows collected under the caller's pin, for as many queries as it likes.
    #[inline(always)]
    pub fn score_collected(&self, query: &Query, rows: &mut Rows, mut found: impl FnMut(u32, f32)) {
        self.measure(query, rows).for_each(|(id, distance)| found(id, distance));
    }

    #[inline(always)]
    fn measure<'r>(
        &self,
        query: &'r Query,
        rows: &'r mut Rows,
    ) -> impl ExactSizeIterator<Item = (u32, f32)> + 'r {
        // SAFETY: each row belongs to a slot whose state word was accepted when loaded (Acquire): live under the caller's
        // pin, or being linked with the caller holding the lock of a node that links to it. Either way its codes are
        // complete and nobody writes them; they have the plane's format and dimensions.
        let dots = unsafe { rows.dots(query, self.dot) };
        dots.map(|(head, dot)| (head.id, query.distance(head.factor, head.bias, dot)))
    }

    /// Walks the layers from the entry point's down to `above + 1`, and leaves the best nodes found in `seeds`.
    pub fn descend(&self, query: &Query, walk: &mut Walk, seeds: &mut Vec<u32>, above: u8, beam: usize) {
        seeds.clear();
        let Some((entry, level)) = self.entry_point() else { return };
        seeds.push(entry);
        for layer in (above + 1..=level).rev() {
            self.start(walk, beam, beam);
            self.seed_all(query, walk, seeds);
            self.walk_layer(query, walk, layer);
            seeds.clear();
            seeds.extend(walk.pool.entries().iter().map(|e| pool::id(*e)));
        }
    }
}

/// Appends the values whose mark is true. Without a branch for each: whether a record is near enough cannot be foretold.
#[inline(always)]
fn keep<T: Copy + Default>(kept: &mut Vec<T>, values: impl ExactSizeIterator<Item = (T, bool)>) {
    let mut count = kept.len();
    kept.resize(count + values.len(), T::default());
    for (value, is_kept) in values {
        kept[count] = value;
        count += usize::from(is_kept);
    }
    kept.truncate(count);
}
