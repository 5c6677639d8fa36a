//! Megatron-LM's command line. Source: `megatron/training/arguments.py` of NVIDIA/Megatron-LM at commit 000c4ac24f61
//! (2025).

use super::kept::plan_by_policies;
use super::megatron_settings::{MegatronEntry, MegatronSettings};
use super::{EmittedPlan, Inexpressible, PlanRecipe};

/// Most GPUs that one host of a usual server has.
const GPUS_OF_A_HOST: u64 = 8;

/// Writes a bash script that launches a plan: its arguments, one per line, then what the plan leaves open. Lines that
/// begin with `#` name parts that Megatron-LM has no argument for.
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

/// An argument with its words, quoted where the shell would read them otherwise.
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

/// Returns the launcher's words for a plan's devices: those of a host, the hosts, and where they meet.
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
