//! Designs and runs side by side, as data and as a table.

use crate::answer::evidence::EvidenceRecord;
use crate::store::design::DesignRow;
use crate::text::{ColumnAlign, TextTable, fold_line, format_area, format_fields, format_rate, format_significant};
use measured::evidence::Grade;
use serde::{Deserialize, Serialize};
use sim::units::SquareMillimeters;
use std::collections::BTreeSet;

/// The column of the bad ends in the table of figures.
const BAD_END: usize = 6;

/// A design with its plan, as an entry of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComparisonEntry {
    /// The name for the reader: `best found`, `TPUv4, expert's plan`.
    pub label: String,
    /// The chip in words.
    pub chip: String,
    /// The plan in words; `null` if none fits.
    pub plan: Option<String>,
    /// Area of all compute dies in mm².
    pub area_mm2: Option<f64>,
    /// The process node of the area.
    pub node: Option<String>,
    /// Power of a chip under its heaviest sustained load, in W.
    pub peak_power_w: Option<f64>,
    /// Cost of making a chip, in USD.
    pub cost_usd: Option<f64>,
    /// Throughput in sequences per second over the whole cluster; `null` if no plan fits.
    pub throughput_sequences_per_s: Option<f64>,
    /// Throughput in tokens per second over the whole cluster.
    pub throughput_tokens_per_s: Option<f64>,
    /// For several models: the mean of their throughputs relative to the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_reference: Option<f64>,
    /// Time of one optimizer step in seconds.
    pub step_time_s: Option<f64>,
    /// The 90 % interval of the step, in seconds.
    #[serde(default)]
    pub step_interval_s: Option<[f64; 2]>,
    /// The worst grade among the grounds of the step.
    #[serde(default)]
    pub grade: Option<Grade>,
    /// The grounds of the step that were not measured in training runs, in words.
    #[serde(default)]
    pub evidence: Option<String>,
    /// The software stack.
    #[serde(default)]
    pub software: Option<String>,
    /// Factor by which another step under the same software must be longer to be slower with 90 % confidence.
    #[serde(default)]
    pub step_lead: Option<f64>,
    /// Model FLOPs utilisation, as a fraction.
    pub mfu: Option<f64>,
    /// Energy of one optimizer step over the whole cluster, in joules.
    pub energy_per_step_j: Option<f64>,
    /// Peak memory of the fullest device, in GiB.
    pub peak_memory_gib: Option<f64>,
    /// The bound of the step, in words.
    pub bound_by: Option<String>,
    /// A note for the reader: why it is infeasible, or the changes that made it run.
    pub note: Option<String>,
}

/// Designs side by side, each compared with the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The entries. Ratios refer to the first.
    pub entries: Vec<ComparisonEntry>,
}

impl ComparisonEntry {
    /// Makes an entry from a design of the store.
    #[must_use]
    pub fn from_design(label: impl Into<String>, row: &DesignRow) -> Self {
        Self {
            label: label.into(),
            chip: row.describe_chip(),
            plan: row.describe_plan(),
            area_mm2: Some(row.area_mm2),
            node: row.node.clone(),
            peak_power_w: row.peak_power_w,
            cost_usd: row.cost_usd,
            throughput_sequences_per_s: row.throughput_sequences_per_s,
            throughput_tokens_per_s: row.throughput_tokens_per_s,
            times_reference: row.times_reference,
            step_time_s: row.step_time_s,
            step_interval_s: None,
            grade: None,
            evidence: None,
            software: None,
            step_lead: None,
            mfu: row.mfu,
            energy_per_step_j: row.energy_per_step_j,
            peak_memory_gib: row.peak_memory_gib,
            bound_by: row.bound_by.clone(),
            note: row.reason.clone(),
        }
    }

    /// Adds the evidence of the step under a software stack.
    #[must_use]
    pub fn with_evidence(self, software: &str, evidence: Option<&EvidenceRecord>) -> Self {
        Self {
            step_interval_s: evidence.map(|e| e.step_interval_s),
            grade: evidence.map(|e| e.grade),
            evidence: evidence.map(EvidenceRecord::step_reasons),
            software: Some(software.to_owned()),
            step_lead: evidence.map(|e| e.design_lead),
            ..self
        }
    }

    /// The entry of a run in which no design runs the model.
    #[must_use]
    pub fn without_design(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            chip: "no chip".into(),
            plan: None,
            area_mm2: None,
            node: None,
            peak_power_w: None,
            cost_usd: None,
            throughput_sequences_per_s: None,
            throughput_tokens_per_s: None,
            times_reference: None,
            step_time_s: None,
            step_interval_s: None,
            grade: None,
            evidence: None,
            software: None,
            step_lead: None,
            mfu: None,
            energy_per_step_j: None,
            peak_memory_gib: None,
            bound_by: None,
            note: None,
        }
    }

    /// The first negative figure with its key. A valid run has none.
    #[must_use]
    pub fn first_negative_key(&self) -> Option<(&'static str, f64)> {
        let figures = [
            ("area_mm2", self.area_mm2),
            ("peak_power_w", self.peak_power_w),
            ("cost_usd", self.cost_usd),
            ("throughput_sequences_per_s", self.throughput_sequences_per_s),
            ("throughput_tokens_per_s", self.throughput_tokens_per_s),
            ("step_time_s", self.step_time_s),
            ("mfu", self.mfu),
            ("energy_per_step_j", self.energy_per_step_j),
            ("peak_memory_gib", self.peak_memory_gib),
        ];
        figures.into_iter().find_map(|(key, value)| value.filter(|value| *value < 0.0).map(|value| (key, value)))
    }
}

/// A note if the areas belong to different process nodes; otherwise empty.
pub(crate) fn processes_note(entries: &[ComparisonEntry]) -> String {
    let nodes: BTreeSet<&str> = entries.iter().filter_map(|e| e.node.as_deref()).collect();
    if nodes.len() < 2 {
        return String::new();
    }
    let nodes = nodes.into_iter().collect::<Vec<_>>().join(", ");
    fold_line(&format!("Areas belong to different process nodes ({nodes}) and cannot be compared."))
}

impl Comparison {
    /// Throughput of the first entry divided by that of this entry. `None` if either does not run.
    #[must_use]
    fn speedup_over(&self, entry: &ComparisonEntry) -> Option<f64> {
        let rate = |entry: &ComparisonEntry| entry.throughput_sequences_per_s.or(entry.times_reference);
        let (first, other) = (rate(self.entries.first()?)?, rate(entry)?);
        (other > 0.0).then(|| first / other)
    }

    /// True if the rates are means over several models.
    fn is_over_models(&self) -> bool {
        self.entries.iter().any(|entry| entry.times_reference.is_some())
    }

    /// True if at least one entry runs.
    #[must_use]
    pub fn any_runs(&self) -> bool {
        self.entries.iter().any(|entry| entry.plan.is_some() || entry.times_reference.is_some())
    }

    /// The comparison as text: the entries, the table of their figures, and the notes. The column `first is` has the
    /// throughput of the first entry relative to each entry.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.render_text(false)
    }

    /// The same with the bad ends of the intervals, for a search that ranks by them.
    #[must_use]
    pub fn to_text_with_bad_ends(&self) -> String {
        self.render_text(true)
    }

    fn render_text(&self, bad_ends: bool) -> String {
        let what = |e: &ComparisonEntry| match (&e.plan, e.times_reference) {
            (Some(plan), _) => format!("{}; {plan}", e.chip),
            (None, Some(_)) => e.chip.clone(),
            (None, None) => format!("{}; no plan fits", e.chip),
        };
        let pairs: Vec<(&str, String)> = self.entries.iter().map(|e| (e.label.as_str(), what(e))).collect();
        let mut text = format_fields(&pairs);
        text.push('\n');
        text.push_str(&if self.is_over_models() { self.means_table() } else { self.figures_table(bad_ends) }.render());
        if bad_ends && !self.is_over_models() {
            text.push_str(&fold_line(
                "bad end s: the step at the bad end of its 90 % interval, which a robust search ranks by. All other \
                columns are for the predicted step.",
            ));
        }
        text.push_str(&processes_note(&self.entries));
        text.push_str(&self.evidence_text());
        for entry in &self.entries {
            if let Some(note) = &entry.note {
                text.push_str(&fold_line(&format!("{}: {note}", entry.label)));
            }
        }
        text
    }

    /// The intervals of the steps, and the entries that are too close to the first to call.
    fn evidence_text(&self) -> String {
        let mut text = String::new();
        let interval = |e: &ComparisonEntry| {
            let [low, high] = e.step_interval_s?;
            let grade = e.grade.map_or_else(String::new, |grade| format!(", {grade}"));
            Some(format!("{} {} to {}{grade}", e.label, format_significant(low, 3), format_significant(high, 3)))
        };
        let intervals: Vec<String> = self.entries.iter().filter_map(interval).collect();
        if !intervals.is_empty() {
            text.push_str(&fold_line(&format!("Step s with 90 % confidence: {}.", intervals.join("; "))));
        }
        let within = self.too_close_to_call();
        if !within.is_empty() {
            text.push_str(&fold_line(&format!(
                "Too close to call: {}. The first one's lead is smaller than the model error between designs.",
                within.join(", ")
            )));
        }
        text
    }

    /// The entries that are slower than the first by less than the model error. Errors under the same software are
    /// correlated; under different software they are independent.
    fn too_close_to_call(&self) -> Vec<&str> {
        let Some((first, others)) = self.entries.split_first() else { return Vec::new() };
        let Some(step) = first.step_time_s else { return Vec::new() };
        let settled = |e: &&ComparisonEntry| match (first.step_lead, first.step_interval_s) {
            (Some(lead), _) if e.software.is_some() && e.software == first.software => Some(step * lead),
            (_, interval) => interval.map(|[_, high]| high),
        };
        let within = |e: &&ComparisonEntry| {
            e.step_time_s.zip(settled(e)).is_some_and(|(other, settled)| (step..=settled).contains(&other))
        };
        others.iter().filter(within).map(|e| e.label.as_str()).collect()
    }

    /// The table of means over several models.
    fn means_table(&self) -> TextTable {
        let dash = || "-".to_owned();
        let mut table = TextTable::new(["design", "area", "node", "x reference", "first is", "peak W", "USD"]);
        for entry in &self.entries {
            table.add_row([
                entry.label.clone(),
                entry.area_mm2.map_or_else(dash, |a| format_area(SquareMillimeters(a))),
                entry.node.clone().unwrap_or_else(dash),
                entry.times_reference.map_or_else(dash, |times| format_significant(times, 4)),
                self.speedup_over(entry).map_or_else(dash, |s| format!("{s:.2}x")),
                entry.peak_power_w.map_or_else(dash, |w| format!("{w:.0}")),
                entry.cost_usd.map_or_else(dash, |usd| format!("{usd:.0}")),
            ]);
        }
        table
    }

    fn figures_table(&self, bad_ends: bool) -> TextTable {
        let dash = || "-".to_owned();
        let number = |value: Option<f64>| value.map_or_else(dash, |v| format_significant(v, 4));
        // Columns that a narrow screen drops come last.
        let head = [
            "design",
            "area",
            "node",
            "seq/s",
            "first is",
            "step s",
            "bad end s",
            "MFU %",
            "tokens/s",
            "peak W",
            "USD",
            "kJ/step",
            "peak GiB",
            "bound by",
        ];
        let shown = |column: &usize| bad_ends || *column != BAD_END;
        let columns: Vec<usize> = (0..head.len()).filter(shown).collect();
        let mut table = TextTable::new(columns.iter().map(|column| head[*column]))
            .align_column(columns.len() - 1, ColumnAlign::Left)
            .keep_columns(&["area", "node", "seq/s", "first is", "step s", "bad end s", "MFU %", "peak W", "USD"]);
        for entry in &self.entries {
            let cells = [
                entry.label.clone(),
                entry.area_mm2.map_or_else(dash, |a| format_area(SquareMillimeters(a))),
                entry.node.clone().unwrap_or_else(dash),
                entry.throughput_sequences_per_s.map_or_else(dash, format_rate),
                self.speedup_over(entry).map_or_else(dash, |s| format!("{s:.2}x")),
                number(entry.step_time_s),
                number(entry.step_interval_s.map(|[_, bad]| bad)),
                entry.mfu.map_or_else(dash, |m| format!("{:.1}", m * 100.0)),
                entry.throughput_tokens_per_s.map_or_else(dash, format_rate),
                entry.peak_power_w.map_or_else(dash, |w| format!("{w:.0}")),
                entry.cost_usd.map_or_else(dash, |usd| format!("{usd:.0}")),
                number(entry.energy_per_step_j.map(|e| e / 1e3)),
                entry.peak_memory_gib.map_or_else(dash, |g| format!("{g:.2}")),
                entry.bound_by.clone().unwrap_or_default(),
            ];
            table.add_row(columns.iter().map(|column| cells[*column].clone()));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(label: &str, throughput: Option<f64>) -> ComparisonEntry {
        ComparisonEntry {
            label: label.into(),
            chip: "8 x 128x128 TC".into(),
            plan: throughput.map(|_| "p 8, t 1, d 128".into()),
            area_mm2: Some(278.826_676),
            node: Some("22 nm".into()),
            peak_power_w: Some(210.4),
            cost_usd: None,
            throughput_sequences_per_s: throughput,
            throughput_tokens_per_s: throughput.map(|t| t * 4096.0),
            times_reference: None,
            step_time_s: throughput.map(|t| 4096.0 / t),
            step_interval_s: None,
            grade: None,
            evidence: None,
            software: None,
            step_lead: None,
            mfu: throughput.map(|_| 0.5),
            energy_per_step_j: None,
            peak_memory_gib: throughput.map(|_| 27.5),
            bound_by: throughput.map(|_| "HBM".into()),
            note: throughput.is_none().then(|| "stage 0 of 8 lacks 1.200 GiB".into()),
        }
    }

    #[test]
    fn the_table_reads() {
        let comparison = Comparison {
            entries: vec![entry("best found", Some(50.0)), entry("TPUv4", Some(40.0)), entry("small", None)],
        };
        assert_eq!(
            comparison.to_text(),
            "  best found  8 x 128x128 TC; p 8, t 1, d 128\n  TPUv4       8 x 128x128 TC; p 8, t 1, d 128\n  \
               small       8 x 128x128 TC; no plan fits\n\
             \n\
             design           area   node  seq/s  first is  step s  MFU %  tokens/s  peak W  USD  kJ/step  peak GiB  \
             bound by\n\
             ----------  ---------  -----  -----  --------  ------  -----  --------  ------  ---  -------  --------  \
             --------\n\
             best found  278.8 mm²  22 nm  50.00     1.00x   81.92   50.0   204,800     210    -        -     27.50  \
             HBM\n\
             TPUv4       278.8 mm²  22 nm  40.00     1.25x   102.4   50.0   163,840     210    -        -     27.50  \
             HBM\n\
             small       278.8 mm²  22 nm      -         -       -      -         -     210    -        -         -\n\
             small: stage 0 of 8 lacks 1.200 GiB\n"
        );
    }

    #[test]
    fn areas_of_different_processes_are_told() {
        let mut entries = vec![entry("best found", Some(50.0)), entry("a100", Some(40.0))];
        let text = |entries: &[ComparisonEntry]| Comparison { entries: entries.to_vec() }.to_text();
        assert!(!text(&entries).contains("different processes"));
        entries[1].node = Some("7 nm".into());
        assert!(text(&entries).contains("Areas belong to different process nodes (22 nm, 7 nm)"), "{}", text(&entries));
    }

    #[test]
    fn a_lead_smaller_than_its_interval_is_told() {
        let mut entries = vec![entry("best found", Some(50.0)), entry("TPUv4", Some(40.0)), entry("slow", Some(20.0))];
        (entries[0].step_interval_s, entries[0].grade) = (Some([70.0, 110.0]), Some(Grade::Related));
        let text = Comparison { entries: entries.clone() }.to_text();
        assert!(text.contains("Step s with 90 % confidence: best found 70.0 to 110, related.\n"), "{text}");
        assert!(
            text.contains(
                "Too close to call: TPUv4. The first one's lead is smaller than the model error between designs."
            ),
            "{text}"
        );
        // Errors under the same software are correlated: 102.4 s is more than 1.2 times 81.92 s.
        for entry in &mut entries {
            (entry.software, entry.step_lead) = (Some("ideal".into()), Some(1.2));
        }
        assert!(!Comparison { entries: entries.clone() }.to_text().contains("Too close to call"));
        entries[1].software = Some("maxtext".into());
        assert!(Comparison { entries: entries.clone() }.to_text().contains("Too close to call: TPUv4"));
        entries[0].step_interval_s = Some([70.0, 100.0]);
        assert!(!Comparison { entries }.to_text().contains("Too close to call"));
    }

    #[test]
    fn bad_ends_stand_beside_the_steps_where_they_rank() {
        let mut entries = vec![entry("best found", Some(50.0)), entry("TPUv4", Some(40.0))];
        entries[0].step_interval_s = Some([70.0, 110.5]);
        let comparison = Comparison { entries };
        assert!(!comparison.to_text().contains("bad end"));
        let text = comparison.to_text_with_bad_ends();
        assert!(text.contains("step s  bad end s  MFU %") && text.contains(" 81.92      110.5   50.0 "), "{text}");
        assert!(
            text.contains("bad end s: the step at the bad end of its 90 % interval, which a robust search ranks by."),
            "{text}"
        );
    }

    #[test]
    fn figures_below_zero_are_found() {
        assert_eq!(entry("x", Some(1.0)).first_negative_key(), None);
        assert_eq!(entry("x", Some(-1.0)).first_negative_key(), Some(("throughput_sequences_per_s", -1.0)));
    }
}
