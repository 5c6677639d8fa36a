//! The rows of a kernels file as measurements that a chip's physical scalars are fitted to.

use super::row::RowFailure;
use super::{Dataset, MeasuredTable, RowError, UnpredictedRow, ValidateError, predict};
use sim::cost::calibrate::Measurement;
use sim::hardware::ChipTemplate;
use std::path::Path;

/// What a file of measured kernels says of one chip, for `calibrate`.
#[derive(Debug, Clone, PartialEq)]
pub struct ChipMeasurements {
    /// The chip's rows that are sound and whose kernel the model knows; grouped as scores are.
    pub rows: Vec<Measurement>,
    /// Rows of other chips.
    pub other_chips: usize,
    /// The chip's rows with a fault, and rows that cannot be read at all.
    pub row_errors: Vec<RowError>,
    /// The chip's rows whose kernel or type the model does not know, or without a measured time.
    pub unpredicted: Vec<UnpredictedRow>,
}

/// The rows of a kernels file that a chip's physical scalars can be fitted to. `chip` and the rows' chips may be
/// canonical names or aliases.
///
/// # Errors
/// As [`super::validate_file()`]; a file of another data set than kernels.
pub fn read_measurements(path: &Path, chip: &str) -> Result<ChipMeasurements, ValidateError> {
    let text = sim::files::text::read_bytes(path).map_err(|why| ValidateError::Open { file: path.into(), why })?;
    let mut table = MeasuredTable::open_csv(path, &text)?;
    if table.dataset != Dataset::Kernels {
        return Err(ValidateError::NotKernels { file: path.into(), dataset: table.dataset });
    }
    let canonical = |name: &str| ChipTemplate::find_built_in(name).map_or_else(|_| name.to_owned(), |t| t.name.clone());
    let wanted = canonical(chip);
    let mut found = ChipMeasurements { rows: Vec::new(), other_chips: 0, row_errors: Vec::new(), unpredicted: Vec::new() };
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
        match row.check_width().and_then(|()| predict::kernels::read_measurement(&row, group.clone())) {
            Ok(measurement) => found.rows.push(measurement),
            Err(RowFailure::Fault(error)) => found.row_errors.push(*error),
            Err(RowFailure::Unpredictable(why)) => {
                found.unpredicted.push(UnpredictedRow { line: row.line(), id: row.id(), group, size: None, why });
            }
        }
    });
    Ok(found)
}
