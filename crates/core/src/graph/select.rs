//! Which candidates become links: the diversity rule of Malkov and Yashunin (arXiv:1603.09320, algorithm 4).
//!
//! A candidate is kept when it is nearer to the node than to every candidate kept before it. Keeping simply the nearest
//! would spend all links inside one cluster and strand what lies outside. A tie counts against the candidate: among
//! copies of one vector a single link is enough, and the others stay free for the way out.

use super::Graph;
use super::pool::{self, Entry};
use super::rows::Rows;
use crate::distance::Query;

/// How much is kept.
#[derive(Clone, Copy)]
pub struct Rule {
    /// A candidate gives way to a kept one that is nearer to it than the node is, by this factor at least: from 1 on. Vamana's
    /// alpha (Subramanya et al., DiskANN, NeurIPS 2019), for squared distances.
    pub slack: f32,
    /// So many are kept whatever the rule says.
    pub least: usize,
}

impl Rule {
    /// The rule as it stands.
    pub const STRICT: Rule = Rule { slack: 1.0, least: 0 };
}

/// Scratch for one selection.
#[derive(Default)]
pub struct Selection {
    pair: Query,
    rows: Rows,
    kept: Vec<u32>,
    /// For each candidate looked at and not kept: the kept one that stands for it.
    pub covered: Vec<(u32, u32)>,
}

impl Graph<'_> {
    /// Picks at most `most` of `candidates`, which are sorted by distance to the node, and leaves them in `selection`.
    /// Every candidate is safe to read: the caller is pinned and saw it live, or holds the lock of a node linking to it.
    pub fn select(&self, candidates: &[Entry], most: usize, selection: &mut Selection) {
        self.select_by(Rule::STRICT, candidates, most, selection);
    }

    /// `select` by another rule.
    pub fn select_by(&self, rule: Rule, candidates: &[Entry], most: usize, selection: &mut Selection) {
        let Selection { pair, rows, kept, covered } = selection;
        kept.clear();
        covered.clear();
        for &candidate in candidates {
            if kept.len() == most {
                break;
            }
            let (id, distance) = (pool::id(candidate), pool::distance(candidate));
            let mut stands_for = None;
            if !kept.is_empty() {
                self.set_row(pair, id);
                self.score_linked(pair, kept, rows, |other, to_other| {
                    if rule.slack * to_other <= distance && stands_for.is_none() {
                        stands_for = Some(other);
                    }
                });
            }
            match stands_for {
                None => kept.push(id),
                Some(other) => covered.push((id, other)),
            }
        }
        selection.fill(rule.least.min(most));
    }
}

impl Selection {
    /// What the last selection kept, nearest first.
    pub fn kept(&self) -> &[u32] {
        &self.kept
    }

    /// See `kept`.
    pub fn kept_mut(&mut self) -> &mut Vec<u32> {
        &mut self.kept
    }

    /// Adds the nearest of those dropped until `least` are kept.
    pub fn fill(&mut self, least: usize) {
        let missing = least.saturating_sub(self.kept.len());
        self.kept.extend(self.covered.iter().map(|(dropped, _)| *dropped).take(missing));
    }

    /// The kept candidate that stands for a dropped one.
    pub fn cover_of(&self, id: u32) -> Option<u32> {
        self.covered.iter().find(|(dropped, _)| *dropped == id).map(|(_, other)| *other)
    }
}
