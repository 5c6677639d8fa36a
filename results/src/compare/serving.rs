//! Runs of `coplace serve` side by side: the best deployment of each, in the unit of the first run's objective.

use crate::answer::serving::ServingChoice;
use crate::run::serving::{ServedCase, ServingRun, format_or_dash};
use crate::text::{ColumnAlign, TextTable, fold_line, format_count, format_heading, format_significant};
use search::ask::DeploymentQuestion;
use search::serve::ServedObjective;
use serde::Serialize;
use serving::best::ServingBound;

/// The comparison of several runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServingComparison {
    /// The objective of the first run.
    pub objective: String,
    /// The unit of the objective.
    pub unit: String,
    /// The differences between the question of each run and that of the first, one line per run.
    pub differences: Vec<String>,
    /// For every combination of lengths and limits of the first run, the best deployment of each run.
    pub cases: Vec<ComparedCase>,
}

/// One combination of lengths and limits, with the best deployment of each run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedCase {
    /// The lengths and limits of the first run, in words.
    pub case: String,
    /// The best deployment of each run.
    pub entries: Vec<ComparedDeployment>,
}

/// The best deployment of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedDeployment {
    /// The name of the run.
    pub run: String,
    /// The chips of its pools; `null` if nothing serves.
    pub chip: Option<String>,
    /// The plans of its pools.
    pub plan: Option<String>,
    /// Devices in use.
    pub devices: Option<u32>,
    /// The value of the first run's objective; `null` if a chip lacks a figure that it needs.
    pub value: Option<f64>,
    /// The value relative to the first run's value.
    pub times_first: Option<f64>,
    /// Output tokens per second.
    pub tokens_per_s: Option<f64>,
    /// Output tokens per second and device in use.
    pub tokens_per_s_per_device: Option<f64>,
    /// Mean time to the first token, in ms.
    pub ttft_ms: Option<f64>,
    /// Mean time between two tokens, in ms.
    pub tpot_ms: Option<f64>,
    /// The limit that keeps the deployment from serving more.
    pub limited_by: Option<ServingBound>,
    /// Mean power of a decoding device, in W; `null` if it is not known.
    pub device_w: Option<f64>,
    /// The reason why nothing serves, or why the run has no such case.
    pub note: Option<String>,
}

/// Compares runs by the objective of the first one. All ratios are relative to the first run.
///
/// # Errors
/// No run; a first run whose objective is the step time; a run that shares no combination of lengths and limits with
/// the first, unless both have only one.
pub fn compare_serving_runs(runs: &[ServingRun]) -> Result<ServingComparison, String> {
    let Some(first) = runs.first() else { return Err("there is no run; give one".to_owned()) };
    let objective = ServedObjective::try_from(first.record.asked.objective)?;
    let mut cases = Vec::new();
    for case in &first.record.cases {
        let of = |run: &ServingRun| compared_deployment(run, own_case(run, first, case), objective);
        let mut entries: Vec<ComparedDeployment> = runs.iter().map(of).collect();
        let base = entries.first().and_then(|entry| entry.value);
        entries.iter_mut().for_each(|entry| entry.times_first = entry.value.zip(base).map(|(own, base)| own / base));
        cases.push(ComparedCase { case: case.words(), entries });
    }
    for run in runs.iter().skip(1) {
        if !first.record.cases.iter().any(|case| own_case(run, first, case).is_some()) {
            return Err(format!(
                "{} and {} have no combination of lengths and limits in common; serve with the same --input, --output, \
                --ttft and --tpot, or with one of each",
                first.name, run.name
            ));
        }
    }
    let differences = runs.iter().skip(1).filter_map(|run| describe_differences(first, run)).collect();
    Ok(ServingComparison { objective: objective.to_string(), unit: objective.unit().to_owned(), differences, cases })
}

/// Finds the case of a run to compare with a case of the first run: the one with the same lengths and limits, or the
/// only one if both runs have only one.
fn own_case<'a>(run: &'a ServingRun, first: &ServingRun, case: &ServedCase) -> Option<&'a ServedCase> {
    match (&run.record.cases[..], first.record.cases.len()) {
        ([only], 1) => Some(only),
        (cases, _) => cases.iter().find(|own| own.asks_the_same(case)),
    }
}

fn compared_deployment(run: &ServingRun, case: Option<&ServedCase>, by: ServedObjective) -> ComparedDeployment {
    let answer = case.and_then(|case| case.answer.as_ref());
    let best: Option<&ServingChoice> = answer.and_then(|answer| answer.choices.first());
    let note = match (case, best) {
        (None, _) => Some("was not asked for these lengths and limits".to_owned()),
        (Some(case), None) => Some(case.why.clone().unwrap_or_else(|| "nothing serves".to_owned())),
        (Some(_), Some(_)) => None,
    };
    ComparedDeployment {
        run: run.name.clone(),
        chip: best.map(ServingChoice::chip_words),
        plan: best.map(ServingChoice::plan_words),
        devices: best.map(|best| best.devices),
        value: best.and_then(|best| best.values.get(&by.to_string()).copied()),
        times_first: None,
        tokens_per_s: best.map(|best| best.tokens_per_s),
        tokens_per_s_per_device: best.map(|best| best.tokens_per_s_per_device),
        ttft_ms: best.map(|best| best.ttft_ms),
        tpot_ms: best.map(|best| best.tpot_ms),
        limited_by: best.map(|best| best.limited_by),
        device_w: best.map(|best| best.decode.device_w).filter(|watts| *watts > 0.0),
        note,
    }
}

/// Describes the differences between the question of a run and that of the first; `None` if there are none.
#[must_use]
pub fn describe_differences(first: &ServingRun, run: &ServingRun) -> Option<String> {
    let all = DeploymentQuestion::differences_from(&first.record.asked, &run.record.asked);
    let plain = |value: &str| value.replace(['[', ']', '"'], "");
    let each: Vec<String> =
        all.iter().map(|one| format!("{} {} (first: {})", one.key, plain(&one.other), plain(&one.own))).collect();
    (!each.is_empty()).then(|| format!("{} differs from the first: {}.", run.name, each.join("; ")))
}

impl ServingComparison {
    /// Returns the comparison as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text: String = self.differences.iter().map(|line| fold_line(line)).collect();
        for case in &self.cases {
            let title = format_heading(&format!("{}, by {}", case.case, self.unit));
            text.push_str(if text.is_empty() { title.trim_start() } else { &title });
            text.push_str(&self.table_of_case(case));
            for entry in &case.entries {
                text.extend(entry.note.as_ref().map(|note| fold_line(&format!("{}: {note}", entry.run))));
            }
        }
        text
    }

    fn table_of_case(&self, case: &ComparedCase) -> String {
        let by_rate = self.objective == "throughput";
        let mut heads =
            vec!["run", "x first", "tokens/s", "each", "first ms", "next ms", "W", "devices", "chip", "plan"];
        if !by_rate {
            heads.insert(2, &self.unit);
        }
        let last = heads.len();
        let mut table = TextTable::new(heads);
        for column in [0, last - 2, last - 1] {
            table = table.align_column(column, ColumnAlign::Left);
        }
        let words = |words: &Option<String>| words.clone().unwrap_or_else(|| "-".to_owned());
        for entry in &case.entries {
            let times = entry.times_first.map_or_else(|| "-".to_owned(), |times| format_significant(times, 3));
            let mut row = vec![
                entry.run.clone(),
                times,
                format_or_dash(entry.tokens_per_s),
                format_or_dash(entry.tokens_per_s_per_device),
                format_or_dash(entry.ttft_ms),
                format_or_dash(entry.tpot_ms),
                format_or_dash(entry.device_w),
                entry.devices.map_or_else(|| "-".to_owned(), format_count),
                words(&entry.chip),
                words(&entry.plan),
            ];
            if !by_rate {
                row.insert(2, format_or_dash(entry.value));
            }
            table.add_row(row);
        }
        table.render()
    }
}
