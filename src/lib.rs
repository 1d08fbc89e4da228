//! The Node layer: argument checks, conversion, promises; no algorithms. `index.js` is its only caller.
//!
//! | file | responsibility |
//! |---|---|
//! | `plane.rs` | the class behind `Plane`: each method reads check -> call core -> convert |
//! | `records.rs` | records on their way out |
//! | `predicate.rs` | a search that asks JavaScript which records it may return |
//! | `mirror.rs` | what hosts of a mirror need beside the class |
//! | `tags.rs` | tags on their way in |
//! | `control.rs` | a batch on its way in, and whether a call is to stop |
//! | `calibration.rs` | what `calibrate` found, as a JS object |
//! | `task.rs` | work that leaves the event loop |
//! | `gate.rs` | compactions, and writes that would wait for them on the libuv pool |
//! | `convert.rs` | JS values <-> core types |
//! | `options.rs` | what planes are created and opened with |
//! | `error.rs` | core errors -> JS errors with `code` |

// Paths under `napi` that the derive macros expand to are not all documented, and neither are their expansions.
#![allow(missing_docs)]
// In unit tests nobody registers what is exported.
#![cfg_attr(test, allow(dead_code))]

mod calibration;
mod control;
mod convert;
mod error;
mod gate;
mod mirror;
mod options;
mod plane;
mod predicate;
mod records;
mod tags;
mod task;

/// The version that this binary was built as; the loader refuses any but its own.
#[napi_derive::napi]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
