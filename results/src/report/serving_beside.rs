//! Another tool's predictions beside those of coplace, as text.

use crate::answer::serving_beside::{PredictionsBeside, ServedFigures};
use crate::text::{ColumnAlign, TextTable, fold_line, format_count, format_heading, format_significant};

/// Returns one row per deployment with the predictions of both tools: time per output token, tokens per second and
/// device, and time to the first token.
#[must_use]
pub fn predictions_beside(beside: &PredictionsBeside) -> String {
    let mut text = format_heading(&format!("{} beside these predictions, as many requests in flight", beside.file));
    let heads = ["line", "plan", "in flight", "tpot ms", "here", "each", "here", "ttft ms", "here"];
    let mut table = TextTable::new(heads).align_column(1, ColumnAlign::Left);
    let number = |value: f64| format_significant(value, 4);
    for row in &beside.rows {
        let own = |of: &dyn Fn(&ServedFigures) -> f64| {
            row.own.as_ref().map_or_else(|| "-".to_owned(), |figures| number(of(figures)))
        };
        table.add_row([
            row.line.to_string(),
            format!("{}, {}", row.plan, row.system),
            format_count(row.concurrency),
            number(row.predicted.tpot_ms),
            own(&|figures| figures.tpot_ms),
            number(row.predicted.tokens_per_s_per_device),
            own(&|figures| figures.tokens_per_s_per_device),
            number(row.predicted.ttft_ms),
            own(&|figures| figures.ttft_ms),
        ]);
    }
    text.push_str(&table.render());
    for row in &beside.rows {
        text.extend(row.note.as_ref().map(|why| fold_line(&format!("line {}: {why}", row.line))));
    }
    if !beside.unread_columns.is_empty() {
        text.push_str(&fold_line(&format!("Columns that are not read: {}.", beside.unread_columns.join(", "))));
    }
    text
}
