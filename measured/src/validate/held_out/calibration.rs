//! Fits a software stack to a user's own runs.

use super::{FoldJob, LEAST_ROWS, LOST, MeasuredRows, MeasuredStep, RowFolds, StackUnit, measured_members};
use crate::evidence::HoldOutScheme;
use crate::validate::predict::PreparedInputs;
use crate::validate::{ValidateError, ValidateOptions};
use serde::Serialize;
use sim::scalar_fit::LEFT_OUT;
use std::path::Path;
use step::calibrate::{FittedOption, MEMORY, StackCalibration, StackPrior, StackScalar, TIME};
use step::{FittedRun, SoftwareStack};

/// A stack fitted to runs.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibratedStack {
    /// The stack with the fitted scalars and their sources.
    pub stack: SoftwareStack,
    /// Number of rows in the file.
    pub rows: usize,
    /// The fitted quantities: step times, peaks of memory.
    pub parts: Vec<QuantityFit>,
}

/// The fit of one quantity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantityFit {
    /// `iteration_s` or `peak_gib`.
    pub quantity: &'static str,
    /// Number of rows with a measured value that can be predicted.
    pub rows: usize,
    /// Mean absolute error in percent with the stack's original scalars.
    pub before_pct: f64,
    /// Error with the fitted scalars, on the fitted rows.
    pub after_pct: f64,
    /// Error on rows that are held out in turn.
    pub left_out_pct: f64,
    /// Error on models that are held out in turn; `None` if there is only one.
    pub by_model_pct: Option<f64>,
    /// The scalars.
    pub scalars: Vec<FittedScalarRange>,
}

/// A fitted scalar with its range.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FittedScalarRange {
    /// The key in the file, with the unit.
    pub key: String,
    /// The value before the fit.
    pub before: f64,
    /// The value after the fit.
    pub after: f64,
    /// The 90 % range. Within it, the other scalars move along as far as they are uncertain.
    pub range: (f64, f64),
    /// True if the rows determine the scalar. Otherwise it keeps its value.
    pub determined: bool,
}

impl From<&FittedOption> for FittedScalarRange {
    fn from(fitted: &FittedOption) -> Self {
        let FittedOption { key, prior, value, range, determined } = *fitted;
        Self { key: key.to_owned(), before: prior, after: value, range, determined }
    }
}

/// Returns a stack with scalars fitted to the runs of a file, starting from the values of `base`. All rows are assumed
/// to have run under this stack. `name` is the name of the new stack.
///
/// # Errors
/// A file that cannot be read or has no runs; fewer than five runs that can be predicted.
pub fn calibrate_stack(
    path: &Path,
    base: &SoftwareStack,
    name: &str,
    options: &ValidateOptions,
) -> Result<CalibratedStack, ValidateError> {
    let rows = MeasuredRows::read_rows(path)?;
    let mut prepared = PreparedInputs::new(options);
    prepared.force_stack(base);
    let mut found = CalibratedStack { stack: base.clone(), rows: rows.records.len(), parts: Vec::new() };
    let mut runs = Vec::new();
    for (quantity, scalars) in [("iteration_s", &TIME[..]), ("peak_gib", &MEMORY[..])] {
        prepared.replace_stacks(std::slice::from_ref(base));
        let measured = measured_members(&rows, quantity, &mut prepared);
        if measured.len() < LEAST_ROWS {
            continue;
        }
        let members: Vec<&MeasuredStep> = measured.iter().collect();
        let unit = StackUnit { rows: &rows, quantity, members, stacks: vec![base.clone()], scalars };
        let prior =
            StackPrior::around_stack(scalars, base).map_err(|why| ValidateError::Stack { why: why.to_string() })?;
        let (part, of_quantity) = unit.fit_quantity(&prior, &mut found.stack, &mut prepared);
        runs.extend(of_quantity);
        for scalar in part.scalars.iter().filter(|s| s.determined) {
            found.stack.sources.insert(scalar.key.clone(), source_text(path, &part, scalar));
        }
        found.parts.push(part);
    }
    if found.parts.is_empty() {
        return Err(ValidateError::TooFewRuns { file: path.into(), least: LEAST_ROWS, rows: found.rows });
    }
    name.clone_into(&mut found.stack.name);
    found.stack.runs = runs.into();
    let built_in = || SoftwareStack::built_in_names().contains(&base.name).then(|| base.name.clone());
    found.stack.calibrated_from = base.calibrated_from.clone().or_else(built_in);
    Ok(found)
}

fn source_text(path: &Path, part: &QuantityFit, scalar: &FittedScalarRange) -> String {
    format!(
        "coplace calibrate: fitted on {} rows of {} ({}), between {:.4} and {:.4}; {:.1} % off on held-out rows",
        part.rows,
        path.display(),
        part.quantity,
        scalar.range.0,
        scalar.range.1,
        part.left_out_pct
    )
}

impl StackUnit<'_> {
    /// Fits the scalars, writes them into `stack`, and returns the fit and the runs with their errors on held-out rows.
    fn fit_quantity(
        &self,
        prior: &StackPrior,
        stack: &mut SoftwareStack,
        prepared: &mut PreparedInputs,
    ) -> (QuantityFit, Vec<FittedRun>) {
        let all: Vec<usize> = (0..self.members.len()).collect();
        let question = StackCalibration { stacks: &self.stacks, scalars: self.scalars, prior };
        let fit = question.fit_with_ranges(&mut |stacks| self.errors_under(&all, stacks, prepared));
        if let Some(fitted) = fit.stacks.first() {
            for scalar in self.scalars {
                scalar.copy_value(fitted, stack);
            }
        }
        let before = self.errors_under(&all, &self.stacks, prepared);
        let after = self.errors_under(&all, &fit.stacks, prepared);
        let without = self.errors_without(&question, prepared);
        let [by_run, by_model, _] =
            [0, 1, 2].map(|scheme| without.iter().filter_map(|errors| errors[scheme]).collect::<Vec<f64>>());
        let part = QuantityFit {
            quantity: self.quantity,
            rows: all.len(),
            before_pct: mean_percent(&before),
            after_pct: mean_percent(&after),
            left_out_pct: mean_percent(&by_run),
            by_model_pct: (!by_model.is_empty()).then(|| mean_percent(&by_model)),
            scalars: fit.scalars.iter().map(FittedScalarRange::from).collect(),
        };
        (part, all.iter().filter_map(|m| self.fitted_run(*m, without[*m])).collect())
    }

    /// Returns the errors ln(predicted / measured) of every row under scalars fitted without the row, without models of
    /// similar size, and without runs on a similar number of chips. `None` if all rows are alike.
    fn errors_without(&self, question: &StackCalibration<'_>, prepared: &PreparedInputs) -> Vec<[Option<f64>; 3]> {
        let rows = self.members.len();
        let count = rows.min(LEFT_OUT);
        let folds = [
            RowFolds { of: (0..rows).map(|m| m % count).collect(), count },
            self.folds_of_scheme(HoldOutScheme::Model),
            self.folds_of_scheme(HoldOutScheme::Nodes),
        ];
        let apart = folds.iter().enumerate().filter(|(_, folds)| folds.count > 1);
        let jobs: Vec<FoldJob> = apart.flat_map(|(scheme, folds)| FoldJob::jobs_of_scheme(scheme, folds)).collect();
        let mut found = vec![[None; 3]; rows];
        for (job, errors) in jobs.iter().zip(self.held_out_errors(&jobs, question, (prepared, rows))) {
            for (m, error) in job.inside.iter().zip(errors) {
                found[*m][job.scheme] = Some(error);
            }
        }
        found
    }

    /// Returns a row as the stack's file keeps it; `None` if a fit without it cannot predict it.
    fn fitted_run(&self, m: usize, without: [Option<f64>; 3]) -> Option<FittedRun> {
        let MeasuredStep { at, facts, .. } = self.members[m];
        let row = self.rows.row_at(*at);
        // ln(measured / predicted), with four decimals.
        let kept = |error: f64| (error < LOST).then(|| (-error * 1e4).round() / 1e4);
        let [error_without_run, error_without_model, error_without_scale] = without.map(|error| kept(error?));
        Some(FittedRun {
            id: row.id(),
            quantity: self.quantity.to_owned(),
            parameters: crate::validate::dataset::parameters_of(&row).unwrap_or(0).min(i64::MAX.unsigned_abs()),
            chip: facts.chip.name.clone(),
            fabric: facts.fabric.name.clone(),
            chips: facts.chips,
            mechanisms: facts.mechanisms.iter().map(ToString::to_string).collect(),
            error_without_run: error_without_run?,
            error_without_model,
            error_without_scale,
        })
    }
}

/// Returns the mean absolute error in percent, from errors ln(predicted / measured).
#[must_use]
pub fn mean_percent(errors: &[f64]) -> f64 {
    errors.iter().map(|e| (e.exp() - 1.0).abs() * 100.0).sum::<f64>() / errors.len().max(1) as f64
}

/// The errors of a stack that was fitted to a few rows, on the other rows of a data set.
#[derive(Debug, Clone, PartialEq)]
pub struct FewRunsFit {
    /// The data set.
    pub dataset: String,
    /// The fitted rows.
    pub fitted: usize,
    /// The predicted rows.
    pub rows: usize,
    /// Mean absolute error in percent on the predicted rows with the stack's own scalars, which were fitted to most of
    /// these rows.
    pub built_in_pct: f64,
    /// The same error with scalars fitted to the few rows, starting from those of other stacks.
    pub few_pct: f64,
}

/// Number of fitted rows in the comparison.
const FEW: usize = 8;

/// Compares stacks that were fitted to eight rows with the built-in stacks, for every data set of a file with at least
/// sixteen runs. The eight rows are spread evenly over the file, and the step times of all other rows are predicted.
/// Fits start from the scalars of the *other* stacks.
///
/// # Errors
/// As [`super::run_residuals`].
pub fn fit_from_few(path: &Path, options: &ValidateOptions) -> Result<Vec<FewRunsFit>, ValidateError> {
    let rows = MeasuredRows::read_rows(path)?;
    let mut prepared = PreparedInputs::new(options);
    let measured = measured_members(&rows, "iteration_s", &mut prepared);
    let mut sets: Vec<&str> = measured.iter().map(|m| m.dataset.as_str()).collect();
    sets.sort_unstable();
    sets.dedup();
    let mut found = Vec::new();
    for set in sets {
        let of_set: Vec<&MeasuredStep> = measured.iter().filter(|m| m.dataset == set).collect();
        if of_set.len() < 2 * FEW {
            continue;
        }
        let stacks = super::stacks_of_rows(of_set.iter().copied(), options)?;
        let names: Vec<&str> = stacks.iter().map(|stack| stack.name.as_str()).collect();
        let (count, scalars) = (of_set.len(), &TIME[..]);
        let unit = StackUnit { rows: &rows, quantity: "iteration_s", members: of_set, stacks: stacks.clone(), scalars };
        let shared: Vec<StackScalar> = unit.shared_scalars();
        let prior = StackPrior::from_other_stacks(&shared, &names)
            .map_err(|why| ValidateError::Stack { why: why.to_string() })?;
        let question = StackCalibration { stacks: &stacks, scalars: &shared, prior: &prior };
        let (few, rest): (Vec<usize>, Vec<usize>) = (0..count).partition(|m| (m * FEW) % count < FEW);
        let fit = question.fit_scalars(&mut |stacks| unit.errors_under(&few, stacks, &mut prepared));
        found.push(FewRunsFit {
            dataset: set.to_owned(),
            fitted: few.len(),
            rows: rest.len(),
            built_in_pct: mean_percent(&unit.errors_under(&rest, &stacks, &mut prepared)),
            few_pct: mean_percent(&unit.errors_under(&rest, &fit.stacks, &mut prepared)),
        });
        prepared.replace_stacks(&[]);
    }
    Ok(found)
}
