//! Computes the objective's value from step times, and bounds on it for a chip or a box of chips.

use super::infeasible_evaluation;
use super::{Aim, DesignEvaluation, DesignSearch, ReferenceStep, Rejection, Workload, evaluate_chip};
use crate::objective::{FrontAxis, ObjectiveKind, PaidHardware, Term};
use crate::pareto::FrontCosts;
use crate::planner::{ChipKernels, GroupBounds, PreparedJob};
use crate::runner::Verdict;
use crate::space::{ChipFigures, Corners, DesignId};
use sim::hardware::{Accelerator, Constants};
use sim::network::Fabric;
use sim::units::Seconds;
use step::Fidelity;

/// Allowance for rounding in a quotient that a product reverses: four times the last bit of a double.
pub(super) const SLACK: f64 = 1.0 + 4.0 * f64::EPSILON;
/// The allowance for rounding in logarithms and their sums.
const WIDE_SLACK: f64 = 1.0 + 1e-12;

/// A lower bound on a step's measure from its seconds: `besides` + `factor` * seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasureLine {
    besides: f64,
    factor: f64,
}

impl MeasureLine {
    fn measure_at(&self, seconds: f64) -> f64 {
        self.besides + self.factor * seconds
    }

    /// The least step time in seconds at which the bound reaches `value`. Infinite if the bound does not grow with
    /// time.
    fn seconds_reaching(&self, value: f64) -> f64 {
        if self.besides == 0.0 && self.factor == 1.0 {
            return value;
        }
        if self.factor > 0.0 { (value - self.besides).max(0.0) / self.factor * SLACK } else { f64::INFINITY }
    }
}

/// The detail of step bounds. A [`ChipOrBox`] has the greatest detail at which its bounds hold for all its chips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BoundDepth {
    /// Kernels at their peaks.
    Peaks,
    /// Kernels at the part of their peaks that arrays and buffers allow.
    Buffered,
    /// Mapped kernels.
    Mapped,
}

/// A chip, or the corners of a box of chips.
pub(super) struct ChipOrBox {
    /// The corner with the fastest kernels.
    fast: Accelerator,
    /// The corner with the least energy; `None` if it is `fast`.
    small: Option<Accelerator>,
    /// Each figure's least value over the chips.
    pub figures: ChipFigures,
    fabrics: Vec<usize>,
    pub depth: BoundDepth,
}

impl ChipOrBox {
    /// True if both have equal bounds on step times: their fast corners are equal except for energy and area model, and
    /// so are their fabrics.
    fn is_as_fast_as(&self, other: &Self) -> bool {
        let mut fast = self.fast.clone();
        fast.energy.clone_from(&other.fast.energy);
        fast.area_model.clone_from(&other.fast.area_model);
        self.fabrics == other.fabrics && fast == other.fast
    }

    pub(super) fn chip(chip: Accelerator, figures: ChipFigures, fabric: usize) -> Self {
        Self { fast: chip, small: None, figures, fabrics: vec![fabric], depth: BoundDepth::Mapped }
    }

    pub(super) fn corners(corners: Corners) -> Self {
        let Corners { fast, small, least, fabrics, buffered, mapped } = corners;
        let depth = match (buffered, mapped) {
            (true, true) => BoundDepth::Mapped,
            (true, false) => BoundDepth::Buffered,
            _ => BoundDepth::Peaks,
        };
        Self { fast, small: Some(small), figures: least, fabrics, depth }
    }

    /// The chip with at least as much memory as any of these chips.
    pub fn roomiest_chip(&self) -> &Accelerator {
        &self.fast
    }

    /// Indices of the chips' fabrics.
    pub fn fabrics(&self) -> &[usize] {
        &self.fabrics
    }

    fn smallest_chip(&self) -> &Accelerator {
        self.small.as_ref().unwrap_or(&self.fast)
    }
}

impl Aim {
    /// True if the dollars of the objective include energy.
    #[must_use]
    pub fn pays_energy(&self) -> bool {
        self.objective.pays_dollars() && self.operation.usd_per_watt() > 0.0
    }

    /// True if the dollars of the objective include the system around the chips.
    #[must_use]
    pub fn pays_system(&self) -> bool {
        self.objective.pays_dollars() && self.operation.dollars == PaidHardware::System
    }

    /// Returns the price of the system around a device that the objective pays for, in USD: 0 if it does not, infinite
    /// if the fabric's parts are unknown.
    #[must_use]
    pub fn counted_system_usd(&self, fabric: &Fabric, constants: &Constants) -> f64 {
        match self.pays_system() {
            true => fabric.price_system(constants).map_or(f64::INFINITY, |price| price.total_usd()),
            false => 0.0,
        }
    }

    /// Returns the USD per device that the objective pays besides energy, from the prices of a chip and of the system
    /// around it. `None` if a price that it needs is unknown.
    #[must_use]
    pub fn paid_usd(&self, cost_usd: Option<f64>, system_usd: Option<f64>) -> Option<f64> {
        if self.pays_system() { Some(cost_usd? + system_usd?) } else { cost_usd }
    }

    /// True if a step's measure depends on its energy.
    #[must_use]
    pub fn counts_energy(&self) -> bool {
        self.objective.minimises_energy() || self.pays_energy()
    }

    /// The minimised value of a step if energy is paid: a device's USD times the step's `seconds`, plus the USD over
    /// all years for one device's part of the `joules` of all `devices`.
    #[must_use]
    pub fn cost_of_step(&self, paid_usd: f64, (seconds, joules): (f64, f64), devices: f64) -> f64 {
        paid_usd * seconds + self.operation.usd_per_watt() / devices * joules
    }

    /// Returns the minimised measure of a model's step on a chip with these figures, on a cluster of `devices`. `None`
    /// if the objective needs a price and the chip has none.
    #[must_use]
    pub fn measure_of_step(&self, figures: &ChipFigures, step: (f64, f64), devices: f64) -> Option<f64> {
        let (seconds, joules) = step;
        match self.objective.kind() {
            ObjectiveKind::Energy => Some(joules),
            ObjectiveKind::RatePer(FrontAxis::Cost) => Some(self.cost_of_step(figures.paid_usd()?, step, devices)),
            _ => Some(self.objective.factor_of_chip(figures)? * seconds),
        }
    }

    /// Returns the measure of a model's step on the reference: its seconds, or its joules.
    #[must_use]
    pub fn measure_of_reference(&self, reference: &ReferenceStep) -> f64 {
        if self.objective.minimises_energy() { reference.energy.0 } else { reference.time.0 }
    }

    pub(super) fn objective_terms(&self, workloads: &[Workload<'_>]) -> Vec<Term> {
        let of = |w: &Workload<'_>| Term { share: w.share, reference: self.measure_of_reference(&w.reference) };
        workloads.iter().map(of).collect()
    }
}

impl DesignSearch<'_> {
    /// A chip of the space on one of its fabrics, with the price of the system that the objective pays for.
    pub(super) fn see_chip(&self, chip: Accelerator, figures: ChipFigures, fabric: usize) -> ChipOrBox {
        let figures = figures.with_system(self.least_system_usd(&[fabric], &chip.constants));
        ChipOrBox::chip(chip, figures, fabric)
    }

    /// A box of chips, with the least price of the system on any of its fabrics.
    pub(super) fn see_box(&self, corners: Corners) -> ChipOrBox {
        let mut seen = ChipOrBox::corners(corners);
        seen.figures.system_usd = self.least_system_usd(&seen.fabrics, &seen.fast.constants);
        seen
    }

    /// Returns the least price of the system that the objective pays for on any of these fabrics, in USD per device. It
    /// depends on fabric and devices only, so it bounds the system of every chip of a box.
    pub(super) fn least_system_usd(&self, fabrics: &[usize], constants: &Constants) -> f64 {
        if !self.aim.pays_system() {
            return 0.0;
        }
        let prepared = |fabric: &usize| self.workloads.first()?.prepared.get(*fabric);
        let of = |prepared: &PreparedJob<'_>| self.aim.counted_system_usd(prepared.job.fabric, constants);
        fabrics.iter().filter_map(prepared).map(of).fold(f64::INFINITY, f64::min)
    }

    /// The value from the models' measures, for a chip whose figures have `factor`.
    fn value_of_measures(&self, factor: f64, measures: &[f64]) -> f64 {
        match measures {
            [alone] => factor * alone,
            several => factor * self.aim.over.combine_measures(&self.aim.objective_terms(self.workloads), several),
        }
    }

    /// The measure of model `of` at which the value reaches `cutoff`, rounded up.
    fn measure_at_cutoff(&self, factor: f64, measures: &[f64], of: usize, cutoff: f64) -> f64 {
        if cutoff.is_infinite() {
            return cutoff;
        }
        match measures {
            [_] if factor == 1.0 => cutoff,
            [_] => cutoff / factor * SLACK,
            several => {
                self.aim.over.measure_reaching(
                    &self.aim.objective_terms(self.workloads),
                    several,
                    of,
                    cutoff / factor * WIDE_SLACK,
                ) * WIDE_SLACK
            }
        }
    }

    /// The factor from measures to the value, for a chip with these figures. `None` if the chip has no such figure. If
    /// energy is paid, the factor is 1, because the chip's price is part of the measures.
    pub(super) fn objective_factor(&self, figures: &ChipFigures) -> Option<f64> {
        let factor = self.aim.objective.factor_of_chip(figures)?;
        Some(if self.aim.pays_energy() { 1.0 } else { factor })
    }

    /// Lower bound on the measure of a model's step on a chip or box, as a function of the step time.
    fn measure_line(&self, model: usize, prepared: &PreparedJob<'_>, seen: &ChipOrBox) -> MeasureLine {
        if self.aim.pays_energy() {
            let (energy, watt) = (self.least_step_energy(prepared, seen.smallest_chip()), self.usd_per_watt(prepared));
            let factor = seen.figures.paid_usd().unwrap_or_default() + watt * energy.factor;
            // Allows for rounding of the sum.
            return MeasureLine { besides: watt * energy.besides * (1.0 - 1e-12), factor: factor * (1.0 - 1e-12) };
        }
        if !self.aim.counts_energy() {
            return MeasureLine { besides: 0.0, factor: self.least_step_factor(model) };
        }
        self.least_step_energy(prepared, seen.smallest_chip())
    }

    /// USD of one device's energy for every W that the cluster draws.
    fn usd_per_watt(&self, prepared: &PreparedJob<'_>) -> f64 {
        self.aim.operation.usd_per_watt() / f64::from(prepared.device_count())
    }

    /// Lower bound on a step's energy: its multiply-accumulates, and the static power of all chips while it runs.
    fn least_step_energy(&self, prepared: &PreparedJob<'_>, small: &Accelerator) -> MeasureLine {
        let factor = small.energy.static_power.0 * f64::from(prepared.device_count());
        // The sums are taken in another order than the step's; this allows for their rounding.
        MeasureLine { besides: prepared.least_step_energy(small).0 * (1.0 - 1e-9), factor: factor * (1.0 - 1e-9) }
    }

    /// Least kernel times of each model on the fastest chip. `None` if that chip cannot be simulated; its evaluation
    /// reports why.
    fn bound_kernels<'c>(&self, seen: &'c ChipOrBox) -> Vec<Option<ChipKernels<'c>>> {
        let of = |workload: &Workload<'_>| {
            let prepared = workload.prepared.get(*seen.fabrics.first()?)?;
            ChipKernels::new(prepared, &seen.fast).ok()
        };
        self.workloads.iter().map(of).collect()
    }

    /// Lower bound on a model's measure over the fabrics of a chip or box, at the given depth. It is only as tight as
    /// needed to decide whether the measure is below `wanted`.
    ///
    /// Plans are timed on one fabric. If one of several has the fastest links, its plans bound those on all. Otherwise
    /// the least collective times on any of them do.
    fn least_measure<'c>(
        &self,
        model: usize,
        seen: &ChipOrBox,
        kernels: &mut Option<ChipKernels<'c>>,
        depth: BoundDepth,
        wanted: f64,
        known: &mut GroupBounds,
    ) -> f64 {
        let prepared = self.workloads[model].prepared;
        let all: Vec<&PreparedJob<'_>> = seen.fabrics.iter().map(|fabric| &prepared[*fabric]).collect();
        let (Some(first), Some(kernels)) = (all.first(), kernels) else { return 0.0 };
        let line = self.measure_line(model, first, seen);
        let cutoff = line.seconds_reaching(wanted);
        let fidelity = match depth {
            // With mapped kernels, the plans that fit are timed too.
            BoundDepth::Mapped => Fidelity::Exact,
            BoundDepth::Buffered => Fidelity::Buffered,
            BoundDepth::Peaks => Fidelity::Peak,
        };
        line.measure_at(PreparedJob::lower_bound_within(&all, kernels, cutoff, fidelity, known).0)
    }

    fn least_measures<'c>(
        &self,
        seen: &'c ChipOrBox,
        kernels: &mut [Option<ChipKernels<'c>>],
        depth: BoundDepth,
        known: &mut [GroupBounds],
    ) -> Vec<f64> {
        let each = kernels.iter_mut().zip(known).enumerate();
        each.map(|(model, (kernels, known))| self.least_measure(model, seen, kernels, depth, f64::INFINITY, known))
            .collect()
    }

    /// True if both have the same bounds on values at every depth.
    pub(super) fn shares_bounds_with(&self, seen: &ChipOrBox, other: &ChipOrBox) -> bool {
        let factor = |seen: &ChipOrBox| self.objective_factor(&seen.figures);
        !self.aim.counts_energy() && factor(seen) == factor(other) && seen.is_as_fast_as(other)
    }

    /// Lower bound on the values of a chip or box, from kernel peaks. At depth `Buffered`, if it holds for the box,
    /// also from the part of the peaks that arrays and buffers allow. Zero without a price; the evaluation reports
    /// that.
    ///
    /// `known` holds bounds of plan groups by model, or is empty. It receives new bounds.
    pub(super) fn coarse_lower_bound(&self, seen: &ChipOrBox, depth: BoundDepth, known: &mut Vec<GroupBounds>) -> f64 {
        let Some(factor) = self.objective_factor(&seen.figures) else { return 0.0 };
        known.resize(self.workloads.len(), GroupBounds::default());
        self.value_of_measures(
            factor,
            &self.least_measures(seen, &mut self.bound_kernels(seen), depth.min(seen.depth), known),
        )
    }

    /// Lower bound on the values of a chip or box, at the greatest depth that holds. It is only as tight as needed to
    /// decide whether the values are below `cutoff`. `known` is as for [`Self::coarse_lower_bound`].
    pub(super) fn fine_lower_bound(&self, seen: &ChipOrBox, cutoff: f64, known: &mut Vec<GroupBounds>) -> f64 {
        let Some(factor) = self.objective_factor(&seen.figures) else { return 0.0 };
        known.resize(self.workloads.len(), GroupBounds::default());
        let mut kernels = self.bound_kernels(seen);
        let mut measures = self.least_measures(seen, &mut kernels, BoundDepth::Peaks, known);
        // Cheap bounds of all models come first; they may suffice.
        for depth in [BoundDepth::Buffered, BoundDepth::Mapped].into_iter().filter(|depth| *depth <= seen.depth) {
            for model in 0..measures.len() {
                if self.value_of_measures(factor, &measures) >= cutoff {
                    return self.value_of_measures(factor, &measures);
                }
                let wanted = self.measure_at_cutoff(factor, &measures, model, cutoff);
                let fine = self.least_measure(model, seen, &mut kernels[model], depth, wanted, &mut known[model]);
                measures[model] = measures[model].max(fine);
            }
        }
        self.value_of_measures(factor, &measures)
    }

    /// Least costs along the axes. The cost in energy depends on the plan, so it is a lower bound.
    pub(super) fn least_costs(&self, seen: &ChipOrBox) -> FrontCosts {
        self.aim.axes.costs_along(|axis| match axis.cost_along(&seen.figures) {
            Some(cost) => cost,
            None if axis == FrontAxis::Energy => self.least_energy_cost(seen),
            None => 0.0,
        })
    }

    /// Lower bound on the cost along the energy axis.
    fn least_energy_cost(&self, seen: &ChipOrBox) -> f64 {
        let mut kernels = self.bound_kernels(seen);
        let of = |model: usize| {
            let joules = |fabric: &usize| {
                let prepared: &PreparedJob<'_> = &self.workloads[model].prepared[*fabric];
                let least = kernels[model].as_mut().map_or(Seconds::ZERO, |kernels| prepared.coarse_bound(kernels));
                self.least_step_energy(prepared, seen.smallest_chip()).measure_at(least.0)
            };
            seen.fabrics.iter().map(joules).fold(f64::INFINITY, f64::min)
        };
        self.cost_of_energy(&(0..self.workloads.len()).map(of).collect::<Vec<_>>())
    }

    /// The cost along the energy axis: joules of a step, or for several models their mean relative to the reference.
    fn cost_of_energy(&self, joules: &[f64]) -> f64 {
        match joules {
            [alone] => *alone,
            several => {
                let of = |w: &Workload<'_>| Term { share: w.share, reference: w.reference.energy.0 };
                self.aim.over.combine_measures(&self.workloads.iter().map(of).collect::<Vec<_>>(), several)
            }
        }
    }

    /// The measure of a model's step if the objective counts energy: joules, or USD.
    fn measure_with_energy(&self, prepared: &PreparedJob<'_>, figures: &ChipFigures, seconds: f64, joules: f64) -> f64 {
        if !self.aim.pays_energy() {
            return joules;
        }
        let cost = figures.paid_usd().unwrap_or_default();
        self.aim.cost_of_step(cost, (seconds, joules), f64::from(prepared.device_count()))
    }

    /// Evaluates a design under its fastest plans, unless its objective is proven to be at least `cutoff`.
    pub(super) fn evaluate_design(&self, id: DesignId, cutoff: f64) -> Verdict<Vec<DesignEvaluation>> {
        let refused = |why: Rejection| Verdict::Infeasible(vec![infeasible_evaluation(why)]);
        let chip = match self.space.chip_of_design(id) {
            Ok(chip) => chip,
            Err(why) => return refused(Rejection::Unusable(why)),
        };
        let figures = self.space.figures_of_design(id, &chip);
        let seen = self.see_chip(chip, figures, self.space.fabric_of_design(id));
        let Some(factor) = self.objective_factor(&seen.figures) else { return refused(Rejection::NoPrice) };
        let mut measures = vec![0.0; self.workloads.len()];
        if measures.len() > 1 {
            let mut known = vec![GroupBounds::default(); measures.len()];
            measures = self.least_measures(&seen, &mut self.bound_kernels(&seen), BoundDepth::Peaks, &mut known);
        }
        let (mut found, mut joules) = (Vec::new(), Vec::new());
        for model in 0..self.workloads.len() {
            let prepared = self.prepared_job(model, id);
            let line = self.measure_line(model, prepared, &seen);
            let allowed = self.longest_step(model);
            let reached = line.seconds_reaching(self.measure_at_cutoff(factor, &measures, model, cutoff));
            match evaluate_chip(prepared, &seen.fast, reached.min(allowed)) {
                Verdict::Feasible { value: seconds, evaluation, .. } => {
                    let plan = evaluation.outcome.as_deref().ok();
                    let energy = plan.map(|plan| plan.energy.0);
                    let counted = seconds * plan.map_or(1.0, |plan| self.step_factor_of(prepared, &seen.fast, plan));
                    if let Some(most) = self.aim.max_step.filter(|most| counted > most.0) {
                        found.push(infeasible_evaluation(self.step_limit_exclusion(counted, most)));
                        return Verdict::Infeasible(found);
                    }
                    measures[model] = match energy.filter(|_| self.aim.counts_energy()) {
                        Some(joules) => self.measure_with_energy(prepared, &seen.figures, seconds, joules),
                        None => counted,
                    };
                    joules.extend(energy);
                    found.push(evaluation);
                }
                Verdict::Beaten(seconds) if reached <= allowed => {
                    measures[model] = line.measure_at(seconds);
                    return Verdict::Beaten(self.value_of_measures(factor, &measures));
                }
                Verdict::Beaten(seconds) => {
                    let most = self.aim.max_step.unwrap_or_default();
                    found.push(infeasible_evaluation(
                        self.step_limit_exclusion(seconds * self.least_step_factor(model), most),
                    ));
                    return Verdict::Infeasible(found);
                }
                Verdict::Infeasible(evaluation) => {
                    found.push(evaluation);
                    return Verdict::Infeasible(found);
                }
            }
        }
        let exactly = |axis: FrontAxis| axis.cost_along(&seen.figures).unwrap_or_else(|| self.cost_of_energy(&joules));
        let costs = self.aim.axes.contains(FrontAxis::Energy).then(|| self.aim.axes.costs_along(exactly));
        Verdict::Feasible { value: self.value_of_measures(factor, &measures), costs, evaluation: found }
    }
}
