//! The models of a search: their preparation, their references, and their plans on the best design.

use super::again;
use super::baselines::{self, FoundDesign};
use super::gain;
use super::prepare_job;
use super::question::SearchQuestion;
use crate::failure::{self, Failure, OrOther};
use results::answer::comparison::{Comparison, ComparisonEntry};
use results::answer::step::StepRecord;
use results::run::conversion::{self, SearchedModel, SearchedModelSet};
use results::run::record::{BestDesign, ModelPlan};
use results::run::search_run;
use results::store::design::DesignRow;
use search::bad_end::least_bad_end_factor;
use search::design::{DesignAnswer, DesignEvaluation, ReferenceStep, Workload, best_plan};
use search::planner::{Job, PreparedJob, RankedPlan};
use search::space::DesignId;
use sim::hardware::Accelerator;

/// A design is nearly as good as the best if its value is worse by at most this fraction.
pub(super) const NEARLY: f64 = 0.01;

/// Returns the job of every model on each fabric of the space.
pub fn jobs_of_models(question: &SearchQuestion) -> Vec<Vec<Job<'_>>> {
    question.all_models().map(|of| of.fabrics.iter().map(|fabric| of.reference_job(fabric)).collect()).collect()
}

/// Prepares the jobs for chips.
pub fn prepare_models<'a>(
    question: &SearchQuestion,
    jobs: &[Vec<Job<'a>>],
) -> Result<Vec<Vec<PreparedJob<'a>>>, Failure> {
    let of = |(of, jobs): (&SearchQuestion, &Vec<Job<'a>>)| jobs.iter().map(|job| prepare_job(of, job)).collect();
    question.all_models().zip(jobs).map(of).collect()
}

/// Returns the reference step of each model: that of the reference chip with the efficiency of the space's chips, under
/// its best plan. A single model gets a placeholder, because it needs no reference.
pub fn reference_steps(question: &SearchQuestion) -> Result<Vec<ReferenceStep>, Failure> {
    if question.others.is_empty() {
        return Ok(vec![Workload::of_one_model(&[]).reference]);
    }
    let of = |of: &SearchQuestion| {
        let space = &of.study.space;
        let reference = space.limits.chip_with_efficiency(&of.reference, space.efficiency());
        let evaluation = best_plan(&prepare_job(of, &of.reference_job(&of.fabric))?, &reference);
        match evaluation.outcome {
            Ok(ranked) => Ok(ReferenceStep { time: ranked.time.total, energy: ranked.energy }),
            Err(why) => {
                let (reference, name) = (&of.study.space.reference_chip, &of.name);
                let cure = "several models are compared with it: give more devices, another space.reference_chip, or a \
                    single model";
                Err(failure::file_failure(
                    name,
                    format!("space.reference_chip = {reference} cannot run {}: {why}", of.called),
                    cure,
                ))
            }
        }
    };
    question.all_models().map(of).collect()
}

/// Returns the models of a search as workloads.
pub fn search_workloads<'a>(
    question: &SearchQuestion,
    prepared: &'a [Vec<PreparedJob<'a>>],
    references: &[ReferenceStep],
) -> Vec<Workload<'a>> {
    let all = question.all_models().zip(prepared).zip(references);
    all.map(|((of, prepared), &reference)| Workload { prepared, share: question.share_of_model(of), reference })
        .collect()
}

/// Returns the models in the form that converts the answer.
pub fn searched_models<'a>(
    question: &'a SearchQuestion,
    jobs: &'a [Vec<Job<'a>>],
    references: &[ReferenceStep],
) -> Vec<SearchedModel<'a>> {
    let all = question.all_models().zip(jobs).zip(references);
    all.map(|((of, jobs), &reference)| SearchedModel {
        name: &of.called,
        jobs,
        share: question.share_of_model(of),
        reference,
    })
    .collect()
}

/// Returns for each model a lower bound on the factor from a predicted step to the bad end of its interval. It holds
/// for all plans on the space's chips, because these chips are of one family, and none was measured.
pub fn least_interval_ends(question: &SearchQuestion, prepared: &[Vec<PreparedJob<'_>>]) -> Result<Vec<f64>, Failure> {
    let space = &question.space;
    let chip = (0..space.chip_count()).find_map(|point| space.chip_of_design(space.with_largest_memory(point)).ok());
    let chip = chip.ok_or_else(|| failure::file_failure(&question.name, "no chip of the space can be built", ""))?;
    let least = |on: &Vec<PreparedJob<'_>>| {
        on.iter().map(|prepared| least_bad_end_factor(prepared, &chip)).fold(f64::INFINITY, f64::min)
    };
    // The bound is slightly lower, to allow for rounding.
    Ok(prepared.iter().map(|on| least(on) * (1.0 - 1e-12)).collect())
}

/// Returns the record of a step, and the options with which `evaluate` finds it again.
pub fn step_record(
    of: &SearchQuestion,
    id: DesignId,
    job: &Job<'_>,
    ranked: &RankedPlan,
) -> Result<(StepRecord, Vec<String>), Failure> {
    let step = StepRecord::from_plan(job, ranked).or_other()?;
    // A fabric with a file of its own is named by that file, because the study's name means another network.
    let fabric = if of.has_fabric_file(id) { search_run::FABRIC } else { &of.study.cluster.fabric };
    let mut options = again::plan_options(job, ranked, fabric, &of.study.plan.stack);
    options.extend(of.assume_ignored.iter().flat_map(|key| ["--assume".to_owned(), format!("{key}=ignored")]));
    Ok((step, options))
}

/// Returns the plan of each model on a design. A model without a plan is left out.
pub fn model_plans(
    question: &SearchQuestion,
    searched: &SearchedModelSet<'_>,
    id: DesignId,
    chip: &Accelerator,
    evaluations: &[DesignEvaluation],
) -> Result<Vec<ModelPlan>, Failure> {
    let mut plans = Vec::new();
    for (model, (of, evaluation)) in question.all_models().zip(evaluations).enumerate() {
        let Ok(ranked) = &evaluation.outcome else { continue };
        let job = searched.job_on_design(model, id, chip);
        let (step, evaluate_with) = self::step_record(of, id, &job, ranked)?;
        let comparison = if question.others.is_empty() {
            Comparison::default()
        } else {
            let best = conversion::best_plan_entry("best found", &job, evaluation.outcome.as_deref()).or_other()?;
            let design = FoundDesign { chip, fabric: job.fabric };
            compare_design(of, design, vec![best.on_fabric(job.fabric, &chip.constants)])?
        };
        let times_reference = searched.rate_over_reference(model, ranked);
        plans.push(ModelPlan {
            model: of.called.clone(),
            share: question.share_of_model(of),
            devices: job.devices.into(),
            global_batch_sequences: job.global_batch,
            sequence_tokens: job.sequence_length,
            reference_tokens_per_s: step.time.tokens_per_s / times_reference,
            reference_energy_per_step_j: Some(searched.models[model].reference.energy.0),
            times_reference,
            evaluate_with,
            step,
            comparison,
        });
    }
    Ok(plans)
}

/// Compares a design with its baselines, and adds the causes of its lead.
fn compare_design(
    question: &SearchQuestion,
    design: FoundDesign<'_>,
    found: Vec<ComparisonEntry>,
) -> Result<Comparison, Failure> {
    let comparison = baselines::compare_with_baselines(question, design, found)?;
    let gain = gain::split_gain(question, design, &comparison.entries)?;
    Ok(Comparison { gain, ..comparison })
}

/// Returns the comparison of a search for one model: the best design, the smallest design that is nearly as good, and
/// the baselines.
pub fn compare_best_designs(
    question: &SearchQuestion,
    answer: &DesignAnswer,
    rows: &[DesignRow],
    best: &BestDesign,
) -> Result<Comparison, Failure> {
    let fabric = |id: DesignId| &question.fabrics[question.space.fabric_of_design(id)];
    let Some(id) = answer.best.map(|index| answer.designs[index].id) else { return Ok(Comparison::default()) };
    let chip = question.space.chip_of_design(id).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
    let constants = &chip.constants;
    let first = ComparisonEntry::from_design("best found", &best.design).on_fabric(fabric(id), constants);
    let mut entries = vec![first.with_evidence(&question.stack.name, best.step.plan.evidence.as_ref())];
    if let Some(index) = answer.smallest_on_front_within(NEARLY).filter(|i| Some(*i) != answer.best) {
        let label = format!("smallest within {} %", NEARLY * 100.0);
        let own = fabric(answer.designs[index].id);
        let smallest = ComparisonEntry::from_design(label, &rows[index]).on_fabric(own, constants);
        entries.push(ComparisonEntry { stack: Some(question.stack.name.clone()), ..smallest });
    }
    compare_design(question, FoundDesign { chip: &chip, fabric: fabric(id) }, entries)
}
