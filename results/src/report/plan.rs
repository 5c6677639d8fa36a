//! The best plans of a fixed chip, as text.

use super::plan_cells::{experts_cell, recompute_cell};
use super::plan_stages::{kept_tensors_text, memory_text, storage_wear_text, timeline_text};
use crate::answer::plan::{PlanRow, PlannedAnswer, part_name, schedule_name};
use crate::answer::whole_training::WholeTraining;
use crate::text::{
    ColumnAlign, TextTable, fold_line, format_count, format_fields, format_heading, format_percent, format_rate,
    format_seconds, format_significant,
};
use sim::units::Seconds;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use workloads::training::ContextMethod;

/// Returns the whole report of a plan search.
#[must_use]
pub fn plan_report(answer: &PlannedAnswer) -> String {
    let mut text = plan_question_line(answer);
    text.push_str(&match answer.plans.first() {
        Some(best) => describe_ranking(answer, best) + &describe_first_plan(answer, best),
        None => explain_no_plan(answer),
    });
    let techniques =
        super::techniques::job_techniques_text(&answer.techniques, answer.plans.first().map(|row| row.tokens_per_s));
    if !techniques.is_empty() {
        text.push_str(&format_heading("Memory techniques"));
        text.push_str(&format_fields(&techniques));
    }
    text.push_str(&crate::text::format_assumptions(&answer.assumptions));
    text.push_str(&format_heading("Search"));
    text.push_str(&search_text(answer));
    text
}

/// Returns the list of plans that fit, with the figures and the evidence of the first one, `best`.
fn describe_ranking(answer: &PlannedAnswer, best: &PlanRow) -> String {
    let order = if answer.robust {
        "Plans that fit, by the bad end of their step's interval"
    } else {
        "Fastest plans that fit"
    };
    let mut text = format_heading(order);
    if let Some(stopped) = &answer.stopped {
        text.push_str(&fold_line(&format!("{}.", stopped.proof_text(Some(best.step_s)))));
    }
    text.push_str(&plans_table(&answer.plans));
    text.push_str(&first_plan_line(best, answer.capacity_gib));
    let everything = answer.asked.as_ref().is_some_and(|asked| asked.everything);
    text.push_str(&super::plan_families::families_text(&answer.families, everything));
    text.push_str(&super::evidence::plans_evidence(&answer.plans));
    text
}

/// Returns the time, the memory and the neighbours of the first plan, `best`.
fn describe_first_plan(answer: &PlannedAnswer, best: &PlanRow) -> String {
    let unmapped = if best.mapped_step_s.is_some() { ", ranks in the order of the devices" } else { "" };
    let mut text = format_heading(&format!("Where the first one's time goes{unmapped}"));
    text.push_str(&time_parts_text(best.step_s, &best.parts_s));
    text.push_str(&format_heading("Its memory, GiB per device"));
    text.push_str(&memory_text(&answer.stages, answer.capacity_gib, answer.host_capacity_gib));
    text.push_str(&storage_wear_text(&answer.stages, best.step_s));
    text.push_str(&kept_tensors_text(&answer.stages));
    if best.plan.layout.pipeline > 1 && best.plan.schedule.is_in_v() {
        text.push_str(V_MEMORY);
    }
    if let Some(training) = &answer.whole_training {
        text.push_str(&format_heading("A whole training under it"));
        text.push_str(&format_fields(&whole_training_fields(training)));
    }
    if answer.timeline.len() > 1 {
        text.push_str(&format_heading("Its stages over a step, seconds"));
        text.push_str(&timeline_text(&answer.timeline));
    }
    if answer.stopped.is_none() {
        text.push_str(&format_heading("Its neighbours, one decision away"));
        text.push_str(&neighbours_table(answer));
    }
    if let Some(mapping) = &answer.mapping {
        text.push_str(&format_heading("Its ranks on the links"));
        text.push_str(&super::rank_mapping::mapping_text(mapping));
    }
    text
}

/// Returns the reason why no plan is listed.
fn explain_no_plan(answer: &PlannedAnswer) -> String {
    let stopped = answer.stopped.as_ref().map(|stopped| stopped.proof_text(None));
    let why = stopped.or_else(|| answer.why.clone()).unwrap_or_else(|| "unknown".into());
    format_heading("No plan") + &format_fields(&[("because", why)])
}

/// Returns the question of a plan search in one line.
pub(super) fn plan_question_line(answer: &PlannedAnswer) -> String {
    format!(
        "{}{} on {} x {}, {}, {} sequences of {} tokens per step, software {}\n",
        answer.model,
        parameter_counts(answer.parameters, answer.active_parameters),
        format_count(answer.devices),
        answer.chip,
        answer.fabric,
        format_count(answer.global_batch_sequences),
        format_count(answer.sequence_tokens),
        answer.stack
    )
}

/// Returns the parameters of a model with experts in parentheses, empty for a dense one. The name of a dense model
/// tells its size; that of a model with experts may tell either count.
pub(super) fn parameter_counts(all: Option<u64>, active: Option<u64>) -> String {
    match (all, active) {
        (Some(all), Some(active)) => format!(" ({})", describe_parameters(all, Some(active))),
        _ => String::new(),
    }
}

/// Returns the lines about a whole training.
pub(super) fn whole_training_fields(training: &WholeTraining) -> Vec<(&'static str, String)> {
    let short = |value: f64| format_significant(value, 3);
    let interval = training
        .days_interval
        .map_or_else(String::new, |[least, most]| format!(" (90 %: {} to {})", short(least), short(most)));
    let mut lines = vec![
        ("tokens", format!("{} in {} steps", format_rate(training.tokens as f64), format_count(training.steps))),
        ("days", format!("{}{interval}, without restarts", short(training.days))),
        ("device hours", format_rate(training.device_hours)),
        ("energy", format!("{} kWh of the chips alone", format_rate(training.chips_kwh))),
    ];
    lines.extend(training.usd.map(|usd| ("price", format!("{} USD", format_rate(usd)))));
    lines
}

/// The note for schedules whose number of activations in flight depends on the times of passes.
const V_MEMORY: &str = "In a V these are the activations of as many passes as a stage may have in flight, which \
    not every stage reaches: plans are\n\
    taken to fit by them, and what each stage holds at most is in the last column below.\n";

/// Returns how many plans were decided in which way, and the resulting proof.
fn search_text(answer: &PlannedAnswer) -> String {
    let c = &answer.counts;
    let mut lines = vec![
        ("plans in the space", format_count(c.plans as u64)),
        ("timed", format_count(c.timed as u64)),
        ("timed event by event", format_count(c.simulated as u64)),
        ("larger than memory", format_count(c.over_capacity as u64)),
        ("rejected by bound", format_count(c.rejected_by_bound as u64)),
    ];
    if c.splits > 0 {
        lines.push(("other layer splits", format_count(c.splits)));
        lines.push(("other splits evaluated", format_count(c.splits_tried)));
    }
    if c.refused > 0 {
        lines.push(("refused", format_count(c.refused as u64)));
    }
    if c.not_reached > 0 {
        lines.push(("not reached", format_count(c.not_reached as u64)));
    }
    let mut text = format_fields(&lines);
    if answer.mapping.is_some() && answer.stopped.is_none() {
        text.push_str(
            "With ranks in the order of the devices, no plan of the space is faster than the fastest listed one. Only \
            listed plans were mapped to the links; another plan could be faster when mapped.\n",
        );
    } else if !answer.plans.is_empty() {
        text.push_str(&proof_text(answer));
    }
    text
}

/// Returns the proof for the first plan, in words.
fn proof_text(answer: &PlannedAnswer) -> String {
    if let Some(stopped) = &answer.stopped {
        let best = answer.plans.iter().map(|row| row.step_s).reduce(f64::min);
        return fold_line(&format!("{}.", stopped.proof_text(best)));
    }
    if answer.robust {
        return "No interval ends below the predicted step. A plan that is not listed is predicted slower than the \
            first one's bad end, is not among the thousand fastest, or is discouraged by the software's framework.\n"
            .to_owned();
    }
    let runs = match place_of_runnable(&answer.plans) {
        Some(place) if place > 0 => {
            format!(", and no plan that the software's framework can run is faster than {}", place + 1)
        }
        _ => String::new(),
    };
    let mut text = fold_line(&format!(
        "Under this model {}{runs}. Bounds rule out the plans that were not timed.",
        first_place_text(&answer.plans)
    ));
    if let (Some(mixed), Some(gap)) = (answer.counts.mixed, answer.counts.mix_gap) {
        let near = if gap > 0.0 {
            format!("; stage policies are within {} of the best", format_percent(gap))
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "Policies per layer were searched in {} layouts: those with even or listed splits, and the few near them \
            that are fastest when keeping everything{near}. All others are slower even when keeping everything.",
            format_count(mixed as u64)
        );
    }
    match answer.counts.split_tolerance {
        Some(tolerance) if tolerance > 0.0 && answer.counts.splits > 0 => {
            let _ = writeln!(
                text,
                "No other layer split makes any of them{} more than {} faster; --layer-split best searches all splits.",
                if answer.counts.mixed.is_some() { " with one policy for all layers" } else { "" },
                format_percent(tolerance)
            );
        }
        _ => {}
    }
    text
}

/// States that no plan is faster than the first, with an exception for a discouraged plan that is.
pub(super) fn first_place_text(rows: &[PlanRow]) -> String {
    let (Some(first), Some(faster)) = (rows.first(), faster_discouraged(rows)) else {
        return "no plan of the space is faster than the first".to_owned();
    };
    let (last, less) = (rows.len(), format_percent(1.0 - faster.step_s / first.step_s));
    format!(
        "no documented plan of the space is faster than the first. No discouraged one is faster than {last}, which \
        takes {less} less time than the first"
    )
}

/// The legend of the table of plans.
const LEGEND: &str = "t, p, d, c, e: tensor-, pipeline-, data-, context- (u: Ulysses), expert-parallel devices; v: \
    model chunks per stage.\n\
    alike: unlisted plans with the same t, p, d, c, e and similar time and memory; they differ in v, layers, ranks or \
    kept tensors.\n\
    ranks: the axes in the order in which they fill the devices. layers: layers per model chunk, if not equal \
    (5+4x6+3: 5, then 4 six times, then 3).\n\
    MFU counts the unmasked half of causal scores, and no recomputation.\n\
    fits: the chance that the peak fits the memory (--fit).\n";

/// The heads of the table of plans.
const PLAN_COLUMNS: [&str; 22] = [
    "#",
    "t",
    "p",
    "d",
    "c",
    "e",
    "v",
    "layers",
    "ranks",
    "schedule",
    "micro-batch",
    "ZeRO",
    "seq. parallel",
    "recompute",
    "step s",
    "tokens/s",
    "MFU",
    "GiB",
    "fits",
    "alike",
    "cannot run",
    "discouraged",
];

/// The columns that a narrow screen keeps longest.
const KEPT: [&str; 13] =
    ["t", "p", "d", "c", "e", "micro-batch", "ZeRO", "recompute", "step s", "tokens/s", "MFU", "GiB", "fits"];

/// Finds the fastest listed plan that the software's framework can run; returns its index. `None` if it can run none.
fn place_of_runnable(rows: &[PlanRow]) -> Option<usize> {
    rows.iter().position(|row| row.cannot_run.is_none())
}

/// Names the fastest listed plan that the software's framework can run. Empty if that is the first plan.
pub(super) fn fastest_runnable_text(rows: &[PlanRow]) -> String {
    let Some(first) = rows.first().filter(|row| row.cannot_run.is_some()) else { return String::new() };
    let Some(place) = place_of_runnable(rows) else { return fold_line("It can run none of these.") };
    let row = &rows[place];
    let step = |row: &PlanRow| row.mapped_step_s.unwrap_or(row.step_s);
    let slower = step(row) / step(first) - 1.0;
    fold_line(&format!(
        "The fastest listed plan that it can run is {}: {} per step, {} slower than the first.",
        place + 1,
        format_seconds(Seconds(step(row))),
        format_percent(slower)
    ))
}

/// Lists the reasons why the software's framework cannot run some plans, each reason once with its plans.
pub(super) fn cannot_run_text(rows: &[PlanRow]) -> String {
    let reasons = numbers_by_reason(rows, |row| row.cannot_run.as_deref());
    let text = |(why, numbers): (&str, Vec<String>)| {
        fold_line(&format!("The framework cannot run {}: {why}.", numbers.join(", ")))
    };
    reasons.into_iter().map(text).collect()
}

/// Lists the reasons why the software's framework discourages some plans, each reason once with its plans.
fn discouraged_text(rows: &[PlanRow]) -> String {
    let reasons = numbers_by_reason(rows, |row| row.discouraged.as_deref());
    let text = |(why, numbers): (&str, Vec<String>)| {
        fold_line(&format!("The framework discourages {}: {why}.", numbers.join(", ")))
    };
    reasons.into_iter().map(text).collect()
}

/// Returns the verdict before a reason: `not documented`.
fn verdict_of_reason(why: &str) -> &str {
    why.split(':').next().unwrap_or(why)
}

/// Returns the last plan of a list, if it is a discouraged plan that is faster than the first one.
fn faster_discouraged(rows: &[PlanRow]) -> Option<&PlanRow> {
    let (first, last) = (rows.first()?, rows.last()?);
    let is_discouraged = |row: &PlanRow| row.discouraged.is_some();
    Some(last).filter(|last| is_discouraged(last) && !is_discouraged(first) && last.step_s < first.step_s)
}

/// Groups the numbers of plans, from 1, by a reason. Reasons are in the order of the list.
fn numbers_by_reason<'a>(
    rows: &'a [PlanRow],
    reason: impl Fn(&'a PlanRow) -> Option<&'a str>,
) -> Vec<(&'a str, Vec<String>)> {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let Some(why) = reason(row) else { continue };
        let number = (i + 1).to_string();
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, numbers)) => numbers.push(number),
            None => reasons.push((why, vec![number])),
        }
    }
    reasons
}

/// Returns the cells of a plan, in the order of [`PLAN_COLUMNS`]. A mapped plan has one more: its unmapped step.
fn make_plan_cells(number: usize, row: &PlanRow) -> Vec<String> {
    let l = &row.plan.layout;
    let mut cells = vec![
        number.to_string(),
        l.tensor.to_string(),
        l.pipeline.to_string(),
        l.data.to_string(),
        format!("{}{}", l.context, if l.context > 1 && l.context_method == ContextMethod::Ulysses { "u" } else { "" }),
        experts_cell(l),
        l.virtual_stages.to_string(),
        layer_split_cell(&row.layers),
        l.order.to_string(),
        schedule_name(&row.plan).to_owned(),
        row.plan.batch.micro_batch.to_string(),
        l.sharding_words(),
        if l.sequence_parallel { "yes" } else { "no" }.to_owned(),
        recompute_cell(&row.plan.activations),
        format_significant(row.mapped_step_s.unwrap_or(row.step_s), 4),
        format_rate(row.tokens_per_s),
        format_percent(row.mfu),
        format!("{:.1}", row.peak_gib),
        row.fit_probability.map_or_else(|| "-".to_owned(), super::evidence::format_chance),
        if row.alike > 0 { format!("and {} like it", row.alike) } else { "-".to_owned() },
        if row.cannot_run.is_some() { "see below" } else { "-" }.to_owned(),
        row.discouraged.as_deref().map_or("-", verdict_of_reason).to_owned(),
    ];
    cells.extend(row.mapped_step_s.map(|_| format_significant(row.step_s, 4)));
    cells
}

fn plans_table(rows: &[PlanRow]) -> String {
    let mapped = rows.iter().any(|row| row.mapped_step_s.is_some());
    let mut table = TextTable::new(PLAN_COLUMNS.into_iter().chain(mapped.then_some("unmapped s")))
        .align_column(0, ColumnAlign::Right)
        .keep_columns(&KEPT);
    for column in [7, 8, 9, 12, 13, 19, 20, 21] {
        table = table.align_column(column, ColumnAlign::Left);
    }
    for (i, row) in rows.iter().enumerate() {
        table.add_row(make_plan_cells(i + 1, row));
    }
    let common = table.take_common_columns(&[4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 19, 20, 21]);
    let mut text = table.render();
    let common: Vec<String> =
        common.iter().filter(|(_, cell)| cell != "-").map(|(head, cell)| format!("{head} {cell}")).collect();
    if !common.is_empty() {
        let _ = writeln!(text, "All of them: {}.", common.join(", "));
    }
    text.push_str(&cannot_run_text(rows));
    text.push_str(&fastest_runnable_text(rows));
    text.push_str(&discouraged_text(rows));
    text.push_str(LEGEND);
    if rows.iter().any(|row| row.plan.layout.expert_tensor.is_some()) {
        text.push_str("e 8x2: eight expert-parallel ranks, every expert over two devices.\n");
    }
    if mapped {
        text.push_str(
            "step s: with each plan's ranks in the best mapping found; unmapped s: in the order of the devices.\n",
        );
    }
    text
}

/// Returns the first plan's figures in one line.
fn first_plan_line(row: &PlanRow, capacity_gib: Option<f64>) -> String {
    let of = capacity_gib.map_or_else(String::new, |gib| format!(" of {gib:.1}"));
    let step = format_seconds(Seconds(row.mapped_step_s.unwrap_or(row.step_s)));
    fold_line(&format!(
        "The first: {step} per step, {} tokens/s, MFU {}, {:.1}{of} GiB.",
        format_rate(row.tokens_per_s),
        format_percent(row.mfu),
        row.peak_gib
    ))
}

/// Returns the layers of the chunks, with equal neighbours grouped: `8+9x2+6`. A dash if all are equal.
fn layer_split_cell(chunks: &[u64]) -> String {
    let runs: Vec<String> = chunks
        .chunk_by(|a, b| a == b)
        .map(|run| if run.len() == 1 { run[0].to_string() } else { format!("{}x{}", run[0], run.len()) })
        .collect();
    if runs.len() > 1 { runs.join("+") } else { "-".to_owned() }
}

/// Returns the parts of a step's time as text, longest first. `step_s` is the whole step, in seconds.
pub fn time_parts_text(step_s: f64, parts_s: &BTreeMap<String, f64>) -> String {
    let mut parts: Vec<(&str, f64)> =
        parts_s.iter().map(|(name, time)| (part_name(name), *time)).filter(|(_, t)| *t > 0.0).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let line =
        |(name, time)| (name, format!("{:>9}  {:>6}", format_seconds(Seconds(time)), format_percent(time / step_s)));
    format_fields(&parts.into_iter().map(line).collect::<Vec<_>>())
}

/// Describes the number of a model's parameters, and of those that one token uses if they are given.
pub(super) fn describe_parameters(all: u64, active: Option<u64>) -> String {
    let active = active.map_or_else(String::new, |active| format!(", {} active per token", format_count(active)));
    format!("{} parameters{active}", format_count(all))
}

fn neighbours_table(answer: &PlannedAnswer) -> String {
    let mut table = TextTable::new(["change", "step s", "why not"]).align_column(2, ColumnAlign::Left);
    for n in &answer.neighbours {
        table.add_row([
            n.change.clone(),
            n.step_s.map_or_else(|| "-".into(), |s| format_significant(s, 4)),
            n.why.clone(),
        ]);
    }
    table.render()
}
