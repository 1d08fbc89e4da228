//! Walks that end by distance: the distance adaptive beam search of Al-Jazzazi et al. (arXiv:2505.15636).
//!
//! A beam width gives every query the same number of expansions, the easy ones too many and the hard ones too few. A walk with a
//! stop goes on while the next node is at most `factor` times as far as the `rank`-th nearest found. What a factor costs and
//! finds is another thing on every plane, so factors are fitted to a mean number of expansions, which stands for the beam width.

use super::beam::{CAUTION, descent_beam};
use super::search::candidates;
use super::{Graph, Scratch};
use crate::calibration::EF_CALIBRATED_MAX;

/// A walk with a stop may expand so many times as many nodes as walks do on average. Without a limit the hardest queries take an
/// eighth of the time of all, on minilm, and find one neighbour in ten thousand for it.
const WIDTH_PER_EF: usize = 4;
/// Factors are looked for up to this one: no walk ends by it.
const FACTOR_MAX: f32 = 1e6;

/// When a walk ends before its beam is expanded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    /// Which of the nearest found is the measure, from 1 on.
    pub rank: usize,
    /// How many times as far as that one a node may be and still be expanded; squared distances, where the metric has such.
    pub factor: f32,
}

/// How far a walk goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beam {
    /// Nodes that are expanded: exactly so many, or, with a stop, about so many on average.
    pub ef: usize,
    /// What ends the walk of an easy query early, and lets a hard one go on.
    pub stop: Option<Stop>,
}

impl Beam {
    /// The same number of expansions for every query.
    pub fn plain(ef: usize) -> Beam {
        Beam { ef, stop: None }
    }

    /// Nodes that the beam keeps.
    pub fn width(&self) -> usize {
        if self.stop.is_some() { width_with_stop(self.ef) } else { self.ef }
    }
}

fn width_with_stop(ef: usize) -> usize {
    ef.saturating_mul(WIDTH_PER_EF).min(EF_CALIBRATED_MAX).max(ef)
}

/// Of a walk that nothing stops: how many times as far as the `rank`-th nearest found each node was when it was expanded, or an
/// earlier one if that was more. A stop with a smaller factor would have ended the walk there.
pub type Log = Vec<f32>;

impl Graph<'_> {
    /// Walks as far as any calibrated search would. `scratch` holds the query, prepared; the caller is pinned.
    pub fn log_walk(&self, rank: usize, scratch: &mut Scratch) -> Log {
        let Scratch { query, walk, seeds, .. } = scratch;
        let kept = candidates(rank);
        self.descend(query, walk, seeds, 0, descent_beam(EF_CALIBRATED_MAX));
        self.start(walk, EF_CALIBRATED_MAX, kept);
        self.seed_all(query, walk, seeds);
        if let Some(root) = self.root() {
            self.seed(query, walk, root);
        }
        let screen = query.screen(CAUTION);
        let mut log = Log::new();
        let mut most = 0.0f32;
        while log.len() < EF_CALIBRATED_MAX
            && let Some(id) = walk.pool.expand_next()
        {
            most = most.max(walk.pool.how_far(rank, kept));
            log.push(most);
            self.gather(id, 0, walk, Self::prefetch_first);
            std::mem::swap(&mut walk.pending, &mut walk.gathered);
            self.screen_pending(query, &screen, walk);
            self.score_pending(query, walk);
        }
        log
    }
}

/// The factor with which these walks would have expanded `ef` nodes on average.
pub fn fit(logs: &[Log], ef: usize) -> f32 {
    let width = width_with_stop(ef);
    let expanded = |factor: f32| -> usize {
        let ended = |log: &Log| log.partition_point(|far| *far <= factor).min(width);
        logs.iter().map(ended).sum()
    };
    // By the logarithm: small factors lie closely together.
    let (mut low, mut high) = (0.0f32, FACTOR_MAX.ln());
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if expanded(middle.exp()) < ef * logs.len() { low = middle } else { high = middle }
    }
    high.exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks where the n-th node is `1 + n * slope` times as far.
    fn log(slope: f32, length: usize) -> Log {
        (0..length).map(|n| 1.0 + n as f32 * slope).collect()
    }

    #[test]
    fn a_factor_makes_walks_as_long_as_asked_on_average() {
        let (easy, hard) = (log(0.01, 4000), log(0.001, 4000));
        assert!((fit(std::slice::from_ref(&easy), 100) - 2.0).abs() < 0.02);
        // 20 and 200 nodes are within 1.2 times.
        let both = fit(&[easy, hard], 110);
        assert!((both - 1.2).abs() < 0.005, "{both}");
    }

    #[test]
    fn no_walk_is_counted_beyond_the_width_of_its_beam() {
        // Two end at once, two go on for ever, of which each counts for four times 90 at most: 180 on average.
        let logs = [vec![2e6; 4000], log(0.0, 4000), log(0.0, 4000), vec![2e6; 4000]];
        let factor = fit(&logs, 90);
        assert!(factor < 1.001, "{factor}");
        // However far they go, they are too short.
        let short = fit(&[log(0.1, 30)], 100);
        assert!(short > 4.0, "nothing ends them: {short}");
    }

    #[test]
    fn beams_with_a_stop_are_wider_up_to_the_widest() {
        let stop = Some(Stop { rank: 10, factor: 1.2 });
        let widths = [10, 1000, 2000, 4096, 5000].map(|ef| Beam { ef, stop }.width());
        assert_eq!(widths, [40, 4000, 4096, 4096, 5000]);
        assert_eq!(Beam::plain(77).width(), 77);
    }
}
