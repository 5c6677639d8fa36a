//! Errors of a fit before, after, and on what was left out of it.

use results::report::Table;

/// A line of the table; errors in percent.
pub struct Row {
    /// The cells before the errors.
    pub first: Vec<String>,
    /// With the scalars as they were.
    pub before_pct: f64,
    /// With the fitted ones, on the rows that they were fitted on.
    pub after_pct: f64,
    /// On rows that are left out in turn.
    pub left_out_pct: f64,
    /// On kinds of rows that are left out in turn; `None` where there is one.
    pub by_kind_pct: Option<f64>,
}

/// The table; `first` are the heads of the cells before the errors, `kinds` what is left out in turn besides rows.
pub fn table(first: &[&str], kinds: &str, rows: &[Row]) -> String {
    let errors = ["MAPE % before", "after", "rows left out in turn"].map(str::to_owned);
    let heads = first.iter().map(|head| (*head).to_owned()).chain(errors).chain([format!("{kinds} left out in turn")]);
    let mut table = Table::new(heads.collect::<Vec<_>>());
    for row in rows {
        let percent = |value: f64| format!("{value:.1}");
        let errors = [row.before_pct, row.after_pct, row.left_out_pct].map(percent);
        let by_kind = row.by_kind_pct.map_or_else(|| "-".to_owned(), percent);
        table.row(row.first.iter().cloned().chain(errors).chain([by_kind]).collect::<Vec<_>>());
    }
    table.render()
}
