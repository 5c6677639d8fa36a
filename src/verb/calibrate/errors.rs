//! Errors of a fit: before, after, and on held-out rows.

use results::text::{TextTable, fold_line};

/// A row of the table. Errors are in percent.
pub struct FitErrorRow {
    /// The cells before the errors.
    pub first: Vec<String>,
    /// Error with the original scalars.
    pub before_pct: f64,
    /// Error with the fitted scalars, on the fitted rows.
    pub after_pct: f64,
    /// Error on rows that are held out in turn.
    pub left_out_pct: f64,
    /// Error on kinds of rows that are held out in turn; `None` if there is only one kind.
    pub by_kind_pct: Option<f64>,
}

/// Returns the table of errors, with warnings below it. `first` has the heads of the cells before the errors; `kinds`
/// names the groups that are held out in addition to rows.
pub fn errors_table(first: &[&str], kinds: &str, rows: &[FitErrorRow]) -> String {
    let errors = ["MAPE % before", "after", "rows held out in turn"].map(str::to_owned);
    let heads = first.iter().map(|head| (*head).to_owned()).chain(errors).chain([format!("{kinds} held out in turn")]);
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

/// Returns warnings about a fit with large errors.
fn notes_on_fit(row: &FitErrorRow) -> Vec<String> {
    let of = row.first.first().filter(|_| row.first.len() > 1).map_or_else(String::new, |of| format!("{of}: "));
    let mut notes = Vec::new();
    if row.left_out_pct > row.before_pct {
        notes.push(format!(
            "{of}held-out rows are predicted worse ({:.1} %) than with the original scalars ({:.1} %): there are too \
            few rows; keep the original scalars.",
            row.left_out_pct, row.before_pct
        ));
    }
    if row.after_pct > FAR {
        notes.push(format!("{of}no scalars come near these rows: check the columns and their units."));
    }
    notes
}

/// Above this mean error in percent, the scalars are not the cause: on average, rows are off by a factor of two.
const FAR: f64 = 100.0;
