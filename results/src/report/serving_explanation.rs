//! The reasons why a run of `coplace serve` chose its deployment, as text.

use crate::answer::serving_explanation::{ExplainedAlternative, ServingExplanation};
use crate::text::{
    ColumnAlign, TextTable, fold_line, format_count, format_fields, format_heading, format_percent, format_significant,
};

/// The number of plans that are shown beside those that the user named.
const PLANS: usize = 12;

/// Returns the explanation as text.
#[must_use]
pub fn serving_explanation(explained: &ServingExplanation) -> String {
    let best = &explained.best;
    let number = |value: f64| format_significant(value, 4);
    let value = best.value.map_or_else(|| "-".to_owned(), number);
    let i = &best.iteration;
    let shares: Vec<String> =
        i.list_parts().iter().map(|(name, ms)| format!("{name} {}", format_percent(ms / i.total_ms))).collect();
    let mut text = format_fields(&[
        ("chosen", format!("{} {} with {} on {}", value, explained.unit, best.plan_words(), best.chip_words())),
        ("asked", explained.case.clone()),
        ("binds", explained.binds.clone()),
        ("iteration", format!("{} ms: {}", number(i.total_ms), shares.join(", "))),
        (
            "cache",
            format!(
                "{} of {} GiB a device are left for it",
                format_significant(best.decode.cache_gib, 3),
                format_significant(best.decode.usable_gib, 3)
            ),
        ),
    ]);
    text.push_str(&format_heading("Every chip with its own best plan"));
    text.push_str(&alternatives_table(explained.chips.iter(), &explained.unit, true));
    let (named, others): (Vec<_>, Vec<_>) = explained.plans.iter().partition(|plan| plan.named);
    text.push_str(&format_heading(&format!("Plans of {}", best.chip_words())));
    let plans = named.into_iter().chain(others.iter().copied().take(PLANS));
    text.push_str(&alternatives_table(plans, &explained.unit, false));
    if others.len() > PLANS {
        let left = format_count((others.len() - PLANS) as u64);
        text.push_str(&fold_line(&format!(
            "{left} further plans are in the JSON answer; name one with --tensor, --pipeline, --attention-data and \
            --expert."
        )));
    }
    if !explained.looser.is_empty() {
        text.push_str(&format_heading("With one limit looser"));
        let mut table = TextTable::new(["limit", explained.unit.as_str(), "x best"]).align_column(0, ColumnAlign::Left);
        for looser in &explained.looser {
            table.add_row([looser.limit.clone(), number(looser.value), format_significant(looser.times_best, 3)]);
        }
        text.push_str(&table.render());
    }
    text
}

/// The head of the column that names the limit.
const BINDS: &str = "what binds";

/// Returns a table with one row per alternative. `has_chips` adds a column for the chips.
fn alternatives_table<'a>(rows: impl Iterator<Item = &'a ExplainedAlternative>, unit: &str, has_chips: bool) -> String {
    let heads = ["chip", "plan", unit, "x best", "first ms", "next ms", BINDS];
    let heads = if has_chips { &heads[..] } else { &heads[1..] };
    let mut table = TextTable::new(heads.iter().copied()).keep_columns(&[unit, BINDS]);
    for column in [0, usize::from(has_chips), heads.len() - 1] {
        table = table.align_column(column, ColumnAlign::Left);
    }
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format_significant(value, 4));
    for row in rows {
        let chip = has_chips.then(|| row.chip.clone());
        let cells = [
            row.plan.clone().unwrap_or_default(),
            number(row.value),
            row.times_best.map_or_else(|| "-".to_owned(), |times| format_significant(times, 3)),
            number(row.ttft_ms),
            number(row.tpot_ms),
            row.binds.clone(),
        ];
        table.add_row(chip.into_iter().chain(cells));
    }
    table.render()
}
