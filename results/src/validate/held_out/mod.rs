//! `coplace validate --held-out FILE...`: how far predictions are off on rows that nothing was fitted on.
//!
//! The rows of a file are split by software stack. A stack's few scalars are fitted anew on all rows but those of a fold (models of one size, one
//! chip, one number of nodes), beginning where the *other* stacks have them, and the fold is predicted. Besides, every row is predicted with what
//! the other stacks give alone, as of software that nobody measured. What a chip's or a fabric's scalars were fitted on is not taken back: they
//! know kernels and collectives, no training run. Those by themselves are held out too ([`alone_residuals`]).

mod alone;
mod calibration;
mod fabric;
mod folds;
mod kernels;
mod text;

pub use alone::{AloneResidual, alone_coverage, alone_csv, alone_report, alone_residuals};
pub use calibration::{Calibrated, FittedScalar, FromFew, Part, calibrate, from_few};
pub use fabric::{CalibratedFabric, FabricFit, calibrate_fabric, collective_residuals};
pub use kernels::kernel_residuals;
pub use text::{few, report};

use super::predict::Prepared;
use super::row::RowFailure;
use super::{Dataset, Options, Row, Table, ValidateError};
use crate::evidence::{COLUMNS, Facts, Scheme};
use folds::Folds;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use step::SoftwareStack;
use step::calibrate::{MEMORY, Prior, Question, Scalar, TIME};

/// Rows that a fit looks at: of more, as many evenly spread over the file.
const FITTED_ROWS: usize = 60;
/// The least rows that a stack is fitted to.
const LEAST_ROWS: usize = 5;
/// ln(predicted / measured) of a row that fitted scalars leave without a prediction.
const LOST: f64 = 10.0;

/// The errors of one row's prediction, each ln(measured / predicted).
#[derive(Debug, Clone, PartialEq)]
pub struct Residual {
    /// `iteration_s` or `peak_gib`.
    pub quantity: &'static str,
    /// The row's data set.
    pub dataset: String,
    /// The row's id.
    pub id: String,
    /// The rows that it competes with.
    pub ranking: Option<String>,
    /// The measured value.
    pub measured: f64,
    /// What the prediction rests on.
    pub facts: Facts,
    /// With the scalars as they are.
    pub in_sample: f64,
    /// With its fold held out; `None` where the stack's rows are all of one fold.
    pub held_out: [Option<f64>; 4],
    /// Its fold under every scheme.
    pub fold: [usize; 4],
}

/// What is measured of a row.
struct Measured {
    /// Its place among the records.
    at: usize,
    facts: Facts,
    dataset: String,
    value: f64,
}

/// The rows of a file of training runs.
struct Rows {
    path: PathBuf,
    header: csv::StringRecord,
    dataset: Dataset,
    records: Vec<(u64, csv::StringRecord)>,
}

impl Rows {
    fn row(&self, at: usize) -> Row<'_> {
        let (line, cells) = &self.records[at];
        Row::new(&self.path, *line, &self.header, cells)
    }

    fn read(path: &Path) -> Result<Self, ValidateError> {
        Self::read_if(path, |dataset| matches!(dataset, Dataset::TrainingRuns | Dataset::MemoryPeaks))
    }

    /// The rows of a file that holds what is wanted.
    fn read_if(path: &Path, wanted: impl Fn(Dataset) -> bool) -> Result<Self, ValidateError> {
        let text = sim::files::text::bytes(path).map_err(|why| ValidateError::Open { file: path.into(), why })?;
        let mut table = Table::open(path, &text)?;
        if !wanted(table.dataset) {
            return Err(ValidateError::NotRuns { file: path.into(), dataset: table.dataset });
        }
        let mut records = Vec::new();
        table.each_row(|row| {
            if let Ok(row) = row {
                records.push((row.line(), row.cells().clone()));
            }
        });
        Ok(Self { path: path.into(), header: table.header.clone(), dataset: table.dataset, records })
    }
}

/// The residuals of every row of a file that can be predicted, by quantity and stack.
///
/// # Errors
/// A file that cannot be read or that has no training runs; a built-in stack that cannot be read.
pub fn residuals(path: &Path, options: &Options) -> Result<Vec<Residual>, ValidateError> {
    let rows = Rows::read(path)?;
    let mut prepared = Prepared::new(options);
    let mut all = Vec::new();
    for (quantity, scalars) in [("iteration_s", &TIME[..]), ("peak_gib", &MEMORY[..])] {
        let measured = measured(&rows, quantity, &mut prepared);
        for stacks in units(&measured, options)? {
            let of_unit = |m: &&Measured| stacks.iter().any(|stack| stack.name == m.facts.stack.name);
            let unit = Unit { rows: &rows, quantity, members: measured.iter().filter(of_unit).collect(), stacks, scalars };
            all.extend(unit.residuals(&mut prepared).map_err(|why| ValidateError::Stack { why: why.to_string() })?);
        }
    }
    Ok(all)
}

/// The rows with a measured value of the quantity that can be predicted; runs that failed have none.
fn measured(rows: &Rows, quantity: &'static str, prepared: &mut Prepared) -> Vec<Measured> {
    let Some(target) = rows.dataset.targets().iter().find(|target| target.column == quantity) else { return Vec::new() };
    let predict = rows.dataset.predictor();
    let one = |at: usize| -> Result<Measured, RowFailure> {
        let row = rows.row(at);
        let none = || RowFailure::Unpredictable("nothing is measured".into());
        row.check_width()?;
        let value = row.measured(target)?.filter(|_| row.cell("fits") != Some("0")).ok_or_else(none)?;
        predict(prepared, &row)?;
        let facts = prepared.take_facts().ok_or_else(none)?;
        Ok(Measured { at, facts, dataset: row.cell("dataset").unwrap_or("?").to_owned(), value })
    };
    (0..rows.records.len()).map(one).filter_map(Result::ok).collect()
}

/// The stacks of the rows, those that share all that is fitted in one list.
fn units(measured: &[Measured], options: &Options) -> Result<Vec<Vec<SoftwareStack>>, ValidateError> {
    let mut units: Vec<Vec<SoftwareStack>> = Vec::new();
    for stack in stacks(measured.iter(), options)? {
        match units.iter_mut().find(|unit| unit.first().is_some_and(|first| fitted_alike(first, &stack))) {
            Some(unit) => unit.push(stack),
            None => units.push(vec![stack]),
        }
    }
    Ok(units)
}

/// The stacks that rows ran under, by name.
fn stacks<'a>(measured: impl Iterator<Item = &'a Measured>, options: &Options) -> Result<Vec<SoftwareStack>, ValidateError> {
    let mut names: Vec<&str> = measured.map(|m| m.facts.stack.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let load = |name: &str| {
        let file = options.stacks.as_ref().map(|directory| directory.join(format!("{name}.toml")).display().to_string());
        SoftwareStack::load(file.as_deref().unwrap_or(name)).map_err(|why| ValidateError::Stack { why: why.to_string() })
    };
    names.into_iter().map(load).collect()
}

/// Whether two stacks have the same values of all that is fitted, but for the rate of narrow products: they were fitted together.
fn fitted_alike(a: &SoftwareStack, b: &SoftwareStack) -> bool {
    let sustained =
        |s: &SoftwareStack| (s.sustained.tensor_fraction, s.sustained.memory_fraction, s.sustained.attention_fraction);
    a.launch == b.launch && sustained(a) == sustained(b) && a.memory == b.memory
}

/// A fold to be held out.
struct Job {
    /// Of which scheme, by its place.
    scheme: usize,
    inside: Vec<usize>,
    rest: Vec<usize>,
}

impl Job {
    /// The folds of a scheme.
    fn of(scheme: usize, folds: &Folds) -> Vec<Self> {
        let split = |fold: usize| {
            let (inside, rest) = (0..folds.of.len()).partition(|m| folds.of[*m] == fold);
            Self { scheme, inside, rest }
        };
        (0..folds.count).map(split).collect()
    }

    /// Those that leave rows enough.
    fn with_rest(scheme: usize, folds: &Folds) -> Vec<Self> {
        Self::of(scheme, folds).into_iter().filter(|job| folds.count > 1 && job.rest.len() >= LEAST_ROWS).collect()
    }
}

/// The next of the jobs, with its place.
fn take<'a>(next: &AtomicUsize, jobs: &'a [Job]) -> (usize, Option<&'a Job>) {
    let at = next.fetch_add(1, Ordering::Relaxed);
    (at, jobs.get(at))
}

/// One stack, or several that are fitted together, with their rows.
struct Unit<'a> {
    rows: &'a Rows,
    quantity: &'static str,
    members: Vec<&'a Measured>,
    stacks: Vec<SoftwareStack>,
    scalars: &'static [Scalar],
}

impl Unit<'_> {
    /// ln(predicted / measured) of some members under some stacks.
    fn errors(&self, members: &[usize], stacks: &[SoftwareStack], prepared: &mut Prepared) -> Vec<f64> {
        prepared.drive(stacks);
        let predict = self.rows.dataset.predictor();
        let one = |m: &usize| {
            let member = self.members[*m];
            let row = self.rows.row(member.at);
            // A peak needs no step, but for the number of chunks that a source leaves open: the fastest.
            let stated = row.cell("virtual_stages").is_some() || row.cell("pp").is_none_or(|pp| pp == "1");
            let predict = if self.quantity == "peak_gib" && stated { Dataset::MemoryPeaks.predictor() } else { predict };
            let values = predict(prepared, &row).unwrap_or_default();
            let value = values.iter().find(|(column, _)| *column == self.quantity).map_or(f64::NAN, |(_, value)| *value);
            let error = (value / member.value).ln();
            if error.is_finite() { error } else { LOST }
        };
        let errors = members.iter().map(one).collect();
        prepared.take_assumed();
        errors
    }

    /// The scalars that the unit's stacks share.
    fn shared(&self) -> Vec<Scalar> {
        let alike = |scalar: &&Scalar| self.stacks.iter().all(|stack| scalar.of(stack) == scalar.of(&self.stacks[0]));
        self.scalars.iter().filter(alike).copied().collect()
    }

    fn residuals(&self, prepared: &mut Prepared) -> Result<Vec<Residual>, step::StackError> {
        let all: Vec<usize> = (0..self.members.len()).collect();
        let scalars = self.shared();
        let names: Vec<&str> = self.stacks.iter().map(|stack| stack.name.as_str()).collect();
        let prior = Prior::of_others(&scalars, &names)?;
        let question = Question { stacks: &self.stacks, scalars: &scalars, prior: &prior };
        let in_sample = self.errors(&all, &self.stacks, prepared);
        let unmet = self.errors(&all, &prior.applied(&scalars, &self.stacks), prepared);
        prepared.drive(&[]);
        let folds: Vec<Folds> = Scheme::FITTED.iter().map(|scheme| self.folds(*scheme)).collect();
        let jobs: Vec<Job> = folds.iter().enumerate().flat_map(|(scheme, folds)| Job::with_rest(scheme, folds)).collect();
        let mut held_out = vec![[None; 4]; all.len()];
        for (job, errors) in jobs.iter().zip(self.held_out(&jobs, &question, (prepared, FITTED_ROWS))) {
            for (m, error) in job.inside.iter().zip(errors) {
                held_out[*m][job.scheme] = Some(-error);
            }
        }
        Ok(all.iter().map(|m| self.residual(*m, &folds, -in_sample[*m], held_out[*m], -unmet[*m])).collect())
    }

    /// The errors of every fold under scalars fitted to the others, or to so many of them, folds side by side on the machine's cores.
    fn held_out(&self, jobs: &[Job], question: &Question<'_>, (prepared, most): (&Prepared, usize)) -> Vec<Vec<f64>> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut prepared = prepared.afresh();
            let mut done = Vec::new();
            while let (at, Some(job)) = take(&next, jobs) {
                let sample: Vec<usize> = job.rest.iter().step_by(job.rest.len().div_ceil(most)).copied().collect();
                let fit = question.fit(&mut |stacks| self.errors(&sample, stacks, &mut prepared));
                done.push((at, self.errors(&job.inside, &fit.stacks, &mut prepared)));
            }
            done
        };
        let mut all: Vec<(usize, Vec<f64>)> = std::thread::scope(|scope| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let workers: Vec<_> = (0..cores.min(jobs.len())).map(|_| scope.spawn(work)).collect();
            let joined = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.flatten().collect()
        });
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, errors)| errors).collect()
    }

    fn residual(&self, m: usize, folds: &[Folds], in_sample: f64, mut held_out: [Option<f64>; 4], unmet: f64) -> Residual {
        let member = self.members[m];
        let row = self.rows.row(member.at);
        held_out[Scheme::Stack as usize] = Some(unmet);
        let mut fold = [0; 4];
        for (at, folds) in folds.iter().enumerate() {
            fold[at] = folds.of[m];
        }
        Residual {
            quantity: self.quantity,
            dataset: member.dataset.clone(),
            id: row.id(),
            ranking: self.rows.dataset.ranking(&row),
            measured: member.value,
            facts: member.facts.clone(),
            in_sample,
            held_out,
            fold,
        }
    }

    fn folds(&self, scheme: Scheme) -> Folds {
        let row = |m: &&Measured| self.rows.row(m.at);
        match scheme {
            Scheme::Model => {
                let size = |m: &&Measured| super::dataset::parameters(&row(m)).unwrap_or(0);
                Folds::by_size(self.members.iter().map(size).collect())
            }
            Scheme::Nodes => Folds::by_size(self.members.iter().map(|m| u64::from(m.facts.chips)).collect()),
            Scheme::Chip | Scheme::Stack => Folds::by_name(self.members.iter().map(|m| m.facts.chip.name.clone()).collect()),
        }
    }
}

/// A line per row and quantity, of what intervals are made of: the columns are [`COLUMNS`]. Errors are ln(measured / predicted), to four digits.
#[must_use]
pub fn csv(residuals: &[Residual]) -> String {
    let mut text = format!("{}\n", COLUMNS.join(","));
    for r in residuals {
        let facts = &r.facts;
        let mechanisms: Vec<&str> = facts.mechanisms.iter().map(String::as_str).collect();
        let ranking = r.ranking.clone().unwrap_or_default();
        let mut cells = vec![r.quantity.to_owned(), r.dataset.clone(), r.id.clone(), ranking, r.measured.to_string()];
        cells.extend([&facts.chip, &facts.fabric, &facts.stack].into_iter().flat_map(|k| [k.name.clone(), k.kind.clone()]));
        cells.extend([mechanisms.join("+"), facts.chips.to_string(), format!("{:.4}", r.in_sample)]);
        cells.extend(r.held_out.iter().map(|error| error.map_or_else(String::new, |error| format!("{error:.4}"))));
        cells.extend(r.fold.iter().take(2).map(ToString::to_string));
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}
