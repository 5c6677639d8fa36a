//! The evaluation of a job as text. The kernels come first, if requested; the summary ends the report.

use super::evidence::format_chance;
use super::plan::describe_parameters;
use super::plan_stages::{kept_tensors_text, memory_text, storage_wear_text, timeline_text};
use super::run::time_shares_text;
use crate::answer::evaluation::EvaluateAnswer;
use crate::answer::plan::one_line;
use crate::answer::step::{EnergyRecord, JobRecord, KernelRecord, PassRecord, StepRecord};
use crate::text::{
    ColumnAlign, TextTable, format_bytes, format_count, format_fields, format_heading, format_percent, format_rate,
    format_seconds, format_significant, power_of_ten_rate,
};
use search::planner::USUAL_FIT;
use sim::network::SystemPrice;
use sim::units::{Bytes, Seconds};

/// The number of kernels in the summary.
const NAMED: usize = 10;

/// The kernels that a report lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelDetailLevel {
    /// Only the kernels that take most of the step's time.
    Longest,
    /// Also all kernels in the passes of the slowest stage.
    All,
}

/// Returns the whole report of an evaluation.
#[must_use]
pub fn evaluation_report(answer: &EvaluateAnswer, kernels: KernelDetailLevel) -> String {
    let mut text = job_text(&answer.job);
    match (&answer.result, &answer.why) {
        (Some(result), _) => {
            if kernels == KernelDetailLevel::All {
                text.push_str(&kernel_tables(result));
            }
            text.push_str(&step_text(answer, result));
        }
        (None, why) => {
            text.push_str(&format_heading("No plan"));
            text.push_str(&format_fields(&[("because", why.clone().unwrap_or_else(|| "unknown".into()))]));
        }
    }
    let techniques = super::techniques::job_techniques_text(
        &answer.job.techniques,
        answer.result.as_ref().map(|r| r.plan.tokens_per_s),
    );
    if !techniques.is_empty() {
        text.push_str(&format_heading("Memory techniques"));
        text.push_str(&format_fields(&techniques));
    }
    text.push_str(&crate::text::format_assumptions(&answer.job.model.assumptions));
    text
}

/// Returns the price of the system around a device in words.
fn system_text(price: &SystemPrice) -> String {
    format!("{:.0} USD per device around its chip: {}", price.total_usd(), price.describe_parts())
}

fn job_text(job: &JobRecord) -> String {
    let (model, chip, cluster) = (&job.model, &job.chip, &job.cluster);
    let peak = chip.peak_tflop_per_s.map_or_else(String::new, |p| format!("{} TFLOP/s, ", format_significant(p, 4)));
    let lower = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    let (hbm, rate) = (format_significant(chip.hbm_gib, 4), format_significant(chip.hbm_gb_per_s, 4));
    let cores = format!("{} tensor and {} vector cores", chip.tensor_cores, chip.vector_cores);
    let (sequences, tokens) = (format_count(cluster.global_batch_sequences), format_count(model.sequence_tokens));
    let system = job.system_parts.map(|price| ("system", system_text(&price)));
    let mut pairs = vec![
        ("model", format!("{}, {}", model.name, describe_parameters(model.parameters, model.active_parameters))),
        ("chip", format!("{}: {cores}, {peak}{hbm} GiB at {rate} GB/s", chip.name)),
        ("cluster", format!("{} devices, {}", format_count(cluster.devices), cluster.fabric)),
        ("batch", format!("{sequences} sequences of {tokens} tokens per step")),
        ("software", format!("{}; `plan` gives the same time and memory", job.stack)),
        (
            "options",
            format!(
                "attention {}, products {}, optimizer {}",
                lower(&job.attention),
                job.products,
                lower(&job.optimizer)
            ),
        ),
    ];
    let after_cluster = 3;
    system.into_iter().for_each(|pair| pairs.insert(after_cluster, pair));
    format_fields(&pairs)
}

/// Returns the figures of the plan, with explanations.
fn step_text(answer: &EvaluateAnswer, result: &StepRecord) -> String {
    let mut text = format_heading("Kernels that take most of the step");
    text.push_str(&longest_kernels(result));
    text.push_str(&format_heading("Memory, GiB per device"));
    text.push_str(&memory_text(&result.stages, Some(result.capacity_gib), Some(result.host_capacity_gib)));
    text.push_str(&storage_wear_text(&result.stages, result.plan.step_s));
    text.push_str(&kept_tensors_text(&result.stages));
    if result.timeline.len() > 1 {
        text.push_str(&format_heading("Stages over a step, seconds"));
        text.push_str(&timeline_text(&result.timeline));
    }
    text.push_str(&format_heading("Where the step's time goes"));
    text.push_str(&time_shares_text(&result.time_shares));
    text.push_str(&format_heading("Plan, time and energy of a step"));
    let plan = &result.plan;
    let step_s = Seconds(plan.step_s);
    let mut lines = vec![
        ("plan", one_line(&plan.plan)),
        ("it is", decided_text(answer)),
        ("step", format_seconds(step_s)),
        ("throughput", format!("{} tokens/s", format_rate(plan.tokens_per_s))),
        ("MFU", format_percent(plan.mfu)),
        ("memory", format!("{:.2} of {:.2} GiB", plan.peak_gib, result.capacity_gib)),
        ("energy", energy_text(&result.energy)),
        ("mean power", mean_power_text(answer, &result.energy)),
    ];
    lines.extend(super::evidence::plan_evidence(plan));
    text.push_str(&format_fields(&lines));
    text
}

/// Returns the mean power. If it is above the maker's limit, the text says that the model overestimates energy.
fn mean_power_text(answer: &EvaluateAnswer, energy: &EnergyRecord) -> String {
    let mean = energy.mean_power_per_device_w;
    let over = answer.job.chip.tdp_w.filter(|tdp| mean > *tdp).map_or_else(String::new, |tdp| {
        format!(
            ", above the maker's limit of {tdp:.0} W: energy is overestimated by at least {}",
            format_percent(mean / tdp - 1.0)
        )
    });
    format!("{} per device{over}", power_of_ten_rate(mean, "W"))
}

/// Returns how the plan of an evaluation was chosen.
pub(super) fn decided_text(answer: &EvaluateAnswer) -> String {
    let chance = answer.result.as_ref().and_then(|result| result.plan.fit_probability);
    // If any plan fits with this chance, the search considers only such plans.
    let likely = match chance.is_some_and(|chance| chance >= USUAL_FIT) {
        true => format!(" and that fit with a chance of {}", format_chance(USUAL_FIT)),
        false => String::new(),
    };
    match answer.counts.plans {
        1 => "the only plan that the arguments allow".to_owned(),
        plans => format!("the fastest of {} plans that the arguments allow{likely}", format_count(plans as u64)),
    }
}

/// Returns energy and mean power of a step in one line.
pub(super) fn energy_line(answer: &EvaluateAnswer, result: &StepRecord) -> String {
    let energy = &result.energy;
    format!("{} per step; {}", power_of_ten_rate(energy.step_j, "J"), mean_power_text(answer, energy))
}

fn energy_text(energy: &EnergyRecord) -> String {
    let part = |part: f64| {
        let fraction = format_percent(if energy.step_j > 0.0 { part / energy.step_j } else { 0.0 });
        format!("{} ({fraction})", power_of_ten_rate(part, "J"))
    };
    format!(
        "{}: dynamic {}, static {}; the network's is not modelled",
        power_of_ten_rate(energy.step_j, "J"),
        part(energy.dynamic_j),
        part(energy.static_j)
    )
}

/// Returns a table of the kernels with the largest shares of the slowest stage's passes, each with all its executions.
fn longest_kernels(result: &StepRecord) -> String {
    let mut all: Vec<(f64, &PassRecord, &KernelRecord)> = result
        .passes
        .iter()
        .flat_map(|pass| pass.kernels.iter().map(move |kernel| (kernel.exposed_s() * pass.count as f64, pass, kernel)))
        .collect();
    let micro_batch: f64 = result.passes.iter().map(|pass| pass.time_s * pass.count as f64).sum();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let head = ["kernel", "runs on", "times", "each", "of the passes", "HBM", "utilization", "bound by"];
    let mut table = TextTable::new(head)
        .align_column(1, ColumnAlign::Left)
        .align_column(7, ColumnAlign::Left)
        .keep_columns(&["times", "each", "of the passes", "bound by"]);
    for (time, pass, kernel) in all.iter().take(NAMED) {
        table.add_row([
            kernel.name.clone(),
            kernel.span.clone(),
            pass.count.to_string(),
            format_seconds(Seconds(kernel.latency_s)),
            format_percent(if micro_batch > 0.0 { time / micro_batch } else { 0.0 }),
            number_or_dash(kernel.hbm_bytes.map(|b| format_bytes(Bytes(b)))),
            number_or_dash(kernel.utilization.map(format_percent)),
            kernel.bound.clone(),
        ]);
    }
    let mut text = table.render();
    if all.len() > NAMED {
        text.push_str(&format!(
            "{} of {} kernels of a micro-batch on stage {}, the slowest one; --kernels shows all.\n",
            NAMED,
            all.len(),
            result.slowest_stage
        ));
    }
    text
}

/// Returns tables of all kernels in the passes of the slowest stage.
pub(super) fn kernel_tables(result: &StepRecord) -> String {
    let title = match result.stages.len() {
        1 => "Kernels".to_owned(),
        stages => format!("Kernels of the slowest stage (stage {}; 0 to {})", result.slowest_stage, stages - 1),
    };
    let mut text = format_heading(&title);
    text.push_str(
        "Shares are of the pass's time, without what is hidden: they add up to 100 %. HBM counts reads and writes.\n",
    );
    text.extend(result.passes.iter().map(kernel_table));
    text
}

fn kernel_table(pass: &PassRecord) -> String {
    let times = if pass.count == 1 { "once".into() } else { format!("{} times", pass.count) };
    let (time, energy) = (format_seconds(Seconds(pass.time_s)), power_of_ten_rate(pass.energy_j, "J"));
    let mut text = format!("\n{}, {}: {time}, {energy}; {times} per micro-batch\n", pass.segment, pass.pass);
    if pass.unproven_s > 0.0 {
        text.push_str(&format!(
            "Its schedule is not proven: it may take {} less.\n",
            format_seconds(Seconds(pass.unproven_s))
        ));
    }
    let head = [
        "kernel",
        "runs on",
        "start µs",
        "latency µs",
        "hidden µs",
        "share",
        "energy mJ",
        "HBM",
        "utilization",
        "bound by",
    ];
    let mut table = TextTable::new(head)
        .align_column(1, ColumnAlign::Left)
        .align_column(9, ColumnAlign::Left)
        .keep_columns(&["latency µs", "hidden µs", "share", "bound by"]);
    for kernel in &pass.kernels {
        table.add_row([
            kernel.name.clone(),
            kernel.span.clone(),
            format!("{:.2}", kernel.start_s * 1e6),
            format!("{:.2}", kernel.latency_s * 1e6),
            format!("{:.2}", kernel.hidden_s * 1e6),
            format_percent(kernel.share),
            number_or_dash(kernel.energy_j.map(|e| format!("{:.3}", e * 1e3))),
            number_or_dash(kernel.hbm_bytes.map(|b| format_bytes(Bytes(b)))),
            number_or_dash(kernel.utilization.map(format_percent)),
            kernel.bound.clone(),
        ]);
    }
    text.push_str(&table.render());
    text
}

fn number_or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}
