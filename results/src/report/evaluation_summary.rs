//! The answer of `evaluate` in a few lines.

use super::evaluation::{KernelDetailLevel, decided_text, energy_line, kernel_tables};
use super::plan::parameter_counts;
use super::plan_summary::{
    assumptions_text, certainty_text, largest_shares_text, line, memory_line, nothing_fits, speed_text,
};
use super::techniques::job_techniques_text;
use crate::answer::evaluation::EvaluateAnswer;
use crate::answer::plan::one_line;
use crate::answer::step::{JobRecord, NamedShare};
use crate::text::{fold_line, format_count, format_fields};

/// Returns the short answer of `evaluate`. The kernels come first, if requested.
#[must_use]
pub fn evaluation_summary(answer: &EvaluateAnswer, kernels: KernelDetailLevel) -> String {
    let tables = answer.result.as_ref().filter(|_| kernels == KernelDetailLevel::All).map(kernel_tables);
    let mut text = tables.map_or_else(String::new, |tables| tables + "\n");
    text.push_str(&job_question_line(&answer.job));
    text.push('\n');
    let assumptions = &answer.job.model.assumptions;
    let Some(result) = &answer.result else {
        return text
            + &nothing_fits(answer.why.clone(), job_techniques_text(&answer.job.techniques, None), assumptions);
    };
    let plan = &result.plan;
    let shares = result.time_shares.iter().map(|NamedShare { name, fraction }| (name.clone(), *fraction));
    let mut lines = vec![
        line("value", speed_text(plan)),
        line("plan", one_line(&plan.plan)),
        line("it is", decided_text(answer)),
        line("why", largest_shares_text(shares.collect())),
        line("memory", memory_line(plan, Some(result.capacity_gib), &result.stages)),
        line("energy", energy_line(answer, result)),
    ];
    lines.extend(certainty_text(std::slice::from_ref(plan)).map(|sure| line("how sure", sure)));
    lines.extend(job_techniques_text(&answer.job.techniques, Some(plan.tokens_per_s)));
    text.push_str(&format_fields(&lines));
    text.push_str(&assumptions_text(assumptions));
    text + &fold_line(
        "Next: this with --details (kernels, memory by class, stages, energy), or coplace plan with the same arguments \
        (other plans, and why they are slower).",
    )
}

/// Returns the question of an evaluation in one line.
fn job_question_line(job: &JobRecord) -> String {
    let (model, cluster) = (&job.model, &job.cluster);
    format!(
        "{}{} on {} x {}, {}, {} sequences of {} tokens per step, software {}\n",
        model.name,
        parameter_counts(Some(model.parameters), model.active_parameters),
        format_count(cluster.devices),
        job.chip.name,
        cluster.fabric,
        format_count(cluster.global_batch_sequences),
        format_count(model.sequence_tokens),
        job.stack
    )
}
