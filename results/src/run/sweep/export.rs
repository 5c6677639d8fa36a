//! `sweep.parquet` and `sweep.csv`: every combination of a finished sweep, for analysis in any tool.
//!
//! Each combination is one row, in the order of their numbers. The columns are those of `designs.parquet` (empty for a
//! combination that is no chip), one per dimension, the outcome and the reason. The bytes depend only on the rows. Rows
//! are streamed, so that memory does not grow with the sweep.

use super::facts::{SweepFacts, SweptDimension};
use super::row::{CombinationOutcome, SweptRow};
use super::store::{SweepStore, SweepStoreError};
use crate::store::design::{ColumnKind, DesignRow, StoreCell, StoreColumn};
use crate::store::design_file::{physical_type, write_column};
use crate::store::files::{StagedFile, WriteError};
use parquet::basic::{Compression, LogicalType, Repetition};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use search::design::Aim;
use search::objective::FrontAxis;
use search::pareto::FrontCosts;
use search::space::{ChipFigures, ListedDimension, places_of_combination};
use serde::Serialize;
use sim::hardware::FieldValue;
use sim::units::{SquareMillimeters, Watts};
use std::collections::BTreeMap;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;

/// The Parquet file's name.
pub const PARQUET: &str = "sweep.parquet";
/// The CSV file's name.
pub const CSV: &str = "sweep.csv";

/// The version of the exports' columns. The metadata of the Parquet file holds it under `coplace.sweep`.
pub const FORMAT: &str = "1";

/// Rows per row group. Writing takes some tens of megabytes of memory.
const ROW_GROUP: usize = 16_384;

/// Columns of [`DesignRow`] that exports replace or omit.
const OWN: [&str; 5] = ["index", "outcome", "reason", "dimensions", "bad_end_step_s"];

/// The result of a finished sweep.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SweepSummary {
    /// The number of combinations of the sweep, or of the part.
    pub designs: u64,
    /// The number of combinations per outcome, by the outcome's name.
    pub fates: BTreeMap<&'static str, u64>,
    /// The best design by the objective. Ties go to the lower cost along the front's axes, then to the first design.
    pub best: Option<DesignRow>,
    /// The best value of the objective; less is better.
    pub value: Option<f64>,
    /// Lower bound on the value over all plans of all designs. It is below `value` if a schedule is not proven.
    pub bound: Option<f64>,
    /// The number of evaluated designs per largest part of the step, by the part's name.
    pub bound_by: BTreeMap<String, u64>,
}

/// The columns of a sweep's exports.
struct ExportColumns {
    /// Names and types, in the order of [`Self::row_cells`].
    all: Vec<(String, ColumnKind, bool)>,
    dials: Vec<ListedDimension>,
    /// Per dimension: true if it has a column.
    shown: Vec<bool>,
}

impl ExportColumns {
    fn new(facts: &SweepFacts) -> Self {
        let mut all = vec![("index".to_owned(), ColumnKind::Int, true), ("outcome".to_owned(), ColumnKind::Text, true)];
        all.push(("reason".to_owned(), ColumnKind::Text, false));
        let taken = |key: &str| DesignRow::COLUMNS.iter().any(|column| column.name == key);
        for swept in facts.dimensions.iter().filter(|swept| swept.column) {
            let name = if taken(&swept.key) { format!("dimension.{}", swept.key) } else { swept.key.clone() };
            let kind = if swept.values.iter().all(serde_json::Value::is_number) {
                ColumnKind::Float
            } else {
                ColumnKind::Text
            };
            all.push((name, kind, true));
        }
        all.extend(design_columns().map(|(_, column)| (column.name.to_owned(), column.kind, false)));
        let shown = facts.dimensions.iter().map(|swept| swept.column).collect();
        Self { all, dials: facts.dimensions.iter().map(SweptDimension::to_dial).collect(), shown }
    }

    fn row_cells(&self, row: &SweptRow) -> Vec<StoreCell> {
        let reason = row.reason.clone().or_else(|| row.design.as_ref().and_then(|design| design.reason.clone()));
        let mut cells = vec![StoreCell::Int(row.number as i64), StoreCell::Text(row.fate.name().to_owned())];
        cells.push(reason.map_or(StoreCell::Null, StoreCell::Text));
        for ((dial, place), shown) in
            self.dials.iter().zip(places_of_combination(&self.dials, row.number)).zip(&self.shown)
        {
            if *shown {
                cells.push(match (&dial.values[place], has_only_numbers(dial)) {
                    (FieldValue::Number(number), true) => StoreCell::Float(*number),
                    (other, _) => StoreCell::Text(other.to_string()),
                });
            }
        }
        match &row.design {
            Some(design) => {
                let own = design.cells();
                cells.extend(design_columns().map(|(at, _)| own[at].clone()));
            }
            None => cells.extend(design_columns().map(|_| StoreCell::Null)),
        }
        cells
    }

    fn parquet_schema(&self) -> Result<TypePtr, ParquetError> {
        let field = |(name, kind, required): &(String, ColumnKind, bool)| {
            let repetition = if *required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
            let logical = (*kind == ColumnKind::Text).then_some(LogicalType::String);
            let field = Type::primitive_type_builder(name, physical_type(*kind)).with_repetition(repetition);
            field.with_logical_type(logical).build().map(Arc::new)
        };
        let fields = self.all.iter().map(field).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(Type::group_type_builder("sweep").with_fields(fields).build()?))
    }
}

/// Returns the columns of a design that exports include, with their indices.
fn design_columns() -> impl Iterator<Item = (usize, &'static StoreColumn)> {
    DesignRow::COLUMNS.iter().enumerate().filter(|(_, column)| !OWN.contains(&column.name))
}

fn has_only_numbers(dial: &ListedDimension) -> bool {
    dial.values.iter().all(|value| matches!(value, FieldValue::Number(_)))
}

/// Collects the best design so far, and counts all designs.
struct SummaryBuilder {
    summary: SweepSummary,
    aim: Aim,
    /// Costs of the best design along the front's axes.
    least: FrontCosts,
}

impl SummaryBuilder {
    fn add_row(&mut self, row: &SweptRow) {
        *self.summary.fates.entry(row.fate.name()).or_default() += 1;
        self.summary.designs += 1;
        let Some(design) = row.design.as_ref().filter(|_| row.fate == CombinationOutcome::Evaluated) else { return };
        if let Some(bound) = &design.bound_by {
            *self.summary.bound_by.entry(bound.clone()).or_default() += 1;
        }
        let Some(value) = objective_value(self.aim, design) else { return };
        // The row has only the design's fastest plan, whose schedule may be improved. Its step is at least `proven`
        // times as long.
        let bound = value * row.proven;
        self.summary.bound = Some(self.summary.bound.map_or(bound, |least| least.min(bound)));
        let along = |axis: FrontAxis| match axis {
            FrontAxis::Energy => design.energy_per_step_j,
            _ => axis.cost_along(&figures_of_design(design)),
        };
        let costs = self.aim.axes.costs_along(|axis| along(axis).unwrap_or_default());
        if self.summary.value.is_none_or(|least| value < least || value == least && costs < self.least) {
            self.least = costs;
            self.summary.value = Some(value);
            self.summary.best = Some(DesignRow::clone(design));
        }
    }
}

fn figures_of_design(design: &DesignRow) -> ChipFigures {
    ChipFigures {
        area: SquareMillimeters(design.area_mm2),
        peak_power: Watts(design.peak_power_w.unwrap_or_default()),
        cost_usd: design.cost_usd,
        system_usd: 0.0,
    }
}

/// Returns the objective value of an evaluated design; less is better. `None` if a figure is missing.
#[must_use]
pub fn objective_value(aim: Aim, design: &DesignRow) -> Option<f64> {
    let paid_usd = aim.paid_usd(design.cost_usd, design.system_usd);
    let figures = ChipFigures { cost_usd: paid_usd, ..figures_of_design(design) };
    if aim.pays_energy() {
        let watt = aim.operation.usd_per_watt() / design.devices_used? as f64;
        return Some(paid_usd? * design.step_time_s? + watt * design.energy_per_step_j?);
    }
    if aim.objective.minimises_energy() {
        return design.energy_per_step_j;
    }
    Some(design.step_time_s? * aim.objective.factor_of_chip(&figures)?)
}

/// Summarizes the rows of a store. It writes nothing.
///
/// # Errors
/// A row that cannot be read.
pub fn summarize_store(store: &SweepStore, aim: Aim) -> Result<SweepSummary, SweepStoreError> {
    let mut counting = start_summary(aim);
    store.for_each_row(|row| {
        counting.add_row(&row);
        Ok::<(), SweepStoreError>(())
    })?;
    Ok(counting.summary)
}

fn start_summary(aim: Aim) -> SummaryBuilder {
    let summary = SweepSummary::default();
    SummaryBuilder { summary, aim, least: [f64::INFINITY; 2] }
}

/// Writes the rows of a store into a directory as Parquet and CSV. Each file appears under its name when it is complete
/// and on the disk.
///
/// # Errors
/// A row that cannot be read, a number that is not finite, or an error of the system.
pub fn write_exports(store: &SweepStore, directory: &Path, aim: Aim) -> Result<SweepSummary, SweepStoreError> {
    let columns = ExportColumns::new(store.facts());
    let (mut parquet, mut csv) = (StagedFile::new(&directory.join(PARQUET))?, StagedFile::new(&directory.join(CSV))?);
    let mut counting = start_summary(aim);
    let unwritable = |name: &str| {
        let file = directory.join(name);
        move |why: io::Error| SweepStoreError::Export(WriteError { file: file.clone(), why })
    };
    {
        let of = unwritable(PARQUET);
        let of_parquet = |why: ParquetError| of(io_error_of_parquet(why));
        let properties = Arc::new(writer_properties(store.facts()));
        let schema = columns.parquet_schema().map_err(&of_parquet)?;
        let mut writer =
            SerializedFileWriter::new(BufWriter::new(parquet.file()), schema, properties).map_err(&of_parquet)?;
        let mut lines = csv::Writer::from_writer(BufWriter::new(csv.file()));
        let of_line = |why: csv::Error| unwritable(CSV)(io_error_of_csv(why));
        lines.write_record(columns.all.iter().map(|(name, ..)| name)).map_err(of_line)?;
        let mut waiting: Vec<Vec<StoreCell>> = vec![Vec::new(); columns.all.len()];
        store.for_each_row(|row| {
            counting.add_row(&row);
            let cells = columns.row_cells(&row);
            check_finite(row.number, &columns, &cells)?;
            lines.write_record(cells.iter().map(StoreCell::csv_text)).map_err(of_line)?;
            waiting.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
            if waiting[0].len() == ROW_GROUP {
                write_row_group(&mut writer, &mut waiting, &columns).map_err(&of_parquet)?;
            }
            Ok::<(), SweepStoreError>(())
        })?;
        if !waiting[0].is_empty() {
            write_row_group(&mut writer, &mut waiting, &columns).map_err(&of_parquet)?;
        }
        lines.flush().map_err(unwritable(CSV))?;
        let mut file = writer.into_inner().map_err(&of_parquet)?;
        io::Write::flush(&mut file).map_err(unwritable(PARQUET))?;
    }
    parquet.flush_to_disk()?;
    csv.flush_to_disk()?;
    parquet.put_in_place()?;
    csv.put_in_place()?;
    Ok(counting.summary)
}

fn writer_properties(facts: &SweepFacts) -> WriterProperties {
    let key = |key: &str, value: &str| KeyValue::new(key.to_owned(), value.to_owned());
    let keys = vec![key("coplace.sweep", FORMAT), key("coplace.question", &facts.question)];
    WriterProperties::builder()
        .set_created_by("coplace".into())
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(keys))
        .build()
}

fn write_row_group<W: io::Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    waiting: &mut [Vec<StoreCell>],
    columns: &ExportColumns,
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    for (cells, (_, _, required)) in waiting.iter_mut().zip(&columns.all) {
        let Some(mut open) = group.next_column()? else { break };
        write_column(open.untyped(), std::mem::take(cells), *required)?;
        open.close()?;
    }
    group.close()?;
    Ok(())
}

fn check_finite(number: u64, columns: &ExportColumns, cells: &[StoreCell]) -> Result<(), SweepStoreError> {
    let wild =
        cells.iter().zip(&columns.all).find(|(cell, _)| matches!(cell, StoreCell::Float(value) if !value.is_finite()));
    match wild {
        Some((StoreCell::Float(value), (name, ..))) => {
            Err(SweepStoreError::Row { number, why: format!("{name} = {value} is not finite") })
        }
        _ => Ok(()),
    }
}

fn io_error_of_parquet(why: ParquetError) -> io::Error {
    match why {
        ParquetError::External(inner) => inner.downcast::<io::Error>().map_or_else(io::Error::other, |why| *why),
        other => io::Error::other(other.to_string()),
    }
}

fn io_error_of_csv(why: csv::Error) -> io::Error {
    match why.into_kind() {
        csv::ErrorKind::Io(why) => why,
        other => io::Error::other(format!("{other:?}")),
    }
}
