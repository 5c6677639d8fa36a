//! A run of `search` as text: first the answer, then its evidence.

use super::plan_stages::{kept_tensors_text, memory_text, storage_wear_text, timeline_text};
use crate::answer::comparison::Comparison;
use crate::answer::plan::{PlanRow, one_line};
use crate::answer::step::{NamedShare, StepRecord};
use crate::run::front::{DesignMeasures, FrontQuantity, StepScope};
use crate::run::record::{BestDesign, Certificate, FrontRecord, ModelPlan, Proof, SearchRecord, StudyRecord};
use crate::store::design::DesignRow;
use crate::text::{
    ColumnAlign, TextTable, fold_line, format_area, format_count, format_fields, format_heading, format_percent,
    format_rate, format_seconds, format_significant,
};
use sim::units::{Seconds, SquareMillimeters};

/// Returns the question of a run in one line.
pub(super) fn question_line(record: &SearchRecord) -> String {
    let study = &record.study;
    match record.best.as_ref().map_or(&[][..], |best| &best.models) {
        [] => format!(
            "{} on {} x {} under the stack {}, {} sequences of {} tokens per step; study {}\n",
            study.model,
            format_count(study.devices),
            study.fabric,
            study.stack,
            format_count(study.global_batch_sequences),
            format_count(study.sequence_tokens),
            study.name
        ),
        several => format!(
            "{} on one chip, each on a cluster of it joined by {} under the stack {}; best is {} over the {} models; \
            study {}\n",
            study.model,
            study.fabric,
            study.stack,
            study.objective,
            several.len(),
            study.name
        ),
    }
}

/// Returns the whole report of a run.
#[must_use]
pub fn run_report(record: &SearchRecord) -> String {
    let study = &record.study;
    let mut text = question_line(record);
    if record.certificate.robust {
        text.push_str("Designs are ranked by the bad end of their steps' 90 % intervals; there is no front.\n");
    }
    match &record.best {
        Some(best) => text.push_str(&best_design_text(best, record.certificate.robust)),
        None if record.certificate.is_without_candidates() => {
            text.push_str("\nNo chip of this space is within the limits.\n")
        }
        None => text.push_str("\nNo design of this space runs the model.\n"),
    }
    text.push_str(&format_heading("Proof"));
    text.push_str(&certificate_text(&record.certificate, study, record.lowered_to_w));
    if let Some(decision) = &record.decision {
        text.push_str(&format_heading("How sure the choice is"));
        text.push_str(&decision.to_text());
    }
    if let Some(front) = &record.front {
        text.push_str(&format_heading("Front"));
        text.push_str(&self::front_text(
            front,
            &StepScope::of_study(study, record.best.as_ref().is_some_and(|best| !best.models.is_empty())),
        ));
    }
    text.push_str(&crate::text::format_assumptions(&study.assumptions));
    let (by, words): (_, fn(&Comparison) -> String) = match record.certificate.robust {
        true => (", designs ranked by the bad end", Comparison::to_text_with_bad_ends),
        false => ("", Comparison::to_text),
    };
    if let Some(comparison) = &record.comparison {
        text.push_str(&format_heading(&format!("Comparison{by}")));
        text.push_str(&words(comparison));
    }
    for model in record.best.iter().flat_map(|best| &best.models) {
        text.push_str(&format_heading(&format!("Comparison on {}{by}", model.model)));
        text.push_str(&words(&model.comparison));
    }
    text
}

/// Returns the step at the bad end of its 90 % interval, in seconds; `None` if there is no interval.
fn step_at_bad_end(plan: &PlanRow) -> Option<f64> {
    plan.evidence.as_ref().map(|evidence| evidence.step_interval_s[1])
}

/// Returns the quantities of a front, its hypervolume and its knee.
fn front_text(front: &FrontRecord, work: &StepScope) -> String {
    let of = |name: &String| {
        let quantity = FrontQuantity::from_name(name)?;
        let value = quantity.value_of(&DesignMeasures::from(&front.knee), work)?;
        Some(format!("{} {}", format_significant(value, 4), quantity.unit(work.several)))
    };
    let knee: Vec<String> = front.quantities.iter().filter_map(of).collect();
    format_fields(&[
        ("best in", front.quantities.join(", ")),
        ("designs", format_count(front.designs.len() as u64)),
        (
            "hypervolume",
            format!(
                "{} of the box from the best values to a tenth beyond the worst",
                format_significant(front.hypervolume, 4)
            ),
        ),
        ("knee", format!("design {}: {}; {}", front.knee.index, knee.join(", "), front.knee.describe_chip())),
    ])
}

/// Returns a table of the models, each with its own plan.
fn models_text(models: &[ModelPlan], robust: bool) -> String {
    let header = ["model", "share", "work", "plan", "tokens/s", "x reference", "MFU", "GiB", "step"];
    let mut table = TextTable::new(header.into_iter().chain(robust.then_some("bad end")))
        .keep_columns(&["plan", "tokens/s", "x reference", "step", "bad end"])
        .turn_if_wide();
    for column in [2, 3] {
        table = table.align_column(column, ColumnAlign::Left);
    }
    for model in models {
        let (plan, time) = (&model.step.plan, &model.step.time);
        let mut row = vec![
            model.model.clone(),
            format_percent(model.share),
            format!(
                "{} devices, {} x {} tokens",
                format_count(model.devices),
                format_count(model.global_batch_sequences),
                format_count(model.sequence_tokens)
            ),
            one_line(&plan.plan),
            format_rate(time.tokens_per_s),
            format_significant(model.times_reference, 4),
            format_percent(plan.mfu),
            format!("{:.1}", plan.peak_gib),
            format_seconds(Seconds(time.step_s)),
        ];
        row.extend(
            robust.then(|| step_at_bad_end(plan).map_or_else(|| "-".to_owned(), |end| format_seconds(Seconds(end)))),
        );
        table.add_row(row);
    }
    table.render()
}

/// Returns the best design: chip, plan, totals, parts of the time, stages. For a `robust` search it adds the bad end of
/// the step.
fn best_design_text(best: &BestDesign, robust: bool) -> String {
    let mut text = format_heading("Best design");
    text.push_str(&format_fields(&list_design_fields(best, robust)));
    for note in &best.notes {
        text.push_str(&fold_line(note));
    }
    if best.models.is_empty() {
        text.push_str(&describe_step(&best.step));
    } else {
        text.push_str(&format_heading("Models"));
        text.push_str(&models_text(&best.models, robust));
    }
    text
}

/// Returns the lines about the best design. Figures that it lacks have no line.
fn list_design_fields(best: &BestDesign, robust: bool) -> Vec<(&'static str, String)> {
    let (row, step) = (&best.design, &best.step);
    let mut pairs = vec![("chip", row.describe_chip()), ("area", area_and_process(row))];
    let alone = best.models.is_empty();
    if alone {
        pairs.push(("plan", one_line(&step.plan.plan)));
    }
    let per_second = |value: Option<f64>, unit: &str| value.map(|v| format!("{} {unit}", format_rate(v)));
    let watts = |value: Option<f64>| value.map(|w| format!("{w:.0} W"));
    let optional = [
        ("varied", row.dimensions.clone()),
        ("peak power", watts(row.peak_power_w)),
        ("mean power", watts(row.mean_power_w).filter(|_| row.peak_power_w.is_some())),
        ("cost", row.cost_usd.map(|usd| format!("{usd:.0} USD to make"))),
        ("system", row.system_usd.map(|usd| format!("{usd:.0} USD per device around its chip"))),
        ("devices used", row.devices_used.and_then(|n| u64::try_from(n).ok()).map(format_count)),
        (
            "throughput",
            row.times_reference
                .map(|times| format!("{} times the reference's, over the models", format_significant(times, 4))),
        ),
        (
            "energy",
            row.energy_times_reference.map(|times| {
                format!("{} times the reference's per token, over the models", format_significant(times, 4))
            }),
        ),
        ("throughput", per_second(row.throughput_tokens_per_s, "tokens/s")),
        // A record may lack the throughput in tokens.
        (
            if row.throughput_tokens_per_s.is_some() { "" } else { "throughput" },
            per_second(row.throughput_sequences_per_s, "sequences/s"),
        ),
        ("MFU", row.mfu.map(format_percent)),
        ("step", row.step_time_s.map(|t| format_seconds(Seconds(t)))),
        (
            "  at its bad end",
            step_at_bad_end(&step.plan)
                .filter(|_| alone && robust)
                .map(|t| format!("{}, at which designs are ranked", format_seconds(Seconds(t)))),
        ),
        ("energy", row.energy_per_step_j.map(|e| format!("{} kJ per step", format_significant(e / 1e3, 4)))),
        ("peak memory", row.peak_memory_gib.map(|g| format!("{g:.2} of {} GiB", row.hbm_gib))),
        ("bound by", row.bound_by.clone()),
        ("plan is", row.plan_status.clone()),
    ];
    pairs.extend(optional.into_iter().filter_map(|(key, value)| value.map(|v| (key, v))));
    pairs.extend(super::evidence::plan_evidence(&step.plan));
    pairs
}

/// Returns the parts of a step's time, its memory and its stages.
fn describe_step(step: &StepRecord) -> String {
    let mut text = format_heading("Where the step's time goes");
    text.push_str(&time_shares_text(&step.time_shares));
    text.push_str(&format_heading("Memory, GiB per device"));
    text.push_str(&memory_text(&step.stages, Some(step.capacity_gib), Some(step.host_capacity_gib)));
    text.push_str(&storage_wear_text(&step.stages, step.plan.step_s));
    text.push_str(&kept_tensors_text(&step.stages));
    if step.timeline.len() > 1 {
        text.push_str(&format_heading("Stages over a step, seconds"));
        text.push_str(&timeline_text(&step.timeline));
    }
    text
}

/// Returns a design's area with its process node.
fn area_and_process(row: &DesignRow) -> String {
    let node = row.node.as_ref().map_or_else(String::new, |node| format!(" of {node}"));
    format!("{}{node}", format_area(SquareMillimeters(row.area_mm2)))
}

/// Returns shares of a step's time, one line each.
pub(super) fn time_shares_text(shares: &[NamedShare]) -> String {
    let lines: Vec<(&str, String)> =
        shares.iter().map(|s| (s.name.as_str(), format!("{:>7}", format_percent(s.fraction)))).collect();
    format_fields(&lines)
}

/// Returns the proof in one sentence, and the counts behind it.
#[must_use]
fn certificate_text(certificate: &Certificate, study: &StudyRecord, lowered_to_w: Option<f64>) -> String {
    let c = certificate;
    let mut pairs = list_candidate_counts(c, lowered_to_w);
    if let (Some(best), Some(bound)) = (c.best, c.bound) {
        let at = if c.robust { " at the bad end" } else { "" };
        pairs.push((
            "best, bound",
            format!("{}, {} {}{at}", format_significant(best, 6), format_significant(bound, 6), c.unit),
        ));
    }
    if let Some(why) = &c.why {
        pairs.push(("because", why.clone()));
    }
    pairs.push(("under the stack", study.stack.clone()));
    pairs.push(("and the plans", study.plans.clone()));
    describe_proof(c) + &format_fields(&pairs)
}

fn describe_proof(c: &Certificate) -> String {
    match c.proof {
        Proof::Proven if c.robust => {
            "Proven: no design of this space has a fastest plan that is better at the bad end of its step's 90 % \
            interval.\n"
                .to_owned()
        }
        Proof::Proven => "Proven: no design of this space is better.\n".to_owned(),
        Proof::Infeasible if c.is_without_candidates() => {
            "No design of this space is within the limits: nothing was tried.\n".to_owned()
        }
        Proof::Infeasible => "Proven: no design of this space runs the model.\n".to_owned(),
        Proof::Gap => match c.gap {
            Some(gap) if c.robust => format!(
                "No design of this space has a fastest plan that is better by more than {:.3} % at the bad end of its \
                step's 90 % interval.\n",
                gap * 100.0
            ),
            Some(gap) => format!("No design of this space is better by more than {:.3} %.\n", gap * 100.0),
            None => "Not proven: the search stopped before it had a bound.\n".to_owned(),
        },
    }
}

/// Returns the numbers of candidates by outcome.
fn list_candidate_counts(c: &Certificate, lowered_to_w: Option<f64>) -> Vec<(&'static str, String)> {
    let mut pairs = vec![
        ("in the space", c.space_text(lowered_to_w)),
        ("evaluated exactly", format_count(c.evaluated)),
        ("rejected by bound", format_count(c.pruned)),
        ("  of these, in boxes", format_count(c.pruned_in_boxes)),
        ("infeasible", format_count(c.infeasible)),
        ("outside the area", format_count(c.over_area)),
        ("over the power", format_count(c.over_power)),
        ("over the cost", format_count(c.over_cost)),
        ("outside the HBM", format_count(c.outside_hbm)),
        ("cannot be built", unbuildable_text(c)),
        ("no chips", format_count(c.no_chip)),
        ("undecided", format_count(c.open)),
    ];
    // These counts are zero in most searches; zeros are left out.
    pairs.retain(|(key, value)| {
        value != "0"
            || !matches!(
                *key,
                "  of these, in boxes"
                    | "over the power"
                    | "over the cost"
                    | "outside the HBM"
                    | "cannot be built"
                    | "no chips"
            )
    });
    pairs
}

/// Returns the number of designs that cannot be built, with the rules that they break.
fn unbuildable_text(certificate: &Certificate) -> String {
    let rules: Vec<String> = certificate
        .unbuildable_by_rule
        .iter()
        .map(|(rule, count)| format!("{} {}", rule.name(), format_count(*count)))
        .collect();
    let count = format_count(certificate.unbuildable);
    if rules.is_empty() { count } else { format!("{count} ({})", rules.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn gap(proof: Proof, gap: Option<f64>) -> String {
        let certificate = Certificate {
            proof,
            designs: 88_080,
            evaluated: 12,
            pruned: 88_000,
            pruned_in_boxes: 0,
            robust: false,
            infeasible: 68,
            over_area: 0,
            over_power: 0,
            over_cost: 0,
            outside_hbm: 0,
            unbuildable: 0,
            unbuildable_by_rule: BTreeMap::new(),
            no_chip: 0,
            objective: "throughput".into(),
            best: Some(409_600.0),
            bound: gap.map(|g| 409_600.0 * (1.0 + g)),
            unit: "tokens/s".into(),
            open: 0,
            best_sequences_per_s: Some(100.0),
            bound_sequences_per_s: gap.map(|g| 100.0 * (1.0 + g)),
            gap,
            why: None,
        };
        super::certificate_text(&certificate, &crate::run::record::example().study, None)
    }

    #[test]
    fn a_gap_never_reads_as_a_proof() {
        assert!(gap(Proof::Proven, Some(0.0)).starts_with("Proven: no design of this space is better.\n"));
        let text = gap(Proof::Gap, Some(0.012_34));
        assert!(text.starts_with("No design of this space is better by more than 1.234 %.\n"), "{text}");
        assert!(text.contains("  in the space       88,080 chips\n"), "{text}");
        assert!(text.contains("  best, bound        409600, 414654 tokens/s\n"), "{text}");
        assert!(gap(Proof::Gap, None).starts_with("Not proven"));
        assert!(text.ends_with("  under the stack    ideal\n  and the plans      tensor parallel 1 or 2\n"), "{text}");
    }
}
