//! Kernels: `sim::cost` on the chip that the row names, by the clock that the row was measured with.

use super::Prepared;
use crate::validate::dataset::Dataset;
use crate::validate::row::{Row, RowFailure};
use sim::cost::calibrate::{self, Measurement, Timing};
use sim::cost::named::{NameError, Shape, data_type_from_name, kernel_from_name};
use sim::kernel::Kernel;
use sim::units::Seconds;

/// Predicts the time of a kernel in microseconds.
pub(in crate::validate) fn predict(prepared: &mut Prepared, row: &Row<'_>) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let (kernel, timing) = kernel(row)?;
    let model = prepared.model(row.text("chip")?)?;
    Ok(vec![("measured_us", calibrate::predict(model, &kernel, timing).micros())])
}

/// The row as a measurement that a chip's scalars can be fitted to.
pub(in crate::validate) fn measurement(row: &Row<'_>, group: String) -> Result<Measurement, RowFailure> {
    let (kernel, timing) = kernel(row)?;
    for target in Dataset::Kernels.targets() {
        if let Some(time) = row.measured(target)? {
            return Ok(Measurement { kernel, timing, time: Seconds::from_micros(time), group });
        }
    }
    Err(RowFailure::Unpredictable("no measured time".into()))
}

/// The kernel that a row describes and the clock it was measured with.
fn kernel(row: &Row<'_>) -> Result<(Kernel, Timing), RowFailure> {
    let timing = match row.text("timing")? {
        "device" => Timing::Device,
        "host" => Timing::Host,
        _ => return Err(row.fault("timing", "must be device or host", "say which clock was read")),
    };
    let size = |key: &str| row.optional_count(key).map(|value| value.unwrap_or(0));
    let side = |key: &str| row.optional_side(key).map(|value| value.unwrap_or(0));
    let shape = Shape { m: side("m")?, n: side("n")?, k: side("k")?, batch: size("batch")?, elements: size("elements")? };
    let data_type = data_type_from_name(row.text("dtype")?).map_err(|e| named(row, &e))?;
    let kernel = kernel_from_name(row.text("kernel")?, shape, data_type).map_err(|e| named(row, &e))?;
    Ok((kernel, timing))
}

/// A name that the model does not know leaves the row without a prediction; a missing dimension is the row's fault.
fn named(row: &Row<'_>, error: &NameError) -> RowFailure {
    match error {
        NameError::MissingDimension { dimension, kernel } => {
            row.fault(dimension, &format!("{kernel} needs it"), "give a positive whole number")
        }
        NameError::UnknownKernel { .. } | NameError::UnknownType { .. } => RowFailure::Unpredictable(error.to_string()),
    }
}
