//! One row per design that a search considered. `designs.parquet` holds the rows; `compare` and `pareto` read them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The outcome of a design.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DesignStatus {
    /// Its best plan was computed. The throughput is exact within the stated arithmetic.
    Evaluated,
    /// Pruned by its bound: another design is at least as good as this bound. If the search has a front, the other
    /// design is also no worse along the front's axes.
    Pruned,
    /// No plan fits. The reason gives the shortfall of the nearest plan.
    Infeasible,
    /// Outside the limits of the study.
    OverArea,
    /// Undecided when the search stopped.
    Open,
}

impl DesignStatus {
    /// All outcomes, in the order in which counts and figures list them.
    pub const ALL: [Self; 5] = [Self::Evaluated, Self::Pruned, Self::Infeasible, Self::OverArea, Self::Open];

    /// Returns the name used in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Evaluated => "evaluated",
            Self::Pruned => "pruned",
            Self::Infeasible => "infeasible",
            Self::OverArea => "over_area",
            Self::Open => "open",
        }
    }
}

impl fmt::Display for DesignStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DesignStatus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|o| o.name() == text).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|o| o.name()).collect();
            format!("`{text}` is no outcome; known are {}", known.join(", "))
        })
    }
}

/// A cell of the store.
#[derive(Debug, Clone, PartialEq)]
pub enum StoreCell {
    /// No value.
    Null,
    /// An integer.
    Int(i64),
    /// A number. Writing and reading reject values that are not finite.
    Float(f64),
    /// A text.
    Text(String),
}

impl StoreCell {
    /// Returns the cell in CSV. Numbers have the fewest digits that read back exactly; a missing value is empty.
    #[must_use]
    pub fn csv_text(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Int(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// 64-bit integers.
    Int,
    /// 64-bit floating-point numbers.
    Float,
    /// UTF-8 text.
    Text,
}

/// Converts a field of [`DesignRow`] to a cell and back.
trait Field: Sized {
    const KIND: ColumnKind;
    const REQUIRED: bool;
    fn cell(&self) -> StoreCell;
    /// Reads the value. The error names the fault of the cell.
    fn from_cell(cell: StoreCell) -> Result<Self, String>;
}

impl Field for i64 {
    const KIND: ColumnKind = ColumnKind::Int;
    const REQUIRED: bool = true;
    fn cell(&self) -> StoreCell {
        StoreCell::Int(*self)
    }
    fn from_cell(cell: StoreCell) -> Result<Self, String> {
        if let StoreCell::Int(v) = cell { Ok(v) } else { Err("a value is required".into()) }
    }
}

impl Field for f64 {
    const KIND: ColumnKind = ColumnKind::Float;
    const REQUIRED: bool = true;
    fn cell(&self) -> StoreCell {
        StoreCell::Float(*self)
    }
    fn from_cell(cell: StoreCell) -> Result<Self, String> {
        match cell {
            StoreCell::Float(v) if v.is_finite() => Ok(v),
            StoreCell::Float(v) => Err(format!("{v} is not a finite number")),
            _ => Err("a value is required".into()),
        }
    }
}

impl Field for DesignStatus {
    const KIND: ColumnKind = ColumnKind::Text;
    const REQUIRED: bool = true;
    fn cell(&self) -> StoreCell {
        StoreCell::Text(self.name().into())
    }
    fn from_cell(cell: StoreCell) -> Result<Self, String> {
        if let StoreCell::Text(v) = cell { v.parse() } else { Err("a value is required".into()) }
    }
}

impl Field for Option<i64> {
    const KIND: ColumnKind = ColumnKind::Int;
    const REQUIRED: bool = false;
    fn cell(&self) -> StoreCell {
        self.map_or(StoreCell::Null, StoreCell::Int)
    }
    fn from_cell(cell: StoreCell) -> Result<Self, String> {
        if matches!(cell, StoreCell::Null) { Ok(None) } else { i64::from_cell(cell).map(Some) }
    }
}

impl Field for Option<f64> {
    const KIND: ColumnKind = ColumnKind::Float;
    const REQUIRED: bool = false;
    fn cell(&self) -> StoreCell {
        self.map_or(StoreCell::Null, StoreCell::Float)
    }
    fn from_cell(cell: StoreCell) -> Result<Self, String> {
        if matches!(cell, StoreCell::Null) { Ok(None) } else { f64::from_cell(cell).map(Some) }
    }
}

impl Field for Option<String> {
    const KIND: ColumnKind = ColumnKind::Text;
    const REQUIRED: bool = false;
    fn cell(&self) -> StoreCell {
        self.clone().map_or(StoreCell::Null, StoreCell::Text)
    }
    fn from_cell(cell: StoreCell) -> Result<Self, String> {
        match cell {
            StoreCell::Null => Ok(None),
            StoreCell::Text(v) => Ok(Some(v)),
            _ => Err("a text is required".into()),
        }
    }
}

/// A column of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreColumn {
    /// The name, which is the field's name in [`DesignRow`] and contains the unit.
    pub name: &'static str,
    /// The type.
    pub kind: ColumnKind,
    /// True if every row has a value.
    pub required: bool,
}

/// Declares the struct [`DesignRow`], its columns, and its conversion to and from cells in one place. A new column
/// needs one line here.
macro_rules! design_row {
    ($($(#[$doc:meta])* $field:ident: $kind:ty,)*) => {
        /// One design with its outcome. Field names contain the units. `None` means that the value was not computed,
        /// either because the outcome did not need it or because it has no such value.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct DesignRow {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl DesignRow {
            /// The columns, in the order of storage.
            pub const COLUMNS: &'static [StoreColumn] = &[
                $(StoreColumn {
                    name: stringify!($field),
                    kind: <$kind as Field>::KIND,
                    required: <$kind as Field>::REQUIRED,
                },)*
            ];

            /// Returns the cells of the row, in the order of [`Self::COLUMNS`].
            #[must_use]
            pub fn cells(&self) -> Vec<StoreCell> {
                vec![$(self.$field.cell(),)*]
            }

            /// Makes a row from cells in the order of [`Self::COLUMNS`]. Missing cells at the end count as null;
            /// further cells are ignored.
            ///
            /// # Errors
            /// The name of the first column whose cell has a wrong type or value, and the fault.
            pub fn from_cells(cells: impl IntoIterator<Item = StoreCell>) -> Result<Self, (&'static str, String)> {
                let mut cells = cells.into_iter();
                Ok(Self {
                    $($field: Field::from_cell(cells.next().unwrap_or(StoreCell::Null))
                        .map_err(|why| (stringify!($field), why))?,)*
                })
            }
        }
    };
}

design_row! {
    /// In searches and sweeps: the number of the design's combination of values in the order of the study, from 0.
    index: i64,
    /// Tensor cores per chip.
    tensor_cores: i64,
    /// Vector cores per chip.
    vector_cores: i64,
    /// Arrays in each tensor core.
    arrays_per_core: i64,
    /// Lanes of each vector core.
    vector_lanes: i64,
    /// Rows of each array (PHAZE's width).
    array_width: i64,
    /// Columns of each array (PHAZE's depth).
    array_depth: i64,
    /// The outermost buffer that all cores share, in MiB; 0 if there is none.
    global_buffer_mib: f64,
    /// HBM capacity in GiB.
    hbm_gib: f64,
    /// Area of all compute dies in mm².
    area_mm2: f64,
    /// The outcome of the design.
    outcome: DesignStatus,
    /// The reason for the outcome in words: the shortfall of an infeasible design, or the design that prunes this one.
    reason: Option<String>,
    /// Upper bound of the throughput over all plans, in sequences per second. `None` for several models. A design that
    /// was not evaluated has it only if the search ranks by the predicted step time.
    bound_sequences_per_s: Option<f64>,
    /// Throughput of the best plan, in sequences per second over the whole cluster.
    throughput_sequences_per_s: Option<f64>,
    /// Throughput of the best plan, in tokens per second over the whole cluster.
    throughput_tokens_per_s: Option<f64>,
    /// Time of one optimizer step in seconds.
    step_time_s: Option<f64>,
    /// Model FLOPs utilisation, as a fraction: the model's FLOPs over the product of peak FLOP/s and step time.
    mfu: Option<f64>,
    /// Energy of one optimizer step over the whole cluster, in joules.
    energy_per_step_j: Option<f64>,
    /// Pipeline stages of the best plan.
    stages: Option<i64>,
    /// Tensor-parallel width of the best plan.
    tensor_parallel: Option<i64>,
    /// Data-parallel degree of the best plan.
    data_parallel: Option<i64>,
    /// Context-parallel width of the best plan.
    context_parallel: Option<i64>,
    /// Expert-parallel width of the best plan.
    expert_parallel: Option<i64>,
    /// Model chunks per stage of the best plan.
    virtual_stages: Option<i64>,
    /// ZeRO stage of the best plan.
    zero: Option<i64>,
    /// Sequences per micro-batch and data-parallel rank.
    micro_batch_sequences: Option<i64>,
    /// Devices that the plan uses.
    devices_used: Option<i64>,
    /// Pipeline schedule, by name.
    pipeline_schedule: Option<String>,
    /// The policy for keeping or recomputing tensors, summarised over the stages.
    memory_policy: Option<String>,
    /// Peak memory of the fullest device, in GiB.
    peak_memory_gib: Option<f64>,
    /// The largest part of the step's time, in words.
    bound_by: Option<String>,
    /// The proof that the plan is the fastest: `optimal`, or a gap.
    plan_status: Option<String>,
    /// The process node. Areas of different nodes are not comparable.
    node: Option<String>,
    /// The dimensions that the study varies, with the design's values. `None` in PHAZE's space, whose dimensions have
    /// their own columns.
    dimensions: Option<String>,
    /// Power of a chip under its heaviest sustained load, in W.
    peak_power_w: Option<f64>,
    /// Mean power of a device over the step, in W.
    mean_power_w: Option<f64>,
    /// Cost of making a chip, in USD.
    cost_usd: Option<f64>,
    /// Energy per token, in J.
    energy_per_token_j: Option<f64>,
    /// For several models: the mean of their throughputs, each relative to the reference.
    times_reference: Option<f64>,
    /// For several models: the throughput, the ratio to the reference and the plan of each model, in words.
    models: Option<String>,
    /// The clock in MHz that the power limit leaves, if it is below the design clock.
    lowered_clock_mhz: Option<f64>,
    /// For several models: energy per token relative to the reference. It is the inverse of the mean of tokens per
    /// joule, each relative to the reference.
    energy_times_reference: Option<f64>,
    /// For several models, if the objective includes the cost of energy: the mean of throughput per USD relative to the
    /// reference. The USD are the cost of the chip and of its energy over its years of use.
    times_reference_per_usd: Option<f64>,
    /// For a robust search of one model: the step in seconds at the bad end of its 90 % interval. The search ranks
    /// designs by this value.
    bad_end_step_s: Option<f64>,
    /// Price of the system around a device, in USD; `None` if the fabric's parts are unknown.
    system_usd: Option<f64>,
}

impl DesignRow {
    /// Makes a row of a design whose outcome is open. It has only the dimensions.
    #[must_use]
    pub fn new_undecided(index: i64, dimensions: DesignDimensions) -> Self {
        Self {
            index,
            tensor_cores: dimensions.tensor_cores,
            vector_cores: dimensions.vector_cores,
            arrays_per_core: dimensions.arrays_per_core,
            vector_lanes: dimensions.vector_lanes,
            array_width: dimensions.array_width,
            array_depth: dimensions.array_depth,
            global_buffer_mib: dimensions.global_buffer_mib,
            hbm_gib: dimensions.hbm_gib,
            area_mm2: dimensions.area_mm2,
            outcome: DesignStatus::Open,
            reason: None,
            bound_sequences_per_s: None,
            throughput_sequences_per_s: None,
            throughput_tokens_per_s: None,
            step_time_s: None,
            mfu: None,
            energy_per_step_j: None,
            stages: None,
            tensor_parallel: None,
            data_parallel: None,
            context_parallel: None,
            expert_parallel: None,
            virtual_stages: None,
            zero: None,
            micro_batch_sequences: None,
            devices_used: None,
            pipeline_schedule: None,
            memory_policy: None,
            peak_memory_gib: None,
            bound_by: None,
            plan_status: None,
            node: None,
            dimensions: None,
            peak_power_w: None,
            mean_power_w: None,
            cost_usd: None,
            times_reference: None,
            models: None,
            energy_per_token_j: None,
            lowered_clock_mhz: None,
            energy_times_reference: None,
            times_reference_per_usd: None,
            bad_end_step_s: None,
            system_usd: None,
        }
    }

    /// Describes the chip in one line: `8 x 128x128 TC, 2 x 128 VC, 128 MiB, 32 GiB HBM`.
    #[must_use]
    pub fn describe_chip(&self) -> String {
        let arrays = if self.arrays_per_core == 1 { String::new() } else { format!("{} x ", self.arrays_per_core) };
        format!(
            "{} x {arrays}{}x{} TC, {} x {} VC, {} MiB, {} GiB HBM",
            self.tensor_cores,
            self.array_width,
            self.array_depth,
            self.vector_cores,
            self.vector_lanes,
            self.global_buffer_mib,
            self.hbm_gib
        )
    }

    /// Describes the plan in one line: `p 8, t 1, d 128, micro-batch 1, 1f1b`. `None` without a plan.
    #[must_use]
    pub fn describe_plan(&self) -> Option<String> {
        let (p, t, d) = (self.stages?, self.tensor_parallel?, self.data_parallel?);
        let mut text = format!("p {p}, t {t}, d {d}");
        if let Some(micro_batch) = self.micro_batch_sequences {
            text.push_str(&format!(", micro-batch {micro_batch}"));
        }
        if let Some(schedule) = &self.pipeline_schedule {
            text.push_str(&format!(", {schedule}"));
        }
        Some(text)
    }
}

/// The dimensions of a design, in the units of the store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DesignDimensions {
    /// Tensor cores per chip.
    pub tensor_cores: i64,
    /// Vector cores per chip.
    pub vector_cores: i64,
    /// Arrays in each tensor core.
    pub arrays_per_core: i64,
    /// Lanes of each vector core.
    pub vector_lanes: i64,
    /// Rows of each array (PHAZE's width).
    pub array_width: i64,
    /// Columns of each array (PHAZE's depth).
    pub array_depth: i64,
    /// The outermost buffer that all cores share, in MiB; 0 if there is none.
    pub global_buffer_mib: f64,
    /// HBM capacity in GiB.
    pub hbm_gib: f64,
    /// Area of all compute dies in mm².
    pub area_mm2: f64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn row() -> DesignRow {
        let dimensions = DesignDimensions {
            tensor_cores: 8,
            vector_cores: 2,
            arrays_per_core: 1,
            vector_lanes: 128,
            array_width: 128,
            array_depth: 64,
            global_buffer_mib: 128.0,
            hbm_gib: 32.0,
            area_mm2: 278.8,
        };
        DesignRow { throughput_sequences_per_s: Some(12.5), ..DesignRow::new_undecided(7, dimensions) }
    }

    #[test]
    fn cells_round_trip_and_match_the_columns() {
        let row = row();
        assert_eq!(row.cells().len(), DesignRow::COLUMNS.len());
        assert_eq!(DesignRow::from_cells(row.cells()).unwrap(), row);
    }

    #[test]
    fn a_cell_that_does_not_fit_is_named() {
        let mut cells = row().cells();
        cells[9] = StoreCell::Float(f64::NAN);
        assert_eq!(DesignRow::from_cells(cells).unwrap_err(), ("area_mm2", "NaN is not a finite number".into()));
        let (column, why) = DesignRow::from_cells([]).unwrap_err();
        assert_eq!((column, why.as_str()), ("index", "a value is required"));
    }

    #[test]
    fn one_line_summaries() {
        let mut row = row();
        assert_eq!(row.describe_chip(), "8 x 128x64 TC, 2 x 128 VC, 128 MiB, 32 GiB HBM");
        assert_eq!(row.describe_plan(), None);
        (row.stages, row.tensor_parallel, row.data_parallel) = (Some(8), Some(1), Some(128));
        row.micro_batch_sequences = Some(2);
        assert_eq!(row.describe_plan().unwrap(), "p 8, t 1, d 128, micro-batch 2");
    }
}
