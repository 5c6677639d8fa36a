//! `coplace report`: writes a run as one HTML page.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::progress;
use crate::verb::job::JobParts;
use crate::verb::job::run::{files_beside, run_path};
use crate::written_path::WrittenPath;
use results::answer::finite;
use results::page::{AnsweringVerb, JobNames, Page, PageDie, PageSubject, PlanReplay, SourceFile};
use results::run::search_run::{RunError, SearchRun};
use results::run::serving::ServingRun;
use results::store::files;
use search::ask::{AimSpec, ChipChoice, ClusterSpec, PlanSpace, Question, Software, WorkloadSpec};
use search::planner::{Job, NO_MARGIN};
use serde::Serialize;
use sim::files::carried::Files;
use sim::hardware::ChipTemplate;
use sim::units::Bytes;
use std::path::PathBuf;

/// Chips that every page draws beside the chip of the run.
const BESIDE: [&str; 2] = ["tpu_v4", "h100_80gb_sxm"];

/// Write a run as one HTML page without external resources: the answer, the chip, the designs, the kernels, the step
/// and the proof
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coplace report runs/llama2-7b-phaze -o report.html\n  \
    coplace report runs/serve -o serve.html\n  \
    coplace evaluate llama2-7b --chip tpu_v4 --format json > step.json && coplace report step.json\n\n\
    The directory of a search has everything that a page shows. So do the answers of `evaluate` and `plan`: they\n\
    contain the texts of the chip's, fabric's, stack's and model's files, and the step is replayed for its\n\
    passes and kernels. For answers of older versions, files and stack options must be given again with --chip,\n\
    --fabric, --stack and --model; otherwise the page says what it lacks, and the exit code is 3. The same holds\n\
    for measured links (`plan --links`).\n\n\
    JSON: written, bytes, left_out.")]
pub struct ReportArguments {
    /// A run directory of `coplace search` or `coplace serve`, or an answer that `evaluate` or `plan` printed
    /// with --format json
    #[arg(value_name = "RUN", value_parser = run_path())]
    run: PathBuf,
    /// File of the page
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    out: WrittenPath,
    /// Model configuration, instead of the name in the run
    #[arg(long)]
    model: Option<String>,
    /// Chip, instead of the one that the run names
    #[arg(long)]
    chip: Option<String>,
    /// Fabric, instead of the one that the run names
    #[arg(long)]
    fabric: Option<String>,
    /// Software stack, instead of the one that the run names
    #[arg(long)]
    stack: Option<String>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// The files that were written.
#[derive(Serialize)]
struct ReportAnswer {
    written: String,
    bytes: usize,
    left_out: Vec<String>,
}

/// Runs the verb: reads the run, replays its step, writes the page.
pub fn run_report(arguments: &ReportArguments, call: &Call) -> Result<(), Failure> {
    if arguments.out.is_dir() {
        return Err(failure::option_failure(
            "-o",
            arguments.out.display(),
            "is a directory",
            "give a file, such as report.html in it",
        ));
    }
    if ServingRun::is_in(&arguments.run) {
        return report_serving(arguments, call);
    }
    let subject = PageSubject::read_from(&arguments.run).or_input()?;
    if subject.kind == AnsweringVerb::Search {
        // A directory with files of another run is an error. A run of an older version without a chip only gives an
        // incomplete page.
        match SearchRun::read_chip(&arguments.run) {
            Ok(_) | Err(RunError::NoChip { .. }) => {}
            Err(error) => return Err(error).or_input(),
        }
    }
    let mut left_out = Vec::new();
    let parts = if subject.found.is_some() { job_parts(arguments, &subject, &mut left_out)? } else { None };
    let replay = match (&parts, &subject.found) {
        (Some(parts), Some(found)) => {
            let plan = &found.plan.plan;
            let asked = subject.asked.as_ref().map(|asked| &asked.software);
            let job = Job {
                model: &parts.model,
                chip: &parts.chip.accelerator,
                fabric: &parts.fabric,
                stack: &parts.stack,
                devices: u32::try_from(subject.devices).unwrap_or(u32::MAX),
                global_batch: subject.global_batch,
                sequence_length: subject.sequence_tokens,
                attention: plan.attention,
                precision: plan.precision,
                optimizer: plan.optimizer,
                headroom: asked.map_or(Bytes::ZERO, |software| Bytes::from_gib(software.headroom_gib)),
                // The neighbours of the run's plan must fit with the same chance as the plan.
                fit: asked.and_then(|software| software.fit).unwrap_or(NO_MARGIN),
                techniques: &plan.techniques,
            };
            let played = progress::run_with_progress(call, "replaying the step", || PlanReplay::new(&job, found));
            played.map_err(|why| left_out.push(format!("passes, kernels and memory over time, because {why}"))).ok()
        }
        _ => None,
    };
    let sources = parts.as_ref().map_or_else(Vec::new, |parts| {
        vec![SourceFile::of_chip(&parts.chip), SourceFile::of_fabric(&parts.fabric), SourceFile::of_stack(&parts.stack)]
    });
    let dies = chip_dies(parts.as_ref(), &mut left_out)?;
    let page = Page::new(&subject, replay, sources, dies, left_out);
    write_page(arguments, page, call)
}

/// Writes the page of a run of serve.
fn report_serving(arguments: &ReportArguments, call: &Call) -> Result<(), Failure> {
    let given = [
        ("--model", &arguments.model),
        ("--chip", &arguments.chip),
        ("--fabric", &arguments.fabric),
        ("--stack", &arguments.stack),
    ];
    if let Some((flag, value)) = given.iter().find_map(|(flag, value)| Some((*flag, value.as_ref()?))) {
        let limit = "a run of serve has all that its page shows";
        return Err(failure::option_failure(flag, value, limit, "leave it out"));
    }
    let run = ServingRun::read_from(&arguments.run).or_input()?;
    write_page(arguments, Page::of_serving(&run).or_other()?, call)
}

fn write_page(arguments: &ReportArguments, page: Page, call: &Call) -> Result<(), Failure> {
    finite::check_finite(&page).or_other()?;
    let html = page.to_html().or_other()?;
    files::write_file(&arguments.out, html.as_bytes()).or_unwritable()?;
    let written =
        ReportAnswer { written: arguments.out.display().to_string(), bytes: html.len(), left_out: page.left_out };
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&written), |_| {
        let mut text =
            format!("Written: {} ({:.1} MB; open it in a browser)\n", written.written, written.bytes as f64 / 1e6);
        text.extend(written.left_out.iter().map(|what| format!("Left out: {what}\n")));
        text
    })?;
    match written.left_out.as_slice() {
        [] => Ok(()),
        left_out => Err(Failure::Incomplete(anyhow::anyhow!("the page lacks {}", left_out.join("; and ")))),
    }
}

/// Returns the parts of the job. A wrong argument is an error. If a part that the run names is gone, the page omits the
/// part.
fn job_parts(
    arguments: &ReportArguments,
    subject: &PageSubject,
    left_out: &mut Vec<String>,
) -> Result<Option<JobParts>, Failure> {
    let given =
        [&arguments.model, &arguments.chip, &arguments.fabric, &arguments.stack].iter().any(|name| name.is_some());
    match (parts_of_question(arguments, subject), given) {
        (Ok(parts), _) => Ok(Some(parts)),
        (Err(failure), true) => Err(failure),
        (Err(Failure::Input(why)), false) => {
            left_out.push(format!(
                "passes, kernels, the chip's dies and sources, because a file that the run names is missing: {why:#}"
            ));
            Ok(None)
        }
        (Err(failure), false) => Err(failure),
    }
}

/// Returns the parts of the question; arguments replace the parts that they name.
fn parts_of_question(arguments: &ReportArguments, subject: &PageSubject) -> Result<JobParts, Failure> {
    let mut question = subject.asked.clone().unwrap_or_else(|| question_of_names(subject));
    let ReportArguments { model, chip, fabric, stack, .. } = arguments;
    let own: Vec<&str> = [model, chip, fabric, stack].into_iter().flatten().map(String::as_str).collect();
    question.files = files_beside(Some(&question), &own, &Files::default());
    if let (Some(model), Some(first)) = (model, question.models.first_mut()) {
        first.model.clone_from(model);
    }
    if let (Some(given), ChipChoice::One { chip, .. }) = (chip, &mut question.chips) {
        chip.clone_from(given);
    }
    question.cluster.fabric = fabric.clone().unwrap_or(question.cluster.fabric);
    question.software.stack = stack.clone().or(question.software.stack);
    JobParts::read(&question, Ok)
}

/// Makes the question of an older answer, which records only the names of its parts.
fn question_of_names(subject: &PageSubject) -> Question {
    let JobNames { model, chip, fabric, stack } = &subject.names;
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Question {
        study: None,
        models: vec![WorkloadSpec::of(model)],
        mtp_layers: None,
        assume_ignored: Vec::new(),
        capacity_factor: None,
        chips: ChipChoice::One { chip: chip.clone(), nvme: None },
        cluster: ClusterSpec {
            devices: number(subject.devices),
            fabric: fabric.clone(),
            global_batch_sequences: number(subject.global_batch),
        },
        fast_domain: None,
        software: Software { stack: Some(stack.clone()), ..Software::default() },
        plans: PlanSpace::default(),
        everything: false,
        aim: AimSpec::default(),
        limits: None,
        files: Files::default(),
    }
}

/// Returns the dies of the run's chip and of the chips beside it, each once. A chip without known dies is noted in
/// `left_out`.
fn chip_dies(parts: Option<&JobParts>, left_out: &mut Vec<String>) -> Result<Vec<PageDie>, Failure> {
    let mut dies = Vec::new();
    if let Some(parts) = parts {
        let name = &parts.chip.name;
        match PageDie::dies_of_chip(name, &parts.chip.accelerator) {
            Some(die) => dies.push(die),
            None => left_out.push(format!("the area of {name}, for its file says nothing of its dies")),
        }
    }
    for name in BESIDE.into_iter().filter(|name| parts.is_none_or(|parts| parts.chip.name != *name)) {
        dies.extend(PageDie::dies_of_chip(name, &ChipTemplate::find_built_in(name).or_other()?.accelerator));
    }
    Ok(dies)
}
