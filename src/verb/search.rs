//! `coplace search`: finds the best chip and plan.

mod again;
mod asked;
pub mod baselines;
mod gain;
pub mod models;
mod notes;
pub mod parts;
pub mod question;
mod round;
pub mod within;

use crate::answer::{self, Format};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::numbers::{real_number, token_count_in, whole_number_in};
use crate::verb::job::{LONGEST, MOST_MTP, count_up_to, ignored_key};
use crate::verb::plan::parse_fit;
use crate::verb::slurm::PartArguments;
use crate::verb::stop;
use crate::written_path::WrittenPath;
use asked::NamedChoice;
pub use notes::find_slower_clock;
use question::SearchQuestion;
pub use question::chip_document;
use results::answer::decision::DecisionRecord;
use results::report;
use results::run::claim::DirectoryClaim;
use results::run::conversion::{self, SearchedModelSet};
use results::run::front::{FrontAxes, StepScope};
use results::run::older::OlderRun;
use results::run::progress::ProgressTable;
use results::run::record::{self, BestDesign, Certificate, FrontRecord, SearchRecord, StudyRecord, Versions};
use results::run::search_run::{self, FoundFiles, SearchRun};
use results::store::design::DesignRow;
use results::text::{format_count, format_heading, format_percent, format_rate};
use round::SearchRound;
use search::bad_end::bad_end_factor;
use search::design::{DecisionEffort, DesignAnswer, DesignEvaluation, DesignSearch, RobustSearch, decide_under_draws};
use search::objective::{CostAxes, MeasureMean, Objective, PaidHardware, ValueScale};
use search::planner::{Job, PreparedJob, RankedPlan};
use search::runner::{CandidateOutcome, RunnerProgress};
use search::space::{DesignId, EfficiencyChoice};
use sim::files::carried::Files;
use sim::hardware::Accelerator;
use std::any::TypeId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Default number of draws of uncertain constants.
const DRAWS: u32 = 256;
/// Smallest number of draws other than 0.
const FEWEST_DRAWS: u32 = 16;
/// Largest number of draws.
const MOST_DRAWS: u32 = 65_536;

/// Search for the accelerator on which a model trains fastest, and for its plan
#[derive(clap::Args, Clone)]
#[command(after_help = "Examples:\n  coplace search llama2-7b\n  \
    coplace search --study train_and_serve --out runs/both\n  \
    coplace search llama3-70b mixtral-8x7b --study tpu --over geomean\n  \
    coplace search path/to/config.json --sequence-length 4096 --out runs/mine\n  \
    coplace search llama3-70b --study tpu --max-area 600 --max-power 500 --node n5 --hbm-stacks 6 --devices 256 \
    --global-batch 1024\n  \
    coplace search llama3-70b --study tpu --parts 64 --slurm --partition=long --time=4:00:00\n\n\
    Writes into the run directory: record.json (study, proof, best design, comparison, times), designs.parquet (every design that was\n\
    decided by itself and what became of it), progress.csv (the gap over time), best.toml (the chip that was found, for any verb's --chip; so is the directory), fabric.toml where the study varies a\n\
    base chip, pareto.svg and pareto.png (the objective against the front's first axis), tornado.svg and\n\
    tornado.png (the constants that move the choice), SHA256SUMS (digests of the others).\n\
    A directory with the answer to another question is never overwritten.\n\
    A study with a table [serve] (train_and_serve) is answered as by coplace serve --study, into --out alone.\n\
    A part (--shard) has part.json, decided.bin and SHA256SUMS: coplace merge makes a run of all parts, without\n\
    progress.csv. --slurm writes parts, logs and scripts beside the run directory, into DIR.parts, and submits the parts that are not there.\n\
    JSON: the record, as in record.json; of a part part, question, evaluated, seconds, was_complete, files; with --slurm parts, submitted, complete,\n\
    running, job, merge_job, directory, out.")]
pub struct SearchArguments {
    #[command(flatten)]
    posed: SearchRequest,
    /// Run directory [default: runs/MODEL-STUDY, with a digest of the question if it differs from the study's]
    #[arg(long, value_name = "DIR")]
    out: Option<WrittenPath>,
    /// Seed of all random choices; kept in the record (the exhaustive search has none)
    #[arg(long, default_value_t = 0, value_parser = whole_number_in(0..=u64::MAX))]
    seed: u64,
    /// Draws of what is not known (coplace list constants), under which the best designs are compared: how often the
    /// best one stays the best, what choosing it costs if it does not, and what is worth knowing; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = DRAWS, value_parser = whole_number_in(0..=MOST_DRAWS))]
    draws: u32,
    /// Print the whole answer: plan, memory, proof, draws, front, every row of the comparison, the gap over time
    #[arg(long)]
    details: bool,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// With --shard: a directory that all parts share. Each part writes its best designs there, and prunes with those
    /// of the others
    #[arg(long, value_name = "DIR", requires = "shard")]
    share: Option<WrittenPath>,
    #[command(flatten)]
    in_parts: PartArguments,
}

/// The question as it is given: a model, a study, and what is asked otherwise than the study says.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct SearchRequest {
    /// A recorded question (question.json, as --slurm writes it), asked again as it is
    #[arg(long, value_name = "FILE.json")]
    pub question: Option<PathBuf>,
    /// Built-in models (coplace list models) or Hugging Face config.json files; several are searched for together; a file STUDY.toml among them is the
    /// study [default: the study's]
    #[arg(value_name = "MODEL")]
    pub models: Vec<String>,
    /// A built-in study (coplace list studies) or a study file (.toml) [default: tpu]
    #[arg(long)]
    pub study: Option<String>,
    /// Software stack instead of the study's: built in (coplace list stacks) or a stack file (.toml)
    #[arg(long)]
    pub stack: Option<String>,
    /// GiB per device that plans leave free, in addition to the memory of the stack
    #[arg(long, value_name = "GIB", default_value_t = 0.0, value_parser = real_number)]
    pub headroom_gib: f64,
    /// The least chance that a plan's peak memory fits, above 0 and below 1. With 0.5 or less the predicted peak has to
    /// fit and may fill the memory [default: the study's, 0.9]
    #[arg(long, value_name = "PROBABILITY", value_parser = parse_fit)]
    pub fit: Option<f64>,
    /// Tokens per sequence; 32k is 32768 [default: the model's longest]
    #[arg(long, value_name = "TOKENS", value_parser = token_count_in(1..=LONGEST))]
    pub sequence_length: Option<u64>,
    /// Modules that predict further tokens, trained with every model, as in `plan --mtp-layers` [default: none]
    #[arg(long, value_name = "N", value_parser = whole_number_in(0..=MOST_MTP))]
    pub mtp_layers: Option<u64>,
    /// Take a key of a model's file that nothing reads as without effect. Can be given several times
    #[arg(long, value_name = "KEY=ignored", value_parser = ignored_key)]
    pub assume: Vec<String>,
    #[command(flatten)]
    pub asked: StudyOverrides,
    /// Texts that stand in for files of the same names.
    #[arg(skip)]
    pub files: Files,
}

/// Overrides of the study.
#[derive(clap::Args, Debug, Clone, PartialEq, Default)]
pub struct StudyOverrides {
    /// Largest area of a chip's compute dies, in mm² of their node
    #[arg(long, value_name = "MM2", value_parser = real_number)]
    max_area: Option<f64>,
    /// Largest power of a chip under its heavier sustained load, in W: a large matrix product, or a stream through HBM.
    /// A step that runs both at once may take more; the report says so
    #[arg(long, value_name = "WATTS", value_parser = real_number)]
    max_power: Option<f64>,
    /// Largest cost of making a chip, in USD
    #[arg(long, value_name = "USD", value_parser = real_number)]
    max_cost: Option<f64>,
    /// Smallest HBM capacity of a chip, in GiB
    #[arg(long, value_name = "GIB", value_parser = real_number)]
    min_hbm_gib: Option<f64>,
    /// Largest HBM capacity of a chip, in GiB
    #[arg(long, value_name = "GIB", value_parser = real_number)]
    max_hbm_gib: Option<f64>,
    /// Smallest read bandwidth of a chip's HBM, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = real_number)]
    min_hbm_bandwidth: Option<f64>,
    /// Try chips that cannot be built too: without the limits of reticle, die edge, package and heat
    #[arg(long)]
    no_build_limits: bool,
    /// How far the chips get: ideal (every peak is reached), family (as far as chips of their family were measured to
    /// get) or base (as far as the study's base chip) [default: the study's, family]
    #[arg(long, value_name = "NAME")]
    efficiency: Option<NamedChoice<EfficiencyChoice>>,
    /// Longest step, in seconds; with --robust the limit applies to the bad end of the step's interval
    #[arg(long, value_name = "SECONDS", value_parser = real_number)]
    max_step: Option<f64>,
    /// Process node of the chips: n45, n28, n22, n16, n8, n7, n6, n5, n4 or n3; 7nm and 7 are n7
    #[arg(long)]
    node: Option<String>,
    /// HBM stacks of a chip
    #[arg(long, value_name = "N", value_parser = count_up_to(64))]
    hbm_stacks: Option<u32>,
    /// Fix a dimension: a field of the chip's file (coplace list dimensions) or a name of the study's. Can be given
    /// several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Devices instead of the study's
    #[arg(long, value_name = "N", value_parser = count_up_to(1 << 20))]
    devices: Option<u32>,
    /// Network between the devices instead of the study's: built in (coplace list fabrics) or a fabric file (.toml)
    #[arg(long)]
    fabric: Option<String>,
    /// Sequences per step over the whole cluster, instead of the study's
    #[arg(long, value_name = "SEQUENCES", value_parser = count_up_to(1 << 24))]
    global_batch: Option<u32>,
    /// Objective: throughput, step-time, per-mm2, per-watt (of the heaviest load), per-dollar or energy-per-token;
    /// per-mm2, per-watt and per-dollar divide a device's throughput by its own dies, power or cost [default:
    /// throughput]
    #[arg(long, value_name = "NAME")]
    objective: Option<NamedChoice<Objective>>,
    /// With objective per-dollar: years of operation whose energy is paid as well [default: the study's, 0]
    #[arg(long, value_name = "YEARS", value_parser = real_number)]
    years: Option<f64>,
    /// With --years: price of a kWh [default: the study's, 0.08, the average of industry in the United States in 2023
    /// (EIA)]
    #[arg(long, value_name = "USD", value_parser = real_number)]
    kwh_price: Option<f64>,
    /// With --years: energy of the whole site relative to that of its machines [default: the study's, 1.1, Google's
    /// fleet in 2023]
    #[arg(long, value_name = "RATIO", value_parser = real_number)]
    pue: Option<f64>,
    /// With --years: fraction of the time in which steps run, 0 to 1 [default: the study's, 0.9, effective training
    /// time of Llama 3]
    #[arg(long, value_name = "PART", value_parser = real_number)]
    utilisation: Option<f64>,
    /// With objective per-dollar: what the dollars buy besides energy, chip, or system: the chip and its part of hosts,
    /// network cards, switches, cables and optics [default: the study's, chip]
    #[arg(long, value_name = "NAME")]
    dollars: Option<NamedChoice<PaidHardware>>,
    /// With several models: the mean of their rates relative to the reference chip, geomean or mean [default: the
    /// study's, geomean]
    #[arg(long, value_name = "NAME")]
    over: Option<NamedChoice<MeasureMean>>,
    /// Stop searching after this many seconds, with the best so far and its gap. Explaining and comparing it takes
    /// seconds to a minute more, which Ctrl-C leaves out; a second Ctrl-C ends the program
    #[arg(long, value_name = "SECONDS", value_parser = real_number)]
    pub time_limit: Option<f64>,
    /// Allowed gap in percent: how much better another design may be than the best found; 0 proves the best
    #[arg(long, value_name = "PERCENT", value_parser = real_number)]
    pub within: Option<f64>,
    /// Quantities of the exact front beside the objective: one or two, separated by a comma, of area, power, cost,
    /// energy (of a step); or none [default: area with throughput, none with others]
    #[arg(long, value_name = "AXIS[,AXIS]")]
    front: Option<NamedChoice<CostAxes>>,
    /// Rank designs by the bad end of the 90 % interval of their fastest plan, not by its predicted step: the best
    /// design if the model is as wrong about each as it was about similar measured runs. Without a front
    #[arg(long)]
    pub robust: bool,
}

#[cfg(test)]
impl SearchArguments {
    /// Returns the question that the arguments ask.
    pub fn question(&self) -> Result<search::ask::Question, Failure> {
        self.posed.settle_study()?.question()
    }
}

/// A search of a named study. If the study has a table `[serve]`, the code of `coplace serve` answers it.
pub struct StudySearch {
    pub study: String,
    pub models: Vec<String>,
    /// True if the request does not differ from the study and is not split into parts.
    pub is_plain: bool,
    pub files: Files,
    pub out: Option<PathBuf>,
    pub format: Format,
}

impl SearchArguments {
    /// Returns the search of the named study; `None` if no study is named, or if the question is a recorded one.
    pub fn study_search(&self) -> Result<Option<StudySearch>, Failure> {
        let posed = self.posed.settle_study()?;
        let in_parts = self.in_parts.shard.is_some() || self.in_parts.slurm.is_some();
        let is_plain = !posed.changes_study() && !in_parts;
        let (out, format) = (self.out.as_deref().map(Path::to_path_buf), self.format);
        let named = posed.study.filter(|_| posed.question.is_none());
        Ok(named.map(|study| StudySearch { study, models: posed.models, is_plain, files: posed.files, out, format }))
    }

    /// Returns the same arguments, with texts that replace files of the same names.
    pub fn with_files(mut self: Box<Self>, files: &Files) -> Box<Self> {
        self.posed.files.clone_from(files);
        self
    }
}

/// Runs the verb: searches, writes the run directory, prints the report.
pub fn run_search(arguments: &SearchArguments, call: &Call) -> Result<(), Failure> {
    let arguments = &SearchArguments { posed: arguments.posed.settle_study()?, ..arguments.clone() };
    if arguments.in_parts.shard.is_some() || arguments.in_parts.slurm.is_some() {
        return parts::run_part(arguments, call);
    }
    if arguments.posed.asked.robust && arguments.draws != DRAWS {
        let cure = "--robust has a rule of doubt of its own; leave one of the two out";
        return Err(failure::option_failure("--draws", arguments.draws, cure, ""));
    }
    if (1..FEWEST_DRAWS).contains(&arguments.draws) {
        let limit = "a dimension is settled in nine of ten draws, which so few cannot tell";
        let cure = format!("draw {FEWEST_DRAWS} or more, or 0 to leave it out");
        return Err(failure::option_failure("--draws", arguments.draws, limit, cure));
    }
    let start = Instant::now();
    let limit = stop::StopLimit::new(call, arguments.posed.asked.time_limit)?;
    let question = SearchQuestion::read_question(&arguments.posed)?;
    let digest = question.digest_of_question(arguments.seed);
    let out = claim_run_directory(arguments.out.as_deref(), &arguments.posed, arguments.seed, &question, &digest)?;
    SearchRound { arguments, call, limit: &limit, out: &out, digest: &digest, start }.run(question)
}

/// A model of a question on a design, under its plan.
pub struct PlannedModel<'a> {
    pub job: Job<'a>,
    pub ranked: &'a RankedPlan,
    /// Its share among the models; all shares add up to one.
    pub share: f64,
}

/// Returns the models of a question on a design, each with its job, its plan and its share; `None` if a model has no
/// plan.
fn models_of_design<'a>(
    question: &SearchQuestion,
    searched: &'a SearchedModelSet<'_>,
    id: DesignId,
    chip: &'a Accelerator,
    evaluation: &'a [DesignEvaluation],
) -> Option<Vec<PlannedModel<'a>>> {
    let models = question.all_models().zip(evaluation).enumerate();
    let on_design = models.map(|(model, (of, one))| {
        let ranked: &RankedPlan = one.outcome.as_ref().ok()?;
        let job = searched.job_on_design(model, id, chip);
        Some(PlannedModel { job, ranked, share: question.share_of_model(of) })
    });
    on_design.collect()
}

/// Returns how often an answer stays the best under draws of uncertain constants; `None` without draws, after a stop,
/// or for a search by bad ends, which has its own rule of doubt. A failure gives a warning and `None`.
pub fn decide_answer(
    search: &DesignSearch<'_>,
    answer: &DesignAnswer,
    effort: DecisionEffort,
    stop: &(dyn Fn() -> bool + Sync),
) -> Option<DecisionRecord> {
    if effort.draws == 0 || search.robust.is_some() || stop() {
        return None;
    }
    // The answer of the search matters more than its confidence, so a failure here is only a warning.
    let decision = decide_under_draws(search, answer, effort, stop).unwrap_or_else(|why| {
        tracing::warn!(
            "how sure the choice is, is not known: {why}; allow more power, or fix constants (space.constants)"
        );
        None
    });
    decision.map(|decision| conversion::decision_record(search.space, &decision))
}

/// Prepares the plans of a question's models, and calls `with` on the prepared search.
pub fn prepare_and_search<T>(
    question: &SearchQuestion,
    with: impl FnOnce(&SearchedModelSet<'_>, &DesignSearch<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let jobs = models::jobs_of_models(question);
    let prepared = models::prepare_models(question, &jobs)?;
    let references = models::reference_steps(question)?;
    let models = models::searched_models(question, &jobs, &references);
    let workloads = models::search_workloads(question, &prepared, &references);
    let (space, aim) = (&question.space, question.aim);
    let least = if question.robust { models::least_interval_ends(question, &prepared)? } else { Vec::new() };
    let robust = question.robust.then_some(RobustSearch { factor: bad_end_factor, least: &least });
    let searched = SearchedModelSet { models: &models, space, aim, robust: question.robust };
    with(&searched, &DesignSearch { workloads: &workloads, space, aim, robust })
}

/// The parts of a record beside the answer.
pub struct RecordContext {
    pub digest: String,
    pub seed: u64,
    /// The reason why the search stopped early, if it did.
    pub stopped: Option<String>,
    /// The confidence in the choice; `None` if it was not computed.
    pub decision: Option<DecisionRecord>,
    /// True if draws were asked for and made, though none of the drawn constants moves the choice.
    pub undecided: bool,
    /// The gap over time, as CSV.
    pub grown: Option<String>,
    /// Start of the whole search.
    pub start: Instant,
    pub times: BTreeMap<String, f64>,
}

/// The record of an answer, its designs, and the files of the found chip and fabric.
pub struct ConcludedSearch {
    pub record: SearchRecord,
    pub designs: Vec<DesignRow>,
    pub found: FoundFiles,
}

/// Returns the front of a search; `None` if no front was asked for.
fn front_of_search(
    question: &SearchQuestion,
    rows: &[DesignRow],
    study: &StudyRecord,
    certificate: &Certificate,
) -> Option<FrontRecord> {
    question.aim.axes.named_axes().next()?;
    let several = !question.others.is_empty();
    let axes = FrontAxes::of_search(rows, study, &certificate.objective, several);
    FrontRecord::from_designs(axes, rows, &StepScope::of_study(study, several))
}

/// Explains an answer and compares its best design.
pub fn conclude_search(
    question: &SearchQuestion,
    searched: &SearchedModelSet<'_>,
    answer: &DesignAnswer,
    about: RecordContext,
    call: &Call,
) -> Result<ConcludedSearch, Failure> {
    let RecordContext { digest, seed, stopped, decision, undecided, grown, start, mut times } = about;
    let explaining = Instant::now();
    let mut rows = searched.design_rows(answer).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
    name_bounds(searched, answer, &mut rows)?;
    let best = best_design(question, searched, answer, &rows)?;
    let comparison = match &best {
        Some(_) if call.control.is_stopped() => {
            tracing::warn!("the best design is not compared with built chips, which would take some seconds more");
            None
        }
        Some(best) if question.others.is_empty() => Some(models::compare_best_designs(question, answer, &rows, best)?),
        _ => None,
    };
    let mut certificate = conversion::certificate_of(searched, answer);
    certificate.why = certificate.why.or_else(|| stopped.filter(|_| certificate.open > 0));
    let mut best = best;
    if let Some(above) = notes::note_on_wide_gap(question, &certificate)
        && let Some(best) = &mut best
    {
        certificate.why = certificate.why.or_else(|| Some(above.clone()));
        best.notes.push(above);
    }
    if let (true, Some(best)) = (undecided, &mut best) {
        best.notes.push(notes::UNDECIDED.to_owned());
    }
    let found = FoundFiles { progress: grown, ..found_files(question, answer, &digest)? };
    times.insert("compare".to_owned(), explaining.elapsed().as_secs_f64());
    times.insert("total".to_owned(), start.elapsed().as_secs_f64());
    let (format, versions, study) = (record::FORMAT, Versions::current(), question.study_record());
    let asked = question.asked.clone();
    let front = front_of_search(question, &rows, &study, &certificate);
    let record = SearchRecord {
        format,
        versions,
        question: digest,
        study,
        seed,
        certificate,
        best,
        comparison,
        decision,
        front,
        lowered_to_w: question.study.space.limits.lower_to_w,
        asked,
        times,
    };
    Ok(ConcludedSearch { record, designs: rows, found })
}

/// Writes the run directory and prints the report. If an older run in the directory has a reason to stay, only prints
/// the report and that reason.
pub fn write_and_print(
    call: &Call,
    out: &DirectoryClaim,
    format: Format,
    concluded: ConcludedSearch,
    text: impl FnOnce(&SearchRecord) -> String,
) -> Result<(), Failure> {
    let ConcludedSearch { mut record, designs, mut found } = concluded;
    let older = OlderRun::read_from(out.path(), &record);
    if let Some(why) = older.as_ref().and_then(|older| older.reason_to_stay(&record, out.path())) {
        call.note_directory(out.path());
        return answer::write_answer(call, format, &record, |record| format!("{}\n{why}\n", text(record)));
    }
    if let Some(older) = older {
        older.add_to(&mut record, &mut found);
    }
    let name = out.path().file_name().unwrap_or(out.path().as_os_str()).to_string_lossy().into_owned();
    let run = SearchRun { name, record, designs };
    // The answer of a search matters more than its files. It is printed even if they cannot be written.
    let written = run.write_run(out.path(), &found);
    call.note_directory(out.path());
    let printed = answer::write_answer(call, format, &run.record, |record| match &written {
        Ok(files) => {
            let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            format!("{}\nWritten: {}\n", text(record), files.join(", "))
        }
        Err(_) => text(record),
    });
    // If both failed, the files' failure is returned: lost files are worse than a reader that closed its pipe.
    written.or_unwritable()?;
    printed
}

/// Returns the report with the progress of the proof.
fn report_with_progress(record: &SearchRecord, grown: &ProgressTable) -> String {
    let shown = grown.rows().last().and_then(|row| row.gap);
    let besides = match (record.certificate.gap, shown) {
        (Some(proven), Some(shown)) if proven > shown + 1e-6 => format!(
            "\nThis table uses the times of evaluated plans. Some of their schedules are unproven: with their bounds \
            instead, no design is better by more than {:.3} %, as the proof says.\n",
            100.0 * proven
        ),
        _ => String::new(),
    };
    format!("{}{}{}{besides}", report::run_report(record), format_heading("The gap over time"), grown.to_text())
}

/// Prepares a job with the study's plans for evaluations on many chips. Fails if the space of plans is empty.
pub fn prepare_job<'a>(question: &SearchQuestion, job: &Job<'a>) -> Result<PreparedJob<'a>, Failure> {
    let space = question.study.plan.choices.clone();
    // A fault in the study's own values is to be corrected in the study.
    let fault = match question.cluster_by_flags {
        true => space.unfit_cluster(job, &question.cluster),
        false => space.emptiness(job, &question.cluster),
    };
    if let Some(fault) = fault {
        return Err(failure::file_failure(&question.name, format!("plan: {fault}"), ""));
    }
    Ok(PreparedJob::new(*job, &space).or_input()?.with_split_tolerance(question.study.tolerances().splits))
}

/// Returns the type of the option for a front's axes, whose list is parsed as one word.
pub fn axes_type() -> TypeId {
    TypeId::of::<NamedChoice<CostAxes>>()
}

/// Claims the run directory for this search.
pub fn claim_run_directory(
    given: Option<&Path>,
    posed: &SearchRequest,
    seed: u64,
    question: &SearchQuestion,
    digest: &str,
) -> Result<DirectoryClaim, Failure> {
    let out = run_path(given, posed, seed, question, digest)?;
    DirectoryClaim::for_run(&out).map_err(|error| failure::option_failure("--out", out.display(), error, ""))
}

/// Returns the path of the run directory. Fails if the given directory holds the answer to another question; a default
/// directory gets the digest in its name instead.
fn run_path(
    given: Option<&Path>,
    posed: &SearchRequest,
    seed: u64,
    question: &SearchQuestion,
    digest: &str,
) -> Result<PathBuf, Failure> {
    let answers_another = |path: &Path| {
        let held = SearchRecord::read_question_digest(path);
        let is_answer = || search_run::read_record(path).is_ok_and(|record| question.is_answered_by(&record, seed));
        held.is_some_and(|held| held.as_deref() != Some(digest)) && !is_answer()
    };
    match given {
        Some(out) if answers_another(out) => {
            let limit = "holds the answer to another question, which is not overwritten";
            Err(failure::option_failure("--out", out.display(), limit, "give another directory, or remove it"))
        }
        Some(out) => Ok(out.to_owned()),
        None => {
            let name = question.directory_name(posed);
            let own = PathBuf::from("runs").join(&name);
            let digest_too = posed.changes_study() || seed != 0 || answers_another(&own);
            Ok(if digest_too { own.with_file_name(format!("{name}-{digest}")) } else { own })
        }
    }
}

/// Returns the state of a search in one line.
fn search_line(now: RunnerProgress, gap: Option<f64>, objective: Objective, scale: ValueScale) -> String {
    let best = now.best.map_or_else(
        || "none yet".to_owned(),
        |value| {
            let (value, unit) = objective.display_value(value, scale);
            format!("{} {unit}", format_rate(value))
        },
    );
    let gap = gap
        .filter(|gap| *gap < 1.0)
        .map_or_else(String::new, |gap| format!(", gap {}", format_percent(gap / (1.0 - gap))));
    let (decided, total) = (format_count(now.decided), format_count(now.total));
    format!("best {best}{gap}; {} evaluated, {decided} of {total} chips decided", now.evaluated)
}

/// Adds the bound of the step to the rows of the front, if the search is for one model.
fn name_bounds(searched: &SearchedModelSet<'_>, answer: &DesignAnswer, rows: &mut [DesignRow]) -> Result<(), Failure> {
    if searched.models.len() > 1 {
        return Ok(());
    }
    for &index in &answer.front {
        let found = &answer.designs[index];
        let CandidateOutcome::Evaluated { evaluation, .. } = &found.outcome else { continue };
        if let Some(Ok(ranked)) = evaluation.first().map(|of| &of.outcome) {
            let chip = searched.space.chip_of_design(found.id).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
            rows[index].bound_by =
                conversion::bound_of_plan(&searched.job_on_design(0, found.id, &chip), ranked).or_other()?;
        }
    }
    Ok(())
}

/// Returns the best design with the figures of its step; `None` if there is none.
fn best_design(
    question: &SearchQuestion,
    searched: &SearchedModelSet<'_>,
    answer: &DesignAnswer,
    rows: &[DesignRow],
) -> Result<Option<BestDesign>, Failure> {
    let Some(index) = answer.best else { return Ok(None) };
    let found = &answer.designs[index];
    let CandidateOutcome::Evaluated { evaluation, .. } = &found.outcome else { return Ok(None) };
    let chip = searched.space.chip_of_design(found.id).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
    let mut plans = models::model_plans(question, searched, found.id, &chip, evaluation)?;
    let Some(first) = plans.first() else { return Ok(None) };
    let (step, evaluate_with) = (first.step.clone(), first.evaluate_with.clone());
    if question.others.is_empty() {
        plans.clear();
    }
    let mut notes = notes::notes_on_best(question, found.id, &rows[index], answer.is_complete());
    notes.extend(notes::note_on_smaller(answer, rows));
    if let Some(models) = models_of_design(question, searched, found.id, &chip, evaluation) {
        notes.extend(notes::notes_on_slower_clocks(question, &models));
    }
    Ok(Some(BestDesign { design: rows[index].clone(), step, models: plans, notes, evaluate_with }))
}

/// Returns a design of a question about one model, with the figures of its step.
pub fn describe_design(
    question: &SearchQuestion,
    job: &Job<'_>,
    ranked: &RankedPlan,
    design: DesignRow,
    id: DesignId,
) -> Result<BestDesign, Failure> {
    let (step, evaluate_with) = models::step_record(question, id, job, ranked)?;
    let mut notes = notes::notes_on_best(question, id, &design, true);
    notes.extend(notes::notes_on_slower_clocks(question, &[PlannedModel { job: *job, ranked, share: 1.0 }]));
    Ok(BestDesign { design, step, models: Vec::new(), notes, evaluate_with })
}

/// Returns the files of the best chip and its fabric; none without a best design.
fn found_files(question: &SearchQuestion, answer: &DesignAnswer, digest: &str) -> Result<FoundFiles, Failure> {
    let Some(index) = answer.best else { return Ok(FoundFiles::default()) };
    let source =
        format!("found by coplace search {}, study {}, question {digest}", question.model_names(), question.name);
    files_of_design(question, answer.designs[index].id, &source)
}

/// Returns the files of a design's chip and its fabric.
pub fn files_of_design(question: &SearchQuestion, id: DesignId, source: &str) -> Result<FoundFiles, Failure> {
    let (document, keys) = question.space.document_of_design(id).map_err(|why| Failure::Other(anyhow::anyhow!(why)))?;
    let (chip, fabric) = (document.to_text(&keys, source).or_other()?, question.file_of_fabric(id, source)?);
    Ok(FoundFiles { chip: Some(chip), fabric, progress: None })
}
