//! Progress and counts of a search.

use super::BoundSource;
use serde::{Deserialize, Serialize};

/// The progress of a search, for a display.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunnerProgress {
    /// Candidates decided so far: evaluated, pruned or excluded.
    pub decided: u64,
    /// Evaluated candidates among them, including infeasible ones and those pruned during the evaluation.
    pub evaluated: usize,
    /// All candidates.
    pub total: u64,
    /// The best value so far.
    pub best: Option<f64>,
    /// Lower bound on the value of any candidate.
    pub bound: f64,
}

/// Counts of candidates by the way in which they were decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DecisionCounts {
    /// Candidates pruned as whole sets, by [`BoundSource`].
    pub in_sets: [u64; 3],
    /// Candidates pruned one by one, by [`BoundSource`].
    pub alone: [u64; 3],
    /// Candidates that exceed a limit or are no chips.
    pub excluded: u64,
    /// Evaluated candidates, including infeasible ones and those pruned by [`BoundSource::Plans`].
    pub evaluated: u64,
    /// Infeasible candidates among the evaluated ones.
    pub infeasible: u64,
    /// Refinements. Each tightens a set's bound or splits the set.
    pub looks: u64,
}

impl DecisionCounts {
    /// Number of evaluated candidates with an exact value: neither infeasible nor pruned during the evaluation.
    #[must_use]
    pub fn valued_candidates(&self) -> u64 {
        self.evaluated.saturating_sub(self.alone[BoundSource::Plans as usize] + self.infeasible)
    }

    /// The sum of the counts of two searches.
    #[must_use]
    pub fn sum_with(&self, other: &Self) -> Self {
        let sum = |a: [u64; 3], b: [u64; 3]| [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
        Self {
            in_sets: sum(self.in_sets, other.in_sets),
            alone: sum(self.alone, other.alone),
            excluded: self.excluded + other.excluded,
            evaluated: self.evaluated + other.evaluated,
            infeasible: self.infeasible + other.infeasible,
            looks: self.looks + other.looks,
        }
    }
}

/// The state of a search at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchMoment {
    /// The best value; `None` if none is known.
    pub best: Option<f64>,
    /// Lower bound on the value of any candidate.
    pub bound: f64,
    /// The counts of decisions so far.
    pub counts: DecisionCounts,
}
