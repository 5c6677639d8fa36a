//! Tables in Arrow's format, which data frames read without a copy.

use crate::ordered::Json;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader, StringArray,
};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use results::store::design_file;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A table of columns of equal length, in one or several pieces.
#[pyclass(frozen)]
#[derive(Debug, Clone)]
pub struct Table {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl From<RecordBatch> for Table {
    fn from(whole: RecordBatch) -> Self {
        Self { schema: whole.schema(), batches: vec![whole] }
    }
}

/// Rows of a piece that is read from a file.
const ROWS: usize = 8_192;

/// Limit on the memory of a table that is read from a file, in bytes: 4 GiB, some millions of designs. A small file may
/// hold far more, because equal rows compress to almost nothing.
const MOST_MEMORY: usize = 4 << 30;

/// The largest depth of nested objects that become columns. Deeper objects become JSON texts.
const DEEPEST: usize = 8;

fn value_error(why: impl ToString) -> PyErr {
    PyValueError::new_err(why.to_string())
}

#[pymethods]
impl Table {
    /// Makes a table from pairs of a text and a flag: the JSON of an answer and false, or an error message and true. A
    /// row is an answer, or its value under `path` (keys joined by dots). If this value is a list, each entry is a row.
    ///
    /// Nested objects become columns `outer.inner`. A list of scalars becomes a JSON text; a list of objects is left
    /// out. Errors, and answers with nothing under `path`, have a row with the reason in the last column, `error`.
    /// Without such rows there is no column `error`.
    #[staticmethod]
    #[pyo3(signature = (answers, path=None))]
    fn of_answers(py: Python<'_>, answers: Vec<(String, bool)>, path: Option<String>) -> PyResult<Self> {
        py.detach(|| {
            let mut rows = Vec::new();
            for (answer, is_error) in answers {
                if is_error {
                    rows.push(error_row(answer));
                    continue;
                }
                let value: Json = serde_json::from_str(&answer).map_err(|why| why.to_string())?;
                match path.as_deref().map_or(Some(&value), |path| value_at(&value, path)) {
                    Some(Json::List(entries)) if entries.is_empty() => rows.extend(reason(&value).map(error_row)),
                    Some(Json::List(entries)) => rows.extend(entries.iter().map(flat_row)),
                    Some(Json::Null) => rows.push(error_row(reason(&value).unwrap_or_else(|| "is null".to_owned()))),
                    Some(other) => rows.push(flat_row(other)),
                    None => match reason(&value) {
                        Some(why) => rows.push(error_row(why)),
                        None => return Err(format!("{}: is no key of the answer", path.unwrap_or_default())),
                    },
                }
            }
            table_of_rows(rows).map_err(|why| why.to_string())
        })
        .map(Self::from)
        .map_err(value_error)
    }

    /// Returns the number of rows.
    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Returns the names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Returns the table as a stream of Arrow arrays.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A producer may ignore the requested schema, as the interface says.
        drop(requested_schema);
        let pieces = self.batches.clone().into_iter().map(Ok::<_, ArrowError>);
        let batches = RecordBatchIterator::new(pieces, Arc::clone(&self.schema));
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), c"arrow_array_stream")
    }
}

/// Reads the designs of a search's `designs.parquet` (`sealed`: it has a checksum), or of a sweep's `sweep.parquet`,
/// which has none.
#[pyfunction]
pub fn read_designs(py: Python<'_>, file: PathBuf, sealed: bool) -> PyResult<Table> {
    py.detach(|| {
        let bytes = if sealed {
            design_file::read_sealed(&file).map_err(|why| why.to_string())?
        } else {
            std::fs::read(&file).map_err(|why| format!("{}: cannot be opened: {why}", file.display()))?
        };
        read_parquet(bytes.into()).map_err(|why| format!("{}: {why}; run the search again", file.display()))
    })
    .map_err(value_error)
}

/// Reads all columns of a Parquet file.
fn read_parquet(bytes: Bytes) -> Result<Table, ArrowError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)?.with_batch_size(ROWS).build()?;
    let schema = reader.schema();
    let (mut batches, mut left) = (Vec::new(), MOST_MEMORY);
    for batch in reader {
        let batch = batch?;
        left = left.checked_sub(batch.get_array_memory_size()).ok_or_else(|| {
            let limit =
                format!("its rows take more than {} GiB; read it piece by piece with DuckDB", MOST_MEMORY >> 30);
            ArrowError::MemoryError(limit)
        })?;
        batches.push(batch);
    }
    Ok(Table { schema, batches })
}

/// The name of the column with the reasons for missing answers.
const ERROR: &str = "error";

/// Returns the row of a question without an answer.
fn error_row(why: String) -> Row {
    vec![(ERROR.to_owned(), Json::Text(why))]
}

/// Returns the reason why an answer has no result; `None` if it states none.
fn reason(answer: &Json) -> Option<String> {
    match answer.get("why") {
        Some(Json::Text(why)) => Some(why.clone()),
        _ => None,
    }
}

/// Returns the value under `path`, which has keys joined by dots.
fn value_at<'a>(value: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

/// The cells of a row by column.
type Row = Vec<(String, Json)>;

/// Returns the cells of an object by column. A scalar goes into the column `value`.
fn flat_row(value: &Json) -> Row {
    let mut row = Row::new();
    match value {
        Json::Object(keys) => add_columns("", keys, DEEPEST, &mut row),
        scalar => row.push(("value".to_owned(), scalar.clone())),
    }
    row
}

fn add_columns(prefix: &str, keys: &[(String, Json)], deeper: usize, row: &mut Row) {
    for (key, value) in keys {
        let name = format!("{prefix}{key}");
        match value {
            Json::Object(inner) if deeper > 0 => add_columns(&format!("{name}."), inner, deeper - 1, row),
            Json::List(entries) if entries.iter().any(|entry| matches!(entry, Json::Object(_))) => {}
            Json::List(_) | Json::Object(_) => row.push((name, Json::Text(value.to_text()))),
            scalar => row.push((name, scalar.clone())),
        }
    }
}

/// Makes a table from rows. Columns are in the order in which the rows first name them, `error` last. A column of
/// numbers is of integers if all its numbers are.
fn table_of_rows(rows: Vec<Row>) -> Result<RecordBatch, ArrowError> {
    let count = rows.len();
    let mut at: BTreeMap<String, usize> = BTreeMap::new();
    let mut columns: Vec<(String, Vec<Json>)> = Vec::new();
    for (row, cells) in rows.into_iter().enumerate() {
        for (name, value) in cells {
            let column = *at.entry(name).or_insert_with_key(|name| {
                columns.push((name.clone(), Vec::new()));
                columns.len() - 1
            });
            columns[column].1.resize(row, Json::Null);
            columns[column].1.push(value);
        }
    }
    // The errors stand last.
    columns.sort_by_key(|(name, _)| name == ERROR);
    if columns.is_empty() {
        return Ok(RecordBatch::new_empty(Arc::new(Schema::empty())));
    }
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, mut cells)| {
        cells.resize(count, Json::Null);
        (name, array_of_cells(&cells), true)
    }))
}

fn array_of_cells(cells: &[Json]) -> ArrayRef {
    let known = || cells.iter().filter(|cell| **cell != Json::Null);
    let number = |cell: &Json| if let Json::Number(number) = cell { Some(number.clone()) } else { None };
    let whole = |cell: &Json| number(cell).and_then(|number| number.as_i64());
    let real = |cell: &Json| number(cell).and_then(|number| number.as_f64());
    let truth = |cell: &Json| if let Json::Bool(value) = cell { Some(*value) } else { None };
    if known().next().is_some() && known().all(|cell| truth(cell).is_some()) {
        return Arc::new(cells.iter().map(truth).collect::<BooleanArray>());
    }
    if known().next().is_some() && known().all(|cell| whole(cell).is_some()) {
        return Arc::new(cells.iter().map(whole).collect::<Int64Array>());
    }
    if known().all(|cell| real(cell).is_some()) {
        return Arc::new(cells.iter().map(real).collect::<Float64Array>());
    }
    let text = |cell: &Json| match cell {
        Json::Null => None,
        Json::Text(text) => Some(text.clone()),
        other => Some(other.to_text()),
    };
    Arc::new(cells.iter().map(text).collect::<StringArray>())
}
