//! `coplace plan`: finds the best plan for existing hardware.

mod families;
mod fit;
mod watched;
mod write;

use crate::answer::{self, Format};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::input;
use crate::numbers::{real_number, whole_number_in};
use crate::progress::ProgressDisplay;
use crate::verb::job::{FrameworkFileArgument, JobArguments, LoadedJob, SpaceArguments, option_of_rule};
use crate::verb::stop;
use crate::written_path::WrittenPath;
use clap::ValueEnum;
pub(in crate::verb) use fit::parse_fit;
use interop::piper;
use results::answer::plan::{PlannedAnswer, StoppedSearch, one_line};
use results::answer::rank_mapping::RankMappingRecord;
use results::answer::whole_training::{TrainedStep, WholeTraining};
use results::emit::stage_trace;
use results::store::files;
use results::{figure, report};
use search::ask::{AimSpec, Question};
use search::bad_end::search_plans_by_bad_end;
use search::planner::{
    Job, MapRanks, NO_MARGIN, PlanAnswer, PlanSpace, PlanWatch, RankedPlan, USUAL_FIT, add_discouraged,
    default_policies, map_plans, neighbours, search_documented,
};
use search::rank_mapping::RankMapping;
use sim::files::carried::Files;
use sim::network::Fabric;
use sim::pipeline::Timeline;
use sim::units::Bytes;
use std::path::{Path, PathBuf};
use watched::PlanSearchReporter;
use workloads::RankOrder;
use write::EmitTarget;

/// The ends of measured links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LinkEnds {
    /// Units of the fabric's innermost tier
    Nodes,
    /// Single devices
    Devices,
}

/// Largest number of tokens in a training.
const MOST_TOKENS: f64 = 1e18;

/// Parses a number of tokens: a number, which K, M, B or T may follow.
fn parse_tokens(text: &str) -> Result<u64, String> {
    let units = [("K", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)];
    let ends = |unit: &str| text.strip_suffix(unit).or_else(|| text.strip_suffix(&unit.to_lowercase()));
    let found = units.iter().find_map(|(unit, size)| Some((ends(unit)?, *size)));
    let (digits, size) = found.unwrap_or((text, 1.0));
    let tokens = digits.parse::<f64>().ok().map(|number| number * size);
    match tokens.filter(|tokens| (1.0..=MOST_TOKENS).contains(tokens)) {
        Some(tokens) => Ok(tokens.round() as u64),
        None => Err(format!("must be from 1 to {MOST_TOKENS:e} tokens, such as 15T, 300B or 20000000")),
    }
}

/// Parses a price in USD.
fn parse_price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().ok().filter(|price| (0.0..=1e6).contains(price));
    price.ok_or_else(|| "must be from 0 to 1e6 USD, such as 2.5".to_owned())
}

/// Largest number of plans in a list.
const MOST_PLANS: u16 = 10_000;

/// Find the fastest plans of a model on an existing cluster, and explain why their neighbours are slower
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    coplace plan gpt3-175b --chip a100_80gb --fabric selene_hdr200x8 --devices 1024 --global-batch 1536\n  \
    coplace plan llama3-8b --chip tpu_v5p --fabric ici_3d_torus --devices 64 --global-batch 512 --stack maxtext \
    --emit maxtext\n  \
    coplace plan gpt3-175b --chip a100_80gb --fabric selene_hdr200x8 --devices 128 --global-batch 512 --links \
    links.csv\n  \
    coplace plan gpt2-xl --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64 --emit piper\n  \
    coplace plan gpt3-175b --chip a100_80gb --fabric selene_hdr200x8 --devices 512 --global-batch 768 --trace \
    step.json\n\n\
    Every plan of the space is checked for memory and timed, or bounded and pruned. Lists (--tensor 4,8)\n\
    restrict the space. Without them it holds every value that divides, with these exceptions: context\n\
    parallelism starts at 8,192 tokens (2 to 8 there, every power of two beyond); ZeRO-3 is only used without a\n\
    pipeline; recomputation is none, selective or full; schedules are 1F1B and interleaved; and among numbers of\n\
    chunks per stage whose fullest chunk has equally many layers, only the smallest is used. Under MaxText the\n\
    space is what MaxText runs: its own policies, GPipe, even splits, ZeRO-0, -1 and -3, rings.\n\
    --everything adds all context widths, ZeRO-3 in pipelines, all schedules, and all choices of kept, offloaded\n\
    and recomputed tensors of a layer. Uneven layer splits are then searched for the plans of the default space,\n\
    and for the fastest of the others.\n\n\
    Prints the fastest plan and the fastest one of each family; --details has all.\n\n\
    JSON: counts, stopped, plans (each with step_s, parts_s, peak_gib), stages, timeline, neighbours, mapping.\n\
    The keys have the units; docs/json.md describes every key.")]
pub struct PlanArguments {
    #[command(flatten)]
    from: FrameworkFileArgument,
    #[command(flatten)]
    job: JobArguments,
    #[command(flatten)]
    choices: SpaceArguments,
    /// Plans to list. The fastest plan that the stack's framework can run is added if it is not among them [default:
    /// 10]
    #[arg(long, value_name = "N", value_parser = whole_number_in::<u16>(1..=MOST_PLANS))]
    top: Option<u16>,
    /// The least chance that a plan's peak memory fits, above 0 and below 1. With 0.5 or less the predicted peak has to
    /// fit and may fill the memory
    #[arg(long, value_name = "PROBABILITY", value_parser = parse_fit, default_value_t = USUAL_FIT)]
    fit: f64,
    /// Rank plans by the bad end of their step's 90 % interval: the best plan if the model is as wrong about each as it
    /// was about similar measured runs
    #[arg(long, conflicts_with = "map_ranks")]
    robust: bool,
    /// Also search all context widths, ZeRO-3 in pipelines, all schedules, and all choices of kept, offloaded and
    /// recomputed tensors, unless a list restricts them. --layer-split best then takes many times as long
    #[arg(long)]
    everything: bool,
    /// Measured links (.csv) between the nodes of the fabric: `gb_per_s,NAME,...`, a line `NAME,0,50,...` per node, or
    /// one measurement per line with the columns src_idx, dst_idx, bandwidth_mbytes_per_s. If links differ, the ranks
    /// of the listed plans are mapped to them
    #[arg(long, value_name = "FILE")]
    links: Option<PathBuf>,
    /// Cluster to use, if the file has several (its column `file`)
    #[arg(long, value_name = "NAME", requires = "links")]
    links_of: Option<String>,
    /// Ends of the links
    #[arg(long, value_enum, default_value_t = LinkEnds::Nodes, requires = "links")]
    links_between: LinkEnds,
    /// Map the ranks of the listed plans even if all links are equal: this chooses the ranks that share a node. Takes
    /// minutes for 1024 devices
    #[arg(long)]
    map_ranks: bool,
    /// Print the fastest listed plan that a framework can express, in its configuration (exit code 3 with the fastest
    /// plan if it can express none completely), or the problem as Piper's graph (micro-batches of the first
    /// --micro-batch, otherwise 1)
    #[arg(long, value_enum, conflicts_with = "format")]
    emit: Option<EmitTarget>,
    /// Write the step of the fastest plan as a trace for Chrome or Perfetto, pass by pass on every stage with its
    /// memory
    #[arg(long, value_name = "FILE", conflicts_with = "emit")]
    trace: Option<WrittenPath>,
    /// Draw the memory of every stage over the step of the fastest plan into this directory (memory.svg and .png),
    /// which is created if needed
    #[arg(long, value_name = "DIR", conflicts_with = "emit")]
    memory: Option<WrittenPath>,
    /// Say what a whole training of so many tokens takes under the first plan: days, device hours, energy. 15T, 300B,
    /// 20M or a whole number
    #[arg(long, value_name = "TOKENS", value_parser = parse_tokens, conflicts_with = "emit")]
    tokens: Option<u64>,
    /// The price of one device for one hour, USD: the price of the whole training
    #[arg(long, value_name = "USD", value_parser = parse_price, requires = "tokens")]
    usd_per_device_hour: Option<f64>,
    /// Stop after this many seconds, with the best plans so far and a lower bound on the step (Ctrl-C does so at once;
    /// a second one ends the program)
    #[arg(long, value_name = "SECONDS", value_parser = real_number)]
    time_limit: Option<f64>,
    /// Print the whole answer: every listed plan, memory by class, stages, neighbours, counts
    #[arg(long, conflicts_with = "emit")]
    details: bool,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl PlanArguments {
    /// Returns the same arguments, with texts that replace files of the same names.
    pub fn with_files(mut self: Box<Self>, files: &Files) -> Box<Self> {
        self.job.files.clone_from(files);
        self
    }
}

/// Runs the verb: searches and prints.
pub fn run_plan(arguments: &PlanArguments, call: &Call) -> Result<(), Failure> {
    let limit = stop::StopLimit::new(call, arguments.time_limit)?;
    let question = arguments.question()?;
    let mut loaded = LoadedJob::load(&question, |whole| fabric_with_links(arguments, &question, whole))?;
    let mut asked = question.plans.clone().with_mixes_of(&loaded.stack);
    if arguments.map_ranks {
        // The search needs only one order of the ranks, because the mapping chooses the order afterwards.
        asked.orders.get_or_insert_with(|| vec![RankOrder::DataFirst]);
    }
    let techniques = loaded.techniques().clone();
    let settled = search_with_fractions(call, arguments, &question, &mut loaded, &asked, &limit)?;
    let (job, cluster) = (loaded.planner_job(&question), &loaded.cluster);
    let (space, around) = requested_spaces(arguments.emit, arguments.everything, &job, cluster, &asked);
    check_space(&asked, &space, &job, cluster)?;
    if arguments.emit == Some(EmitTarget::Piper) {
        return write_piper_instance(arguments, &question, &job, call);
    }
    let progress = ProgressDisplay::begin_phase(call, "searching plans");
    let searched = |job: &Job<'_>| search_space(arguments, job, &space, &limit, &progress);
    let mut answer = settled.map_or_else(|| searched(&job), Ok)?;
    let mut refused = None;
    if answer.best.is_empty() && answer.stopped.is_none() {
        let mut without = loaded.clone();
        without.ask_fit(NO_MARGIN, techniques);
        (answer, refused) = explain_empty_list(&question, &mut without, job.fit, answer, |without| {
            let settled = search_with_fractions(call, arguments, &question, without, &asked, &limit)?;
            settled.map_or_else(|| searched(&without.planner_job(&question)), Ok)
        })?;
    }
    if arguments.emit.is_none() {
        let teller = PlanSearchReporter::new(&progress);
        let watch = PlanWatch { stop: &|| limit.is_reached(), told: &|now| teller.report_progress(now) };
        add_discouraged(&job, &space, &mut answer, watch).or_input()?;
    }
    let stopped = StoppedSearch::from_answer(&answer, limit.stopped_by());
    check_refusals(&answer)?;
    warn_of_idle_storage(arguments, &answer);
    progress.next_phase("mapping ranks to links");
    let mappings = map_ranks(arguments, &job, &mut answer)?;
    progress.next_phase("evaluating the neighbours of the fastest plan");
    match (arguments.emit, stopped) {
        (Some(framework), stopped) => {
            drop(progress);
            if let Some(stopped) = &stopped {
                tracing::warn!("{}", stopped.proof_text(answer.best.first().map(|best| best.time.total.0)));
            }
            write_best_plan(call, &question, framework, &job, &answer, &mappings, refused)
        }
        (None, stopped) => {
            let (mut record, written) = list_plans(arguments, &question, &limit, &job, &around, &answer, stopped)?;
            drop(progress);
            record.why = refused.or(record.why);
            record.with_mappings(&mappings);
            let words = if arguments.details { report::plan_report } else { report::plan_summary };
            answer::write_answer_with_files(call, arguments.format, &record, written, words)
        }
    }
}

/// Explains why no plan fits with the chance `asked`. For this, `search` searches the job `without`, which has no
/// margin. Returns the answer to show, and the reason. Without a reason, no plan fits even without a margin, and the
/// answer is that of this second search. Fails if the requested headroom is the reason.
fn explain_empty_list(
    question: &Question,
    without: &mut LoadedJob,
    asked: f64,
    answer: PlanAnswer,
    search: impl FnOnce(&mut LoadedJob) -> Result<PlanAnswer, Failure>,
) -> Result<(PlanAnswer, Option<String>), Failure> {
    let found = if asked > NO_MARGIN { search(without)? } else { answer.clone() };
    let job = without.planner_job(question);
    unmet_budget(question, &job, &found)?;
    // The plan nearest to fitting counts too, because the list has the fastest plans, not the most likely to fit.
    let nearest = answer.nearest.as_ref().and_then(|(plan, _)| job.rank_plan(plan).ok().flatten());
    let reason = fit::refusal_of_margin(&job, found.best.iter().chain(&nearest), asked);
    Ok((if reason.is_some() { answer } else { found }, reason))
}

/// Fails if a requested value is in no plan, or if there is no plan. Warns of schedules that no plan runs.
fn check_space(asked: &PlanSpace, space: &PlanSpace, job: &Job<'_>, cluster: &Fabric) -> Result<(), Failure> {
    asked.check_tensor_names(job).or_input()?;
    if let Some(error) = asked.fault(space, job, cluster) {
        return Err(failure::option_failure_of_rule(option_of_rule(error.key), error));
    }
    for (name, rule) in asked.idle_schedules(job, cluster) {
        tracing::warn!("--schedule {name}: no plan runs it, it is left out: {rule}");
    }
    Ok(())
}

/// Fails if every plan is refused: a rule of the model or the fabric is violated. If no plan fits the chip, that is a
/// result.
fn check_refusals(answer: &PlanAnswer) -> Result<(), Failure> {
    match &answer.refusal {
        Some(refusal) if answer.refused == answer.plans => Err(failure::input_failure(refusal)),
        _ => Ok(()),
    }
}

/// Warns if storage is given and no plan of the list uses it.
fn warn_of_idle_storage(arguments: &PlanArguments, answer: &PlanAnswer) {
    let stored = |ranked: &RankedPlan| ranked.memory.stages.iter().any(|stage| stage.storage > Bytes::ZERO);
    let Some(nvme) = &arguments.job.nvme else { return };
    if answer.best.is_empty() || answer.best.iter().any(stored) {
        return;
    }
    let cure = match arguments.job.technique.is_empty() {
        true => "with --recompute best or a --technique plans may",
        false => {
            "what the techniques given leave open is chosen without it, which is faster; a part can be given \
            (fraction, to_nvme)"
        }
    };
    tracing::warn!("--nvme {nvme}: no plan of the list keeps anything there; {cure}");
}

impl PlanArguments {
    /// Returns the question that the arguments ask.
    pub fn question(&self) -> Result<Question, Failure> {
        let mut question = self.job.question(self.choices.plan_space()?, None, false)?;
        question.software.fit = Some(self.fit);
        let aim = AimSpec { robust: self.robust, ..question.aim };
        Ok(Question { everything: self.everything, aim, ..question })
    }
}

/// Fails if the requested headroom is the reason why no plan fits, with the explanation of the answer. A model that
/// does not fit without the headroom either is a result, not a failure.
pub fn unmet_budget(question: &Question, job: &Job<'_>, answer: &PlanAnswer) -> Result<(), Failure> {
    let Some((_, lack)) = &answer.nearest else { return Ok(()) };
    let fits_without = answer.enough.unwrap_or(lack.need).0 <= lack.have.0.saturating_add(job.headroom.0);
    if job.headroom == Bytes::ZERO || !answer.best.is_empty() || answer.stopped.is_some() || !fits_without {
        return Ok(());
    }
    let why = PlannedAnswer::from_answer(job, question.model(), answer, &[]).why.unwrap_or_default();
    Err(failure::option_failure("--headroom-gib", question.software.headroom_gib, why, ""))
}

/// Searches the fastest plans of a space: by the bad ends of their steps with --robust, otherwise among the plans that
/// the framework documents.
fn search_space(
    arguments: &PlanArguments,
    job: &Job<'_>,
    space: &PlanSpace,
    limit: &stop::StopLimit,
    progress: &ProgressDisplay,
) -> Result<PlanAnswer, Failure> {
    let top = arguments.top.unwrap_or(10).into();
    let teller = PlanSearchReporter::new(progress);
    let watch = PlanWatch { stop: &|| limit.is_reached(), told: &|now| teller.report_progress(now) };
    let found = match arguments.robust {
        true => search_plans_by_bad_end(job, space, top, watch),
        false => search_documented(job, space, top, watch),
    };
    found.or_input()
}

/// Searches the fastest plans for the best offloaded fraction, if a technique leaves it open. Returns `None` if none is
/// open, or if no plan fits.
fn search_with_fractions(
    call: &Call,
    arguments: &PlanArguments,
    question: &Question,
    loaded: &mut LoadedJob,
    asked: &PlanSpace,
    limit: &stop::StopLimit,
) -> Result<Option<PlanAnswer>, Failure> {
    let cluster = loaded.cluster.clone();
    let progress = ProgressDisplay::begin_phase(call, "searching plans with every part that may go away");
    loaded.settle_offload(question, |job| {
        let (space, _) = requested_spaces(arguments.emit, arguments.everything, job, &cluster, asked);
        search_space(arguments, job, &space, limit, &progress)
    })
}

/// Writes the job's graph as a problem for Piper.
fn write_piper_instance(
    arguments: &PlanArguments,
    question: &Question,
    job: &Job<'_>,
    call: &Call,
) -> Result<(), Failure> {
    if let Some(top) = arguments.top {
        tracing::warn!("--top {top}: --emit piper writes the graph, which has no plans yet; it is left out");
    }
    let plans = &question.plans;
    let micro_batch = plans.micro_batch.as_ref().and_then(|list| list.first()).map_or(1, |b| *b);
    let instance = piper::piper_graph_of_job(job, micro_batch, plans.tensor.as_deref()).or_input()?;
    answer::write_text(call, &instance.to_json_string())
}

/// Maps the ranks of the listed plans to the links. Returns nothing if the search was stopped.
fn map_ranks(arguments: &PlanArguments, job: &Job<'_>, answer: &mut PlanAnswer) -> Result<Vec<RankMapping>, Failure> {
    if answer.stopped.is_some() {
        if arguments.map_ranks || job.fabric.links_differ() {
            tracing::warn!("ranks are in the order of the devices: mapping them to the links may take minutes more");
        }
        return Ok(Vec::new());
    }
    let which = if arguments.map_ranks { MapRanks::Always } else { MapRanks::WhereLinksDiffer };
    map_plans(job, answer, which).or_input()
}

/// Returns the space to search, and the space of the neighbours of the best plan. Both are the requested space,
/// restricted to the framework's choices where these differ from the planner's defaults. The restriction is dropped if
/// it leaves no plan. With `everything`, the space to search is widened to all choices, and only `emit` restricts it.
pub fn requested_spaces(
    emit: Option<EmitTarget>,
    everything: bool,
    job: &Job<'_>,
    cluster: &Fabric,
    asked: &PlanSpace,
) -> (PlanSpace, PlanSpace) {
    let own = write::runnable_choices(emit, job).unwrap_or_default();
    let policies = own.activations.clone();
    let narrow = |asked: &PlanSpace, own: PlanSpace| {
        let narrow = asked.clone().or(own);
        if narrow.emptiness(job, cluster).is_none() { narrow } else { asked.clone() }
    };
    if !everything {
        let asked = PlanSpace { activations: asked.activations.clone().or(policies), ..asked.clone() };
        let space = narrow(&asked, own);
        return (space.clone(), space);
    }
    // A plan that is to be written must be one that the framework can run.
    let own = if emit.is_some() { PlanSpace { activations: None, ..own } } else { PlanSpace::default() };
    let asked = narrow(asked, own);
    (PlanSpace::full(job, &asked, policies.unwrap_or_else(default_policies)), asked)
}

/// Prints the fastest plan that a framework can express, as the framework's configuration. Without a plan, fails with
/// the reason `refused`, or else with what the nearest plan lacks.
fn write_best_plan(
    call: &Call,
    question: &Question,
    framework: EmitTarget,
    job: &Job<'_>,
    answer: &PlanAnswer,
    mappings: &[RankMapping],
    refused: Option<String>,
) -> Result<(), Failure> {
    if answer.best.is_empty() {
        let lack = || PlannedAnswer::from_answer(job, question.model(), answer, &[]).why;
        let why = refused.or_else(lack).unwrap_or_default();
        return Err(Failure::Other(anyhow::anyhow!("--emit: nothing to write: {why}")));
    }
    let mappings: Vec<RankMappingRecord> = mappings.iter().map(RankMappingRecord::from).collect();
    write::write_first_expressible(call, framework, question, job, &answer.best, &mappings)
}

/// Returns the record of the best plans, with the neighbours of the first one unless the search was stopped. Writes the
/// trace and the figure of the memory, and returns their failure.
fn list_plans(
    arguments: &PlanArguments,
    question: &Question,
    limit: &stop::StopLimit,
    job: &Job<'_>,
    asked: &PlanSpace,
    answer: &PlanAnswer,
    stopped: Option<StoppedSearch>,
) -> Result<(PlannedAnswer, Result<(), Failure>), Failure> {
    let first = answer.best.first().filter(|_| stopped.is_none());
    let around = first.map(|best| neighbours(job, asked, best)).transpose().or_input()?;
    let mut record = PlannedAnswer::from_answer(job, question.model(), answer, &around.unwrap_or_default());
    record.robust = arguments.robust;
    if first.is_some() && !arguments.robust {
        let families = families::fastest_of_families(job, asked, &answer.best, limit)?;
        record.with_families(job, &families);
    }
    record.whole_training = arguments.tokens.and_then(|tokens| {
        let first = record.plans.first()?;
        let step = TrainedStep {
            tokens: job.global_batch * job.sequence_length,
            seconds: first.mapped_step_s.unwrap_or(first.step_s),
            interval_s: first.evidence.as_ref().map(|evidence| evidence.step_interval_s),
            energy_j: first.energy_j,
        };
        Some(WholeTraining::of_steps(&step, tokens, job.devices, arguments.usd_per_device_hour))
    });
    record.asked = Some(question.clone());
    record.stopped = stopped;
    let mut written = Ok(());
    if let Some(best) = answer.best.first() {
        let timeline = job.plan_timeline(&best.plan).or_input()?;
        record.with_timeline(&timeline);
        let title = describe_job(&arguments.job, question);
        written = write_trace(arguments, question, &timeline)
            .and_then(|()| draw_memory(arguments.memory.as_deref(), &title, &timeline, best));
    } else if let Some(file) = &arguments.trace {
        tracing::warn!("--trace {}: no plan fits, nothing is written", file.display());
    }
    Ok((record, written))
}

/// Describes a job in a few words.
pub fn describe_job(job: &JobArguments, question: &Question) -> String {
    format!("{} on {} x {}", job.model, question.cluster.devices, job.chip)
}

/// Draws the memory of a plan's stages over its step, if a directory is given.
pub fn draw_memory(
    directory: Option<&Path>,
    job: &str,
    timeline: &Timeline,
    ranked: &RankedPlan,
) -> Result<(), Failure> {
    let Some(directory) = directory else { return Ok(()) };
    std::fs::create_dir_all(directory).map_err(|e| {
        failure::write_failure(
            &e,
            format!("--memory {}: cannot be made: {e}; give a directory you may write to", directory.display()),
        )
    })?;
    let about = format!("{job}: {}", one_line(&ranked.plan));
    let drawn = figure::draw_memory(&about, timeline, ranked.memory.capacity.gib()).or_other()?;
    drawn.write_files(directory, "memory").or_unwritable().map(drop)
}

fn write_trace(arguments: &PlanArguments, question: &Question, timeline: &Timeline) -> Result<(), Failure> {
    let Some(file) = &arguments.trace else { return Ok(()) };
    let title = format!("{}, fastest plan", describe_job(&arguments.job, question));
    files::write_file(file, stage_trace::timeline_trace(&title, timeline).as_bytes()).or_unwritable()
}

/// Puts the measured links, if any are given, between the fabric's nodes or devices.
fn fabric_with_links(arguments: &PlanArguments, question: &Question, whole: Fabric) -> Result<Fabric, Failure> {
    let Some(path) = &arguments.links else { return Ok(whole) };
    let between_devices = arguments.links_between == LinkEnds::Devices;
    let links = input::LinksFile { path, of: arguments.links_of.as_deref(), between_devices };
    input::fabric_with_links(whole, question.cluster.devices, links)
}
