//! A run of `search` as text: the answer first, then what it rests on.

use super::{Align, Table, area, count, fields, heading, percent, rate, seconds, significant};
use crate::record::{BestDesign, Certificate, Proof, Record, Share, StageRecord};
use sim::units::{Seconds, SquareMillimeters};
use std::collections::BTreeMap;

/// The whole report of a run.
#[must_use]
pub fn run(record: &Record) -> String {
    let study = &record.study;
    let mut text = format!(
        "{} on {} x {}, {} sequences of {} tokens per step; study {}\n",
        study.model,
        count(study.devices),
        study.fabric,
        count(study.global_batch_sequences),
        count(study.sequence_tokens),
        study.name
    );
    match &record.best {
        Some(best) => text.push_str(&best_design(best)),
        None => text.push_str("\nNo design of this space runs the model.\n"),
    }
    text.push_str(&heading("Proof"));
    text.push_str(&certificate(&record.certificate));
    if !record.schedule_methods.is_empty() {
        text.push_str(&heading("Operator schedules"));
        text.push_str(&schedules(&record.schedule_methods, record.schedule_memo_hit_rate));
    }
    if let Some(comparison) = &record.comparison {
        text.push_str(&heading("Comparison"));
        text.push_str(&comparison.to_text());
    }
    text
}

/// The best design: chip, plan, totals, its stages, and where the time goes.
#[must_use]
pub fn best_design(best: &BestDesign) -> String {
    let row = &best.design;
    let unknown = || "unknown".to_owned();
    let mut pairs = vec![
        ("chip", row.chip()),
        ("area", area(SquareMillimeters(row.area_mm2))),
        ("plan", row.plan().unwrap_or_else(unknown)),
        ("memory policy", row.memory_policy.clone().unwrap_or_else(unknown)),
    ];
    let per_second = |value: Option<f64>, unit: &str| value.map(|v| format!("{} {unit}", rate(v)));
    let optional = [
        ("devices used", row.devices_used.and_then(|n| u64::try_from(n).ok()).map(count)),
        ("throughput", per_second(row.throughput_sequences_per_s, "sequences/s")),
        ("", per_second(row.throughput_tokens_per_s, "tokens/s")),
        ("MFU", row.mfu.map(percent)),
        ("step", row.step_time_s.map(|t| step_times(Seconds(t), Seconds(best.simulated_step_s)))),
        ("energy", row.energy_per_step_j.map(|e| format!("{} kJ per step", significant(e / 1e3, 4)))),
        ("peak memory", row.peak_memory_gib.map(|g| format!("{g:.2} of {} GiB", row.hbm_gib))),
        ("bound by", row.bound_by.clone()),
        ("plan is", row.plan_status.clone()),
    ];
    pairs.extend(optional.into_iter().filter_map(|(key, value)| value.map(|v| (key, v))));
    let mut text = heading("Best design");
    text.push_str(&fields(&pairs));
    if !best.time_shares.is_empty() {
        text.push_str(&heading("Where the step's time goes"));
        text.push_str(&time_shares(&best.time_shares));
    }
    if !best.stages.is_empty() {
        text.push_str(&heading("Pipeline stages"));
        text.push_str(&stages(&best.stages));
    }
    text
}

/// The closed form's step time beside the simulated one.
pub(super) fn step_times(closed: Seconds, simulated: Seconds) -> String {
    format!("{} (closed form), {} simulated", seconds(closed), seconds(simulated))
}

/// Parts of a step's time, one line each.
pub(super) fn time_shares(shares: &[Share]) -> String {
    let lines: Vec<(&str, String)> = shares.iter().map(|s| (s.name.as_str(), format!("{:>7}", percent(s.fraction)))).collect();
    fields(&lines)
}

/// The longest memory policy that has a column of the stages' table, in characters.
const WIDEST_POLICY: usize = 20;

/// The table of the stages: neighbours that differ only in the layers' numbers stay separate lines, because the reader
/// looks for one stage.
pub(super) fn stages(stages: &[StageRecord]) -> String {
    let mut classes: Vec<&str> = Vec::new();
    for class in stages.iter().flat_map(|s| s.memory_gib.keys()) {
        if !classes.contains(&class.as_str()) {
            classes.push(class);
        }
    }
    let mut head = vec!["stage".to_owned(), "layers".into(), "forward".into(), "backward".into()];
    head.extend(classes.iter().map(|c| format!("{c} GiB")));
    // Long policies would push the table off the screen: they follow below it.
    let beside = stages.iter().all(|s| s.memory_policy.chars().count() <= WIDEST_POLICY);
    head.extend(["peak GiB".into(), "of GiB".into()]);
    head.extend(beside.then(|| "kept".into()));
    let last = if beside { head.len() - 1 } else { 1 };
    let mut table = Table::new(head).align(1, Align::Left).align(last, Align::Left);
    for stage in stages {
        let mut row = vec![
            stage.stage.to_string(),
            stage.layers.clone(),
            seconds(Seconds(stage.forward_s)),
            seconds(Seconds(stage.backward_s)),
        ];
        row.extend(classes.iter().map(|c| stage.memory_gib.get(*c).map_or_else(String::new, |g| format!("{g:.2}"))));
        row.extend([format!("{:.2}", stage.peak_gib), significant_capacity(stage.capacity_gib), stage.memory_policy.clone()]);
        table.row(row);
    }
    let mut text = table.render();
    if !beside {
        text.push_str(&policies(stages));
    }
    text
}

/// The stages' memory policies: neighbours with the same on one line, a line for each part of a policy.
fn policies(stages: &[StageRecord]) -> String {
    let alike = stages.chunk_by(|a, b| a.memory_policy == b.memory_policy);
    let lines = alike.filter_map(|run| {
        let (first, last) = (run.first()?, run.last()?);
        let name =
            if run.len() == 1 { format!("stage {}", first.stage) } else { format!("stages {}-{}", first.stage, last.stage) };
        Some((name, first.memory_policy.replace("; ", "\n")))
    });
    fields(&lines.collect::<Vec<_>>())
}

/// A capacity as it is sold: no decimals that it does not have.
fn significant_capacity(gib: f64) -> String {
    if gib.fract() == 0.0 { format!("{gib:.0}") } else { format!("{gib:.2}") }
}

/// How many schedules each method settled, and how many pieces were remembered.
fn schedules(methods: &BTreeMap<String, u64>, hit_rate: Option<f64>) -> String {
    let all: u64 = methods.values().sum();
    let share = |n: u64| format!("{} ({})", count(n), percent(n as f64 / all.max(1) as f64));
    let by = |name: &str| if name == "open" { "open, with a gap".to_owned() } else { format!("closed by {name}") };
    let mut pairs = vec![("layer passes".to_owned(), count(all))];
    pairs.extend(methods.iter().map(|(name, &n)| (by(name), share(n))));
    pairs.extend(hit_rate.map(|rate| ("pieces remembered".to_owned(), percent(rate))));
    fields(&pairs)
}

/// The proof in a sentence and the counts behind it.
#[must_use]
pub fn certificate(certificate: &Certificate) -> String {
    let c = certificate;
    let mut text = match c.proof {
        Proof::Proven => "Proven: no design of this space is better.\n".to_owned(),
        Proof::Infeasible if c.designs == c.over_area => {
            "No design of this space is within the area limits: nothing was tried.\n".to_owned()
        }
        Proof::Infeasible => "Proven: no design of this space runs the model.\n".to_owned(),
        Proof::Gap => match c.gap {
            Some(gap) => format!("No design of this space is better by more than {:.3} %.\n", gap * 100.0),
            None => "Not proven: the search stopped before it had a bound.\n".to_owned(),
        },
    };
    let mut pairs = vec![
        ("designs", count(c.designs)),
        ("evaluated exactly", count(c.evaluated)),
        ("rejected by bound", count(c.pruned)),
        ("infeasible", count(c.infeasible)),
        ("outside the area", count(c.over_area)),
        ("undecided", count(c.open)),
    ];
    if let (Some(best), Some(bound)) = (c.best_sequences_per_s, c.bound_sequences_per_s) {
        pairs.push(("best, bound", format!("{}, {} sequences/s", significant(best, 6), significant(bound, 6))));
    }
    if let Some(why) = &c.why {
        pairs.push(("because", why.clone()));
    }
    text.push_str(&fields(&pairs));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(proof: Proof, gap: Option<f64>) -> String {
        let certificate = Certificate {
            proof,
            designs: 88_080,
            evaluated: 12,
            pruned: 88_000,
            infeasible: 68,
            over_area: 0,
            open: 0,
            best_sequences_per_s: Some(100.0),
            bound_sequences_per_s: gap.map(|g| 100.0 * (1.0 + g)),
            gap,
            why: None,
        };
        super::certificate(&certificate)
    }

    #[test]
    fn a_gap_never_reads_as_a_proof() {
        assert!(gap(Proof::Proven, Some(0.0)).starts_with("Proven: no design of this space is better.\n"));
        let text = gap(Proof::Gap, Some(0.012_34));
        assert!(text.starts_with("No design of this space is better by more than 1.234 %.\n"), "{text}");
        assert!(text.contains("  designs            88,080\n"), "{text}");
        assert!(text.contains("  best, bound        100.000, 101.234 sequences/s\n"), "{text}");
        assert!(gap(Proof::Gap, None).starts_with("Not proven"));
    }
}
