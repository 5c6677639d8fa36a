//! `coplace validate FILE.csv...`: predicts every row of measured data and reports the errors.
//!
//! The columns of a file identify its data set. Malformed rows, and rows that cannot be predicted (with an unknown
//! chip, kernel or data type), are counted and named, never dropped silently. All other rows are scored. Nothing is
//! fitted here: the adapters only translate rows for the models.

mod dataset;
pub mod held_out;
mod measurements;
mod out_of_memory;
mod predict;
mod predictor;
mod ranking;
mod row;
mod score;
mod target;

pub use dataset::Dataset;
pub use measurements::{ChipMeasurements, read_measurements};
pub use out_of_memory::OutOfMemoryScore;
pub use ranking::{RankingScore, score_rankings};
pub use row::{MeasuredRow, RowError, RowFailure};
pub use score::{GroupScore, WorstRow, find_median};
pub use target::{TargetColumn, TargetRange};

use crate::evidence::{AloneFacts, AloneResiduals, Grade, PredictedQuantity, PredictionFacts, ResidualTable};
use serde::Serialize;
use sim::files::lines::LineCounter;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use step::StepTime;

/// Version of the JSON from [`reports_json`].
pub const FORMAT: u32 = 1;

/// An error that concerns a whole file.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {why}; give a readable CSV file", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// Message of the system.
        why: io::Error,
    },
    /// The file is no CSV file with a header line.
    #[error("{}: {why}; give a comma-separated file with one header line", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Message of the CSV reader.
        why: String,
    },
    /// The file's columns belong to no data set.
    #[error("{}: columns {found} belong to no known data set; known are {known}; a log of nccl-tests and a trace of \
        PyTorch's profiler are read, too", file.display())]
    Unrecognised {
        /// The file.
        file: PathBuf,
        /// The found columns.
        found: String,
        /// The known data sets with their identifying columns.
        known: String,
    },
    /// Required columns of the file's data set are missing.
    #[error("{}: a {dataset} file needs the columns {missing}; add them (an empty cell means unknown)", file.display())]
    MissingColumns {
        /// The file.
        file: PathBuf,
        /// The data set.
        dataset: Dataset,
        /// The missing columns.
        missing: String,
    },
    /// A column name occurs twice.
    #[error("{}: column `{column}` occurs twice; keep one of them", file.display())]
    DuplicateColumn {
        /// The file.
        file: PathBuf,
        /// The column.
        column: String,
    },
    /// A chip can only be fitted to kernels.
    #[error("{}: this is a {dataset} file, but a chip's scalars are fitted to measured kernels; give a kernels file", file.display())]
    NotKernels {
        /// The file.
        file: PathBuf,
        /// The file's data set.
        dataset: Dataset,
    },
    /// A stack can only be fitted to training runs.
    #[error("{}: this is a {dataset} file, but a software stack's scalars are fitted to training runs; give such a \
        file", file.display())]
    NotRuns {
        /// The file.
        file: PathBuf,
        /// The file's data set.
        dataset: Dataset,
    },
    /// Too few runs for fitting a stack.
    #[error("{}: fewer than {least} of {rows} rows have a measured step time or peak and can be predicted; give at \
        least {least} (`coplace validate` explains the others)", file.display())]
    TooFewRuns {
        /// The file.
        file: PathBuf,
        /// The minimum.
        least: usize,
        /// Number of rows in the file.
        rows: usize,
    },
    /// Too few collectives for fitting a fabric.
    #[error("{}: fewer than {least} collectives of one chip on {fabric} have a measured time and can be predicted \
        ({rows}); give at least {least} whose `fabric` is {fabric} (`coplace validate` explains the others)", file.display())]
    TooFewCollectives {
        /// The file.
        file: PathBuf,
        /// The fabric.
        fabric: String,
        /// The minimum.
        least: usize,
        /// Number of rows that can be predicted.
        rows: usize,
    },
    /// A software stack cannot be read.
    #[error("{why}")]
    Stack {
        /// The reason.
        why: String,
    },
}

/// A predicted value beside the measured one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ValuePrediction {
    /// Line in the file; the header is line 1.
    pub line: u64,
    /// The row's id.
    pub id: String,
    /// The target column.
    pub quantity: &'static str,
    /// The group of the row in summaries.
    pub group: String,
    /// The size class within the group, which is also scored.
    pub size: Option<&'static str>,
    /// The group of rows that it competes with: plans of one training job, or deployments for the same requests. `None`
    /// if rows do not compete.
    pub ranking: Option<String>,
    /// The measured value; `None` if the cell is empty.
    pub measured: Option<f64>,
    /// The predicted value, in the unit of the column.
    pub predicted: f64,
    /// The software stack of a training run.
    pub stack: Option<String>,
    /// The evidence; `None` if no related measurement gives a finite interval.
    pub evidence: Option<JudgedValue>,
}

/// The confidence in a predicted value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct JudgedValue {
    /// The worst grade among its grounds.
    pub grade: Grade,
    /// The 90 % interval of the measured value, in the unit of the column.
    pub interval: [f64; 2],
}

/// A valid row that cannot be predicted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnpredictedRow {
    /// Line in the file; the header is line 1.
    pub line: u64,
    /// The row's id.
    pub id: String,
    /// The group of the row in summaries.
    pub group: String,
    /// The size class within the group, which is counted too.
    #[serde(skip)]
    pub size: Option<&'static str>,
    /// The reason.
    pub why: String,
}

/// An assumption about a value that rows lack or that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowAssumption {
    /// The missing or unused value, and the assumption.
    pub what: String,
    /// The ids of the rows, in the order of the file.
    pub rows: Vec<String>,
}

/// The result for a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FileReport {
    /// The file.
    pub file: PathBuf,
    /// The data set.
    pub dataset: Dataset,
    /// Number of rows in the file.
    pub rows: usize,
    /// Ignored columns, which the data set does not know.
    pub ignored_columns: Vec<String>,
    /// Scores per group and quantity.
    pub groups: Vec<GroupScore>,
    /// The quality of the order of plans or deployments, per group; empty if rows do not compete.
    pub rankings: Vec<RankingScore>,
    /// The detection of runs out of memory, per group; empty if no outcome is known.
    pub out_of_memory: Vec<OutOfMemoryScore>,
    /// Faulty rows, which are not scored.
    pub row_errors: Vec<RowError>,
    /// Rows that cannot be predicted.
    pub unpredicted: Vec<UnpredictedRow>,
    /// Assumptions about predicted rows.
    pub assumed: Vec<RowAssumption>,
    /// Every prediction, in the order of the rows.
    #[serde(skip)]
    pub predictions: Vec<ValuePrediction>,
    /// The parts of every predicted training step: the row's id and the parts.
    #[serde(skip)]
    pub steps: Vec<(String, StepTime)>,
}

/// Options of a validation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ValidateOptions {
    /// A directory of software stacks (`megatron.toml`, ...) that replace the built-in ones.
    pub stacks: Option<PathBuf>,
    /// A directory of chips (`a100_80gb_sxm.toml`, ...) that replace the built-in ones.
    pub chips: Option<PathBuf>,
}

/// Returns the report of one file.
///
/// # Errors
/// A file that cannot be read, or whose columns belong to no data set. Faults of single rows are in the report.
pub fn validate_file(path: &Path, options: &ValidateOptions) -> Result<FileReport, ValidateError> {
    validate_contents(path, &read_measured_file(path)?, options)
}

/// Returns the bytes of a file of measured data.
///
/// # Errors
/// A file that cannot be read.
pub fn read_measured_file(path: &Path) -> Result<Vec<u8>, ValidateError> {
    sim::files::text::read_bytes(path).map_err(|why| ValidateError::Open { file: path.into(), why })
}

/// Returns the report of a file's contents. `path` names the file in the report and in errors.
///
/// # Errors
/// As [`validate_file()`].
pub fn validate_contents(path: &Path, text: &[u8], options: &ValidateOptions) -> Result<FileReport, ValidateError> {
    let mut table = MeasuredTable::open_csv(path, text)?;
    let dataset = table.dataset;
    let predict = dataset.predictor();
    let mut report = FileReport {
        file: path.into(),
        dataset,
        rows: 0,
        ignored_columns: table.header.iter().filter(|c| !dataset.knows_column(c)).map(str::to_owned).collect(),
        groups: Vec::new(),
        rankings: Vec::new(),
        out_of_memory: Vec::new(),
        row_errors: Vec::new(),
        unpredicted: Vec::new(),
        assumed: Vec::new(),
        predictions: Vec::new(),
        steps: Vec::new(),
    };
    let mut prepared = predict::PreparedInputs::new(options);
    table.for_each_row(|row| {
        report.rows += 1;
        match row {
            Ok(row) => report.add_row(&row, predict, &mut prepared),
            Err(error) => report.row_errors.push(error),
        }
    });
    report.steps = prepared.into_steps();
    report.groups = score::score_groups(&report);
    report.out_of_memory = out_of_memory::score_groups(&report.predictions);
    report.rankings = ranking::score_rankings(&report.predictions, dataset.ranked_column());
    Ok(report)
}

/// Returns the data set of a file, from its columns.
///
/// # Errors
/// As [`validate_file()`].
pub fn recognise_file(path: &Path) -> Result<Dataset, ValidateError> {
    recognise_contents(path, &read_measured_file(path)?)
}

/// Returns the data set of a file's contents, from its columns. `path` names the file in errors.
///
/// # Errors
/// As [`validate_contents()`].
pub fn recognise_contents(path: &Path, text: &[u8]) -> Result<Dataset, ValidateError> {
    Ok(MeasuredTable::open_csv(path, text)?.dataset)
}

/// A CSV file with a known data set.
struct MeasuredTable<'a> {
    path: &'a Path,
    header: csv::StringRecord,
    dataset: Dataset,
    reader: csv::Reader<&'a [u8]>,
    lines: LineCounter<'a>,
}

impl<'a> MeasuredTable<'a> {
    fn open_csv(path: &'a Path, text: &'a [u8]) -> Result<Self, ValidateError> {
        let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text);
        let malformed = |why: String| ValidateError::Malformed { file: path.into(), why };
        let header = reader.headers().map_err(|e| malformed(e.to_string()))?.clone();
        if header.is_empty() {
            return Err(malformed("it is empty".into()));
        }
        let dataset = Dataset::recognise_columns(path, &header)?;
        Ok(Self { path, header, dataset, reader, lines: LineCounter::new(text) })
    }

    /// Calls `take` for every row, or with the error of the CSV reader or of a repeated id.
    fn for_each_row(&mut self, mut take: impl FnMut(Result<MeasuredRow<'_>, RowError>)) {
        let mut first_lines: BTreeMap<String, u64> = BTreeMap::new();
        for record in self.reader.records() {
            match record {
                Ok(record) => {
                    let line = self.lines.line_at_byte(record.position().map_or(0, csv::Position::byte));
                    let row = MeasuredRow::new(self.path, line, &self.header, &record);
                    let repeated = repeated_id(&row, &mut first_lines);
                    take(repeated.map_or(Ok(row), Err));
                }
                Err(e) => {
                    let line = self.lines.line_at_byte(e.position().map_or(0, csv::Position::byte));
                    take(Err(RowError::from_csv_error(self.path, line, &e.to_string())));
                }
            }
        }
    }
}

/// Returns the fault of a row whose id occurred before; `None` for a new id. Ids must be unique, because they identify
/// predictions.
fn repeated_id(row: &MeasuredRow<'_>, first_lines: &mut BTreeMap<String, u64>) -> Option<RowError> {
    let id = row.cell("id")?;
    let first = *first_lines.entry(id.to_owned()).or_insert(row.line());
    match row.row_fault("id", &format!("the row of line {first} has it"), "give every row an id of its own") {
        RowFailure::Fault(error) if first != row.line() => Some(*error),
        _ => None,
    }
}

impl FileReport {
    /// Predicts a row and records the result.
    fn add_row(
        &mut self,
        row: &MeasuredRow<'_>,
        predict: predictor::RowPredictor,
        prepared: &mut predict::PreparedInputs,
    ) {
        let outcome = row.check_width().and_then(|()| row.text("id").map(|_| ())).and_then(|()| {
            let measured: Vec<(TargetColumn, Option<f64>)> = self
                .dataset
                .target_columns()
                .iter()
                .filter(|target| row.has_column(target.column))
                .map(|target| Ok((*target, row.measured_value(target)?)))
                .collect::<Result<_, RowFailure>>()?;
            let values = predict(prepared, row)?;
            match values.iter().find(|(_, value)| !value.is_finite()) {
                Some((column, value)) => Err(RowFailure::Unpredictable(format!("the model gives {column} = {value}"))),
                None => Ok((measured, values)),
            }
        });
        let (group, size) = (self.dataset.group_of(row), self.dataset.size_of(row));
        let assumed = prepared.take_assumptions();
        let (facts, alone) = (prepared.take_run_facts(), prepared.take_alone_facts());
        match outcome {
            Ok((measured, values)) => {
                self.add_assumptions(&row.id(), assumed);
                for (target, measured) in measured {
                    let Some((_, predicted)) = values.iter().find(|(column, _)| *column == target.column) else {
                        continue;
                    };
                    self.predictions.push(ValuePrediction {
                        line: row.line(),
                        id: row.id(),
                        quantity: target.column,
                        group: group.clone(),
                        size,
                        ranking: self.dataset.ranking_of(row),
                        measured,
                        predicted: *predicted,
                        stack: facts.as_ref().map(|facts| facts.stack.name.clone()),
                        evidence: match (&facts, &alone) {
                            (Some(facts), _) => judge_step(target.column, facts, *predicted),
                            (None, Some(alone)) => judge_alone(alone, *predicted),
                            (None, None) => None,
                        },
                    });
                }
            }
            Err(RowFailure::Fault(error)) => self.row_errors.push(*error),
            Err(RowFailure::Unpredictable(why)) => {
                self.unpredicted.push(UnpredictedRow { line: row.line(), id: row.id(), group, size, why });
            }
        }
    }

    /// Records a row's assumptions. Rows with the same assumption share one record.
    fn add_assumptions(&mut self, id: &str, assumed: Vec<String>) {
        for what in assumed {
            match self.assumed.iter_mut().find(|known| known.what == what) {
                Some(known) => known.rows.push(id.to_owned()),
                None => self.assumed.push(RowAssumption { what, rows: vec![id.to_owned()] }),
            }
        }
    }
}

/// Returns the confidence in a predicted step or peak with these `facts`, from the carried errors; `None` for other
/// columns or without a finite interval.
fn judge_step(column: &str, facts: &PredictionFacts, predicted: f64) -> Option<JudgedValue> {
    let quantity = [PredictedQuantity::StepTime, PredictedQuantity::Peak]
        .into_iter()
        .find(|quantity| quantity.column() == column)?;
    let evidence = ResidualTable::read_carried().evidence_of(quantity, facts);
    Some(JudgedValue { grade: evidence.worst_grade(), interval: evidence.interval.around_prediction(predicted) })
        .filter(|judged| judged.interval[1].is_finite())
}

/// Returns the confidence in the predicted time of a kernel or a collective, in microseconds; `None` if nothing related
/// was measured.
fn judge_alone(facts: &AloneFacts, predicted: f64) -> Option<JudgedValue> {
    let (grade, interval) = AloneResiduals::read_carried().judge_prediction(facts, predicted)?;
    Some(JudgedValue { grade, interval: interval.around_prediction(predicted) })
}

/// Returns the reports as one JSON object: `{"format": 1, "files": [...]}`. Each file is a [`FileReport`] without its
/// predictions, which [`predictions_csv`] writes as CSV.
#[must_use]
pub fn reports_json(reports: &[FileReport]) -> serde_json::Value {
    serde_json::json!({ "format": FORMAT, "files": reports })
}

/// Returns the CSV `id,part,seconds` with the parts of every predicted training step. Its total is one of the lines;
/// the other parts sum to it.
///
/// # Errors
/// Errors of the CSV writer; none is known.
pub fn breakdown_csv(reports: &[FileReport]) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["id", "part", "seconds"])?;
    for (id, time) in reports.iter().flat_map(|report| &report.steps) {
        for (part, seconds) in time.named_parts() {
            writer.write_record([id.as_str(), part, &seconds.0.to_string()])?;
        }
    }
    writer.into_inner().map_err(|e| io::Error::other(e.to_string()))
}

/// Returns the CSV `id,quantity,measured,predicted,low,high,grade,stack`, with one line per row and target column.
/// `low` and `high` are the ends of the 90 % interval. An unknown measured value is an empty cell. Times and peaks of
/// training runs, kernels and collectives have intervals and grades.
///
/// # Errors
/// Errors of the CSV writer; none is known.
pub fn predictions_csv(reports: &[FileReport]) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["id", "quantity", "measured", "predicted", "low", "high", "grade", "stack"])?;
    for p in reports.iter().flat_map(|report| &report.predictions) {
        let measured = p.measured.map(|m| m.to_string()).unwrap_or_default();
        let [low, high] = p.evidence.map_or_else(Default::default, |e| e.interval.map(|end| end.to_string()));
        let grade = p.evidence.map(|e| e.grade.to_string()).unwrap_or_default();
        let (stack, predicted) = (p.stack.as_deref().unwrap_or_default(), p.predicted.to_string());
        writer.write_record([p.id.as_str(), p.quantity, &measured, &predicted, &low, &high, &grade, stack])?;
    }
    writer.into_inner().map_err(|e| io::Error::other(e.to_string()))
}

#[cfg(test)]
mod documented_tests;
#[cfg(test)]
mod finetuning_tests;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod serving_tests;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
