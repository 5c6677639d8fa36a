//! The search over chips: every chip of a space under its fastest plan, as a Pareto front of an objective against what a chip takes, with a
//! certificate.
//!
//! Plans are those of the planner, under the study's software stack: what prunes a chip, what evaluates it and what is printed is one model.

use crate::objective::{Axis, Objective};
use crate::planner::{Fastest, Prepared, RankedPlan};
use crate::runner::{self, Outcome, Progress, Verdict};
use crate::space::{DesignId, Space};
use rayon::prelude::*;
use sim::hardware::Accelerator;
use sim::status::SolveStatus;
use sim::units::{Bytes, Seconds};
use step::OverCapacity;
use step::TrainingPlan;

/// A job on a chip.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
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
    /// The chip has no price, and dollars are what is asked for.
    NoPrice,
    /// The chip cannot be simulated.
    Unusable(String),
}

impl Rejection {
    /// Bytes that the nearest attempt lacks.
    fn lacking(&self) -> Bytes {
        match self {
            Self::TooSlow(..) => Bytes::ZERO,
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
            Self::NoPrice => f.write_str("no wafer price is known for its node, or its die fits on no wafer"),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

fn rejected(why: Rejection) -> Evaluation {
    let status = SolveStatus::Infeasible { why: why.to_string() };
    Evaluation { outcome: Err(why), status }
}

/// The fastest plan on a chip, unless no plan is below `cutoff` seconds: its value is the step's seconds.
#[must_use]
pub fn evaluate(prepared: &Prepared<'_>, chip: &Accelerator, cutoff: f64) -> Verdict<Evaluation> {
    match prepared.fastest(chip, cutoff) {
        Ok(Fastest::Plan(plan, status)) => {
            let (value, cost) = (plan.time.total.0, Some(plan.energy.0));
            Verdict::Feasible { value, cost, evaluation: Evaluation { outcome: Ok(plan), status } }
        }
        Ok(Fastest::TooLarge(nearest)) => Verdict::Infeasible(rejected(Rejection::TooLarge(nearest))),
        Ok(Fastest::Beaten(bound)) => Verdict::Beaten(bound.0),
        Err(error) => Verdict::Infeasible(rejected(Rejection::Unusable(error.to_string()))),
    }
}

/// The fastest plan on a chip.
#[must_use]
pub fn best_plan(prepared: &Prepared<'_>, chip: &Accelerator) -> Evaluation {
    match evaluate(prepared, chip, f64::INFINITY) {
        Verdict::Feasible { evaluation, .. } | Verdict::Infeasible(evaluation) => evaluation,
        Verdict::Beaten(bound) => rejected(Rejection::Unusable(format!("no plan is below {bound} s per step"))),
    }
}

/// What is asked of a search over chips.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Aim {
    /// What is best.
    pub objective: Objective,
    /// Against what the front is drawn.
    pub axis: Axis,
    /// Steps may take at most so long.
    pub max_step: Option<Seconds>,
    /// Chips evaluated exactly at most.
    pub evaluations: usize,
}

/// A search over chips: the job's plans on each of the space's fabrics, its chips and what is asked.
#[derive(Debug, Clone, Copy)]
pub struct DesignSearch<'a> {
    /// The job and its plans, prepared for every fabric of [`Space::fabrics`], in that order.
    pub prepared: &'a [Prepared<'a>],
    /// The chips.
    pub space: &'a Space,
    /// What is asked.
    pub aim: Aim,
}

/// Rounding of a quotient that a product turns back: four times what a double's last bit is.
const SLACK: f64 = 1.0 + 4.0 * f64::EPSILON;

/// The search's numbering of designs: chips with the largest HBM first, in the space's order.
struct ChipProblem<'a> {
    search: DesignSearch<'a>,
    /// What no evaluation of a chip is below along the axis.
    costs: Vec<f64>,
}

/// How a chip's objective follows from a step's seconds: no less than `besides` + `factor` times them.
#[derive(Debug, Clone, Copy)]
struct Line {
    besides: f64,
    factor: f64,
}

impl Line {
    fn at(&self, seconds: f64) -> f64 {
        self.besides + self.factor * seconds
    }

    /// Seconds from which on the objective is at least `value`: infinite where no time alone shows it.
    fn reached(&self, value: f64) -> f64 {
        if self.besides == 0.0 && self.factor == 1.0 {
            return value;
        }
        if self.factor > 0.0 { (value - self.besides).max(0.0) / self.factor * SLACK } else { f64::INFINITY }
    }
}

impl<'a> DesignSearch<'a> {
    fn prepared(&self, id: DesignId) -> &'a Prepared<'a> {
        &self.prepared[self.space.fabric(id)]
    }

    /// What a step's energy is at least: its multiply-accumulates, and what all chips draw while it lasts.
    fn energy(&self, prepared: &Prepared<'_>, chip: &Accelerator) -> Line {
        let factor = chip.energy.static_power.0 * f64::from(prepared.devices());
        // Sums are taken in another order than the step's: a hair for their rounding.
        Line { besides: prepared.least_energy(chip).0 * (1.0 - 1e-9), factor: factor * (1.0 - 1e-9) }
    }

    fn line(&self, id: DesignId, chip: &Accelerator) -> Option<Line> {
        match self.aim.objective {
            Objective::EnergyPerToken => Some(self.energy(self.prepared(id), chip)),
            objective => objective.factor(&self.space.figures[id.point]).map(|factor| Line { besides: 0.0, factor }),
        }
    }

    /// A design under its fastest plan, unless it is shown that its objective is at least `cutoff`.
    fn evaluate(&self, id: DesignId, cutoff: f64) -> Verdict<Evaluation> {
        let chip = match self.space.chip(id) {
            Ok(chip) => chip,
            Err(why) => return Verdict::Infeasible(rejected(Rejection::Unusable(why))),
        };
        let Some(line) = self.line(id, &chip) else { return Verdict::Infeasible(rejected(Rejection::NoPrice)) };
        let allowed = self.aim.max_step.map_or(f64::INFINITY, |most| most.0 * SLACK);
        let reached = line.reached(cutoff);
        match evaluate(self.prepared(id), &chip, reached.min(allowed)) {
            Verdict::Feasible { value: seconds, cost: energy, evaluation } => {
                if let Some(most) = self.aim.max_step.filter(|most| seconds > most.0) {
                    return Verdict::Infeasible(rejected(Rejection::TooSlow(Seconds(seconds), most)));
                }
                let value = match (self.aim.objective, energy) {
                    (Objective::EnergyPerToken, Some(energy)) => energy,
                    _ => line.at(seconds),
                };
                let cost = energy.filter(|_| self.aim.axis == Axis::Energy);
                Verdict::Feasible { value, cost, evaluation }
            }
            Verdict::Beaten(seconds) if reached <= allowed => Verdict::Beaten(line.at(seconds)),
            Verdict::Beaten(seconds) => {
                let most = self.aim.max_step.unwrap_or_default();
                Verdict::Infeasible(rejected(Rejection::TooSlow(Seconds(seconds), most)))
            }
            Verdict::Infeasible(evaluation) => Verdict::Infeasible(evaluation),
        }
    }

    /// The objective of a chip from a bound on its step's seconds. A chip that cannot be simulated, or has no price, is refused by its evaluation,
    /// with the reason.
    fn bound(&self, id: DesignId, seconds: impl FnOnce(&Prepared<'_>, &Accelerator, &Line) -> f64) -> f64 {
        let Ok(chip) = self.space.chip(id) else { return 0.0 };
        self.line(id, &chip).map_or(0.0, |line| line.at(seconds(self.prepared(id), &chip, &line)))
    }
}

impl runner::Problem for ChipProblem<'_> {
    type Evaluation = Evaluation;

    fn candidates(&self) -> usize {
        self.search.space.points()
    }

    fn cost(&self, chip: usize) -> f64 {
        self.costs[chip]
    }

    fn coarse_bound(&self, chip: usize) -> f64 {
        let id = self.search.space.largest(chip);
        self.search.bound(id, |prepared, chip, _| prepared.coarse_bound(chip).unwrap_or(Seconds::ZERO).0)
    }

    fn fine_bound(&self, chip: usize, cutoff: f64) -> f64 {
        let id = self.search.space.largest(chip);
        self.search.bound(id, |prepared, chip, line| prepared.fine_bound(chip, line.reached(cutoff)).unwrap_or(Seconds::ZERO).0)
    }

    fn evaluate(&self, chip: usize, cutoff: f64) -> Verdict<Evaluation> {
        self.search.evaluate(self.search.space.largest(chip), cutoff)
    }
}

/// How one design was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct DesignOutcome {
    /// The design.
    pub id: DesignId,
    /// What became of it; `by` counts chips of the space. Values are of the objective, to be minimised.
    pub outcome: Outcome<Evaluation>,
}

/// What a search over chips found.
#[derive(Debug, Clone)]
pub struct DesignAnswer {
    /// Every design: each chip with its largest HBM in the space's order, then the smaller capacities.
    pub designs: Vec<DesignOutcome>,
    /// Positions in `designs` of the Pareto front of the objective against the axis, least along the axis first. Of designs equal in both, the one
    /// with the least HBM.
    pub front: Vec<usize>,
    /// Position in `designs` of the best.
    pub best: Option<usize>,
    /// How good the best is, in what is minimised.
    pub status: SolveStatus,
}

impl DesignAnswer {
    /// The value of a design that was evaluated, in what is minimised; infinite where there is none.
    #[must_use]
    pub fn value(&self, index: usize) -> f64 {
        match self.designs[index].outcome {
            Outcome::Evaluated { value, .. } => value,
            _ => f64::INFINITY,
        }
    }

    /// Position in `designs` of the first chip of the front (the smallest) whose value is at most `fraction` more than the best one's.
    #[must_use]
    pub fn smallest_within(&self, fraction: f64) -> Option<usize> {
        let most = self.value(self.best?) * (1.0 + fraction);
        self.front.iter().copied().find(|&index| self.value(index) <= most)
    }
}

impl DesignSearch<'_> {
    /// Searches the space for the chip on which the objective is best, and for its front against the axis; `progress` is told after every round.
    ///
    /// HBM capacity changes neither area nor speed of PHAZE's chips, it only admits plans: the largest is searched first and smaller ones are tried
    /// where they could matter, on the front.
    #[must_use]
    pub fn run(&self, progress: &(dyn Fn(Progress) + Sync)) -> DesignAnswer {
        let problem = ChipProblem { search: *self, costs: self.costs() };
        let answer = runner::run(&problem, self.aim.evaluations, progress);
        let front_chips: Vec<usize> = answer.front.points().iter().map(|p| p.id).collect();
        let largest = |(chip, outcome)| DesignOutcome { id: self.space.largest(chip), outcome };
        let mut designs: Vec<DesignOutcome> = answer.outcomes.into_iter().enumerate().map(largest).collect();
        let mut front = Vec::new();
        let mut smaller = self.smaller_capacities(&designs, &front_chips);
        for &chip in &front_chips {
            front.push(preferred(&designs, &smaller, chip, designs.len()));
        }
        designs.append(&mut smaller);
        let best = front.last().copied();
        let status = match (best.map(|b| &designs[b].outcome), answer.lower_bound) {
            (Some(Outcome::Evaluated { value, .. }), Some(bound)) => {
                // With less HBM no chip is faster than with the most: the first of each speak for all.
                let all = designs.iter().take(self.space.points());
                let least = all.map(|d| self.lower_bound(d)).fold(bound, f64::min);
                SolveStatus::from_bounds(least, *value)
            }
            (_, Some(bound)) => SolveStatus::Gap { lower_bound: bound, upper_bound: f64::INFINITY },
            _ => SolveStatus::Infeasible { why: self.nearest_miss(&designs) },
        };
        DesignAnswer { designs, front, best, status }
    }

    /// What no evaluation of a chip is below along the axis.
    fn costs(&self) -> Vec<f64> {
        let of = |point: usize| {
            let figures = &self.space.figures[point];
            if let Some(cost) = self.aim.axis.of(figures) {
                return cost;
            }
            if self.aim.axis == Axis::None {
                return 0.0;
            }
            let id = self.space.largest(point);
            let Ok(chip) = self.space.chip(id) else { return 0.0 };
            let prepared = self.prepared(id);
            self.energy(prepared, &chip).at(prepared.coarse_bound(&chip).unwrap_or(Seconds::ZERO).0)
        };
        (0..self.space.points()).into_par_iter().map(of).collect()
    }

    /// No plan on this design is better: infinite where there is none.
    fn lower_bound(&self, design: &DesignOutcome) -> f64 {
        match &design.outcome {
            Outcome::Evaluated { value, evaluation } => match evaluation.status {
                // Of its plans the fastest is taken, whose schedules may be improved by so much.
                SolveStatus::Gap { lower_bound, upper_bound } if upper_bound > 0.0 => value * (lower_bound / upper_bound),
                _ => *value,
            },
            Outcome::Pruned { bound, .. } | Outcome::Open { bound } => *bound,
            Outcome::Infeasible { .. } => f64::INFINITY,
        }
    }

    /// The designs with less than the largest HBM: evaluated for chips of the front, decided by their sibling otherwise (less memory is never
    /// faster).
    fn smaller_capacities(&self, largest: &[DesignOutcome], front: &[usize]) -> Vec<DesignOutcome> {
        let capacities = self.space.hbm.iter().rev().skip(1).copied();
        let todo: Vec<DesignId> =
            capacities.flat_map(|hbm| (0..largest.len()).map(move |point| DesignId { point, hbm: Some(hbm) })).collect();
        // One by one: most are decided at once, those of the front are planned.
        todo.into_par_iter()
            .with_max_len(1)
            .map(|id| {
                let outcome = match &largest[id.point].outcome {
                    Outcome::Evaluated { .. } if front.contains(&id.point) => match self.evaluate(id, f64::INFINITY) {
                        Verdict::Feasible { value, evaluation, .. } => Outcome::Evaluated { value, evaluation },
                        Verdict::Infeasible(evaluation) => Outcome::Infeasible { evaluation },
                        Verdict::Beaten(bound) => Outcome::Open { bound },
                    },
                    Outcome::Evaluated { value, .. } => {
                        let by = self.dominator(largest, front, id.point, *value);
                        Outcome::Pruned { bound: self.lower_bound(&largest[id.point]), by }
                    }
                    Outcome::Infeasible { evaluation } => Outcome::Infeasible { evaluation: evaluation.clone() },
                    Outcome::Pruned { bound, by } => Outcome::Pruned { bound: *bound, by: *by },
                    Outcome::Open { bound } => Outcome::Open { bound: *bound },
                };
                DesignOutcome { id, outcome }
            })
            .collect()
    }

    /// The front's chip that takes no more and is no worse than `chip`.
    fn dominator(&self, designs: &[DesignOutcome], front: &[usize], chip: usize, value: f64) -> usize {
        let cost = |c: usize| self.aim.axis.of(&self.space.figures[c]).unwrap_or(0.0);
        let beats = |&&f: &&usize| {
            matches!(designs[f].outcome, Outcome::Evaluated { value: v, .. } if v <= value) && cost(f) <= cost(chip)
        };
        front.iter().find(beats).copied().unwrap_or(chip)
    }

    /// The rejection that lacks least, for the user whose model fits nowhere.
    fn nearest_miss(&self, designs: &[DesignOutcome]) -> String {
        let rejection = |design: &'_ DesignOutcome| match &design.outcome {
            Outcome::Infeasible { evaluation } => evaluation.outcome.as_ref().err().map(|why| (why.lacking(), why.to_string())),
            _ => None,
        };
        let nearest = designs.iter().filter_map(|d| Some((rejection(d)?, d.id))).min_by_key(|((lacking, _), _)| *lacking);
        nearest.map_or_else(
            || "the space holds no chip within its limits".into(),
            |((_, why), id)| format!("{why} (on {})", self.space.words(id)),
        )
    }
}

/// The position of the front chip's design with the least HBM that is as good as with the most.
fn preferred(designs: &[DesignOutcome], smaller: &[DesignOutcome], chip: usize, offset: usize) -> usize {
    let Outcome::Evaluated { value: best, .. } = designs[chip].outcome else { return chip };
    let equal = |d: &DesignOutcome| matches!(d.outcome, Outcome::Evaluated { value, .. } if value <= best * (1.0 + 1e-9));
    smaller.iter().enumerate().rev().find(|(_, d)| d.id.point == chip && equal(d)).map_or(chip, |(i, _)| offset + i)
}

#[cfg(test)]
#[path = "design_tests.rs"]
mod tests;
