//! `plan --emit`: the fastest plan in a framework's own words.

use crate::answer;
use crate::failure::{Failure, OrInput};
use clap::ValueEnum;
use results::emit::{self, Recipe};
use results::mapped::Mapped;
use search::planner::Job;
use search::step::{SoftwareStack, TrainingPlan};
use workloads::ActivationPolicy;

/// The framework to write a plan for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Framework {
    /// Megatron-LM's arguments
    Megatron,
    /// MaxText's settings
    Maxtext,
    /// Not the plan but the problem: the model's layers with their costs, as Piper's planner and `coplace place` read them
    Piper,
}

/// The recomputation to choose from where nothing is asked for and the plan is for MaxText, which wraps every layer: its own policies. `None` leaves
/// the planner's.
pub fn policies(emit: Option<Framework>, stack: &SoftwareStack) -> Option<Vec<ActivationPolicy>> {
    let maxtext = emit.map_or_else(|| stack.name.starts_with("maxtext"), |framework| framework == Framework::Maxtext);
    maxtext.then(emit::maxtext_policies)
}

/// Writes a plan to standard output.
///
/// # Errors
/// Bad input where the framework has no layers like the model's; an incomplete answer, after it has been written, where it has no words for all of
/// the plan.
pub fn plan(framework: Framework, job: &Job<'_>, plan: &TrainingPlan, mapping: Option<&Mapped>) -> Result<(), Failure> {
    let (chip, fast_domain) = (job.chip.name.as_str(), job.fabric.fast_domain());
    let recipe = Recipe { model: job.model, plan, stack: job.stack, chip, fast_domain, mapping };
    let (name, written) = match framework {
        Framework::Megatron => ("megatron", emit::megatron(&recipe)),
        Framework::Maxtext | Framework::Piper => ("maxtext", emit::maxtext(&recipe)),
    };
    let written = written.or_input()?;
    answer::text(&written.text)?;
    if written.lacking.is_empty() {
        return Ok(());
    }
    Err(Failure::Incomplete(anyhow::anyhow!(
        "--emit {name}: what is written runs another plan than the one that was timed, which also has: {}; restrict the choices to what the \
         framework runs (--recompute, --schedule, --layer-split, --zero, --context-method, --micro-batch, --optimizer)",
        written.lacking.join("; ")
    )))
}
