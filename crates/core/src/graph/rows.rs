//! Records being scored together.

use super::node::Node;
use crate::distance::{DotRows, Query};

/// What a distance takes of a record besides its row.
#[derive(Clone, Copy)]
pub struct Head {
    pub id: u32,
    pub factor: f32,
    pub bias: f32,
    /// The sketch's terms as they are in the file; in planes without sketches, no matter.
    pub terms: u32,
}

/// A batch of records, and then its dot products. Reused from one batch to the next.
#[derive(Default)]
pub struct Rows {
    heads: Vec<Head>,
    rows: Vec<*const u8>,
    dots: Vec<f32>,
}

// SAFETY: the pointers are scratch space, empty between walks; a walk stays on one thread.
unsafe impl Send for Rows {}

impl Rows {
    /// Empties the batch.
    pub fn clear(&mut self) {
        self.heads.clear();
        self.rows.clear();
    }

    /// Adds a record whose state was seen to be readable: its head is read here, while it is at hand.
    #[inline(always)]
    pub fn push(&mut self, id: u32, node: Node<'_>, bias: f32, row: *const u8) {
        self.heads.push(Head { id, factor: node.factor(), bias, terms: node.terms() });
        self.rows.push(row);
    }

    /// Dot products of the rows with a query, each with its record's head.
    ///
    /// # Safety
    /// Each row may be read by `dot` for this query.
    #[inline(always)]
    pub unsafe fn dots(&mut self, query: &Query, dot: DotRows) -> impl ExactSizeIterator<Item = (Head, f32)> {
        if self.dots.len() < self.rows.len() {
            self.dots.resize(self.rows.len().next_power_of_two(), 0.0);
        }
        // SAFETY: the caller's promise; there is room for a result for each row.
        unsafe { dot(query, &self.rows, &mut self.dots) };
        self.heads.iter().copied().zip(self.dots.iter().copied())
    }
}
