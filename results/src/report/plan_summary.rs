//! The answer of `plan` in a few lines: the plan, its figures, the reasons, the certainty, and the next steps.

use super::evidence::{count_close_plans, format_chance};
use super::plan::{
    cannot_run_text, fastest_runnable_text, first_place_text, plan_question_line, whole_training_fields,
};
use super::plan_families::{families_table, first_plans_table};
use super::techniques::job_techniques_text;
use crate::answer::plan::{PlanRow, PlannedAnswer, StageRow, one_line, part_name};
use crate::text::{fold_line, format_count, format_fields, format_percent, format_rate, format_seconds};
use sim::units::Seconds;

/// The number of parts of the step's time that are named.
const PARTS: usize = 3;
/// The number of plans that are listed if there are no families to list.
const PLANS: usize = 3;

/// Lines of an answer: the name of each, and its text.
pub(super) type SummaryLines = Vec<(String, String)>;

/// Names a line.
pub(super) fn line(name: &str, text: String) -> (String, String) {
    (name.to_owned(), text)
}

/// Returns the short answer of `plan`.
#[must_use]
pub fn plan_summary(answer: &PlannedAnswer) -> String {
    let mut text = plan_question_line(answer) + "\n";
    let Some(best) = answer.plans.first() else {
        let why = answer.stopped.as_ref().map(|stopped| stopped.proof_text(None)).or_else(|| answer.why.clone());
        return text + &nothing_fits(why, job_techniques_text(&answer.techniques, None), &answer.assumptions);
    };
    let shares = best.parts_s.iter().map(|(name, time)| (part_name(name).to_owned(), time / best.step_s));
    let unmapped = if best.mapped_step_s.is_some() { " (with ranks in the order of the devices)" } else { "" };
    let mut lines = vec![
        line("best plan", one_line(&best.plan)),
        line("value", speed_text(best)),
        line("why", largest_shares_text(shares.collect()) + unmapped),
        line("memory", memory_line(best, answer.capacity_gib, &answer.stages)),
    ];
    lines.extend(
        answer.neighbours.first().map(|nearest| line("nearest", format!("{}: {}", nearest.change, nearest.why))),
    );
    lines.push(line("proof", plan_proof(answer, best)));
    lines.extend(certainty_text(&answer.plans).map(|sure| line("how sure", sure)));
    if let Some(training) = &answer.whole_training {
        let parts: Vec<String> =
            whole_training_fields(training).iter().map(|(name, value)| format!("{name} {value}")).collect();
        lines.push(line("training", parts.join("; ")));
    }
    lines.extend(job_techniques_text(&answer.techniques, Some(best.tokens_per_s)));
    text.push_str(&format_fields(&lines));
    if answer.families.len() > 1 {
        text.push('\n');
        text.push_str(&families_table(&answer.families));
    } else if answer.plans.len() > 1 {
        text.push('\n');
        let step = best.mapped_step_s.unwrap_or(best.step_s);
        text.push_str(&first_plans_table(&answer.plans[..answer.plans.len().min(PLANS)], step));
    }
    text.push_str(&cannot_run_text(&answer.plans[..1]));
    text.push_str(&fastest_runnable_text(&answer.plans));
    text.push_str(&assumptions_text(&answer.assumptions));
    text + &fold_line(
        "Next: this with --details (all listed plans, memory by class, stages, neighbours), or with --emit FRAMEWORK \
        (the plan as a file that it reads).",
    )
}

/// Returns the reason why there is no plan, with techniques and assumptions.
pub(super) fn nothing_fits(why: Option<String>, techniques: SummaryLines, assumptions: &[String]) -> String {
    let mut lines = vec![line("no plan", why.unwrap_or_else(|| "unknown".to_owned()))];
    lines.extend(techniques);
    format_fields(&lines) + &assumptions_text(assumptions)
}

/// Returns throughput, MFU and step of a plan, with the interval of the step.
pub(super) fn speed_text(row: &PlanRow) -> String {
    // The interval is that of the step with ranks in the order of the devices.
    let interval = row.evidence.as_ref().filter(|_| row.mapped_step_s.is_none()).map(|of| of.step_interval_s);
    let interval = interval.map_or_else(String::new, |[low, high]| {
        format!(", with 90 % confidence {} to {}", format_seconds(Seconds(low)), format_seconds(Seconds(high)))
    });
    format!(
        "step {}{interval}; {} tokens/s; MFU {}",
        format_seconds(Seconds(row.mapped_step_s.unwrap_or(row.step_s))),
        format_rate(row.tokens_per_s),
        format_percent(row.mfu)
    )
}

/// Returns the largest shares of a step's time in words.
pub(super) fn largest_shares_text(mut shares: Vec<(String, f64)>) -> String {
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let largest = shares.iter().take(PARTS).filter(|(_, share)| *share > 0.0);
    largest.map(|(name, share)| format!("{name} {}", format_percent(*share))).collect::<Vec<_>>().join("; ")
}

/// Returns a plan's peak, its largest class, and the chance that it fits.
pub(super) fn memory_line(row: &PlanRow, capacity_gib: Option<f64>, stages: &[StageRow]) -> String {
    let of = capacity_gib.map_or_else(String::new, |gib| format!(" of {gib:.1}"));
    let fullest = stages.iter().max_by(|a, b| a.need_gib.total_cmp(&b.need_gib));
    let largest = fullest.and_then(|stage| stage.classes_gib.iter().max_by(|a, b| a.1.total_cmp(b.1)));
    let largest = largest.map_or_else(String::new, |(class, gib)| format!(", {gib:.1} of it {class}"));
    let chance = row.fit_probability.map(|chance| format!("; fits with a chance of {}", format_chance(chance)));
    format!("{:.1}{of} GiB{largest}{}", row.peak_gib, chance.unwrap_or_default())
}

/// Returns what is proven of the first plan, in one sentence.
fn plan_proof(answer: &PlannedAnswer, best: &PlanRow) -> String {
    if let Some(stopped) = &answer.stopped {
        return stopped.proof_text(Some(best.step_s));
    }
    let count = format_count(answer.counts.plans as u64);
    match (answer.robust, &answer.mapping) {
        (true, _) => format!("best by the bad end of its step's interval, of {count} plans"),
        (_, Some(_)) => format!("fastest listed plan with its ranks mapped to the links; {count} plans were searched"),
        _ => format!("{}, in this model ({count} plans)", first_place_text(&answer.plans)),
    }
}

/// Returns which plans are too close to call, and what the prediction rests on. `None` if nothing is known.
pub(super) fn certainty_text(rows: &[PlanRow]) -> Option<String> {
    let evidence = rows.first()?.evidence.as_ref()?;
    let close = match (count_close_plans(rows), rows.len() - 1) {
        (_, 0) => String::new(),
        (0, others) => format!("its lead over all {others} other listed plans is settled; "),
        (close, others) => format!("too close to call with {close} of the {others} other listed plans; "),
    };
    Some(close + &evidence.step_reasons_in_short())
}

/// Returns the assumptions, one line each.
pub(super) fn assumptions_text(assumptions: &[String]) -> String {
    assumptions.iter().map(|assumed| fold_line(&format!("Assumed: {assumed}"))).collect()
}
