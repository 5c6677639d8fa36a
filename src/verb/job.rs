//! The job and the plans that verbs about plans ask for.

mod again;
mod precision;

pub use precision::ProductFormat;
pub(super) use precision::training_precision;

use crate::failure::{self, Failure, OrInput};
use crate::input;
use crate::numbers::whole_number_in;
use clap::ValueEnum;
use search::planner::{Job, PlanAnswer, PlanSpace, Splits};
use sim::hardware::{Accelerator, ChipTemplate};
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use step::{MixKind, SoftwareStack, usable_hbm};
use workloads::Allowance;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::{Attention, ContextMethod, Lowering};
use workloads::{ActivationPolicy, LayerEnds, Model, RankOrder, Technique, Techniques, TrainingGraph, ZeroStage};

/// The execution of attention.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum AttentionKernel {
    /// Tiled: the scores never reach memory
    Fused,
    /// Operator by operator
    Unfused,
}

impl AttentionKernel {
    pub(super) fn attention(self) -> Attention {
        match self {
            Self::Fused => Attention::Fused,
            Self::Unfused => Attention::Unfused,
        }
    }
}

/// The optimizer, in mixed precision.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OptimizerName {
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
    pub(super) fn to_optimizer(self) -> Optimizer {
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
pub enum ScheduleName {
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

/// The order of ranks on the devices.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OrderName {
    /// The replicas of a stage side by side
    #[value(name = "t-d-p")]
    DataFirst,
    /// The stages of a replica side by side (Megatron-LM's --use-tp-pp-dp-mapping)
    #[value(name = "t-p-d")]
    PipelineFirst,
}

/// The method of attention over a split sequence.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ContextMethodName {
    /// Keys and values pass around a ring
    Ring,
    /// All-to-alls from tokens to heads and back (DeepSpeed-Ulysses)
    Ulysses,
}

impl ContextMethodName {
    fn to_context_method(&self) -> ContextMethod {
        match self {
            Self::Ring => ContextMethod::Ring,
            Self::Ulysses => ContextMethod::Ulysses,
        }
    }
}

/// The job.
#[derive(clap::Args)]
pub struct JobArguments {
    /// A built-in model (coplace list models) or a Hugging Face config.json
    pub model: String,
    /// A chip: built in (coplace list chips), a chip file (.toml), an LLMCompass device or a Calculon system (.json), a
    /// run directory of `coplace search` (its found chip, with its cluster and stack unless given), or an answer that
    /// `evaluate` or `plan` printed with --format json (.json)
    #[arg(long)]
    pub chip: String,
    /// Network between the devices: built in (coplace list fabrics), a fabric file (.toml), an LLMCompass device or a
    /// Calculon system (.json)
    #[arg(long)]
    pub fabric: String,
    /// Devices of a fast domain (an NVLink node, an ICI slice), at most the fabric's [default: the fabric's]
    #[arg(long, value_name = "N", value_parser = count_up_to(1 << 20))]
    pub fast_domain: Option<u32>,
    /// Devices; all are used
    #[arg(long, value_name = "N", value_parser = count_up_to(1 << 20))]
    pub devices: u32,
    /// Sequences per step over the whole cluster
    #[arg(long, value_name = "SEQUENCES", value_parser = count_up_to(1 << 24))]
    pub global_batch: u32,
    /// Tokens per sequence [default: the model's longest]
    #[arg(long, value_name = "TOKENS", value_parser = whole_number_in(1..=LONGEST))]
    pub sequence_length: Option<u64>,
    /// Software stack: built in (coplace list stacks) or a file (.toml) [default: maxtext on TPUs, megatron_core on
    /// GPUs of 2022 and later (H100 to GB300, MI300, Gaudi), megatron otherwise]
    #[arg(long)]
    pub stack: Option<String>,
    /// Set an option of the stack: an overlap, hybrid sharding (kernels.shard_within_domain=true), ...; `coplace list
    /// stacks --format json` lists all with their defaults. Can be given several times
    #[arg(long, value_name = "TABLE.KEY=VALUE")]
    pub stack_option: Vec<String>,
    /// Modules that predict further tokens, trained with the model: DeepSeek-V3's multi-token prediction (its run had
    /// 1), Megatron-LM's --mtp-num-layers [default: none, even if `num_nextn_predict_layers` is set]
    #[arg(long, value_name = "N", value_parser = whole_number_in(0..=MOST_MTP))]
    pub mtp_layers: Option<u64>,
    /// Capacity of an expert, as a multiple of its even share of the tokens. Fuller experts drop tokens, emptier ones
    /// pad (Megatron-LM's --moe-expert-capacity-factor with --moe-pad-expert-input-to-capacity) [default: the model's;
    /// without one no token is dropped]
    #[arg(long, value_name = "FACTOR")]
    pub capacity_factor: Option<f64>,
    /// GiB per device that plans leave free, in addition to the memory of driver, libraries and allocator
    #[arg(long, value_name = "GIB", default_value_t = 0.0)]
    pub headroom_gib: f64,
    /// Execution of attention
    #[arg(long, value_enum, default_value_t = AttentionKernel::Fused)]
    pub attention: AttentionKernel,
    /// Number format [default: bf16; fp16 on chips without it]
    #[arg(long, value_enum)]
    pub precision: Option<ProductFormat>,
    /// The optimizer, in mixed precision
    #[arg(long, value_enum, default_value_t = OptimizerName::Adam)]
    pub optimizer: OptimizerName,
    /// Storage (NVMe) of every device, GB/s and GB, instead of that in the chip's file
    #[arg(long, value_name = "GB_PER_S:GB")]
    pub nvme: Option<String>,
    /// A memory technique for every plan, or its file; `coplace list techniques` lists all with their parameters,
    /// `coplace techniques` compares them. Can be given several times
    #[arg(long, value_name = "NAME[,KEY=VALUE]")]
    pub technique: Vec<String>,
    /// Allow a technique that changes the training. X is the expected factor on the number of steps; the throughput
    /// divided by X is printed too. Can be given several times
    #[arg(long, value_name = "NAME[,step_multiplier=X]")]
    pub allow: Vec<String>,
}

/// Restrictions of the plans. The planner chooses everything else.
#[derive(clap::Args)]
pub struct SpaceArguments {
    /// Tensor-parallel widths to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count_up_to(1 << 16))]
    pub tensor: Option<Vec<u32>>,
    /// Pipeline stages to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count_up_to(1 << 16))]
    pub pipeline: Option<Vec<u32>>,
    /// Context-parallel widths to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count_up_to(1 << 16))]
    pub context: Option<Vec<u32>>,
    /// Methods of attention over a split sequence to choose from [default: both]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub context_method: Option<Vec<ContextMethodName>>,
    /// Expert-parallel widths to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count_up_to(1 << 16))]
    pub expert: Option<Vec<u32>>,
    /// Devices over which the width of every expert is split, to choose from: Megatron-LM's
    /// --expert-tensor-parallel-size. Its product with --expert divides tp x cp x dp; a width other than --tensor needs
    /// sequence parallelism [default: the tensor-parallel width]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count_up_to(1 << 16))]
    pub expert_tensor: Option<Vec<u32>>,
    /// Model chunks per stage to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count_up_to(1 << 16))]
    pub virtual_stages: Option<Vec<u32>>,
    /// Megatron sequence parallelism with tensor parallelism [default: both]
    #[arg(long, value_name = "BOOL")]
    pub sequence_parallel: Option<bool>,
    /// Sequences per micro-batch to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count_up_to(1 << 16))]
    pub micro_batch: Option<Vec<u32>>,
    /// Orders of ranks on devices to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub order: Option<Vec<OrderName>>,
    /// Splits of the layers among the stages to choose from: `even`, or the layers of the first and of the last model
    /// chunk (7:9). The rest is shared equally, or so that adjacent chunks hold one layer more: the first inner chunks,
    /// or those after N of them (7:9@2). `best` alone finds the fastest such split that fits, for every listed plan
    /// [default: even, or ends lighter by a few layers; any other split that makes a plan more than 0.5 % faster than
    /// the first; with --everything this holds for the plans without it and for the fastest one, and the others are
    /// split evenly]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub layer_split: Option<Vec<String>>,
    /// ZeRO stages to choose from
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole_number_in::<u8>(0..=3))]
    pub zero: Option<Vec<u8>>,
    /// Recomputation to choose from, separated by `;`: none, selective, full, MaxText's names,
    /// custom:offload(a)+device(b), or tensors:offload(a)+device(b) with the operators' own names (`a*0.5`: a fraction
    /// of its tokens; `+rest(recompute)` recomputes the others). `best` finds the fastest choice per stage, tensor by
    /// tensor, even if the stack's framework cannot run it; it does not plan addresses, as --technique
    /// planned-addresses does [default: none, selective, full; as different between stages as the stack's framework
    /// allows]
    #[arg(long, value_name = "LIST", value_delimiter = ';')]
    pub recompute: Option<Vec<String>>,
    /// Pipeline schedules to choose from; plans of one stage use none
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub schedule: Option<Vec<ScheduleName>>,
}

/// The longest accepted sequence, in tokens.
pub const LONGEST: u64 = 1 << 24;
/// Most modules that predict further tokens.
pub const MOST_MTP: u64 = workloads::limits::MAX_FURTHER_TOKENS;
/// The recomputation that is optimised for every stage.
const BEST: &str = "best";

/// Makes a parser of numbers from 1 to a limit.
pub fn count_up_to(limit: u32) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    whole_number_in(1..=limit)
}

/// The parts that a job's arguments name.
pub struct JobParts {
    pub model: Model,
    pub chip: ChipTemplate,
    pub stack: SoftwareStack,
    /// The fabric with all devices that it can join.
    cluster: Fabric,
    /// The fabric, cut to the job's devices.
    pub fabric: Fabric,
}

/// A job with all parts that it refers to.
pub struct LoadedJob {
    pub model: Model,
    pub chip: Accelerator,
    pub stack: SoftwareStack,
    /// The fabric with all devices that it can join.
    pub cluster: Fabric,
    /// The fabric, cut to the job's devices.
    fabric: Fabric,
    precision: Precision,
    headroom: Bytes,
    techniques: Techniques,
}

impl JobArguments {
    /// The requested techniques. Fails if a lossy one is not allowed, or if the model cannot use one.
    fn read_techniques(&self, model: &Model, chip: &Accelerator) -> Result<Techniques, Failure> {
        let parsed = |text: &String| text.parse::<Technique>().map_err(|e| failure::input_failure(format!("--technique: {e}")));
        let asked: Techniques = self.technique.iter().map(parsed).collect::<Result<_, _>>()?;
        let allowance = |text: &String| text.parse::<Allowance>().map_err(|e| failure::input_failure(format!("--allow: {e}")));
        let allowances: Vec<Allowance> = self.allow.iter().map(allowance).collect::<Result<_, _>>()?;
        let techniques = asked.with_allowances(&allowances).or_input()?;
        if techniques.is_empty() {
            return Ok(techniques);
        }
        let lowering = Lowering {
            sequence_length: self.sequence_length.unwrap_or(model.max_sequence),
            optimizer: self.optimizer.to_optimizer(),
            ..Lowering::new(model)
        };
        let graph = techniques.apply_to_graph(model, TrainingGraph::new(model, &lowering).or_input()?, 1).or_input()?;
        graph.applied.iter().flat_map(|applied| &applied.notes).for_each(|note| tracing::warn!("{note}"));
        let (host, storage) = graph.offloads();
        for (goes, there, table) in [(host, chip.host.is_some(), "host"), (storage, chip.storage.is_some(), "storage")] {
            if goes && !there {
                let nvme = if table == "storage" { " or --nvme GB_PER_S:GB" } else { "" };
                let cure = format!("give the chip's file its [{table}]{nvme}, or leave the technique out");
                return Err(failure::input_failure(format!(
                    "--technique: {techniques} sends tensors to what {} has none of: {table}; {cure}",
                    chip.name
                )));
            }
        }
        Ok(techniques)
    }

    /// The model as it is trained.
    fn read_model(&self) -> Result<Model, Failure> {
        let mut model = Model::load(&self.model).or_input()?;
        if let Some(modules) = self.mtp_layers {
            if modules > 0 && !self.technique.is_empty() {
                let cure = "leave one of the two out";
                return Err(failure::input_failure(format!(
                    "--mtp-layers {modules}: is not modelled beside --technique; {cure}"
                )));
            }
            model = model.with_further_token_modules(modules).or_input()?;
        }
        let Some(factor) = self.capacity_factor else { return Ok(model) };
        let Some(experts) = &mut model.experts else {
            return Err(failure::input_failure(format!(
                "--capacity-factor {factor}: {} has no experts; leave it out",
                model.name
            )));
        };
        let most = experts.count as f64 / experts.top_k.max(1) as f64;
        if !(1.0..=most).contains(&factor) {
            let limit = format!("must be from 1 to {most} (experts over experts per token)");
            return Err(failure::input_failure(format!("--capacity-factor {factor}: {limit}; 1.25 is usual")));
        }
        experts.capacity_factor = Some(factor);
        Ok(model)
    }

    /// Reads the parts that the arguments name. `links` puts measured links on the fabric.
    fn read_parts(&self, links: impl FnOnce(Fabric) -> Result<Fabric, Failure>) -> Result<JobParts, Failure> {
        let model = self.read_model()?;
        let mut chip = input::read_chip(&self.chip)?;
        if let Some(text) = &self.nvme {
            chip.accelerator.storage = Some(input::parse_storage(text)?);
        }
        let cluster = links(input::read_fabric(&self.fabric, &chip.accelerator.name, self.fast_domain)?)?;
        let fabric = cluster.for_devices(self.devices).map_err(|error| {
            let domain = self.fast_domain.map_or_else(String::new, |devices| format!(" --fast-domain {devices}"));
            let part = devices_of_domains(&cluster, self.devices).map_or_else(String::new, |part| {
                format!("; or --fast-domain {part}, of the {} devices of every domain so many", cluster.fast_domain_devices())
            });
            failure::input_failure(format!("--devices {} --fabric {}{domain}: {error}{part}", self.devices, self.fabric))
        })?;
        let usual = SoftwareStack::usual_stack_name(&chip.accelerator.name);
        let stack = input::read_stack(self.stack.as_deref().unwrap_or(usual), &self.stack_option)?;
        Ok(JobParts { model, chip, stack, cluster, fabric })
    }

    /// Loads the job with all parts that the arguments name. `links` puts measured links on the fabric.
    pub fn load_job(&self, links: impl FnOnce(Fabric) -> Result<Fabric, Failure>) -> Result<LoadedJob, Failure> {
        let JobParts { model, chip, stack, cluster, fabric } = self.read_parts(links)?;
        let chip = chip.accelerator;
        let precision = stack.precision_of_run(training_precision(self.precision, &chip)?);
        let headroom = parse_headroom(self.headroom_gib, &chip, &stack)?;
        let techniques = self.read_techniques(&model, &chip)?;
        Ok(LoadedJob { model, chip, stack, cluster, fabric, precision, headroom, techniques })
    }
}

impl LoadedJob {
    /// Chooses the offloaded fraction of the activations if a technique leaves it open. `search` is called for each
    /// candidate fraction. The fraction with the fastest plan wins; ties go to the larger fraction. Returns it with the
    /// result of its search. Searches nothing if no fraction is open. Everything is offloaded if no fraction has a plan
    /// that fits.
    pub fn settle_offload(
        &mut self,
        arguments: &JobArguments,
        search: impl Fn(&Job<'_>) -> Result<PlanAnswer, Failure>,
    ) -> Result<Option<PlanAnswer>, Failure> {
        let choices = self.techniques.offload_choices();
        if choices.len() < 2 {
            return Ok(None);
        }
        let mut fastest: Option<(f64, usize, PlanAnswer)> = None;
        for (at, choice) in choices.iter().enumerate() {
            self.techniques = choice.clone();
            let found = search(&self.planner_job(arguments))?;
            let Some(time) = found.best.first().map(|best| best.time.total.0) else { continue };
            if fastest.as_ref().is_none_or(|(least, ..)| time < *least) {
                fastest = Some((time, at, found));
            }
        }
        let at = fastest.as_ref().map_or(0, |(_, at, _)| *at);
        self.techniques = choices[at].clone();
        Ok(fastest.map(|(.., found)| found))
    }

    /// The job.
    pub fn planner_job(&self, arguments: &JobArguments) -> Job<'_> {
        Job {
            model: &self.model,
            chip: &self.chip,
            fabric: &self.fabric,
            stack: &self.stack,
            devices: arguments.devices,
            global_batch: arguments.global_batch.into(),
            sequence_length: arguments.sequence_length.unwrap_or(self.model.max_sequence),
            attention: arguments.attention.attention(),
            precision: self.precision,
            optimizer: arguments.optimizer.to_optimizer(),
            headroom: self.headroom,
            techniques: &self.techniques,
        }
    }
}

/// The largest number of devices per fast domain that divides `devices`, if whole domains do not divide it.
fn devices_of_domains(cluster: &Fabric, devices: u32) -> Option<u32> {
    let domain = cluster.fast_domain_devices();
    let whole = devices <= domain || devices.is_multiple_of(domain);
    (2..domain).rev().find(|part| !whole && devices.is_multiple_of(*part))
}

/// The memory that plans leave free.
pub fn parse_headroom(gib: f64, chip: &Accelerator, stack: &SoftwareStack) -> Result<Bytes, Failure> {
    let most = usable_hbm(stack, chip.memory_capacity()).gib();
    if (0.0..most).contains(&gib) {
        return Ok(Bytes::from_gib(gib));
    }
    let limit = format!("must be at least 0 and less than the {most:.2} GiB that stack {} leaves of {}", stack.name, chip.name);
    Err(failure::input_failure(format!("--headroom-gib {gib}: {limit}; use a value such as 4")))
}

/// The flag that restricts a decision of a layout, as prefix of its message.
pub fn flag_of_decision(key: &str) -> &'static str {
    match key {
        "tp" => "--tensor: ",
        "pp" => "--pipeline: ",
        "cp" => "--context: ",
        "ep" => "--expert: ",
        "etp" => "--expert-tensor: ",
        "virtual_stages" => "--virtual-stages: ",
        "micro_batch" => "--micro-batch: ",
        "global_batch" => "--global-batch: ",
        "layer_split" => "--layer-split: ",
        "schedule" => "--schedule: ",
        "devices" => "--devices: ",
        _ => "",
    }
}

fn layer_splits(list: &[String]) -> Result<Splits, Failure> {
    if list.len() == 1 && list[0] == "best" {
        return Ok(Splits::Best);
    }
    let ends = |text: &String| match text.as_str() {
        "even" => Ok(None),
        text => text.parse::<LayerEnds>().map(Some).map_err(|e| failure::input_failure(format!("--layer-split: {e}"))),
    };
    list.iter().map(ends).collect::<Result<_, _>>().map(Splits::Listed)
}

impl SpaceArguments {
    /// The space of the requested plans.
    pub fn plan_space(&self) -> Result<PlanSpace, Failure> {
        let policy = |text: &String| {
            let several = text.split_once(',').filter(|(first, _)| first.parse::<ActivationPolicy>().is_ok());
            match several {
                Some((first, rest)) => {
                    let cure = "policies are separated by `;`, as `,` separates tensors of one";
                    Err(failure::input_failure(format!(
                        "--recompute {text}: {cure}; use --recompute '{first};{}'",
                        rest.replace(',', ";")
                    )))
                }
                None => text.parse::<ActivationPolicy>().map_err(|e| failure::input_failure(format!("--recompute: {e}"))),
            }
        };
        let schedule = |name: &ScheduleName| match name {
            ScheduleName::Gpipe => PipelineSchedule::GPipe,
            ScheduleName::OneForwardOneBackward => PipelineSchedule::OneForwardOneBackward,
            ScheduleName::ZbH1 => PipelineSchedule::ZbH1,
            ScheduleName::ZbV => PipelineSchedule::ZbV,
        };
        let order = |name: &OrderName| match name {
            OrderName::DataFirst => RankOrder::DataFirst,
            OrderName::PipelineFirst => RankOrder::PipelineFirst,
        };
        let named = self.recompute.as_ref().map(|list| list.iter().filter(|text| *text != BEST).map(policy).collect());
        let activations = named.transpose()?.filter(|list: &Vec<ActivationPolicy>| !list.is_empty());
        let best = self.recompute.as_ref().map(|list| list.iter().any(|text| text == BEST));
        let mixes = best.map(|best| if best { MixKind::PerStage } else { MixKind::None });
        Ok(PlanSpace {
            sequence_parallel: self.sequence_parallel.map(|on| vec![on]),
            tensor: self.tensor.clone(),
            pipeline: self.pipeline.clone(),
            context: self.context.clone(),
            context_methods: self
                .context_method
                .as_ref()
                .map(|list| list.iter().map(ContextMethodName::to_context_method).collect()),
            expert: self.expert.clone(),
            expert_tensor: self.expert_tensor.clone(),
            virtual_stages: self.virtual_stages.clone(),
            splits: self.layer_split.as_ref().map(|list| layer_splits(list)).transpose()?,
            orders: self.order.as_ref().map(|list| list.iter().map(order).collect()),
            zero: self.zero.as_ref().map(|list| list.iter().filter_map(|z| ZeroStage::from_number((*z).into())).collect()),
            micro_batch: self.micro_batch.as_ref().map(|list| list.iter().map(|b| u64::from(*b)).collect()),
            activations,
            mixes,
            schedules: self.schedule.as_ref().map(|list| list.iter().map(schedule).collect()),
        })
    }
}
