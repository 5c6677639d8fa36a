//! Fits a chip's physical scalars to measured kernels: a coordinate search inside each scalar's physical range.

use super::{CostError, CostModel};
use crate::coordinate_search::coordinate_search;
pub use crate::grouped_errors::GroupError;
use crate::grouped_errors::Groups;
use crate::hardware::{Accelerator, Calibration, Parameter};
use crate::kernel::Kernel;
use crate::units::Seconds;

/// Which clock a measurement was taken with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timing {
    /// A profiler's duration of the operation on the device.
    Device,
    /// The host's wall clock, launch overhead included.
    Host,
}

/// One measured kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// What was run, on the whole chip.
    pub kernel: Kernel,
    /// Which clock.
    pub timing: Timing,
    /// The measured time.
    pub time: Seconds,
    /// The group its error is averaged in (a kernel's name, a size class): each group weighs the same in the fit.
    pub group: String,
}

/// What a fit found.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The fitted scalars; those not asked for keep their values.
    pub calibration: Calibration,
    /// Errors per group, in order of the groups' names.
    pub groups: Vec<GroupError>,
    /// Root mean square of the groups' errors before.
    pub before: f64,
    /// Root mean square of the groups' errors after: never above `before`.
    pub after: f64,
}

/// A fit that cannot start.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CalibrationError {
    /// The accelerator itself is wrong.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// Nothing to fit to.
    #[error("no measurement to fit {chip} to: give at least one row of that chip")]
    NoMeasurement {
        /// The accelerator's name.
        chip: String,
    },
    /// A measured time is not a positive number.
    #[error("measurement {index} ({group}) took {seconds} s; it must be a positive finite number")]
    BadTime {
        /// Its position.
        index: usize,
        /// Its group.
        group: String,
        /// The time given.
        seconds: f64,
    },
    /// A scalar that does not exist.
    #[error(
        "unknown calibration scalar {key:?}; {}",
        crate::names::hint(key, &Calibration::PARAMETERS.map(|p| p.key).join(", "), "known are:")
    )]
    UnknownScalar {
        /// The key given.
        key: String,
    },
}

/// The predicted time of a kernel measured alone, under its clock.
#[must_use]
pub fn predict(model: &CostModel, kernel: &Kernel, timing: Timing) -> Seconds {
    let cost = model.cost_alone(kernel);
    match timing {
        Timing::Device => cost.latency,
        Timing::Host => model.host_timed(kernel, &cost),
    }
}

/// Fits the scalars named by `keys` to the measurements by cyclic coordinate search: each scalar in turn is tried at
/// steps around its value and inside its range, steps shrink when nothing improves. Minimises the root mean square over
/// groups of the mean absolute relative error, so that no group pays for another. Deterministic.
///
/// # Errors
/// [`CalibrationError`] for an accelerator that cannot be costed, no measurements, a time that is not positive, an unknown key.
pub fn fit(accelerator: &Accelerator, measurements: &[Measurement], keys: &[&str]) -> Result<Fit, CalibrationError> {
    if measurements.is_empty() {
        return Err(CalibrationError::NoMeasurement { chip: accelerator.name.clone() });
    }
    for (index, m) in measurements.iter().enumerate() {
        if !(m.time.is_finite() && m.time > Seconds::ZERO) {
            return Err(CalibrationError::BadTime { index, group: m.group.clone(), seconds: m.time.0 });
        }
    }
    let mut parameters = Vec::with_capacity(keys.len());
    for key in keys {
        parameters.push(Calibration::parameter(key).ok_or_else(|| CalibrationError::UnknownScalar { key: (*key).to_owned() })?);
    }
    let mut search = Search::new(accelerator, measurements);
    let moved = |from: &Calibration, index: usize, step: f64| neighbours(parameters[index], from, step);
    let found = coordinate_search(accelerator.calibration, parameters.len(), moved, |point| search.objective(point))?;
    let calibration = found.point;
    let (before_groups, after_groups) = (search.errors(&accelerator.calibration)?, search.errors(&calibration)?);
    let groups = search.groups.report(&before_groups, &after_groups);
    Ok(Fit { calibration, groups, before: found.before, after: found.after })
}

/// A calibration with one scalar moved up and down by a step, inside its range: fractions move by the step itself, times by that
/// part of their value (or of a microsecond, from zero).
fn neighbours(parameter: &Parameter, from: &Calibration, step: f64) -> [Option<Calibration>; 2] {
    let now = (parameter.get)(from);
    let scale = if parameter.max <= 1.0 { 0.5 } else { now.max(1.0) };
    [now + step * scale, now - step * scale].map(|candidate| {
        let mut calibration = *from;
        (parameter.set)(&mut calibration, candidate.clamp(parameter.min, parameter.max));
        Some(calibration)
    })
}

struct Search<'a> {
    accelerator: Accelerator,
    measurements: &'a [Measurement],
    groups: Groups,
}

impl<'a> Search<'a> {
    fn new(accelerator: &Accelerator, measurements: &'a [Measurement]) -> Self {
        let groups = Groups::new(measurements.iter().map(|m| m.group.as_str()));
        Self { accelerator: accelerator.clone(), measurements, groups }
    }

    /// Mean absolute relative error per group.
    fn errors(&mut self, calibration: &Calibration) -> Result<Vec<f64>, CostError> {
        self.accelerator.calibration = *calibration;
        let model = CostModel::new(self.accelerator.clone())?;
        let error = |m: &Measurement| (predict(&model, &m.kernel, m.timing) / m.time - 1.0).abs();
        Ok(self.groups.means(self.measurements.iter().map(error)))
    }

    fn objective(&mut self, calibration: &Calibration) -> Result<f64, CostError> {
        let errors = self.errors(calibration)?;
        Ok((errors.iter().map(|error| error * error).sum::<f64>() / errors.len().max(1) as f64).sqrt())
    }
}
