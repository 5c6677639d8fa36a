//! The answers of `coplace serve` for several combinations of lengths and limits, as text.

use crate::run::serving::{ServedCase, ServedFront, ServingCases, format_or_dash};
use crate::text::{
    ColumnAlign, TextTable, fold_line, format_assumptions, format_count, format_heading, format_significant,
};

/// Returns one row per combination, then the front of every chip.
#[must_use]
pub fn serving_cases(answer: &ServingCases) -> String {
    let unit = answer.cases.iter().find_map(|case| Some(case.answer.as_ref()?.unit.clone())).unwrap_or_default();
    let mut text = format_heading(&format!("{}: the best deployment of every combination", answer.model));
    text = text.trim_start().to_owned();
    text.push_str(&cases_table(&answer.cases, &unit, answer.objective == "throughput"));
    for case in &answer.cases {
        text.extend(case.why.as_ref().map(|why| fold_line(&format!("{}: {why}", case.words()))));
    }
    text.push_str(&fronts_text(&answer.fronts));
    let answered = answer.cases.iter().find_map(|case| case.answer.as_ref());
    text.push_str(&answered.map_or_else(String::new, |report| format_assumptions(&report.assumptions)));
    text
}

fn cases_table(cases: &[ServedCase], unit: &str, by_rate: bool) -> String {
    let mut heads = vec!["lengths", "ttft", "tpot", "chip", "plan", "tokens/s", "each", "first ms", "next ms"];
    heads.extend((!by_rate).then_some(unit));
    let mut table = TextTable::new(heads);
    for column in [0, 3, 4] {
        table = table.align_column(column, ColumnAlign::Left);
    }
    for case in cases {
        let best = case.answer.as_ref().and_then(|answer| answer.choices.first());
        let value = (!by_rate).then(|| format_or_dash(best.and_then(|best| best.value)));
        table.add_row(case.list_cells().into_iter().chain(value));
    }
    table.render()
}

/// Returns the front of every chip and distribution of lengths: tokens per second and device against tokens per second
/// and user.
#[must_use]
pub fn fronts_text(fronts: &[ServedFront]) -> String {
    let number = |value: f64| format_significant(value, 4);
    let mut text = String::new();
    for front in fronts {
        let count = format_count(front.points.len() as u64);
        text.push_str(&format_heading(&format!("Front of {}, {}: {count}", front.chip, front.lengths)));
        let heads = ["plan", "devices", "tokens/s per device", "tokens/s per user", "first ms", "next ms"];
        let mut table = TextTable::new(heads).align_column(0, ColumnAlign::Left);
        for point in &front.points {
            table.add_row([
                point.plan.clone(),
                format_count(point.devices),
                number(point.tokens_per_s_per_device),
                number(point.tokens_per_s_per_user),
                number(point.ttft_ms),
                number(point.tpot_ms),
            ]);
        }
        text.push_str(&table.render());
    }
    text
}
