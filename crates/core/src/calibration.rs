//! How recall grows with the beam width on one plane, and which width a wanted recall takes.
//!
//! A curve is a few points (ef, recall), and at each the recall of walks that end by distance after as many expansions on
//! average (`graph/stop.rs`): nearly always more. Between them the share of neighbours that are missed is taken for a power of ef,
//! a straight line where both are drawn to logarithmic scale, which is what real vectors show.

use crate::error::{Error, Result};
use crate::graph::stop::{Beam, Stop};
use crate::options::EF_MAX;

/// Largest `k` that recall is measured for.
pub const K_CALIBRATED_MAX: usize = 1024;
/// Largest beam width that is measured, and chosen for a wanted recall.
pub const EF_CALIBRATED_MAX: usize = 4096;
/// Fewest and most vectors to measure with.
pub const SAMPLES_MIN: usize = 100;
/// See `SAMPLES_MIN`.
pub const SAMPLES_MAX: usize = 100_000;
/// Fewest records to measure on: with fewer, looking at all of them takes no longer than a walk.
pub const RECORDS_MIN: u64 = 1000;
/// Beam widths that a curve has at most.
pub const POINTS_MAX: usize = 20;
/// Narrowest beam that is measured.
const EF_CALIBRATED_MIN: usize = 4;
/// Standard errors by which a measurement may be too high before a recall falls below what is allowed. Half of one did while what
/// a curve shows was a little low itself (`graph/held_out.rs`); after a second pass over the links it hardly is, and with one, single
/// recalls were still missed.
const ERRORS: f64 = 2.0;
/// What a search that asks for nothing takes the beam for: 0.9825 at the least, so that the mean over some hundred queries, a
/// matter of chance too, is hardly ever below 0.98.
const RECALL_DEFAULT: f64 = 0.9875;

/// Mean recall at one beam width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The beam width.
    pub ef: usize,
    /// Share of the true neighbours that searches with it found.
    pub recall: f64,
    /// The same for walks that end by distance; `None` where the metric has no distances to compare (inner product).
    pub adaptive: Option<Adaptive>,
}

/// Mean recall of walks that end by distance, and expand `Point::ef` nodes on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// How many times as far as the k-th nearest found a node may be and still be expanded.
    pub factor: f32,
    /// Share of the true neighbours that such searches found.
    pub recall: f64,
}

/// How many of its k nearest one sample found at each point.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// With beam widths.
    pub plain: Vec<u32>,
    /// With factors; empty where there are none.
    pub adaptive: Vec<u32>,
}

/// Recall measured on a plane's own vectors, for one `k`.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Neighbours that were asked for.
    pub k: usize,
    /// Vectors that were asked with.
    pub samples: usize,
    /// Live records when it was measured.
    pub count: u64,
    /// Whether half as many records were inserted and removed since as there were then: the curve may be off.
    pub stale: bool,
    /// `SharedState::churn` then.
    pub(crate) churn: u64,
    /// How much more the samples' recalls differ than if each neighbour were missed by itself: a ratio of variances.
    pub(crate) spread: f64,
    /// Ascending by `ef`; recall never falls.
    pub points: Vec<Point>,
}

/// The beam widths to measure for a `k`, ascending, each the same multiple of the one before.
pub fn ladder(k: usize) -> Vec<usize> {
    let start = k.max(EF_CALIBRATED_MIN) as f64;
    let step = (EF_CALIBRATED_MAX as f64 / start).powf(1.0 / (POINTS_MAX - 1) as f64);
    let mut efs: Vec<usize> =
        (0..POINTS_MAX).map(|i| (start * step.powi(i as i32)).round() as usize).collect();
    efs.dedup();
    efs
}

/// How far below the wanted recall the mean may lie.
pub fn allowance(recall: f64) -> f64 {
    f64::min(0.005, (1.0 - recall) / 2.0)
}

impl Calibration {
    /// A curve from what each sample found for each of `efs`, ascending, and for the factor of each, where there are any.
    pub fn fit(
        k: usize,
        efs: &[usize],
        factors: &[f32],
        found: &[Found],
        count: u64,
        churn: u64,
    ) -> Calibration {
        let plain: Vec<&[u32]> = found.iter().map(|found| &found.plain[..]).collect();
        let adaptive: Vec<&[u32]> = found.iter().map(|found| &found.adaptive[..]).collect();
        let (recalls, spread) = column(k, efs.len(), &plain);
        let adaptive = if factors.is_empty() { Vec::new() } else { column(k, efs.len(), &adaptive).0 };
        let adaptive = |i: usize| Some(Adaptive { factor: *factors.get(i)?, recall: adaptive[i] });
        let points = efs.iter().zip(recalls).enumerate();
        let points = points.map(|(i, (&ef, recall))| Point { ef, recall, adaptive: adaptive(i) }).collect();
        Calibration { k, samples: found.len(), count, stale: false, churn, spread, points }
    }

    /// Standard error of the measured mean where it is `recall`.
    fn error_at(&self, recall: f64) -> f64 {
        // Half a miss when there was none: nothing found does not mean nothing to find.
        let missed = (1.0 - recall).max(self.missed_min());
        (self.spread.max(1.0) * missed * (1.0 - missed).max(0.0) / (self.k * self.samples) as f64).sqrt()
    }

    fn missed_min(&self) -> f64 {
        0.5 / (self.k * self.samples) as f64
    }

    /// What the curve must show for this recall to be delivered: what is allowed, and a part of the standard error there.
    fn goal(&self, recall: f64) -> f64 {
        let least = recall - allowance(recall);
        least + ERRORS * self.error_at(least)
    }

    /// The narrowest beam that delivers this recall for every query alike; `None` when no measured one does.
    pub fn ef_for(&self, recall: f64) -> Option<usize> {
        Some(self.narrowest(recall, |point| Some(point.recall))?.ef)
    }

    /// What expands the fewest nodes of all that deliver this recall; `None` when nothing measured does.
    pub fn beam_for(&self, recall: f64) -> Option<Beam> {
        let plain = self.ef_for(recall);
        let adaptive = self.narrowest(recall, |point| Some(point.adaptive?.recall));
        match (plain, adaptive) {
            (Some(ef), Some(adaptive)) if ef <= adaptive.ef => Some(Beam::plain(ef)),
            (_, Some(Place { ef, point, part })) => {
                let factor = |at: usize| self.points[at].adaptive.map_or(0.0, |adaptive| adaptive.factor);
                let (from, to) = (factor(point.saturating_sub(1)), factor(point));
                let factor = from + part as f32 * (to - from);
                Some(Beam { ef, stop: Some(Stop { rank: self.k, factor }) })
            }
            (plain, None) => plain.map(Beam::plain),
        }
    }

    /// Where a column of recalls delivers this one first.
    fn narrowest(&self, recall: f64, column: impl Fn(&Point) -> Option<f64>) -> Option<Place> {
        let goal = self.goal(recall);
        let shown = |at: usize| column(&self.points[at]);
        let at = (0..self.points.len()).find(|at| shown(*at).is_some_and(|recall| recall >= goal))?;
        let ef = |at: usize| self.points[at].ef as f64;
        let Some(before) = at.checked_sub(1).and_then(shown) else {
            return Some(Place { ef: self.points[at].ef, point: at, part: 1.0 });
        };
        let missed = |recall: f64| (1.0 - recall).max(self.missed_min()).ln();
        let (above, wanted, below) = (missed(before), missed(goal), missed(shown(at)?));
        let part = if above > below { ((above - wanted) / (above - below)).clamp(0.0, 1.0) } else { 1.0 };
        let (from, to) = (ef(at - 1).ln(), ef(at).ln());
        let between = (from + part * (to - from)).exp().ceil() as usize;
        Some(Place { ef: between.clamp(self.points[at - 1].ef, self.points[at].ef), point: at, part })
    }

    /// Whether a plane with this many live records, and this `churn`, is another one than was measured: half as many inserts
    /// and removals since as it held records then.
    pub fn is_stale(&self, count: u64, churn: u64) -> bool {
        // The count of a plane that lost its last moments to a power cut may be behind: no change, then.
        let changes = (churn.wrapping_sub(self.churn) as i64).max(0) as u64;
        let changes = changes.max(count.abs_diff(self.count));
        changes.saturating_mul(2) >= self.count
    }
}

/// A place on a curve.
struct Place {
    ef: usize,
    /// The point at which it ends,
    point: usize,
    /// and how much of the way from the one before lies before it, where ef is drawn to logarithmic scale.
    part: f64,
}

/// What delivers this recall for `k`, from the curves that there are, by ascending k: the narrowest walk that a curve of this
/// k, or the first when that is of a higher one, knows of. Between two curves, and above the last, it is a plain beam, whose width
/// is taken for a power of k and for growing with k.
pub fn beam_for(curves: &[Calibration], k: usize, recall: f64) -> Result<Beam> {
    let measured = curves.first().filter(|first| k < first.k).or(curves.iter().find(|curve| curve.k == k));
    let Some(curve) = measured else { return Ok(Beam::plain(ef_for(curves, k, recall)?)) };
    let unreachable = || unreachable(curve, recall, |recall| curve.beam_for(recall).is_some());
    curve.beam_for(recall).ok_or_else(unreachable)
}

/// The narrowest plain beam that delivers this recall for `k`, from the curves that there are, by ascending k.
pub fn ef_for(curves: &[Calibration], k: usize, recall: f64) -> Result<usize> {
    let one = |curve: &Calibration| {
        let unreachable = || unreachable(curve, recall, |recall| curve.ef_for(recall).is_some());
        curve.ef_for(recall).ok_or_else(unreachable)
    };
    let at = curves.partition_point(|curve| curve.k < k);
    let ef = match (at.checked_sub(1).map(|at| &curves[at]), curves.get(at)) {
        (_, Some(curve)) if curve.k == k => one(curve)?,
        (None, Some(first)) => one(first)?,
        (Some(last), None) => (one(last)? as f64 * k as f64 / last.k as f64).ceil() as usize,
        (Some(below), Some(above)) => {
            let ln = |k: usize| (k as f64).ln();
            let part = (ln(k) - ln(below.k)) / (ln(above.k) - ln(below.k));
            let (low, high) = ((one(below)? as f64).ln(), (one(above)? as f64).ln());
            (low + part * (high - low)).exp().ceil() as usize
        }
        (None, None) => return Err(Error::NotCalibrated),
    };
    Ok(ef.clamp(k.max(1), EF_MAX))
}

/// Tells the highest recall that can be asked for.
fn unreachable(curve: &Calibration, recall: f64, is_reached: impl Fn(f64) -> bool) -> Error {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if is_reached(middle) { low = middle } else { high = middle }
    }
    Error::RecallUnreachable { recall, best: low, k: curve.k }
}

/// Means of a column of what samples found, as a curve that never falls, and how much more they differ than if each neighbour
/// were missed by itself. As precise as the file keeps them.
fn column(k: usize, points: usize, found: &[&[u32]]) -> (Vec<f64>, f64) {
    let kept = |value: f64| f64::from(value as f32);
    let samples = found.len() as f64;
    let share = |row: &[u32], i: usize| f64::from(row[i]) / k as f64;
    let mean = |i: usize| found.iter().map(|row| share(row, i)).sum::<f64>() / samples;
    let means: Vec<f64> = (0..points).map(mean).collect();
    // The variance that independent misses would have, and the one that is there.
    let (mut independent, mut real) = (0.0, 0.0);
    for (i, mean) in means.iter().enumerate().filter(|(_, mean)| **mean > 0.5) {
        independent += mean * (1.0 - mean) / k as f64;
        real += found.iter().map(|row| (share(row, i) - mean).powi(2)).sum::<f64>() / samples;
    }
    let spread = if independent > 0.0 { (real / independent).clamp(0.0, k as f64) } else { 1.0 };
    (rising(&means).into_iter().map(kept).collect(), kept(spread))
}

/// What finds 0.98 by the plane's curves; `None` when they do not tell, or not any more. `plain` asks for one without a stop.
pub fn beam_default(
    curves: &[Calibration],
    k: usize,
    plain: bool,
    stale: impl Fn(&Calibration) -> bool,
) -> Option<Beam> {
    if curves.is_empty() || curves.iter().any(stale) {
        return None;
    }
    let plain_beam = || ef_for(curves, k, RECALL_DEFAULT).map(Beam::plain);
    if plain { plain_beam().ok() } else { beam_for(curves, k, RECALL_DEFAULT).ok() }
}

/// The rule where no curve tells, which finds 0.98 on the vectors it was measured with.
pub fn ef_uncalibrated(k: usize) -> usize {
    (4 * k).clamp(160, EF_MAX)
}

/// The nearest sequence that never falls, by averaging neighbours that do (pool adjacent violators).
fn rising(values: &[f64]) -> Vec<f64> {
    let mut runs: Vec<(f64, usize)> = Vec::new();
    for &value in values {
        let mut run = (value, 1);
        while let Some(&(mean, length)) = runs.last().filter(|(mean, _)| *mean > run.0) {
            runs.pop();
            run = ((mean * length as f64 + run.0 * run.1 as f64) / (length + run.1) as f64, length + run.1);
        }
        runs.push(run);
    }
    runs.into_iter().flat_map(|(mean, length)| std::iter::repeat_n(mean, length)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A share of `2 * scale / ef` neighbours is missed.
    fn curve(k: usize, scale: f64) -> Calibration {
        let recall = |ef: usize| (1.0 - 2.0 * scale / ef as f64).max(0.0);
        let points =
            ladder(k).into_iter().map(|ef| Point { ef, recall: recall(ef), adaptive: None }).collect();
        Calibration { k, samples: 4000, count: 1000, stale: false, churn: 1000, spread: 1.0, points }
    }

    #[test]
    fn ladders_climb_evenly_to_the_widest_beam() {
        for k in [1, 2, 10, 100, 1000, K_CALIBRATED_MAX] {
            let efs = ladder(k);
            assert!(efs.len() <= POINTS_MAX && efs.is_sorted_by(|a, b| a < b), "{efs:?}");
            assert_eq!((efs[0], *efs.last().unwrap()), (k.max(EF_CALIBRATED_MIN), EF_CALIBRATED_MAX));
        }
    }

    #[test]
    fn the_beam_is_the_narrowest_that_delivers() {
        let curve = curve(10, 1.0);
        for recall in [0.9, 0.95, 0.99, 0.995] {
            let ef = curve.ef_for(recall).unwrap();
            let needed = 2.0 / (1.0 - recall + allowance(recall) - ERRORS * curve.error_at(recall));
            assert!((ef as f64 / needed - 1.0).abs() < 0.05, "{recall}: {ef} for {needed}");
        }
        assert_eq!(curve.ef_for(0.9999), None);
        let Err(Error::RecallUnreachable { best, .. }) = ef_for(std::slice::from_ref(&curve), 10, 0.9999)
        else {
            panic!("no beam is so wide")
        };
        assert!(curve.ef_for(best - 1e-9).is_some() && curve.ef_for(best + 1e-3).is_none(), "{best}");
    }

    #[test]
    fn few_samples_make_the_beam_wider() {
        let many = curve(10, 1.0);
        let few = Calibration { samples: 100, ..many.clone() };
        assert!(few.ef_for(0.995).unwrap() > many.ef_for(0.995).unwrap());
    }

    #[test]
    fn a_k_without_a_curve_goes_by_its_neighbours() {
        let curves = [curve(10, 1.0), curve(100, 4.0)];
        let at = |k| ef_for(&curves, k, 0.95).unwrap();
        assert_eq!(at(10), curves[0].ef_for(0.95).unwrap());
        assert_eq!((at(1), at(1000)), (at(10), 10 * at(100)));
        assert!(at(10) < at(30) && at(30) < at(100), "{} {} {}", at(10), at(30), at(100));
        assert!(matches!(ef_for(&[], 10, 0.5), Err(Error::NotCalibrated)));
        assert!(matches!(ef_for(&curves, 10, 0.99999), Err(Error::RecallUnreachable { .. })));
        let default = |curves, stale: bool| beam_default(curves, 10, false, |_| stale);
        assert_eq!(default(&curves, false), curves[0].ef_for(RECALL_DEFAULT).map(Beam::plain));
        assert_eq!((default(&curves, true), default(&[], false)), (None, None));
        assert_eq!((ef_uncalibrated(10), ef_uncalibrated(100)), (160, 400));
    }

    #[test]
    fn fitted_recall_never_falls_and_keeps_its_mean() {
        let found = [
            Found { plain: vec![5, 8, 7, 10], adaptive: vec![6, 8, 10, 10] },
            Found { plain: vec![6, 6, 5, 10], adaptive: vec![7, 9, 9, 10] },
        ];
        let efs = [10, 20, 40, 80];
        let fitted = Calibration::fit(10, &efs, &[1.1, 1.2, 1.3, 1.4], &found, 5, 6);
        let near = |recalls: Vec<f64>, expected: [f64; 4]| {
            assert!(recalls.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{recalls:?}");
        };
        near(fitted.points.iter().map(|point| point.recall).collect(), [0.55, 0.65, 0.65, 1.0]);
        near(
            fitted.points.iter().map(|point| point.adaptive.unwrap().recall).collect(),
            [0.65, 0.85, 0.95, 1.0],
        );
        let without = Calibration::fit(10, &efs, &[], &found, 5, 6);
        assert!(without.points.iter().all(|point| point.adaptive.is_none()));
    }

    /// A curve on which walks that end by distance miss `share` of what plain ones miss.
    fn with_adaptive(share: f64) -> Calibration {
        let mut curve = curve(10, 1.0);
        for (i, point) in curve.points.iter_mut().enumerate() {
            let recall = 1.0 - (1.0 - point.recall) * share;
            point.adaptive = Some(Adaptive { factor: 1.0 + i as f32, recall });
        }
        curve
    }

    #[test]
    fn the_walk_is_the_one_that_expands_the_fewest() {
        let better = with_adaptive(0.5);
        let (plain, beam) = (better.ef_for(0.95).unwrap(), better.beam_for(0.95).unwrap());
        assert!((beam.ef as f64 / plain as f64 - 0.5).abs() < 0.1, "{beam:?}, {plain}");
        let stop = beam.stop.unwrap();
        let at = better.points.partition_point(|point| point.ef < beam.ef);
        let (from, to) = (at as f32, at as f32 + 1.0);
        assert!(stop.rank == 10 && (from..=to).contains(&stop.factor), "{stop:?} between {from} and {to}");
        // As far as each column goes.
        let beyond = (1.0 + 2.0 * better.points.last().unwrap().recall) / 3.0;
        assert!(better.beam_for(beyond).is_some() && better.ef_for(beyond).is_none(), "{beyond}");

        let worse = with_adaptive(1.5);
        assert_eq!(worse.beam_for(0.95), worse.ef_for(0.95).map(Beam::plain));
        assert_eq!(curve(10, 1.0).beam_for(0.95), curve(10, 1.0).ef_for(0.95).map(Beam::plain));
    }

    #[test]
    fn only_a_k_that_was_measured_gets_walks_that_end_by_distance() {
        let curves = [with_adaptive(0.5), curve(100, 4.0)];
        let beam = |k| beam_for(&curves, k, 0.95).unwrap();
        assert_eq!((beam(10), beam(3)), (curves[0].beam_for(0.95).unwrap(), beam(10)));
        for k in [30, 100, 300] {
            assert_eq!(beam(k), Beam::plain(ef_for(&curves, k, 0.95).unwrap()));
        }
        let default = |plain| beam_default(&curves, 10, plain, |_| false).unwrap();
        assert!(default(false).stop.is_some() && default(true).stop.is_none());
    }

    #[test]
    fn half_as_many_changes_as_records_make_a_curve_stale() {
        let curve = curve(10, 1.0);
        for (count, churn, stale) in [
            (1000, 1499, false),
            (1000, 1500, true),
            (500, 1000, true),
            (501, 1000, false),
            // A counter that a power cut took back.
            (1000, 900, false),
            (0, 0, true),
        ] {
            assert_eq!(curve.is_stale(count, churn), stale, "{count}, {churn}");
        }
    }
}
