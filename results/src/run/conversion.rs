//! Converts the results of a search to the forms that are stored and printed: rows of the store, entries of
//! comparisons, and the certificate.

use crate::answer::comparison::ComparisonEntry;
use crate::answer::decision::{DecisionRecord, FinalistRecord, SettledRecord, TornadoRow};
use crate::answer::plan::{one_line, plan_row, plan_row_without_evidence, schedule_name};
use crate::run::record::{Certificate, Proof};
use crate::store::design::{DesignDimensions, DesignRow, DesignStatus};
use crate::text::format_seconds_between;
use crate::text::{format_bytes, format_rate, format_significant};
use search::design::{
    Aim, DecisionAnswer, DesignAnswer, DesignEvaluation, DesignOutcome, Finalist, InputWorth, ReferenceStep, Rejection,
};
use search::objective::{FrontAxis, Objective, ObjectiveKind, Term, ValueScale};
use search::planner::{Job, RankedPlan};
use search::runner;
use search::space::{ChipFigures, DesignId, Space};
use sim::hardware::constants::constant_definitions;
use sim::hardware::{Accelerator, FieldValue};
use sim::status::SolveStatus;
use sim::units::Seconds;
use step::explain::explain_plan;
use step::{ChipTimes, StepError};

/// Returns the dimensions of a chip, in the units of the store.
#[must_use]
pub fn design_dimensions(chip: &Accelerator, figures: &ChipFigures) -> DesignDimensions {
    DesignDimensions {
        tensor_cores: i64::from(chip.tensor.cores),
        vector_cores: i64::from(chip.vector.cores),
        arrays_per_core: i64::from(chip.tensor.arrays_per_core),
        vector_lanes: i64::from(chip.vector.lanes),
        array_width: i64::from(chip.tensor.rows),
        array_depth: i64::from(chip.tensor.columns),
        global_buffer_mib: chip.global_buffer().map_or(0.0, |level| level.capacity.as_f64() / 1_048_576.0),
        hbm_gib: chip.memory_capacity().gib(),
        area_mm2: figures.area.0,
    }
}

/// Returns the clock in MHz that the power limit leaves a chip; `None` if the chip runs at its design clock.
pub(crate) fn lowered_clock_mhz(chip: &Accelerator) -> Option<f64> {
    chip.lowered.map(|_| chip.clock.0 / 1e6)
}

/// True if the objective depends only on the time of a step.
fn is_step_speed(objective: Objective) -> bool {
    matches!(objective.kind(), ObjectiveKind::Rate | ObjectiveKind::Time)
}

/// One model of a search.
#[derive(Debug, Clone, Copy)]
pub struct SearchedModel<'a> {
    /// The name, or the path of the file.
    pub name: &'a str,
    /// The job on an unspecified chip, once per fabric, in the order of [`Space::fabric_settings`].
    pub jobs: &'a [Job<'a>],
    /// The model's weight in the mean over models.
    pub share: f64,
    /// The reference step, if there are several models.
    pub reference: ReferenceStep,
}

/// The models of a search with their jobs, and the space.
#[derive(Debug, Clone, Copy)]
pub struct SearchedModelSet<'a> {
    /// The models; at least one.
    pub models: &'a [SearchedModel<'a>],
    /// The space of chips and fabrics.
    pub space: &'a Space,
    /// The objective, the axes of the front and the mean over models.
    pub aim: Aim,
    /// True if designs are ranked by the bad ends of the steps' intervals.
    pub robust: bool,
}

impl<'a> SearchedModelSet<'a> {
    /// Returns the job of a model on the chip and the fabric of a design.
    #[must_use]
    pub fn job_on_design<'b>(&'b self, model: usize, id: DesignId, chip: &'b Accelerator) -> Job<'b>
    where
        'a: 'b,
    {
        Job { chip, ..self.models[model].jobs[self.space.fabric_of_design(id)] }
    }

    /// Returns the scale for displaying values of the objective: per cluster for one model, else relative to the
    /// reference.
    #[must_use]
    pub fn objective_scale(&self) -> ValueScale {
        match self.models {
            [SearchedModel { jobs: [job, ..], .. }] => ValueScale::Alone {
                devices: f64::from(job.devices),
                tokens: job.global_batch as f64 * job.sequence_length as f64,
            },
            _ => ValueScale::Reference,
        }
    }

    /// Returns a model's rate relative to its reference.
    #[must_use]
    pub fn rate_over_reference(&self, model: usize, ranked: &RankedPlan) -> f64 {
        self.models[model].reference.time.0 / ranked.time.total.0
    }

    /// True if the search has several models.
    fn is_over_models(&self) -> bool {
        self.models.len() > 1
    }

    /// Fills in the row of a design that runs several models.
    fn fill_several(
        &self,
        row: &mut DesignRow,
        d: &DesignOutcome,
        chip: &Accelerator,
        evaluations: &[DesignEvaluation],
    ) {
        let ranked: Vec<&RankedPlan> = evaluations.iter().filter_map(|of| of.outcome.as_deref().ok()).collect();
        row.outcome = DesignStatus::Evaluated;
        self.fill_means(row, &ranked);
        let words = ranked.iter().enumerate().map(|(model, ranked)| {
            let plan = plan_row_without_evidence(&self.job_on_design(model, d.id, chip), ranked);
            let times = format_significant(self.rate_over_reference(model, ranked), 4);
            format!(
                "{} {} tokens/s ({times} x): {}",
                self.models[model].name,
                format_rate(plan.tokens_per_s),
                one_line(&plan.plan)
            )
        });
        row.models = Some(words.collect::<Vec<_>>().join("; "));
        row.peak_memory_gib = ranked
            .iter()
            .enumerate()
            .map(|(model, ranked)| plan_row_without_evidence(&self.job_on_design(model, d.id, chip), ranked).peak_gib)
            .reduce(f64::max);
    }

    /// Fills in the means over several models, relative to the reference.
    fn fill_means(&self, row: &mut DesignRow, ranked: &[&RankedPlan]) {
        let value = |reference: &dyn Fn(&ReferenceStep) -> f64,
                     measure: &dyn Fn(&RankedPlan, &SearchedModel<'_>) -> f64| {
            let terms: Vec<Term> =
                self.models.iter().map(|m| Term { share: m.share, reference: reference(&m.reference) }).collect();
            let measures: Vec<f64> =
                ranked.iter().zip(self.models).map(|(ranked, model)| measure(ranked, model)).collect();
            self.aim.over.combine_measures(&terms, &measures)
        };
        let time = |reference: &ReferenceStep| reference.time.0;
        row.times_reference = Some(1.0 / value(&time, &|ranked, _| ranked.time.total.0));
        row.energy_times_reference = Some(value(&|reference| reference.energy.0, &|ranked, _| ranked.energy.0));
        let paid_usd = self.aim.paid_usd(row.cost_usd, row.system_usd);
        row.times_reference_per_usd = paid_usd.filter(|_| self.aim.pays_energy()).map(|cost| {
            let devices = |model: &SearchedModel<'_>| model.jobs.first().map_or(1.0, |job| f64::from(job.devices));
            let paid = |ranked: &RankedPlan, model: &SearchedModel<'_>| {
                self.aim.cost_of_step(cost, (ranked.time.total.0, ranked.energy.0), devices(model))
            };
            1.0 / value(&time, &paid)
        });
    }

    /// Returns the rows of all designs of a search, in their order.
    ///
    /// # Errors
    /// A design whose values make no chip. The enumeration has already refused such designs.
    pub fn design_rows(&self, answer: &DesignAnswer) -> Result<Vec<DesignRow>, String> {
        let number = |at: usize| answer.designs.get(at).map(|design| self.space.combination_of_design(design.id));
        answer.designs.iter().map(|design| self.design_row(design, &number)).collect()
    }

    /// Returns the row of a design. `number` maps an index in `answer.designs` to the number of that design's
    /// combination.
    fn design_row(&self, d: &DesignOutcome, number: &dyn Fn(usize) -> Option<u64>) -> Result<DesignRow, String> {
        let chip = self.space.chip_of_design(d.id)?;
        let figures = self.space.figures_of_design(d.id, &chip);
        let job = self.job_on_design(0, d.id, &chip);
        // A bound on the bad end of the interval does not bound the predicted step.
        let throughput = is_step_speed(self.aim.objective) && !self.is_over_models() && !self.robust;
        let sequences_per_s =
            |bound: f64| (throughput && bound > 0.0).then(|| job.global_batch as f64 / bound).filter(|r| r.is_finite());
        let index = self.space.combination_of_design(d.id) as i64;
        let mut row = DesignRow::new_undecided(index, design_dimensions(&chip, &figures));
        row.node = chip.process_node().map(|node| node.to_string());
        let words = |varied: Vec<(String, FieldValue)>| {
            varied.into_iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
        };
        row.dimensions = self.space.varied_dimensions(d.id).map(words);
        row.peak_power_w = Some(figures.peak_power.0);
        row.cost_usd = figures.cost_usd;
        row.system_usd = job.fabric.price_system(&chip.constants).ok().map(|price| price.total_usd());
        row.lowered_clock_mhz = lowered_clock_mhz(&chip);
        match &d.outcome {
            runner::CandidateOutcome::Evaluated { evaluation, .. } if self.is_over_models() => {
                self.fill_several(&mut row, d, &chip, evaluation)
            }
            runner::CandidateOutcome::Evaluated { evaluation, .. } => {
                evaluation.iter().for_each(|of| fill_plan(&mut row, &job, of));
                let ranked = evaluation.iter().find_map(|of| of.outcome.as_deref().ok());
                row.bad_end_step_s =
                    ranked.filter(|_| self.robust).map(|ranked| search::bad_end::step_at_bad_end(&job, ranked));
            }
            runner::CandidateOutcome::Infeasible { evaluation } => {
                row.outcome = DesignStatus::Infeasible;
                let why = evaluation.last().and_then(|of| of.outcome.as_ref().err()).map(ToString::to_string);
                // With several models, the models before the one that cannot run have been evaluated.
                let which = self.models.get(evaluation.len().saturating_sub(1)).filter(|_| self.is_over_models());
                row.reason = why.map(|why| which.map_or_else(|| why.clone(), |model| format!("{}: {why}", model.name)));
            }
            runner::CandidateOutcome::Pruned { bound, by, .. } => {
                row.outcome = DesignStatus::Pruned;
                row.bound_sequences_per_s = sequences_per_s(*bound);
                row.reason = Some(self.explain_pruning(number(*by), throughput));
            }
            runner::CandidateOutcome::Open { bound } => row.bound_sequences_per_s = sequences_per_s(*bound),
            runner::CandidateOutcome::Excluded(runner::Exclusion::NoPlan) => {
                row.outcome = DesignStatus::Infeasible;
                row.reason = Some("no plan fits: another design with as much memory has none".to_owned());
            }
            // Not reached: combinations outside the limits are not among the designs of an answer.
            runner::CandidateOutcome::Excluded(_) => row.outcome = DesignStatus::OverArea,
        }
        Ok(row)
    }

    /// Explains why a design was pruned. `by` is the combination that prunes it, unless that is in another part of the
    /// search. `throughput` is true if bounds are throughputs.
    fn explain_pruning(&self, by: Option<u64>, throughput: bool) -> String {
        let axes: Vec<FrontAxis> = self.aim.axes.named_axes().collect();
        let by = by.map_or_else(|| "of another part".to_owned(), |number| number.to_string());
        match (&axes[..], throughput) {
            ([FrontAxis::Area], true) => format!("design {by} is no larger and no slower than this one's bound"),
            ([], _) => format!("design {by} is no worse than this one's bound"),
            ([axis], _) => format!("design {by} has no more {axis} and is no worse than this one's bound"),
            ([one, other, ..], _) => {
                format!("design {by} has no more {one}, no more {other} and is no worse than this one's bound")
            }
        }
    }
}

/// Fills in the figures of a design's fastest plan. Without a plan, the row stays unchanged.
pub fn fill_plan(row: &mut DesignRow, job: &Job<'_>, evaluation: &DesignEvaluation) {
    let Ok(ranked) = &evaluation.outcome else { return };
    let (plan, layout) = (plan_row_without_evidence(job, ranked), &ranked.plan.layout);
    let sequences = |step: f64| job.global_batch as f64 / step;
    row.outcome = DesignStatus::Evaluated;
    row.throughput_sequences_per_s = Some(sequences(plan.step_s));
    row.throughput_tokens_per_s = Some(plan.tokens_per_s);
    row.step_time_s = Some(plan.step_s);
    row.mfu = Some(plan.mfu);
    row.energy_per_step_j = Some(plan.energy_j);
    row.mean_power_w = Some(plan.energy_j / plan.step_s / f64::from(job.devices));
    row.energy_per_token_j = Some(plan.energy_j / (plan.step_s * plan.tokens_per_s));
    row.stages = Some(layout.pipeline.into());
    row.tensor_parallel = Some(layout.tensor.into());
    row.data_parallel = Some(layout.data.into());
    row.context_parallel = Some(layout.context.into());
    row.expert_parallel = Some(layout.expert.into());
    row.virtual_stages = Some(layout.virtual_stages.into());
    row.zero = Some(layout.zero as i64);
    row.micro_batch_sequences = i64::try_from(ranked.plan.batch.micro_batch).ok();
    row.devices_used = Some(job.devices.into());
    row.pipeline_schedule = Some(schedule_name(&ranked.plan).into());
    row.memory_policy = Some(format!("recompute {}", ranked.plan.activations));
    row.peak_memory_gib = Some(plan.peak_gib);
    // The status bounds step times in seconds.
    let between = |low, high| format_seconds_between(Seconds(low), Seconds(high));
    row.plan_status = Some(evaluation.status.describe_with(between));
    // For an evaluated design, the bound is its own throughput. An unproven schedule leaves a gap above it.
    row.bound_sequences_per_s = match evaluation.status {
        SolveStatus::Gap { lower_bound, .. } => Some(sequences(lower_bound)),
        _ => row.throughput_sequences_per_s,
    };
}

/// Returns the name of the largest part of a plan's time.
///
/// # Errors
/// A plan that the model, the fabric or the schedule does not allow.
pub fn bound_of_plan(job: &Job<'_>, ranked: &RankedPlan) -> Result<Option<String>, StepError> {
    let mut chip = ChipTimes::new(job.chip, job.stack)?;
    let why = explain_plan(&mut chip, job.model, job.fabric, &ranked.plan)?;
    Ok(why.parts.first().map(|part| crate::answer::plan::part_name(&part.name).to_owned()))
}

/// Returns the fastest plan of a job as an entry of a comparison. Without a plan, the note of the entry has the reason.
///
/// # Errors
/// As [`bound_of_plan`].
pub fn best_plan_entry(
    label: &str,
    job: &Job<'_>,
    plan: Result<&RankedPlan, &Rejection>,
) -> Result<ComparisonEntry, StepError> {
    let mut entry = entry_of_chip(
        ComparisonEntry { chip: describe_chip(job.chip), ..ComparisonEntry::without_design(label) },
        job.chip,
    );
    match plan {
        Ok(ranked) => {
            let plan = plan_row(job, ranked);
            entry = entry.with_evidence(&job.stack.name, plan.evidence.as_ref());
            entry.plan = Some(one_line(&ranked.plan));
            entry.throughput_sequences_per_s = Some(job.global_batch as f64 / plan.step_s);
            entry.throughput_tokens_per_s = Some(plan.tokens_per_s);
            entry.step_time_s = Some(plan.step_s);
            entry.mfu = Some(plan.mfu);
            entry.energy_per_step_j = Some(plan.energy_j);
            entry.peak_memory_gib = Some(plan.peak_gib);
            entry.bound_by = bound_of_plan(job, ranked)?;
        }
        Err(why) => entry.note = Some(why.to_string()),
    }
    Ok(entry)
}

/// Adds the chip's process node, area, cost and power to an entry of a comparison.
pub(crate) fn entry_of_chip(mut entry: ComparisonEntry, chip: &Accelerator) -> ComparisonEntry {
    entry.node = chip.process_node().map(|node| node.to_string());
    // A chip whose die is not disclosed has no modelled area and no cost.
    if let Ok(figures) = ChipFigures::of_chip(chip) {
        entry.area_mm2 = Some(figures.area.0);
        entry.cost_usd = figures.cost_usd;
    }
    // A published die area replaces the modelled one.
    entry.area_mm2 = chip.published.die_area.map(|area| area.0).or(entry.area_mm2);
    // A built chip draws at most the power that its maker states.
    let modelled = sim::hardware::sustained_power(chip).peak_power().0;
    entry.peak_power_w = Some(chip.published.tdp.map_or(modelled, |tdp| modelled.min(tdp.0)));
    entry
}

/// Describes a chip in one line.
pub(crate) fn describe_chip(c: &Accelerator) -> String {
    let buffer = c.global_buffer().map_or_else(|| "no global buffer".into(), |level| format_bytes(level.capacity));
    let arrays = u64::from(c.tensor.cores) * u64::from(c.tensor.arrays_per_core);
    let clock = c
        .lowered
        .map_or_else(String::new, |lowered| format!(", {:.0} of {:.0} MHz", c.clock.0 / 1e6, lowered.from.0 / 1e6));
    format!(
        "{}: {arrays} x {}x{} TC, {} x {} VC, {buffer}, {} HBM{clock}",
        c.name,
        c.tensor.rows,
        c.tensor.columns,
        c.vector.cores,
        c.vector.lanes,
        format_bytes(c.memory_capacity())
    )
}

/// Makes the record of how certain the choice of a search is.
#[must_use]
pub fn decision_record(space: &Space, answer: &DecisionAnswer) -> DecisionRecord {
    let own = |id: DesignId| space.varied_dimensions(id).unwrap_or_default();
    let found = answer.finalists.first().map(|found| own(found.id)).unwrap_or_default();
    let differences = |id: DesignId| {
        let pairs = own(id).into_iter().zip(&found).filter(|(own, found)| own != *found);
        pairs.map(|((key, value), _)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
    };
    let finalist = |(at, of): (usize, &Finalist)| FinalistRecord {
        dimensions: space.describe_design(of.id),
        differs_in: differences(of.id),
        is_found: at == 0,
        probability_best: of.probability_best,
        regret_expected: of.regret_expected,
        regret_95: of.regret_95,
        over_limits: of.over_limits,
        lost: of.lost,
    };
    let finalists: Vec<FinalistRecord> = answer.finalists.iter().enumerate().map(finalist).collect();
    let settled = answer.settled.iter().map(|of| SettledRecord {
        dimension: of.key.clone(),
        value: of.value.clone(),
        probability: of.probability,
        other: of.other.as_ref().map(|(other, _)| other.clone()),
        other_probability: of.other.as_ref().map(|(_, part)| *part),
    });
    let row = |of: &InputWorth| {
        let definition = constant_definitions().iter().find(|definition| definition.key == of.key)?;
        Some(TornadoRow {
            input: of.key.clone(),
            unit: definition.unit.clone(),
            low: definition.low,
            nominal: definition.nominal,
            high: definition.high,
            worth: of.worth,
            lead_low: of.lead_low,
            lead_high: of.lead_high,
        })
    };
    let (found, robust) = (&answer.finalists[0], finalists[answer.robust].clone());
    DecisionRecord {
        draws: answer.draws.places.len() as u64,
        left_out: answer.left_out as u64,
        constants: answer.draws.keys.len() as u64,
        considered: answer.considered as u64,
        missed: answer.missed,
        probability_best: found.probability_best,
        regret_expected: found.regret_expected,
        regret_95: found.regret_95,
        robust,
        settled: settled.collect(),
        tornado: answer.inputs.iter().filter_map(row).collect(),
        finalists,
    }
}

/// Numbers of a search's candidates by outcome. A box counts with all its combinations.
#[derive(Default)]
struct CandidateCounts {
    all: u64,
    evaluated: u64,
    infeasible: u64,
    pruned: u64,
    /// Those of the pruned that were in boxes.
    pruned_in_boxes: u64,
    open: u64,
}

impl CandidateCounts {
    fn of_answer(answer: &DesignAnswer) -> Self {
        let mut counts = Self::default();
        answer.designs.iter().for_each(|design| counts.add_outcome(&design.outcome, 1));
        for of in &answer.boxes {
            let size = of.region.combination_count();
            counts.add_outcome(&of.outcome, size);
            if matches!(of.outcome, runner::CandidateOutcome::Pruned { .. }) {
                counts.pruned_in_boxes += size;
            }
        }
        counts
    }

    fn add_outcome<E>(&mut self, outcome: &runner::CandidateOutcome<E>, size: u64) {
        self.all += size;
        match outcome {
            runner::CandidateOutcome::Evaluated { .. } => self.evaluated += size,
            runner::CandidateOutcome::Infeasible { .. } => self.infeasible += size,
            runner::CandidateOutcome::Pruned { .. } => self.pruned += size,
            runner::CandidateOutcome::Open { .. } => self.open += size,
            runner::CandidateOutcome::Excluded(runner::Exclusion::NoPlan) => self.infeasible += size,
            runner::CandidateOutcome::Excluded(_) => {}
        }
    }
}

/// Makes the certificate of a search.
#[must_use]
pub fn certificate_of(searched: &SearchedModelSet<'_>, answer: &DesignAnswer) -> Certificate {
    let (SearchedModelSet { models, space, aim, .. }, outside) = (searched, &answer.outside);
    let counts = CandidateCounts::of_answer(answer);
    let each = space.hbm.len().max(1);
    let value = answer.best.map(|best| answer.value_of_design(best)).filter(|value| value.is_finite());
    let (proof, bound, why) = match &answer.status {
        SolveStatus::Optimal => (Proof::Proven, value, None),
        SolveStatus::Gap { lower_bound, .. } => (Proof::Gap, Some(*lower_bound), None),
        SolveStatus::Infeasible { why } => (Proof::Infeasible, None, Some(why.clone())),
    };
    let sequences = models.first().and_then(|model| model.jobs.first()).map_or(0.0, |job| job.global_batch as f64);
    let throughput = is_step_speed(aim.objective) && models.len() == 1;
    let rate = |step: f64| Some(sequences / step).filter(|r| throughput && r.is_finite());
    let shown = |value: f64| {
        Some(aim.objective.display_value(value, searched.objective_scale())).filter(|(value, _)| value.is_finite())
    };
    Certificate {
        proof,
        designs: counts.all + (outside.total() * each) as u64,
        evaluated: counts.evaluated,
        pruned: counts.pruned,
        pruned_in_boxes: counts.pruned_in_boxes,
        infeasible: counts.infeasible,
        over_area: (outside.area * each) as u64,
        over_power: (outside.power * each) as u64,
        over_cost: (outside.cost * each) as u64,
        outside_hbm: (outside.hbm * each) as u64,
        unbuildable: (outside.unbuildable_count() * each) as u64,
        unbuildable_by_rule: outside.unbuildable.iter().map(|(rule, count)| (*rule, (count * each) as u64)).collect(),
        no_chip: (outside.refused * each) as u64,
        open: counts.open,
        robust: searched.robust,
        objective: aim.objective.to_string(),
        best: value.and_then(shown).map(|(value, _)| value),
        bound: bound.and_then(shown).map(|(value, _)| value),
        unit: aim.objective.display_value(1.0, searched.objective_scale()).1.to_owned(),
        best_sequences_per_s: value.and_then(rate),
        bound_sequences_per_s: bound.and_then(rate),
        // The objective is minimised, so that the bound is below the best value. The bound is zero if the search
        // stopped before it had one.
        gap: value
            .zip(bound)
            .map(|(value, bound)| if proof == Proof::Proven { 0.0 } else { value / bound - 1.0 })
            .filter(|gap| gap.is_finite()),
        why,
    }
}
