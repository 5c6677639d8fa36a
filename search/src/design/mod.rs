//! Searches a space of chips for the Pareto front of an objective against chip costs. Every chip counts under its
//! fastest plan, and the answer has a certificate.
//!
//! The planner makes the plans, for the study's software stack. The same cost model bounds chips and evaluates them.

mod alone;
mod bounds;
mod climb;
mod decision;
mod draws;
mod parts;
mod problem;
mod robust;
mod room;

use crate::objective::{CostAxes, FrontAxis, MeasureMean, Objective, OperatingCost};
use crate::planner::{ChipKernels, FastestPlan, PreparedJob, RankedPlan};
use crate::runner::{self, CandidateOutcome, DecisionCounts, Exclusion, RunnerProgress, SearchMoment, Verdict};
use crate::space::{DesignId, OutsideCounts, Region, Space};
pub use alone::HardwareOnly;
pub use decision::{DecisionAnswer, DecisionEffort, Finalist, InputWorth, SettledDimension, decide_under_draws};
pub use draws::ConstantDraws;
pub use parts::{DecidedDesigns, PartAnswer, PartDecision};
use problem::{Candidates, ChipProblem};
use rayon::prelude::*;
pub use robust::{RobustSearch, StepFactor};
use sim::hardware::Accelerator;
use sim::limits::format_number;
use sim::scalar_fit::round_to_four_digits;
use sim::status::SolveStatus;
use sim::units::{Bytes, Joules, Seconds};
use step::{OverCapacity, StepError, TrainingPlan};

/// The result of a job on a chip.
#[derive(Debug, Clone, PartialEq)]
pub struct DesignEvaluation {
    /// The fastest plan, or why there is none.
    pub outcome: Result<Box<RankedPlan>, Rejection>,
    /// Proven bounds on the time of the fastest plan of the study on this chip, in seconds.
    pub status: SolveStatus,
}

/// Why a chip is rejected.
#[derive(Debug, Clone, PartialEq)]
pub enum Rejection {
    /// No plan fits. Holds the attempt with the smallest shortfall, if a plan was tried.
    TooLarge(Option<Box<(TrainingPlan, OverCapacity)>>),
    /// Too slow: every plan takes at least the first time. The second is the limit, which is shorter.
    TooSlow(Seconds, Seconds),
    /// Perhaps too slow: at the bad end of its interval the fastest plan takes the first time. The second is the limit.
    MayBeSlow(Seconds, Seconds),
    /// The objective needs dollars, and the chip has no price.
    NoPrice,
    /// The chip cannot be simulated.
    Unusable(String),
}

impl Rejection {
    /// Shortfall of the nearest attempt. Zero if a plan fits but is too slow, `u64::MAX` if no attempt is known.
    fn shortfall_bytes(&self) -> Bytes {
        match self {
            Self::TooSlow(..) | Self::MayBeSlow(..) => Bytes::ZERO,
            Self::TooLarge(Some(nearest)) => nearest.1.need.saturating_sub(nearest.1.have),
            _ => Bytes(u64::MAX),
        }
    }
}

/// Relative difference below which a lower bound on steps counts as equal to the step limit.
const LIMIT_ROUNDING: f64 = 1e-9;

/// Rounds up to four digits, so that the printed time suffices as a step limit.
fn round_up_to_four_digits(value: f64) -> f64 {
    let near = round_to_four_digits(value);
    if near >= value { near } else { round_to_four_digits(value * (1.0 + 5e-4)) }
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
            Self::TooSlow(bound, limit) => {
                let most = format_number(round_to_four_digits(limit.0));
                // A search may stop once it knows that plans exceed the limit. Its bound is then the limit itself.
                if bound.0 > limit.0 * (1.0 + LIMIT_ROUNDING) {
                    let enough = format_number(round_up_to_four_digits(bound.0));
                    return write!(f, "every plan's step takes at least {enough} s, the limit is {most} s: allow that");
                }
                write!(f, "every plan's step takes longer than the limit of {most} s: allow longer steps")
            }
            Self::MayBeSlow(counted, most) => {
                let most = format_number(round_to_four_digits(most.0));
                let enough = format_number(round_up_to_four_digits(counted.0));
                write!(
                    f,
                    "the fastest plan's step may take {enough} s at the bad end of its interval, the limit is {most} \
                     s: allow that"
                )
            }
            Self::NoPrice => f.write_str("no wafer price is known for its node, or its die fits on no wafer"),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

impl DesignEvaluation {
    /// The proven fraction of the fastest plan's time: less than one if better schedules of its passes may exist.
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

/// Finds the fastest plan on a chip, or proves that none is below `cutoff` seconds. The verdict's value is the step
/// time in seconds.
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

/// Finds the fastest plan on a chip, without a cutoff.
#[must_use]
pub fn best_plan(prepared: &PreparedJob<'_>, chip: &Accelerator) -> DesignEvaluation {
    best_plan_of(prepared.fastest_plan(chip, f64::INFINITY))
}

/// [`best_plan`] with cached kernel times of the chip.
#[must_use]
pub fn best_plan_with_kernels(prepared: &PreparedJob<'_>, kernels: &mut ChipKernels<'_>) -> DesignEvaluation {
    best_plan_of(prepared.fastest_plan_with_kernels(kernels, f64::INFINITY))
}

fn best_plan_of(found: Result<FastestPlan, StepError>) -> DesignEvaluation {
    match verdict_of_fastest(found) {
        Verdict::Feasible { evaluation, .. } | Verdict::Infeasible(evaluation) => evaluation,
        Verdict::Beaten(bound) => {
            infeasible_evaluation(Rejection::Unusable(format!("no plan is below {bound} s per step")))
        }
    }
}

/// The objective and limits of a search over chips.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Aim {
    /// The objective.
    pub objective: Objective,
    /// The mean over several models.
    pub over: MeasureMean,
    /// The cost of energy, for objectives in dollars.
    pub operation: OperatingCost,
    /// The axes of the front.
    pub axes: CostAxes,
    /// Limit on the step time.
    pub max_step: Option<Seconds>,
    /// Limit on exact evaluations of chips.
    pub evaluations: usize,
    /// Designs that are better by at most this fraction need not be found.
    pub gap: f64,
}

/// A model's step on the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReferenceStep {
    /// Its time.
    pub time: Seconds,
    /// Its energy.
    pub energy: Joules,
}

/// One of the models that the search is for.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// The job and its plans, prepared for every fabric of [`Space::fabric_settings`], in that order.
    pub prepared: &'a [PreparedJob<'a>],
    /// Its share among the models; all shares add up to one.
    pub share: f64,
    /// The reference that several models are compared with. A single model needs none.
    pub reference: ReferenceStep,
}

impl<'a> Workload<'a> {
    /// One model alone.
    #[must_use]
    pub fn of_one_model(prepared: &'a [PreparedJob<'a>]) -> Self {
        Self { prepared, share: 1.0, reference: ReferenceStep { time: Seconds(1.0), energy: Joules(1.0) } }
    }
}

/// A search over chips: plans of the models on each of the space's fabrics, the space of chips, and the aim.
#[derive(Debug, Clone, Copy)]
pub struct DesignSearch<'a> {
    /// The models, at least one.
    pub workloads: &'a [Workload<'a>],
    /// The space of chips.
    pub space: &'a Space,
    /// The objective and limits.
    pub aim: Aim,
    /// If set, steps count at the bad ends of their intervals instead of their predicted times.
    pub robust: Option<RobustSearch<'a>>,
}

/// Callbacks of a running search: progress, and a request to stop.
pub struct DesignWatch<'a> {
    /// True to stop now.
    pub stop: &'a (dyn Fn() -> bool + Sync),
    /// Called after every round.
    pub told: &'a mut (dyn FnMut(RunnerProgress, SearchMoment) + Send),
}

/// The outcome for one design.
#[derive(Debug, Clone, PartialEq)]
pub struct DesignOutcome {
    /// The design.
    pub id: DesignId,
    /// The outcome; `by` is an index into the answer's designs. Values are of the objective, minimised. The evaluation
    /// lists the models in order. If a model has no plan, its reason comes last.
    pub outcome: CandidateOutcome<Vec<DesignEvaluation>>,
}

/// The outcome for a whole box of designs.
#[derive(Debug, Clone, PartialEq)]
pub struct BoxOutcome {
    /// The box.
    pub region: Region,
    /// The outcome of all its designs.
    pub outcome: CandidateOutcome<Vec<DesignEvaluation>>,
}

/// The answer of a search over chips.
#[derive(Debug, Clone)]
pub struct DesignAnswer {
    /// Every design that was decided on its own: each chip with its largest HBM in the space's order, then the smaller
    /// capacities.
    pub designs: Vec<DesignOutcome>,
    /// Boxes of designs that were decided as a whole.
    pub boxes: Vec<BoxOutcome>,
    /// The Pareto front of the objective against the axes, as indices into `designs`. It ascends along the first axis,
    /// then the second. The space's order and the least HBM break ties.
    pub front: Vec<usize>,
    /// Index of the best design in `designs`.
    pub best: Option<usize>,
    /// Proven bounds of the best value, minimised.
    pub status: SolveStatus,
    /// Combinations that are no chips of the space.
    pub outside: OutsideCounts,
    /// Counts of decisions.
    pub counts: DecisionCounts,
}

impl DesignAnswer {
    /// The value of an evaluated design, minimised; infinite if it has none.
    #[must_use]
    pub fn value_of_design(&self, index: usize) -> f64 {
        value_of_verdict(&self.designs[index].outcome)
    }

    /// True if every design is decided: the search was not stopped.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let outcomes = self.designs.iter().map(|of| &of.outcome).chain(self.boxes.iter().map(|of| &of.outcome));
        !outcomes.into_iter().any(|outcome| matches!(outcome, CandidateOutcome::Open { .. }))
    }

    /// Index in `designs` of the first chip of the front (the cheapest along its first axis) whose value is at most
    /// `fraction` above the best.
    #[must_use]
    pub fn smallest_on_front_within(&self, fraction: f64) -> Option<usize> {
        let most = self.value_of_design(self.best?) * (1.0 + fraction);
        self.front.iter().copied().find(|&index| self.value_of_design(index) <= most)
    }
}

impl DesignWatch<'_> {
    /// Runs a search without callbacks, to its end.
    pub fn silent<T>(search: impl FnOnce(DesignWatch<'_>) -> T) -> T {
        search(DesignWatch { stop: &|| false, told: &mut |_, _| {} })
    }
}

/// Single designs and boxes in the space's order, and counts of excluded combinations.
struct SortedOutcomes {
    designs: Vec<DesignOutcome>,
    boxes: Vec<BoxOutcome>,
    outside: OutsideCounts,
}

impl<'a> DesignSearch<'a> {
    /// A model's prepared job on a design's fabric.
    #[must_use]
    pub fn prepared_job(&self, model: usize, id: DesignId) -> &'a PreparedJob<'a> {
        &self.workloads[model].prepared[self.space.fabric_of_design(id)]
    }

    /// Searches the space for the chip with the best objective, and for its front against the axes.
    ///
    /// HBM capacity changes neither area nor speed of PHAZE's chips; it only admits plans. So the largest capacity is
    /// searched first, and smaller ones are tried on the front, where they can matter.
    ///
    /// # Errors
    /// A study whose dimensions lack a value or a field where the search needs it, or a space without chips.
    pub fn run_design_search(&self, watch: DesignWatch<'_>) -> Result<DesignAnswer, String> {
        let limits = runner::RunnerLimits { evaluations: self.aim.evaluations, gap: self.aim.gap, stop: watch.stop };
        self.finish_answer(runner::run_search(&ChipProblem::new(*self), &limits, watch.told)?)
    }

    /// Makes the answer from a finished run.
    fn finish_answer(
        &self,
        answer: runner::RunnerAnswer<Candidates, Vec<DesignEvaluation>>,
    ) -> Result<DesignAnswer, String> {
        let front_chips: Vec<usize> = answer.front.points().iter().map(|p| p.id).collect();
        let best = answer.front.best_point().and_then(|best| front_chips.iter().position(|chip| *chip == best.id));
        let SortedOutcomes { mut designs, boxes, outside } = self.sort_outcomes(answer.outcomes);
        if let Some(why) = outside
            .refusal
            .as_ref()
            .filter(|_| designs.is_empty() && boxes.is_empty() && outside.refused == outside.total())
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
        // Less HBM never makes a chip faster, so the design with the most HBM bounds those with less. This does not
        // hold for bad ends of intervals, so a robust search bounds every design by itself.
        let chips = if self.robust.is_some() { designs.len() + smaller.len() } else { designs.len() };
        designs.append(&mut smaller);
        let best = self.best_by_bad_end(&designs, &mut front, best);
        // The runner has no bound if no chip with its largest HBM is feasible or open. At bad ends, a smaller capacity
        // may still be feasible; its own value is then the bound.
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

    /// Sorts single designs and boxes in the space's order, and counts excluded combinations. `by` becomes an index
    /// into the designs.
    fn sort_outcomes(&self, outcomes: Vec<(Candidates, CandidateOutcome<Vec<DesignEvaluation>>)>) -> SortedOutcomes {
        let (mut designs, mut boxes, mut outside) = (Vec::new(), Vec::new(), self.space.outside.clone());
        for (set, outcome) in outcomes {
            match (set, outcome) {
                (Candidates::One(..), CandidateOutcome::Excluded(Exclusion::Limit(why))) => {
                    outside.count_reason(why, 1)
                }
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
        SortedOutcomes { designs, boxes, outside }
    }

    /// The proven fraction of the value of a design's plans: less than one if better schedules of their passes may
    /// exist.
    fn proven_fraction_of(&self, evaluation: &[DesignEvaluation]) -> f64 {
        let worst = evaluation.iter().map(DesignEvaluation::proven_fraction).fold(1.0, f64::min);
        let seconds: Option<Vec<f64>> =
            evaluation.iter().map(|of| of.outcome.as_ref().ok().map(|plan| plan.time.total.0)).collect();
        match seconds {
            // The mean of times, each reduced to its proven part.
            Some(seconds) if seconds.len() > 1 && !self.aim.counts_energy() => {
                let terms = self.aim.objective_terms(self.workloads);
                let proven: Vec<f64> =
                    seconds.iter().zip(evaluation).map(|(seconds, of)| seconds * of.proven_fraction()).collect();
                let part =
                    self.aim.over.combine_measures(&terms, &proven) / self.aim.over.combine_measures(&terms, &seconds);
                (part * (1.0 - 1e-12)).clamp(worst, 1.0)
            }
            _ => worst,
        }
    }

    /// Lower bound on the value of any plan on this design; infinite if there is none.
    fn lower_bound_of_design(&self, outcome: &CandidateOutcome<Vec<DesignEvaluation>>) -> f64 {
        match outcome {
            // A robust search compares the bad end of the plan that was found, so it is its own bound.
            CandidateOutcome::Evaluated { value, .. } if self.robust.is_some() => *value,
            CandidateOutcome::Evaluated { value, evaluation } => {
                // The fastest plan was found; better schedules could improve it by this fraction.
                value * self.proven_fraction_of(evaluation)
            }
            CandidateOutcome::Pruned { bound, .. } | CandidateOutcome::Open { bound } => *bound,
            CandidateOutcome::Infeasible { .. } | CandidateOutcome::Excluded(_) => f64::INFINITY,
        }
    }

    /// Decides the designs with less than the largest HBM. Those of chips on the front are evaluated. The outcome with
    /// the largest capacity decides the others, because less memory is never faster. At bad ends, others are evaluated
    /// too if they may beat the best, or may be within the step limit although the largest capacity is not.
    fn decide_smaller_capacities(&self, largest: &[DesignOutcome], front: &[usize]) -> Vec<DesignOutcome> {
        let capacities = self.space.hbm.iter().rev().skip(1).copied();
        let todo: Vec<DesignId> = capacities
            .flat_map(|hbm| (0..largest.len()).map(move |point| DesignId { point, hbm: Some(hbm) }))
            .collect();
        // One item per task, because their times differ: most designs are decided at once, but those of the front are
        // planned.
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
                    CandidateOutcome::Infeasible { evaluation } if self.may_be_nearer(evaluation) => {
                        self.evaluated_outcome(id)
                    }
                    outcome => outcome.clone(),
                };
                DesignOutcome { id, outcome }
            })
            .collect()
    }

    /// Evaluates one design.
    fn evaluated_outcome(&self, id: DesignId) -> CandidateOutcome<Vec<DesignEvaluation>> {
        match self.evaluate_design(id, f64::INFINITY) {
            Verdict::Feasible { value, evaluation, .. } => CandidateOutcome::Evaluated { value, evaluation },
            Verdict::Infeasible(evaluation) => CandidateOutcome::Infeasible { evaluation },
            Verdict::Beaten(bound) => CandidateOutcome::Open { bound },
        }
    }

    /// Index of a front design that costs no more than `chip` along any axis and whose value is at most `value`; `chip`
    /// itself if there is none.
    fn find_dominator(&self, designs: &[DesignOutcome], front: &[usize], chip: usize, value: f64) -> usize {
        let cost = |c: usize, axis: FrontAxis| {
            self.space.figures.get(c).and_then(|figures| axis.cost_along(figures)).unwrap_or(0.0)
        };
        let beats = |&&f: &&usize| {
            let as_good = matches!(designs[f].outcome, CandidateOutcome::Evaluated { value: v, .. } if v <= value);
            as_good && self.aim.axes.named_axes().all(|axis| cost(f, axis) <= cost(chip, axis))
        };
        front.iter().find(beats).copied().unwrap_or(chip)
    }

    /// Describes the rejection with the smallest shortfall, or the excluded combinations if no design was rejected.
    fn find_nearest_miss(&self, designs: &[DesignOutcome], outside: &OutsideCounts) -> String {
        let rejection = |design: &'_ DesignOutcome| match &design.outcome {
            CandidateOutcome::Infeasible { evaluation } => {
                let why = evaluation.last()?.outcome.as_ref().err()?;
                Some((why.shortfall_bytes(), why.to_string()))
            }
            _ => None,
        };
        let nearest =
            designs.iter().filter_map(|d| Some((rejection(d)?, d.id))).min_by_key(|((lacking, _), _)| *lacking);
        nearest.map_or_else(
            || outside.describe_reasons(),
            |((_, why), id)| format!("{why} (on {})", self.space.describe_design(id)),
        )
    }
}

/// The value of an evaluated design; infinite if there is none.
fn value_of_verdict(outcome: &CandidateOutcome<Vec<DesignEvaluation>>) -> f64 {
    match outcome {
        CandidateOutcome::Evaluated { value, .. } => *value,
        _ => f64::INFINITY,
    }
}

/// Index of the design with the least HBM that is as good as the front's `chip` with the most. Indices of `smaller`
/// follow those of `designs`.
fn preferred_capacity(designs: &[DesignOutcome], smaller: &[DesignOutcome], chip: usize) -> usize {
    let CandidateOutcome::Evaluated { value: best, .. } = designs[chip].outcome else { return chip };
    let equal = |d: &DesignOutcome| matches!(d.outcome, CandidateOutcome::Evaluated { value, .. } if value <= best * (1.0 + 1e-9));
    let point = designs[chip].id.point;
    smaller
        .iter()
        .enumerate()
        .rev()
        .find(|(_, d)| d.id.point == point && equal(d))
        .map_or(chip, |(i, _)| designs.len() + i)
}

#[cfg(test)]
mod corner_tests;
#[cfg(test)]
mod decision_tests;
#[cfg(test)]
mod tests;
