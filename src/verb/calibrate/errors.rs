//! Errors of a fit before, after, and on what was left out of it.

use results::report::{TextTable, fold_line};

/// A line of the table; errors in percent.
pub struct FitErrorRow {
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
pub fn errors_table(first: &[&str], kinds: &str, rows: &[FitErrorRow]) -> String {
    let errors = ["MAPE % before", "after", "rows left out in turn"].map(str::to_owned);
    let heads = first.iter().map(|head| (*head).to_owned()).chain(errors).chain([format!("{kinds} left out in turn")]);
    let mut table = TextTable::new(heads.collect::<Vec<_>>());
    for row in rows {
        let percent = |value: f64| format!("{value:.1}");
        let errors = [row.before_pct, row.after_pct, row.left_out_pct].map(percent);
        let by_kind = row.by_kind_pct.map_or_else(|| "-".to_owned(), percent);
        table.add_row(row.first.iter().cloned().chain(errors).chain([by_kind]).collect::<Vec<_>>());
    }
    let mut text = table.render();
    for note in rows.iter().flat_map(notes_on_fit) {
        text.push_str(&fold_line(&note));
    }
    text
}

/// What the errors say against the fit.
fn notes_on_fit(row: &FitErrorRow) -> Vec<String> {
    let of = row.first.first().filter(|_| row.first.len() > 1).map_or_else(String::new, |of| format!("{of}: "));
    let mut notes = Vec::new();
    if row.left_out_pct > row.before_pct {
        notes.push(format!(
            "{of}rows that are left out are predicted worse ({:.1} %) than with the scalars as they were ({:.1} %): so few say too little, keep those.",
            row.left_out_pct, row.before_pct
        ));
    }
    if row.after_pct > FAR {
        notes.push(format!("{of}no scalars come near these rows: check the columns and their units."));
    }
    notes
}

/// The mean error in percent above which it is not the scalars that are wrong: all rows are off by a factor of two in the mean.
const FAR: f64 = 100.0;
