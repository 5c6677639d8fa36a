//! How often intervals hold, as text.

use super::{Align, Table, count, folded};
use crate::evidence::Coverage;

/// The coverage as text.
#[must_use]
pub fn coverage(found: &[Coverage]) -> String {
    let head = ["data set", "quantity", "held out", "rows", "covered %", "median width %", "groups", "regret %", "robust"];
    let mut table = Table::new(head).align(1, Align::Left).align(2, Align::Left).keep(&[
        "held out",
        "rows",
        "covered %",
        "median width %",
        "regret %",
        "robust",
    ]);
    for c in found {
        let percent = |value: f64| format!("{:.1}", value * 100.0);
        let regret = c.regret.map_or_else(|| ["-".to_owned(), "-".to_owned()], |r| r.map(percent));
        let cells = [c.dataset.clone(), c.quantity.column().to_owned(), c.scheme.to_string(), count(c.rows as u64)];
        let numbers = [percent(c.covered), percent(c.width), count(c.groups as u64)];
        table.row(cells.into_iter().chain(numbers).chain(regret));
    }
    let note = "Intervals of 90 %: the row's fold is held out of the scalars and of the errors that its interval is made of. Width: of the predicted \
                value. Regret: what choosing the plan that is predicted fastest costs over the fastest; robust: choosing by the interval's bad end.";
    table.render() + &folded(note)
}
