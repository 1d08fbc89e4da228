//! The engine of vecplane: a persistent vector index in one memory-mapped file.
//!
//! A plane holds vectors of one length, each with an id of its own, and with a key if the plane keeps keys. A graph over
//! them (HNSW, Malkov and Yashunin, arXiv:1603.09320) finds the nearest neighbours of a query. Any number of threads
//! search while others insert and remove; so do other processes.
//!
//! ```
//! use vecplane_core::{CreateOptions, OpenOptions, Plane, SearchOptions};
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("articles.plane");
//! let plane = Plane::create(&path, &CreateOptions { key_cap: 16, unique_keys: true, ..CreateOptions::new(3) })?;
//! plane.insert(&[1.0, 0.0, 0.0], b"article:1")?;
//! plane.insert(&[0.0, 1.0, 0.0], b"article:2")?;
//! plane.flush(None)?; // From here on a power cut loses neither.
//! drop(plane);
//!
//! let plane = Plane::open(&path, &OpenOptions::default())?;
//! let hits = plane.search(&[0.9, 0.1, 0.0], &SearchOptions::new(1))?;
//! assert_eq!(hits.key(0), b"article:1");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | responsibility |
//! |---|---|
//! | `plane`, `options`, `error`, `hits`, `batch`, `report` | the public surface |
//! | `engine` | an open plane inside one process: locks, sessions, flush |
//! | `write`, `upsert` | one insert, removal or replacement, step by step |
//! | `records`, `filtering` | records by key and in order; which ids a query may return |
//! | `graph/` | walking, linking, unlinking |
//! | `tags`, `tag_index`, `tag_log` | tags in the file; which records have which; how processes hear of new ones |
//! | `copies` | what sets that are scanned again and again are scanned in |
//! | `record`, `ids`, `heap`, `key_index` | what records are made of, and which room is free |
//! | `file/`, `map`, `storage` | the format, addresses, system calls |
//! | `protocol`, `epoch`, `turn` | orderings of words; readers and reuse; whose turn it is to write |
//! | `recover`, `relink`, `verify`, `create`, `registry` | after a crash; checking; new planes; sharing in a process |
//! | `calibrate`, `calibration`, `effort` | measuring recall, choosing beam widths by it, what a query's options amount to |
//! | `handle`, `new_file` | following a plane to its new file; files that appear complete or not at all |
//! | `snapshot` | a copy as of one moment, beside writers |
//! | `compact`, `rewrite`, `numbering` | a plane written anew and swapped in; its records; their ids |
//! | `invalidate` | declaring a plane invalid, for good |
//! | `mirror` | nodes written as a host has them |
//! | `predicate` | a search whose caller is asked which records it may return, step by step |
//! | `cold` | asking for pages that are not in memory |
//! | `distance/`, `codec` | kernels; vectors to codes and back |
//! | `testing` | what the engine's own tests reach into it with |
//!
//! `docs/design.md` specifies the file and argues the protocols.

#[cfg(target_endian = "big")]
compile_error!(
    "the file format is little-endian and is mapped as it is: big-endian targets are not supported"
);

mod batch;
mod calibrate;
mod calibration;
mod codec;
mod cold;
mod compact;
mod config;
mod copies;
mod create;
mod distance;
mod effort;
mod engine;
mod epoch;
mod error;
mod file;
mod filtering;
mod graph;
mod handle;
mod heap;
mod hits;
mod ids;
mod invalidate;
mod key_index;
mod map;
mod mirror;
mod new_file;
mod numbering;
mod options;
mod plane;
mod predicate;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod protocol;
#[cfg(not(feature = "testing"))]
mod protocol;
mod record;
mod records;
mod recover;
mod registry;
mod relink;
mod report;
mod rewrite;
mod sketch;
mod snapshot;
mod storage;
mod tag_index;
mod tag_log;
mod tags;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
#[cfg(not(feature = "testing"))]
mod testing;
mod turn;
mod upsert;
mod verify;
mod write;

pub use batch::{Batch, BatchOutcome, BatchTags, Rejection, RejectionCode};
pub use calibrate::CalibrateOptions;
pub use calibration::{Adaptive, Calibration, Point};
pub use compact::{CompactOptions, Compacted};
pub use config::Config;
pub use error::{Error, Result};
pub use graph::stop::{Beam, Stop};
pub use hits::Hits;
pub use invalidate::{Invalidation, invalidate_plane, stale_path};
pub use mirror::RawNode;
pub use options::{CreateOptions, Metric, OpenOptions, Precision, Rerank, SearchOptions};
pub use options::{DIMS_MAX, EF_MAX, K_MAX, KEY_BYTES_MAX, LINKS_MAX, NODES_MAX};
pub use plane::Plane;
pub use predicate::{Candidates, PredicateOptions, PredicateSearch, PredicateStep};
pub use records::{Cursor, Records};
pub use report::{Stats, VerifyReport};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use storage::{Faults, Step};
pub use tags::{TAG_BYTES_MAX, TAGS_MAX, Tag, TagQuery, TagSet};
