//! Passes of one device that runs each pass as one graph, without an engine around it: iterations of decoding, and
//! chunks of prompts.

use super::PreparedInputs;
use super::cluster::fabric_of_row;
use crate::validate::row::{MeasuredRow, RowFailure};
use serving::{PassTimes, ServingError, ServingFormats, ServingPlan};
use workloads::{Layout, Model};

/// Microseconds from kernel to kernel of a graph. 0.7 to 1.5 fit the points of three engines equally well
/// (`serving/engines/vllm.toml`); a copy of 1,024 numbers takes 1.2 in all on H100 and H200.
const GRAPH_GAP_US: f64 = 1.0;
/// Largest number of sequences, of context tokens, and of new tokens.
const MOST: u64 = 1 << 24;

/// Predicts the time of a pass in microseconds: an iteration of decoding, or the prefilling of `new` tokens of every
/// prompt.
pub(in crate::validate) fn predict_decode(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let refuse = |e: ServingError| RowFailure::Unpredictable(e.to_string());
    let chip_name = row.text("chip")?.to_owned();
    let chip = prepared.cost_model(&chip_name)?.accelerator().clone();
    let model = Model::load(row.text("model")?).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    if row.text("dtype")? != "bf16" {
        return Err(RowFailure::Unpredictable("only iterations in bf16 are read".to_owned()));
    }
    let mut engine =
        super::serving::engine_named(prepared, "ideal").map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    engine.launch.gap_us = GRAPH_GAP_US;
    let new = row.optional_dimension("new", MOST)?;
    engine.kernels.attention_library = row.cell("library").map(str::to_owned);
    if new.is_none() && engine.kernels.attention_library.is_some() {
        let limit = "changes nothing while decoding: every library has the rates of the chip's decode kernel";
        return Err(row.row_fault("library", limit, "leave it empty, or give the new tokens of a prompt"));
    }
    let fabric = fabric_of_row(prepared, row, &chip_name, &Layout::default())?;
    let (sequences, context) = (row.dimension("batch", MOST)?, row.dimension("context", MOST)?);
    let plan = ServingPlan::of_one_device(ServingFormats::BF16);
    let mut times = PassTimes::new(&model, &chip, &fabric, &engine, plan).map_err(refuse)?;
    let cached = context.checked_sub(new.unwrap_or(1)).ok_or_else(|| {
        row.row_fault("new", &format!("the context has {context} tokens, the new ones among them"), "count them in")
    })?;
    let pass = match new {
        None => times.decode(sequences, cached),
        Some(new) => times.prefill(sequences, new, cached),
    }
    .map_err(refuse)?;
    Ok(vec![("measured_us", pass.total().micros())])
}
