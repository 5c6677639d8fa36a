//! The search over chips: every chip of a space under its fastest plan, as a Pareto front of step time against area with a certificate.
//!
//! Plans are those of the planner, under the study's software stack: what prunes a chip, what evaluates it and what is printed is one model.

use crate::planner::{Fastest, Prepared, RankedPlan};
use crate::runner::{self, Outcome, Progress, Verdict};
use crate::space::HardwareSpace;
use rayon::prelude::*;
use sim::hardware::Accelerator;
use sim::hardware::phaze::{PhazeConfig, design};
use sim::status::SolveStatus;
use sim::units::{Bytes, Seconds, SquareMillimeters};
use step::OverCapacity;
use step::TrainingPlan;

/// A job on a chip.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The fastest plan, or why there is none.
    pub outcome: Result<Box<RankedPlan>, Rejection>,
    /// How good the plan is among all plans of the study on this chip.
    pub status: SolveStatus,
}

/// Why a chip has no plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Rejection {
    /// No plan fits: the attempt that lacks least, where a plan has been tried.
    TooLarge(Option<Box<(TrainingPlan, OverCapacity)>>),
    /// The chip cannot be simulated.
    Unusable(String),
}

impl Rejection {
    /// Bytes that the nearest attempt lacks.
    fn lacking(&self) -> Bytes {
        match self {
            Self::TooLarge(Some(nearest)) => nearest.1.need.saturating_sub(nearest.1.have),
            _ => Bytes(u64::MAX),
        }
    }
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge(Some(nearest)) => {
                let (plan, lack) = &**nearest;
                let layout = &plan.layout;
                write!(
                    f,
                    "no plan fits; with p {}, t {}, d {}, micro-batch {}, recompute {}, {lack}",
                    layout.pipeline, layout.tensor, layout.data, plan.batch.micro_batch, plan.activations,
                )
            }
            Self::TooLarge(None) => f.write_str("no plan fits"),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

fn rejected(why: Rejection) -> Evaluation {
    let status = SolveStatus::Infeasible { why: why.to_string() };
    Evaluation { outcome: Err(why), status }
}

/// The fastest plan on a chip, unless no plan is below `cutoff` seconds.
#[must_use]
pub fn evaluate(prepared: &Prepared<'_>, chip: &Accelerator, cutoff: f64) -> Verdict<Evaluation> {
    match prepared.fastest(chip, cutoff) {
        Ok(Fastest::Plan(plan, status)) => Verdict::Feasible(plan.time.total.0, Evaluation { outcome: Ok(plan), status }),
        Ok(Fastest::TooLarge(nearest)) => Verdict::Infeasible(rejected(Rejection::TooLarge(nearest))),
        Ok(Fastest::Beaten(bound)) => Verdict::Beaten(bound.0),
        Err(error) => Verdict::Infeasible(rejected(Rejection::Unusable(error.to_string()))),
    }
}

/// The fastest plan on a chip.
#[must_use]
pub fn best_plan(prepared: &Prepared<'_>, chip: &Accelerator) -> Evaluation {
    match evaluate(prepared, chip, f64::INFINITY) {
        Verdict::Feasible(_, evaluation) | Verdict::Infeasible(evaluation) => evaluation,
        Verdict::Beaten(bound) => rejected(Rejection::Unusable(format!("no plan is below {bound} s per step"))),
    }
}

/// The search's numbering of designs: chips with the largest HBM first, in the space's order.
struct ChipProblem<'a> {
    prepared: &'a Prepared<'a>,
    space: &'a HardwareSpace,
    hbm: Bytes,
}

impl ChipProblem<'_> {
    fn config(&self, chip: usize) -> PhazeConfig {
        PhazeConfig { hbm: self.hbm, ..self.space.points[chip].config }
    }
}

impl runner::Problem for ChipProblem<'_> {
    type Evaluation = Evaluation;

    fn candidates(&self) -> usize {
        self.space.points.len()
    }

    fn cost(&self, chip: usize) -> f64 {
        self.space.points[chip].area.0
    }

    // A chip that cannot be simulated is refused by its evaluation, with the reason.
    fn coarse_bound(&self, chip: usize) -> f64 {
        self.prepared.coarse_bound(&design(&self.config(chip))).unwrap_or(Seconds::ZERO).0
    }

    fn fine_bound(&self, chip: usize, cutoff: f64) -> f64 {
        self.prepared.fine_bound(&design(&self.config(chip)), cutoff).unwrap_or(Seconds::ZERO).0
    }

    fn evaluate(&self, chip: usize, cutoff: f64) -> Verdict<Evaluation> {
        evaluate(self.prepared, &design(&self.config(chip)), cutoff)
    }
}

/// How one design was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct DesignOutcome {
    /// The chip and its HBM.
    pub config: PhazeConfig,
    /// Position of the chip in the space.
    pub chip: usize,
    /// The chip's area.
    pub area: SquareMillimeters,
    /// What became of it; `by` counts chips of the space.
    pub outcome: Outcome<Evaluation>,
}

/// What a search over chips found.
#[derive(Debug, Clone)]
pub struct DesignAnswer {
    /// Every design: each chip with its largest HBM in the space's order, then the smaller capacities.
    pub designs: Vec<DesignOutcome>,
    /// Positions in `designs` of the Pareto front of step time against area, smallest area first. Of designs equal in both, the one with
    /// the least HBM.
    pub front: Vec<usize>,
    /// Position in `designs` of the fastest.
    pub best: Option<usize>,
    /// How good the fastest is, in seconds per step.
    pub status: SolveStatus,
}

impl DesignAnswer {
    /// Position in `designs` of the smallest chip of the front whose step takes at most `fraction` more than the fastest one's.
    #[must_use]
    pub fn smallest_within(&self, fraction: f64) -> Option<usize> {
        let value = |index: usize| match self.designs[index].outcome {
            Outcome::Evaluated { value, .. } => value,
            _ => f64::INFINITY,
        };
        let most = value(self.best?) * (1.0 + fraction);
        self.front.iter().copied().find(|&index| value(index) <= most)
    }
}

/// Searches `space` for the chip on which the job's step is fastest, and for the front of step time against area. At most `evaluations` chips are
/// evaluated exactly; `progress` is told after every round.
///
/// HBM capacity changes neither area nor speed of PHAZE's chips, it only admits plans: the largest is searched first and smaller ones are tried where
/// they could matter, on the front.
#[must_use]
pub fn search_designs(
    prepared: &Prepared<'_>,
    space: &HardwareSpace,
    evaluations: usize,
    progress: &(dyn Fn(Progress) + Sync),
) -> DesignAnswer {
    let largest = space.hbm.last().copied().unwrap_or_default();
    let problem = ChipProblem { prepared, space, hbm: largest };
    let answer = runner::run(&problem, evaluations, progress);
    let front_chips: Vec<usize> = answer.front.points().iter().map(|p| p.id).collect();
    let mut designs: Vec<DesignOutcome> = answer
        .outcomes
        .into_iter()
        .enumerate()
        .map(|(chip, outcome)| DesignOutcome { config: problem.config(chip), chip, area: space.points[chip].area, outcome })
        .collect();
    let mut front = Vec::new();
    let mut smaller = smaller_capacities(prepared, space, &designs, &front_chips);
    for &chip in &front_chips {
        front.push(preferred(&designs, &smaller, chip, designs.len()));
    }
    designs.append(&mut smaller);
    let best = front.last().copied();
    let status = match (best.map(|b| &designs[b].outcome), answer.lower_bound) {
        (Some(Outcome::Evaluated { value, .. }), Some(bound)) => {
            // With less HBM no chip is faster than with the most: the first of each speak for all.
            let least = designs.iter().take(space.points.len()).map(|d| lower_bound(&d.outcome)).fold(bound, f64::min);
            SolveStatus::from_bounds(least, *value)
        }
        (_, Some(bound)) => SolveStatus::Gap { lower_bound: bound, upper_bound: f64::INFINITY },
        _ => SolveStatus::Infeasible { why: nearest_miss(&designs) },
    };
    DesignAnswer { designs, front, best, status }
}

/// No plan on this design is faster: infinite where there is none.
fn lower_bound(outcome: &Outcome<Evaluation>) -> f64 {
    match outcome {
        Outcome::Evaluated { value, evaluation } => match evaluation.status {
            SolveStatus::Gap { lower_bound, .. } => lower_bound,
            _ => *value,
        },
        Outcome::Pruned { bound, .. } | Outcome::Open { bound } => *bound,
        Outcome::Infeasible { .. } => f64::INFINITY,
    }
}

/// The designs with less than the largest HBM: evaluated for chips of the front, decided by their sibling otherwise (less memory is never faster).
fn smaller_capacities(
    prepared: &Prepared<'_>,
    space: &HardwareSpace,
    largest: &[DesignOutcome],
    front: &[usize],
) -> Vec<DesignOutcome> {
    let capacities: Vec<Bytes> = space.hbm.iter().rev().skip(1).copied().collect();
    let todo: Vec<(usize, Bytes)> = capacities.iter().flat_map(|&hbm| (0..largest.len()).map(move |chip| (chip, hbm))).collect();
    // One by one: most are decided at once, those of the front are planned.
    todo.into_par_iter()
        .with_max_len(1)
        .map(|(chip, hbm)| {
            let config = PhazeConfig { hbm, ..largest[chip].config };
            let outcome = match &largest[chip].outcome {
                Outcome::Evaluated { .. } if front.contains(&chip) => {
                    let evaluation = best_plan(prepared, &design(&config));
                    match evaluation.outcome.as_ref().map(|plan| plan.time.total.0) {
                        Ok(value) => Outcome::Evaluated { value, evaluation },
                        Err(_) => Outcome::Infeasible { evaluation },
                    }
                }
                found @ Outcome::Evaluated { value, .. } => {
                    Outcome::Pruned { bound: lower_bound(found), by: dominator(largest, front, chip, *value) }
                }
                Outcome::Infeasible { evaluation } => Outcome::Infeasible { evaluation: evaluation.clone() },
                Outcome::Pruned { bound, by } => Outcome::Pruned { bound: *bound, by: *by },
                Outcome::Open { bound } => Outcome::Open { bound: *bound },
            };
            DesignOutcome { config, chip, area: largest[chip].area, outcome }
        })
        .collect()
}

/// The front's chip that is no larger and no slower than `chip`.
fn dominator(designs: &[DesignOutcome], front: &[usize], chip: usize, value: f64) -> usize {
    let beats = |&&f: &&usize| {
        let area = |c: usize| designs[c].area.0;
        matches!(designs[f].outcome, Outcome::Evaluated { value: v, .. } if v <= value) && area(f) <= area(chip)
    };
    front.iter().find(beats).copied().unwrap_or(chip)
}

/// The position of the front chip's design with the least HBM that is as fast as with the most.
fn preferred(designs: &[DesignOutcome], smaller: &[DesignOutcome], chip: usize, offset: usize) -> usize {
    let Outcome::Evaluated { value: best, .. } = designs[chip].outcome else { return chip };
    let equal = |d: &DesignOutcome| matches!(d.outcome, Outcome::Evaluated { value, .. } if value <= best * (1.0 + 1e-9));
    smaller.iter().enumerate().rev().find(|(_, d)| d.chip == chip && equal(d)).map_or(chip, |(i, _)| offset + i)
}

/// The rejection that lacks least, for the user whose model fits nowhere.
fn nearest_miss(designs: &[DesignOutcome]) -> String {
    let rejection = |design: &'_ DesignOutcome| match &design.outcome {
        Outcome::Infeasible { evaluation } => evaluation.outcome.as_ref().err().map(|why| (why.lacking(), why.to_string())),
        _ => None,
    };
    let nearest = designs.iter().filter_map(|d| Some((rejection(d)?, d.config))).min_by_key(|((lacking, _), _)| *lacking);
    nearest.map_or_else(
        || "the space holds no chip within its area limits".into(),
        |((_, why), config)| format!("{why} (on {config})"),
    )
}
