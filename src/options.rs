//! What planes are created and opened with, from JS objects.

use vecplane_core::{self as core, CreateOptions, OpenOptions};

use crate::convert::*;
use crate::error::Outcome;

pub const METRICS: [(&str, core::Metric); 3] = [
    ("cosine", core::Metric::Cosine),
    ("l2", core::Metric::L2),
    ("inner-product", core::Metric::InnerProduct),
];
pub const PRECISIONS: [(&str, core::Precision); 4] = [
    ("int8", core::Precision::Int8),
    ("int16", core::Precision::Int16),
    ("f16", core::Precision::F16),
    ("f32", core::Precision::F32),
];
pub const RERANKS: [(&str, core::Rerank); 3] =
    [("none", core::Rerank::None), ("f16", core::Rerank::F16), ("f32", core::Rerank::F32)];

/// See `CreateOptions` in `index.d.ts`.
pub fn create_options(options: Arg) -> Outcome<CreateOptions> {
    let given = |name| options.option(name).given();
    let whole = |name| given(name).map(|arg| arg.whole(name)).transpose();
    let flag = |name| given(name).map(|arg| arg.flag(name)).transpose();
    let mut core = CreateOptions::new(options.option("dims").whole("dims")?);
    core.metric = given("metric").map_or(Ok(core.metric), |arg| arg.choice("metric", &METRICS))?;
    core.precision =
        given("precision").map_or(Ok(core.precision), |arg| arg.choice("precision", &PRECISIONS))?;
    core.rerank = given("rerank").map_or(Ok(core.rerank), |arg| arg.choice("rerank", &RERANKS))?;
    core.m = whole("M")?.unwrap_or(core.m);
    core.layer0_cap = whole("layer0Cap")?.unwrap_or(core.m.saturating_mul(2));
    core.ef_construction = whole("efConstruction")?.unwrap_or(core.ef_construction);
    core.key_cap = whole("keyCap")?.unwrap_or(core.key_cap);
    core.unique_keys = flag("uniqueKeys")?.unwrap_or(core.key_cap > 0);
    core.max_nodes = whole("maxNodes")?;
    core.key_arena_bytes_per_node = whole("keyArenaBytesPerNode")?;
    core.overwrite = flag("overwrite")?.unwrap_or(core.overwrite);
    core.lock_timeout = whole("lockTimeout")?.map_or(core.lock_timeout, milliseconds);
    core.check()?;
    Ok(core)
}

/// See `OpenOptions` in `index.d.ts`.
pub fn open_options(options: Arg) -> Outcome<OpenOptions> {
    let mut core = OpenOptions::default();
    let timeout = options.option("lockTimeout").given().map(|arg| arg.whole("lockTimeout")).transpose()?;
    core.lock_timeout = timeout.map_or(core.lock_timeout, milliseconds);
    core.read_only = options.option("readOnly").given().map_or(Ok(false), |arg| arg.flag("readOnly"))?;
    Ok(core)
}

/// What a value is called in JS.
pub fn name<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, named)| *named == value).map_or("unknown", |(name, _)| name)
}
