//! The residuals of a file of kernels or collectives.

use super::alone::AloneResidual;
use super::{collective_residuals, kernel_residuals};
use crate::validate::{Dataset, ValidateError, ValidateOptions, recognise_file};
use std::path::Path;

/// Returns the residuals of a file of kernels or collectives; `None` for a file of another data set.
///
/// # Errors
/// A file that cannot be read, or a chip that cannot be costed.
pub fn alone_residuals(path: &Path, options: &ValidateOptions) -> Result<Option<Vec<AloneResidual>>, ValidateError> {
    match recognise_file(path)? {
        Dataset::Kernels => kernel_residuals(path, options).map(Some),
        Dataset::Collectives => collective_residuals(path, options).map(Some),
        _ => Ok(None),
    }
}
