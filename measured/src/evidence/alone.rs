//! The confidence in the predicted time of a kernel or a collective that runs alone: its 90 % interval, and a grade
//! that tells whether similar ones were measured.
//!
//! A carried table has the errors (`measured/reference/residuals_alone.csv`, made by `coplace validate --held-out`).
//! Each measured row has two errors: one with its fold held out of the fit of its chip or fabric, and one with its
//! whole chip or kind held out.
//!
//! The ends of an interval are quantiles of the errors of rows with similar times (conformal: of n errors, the one of
//! rank (n + 1) q). The rows are on the same chip if enough are measured there; otherwise also on other chips. Errors
//! of rows that were measured together are correlated. So the rows of one data set together weigh the root of their
//! number, and a large set does not dominate.

use super::Grade;
use super::interval::PredictionInterval;
use super::next_error::CONFIDENCE;
use super::table::ResidualTableError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::OnceLock;

/// The carried table.
const CARRIED: &str = include_str!("../../reference/residuals_alone.csv");

/// Fewest errors that give the 5 % and 95 % quantiles of one more error. With 19 errors, these are the smallest and the
/// largest.
const LEAST: usize = 19;
/// Number of rows whose errors make an interval: those with the nearest times. It is small, so that errors of kernels
/// that fill the chip do not enter the intervals of kernels that mostly launch.
const NEIGHBOURS: usize = 40;

/// The kinds of work that run alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunsAlone {
    /// A kernel.
    Kernel,
    /// A collective.
    Collective,
}

/// The facts of a prediction: what ran, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AloneFacts {
    /// The kind of work.
    pub what: RunsAlone,
    /// The chip; for a collective, with its fabric.
    pub place: String,
    /// The kernel with its type and clock, or the kind of collective.
    pub kind: String,
}

/// A row of the table of errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AloneRow {
    /// The kind of work.
    pub what: RunsAlone,
    /// The data set.
    pub dataset: String,
    /// The row's id.
    pub id: String,
    /// As [`AloneFacts::place`].
    pub place: String,
    /// As [`AloneFacts::kind`].
    pub kind: String,
    /// The fold of the row, if rows are held out.
    pub part: usize,
    /// The predicted time with the built-in scalars, in microseconds.
    pub predicted_us: f64,
    /// ln(measured / predicted) with its fold of the rows held out.
    pub rows: Option<f64>,
    /// The same error with the whole chip held out; for a collective, with its kind held out.
    pub apart: Option<f64>,
}

impl AloneRow {
    fn to_facts(&self) -> AloneFacts {
        AloneFacts { what: self.what, place: self.place.clone(), kind: self.kind.clone() }
    }
}

/// Gives the error with which a row judges a prediction; `None` if the row does not count.
type ErrorPool<'a> = dyn Fn(&AloneRow) -> Option<f64> + 'a;

/// The rows that are held out, both of the fit and of the errors that make intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AloneHeldOut {
    /// A fold of the rows.
    Rows,
    /// For kernels: all rows of the chip.
    Chip,
    /// For collectives: all rows of the kind. Other fabrics give no information about them.
    Kind,
}

impl fmt::Display for AloneHeldOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rows => "rows",
            Self::Chip => "chip",
            Self::Kind => "kind",
        })
    }
}

/// The coverage of intervals on held-out rows.
#[derive(Debug, Clone, PartialEq)]
pub struct AloneCoverage {
    /// The data set.
    pub dataset: String,
    /// The kind of work.
    pub what: RunsAlone,
    /// The held-out rows.
    pub held_out: AloneHeldOut,
    /// Number of rows.
    pub rows: usize,
    /// Fraction of the rows whose measured value lies in the interval.
    pub covered: f64,
    /// Median width of the interval relative to the prediction.
    pub width: f64,
}

/// The errors of measured kernels and collectives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AloneResiduals {
    rows: Vec<AloneRow>,
}

impl From<Vec<AloneRow>> for AloneResiduals {
    fn from(rows: Vec<AloneRow>) -> Self {
        Self { rows }
    }
}

impl AloneResiduals {
    /// Returns the carried table.
    #[must_use]
    pub fn read_carried() -> &'static Self {
        static TABLE: OnceLock<AloneResiduals> = OnceLock::new();
        // A test ensures that the table can be read. If it could not, the table would be empty.
        TABLE.get_or_init(|| Self::parse_csv(CARRIED).unwrap_or_default())
    }

    /// Returns whether a text is a table of errors of work that runs alone, by its first column.
    #[must_use]
    pub fn is_table(text: &str) -> bool {
        text.starts_with("what,")
    }

    /// Reads a table.
    ///
    /// # Errors
    /// Missing columns, or a cell that is not a number.
    pub fn parse_csv(text: &str) -> Result<Self, ResidualTableError> {
        let wrong = |why: csv::Error| ResidualTableError {
            line: why.position().map_or(1, |at| usize::try_from(at.line()).unwrap_or(usize::MAX)),
            why: why.to_string(),
        };
        Ok(Self {
            rows: csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>().map_err(wrong)?,
        })
    }

    /// Returns the grade and the interval of a prediction; `None` if no related work was measured.
    #[must_use]
    pub fn judge_prediction(&self, facts: &AloneFacts, predicted_us: f64) -> Option<(Grade, PredictionInterval)> {
        let here = |row: &&AloneRow| row.place == facts.place && row.kind == facts.kind;
        let grade = if self.rows.iter().filter(here).count() >= super::LEAST {
            Grade::Measured
        } else if self.rows.iter().any(|row| row.what == facts.what && row.kind == facts.kind) {
            Grade::Related
        } else {
            Grade::NeverMeasured
        };
        let interval = self.interval_of_rows(facts, predicted_us, |_| true);
        interval.map(|interval| (grade, interval))
    }

    /// Returns the interval from the rows that `known` selects; `None` if too few of them are related.
    fn interval_of_rows(
        &self,
        facts: &AloneFacts,
        predicted_us: f64,
        known: impl Fn(&AloneRow) -> bool,
    ) -> Option<PredictionInterval> {
        let kind = |row: &AloneRow| row.what == facts.what && row.kind == facts.kind;
        let pools: [&ErrorPool<'_>; 3] = [
            &|row| row.rows.filter(|_| kind(row) && row.place == facts.place),
            // If the rows on this chip are too few, rows of the kind on other chips count too.
            &|row| if row.place == facts.place { row.rows } else { row.apart }.filter(|_| kind(row)),
            &|row| row.apart.filter(|_| row.what == facts.what),
        ];
        let errors = |pool: &ErrorPool<'_>| {
            let far = |row: &AloneRow| (row.predicted_us / predicted_us).ln().abs();
            let mut near: Vec<(f64, f64, &str)> = self
                .rows
                .iter()
                .filter(|row| known(row))
                .filter_map(|row| Some((far(row), pool(row)?, &*row.dataset)))
                .collect();
            near.sort_by(|a, b| a.0.total_cmp(&b.0));
            near.truncate(NEIGHBOURS);
            weigh_errors(&near)
        };
        pools.into_iter().map(errors).find(|errors| errors.len() >= LEAST).map(interval_of_errors)
    }

    /// Returns the coverage of every data set with at least 19 judged rows: with a fold of the rows held out, and with
    /// the chip or the kind held out.
    #[must_use]
    pub fn coverage_by_data_set(&self) -> Vec<AloneCoverage> {
        let mut sets: Vec<(&str, RunsAlone)> = self.rows.iter().map(|row| (row.dataset.as_str(), row.what)).collect();
        sets.sort_unstable();
        sets.dedup();
        let mut found = Vec::new();
        for (dataset, what) in sets {
            let apart = if what == RunsAlone::Kernel { AloneHeldOut::Chip } else { AloneHeldOut::Kind };
            for held_out in [AloneHeldOut::Rows, apart] {
                let of_set = self.rows.iter().filter(|row| row.dataset == dataset && row.what == what);
                let judged: Vec<(f64, PredictionInterval)> =
                    of_set.filter_map(|row| self.hold_out_row(row, held_out)).collect();
                if judged.len() >= LEAST {
                    found.push(summarize_coverage(dataset, what, held_out, &judged));
                }
            }
        }
        found
    }

    /// Returns the error of a row, and its interval from the rows that were not held out with it; `None` without
    /// either.
    fn hold_out_row(&self, row: &AloneRow, held_out: AloneHeldOut) -> Option<(f64, PredictionInterval)> {
        let together = |other: &AloneRow| {
            other.place == row.place
                && match held_out {
                    AloneHeldOut::Rows => other.part == row.part,
                    AloneHeldOut::Chip => true,
                    AloneHeldOut::Kind => other.kind == row.kind,
                }
        };
        let error = if held_out == AloneHeldOut::Rows { row.rows } else { row.apart }?;
        Some((error, self.interval_of_rows(&row.to_facts(), row.predicted_us, |other| !together(other))?))
    }
}

fn summarize_coverage(
    dataset: &str,
    what: RunsAlone,
    held_out: AloneHeldOut,
    judged: &[(f64, PredictionInterval)],
) -> AloneCoverage {
    let within =
        judged.iter().filter(|(error, interval)| (interval.low..=interval.high).contains(&error.exp())).count();
    let mut widths: Vec<f64> = judged.iter().map(|(_, interval)| interval.high - interval.low).collect();
    widths.sort_by(f64::total_cmp);
    AloneCoverage {
        dataset: dataset.to_owned(),
        what,
        held_out,
        rows: judged.len(),
        covered: within as f64 / judged.len() as f64,
        width: widths[widths.len() / 2],
    }
}

/// Returns (error, weight) of the rows. The rows of one data set together weigh the root of their number.
fn weigh_errors(near: &[(f64, f64, &str)]) -> Vec<(f64, f64)> {
    let count = |dataset: &str| near.iter().filter(|(.., other)| *other == dataset).count() as f64;
    near.iter().map(|(_, error, dataset)| (*error, count(dataset).sqrt().recip())).collect()
}

/// Returns the interval that contains one more error with [`CONFIDENCE`], from weighted errors. It contains the
/// prediction.
fn interval_of_errors(mut errors: Vec<(f64, f64)>) -> PredictionInterval {
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    let sum: f64 = errors.iter().map(|(_, weight)| weight).sum();
    let one_more = errors.iter().map(|(_, weight)| weight * weight).sum::<f64>() / sum;
    // Slightly larger, because 40 times 0.05 is below 2 in floating point.
    let tail = (sum + one_more) * (1.0 - CONFIDENCE) / 2.0 * (1.0 + 1e-9);
    let end = |from: &mut dyn Iterator<Item = &(f64, f64)>| {
        let (mut found, mut passed) = (None, 0.0);
        for &(error, weight) in from {
            passed += weight;
            if found.is_none() || passed <= tail {
                found = Some(error);
            }
        }
        found.unwrap_or_default()
    };
    PredictionInterval {
        low: end(&mut errors.iter()).min(0.0).exp(),
        high: end(&mut errors.iter().rev()).max(0.0).exp(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nine_of_ten_rows_that_were_held_out_lie_within() {
        let found = AloneResiduals::read_carried().coverage_by_data_set();
        let large: Vec<&AloneCoverage> =
            found.iter().filter(|c| c.held_out == AloneHeldOut::Rows && c.rows >= 40).collect();
        assert!(large.len() >= 4, "{found:?}");
        assert!(large.iter().all(|c| c.covered >= 0.85), "{large:?}");
        // Intervals cover more than 95.5 % in at most four of eleven sets, whose errors are smaller than those of other
        // sets on the same chips.
        assert!(large.len() >= 11 && large.iter().filter(|c| c.covered > 0.955).count() <= 4, "{large:?}");
        // The widest intervals (1.02) are those of MI300X, for which only 8-bit products were measured.
        assert!(large.iter().all(|c| c.width < 1.05), "{large:?}");
    }

    #[test]
    fn what_was_not_measured_is_less_sure() {
        let table = AloneResiduals::read_carried();
        let product = |place: &str, kind: &str| {
            let facts = AloneFacts { what: RunsAlone::Kernel, place: place.into(), kind: kind.into() };
            table.judge_prediction(&facts, 300.0).unwrap()
        };
        let width = |(_, interval): (Grade, PredictionInterval)| interval.high / interval.low;
        let (known, elsewhere) = (product("h100_80gb_sxm", "gemm bf16"), product("tomorrow", "gemm bf16"));
        assert_eq!((known.0, elsewhere.0), (Grade::Measured, Grade::Related));
        assert!(width(known) < width(elsewhere), "{known:?} {elsewhere:?}");
        assert_eq!(product("tomorrow", "sorting").0, Grade::NeverMeasured);
        assert!(
            AloneResiduals::default()
                .judge_prediction(&AloneFacts { what: RunsAlone::Kernel, place: "a".into(), kind: "b".into() }, 1.0)
                .is_none()
        );
    }

    #[test]
    fn quantiles_are_those_of_one_more() {
        // With one more error, there are 40. The ends of the interval are the errors of ranks 2 and 38.
        let errors = |weight: f64| (1..=39).map(|e| (f64::from(e - 20), weight)).collect::<Vec<_>>();
        for weight in [1.0, 0.37] {
            let PredictionInterval { low, high } = interval_of_errors(errors(weight));
            assert!((low.ln() + 18.0).abs() < 1e-9 && (high.ln() - 18.0).abs() < 1e-9, "{low} {high}");
        }
        // One row of another data set is not outvoted by many rows of one set.
        let mut near: Vec<(f64, f64, &str)> = (0..39).map(|_| (0.0, 0.01, "a")).chain([(0.0, 2.0, "b")]).collect();
        assert!((interval_of_errors(weigh_errors(&near)).high.ln() - 2.0).abs() < 1e-9);
        near[39].2 = "a";
        assert!((interval_of_errors(weigh_errors(&near)).high.ln() - 0.01).abs() < 1e-9);
    }

    #[test]
    fn a_fault_is_named_with_its_line() {
        let head = "what,dataset,id,place,kind,part,predicted_us,rows,apart";
        let fault = |text: &str| AloneResiduals::parse_csv(text).unwrap_err().to_string();
        assert!(
            fault("what,b\nkernel,1\n").contains("line 2")
                && fault("what,b\nkernel,1\n").contains("missing field `dataset`")
        );
        assert!(fault(&format!("{head}\nkernel,x\n")).contains("line 2"));
        let error = fault(&format!("{head}\nkernel,d,i,c,k,0,1.5,,\nkernel,d,i,c,k,0,x,,\n"));
        assert!(error.contains("line 3: ") && error.contains("invalid float"), "{error}");
    }
}
