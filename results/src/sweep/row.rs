//! What a sweep keeps of a combination.

use crate::design::{DesignRow, DesignStatus};
use crate::from_search::{bound_of_plan, design_dimensions, fill_plan, lowered_clock_mhz};
use search::planner::Job;
use search::space::{CombinationChip, OutsideReason};
use search::sweep;
use serde::{Deserialize, Serialize};
use step::StepError;

/// What became of a combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CombinationOutcome {
    /// Its fastest plan was found.
    Evaluated,
    /// No plan fits it, or none is fast enough.
    Infeasible,
    /// Outside the area limits.
    OverArea,
    /// Over the power limit.
    OverPower,
    /// Over the cost limit, or of no known cost.
    OverCost,
    /// Outside the limits of HBM.
    OutsideHbm,
    /// Its values do not go together.
    NoChip,
}

impl CombinationOutcome {
    /// All fates, in the order used for counting.
    pub const ALL: [Self; 7] =
        [Self::Evaluated, Self::Infeasible, Self::OverArea, Self::OverPower, Self::OverCost, Self::OutsideHbm, Self::NoChip];

    /// The name used in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Evaluated => "evaluated",
            Self::Infeasible => "infeasible",
            Self::OverArea => "over_area",
            Self::OverPower => "over_power",
            Self::OverCost => "over_cost",
            Self::OutsideHbm => "outside_hbm",
            Self::NoChip => "no_chip",
        }
    }
}

/// A combination and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweptRow {
    /// The combination's number.
    pub number: u64,
    /// What became of it.
    pub fate: CombinationOutcome,
    /// Why it is no chip.
    pub reason: Option<String>,
    /// Its chip and plan; `None` where it is no chip.
    pub design: Option<Box<DesignRow>>,
    /// What is proven of its step's time, as a part of it.
    pub proven: f64,
}

impl SweptRow {
    /// The row of a combination; `jobs` are those on the space's fabrics.
    ///
    /// # Errors
    /// A plan that the model, the fabric or the schedule does not allow.
    pub fn new(number: u64, fate: &sweep::SweptOutcome, jobs: &[Job<'_>]) -> Result<Self, StepError> {
        let kept = |fate, design: DesignRow| Self { number, fate, reason: None, design: Some(Box::new(design)), proven: 1.0 };
        Ok(match fate {
            sweep::SweptOutcome::NoChip(why) => {
                Self { number, fate: CombinationOutcome::NoChip, reason: Some(why.clone()), design: None, proven: 1.0 }
            }
            sweep::SweptOutcome::Outside(why, built) => {
                let fate = match why {
                    OutsideReason::Area => CombinationOutcome::OverArea,
                    OutsideReason::Power => CombinationOutcome::OverPower,
                    OutsideReason::Cost => CombinationOutcome::OverCost,
                    OutsideReason::Hbm => CombinationOutcome::OutsideHbm,
                };
                kept(fate, chip_row(number, built))
            }
            sweep::SweptOutcome::Evaluated(built, evaluation) => {
                let mut row = chip_row(number, built);
                match (&evaluation.outcome, built.fabric.and_then(|fabric| jobs.get(fabric))) {
                    (Ok(plan), Some(job)) => {
                        let job = Job { chip: &built.chip, ..*job };
                        fill_plan(&mut row, &job, evaluation);
                        row.bound_by = bound_of_plan(&job, plan)?;
                        Self { proven: evaluation.proven_fraction(), ..kept(CombinationOutcome::Evaluated, row) }
                    }
                    (Err(why), _) => {
                        (row.outcome, row.reason) = (DesignStatus::Infeasible, Some(why.to_string()));
                        kept(CombinationOutcome::Infeasible, row)
                    }
                    (Ok(_), None) => kept(CombinationOutcome::Infeasible, row),
                }
            }
        })
    }
}

/// A chip and what it takes.
fn chip_row(number: u64, built: &CombinationChip) -> DesignRow {
    let mut row = DesignRow::new_undecided(number as i64, design_dimensions(&built.chip, &built.figures));
    row.node = built.chip.process_node().map(|node| node.to_string());
    row.peak_power_w = Some(built.figures.peak_power.0);
    row.cost_usd = built.figures.cost_usd;
    row.lowered_clock_mhz = lowered_clock_mhz(&built.chip);
    row
}
