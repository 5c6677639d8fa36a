//! Builds the options with which `evaluate` finds the best plan of a search again.

use search::ask::PlanSpace;
use search::planner::{Job, RankedPlan};

/// Returns the options of a plan and its job, without the model and the chip.
pub fn plan_options(job: &Job<'_>, ranked: &RankedPlan, fabric: &str, stack: &str) -> Vec<String> {
    let word = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    let further = job.model.variations.further_tokens;
    let mut found: Vec<(&str, String)> = vec![
        ("fabric", fabric.to_owned()),
        ("devices", job.devices.to_string()),
        ("global-batch", job.global_batch.to_string()),
        ("stack", stack.to_owned()),
        ("headroom-gib", job.headroom.gib().to_string()),
        ("attention", word(&job.attention)),
        ("optimizer", word(&job.optimizer)),
        ("sequence-length", job.sequence_length.to_string()),
    ];
    found.extend((further > 0).then(|| ("mtp-layers", further.to_string())));
    let lengths = job.model.documents.iter().map(|of| format!("{}:{}", of.tokens, of.documents));
    let lengths = lengths.collect::<Vec<_>>().join(",");
    found.extend((!lengths.is_empty()).then_some(("documents", lengths)));
    let decisions = PlanSpace::of_plan(&ranked.plan).options();
    found.extend(decisions.into_iter().map(|(decision, words)| (decision.flag, words)));
    found.into_iter().flat_map(|(option, value)| [format!("--{option}"), value]).collect()
}
