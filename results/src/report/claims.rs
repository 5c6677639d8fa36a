//! Published claims beside computed values, as text.

use crate::papers::{ClaimReport, PredictedClaim};
use crate::text::{ColumnAlign, TextTable, fold_line, format_heading};
use measured::validate::find_median;
use std::collections::BTreeMap;

/// Returns the claims with their predictions, the errors by system, and the reasons for missing predictions and errors.
#[must_use]
pub fn claims_report(report: &ClaimReport) -> String {
    let mut table = TextTable::new(["system", "claimed", "predicted", "unit", "|error|", "metric", "model", "setting"]);
    for column in [3, 5, 6, 7] {
        table = table.align_column(column, ColumnAlign::Left);
    }
    table = table.keep_columns(&["claimed", "predicted", "|error|"]);
    for PredictedClaim { claim, predicted, error_pct, .. } in report.claims.iter().filter(|c| !c.predicted.is_empty()) {
        let error = error_pct.map_or_else(String::new, |error| format!("{error:.1} %"));
        table.add_row([
            claim.system.clone(),
            claim.value.clone(),
            predicted.clone(),
            claim.unit.clone(),
            error,
            claim.metric.clone(),
            claim.model.clone(),
            format!("{} {}", claim.hardware, claim.setting).trim().to_owned(),
        ]);
    }
    let mut text = format!("{}: published claims\n\n{}", report.file, table.render());
    text.push_str(&errors_by_system(&report.claims));
    text.push_str(&format_heading("Read as"));
    for claim in report.claims.iter().filter(|claim| !claim.predicted.is_empty()) {
        text.push_str(&fold_line(&format!("  {}: {}", claim.claim.id, claim.read_as.join("; "))));
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for claim in &report.claims {
        if let Some(why) = claim.why.as_deref() {
            reasons.entry(why).or_default().push(&claim.claim.id);
        }
    }
    if !reasons.is_empty() {
        text.push_str(&format_heading("Not predicted, or not scored"));
    }
    for (why, ids) in reasons {
        text.push_str(&fold_line(&format!("  {}: {why}", ids.join(", "))));
    }
    text
}

/// Returns a table of the systems, with the number of their claims, of the predicted ones, and their errors.
fn errors_by_system(claims: &[PredictedClaim]) -> String {
    let mut systems: BTreeMap<&str, (usize, usize, Vec<f64>)> = BTreeMap::new();
    for claim in claims {
        let (all, predicted, errors) = systems.entry(&claim.claim.system).or_default();
        *all += 1;
        *predicted += usize::from(!claim.predicted.is_empty());
        errors.extend(claim.error_pct);
    }
    let mut table = TextTable::new(["system", "claims", "predicted", "with an error", "mean", "median"]);
    for (system, (all, predicted, mut errors)) in systems {
        errors.sort_by(f64::total_cmp);
        let percent = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.1} %"));
        let mean = (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64);
        let median = find_median(&errors);
        let counts = [all, predicted, errors.len()].map(|count| count.to_string());
        let cells = std::iter::once(system.to_owned()).chain(counts).chain([percent(mean), percent(median)]);
        table.add_row(cells.collect::<Vec<_>>());
    }
    format!("\n{}", table.render())
}
