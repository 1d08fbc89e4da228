//! The engine of vecplane: a persistent vector index in one memory-mapped file.

#[cfg(target_endian = "big")]
compile_error!("the file format is little-endian and is mapped as it is: big-endian targets are not supported");

mod batch;
mod codec;
mod config;
mod create;
mod distance;
mod engine;
mod epoch;
mod error;
mod file;
mod graph;
mod heap;
mod hits;
mod ids;
mod key_index;
mod map;
mod options;
mod plane;
mod record;
mod recover;
mod registry;
mod report;
mod storage;
mod turn;
mod verify;
mod write;

pub use batch::{Batch, BatchOutcome, Rejection, RejectionCode};
pub use config::Config;
pub use error::{Error, Result};
pub use hits::Hits;
pub use options::{CreateOptions, Metric, OpenOptions, Precision, Rerank, SearchOptions};
pub use plane::Plane;
pub use report::{Stats, VerifyReport};
