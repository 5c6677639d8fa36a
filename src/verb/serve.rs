//! `coplace serve`: finds the deployment of a model with the most tokens per second on a cluster within a service
//! level, on given chips or on the best chip of a space.

mod asked;
mod baselines;
mod beside;
pub mod explain;
mod keep;
mod loaded;
mod method;
mod priced;
mod refusal;
pub mod searched;
mod space;

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure};
use crate::numbers::token_count_in;
use crate::progress;
use crate::verb::job::{LONGEST, count_up_to, ignored_key};
use crate::written_path::WrittenPath;
use clap::ValueEnum;
use keep::{RunKeeper, ServedAnswers};
use loaded::LoadedDeployment;
use method::MethodArguments;
use priced::{CaseOutcome, price_case};
use results::report;
use results::run::search_run::FoundFiles;
use results::run::serving::{ServedAxis, ServedCase, ServedPoint, ServingCases, ServingRun, fronts_of_points};
use search::ask::{DeploymentQuestion, ServedPools};
use search::serve::ServedObjective;
use serving::plan::ServedProduct;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Devices of prompts and of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PoolChoice {
    /// On the same devices
    Together,
    /// In pools of their own, for every pair of chips
    Apart,
    /// Whichever serves more
    Any,
}

impl From<PoolChoice> for ServedPools {
    fn from(choice: PoolChoice) -> Self {
        match choice {
            PoolChoice::Together => Self::Together,
            PoolChoice::Apart => Self::Apart,
            PoolChoice::Any => Self::Any,
        }
    }
}

/// The format of keys and values in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheFormat {
    /// 16 bits
    Bf16,
    /// 8 bits
    Fp8,
}

/// Largest number of cases (combinations of limits and lengths) in a call.
const MOST_CASES: usize = 1000;

/// Find the deployment that serves most tokens within limits on the time to the first token and between tokens
#[derive(clap::Args, Clone)]
#[command(after_help = "Examples:\n  \
    coplace serve llama3-70b --chip h100 --devices 8 --products fp8 --input 1024 --output 256 --ttft 500 --tpot 25\n  \
    coplace serve deepseek-v3 --chip h200,b200 --devices 64 --products fp8 --experts fp8 --ttft 2000 --tpot 50\n  \
    coplace serve llama3-70b --chip h100,h200 --devices 16 --pools apart --lengths 512x128:0.8,8192x1024:0.2\n  \
    coplace serve llama3-70b --chip h100,h200 --products fp8 --tpot 8,10,15,20,30,50 --out runs/serve\n  \
    coplace serve llama3-70b --chip h100 --draft 4 --accepted 2.5 --draft-model llama3-8b --tpot 15\n  \
    coplace serve llama3-70b --chip h100 --prefix-hit 0.8 --cache-place host --cache-away 0.5\n  \
    coplace serve llama2-7b --chip a100 --devices 1 --input 32768 --technique homer\n  \
    coplace serve llama3-70b --study serve --devices 8 --products fp8 --ttft 1000 --tpot 30\n  \
    coplace serve --study train_and_serve\n  \
    coplace serve llama3.1-70b --study prefill_decode --pools any --devices 64 --input 8192 --output 1024 --tpot 30\n\n\
    Requests arrive at random. The times are means in the steady state of continuous batching, in closed form\n\
    (serving/README.md). Every plan of the degrees is priced; the rate of requests is raised until a limit or a\n\
    load of 95 % is reached. Several chips are compared; in pools apart, prompts and decoding may have different\n\
    ones. --study finds the best chip of a space: chips are priced in the order of a bound on their rate, until no\n\
    bound is higher than what was found. Lists of --ttft, --tpot, --input and --output sweep them: every combination\n\
    has an answer of its own.\n\n\
    Writes into the directory of --out: record.json (question, answers, fronts), deployments.csv (every deployment),\n\
    pareto.svg and pareto.png (tokens/s per device against tokens/s per user), SHA256SUMS, and with --study best.toml\n\
    and fabric.toml (the chip that was found). report, explain, compare and pareto read it.\n\n\
    JSON: format, model, engine, devices, lengths, ttft_limit_ms, tpot_limit_ms, method, objective, unit, choices,\n\
    plans, refused, nearest_refusal, space, baselines; of several combinations cases and fronts; docs/json.md\n\
    describes every key.")]
pub struct ServeArguments {
    /// A built-in model (coplace list models) or a Hugging Face config.json [default: the study's]
    #[arg(required_unless_present = "study")]
    model: Option<String>,
    /// Chips, built in or files, with commas between
    #[arg(long, value_delimiter = ',', required_unless_present = "study", value_name = "CHIP")]
    chip: Vec<String>,
    /// Search the chips of this study's space within its limits: built in (coplace list studies) or a file. With
    /// --chip, those are compared. Its [serve] table has what is not given here
    #[arg(long, value_name = "STUDY")]
    study: Option<String>,
    /// Network between the devices [default: the chip's usual one]
    #[arg(long)]
    fabric: Option<String>,
    /// Devices that may be used [default: the study's, or 8]
    #[arg(long, value_name = "N", value_parser = count_up_to(1 << 16))]
    devices: Option<u32>,
    /// Serving engine: built in (coplace list engines) or a file (.toml) [default: the study's, or vllm]
    #[arg(long)]
    engine: Option<String>,
    /// Tokens of a prompt, or several with commas between; 32k is 32768 [default: the study's, or 1024]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = token_count_in(1..=LONGEST))]
    input: Vec<u64>,
    /// Tokens of an answer, or several [default: the study's, or 256]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = token_count_in(2..=LONGEST))]
    output: Vec<u64>,
    /// Lengths of requests with their shares, in place of --input and --output
    #[arg(long, value_name = "INPUTxOUTPUT:SHARE,...", conflicts_with_all = ["input", "output"])]
    lengths: Option<String>,
    /// Most milliseconds to the first token, in the mean; or several
    #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = milliseconds)]
    ttft: Vec<f64>,
    /// Most milliseconds from token to token, in the mean; or several
    #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = milliseconds)]
    tpot: Vec<f64>,
    /// Devices of prompts and of decoding [default: the study's, or together]
    #[arg(long, value_enum)]
    pools: Option<PoolChoice>,
    /// Format of the layers' products: bf16, fp8, int8, mxfp8, nvfp4, mxfp4, or stored weights multiplied in bf16:
    /// fp8-weights, mxfp4-weights, nvfp4-weights, int4-weights [default: the study's, or bf16]
    #[arg(long, value_name = "FORMAT", value_parser = product_format)]
    products: Option<ServedProduct>,
    /// Format of experts' products, of a model with experts [default: that of --products]
    #[arg(long, value_name = "FORMAT", value_parser = product_format)]
    experts: Option<ServedProduct>,
    /// Format of keys and values in the cache
    #[arg(long, value_enum, default_value_t = CacheFormat::Bf16)]
    cache: CacheFormat,
    /// Devices that split every layer [default: every degree that the model allows]
    #[arg(long, value_name = "T", value_parser = count_up_to(1 << 16))]
    tensor: Option<u32>,
    /// Stages [default: powers of two]
    #[arg(long, value_name = "P", value_parser = count_up_to(1 << 16))]
    pipeline: Option<u32>,
    /// Groups that attend for sequences of their own and share experts [default: powers of two]
    #[arg(long, value_name = "D", value_parser = count_up_to(1 << 16))]
    attention_data: Option<u32>,
    /// Parts that hold whole experts of their own [default: powers of two]
    #[arg(long, value_name = "E", value_parser = count_up_to(1 << 16))]
    expert: Option<u32>,
    /// Devices of a tensor-parallel group that share the tokens of a sequence, where more than one hold the same keys
    /// [default: powers of two]
    #[arg(long, visible_alias = "dcp", value_name = "C", value_parser = count_up_to(1 << 16))]
    context_parallel: Option<u32>,
    #[command(flatten)]
    method: MethodArguments,
    /// Weight of training in a chip that also serves, from 0 (chips only serve) to below 1: the training job is the
    /// study's; the objective is the weighted geometric mean of the two rates [default: the study's, or 0]
    #[arg(long, value_name = "WEIGHT", requires = "study", value_parser = weight)]
    train_weight: Option<f64>,
    /// Objective of deployments and chips: throughput, per-mm2, per-watt (under the heaviest load), per-dollar (of
    /// manufacturing) or energy-per-token; each plan at its highest rate
    #[arg(long, default_value = "throughput", value_name = "OBJECTIVE", value_parser = ServedObjective::from_name)]
    objective: ServedObjective,
    /// Rows of AIConfigurator (best_config_topn.csv, pareto.csv): its prediction beside the one here for the same
    /// configuration, with as many requests in flight
    #[arg(long, value_name = "FILE.csv")]
    beside: Option<PathBuf>,
    /// Deployments in the answer
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count_up_to(5000))]
    top: u32,
    /// Take a key of the model's file that nothing reads as without effect. Can be given several times
    #[arg(long, value_name = "KEY=ignored", value_parser = ignored_key)]
    assume: Vec<String>,
    /// Directory of the run, which is created if needed [default: none is written]
    #[arg(long, value_name = "DIR")]
    out: Option<WrittenPath>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Parses a format of products.
fn product_format(text: &str) -> Result<ServedProduct, String> {
    ServedProduct::from_name(text).ok_or_else(|| {
        let known: Vec<&str> = ServedProduct::ALL.iter().map(|format| format.name()).collect();
        format!("no such format; {}", sim::names::hint(text, &known.join(", "), "known are"))
    })
}

/// Parses a positive time in milliseconds.
fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("must be a positive number of milliseconds; give one, such as 500".to_owned()),
    }
}

/// Parses a weight from 0 to below 1.
fn weight(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..1.0).contains(&value) => Ok(value),
        _ => Err("must be from 0 to below 1; give 0.5 for equal weights, and 0 to serve alone".to_owned()),
    }
}

/// The answers of a call, with the points of every deployment.
struct PricedCases {
    cases: Vec<ServedCase>,
    points: Vec<ServedPoint>,
    /// The files of the chip that was found in the best case.
    found: FoundFiles,
}

/// Runs the verb: prices all plans of every case, prints the best deployments, and writes the run.
pub fn run_serve(arguments: &ServeArguments, call: &Call) -> Result<(), Failure> {
    let question = arguments.given().question(&call.files)?;
    let show = AnswerForm { top: arguments.top, format: arguments.format, beside: arguments.beside.as_deref() };
    answer_deployments(&question, show, arguments.out.as_deref(), call)
}

/// The form in which an answer is shown.
#[derive(Clone, Copy)]
pub struct AnswerForm<'a> {
    /// Largest number of deployments to show per case.
    pub top: u32,
    pub format: Format,
    /// A file of another tool's predictions.
    pub beside: Option<&'a Path>,
}

/// Answers a question about deployments, and writes the run into `out`.
pub fn answer_deployments(
    question: &DeploymentQuestion,
    show: AnswerForm<'_>,
    out: Option<&Path>,
    call: &Call,
) -> Result<(), Failure> {
    let started = Instant::now();
    let keeper = out.map(|out| RunKeeper::claim(out, question, show.beside)).transpose()?;
    let loaded = LoadedDeployment::load(question)?;
    let PricedCases { mut cases, points, found } = price_cases(&loaded, call)?;
    if let Some(file) = show.beside {
        let asked = question.list_cases();
        let ([case], [ServedCase { answer: Some(answer), .. }]) = (&asked[..], &mut cases[..]) else {
            let limit = "stands beside one answer, and several are asked for";
            return Err(failure::option_failure("--beside", file.display(), limit, "give one value of every limit"));
        };
        answer.beside = Some(beside::price_rows(&loaded, &loaded.question_of_case(case)?, file)?);
    }
    let fronts = fronts_of_points(&points, ServedAxis::default());
    let mut written = Ok(Vec::new());
    if let Some(keeper) = keeper {
        call.note_directory(keeper.path());
        let times = BTreeMap::from([("serve".to_owned(), started.elapsed().as_secs_f64())]);
        let answers = ServedAnswers { cases: &cases, points: &points, fronts: &fronts };
        written = keeper.write(question, answers, &found, show.top as usize, times);
    }
    keep_best(&mut cases, show.top as usize);
    let (written, lost): (Vec<PathBuf>, _) = match written {
        Ok(files) => (files, Ok(())),
        Err(failure) => (Vec::new(), Err(failure)),
    };
    let files = |text: String| match written.is_empty() {
        true => text,
        false => {
            let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
            format!("{text}Written: {}\n", names.join(", "))
        }
    };
    if let [ServedCase { answer: Some(report), .. }] = &cases[..] {
        return answer::write_answer_with_files(call, show.format, &Versioned::with_schema_one(report), lost, |_| {
            files(report::serving_report(report))
        });
    }
    let all = ServingCases { model: question.model.clone(), objective: question.objective.to_string(), cases, fronts };
    answer::write_answer_with_files(call, show.format, &Versioned::with_schema_one(&all), lost, |_| {
        files(report::serving_cases(&all))
    })
}

/// Keeps at most `most` of the best deployments in every case.
fn keep_best(cases: &mut [ServedCase], most: usize) {
    let answers = cases.iter_mut().filter_map(|case| case.answer.as_mut());
    answers.for_each(|answer| answer.choices.truncate(most));
}

/// Prices every case. A case that no plan serves has a reason. If no case can be served, the last reason is the
/// failure.
fn price_cases(loaded: &LoadedDeployment<'_>, call: &Call) -> Result<PricedCases, Failure> {
    let count = loaded.question().count_cases();
    if count > MOST_CASES {
        let limit = format!("are {count} combinations with --input and --output, and at most {MOST_CASES} are priced");
        return Err(failure::option_failure("--ttft, --tpot", "", limit, "give fewer values"));
    }
    let asked = loaded.question().list_cases();
    let several = asked.len() > 1;
    let (mut cases, mut refused, mut best) = (Vec::with_capacity(asked.len()), None, None);
    for asked in &asked {
        let case = ServedCase::unanswered(asked);
        let outcome = progress::run_with_progress(call, "pricing plans", || price_case(loaded, asked, call))?;
        cases.push(match outcome {
            CaseOutcome::Served(priced) => {
                let value = priced.report.choices.first().and_then(|choice| choice.value);
                if best.as_ref().is_none_or(|(most, _)| *most < value) {
                    best = Some((value, priced.found));
                }
                ServedCase { answer: Some(priced.report), ..case }
            }
            CaseOutcome::Refused(failure) if several => {
                let why = failure.message();
                refused = Some(failure.with_context(format!("no combination serves; {}", case.words())));
                ServedCase { why: Some(why), ..case }
            }
            CaseOutcome::Refused(failure) => return Err(failure),
        });
    }
    match (best, refused) {
        (None, Some(failure)) => Err(failure),
        (best, _) => {
            let points = ServingRun::points_of_cases(&cases);
            Ok(PricedCases { cases, points, found: best.map(|(_, found)| found).unwrap_or_default() })
        }
    }
}
