//! Computes the value of each freedom of a search, model by model.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::verb::search::baselines::{ExpertPlan, search_expert_plan};
use crate::verb::search::question::SearchQuestion;
use crate::verb::search::{SearchRequest, prepare_job};
use results::answer::comparison::ComparisonEntry;
use results::answer::freedoms::{EvaluatedChips, FREEDOMS, Freedoms, ModelFreedoms};
use results::compare::baseline::{ExpertDegrees, ExpertPlacement, expert_placement};
use results::figure;
use results::run::conversion;
use search::bayes;
use search::design::{DesignAnswer, DesignEvaluation, DesignSearch, DesignWatch, HardwareOnly, Workload, best_plan};
use search::objective::{CostAxes, FrontAxis};
use search::planner::{Job, PreparedJob};
use search::runner::CandidateOutcome;
use search::space::{DesignId, EfficiencyChoice};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::status::SolveStatus;
use std::path::Path;

/// The real TPU v4. It is compared even if the study has another reference.
const MEASURED: &str = "tpu_v4";

/// Least evaluations of Bayesian optimisation. With fewer, it would have learned nothing.
const LEAST_EVALUATIONS: u64 = 32;

/// The arguments of the comparison.
pub struct FreedomsRequest<'a> {
    pub models: Vec<String>,
    pub study: Option<&'a String>,
    pub stack: Option<&'a String>,
    pub sequence_length: Option<u64>,
    pub expert: Option<String>,
    pub evaluations: Option<u64>,
    pub seed: u64,
    pub out: Option<&'a Path>,
    pub format: Format,
}

/// Runs the comparison: searches with each freedom and prints.
pub fn compare_freedoms(call: &Call, asked: &FreedomsRequest<'_>) -> Result<(), Failure> {
    let given = asked.expert.as_deref().map(parse_degrees).transpose()?;
    let models = asked.models.iter().map(|model| freedoms_of_model(asked, model, given)).collect::<Result<_, _>>()?;
    let answer = Freedoms::from_models(models, asked.seed);
    let mut written = Ok(());
    if let Some(directory) = asked.out {
        std::fs::create_dir_all(directory).map_err(|e| {
            failure::write_failure(
                &e,
                format!("--out {}: cannot be made: {e}; give a directory you may write to", directory.display()),
            )
        })?;
        let figure = figure::draw_freedoms(&answer).or_other()?;
        written = figure.write_files(directory, "freedoms").map(drop).or_unwritable();
    }
    answer::write_answer_with_files(call, asked.format, &Versioned::with_schema_one(&answer), written, |_| {
        answer.to_text()
    })
}

/// Parses `P,T,D`: pipeline stages, tensor-parallel width, data-parallel ranks.
fn parse_degrees(text: &str) -> Result<ExpertDegrees, Failure> {
    let numbers: Vec<Option<u32>> =
        text.split(',').map(|part| part.trim().parse().ok().filter(|n| (1..=1 << 20).contains(n))).collect();
    match numbers.as_slice() {
        [Some(pipeline), Some(tensor), Some(data)] => {
            Ok(ExpertDegrees { pipeline: *pipeline, tensor: *tensor, data: *data })
        }
        _ => Err(failure::option_failure(
            "--expert",
            text,
            "must be pipeline stages, tensor-parallel width and data-parallel ranks, each from 1 to 1048576",
            "write it like 8,1,128",
        )),
    }
}

fn freedoms_of_model(
    asked: &FreedomsRequest<'_>,
    model: &str,
    given: Option<ExpertDegrees>,
) -> Result<ModelFreedoms, Failure> {
    let question = SearchQuestion::read_of_one_model(&SearchRequest::of_model(
        model,
        // The experts' placements are for PHAZE's cluster.
        asked.study.or(Some(&"phaze".to_owned())),
        asked.stack,
        asked.sequence_length,
    ))?;
    let placement = given.map(|degrees| ExpertPlacement { degrees, source: "--expert".to_owned() });
    let placement = placement.or_else(|| expert_placement(&question.model.name));
    let ExpertPlacement { degrees, source } = placement.ok_or_else(|| {
        let cure = "give one, --expert PIPELINE,TENSOR,DATA";
        failure::file_failure(model, "no expert's placement is published for it", cure)
    })?;
    let words = format!("p {}, t {}, d {}", degrees.pipeline, degrees.tensor, degrees.data);
    let expert = match find_expert_side(&question, degrees, given.is_some()) {
        Err(why) if given.is_some() => {
            return Err(failure::file_failure(model, format!("--expert: {words}: {why}"), ""));
        }
        expert => expert,
    };
    let jobs: Vec<Job<'_>> = question.fabrics.iter().map(|fabric: &Fabric| question.reference_job(fabric)).collect();
    let ours: Vec<PreparedJob<'_>> = jobs.iter().map(|job| prepare_job(&question, job)).collect::<Result<_, _>>()?;
    let joint = search_chips(&question, &ours)?;
    let evaluations = asked.evaluations.unwrap_or(joint.counts.evaluated.max(LEAST_EVALUATIONS));

    let own = question.reference_job(&question.fabric);
    let ours_on_own = prepare_job(&question, &own)?;
    let measured = Accelerator::built_in(MEASURED).or_other()?;
    let [first, third, fourth, sixth] = match &expert {
        Ok(side) => side.comparison_entries(&question, &measured, (evaluations, asked.seed))?,
        Err(why) => [0, 2, 3, 5]
            .map(|at| ComparisonEntry { note: Some(why.clone()), ..ComparisonEntry::without_design(FREEDOMS[at]) }),
    };
    let planned = |at: usize, chip: &Accelerator| {
        conversion::best_plan_entry(
            FREEDOMS[at],
            &Job { chip, ..own },
            best_plan(&ours_on_own, chip).outcome.as_deref(),
        )
        .or_other()
    };
    let (second, seventh) = (planned(1, &reference_chip(&question))?, planned(6, &measured)?);
    let fifth = best_design(FREEDOMS[4], &question, &joint, &jobs)?;
    let gap = match joint.status {
        SolveStatus::Gap { lower_bound, upper_bound } if lower_bound > 0.0 => upper_bound / lower_bound - 1.0,
        _ => 0.0,
    };
    let differs = expert.as_ref().ok().map(|side| side.plan.note.as_str()).filter(|note| !note.is_empty());
    let words = differs.map_or(words.clone(), |note| format!("{words} ({note})"));
    let (model, study, expert) = (question.called.clone(), question.name.clone(), format!("{words}: {source}"));
    let named = results::answer::freedoms::FreedomCase { model, study, expert, chips: chips_note(&question) };
    let counts = EvaluatedChips { joint: joint.counts.evaluated, bayesian: evaluations };
    Ok(ModelFreedoms::from_entries(named, [first, second, third, fourth, fifth, sixth, seventh], counts, gap))
}

/// Returns the expert's placement on the study's cluster, with its plan. `given` is true if a user gave the degrees.
///
/// # Errors
/// The reason why the placement cannot be compared.
fn find_expert_side(question: &SearchQuestion, degrees: ExpertDegrees, given: bool) -> Result<ExpertSide, String> {
    let plan = search_expert_plan(question, degrees, !given)?;
    let whole = question.study.cluster.devices;
    // If the expert uses all devices of the study, the chips may have links of their own.
    if plan.devices == whole {
        return Ok(ExpertSide { plan, fabrics: question.fabrics.clone() });
    }
    if given {
        return Err(format!(
            "is a placement on {} devices, the study {} has {whole}: their product must be {whole}",
            plan.devices, question.name
        ));
    }
    if question.fabrics.len() > 1 {
        return Err(format!(
            "are {} devices; study {} varies the network between {whole}",
            plan.devices, question.name
        ));
    }
    let fabrics = vec![plan.fabric.clone()];
    Ok(ExpertSide { plan, fabrics })
}

/// The efficiency of the space's chips. PHAZE's chips are ideal.
fn space_efficiency(question: &SearchQuestion) -> EfficiencyChoice {
    question.study.space.efficiency()
}

/// The reference chip with the efficiency of the space's chips. The comparison then measures the dimensions of the
/// chip, not its calibration.
fn reference_chip(question: &SearchQuestion) -> Accelerator {
    question.study.space.limits.chip_with_efficiency(&question.reference, space_efficiency(question))
}

/// A note on the fraction of their peaks that the compared chips reach.
fn chips_note(question: &SearchQuestion) -> String {
    let measured = "TPU v4 as measured is calibrated to its kernels";
    let reference = &question.reference.name;
    match space_efficiency(question) {
        EfficiencyChoice::Base => {
            format!("the chips of the space have the calibration of their base, {reference} its own; {measured}")
        }
        EfficiencyChoice::Family => format!(
            "the chips of the space and the reference, {reference}, get as far as chips of their family; {measured}"
        ),
        EfficiencyChoice::Ideal => format!(
            "the chips of the space and the reference, {reference}, are ideal: every peak is reached; {measured}"
        ),
    }
}

/// The expert's placement on the cluster.
struct ExpertSide {
    plan: ExpertPlan,
    fabrics: Vec<Fabric>,
}

impl ExpertSide {
    /// Returns the entries under the expert's plan: the reference chip, the chip that Bayesian optimisation finds with
    /// `evaluations` and `seed`, the best chip, and the measured chip.
    fn comparison_entries(
        &self,
        question: &SearchQuestion,
        measured: &Accelerator,
        (evaluations, seed): (u64, u64),
    ) -> Result<[ComparisonEntry; 4], Failure> {
        let jobs: Vec<Job<'_>> = self.fabrics.iter().map(|fabric| self.plan.job(question, fabric)).collect();
        let prepared: Vec<PreparedJob<'_>> =
            jobs.iter().map(|job| PreparedJob::new(*job, &self.plan.plans).or_input()).collect::<Result<_, _>>()?;
        let standing = |at: usize, chip: &Accelerator| {
            conversion::best_plan_entry(
                FREEDOMS[at],
                &Job { chip, ..jobs[0] },
                best_plan(&prepared[0], chip).outcome.as_deref(),
            )
            .or_other()
        };
        let hardware = HardwareOnly { space: &question.space, prepared: &prepared };
        let tried = bayes::minimise_value(&hardware, usize::try_from(evaluations).unwrap_or(usize::MAX), seed);
        let bayesian = match tried.best() {
            None => ComparisonEntry {
                note: Some("no chip that was tried runs it".to_owned()),
                ..ComparisonEntry::without_design(FREEDOMS[2])
            },
            Some((design, _)) => {
                let id = question.space.with_largest_memory(design);
                let chip = hardware.chip_of_design(id).ok_or_else(|| {
                    Failure::Other(anyhow::anyhow!("{}: is no chip", question.space.describe_design(id)))
                })?;
                let at = question.space.fabric_of_design(id);
                design_entry(FREEDOMS[2], question, (id, &chip), &jobs[at], &best_plan(&prepared[at], &chip))?
            }
        };
        let chips = search_chips(question, &prepared)?;
        let (wanted, done) = (question.study.cluster.global_batch_sequences.into(), self.plan.sequences);
        let found = best_design(FREEDOMS[3], question, &chips, &jobs)?;
        let entries = [standing(0, &reference_chip(question))?, bayesian, found, standing(5, measured)?];
        Ok(entries.map(|entry| entry.counting_sequences(wanted, done)))
    }
}

/// Searches the best chip of the space, without a front.
fn search_chips<'a>(question: &'a SearchQuestion, prepared: &'a [PreparedJob<'a>]) -> Result<DesignAnswer, Failure> {
    let aim = search::design::Aim { axes: CostAxes::single(FrontAxis::None), ..question.aim };
    let search =
        DesignSearch { workloads: &[Workload::of_one_model(prepared)], space: &question.space, aim, robust: None };
    DesignWatch::silent(|watch| search.run_design_search(watch))
        .map_err(|why| failure::file_failure(&question.name, why, ""))
}

/// The entry of an answer's best design.
fn best_design(
    label: &str,
    question: &SearchQuestion,
    answer: &DesignAnswer,
    jobs: &[Job<'_>],
) -> Result<ComparisonEntry, Failure> {
    let found = answer.best.map(|index| &answer.designs[index]);
    let Some((id, CandidateOutcome::Evaluated { evaluation, .. })) = found.map(|design| (design.id, &design.outcome))
    else {
        return Ok(ComparisonEntry { note: Some(answer.status.to_string()), ..ComparisonEntry::without_design(label) });
    };
    let chip = question.space.chip_of_design(id).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
    let evaluation = evaluation.first().ok_or_else(|| Failure::Other(anyhow::anyhow!("{label}: no evaluation")))?;
    design_entry(label, question, (id, &chip), &jobs[question.space.fabric_of_design(id)], evaluation)
}

/// The entry of a design of the space, with its dimensions in words.
fn design_entry(
    label: &str,
    question: &SearchQuestion,
    (id, chip): (DesignId, &Accelerator),
    job: &Job<'_>,
    evaluation: &DesignEvaluation,
) -> Result<ComparisonEntry, Failure> {
    let entry = conversion::best_plan_entry(label, &Job { chip, ..*job }, evaluation.outcome.as_deref()).or_other()?;
    let area = question.space.figures_of_design(id, chip).area.0;
    Ok(ComparisonEntry { chip: question.space.describe_design(id), area_mm2: Some(area), ..entry })
}
