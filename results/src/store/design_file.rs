//! `designs.parquet`: every design of a search, with its outcome and the reason.
//!
//! The bytes depend only on the rows: `created_by` is fixed, there are no time stamps, and row groups have fixed sizes.
//! The key `coplace.format` holds the format; columns are found by name, so that any Parquet tool reads the file. The
//! key `coplace.checksum` covers the whole file (see `seal.rs`). It is verified before decoding, because Parquet
//! readers trust the lengths and offsets in a file.

use crate::store::design::{ColumnKind, DesignRow, StoreCell, StoreColumn};
use crate::store::files::{self, WriteError};
use crate::store::seal::{self, SealState};
use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::column::reader::ColumnReader;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue, ParquetMetaData, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use std::fs::File;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The version of the file's format that this build writes and reads.
pub const FORMAT: &str = "1";

/// The key in the file's metadata that holds the format.
const FORMAT_KEY: &str = "coplace.format";

/// The key in the file's metadata that holds the checksum.
const CHECKSUM_KEY: &str = "coplace.checksum";

/// Rows per row group. Writing takes some megabytes of memory, independent of the size of the space.
const ROW_GROUP: usize = 65_536;

/// Rows that are decoded at a time. Their cells take some tens of megabytes.
const BATCH: usize = 8_192;

/// Limit on the memory of decoded rows, in bytes: 2 GiB. It is enough for over a million designs. A search that visits
/// designs one by one has at most 300,000 per HBM capacity. A small file may hold far more, because equal rows compress
/// to almost nothing.
const MOST_MEMORY: usize = 1 << 31;

/// An error of reading or writing a store of designs.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A value to be written is not finite.
    #[error("design {index}: {column} = {value} is not a finite number and cannot be stored; leave it out")]
    NotFinite {
        /// The design's index.
        index: i64,
        /// The column.
        column: &'static str,
        /// The value.
        value: f64,
    },
    /// The file cannot be opened.
    #[error("{}: cannot be opened: {why}; give a run directory that `coplace search` wrote", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// Message of the system.
        why: io::Error,
    },
    /// The file is truncated or damaged, or coplace did not write it.
    #[error("{}: damaged, or no store of coplace ({why}); run the search again, or give another run directory", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The evidence of the damage.
        why: String,
    },
    /// Another version of coplace wrote the file.
    #[error(
        "{}: `{FORMAT_KEY}` is {found}, this version of coplace reads {FORMAT}; \
         give a designs.parquet that it wrote, or run the search again", file.display()
    )]
    Foreign {
        /// The file.
        file: PathBuf,
        /// The format found, or `missing`.
        found: String,
    },
    /// A required column is missing, or a column has another type.
    #[error("{}: column `{column}` {problem}, expected {expected}; run the search again", file.display())]
    Column {
        /// The file.
        file: PathBuf,
        /// The column.
        column: &'static str,
        /// `is missing`, or the type found.
        problem: String,
        /// The expected type.
        expected: &'static str,
    },
    /// A cell does not fit its column.
    #[error("{}: row {row}, column `{column}`: {why}; run the search again", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The row, from 1.
        row: usize,
        /// The column.
        column: &'static str,
        /// The fault.
        why: String,
    },
}

pub(crate) fn physical_type(kind: ColumnKind) -> PhysicalType {
    match kind {
        ColumnKind::Int => PhysicalType::INT64,
        ColumnKind::Float => PhysicalType::DOUBLE,
        ColumnKind::Text => PhysicalType::BYTE_ARRAY,
    }
}

fn parquet_schema() -> Result<TypePtr, ParquetError> {
    let field = |column: &StoreColumn| {
        let repetition = if column.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
        let logical = (column.kind == ColumnKind::Text).then_some(LogicalType::String);
        let field = Type::primitive_type_builder(column.name, physical_type(column.kind))
            .with_repetition(repetition)
            .with_logical_type(logical);
        field.build().map(Arc::new)
    };
    let fields = DesignRow::COLUMNS.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(Type::group_type_builder("designs").with_fields(fields).build()?))
}

fn writer_properties() -> WriterProperties {
    WriterProperties::builder()
        .set_created_by("coplace".into())
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(vec![
            KeyValue::new(FORMAT_KEY.into(), FORMAT.to_owned()),
            KeyValue::new(CHECKSUM_KEY.into(), seal::PLACEHOLDER.to_owned()),
        ]))
        .build()
}

/// Encodes rows as the bytes of a store. `path` is the file that errors name. All bytes stay in memory (some tens per
/// row), because the checksum is known only at the end.
///
/// # Errors
/// A value that is not a finite number; an error of the Parquet encoder.
pub(crate) fn to_bytes<I>(path: &Path, rows: I) -> Result<Vec<u8>, StoreError>
where
    I: IntoIterator<Item = DesignRow>,
{
    let mut bytes = encode_rows(rows.into_iter()).map_err(|failure| match failure {
        EncodeError::NotFinite { index, column, value } => StoreError::NotFinite { index, column, value },
        EncodeError::Parquet(why) => StoreError::Write(WriteError { file: path.into(), why: io::Error::other(why) }),
    })?;
    seal::seal_file(&mut bytes);
    Ok(bytes)
}

/// An error of encoding rows.
#[derive(Debug)]
enum EncodeError {
    NotFinite { index: i64, column: &'static str, value: f64 },
    Parquet(ParquetError),
}

impl From<ParquetError> for EncodeError {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}

fn encode_rows(rows: impl Iterator<Item = DesignRow>) -> Result<Vec<u8>, EncodeError> {
    let mut writer = SerializedFileWriter::new(Vec::new(), parquet_schema()?, Arc::new(writer_properties()))?;
    let mut rows = rows.peekable();
    while rows.peek().is_some() {
        let mut columns: Vec<Vec<StoreCell>> = vec![Vec::new(); DesignRow::COLUMNS.len()];
        for row in rows.by_ref().take(ROW_GROUP) {
            for ((cells, cell), column) in columns.iter_mut().zip(row.cells()).zip(DesignRow::COLUMNS) {
                if let StoreCell::Float(value) = cell
                    && !value.is_finite()
                {
                    return Err(EncodeError::NotFinite { index: row.index, column: column.name, value });
                }
                cells.push(cell);
            }
        }
        let mut group = writer.next_row_group()?;
        for (cells, column) in columns.into_iter().zip(DesignRow::COLUMNS) {
            let Some(mut open) = group.next_column()? else { break };
            write_column(open.untyped(), cells, column.required)?;
            open.close()?;
        }
        group.close()?;
    }
    Ok(writer.into_inner()?)
}

pub(crate) fn write_column(
    writer: &mut ColumnWriter<'_>,
    cells: Vec<StoreCell>,
    required: bool,
) -> Result<(), ParquetError> {
    let levels: Vec<i16> = cells.iter().map(|cell| i16::from(!matches!(cell, StoreCell::Null))).collect();
    let levels = (!required).then_some(levels.as_slice());
    match writer {
        ColumnWriter::Int64ColumnWriter(w) => {
            let values: Vec<i64> =
                cells.iter().filter_map(|c| if let StoreCell::Int(v) = c { Some(*v) } else { None }).collect();
            w.write_batch(&values, levels, None)?;
        }
        ColumnWriter::DoubleColumnWriter(w) => {
            let values: Vec<f64> =
                cells.iter().filter_map(|c| if let StoreCell::Float(v) = c { Some(*v) } else { None }).collect();
            w.write_batch(&values, levels, None)?;
        }
        ColumnWriter::ByteArrayColumnWriter(w) => {
            let text =
                |c: StoreCell| if let StoreCell::Text(v) = c { Some(ByteArray::from(v.into_bytes())) } else { None };
            let values: Vec<ByteArray> = cells.into_iter().filter_map(text).collect();
            w.write_batch(&values, levels, None)?;
        }
        _ => return Err(ParquetError::General("the schema has a type that no column has".into())),
    }
    Ok(())
}

/// Reads all rows of a store. Unknown columns are ignored; cells of missing optional columns are `None`. `designs` is
/// the number of designs that the record counts; a store has no more rows.
///
/// # Errors
/// A file that is missing, damaged, of another format or not written by coplace; more rows than designs, or rows that
/// take more than 2 GiB of memory; a value that does not fit its column.
pub fn read_designs(path: &Path, designs: u64) -> Result<Vec<DesignRow>, StoreError> {
    read_sealed(path)?;
    let decoded =
        catch_panic(|| decode_rows(path, designs)).map_err(|why| StoreError::Damaged { file: path.into(), why });
    decoded?
}

/// Reads the bytes of a store and checks their checksum.
///
/// # Errors
/// A file that is missing, damaged, or has no checksum.
pub fn read_sealed(path: &Path) -> Result<Vec<u8>, StoreError> {
    let broken = |why: &str| StoreError::Damaged { file: path.into(), why: why.into() };
    let bytes = files::read_whole(path).map_err(|why| StoreError::Open { file: path.into(), why })?;
    match seal::check_seal(&bytes) {
        SealState::Intact => Ok(bytes),
        SealState::Broken => Err(broken("its checksum does not match")),
        SealState::Missing => Err(broken("it has no checksum")),
    }
}

/// Calls a reader and returns its panic message as an error. The checksum detects damage. It does not detect a file
/// with a valid checksum whose wrong lengths make the Parquet reader panic.
fn catch_panic<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    // The panic hook is shared by the whole process. Only one reader at a time may replace it; otherwise the original
    // hook could be lost.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let read = panic::catch_unwind(AssertUnwindSafe(read));
    panic::set_hook(hook);
    read.map_err(|why| {
        let words = why.downcast_ref::<String>().map(String::as_str).or_else(|| why.downcast_ref::<&str>().copied());
        format!("its reader stopped: {}", words.unwrap_or("no reason given"))
    })
}

/// Decodes the rows of a store with a valid checksum.
fn decode_rows(path: &Path, designs: u64) -> Result<Vec<DesignRow>, StoreError> {
    let damaged = |why: ParquetError| StoreError::Damaged { file: path.into(), why: why.to_string() };
    let file = File::open(path).map_err(|why| StoreError::Open { file: path.into(), why })?;
    let reader = SerializedFileReader::new(file).map_err(damaged)?;
    let metadata = reader.metadata();
    let keys = metadata.file_metadata().key_value_metadata();
    let format = keys.and_then(|keys| keys.iter().find(|k| k.key == FORMAT_KEY)).and_then(|k| k.value.clone());
    if format.as_deref() != Some(FORMAT) {
        return Err(StoreError::Foreign { file: path.into(), found: format.unwrap_or_else(|| "missing".into()) });
    }
    let faulty = |why: String| StoreError::Damaged { file: path.into(), why };
    let mut left = check_size(metadata, designs).map_err(faulty)?;
    let mut rows = Vec::new();
    for group in 0..metadata.num_row_groups() {
        let group = reader.get_row_group(group).map_err(damaged)?;
        let mut columns = open_columns(path, group.as_ref())?;
        let mut missing = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
        while missing > 0 {
            let count = missing.min(BATCH);
            let cells = columns.iter_mut().map(|column| column.read_cells(count, &mut left));
            append_rows(path, cells.collect::<Result<_, _>>().map_err(faulty)?, &mut rows)?;
            missing -= count;
        }
    }
    Ok(rows)
}

/// Returns the memory in bytes that is left for the texts of a store's rows. The error is too many rows or bytes.
fn check_size(metadata: &ParquetMetaData, designs: u64) -> Result<usize, String> {
    let unsigned = |count: i64| u64::try_from(count).unwrap_or(u64::MAX);
    let sum = |counts: &mut dyn Iterator<Item = i64>| counts.map(unsigned).fold(0, u64::saturating_add);
    let rows = sum(&mut metadata.row_groups().iter().map(RowGroupMetaData::num_rows));
    if rows > designs {
        return Err(format!("it has {rows} rows, the record beside it counts {designs} designs"));
    }
    let left = usize::try_from(rows).ok().and_then(|rows| rows.checked_mul(size_of::<DesignRow>()));
    let left =
        left.and_then(|bytes| MOST_MEMORY.checked_sub(bytes)).ok_or_else(|| too_large(&format!("{rows} rows")))?;
    let pages = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    let pages = sum(&mut pages.map(ColumnChunkMetaData::uncompressed_size));
    if pages > MOST_MEMORY as u64 { Err(too_large(&format!("pages of {pages} bytes"))) } else { Ok(left) }
}

fn too_large(what: &str) -> String {
    format!("it has {what}, more than {} GiB of memory hold", MOST_MEMORY >> 30)
}

fn append_rows(path: &Path, columns: Vec<Vec<StoreCell>>, rows: &mut Vec<DesignRow>) -> Result<(), StoreError> {
    let count = columns.first().map_or(0, Vec::len);
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    for _ in 0..count {
        let cells = columns.iter_mut().map(|column| column.next().unwrap_or(StoreCell::Null));
        let row = DesignRow::from_cells(cells).map_err(|(column, why)| StoreError::Value {
            file: path.into(),
            row: rows.len() + 1,
            column,
            why,
        })?;
        rows.push(row);
    }
    Ok(())
}

/// A column of a row group that is read in batches.
struct OpenColumn {
    name: &'static str,
    /// `None` if an optional column is missing.
    reader: Option<ColumnReader>,
    nullable: bool,
}

/// Opens all columns of a row group, in the order of [`DesignRow::COLUMNS`].
fn open_columns(path: &Path, group: &dyn RowGroupReader) -> Result<Vec<OpenColumn>, StoreError> {
    let metadata = group.metadata();
    let open = |column: &StoreColumn| {
        let at = find_column(path, metadata, column)?;
        let reader = at.map(|at| group.get_column_reader(at)).transpose();
        let reader = reader.map_err(|e| StoreError::Damaged { file: path.into(), why: e.to_string() })?;
        let nullable = at.is_some_and(|at| metadata.column(at).column_descr().max_def_level() > 0);
        Ok(OpenColumn { name: column.name, reader, nullable })
    };
    DesignRow::COLUMNS.iter().map(open).collect()
}

/// Finds the position of a column in the file; `None` if an optional column is missing. The error is a required column
/// that is missing, or a column of another type.
fn find_column(path: &Path, group: &RowGroupMetaData, column: &StoreColumn) -> Result<Option<usize>, StoreError> {
    let expected = match column.kind {
        ColumnKind::Int => "INT64",
        ColumnKind::Float => "DOUBLE",
        ColumnKind::Text => "BYTE_ARRAY (UTF-8)",
    };
    let wrong = |problem: String| StoreError::Column { file: path.into(), column: column.name, problem, expected };
    let at = group.columns().iter().position(|c| c.column_path().string() == column.name);
    match at {
        None if column.required => Err(wrong("is missing".into())),
        None => Ok(None),
        Some(at) => {
            let descriptor = group.column(at).column_descr();
            let found = descriptor.physical_type();
            if found != physical_type(column.kind) {
                return Err(wrong(format!("has type {found}")));
            }
            if descriptor.max_rep_level() > 0 || descriptor.max_def_level() > 1 {
                return Err(wrong("is nested".into()));
            }
            Ok(Some(at))
        }
    }
}

impl OpenColumn {
    /// Reads the next `rows` cells. Takes the bytes of texts from `left`.
    fn read_cells(&mut self, rows: usize, left: &mut usize) -> Result<Vec<StoreCell>, String> {
        let undecoded = |why: ParquetError| why.to_string();
        let mut levels = Vec::new();
        let levels_wanted = self.nullable.then_some(&mut levels);
        let values: Vec<StoreCell> = match &mut self.reader {
            None => return Ok(vec![StoreCell::Null; rows]),
            Some(ColumnReader::Int64ColumnReader(r)) => {
                let mut values = Vec::new();
                r.read_records(rows, levels_wanted, None, &mut values).map_err(undecoded)?;
                values.into_iter().map(StoreCell::Int).collect()
            }
            Some(ColumnReader::DoubleColumnReader(r)) => {
                let mut values = Vec::new();
                r.read_records(rows, levels_wanted, None, &mut values).map_err(undecoded)?;
                values.into_iter().map(StoreCell::Float).collect()
            }
            Some(ColumnReader::ByteArrayColumnReader(r)) => {
                let mut values: Vec<ByteArray> = Vec::new();
                r.read_records(rows, levels_wanted, None, &mut values).map_err(undecoded)?;
                // Rows may share one long text of the file, which each of them copies.
                let text = |bytes: ByteArray| {
                    *left = left.checked_sub(bytes.len()).ok_or_else(|| too_large("texts"))?;
                    bytes.as_utf8().map(|text| StoreCell::Text(text.to_owned())).map_err(undecoded)
                };
                values.into_iter().map(text).collect::<Result<_, _>>()?
            }
            Some(_) => return Err("a column has an unexpected type".to_owned()),
        };
        let cells = if self.nullable { with_nulls(&levels, values) } else { values };
        if cells.len() != rows {
            let (name, found) = (self.name, cells.len());
            return Err(format!("column `{name}` has {found} of the next {rows} rows"));
        }
        Ok(cells)
    }
}

/// Returns the cells of a column with missing values.
fn with_nulls(levels: &[i16], values: Vec<StoreCell>) -> Vec<StoreCell> {
    let mut values = values.into_iter();
    let mut cell = |level: &i16| if *level == 0 { StoreCell::Null } else { values.next().unwrap_or(StoreCell::Null) };
    levels.iter().map(&mut cell).collect()
}

#[cfg(test)]
#[path = "design_file_tests.rs"]
mod tests;
