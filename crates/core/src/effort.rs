//! How much of the graph a query looks at: what its options say, checked against each other and the plane.

use std::sync::atomic::Ordering;

use crate::calibration::{self, RECORDS_MIN};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::graph::stop::Beam;
use crate::options::{EF_MAX, Metric, SearchOptions};
use crate::plane::check_range;

/// Neighbours that the default beam of a search within a distance would be made for.
const K_WITHIN: usize = 10;

/// See the module's first line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effort {
    /// A walk.
    Beam(Beam),
    /// Every record.
    All,
}

impl Effort {
    /// What these options ask for.
    pub fn of(engine: &Engine, options: &SearchOptions<'_>) -> Result<Effort> {
        let both = |reason| Err(Error::InvalidOption { name: "recall", reason });
        check_within(engine.store.config.metric, options.within)?;
        match (options.ef, options.recall) {
            (Some(_), Some(_)) => return both("cannot be given together with ef: each decides on the other"),
            (None, Some(_)) if options.within.is_some() => {
                return both("counts the k nearest: a search within a distance takes ef instead");
            }
            (Some(ef), None) => {
                check_range("ef", ef, 1, EF_MAX)?;
                let ef = if options.within.is_some() { ef } else { ef.max(options.k) };
                return Ok(Effort::Beam(Beam::plain(ef)));
            }
            (None, _) => {}
        }
        let k = if options.within.is_some() { K_WITHIN } else { options.k };
        let filtered = options.filter.is_some() || options.keys.is_some() || options.tags.is_some();
        let Some(recall) = options.recall else {
            let plain = options.within.is_some();
            return Ok(Effort::Beam(match filtered {
                true => Beam::plain(ef_default_filtered(engine, k)),
                false => {
                    beam_default(engine, k, plain).unwrap_or(Beam::plain(calibration::ef_uncalibrated(k)))
                }
            }));
        };
        if !(recall > 0.0 && recall < 1.0) {
            let range = "above 0 and below 1 (searchExact finds all)";
            return Err(Error::NotInRange { name: "recall", value: recall, range });
        }
        engine.check_current()?;
        if engine.store.shared().count.load(Ordering::Relaxed) <= RECORDS_MIN as i64 {
            return Ok(Effort::All);
        }
        let curves = engine.curves.get(&engine.store);
        Ok(Effort::Beam(match filtered {
            true => Beam::plain(calibration::ef_for(&curves.curves, k, recall)?),
            false => calibration::beam_for(&curves.curves, k, recall)?,
        }))
    }
}

/// What a search that asks for nothing does by the plane's curves.
fn beam_default(engine: &Engine, k: usize, plain: bool) -> Option<Beam> {
    let curves = engine.curves.get(&engine.store);
    calibration::beam_default(&curves.curves, k, plain, |curve| engine.is_stale(curve))
}

/// Beam width of a search with a filter that asks for none. Curves are those of walks without one: no reason to do less than
/// where there are none.
pub fn ef_default_filtered(engine: &Engine, k: usize) -> usize {
    let rule = calibration::ef_uncalibrated(k);
    beam_default(engine, k, true).map_or(rule, |beam| beam.ef.max(rule))
}

/// Refuses distances that no two vectors have.
pub fn check_within(metric: Metric, within: Option<f64>) -> Result<()> {
    let Some(within) = within else { return Ok(()) };
    let range = match metric {
        Metric::InnerProduct if within.is_finite() => return Ok(()),
        _ if within.is_finite() && within >= 0.0 => return Ok(()),
        Metric::InnerProduct => "a finite number",
        _ => "a finite number not below 0",
    };
    Err(Error::NotInRange { name: "within", value: within, range })
}
