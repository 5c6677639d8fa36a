//! Kernels: `sim::cost` on the row's chip, with the clock of the measurement.

use super::{PreparedInputs, read_table};
use crate::evidence::{AloneFacts, RunsAlone};
use crate::validate::dataset::Dataset;
use crate::validate::row::{MeasuredRow, RowFailure};
use serde::Deserialize;
use sim::cost::calibrate::{self, Measurement, MeasurementClock};
use sim::cost::named::{KernelShape, NameError, data_type_from_name, kernel_from_name};
use sim::cost::{AttentionCall, AttentionSoftware, ExpertsCall, InputConversion, Routine};
use sim::hardware::Accelerator;
use sim::kernel::{Contraction, DataType, Direction, Kernel};
use sim::units::Seconds;
use std::sync::LazyLock;

/// The kernel libraries of data sets.
static SOFTWARE: LazyLock<Vec<KernelSoftware>> =
    LazyLock::new(|| read_table(include_str!("../../../reference/kernel_software.csv")));

/// The kernel library that a data set measured.
#[derive(Debug, Clone, Deserialize)]
struct KernelSoftware {
    /// The data set.
    dataset: String,
    /// The attention library of rows that do not name one.
    library: Option<String>,
    /// The conversion of the 16-bit input of narrow products.
    converts: InputConversion,
}

impl KernelSoftware {
    fn of_row(row: &MeasuredRow<'_>) -> Option<&'static Self> {
        let dataset = row.cell("dataset")?;
        SOFTWARE.iter().find(|software| dataset == software.dataset)
    }
}

/// Predicts the time of a kernel in microseconds.
pub(in crate::validate) fn predict_kernel(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let timing = timing_of_row(row)?;
    let model = prepared.cost_model(row.text("chip")?)?;
    let routine = routine_of_row(row, model.accelerator(), timing)?;
    let (us, facts) =
        (calibrate::predict_time(model, &routine, timing).micros(), facts_on_chip(row, &model.accelerator().name)?);
    prepared.alone = Some(facts);
    Ok(vec![("measured_us", us)])
}

/// Returns the kernel of a row and the chip that ran it. They select the measured errors for the prediction's interval.
pub(in crate::validate) fn facts_on_chip(row: &MeasuredRow<'_>, chip: &str) -> Result<AloneFacts, RowFailure> {
    let host = if timing_of_row(row)? == MeasurementClock::Host { " (host)" } else { "" };
    Ok(AloneFacts {
        what: RunsAlone::Kernel,
        place: chip.to_owned(),
        kind: format!("{} {}{host}", row.text("kernel")?, row.text("dtype")?),
    })
}

/// Returns the row as a measurement for fitting a chip's scalars.
pub(in crate::validate) fn read_measurement(
    row: &MeasuredRow<'_>,
    chip: &Accelerator,
    group: String,
) -> Result<Measurement, RowFailure> {
    let timing = timing_of_row(row)?;
    let routine = routine_of_row(row, chip, timing)?;
    for target in Dataset::Kernels.target_columns() {
        if let Some(time) = row.measured_value(target)? {
            return Ok(Measurement { routine, timing, time: Seconds::from_micros(time), group });
        }
    }
    Err(RowFailure::Unpredictable("no measured time".into()))
}

/// Returns the routine of the row. Only single kernels can be timed by the host's clock.
fn routine_of_row(row: &MeasuredRow<'_>, chip: &Accelerator, timing: MeasurementClock) -> Result<Routine, RowFailure> {
    let routine = name_routine(row, chip)?;
    if timing == MeasurementClock::Host && !matches!(routine, Routine::Kernel(_)) {
        return Err(RowFailure::Unpredictable(format!("{} by the host's clock", row.text("kernel")?)));
    }
    Ok(routine)
}

/// Returns the routine of the row, and the clock of its measurement.
pub(super) fn routine_and_clock_of_row(
    row: &MeasuredRow<'_>,
    chip: &Accelerator,
) -> Result<(Routine, MeasurementClock), RowFailure> {
    let timing = timing_of_row(row)?;
    Ok((routine_of_row(row, chip, timing)?, timing))
}

/// Returns the clock of the row's measurement.
fn timing_of_row(row: &MeasuredRow<'_>) -> Result<MeasurementClock, RowFailure> {
    match row.text("timing")? {
        "device" => Ok(MeasurementClock::Device),
        "host" => Ok(MeasurementClock::Host),
        _ => Err(row.row_fault("timing", "must be device or host", "say which clock was read")),
    }
}

fn name_routine(row: &MeasuredRow<'_>, chip: &Accelerator) -> Result<Routine, RowFailure> {
    let operand = data_type_from_name(row.text("dtype")?).map_err(|e| parse_name(row, &e))?;
    let name = row.text("kernel")?;
    match name {
        "attention_forward" | "attention_decode" => {
            Ok(Routine::Attention(attention_of_row(row, chip, Direction::Forward, operand)?))
        }
        "attention_backward" => Ok(Routine::Attention(attention_of_row(row, chip, Direction::Backward, operand)?)),
        "moe_grouped_gemm" => Ok(Routine::Experts(experts_of_row(row, operand)?)),
        _ if name.starts_with("grouped_gemm") => {
            let (m, n, k, batch) = (row.side("m")?, row.side("n")?, row.side("k")?, row.side("experts")?);
            let result = if name == "grouped_gemm_wgrad" { DataType::Fp32 } else { result_type(operand) };
            Ok(Routine::Grouped(Contraction { batch, m, n, k, operand, result }))
        }
        _ => {
            let size = |key: &str| row.optional_count(key).map(|value| value.unwrap_or(0));
            let side = |key: &str| row.optional_side(key).map(|value| value.unwrap_or(0));
            let shape = KernelShape {
                m: side("m")?,
                n: side("n")?,
                k: side("k")?,
                batch: size("batch")?,
                elements: size("elements")?,
            };
            let kernel = kernel_from_name(name, shape, operand).map_err(|e| parse_name(row, &e))?;
            Ok(match kernel {
                Kernel::Contraction(c) if operand.bytes() == 1 => {
                    let product = Contraction { result: result_type(operand), ..c };
                    match KernelSoftware::of_row(row).map_or(InputConversion::Cast, |own| own.converts) {
                        InputConversion::None => Routine::Kernel(Kernel::Contraction(product)),
                        _ if operand == DataType::Int8 => Routine::Kernel(Kernel::Contraction(product)),
                        conversion => Routine::Linear(product, conversion),
                    }
                }
                kernel => Routine::Kernel(kernel),
            })
        }
    }
}

/// Returns the result type of products of a type. Products of 8-bit and narrower operands have bf16 results.
fn result_type(operand: DataType) -> DataType {
    if operand.bytes() == 1 { DataType::Bf16 } else { operand }
}

fn attention_of_row(
    row: &MeasuredRow<'_>,
    chip: &Accelerator,
    direction: Direction,
    operand: DataType,
) -> Result<AttentionCall, RowFailure> {
    let heads = row.side("heads")?;
    let window = row.number("window")?.filter(|window| *window >= 1.0).map(|_| row.side("window")).transpose()?;
    Ok(AttentionCall {
        direction,
        batch: row.side("batch")?,
        heads,
        kv_heads: row.optional_side("kv_heads")?.unwrap_or(heads),
        queries: row.side("q_len")?,
        keys: row.side("kv_len")?,
        head_dim: row.side("head_dim")?,
        window,
        operand,
        software: attention_software_of_row(row, chip)?,
    })
}

/// Returns the attention library of the row: from its column `library`, or else from its data set, or else that of
/// training stacks.
fn attention_software_of_row(row: &MeasuredRow<'_>, chip: &Accelerator) -> Result<AttentionSoftware, RowFailure> {
    let carried = || KernelSoftware::of_row(row).and_then(|software| software.library.as_deref());
    if let Some(name) = row.cell("library").or_else(carried) {
        return AttentionSoftware::find_on_chip(chip, name).map_err(|why| RowFailure::Unpredictable(why.to_string()));
    }
    Ok(AttentionSoftware::Training)
}

fn experts_of_row(row: &MeasuredRow<'_>, operand: DataType) -> Result<ExpertsCall, RowFailure> {
    Ok(ExpertsCall {
        tokens: row.side("m")?,
        experts: row.side("experts")?,
        top_k: row.side("top_k")?,
        hidden: row.side("k")?,
        width: row.side("n")?,
        operand,
    })
}

/// Returns the failure for a name's error. An unknown kernel or type leaves the row without a prediction. A missing
/// dimension is a fault of the row.
fn parse_name(row: &MeasuredRow<'_>, error: &NameError) -> RowFailure {
    match error {
        NameError::MissingDimension { dimension, kernel } => {
            row.row_fault(dimension, &format!("{kernel} needs it"), "give a positive whole number")
        }
        NameError::UnknownKernel { .. } | NameError::UnknownType { .. } => RowFailure::Unpredictable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_line_of_the_carried_table_can_be_read() {
        let text = include_str!("../../../reference/kernel_software.csv");
        crate::validate::predict::assert_whole(&super::SOFTWARE, text);
    }
}
