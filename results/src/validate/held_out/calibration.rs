//! A software stack fitted to a user's own runs.

use super::{FoldJob, LEAST_ROWS, MeasuredRows, MeasuredStep, RowFolds, StackUnit, measured_members};
use crate::evidence::HoldOutScheme;
use crate::validate::predict::PreparedInputs;
use crate::validate::{ValidateError, ValidateOptions};
use serde::Serialize;
use sim::scalar_fit::LEFT_OUT;
use std::path::Path;
use step::SoftwareStack;
use step::calibrate::{FittedOption, MEMORY, StackCalibration, StackPrior, StackScalar, TIME};

/// A stack as some runs determine it.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibratedStack {
    /// The stack with the fitted scalars and their sources.
    pub stack: SoftwareStack,
    /// Rows in the file.
    pub rows: usize,
    /// What was fitted: step times, peaks of memory.
    pub parts: Vec<QuantityFit>,
}

/// The scalars of one quantity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantityFit {
    /// `iteration_s` or `peak_gib`.
    pub quantity: &'static str,
    /// Rows with a measured value that can be predicted.
    pub rows: usize,
    /// Mean absolute error in percent with the scalars of the stack as it was.
    pub before_pct: f64,
    /// With the fitted ones, on the rows that they were fitted on.
    pub after_pct: f64,
    /// On rows that are left out in turn.
    pub left_out_pct: f64,
    /// On models that are left out in turn; `None` where there is one.
    pub by_model_pct: Option<f64>,
    /// The scalars.
    pub scalars: Vec<FittedScalarRange>,
}

/// A scalar, and between what the rows put it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FittedScalarRange {
    /// Its key in the file, unit included.
    pub key: String,
    /// What the stack or the fabric had.
    pub before: f64,
    /// What it has.
    pub after: f64,
    /// The 90 % range, the others fixed.
    pub range: (f64, f64),
    /// Whether the rows determine it; if not it keeps its value.
    pub determined: bool,
}

impl From<&FittedOption> for FittedScalarRange {
    fn from(fitted: &FittedOption) -> Self {
        let FittedOption { key, prior, value, range, determined } = *fitted;
        Self { key: key.to_owned(), before: prior, after: value, range, determined }
    }
}

/// Fits a stack's scalars to the runs of a file, from the stack's own values; every row is taken to have run under it. `name` is the new stack's.
///
/// # Errors
/// A file that cannot be read or holds no runs; fewer than five that can be predicted.
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
    for (quantity, scalars) in [("iteration_s", &TIME[..]), ("peak_gib", &MEMORY[..])] {
        prepared.replace_stacks(std::slice::from_ref(base));
        let measured = measured_members(&rows, quantity, &mut prepared);
        if measured.len() < LEAST_ROWS {
            continue;
        }
        let members: Vec<&MeasuredStep> = measured.iter().collect();
        let unit = StackUnit { rows: &rows, quantity, members, stacks: vec![base.clone()], scalars };
        let prior = StackPrior::around_stack(scalars, base).map_err(|why| ValidateError::Stack { why: why.to_string() })?;
        let part = unit.fit_quantity(&prior, &mut found.stack, &mut prepared);
        for scalar in part.scalars.iter().filter(|s| s.determined) {
            found.stack.sources.insert(scalar.key.clone(), source_text(path, &part, scalar));
        }
        found.parts.push(part);
    }
    if found.parts.is_empty() {
        return Err(ValidateError::TooFewRuns { file: path.into(), least: LEAST_ROWS, rows: found.rows });
    }
    name.clone_into(&mut found.stack.name);
    let built_in = || SoftwareStack::built_in_names().contains(&base.name).then(|| base.name.clone());
    found.stack.calibrated_from = base.calibrated_from.clone().or_else(built_in);
    Ok(found)
}

fn source_text(path: &Path, part: &QuantityFit, scalar: &FittedScalarRange) -> String {
    format!(
        "coplace calibrate: fitted on {} rows of {} ({}), between {:.4} and {:.4}; {:.1} % off on rows left out",
        part.rows,
        path.display(),
        part.quantity,
        scalar.range.0,
        scalar.range.1,
        part.left_out_pct
    )
}

impl StackUnit<'_> {
    /// Fits, and holds out.
    fn fit_quantity(&self, prior: &StackPrior, stack: &mut SoftwareStack, prepared: &mut PreparedInputs) -> QuantityFit {
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
        let count = all.len().min(LEFT_OUT);
        let parts = RowFolds { of: all.iter().map(|m| m % count).collect(), count };
        let models = self.folds_of_scheme(HoldOutScheme::Model);
        QuantityFit {
            quantity: self.quantity,
            rows: all.len(),
            before_pct: mean_percent(&before),
            after_pct: mean_percent(&after),
            left_out_pct: self.error_left_out(&question, &parts, prepared),
            by_model_pct: (models.count > 1).then(|| self.error_left_out(&question, &models, prepared)),
            scalars: fit.scalars.iter().map(FittedScalarRange::from).collect(),
        }
    }

    /// The mean absolute error in percent on folds that are left out in turn.
    fn error_left_out(&self, question: &StackCalibration<'_>, folds: &RowFolds, prepared: &PreparedInputs) -> f64 {
        mean_percent(&self.held_out_errors(&FoldJob::jobs_of_scheme(0, folds), question, (prepared, self.members.len())).concat())
    }
}

/// The mean absolute error in percent of ln(predicted / measured).
pub(super) fn mean_percent(errors: &[f64]) -> f64 {
    errors.iter().map(|e| (e.exp() - 1.0).abs() * 100.0).sum::<f64>() / errors.len().max(1) as f64
}

/// How a stack fitted to a few rows predicts the others of a data set.
#[derive(Debug, Clone, PartialEq)]
pub struct FewRunsFit {
    /// The data set.
    pub dataset: String,
    /// The rows that were fitted.
    pub fitted: usize,
    /// The rows that were predicted.
    pub rows: usize,
    /// The stack's own scalars, fitted on most of these rows: mean absolute error in percent on the predicted ones.
    pub built_in_pct: f64,
    /// The scalars fitted to the few, from where the other stacks have them.
    pub few_pct: f64,
}

/// Rows that the comparison fits.
const FEW: usize = 8;

/// For every data set of a file with runs enough: the step times of all but eight rows, spread evenly over the file, predicted by stacks that were
/// fitted to the eight from where *other* stacks have their scalars, beside the built-in stacks.
///
/// # Errors
/// As [`super::residuals`].
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
        let prior =
            StackPrior::from_other_stacks(&shared, &names).map_err(|why| ValidateError::Stack { why: why.to_string() })?;
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
