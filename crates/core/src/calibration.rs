//! How recall grows with the beam width on one plane, and which width a wanted recall takes.
//!
//! A curve is a few points (ef, recall). Between them the share of neighbours that are missed is taken for a power of ef,
//! a straight line where both are drawn to logarithmic scale, which is what real vectors show.

use crate::error::{Error, Result};
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
pub const POINTS_MAX: usize = 28;
/// Narrowest beam that is measured.
const EF_CALIBRATED_MIN: usize = 4;
/// Standard errors by which a measurement may be too high before a recall falls below what is allowed. Half of one will do: what
/// a curve shows is a little low itself (`graph/held_out.rs`).
const ERRORS: f64 = 0.5;
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
    /// A curve from what each sample found: `found[i]` of `k` for each of `efs`, ascending.
    pub fn fit(k: usize, efs: &[usize], found: &[Vec<u32>], count: u64, churn: u64) -> Calibration {
        let samples = found.len();
        let share = |row: &Vec<u32>, i: usize| f64::from(row[i]) / k as f64;
        let mean = |i: usize| found.iter().map(|row| share(row, i)).sum::<f64>() / samples as f64;
        let means: Vec<f64> = (0..efs.len()).map(mean).collect();
        // The variance that independent misses would have, and the one that is there.
        let (mut independent, mut real) = (0.0, 0.0);
        for (i, mean) in means.iter().enumerate().filter(|(_, mean)| **mean > 0.5) {
            independent += mean * (1.0 - mean) / k as f64;
            real += found.iter().map(|row| (share(row, i) - mean).powi(2)).sum::<f64>() / samples as f64;
        }
        let spread = if independent > 0.0 { (real / independent).clamp(0.0, k as f64) } else { 1.0 };
        // As precise as the file keeps them.
        let kept = |value: f64| f64::from(value as f32);
        let point = |(&ef, recall)| Point { ef, recall: kept(recall) };
        let points = efs.iter().zip(rising(&means)).map(point).collect();
        let spread = kept(spread);
        Calibration { k, samples, count, stale: false, churn, spread, points }
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

    /// The narrowest beam that delivers this recall; `None` when no measured one does.
    pub fn ef_for(&self, recall: f64) -> Option<usize> {
        let goal = self.goal(recall);
        let at = self.points.iter().position(|point| point.recall >= goal)?;
        let Some(before) = at.checked_sub(1).map(|at| self.points[at]) else {
            return Some(self.points[at].ef);
        };
        let missed = |recall: f64| (1.0 - recall).max(self.missed_min()).ln();
        let (above, wanted, below) = (missed(before.recall), missed(goal), missed(self.points[at].recall));
        let part = if above > below { ((above - wanted) / (above - below)).clamp(0.0, 1.0) } else { 1.0 };
        let (from, to) = ((before.ef as f64).ln(), (self.points[at].ef as f64).ln());
        Some(((from + part * (to - from)).exp().ceil() as usize).clamp(before.ef, self.points[at].ef))
    }

    /// The highest recall that can be asked for.
    pub fn best(&self) -> f64 {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if self.ef_for(middle).is_some() { low = middle } else { high = middle }
        }
        low
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

/// The narrowest beam that delivers this recall for `k`, from the curves that there are, by ascending k. Between two of them
/// ef is taken for a power of k; above the last it grows with k, below the first it is that of the first.
pub fn ef_for(curves: &[Calibration], k: usize, recall: f64) -> Result<usize> {
    let one = |curve: &Calibration| {
        let unreachable = || Error::RecallUnreachable { recall, best: curve.best(), k: curve.k };
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

/// Beam width that finds 0.98 by the plane's curves; `None` when they do not tell, or not any more.
pub fn ef_default(curves: &[Calibration], k: usize, stale: impl Fn(&Calibration) -> bool) -> Option<usize> {
    if curves.is_empty() || curves.iter().any(stale) { None } else { ef_for(curves, k, RECALL_DEFAULT).ok() }
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
        let points = ladder(k).into_iter().map(|ef| Point { ef, recall: recall(ef) }).collect();
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
            let needed = 2.0 / (1.0 - recall + allowance(recall) - curve.error_at(recall));
            assert!((ef as f64 / needed - 1.0).abs() < 0.05, "{recall}: {ef} for {needed}");
        }
        assert_eq!(curve.ef_for(0.9999), None);
        let best = curve.best();
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
        assert_eq!(ef_default(&curves, 10, |_| false), curves[0].ef_for(RECALL_DEFAULT));
        assert_eq!((ef_default(&curves, 10, |_| true), ef_default(&[], 10, |_| false)), (None, None));
        assert_eq!((ef_uncalibrated(10), ef_uncalibrated(100)), (160, 400));
    }

    #[test]
    fn fitted_recall_never_falls_and_keeps_its_mean() {
        let found = [vec![5, 8, 7, 10], vec![6, 6, 5, 10]];
        let fitted = Calibration::fit(10, &[10, 20, 40, 80], &found, 5, 6);
        let recalls: Vec<f64> = fitted.points.iter().map(|point| point.recall).collect();
        let expected = [0.55, 0.65, 0.65, 1.0];
        assert!(recalls.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{recalls:?}");
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
