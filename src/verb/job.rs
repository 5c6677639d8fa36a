//! Arguments that describe a job and its plans, shared by several verbs.

mod documents;
mod kept;
mod precision;
pub mod run;
mod space;

pub use documents::{DocumentArguments, with_documents};
pub use kept::KeptArguments;
pub use precision::ProductFormat;
pub(super) use precision::training_precision;
pub use space::{SpaceArguments, option_of_rule};

use crate::failure::{
    Failure, OrInput, input_failure, missing_option, option_failure, option_failure_from, structured_failure,
};
use crate::input::{self, TechniqueUse};
use crate::numbers::{real_number, token_count_in, whole_number_in};
use clap::ValueEnum;
use results::run::record::RECORD;
use search::ask::{AimSpec, ChipChoice, ClusterSpec, PlanSpace, Question, Software, WorkloadSpec};
use search::planner::{Job, NO_MARGIN, PlanAnswer};
use sim::files::carried::Files;
use sim::files::{FaultParts, StructuredError};
use sim::hardware::{Accelerator, ChipTemplate, list_broken_rules};
use sim::network::Fabric;
use sim::units::Bytes;
use std::path::{Path, PathBuf};
use step::{SoftwareStack, usable_hbm};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::{Attention, LossForm, Lowering};
use workloads::{Allowance, Model, Technique, Techniques, TrainingGraph};

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
    /// Muon: one momentum; its orthogonalisation is not costed
    Muon,
}

impl OptimizerName {
    pub(super) fn to_optimizer(self) -> Optimizer {
        match self {
            Self::Sgd => Optimizer::Sgd,
            Self::Momentum => Optimizer::Momentum,
            Self::Adam => Optimizer::Adam,
            Self::Adam8bit => Optimizer::Adam8bit,
            Self::Adafactor => Optimizer::Adafactor,
            Self::Muon => Optimizer::Muon,
        }
    }
}

/// How head and loss are computed.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LossName {
    /// Logits of all tokens at once
    Whole,
    /// Logits of a chunk of tokens at once
    Chunked,
}

impl LossName {
    pub(super) fn form(self) -> LossForm {
        match self {
            Self::Whole => LossForm::Whole,
            Self::Chunked => LossForm::Chunked,
        }
    }
}

/// The job: a model, its cluster and its software.
#[derive(Default, clap::Args)]
pub struct JobArguments {
    /// A built-in model (coplace list models) or a Hugging Face config.json
    pub model: String,
    /// A chip: built in (coplace list chips), a chip file (.toml), an LLMCompass device or a Calculon system (.json), a
    /// system of AIConfigurator (.yaml), a run directory of `coplace search` (its found chip, with its cluster and
    /// stack unless given), or an answer that `evaluate` or `plan` printed with --format json (.json)
    #[arg(long)]
    pub chip: String,
    /// Network between the devices: built in (coplace list fabrics), a fabric file (.toml), an LLMCompass device or a
    /// Calculon system (.json), or one of AIConfigurator (.yaml)
    #[arg(long)]
    pub fabric: Option<String>,
    /// Devices of a fast domain (an NVLink node, an ICI slice), at most the fabric's [default: the fabric's]
    #[arg(long, value_name = "N", value_parser = count_up_to(1 << 20))]
    pub fast_domain: Option<u32>,
    /// Devices; all are used
    #[arg(long, value_name = "N", value_parser = count_up_to(1 << 20))]
    pub devices: Option<u32>,
    /// Sequences per step over the whole cluster
    #[arg(long, value_name = "SEQUENCES", value_parser = count_up_to(1 << 24))]
    pub global_batch: Option<u32>,
    /// Tokens per sequence; 32k is 32768 [default: the model's longest]
    #[arg(long, value_name = "TOKENS", value_parser = token_count_in(1..=LONGEST))]
    pub sequence_length: Option<u64>,
    #[command(flatten)]
    pub documents: DocumentArguments,
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
    #[arg(long, value_name = "FACTOR", value_parser = real_number)]
    pub capacity_factor: Option<f64>,
    /// Take a key of the model's file that nothing reads as without effect. Can be given several times
    #[arg(long, value_name = "KEY=ignored", value_parser = ignored_key)]
    pub assume: Vec<String>,
    /// GiB of every device's memory that plans leave free, besides what driver, libraries and allocator take
    /// [default: 0]
    #[arg(long, value_name = "GIB", value_parser = real_number)]
    pub headroom_gib: Option<f64>,
    /// How attention is executed [default: fused]
    #[arg(long, value_enum)]
    pub attention: Option<AttentionKernel>,
    /// Number format [default: bf16, fp16 on chips without it]
    #[arg(long, value_enum)]
    pub precision: Option<ProductFormat>,
    /// The optimizer, in mixed precision [default: adam]
    #[arg(long, value_enum)]
    pub optimizer: Option<OptimizerName>,
    #[command(flatten)]
    pub kept: KeptArguments,
    /// How head and loss are computed: on whole logits, or by chunks of tokens that are used up one after the other
    /// (Liger's fused linear cross-entropy) [default: the stack's]
    #[arg(long, value_enum)]
    pub loss: Option<LossName>,
    /// Storage (NVMe) for every device, GB/s and GB, in place of the chip's file
    #[arg(long, value_name = "GB_PER_S:GB")]
    pub nvme: Option<String>,
    /// A memory technique for every plan, or its file; `coplace list techniques` lists all with their parameters,
    /// `coplace techniques` compares them. Can be given several times
    #[arg(long, value_name = "NAME[,KEY=VALUE]")]
    pub technique: Vec<String>,
    /// Modules that a technique's adapters stand beside: `q_proj,v_proj`, `all-linear` and so on [default: the
    /// technique's own, all products of the layers for LoRA]
    #[arg(long, value_name = "MODULES", value_delimiter = ',', action = clap::ArgAction::Set)]
    pub lora_targets: Option<Vec<String>>,
    /// Allow a technique that changes the training. X is the expected factor on the number of steps; the throughput
    /// divided by X is printed too. Can be given several times
    #[arg(long, value_name = "NAME[,step_multiplier=X]")]
    pub allow: Vec<String>,
    /// Texts that stand in for files of the same names.
    #[arg(skip)]
    pub files: Files,
}

/// A framework's file in the place of options. They are read before the arguments are parsed (`crate::from`).
#[derive(clap::Args)]
pub struct FrameworkFileArgument {
    /// Take the model, the plan and the software from a framework's file: a script or list of Megatron-LM's arguments,
    /// Megatron Bridge's recipe (.py), NeMo's or nanotron's .yaml, MaxText's settings, TorchTitan's .toml or
    /// DeepSpeed's .json. Options given beside it take precedence; a model may be named
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// The longest sequence that is taken, in tokens.
pub const LONGEST: u64 = 1 << 24;
/// Largest number of modules that predict further tokens.
pub const MOST_MTP: u64 = workloads::limits::MAX_FURTHER_TOKENS;

/// Makes a parser of numbers from 1 to a limit.
pub fn count_up_to(limit: u32) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    whole_number_in(1..=limit)
}

/// The parts of a question: model, chip, stack and fabric.
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
#[derive(Clone)]
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
    /// See [`Job::fit`].
    fit: f64,
    techniques: Techniques,
}

/// Parses `KEY=ignored` and returns the key.
pub fn ignored_key(text: &str) -> Result<String, String> {
    match text.strip_suffix("=ignored") {
        Some(key) if !key.is_empty() => Ok(key.to_owned()),
        _ => Err("write KEY=ignored, for instance moe_latent_size=ignored".to_owned()),
    }
}

impl JobArguments {
    /// Returns the question that the arguments ask. Missing values come from the run that is given as the chip, then
    /// from `usual`. If `fixed` is set and the arguments change nothing of the run's question, the question asks for
    /// the run's own plan.
    ///
    /// # Errors
    /// A run directory that cannot be read; a part of the job that neither the arguments nor the defaults name.
    pub fn question(&self, plans: PlanSpace, usual: Option<&ClusterSpec>, fixed: bool) -> Result<Question, Failure> {
        let run = run::question_of_run(&self.chip, &self.model)?;
        let mut question = self.question_beside_run(run.as_ref(), usual)?;
        let same = run.as_ref().filter(|run| fixed && plans == PlanSpace::default() && run.model() == self.model);
        question.plans = match same {
            Some(run) if question.canonical() == self.alone().question_beside_run(Some(run), usual)?.canonical() => {
                run.plans.clone()
            }
            _ => plans,
        };
        Ok(question)
    }

    /// Returns the arguments with only the model, the chip, and the texts of files.
    fn alone(&self) -> Self {
        Self { model: self.model.clone(), chip: self.chip.clone(), files: self.files.clone(), ..Self::default() }
    }

    /// Returns the question that the arguments ask about all plans, completed from the run that is given as the chip,
    /// then from `usual`.
    fn question_beside_run(&self, run: Option<&Question>, usual: Option<&ClusterSpec>) -> Result<Question, Failure> {
        let chip = run::file_of_chip(&self.chip);
        let cluster = self.cluster(run.map(|run| &run.cluster).or(usual), &chip)?;
        let same = run.filter(|run| run.model() == self.model);
        let tokens = same.and_then(|run| run.models.first()).and_then(|of| of.sequence_length);
        let own = [Some(self.model.as_str()), self.fabric.as_deref(), self.stack.as_deref()];
        let own: Vec<&str> = own.into_iter().flatten().collect();
        let sequence_length = self.sequence_length.or(tokens);
        let documents = match self.documents.lengths(&self.files)? {
            Some(given) => given,
            None => same.and_then(|run| run.models.first()).map(|of| of.documents.clone()).unwrap_or_default(),
        };
        let mut question = Question {
            study: None,
            models: vec![WorkloadSpec { sequence_length, documents, ..WorkloadSpec::of(&self.model) }],
            mtp_layers: self.mtp_layers.or(same.and_then(|run| run.mtp_layers)),
            capacity_factor: self.capacity_factor,
            assume_ignored: match same {
                Some(run) if self.assume.is_empty() => run.assume_ignored.clone(),
                _ => self.assume.clone(),
            },
            chips: ChipChoice::One { chip, nvme: self.nvme.clone() },
            cluster,
            fast_domain: self.fast_domain,
            software: self.software(run.map(|run| &run.software), same.map(|run| &run.software)),
            plans: PlanSpace::default(),
            everything: false,
            aim: AimSpec::default(),
            limits: None,
            files: run::files_beside(run, &own, &self.files),
        };
        question.carry_files();
        Ok(question)
    }

    /// Returns the cluster of a job that names none: 1,024 devices on the chip's usual network, 4,096 sequences per
    /// step. `None` if the chip has no usual network.
    pub fn usual_cluster(&self) -> Result<Option<ClusterSpec>, Failure> {
        let chip = input::read_chip(&self.chip, &self.files)?.accelerator;
        let on = |fabric| ClusterSpec { devices: 1024, fabric, global_batch_sequences: 4096 };
        Ok(chip.origin.usual_fabric.map(on))
    }

    fn cluster(&self, usual: Option<&ClusterSpec>, chip: &str) -> Result<ClusterSpec, Failure> {
        let given = self.fabric.as_deref().map(|fabric| run::fabric_beside_chip(fabric, chip));
        let Some(fabric) = given.or_else(|| usual.map(|usual| usual.fabric.clone())) else {
            return Err(missing_fabric(chip, &self.files)?);
        };
        let missing = |option: &str, of: &str| missing_option(option, format!("give {of}, or a run as --chip"));
        let devices = self.devices.or(usual.map(|usual| usual.devices));
        let batch = self.global_batch.or(usual.map(|usual| usual.global_batch_sequences));
        Ok(ClusterSpec {
            devices: devices.ok_or_else(|| missing("--devices", "the number of devices"))?,
            fabric,
            global_batch_sequences: batch.ok_or_else(|| missing("--global-batch", "the sequences of a step"))?,
        })
    }

    /// Returns the given software, completed from a run. Attention, the optimizer, the kept formats and the loss come
    /// only from a run of the same model. Stack options, precision, techniques and their allowances never come from a
    /// run.
    fn software(&self, run: Option<&Software>, same_model: Option<&Software>) -> Software {
        let attention =
            self.attention.map(AttentionKernel::attention).or(same_model.map(|software| software.attention));
        let optimizer =
            self.optimizer.map(OptimizerName::to_optimizer).or(same_model.map(|software| software.optimizer));
        let format = |format: ProductFormat| format.to_possible_value().map(|value| value.get_name().to_owned());
        Software {
            stack: self.stack.clone().or(run.and_then(|software| software.stack.clone())),
            stack_options: self.stack_option.clone(),
            attention: attention.unwrap_or_default(),
            precision: self.precision.and_then(format),
            optimizer: optimizer.unwrap_or_default(),
            kept: self.kept.formats(same_model.map(|software| software.kept).unwrap_or_default()),
            loss: self.loss.map(LossName::form).or(same_model.and_then(|software| software.loss)),
            headroom_gib: self.headroom_gib.or(run.map(|software| software.headroom_gib)).unwrap_or(0.0),
            fit: None,
            techniques: self.technique.clone(),
            lora_targets: self.lora_targets.as_ref().map(|modules| modules.join(",")),
            allow: self.allow.clone(),
        }
    }
}

/// Warns of the rules of building that a user's chip breaks. Such a chip may be a question of its own, so it is not
/// refused. A chip without an area model has no rules to break.
fn warn_of_broken_rules(file: &str, chip: &Accelerator) {
    for broken in list_broken_rules(chip).unwrap_or_default() {
        tracing::warn!("{file}: cannot be built: {}", broken.describe_with_cure());
    }
}

/// Makes the failure of a missing fabric, which names the networks that the chip is sold with.
pub fn missing_fabric(chip: &str, files: &Files) -> Result<Failure, Failure> {
    let accelerator = input::read_chip(chip, files)?.accelerator;
    let chip = accelerator.known_name();
    let own = Fabric::names().into_iter().filter_map(|name| Fabric::built_in(name).ok());
    let own: Vec<String> = own
        .filter(|fabric| fabric.joins.iter().any(|joined| joined == chip))
        .map(|fabric| {
            let most = match fabric.device_count() {
                u32::MAX => String::new(),
                devices => format!("; at most {devices} devices"),
            };
            format!("\n  {:<24}  {}{most}", fabric.name, fabric.description)
        })
        .collect();
    let known = match (&*own, &accelerator.origin.usual_fabric) {
        ([], Some(usual)) => format!("{usual} is usual (usual_fabric in the chip's file)"),
        ([], None) => "coplace list fabrics has them, and a fabric's file is one too".to_owned(),
        _ => format!("{chip} is sold with:{}", own.concat()),
    };
    Ok(missing_option("--fabric", format!("name the network that joins the devices; {known}")))
}

/// Returns the model of a question as it is trained.
fn model_of(question: &Question) -> Result<Model, Failure> {
    let mut model = Model::load_assuming(question.model(), &question.files, &question.assume_ignored).or_input()?;
    if let Some(modules) = question.mtp_layers {
        if modules > 0 && !question.software.techniques.is_empty() {
            let cure = "leave one of the two out";
            return Err(option_failure("--mtp-layers", modules, "is not modelled beside --technique", cure));
        }
        model = model.with_further_token_modules(modules).or_input()?;
    }
    if let Some(work) = question.models.first() {
        model = with_documents(model, &work.documents)?;
    }
    let Some(factor) = question.capacity_factor else { return Ok(model) };
    let Some(experts) = &mut model.experts else {
        return Err(option_failure(
            "--capacity-factor",
            factor,
            format!("{} has no experts", model.name),
            "leave it out",
        ));
    };
    let most = experts.count as f64 / experts.top_k.max(1) as f64;
    if !(1.0..=most).contains(&factor) {
        let limit = format!("must be from 1 to {most} (experts over experts per token)");
        return Err(option_failure("--capacity-factor", factor, limit, "1.25 is usual"));
    }
    experts.capacity_factor = Some(factor);
    Ok(model)
}

/// Returns the techniques, with their adapters beside the given modules. Fails if modules are given and no technique
/// has adapters.
pub(super) fn with_targets(techniques: Techniques, modules: Option<&str>) -> Result<Techniques, Failure> {
    let Some(modules) = modules else { return Ok(techniques) };
    if !techniques.iter().any(|technique| technique.preset().has_adapters()) {
        let cure = "add --technique lora, or leave it out";
        return Err(option_failure("--lora-targets", modules, "no technique has adapters", cure));
    }
    let target = |technique: &Technique| match technique.preset().has_adapters() {
        true => technique
            .with_targets(modules, ',')
            .map_err(|error| option_failure_from(&format!("--lora-targets {modules}"), &error)),
        false => Ok(technique.clone()),
    };
    techniques.iter().map(target).collect()
}

/// Returns the techniques of a question. Fails if a technique changes the training and is not allowed, or does not suit
/// the model.
fn techniques_of(
    question: &Question,
    model: &Model,
    chip: &Accelerator,
    stack: &SoftwareStack,
) -> Result<Techniques, Failure> {
    let software = &question.software;
    let parsed = |text: &String| {
        let technique = input::parse_technique(text, TechniqueUse::Training);
        technique.map_err(|error| option_failure_from("--technique", &error))
    };
    let asked: Techniques = software.techniques.iter().map(parsed).collect::<Result<_, _>>()?;
    let asked = with_targets(asked, software.lora_targets.as_deref())?;
    let allowance = |text: &String| text.parse::<Allowance>().map_err(|error| option_failure_from("--allow", &error));
    let allowances: Vec<Allowance> = software.allow.iter().map(allowance).collect::<Result<_, _>>()?;
    let techniques = asked.with_allowances(&allowances).or_input()?;
    if techniques.is_empty() {
        return Ok(techniques);
    }
    let lowering = Lowering {
        sequence_length: question.sequence_length(model),
        optimizer: software.optimizer,
        elementwise_fusion: stack.kernels.elementwise_fusion,
        composed_layers: stack.kernels.composed_layers,
        separate_projections: stack.kernels.separate_projections,
        wide_adapters: stack.kernels.wide_adapters,
        autocast: stack.kernels.autocast,
        loss: stack.kernels.loss,
        ..Lowering::new(model)
    };
    let graph = techniques.apply_to_graph(model, TrainingGraph::new(model, &lowering).or_input()?, 1).or_input()?;
    graph.applied.iter().flat_map(|applied| &applied.notes).for_each(|note| tracing::warn!("{note}"));
    let (host, storage) = graph.offloads();
    for (goes, there, table) in [(host, chip.host.is_some(), "host"), (storage, chip.storage.is_some(), "storage")] {
        if goes && !there {
            let nvme = if table == "storage" { " or --nvme GB_PER_S:GB" } else { "" };
            let cure = format!("give the chip's file its [{table}]{nvme}, or leave the technique out");
            return Err(option_failure(
                "--technique",
                "",
                format!("{techniques} sends tensors to what {} has none of: {table}", chip.name),
                cure,
            ));
        }
    }
    Ok(techniques)
}

impl JobParts {
    /// Reads the parts that a question names. `links` may put measured links on the fabric.
    ///
    /// # Errors
    /// A part that cannot be read or used; a question about a space of chips.
    pub fn read(question: &Question, links: impl FnOnce(Fabric) -> Result<Fabric, Failure>) -> Result<Self, Failure> {
        let (files, cluster) = (&question.files, &question.cluster);
        let model = model_of(question)?;
        let ChipChoice::One { chip: named, nvme } = &question.chips else {
            return Err(input_failure("the question is about a space of chips; give one chip (--chip)"));
        };
        let mut chip = input::read_chip(named, files)?;
        // The chip of a search's run needs no warning. If it breaks rules, the search was asked to lift them.
        if named.ends_with(".toml") && !Path::new(named).with_file_name(RECORD).is_file() {
            warn_of_broken_rules(named, &chip.accelerator);
        }
        if let Some(text) = nvme {
            chip.accelerator.storage = Some(input::parse_storage(text)?);
        }
        let whole = links(input::read_fabric(&cluster.fabric, &chip.accelerator, question.fast_domain, files)?)?;
        let fabric = whole.for_devices(cluster.devices).map_err(|error| {
            let domain = question.fast_domain.map_or_else(String::new, |devices| format!(" --fast-domain {devices}"));
            let part = devices_of_domains(&whole, cluster.devices).map_or_else(String::new, |part| {
                format!(
                    "; or --fast-domain {part}, of the {} devices of every domain so many",
                    whole.fast_domain_devices()
                )
            });
            {
                let message =
                    format!("--devices {} --fabric {}{domain}: {error}{part}", cluster.devices, cluster.fabric);
                let parts = error.fault_parts();
                let cure = parts.cure.map(|cure| format!("{cure}{part}"));
                structured_failure(message, FaultParts { key: Some("--devices".to_owned()), cure, ..parts })
            }
        })?;
        let (software, given) = (&question.software, (&chip.accelerator, named.as_str()));
        let stack = input::read_stack_of_chip(software.stack.as_deref(), given, &software.stack_options, files)?;
        let stack = software.loss.map_or(Ok(stack.clone()), |loss| stack.with_loss(loss)).or_input()?;
        Ok(Self { model, chip, stack, cluster: whole, fabric })
    }
}

impl LoadedJob {
    /// Loads the job of a question. `links` may put measured links on the fabric.
    ///
    /// # Errors
    /// Those of [`JobParts::read`]; a number format, a headroom or a technique that is not possible.
    pub fn load(question: &Question, links: impl FnOnce(Fabric) -> Result<Fabric, Failure>) -> Result<Self, Failure> {
        let JobParts { model, chip, stack, cluster, fabric } = JobParts::read(question, links)?;
        let (chip, software) = (chip.accelerator, &question.software);
        let format = software.precision.as_deref().map(|name| ProductFormat::from_str(name, true));
        let format = format.transpose().map_err(|_| {
            input_failure(format!(
                "precision {}: is no number format",
                software.precision.as_deref().unwrap_or_default()
            ))
        })?;
        let asked = training_precision(format, &chip)?;
        let precision = stack.precision_with_formats(asked, &software.kept, software.optimizer).or_input()?;
        let headroom = parse_headroom(software.headroom_gib, &chip, &stack)?;
        let techniques = techniques_of(question, &model, &chip, &stack)?;
        let fit = software.fit.unwrap_or(NO_MARGIN);
        Ok(Self { model, chip, stack, cluster, fabric, precision, headroom, fit, techniques })
    }

    /// Returns the techniques as asked, or as settled once [`LoadedJob::settle_offload`] has run.
    pub fn techniques(&self) -> &Techniques {
        &self.techniques
    }

    /// Asks that plans fit with a chance ([`Job::fit`]), and goes back to `techniques` as they were before
    /// [`LoadedJob::settle_offload`].
    pub fn ask_fit(&mut self, chance: f64, techniques: Techniques) {
        self.fit = chance;
        self.techniques = techniques;
    }

    /// Settles the offloaded fraction of the activations if a technique leaves it open. Chooses the fraction whose
    /// search finds the fastest plan, on a tie the largest, and returns the answer of that search. If no fraction has a
    /// plan that fits, chooses the whole and returns `None`. If no fraction is open, searches nothing and returns
    /// `None`.
    pub fn settle_offload(
        &mut self,
        question: &Question,
        search: impl Fn(&Job<'_>) -> Result<PlanAnswer, Failure>,
    ) -> Result<Option<PlanAnswer>, Failure> {
        let choices = self.techniques.offload_choices();
        if choices.len() < 2 {
            return Ok(None);
        }
        let mut fastest: Option<(f64, usize, PlanAnswer)> = None;
        for (at, choice) in choices.iter().enumerate() {
            self.techniques = choice.clone();
            let found = search(&self.planner_job(question))?;
            let Some(time) = found.best.first().map(|best| best.time.total.0) else { continue };
            if fastest.as_ref().is_none_or(|(least, ..)| time < *least) {
                fastest = Some((time, at, found));
            }
        }
        let at = fastest.as_ref().map_or(0, |(_, at, _)| *at);
        self.techniques = choices[at].clone();
        Ok(fastest.map(|(.., found)| found))
    }

    /// Returns the job for the planner.
    pub fn planner_job(&self, question: &Question) -> Job<'_> {
        Job {
            model: &self.model,
            chip: &self.chip,
            fabric: &self.fabric,
            stack: &self.stack,
            devices: question.cluster.devices,
            global_batch: question.cluster.global_batch_sequences.into(),
            sequence_length: question.sequence_length(&self.model),
            attention: question.software.attention,
            precision: self.precision,
            optimizer: question.software.optimizer,
            headroom: self.headroom,
            fit: self.fit,
            techniques: &self.techniques,
        }
    }
}

/// Returns the largest number of devices per fast domain that divides `devices`; `None` if whole domains fit.
fn devices_of_domains(cluster: &Fabric, devices: u32) -> Option<u32> {
    let domain = cluster.fast_domain_devices();
    let whole = devices <= domain || devices.is_multiple_of(domain);
    (2..domain).rev().find(|part| !whole && devices.is_multiple_of(*part))
}

/// Returns the memory that plans leave free. Fails if `gib` is negative, or not below the memory that the stack leaves.
pub fn parse_headroom(gib: f64, chip: &Accelerator, stack: &SoftwareStack) -> Result<Bytes, Failure> {
    let most = usable_hbm(stack, chip.memory_capacity()).gib();
    if (0.0..most).contains(&gib) {
        return Ok(Bytes::from_gib(gib));
    }
    let limit =
        format!("must be at least 0 and less than the {most:.2} GiB that stack {} leaves of {}", stack.name, chip.name);
    Err(option_failure("--headroom-gib", gib, limit, "use a value such as 4"))
}
