//! The search over chips: every chip of a space under its best plan, as a Pareto front of step time against area with a certificate.

use crate::bench::Bench;
use crate::bound::{Detail, step_bound};
use crate::evaluate::{Evaluation, Known, best_plan_knowing, plan_knowing};
use crate::pareto::FrontPoint;
use crate::placement::plan::Effort;
use crate::runner::{self, Outcome, Progress, Verdict};
use crate::space::HardwareSpace;
use rayon::prelude::*;
use sim::hardware::phaze::{PhazeConfig, design};
use sim::status::SolveStatus;
use sim::units::{Bytes, Seconds, SquareMillimeters};

/// The search's numbering of designs: chips with the largest HBM first, in the space's order.
struct ChipProblem<'a> {
    bench: &'a Bench,
    space: &'a HardwareSpace,
    hbm: Bytes,
}

impl ChipProblem<'_> {
    fn config(&self, chip: usize) -> PhazeConfig {
        PhazeConfig { hbm: self.hbm, ..self.space.points[chip].config }
    }

    /// A chip that cannot be simulated is refused by its evaluation, with the reason.
    fn bound(&self, chip: usize, detail: Detail) -> f64 {
        step_bound(self.bench, design(&self.config(chip)), detail).unwrap_or(Seconds::ZERO).0
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

    fn coarse_bound(&self, chip: usize) -> f64 {
        self.bound(chip, Detail::Peak)
    }

    fn fine_bound(&self, chip: usize) -> f64 {
        self.bound(chip, Detail::Mapped)
    }

    fn evaluate(&self, chip: usize, cutoff: f64) -> Verdict<Evaluation> {
        plan_knowing(self.bench, design(&self.config(chip)), Effort::Sweep, Known { cutoff, ..Known::NOTHING })
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

/// Searches `space` for the chip on which the bench's model trains fastest, and for the front of step time against area. At most
/// `evaluations` chips are evaluated exactly; `progress` is told after every round.
///
/// HBM capacity changes neither area nor speed, it only admits plans: the largest is searched first and smaller ones are tried where
/// they could matter, on the front.
pub fn search_designs(
    bench: &Bench,
    space: &HardwareSpace,
    evaluations: usize,
    progress: &(dyn Fn(Progress) + Sync),
) -> DesignAnswer {
    let largest = space.hbm.last().copied().unwrap_or_default();
    let problem = ChipProblem { bench, space, hbm: largest };
    let mut answer = runner::run(&problem, evaluations, progress);
    prove_finalists(&problem, &mut answer);
    let front_chips: Vec<usize> = answer.front.points().iter().map(|p| p.id).collect();
    let mut designs: Vec<DesignOutcome> = answer
        .outcomes
        .into_iter()
        .enumerate()
        .map(|(chip, outcome)| DesignOutcome { config: problem.config(chip), chip, area: space.points[chip].area, outcome })
        .collect();
    let mut front = Vec::new();
    let mut smaller = smaller_capacities(bench, space, &designs, &front_chips);
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

/// What the evaluation of a chip says of the same chip planned with more effort, or with less memory.
fn known_of(outcome: &Outcome<Evaluation>) -> Known {
    let first = match outcome {
        Outcome::Evaluated { evaluation, .. } => evaluation.outcome.as_ref().ok().map(|planned| planned.shape),
        _ => None,
    };
    Known { floor: lower_bound(outcome), first, ..Known::NOTHING }
}

/// The sweep plans quickly and may leave gaps. A design whose gap could hide a better answer than the best is planned again with more
/// effort; the rest of the front keeps its gaps, which its rows state.
fn prove_finalists(problem: &ChipProblem<'_>, answer: &mut runner::Answer<Evaluation>) {
    let Some(best) = answer.front.points().last().map(|p| p.second) else { return };
    let open = |(_, outcome): &(usize, &Outcome<Evaluation>)| {
        matches!(outcome, Outcome::Evaluated { evaluation, .. } if evaluation.status != SolveStatus::Optimal)
            && lower_bound(outcome) < best
    };
    let finalists: Vec<usize> = answer.outcomes.iter().enumerate().filter(open).map(|(chip, _)| chip).collect();
    let again: Vec<(usize, Evaluation)> = finalists
        .into_par_iter()
        .with_max_len(1)
        .map(|chip| {
            let known = known_of(&answer.outcomes[chip]);
            (chip, best_plan_knowing(problem.bench, design(&problem.config(chip)), Effort::Proof, known))
        })
        .collect();
    for (chip, evaluation) in again {
        if let Ok(planned) = &evaluation.outcome {
            let value = planned.plan.step.0;
            answer.front.insert(FrontPoint { first: problem.space.points[chip].area.0, second: value, id: chip });
            answer.outcomes[chip] = Outcome::Evaluated { value, evaluation };
        }
    }
    answer.best = answer.front.points().last().map(|p| p.id);
    answer.lower_bound = answer.lower_bound.map(|bound| answer.front.points().last().map_or(bound, |p| bound.min(p.second)));
}

/// The designs with less than the largest HBM: evaluated for chips of the front, decided by their sibling otherwise (less memory is
/// never faster).
fn smaller_capacities(bench: &Bench, space: &HardwareSpace, largest: &[DesignOutcome], front: &[usize]) -> Vec<DesignOutcome> {
    let capacities: Vec<Bytes> = space.hbm.iter().rev().skip(1).copied().collect();
    let todo: Vec<(usize, Bytes)> = capacities.iter().flat_map(|&hbm| (0..largest.len()).map(move |chip| (chip, hbm))).collect();
    // One by one: most are decided at once, those of the front are planned.
    todo.into_par_iter()
        .with_max_len(1)
        .map(|(chip, hbm)| {
            let config = PhazeConfig { hbm, ..largest[chip].config };
            let outcome = match &largest[chip].outcome {
                Outcome::Evaluated { .. } if front.contains(&chip) => {
                    let effort = if front.last() == Some(&chip) { Effort::Proof } else { Effort::Sweep };
                    // With less memory no plan is faster.
                    let evaluation = best_plan_knowing(bench, design(&config), effort, known_of(&largest[chip].outcome));
                    match evaluation.outcome.as_ref().map(|p| p.plan.step.0) {
                        Ok(value) => Outcome::Evaluated { value, evaluation },
                        Err(_) => Outcome::Infeasible { evaluation },
                    }
                }
                Outcome::Evaluated { value, .. } => {
                    Outcome::Pruned { bound: *value, by: dominator(largest, front, chip, *value) }
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
    use crate::evaluate::Rejection;
    use crate::placement::plan::NoPlan;
    let mut nearest: Option<(u64, String)> = None;
    for design in designs {
        let Outcome::Infeasible { evaluation } = &design.outcome else { continue };
        let Err(why) = &evaluation.outcome else { continue };
        let lacking = match why {
            Rejection::NoPlan { why: NoPlan::OverCapacity(shortfall), .. } => shortfall.lacking().0,
            _ => u64::MAX,
        };
        if nearest.as_ref().is_none_or(|(least, _)| lacking < *least) {
            nearest = Some((lacking, format!("{why} (on {})", design.config)));
        }
    }
    nearest.map_or_else(|| "the space holds no chip within its area limits".into(), |(_, why)| why)
}
