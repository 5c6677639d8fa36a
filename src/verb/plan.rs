//! `coplace plan`: the best plan for hardware that stands already.

mod write;

use crate::answer::{self, Format};
use crate::failure::{self, Failure, OrInput};
use crate::input;
use clap::{ValueEnum, builder::RangedU64ValueParser};
use results::mapped::Mapped;
use results::planned::Planned;
use results::{files, report, timeline};
use search::planner::{Job, MapRanks, PlanAnswer, PlanSpace, Splits, default_policies, map_plans, neighbours, search_plans};
use search::published::piper;
use search::rank_mapping::RankMapping;
use sim::hardware::Accelerator;
use sim::kernel::DataType;
use sim::network::Fabric;
use sim::pipeline::{Schedule, Timeline};
use std::path::PathBuf;
use step::SoftwareStack;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::{Attention, ContextMethod};
use workloads::{ActivationPolicy, LayerEnds, Model, RankOrder, ZeroStage};
use write::Framework;

/// The form of the matrix products.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Products {
    /// bf16 throughout
    Bf16,
    /// fp16 throughout
    Fp16,
    /// Matrix products in fp8, the rest in bf16
    Fp8,
    /// Matrix products in int8, the rest in bf16
    Int8,
}

/// How attention is executed.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum AttentionKernel {
    /// Tiled: the scores never reach memory
    Fused,
    /// Operator by operator
    Unfused,
}

impl AttentionKernel {
    fn attention(self) -> Attention {
        match self {
            Self::Fused => Attention::Fused,
            Self::Unfused => Attention::Unfused,
        }
    }
}

/// The optimizer, in mixed precision.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OptimizerName {
    /// Plain stochastic gradient descent
    Sgd,
    /// With momentum
    Momentum,
    /// Adam, AdamW (decoupled decay keeps the same states)
    #[value(alias = "adamw")]
    Adam,
    /// Adam with states of 8 bits
    Adam8bit,
    /// Adafactor
    Adafactor,
}

impl OptimizerName {
    fn optimizer(self) -> Optimizer {
        match self {
            Self::Sgd => Optimizer::Sgd,
            Self::Momentum => Optimizer::Momentum,
            Self::Adam => Optimizer::Adam,
            Self::Adam8bit => Optimizer::Adam8bit,
            Self::Adafactor => Optimizer::Adafactor,
        }
    }
}

/// A pipeline schedule.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ScheduleName {
    /// All forward passes first
    Gpipe,
    /// One forward, one backward; interleaved where stages hold several chunks
    #[value(name = "1f1b")]
    OneForwardOneBackward,
    /// Zero bubble H1
    ZbH1,
    /// Zero bubble V
    ZbV,
}

/// How ranks lie on the devices.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OrderName {
    /// The copies of a stage side by side
    #[value(name = "t-d-p")]
    DataFirst,
    /// The stages of a copy side by side (Megatron-LM's --use-tp-pp-dp-mapping)
    #[value(name = "t-p-d")]
    PipelineFirst,
}

/// What measured links join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LinkEnds {
    /// Units of the fabric's innermost tier
    Nodes,
    /// Single devices
    Devices,
}

/// How attention reaches the rest of a sequence.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ContextMethodName {
    /// Keys and values pass around a ring
    Ring,
    /// All-to-alls turn from tokens to heads and back (DeepSpeed-Ulysses)
    Ulysses,
}

impl ContextMethodName {
    fn method(&self) -> ContextMethod {
        match self {
            Self::Ring => ContextMethod::Ring,
            Self::Ulysses => ContextMethod::Ulysses,
        }
    }
}

/// Find the fastest plans for a model on a cluster that stands already, and say why their neighbours do not win
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coplace plan gpt3-175b --chip a100_80gb --fabric selene_hdr200x8 --devices 1024 --global-batch 1536\n  \
    coplace plan llama3-8b --chip tpu_v5p --fabric ici_3d_torus --devices 64 --global-batch 512 --stack maxtext --emit maxtext\n  \
    coplace plan gpt3-175b --chip a100_80gb --fabric selene_hdr200x8 --devices 128 --global-batch 512 --links links.csv\n  \
    coplace plan gpt2-xl --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64 --emit piper\n  \
    coplace plan gpt3-175b --chip a100_80gb --fabric selene_hdr200x8 --devices 512 --global-batch 768 --trace step.json\n\n\
    Every plan of the space is checked for memory and timed, or bounded and ruled out. Lists (--tensor 4,8) restrict the space; without them it\n\
    holds every value that divides, except: context parallelism for sequences above 8,192 tokens only, ZeRO-2 and ZeRO-3 without a pipeline\n\
    only, recomputation none, selective and full, schedules 1F1B and interleaved; under MaxText what it runs: its own policies,\n\
    GPipe, even splits, ZeRO-0, -1 and -3, rings. With --everything it holds all context widths, ZeRO-2 and ZeRO-3 in pipelines, all schedules,\n\
    and all choices of which of a layer's tensors are kept, offloaded and recomputed besides. Splits of the layers that are not even\n\
    are then tried for the plans that are there without --everything, and for the fastest of the others.\n\n\
    JSON: counts, plans (each with step_s, parts_s, peak_gib), stages, timeline, neighbours, mapping; the unit is in each key. docs/json.md describes every key."
)]
pub struct Arguments {
    /// A built-in model (coplace list models) or a Hugging Face config.json
    model: String,
    /// A built-in chip (coplace list chips), a chip file (.toml), an LLMCompass device or a Calculon system (.json)
    #[arg(long)]
    chip: String,
    /// Network between the devices: a built-in one (coplace list fabrics), a fabric file (.toml), an LLMCompass device or a Calculon system (.json)
    #[arg(long)]
    fabric: String,
    /// Devices of a fast domain (an NVLink node, an ICI slice), at most the fabric's [default: the fabric's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_most(1 << 20))]
    fast_domain: Option<u32>,
    /// Devices; all are used
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_most(1 << 20))]
    devices: u32,
    /// Sequences per step over the whole cluster
    #[arg(long, value_name = "SEQUENCES", allow_negative_numbers = true, value_parser = at_most(1 << 24))]
    global_batch: u32,
    /// Tokens per sequence [default: the model's longest]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    sequence_length: Option<u64>,
    /// Software stack: built in (coplace list stacks) or a file (.toml) [default: maxtext on TPUs, megatron_core on H100, H200, B200 and
    /// GB200, megatron otherwise]
    #[arg(long)]
    stack: Option<String>,
    /// An option of the stack to set: an overlap, hybrid sharding (kernels.shard_within_domain=true), ...;
    /// `coplace list stacks --format json` has all with their defaults. Can be given several times
    #[arg(long, value_name = "TABLE.KEY=VALUE")]
    stack_option: Vec<String>,
    /// Plans to list
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    top: u16,
    /// Tensor-parallel widths to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = at_most(1 << 16))]
    tensor: Option<Vec<u32>>,
    /// Pipeline stages to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = at_most(1 << 16))]
    pipeline: Option<Vec<u32>>,
    /// Context-parallel widths to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = at_most(1 << 16))]
    context: Option<Vec<u32>>,
    /// How attention reaches the rest of a sequence that is split, to choose from [default: both]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    context_method: Option<Vec<ContextMethodName>>,
    /// Expert-parallel widths to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = at_most(1 << 16))]
    expert: Option<Vec<u32>>,
    /// Model chunks per stage to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = at_most(1 << 16))]
    virtual_stages: Option<Vec<u32>>,
    /// Sequences per micro-batch to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = at_most(1 << 16))]
    micro_batch: Option<Vec<u32>>,
    /// Orders of ranks on devices to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    order: Option<Vec<OrderName>>,
    /// Splits of the layers among the stages to choose from: `even`, or layers of the first and of the last model chunk (7:9), the rest shared
    /// equally or so that chunks side by side hold one layer more, the first of those between or those behind so many (7:9@2); `best` alone for
    /// every plan's fastest of these that fits [default: best; with --everything:
    /// best for the plans that there are without it and for the fastest, even for the others]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    layer_split: Option<Vec<String>>,
    /// ZeRO stages to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=3))]
    zero: Option<Vec<u8>>,
    /// Recomputation to choose from: none, selective, full, MaxText's names, custom:offload(a)+device(b); separated by `;`
    #[arg(long, value_name = "LIST", value_delimiter = ';')]
    recompute: Option<Vec<String>>,
    /// Pipeline schedules to choose from; plans of one stage run none of them
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    schedule: Option<Vec<ScheduleName>>,
    /// Search also all context widths, ZeRO-2 and ZeRO-3 in pipelines, all schedules, and all choices of which tensors are kept, offloaded and
    /// recomputed, where no list restricts it. --layer-split best then takes many times as long
    #[arg(long)]
    everything: bool,
    /// How attention is executed
    #[arg(long, value_enum, default_value_t = AttentionKernel::Fused)]
    attention: AttentionKernel,
    /// Number format [default: bf16, fp16 on chips without it]
    #[arg(long, value_enum)]
    precision: Option<Products>,
    /// The optimizer, in mixed precision
    #[arg(long, value_enum, default_value_t = OptimizerName::Adam)]
    optimizer: OptimizerName,
    /// Measured links (.csv) between the nodes of the fabric: `gb_per_s,NAME,...` and a line `NAME,x,...` per node, or one measurement
    /// per line with the columns src_idx, dst_idx, bandwidth_mbytes_per_s. Where they differ, the listed plans' ranks are mapped to them
    #[arg(long, value_name = "FILE")]
    links: Option<PathBuf>,
    /// Which cluster of a file of several (its column `file`)
    #[arg(long, value_name = "NAME", requires = "links")]
    links_of: Option<String>,
    /// What the links join
    #[arg(long, value_enum, default_value_t = LinkEnds::Nodes, requires = "links")]
    links_between: LinkEnds,
    /// Map the listed plans' ranks where all links are alike as well: which ranks share a node. Takes minutes for 1024 devices
    #[arg(long)]
    map_ranks: bool,
    /// Print the fastest plan of the list that a framework has words for in these words instead (the fastest with exit code 3 where it has words for
    /// all of none), or the problem as Piper's
    /// graph (micro-batches of the first --micro-batch, else 1)
    #[arg(long, value_enum, conflicts_with = "format")]
    emit: Option<Framework>,
    /// Write the fastest plan's step, pass by pass on every stage with its memory, as a trace for Chrome or Perfetto
    #[arg(long, value_name = "FILE", conflicts_with = "emit")]
    trace: Option<PathBuf>,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

fn at_most(limit: u64) -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..=limit)
}

/// Searches and prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let model = Model::load(&arguments.model).or_input()?;
    let chip = input::chip(&arguments.chip)?.accelerator;
    let (cluster, fabric) = fabric(arguments, &chip.name)?;
    let usual = SoftwareStack::usual(&chip.name);
    let stack = input::stack(arguments.stack.as_deref().unwrap_or(usual), &arguments.stack_option)?;
    let mut asked = asked(arguments)?;
    if arguments.map_ranks {
        // The mapping orders the ranks.
        asked.orders.get_or_insert_with(|| vec![RankOrder::DataFirst]);
    }
    let job = Job {
        model: &model,
        chip: &chip,
        fabric: &fabric,
        stack: &stack,
        devices: arguments.devices,
        global_batch: arguments.global_batch.into(),
        sequence_length: arguments.sequence_length.unwrap_or(model.max_sequence),
        attention: arguments.attention.attention(),
        precision: stack.precision(precision(arguments.precision, &chip)?),
        optimizer: arguments.optimizer.optimizer(),
    };
    let (space, around) = spaces(arguments, &job, &cluster, &asked);
    if let Some(error) = asked.fault(&job, &cluster).or_else(|| space.emptiness(&job, &cluster)) {
        return Err(failure::input(format!("{}{error}", flag(error.key))));
    }
    for (name, rule) in asked.idle_schedules(&job, &cluster) {
        tracing::warn!("--schedule {name}: no plan runs it, it is left out: {rule}");
    }
    if arguments.emit == Some(Framework::Piper) {
        let micro_batch = arguments.micro_batch.as_ref().and_then(|list| list.first()).map_or(1, |b| u64::from(*b));
        let instance = piper::instance_of(&job, micro_batch, arguments.tensor.as_deref()).or_input()?;
        return answer::text(&instance.to_json_string());
    }
    let mut answer = search_plans(&job, &space, arguments.top.into()).or_input()?;
    // What every plan is refused for is a rule of the model or the fabric. That nothing fits is a result.
    if let (Some(refusal), true) = (&answer.refusal, answer.refused == answer.plans) {
        return Err(failure::input(refusal));
    }
    let which = if arguments.map_ranks { MapRanks::Always } else { MapRanks::WhereLinksDiffer };
    let mappings = map_plans(&job, &mut answer, which).or_input()?;
    match arguments.emit {
        Some(framework) => write_best(arguments, framework, &job, &answer, &mappings),
        None => list(arguments, &job, &around, &answer, &mappings),
    }
}

/// The space to search, and the one whose choices the neighbours of the best plan take: what is asked for, with what the framework runs where it is
/// not the planner's usual, unless no plan is left then.
fn spaces(arguments: &Arguments, job: &Job<'_>, cluster: &Fabric, asked: &PlanSpace) -> (PlanSpace, PlanSpace) {
    let own = write::choices(arguments.emit, job.stack).unwrap_or_default();
    let policies = own.activations.clone();
    let narrow = |asked: &PlanSpace, own: PlanSpace| {
        let narrow = asked.clone().or(own);
        if narrow.emptiness(job, cluster).is_none() { narrow } else { asked.clone() }
    };
    if !arguments.everything {
        let asked = PlanSpace { activations: asked.activations.clone().or(policies), ..asked.clone() };
        let space = narrow(&asked, own);
        return (space.clone(), space);
    }
    // To be written it is everything that the framework runs.
    let own = if arguments.emit.is_some() { PlanSpace { activations: None, ..own } } else { PlanSpace::default() };
    let asked = narrow(asked, own);
    (PlanSpace::full(job, &asked, policies.unwrap_or_else(default_policies)), asked)
}

/// Prints the best plan in a framework's words.
fn write_best(
    arguments: &Arguments,
    framework: Framework,
    job: &Job<'_>,
    answer: &PlanAnswer,
    mappings: &[RankMapping],
) -> Result<(), Failure> {
    if answer.best.is_empty() {
        let why = Planned::new(job, &arguments.model, answer, &[]).why.unwrap_or_default();
        return Err(Failure::Other(anyhow::anyhow!("--emit: nothing to write: {why}")));
    }
    let mappings: Vec<Mapped> = mappings.iter().map(Mapped::from).collect();
    write::first(framework, job, &answer.best, &mappings)
}

/// Prints the best plans and the neighbours of the first, and writes its trace.
fn list(
    arguments: &Arguments,
    job: &Job<'_>,
    asked: &PlanSpace,
    answer: &PlanAnswer,
    mappings: &[RankMapping],
) -> Result<(), Failure> {
    let around = answer.best.first().map(|best| neighbours(job, asked, best)).transpose().or_input()?;
    let mut record = Planned::new(job, &arguments.model, answer, &around.unwrap_or_default());
    if let Some(best) = answer.best.first() {
        let timeline = job.timeline(&best.plan).or_input()?;
        record.played(&timeline);
        write_trace(arguments, &timeline)?;
    } else if let Some(file) = &arguments.trace {
        tracing::warn!("--trace {}: no plan fits, nothing is written", file.display());
    }
    record.mapped(mappings);
    match arguments.format {
        Format::Json => answer::json(&record),
        Format::Text => answer::text(&report::planned(&record)),
    }
}

/// The argument that a decision of a layout is restricted by, before its message.
fn flag(key: &str) -> &'static str {
    match key {
        "tp" => "--tensor: ",
        "pp" => "--pipeline: ",
        "cp" => "--context: ",
        "ep" => "--expert: ",
        "virtual_stages" => "--virtual-stages: ",
        "micro_batch" => "--micro-batch: ",
        "global_batch" => "--global-batch: ",
        "layer_split" => "--layer-split: ",
        "schedule" => "--schedule: ",
        "devices" => "--devices: ",
        _ => "",
    }
}

fn write_trace(arguments: &Arguments, timeline: &Timeline) -> Result<(), Failure> {
    let Some(file) = &arguments.trace else { return Ok(()) };
    let title = format!("{} on {} x {}, fastest plan", arguments.model, arguments.devices, arguments.chip);
    files::write(file, timeline::trace(&title, timeline).as_bytes()).or_input()
}

/// The fabric with all devices that it can join, and cut to those of the job.
fn fabric(arguments: &Arguments, chip: &str) -> Result<(Fabric, Fabric), Failure> {
    let whole = input::fabric(&arguments.fabric, chip, arguments.fast_domain)?;
    let whole = match &arguments.links {
        None => whole,
        Some(path) => {
            let between_devices = arguments.links_between == LinkEnds::Devices;
            let links = input::Links { path, of: arguments.links_of.as_deref(), between_devices };
            input::linked_fabric(whole, arguments.devices, links)?
        }
    };
    let cut = whole.for_devices(arguments.devices).or_input()?;
    Ok((whole, cut))
}

fn precision(products: Option<Products>, chip: &Accelerator) -> Result<Precision, Failure> {
    let Some(products) = products else {
        let default = if chip.peak(DataType::Bf16).is_none() { Products::Fp16 } else { Products::Bf16 };
        return precision(Some(default), chip);
    };
    let precision = match products {
        Products::Bf16 => Precision::MIXED_BF16,
        Products::Fp16 => Precision { operand: DataType::Fp16, gradient: DataType::Fp16, ..Precision::MIXED_BF16 },
        Products::Fp8 => Precision::MIXED_BF16.with_products(DataType::Fp8),
        Products::Int8 => Precision::MIXED_BF16.with_products(DataType::Int8),
    };
    if chip.peak(precision.product.unwrap_or(precision.operand)).is_some() {
        return Ok(precision);
    }
    let types = [("bf16", DataType::Bf16), ("fp16", DataType::Fp16), ("fp8", DataType::Fp8), ("int8", DataType::Int8)];
    let has: Vec<&str> = types.into_iter().filter(|(_, t)| chip.peak(*t).is_some()).map(|(name, _)| name).collect();
    let asked = products.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
    Err(failure::input(format!(
        "--precision {asked}: {} has no matrix products of that type; use {}",
        chip.name,
        has.join(" or ")
    )))
}

fn splits(list: &[String]) -> Result<Splits, Failure> {
    if list.len() == 1 && list[0] == "best" {
        return Ok(Splits::Best);
    }
    let ends = |text: &String| match text.as_str() {
        "even" => Ok(None),
        text => text.parse::<LayerEnds>().map(Some).map_err(|e| failure::input(format!("--layer-split: {e}"))),
    };
    list.iter().map(ends).collect::<Result<_, _>>().map(Splits::Listed)
}

/// What the arguments ask for.
fn asked(arguments: &Arguments) -> Result<PlanSpace, Failure> {
    let policy = |text: &String| {
        let several = text.split_once(',').filter(|(first, _)| first.parse::<ActivationPolicy>().is_ok());
        match several {
            Some((first, rest)) => {
                let cure = "policies are separated by `;`, as `,` separates tensors of one";
                Err(failure::input(format!("--recompute {text}: {cure}; use --recompute '{first};{}'", rest.replace(',', ";"))))
            }
            None => text.parse::<ActivationPolicy>().map_err(|e| failure::input(format!("--recompute {text}: {e}"))),
        }
    };
    let schedule = |name: &ScheduleName| match name {
        ScheduleName::Gpipe => Schedule::GPipe,
        ScheduleName::OneForwardOneBackward => Schedule::OneForwardOneBackward,
        ScheduleName::ZbH1 => Schedule::ZbH1,
        ScheduleName::ZbV => Schedule::ZbV,
    };
    let order = |name: &OrderName| match name {
        OrderName::DataFirst => RankOrder::DataFirst,
        OrderName::PipelineFirst => RankOrder::PipelineFirst,
    };
    Ok(PlanSpace {
        tensor: arguments.tensor.clone(),
        pipeline: arguments.pipeline.clone(),
        context: arguments.context.clone(),
        context_methods: arguments.context_method.as_ref().map(|list| list.iter().map(ContextMethodName::method).collect()),
        expert: arguments.expert.clone(),
        virtual_stages: arguments.virtual_stages.clone(),
        splits: arguments.layer_split.as_ref().map(|list| splits(list)).transpose()?,
        orders: arguments.order.as_ref().map(|list| list.iter().map(order).collect()),
        zero: arguments.zero.as_ref().map(|list| list.iter().filter_map(|z| ZeroStage::from_number((*z).into())).collect()),
        micro_batch: arguments.micro_batch.as_ref().map(|list| list.iter().map(|b| u64::from(*b)).collect()),
        activations: arguments.recompute.as_ref().map(|list| list.iter().map(policy).collect()).transpose()?,
        schedules: arguments.schedule.as_ref().map(|list| list.iter().map(schedule).collect()),
    })
}
