//! Errors of kernels and collectives that run alone, on rows that were held out of the fit.

use crate::evidence::{AloneFacts, AloneRow, RunsAlone};
use std::io;

/// The errors of one row's prediction, each ln(measured / predicted).
#[derive(Debug, Clone, PartialEq)]
pub struct AloneResidual {
    /// The data set.
    pub dataset: String,
    /// The row's id.
    pub id: String,
    /// The group in summaries.
    pub group: String,
    /// The kernel or collective, with its chip and fabric.
    pub facts: AloneFacts,
    /// The chip whose scalars replace those of the held-out chip.
    pub from: Option<String>,
    /// The fold of the row, if rows are held out.
    pub part: usize,
    /// The predicted time with the built-in scalars, in microseconds.
    pub predicted_us: f64,
    /// Error with the built-in scalars.
    pub in_sample: f64,
    /// Error with the row's fold held out; `None` if too few rows are left, or if there is no start for the fit.
    pub rows: Option<f64>,
    /// Error with its kind of kernel or collective held out.
    pub kinds: Option<f64>,
    /// Error with the whole chip held out: the scalars are those of another chip.
    pub chip: Option<f64>,
}

impl AloneResidual {
    /// Returns the row of the table from which intervals are made. Errors are rounded to four decimals.
    #[must_use]
    pub fn to_row(&self) -> AloneRow {
        let AloneFacts { what, place, kind } = self.facts.clone();
        let digits = |error: Option<f64>| error.map(|error| (error * 1e4).round() / 1e4);
        AloneRow {
            what,
            dataset: self.dataset.clone(),
            id: self.id.clone(),
            place,
            kind,
            part: self.part,
            predicted_us: (self.predicted_us * 1e3).round() / 1e3,
            rows: digits(self.rows),
            apart: digits(if what == RunsAlone::Kernel { self.chip } else { self.kinds }),
        }
    }
}

/// Returns a CSV table with one line per row, from which intervals are made. The columns are those of [`AloneRow`].
///
/// # Errors
/// Errors of the CSV writer; none is known.
pub fn alone_csv(residuals: &[AloneResidual]) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    residuals.iter().try_for_each(|residual| writer.serialize(residual.to_row()))?;
    writer.into_inner().map_err(|e| io::Error::other(e.to_string()))
}
