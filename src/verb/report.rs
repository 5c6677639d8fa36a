//! `coplace report`: writes a run as one HTML page.

use crate::answer::{self, Format, Versioned};
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::input;
use crate::progress;
use crate::verb::job::{JobArguments, JobParts};
use results::asked::JobInputs;
use results::page::{AnsweringVerb, JobNames, Page, PageDie, PageSubject, PlanReplay, SourceFile};
use results::run::{RunError, SearchRun};
use results::{files, finite};
use search::planner::Job;
use serde::Serialize;
use sim::hardware::ChipTemplate;
use sim::units::Bytes;
use std::path::PathBuf;

/// Chips that every page draws beside that of the run.
const BESIDE: [&str; 2] = ["tpu_v4", "h100_80gb_sxm"];

/// Write a run as one HTML page without external resources: the answer, the chip, the designs, the kernels, the step
/// and the proof
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coplace report runs/llama2-7b-phaze -o report.html\n  \
    coplace evaluate llama2-7b --chip tpu_v4 --format json > step.json && coplace report step.json\n\n\
    A search's directory holds all that a page shows. So does what `evaluate` and `plan` print: it has the texts of the chip's, fabric's, stack's and\n\
    model's files with it, and the step is played again for its passes and kernels. Of what older versions printed, files and options of a stack are\n\
    given again with --chip, --fabric, --stack and --model, else the page says what it leaves out, and the exit code is 3; so it is of measured links\n\
    (`plan --links`).\n\n\
    JSON: written, bytes, left_out.")]
pub struct ReportArguments {
    /// A run directory of `coplace search`, or an answer that `evaluate` or `plan` printed with --format json
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// File of the page
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    out: PathBuf,
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
pub fn run_report(arguments: &ReportArguments) -> Result<(), Failure> {
    if arguments.out.is_dir() {
        return Err(failure::input_failure(format!(
            "-o {}: is a directory; give a file, such as report.html in it",
            arguments.out.display()
        )));
    }
    let subject = PageSubject::read_from(&arguments.run).or_input()?;
    if subject.kind == AnsweringVerb::Search {
        let given = [&arguments.model, &arguments.chip, &arguments.fabric, &arguments.stack];
        let given: Vec<&str> = given.into_iter().flatten().map(String::as_str).collect();
        input::keep_files_of_run(&arguments.run, &given)?;
        // A run with foreign files is refused. A run of an older version without a chip is incomplete.
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
                headroom: Bytes::ZERO,
                techniques: &plan.techniques,
            };
            let played = progress::run_with_progress("playing the step again", || PlanReplay::new(&job, found));
            played.map_err(|why| left_out.push(format!("passes, kernels and memory over time, for {why}"))).ok()
        }
        _ => None,
    };
    let sources = parts.as_ref().map_or_else(Vec::new, |parts| {
        vec![SourceFile::of_chip(&parts.chip), SourceFile::of_fabric(&parts.fabric), SourceFile::of_stack(&parts.stack)]
    });
    let dies = chip_dies(parts.as_ref(), &mut left_out)?;
    let page = Page::new(&subject, replay, sources, dies, left_out);
    finite::check_finite(&page).or_other()?;
    let html = page.to_html().or_other()?;
    files::write_file(&arguments.out, html.as_bytes()).or_unwritable()?;
    let written = ReportAnswer { written: arguments.out.display().to_string(), bytes: html.len(), left_out: page.left_out };
    answer::write_answer(arguments.format, &Versioned::with_schema_one(&written), |_| {
        let mut text = format!("Written: {} ({:.1} MB; open it in a browser)\n", written.written, written.bytes as f64 / 1e6);
        text.extend(written.left_out.iter().map(|what| format!("Left out: {what}\n")));
        text
    })?;
    match written.left_out.as_slice() {
        [] => Ok(()),
        left_out => Err(Failure::Incomplete(anyhow::anyhow!("the page lacks {}", left_out.join("; and ")))),
    }
}

/// The parts of the job. A wrong argument is an error. If a part that the run names is gone, the page omits it.
fn job_parts(
    arguments: &ReportArguments,
    subject: &PageSubject,
    left_out: &mut Vec<String>,
) -> Result<Option<JobParts>, Failure> {
    let given = [&arguments.model, &arguments.chip, &arguments.fabric, &arguments.stack].iter().any(|name| name.is_some());
    match (parts_of_job(arguments, subject), given) {
        (Ok(parts), _) => Ok(Some(parts)),
        (Err(failure), true) => Err(failure),
        (Err(Failure::Input(why)), false) => {
            left_out.push(format!("passes, kernels, the chip's dies and sources, for what the run names is not there: {why:#}"));
            Ok(None)
        }
        (Err(failure), false) => Err(failure),
    }
}

/// Reads the job of the run, with the given parts instead of its own.
fn parts_of_job(arguments: &ReportArguments, subject: &PageSubject) -> Result<JobParts, Failure> {
    let mut job =
        if subject.asked.asked_with.is_empty() { job_of_names(subject)? } else { job_of_answer(arguments, &subject.asked)? };
    let instead = |part: &mut String, given: &Option<String>| given.iter().for_each(|name| part.clone_from(name));
    instead(&mut job.model, &arguments.model);
    instead(&mut job.chip, &arguments.chip);
    instead(&mut job.fabric, &arguments.fabric);
    job.stack = arguments.stack.clone().or(job.stack);
    job.parts_of_job()
}

/// The job of an answer with recorded inputs. The texts of its files come from the answer.
fn job_of_answer(arguments: &ReportArguments, asked: &JobInputs) -> Result<JobArguments, Failure> {
    let own = [&arguments.model, &arguments.chip, &arguments.fabric, &arguments.stack];
    input::keep_texts(asked.inputs.clone(), &own.into_iter().flatten().map(String::as_str).collect::<Vec<_>>());
    JobArguments::from_words(&asked.asked_with)
}

/// The job of a search, or of an answer that has only the names of its parts.
fn job_of_names(subject: &PageSubject) -> Result<JobArguments, Failure> {
    let JobNames { model, chip, fabric, stack } = &subject.names;
    let options = subject.run.as_ref().map(|run| &run.record.study.options);
    let further = options.and_then(|options| options.get("mtp_layers").cloned()).unwrap_or_else(|| "0".to_owned());
    let (devices, batch) = (subject.devices.to_string(), subject.global_batch.to_string());
    let words = [model, "--chip", chip, "--fabric", fabric, "--stack", stack, "--mtp-layers", &further];
    let cluster = ["--devices", &devices, "--global-batch", &batch];
    JobArguments::from_words(&words.into_iter().chain(cluster).map(str::to_owned).collect::<Vec<_>>())
}

/// The chip of the run and the others beside it, each once.
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
