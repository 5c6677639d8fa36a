//! `coplace evaluate`: evaluates one plan and explains its figures.

use crate::answer::{self, Format};
use crate::call::{Call, CallControl};
use crate::failure::{self, Failure, OrInput, OrUnwritable};
use crate::progress;
use crate::verb::job::{FrameworkFileArgument, JobArguments, LoadedJob, SpaceArguments, option_of_rule};
use crate::verb::plan::{self, describe_job, draw_memory};
use crate::written_path::WrittenPath;
use interop::chakra;
use results::answer::evaluation::EvaluateAnswer;
use results::answer::step::ExplainedPlan;
use results::emit::trace;
use results::page::PageRoofline;
use results::report;
use results::report::KernelDetailLevel;
use results::store::files;
use search::ask::Question;
use search::planner::{Job, NO_MARGIN, PlanAnswer, PlanWatch, USUAL_FIT, search_documented};
use sim::files::carried::Files;
use std::path::Path;
use step::TrainingPlan;

/// Evaluate one plan of a model on a cluster: time, memory, energy, and the bound of each kernel
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coplace evaluate llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 64 --global-batch 512\n  \
    coplace evaluate llama2-7b --chip a100_80gb --fabric selene_hdr200x8 --devices 64 --global-batch 512 --pipeline 4 --data 4 --tensor 4 --trace step.json\n  \
    coplace evaluate llama2-7b --chip tpu_v4 --stack ideal --tensor 2 --kernels\n\n\
    If the arguments leave several plans, the fastest one that fits with a chance of 90 % is found, as by `plan`;\n\
    time and memory are those of `plan`. Without --fabric, --devices and --global-batch the cluster is 1,024\n\
    devices on the chip's usual network, with 4,096 sequences per step.\n\
    If no plan fits the chip, the answer names the stage and its shortfall. A --headroom-gib that no plan leaves\n\
    free is an error, which suggests a value. Energy on network links is not modelled.\n\n\
    JSON: format, job, counts, feasible, why, shortfall, and result with plan, energy, time_shares, stages,\n\
    timeline, slowest_stage and passes (each with its kernels). The keys have the units; docs/json.md describes\n\
    every key."
)]
pub struct EvaluateArguments {
    #[command(flatten)]
    from: FrameworkFileArgument,
    #[command(flatten)]
    job: JobArguments,
    #[command(flatten)]
    choices: SpaceArguments,
    /// Show every kernel of the slowest stage's passes, before the summary
    #[arg(long)]
    kernels: bool,
    /// Write the step as a trace for Chrome or Perfetto: every stage pass by pass, and the slowest stage's passes
    /// kernel by kernel
    #[arg(long, value_name = "FILE.json")]
    trace: Option<WrittenPath>,
    /// Write a micro-batch on the slowest stage, kernel by kernel, as a Chakra execution trace (MLCommons), for
    /// ASTRA-sim and others; FILE.groups.json beside it has the groups of ranks
    #[arg(long, value_name = "FILE.et")]
    chakra: Option<WrittenPath>,
    /// Draw the memory of every stage over the step into this directory (memory.svg and .png), which is created if
    /// needed
    #[arg(long, value_name = "DIR")]
    memory: Option<WrittenPath>,
    /// Print the whole answer: the longest kernels, memory by class, stages over the step, time, energy
    #[arg(long)]
    details: bool,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl EvaluateArguments {
    /// Returns the same arguments, with texts that replace files of the same names.
    pub fn with_files(mut self: Box<Self>, files: &Files) -> Box<Self> {
        self.job.files.clone_from(files);
        self
    }
}

/// Finds the fastest plan of a question whose parts are loaded.
fn find_plan(question: &Question, loaded: &mut LoadedJob, call: &Call) -> Result<PlanAnswer, Failure> {
    let (asked, cluster) = (question.plans.clone().with_mixes_of(&loaded.stack), loaded.cluster.clone());
    let searched = |job: &Job<'_>| {
        let (space, _) = plan::requested_spaces(None, false, job, &cluster, &asked);
        progress::run_with_progress(call, "searching plans", || search_documented(job, &space, 1, PlanWatch::NONE))
            .or_input()
    };
    let settled = loaded.settle_offload(question, searched)?;
    let job = loaded.planner_job(question);
    let (space, _) = plan::requested_spaces(None, false, &job, &cluster, &asked);
    asked.check_tensor_names(&job).or_input()?;
    if let Some(error) = asked.fault(&space, &job, &cluster) {
        return Err(failure::option_failure_of_rule(option_of_rule(error.key), error));
    }
    let found = settled.map_or_else(|| searched(&job), Ok)?;
    if let (Some(refusal), true) = (&found.refusal, found.refused == found.plans) {
        return Err(failure::input_failure(refusal));
    }
    Ok(found)
}

/// Finds the fastest plan as [`find_plan`], but among plans whose peak fits with the usual chance of `plan`, if there
/// is one. If there is none, the answer says how likely its plan fits.
fn find_safe_plan(question: &Question, loaded: &mut LoadedJob, call: &Call) -> Result<PlanAnswer, Failure> {
    let techniques = loaded.techniques().clone();
    loaded.ask_fit(USUAL_FIT, techniques.clone());
    let safe = find_plan(question, loaded, call)?;
    if !safe.best.is_empty() {
        return Ok(safe);
    }
    loaded.ask_fit(NO_MARGIN, techniques);
    let found = find_plan(question, loaded, call)?;
    plan::unmet_budget(question, &loaded.planner_job(question), &found)?;
    Ok(found)
}

/// An evaluated job: its record, and further data that a page draws.
pub struct EvaluatedJob {
    /// The record of the verb.
    pub record: EvaluateAnswer,
    /// The fastest plan; `None` if none fits.
    pub plan: Option<TrainingPlan>,
    /// The kernels of the plan under the chip's roofline; `None` if no plan fits.
    pub roofline: Option<PageRoofline>,
    /// The name of the chip.
    pub chip_name: String,
}

/// Evaluates a question without printing it.
pub fn evaluate_question(question: Question) -> Result<EvaluatedJob, Failure> {
    let call = Call::of_library(Files::default(), CallControl::default());
    let mut loaded = LoadedJob::load(&question, Ok)?;
    let found = find_safe_plan(&question, &mut loaded, &call)?;
    let job = loaded.planner_job(&question);
    let best = found.best.first();
    let explained = best.map(|ranked| ExplainedPlan::explain_plan(&job, ranked)).transpose().or_input()?;
    Ok(EvaluatedJob {
        record: EvaluateAnswer::new(&job, question.model(), &found, explained.as_ref()),
        plan: best.map(|ranked| ranked.plan.clone()),
        roofline: explained.as_ref().map(|explained| PageRoofline::new(&job, &explained.why)),
        chip_name: job.chip.known_name().to_owned(),
    })
}

/// Runs the verb: evaluates, writes the traces, and prints.
pub fn run_evaluate(arguments: &EvaluateArguments, call: &Call) -> Result<(), Failure> {
    let question = arguments.question()?;
    let mut loaded = LoadedJob::load(&question, Ok)?;
    let found = find_safe_plan(&question, &mut loaded, call)?;
    let job = loaded.planner_job(&question);
    let explained =
        found.best.first().map(|ranked| ExplainedPlan::explain_plan(&job, ranked)).transpose().or_input()?;
    let mut written = write_traces(arguments, &job, explained.as_ref());
    if let (Some(best), Some(_)) = (found.best.first(), &arguments.memory) {
        let timeline = job.plan_timeline(&best.plan).or_input()?;
        let title = describe_job(&arguments.job, &question);
        written = written.and(draw_memory(arguments.memory.as_deref(), &title, &timeline, best));
    }
    let mut record = EvaluateAnswer::new(&job, question.model(), &found, explained.as_ref());
    record.asked = Some(question);
    let kernels = if arguments.kernels { KernelDetailLevel::All } else { KernelDetailLevel::Longest };
    answer::write_answer_with_files(call, arguments.format, &record, written, |record| {
        if arguments.details {
            report::evaluation_report(record, kernels)
        } else {
            report::evaluation_summary(record, kernels)
        }
    })
}

impl EvaluateArguments {
    /// Returns the question that the arguments ask.
    pub fn question(&self) -> Result<Question, Failure> {
        let usual = self.job.usual_cluster()?;
        self.job.question(self.choices.plan_space()?, usual.as_ref(), true)
    }
}

/// Writes the requested traces.
fn write_traces(
    arguments: &EvaluateArguments,
    job: &Job<'_>,
    explained: Option<&ExplainedPlan>,
) -> Result<(), Failure> {
    let title = format!("{} on {} x {}", arguments.job.model, job.devices, job.chip.name);
    let write = |flag: &str, file: Option<&Path>, contents: &dyn Fn(&ExplainedPlan) -> Vec<u8>| {
        let Some(file) = file else { return Ok(()) };
        let Some(explained) = explained else {
            tracing::warn!("{flag} {}: no plan fits, nothing is written", file.display());
            return Ok(());
        };
        files::write_file(file, &contents(explained)).or_unwritable()
    };
    write("--trace", arguments.trace.as_deref(), &|explained| {
        trace::kernel_trace(&title, explained, job.chip).into_bytes()
    })?;
    let groups = arguments.chakra.as_ref().map(|file| file.with_extension("groups.json"));
    write("--chakra", groups.as_deref(), &|explained| chakra::write_rank_groups(&explained.why).into_bytes())?;
    write("--chakra", arguments.chakra.as_deref(), &|explained| chakra::write_execution_trace(&title, &explained.why))
}
