//! The models of a search: what is prepared for each, what each is held against, and how each runs on the best design.

use super::again::{self, Given};
use super::baselines;
use super::prepare;
use super::question::Question;
use crate::failure::{self, Failure, OrOther};
use results::compare::{Comparison, Entry};
use results::design::DesignRow;
use results::evidence::StepEnds;
use results::from_search::{self as conversion, Searched, SearchedModel};
use results::record::{BestDesign, ModelPlan};
use results::step_record::StepRecord;
use search::design::{DesignAnswer, Evaluation, Reference, Workload, best_plan};
use search::planner::{Job, Prepared, RankedPlan};
use search::space::DesignId;
use sim::hardware::Accelerator;

/// A design whose value is at most this fraction worse than the best one's is nearly as good.
const NEARLY: f64 = 0.01;

/// Every model's job on each of the space's fabrics.
pub fn jobs(question: &Question) -> Vec<Vec<Job<'_>>> {
    question.all().map(|of| of.fabrics.iter().map(|fabric| of.job(fabric)).collect()).collect()
}

/// The same, prepared for chips.
pub fn prepare_all<'a>(question: &Question, jobs: &[Vec<Job<'a>>]) -> Result<Vec<Vec<Prepared<'a>>>, Failure> {
    let of = |(of, jobs): (&Question, &Vec<Job<'a>>)| jobs.iter().map(|job| prepare(of, job)).collect();
    question.all().zip(jobs).map(of).collect()
}

/// What the reference chip, ideal, does with each of several models under its best plan; of one alone nothing is needed.
pub fn references(question: &Question) -> Result<Vec<Reference>, Failure> {
    if question.others.is_empty() {
        return Ok(vec![Workload::alone(&[]).reference]);
    }
    let of = |of: &Question| {
        let evaluation = best_plan(&prepare(of, &of.job(&of.fabric))?, &of.ideal);
        match evaluation.outcome {
            Ok(ranked) => Ok(Reference { time: ranked.time.total, energy: ranked.energy }),
            Err(why) => {
                let (reference, name) = (&of.study.space.reference_chip, &of.name);
                let cure =
                    "several models are held against it: give more devices, another space.reference_chip, or one model alone";
                Err(failure::input(format!("{name}: space.reference_chip = {reference} cannot run {}: {why}; {cure}", of.called)))
            }
        }
    };
    question.all().map(of).collect()
}

/// The models of a search.
pub fn workloads<'a>(question: &Question, prepared: &'a [Vec<Prepared<'a>>], references: &[Reference]) -> Vec<Workload<'a>> {
    let all = question.all().zip(prepared).zip(references);
    all.map(|((of, prepared), &reference)| Workload { prepared, share: question.share(of), reference }).collect()
}

/// The same for its answer.
pub fn searched<'a>(question: &'a Question, jobs: &'a [Vec<Job<'a>>], references: &[Reference]) -> Vec<SearchedModel<'a>> {
    let all = question.all().zip(jobs).zip(references);
    all.map(|((of, jobs), &reference)| SearchedModel { name: &of.called, jobs, share: question.share(of), reference }).collect()
}

/// By model, at how many times its predicted step the bad end of a plan's interval is at least, on the space's chips: these are of one family and none of
/// them was measured.
pub fn least_ends(question: &Question, prepared: &[Vec<Prepared<'_>>]) -> Result<Vec<f64>, Failure> {
    let space = &question.space;
    let chip = (0..space.points()).find_map(|point| space.chip(space.largest(point)).ok());
    let chip = chip.ok_or_else(|| failure::input(format!("{}: no chip of the space can be built", question.name)))?;
    let least = |on: &Vec<Prepared<'_>>| on.iter().map(|prepared| StepEnds::least(prepared, &chip)).fold(f64::INFINITY, f64::min);
    // A hair for rounding.
    Ok(prepared.iter().map(|on| least(on) * (1.0 - 1e-12)).collect())
}

/// What a step takes, and the command that evaluates it.
pub fn step(of: &Question, job: &Job<'_>, ranked: &RankedPlan) -> Result<(StepRecord, Vec<String>), Failure> {
    let step = StepRecord::new(job, ranked).or_other()?;
    let plan = &of.study.plan;
    let given = Given {
        fabric: &of.study.cluster.fabric,
        stack: &plan.stack,
        attention: &format!("{:?}", plan.attention).to_lowercase(),
        optimizer: &format!("{:?}", plan.optimizer).to_lowercase(),
    };
    Ok((step, again::arguments(job, ranked, &given)))
}

/// How each model runs on a design.
pub fn plans(
    question: &Question,
    searched: &Searched<'_>,
    id: DesignId,
    chip: &Accelerator,
    evaluations: &[Evaluation],
) -> Result<Vec<ModelPlan>, Failure> {
    let mut plans = Vec::new();
    for (model, (of, evaluation)) in question.all().zip(evaluations).enumerate() {
        let Ok(ranked) = &evaluation.outcome else { continue };
        let job = searched.job(model, id, chip);
        let (step, evaluate_with) = self::step(of, &job, ranked)?;
        let comparison = if question.others.is_empty() {
            Comparison { entries: Vec::new() }
        } else {
            let best = conversion::entry("best found", &job, evaluation).or_other()?;
            baselines::compare(of, &prepare(of, &of.job(&of.fabric))?, vec![best])?
        };
        let times_reference = searched.times_reference(model, ranked);
        plans.push(ModelPlan {
            model: of.called.clone(),
            share: question.share(of),
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

/// The best design of a search for one model beside the smallest that is nearly as good and its baselines.
pub fn compared(
    question: &Question,
    answer: &DesignAnswer,
    rows: &[DesignRow],
    best: &BestDesign,
) -> Result<Comparison, Failure> {
    let first = Entry::from_design("best found", &best.design);
    let mut entries = vec![first.sure(&question.stack.name, best.step.plan.evidence.as_ref())];
    if let Some(index) = answer.smallest_within(NEARLY).filter(|i| Some(*i) != answer.best) {
        entries.push(Entry::from_design(format!("smallest within {} %", NEARLY * 100.0), &rows[index]));
    }
    baselines::compare(question, &prepare(question, &question.job(&question.fabric))?, entries)
}
