//! One row of a CSV file: its cells by name, and their faults.

use super::target::{TargetColumn, TargetRange};
use serde::Serialize;
use sim::files::{FaultParts, StructuredError};
use std::path::{Path, PathBuf};

/// Accepted values of a measured quantity, in its column's unit (us, s, mm^2, GiB, cycles). Values outside the range
/// come from a wrong unit, so their errors in percent would be meaningless.
const MEASURED: std::ops::RangeInclusive<f64> = 1e-9..=1e15;

/// A fault of a row, which is then not scored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}:{line}: {key} = {value}: {limit}; {cure}", file.display())]
pub struct RowError {
    /// The file.
    pub file: PathBuf,
    /// Line in the file; the header is line 1.
    pub line: u64,
    /// The id of the row, if it has one.
    pub id: Option<String>,
    /// The column.
    pub key: String,
    /// The content of the cell.
    pub value: String,
    /// The violated rule.
    pub limit: String,
    /// The cure.
    pub cure: String,
}

impl StructuredError for RowError {
    fn fault_parts(&self) -> FaultParts {
        FaultParts::of_key(&self.key, &self.value, &self.limit, &self.cure).in_file(format!(
            "{}:{}",
            self.file.display(),
            self.line
        ))
    }
}

/// The reason why a row has no prediction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowFailure {
    /// A cell is wrong.
    Fault(Box<RowError>),
    /// The row is valid, but the models do not know its subject. Holds the reason.
    Unpredictable(String),
}

impl RowError {
    /// Returns the fault of a row that the CSV reader refuses.
    pub(super) fn from_csv_error(file: &Path, line: u64, why: &str) -> Self {
        Self {
            file: file.into(),
            line,
            id: None,
            key: "row".into(),
            value: "(unreadable)".into(),
            limit: why.into(),
            cure: "write it as UTF-8 with one cell per column".into(),
        }
    }
}

/// A row. Cells are found by column name.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredRow<'a> {
    file: &'a Path,
    line: u64,
    header: &'a csv::StringRecord,
    cells: &'a csv::StringRecord,
}

impl<'a> MeasuredRow<'a> {
    pub(super) fn new(file: &'a Path, line: u64, header: &'a csv::StringRecord, cells: &'a csv::StringRecord) -> Self {
        Self { file, line, header, cells }
    }

    pub(super) fn cells(&self) -> &'a csv::StringRecord {
        self.cells
    }

    /// Returns the line in the file; the header is line 1.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the id of the row; empty if it has none.
    #[must_use]
    pub fn id(&self) -> String {
        self.cell("id").unwrap_or_default().to_owned()
    }

    /// Returns whether the file has the column.
    #[must_use]
    pub fn has_column(&self, key: &str) -> bool {
        self.header.iter().any(|column| column == key)
    }

    /// Returns the cell; `None` if it is empty or the column is missing.
    #[must_use]
    pub fn cell(&self, key: &str) -> Option<&'a str> {
        let at = self.header.iter().position(|column| column == key)?;
        self.cells.get(at).filter(|cell| !cell.is_empty())
    }

    /// Returns a fault of this row in the column `key`.
    #[must_use]
    pub fn row_fault(&self, key: &str, limit: &str, cure: &str) -> RowFailure {
        RowFailure::Fault(Box::new(RowError {
            file: self.file.into(),
            line: self.line(),
            id: self.cell("id").map(str::to_owned),
            key: key.into(),
            value: self.cell(key).unwrap_or("(empty)").into(),
            limit: limit.into(),
            cure: cure.into(),
        }))
    }

    pub(super) fn check_width(&self) -> Result<(), RowFailure> {
        if self.cells.len() == self.header.len() {
            return Ok(());
        }
        let limit = format!("the row has {} cells, the header {}", self.cells.len(), self.header.len());
        Err(self.row_fault("row", &limit, "write one cell per column"))
    }

    /// Returns the text of a required cell.
    ///
    /// # Errors
    /// An empty cell.
    pub fn text(&self, key: &str) -> Result<&'a str, RowFailure> {
        self.cell(key).ok_or_else(|| self.row_fault(key, "must not be empty", "fill it in"))
    }

    /// Returns a required whole number of at least 1. `64.0` and `1e6` count as whole.
    ///
    /// # Errors
    /// An empty cell, no number, a fraction, zero, a negative number, or a number above 2^53.
    pub fn count(&self, key: &str) -> Result<u64, RowFailure> {
        self.text(key)?;
        self.optional_count(key)?.ok_or_else(|| self.row_fault(key, "must not be empty", "fill it in"))
    }

    /// Returns a whole number of at least 1; `None` for an empty cell.
    ///
    /// # Errors
    /// As [`Self::count`], but an empty cell is `None`.
    pub fn optional_count(&self, key: &str) -> Result<Option<u64>, RowFailure> {
        /// 2^53: a float represents all whole numbers up to it.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        let Some(value) = self.number(key)? else { return Ok(None) };
        if (1.0..=EXACT).contains(&value) && value.fract() == 0.0 {
            Ok(Some(value as u64))
        } else {
            Err(self.row_fault(key, "must be a whole number from 1 to 2^53", "correct or remove the row"))
        }
    }

    /// Returns a dimension of a model or a batch, from 1 to `limit` ([`workloads::limits`]); `None` for an empty cell.
    ///
    /// # Errors
    /// As [`Self::optional_count`]; a value above the limit.
    pub fn optional_dimension(&self, key: &str, limit: u64) -> Result<Option<u64>, RowFailure> {
        let dimension = self.optional_count(key)?;
        if dimension.is_none_or(|dimension| dimension <= limit) {
            return Ok(dimension);
        }
        Err(self.row_fault(key, &format!("must be a whole number from 1 to {limit}"), "correct or remove the row"))
    }

    /// Returns a required dimension of a model or a batch.
    ///
    /// # Errors
    /// As [`Self::optional_dimension`]; an empty cell.
    pub fn dimension(&self, key: &str, limit: u64) -> Result<u64, RowFailure> {
        self.text(key)?;
        self.optional_dimension(key, limit)?.ok_or_else(|| self.row_fault(key, "must not be empty", "fill it in"))
    }

    /// Returns a side of a matrix product; `None` for an empty cell.
    ///
    /// # Errors
    /// As [`Self::optional_count`]; also a value above 2^31 - 1, the largest index of a library, which is far beyond
    /// the memory of a device.
    pub fn optional_side(&self, key: &str) -> Result<Option<u64>, RowFailure> {
        let side = self.optional_count(key)?;
        if side.is_none_or(|side| side <= i32::MAX as u64) {
            return Ok(side);
        }
        Err(self.row_fault(key, "a side of a matrix product is at most 2147483647", "correct or remove the row"))
    }

    /// Returns a required side of a matrix product.
    ///
    /// # Errors
    /// As [`Self::optional_side`]; an empty cell.
    pub fn side(&self, key: &str) -> Result<u64, RowFailure> {
        self.optional_side(key)?.ok_or_else(|| self.row_fault(key, "must not be empty", "fill it in"))
    }

    /// Returns a finite number; `None` for an empty cell.
    ///
    /// # Errors
    /// No number, NaN or an infinity.
    pub fn number(&self, key: &str) -> Result<Option<f64>, RowFailure> {
        let Some(cell) = self.cell(key) else { return Ok(None) };
        match cell.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Some(value)),
            Ok(_) => Err(self.row_fault(key, "must be a finite number", "an empty cell means unknown")),
            Err(_) => Err(self.row_fault(key, "must be a number", "an empty cell means unknown")),
        }
    }

    /// Returns a stated time; zero for an empty cell. `empty` is the cure in errors.
    ///
    /// # Errors
    /// No number, or neither 0 nor within the accepted values of measurements.
    pub fn stated_time(&self, key: &str, empty: &str) -> Result<f64, RowFailure> {
        let value = self.number(key)?.unwrap_or(0.0);
        match value == 0.0 || MEASURED.contains(&value) {
            true => Ok(value),
            false => Err(self.row_fault(key, "must be 0, or from 1e-9 to 1e15", empty)),
        }
    }

    /// Returns the measured value of a target column; `None` if the cell is empty.
    ///
    /// # Errors
    /// No number, or a number outside the range of the target.
    pub fn measured_value(&self, target: &TargetColumn) -> Result<Option<f64>, RowFailure> {
        let value = self.number(target.column)?;
        let limit = match target.range {
            TargetRange::Positive if value.is_some_and(|v| v <= 0.0) => "must be above 0",
            TargetRange::NotNegative if value.is_some_and(|v| v < 0.0) => "must not be negative",
            TargetRange::Positive if value.is_some_and(|v| !MEASURED.contains(&v)) => "must be from 1e-9 to 1e15",
            TargetRange::NotNegative if value.is_some_and(|v| v > 0.0 && !MEASURED.contains(&v)) => {
                "must be 0, or from 1e-9 to 1e15"
            }
            TargetRange::Flag if value.is_some_and(|v| v != 0.0 && v != 1.0) => "must be 0 or 1",
            _ => return Ok(value),
        };
        Err(self.row_fault(target.column, limit, "an empty cell means unknown"))
    }
}
