//! The quality of an answer: part of every schedule, placement and search result.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The outcome of a solve. A bounded answer never poses as an optimal one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum SolveStatus {
    /// Proven: no better answer exists (within the stated arithmetic, 1e-9 relative).
    Optimal,
    /// The best known answer has value `upper_bound`, and no answer is below `lower_bound` (same unit as the
    /// objective).
    Gap {
        /// No answer is better than this.
        lower_bound: f64,
        /// The value of the best known answer.
        upper_bound: f64,
    },
    /// Proven: no answer exists.
    Infeasible {
        /// The reason, with the best attempt and its shortfall.
        why: String,
    },
}

impl SolveStatus {
    /// Returns `Optimal` if the bounds agree to 1e-9 relative, else `Gap`. For minimisation.
    #[must_use]
    pub fn from_bounds(lower_bound: f64, upper_bound: f64) -> Self {
        if upper_bound - lower_bound <= 1e-9 * upper_bound.abs() {
            Self::Optimal
        } else {
            Self::Gap { lower_bound, upper_bound }
        }
    }

    /// Returns the relative gap (upper - lower) / upper: 0 when optimal, `None` when there is no answer.
    #[must_use]
    pub fn relative_gap(&self) -> Option<f64> {
        match self {
            Self::Optimal => Some(0.0),
            Self::Gap { lower_bound, upper_bound } => Some((upper_bound - lower_bound) / upper_bound),
            Self::Infeasible { .. } => None,
        }
    }
}

impl SolveStatus {
    /// Returns the status as text; `between` formats two values with their unit.
    #[must_use]
    pub fn describe_with(&self, between: impl Fn(f64, f64) -> String) -> String {
        match self {
            Self::Optimal => "optimal (proven)".to_owned(),
            Self::Gap { lower_bound, upper_bound } => {
                let percent = (upper_bound - lower_bound) / upper_bound * 100.0;
                format!("within {percent:.3} % of the optimum (bounds {})", between(*lower_bound, *upper_bound))
            }
            Self::Infeasible { why } => format!("infeasible: {why}"),
        }
    }
}

/// The unit is unknown here. Values from 0.001 to 1e9 have six decimals; all others have an exponent.
impl fmt::Display for SolveStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |value: f64| {
            if (1e-3..1e9).contains(&value.abs()) { format!("{value:.6}") } else { format!("{value:.6e}") }
        };
        f.write_str(&self.describe_with(|low, high| format!("{} to {}", plain(low), plain(high))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_never_poses_as_optimal() {
        assert_eq!(SolveStatus::from_bounds(1.0, 1.0), SolveStatus::Optimal);
        let gap = SolveStatus::from_bounds(0.99, 1.0);
        assert_eq!(gap.relative_gap().map(|g| (g * 100.0).round()), Some(1.0));
        assert_eq!(gap.to_string(), "within 1.000 % of the optimum (bounds 0.990000 to 1.000000)");
        let words = gap.describe_with(|low, high| format!("{:.0} to {:.0} ms", low * 1e3, high * 1e3));
        assert_eq!(words, "within 1.000 % of the optimum (bounds 990 to 1000 ms)");
    }
}
