//! The rows of a kernels file as measurements that a chip's physical scalars are fitted to.

use super::row::RowFailure;
use super::{Dataset, RowError, Table, Unpredicted, ValidateError, predict};
use sim::cost::calibrate::Measurement;
use sim::hardware::Template;
use std::path::Path;

/// What a file of measured kernels says of one chip, for `calibrate`.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurements {
    /// The chip's rows that are sound and whose kernel the model knows; grouped as scores are.
    pub rows: Vec<Measurement>,
    /// Rows of other chips.
    pub other_chips: usize,
    /// The chip's rows with a fault, and rows that cannot be read at all.
    pub row_errors: Vec<RowError>,
    /// The chip's rows whose kernel or type the model does not know, or without a measured time.
    pub unpredicted: Vec<Unpredicted>,
}

/// The rows of a kernels file that a chip's physical scalars can be fitted to. `chip` and the rows' chips may be
/// canonical names or aliases.
///
/// # Errors
/// As [`super::file()`]; a file of another data set than kernels.
pub fn measurements(path: &Path, chip: &str) -> Result<Measurements, ValidateError> {
    let text = sim::files::text::bytes(path).map_err(|why| ValidateError::Open { file: path.into(), why })?;
    let mut table = Table::open(path, &text)?;
    if table.dataset != Dataset::Kernels {
        return Err(ValidateError::NotKernels { file: path.into(), dataset: table.dataset });
    }
    let canonical = |name: &str| Template::find(name).map_or_else(|_| name.to_owned(), |t| t.name.clone());
    let wanted = canonical(chip);
    let mut found = Measurements { rows: Vec::new(), other_chips: 0, row_errors: Vec::new(), unpredicted: Vec::new() };
    table.each_row(|row| {
        let row = match row {
            Ok(row) => row,
            Err(error) => return found.row_errors.push(error),
        };
        if row.cell("chip").is_none_or(|name| canonical(name) != wanted) {
            found.other_chips += 1;
            return;
        }
        let group = Dataset::Kernels.group(&row);
        match row.check_width().and_then(|()| predict::kernels::measurement(&row, group.clone())) {
            Ok(measurement) => found.rows.push(measurement),
            Err(RowFailure::Fault(error)) => found.row_errors.push(*error),
            Err(RowFailure::Unpredictable(why)) => {
                found.unpredicted.push(Unpredicted { line: row.line(), id: row.id(), group, size: None, why });
            }
        }
    });
    Ok(found)
}
