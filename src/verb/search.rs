//! `coplace search`: the main job.

use crate::answer::{self, Format};
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::input;
use crate::verb::job::headroom;
use indicatif::{ProgressBar, ProgressStyle};
use results::baseline::{Degrees, expert_placement};
use results::claim::Claim;
use results::compare::{Comparison, Entry};
use results::design::DesignRow;
use results::record::{self, BestDesign, Record, StudyRecord, Versions};
use results::run::Run;
use results::step_record::StepRecord;
use results::{from_search as conversion, report};
use search::design::{DesignAnswer, best_plan, search_designs};
use search::planner::{Job, PlanSpace, Prepared, Splits};
use search::runner::{Outcome, Progress};
use search::space::HardwareSpace;
use search::study::Study;
use sim::hardware::Accelerator;
use sim::hardware::area::area;
use sim::hardware::phaze::design;
use sim::import;
use sim::network::Fabric;
use sim::units::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use step::SoftwareStack;
use workloads::footprint::Precision;
use workloads::{Lowering, Model, TrainingGraph};

/// A design whose step takes at most this fraction more than the best one's is nearly as fast.
const NEARLY: f64 = 0.01;

/// Search for the accelerator on which a model trains fastest, and how it should run there
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coplace search llama2-7b\n  coplace search path/to/config.json --sequence-length 4096 --out runs/mine\n\n\
    Writes into the run directory: record.json (study, proof, best design, comparison, times), designs.parquet (every design and what\n\
    became of it), pareto.svg and pareto.png (throughput against area), SHA256SUMS (digests of the others). JSON: the record, as in record.json."
)]
pub struct Arguments {
    /// A built-in model (coplace list models) or a Hugging Face config.json
    model: String,
    /// A built-in study (coplace list studies) or a study file (.toml)
    #[arg(long, default_value = "phaze")]
    study: String,
    /// Software stack in place of the study's: a built-in one (coplace list stacks) or a stack file (.toml)
    #[arg(long)]
    stack: Option<String>,
    /// GiB of every device's memory that plans leave free, besides what the stack takes
    #[arg(long, value_name = "GIB", default_value_t = 0.0, allow_negative_numbers = true)]
    headroom_gib: f64,
    /// Tokens per sequence [default: the model's longest]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    sequence_length: Option<u64>,
    /// Run directory [default: runs/MODEL-STUDY]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of everything random; kept in the record (the exhaustive search draws nothing)
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// What is searched: a model on a study's cluster.
struct Question {
    model: Model,
    study: Study,
    stack: SoftwareStack,
    /// The chip whose area is the upper limit.
    reference: Accelerator,
    space: HardwareSpace,
    /// All devices that the fabric can join.
    cluster: Fabric,
    /// Cut to the study's devices.
    fabric: Fabric,
    sequence_length: u64,
    /// Memory that plans leave free.
    headroom: Bytes,
}

impl Question {
    fn read(arguments: &Arguments) -> Result<Self, Failure> {
        let model = Model::load(&arguments.model).or_input()?;
        let mut study = Study::load(&arguments.study).or_input()?;
        if let Some(stack) = &arguments.stack {
            study.plan.stack.clone_from(stack);
        }
        let of = |key: &str| format!("{}: {key}", arguments.study);
        let stack = input::stack(&study.plan.stack, &[])
            .map_err(|e| if arguments.stack.is_some() { e.context("--stack".to_owned()) } else { e.context(of("plan.stack")) })?;
        let reference = input::chip(&study.space.reference_chip).map_err(|e| e.context(of("space.reference_chip")))?.accelerator;
        let space = HardwareSpace::enumerate(&study.space, &reference).or_input()?;
        let fault = |e| failure::input(format!("{}: cluster.fabric: {e}", arguments.study));
        let cluster = import::load_fabric(&study.cluster.fabric, &reference.name).map_err(fault)?;
        let fabric = cluster.for_devices(study.cluster.devices).map_err(fault)?;
        let sequence_length = arguments.sequence_length.unwrap_or(model.max_sequence);
        // A length that the model cannot be trained at is no fault of the plans.
        TrainingGraph::new(&model, &Lowering { sequence_length, ..Lowering::new(&model) }).or_input()?;
        let headroom = headroom(arguments.headroom_gib, &reference)?;
        Ok(Self { model, study, stack, reference, space, cluster, fabric, sequence_length, headroom })
    }

    /// The job on the reference chip.
    fn job(&self) -> Job<'_> {
        Job {
            model: &self.model,
            chip: &self.reference,
            fabric: &self.fabric,
            stack: &self.stack,
            devices: self.study.cluster.devices,
            global_batch: self.study.cluster.global_batch_sequences.into(),
            sequence_length: self.sequence_length,
            attention: self.study.plan.attention(),
            precision: Precision::default(),
            optimizer: self.study.plan.optimizer(),
            headroom: self.headroom,
        }
    }

    /// The job and its plans, prepared for chips.
    fn prepare(&self, name: &str) -> Result<Prepared<'_>, Failure> {
        let (job, space) = (self.job(), self.study.plan.space());
        if let Some(fault) = space.emptiness(&job, &self.cluster) {
            return Err(failure::input(format!("{name}: plan: {fault}")));
        }
        Prepared::new(job, &space).or_input()
    }
}

/// Searches, writes the run directory, prints the report.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let start = Instant::now();
    let mut times = BTreeMap::new();
    let question = Question::read(arguments)?;
    let prepared = question.prepare(&arguments.study)?;
    let out = run_directory(arguments)?;
    times.insert("prepare".to_owned(), start.elapsed().as_secs_f64());

    let searching = Instant::now();
    let (space, job) = (&question.space, question.job());
    let bar = progress_bar(space.points.len());
    let answer = search_designs(&prepared, space, question.study.limits.evaluations, &|p| show(&bar, p, job.global_batch));
    bar.finish_and_clear();
    times.insert("search".to_owned(), searching.elapsed().as_secs_f64());

    let explaining = Instant::now();
    let mut rows = conversion::rows(&job, &answer);
    name_bounds(&job, &answer, &mut rows)?;
    let best = best_design(&job, &answer, &rows)?;
    let comparison = best.as_ref().map(|b| compare(&question, &prepared, &answer, &rows, b)).transpose()?;
    let certificate = conversion::certificate(&job, &answer, space.outside * space.hbm.len());
    times.insert("compare".to_owned(), explaining.elapsed().as_secs_f64());
    times.insert("total".to_owned(), start.elapsed().as_secs_f64());
    let record = Record {
        format: record::FORMAT,
        versions: Versions::current(),
        study: study_record(arguments, &question),
        seed: arguments.seed,
        certificate,
        best,
        comparison,
        times,
    };
    let name = out.path().file_name().unwrap_or(out.path().as_os_str()).to_string_lossy().into_owned();
    let run = Run { name, record, designs: rows };
    // A search's answer is worth more than its files: it is told first where they cannot be written.
    let written = run.write(out.path());
    match (arguments.format, &written) {
        (Format::Json, _) => answer::json(&run.record)?,
        (Format::Text, Ok(files)) => {
            let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            answer::text(&format!("{}\nWritten: {}\n", report::run(&run.record), files.join(", ")))?;
        }
        (Format::Text, Err(_)) => answer::text(&report::run(&run.record))?,
    }
    written.or_unwritable().map(drop)
}

/// The run directory, for this search alone.
fn run_directory(arguments: &Arguments) -> Result<Claim, Failure> {
    let stem = |name: &str| {
        let path = Path::new(name);
        let path = if path.file_name().is_some_and(|f| f == "config.json") { path.parent().unwrap_or(path) } else { path };
        path.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned())
    };
    let model = if Path::new(&arguments.model).exists() { stem(&arguments.model) } else { arguments.model.clone() };
    let default = || PathBuf::from("runs").join(format!("{model}-{}", stem(&arguments.study)));
    let out = arguments.out.clone().unwrap_or_else(default);
    Claim::new(&out).map_err(|error| failure::input(format!("--out {}: {error}", out.display())))
}

fn progress_bar(chips: usize) -> ProgressBar {
    let bar = ProgressBar::new(chips as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} chips decided, {msg} [{elapsed_precise}]") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: Progress, global_batch: u64) {
    bar.set_position(progress.decided as u64);
    let best = progress.best.map_or_else(|| "none yet".into(), |step| format!("{:.1} seq/s", global_batch as f64 / step));
    bar.set_message(format!("{} evaluated, best {best}", progress.evaluated));
}

/// Tells the rows of the front what bounds them.
fn name_bounds(job: &Job<'_>, answer: &DesignAnswer, rows: &mut [DesignRow]) -> Result<(), Failure> {
    for &index in &answer.front {
        let found = &answer.designs[index];
        let Outcome::Evaluated { evaluation, .. } = &found.outcome else { continue };
        if let Ok(ranked) = &evaluation.outcome {
            let chip = design(&found.config);
            rows[index].bound_by = conversion::bound_by(&Job { chip: &chip, ..*job }, ranked).or_other()?;
        }
    }
    Ok(())
}

/// The best design with all that its step takes.
fn best_design(job: &Job<'_>, answer: &DesignAnswer, rows: &[DesignRow]) -> Result<Option<BestDesign>, Failure> {
    let Some(index) = answer.best else { return Ok(None) };
    let found = &answer.designs[index];
    let Outcome::Evaluated { evaluation, .. } = &found.outcome else { return Ok(None) };
    let Ok(ranked) = &evaluation.outcome else { return Ok(None) };
    let chip = design(&found.config);
    let step = StepRecord::new(&Job { chip: &chip, ..*job }, ranked).or_other()?;
    Ok(Some(BestDesign { design: rows[index].clone(), step }))
}

/// The best design beside the smallest that is nearly as fast, and beside the reference chip under the expert's plan and under ours.
fn compare(
    question: &Question,
    prepared: &Prepared<'_>,
    answer: &DesignAnswer,
    rows: &[DesignRow],
    best: &BestDesign,
) -> Result<Comparison, Failure> {
    let mut entries = vec![Entry::from_design("best found", &best.design)];
    if let Some(index) = answer.smallest_within(NEARLY).filter(|i| Some(*i) != answer.best) {
        entries.push(Entry::from_design(format!("smallest within {} %", NEARLY * 100.0), &rows[index]));
    }
    let (job, reference) = (question.job(), &question.reference);
    let reference_area = Some(area(reference).or_input()?.total().0);
    let name = &reference.name;
    if let Some(expert) = expert_placement(&question.model.name) {
        let d = expert.degrees;
        let given = format!("p {}, t {}, d {}: {}", d.pipeline, d.tensor, d.data, expert.source);
        let label = format!("{name}, expert's placement");
        let mut entry = match expert_plan(question, d) {
            Ok((devices, fabric, space)) => {
                let job = Job { devices, fabric: &fabric, ..job };
                let prepared = Prepared::new(job, &space).or_input()?;
                conversion::entry(&label, &job, reference_area, &best_plan(&prepared, reference)).or_other()?
            }
            Err(why) => Entry { note: Some(why), area_mm2: reference_area, ..Entry::without_design(label) },
        };
        entry.note = Some(entry.note.map_or_else(|| given.clone(), |why| format!("{given}: {why}")));
        entries.push(entry);
    }
    let ours = best_plan(prepared, reference);
    entries.push(conversion::entry(&format!("{name}, our best plan"), &job, reference_area, &ours).or_other()?);
    Ok(Comparison { entries })
}

/// The devices, their fabric and the plans of an expert's degrees, layers split evenly; or why there are none.
fn expert_plan(question: &Question, degrees: Degrees) -> Result<(u32, Fabric, PlanSpace), String> {
    let devices = degrees.pipeline * degrees.tensor * degrees.data;
    let fabric = question.cluster.for_devices(devices).map_err(|e| e.to_string())?;
    let space = PlanSpace {
        tensor: Some(vec![degrees.tensor]),
        pipeline: Some(vec![degrees.pipeline]),
        splits: Some(Splits::Listed(vec![None])),
        ..question.study.plan.space()
    };
    let job = Job { devices, fabric: &fabric, ..question.job() };
    match space.emptiness(&job, &question.cluster) {
        Some(fault) => Err(fault.to_string()),
        None => Ok((devices, fabric, space)),
    }
}

fn study_record(arguments: &Arguments, question: &Question) -> StudyRecord {
    let (study, space) = (&question.study, &question.space);
    let options = BTreeMap::from([
        ("attention".to_owned(), format!("{:?}", study.plan.attention).to_lowercase()),
        ("optimizer".to_owned(), format!("{:?}, mixed precision", study.plan.optimizer).to_lowercase()),
        ("headroom_gib".to_owned(), question.headroom.gib().to_string()),
        ("evaluations_at_most".to_owned(), study.limits.evaluations.to_string()),
    ]);
    StudyRecord {
        name: arguments.study.clone(),
        model: arguments.model.clone(),
        parameters: question.model.parameters(),
        sequence_tokens: question.sequence_length,
        space_designs: space.designs() as u64,
        reference_chip: study.space.reference_chip.clone(),
        devices: u64::from(study.cluster.devices),
        fabric: question.fabric.name.clone(),
        global_batch_sequences: u64::from(study.cluster.global_batch_sequences),
        stack: question.stack.name.clone(),
        plans: study.plan.words(),
        objective: "throughput".into(),
        options,
        assumptions: question.model.assumptions.clone(),
    }
}
