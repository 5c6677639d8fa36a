//! `coplace techniques`: compares all memory techniques on one model and chip.

use crate::answer::{self, Format};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::input::{self, TechniqueUse};
use crate::numbers::{token_count_in, whole_number_in};
use crate::progress;
use crate::verb::job::run::{files_beside, question_of_run};
use crate::verb::job::{
    AttentionKernel, DocumentArguments, KeptArguments, LONGEST, LossName, OptimizerName, ProductFormat, count_up_to,
    ignored_key, missing_fabric, training_precision, with_documents,
};
use crate::written_path::WrittenPath;
use results::answer::techniques::{self, TechniqueComparison, TechniqueOrder};
use results::{figure, report};
use search::ask::Question;
use search::techniques::TechniqueSetting;
use sim::hardware::Accelerator;
use sim::pipeline::PipelineSchedule;
use step::{MasterCopy, SoftwareStack, TrainingPlan};
use workloads::{ActivationPolicy, Batch, Layout, Model, Techniques, ZeroStage};

/// Compare memory techniques on one model and chip: memory by class, step time, longest sequence and largest
/// micro-batch
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    coplace techniques llama2-7b --chip a100_80gb_sxm --fabric selene_hdr200x8 --data 8 --zero 1 --sequence-length \
    4096\n  \
    coplace techniques llama3-8b --chip h100_80gb_sxm --technique mst --technique galore,rank=256+megatron-full \
    --out figures\n\n\
    Every technique is a file with its formula and source (workloads/src/memory/presets); --technique accepts a\n\
    path as well. `coplace list techniques` lists all with their parameters and defaults. Several techniques in\n\
    one row are joined by `+`. An impossible combination is listed with the reason. Techniques that change the\n\
    training are marked unbiased or biased. memo and ssdtrain choose the fastest offloaded fraction that fits,\n\
    in eighths, unless fraction= is given. Those that fit come first, the fastest at the top. Without --technique,\n\
    combinations of exact ones are offered, and those that save nothing here are only named.\n\n\
    JSON: format, model, chip, stack, devices, sequence_tokens, micro_batch_sequences, global_batch_sequences,\n\
    capacity_gib, host_capacity_gib, storage_capacity_gib and rows, each with technique, parameters, gate,\n\
    formula, source, refused, changes_nothing, saves_nothing, result; recompute_best. docs/json.md describes\n\
    every key.")]
pub struct TechniquesArguments {
    /// A built-in model (coplace list models) or a Hugging Face config.json
    model: String,
    /// A chip: built in (coplace list chips), a chip file, or a run directory of `coplace search` (its found chip, with
    /// its fabric and stack unless given)
    #[arg(long)]
    chip: String,
    /// Techniques of one row, `NAME,key=value`, joined by `+`. Can be given several times [default: every built-in one
    /// by itself]
    #[arg(long, value_name = "NAME[,KEY=VALUE]")]
    technique: Vec<String>,
    /// Network between the devices [default: the chip's usual one]
    #[arg(long)]
    fabric: Option<String>,
    /// Devices; what the other degrees leave open is data parallelism [default: the product of the degrees]
    #[arg(long, value_name = "N", value_parser = count_up_to(1 << 20))]
    devices: Option<u32>,
    /// Order of the techniques that fit; the others follow by their need
    #[arg(long, value_enum, default_value_t = SortName::Fastest)]
    sort: SortName,
    /// Tensor-parallel width
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = count_up_to(1 << 16))]
    tensor: u32,
    /// Pipeline stages
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = count_up_to(1 << 16))]
    pipeline: u32,
    /// Data-parallel replicas [default: 1, or as --devices says]
    #[arg(long, value_name = "D", value_parser = count_up_to(1 << 20))]
    data: Option<u32>,
    /// Context-parallel width
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = count_up_to(1 << 16))]
    context: u32,
    /// Expert-parallel width, for models with experts
    #[arg(long, value_name = "E", default_value_t = 1, value_parser = count_up_to(1 << 16))]
    expert: u32,
    /// ZeRO stage
    #[arg(long, default_value_t = 0, value_parser = whole_number_in::<u8>(0..=3))]
    zero: u8,
    /// Sequences per micro-batch
    #[arg(long, value_name = "SEQUENCES", default_value_t = 1, value_parser = count_up_to(1 << 16))]
    micro_batch: u32,
    /// Micro-batches per step and replica
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count_up_to(1 << 16))]
    accumulate: u32,
    /// Tokens per sequence; 32k is 32768 [default: the model's longest]
    #[arg(long, value_name = "TOKENS", value_parser = token_count_in(1..=LONGEST))]
    sequence_length: Option<u64>,
    #[command(flatten)]
    documents: DocumentArguments,
    /// Further recomputation: none, selective, full, MaxText's names, custom:offload(a)+device(b)
    #[arg(long, default_value = "none")]
    recompute: String,
    /// Software stack [default: as for plan]
    #[arg(long)]
    stack: Option<String>,
    /// Set an option of the stack. Can be given several times
    #[arg(long, value_name = "TABLE.KEY=VALUE")]
    stack_option: Vec<String>,
    /// How attention is executed [default: fused]
    #[arg(long, value_enum)]
    attention: Option<AttentionKernel>,
    /// Number format [default: bf16, fp16 on chips without it]
    #[arg(long, value_enum)]
    precision: Option<ProductFormat>,
    /// Keep weights, gradients and states only in the number format, without an fp32 master copy
    #[arg(long)]
    no_master: bool,
    #[command(flatten)]
    kept: KeptArguments,
    /// How head and loss are computed [default: the stack's]
    #[arg(long, value_enum)]
    loss: Option<LossName>,
    /// The optimizer [default: adam]
    #[arg(long, value_enum)]
    optimizer: Option<OptimizerName>,
    /// Storage for every device, GB/s and GB, in place of the chip's file
    #[arg(long, value_name = "GB_PER_S:GB")]
    nvme: Option<String>,
    /// Take a key of the model's file that nothing reads as without effect. Can be given several times
    #[arg(long, value_name = "KEY=ignored", value_parser = ignored_key)]
    assume: Vec<String>,
    /// Draw the comparison into this directory (techniques.svg and .png), which is created if needed
    #[arg(long, value_name = "DIR")]
    out: Option<WrittenPath>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs the verb: evaluates the techniques and prints.
pub fn run_techniques(arguments: &TechniquesArguments, call: &Call) -> Result<(), Failure> {
    let run = question_of_run(&arguments.chip, &arguments.model)?;
    let own = [Some(arguments.model.as_str()), arguments.fabric.as_deref(), arguments.stack.as_deref()];
    let own: Vec<&str> = own.into_iter().flatten().collect();
    let files = files_beside(run.as_ref(), &own, &call.files);
    let model = Model::load_assuming(&arguments.model, &files, &arguments.assume).or_input()?;
    let of_run = run.as_ref().and_then(|run| run.models.first()).map(|of| of.documents.clone());
    let model = with_documents(model, &arguments.documents.lengths(&files)?.or(of_run).unwrap_or_default())?;
    let mut chip = input::read_chip(&arguments.chip, &files)?.accelerator;
    if let Some(text) = &arguments.nvme {
        chip.storage = Some(input::parse_storage(text)?);
    }
    let stack = arguments.stack.as_deref().or(run.as_ref().and_then(|run| run.software.stack.as_deref()));
    let stack = input::read_stack_of_chip(stack, (&chip, &arguments.chip), &arguments.stack_option, &files)?;
    let stack = arguments.loss.map_or(Ok(stack.clone()), |loss| stack.with_loss(loss.form())).or_input()?;
    let same_model = run.as_ref().filter(|run| run.model() == arguments.model);
    let plan = technique_plan(arguments, same_model, &model, &chip, &stack)?;
    let devices = u32::try_from(plan.layout.device_count())
        .map_err(|_| failure::option_failure("--tensor,", "--pipeline, --data", "too many devices", "use fewer"))?;
    let of_run = run.as_ref().map(|run| run.cluster.fabric.as_str());
    let fabric = arguments.fabric.as_deref().or(of_run).or(chip.origin.usual_fabric.as_deref());
    let Some(fabric) = fabric else { return Err(missing_fabric(&arguments.chip, &files)?) };
    let fabric = input::read_fabric(fabric, &chip, None, &files)?.for_devices(devices).or_input()?;
    let asked_all = arguments.technique.is_empty();
    let mut lists = match asked_all {
        true => techniques::all_techniques().or_other()?,
        false => arguments.technique.iter().map(|text| parse_techniques(text)).collect::<Result<_, _>>()?,
    };
    let setting = TechniqueSetting { model: &model, chip: &chip, fabric: &fabric, stack: &stack, plan: &plan };
    let compared = progress::run_with_progress(call, "trying techniques", || {
        if asked_all {
            lists.extend(techniques::offer_combinations(&setting, &lists)?);
        }
        TechniqueComparison::compare_techniques(&setting, &lists, arguments.sort.order())
    });
    let answer = TechniqueComparison { recompute_best: command_of_best(arguments, &plan), ..compared.or_input()? };
    // Some requested techniques may be impossible. If all are, there is nothing to compare.
    let asked = answer.rows.iter().skip(1);
    if let (Some(why), true) =
        (asked.clone().find_map(|row| row.refused.as_ref()), asked.into_iter().all(|row| row.result.is_none()))
    {
        return Err(failure::input_failure(why));
    }
    let mut written = Ok(());
    if let Some(directory) = &arguments.out {
        std::fs::create_dir_all(directory).map_err(|e| {
            failure::write_failure(
                &e,
                format!("--out {}: cannot be made: {e}; give a directory you may write to", directory.display()),
            )
        })?;
        let figure = figure::draw_techniques(&answer).or_other()?;
        written = figure.write_files(directory, "techniques").map(drop).or_unwritable();
    }
    answer::write_answer_with_files(call, arguments.format, &answer, written, report::techniques_report)
}

/// The order of rows, as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum SortName {
    /// Shortest step first
    Fastest,
    /// Smallest need first
    Memory,
    /// Longest sequence first
    Longest,
    /// As listed or given
    Listed,
}

impl SortName {
    fn order(self) -> TechniqueOrder {
        match self {
            Self::Fastest => TechniqueOrder::Fastest,
            Self::Memory => TechniqueOrder::Memory,
            Self::Longest => TechniqueOrder::Longest,
            Self::Listed => TechniqueOrder::Listed,
        }
    }
}

/// Returns the call of `evaluate` that finds the best policy for the same plan.
fn command_of_best(arguments: &TechniquesArguments, plan: &TrainingPlan) -> String {
    let (layout, batch) = (&plan.layout, &plan.batch);
    let mut words = format!(
        "coplace evaluate {} --chip {} --devices {} --global-batch {} --sequence-length {} \
         --tensor {} --pipeline {} --micro-batch {} --zero {}",
        arguments.model,
        arguments.chip,
        layout.device_count(),
        batch.global_batch,
        batch.sequence_length,
        layout.tensor,
        layout.pipeline,
        batch.micro_batch,
        arguments.zero
    );
    let more = [("context", layout.context), ("expert", layout.expert)];
    for (flag, degree) in more.into_iter().filter(|(_, degree)| *degree > 1) {
        words.push_str(&format!(" --{flag} {degree}"));
    }
    // Without a network both verbs take that of the run, or the chip's usual one.
    if let Some(fabric) = &arguments.fabric {
        words.push_str(&format!(" --fabric {fabric}"));
    }
    if let Some(stack) = &arguments.stack {
        words.push_str(&format!(" --stack {stack}"));
    }
    words.push_str(" --recompute best");
    words
}

/// Returns the data-parallel replicas: as given, or the devices divided by the other degrees. Fails if the degrees do
/// not fit the devices.
fn data_degree(arguments: &TechniquesArguments) -> Result<u32, Failure> {
    let Some(devices) = arguments.devices else { return Ok(arguments.data.unwrap_or(1)) };
    let others = u64::from(arguments.tensor) * u64::from(arguments.pipeline) * u64::from(arguments.context);
    let needed = others * u64::from(arguments.data.unwrap_or(1));
    let fits = u64::from(devices) == needed || arguments.data.is_none() && u64::from(devices) % others == 0;
    if !fits {
        let why = format!(
            "--devices {devices}: the degrees make {needed}; use a multiple of {others}, or other degrees, or leave \
             --devices out"
        );
        return Err(failure::input_failure(why));
    }
    Ok(arguments.data.unwrap_or_else(|| u32::try_from(u64::from(devices) / others).unwrap_or(1)))
}

/// Parses techniques joined by `+`.
fn parse_techniques(text: &str) -> Result<Techniques, Failure> {
    text.split('+')
        .map(|name| {
            let technique = input::parse_technique(name.trim(), TechniqueUse::Training);
            technique.map_err(|error| failure::option_failure_from("--technique", &error))
        })
        .collect()
}

fn technique_layout(arguments: &TechniquesArguments, data: u32) -> Layout {
    Layout {
        tensor: arguments.tensor,
        pipeline: arguments.pipeline,
        data,
        context: arguments.context,
        expert: arguments.expert,
        sequence_parallel: arguments.tensor > 1,
        zero: ZeroStage::from_number(arguments.zero.into()).unwrap_or_default(),
        ..Layout::default()
    }
}

fn technique_plan(
    arguments: &TechniquesArguments,
    run: Option<&Question>,
    model: &Model,
    chip: &Accelerator,
    stack: &SoftwareStack,
) -> Result<TrainingPlan, Failure> {
    let tokens = run.and_then(|run| run.models.first()).and_then(|of| of.sequence_length);
    let software = run.map(|run| &run.software);
    let data = data_degree(arguments)?;
    let layout = technique_layout(arguments, data);
    let micro_batch = u64::from(arguments.micro_batch);
    let batch = Batch {
        micro_batch,
        global_batch: micro_batch * u64::from(arguments.accumulate) * u64::from(data),
        sequence_length: arguments.sequence_length.or(tokens).unwrap_or(model.max_sequence),
    };
    layout.check_model_and_batch(model, &batch).or_input()?;
    let optimizer = arguments.optimizer.map(OptimizerName::to_optimizer).or(software.map(|of| of.optimizer));
    let optimizer = optimizer.unwrap_or_default();
    let mut kept = arguments.kept.formats(software.map(|of| of.kept).unwrap_or_default());
    if arguments.no_master {
        kept.master = Some(MasterCopy::None);
    }
    let asked = training_precision(arguments.precision, chip)?;
    let precision = stack.precision_with_formats(asked, &kept, optimizer).or_input()?;
    let activations: ActivationPolicy = match arguments.recompute.as_str() {
        "best" => {
            return Err(failure::option_failure(
                "--recompute",
                "best",
                "`plan`, `evaluate` and `search` choose it",
                "name one policy here, as `full`; without --recompute the answer ends with the call",
            ));
        }
        policy => policy.parse().map_err(|error| failure::option_failure_from("--recompute", &error))?,
    };
    Ok(TrainingPlan {
        layout,
        batch,
        activations: activations.into(),
        attention: arguments
            .attention
            .map(AttentionKernel::attention)
            .or(software.map(|of| of.attention))
            .unwrap_or_default(),
        precision,
        optimizer,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: Techniques::default(),
    })
}
