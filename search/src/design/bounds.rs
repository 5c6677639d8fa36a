//! What is minimised, from what steps take: of a chip, and of a box of chips.

use super::{Aim, DesignSearch, Evaluation, Rejection, Workload, evaluate, rejected};
use crate::objective::{Axis, Objective, Term};
use crate::pareto::Costs;
use crate::planner::{ChipKernels, LotBounds, Prepared};
use crate::runner::Verdict;
use crate::space::{Corners, DesignId, Figures};
use sim::hardware::Accelerator;
use sim::units::Seconds;
use step::Fidelity;

/// Rounding of a quotient that a product turns back: four times what a double's last bit is.
pub(super) const SLACK: f64 = 1.0 + 4.0 * f64::EPSILON;
/// The same of logarithms and sums of them.
const WIDE_SLACK: f64 = 1.0 + 1e-12;

/// How a measure of a step follows from its seconds: no less than `besides` + `factor` times them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    besides: f64,
    factor: f64,
}

impl Line {
    fn at(&self, seconds: f64) -> f64 {
        self.besides + self.factor * seconds
    }

    /// Seconds from which on the measure is at least `value`: infinite where no time alone shows it.
    fn reached(&self, value: f64) -> f64 {
        if self.besides == 0.0 && self.factor == 1.0 {
            return value;
        }
        if self.factor > 0.0 { (value - self.besides).max(0.0) / self.factor * SLACK } else { f64::INFINITY }
    }
}

/// How far bounds on the steps of a chip follow for what it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Depth {
    /// Kernels at their peaks.
    Peaks,
    /// With what arrays and buffers leave of them.
    Buffered,
    /// Mapped.
    Mapped,
}

/// A chip, or what bounds a box of chips.
pub(super) struct Seen {
    /// None has faster kernels.
    fast: Accelerator,
    /// None takes less energy; the same where it is left out.
    small: Option<Accelerator>,
    /// None takes less.
    pub figures: Figures,
    fabrics: Vec<usize>,
    pub depth: Depth,
}

impl Seen {
    /// Whether steps take as long at least on both: the same but for what they take.
    fn as_fast(&self, other: &Self) -> bool {
        let mut fast = self.fast.clone();
        fast.energy.clone_from(&other.fast.energy);
        fast.area_model.clone_from(&other.fast.area_model);
        self.fabrics == other.fabrics && fast == other.fast
    }

    pub fn chip(chip: Accelerator, figures: Figures, fabric: usize) -> Self {
        Self { fast: chip, small: None, figures, fabrics: vec![fabric], depth: Depth::Mapped }
    }

    pub fn corners(corners: Corners) -> Self {
        let Corners { fast, small, least, fabrics, buffered, mapped } = corners;
        let depth = match (buffered, mapped) {
            (true, true) => Depth::Mapped,
            (true, false) => Depth::Buffered,
            _ => Depth::Peaks,
        };
        Self { fast, small: Some(small), figures: least, fabrics, depth }
    }

    fn small(&self) -> &Accelerator {
        self.small.as_ref().unwrap_or(&self.fast)
    }
}

impl Aim {
    /// Whether energy is part of the dollars that are asked for.
    #[must_use]
    pub fn pays_energy(&self) -> bool {
        self.objective == Objective::PerDollar && self.operation.usd_per_watt() > 0.0
    }

    /// What is minimised of a step where energy is paid: the chip's USD times the step's `seconds`, and the USD over the years of a device's part of the
    /// `joules` of all `devices`.
    #[must_use]
    pub fn paid(&self, cost_usd: f64, (seconds, joules): (f64, f64), devices: f64) -> f64 {
        cost_usd * seconds + self.operation.usd_per_watt() / devices * joules
    }

    pub(super) fn terms(&self, workloads: &[Workload<'_>]) -> Vec<Term> {
        self.terms_of(workloads, self.objective == Objective::EnergyPerToken)
    }

    fn terms_of(&self, workloads: &[Workload<'_>], energy: bool) -> Vec<Term> {
        let of = |w: &Workload<'_>| {
            let reference = if energy { w.reference.energy.0 } else { w.reference.time.0 };
            Term { share: w.share, reference }
        };
        workloads.iter().map(of).collect()
    }
}

impl DesignSearch<'_> {
    /// The value of measures of the models, of a chip whose figures have `factor`.
    fn value(&self, factor: f64, measures: &[f64]) -> f64 {
        match measures {
            [alone] => factor * alone,
            several => factor * self.aim.over.value(&self.aim.terms(self.workloads), several),
        }
    }

    /// The measure of a model from which on the value is at least `cutoff`.
    fn measure_reached(&self, factor: f64, measures: &[f64], of: usize, cutoff: f64) -> f64 {
        if cutoff.is_infinite() {
            return cutoff;
        }
        match measures {
            [_] if factor == 1.0 => cutoff,
            [_] => cutoff / factor * SLACK,
            several => {
                self.aim.over.reached(&self.aim.terms(self.workloads), several, of, cutoff / factor * WIDE_SLACK) * WIDE_SLACK
            }
        }
    }

    /// What multiplies the measures of a chip with these figures; `None` where it has no such figure. What energy adds to dollars is in the measures.
    fn factor(&self, figures: &Figures) -> Option<f64> {
        let factor = self.aim.objective.factor(figures)?;
        Some(if self.aim.pays_energy() { 1.0 } else { factor })
    }

    /// What the measure of a model's step is at least on what is seen.
    fn line(&self, model: usize, prepared: &Prepared<'_>, seen: &Seen) -> Line {
        if self.aim.pays_energy() {
            let (energy, watt) = (self.energy(prepared, seen.small()), self.watt(prepared));
            let factor = seen.figures.cost_usd.unwrap_or_default() + watt * energy.factor;
            // A hair for the rounding of the sum.
            return Line { besides: watt * energy.besides * (1.0 - 1e-12), factor: factor * (1.0 - 1e-12) };
        }
        if self.aim.objective != Objective::EnergyPerToken {
            return Line { besides: 0.0, factor: self.least_factor(model) };
        }
        self.energy(prepared, seen.small())
    }

    /// USD of a device's energy for every W that the cluster draws.
    fn watt(&self, prepared: &Prepared<'_>) -> f64 {
        self.aim.operation.usd_per_watt() / f64::from(prepared.devices())
    }

    /// What a step's energy is at least: its multiply-accumulates, and what all chips draw while it lasts.
    fn energy(&self, prepared: &Prepared<'_>, small: &Accelerator) -> Line {
        let factor = small.energy.static_power.0 * f64::from(prepared.devices());
        // Sums are taken in another order than the step's: a hair for their rounding.
        Line { besides: prepared.least_energy(small).0 * (1.0 - 1e-9), factor: factor * (1.0 - 1e-9) }
    }

    /// What the kernels of each model take at least on the chip of what is seen; none where it cannot be simulated: its evaluation says why.
    fn kernels<'c>(&self, seen: &'c Seen) -> Vec<Option<ChipKernels<'c>>> {
        let of = |workload: &Workload<'_>| {
            let prepared = workload.prepared.get(*seen.fabrics.first()?)?;
            ChipKernels::new(prepared, &seen.fast).ok()
        };
        self.workloads.iter().map(of).collect()
    }

    /// The least of a model's measure over the fabrics of what is seen, as exactly as is asked for; no better than is needed to see whether that is below
    /// `wanted`. Plans are timed on one fabric: several are bounded by what collectives take at least on any of them.
    fn least<'c>(
        &self,
        model: usize,
        (seen, kernels): (&Seen, &mut Option<ChipKernels<'c>>),
        (depth, wanted): (Depth, f64),
        known: &mut LotBounds,
    ) -> f64 {
        let prepared = self.workloads[model].prepared;
        let all: Vec<&Prepared<'_>> = seen.fabrics.iter().map(|fabric| &prepared[*fabric]).collect();
        let (Some(first), Some(kernels)) = (all.first(), kernels) else { return 0.0 };
        let line = self.line(model, first, seen);
        let cutoff = line.reached(wanted);
        let fidelity = match depth {
            // The plans that fit, timed.
            Depth::Mapped => Fidelity::Exact,
            Depth::Buffered => Fidelity::Buffered,
            Depth::Peaks => Fidelity::Peak,
        };
        line.at(Prepared::bound_within(&all, kernels, (cutoff, fidelity), known).0)
    }

    fn measures<'c>(
        &self,
        (seen, kernels): (&'c Seen, &mut [Option<ChipKernels<'c>>]),
        depth: Depth,
        known: &mut [LotBounds],
    ) -> Vec<f64> {
        let each = kernels.iter_mut().zip(known).enumerate();
        each.map(|(model, (kernels, known))| self.least(model, (seen, kernels), (depth, f64::INFINITY), known)).collect()
    }

    /// Whether bounds on the values of what is seen are those of something else, whatever they are.
    pub(super) fn as_fast(&self, seen: &Seen, other: &Seen) -> bool {
        let factor = |seen: &Seen| self.factor(&seen.figures);
        let time_alone = self.aim.objective != Objective::EnergyPerToken && !self.aim.pays_energy();
        time_alone && factor(seen) == factor(other) && seen.as_fast(other)
    }

    /// No value of what is seen is below this, from its kernels' peaks and, as far as is asked for and holds, what arrays and buffers leave of them.
    /// Without a price it is nothing: its evaluation says so. `known` holds for what is seen, by model, or is empty; it takes what is found.
    pub(super) fn coarse(&self, seen: &Seen, depth: Depth, known: &mut Vec<LotBounds>) -> f64 {
        let Some(factor) = self.factor(&seen.figures) else { return 0.0 };
        known.resize(self.workloads.len(), LotBounds::default());
        self.value(factor, &self.measures((seen, &mut self.kernels(seen)), depth.min(seen.depth), known))
    }

    /// No value of what is seen is below this, as far as bounds on its chip follow; no better than is needed to see whether that is below `cutoff`.
    /// `known` is as for [`Self::coarse`].
    pub(super) fn fine(&self, seen: &Seen, cutoff: f64, known: &mut Vec<LotBounds>) -> f64 {
        let Some(factor) = self.factor(&seen.figures) else { return 0.0 };
        known.resize(self.workloads.len(), LotBounds::default());
        let mut kernels = self.kernels(seen);
        let mut measures = self.measures((seen, &mut kernels), Depth::Peaks, known);
        // What is cheap may do, of all models before any is looked into further.
        for depth in [Depth::Buffered, Depth::Mapped].into_iter().filter(|depth| *depth <= seen.depth) {
            for model in 0..measures.len() {
                if self.value(factor, &measures) >= cutoff {
                    return self.value(factor, &measures);
                }
                let wanted = self.measure_reached(factor, &measures, model, cutoff);
                let fine = self.least(model, (seen, &mut kernels[model]), (depth, wanted), &mut known[model]);
                measures[model] = measures[model].max(fine);
            }
        }
        self.value(factor, &measures)
    }

    /// What is least along the axes; where a plan decides that, a bound.
    pub(super) fn costs(&self, seen: &Seen) -> Costs {
        self.aim.axes.costs(|axis| match axis.of(&seen.figures) {
            Some(cost) => cost,
            None if axis == Axis::Energy => self.least_energy_cost(seen),
            None => 0.0,
        })
    }

    /// No plan on what is seen takes less along the axis of energy.
    fn least_energy_cost(&self, seen: &Seen) -> f64 {
        let mut kernels = self.kernels(seen);
        let of = |model: usize| {
            let joules = |fabric: &usize| {
                let prepared: &Prepared<'_> = &self.workloads[model].prepared[*fabric];
                let least = kernels[model].as_mut().map_or(Seconds::ZERO, |kernels| prepared.coarse_bound(kernels));
                self.energy(prepared, seen.small()).at(least.0)
            };
            seen.fabrics.iter().map(joules).fold(f64::INFINITY, f64::min)
        };
        self.energy_cost(&(0..self.workloads.len()).map(of).collect::<Vec<_>>())
    }

    /// The cost along the axis of energy: joules of a step, or of several models over the reference's.
    fn energy_cost(&self, joules: &[f64]) -> f64 {
        match joules {
            [alone] => *alone,
            several => self.aim.over.value(&self.aim.terms_of(self.workloads, true), several),
        }
    }

    /// A design under its fastest plans, unless it is shown that its objective is at least `cutoff`.
    pub(super) fn evaluate(&self, id: DesignId, cutoff: f64) -> Verdict<Vec<Evaluation>> {
        let refused = |why: Rejection| Verdict::Infeasible(vec![rejected(why)]);
        let chip = match self.space.chip(id) {
            Ok(chip) => chip,
            Err(why) => return refused(Rejection::Unusable(why)),
        };
        let figures = self.space.figures(id, &chip);
        let Some(factor) = self.factor(&figures) else { return refused(Rejection::NoPrice) };
        let seen = Seen::chip(chip, figures, self.space.fabric(id));
        let mut measures = vec![0.0; self.workloads.len()];
        if measures.len() > 1 {
            let mut known = vec![LotBounds::default(); measures.len()];
            measures = self.measures((&seen, &mut self.kernels(&seen)), Depth::Peaks, &mut known);
        }
        let (mut found, mut joules) = (Vec::new(), Vec::new());
        for model in 0..self.workloads.len() {
            let prepared = self.prepared(model, id);
            let line = self.line(model, prepared, &seen);
            let allowed = self.longest_step(model);
            let reached = line.reached(self.measure_reached(factor, &measures, model, cutoff));
            match evaluate(prepared, &seen.fast, reached.min(allowed)) {
                Verdict::Feasible { value: seconds, evaluation, .. } => {
                    let plan = evaluation.outcome.as_deref().ok();
                    let energy = plan.map(|plan| plan.energy.0);
                    let counted = seconds * plan.map_or(1.0, |plan| self.bad_end(prepared, &seen.fast, plan));
                    if let Some(most) = self.aim.max_step.filter(|most| counted > most.0) {
                        found.push(rejected(self.too_slow(counted, most)));
                        return Verdict::Infeasible(found);
                    }
                    measures[model] = match (self.aim.objective, energy) {
                        (Objective::EnergyPerToken, Some(energy)) => energy,
                        (Objective::PerDollar, Some(energy)) if self.aim.pays_energy() => {
                            let cost = seen.figures.cost_usd.unwrap_or_default();
                            self.aim.paid(cost, (seconds, energy), f64::from(prepared.devices()))
                        }
                        _ => counted,
                    };
                    joules.extend(energy);
                    found.push(evaluation);
                }
                Verdict::Beaten(seconds) if reached <= allowed => {
                    measures[model] = line.at(seconds);
                    return Verdict::Beaten(self.value(factor, &measures));
                }
                Verdict::Beaten(seconds) => {
                    let most = self.aim.max_step.unwrap_or_default();
                    found.push(rejected(self.too_slow(seconds * self.least_factor(model), most)));
                    return Verdict::Infeasible(found);
                }
                Verdict::Infeasible(evaluation) => {
                    found.push(evaluation);
                    return Verdict::Infeasible(found);
                }
            }
        }
        let exactly = |axis: Axis| axis.of(&seen.figures).unwrap_or_else(|| self.energy_cost(&joules));
        let costs = self.aim.axes.has(Axis::Energy).then(|| self.aim.axes.costs(exactly));
        Verdict::Feasible { value: self.value(factor, &measures), costs, evaluation: found }
    }
}
