//! The quality of the order that predictions give to plans and deployments. A user who picks the best plan needs the
//! order to be right, even if all predictions are biased.

use super::ValuePrediction;
use serde::Serialize;
use std::collections::BTreeMap;

/// Fewest rows of a group that allow a statement about their order.
const LEAST: usize = 6;

/// The quality of the order of rows that compete: plans of one training job, or deployments for the same requests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankingScore {
    /// The group in summaries.
    pub group: String,
    /// Number of groups with six or more competing rows.
    pub groups: usize,
    /// Mean rank correlation (Spearman) over the groups.
    pub spearman: f64,
    /// Mean regret of choosing the row that is predicted fastest, relative to the fastest row, in percent.
    pub top1_regret_pct: f64,
}

/// Returns the scores of the order by one quantity, by group in summaries.
#[must_use]
pub fn score_rankings(predictions: &[ValuePrediction], quantity: &str) -> Vec<RankingScore> {
    let mut sets: BTreeMap<(&str, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for p in predictions.iter().filter(|p| p.quantity == quantity) {
        if let (Some(measured), Some(set)) = (p.measured, &p.ranking) {
            sets.entry((&p.group, set)).or_default().push((measured, p.predicted));
        }
    }
    let mut scores: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for ((group, _), rows) in &sets {
        if rows.len() >= LEAST
            && let (Some(rho), Some(regret)) = (spearman_correlation(rows), top1_regret(rows))
        {
            scores.entry(group).or_default().push((rho, regret));
        }
    }
    let mean = |values: &[(f64, f64)], part: fn(&(f64, f64)) -> f64| {
        values.iter().map(part).sum::<f64>() / values.len() as f64
    };
    let ranking = |(group, values): (&str, Vec<(f64, f64)>)| RankingScore {
        group: group.to_owned(),
        groups: values.len(),
        spearman: mean(&values, |v| v.0),
        top1_regret_pct: mean(&values, |v| v.1),
    };
    scores.into_iter().map(ranking).collect()
}

/// Returns the rank correlation of measured and predicted values; ties get their mean rank. `None` if all values of one
/// side are equal.
fn spearman_correlation(rows: &[(f64, f64)]) -> Option<f64> {
    let a = mean_ranks(rows.iter().map(|r| r.0));
    let b = mean_ranks(rows.iter().map(|r| r.1));
    let mean = (rows.len() as f64 + 1.0) / 2.0;
    let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let spread = (product(&a, &a) * product(&b, &b)).sqrt();
    (spread > 0.0).then(|| product(&a, &b) / spread)
}

/// Returns ranks from 1; equal values get their mean rank.
fn mean_ranks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let values: Vec<f64> = values.collect();
    let rank = |v: &f64| {
        let below = values.iter().filter(|other| *other < v).count();
        let equal = values.iter().filter(|other| *other == v).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// Returns the regret of choosing the row that is predicted fastest, in percent; `None` without rows.
fn top1_regret(rows: &[(f64, f64)]) -> Option<f64> {
    let chosen = rows.iter().min_by(|a, b| a.1.total_cmp(&b.1))?.0;
    let best = rows.iter().map(|r| r.0).min_by(f64::total_cmp)?;
    (best > 0.0).then(|| (chosen / best - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rank_correlation_is_spearmans() {
        let rows = [(1.0, 10.0), (2.0, 30.0), (3.0, 20.0), (4.0, 40.0)];
        assert!((spearman_correlation(&rows).unwrap() - 0.8).abs() < 1e-12);
        // Ties at mean ranks: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
        let tied = [(1.0, 1.0), (2.0, 2.0), (2.0, 3.0), (3.0, 4.0)];
        assert!((spearman_correlation(&tied).unwrap() - 4.5 / (4.5_f64 * 5.0).sqrt()).abs() < 1e-12);
        assert_eq!(spearman_correlation(&[(1.0, 1.0), (2.0, 1.0)]), None);
    }

    #[test]
    fn regret_is_what_the_choice_costs() {
        assert!((top1_regret(&[(10.0, 5.0), (11.0, 4.0), (20.0, 9.0)]).unwrap() - 10.0).abs() < 1e-9);
        assert_eq!(top1_regret(&[]), None);
    }
}
