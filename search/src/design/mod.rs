//! The search over chips: every chip of a space under its fastest plan, as a Pareto front of an objective against what a chip takes, with a
//! certificate.
//!
//! Plans are those of the planner, under the study's software stack: what prunes a chip, what evaluates it and what is printed is one model.

mod alone;
mod bounds;
mod climb;
mod parts;
mod problem;
mod robust;

use crate::objective::{CostAxes, FrontAxis, MeasureMean, Objective, OperatingCost};
use crate::planner::{ChipKernels, FastestPlan, PreparedJob, RankedPlan};
use crate::runner::{self, CandidateOutcome, DecisionCounts, Exclusion, RunnerProgress, SearchMoment, Verdict};
use crate::space::{DesignId, OutsideCounts, Region, Space};
pub use alone::HardwareOnly;
pub use parts::{DecidedDesigns, PartAnswer, PartDecision};
use problem::{Candidates, ChipProblem};
use rayon::prelude::*;
pub use robust::{RobustSearch, StepTimeMargin};
use sim::hardware::Accelerator;
use sim::status::SolveStatus;
use sim::units::{Bytes, Joules, Seconds};
use step::{OverCapacity, StepError, TrainingPlan};

/// A job on a chip.
#[derive(Debug, Clone, PartialEq)]
pub struct DesignEvaluation {
    /// The fastest plan, or why there is none.
    pub outcome: Result<Box<RankedPlan>, Rejection>,
    /// How good the plan is among all plans of the study on this chip, in seconds.
    pub status: SolveStatus,
}

/// Why a chip has no plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Rejection {
    /// No plan fits: the attempt that lacks least, where a plan has been tried.
    TooLarge(Option<Box<(TrainingPlan, OverCapacity)>>),
    /// Every plan takes at least so long, which is longer than is allowed.
    TooSlow(Seconds, Seconds),
    /// The fastest plan may take so long at least, at the bad end of its interval, which is longer than is allowed.
    MayBeSlow(Seconds, Seconds),
    /// The chip has no price, and dollars are what is asked for.
    NoPrice,
    /// The chip cannot be simulated.
    Unusable(String),
}

impl Rejection {
    /// Bytes that the nearest attempt lacks.
    fn shortfall_bytes(&self) -> Bytes {
        match self {
            Self::TooSlow(..) | Self::MayBeSlow(..) => Bytes::ZERO,
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
            Self::TooSlow(bound, most) => {
                write!(f, "no plan's step is below {:.4} s, at most {:.4} s are allowed", bound.0, most.0)
            }
            Self::MayBeSlow(counted, most) => write!(
                f,
                "the fastest plan's step may take {:.4} s at the bad end of its interval, at most {:.4} s are allowed",
                counted.0, most.0
            ),
            Self::NoPrice => f.write_str("no wafer price is known for its node, or its die fits on no wafer"),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

impl DesignEvaluation {
    /// What is proven of the fastest plan's time, as a part of it: less than one where better schedules of its passes may exist.
    #[must_use]
    pub fn proven_fraction(&self) -> f64 {
        match self.status {
            SolveStatus::Gap { lower_bound, upper_bound } if upper_bound > 0.0 => lower_bound / upper_bound,
            _ => 1.0,
        }
    }
}

pub(crate) fn infeasible_evaluation(why: Rejection) -> DesignEvaluation {
    let status = SolveStatus::Infeasible { why: why.to_string() };
    DesignEvaluation { outcome: Err(why), status }
}

/// The fastest plan on a chip, unless no plan is below `cutoff` seconds: its value is the step's seconds.
#[must_use]
pub fn evaluate_chip(prepared: &PreparedJob<'_>, chip: &Accelerator, cutoff: f64) -> Verdict<DesignEvaluation> {
    verdict_of_fastest(prepared.fastest_plan(chip, cutoff))
}

fn verdict_of_fastest(found: Result<FastestPlan, StepError>) -> Verdict<DesignEvaluation> {
    match found {
        Ok(FastestPlan::Plan(plan, status)) => Verdict::Feasible {
            value: plan.time.total.0,
            costs: None,
            evaluation: DesignEvaluation { outcome: Ok(plan), status },
        },
        Ok(FastestPlan::TooLarge(nearest)) => Verdict::Infeasible(infeasible_evaluation(Rejection::TooLarge(nearest))),
        Ok(FastestPlan::Beaten(bound)) => Verdict::Beaten(bound.0),
        Err(error) => Verdict::Infeasible(infeasible_evaluation(Rejection::Unusable(error.to_string()))),
    }
}

/// The fastest plan on a chip.
#[must_use]
pub fn best_plan(prepared: &PreparedJob<'_>, chip: &Accelerator) -> DesignEvaluation {
    best_plan_of(prepared.fastest_plan(chip, f64::INFINITY))
}

/// [`best_plan`] with what is known of the chip's kernels.
#[must_use]
pub fn best_plan_with_kernels(prepared: &PreparedJob<'_>, kernels: &mut ChipKernels<'_>) -> DesignEvaluation {
    best_plan_of(prepared.fastest_plan_with_kernels(kernels, f64::INFINITY))
}

fn best_plan_of(found: Result<FastestPlan, StepError>) -> DesignEvaluation {
    match verdict_of_fastest(found) {
        Verdict::Feasible { evaluation, .. } | Verdict::Infeasible(evaluation) => evaluation,
        Verdict::Beaten(bound) => infeasible_evaluation(Rejection::Unusable(format!("no plan is below {bound} s per step"))),
    }
}

/// What is asked of a search over chips.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Aim {
    /// What is best.
    pub objective: Objective,
    /// How several models' measures make one value.
    pub over: MeasureMean,
    /// What energy adds to dollars.
    pub operation: OperatingCost,
    /// Against what the front is found.
    pub axes: CostAxes,
    /// Steps may take at most so long.
    pub max_step: Option<Seconds>,
    /// Chips evaluated exactly at most.
    pub evaluations: usize,
    /// Designs better by no more than this fraction need not be found.
    pub gap: f64,
}

/// What the reference takes for a step of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReferenceStep {
    /// Its time.
    pub time: Seconds,
    /// Its energy.
    pub energy: Joules,
}

/// A model among those that are searched for.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// The job and its plans, prepared for every fabric of [`Space::fabric_settings`], in that order.
    pub prepared: &'a [PreparedJob<'a>],
    /// Its share among the models; all add up to one.
    pub share: f64,
    /// What it is held against where there are several models; of one alone nothing is.
    pub reference: ReferenceStep,
}

impl<'a> Workload<'a> {
    /// One model alone.
    #[must_use]
    pub fn of_one_model(prepared: &'a [PreparedJob<'a>]) -> Self {
        Self { prepared, share: 1.0, reference: ReferenceStep { time: Seconds(1.0), energy: Joules(1.0) } }
    }
}

/// A search over chips: the models' plans on each of the space's fabrics, its chips and what is asked.
#[derive(Debug, Clone, Copy)]
pub struct DesignSearch<'a> {
    /// The models: at least one.
    pub workloads: &'a [Workload<'a>],
    /// The chips.
    pub space: &'a Space,
    /// What is asked.
    pub aim: Aim,
    /// By what steps take at worst, where they are not taken at their predicted times.
    pub robust: Option<RobustSearch<'a>>,
}

/// Who is told of a search under way, and may stop it.
pub struct DesignWatch<'a> {
    /// Whether to stop now.
    pub stop: &'a (dyn Fn() -> bool + Sync),
    /// Told after every round.
    pub told: &'a mut (dyn FnMut(RunnerProgress, SearchMoment) + Send),
}

/// How one design was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct DesignOutcome {
    /// The design.
    pub id: DesignId,
    /// What became of it; `by` is a position among the answer's designs. Values are of the objective, to be minimised. The evaluation has the models
    /// in their order; of a design that has no plan for one of them, those before it and why, last.
    pub outcome: CandidateOutcome<Vec<DesignEvaluation>>,
}

/// How a box of designs was decided, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct BoxOutcome {
    /// The box.
    pub region: Region,
    /// What became of all of its designs.
    pub outcome: CandidateOutcome<Vec<DesignEvaluation>>,
}

/// What a search over chips found.
#[derive(Debug, Clone)]
pub struct DesignAnswer {
    /// Every design that was decided by itself: each chip with its largest HBM in the space's order, then the smaller capacities.
    pub designs: Vec<DesignOutcome>,
    /// Boxes of designs that were decided whole.
    pub boxes: Vec<BoxOutcome>,
    /// Positions in `designs` of the Pareto front of the objective against the axes, least along the first axis first, then along the second. Of
    /// designs equal in all, the first of the space's order, with the least HBM.
    pub front: Vec<usize>,
    /// Position in `designs` of the best.
    pub best: Option<usize>,
    /// How good the best is, in what is minimised.
    pub status: SolveStatus,
    /// Combinations that are no chips of the space.
    pub outside: OutsideCounts,
    /// What was decided by what.
    pub counts: DecisionCounts,
}

impl DesignAnswer {
    /// The value of a design that was evaluated, in what is minimised; infinite where there is none.
    #[must_use]
    pub fn value_of_design(&self, index: usize) -> f64 {
        value_of_verdict(&self.designs[index].outcome)
    }

    /// Whether every design is decided: nothing stopped the search.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let outcomes = self.designs.iter().map(|of| &of.outcome).chain(self.boxes.iter().map(|of| &of.outcome));
        !outcomes.into_iter().any(|outcome| matches!(outcome, CandidateOutcome::Open { .. }))
    }

    /// Position in `designs` of the first chip of the front (that takes least along its first axis) whose value is at most `fraction` more than the best
    /// one's.
    #[must_use]
    pub fn smallest_on_front_within(&self, fraction: f64) -> Option<usize> {
        let most = self.value_of_design(self.best?) * (1.0 + fraction);
        self.front.iter().copied().find(|&index| self.value_of_design(index) <= most)
    }
}

impl DesignWatch<'_> {
    /// Nobody: the search goes to its end.
    pub fn silent<T>(search: impl FnOnce(DesignWatch<'_>) -> T) -> T {
        search(DesignWatch { stop: &|| false, told: &mut |_, _| {} })
    }
}

impl<'a> DesignSearch<'a> {
    /// A model's job on a design's fabric.
    #[must_use]
    pub fn prepared_job(&self, model: usize, id: DesignId) -> &'a PreparedJob<'a> {
        &self.workloads[model].prepared[self.space.fabric_of_design(id)]
    }

    /// Searches the space for the chip on which the objective is best, and for its front against the axes.
    ///
    /// HBM capacity changes neither area nor speed of PHAZE's chips, it only admits plans: the largest is searched first and smaller ones are tried
    /// where they could matter, on the front.
    ///
    /// # Errors
    /// A study whose dimensions have no value or no such field where the search looks; a space of which no combination is a chip.
    pub fn run_design_search(&self, watch: DesignWatch<'_>) -> Result<DesignAnswer, String> {
        let limits = runner::RunnerLimits { evaluations: self.aim.evaluations, gap: self.aim.gap, stop: watch.stop };
        self.finish_answer(runner::run_search(&ChipProblem::new(*self), &limits, watch.told)?)
    }

    /// What a finished search comes to.
    fn finish_answer(&self, answer: runner::RunnerAnswer<Candidates, Vec<DesignEvaluation>>) -> Result<DesignAnswer, String> {
        let front_chips: Vec<usize> = answer.front.points().iter().map(|p| p.id).collect();
        let best = answer.front.best_point().and_then(|best| front_chips.iter().position(|chip| *chip == best.id));
        let (mut designs, boxes, outside) = self.sort_outcomes(answer.outcomes);
        if let Some(why) =
            outside.refusal.as_ref().filter(|_| designs.is_empty() && boxes.is_empty() && outside.refused == outside.total())
        {
            return Err(format!("space.dimensions: no combination is a chip: {why}"));
        }
        let at = |point: usize| designs.partition_point(|design| design.id.point < point);
        let front_chips: Vec<usize> = front_chips.into_iter().map(at).collect();
        let mut front = Vec::new();
        let mut smaller = self.decide_smaller_capacities(&designs, &front_chips);
        for &chip in &front_chips {
            front.push(preferred_capacity(&designs, &smaller, chip));
        }
        // With less HBM no chip is faster than with the most: the first of each speak for all. Of bad ends each does for itself.
        let chips = if self.robust.is_some() { designs.len() + smaller.len() } else { designs.len() };
        designs.append(&mut smaller);
        let best = self.best_by_bad_end(&designs, &mut front, best);
        // Where no chip is within the limit on steps with its largest HBM, all are decided, or else there is a bound.
        let lower_bound = answer.lower_bound.or(best.filter(|_| self.robust.is_some()).map(|_| f64::INFINITY));
        let status = match (best.map(|b| &designs[b].outcome), lower_bound) {
            (Some(CandidateOutcome::Evaluated { value, .. }), Some(bound)) => {
                let all = designs.iter().take(chips);
                let least = all.map(|d| self.lower_bound_of_design(&d.outcome)).fold(bound, f64::min);
                SolveStatus::from_bounds(least, *value)
            }
            (_, Some(bound)) => SolveStatus::Gap { lower_bound: bound, upper_bound: f64::INFINITY },
            _ => SolveStatus::Infeasible { why: self.find_nearest_miss(&designs, &outside) },
        };
        Ok(DesignAnswer { designs, boxes, front, best, status, outside, counts: answer.counts })
    }

    /// Designs by themselves in the space's order, boxes in theirs, and what is neither.
    fn sort_outcomes(
        &self,
        outcomes: Vec<(Candidates, CandidateOutcome<Vec<DesignEvaluation>>)>,
    ) -> (Vec<DesignOutcome>, Vec<BoxOutcome>, OutsideCounts) {
        let (mut designs, mut boxes, mut outside) = (Vec::new(), Vec::new(), self.space.outside.clone());
        for (set, outcome) in outcomes {
            match (set, outcome) {
                (Candidates::One(..), CandidateOutcome::Excluded(Exclusion::Limit(why))) => outside.count_reason(why, 1),
                (Candidates::Box(region, ..), CandidateOutcome::Excluded(Exclusion::Limit(why))) => {
                    outside.count_reason(why, region.combination_count() as usize)
                }
                (_, CandidateOutcome::Excluded(Exclusion::NoChip(why))) => outside.count_failure(why),
                (Candidates::One(point, _), outcome) => {
                    designs.push(DesignOutcome { id: self.space.with_largest_memory(point), outcome })
                }
                (Candidates::Box(region, ..), outcome) => boxes.push(BoxOutcome { region, outcome }),
            }
        }
        designs.sort_by_key(|design| design.id.point);
        boxes.sort_by_key(|of| self.space.first_point(&of.region));
        let points: Vec<usize> = designs.iter().map(|design| design.id.point).collect();
        let place = |outcome: &mut CandidateOutcome<Vec<DesignEvaluation>>| {
            if let CandidateOutcome::Pruned { by, .. } = outcome {
                *by = points.partition_point(|point| point < by);
            }
        };
        designs.iter_mut().for_each(|design| place(&mut design.outcome));
        boxes.iter_mut().for_each(|of| place(&mut of.outcome));
        (designs, boxes, outside)
    }

    /// What is proven of the value of a design's plans, as a part of it: less than one where better schedules of their passes may exist.
    fn proven_fraction_of(&self, evaluation: &[DesignEvaluation]) -> f64 {
        let worst = evaluation.iter().map(DesignEvaluation::proven_fraction).fold(1.0, f64::min);
        let seconds: Option<Vec<f64>> =
            evaluation.iter().map(|of| of.outcome.as_ref().ok().map(|plan| plan.time.total.0)).collect();
        match seconds {
            // A mean of times: of each what is proven of it.
            Some(seconds) if seconds.len() > 1 && self.aim.objective != Objective::EnergyPerToken && !self.aim.pays_energy() => {
                let terms = self.aim.objective_terms(self.workloads);
                let proven: Vec<f64> =
                    seconds.iter().zip(evaluation).map(|(seconds, of)| seconds * of.proven_fraction()).collect();
                let part = self.aim.over.combine_measures(&terms, &proven) / self.aim.over.combine_measures(&terms, &seconds);
                (part * (1.0 - 1e-12)).clamp(worst, 1.0)
            }
            _ => worst,
        }
    }

    /// No plan on this design is better: infinite where there is none.
    fn lower_bound_of_design(&self, outcome: &CandidateOutcome<Vec<DesignEvaluation>>) -> f64 {
        match outcome {
            // A bad end is of the plan that was found.
            CandidateOutcome::Evaluated { value, .. } if self.robust.is_some() => *value,
            CandidateOutcome::Evaluated { value, evaluation } => {
                // Of its plans the fastest is taken, whose schedules may be improved by so much.
                value * self.proven_fraction_of(evaluation)
            }
            CandidateOutcome::Pruned { bound, .. } | CandidateOutcome::Open { bound } => *bound,
            CandidateOutcome::Infeasible { .. } | CandidateOutcome::Excluded(_) => f64::INFINITY,
        }
    }

    /// The designs with less than the largest HBM: evaluated for chips of the front, decided by their sibling otherwise (less memory is never
    /// faster).
    fn decide_smaller_capacities(&self, largest: &[DesignOutcome], front: &[usize]) -> Vec<DesignOutcome> {
        let capacities = self.space.hbm.iter().rev().skip(1).copied();
        let todo: Vec<DesignId> =
            capacities.flat_map(|hbm| (0..largest.len()).map(move |point| DesignId { point, hbm: Some(hbm) })).collect();
        // One by one: most are decided at once, those of the front are planned.
        todo.into_par_iter()
            .with_max_len(1)
            .map(|id| {
                let best = front.first().map_or(f64::INFINITY, |&best| value_of_verdict(&largest[best].outcome));
                let outcome = match &largest[id.point].outcome {
                    outcome @ CandidateOutcome::Evaluated { .. }
                        if front.contains(&id.point)
                            || self.robust.is_some() && self.least_value_with_less_memory(id, outcome) < best =>
                    {
                        self.evaluated_outcome(id)
                    }
                    outcome @ CandidateOutcome::Evaluated { value, .. } => {
                        let by = self.find_dominator(largest, front, id.point, *value);
                        CandidateOutcome::Pruned {
                            bound: self.least_value_with_less_memory(id, outcome),
                            by,
                            shown: runner::BoundSource::Plans,
                        }
                    }
                    CandidateOutcome::Infeasible { evaluation } if self.may_be_nearer(evaluation) => self.evaluated_outcome(id),
                    outcome => outcome.clone(),
                };
                DesignOutcome { id, outcome }
            })
            .collect()
    }

    /// A design by itself.
    fn evaluated_outcome(&self, id: DesignId) -> CandidateOutcome<Vec<DesignEvaluation>> {
        match self.evaluate_design(id, f64::INFINITY) {
            Verdict::Feasible { value, evaluation, .. } => CandidateOutcome::Evaluated { value, evaluation },
            Verdict::Infeasible(evaluation) => CandidateOutcome::Infeasible { evaluation },
            Verdict::Beaten(bound) => CandidateOutcome::Open { bound },
        }
    }

    /// The front's chip that takes no more along any axis and is no worse than `chip`.
    fn find_dominator(&self, designs: &[DesignOutcome], front: &[usize], chip: usize, value: f64) -> usize {
        let cost =
            |c: usize, axis: FrontAxis| self.space.figures.get(c).and_then(|figures| axis.cost_along(figures)).unwrap_or(0.0);
        let beats = |&&f: &&usize| {
            let as_good = matches!(designs[f].outcome, CandidateOutcome::Evaluated { value: v, .. } if v <= value);
            as_good && self.aim.axes.named_axes().all(|axis| cost(f, axis) <= cost(chip, axis))
        };
        front.iter().find(beats).copied().unwrap_or(chip)
    }

    /// The rejection that lacks least, for the user whose model fits nowhere.
    fn find_nearest_miss(&self, designs: &[DesignOutcome], outside: &OutsideCounts) -> String {
        let rejection = |design: &'_ DesignOutcome| match &design.outcome {
            CandidateOutcome::Infeasible { evaluation } => {
                let why = evaluation.last()?.outcome.as_ref().err()?;
                Some((why.shortfall_bytes(), why.to_string()))
            }
            _ => None,
        };
        let nearest = designs.iter().filter_map(|d| Some((rejection(d)?, d.id))).min_by_key(|((lacking, _), _)| *lacking);
        nearest
            .map_or_else(|| outside.describe_reasons(), |((_, why), id)| format!("{why} (on {})", self.space.describe_design(id)))
    }
}

/// The value of a design that was evaluated; infinite where there is none.
fn value_of_verdict(outcome: &CandidateOutcome<Vec<DesignEvaluation>>) -> f64 {
    match outcome {
        CandidateOutcome::Evaluated { value, .. } => *value,
        _ => f64::INFINITY,
    }
}

/// The position of the front chip's design with the least HBM that is as good as with the most; those with less follow `designs`.
fn preferred_capacity(designs: &[DesignOutcome], smaller: &[DesignOutcome], chip: usize) -> usize {
    let CandidateOutcome::Evaluated { value: best, .. } = designs[chip].outcome else { return chip };
    let equal =
        |d: &DesignOutcome| matches!(d.outcome, CandidateOutcome::Evaluated { value, .. } if value <= best * (1.0 + 1e-9));
    let point = designs[chip].id.point;
    smaller.iter().enumerate().rev().find(|(_, d)| d.id.point == point && equal(d)).map_or(chip, |(i, _)| designs.len() + i)
}

#[cfg(test)]
mod corner_tests;
#[cfg(test)]
mod tests;
