//! `coplace evaluate`: one model, one chip, one plan.

use crate::answer::{self, Format};
use crate::failure::{self, Failure, OrInput, OrOther};
use crate::input;
use clap::{ValueEnum, builder::RangedU64ValueParser};
use results::evaluated::{self, ChipRecord, ClusterRecord, Evaluated, ModelRecord, PlanRecord, ShortfallRecord};
use results::{files, report, trace};
use search::bench::Bench;
use search::evaluate::{Degrees, Evaluation, Planned, Rejection, best_plan, fixed_plan};
use search::explain::{Explanation, explain, simulate};
use search::placement::plan::{Effort, LayerSplit, NoPlan};
use search::study::{AttentionChoice, OptimizerChoice, Study};
use sim::hardware::Accelerator;
use std::collections::BTreeMap;
use std::path::PathBuf;
use workloads::parallel::tensor_parallel_degrees;
use workloads::{Lowering, Model, TrainingGraph};

/// The study whose cluster and plans are the defaults.
const DEFAULTS: &str = "phaze";

/// How attention is executed.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Attention {
    /// Tiled: the scores never reach memory
    Fused,
    /// Operator by operator
    Unfused,
}

/// The optimizer, in mixed precision.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Optimizer {
    /// Plain stochastic gradient descent
    Sgd,
    /// With momentum
    Momentum,
    /// Adam, AdamW (decoupled decay keeps the same states)
    #[value(alias = "adamw")]
    Adam,
}

/// Evaluate one plan of a model on a chip: time, memory, energy, and what bounds each kernel
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coplace evaluate llama2-7b --chip tpu_v4\n  \
    coplace evaluate llama2-7b --chip a100_80gb --fabric selene_hdr200x8 --devices 64 --global-batch 512 --pipeline 4 --data 4 --tensor 4 --trace stage.json\n\n\
    Without --pipeline and --data the best plan is found; with them their layers are split as well as possible.\n\
    A plan that does not fit or does not divide is an answer: it says which rule it breaks, or which stage lacks how many bytes.\n\
    The step is given twice: by the planner's closed form, and by simulating the pipeline event by event.\n\n\
    JSON: format, model, chip, cluster, options, feasible, why, shortfall, and result with plan, time, energy, time_shares, stages, slowest_stage and\n\
    passes (each with its kernels); the unit is in each key. docs/json.md describes every key.")]
pub struct Arguments {
    /// A built-in model (coplace list models) or a Hugging Face config.json
    model: String,
    /// A built-in chip (coplace list chips), a chip file (.toml), an LLMCompass device or a Calculon system (.json)
    #[arg(long)]
    chip: String,
    /// Network between the accelerators: a built-in one (coplace list fabrics), a fabric file (.toml), an LLMCompass or Calculon system
    /// (.json) [default: that of the study phaze, phaze_flat]
    #[arg(long)]
    fabric: Option<String>,
    /// Accelerators in the cluster [default: 1024]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_most(1 << 20))]
    devices: Option<u32>,
    /// Sequences per step over the whole cluster [default: 4096]
    #[arg(long, value_name = "SEQUENCES", allow_negative_numbers = true, value_parser = at_most(1 << 24))]
    global_batch: Option<u32>,
    /// Tokens per sequence [default: the model's longest]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    sequence_length: Option<u64>,
    /// Pipeline stages; needs --data and --tensor
    #[arg(long, value_name = "P", allow_negative_numbers = true, requires_all = ["data", "tensor"], value_parser = at_most(1 << 16))]
    pipeline: Option<u32>,
    /// Data-parallel replicas; needs --pipeline and --tensor
    #[arg(long, value_name = "D", allow_negative_numbers = true, requires_all = ["pipeline", "tensor"], value_parser = at_most(1 << 20))]
    data: Option<u32>,
    /// Tensor-parallel width; alone it restricts the best plan to this width [default: the best of 1, 2, 4, 8]
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = at_most(1 << 16))]
    tensor: Option<u32>,
    /// Sequences per micro-batch [default: the best of 1, 2, 4, 8, 16]
    #[arg(long, value_name = "SEQUENCES", allow_negative_numbers = true, value_parser = at_most(1 << 16))]
    micro_batch: Option<u32>,
    /// How attention is executed
    #[arg(long, value_enum, default_value_t = Attention::Fused)]
    attention: Attention,
    /// The optimizer, in mixed precision
    #[arg(long, value_enum, default_value_t = Optimizer::Adam)]
    optimizer: Optimizer,
    /// Megatron sequence parallelism beside tensor parallelism
    #[arg(long)]
    sequence_parallel: bool,
    /// Write the slowest stage's passes, kernel by kernel, as a trace for Chrome or Perfetto
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

fn at_most(limit: u64) -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..=limit)
}

/// Evaluates, prints, writes the trace.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let model = Model::load(&arguments.model).or_input()?;
    let chip = input::chip(&arguments.chip)?.accelerator;
    let study = study(arguments)?;
    check_width(&model, arguments.tensor)?;
    if let Some(rule) = broken_rule(arguments, &study) {
        return Err(failure::input(rule));
    }
    let fabric = input::fabric(&study.cluster.fabric, &chip.name, None)?;
    let parameters = TrainingGraph::new(&model, &Lowering::new(&model)).or_input()?.parameters().per_device();
    let mut answer = Evaluated {
        format: evaluated::FORMAT,
        model: ModelRecord {
            name: arguments.model.clone(),
            parameters,
            sequence_tokens: arguments.sequence_length.unwrap_or(model.max_sequence),
        },
        chip: ChipRecord::new(&chip),
        cluster: ClusterRecord {
            devices: study.cluster.devices,
            fabric: fabric.name.clone(),
            global_batch_sequences: study.cluster.global_batch_sequences,
        },
        options: options(&study),
        feasible: false,
        why: None,
        shortfall: None,
        result: None,
    };
    let bench = Bench::new(model, &study, &fabric, arguments.sequence_length).or_input()?;
    let evaluation = evaluate(arguments, &bench, &chip);
    match &evaluation.outcome {
        // The chip's own figures are at fault, not the plan.
        Err(Rejection::Unusable(why)) => return Err(failure::input(format!("--chip {}: {why}", arguments.chip))),
        // A rule, not the memory.
        Err(Rejection::NoPlan { why: why @ NoPlan::Stages { .. }, .. }) => {
            return Err(failure::input(format!("--pipeline: {why}")));
        }
        Err(why) => {
            answer.why = Some(why.to_string());
            answer.shortfall = ShortfallRecord::new(why);
        }
        Ok(planned) => {
            let why = explain(&bench, chip.clone(), planned).or_other()?;
            answer.feasible = true;
            answer.result = Some(record(&bench, &chip, &evaluation, planned, &why)?);
            write_trace(arguments, &chip, &why)?;
        }
    }
    if let (Some(file), None) = (&arguments.trace, &answer.result) {
        tracing::warn!("--trace {}: there is no plan to trace, nothing is written", file.display());
    }
    match arguments.format {
        Format::Json => answer::json(&answer),
        Format::Text => answer::text(&report::evaluated(&answer)),
    }
}

/// The default study with what the arguments replace.
fn study(arguments: &Arguments) -> Result<Study, Failure> {
    let mut study = Study::load(DEFAULTS).or_other()?;
    let cluster = &mut study.cluster;
    cluster.devices = arguments.devices.unwrap_or(cluster.devices);
    cluster.global_batch_sequences = arguments.global_batch.unwrap_or(cluster.global_batch_sequences);
    if let Some(fabric) = &arguments.fabric {
        cluster.fabric.clone_from(fabric);
    }
    let plan = &mut study.plan;
    if let Some(t) = arguments.tensor {
        plan.tensor_parallel = vec![t];
    }
    if let Some(b) = arguments.micro_batch {
        plan.micro_batch_sequences = vec![b];
    }
    plan.sequence_parallel = arguments.sequence_parallel;
    plan.attention = match arguments.attention {
        Attention::Fused => AttentionChoice::Fused,
        Attention::Unfused => AttentionChoice::Unfused,
    };
    plan.optimizer = match arguments.optimizer {
        Optimizer::Sgd => OptimizerChoice::Sgd,
        Optimizer::Momentum => OptimizerChoice::Momentum,
        Optimizer::Adam => OptimizerChoice::Adam,
    };
    Ok(study)
}

/// A width that the model cannot be cut into is to be mended, whatever the cluster.
fn check_width(model: &Model, tensor: Option<u32>) -> Result<(), Failure> {
    let Some(t) = tensor else { return Ok(()) };
    let allowed = tensor_parallel_degrees(model, 1024);
    if allowed.contains(&t) {
        return Ok(());
    }
    let (heads, kv, ffn) = (model.heads, model.kv_heads, model.ffn);
    let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    Err(failure::input(format!(
        "--tensor {t}: must divide the {heads} heads ({kv} key/value heads) and the MLP width {ffn} of {}; use one of {}",
        model.name,
        allowed.join(", ")
    )))
}

/// What rules a plan out before anything is costed.
fn broken_rule(arguments: &Arguments, study: &Study) -> Option<NoPlan> {
    let (global_batch, devices) = (u64::from(study.cluster.global_batch_sequences), u64::from(study.cluster.devices));
    let degree = |value: Option<u32>| u64::from(value.unwrap_or(1));
    let needed = degree(arguments.pipeline) * degree(arguments.data) * degree(arguments.tensor);
    if needed > devices {
        return Some(NoPlan::TooFewDevices { needed, devices });
    }
    let data_parallel = degree(arguments.data);
    let divides = |b: &u32| global_batch.is_multiple_of(u64::from(*b) * data_parallel);
    let sizes = &study.plan.micro_batch_sequences;
    let smallest = sizes.iter().min().map_or(1, |b| u64::from(*b));
    (!sizes.iter().any(divides)).then_some(NoPlan::BatchDoesNotDivide { global_batch, micro_batch: smallest, data_parallel })
}

fn evaluate(arguments: &Arguments, bench: &Bench, chip: &Accelerator) -> Evaluation {
    match (arguments.pipeline, arguments.data, arguments.tensor) {
        (Some(pipeline), Some(data), Some(tensor)) => {
            let degrees = Degrees { pipeline: pipeline as usize, data: u64::from(data), tensor };
            fixed_plan(bench, chip.clone(), degrees, arguments.micro_batch, LayerSplit::Optimal)
        }
        _ => best_plan(bench, chip.clone(), Effort::Proof),
    }
}

fn record(
    bench: &Bench,
    chip: &Accelerator,
    evaluation: &Evaluation,
    planned: &Planned,
    why: &Explanation,
) -> Result<PlanRecord, Failure> {
    let simulated = simulate(planned).or_other()?;
    Ok(PlanRecord::new(bench, chip, evaluation, planned, why, simulated))
}

fn write_trace(arguments: &Arguments, chip: &Accelerator, why: &Explanation) -> Result<(), Failure> {
    let Some(file) = &arguments.trace else { return Ok(()) };
    let title = format!("{} on {}, stage {}", arguments.model, chip.name, why.slowest_stage);
    files::write(file, trace::trace(&title, &why.passes, chip).as_bytes()).or_input()
}

fn options(study: &Study) -> BTreeMap<String, String> {
    let plan = &study.plan;
    let lower = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    BTreeMap::from([
        ("attention".to_owned(), lower(&plan.attention)),
        ("optimizer".to_owned(), lower(&plan.optimizer)),
        ("sequence_parallel".to_owned(), plan.sequence_parallel.to_string()),
    ])
}
