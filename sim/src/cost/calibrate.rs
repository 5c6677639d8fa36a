//! Fits a chip's physical scalars to measured kernels, starting from the chip's file. The scalars are those of its
//! calibration, and of its kernel library if it has one.

use super::{CostError, CostModel, Routine};
pub use crate::grouped_errors::GroupError;
use crate::grouped_errors::MeasurementGroups;
use crate::hardware::{Accelerator, Calibration, CalibrationParameter, FittedScalar, KernelLibrary, templates};
use crate::kernel::DataType;
use crate::scalar_fit::{LEFT_OUT, ScalarFit, ScalarPrior, prior_spread, round_to_four_digits};
use crate::units::Seconds;

/// Fewest measurements for a fit.
pub const LEAST_ROWS: usize = 5;
/// Added to a time in microseconds before its logarithm is taken. Launches are resolved to a tenth of a microsecond.
const FLOOR_US: f64 = 0.1;
/// Added to a fraction before its logarithm is taken, where the fraction may be zero.
const FLOOR_FRACTION: f64 = 0.05;

/// The clock of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MeasurementClock {
    /// A profiler's duration of the operation on the device.
    Device,
    /// The host's wall clock, launch overhead included.
    Host,
}

/// One measured kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The routine, run on the whole chip.
    pub routine: Routine,
    /// The clock of the measurement.
    pub timing: MeasurementClock,
    /// The measured time.
    pub time: Seconds,
    /// The group in which its error is averaged, such as a kernel's name or a size class. All groups have the same
    /// weight in the fit.
    pub group: String,
}

/// A physical scalar of a chip.
#[derive(Debug, Clone, Copy)]
pub enum ChipScalar {
    /// A scalar of its calibration.
    Calibration(&'static CalibrationParameter),
    /// A scalar of its kernel library.
    Library(&'static FittedScalar<KernelLibrary>),
}

impl ChipScalar {
    /// Returns all scalars of a chip.
    #[must_use]
    pub fn all_of_chip(chip: &Accelerator) -> Vec<Self> {
        let library = chip.library.iter().flat_map(|_| const { &KernelLibrary::PARAMETERS }).map(Self::Library);
        const { &Calibration::PARAMETERS }.iter().map(Self::Calibration).chain(library).collect()
    }

    /// Its key in the chip's file, with the table.
    #[must_use]
    pub fn key(self) -> String {
        match self {
            Self::Calibration(parameter) => format!("calibration.{}", parameter.key),
            Self::Library(scalar) => format!("library.{}", scalar.key),
        }
    }

    /// True if `word` is its key, with or without the table.
    fn is_named(self, word: &str) -> bool {
        let key = self.key();
        key == word || key.split_once('.').is_some_and(|(_, own)| own == word)
    }

    /// Its value, in the key's unit.
    #[must_use]
    pub fn get(self, chip: &Accelerator) -> f64 {
        match self {
            Self::Calibration(parameter) => (parameter.get)(&chip.calibration),
            Self::Library(scalar) => (scalar.get)(&chip.library.unwrap_or_default()),
        }
    }

    fn set(self, chip: &mut Accelerator, value: f64) {
        match self {
            Self::Calibration(parameter) => (parameter.set)(&mut chip.calibration, value),
            Self::Library(scalar) => chip.library.iter_mut().for_each(|library| (scalar.set)(library, value)),
        }
    }

    /// Its smallest and largest valid value.
    fn limits(self) -> (f64, f64) {
        match self {
            Self::Calibration(parameter) => (parameter.min, parameter.max),
            Self::Library(scalar) => (scalar.min, scalar.max),
        }
    }

    fn coordinate_floor(self) -> f64 {
        match self.limits() {
            (least, _) if least > 0.0 => 0.0,
            (_, most) if most > 1.0 => FLOOR_US,
            _ => FLOOR_FRACTION,
        }
    }

    fn to_coordinate(self, value: f64) -> f64 {
        (value + self.coordinate_floor()).ln()
    }

    fn value_at_coordinate(self, coordinate: f64) -> f64 {
        let (least, most) = self.limits();
        round_to_four_digits((coordinate.exp() - self.coordinate_floor()).clamp(least, most))
    }
}

/// The fit of one scalar.
#[derive(Debug, Clone, PartialEq)]
pub struct DeterminedScalar {
    /// Its key in the chip's file, with the table.
    pub key: String,
    /// The file's value.
    pub before: f64,
    /// The fitted value; the file's value if the measurements do not determine it.
    pub after: f64,
    /// Its 90 % confidence range from the measurements. As this scalar moves through the range, the other scalars move
    /// within their own uncertainty to fit the measurements best.
    pub range: (f64, f64),
    /// True if the measurements determine it.
    pub determined: bool,
}

/// The result of a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct ChipFit {
    /// The chip with the fitted scalars; the others keep their values.
    pub chip: Accelerator,
    /// The fit of each chosen scalar.
    pub scalars: Vec<DeterminedScalar>,
    /// Errors per group, in order of the groups' names.
    pub groups: Vec<GroupError>,
    /// Root mean square of the groups' mean errors before the fit.
    pub before: f64,
    /// Root mean square of the groups' mean errors after the fit.
    pub after: f64,
    /// Root mean square of the groups' mean errors, with each measurement predicted from a fit to the others. If there
    /// are more than twelve measurements, twelve folds are left out in turn instead.
    pub left_out: f64,
    /// Root mean square of the groups' mean errors, with each group predicted from a fit to the other groups. `None` if
    /// there is only one group.
    pub by_group: Option<f64>,
}

/// The reason why a fit cannot start.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CalibrationError {
    /// The accelerator cannot be costed.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// Too few measurements.
    #[error("{chip}: {rows} measurements are too few for a fit; give at least {LEAST_ROWS}")]
    TooFew {
        /// The accelerator's name.
        chip: String,
        /// Number of measurements.
        rows: usize,
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
    /// A scalar that the chip lacks.
    #[error("unknown calibration scalar {key:?}; {}", crate::names::hint(key, known, "known are:"))]
    UnknownScalar {
        /// The key given.
        key: String,
        /// The chip's scalars.
        known: String,
    },
}

/// Returns the predicted time of a routine measured alone, under its clock. The host's overhead is known only for
/// single kernels; the other routines have the device's time under both clocks.
#[must_use]
pub fn predict_time(model: &CostModel, routine: &Routine, timing: MeasurementClock) -> Seconds {
    match (routine, timing) {
        (Routine::Kernel(kernel), MeasurementClock::Host) => model.time_by_host(kernel),
        _ => model.time_alone(routine),
    }
}

/// Returns `chip` with the scalars of `from`, as if `chip` had not been measured. All scalars are copied, except that
/// the load bandwidth per core and cycle scales with the core's multiply-accumulates: memories and library tiles are
/// designed to feed the arrays. From an A100 (22 bytes at 1,024 multiply-accumulates in bf16) the rule gives an H100
/// (2,048) 44 bytes, and in reverse 24; the fits give 48 and 22. The rule was made with these two chips in view; no
/// third generation with a library is measured.
#[must_use]
pub fn carry_scalars_over(from: &Accelerator, chip: &Accelerator) -> Accelerator {
    let mut changed = chip.clone();
    for scalar in ChipScalar::all_of_chip(chip) {
        scalar.set(&mut changed, scalar.get(from));
    }
    let per_core = |chip: &Accelerator| {
        let rate =
            [DataType::Bf16, DataType::Fp16].into_iter().find_map(|of| chip.tensor.macs_per_unit_per_cycle.get(of));
        rate.map(|rate| rate * chip.tensor.unit_count() as f64 / f64::from(chip.tensor.cores))
    };
    if let (Some(library), Some(own), Some(others)) = (&mut changed.library, per_core(chip), per_core(from)) {
        library.core_read_bytes_per_cycle *= own / others;
    }
    changed
}

/// Fits the scalars named by `keys` (all, if empty) to the measurements. All groups have the same weight. A scalar
/// moves from its value in the chip's file as far as the measurements require. A scalar that they do not determine
/// stays. Deterministic.
///
/// # Errors
/// [`CalibrationError`] for an accelerator that cannot be costed, too few measurements, a time that is not positive, or
/// an unknown key.
pub fn fit_scalars(
    accelerator: &Accelerator,
    measurements: &[Measurement],
    keys: &[&str],
) -> Result<ChipFit, CalibrationError> {
    fit_chosen_scalars(accelerator, measurements, keys, true)
}

/// Fits all scalars, starting only from the accelerator's own values. Built-in chips are no starting points here,
/// because they may have been fitted to the same measurements.
///
/// # Errors
/// As [`fit_scalars`].
pub fn fit_scalars_from(accelerator: &Accelerator, measurements: &[Measurement]) -> Result<ChipFit, CalibrationError> {
    fit_chosen_scalars(accelerator, measurements, &[], false)
}

fn fit_chosen_scalars(
    accelerator: &Accelerator,
    measurements: &[Measurement],
    keys: &[&str],
    from_others: bool,
) -> Result<ChipFit, CalibrationError> {
    let all = ChipScalar::all_of_chip(accelerator);
    let known = || all.iter().map(|scalar| scalar.key()).collect::<Vec<_>>().join(", ");
    let unknown = |key: &&str| CalibrationError::UnknownScalar { key: (*key).to_owned(), known: known() };
    if let Some(key) = keys.iter().find(|key| !all.iter().any(|scalar| scalar.is_named(key))) {
        return Err(unknown(key));
    }
    if let Some((index, m)) =
        measurements.iter().enumerate().find(|(_, m)| !(m.time.is_finite() && m.time > Seconds::ZERO))
    {
        return Err(CalibrationError::BadTime { index, group: m.group.clone(), seconds: m.time.0 });
    }
    if measurements.len() < LEAST_ROWS {
        return Err(CalibrationError::TooFew { chip: accelerator.name.clone(), rows: measurements.len() });
    }
    CostModel::new(accelerator.clone())?;
    let asked = |scalar: &ChipScalar| keys.is_empty() || keys.iter().any(|key| scalar.is_named(key));
    let scalars: Vec<ChipScalar> = all.iter().copied().filter(asked).collect();
    let groups = MeasurementGroups::new(measurements.iter().map(|m| m.group.as_str()));
    Ok(ChipFitProblem { chip: accelerator, measurements, groups, scalars, from_others }.solve_fit())
}

struct ChipFitProblem<'a> {
    chip: &'a Accelerator,
    measurements: &'a [Measurement],
    groups: MeasurementGroups,
    scalars: Vec<ChipScalar>,
    /// True if the search may also start from the values of built-in chips.
    from_others: bool,
}

impl ChipFitProblem<'_> {
    fn solve_fit(&self) -> ChipFit {
        let beliefs = self.prior_beliefs();
        let starts = self.built_in_starts();
        let fit = ScalarFit { beliefs: &beliefs, starts: &starts };
        let all: Vec<usize> = (0..self.measurements.len()).collect();
        let (point, ranges) = fit.fit_with_ranges(&mut |point| self.weighted_log_errors(&all, point));
        let centres: Vec<f64> = beliefs.iter().map(|belief| belief.centre).collect();
        let parts = all.len().min(LEFT_OUT);
        let rows: Vec<usize> = all.iter().map(|row| row % parts).collect();
        let left_out = |folds: &[usize]| {
            let mut errors = |rows: &[usize], point: &[f64]| self.weighted_log_errors(rows, point);
            let points = fit.fit_without_folds(folds, &mut errors);
            let error = |row: &usize| self.log_errors(&[*row], &points[folds[*row]])[0];
            self.root_mean_square_error(&all.iter().map(error).collect::<Vec<_>>())
        };
        let determined = |at: usize| {
            let (scalar, range) = (self.scalars[at], ranges[at]);
            let before = scalar.get(self.chip);
            let after = if range.determined { scalar.value_at_coordinate(point[at]) } else { before };
            let range_of = (scalar.value_at_coordinate(range.low), scalar.value_at_coordinate(range.high));
            DeterminedScalar { key: scalar.key(), before, after, range: range_of, determined: range.determined }
        };
        let scalars: Vec<DeterminedScalar> = (0..self.scalars.len()).map(determined).collect();
        let mut chip = self.chip.clone();
        for (scalar, found) in self.scalars.iter().zip(&scalars) {
            scalar.set(&mut chip, found.after);
        }
        let (before, after) = (self.log_errors(&all, &centres), self.log_errors(&all, &point));
        let absolute = |errors: &[f64]| self.groups.group_means(errors.iter().map(|e| e.exp_m1().abs()));
        ChipFit {
            chip,
            scalars,
            groups: self.groups.report_groups(&absolute(&before), &absolute(&after)),
            before: self.root_mean_square_error(&before),
            after: self.root_mean_square_error(&after),
            left_out: left_out(&rows),
            by_group: (self.groups.len() > 1).then(|| left_out(self.groups.group_of_each())),
        }
    }

    /// A prior per scalar, centred on the chip file's value. Its width is the spread of the scalar over built-in chips
    /// and this one.
    fn prior_beliefs(&self) -> Vec<ScalarPrior> {
        let built_in: Vec<&Accelerator> = self.similar_built_in_chips().collect();
        let belief = |scalar: &ChipScalar| {
            let (least, most) = scalar.limits();
            ScalarPrior {
                centre: scalar.to_coordinate(scalar.get(self.chip)),
                spread: prior_spread(
                    built_in.iter().copied().chain([self.chip]).map(|chip| scalar.to_coordinate(scalar.get(chip))),
                ),
                least: scalar.to_coordinate(least),
                most: scalar.to_coordinate(most),
            }
        };
        self.scalars.iter().map(belief).collect()
    }

    /// The scalars of similar built-in chips, as starting points.
    fn built_in_starts(&self) -> Vec<Vec<f64>> {
        let point =
            |chip: &Accelerator| self.scalars.iter().map(|scalar| scalar.to_coordinate(scalar.get(chip))).collect();
        if self.from_others { self.similar_built_in_chips().map(point).collect() } else { Vec::new() }
    }

    /// Returns the built-in chips that run kernels like this one: both by a library, or both as a compiler maps them.
    fn similar_built_in_chips(&self) -> impl Iterator<Item = &'static Accelerator> {
        let by_library = self.chip.library.is_some();
        let all = templates().unwrap_or_default().iter().map(|template| &template.accelerator);
        all.filter(move |chip| chip.library.is_some() == by_library)
    }

    /// Returns ln(predicted / measured) of these measurements at a point; infinite if the chip at that point cannot be
    /// costed.
    fn log_errors(&self, rows: &[usize], point: &[f64]) -> Vec<f64> {
        let mut chip = self.chip.clone();
        for (scalar, coordinate) in self.scalars.iter().zip(point) {
            scalar.set(&mut chip, scalar.value_at_coordinate(*coordinate));
        }
        // Scalars within their limits leave a chip that can be costed.
        let Ok(model) = CostModel::new(chip) else { return vec![f64::INFINITY; rows.len()] };
        let error = |row: &usize| {
            let m = &self.measurements[*row];
            (predict_time(&model, &m.routine, m.timing) / m.time).ln()
        };
        rows.iter().map(error).collect()
    }

    /// Returns the log errors of these rows, weighted so that all their groups have the same weight.
    fn weighted_log_errors(&self, rows: &[usize], point: &[f64]) -> Vec<f64> {
        let mut counts = vec![0_usize; self.groups.len()];
        rows.iter().for_each(|row| counts[self.groups.group_of_each()[*row]] += 1);
        let groups = counts.iter().filter(|count| **count > 0).count();
        let weight = |row: &usize| rows.len() as f64 / (groups * counts[self.groups.group_of_each()[*row]]) as f64;
        self.log_errors(rows, point).iter().zip(rows).map(|(error, row)| error * weight(row)).collect()
    }

    /// Returns the root mean square, over the groups, of their mean absolute relative errors.
    fn root_mean_square_error(&self, errors: &[f64]) -> f64 {
        let means = self.groups.group_means(errors.iter().map(|e| e.exp_m1().abs()));
        (means.iter().map(|mean| mean * mean).sum::<f64>() / means.len().max(1) as f64).sqrt()
    }
}
