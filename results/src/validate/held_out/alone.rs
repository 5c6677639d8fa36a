//! Errors of kernels and collectives that run alone, on rows that were held out of the fit.

use super::calibration::mean_percent;
use super::{collective_residuals, kernel_residuals};
use crate::evidence::{AloneCoverage, AloneFacts, AloneResiduals, AloneRow, RunsAlone};
use crate::text::{ColumnAlign, TextTable, format_count};
use crate::validate::{Dataset, ValidateError, ValidateOptions, recognise_file};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The errors of one row's prediction, each ln(measured / predicted).
#[derive(Debug, Clone, PartialEq)]
pub struct AloneResidual {
    /// The data set.
    pub dataset: String,
    /// Its id.
    pub id: String,
    /// The group in summaries.
    pub group: String,
    /// The kernel or collective, with its chip and fabric.
    pub facts: AloneFacts,
    /// The chip whose scalars are used when its own are held out.
    pub from: Option<String>,
    /// The fold of the row when rows are held out.
    pub part: usize,
    /// The predicted time with the built-in scalars, in microseconds.
    pub predicted_us: f64,
    /// Error with the built-in scalars.
    pub in_sample: f64,
    /// Error with the row's fold held out; `None` if too few rows are left, or if there is no start for the fit.
    pub rows: Option<f64>,
    /// Error with its kind held out.
    pub kinds: Option<f64>,
    /// Error with the whole chip held out: the scalars are those of another chip.
    pub chip: Option<f64>,
}

impl AloneResidual {
    /// The row of the table from which intervals are made. Errors have four digits.
    fn to_row(&self) -> AloneRow {
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

/// The residuals of a file of kernels or collectives; `None` for a file with other contents.
///
/// # Errors
/// A file that cannot be read.
pub fn alone_residuals(path: &Path, options: &ValidateOptions) -> Result<Option<Vec<AloneResidual>>, ValidateError> {
    match recognise_file(path)? {
        Dataset::Kernels => kernel_residuals(path, options).map(Some),
        Dataset::Collectives => collective_residuals(path, options).map(Some),
        _ => Ok(None),
    }
}

/// A CSV table with one line per row, from which intervals are made. The columns are those of [`AloneRow`].
///
/// # Errors
/// Errors of the CSV writer; none is known.
pub fn alone_csv(residuals: &[AloneResidual]) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    residuals.iter().try_for_each(|residual| writer.serialize(residual.to_row()))?;
    writer.into_inner().map_err(|e| io::Error::other(e.to_string()))
}

/// A line per group of rows: mean absolute errors in percent and the coverage of intervals. Errors are in sample and
/// with each kind of rows held out.
#[must_use]
pub fn alone_report(residuals: &[AloneResidual]) -> String {
    let mut groups: BTreeMap<&str, Vec<&AloneResidual>> = BTreeMap::new();
    for residual in residuals {
        groups.entry(&residual.group).or_default().push(residual);
    }
    let head = ["group", "rows", "MAPE % in sample", "rows left out", "kind left out", "chip left out", "scalars of"];
    let mut table = TextTable::new(head).align_column(6, ColumnAlign::Left);
    for (group, rows) in &groups {
        let mean = |error: &dyn Fn(&AloneResidual) -> Option<f64>| {
            let errors: Vec<f64> = rows.iter().filter_map(|r| error(r)).map(|e| -e).collect();
            if errors.is_empty() { "-".to_owned() } else { format!("{:.1}", mean_percent(&errors)) }
        };
        let from = rows[0].from.clone().unwrap_or_else(|| "-".into());
        let errors = [mean(&|r| Some(r.in_sample)), mean(&|r| r.rows), mean(&|r| r.kinds), mean(&|r| r.chip)];
        let first = [(*group).to_owned(), format_count(rows.len() as u64)];
        table.add_row(first.into_iter().chain(errors).chain([from]).collect::<Vec<_>>());
    }
    let words = "rows, kind left out: the scalars of chip or fabric fitted to the others, of a chip from where the chip under `scalars of` has them;\n\
                 chip left out: that chip's scalars.\n";
    let coverage = AloneResiduals::from(residuals.iter().map(AloneResidual::to_row).collect::<Vec<_>>()).coverage_by_data_set();
    format!("{}{words}\n{}", table.render(), coverage_of_alone(&coverage))
}

/// The coverage of the 90 % intervals of kernels and collectives.
#[must_use]
pub fn coverage_of_alone(found: &[AloneCoverage]) -> String {
    let mut table = TextTable::new(["data set", "of", "held out", "rows", "covered %", "median width %"]);
    for c in found {
        let numbers = [format_count(c.rows as u64), format!("{:.1}", c.covered * 100.0), format!("{:.0}", c.width * 100.0)];
        let what = if c.what == RunsAlone::Kernel { "kernels" } else { "collectives" };
        let first = [c.dataset.clone(), what.to_owned(), c.held_out.to_string()];
        table.add_row(first.into_iter().chain(numbers).collect::<Vec<_>>());
    }
    format!("90 % intervals made of the other rows' errors:\n{}", table.render())
}
