//! The stored row of a combination.

use crate::run::conversion::{bound_of_plan, design_dimensions, fill_plan, lowered_clock_mhz};
use crate::store::design::{DesignRow, DesignStatus};
use search::planner::Job;
use search::space::{CombinationChip, OutsideReason};
use search::sweep;
use serde::{Deserialize, Serialize};
use step::StepError;

/// The outcome of a combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CombinationOutcome {
    /// The fastest plan was found.
    Evaluated,
    /// No plan fits, or no plan is fast enough.
    Infeasible,
    /// Outside the area limits.
    OverArea,
    /// Over the power limit.
    OverPower,
    /// Over the cost limit, or without a known cost.
    OverCost,
    /// Outside the limits of HBM.
    OutsideHbm,
    /// It cannot be built.
    Unbuildable,
    /// The values cannot be combined.
    NoChip,
}

impl CombinationOutcome {
    /// All outcomes, in the order of the counts.
    pub const ALL: [Self; 8] = [
        Self::Evaluated,
        Self::Infeasible,
        Self::OverArea,
        Self::OverPower,
        Self::OverCost,
        Self::OutsideHbm,
        Self::Unbuildable,
        Self::NoChip,
    ];

    /// Returns the name used in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Evaluated => "evaluated",
            Self::Infeasible => "infeasible",
            Self::OverArea => "over_area",
            Self::OverPower => "over_power",
            Self::OverCost => "over_cost",
            Self::OutsideHbm => "outside_hbm",
            Self::Unbuildable => "unbuildable",
            Self::NoChip => "no_chip",
        }
    }
}

/// A combination with its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweptRow {
    /// The combination's number.
    pub number: u64,
    /// The outcome.
    pub fate: CombinationOutcome,
    /// The reason why the combination is no chip or cannot be built.
    pub reason: Option<String>,
    /// The chip, with its plan if one fits; `None` if the combination is no chip.
    pub design: Option<Box<DesignRow>>,
    /// The proven lower bound of the step's time, as a fraction of that time.
    pub proven: f64,
}

impl SweptRow {
    /// Makes the row of a combination. `jobs` has one job per fabric of the space.
    ///
    /// # Errors
    /// A plan that the model, the fabric or the schedule does not allow.
    pub fn new(number: u64, fate: &sweep::SweptOutcome, jobs: &[Job<'_>]) -> Result<Self, StepError> {
        let kept =
            |fate, design: DesignRow| Self { number, fate, reason: None, design: Some(Box::new(design)), proven: 1.0 };
        Ok(match fate {
            sweep::SweptOutcome::NoChip(why) => {
                Self { number, fate: CombinationOutcome::NoChip, reason: Some(why.clone()), design: None, proven: 1.0 }
            }
            sweep::SweptOutcome::Outside(why, built) => {
                let reason = match why {
                    OutsideReason::Unbuildable(rule) => Some(format!("{}: {}", rule.name(), rule.cure())),
                    _ => None,
                };
                let fate = match why {
                    OutsideReason::Area => CombinationOutcome::OverArea,
                    OutsideReason::Power => CombinationOutcome::OverPower,
                    OutsideReason::Cost => CombinationOutcome::OverCost,
                    OutsideReason::Hbm => CombinationOutcome::OutsideHbm,
                    OutsideReason::Unbuildable(_) => CombinationOutcome::Unbuildable,
                };
                Self { reason, ..kept(fate, chip_row(number, built)) }
            }
            sweep::SweptOutcome::Evaluated(built, evaluation) => {
                let mut row = chip_row(number, built);
                match (&evaluation.outcome, built.fabric.and_then(|fabric| jobs.get(fabric))) {
                    (Ok(plan), Some(job)) => {
                        let job = Job { chip: &built.chip, ..*job };
                        let system = job.fabric.price_system(&built.chip.constants).ok();
                        row.system_usd = system.map(|price| price.total_usd());
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

/// Makes the row of a chip without a plan.
fn chip_row(number: u64, built: &CombinationChip) -> DesignRow {
    let mut row = DesignRow::new_undecided(number as i64, design_dimensions(&built.chip, &built.figures));
    row.node = built.chip.process_node().map(|node| node.to_string());
    row.peak_power_w = Some(built.figures.peak_power.0);
    row.cost_usd = built.figures.cost_usd;
    row.lowered_clock_mhz = lowered_clock_mhz(&built.chip);
    row
}
