//! The designs of a search that a page shows. Their number is limited to what a browser draws quickly.

use crate::run::search_run::SearchRun;
use crate::store::design::{DesignRow, DesignStatus};
use crate::text::format_count;
use serde::Serialize;
use serde_json::{Value, json};

/// The largest number of evaluated designs, and of other designs, on a page. A browser draws both in a second.
const MOST: usize = 3000;

/// Designs as rows of cells.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageDesigns {
    /// The number of designs that are shown, in words.
    pub shown: String,
    /// The names of the columns: those of `designs.parquet`, with chip and plan in words.
    pub columns: [&'static str; 13],
    /// One row per design, with one cell per column.
    pub rows: Vec<Value>,
}

impl PageDesigns {
    /// Chooses designs of a run: those on the front, the fastest evaluated ones, and those with the highest bounds
    /// among the pruned and undecided ones.
    #[must_use]
    pub fn of_run(run: &SearchRun) -> Self {
        let front = run.designs_on_front();
        let is_front = |row: &DesignRow| front.iter().any(|other| other.index == row.index);
        let mut evaluated: Vec<&DesignRow> =
            run.designs.iter().filter(|row| row.outcome == DesignStatus::Evaluated).collect();
        let mut others: Vec<&DesignRow> =
            run.designs.iter().filter(|row| matches!(row.outcome, DesignStatus::Pruned | DesignStatus::Open)).collect();
        let robust = run.record.certificate.robust;
        let throughput = |row: &DesignRow| throughput_of(row, robust).unwrap_or(0.0);
        let bound = |row: &DesignRow| row.bound_sequences_per_s.unwrap_or(0.0);
        evaluated.sort_by(|a, b| is_front(b).cmp(&is_front(a)).then(throughput(b).total_cmp(&throughput(a))));
        others.retain(|row| row.bound_sequences_per_s.is_some());
        others.sort_by(|a, b| bound(b).total_cmp(&bound(a)));
        let part = |list: &[&DesignRow], what: &str| {
            let all = format_count(list.len() as u64);
            if list.len() > MOST {
                format!("{} of {all} {what}", format_count(MOST as u64))
            } else {
                format!("all {all} {what}")
            }
        };
        let shown = match robust {
            false => format!(
                "Shown: {} (the front and the fastest) and {} (those with the highest bounds). The run's Parquet file \
                has all designs.",
                part(&evaluated, "evaluated designs"),
                part(&others, "pruned or undecided designs")
            ),
            true => format!(
                "Shown: {}, with throughputs at the bad end of the step's 90 % interval, which the search ranked by. \
                The search had no front, and pruned designs have no known throughput. The run's Parquet file has all \
                designs.",
                part(&evaluated, "evaluated designs")
            ),
        };
        Self {
            shown,
            columns: [
                "chip",
                "dimensions",
                "area_mm2",
                "node",
                "peak_power_w",
                "cost_usd",
                "energy_per_step_j",
                "hbm_gib",
                "outcome",
                "sequences_per_s",
                "bound_sequences_per_s",
                "plan",
                "bound_by",
            ],
            rows: evaluated
                .into_iter()
                .take(MOST)
                .chain(others.into_iter().take(MOST))
                .map(|row| row_cells(row, robust))
                .collect(),
        }
    }
}

/// Rounds a number to seven digits for the browser, because a picture is about a thousand points wide. The front itself
/// uses all digits, because rounding would create ties.
fn round_to_seven_digits(value: Option<f64>) -> Option<f64> {
    value.and_then(|value| format!("{value:.6e}").parse().ok())
}

/// Returns the throughput of a design, in sequences per second. In a robust search it is the throughput at the bad end
/// of the step's interval, if the run has the interval.
fn throughput_of(row: &DesignRow, robust: bool) -> Option<f64> {
    let longer = row.bad_end_step_s.zip(row.step_time_s).filter(|_| robust).map_or(1.0, |(bad, step)| bad / step);
    row.throughput_sequences_per_s.map(|rate| rate / longer)
}

fn row_cells(row: &DesignRow, robust: bool) -> Value {
    json!([
        row.describe_chip(),
        row.dimensions,
        row.area_mm2,
        row.node,
        round_to_seven_digits(row.peak_power_w),
        round_to_seven_digits(row.cost_usd),
        round_to_seven_digits(row.energy_per_step_j),
        row.hbm_gib,
        row.outcome.name(),
        throughput_of(row, robust),
        round_to_seven_digits(row.bound_sequences_per_s),
        row.describe_plan(),
        row.bound_by,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn designs_that_differ_in_the_last_digits_stay_apart() {
        let record = crate::run::record::example();
        let Some(best) = record.best.clone() else { return assert!(record.best.is_some()) };
        let row = |index: i64| DesignRow {
            index,
            outcome: DesignStatus::Evaluated,
            area_mm2: 300.0 + index as f64 * 1e-9,
            throughput_sequences_per_s: Some(50.0 + index as f64 * 1e-9),
            ..best.design.clone()
        };
        let run = SearchRun { name: "a".into(), record, designs: (0..3).map(row).collect() };
        assert_eq!(run.designs_on_front().len(), 3);
        let designs = PageDesigns::of_run(&run);
        let at = |name: &str| designs.columns.iter().position(|column| *column == name).unwrap_or(usize::MAX);
        for key in ["area_mm2", "sequences_per_s"] {
            let mut values: Vec<String> = designs.rows.iter().map(|row| row[at(key)].to_string()).collect();
            values.dedup();
            assert_eq!(values.len(), 3, "{key}: {values:?}");
        }
    }

    #[test]
    fn the_front_is_kept_whatever_is_cut() {
        let record = crate::run::record::example();
        let Some(best) = record.best.clone() else { return assert!(record.best.is_some()) };
        let row = |index: i64| DesignRow {
            index,
            outcome: DesignStatus::Evaluated,
            // The smallest chip is the slowest: it is on the front, and last by throughput.
            area_mm2: 100.0 + index as f64,
            throughput_sequences_per_s: Some(if index == 0 { 1.0 } else { 1e4 - index as f64 }),
            ..best.design.clone()
        };
        let run = SearchRun { name: "a".into(), record, designs: (0..2 * MOST as i64).map(row).collect() };
        let designs = PageDesigns::of_run(&run);
        assert_eq!(designs.rows.len(), MOST);
        assert_eq!(designs.rows.iter().filter(|row| row[2] == 100.0).count(), 1);
        assert!(designs.shown.starts_with("Shown: 3,000 of 6,000 evaluated designs"), "{}", designs.shown);
        assert!(
            designs.rows.iter().all(|row| row.as_array().is_some_and(|cells| cells.len() == designs.columns.len()))
        );
    }
}
