//! Megatron-LM's command line. Source: `megatron/training/arguments.py` of NVIDIA/Megatron-LM at commit 000c4ac24f61
//! (2025).

use super::kept::plan_by_policies;
use super::megatron_settings::{MegatronEntry, MegatronSettings};
use super::{EmittedPlan, Inexpressible, PlanRecipe};

/// The largest number of GPUs in one host of a usual server.
const GPUS_OF_A_HOST: u64 = 8;

/// Writes a bash script that launches a plan. It has the plan's arguments, one per line, then placeholders for what the
/// plan leaves open. Lines that begin with `#` name parts for which Megatron-LM has no argument.
///
/// # Errors
/// A model that Megatron-LM's layers cannot express.
pub fn write_megatron(recipe: &PlanRecipe<'_>) -> Result<EmittedPlan, Inexpressible> {
    let plan = &plan_by_policies(recipe);
    let recipe = &PlanRecipe { plan, ..*recipe };
    let settings = MegatronSettings::of_recipe(recipe, "Megatron-LM")?;
    let open = [("mock-data", ""), ("tokenizer-type", "NullTokenizer"), ("train-iters", "50"), ("lr", "1e-4")];
    let lines = std::iter::once("PLAN=(".to_owned())
        .chain(settings.entries.iter().map(|entry| match entry {
            MegatronEntry::Comment(text) => format!("# {text}"),
            MegatronEntry::Setting(argument, words) => argument_line(argument, words.as_deref().unwrap_or_default()),
        }))
        .chain([")".to_owned()])
        .chain(["# data, tokenizer and learning rate are placeholders; give your own".to_owned(), "OPEN=(".to_owned()])
        .chain(open.map(|(argument, words)| argument_line(argument, words)))
        .chain([")".to_owned(), launch_line(recipe)]);
    let text = lines.map(|line| line + "\n").collect();
    Ok(EmittedPlan { text, lacking: settings.lacking })
}

/// Returns an argument with its words. Words with `|` or `(` are quoted, because the shell would interpret them.
fn argument_line(argument: &str, words: &str) -> String {
    match words {
        "" => format!("--{argument}"),
        words if words.contains('|') => format!("--{argument} \"{words}\""),
        words if words.contains('(') => format!("--{argument} '{words}'"),
        words => format!("--{argument} {words}"),
    }
}

fn launch_line(recipe: &PlanRecipe<'_>) -> String {
    let program = if recipe.model.causal { "pretrain_gpt.py" } else { "pretrain_bert.py" };
    format!("{} {program} \"${{PLAN[@]}}\" \"${{OPEN[@]}}\"", torchrun_of_plan(recipe))
}

/// Returns the command of the launcher for a plan's devices: GPUs per host, number of hosts, and the address where they
/// meet.
pub(super) fn torchrun_of_plan(recipe: &PlanRecipe<'_>) -> String {
    let devices = recipe.plan.layout.device_count();
    let host = u64::from(recipe.fast_domain).min(GPUS_OF_A_HOST).min(devices).max(1);
    let hosts = devices.div_ceil(host);
    let meeting = match hosts {
        1 => "",
        _ => " --node-rank \"$NODE_RANK\" --master-addr \"$MASTER_ADDR\" --master-port \"$MASTER_PORT\"",
    };
    format!("torchrun --nproc-per-node {host} --nnodes {hosts}{meeting}")
}
