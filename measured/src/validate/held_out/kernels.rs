//! Predicts kernels with scalars that were fitted to other kernels, and with the scalars of another chip.
//!
//! For each chip of a file, the scalars are fitted without a fold of the rows, and the fold is predicted. A fold is
//! every twelfth row, or one kind of kernel. The fit starts from the scalars of another chip: the most similar one
//! whose rows have all kinds of kernels of this chip. In addition, every row is predicted with the unchanged scalars of
//! that other chip, as if nobody had measured this one. The units, clocks and memories in a chip's file stay as they
//! are.

use super::alone::AloneResidual;
use super::folds::RowFolds;
use super::{LEAST_ROWS, LOST, MeasuredRows};
use crate::evidence::AloneFacts;
use crate::validate::row::{MeasuredRow, RowFailure};
use crate::validate::{Dataset, ValidateError, ValidateOptions, predict};
use sim::cost::calibrate::{Measurement, carry_scalars_over, fit_scalars_from, predict_time as time_of};
use sim::cost::{CostModel, Routine};
use sim::hardware::Accelerator;
use sim::kernel::DataType;
use sim::scalar_fit::LEFT_OUT;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Rows per group in a fit. More rows hardly change a dozen scalars.
const OF_A_GROUP: usize = 24;

/// A chip with its rows.
struct MeasuredChip {
    chip: Accelerator,
    rows: Vec<MeasuredKernel>,
}

/// A measured kernel.
struct MeasuredKernel {
    dataset: String,
    id: String,
    measurement: Measurement,
    facts: AloneFacts,
}

/// Returns the residuals of all kernels of a file that can be predicted, chip by chip.
///
/// # Errors
/// A file that cannot be read or has no kernels; a chip that cannot be costed.
pub fn kernel_residuals(path: &Path, options: &ValidateOptions) -> Result<Vec<AloneResidual>, ValidateError> {
    let rows = MeasuredRows::read_rows_if(path, |dataset| dataset == Dataset::Kernels)?;
    let chips = measured_chips(&rows, options);
    let mut all = Vec::new();
    for one in &chips {
        all.extend(one.kernel_residuals(one.find_most_similar(&chips))?);
    }
    Ok(all)
}

/// Returns the chips of the rows, with those of their rows that can be predicted.
fn measured_chips(rows: &MeasuredRows, options: &ValidateOptions) -> Vec<MeasuredChip> {
    let mut chips: BTreeMap<String, MeasuredChip> = BTreeMap::new();
    let read = |row: &MeasuredRow<'_>| -> Result<(Accelerator, MeasuredKernel), RowFailure> {
        row.check_width()?;
        let chip = predict::find_accelerator(options.chips.as_deref(), row.text("chip")?)
            .map_err(RowFailure::Unpredictable)?;
        let measurement = predict::kernels::read_measurement(row, &chip, Dataset::Kernels.group_of(row))?;
        let facts = predict::kernels::facts_on_chip(row, &chip.name)?;
        let dataset = row.cell("dataset").unwrap_or("?").to_owned();
        Ok((chip, MeasuredKernel { dataset, id: row.id(), measurement, facts }))
    };
    for (chip, kernel) in (0..rows.records.len()).filter_map(|at| read(&rows.row_at(at)).ok()) {
        chips.entry(chip.name.clone()).or_insert_with(|| MeasuredChip { chip, rows: Vec::new() }).rows.push(kernel);
    }
    chips.into_values().collect()
}

impl MeasuredChip {
    /// Returns whether both chips run kernels in the same way: from a library or not, and on arrays of one dataflow.
    fn runs_kernels_like(&self, other: &Self) -> bool {
        let of = |chip: &Accelerator| (chip.library.is_some(), chip.tensor.dataflow);
        of(&self.chip) == of(&other.chip)
    }

    /// Returns the chip whose scalars one would take if this chip had no measurements; `None` if no other chip runs
    /// kernels in the same way. Chips with rows of every kind of this chip's kernels go first. The nearest rates decide
    /// among them.
    fn find_most_similar<'a>(&self, chips: &'a [Self]) -> Option<&'a Self> {
        let mut others: Vec<&Self> =
            chips.iter().filter(|other| other.chip.name != self.chip.name && self.runs_kernels_like(other)).collect();
        let kinds = self.kinds();
        if others.iter().any(|other| other.kinds().is_superset(&kinds)) {
            others.retain(|other| other.kinds().is_superset(&kinds));
        }
        others.into_iter().min_by(|a, b| self.distance_to(a).total_cmp(&self.distance_to(b)))
    }

    /// Returns the distance between two chips: the sum of the absolute logarithms of their ratios of memory bandwidths
    /// and of product peaks.
    fn distance_to(&self, other: &Self) -> f64 {
        let peak = |chip: &Accelerator| {
            let peaks = [DataType::Bf16, DataType::Fp16, DataType::Fp32].map(|format| chip.peak_flops(format));
            peaks.into_iter().flatten().next().map_or(1.0, |peak| peak.0)
        };
        let apart = |rate: &dyn Fn(&Accelerator) -> f64| (rate(&self.chip) / rate(&other.chip)).ln().abs();
        apart(&|chip| chip.hbm.read_bandwidth.0) + apart(&peak)
    }

    fn kernel_residuals(&self, from: Option<&Self>) -> Result<Vec<AloneResidual>, ValidateError> {
        let all: Vec<usize> = (0..self.rows.len()).collect();
        let in_sample = self.errors_on_chip(&self.chip, &all)?;
        let (mut by_chip, mut by_rows, mut by_kinds) =
            (vec![None; all.len()], vec![None; all.len()], vec![None; all.len()]);
        if let Some(from) = from {
            let apart = carry_scalars_over(&from.chip, &self.chip);
            by_chip = self.errors_on_chip(&apart, &all)?.into_iter().map(Some).collect();
            let parts: Vec<usize> = all.iter().map(|row| row % LEFT_OUT).collect();
            by_rows = self.errors_left_out(&apart, &parts)?;
            by_kinds = self.errors_left_out(&apart, &self.kinds_of_rows())?;
        }
        let one = |row: &usize| {
            let (row, kernel) = (*row, &self.rows[*row]);
            AloneResidual {
                dataset: kernel.dataset.clone(),
                id: kernel.id.clone(),
                group: kernel.measurement.group.clone(),
                facts: kernel.facts.clone(),
                from: from.map(|from| from.chip.name.clone()),
                part: row % LEFT_OUT,
                predicted_us: kernel.measurement.time.micros() * (-in_sample[row]).exp(),
                in_sample: in_sample[row],
                rows: by_rows[row],
                kinds: by_kinds[row],
                chip: by_chip[row],
            }
        };
        Ok(all.iter().map(one).collect())
    }

    /// Returns the error of every row with its fold held out of the fit, which starts from `apart`; `None` if too few
    /// rows are left.
    fn errors_left_out(&self, apart: &Accelerator, folds: &[usize]) -> Result<Vec<Option<f64>>, ValidateError> {
        let mut found = vec![None; folds.len()];
        let count = folds.iter().max().map_or(0, |last| last + 1);
        for fold in (0..count).filter(|_| count > 1) {
            let (inside, rest): (Vec<usize>, Vec<usize>) = (0..folds.len()).partition(|row| folds[*row] == fold);
            let sample = self.spread_sample(&rest);
            if sample.len() < LEAST_ROWS {
                continue;
            }
            let fit = fit_scalars_from(apart, &sample).map_err(|why| ValidateError::Stack { why: why.to_string() })?;
            for (row, error) in inside.iter().zip(self.errors_on_chip(&fit.chip, &inside)?) {
                found[*row] = Some(error);
            }
        }
        Ok(found)
    }

    /// Returns some rows of every group, spread evenly over the file.
    fn spread_sample(&self, rows: &[usize]) -> Vec<Measurement> {
        let mut groups: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
        for row in rows {
            let measurement = &self.rows[*row].measurement;
            groups.entry(&measurement.group).or_default().push(measurement);
        }
        let some = |rows: Vec<&Measurement>| {
            let step = rows.len().div_ceil(OF_A_GROUP);
            rows.into_iter().step_by(step).cloned().collect::<Vec<_>>()
        };
        groups.into_values().flat_map(some).collect()
    }

    /// Returns ln(measured / predicted) of some rows on a chip.
    fn errors_on_chip(&self, chip: &Accelerator, rows: &[usize]) -> Result<Vec<f64>, ValidateError> {
        let model = CostModel::new(chip.clone()).map_err(|why| ValidateError::Stack { why: why.to_string() })?;
        let one = |row: &usize| {
            let Measurement { routine, timing, time, .. } = &self.rows[*row].measurement;
            let error = (*time / time_of(&model, routine, *timing)).ln();
            if error.is_finite() { error } else { LOST }
        };
        Ok(rows.iter().map(one).collect())
    }

    /// Returns the kind of every row, as an index.
    fn kinds_of_rows(&self) -> Vec<usize> {
        RowFolds::by_name(self.rows.iter().map(|kernel| kernel.kind().to_owned()).collect()).of
    }

    fn kinds(&self) -> BTreeSet<&'static str> {
        self.rows.iter().map(MeasuredKernel::kind).collect()
    }
}

impl MeasuredKernel {
    /// Returns the kind with which the kernel is held out. The passes of one product are one kind: to hold out one pass
    /// and keep the others would hold out nothing.
    fn kind(&self) -> &'static str {
        match &self.measurement.routine {
            Routine::Attention(_) => "attention",
            Routine::Experts(_) | Routine::Grouped(_) => "grouped products",
            Routine::Linear(..) | Routine::Kernel(sim::kernel::Kernel::Contraction(_)) => "products",
            Routine::Kernel(_) => "vector work",
        }
    }
}
