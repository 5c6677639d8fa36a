//! `coplace serve`: the deployment of a model on a cluster that generates most tokens within a service level, on given
//! chips or on the best chip of a space.

mod baselines;
mod method;
mod space;

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use crate::input;
use crate::numbers::whole_number_in;
use crate::progress;
use crate::verb::job::{LONGEST, count_up_to, ignored_key};
use clap::ValueEnum;
use method::MethodArguments;
use results::answer::serving::{ServingReport, describe_refusal};
use results::report;
use search::objective::Objective;
use search::serve::{ServedObjective, figures_of_built_chip};
use search::space::ChipFigures;
use serving::apart::apart;
use serving::best::{
    self, Deployment, GivenDegrees, PlanRefusal, ServiceLevel, ServingAnswer, ServingHardware, ServingQuestion,
};
use serving::lengths::{LengthClass, RequestLengths};
use serving::plan::{ServedProduct, ServingFormats};
use serving::{ServingEngine, ServingError};
use sim::files::StructuredError;
use sim::hardware::Accelerator;
use sim::kernel::DataType;
use sim::network::Fabric;
use sim::units::Seconds;
use space::SpaceAnswer;
use std::collections::BTreeMap;
use workloads::Model;

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

/// The format of keys and values in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheFormat {
    /// 16 bits
    Bf16,
    /// 8 bits
    Fp8,
}

/// Find the deployment that serves most tokens within limits on the time to the first token and between tokens
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    coplace serve llama3-70b --chip h100 --devices 8 --products fp8 --input 1024 --output 256 --ttft 500 --tpot 25\n  \
    coplace serve deepseek-v3 --chip h200,b200 --devices 64 --products fp8 --experts fp8 --ttft 2000 --tpot 50\n  \
    coplace serve llama3-70b --chip h100,h200 --devices 16 --pools apart --lengths 512x128:0.8,8192x1024:0.2\n  \
    coplace serve llama3-70b --chip h100 --draft 4 --accepted 2.5 --draft-model llama3-8b --tpot 15\n  \
    coplace serve llama3-70b --chip h100 --prefix-hit 0.8 --cache-place host --cache-away 0.5\n  \
    coplace serve llama2-7b --chip a100 --devices 1 --input 32768 --technique homer\n  \
    coplace serve llama3-70b --study serve --devices 8 --products fp8 --ttft 1000 --tpot 30\n  \
    coplace serve llama3-70b --study train_and_serve --train-weight 0.5 --tpot 30\n  \
    coplace serve llama3.1-70b --study prefill_decode --pools any --devices 64 --input 8192 --output 1024 --tpot 30\n\n\
    Requests arrive at random. The times are means in the steady state of continuous batching, in closed form\n\
    (serving/README.md). Every plan of the degrees is priced; the rate of requests is raised until a limit or a\n\
    load of 95 % is reached. Several chips are compared; in pools apart, prompts and decoding may have different\n\
    ones. --study finds the best chip of a space: chips are priced in the order of a bound on their rate, until no\n\
    bound is higher than what was found.\n\n\
    JSON: format, model, engine, devices, lengths, ttft_limit_ms, tpot_limit_ms, method, objective, unit, choices,\n\
    plans, refused, nearest_refusal, space, baselines; docs/json.md describes every key.")]
pub struct ServeArguments {
    /// A built-in model (coplace list models) or a Hugging Face config.json
    model: String,
    /// Chips, built in or files, with commas between
    #[arg(long, value_delimiter = ',', required_unless_present = "study", value_name = "CHIP")]
    chip: Vec<String>,
    /// Search the chips of this study's space within its limits: built in (coplace list studies) or a file. With
    /// --chip, those are compared
    #[arg(long, value_name = "STUDY")]
    study: Option<String>,
    /// Network between the devices [default: the chip's usual one]
    #[arg(long)]
    fabric: Option<String>,
    /// Devices that may be used
    #[arg(long, alias = "gpus", value_name = "N", default_value_t = 8, value_parser = count_up_to(1 << 16))]
    devices: u32,
    /// Serving engine: built in (coplace list engines) or a file (.toml)
    #[arg(long, default_value = "vllm")]
    engine: String,
    /// Tokens of a prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, value_parser = whole_number_in(1..=LONGEST))]
    input: u64,
    /// Tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = whole_number_in(2..=LONGEST))]
    output: u64,
    /// Lengths of requests with their shares, in place of --input and --output
    #[arg(long, value_name = "INPUTxOUTPUT:SHARE,...", conflicts_with_all = ["input", "output"])]
    lengths: Option<String>,
    /// Most milliseconds to the first token, in the mean
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    ttft: Option<f64>,
    /// Most milliseconds from token to token, in the mean
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    tpot: Option<f64>,
    /// Devices of prompts and of decoding
    #[arg(long, value_enum, default_value_t = PoolChoice::Together)]
    pools: PoolChoice,
    /// Format of the layers' products: bf16, fp8, int8, mxfp8, nvfp4, or stored weights multiplied in bf16:
    /// fp8-weights, mxfp4-weights, nvfp4-weights, int4-weights
    #[arg(long, value_name = "FORMAT", default_value = "bf16", value_parser = product_format)]
    products: ServedProduct,
    /// Format of experts' products [default: that of --products]
    #[arg(long, value_name = "FORMAT", value_parser = product_format)]
    experts: Option<ServedProduct>,
    /// Format of keys and values in the cache
    #[arg(long, value_enum, default_value_t = CacheFormat::Bf16)]
    cache: CacheFormat,
    /// Devices that split every layer [default: every degree that the model allows]
    #[arg(long, visible_alias = "tp", value_name = "T", value_parser = count_up_to(1 << 16))]
    tensor: Option<u32>,
    /// Stages [default: powers of two]
    #[arg(long, visible_alias = "pp", value_name = "P", value_parser = count_up_to(1 << 16))]
    pipeline: Option<u32>,
    /// Groups that attend for sequences of their own and share experts [default: powers of two]
    #[arg(long, value_name = "D", value_parser = count_up_to(1 << 16))]
    attention_data: Option<u32>,
    /// Parts that hold whole experts of their own [default: powers of two]
    #[arg(long, visible_alias = "ep", value_name = "E", value_parser = count_up_to(1 << 16))]
    expert: Option<u32>,
    #[command(flatten)]
    method: MethodArguments,
    /// Weight of training in a chip that also serves, from 0 to 1: the training job is the study's; the objective is
    /// the weighted geometric mean of the two rates
    #[arg(long, value_name = "WEIGHT", requires = "study", value_parser = weight)]
    train_weight: Option<f64>,
    /// Objective of deployments and chips: throughput, per-mm2, per-watt (under the heaviest load), per-dollar (of
    /// manufacturing) or energy-per-token; each plan at its highest rate
    #[arg(long, default_value = "throughput", value_name = "OBJECTIVE", value_parser = ServedObjective::from_name)]
    objective: ServedObjective,
    /// Deployments in the answer
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count_up_to(5000))]
    top: u32,
    /// Take a key of the model's file that nothing reads as without effect. Can be given several times
    #[arg(long, value_name = "KEY=ignored", value_parser = ignored_key)]
    assume: Vec<String>,
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

/// Parses a positive time.
fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("must be a positive number of milliseconds; give one, such as 500".to_owned()),
    }
}

/// Parses a weight between 0 and 1.
fn weight(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 1.0 => Ok(value),
        _ => Err("must lie between 0 and 1; give 0.5 for equal weights, and leave it out to serve alone".to_owned()),
    }
}

/// Parses `INPUTxOUTPUT:SHARE,...`; a single class needs no share.
fn parse_lengths(text: &str) -> Result<RequestLengths, Failure> {
    let wrong = |part: &str| {
        failure::input_failure(format!(
            "--lengths {part}: is not INPUTxOUTPUT:SHARE; give for example 1024x256:0.8,8192x512:0.2"
        ))
    };
    let mut classes = Vec::new();
    for part in text.split(',') {
        let (lengths, share) = part.split_once(':').unwrap_or((part, "1"));
        let (input, output) = lengths.split_once('x').ok_or_else(|| wrong(part))?;
        let class = (input.trim().parse(), output.trim().parse(), share.trim().parse());
        let (Ok(input), Ok(output), Ok(share)) = class else { return Err(wrong(part)) };
        classes.push(LengthClass { input, output, share });
    }
    RequestLengths::new(&classes).map_err(|error| failure::option_failure_from("--lengths", &error))
}

impl ServeArguments {
    fn lengths(&self) -> Result<RequestLengths, Failure> {
        match &self.lengths {
            Some(text) => parse_lengths(text),
            None => RequestLengths::uniform(self.input, self.output).or_input(),
        }
    }

    fn formats(&self) -> ServingFormats {
        let cache = match self.cache {
            CacheFormat::Bf16 => DataType::Bf16,
            CacheFormat::Fp8 => DataType::Fp8,
        };
        ServingFormats { products: self.products, experts: self.experts.unwrap_or(self.products), cache }
    }

    fn level(&self) -> ServiceLevel {
        let seconds = |limit: Option<f64>| limit.map(|ms| Seconds(ms * 1e-3));
        ServiceLevel { time_to_first_token: seconds(self.ttft), time_per_output_token: seconds(self.tpot) }
    }

    /// Reads a chip and its fabric.
    fn hardware(&self, name: &str, call: &Call) -> Result<(Accelerator, Fabric), Failure> {
        let mut chip = input::read_chip(name, &call.files)?.accelerator;
        self.method.add_storage(&mut chip)?;
        let usual = chip.origin.usual_fabric.clone();
        let fabric = self.fabric.clone().or(usual).ok_or_else(|| {
            failure::input_failure(format!(
                "--fabric is missing: the file of chip {name} has no usual_fabric; give --fabric NAME (coplace list \
                fabrics)"
            ))
        })?;
        let fabric = input::read_fabric(&fabric, &chip, None, &call.files)?.for_devices(self.devices).or_input()?;
        Ok((chip, fabric))
    }
}

/// Runs the verb: prices all plans and prints the best deployments.
pub fn run_serve(arguments: &ServeArguments, call: &Call) -> Result<(), Failure> {
    let model = Model::load_assuming(&arguments.model, &call.files, &arguments.assume).or_input()?;
    let engine = ServingEngine::load_from(&arguments.engine, &call.files)
        .map_err(|error| failure::option_failure_from("--engine", &error))?;
    let hardware: Vec<(Accelerator, Fabric)> =
        arguments.chip.iter().map(|name| arguments.hardware(name, call)).collect::<Result<_, _>>()?;
    let twice = hardware.iter().enumerate().find(|(i, (chip, _))| hardware.iter().take(*i).any(|(own, _)| own == chip));
    if let Some((_, (chip, _))) = twice {
        return Err(failure::option_failure("--chip", &chip.name, "is named twice", "name each chip once"));
    }
    let (lengths, level) = (arguments.lengths()?, arguments.level());
    let draft = arguments.method.draft_model(call)?;
    let method = arguments.method.method((&model, &lengths), draft.as_ref())?;
    let given = GivenDegrees {
        tensor: arguments.tensor,
        pipeline: arguments.pipeline,
        attention_data: arguments.attention_data,
        expert: arguments.expert,
    };
    let question = ServingQuestion {
        model: &model,
        devices: arguments.devices,
        formats: arguments.formats(),
        lengths: lengths.clone(),
        level,
        given,
        method,
        power_limit: None,
    };
    let sides: Vec<ServingHardware<'_>> =
        hardware.iter().map(|(chip, fabric)| ServingHardware { chip, fabric, engine: &engine }).collect();
    let mut answers = progress::run_with_progress(call, "pricing plans", || deploy(&question, arguments.pools, &sides));
    let found = match &arguments.study {
        Some(study) => Some(space::search_space(arguments, study, &question, &engine, call)?),
        None => None,
    };
    let figures = figures_by_name(&hardware, found.as_ref());
    let value =
        |deployment: &Deployment| arguments.objective.value(deployment, |pool| figures.get(&pool.chip).copied());
    let (space, baselines) = match found {
        Some(SpaceAnswer { answers: of_space, record, efficiency, .. }) => {
            answers.extend(of_space);
            (Some(record), baselines::price_baselines(arguments, &question, &engine, (efficiency, call)))
        }
        None => (None, Vec::new()),
    };
    let head = ServingReport {
        model: arguments.model.clone(),
        engine: engine.name.clone(),
        devices: arguments.devices,
        lengths: lengths.classes().to_vec(),
        ttft_limit_ms: arguments.ttft,
        tpot_limit_ms: arguments.tpot,
        method: {
            let best = answers.iter().flat_map(|answer| answer.deployments.first());
            let best = best.max_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second));
            arguments.method.record((&model, &method), &lengths, (best, &sides))
        },
        objective: Objective::from(arguments.objective).to_string(),
        unit: arguments.objective.unit().to_owned(),
        choices: Vec::new(),
        plans: 0,
        refused: 0,
        nearest_refusal: None,
        space,
        baselines,
    };
    let report = ServingReport::of_answers(head, &answers, &level, (arguments.top as usize, &value));
    check_report(arguments, &report, &answers, &level)?;
    // Merged prompts have the places of a chunk.
    if lengths.longest() > model.max_sequence && method.merged().is_none() {
        tracing::warn!(
            "requests have up to {} tokens; {} was made for {}: its answers may be worse, its times are those of the \
            longer requests",
            lengths.longest(),
            arguments.model,
            model.max_sequence
        );
    }
    let versioned = Versioned::with_schema_one(&report);
    answer::write_answer(call, arguments.format, &versioned, |_| report::serving_report(&report))
}

/// Returns the deployments on every chip, or on every pair of chips in pools apart, or both.
fn deploy(question: &ServingQuestion<'_>, pools: PoolChoice, sides: &[ServingHardware<'_>]) -> Vec<ServingAnswer> {
    let mut answers = Vec::new();
    if pools != PoolChoice::Apart {
        answers.extend(sides.iter().map(|side| best::together(question, *side)));
    }
    if pools != PoolChoice::Together {
        let pairs = sides.iter().flat_map(|a| sides.iter().map(move |b| (*a, *b)));
        answers.extend(pairs.map(|(a, b)| apart(question, a, b)));
    }
    answers
}

/// Returns the figures of given chips and of those of a space. Chips with undisclosed dies have none.
fn figures_by_name(given: &[(Accelerator, Fabric)], found: Option<&SpaceAnswer>) -> BTreeMap<String, ChipFigures> {
    let given = given.iter().filter_map(|(chip, _)| Some((chip.name.clone(), figures_of_built_chip(chip)?)));
    let of_space = found.into_iter().flat_map(|found| &found.figures);
    given.chain(of_space.map(|(name, figures)| (name.clone(), *figures))).collect()
}

/// Refuses an answer without a deployment, or without a value of the objective.
fn check_report(
    arguments: &ServeArguments,
    report: &ServingReport,
    answers: &[ServingAnswer],
    level: &ServiceLevel,
) -> Result<(), Failure> {
    let Some(best) = report.choices.first() else {
        return Err(nothing_serves(answers, level, arguments.devices));
    };
    if best.value.is_none() {
        let lacking =
            [Some(&best.decode), best.prefill.as_ref()].into_iter().flatten().find(|pool| pool.device_w == 0.0);
        let (what, chip) = match lacking {
            Some(pool) => ("energy", &pool.chip),
            None => ("area or the cost", &best.decode.chip),
        };
        return Err(failure::input_failure(format!(
            "--objective {}: the {what} of {chip} is not known; give throughput, or another chip",
            report.objective
        )));
    }
    Ok(())
}

/// The failure if no plan serves, with the nearest one that would.
fn nothing_serves(answers: &[ServingAnswer], level: &ServiceLevel, devices: u32) -> Failure {
    let nearest = answers.iter().find_map(|answer| answer.nearest_refusal(level));
    let text = match nearest {
        Some(PlanRefusal::Fault(ServingError::Workload(error))) => {
            return failure::structured_failure(error, error.fault_parts());
        }
        Some(PlanRefusal::Fault(error)) => {
            return failure::structured_failure(
                format!("no plan serves; the first's reason: {error}"),
                error.fault_parts(),
            );
        }
        Some(refusal) => format!(
            "no plan meets the service level; the nearest: {}; allow more time, or give more or faster devices",
            describe_refusal(refusal, level)
        ),
        None => format!(
            "--devices {devices}: no plan uses so few: the given degrees, or pools apart, need more; raise --devices, \
            or lower --tensor, --pipeline and --attention-data"
        ),
    };
    failure::input_failure(text)
}
