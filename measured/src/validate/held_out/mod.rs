//! `coplace validate --held-out FILE...`: errors on rows that were held out of all fits.
//!
//! The rows of a file are split by software stack. The few scalars of a stack are fitted without a fold, and the fold
//! is predicted. A fold has models of similar size, one chip, or a similar number of chips. The fit starts from the
//! scalars of the *other* stacks. In addition, every row is predicted with the scalars of the other stacks alone, as if
//! nobody had measured this software. The scalars of chips and fabrics stay: they were fitted to kernels and
//! collectives, not to training runs. Kernels and collectives have their own held-out errors ([`alone_residuals`]).

mod alone;
mod alone_files;
mod calibration;
mod fabric;
mod folds;
mod kernels;
mod serving;

pub use alone::{AloneResidual, alone_csv};
pub use alone_files::alone_residuals;
pub use calibration::{
    CalibratedStack, FewRunsFit, FittedScalarRange, QuantityFit, calibrate_stack, fit_from_few, mean_percent,
};
pub use fabric::{CalibratedFabric, FabricFit, calibrate_fabric, collective_residuals};
pub use kernels::kernel_residuals;
pub use serving::{HeldOutModel, held_out_models};

use super::predict::PreparedInputs;
use super::row::RowFailure;
use super::{Dataset, MeasuredRow, MeasuredTable, ValidateError, ValidateOptions, read_measured_file};
use crate::evidence::{COLUMNS, HoldOutScheme, Mechanism, PredictionFacts};
use folds::RowFolds;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use step::SoftwareStack;
use step::calibrate::{MEMORY, StackCalibration, StackPrior, StackScalar, TIME};

/// Largest number of rows in a fit. If there are more, a sample is spread evenly over the file.
const FITTED_ROWS: usize = 60;
/// Fewest rows for fitting a stack.
const LEAST_ROWS: usize = 5;
/// Error ln(predicted / measured) that stands for a row without a prediction under the fitted scalars.
const LOST: f64 = 10.0;

/// The errors of one row's prediction, each ln(measured / predicted).
#[derive(Debug, Clone, PartialEq)]
pub struct RunResidual {
    /// `iteration_s` or `peak_gib`.
    pub quantity: &'static str,
    /// The row's data set.
    pub dataset: String,
    /// The row's id.
    pub id: String,
    /// The group of rows that it competes with; `None` for rows that do not compete.
    pub ranking: Option<String>,
    /// The measured value.
    pub measured: f64,
    /// The grounds of the prediction.
    pub facts: PredictionFacts,
    /// Error with the built-in scalars.
    pub in_sample: f64,
    /// Errors with its fold held out, by scheme in the order of [`HoldOutScheme::ALL`]. `None` if all rows of the stack
    /// are in one fold, or if the fold leaves too few rows for a fit.
    pub held_out: [Option<f64>; 4],
    /// The fold under each scheme.
    pub fold: [usize; 4],
}

/// A measured value of a row, with the grounds of its prediction.
struct MeasuredStep {
    /// Index of the record.
    at: usize,
    facts: PredictionFacts,
    dataset: String,
    value: f64,
}

/// The rows of a file of training runs.
struct MeasuredRows {
    path: PathBuf,
    header: csv::StringRecord,
    dataset: Dataset,
    records: Vec<(u64, csv::StringRecord)>,
}

impl MeasuredRows {
    fn row_at(&self, at: usize) -> MeasuredRow<'_> {
        let (line, cells) = &self.records[at];
        MeasuredRow::new(&self.path, *line, &self.header, cells)
    }

    fn read_rows(path: &Path) -> Result<Self, ValidateError> {
        Self::read_rows_if(path, |dataset| matches!(dataset, Dataset::TrainingRuns | Dataset::MemoryPeaks))
    }

    /// Reads the rows of a file with a wanted data set.
    fn read_rows_if(path: &Path, wanted: impl Fn(Dataset) -> bool) -> Result<Self, ValidateError> {
        Self::rows_of_contents(path, &read_measured_file(path)?, wanted)
    }

    /// Reads the rows from a file's contents.
    fn rows_of_contents(path: &Path, text: &[u8], wanted: impl Fn(Dataset) -> bool) -> Result<Self, ValidateError> {
        let mut table = MeasuredTable::open_csv(path, text)?;
        if !wanted(table.dataset) {
            return Err(ValidateError::NotRuns { file: path.into(), dataset: table.dataset });
        }
        let mut records = Vec::new();
        table.for_each_row(|row| {
            if let Ok(row) = row {
                records.push((row.line(), row.cells().clone()));
            }
        });
        Ok(Self { path: path.into(), header: table.header.clone(), dataset: table.dataset, records })
    }
}

/// Returns the residuals of all rows of a file that can be predicted, by quantity and stack.
///
/// # Errors
/// A file that cannot be read or has no training runs; a built-in stack that cannot be read.
pub fn run_residuals(path: &Path, options: &ValidateOptions) -> Result<Vec<RunResidual>, ValidateError> {
    let rows = MeasuredRows::read_rows(path)?;
    let mut prepared = PreparedInputs::new(options);
    let mut all = Vec::new();
    for (quantity, scalars) in [("iteration_s", &TIME[..]), ("peak_gib", &MEMORY[..])] {
        let measured = measured_members(&rows, quantity, &mut prepared);
        for stacks in units_of_stacks(&measured, options)? {
            let of_unit = |m: &&MeasuredStep| stacks.iter().any(|stack| stack.name == m.facts.stack.name);
            let unit = StackUnit {
                rows: &rows,
                quantity,
                members: measured.iter().filter(of_unit).collect(),
                stacks,
                scalars,
            };
            all.extend(
                unit.unit_residuals(&mut prepared).map_err(|why| ValidateError::Stack { why: why.to_string() })?,
            );
        }
    }
    Ok(all)
}

/// Returns the rows that have a measured value of the quantity and can be predicted. Failed runs have no value.
fn measured_members(rows: &MeasuredRows, quantity: &'static str, prepared: &mut PreparedInputs) -> Vec<MeasuredStep> {
    let Some(target) = rows.dataset.target_columns().iter().find(|target| target.column == quantity) else {
        return Vec::new();
    };
    let predict = rows.dataset.predictor();
    let one = |at: usize| -> Result<MeasuredStep, RowFailure> {
        let row = rows.row_at(at);
        let none = || RowFailure::Unpredictable("nothing is measured".into());
        row.check_width()?;
        let value = row.measured_value(target)?.filter(|_| row.cell("fits") != Some("0")).ok_or_else(none)?;
        predict(prepared, &row)?;
        let mut facts = prepared.take_run_facts().ok_or_else(none)?;
        facts.stack.name = prepared.base_of_stack(&facts.stack.name).to_owned();
        Ok(MeasuredStep { at, facts, dataset: row.cell("dataset").unwrap_or("?").to_owned(), value })
    };
    (0..rows.records.len()).map(one).filter_map(Result::ok).collect()
}

/// Returns the stacks of the rows, in units. Stacks that share all fitted scalars are in one unit.
fn units_of_stacks(
    measured: &[MeasuredStep],
    options: &ValidateOptions,
) -> Result<Vec<Vec<SoftwareStack>>, ValidateError> {
    let mut units: Vec<Vec<SoftwareStack>> = Vec::new();
    for stack in stacks_of_rows(measured.iter(), options)? {
        match units.iter_mut().find(|unit| unit.first().is_some_and(|first| share_fitted_scalars(first, &stack))) {
            Some(unit) => unit.push(stack),
            None => units.push(vec![stack]),
        }
    }
    Ok(units)
}

/// Returns the stacks of the rows, sorted by name.
fn stacks_of_rows<'a>(
    measured: impl Iterator<Item = &'a MeasuredStep>,
    options: &ValidateOptions,
) -> Result<Vec<SoftwareStack>, ValidateError> {
    let mut names: Vec<&str> = measured.map(|m| m.facts.stack.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let load = |name: &str| {
        let file =
            options.stacks.as_ref().map(|directory| directory.join(format!("{name}.toml")).display().to_string());
        SoftwareStack::load(file.as_deref().unwrap_or(name))
            .map_err(|why| ValidateError::Stack { why: why.to_string() })
    };
    names.into_iter().map(load).collect()
}

/// Returns whether two stacks have equal scalars of launches, memory and sustained rates, except for the rate of narrow
/// products. Such stacks were fitted together.
fn share_fitted_scalars(a: &SoftwareStack, b: &SoftwareStack) -> bool {
    let sustained =
        |s: &SoftwareStack| (s.sustained.tensor_fraction, s.sustained.memory_fraction, s.sustained.attention_fraction);
    a.launch == b.launch && sustained(a) == sustained(b) && a.memory == b.memory
}

/// A fold to hold out.
struct FoldJob {
    /// Index of the scheme.
    scheme: usize,
    inside: Vec<usize>,
    rest: Vec<usize>,
}

impl FoldJob {
    /// Returns the folds of a scheme, as jobs.
    fn jobs_of_scheme(scheme: usize, folds: &RowFolds) -> Vec<Self> {
        let split = |fold: usize| {
            let (inside, rest) = (0..folds.of.len()).partition(|m| folds.of[*m] == fold);
            Self { scheme, inside, rest }
        };
        (0..folds.count).map(split).collect()
    }

    /// Returns the folds that leave enough rows for a fit, as jobs.
    fn with_enough_rest(scheme: usize, folds: &RowFolds) -> Vec<Self> {
        Self::jobs_of_scheme(scheme, folds)
            .into_iter()
            .filter(|job| folds.count > 1 && job.rest.len() >= LEAST_ROWS)
            .collect()
    }
}

/// Returns the next job and its index; `None` in place of the job if none is left.
fn take_next_job<'a>(next: &AtomicUsize, jobs: &'a [FoldJob]) -> (usize, Option<&'a FoldJob>) {
    let at = next.fetch_add(1, Ordering::Relaxed);
    (at, jobs.get(at))
}

/// One stack, or several that are fitted together, with their rows.
struct StackUnit<'a> {
    rows: &'a MeasuredRows,
    quantity: &'static str,
    members: Vec<&'a MeasuredStep>,
    stacks: Vec<SoftwareStack>,
    scalars: &'static [StackScalar],
}

impl StackUnit<'_> {
    /// Returns ln(predicted / measured) of some members under some stacks.
    fn errors_under(&self, members: &[usize], stacks: &[SoftwareStack], prepared: &mut PreparedInputs) -> Vec<f64> {
        prepared.replace_stacks(stacks);
        let predict = self.rows.dataset.predictor();
        let one = |m: &usize| {
            let member = self.members[*m];
            let row = self.rows.row_at(member.at);
            // A peak needs no step time, unless the source leaves the number of chunks open. Then the fastest number of
            // chunks is chosen.
            let stated = row.cell("virtual_stages").is_some() || row.cell("pp").is_none_or(|pp| pp == "1");
            let predict =
                if self.quantity == "peak_gib" && stated { Dataset::MemoryPeaks.predictor() } else { predict };
            let values = predict(prepared, &row).unwrap_or_default();
            let value =
                values.iter().find(|(column, _)| *column == self.quantity).map_or(f64::NAN, |(_, value)| *value);
            let error = (value / member.value).ln();
            if error.is_finite() { error } else { LOST }
        };
        let errors = members.iter().map(one).collect();
        prepared.take_assumptions();
        errors
    }

    /// Returns the scalars with equal values in all stacks of the unit.
    fn shared_scalars(&self) -> Vec<StackScalar> {
        let alike = |scalar: &&StackScalar| {
            self.stacks.iter().all(|stack| scalar.value_in(stack) == scalar.value_in(&self.stacks[0]))
        };
        self.scalars.iter().filter(alike).copied().collect()
    }

    fn unit_residuals(&self, prepared: &mut PreparedInputs) -> Result<Vec<RunResidual>, step::StackError> {
        let all: Vec<usize> = (0..self.members.len()).collect();
        let scalars = self.shared_scalars();
        let names: Vec<&str> = self.stacks.iter().map(|stack| stack.name.as_str()).collect();
        let prior = StackPrior::from_other_stacks(&scalars, &names)?;
        let question = StackCalibration { stacks: &self.stacks, scalars: &scalars, prior: &prior };
        let in_sample = self.errors_under(&all, &self.stacks, prepared);
        let unmet = self.errors_under(&all, &prior.apply_centres(&scalars, &self.stacks), prepared);
        prepared.replace_stacks(&[]);
        let folds: Vec<RowFolds> = HoldOutScheme::FITTED.iter().map(|scheme| self.folds_of_scheme(*scheme)).collect();
        let jobs: Vec<FoldJob> =
            folds.iter().enumerate().flat_map(|(scheme, folds)| FoldJob::with_enough_rest(scheme, folds)).collect();
        let mut held_out = vec![[None; 4]; all.len()];
        for (job, errors) in jobs.iter().zip(self.held_out_errors(&jobs, &question, (prepared, FITTED_ROWS))) {
            for (m, error) in job.inside.iter().zip(errors) {
                held_out[*m][job.scheme] = Some(-error);
            }
        }
        Ok(all.iter().map(|m| self.residual_of_member(*m, &folds, -in_sample[*m], held_out[*m], -unmet[*m])).collect())
    }

    /// Returns the errors of every fold under scalars fitted to at most `most` rows of the other folds. Folds run in
    /// parallel on the machine's cores.
    fn held_out_errors(
        &self,
        jobs: &[FoldJob],
        question: &StackCalibration<'_>,
        (prepared, most): (&PreparedInputs, usize),
    ) -> Vec<Vec<f64>> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut prepared = prepared.with_nothing_read();
            let mut done = Vec::new();
            while let (at, Some(job)) = take_next_job(&next, jobs) {
                let sample: Vec<usize> = job.rest.iter().step_by(job.rest.len().div_ceil(most)).copied().collect();
                let fit = question.fit_scalars(&mut |stacks| self.errors_under(&sample, stacks, &mut prepared));
                done.push((at, self.errors_under(&job.inside, &fit.stacks, &mut prepared)));
            }
            done
        };
        let mut all: Vec<(usize, Vec<f64>)> = std::thread::scope(|scope| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let workers: Vec<_> = (0..cores.min(jobs.len())).map(|_| scope.spawn(work)).collect();
            let joined = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.flatten().collect()
        });
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, errors)| errors).collect()
    }

    fn residual_of_member(
        &self,
        m: usize,
        folds: &[RowFolds],
        in_sample: f64,
        mut held_out: [Option<f64>; 4],
        unmet: f64,
    ) -> RunResidual {
        let member = self.members[m];
        let row = self.rows.row_at(member.at);
        held_out[HoldOutScheme::Stack as usize] = Some(unmet);
        let mut fold = [0; 4];
        for (at, folds) in folds.iter().enumerate() {
            fold[at] = folds.of[m];
        }
        RunResidual {
            quantity: self.quantity,
            dataset: member.dataset.clone(),
            id: row.id(),
            ranking: self.rows.dataset.ranking_of(&row),
            measured: member.value,
            facts: member.facts.clone(),
            in_sample,
            held_out,
            fold,
        }
    }

    fn folds_of_scheme(&self, scheme: HoldOutScheme) -> RowFolds {
        let row = |m: &&MeasuredStep| self.rows.row_at(m.at);
        match scheme {
            HoldOutScheme::Model => {
                let size = |m: &&MeasuredStep| super::dataset::parameters_of(&row(m)).unwrap_or(0);
                RowFolds::by_size(self.members.iter().map(size).collect())
            }
            HoldOutScheme::Nodes => RowFolds::by_size(self.members.iter().map(|m| u64::from(m.facts.chips)).collect()),
            HoldOutScheme::Chip | HoldOutScheme::Stack => {
                RowFolds::by_name(self.members.iter().map(|m| m.facts.chip.name.clone()).collect())
            }
        }
    }
}

/// Returns a CSV table with one line per row and quantity, from which intervals are made. The columns are [`COLUMNS`].
/// Errors are ln(measured / predicted), with four decimals.
#[must_use]
pub fn residuals_csv(residuals: &[RunResidual]) -> String {
    let mut text = format!("{}\n", COLUMNS.join(","));
    for r in residuals {
        let facts = &r.facts;
        let mechanisms: Vec<&str> = facts.mechanisms.iter().map(Mechanism::name).collect();
        let ranking = r.ranking.clone().unwrap_or_default();
        let mut cells = vec![r.quantity.to_owned(), r.dataset.clone(), r.id.clone(), ranking, r.measured.to_string()];
        cells.extend(
            [&facts.chip, &facts.fabric, &facts.stack].into_iter().flat_map(|k| [k.name.clone(), k.kind.clone()]),
        );
        cells.extend([mechanisms.join("+"), facts.chips.to_string(), format!("{:.4}", r.in_sample)]);
        cells.extend(r.held_out.iter().map(|error| error.map_or_else(String::new, |error| format!("{error:.4}"))));
        cells.extend(r.fold.iter().take(2).map(ToString::to_string));
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}
