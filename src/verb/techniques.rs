//! `coplace techniques`: compares all memory techniques on one model and chip.

use crate::answer::{self, Format};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::input;
use crate::numbers::whole_number_in;
use crate::progress;
use crate::verb::job::run::{files_beside, question_of_run};
use crate::verb::job::{
    AttentionKernel, KeptArguments, LONGEST, LossName, OptimizerName, ProductFormat, count_up_to, ignored_key,
    training_precision,
};
use crate::written_path::WrittenPath;
use results::answer::techniques::{self, TechniqueComparison};
use results::{figure, report};
use search::ask::Question;
use search::techniques::TechniqueSetting;
use sim::hardware::Accelerator;
use sim::pipeline::PipelineSchedule;
use step::{MasterCopy, SoftwareStack, TrainingPlan};
use workloads::{ActivationPolicy, Batch, Layout, Model, Technique, Techniques, ZeroStage};

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
    in eighths, unless fraction= is given.\n\n\
    JSON: format, model, chip, stack, devices, sequence_tokens, micro_batch_sequences, global_batch_sequences,\n\
    capacity_gib, host_capacity_gib, storage_capacity_gib and rows, each with technique, parameters, gate,\n\
    formula, source, refused, result; docs/json.md describes every key.")]
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
    /// Network between the devices [default: phaze_flat]
    #[arg(long)]
    fabric: Option<String>,
    /// Tensor-parallel width
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = count_up_to(1 << 16))]
    tensor: u32,
    /// Pipeline stages
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = count_up_to(1 << 16))]
    pipeline: u32,
    /// Data-parallel replicas
    #[arg(long, value_name = "D", default_value_t = 1, value_parser = count_up_to(1 << 20))]
    data: u32,
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
    /// Tokens per sequence [default: the model's longest]
    #[arg(long, value_name = "TOKENS", value_parser = whole_number_in(1..=LONGEST))]
    sequence_length: Option<u64>,
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
    let fabric = arguments.fabric.as_deref().or(of_run).unwrap_or("phaze_flat");
    let fabric = input::read_fabric(fabric, &chip, None, &files)?.for_devices(devices).or_input()?;
    let lists = match arguments.technique.is_empty() {
        true => techniques::all_techniques().or_other()?,
        false => arguments.technique.iter().map(|text| parse_techniques(text)).collect::<Result<_, _>>()?,
    };
    let setting = TechniqueSetting { model: &model, chip: &chip, fabric: &fabric, stack: &stack, plan: &plan };
    let answer = progress::run_with_progress(call, "trying techniques", || {
        TechniqueComparison::compare_techniques(&setting, &lists)
    })
    .or_input()?;
    // Some of several techniques may be impossible. If all requested ones are, there is nothing to compare.
    let asked = answer.rows.iter().skip(1);
    if let (Some(why), true) =
        (asked.clone().find_map(|row| row.refused.as_ref()), asked.into_iter().all(|row| row.result.is_none()))
    {
        return Err(failure::input_failure(why));
    }
    if let Some(directory) = &arguments.out {
        std::fs::create_dir_all(directory).map_err(|e| {
            failure::write_failure(
                &e,
                format!("--out {}: cannot be made: {e}; give a directory you may write to", directory.display()),
            )
        })?;
        figure::draw_techniques(&answer).or_other()?.write_files(directory, "techniques").or_unwritable()?;
    }
    answer::write_answer(call, arguments.format, &answer, report::techniques_report)
}

/// Parses techniques joined by `+`.
fn parse_techniques(text: &str) -> Result<Techniques, Failure> {
    text.split('+')
        .map(|name| {
            name.trim().parse::<Technique>().map_err(|error| failure::option_failure_from("--technique", &error))
        })
        .collect()
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
    let layout = Layout {
        tensor: arguments.tensor,
        pipeline: arguments.pipeline,
        data: arguments.data,
        context: arguments.context,
        expert: arguments.expert,
        sequence_parallel: arguments.tensor > 1,
        zero: ZeroStage::from_number(arguments.zero.into()).unwrap_or_default(),
        ..Layout::default()
    };
    let micro_batch = u64::from(arguments.micro_batch);
    let batch = Batch {
        micro_batch,
        global_batch: micro_batch * u64::from(arguments.accumulate) * u64::from(arguments.data),
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
                "name one policy here, as `full`",
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
