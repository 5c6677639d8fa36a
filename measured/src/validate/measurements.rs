//! Reads the rows of a kernels file as measurements for fitting a chip's physical scalars.

use super::row::RowFailure;
use super::{Dataset, MeasuredTable, RowError, UnpredictedRow, ValidateError, predict};
use sim::cost::calibrate::Measurement;
use sim::hardware::{Accelerator, ChipTemplate};
use std::path::Path;

/// The rows of a kernels file for one chip, to fit its scalars.
#[derive(Debug, Clone, PartialEq)]
pub struct ChipMeasurements {
    /// Valid rows of the chip with a kernel that the model knows, grouped as in scores.
    pub rows: Vec<Measurement>,
    /// Number of rows of other chips.
    pub other_chips: usize,
    /// Faulty rows of the chip, and rows that cannot be read at all.
    pub row_errors: Vec<RowError>,
    /// Rows of the chip with a kernel or a type that the model does not know, or without a measured time.
    pub unpredicted: Vec<UnpredictedRow>,
}

/// Reads the rows of a kernels file to which the scalars of a chip can be fitted. `path` names the file in errors. The
/// rows may name the chip by its canonical name or by an alias.
///
/// # Errors
/// As [`super::validate_contents()`], or a file of another data set than kernels.
pub fn read_measurements(path: &Path, text: &[u8], chip: &Accelerator) -> Result<ChipMeasurements, ValidateError> {
    let mut table = MeasuredTable::open_csv(path, text)?;
    if table.dataset != Dataset::Kernels {
        return Err(ValidateError::NotKernels { file: path.into(), dataset: table.dataset });
    }
    let canonical = |name: &str| ChipTemplate::find_built_in(name).map_or_else(|_| name.to_owned(), |t| t.name.clone());
    let wanted = canonical(&chip.name);
    let mut found =
        ChipMeasurements { rows: Vec::new(), other_chips: 0, row_errors: Vec::new(), unpredicted: Vec::new() };
    table.for_each_row(|row| {
        let row = match row {
            Ok(row) => row,
            Err(error) => return found.row_errors.push(error),
        };
        if row.cell("chip").is_none_or(|name| canonical(name) != wanted) {
            found.other_chips += 1;
            return;
        }
        let group = Dataset::Kernels.group_of(&row);
        match row.check_width().and_then(|()| predict::kernels::read_measurement(&row, chip, group.clone())) {
            Ok(measurement) => found.rows.push(measurement),
            Err(RowFailure::Fault(error)) => found.row_errors.push(*error),
            Err(RowFailure::Unpredictable(why)) => {
                found.unpredicted.push(UnpredictedRow { line: row.line(), id: row.id(), group, size: None, why });
            }
        }
    });
    Ok(found)
}
