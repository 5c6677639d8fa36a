//! `plan --emit`: writes the fastest plan in a framework's configuration.

use crate::answer;
use crate::call::Call;
use crate::failure::{Failure, OrInput};
use clap::ValueEnum;
use results::answer::rank_mapping::RankMappingRecord;
use results::emit::{self, EmittedPlan, ModelNumerics, PlanRecipe};
use results::text::{format_rate, format_seconds};
use search::ask::Question;
use search::planner::{Job, PlanSpace, RankedPlan};
use sim::hardware::Accelerator;
use step::{Framework, SoftwareStack, TrainingPlan};
use workloads::model::config_text;

/// The framework whose configuration is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EmitTarget {
    /// Megatron-LM's arguments
    Megatron,
    /// A recipe of Megatron Bridge, as Python
    MegatronBridge,
    /// MaxText's settings
    Maxtext,
    /// TorchTitan's configuration
    Torchtitan,
    /// DeepSpeed's configuration
    Deepspeed,
    /// nanotron's configuration
    Nanotron,
    /// PyTorch's selective activation checkpointing of a layer, as Python
    Torch,
    /// Not the plan but the problem: the model's layers with their costs, as input of Piper's planner and of `coplace
    /// place`
    Piper,
}

impl EmitTarget {
    fn name(self) -> &'static str {
        match self {
            Self::Megatron => "megatron",
            Self::MegatronBridge => "megatron-bridge",
            Self::Maxtext => "maxtext",
            Self::Torchtitan => "torchtitan",
            Self::Deepspeed => "deepspeed",
            Self::Nanotron => "nanotron",
            Self::Torch => "torch",
            Self::Piper => "piper",
        }
    }
}

/// Returns the choices that a framework can run: those of TorchTitan, DeepSpeed, nanotron or MaxText if the plan is
/// written for it; without `emit`, MaxText's if the stack is MaxText. `None` means the planner's defaults.
pub fn runnable_choices(emit: Option<EmitTarget>, job: &Job<'_>) -> Option<PlanSpace> {
    match emit {
        Some(EmitTarget::Torchtitan) => return Some(emit::torchtitan_choices()),
        Some(EmitTarget::Deepspeed) => return Some(emit::deepspeed_choices()),
        Some(EmitTarget::Nanotron) => return Some(emit::nanotron_choices(job.model, job.devices)),
        _ => {}
    }
    let runs = job.stack.framework.name == Framework::MaxText;
    let maxtext = emit.map_or(runs, |target| target == EmitTarget::Maxtext);
    maxtext.then(|| PlanSpace { activations: Some(emit::maxtext_policies()), ..emit::maxtext_choices() })
}

/// Writes to standard output the first plan of a list that the framework can express completely, with the mapping of
/// its ranks. If there is none, writes the first plan of the list.
///
/// # Errors
/// Wrong input if the framework has no layers like the model's. An incomplete answer, after the plan is written, if the
/// framework cannot express the whole plan.
pub fn write_first_expressible(
    call: &Call,
    framework: EmitTarget,
    question: &Question,
    job: &Job<'_>,
    plans: &[RankedPlan],
    mappings: &[RankMappingRecord],
) -> Result<(), Failure> {
    let numerics = config_text(question.model(), &question.files)
        .map_or_else(ModelNumerics::default, |text| ModelNumerics::from_config(&text));
    let all: Vec<EmittedPlan> = plans
        .iter()
        .enumerate()
        .map(|(i, ranked)| write_plan(framework, job, numerics, &ranked.plan, mappings.get(i)))
        .collect::<Result<_, _>>()?;
    let (Some(fastest), name) = (all.first(), framework.name()) else { return Ok(()) };
    let whole = all.iter().position(|written| written.lacking.is_empty());
    let lacking = fastest.lacking.join("; ");
    let chosen = whole.unwrap_or(0);
    let prediction = prediction_comment(job, &plans[chosen]);
    if framework == EmitTarget::Deepspeed {
        // JSON has no comments, so the prediction goes to the log.
        answer::write_text(call, &all[chosen].text)?;
        tracing::info!("--emit deepspeed: {}", prediction.trim_start_matches("# ").trim_end());
    } else {
        answer::write_text(call, &format!("{}{prediction}", all[chosen].text))?;
    }
    if matches!(framework, EmitTarget::Megatron | EmitTarget::MegatronBridge) && runs_maxtext(job.chip) {
        return Err(Failure::Incomplete(anyhow::anyhow!(
            "--emit {name}: Megatron-LM runs on GPUs, {} is none: what is written does not run there; MaxText does \
            (--emit maxtext)",
            job.chip.name
        )));
    }
    match whole {
        Some(0) => Ok(()),
        Some(place) => {
            let slower = 100.0 * (plans[place].time.total.0 / plans[0].time.total.0 - 1.0);
            tracing::warn!(
                "--emit {name}: plan {} of the list, {slower:.1} % slower than the first, which also has: {lacking}",
                place + 1
            );
            Ok(())
        }
        None => Err(Failure::Incomplete(anyhow::anyhow!(
            "--emit {name}: what is written runs another plan than the one that was timed, which also has: {lacking}; \
            restrict the choices to \
             what the framework runs (--recompute, --schedule, --virtual-stages, --layer-split, --zero, \
             --context-method, --micro-batch, --expert-tensor, --optimizer)"
        ))),
    }
}

/// True if the chip's usual software is MaxText.
fn runs_maxtext(chip: &Accelerator) -> bool {
    SoftwareStack::load_usual_of_chip(chip, &chip.name).is_ok_and(|stack| stack.framework.name == Framework::MaxText)
}

/// Returns the predictions for a plan as a `#` comment for a framework's file.
fn prediction_comment(job: &Job<'_>, ranked: &RankedPlan) -> String {
    let (step, tokens) = (ranked.time.total, job.global_batch as f64 * job.sequence_length as f64);
    let peak = ranked.memory.stages.iter().map(|stage| stage.bytes_needed().gib()).fold(0.0, f64::max);
    format!(
        "# predicted by coplace {}: a step of {}, {} tokens/s, {peak:.1} GiB on the fullest of {} x {}\n",
        env!("CARGO_PKG_VERSION"),
        format_seconds(step),
        format_rate(tokens / step.0),
        job.devices,
        job.chip.name
    )
}

fn write_plan(
    framework: EmitTarget,
    job: &Job<'_>,
    numerics: ModelNumerics,
    plan: &TrainingPlan,
    mapping: Option<&RankMappingRecord>,
) -> Result<EmittedPlan, Failure> {
    let (chip, fast_domain) = (job.chip.name.as_str(), job.fabric.fast_domain_devices());
    let recipe = PlanRecipe { model: job.model, plan, stack: job.stack, chip, fast_domain, numerics, mapping };
    match framework {
        EmitTarget::Megatron => emit::write_megatron(&recipe).or_input(),
        EmitTarget::MegatronBridge => emit::write_megatron_bridge(&recipe).or_input(),
        EmitTarget::Torch => emit::write_torch(&recipe).or_input(),
        EmitTarget::Torchtitan => emit::write_torchtitan(&recipe).or_input(),
        EmitTarget::Deepspeed => emit::write_deepspeed(&recipe).or_input(),
        EmitTarget::Nanotron => emit::write_nanotron(&recipe).or_input(),
        EmitTarget::Maxtext | EmitTarget::Piper => emit::write_maxtext(&recipe).or_input(),
    }
}
