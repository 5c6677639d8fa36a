//! Compares the best design with baselines: built chips on its fabric and as they are sold, and PHAZE's reference under
//! an expert's placement.

use super::question::{SearchQuestion, read_chip_under_constants};
use crate::failure::{Failure, OrInput, OrOther};
use crate::verb::plan::requested_spaces;
use rayon::prelude::*;
use results::answer::comparison::{BaselineChip, BaselineStanding, ChipEfficiency, Comparison, ComparisonEntry};
use results::answer::plan::PlannedAnswer;
use results::compare::baseline::{ExpertDegrees, UsedPlacement, expert_placement};
use results::report::format_chance;
use results::run::conversion;
use search::design::{Rejection, best_plan};
use search::planner::{Job, NO_MARGIN, PlanSpace, PlanWatch, PreparedJob, RankedPlan, Splits, search_documented};
use search::space::{ChipLimits, Chips, EfficiencyChoice};
use sim::hardware::{Accelerator, Calibration};
use sim::network::Fabric;
use step::SoftwareStack;
use workloads::footprint::Precision;

/// Built chips that are compared with every answer. Chips whose dies are undisclosed have no area.
const BUILT: [&str; 7] = ["tpu_v4", "tpu_v5p", "tpu_v6e", "tpu_v7", "a100_80gb_sxm", "h100_80gb_sxm", "b200"];

/// The design that is compared: its chip and its network.
#[derive(Debug, Clone, Copy)]
pub struct FoundDesign<'a> {
    pub chip: &'a Accelerator,
    pub fabric: &'a Fabric,
}

/// A chip under a plan space on a fabric.
pub(super) struct Baseline<'a> {
    pub label: String,
    pub chip: &'a Accelerator,
    pub efficiency: ChipEfficiency,
    /// `None` for the found design.
    pub standing: Option<BaselineStanding>,
}

/// Returns the entries of a search beside its baselines. Every built chip appears on the fabric of the found design,
/// under the study's stack and plans, both fitted and ideal; and as it is sold, on its own fabric and under its own
/// stack.
pub fn compare_with_baselines(
    question: &SearchQuestion,
    design: FoundDesign<'_>,
    found: Vec<ComparisonEntry>,
) -> Result<Comparison, Failure> {
    let own = question.study.space.efficiency();
    let devices = f64::from(question.study.cluster.devices);
    let of_found = |entry: ComparisonEntry| entry.with_objective(&question.aim, devices);
    let mut entries: Vec<ComparisonEntry> = found.into_iter().map(of_found).collect();
    for entry in &mut entries {
        entry.efficiency = Some(own.into());
    }
    let job = question.reference_job(design.fabric);
    let prepared = super::prepare_job(question, &job)?;
    let other_form = other_form_of(design.chip, own);
    let mut beside = vec![Baseline {
        label: format!("best found, {}", other_form.1),
        chip: &other_form.0,
        efficiency: other_form.1,
        standing: None,
    }];
    let chips = built_chips(question)?;
    // The question's limit on power does not apply to built chips: it is for chips that are still to be built.
    let ideal: Vec<Accelerator> = chips.iter().map(|chip| ChipLimits::default().ideal_form(chip)).collect();
    for (chip, ideal) in chips.iter().zip(&ideal) {
        let (label, standing) = (chip.name.clone(), Some(BaselineStanding::SameFabric));
        beside.push(Baseline { label, chip, efficiency: own_efficiency(chip), standing });
        if is_calibrated(chip) {
            let (label, standing) = (ideal_label(ideal), Some(BaselineStanding::Ideal));
            beside.push(Baseline { label, chip: ideal, efficiency: ChipEfficiency::Ideal, standing });
        }
    }
    // In parallel with one entry per task, because each entry is a search for a plan.
    let on_same_fabric = |of: &Baseline<'_>| planned_entry(question, of, &prepared, &job);
    entries.extend(beside.par_iter().with_max_len(1).map(on_same_fabric).collect::<Result<Vec<_>, _>>()?);
    entries.extend(expert_entry(question)?);
    let as_sold = |chip: &Accelerator| as_sold_entry(question, chip);
    entries.extend(chips.par_iter().with_max_len(1).map(as_sold).collect::<Result<Vec<_>, _>>()?);
    compare_like_with_like(&mut entries);
    let comparison = Comparison { objective: question.aim.objective, differences: Vec::new(), entries, gain: None };
    Ok(comparison.with_lead_intervals())
}

/// Compares ideal chips with the found design in its ideal form, and all others with its other form.
fn compare_like_with_like(entries: &mut [ComparisonEntry]) {
    let is_ideal = |entry: &ComparisonEntry| entry.efficiency == Some(ChipEfficiency::Ideal);
    let base = |ideal: bool| entries.iter().position(|entry| is_ideal(entry) == ideal);
    let (ideal, other) = (base(true), base(false));
    for entry in entries {
        let base = if is_ideal(entry) { ideal } else { other };
        entry.compared_with = base.filter(|base| *base > 0);
    }
}

/// Returns the compared chips under the study's constants, each once, the reference first.
fn built_chips(question: &SearchQuestion) -> Result<Vec<Accelerator>, Failure> {
    let read = |name: &str| read_chip_under_constants(name, &question.study.space, &question.asked.files);
    let mut chips = vec![question.reference.clone()];
    if let Chips::Grid(spec) = &question.study.space.chips {
        let is_built_in = Accelerator::built_in(&spec.base_chip).is_ok();
        chips.extend(is_built_in.then(|| read(&spec.base_chip)).transpose()?);
    }
    for built in BUILT {
        chips.push(read(built)?);
    }
    let mut known = std::collections::BTreeSet::new();
    chips.retain(|chip| known.insert(chip.name.clone()));
    Ok(chips)
}

/// Returns the found chip in its other form: with its family's efficiency if the search has ideal chips, otherwise
/// ideal.
fn other_form_of(chip: &Accelerator, own: EfficiencyChoice) -> (Accelerator, ChipEfficiency) {
    match own {
        EfficiencyChoice::Ideal => (chip.clone().with_family_efficiency(), ChipEfficiency::Family),
        EfficiencyChoice::Family | EfficiencyChoice::Base => {
            (Accelerator { calibration: Calibration::default(), ..chip.clone() }, ChipEfficiency::Ideal)
        }
    }
}

/// Returns the entry of a chip under its fastest plan of a prepared job.
pub(super) fn planned_entry(
    question: &SearchQuestion,
    of: &Baseline<'_>,
    prepared: &PreparedJob<'_>,
    job: &Job<'_>,
) -> Result<ComparisonEntry, Failure> {
    entry_of_plan(question, of, &Job { chip: of.chip, ..*job }, best_plan(prepared, of.chip).outcome.as_deref())
}

/// Returns the entry of a chip under the plan of an evaluation.
fn entry_of_plan(
    question: &SearchQuestion,
    of: &Baseline<'_>,
    job: &Job<'_>,
    plan: Result<&RankedPlan, &Rejection>,
) -> Result<ComparisonEntry, Failure> {
    let mut entry = conversion::best_plan_entry(&of.label, job, plan).or_other()?;
    (entry.efficiency, entry.stack) = (Some(of.efficiency), Some(job.stack.name.clone()));
    entry.baseline = of.standing.map(|standing| BaselineChip { chip: of.chip.name.clone(), standing });
    if let Some(watts) = of.chip.published.tdp.filter(|_| of.standing.is_some()) {
        entry = entry.within_makers_limit(watts.0 * f64::from(job.devices));
    }
    Ok(entry.on_fabric(job.fabric, &of.chip.constants).with_objective(&question.aim, f64::from(job.devices)))
}

/// Returns the fabric, cut to the question's devices, and the stack that a chip is sold with; or the reason why it has
/// none.
pub(super) fn sold_with(question: &SearchQuestion, chip: &Accelerator) -> Result<(Fabric, SoftwareStack), String> {
    let lacks = |what: &str| format!("no {what} is usual for {} (usual_{what} in its file)", chip.name);
    let fabric = chip.origin.usual_fabric.as_deref().ok_or_else(|| lacks("fabric"))?;
    let stack = chip.origin.usual_stack.as_deref().ok_or_else(|| lacks("stack"))?;
    let files = &question.asked.files;
    let fabric = interop::load_fabric_for_name(fabric, chip.known_name(), files).map_err(|why| why.to_string())?;
    let fabric = fabric.for_devices(question.study.cluster.devices).map_err(|why| why.to_string())?;
    Ok((fabric, SoftwareStack::load(stack).map_err(|why| why.to_string())?))
}

/// Returns the entry of a built chip as it is sold: on its own fabric, under its own stack and the plan that
/// `coplace plan` finds there, with its fitted scalars.
fn as_sold_entry(question: &SearchQuestion, chip: &Accelerator) -> Result<ComparisonEntry, Failure> {
    let label = format!("{}, as sold", chip.name);
    let efficiency = own_efficiency(chip);
    let without = |why: String| ComparisonEntry { note: Some(why), ..ComparisonEntry::without_design(&label) };
    let (fabric, stack) = match sold_with(question, chip) {
        Ok(sold) => sold,
        Err(why) => return Ok(without(why)),
    };
    let precision = stack.precision_of_run(Precision::default());
    let job = Job { chip, stack: &stack, precision, ..question.reference_job(&fabric) };
    let asked = PlanSpace::default().with_mixes_of(&stack);
    let (space, _) = requested_spaces(None, false, &job, &fabric, &asked);
    if let Some(fault) = space.emptiness(&job, &fabric) {
        return Ok(without(format!("no plan runs on {}: {fault}", fabric.name)));
    }
    let answer = search_documented(&job, &space, 1, PlanWatch::NONE).or_input()?;
    if let Some(ranked) = answer.best.iter().find(|ranked| job.framework_refusal(&ranked.plan).is_none()) {
        let of = Baseline { label, chip, efficiency, standing: Some(BaselineStanding::AsSold) };
        return entry_of_plan(question, &of, &job, Ok(ranked));
    }
    let why = PlannedAnswer::from_answer(&job, &job.model.name, &answer, &[]).why;
    let why = why.unwrap_or_else(|| "the stack's framework runs no plan".to_owned());
    Ok(without(match job.fit {
        chance if chance <= NO_MARGIN => why,
        chance => format!("{why}; plans must fit with a chance of {}", format_chance(chance)),
    }))
}

/// Returns the entry of PHAZE's reference under an expert's placement; `None` if the question has no such placement.
fn expert_entry(question: &SearchQuestion) -> Result<Option<ComparisonEntry>, Failure> {
    let Some(expert) =
        expert_placement(&question.model.name).filter(|expert| is_near_expert_cluster(question, expert.degrees))
    else {
        return Ok(None);
    };
    let (d, reference) = (expert.degrees, &question.reference);
    let given = format!("p {}, t {}, d {}: {}", d.pipeline, d.tensor, d.data, expert.source);
    let label = format!("{}, expert's placement", reference.name);
    let efficiency = own_efficiency(reference);
    let mut entry = match search_expert_plan(question, d, true) {
        Ok(plan) => {
            let job = plan.job(question, &plan.fabric);
            let prepared = PreparedJob::new(job, &plan.plans).or_input()?;
            let of = Baseline { label, chip: reference, efficiency, standing: None };
            let entry = planned_entry(question, &of, &prepared, &job)?;
            let counted =
                entry.counting_sequences(question.study.cluster.global_batch_sequences.into(), plan.sequences);
            let note = Some(plan.note).filter(|note| !note.is_empty());
            ComparisonEntry { note: counted.note.clone().or(note), ..counted }
                .with_objective(&question.aim, f64::from(job.devices))
        }
        Err(why) => ComparisonEntry { note: Some(why), ..ComparisonEntry::without_design(label) },
    };
    entry.note = Some(entry.note.map_or_else(|| given.clone(), |why| format!("{given}: {why}")));
    Ok(Some(entry))
}

/// Returns the label of a built chip in its ideal form.
fn ideal_label(chip: &Accelerator) -> String {
    let clock = chip.lowered.map(|_| format!(" at {:.0} MHz", chip.clock.0 / 1e6)).unwrap_or_default();
    format!("{}, ideal{clock}", chip.name)
}

/// Returns the efficiency of a built chip by its file: fitted if it is calibrated, otherwise ideal.
pub(super) fn own_efficiency(chip: &Accelerator) -> ChipEfficiency {
    if is_calibrated(chip) { ChipEfficiency::Fitted } else { ChipEfficiency::Ideal }
}

/// True if a chip's rates are fitted to measurements.
fn is_calibrated(chip: &Accelerator) -> bool {
    chip.calibration != Calibration::default() || chip.sustained_clock_fraction < 1.0
}

/// True if the expert's placement fits the cluster: it uses most of the devices, and the space has PHAZE's chips. On a
/// much smaller or larger cluster it is no baseline.
fn is_near_expert_cluster(question: &SearchQuestion, degrees: ExpertDegrees) -> bool {
    let cluster = question.study.cluster.devices;
    let near = degrees.devices().is_some_and(|devices| devices <= cluster && devices > cluster / 2);
    matches!(question.study.space.chips, Chips::Phaze(_)) && near
}

/// An expert's placement on a cluster.
pub struct ExpertPlan {
    pub devices: u32,
    /// The cluster's fabric with these devices.
    pub fabric: Fabric,
    /// The plans with these degrees.
    pub plans: PlanSpace,
    /// Sequences of a step; more than the question's if ranks are filled up.
    pub sequences: u64,
    /// The differences from the published placement; empty if there are none.
    pub note: String,
}

impl ExpertPlan {
    /// Returns the question's job on the placement's devices.
    pub fn job<'j>(&self, question: &'j SearchQuestion, fabric: &'j Fabric) -> Job<'j> {
        Job { devices: self.devices, global_batch: self.sequences, ..question.reference_job(fabric) }
    }
}

/// Returns an expert's degrees with an even layer split, or the reason why the cluster has no such plan. A published
/// placement follows PHAZE's rule.
pub fn search_expert_plan(
    question: &SearchQuestion,
    degrees: ExpertDegrees,
    published: bool,
) -> Result<ExpertPlan, String> {
    let sequences = u64::from(question.study.cluster.global_batch_sequences);
    let used = match published {
        true => degrees.as_phaze_runs(question.model.layers, sequences),
        false => UsedPlacement { degrees, ends: None, sequences, note: String::new() },
    };
    let degrees = used.degrees;
    let devices = degrees.devices().ok_or("are more devices than there are numbers for")?;
    let fabric = question.cluster.for_devices(devices).map_err(|e| e.to_string())?;
    let plans = PlanSpace {
        tensor: Some(vec![degrees.tensor]),
        pipeline: Some(vec![degrees.pipeline]),
        splits: Some(Splits::Listed(vec![used.ends])),
        ..question.study.plan.choices.clone()
    };
    let plan = ExpertPlan { devices, fabric, plans, sequences: used.sequences, note: used.note };
    match plan.plans.emptiness(&plan.job(question, &plan.fabric), &question.cluster) {
        Some(fault) => Err(fault.to_string()),
        None => Ok(plan),
    }
}
