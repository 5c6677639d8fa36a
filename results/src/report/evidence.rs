//! The evidence for plans, as text.

use crate::answer::evidence::EvidenceRecord;
use crate::answer::plan::PlanRow;
use crate::text::{fold_line, format_fields, format_heading, format_seconds};
use sim::units::Seconds;

/// Returns lines for a summary: the intervals of a plan's step and peak, the probability that it fits, and the grounds.
pub(super) fn plan_evidence(row: &PlanRow) -> Vec<(&'static str, String)> {
    let Some(evidence) = &row.evidence else { return Vec::new() };
    let EvidenceRecord { step_interval_s: [low, high], peak_interval_gib: [least, most], .. } = *evidence;
    let percent = |end: f64, of: f64| format!("{:+.0}", (end / of - 1.0) * 100.0);
    let mut lines = vec![
        (
            "step, 90 %",
            format!(
                "{} to {} ({} to {} %)",
                format_seconds(Seconds(low)),
                format_seconds(Seconds(high)),
                percent(low, row.step_s),
                percent(high, row.step_s)
            ),
        ),
        ("peak, 90 %", format!("{least:.2} to {most:.2} GiB")),
        ("evidence", evidence.step_reasons()),
    ];
    if let Some(chance) = row.fit_probability {
        lines.insert(2, ("fits memory", format!("with a chance of {}", format_chance(chance))));
    }
    lines
}

/// Formats a probability, rounded down: in whole percent below 99 %, else in hundredths of a percent. `89 %` therefore
/// means less than 90 %.
#[must_use]
pub fn format_chance(chance: f64) -> String {
    let down = |parts: f64| (chance * 100.0 * parts + 1e-6).floor() / parts;
    if chance < 0.99 { format!("{:.0} %", down(1.0)) } else { format!("{} %", down(100.0)) }
}

/// Returns the evidence for the first plan, and the number of plans that are too close to call.
pub(super) fn plans_evidence(rows: &[PlanRow]) -> String {
    let Some((first, others)) = rows.split_first() else { return String::new() };
    let Some(evidence) = &first.evidence else { return String::new() };
    let mut text = format!("{}{}", format_heading("Confidence in the first"), format_fields(&plan_evidence(first)));
    let lead = evidence.plan_lead;
    let within = count_close_plans(rows);
    if within > 0 {
        let others = others.len();
        text.push_str(&fold_line(&format!(
            "Too close to call: its lead over {within} of the {others} other listed plans is smaller than the model \
            error between plans of one job (the 90 % interval of a ratio reaches {:.0} %).",
            (lead - 1.0) * 100.0
        )));
    }
    text
}

/// Returns the number of plans over which the first one's lead is smaller than the model error between plans of one
/// job. Zero if nothing is known of the first.
pub(super) fn count_close_plans(rows: &[PlanRow]) -> usize {
    let Some((first, others)) = rows.split_first() else { return 0 };
    let Some(evidence) = &first.evidence else { return 0 };
    let is_close = |row: &&PlanRow| row.step_s <= first.step_s * ratio_high(evidence, row.evidence.as_ref());
    others.iter().filter(is_close).count()
}

/// Returns the upper end of the 90 % interval of the ratio of two plans' steps, measured over predicted.
fn ratio_high(first: &EvidenceRecord, other: Option<&EvidenceRecord>) -> f64 {
    other.and_then(|other| first.ratio_interval(other)).map_or(first.plan_lead, |[_, high]| high)
}
