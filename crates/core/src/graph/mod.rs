//! The graph: hierarchical navigable small worlds (Malkov and Yashunin, arXiv:1603.09320) over the slots of a plane.
//!
//! | file | responsibility |
//! |---|---|
//! | `node.rs` | the view of a slot, and the protocol that makes it sound |
//! | `pool.rs`, `visited.rs` | what a walk keeps: its beam, and which nodes it has met |
//! | `rows.rs` | records being scored together |
//! | `beam.rs` | walking a layer, descending the layers |
//! | `stop.rs` | walks that end by distance |
//! | `search.rs` | one query from vector to hits; the exact scan |
//! | `filter.rs` | queries that allow some ids only |
//! | `filtered_walk.rs` | walking among those only |
//! | `allowed.rs` | which ids those are |
//! | `copied.rs` | scans of what was copied to one place |
//! | `within.rs` | queries for everything up to a distance |
//! | `held_out.rs` | a record that walks take for absent while recall is measured |
//! | `select.rs` | which of many candidates become links |
//! | `links.rs` | changing a node's links: locks, overflow, the order of stores |
//! | `parents.rs` | the tree of protected links that keeps every record reachable |
//! | `insert.rs`, `remove.rs` | linking a new node in, taking one out |
//! | `second_pass.rs` | links chosen anew when all nodes are there |
//!
//! A search reads: entry point, `beam` down the layers, `search` ranks and copies. An insert walks the same way, then
//! `select`s neighbours, and `links` adds the edges back, with `parents` making sure that one of them stays.

pub mod allowed;
pub mod beam;
pub mod copied;
pub mod filter;
pub mod filtered_walk;
pub mod held_out;
pub mod insert;
pub mod links;
pub mod node;
pub mod parents;
pub mod pool;
pub mod remove;
pub mod rows;
pub mod search;
pub mod second_pass;
pub mod select;
pub mod stop;
pub mod visited;
pub mod within;

use std::sync::atomic::Ordering;

use crate::distance::{DotRows, ExactQuery, Query, kernels};
use crate::file::layout::NONE;
use crate::file::store::Store;
use crate::options::{Metric, Precision};
use crate::protocol;
use crate::testing::{Planted, is_planted};

use beam::Walk;
use links::LinkLocks;
use node::Slots;

/// A view of the graph for one operation: what is mapped now, with the arithmetic at hand.
#[derive(Clone, Copy)]
pub struct Graph<'a> {
    pub store: &'a Store,
    pub slots: Slots<'a>,
    locks: &'a LinkLocks,
    dot: DotRows,
    /// `None` where records have no sketches.
    dot_sketch: Option<DotRows>,
    m: usize,
    has_bias: bool,
    /// Bytes from a slot's start that a first look reads.
    look_bytes: u32,
    /// Bytes from a slot's start that scoring reads.
    score_bytes: u32,
    /// Walks see records that are still being linked in: two that are inserted at once should find each other.
    writing: bool,
}

/// Memory that operations reuse; one per thread at work.
#[derive(Default)]
pub struct Scratch {
    /// The vector being searched for or inserted.
    pub query: Query,
    /// The same, for final distances.
    pub exact: ExactQuery,
    pub walk: Walk,
    /// Where the next layer's walk starts.
    pub seeds: Vec<u32>,
    pub edit: links::Edit,
}

impl<'a> Graph<'a> {
    /// The graph as far as ids below `limit`.
    pub fn new(store: &'a Store, locks: &'a LinkLocks) -> Self {
        let config = &store.config;
        let kernels = kernels();
        let limit = protocol::announced(&store.shared().id_high_water);
        let slots = store.slots().with_limit(limit);
        let has_bias = config.metric == Metric::L2;
        Graph {
            store,
            slots,
            locks,
            dot: match config.precision {
                Precision::Int8 => kernels.dot_int8,
                Precision::Int16 => kernels.dot_int16,
                Precision::F16 => kernels.dot_f16,
                Precision::F32 => kernels.dot_f32,
            },
            dot_sketch: (slots.have_sketches() && !is_planted(Planted::IgnoresSketches))
                .then_some(kernels.dot_sketch),
            m: config.m as usize,
            has_bias,
            look_bytes: slots.look_bytes(),
            score_bytes: slots.score_bytes(),
            writing: false,
        }
    }

    /// The same graph as writers see it.
    pub fn for_writing(self) -> Self {
        Graph { writing: true, ..self }
    }

    /// Entry point and its level; `None` when the plane is empty, or the word names no slot.
    pub fn entry_point(&self) -> Option<(u32, u8)> {
        let word = self.store.shared().entry.load(Ordering::Acquire);
        let (id, level) = (word as u32, (word >> 32) as u32);
        (id < self.slots.limit() && level <= u32::from(crate::file::layout::LEVEL_MAX))
            .then_some((id, level as u8))
    }

    /// Root of the parent tree.
    pub fn root(&self) -> Option<u32> {
        let root = self.store.shared().root.load(Ordering::Acquire);
        (root != NONE && root < self.slots.limit()).then_some(root)
    }

    /// Puts a record in the role of the query. The caller is pinned and saw it live, or is building it, or holds the
    /// lock of a node that links to it.
    pub fn set_row(&self, query: &mut Query, id: u32) {
        let Some(node) = self.slots.get(id) else { return };
        let config = &self.store.config;
        // SAFETY: the caller's promise: the codes are complete and stay as they are.
        unsafe {
            query.set_row(
                config.precision,
                config.metric,
                config.dims as usize,
                node.codes(),
                node.factor(),
                node.bias(),
                node.scale(),
            );
        }
    }
}
