//! What a plane was made with, as its file tells it.

use crate::options::{Metric, Precision, Rerank};

/// A plane's fixed properties; they never change after `create`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Components of every vector.
    pub dims: u32,
    /// Distance in use.
    pub metric: Metric,
    /// Traversal codes in use.
    pub precision: Precision,
    /// Exact copy in use; always `None` with `Precision::F32`, whose codes are exact.
    pub rerank: Rerank,
    /// Links per node above layer 0.
    pub m: u32,
    /// Links per node on layer 0.
    pub layer0_cap: u32,
    /// Beam width while inserting.
    pub ef_construction: u32,
    /// Key bytes stored beside a record; 0 when records have no keys.
    pub key_cap: u32,
    /// Whether a key belongs to at most one record.
    pub unique_keys: bool,
    /// Most records the plane may hold.
    pub max_nodes: Option<u32>,
    /// Heap bytes that long keys may take, when limited.
    pub key_arena_bytes_max: Option<u64>,
    /// Random number chosen at creation: seeds key hashes and levels.
    pub seed: u64,
}
