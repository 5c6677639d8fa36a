//! What each freedom of a search is worth, model by model.

use crate::answer::{self, Format, Versioned};
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::verb::search::baselines::{expert_plan, ideal};
use crate::verb::search::question::Question;
use crate::verb::search::{Posed, prepare};
use results::baseline::{Degrees, expert_placement};
use results::compare::Entry;
use results::figure;
use results::freedoms::{Evaluations, FREEDOMS, Freedoms, ModelFreedoms};
use results::from_search as conversion;
use search::bayes;
use search::design::{DesignAnswer, DesignSearch, Evaluation, HardwareAlone, Watch, Workload, best_plan};
use search::objective::{Axes, Axis};
use search::planner::{Job, PlanSpace, Prepared};
use search::runner::Outcome;
use search::space::{CalibrationChoice, Chips, DesignId};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::status::SolveStatus;
use std::path::Path;

/// The real TPU v4, which stands beside whatever reference the study has.
const MEASURED: &str = "tpu_v4";

/// Bayesian optimisation may evaluate so many chips even where the joint search needs fewer: it would have learned nothing yet.
const LEAST_EVALUATIONS: u64 = 32;

/// What is asked.
pub struct Asked<'a> {
    pub models: Vec<String>,
    pub study: Option<&'a String>,
    pub stack: Option<&'a String>,
    pub sequence_length: Option<u64>,
    pub expert: Option<&'a str>,
    pub seed: u64,
    pub out: Option<&'a Path>,
    pub format: Format,
}

/// Searches with each freedom and prints.
pub fn run(asked: &Asked<'_>) -> Result<(), Failure> {
    let given = asked.expert.map(degrees).transpose()?;
    let models = asked.models.iter().map(|model| of_model(asked, model, given)).collect::<Result<_, _>>()?;
    let answer = Freedoms::new(models, asked.seed);
    if let Some(directory) = asked.out {
        std::fs::create_dir_all(directory).map_err(|e| {
            failure::of_io(&e, format!("--out {}: cannot be made: {e}; give a directory you may write to", directory.display()))
        })?;
        figure::freedoms(&answer).or_other()?.write(directory, "freedoms").or_unwritable()?;
    }
    answer::give(asked.format, &Versioned::first(&answer), |_| answer.to_text())
}

/// `P,T,D`: pipeline stages, tensor-parallel width, data-parallel ranks.
fn degrees(text: &str) -> Result<Degrees, Failure> {
    let numbers: Vec<Option<u32>> =
        text.split(',').map(|part| part.trim().parse().ok().filter(|n| (1..=1 << 20).contains(n))).collect();
    match numbers.as_slice() {
        [Some(pipeline), Some(tensor), Some(data)] => Ok(Degrees { pipeline: *pipeline, tensor: *tensor, data: *data }),
        _ => Err(failure::input(format!(
            "--expert {text}: must be pipeline stages, tensor-parallel width and data-parallel ranks, each from 1 to 1048576; write it like 8,1,128"
        ))),
    }
}

fn of_model(asked: &Asked<'_>, model: &str, given: Option<Degrees>) -> Result<ModelFreedoms, Failure> {
    let question = Question::of_one(&Posed::of_model(model, asked.study, asked.stack, asked.sequence_length))?;
    let published = expert_placement(&question.model.name);
    let (degrees, source) = match (given, published) {
        (Some(degrees), _) => (degrees, "--expert".to_owned()),
        (None, Some(expert)) => (expert.degrees, expert.source),
        (None, None) => {
            return Err(failure::input(format!(
                "{model}: no expert's placement is published for it; give one, --expert PIPELINE,TENSOR,DATA"
            )));
        }
    };
    let words = format!("p {}, t {}, d {}", degrees.pipeline, degrees.tensor, degrees.data);
    let whole = question.study.cluster.devices;
    let refused = |why: String| match given {
        Some(_) => Err(failure::input(format!("{model}: --expert: {words}: {why}"))),
        None => Ok(Err(why)),
    };
    let expert = match expert_plan(&question, degrees) {
        Ok((devices, ..)) if given.is_some() && devices != whole => refused(format!(
            "is a placement on {devices} devices, the study {} has {whole}: their product must be {whole}",
            question.name
        ))?,
        Ok((devices, ..)) if devices != whole && question.fabrics.len() > 1 => {
            refused(format!("are {devices} devices; study {} varies the network between {whole}", question.name))?
        }
        Ok((devices, fabric, plans)) => {
            // On the study's own number of devices its chips may have links of their own.
            let fabrics = if devices == whole { question.fabrics.clone() } else { vec![fabric] };
            Ok(ExpertSide { devices, fabrics, plans })
        }
        Err(why) => refused(why)?,
    };
    let jobs: Vec<Job<'_>> = question.fabrics.iter().map(|fabric: &Fabric| question.job(fabric)).collect();
    let ours: Vec<Prepared<'_>> = jobs.iter().map(|job| prepare(&question, job)).collect::<Result<_, _>>()?;
    let joint = search(&question, &ours)?;
    let evaluations = joint.counts.evaluated.max(LEAST_EVALUATIONS);

    let own = question.job(&question.fabric);
    let ours_on_own = prepare(&question, &own)?;
    let measured = Accelerator::template(MEASURED).or_other()?;
    let [first, third, fourth, sixth] = match &expert {
        Ok(side) => side.entries(&question, &measured, (evaluations, asked.seed))?,
        Err(why) => [0, 2, 3, 5].map(|at| Entry { note: Some(why.clone()), ..Entry::without_design(FREEDOMS[at]) }),
    };
    let planned = |at: usize, chip: &Accelerator| {
        conversion::entry(FREEDOMS[at], &Job { chip, ..own }, &best_plan(&ours_on_own, chip)).or_other()
    };
    let (second, seventh) = (planned(1, &reference(&question))?, planned(6, &measured)?);
    let fifth = best(FREEDOMS[4], &question, &joint, &jobs)?;
    let gap = match joint.status {
        SolveStatus::Gap { lower_bound, upper_bound } if lower_bound > 0.0 => upper_bound / lower_bound - 1.0,
        _ => 0.0,
    };
    let (model, study, expert) = (question.called.clone(), question.name.clone(), format!("{words}: {source}"));
    let named = results::freedoms::Asked { model, study, expert, chips: chips(&question) };
    let counts = Evaluations { joint: joint.counts.evaluated, bayesian: evaluations };
    Ok(ModelFreedoms::new(named, [first, second, third, fourth, fifth, sixth, seventh], counts, gap))
}

/// Whether the space's chips have what is measured of their base.
fn keeps_calibration(question: &Question) -> bool {
    matches!(&question.study.space.chips, Chips::Grid(spec) if spec.calibration == CalibrationChoice::Base)
}

/// The reference chip as the space's chips are: ideal where they are, so that the chip is worth its dimensions and not what was measured of another.
fn reference(question: &Question) -> Accelerator {
    let reference = question.reference.clone();
    if keeps_calibration(question) { reference } else { ideal(reference) }
}

/// Which chips are ideal.
fn chips(question: &Question) -> String {
    let measured = "TPU v4 as measured has what its kernels were fitted to";
    let reference = &question.reference.name;
    match keeps_calibration(question) {
        true => format!("the space's have the calibration of their base, {reference} its own; {measured}"),
        false => format!("the space's and the reference, {reference}, are ideal: every peak is reached; {measured}"),
    }
}

/// The expert's placement on the cluster.
struct ExpertSide {
    devices: u32,
    fabrics: Vec<Fabric>,
    plans: PlanSpace,
}

impl ExpertSide {
    /// The reference chip, the chip that Bayesian optimisation finds in so many evaluations from a seed, the best chip and the measured one, each
    /// under the expert's plan.
    fn entries(
        &self,
        question: &Question,
        measured: &Accelerator,
        (evaluations, seed): (u64, u64),
    ) -> Result<[Entry; 4], Failure> {
        let on = |fabric| Job { devices: self.devices, ..question.job(fabric) };
        let jobs: Vec<Job<'_>> = self.fabrics.iter().map(on).collect();
        let prepared: Vec<Prepared<'_>> =
            jobs.iter().map(|job| Prepared::new(*job, &self.plans).or_input()).collect::<Result<_, _>>()?;
        let standing = |at: usize, chip: &Accelerator| {
            conversion::entry(FREEDOMS[at], &Job { chip, ..jobs[0] }, &best_plan(&prepared[0], chip)).or_other()
        };
        let hardware = HardwareAlone { space: &question.space, prepared: &prepared };
        let tried = bayes::minimise(&hardware, usize::try_from(evaluations).unwrap_or(usize::MAX), seed);
        let bayesian = match tried.best() {
            None => Entry { note: Some("no chip that was tried runs it".to_owned()), ..Entry::without_design(FREEDOMS[2]) },
            Some((design, _)) => {
                let id = question.space.largest(design);
                let chip = hardware
                    .chip(id)
                    .ok_or_else(|| Failure::Other(anyhow::anyhow!("{}: is no chip", question.space.words(id))))?;
                let at = question.space.fabric(id);
                designed(FREEDOMS[2], question, (id, &chip), &jobs[at], &best_plan(&prepared[at], &chip))?
            }
        };
        let chips = search(question, &prepared)?;
        Ok([standing(0, &reference(question))?, bayesian, best(FREEDOMS[3], question, &chips, &jobs)?, standing(5, measured)?])
    }
}

/// The best chip of the space, the front left alone.
fn search<'a>(question: &'a Question, prepared: &'a [Prepared<'a>]) -> Result<DesignAnswer, Failure> {
    let aim = search::design::Aim { axes: Axes::one(Axis::None), ..question.aim };
    let search = DesignSearch { workloads: &[Workload::alone(prepared)], space: &question.space, aim, robust: None };
    Watch::nobody(|watch| search.run(watch)).map_err(|why| failure::input(format!("{}: {why}", question.name)))
}

/// The best design of an answer.
fn best(label: &str, question: &Question, answer: &DesignAnswer, jobs: &[Job<'_>]) -> Result<Entry, Failure> {
    let found = answer.best.map(|index| &answer.designs[index]);
    let Some((id, Outcome::Evaluated { evaluation, .. })) = found.map(|design| (design.id, &design.outcome)) else {
        return Ok(Entry { note: Some(answer.status.to_string()), ..Entry::without_design(label) });
    };
    let chip = question.space.chip(id).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
    let evaluation = evaluation.first().ok_or_else(|| Failure::Other(anyhow::anyhow!("{label}: no evaluation")))?;
    designed(label, question, (id, &chip), &jobs[question.space.fabric(id)], evaluation)
}

/// A design of the space, with its dimensions in words.
fn designed(
    label: &str,
    question: &Question,
    (id, chip): (DesignId, &Accelerator),
    job: &Job<'_>,
    evaluation: &Evaluation,
) -> Result<Entry, Failure> {
    let entry = conversion::entry(label, &Job { chip, ..*job }, evaluation).or_other()?;
    let area = question.space.figures(id, chip).area.0;
    Ok(Entry { chip: question.space.words(id), area_mm2: Some(area), ..entry })
}
