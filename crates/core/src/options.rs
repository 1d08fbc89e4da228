//! Parameters of every call, checked once here and valid by type everywhere after.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::tags::TagQuery;

/// How the distance between two vectors is defined. Smaller is nearer for every metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Metric {
    /// `1 - a.b / (|a| |b|)`, in [0, 2].
    Cosine = 0,
    /// Squared Euclidean distance.
    L2 = 1,
    /// `-a.b`.
    InnerProduct = 2,
}

/// How a vector's components are kept for traversal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Precision {
    /// One byte a component, symmetric per-vector scale.
    Int8 = 0,
    /// Two bytes a component, symmetric per-vector scale.
    Int16 = 1,
    /// IEEE half precision, scaled per vector by a power of two.
    F16 = 2,
    /// The caller's own components.
    F32 = 3,
}

/// Which exact copy of a vector is kept to score final candidates with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rerank {
    /// No copy: answers are ordered by the traversal codes.
    None = 0,
    /// A half-precision copy.
    F16 = 1,
    /// The caller's vector, bit for bit.
    F32 = 2,
}

/// Largest number of components a vector may have.
pub const DIMS_MAX: u32 = 65_536;
/// Largest number of links of a node on one layer.
pub const LINKS_MAX: u32 = 512;
/// Largest beam width.
pub const EF_MAX: usize = 1 << 20;
/// Largest answer that can be asked for.
pub const K_MAX: usize = 1 << 20;
/// Most bytes a key may have.
pub const KEY_BYTES_MAX: usize = 65_535;
/// Largest number of nodes in one plane: the pool spends one bit of an id's word on "expanded".
pub const NODES_MAX: u32 = 0x7FFF_FFFE;

/// What a new plane is made with. `CreateOptions::new(dims)` gives the defaults.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Components of every vector, 1 to 65,536.
    pub dims: u32,
    /// Default cosine.
    pub metric: Metric,
    /// Default int8.
    pub precision: Precision,
    /// Default f32.
    pub rerank: Rerank,
    /// Links kept per node on layers above 0, 2 to 256. Default 16.
    pub m: u32,
    /// Links kept per node on layer 0, 2 to 512. Default `2 * m`.
    pub layer0_cap: u32,
    /// Beam width while inserting, 1 to 2^20. Default 200.
    pub ef_construction: u32,
    /// Key bytes stored beside a record; longer keys go to the heap. 0 means that records have no keys.
    pub key_cap: u32,
    /// Whether a key may belong to at most one record.
    pub unique_keys: bool,
    /// Most records the plane may hold; `None` grows without a limit of its own.
    pub max_nodes: Option<u32>,
    /// With `max_nodes`: the heap may spend at most `max_nodes * key_arena_bytes_per_node` bytes on long keys.
    pub key_arena_bytes_per_node: Option<u32>,
    /// Replace an existing file, atomically.
    pub overwrite: bool,
    /// How long a write waits for another process's turn to end.
    pub lock_timeout: Duration,
}

impl CreateOptions {
    /// Defaults for vectors of `dims` components.
    pub fn new(dims: u32) -> Self {
        CreateOptions {
            dims,
            metric: Metric::Cosine,
            precision: Precision::Int8,
            rerank: Rerank::F32,
            m: 16,
            layer0_cap: 32,
            ef_construction: 200,
            key_cap: 0,
            unique_keys: false,
            max_nodes: None,
            key_arena_bytes_per_node: None,
            overwrite: false,
            lock_timeout: Duration::from_secs(5),
        }
    }

    /// Checks every field's range.
    pub fn check(&self) -> Result<()> {
        let ranges = [
            ("dims", self.dims, 1, DIMS_MAX),
            ("M", self.m, 2, LINKS_MAX / 2),
            ("layer0Cap", self.layer0_cap, 2, LINKS_MAX),
            ("efConstruction", self.ef_construction, 1, EF_MAX as u32),
            ("keyCap", self.key_cap, 0, KEY_BYTES_MAX as u32),
            ("maxNodes", self.max_nodes.unwrap_or(1), 1, NODES_MAX),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(Error::OutOfRange {
                    name,
                    value: u64::from(value),
                    min: min.into(),
                    max: max.into(),
                });
            }
        }
        if self.unique_keys && self.key_cap == 0 {
            return Err(Error::InvalidOption { name: "uniqueKeys", reason: "needs keyCap above 0" });
        }
        Ok(())
    }
}

/// How an existing plane is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse every write and work on files that cannot be written.
    pub read_only: bool,
    /// How long a write waits for another process's turn to end.
    pub lock_timeout: Duration,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { read_only: false, lock_timeout: Duration::from_secs(5) }
    }
}

/// One query's parameters.
#[derive(Clone, Debug)]
pub struct SearchOptions<'a> {
    /// Hits wanted, 0 to 2^20.
    pub k: usize,
    /// Beam width, raised to `k` when lower; `None` takes what the plane's calibration gives for `recall`, or for 0.98, or
    /// without one `max(160, 4 * k)`.
    pub ef: Option<usize>,
    /// Share of the true neighbours to find on average, above 0 and below 1, instead of `ef`.
    pub recall: Option<f64>,
    /// Only records at most this far away, `k` of them at most.
    pub within: Option<f64>,
    /// Allow-bitset over ids (bit `i & 7` of byte `i >> 3`); missing bits mean not allowed.
    pub filter: Option<&'a [u8]>,
    /// Keys of the records that are allowed, on planes whose keys are unique; those that no record has mean nothing. With
    /// `filter`, a record has to be allowed by both.
    pub keys: Option<&'a [Vec<u8>]>,
    /// Tags that records must have or not; with `filter` and `keys`, a record has to be allowed by all of them.
    pub tags: Option<&'a TagQuery>,
    /// Times `ef`: nodes a filtered walk may visit before an exact scan takes over.
    pub filter_expansion: usize,
    /// Score final candidates with the exact copy where one is kept.
    pub rerank: bool,
}

impl SearchOptions<'_> {
    /// `k` hits with the default beam width and no filter.
    pub fn new(k: usize) -> Self {
        SearchOptions {
            k,
            ef: None,
            recall: None,
            within: None,
            filter: None,
            keys: None,
            tags: None,
            filter_expansion: 40,
            rerank: true,
        }
    }
}
