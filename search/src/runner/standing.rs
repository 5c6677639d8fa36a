//! Where a search stands.

use super::BoundSource;
use serde::{Deserialize, Serialize};

/// Where a search stands, for a progress display.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunnerProgress {
    /// Candidates decided so far, by evaluation or by bound.
    pub decided: u64,
    /// Of these, evaluated exactly.
    pub evaluated: usize,
    /// All candidates.
    pub total: u64,
    /// The best value so far.
    pub best: Option<f64>,
    /// No candidate has a lower value.
    pub bound: f64,
}

/// How much was decided by what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DecisionCounts {
    /// Candidates discarded whole sets at a time, by the bounds of [`BoundSource`].
    pub in_sets: [u64; 3],
    /// Candidates discarded one by one, by the same.
    pub alone: [u64; 3],
    /// Candidates outside limits, or none.
    pub excluded: u64,
    /// Candidates evaluated, those among [`BoundSource::Plans`] and infeasible ones included.
    pub evaluated: u64,
    /// Of these, infeasible ones.
    pub infeasible: u64,
    /// Sets looked at.
    pub looks: u64,
}

impl DecisionCounts {
    /// Candidates whose exact value was found: neither beaten on the way to it nor infeasible.
    #[must_use]
    pub fn valued_candidates(&self) -> u64 {
        self.evaluated.saturating_sub(self.alone[BoundSource::Plans as usize] + self.infeasible)
    }

    /// Those of two searches.
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

/// Where a search stood at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchMoment {
    /// The best value; `None` where none is known.
    pub best: Option<f64>,
    /// No candidate has a lower value.
    pub bound: f64,
    /// What was decided by then.
    pub counts: DecisionCounts,
}
