//! The answer of a search in a few lines: the design, the reasons, its certainty, its baselines, and the next steps.

use super::evidence::format_chance;
use crate::answer::plan::{PlanRow, one_line};
use crate::run::record::{BestDesign, Certificate, Proof, SearchRecord};
use crate::text::{
    fold_line, format_area, format_fields, format_percent, format_rate, format_seconds, format_significant,
    quote_shell_word,
};
use search::objective::Objective;
use search::planner::NO_MARGIN;
use sim::units::{Seconds, SquareMillimeters};

/// The number of parts of the step's time that are named.
const PARTS: usize = 3;

/// Returns the short answer of a search. `directory` is the run's directory.
#[must_use]
pub fn run_summary(record: &SearchRecord, directory: &str) -> String {
    let text = best_design_summary(record);
    if record.best.is_none() {
        return text;
    }
    let directory = quote_shell_word(directory);
    text + &fold_line(&format!(
        "Next: coplace explain {directory} (what each step of a dimension brings), coplace report {directory} (a \
        page), and this with --details."
    ))
}

/// Returns the best design, the reasons, its certainty and its baselines.
#[must_use]
pub fn best_design_summary(record: &SearchRecord) -> String {
    let mut text = super::run::question_line(record);
    let Some(best) = &record.best else { return text + &nothing_found(record) };
    let design = &best.design;
    let node = design.node.as_ref().map_or_else(String::new, |node| format!(" of {node}"));
    let facts = [
        Some(format!("{}{node}", format_area(SquareMillimeters(design.area_mm2)))),
        design.peak_power_w.map(|watts| format!("{watts:.0} W")),
        design.cost_usd.map(|usd| format!("{usd:.0} USD to make")),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let mut pairs = vec![("best chip", design.describe_chip()), ("", facts.join(", "))];
    if best.models.is_empty() {
        let unasked = record.asked.software.fit.is_some_and(|chance| chance <= NO_MARGIN);
        let unasked = if unasked { " (no margin is kept; --fit 0.9 keeps one)" } else { "" };
        pairs.push(("plan", plan_text(&best.step.plan) + unasked));
    }
    pairs.push(("value", objective_text(record, best)));
    pairs.push(("why", why_text(best)));
    pairs.push(("proof", proof_text(&record.certificate, record.lowered_to_w)));
    if let Some(decision) = &record.decision {
        pairs.push(("how sure", decision.summary_text()));
    }
    text.push('\n');
    text.push_str(&format_fields(&pairs));
    for model in &best.models {
        text.push_str(&fold_line(&format!(
            "On {}: {} tokens/s, {} times the reference; {}.",
            model.model,
            format_rate(model.step.time.tokens_per_s),
            format_significant(model.times_reference, 4),
            plan_text(&model.step.plan)
        )));
    }
    if !best.models.is_empty() {
        let chip = &record.study.reference_chip;
        text.push_str(&fold_line(&format!("The reference is {chip} with every peak reached, on the same network.")));
    }
    let comparisons = record.comparison.iter().map(|comparison| (None, comparison));
    let by_model = best.models.iter().map(|model| (Some(model.model.as_str()), &model.comparison));
    for (model, comparison) in comparisons.chain(by_model) {
        text.push_str(&comparison.against_text(model));
    }
    // The line of the proof already has the reason why the search stopped.
    for note in best.notes.iter().filter(|note| record.certificate.why.as_ref() != Some(*note)) {
        text.push_str(&fold_line(note));
    }
    text
}

/// Returns a plan in one line, with the chance that it fits the memory.
fn plan_text(row: &PlanRow) -> String {
    let chance = row.fit_probability.map(|chance| format!("; fits memory with a chance of {}", format_chance(chance)));
    one_line(&row.plan) + &chance.unwrap_or_default()
}

fn nothing_found(record: &SearchRecord) -> String {
    let why = match (&record.certificate.why, record.certificate.is_without_candidates()) {
        (Some(why), _) => why.clone(),
        (None, true) => "no chip of this space is within the limits".to_owned(),
        (None, false) => match record.asked.aim.max_step_s {
            Some(most) => format!(
                "no design of this space runs the model within {} s; the table of designs has the step of each",
                format_significant(most, 4)
            ),
            None => "no design of this space runs the model".to_owned(),
        },
    };
    fold_line(&format!("Nothing found: {why}.{}", margin_note(record)))
}

/// Returns the chance that plans must fit with, and the cure, if their predicted peaks may not fill the memory.
fn margin_note(record: &SearchRecord) -> String {
    // With a limit on the step time, plans may have been too slow rather than too large.
    let has_candidates = !record.certificate.is_without_candidates() && record.asked.aim.max_step_s.is_none();
    record.asked.software.fit.filter(|chance| *chance > NO_MARGIN && has_candidates).map_or_else(String::new, |chance| {
        format!(
            " Plans must fit with a chance of {}, which keeps a margin for errors of predicted peaks: use more devices, \
             or accept the risk with --fit 0.5.",
            format_chance(chance)
        )
    })
}

/// Returns the value of the objective, with throughput, MFU and step.
fn objective_text(record: &SearchRecord, best: &BestDesign) -> String {
    let certificate = &record.certificate;
    let at =
        if certificate.robust { " at the bad end of the step's interval, by which designs are ranked" } else { "" };
    let value = certificate.best.map(|best| format!("{} {}{at}", format_rate(best), certificate.unit));
    let design = &best.design;
    let speed = design
        .throughput_tokens_per_s
        .filter(|_| record.asked.aim.objective != Objective::Throughput)
        .map(|rate| format!("{} tokens/s", format_rate(rate)));
    let step = design.step_time_s.map(|step| {
        let interval = best.step.plan.evidence.as_ref().map(|of| of.step_interval_s);
        let interval = interval.map_or_else(String::new, |[low, high]| {
            format!(", with 90 % confidence {} to {}", format_seconds(Seconds(low)), format_seconds(Seconds(high)))
        });
        format!("step {}{interval}", format_seconds(Seconds(step)))
    });
    let mfu = design.mfu.map(|mfu| format!("MFU {}", format_percent(mfu)));
    [value, speed, mfu, step].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Returns the largest parts of the step's time.
fn why_text(best: &BestDesign) -> String {
    let parts = best.step.time_shares.iter().take(PARTS);
    parts.map(|part| format!("{} {}", part.name, format_percent(part.fraction))).collect::<Vec<_>>().join("; ")
}

/// Returns the proof in one sentence.
fn proof_text(certificate: &Certificate, lowered_to_w: Option<f64>) -> String {
    let among = format!("of {}", certificate.space_text(lowered_to_w));
    let because = certificate.why.as_ref().map_or_else(String::new, |why| {
        let joint = if why.starts_with(char::is_uppercase) { "." } else { ";" };
        format!("{joint} {}", why.trim_end_matches('.'))
    });
    let proof = match (certificate.proof, certificate.gap) {
        (Proof::Proven, _) => format!("none {among} is better, in this model and under the study's plans"),
        (Proof::Gap, Some(gap)) => format!(
            "none {among} is better by more than {:.3} %, in this model and under the study's plans",
            gap * 100.0
        ),
        (Proof::Gap, None) => "none: the search stopped before it had a bound".to_owned(),
        (Proof::Infeasible, _) => format!("none {among} runs the model"),
    };
    proof + &because
}
