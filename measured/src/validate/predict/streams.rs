//! Concurrent streams: `sim::network::StreamTimes` under the chip's scalars, from the times of the streams alone.

use super::PreparedInputs;
use crate::validate::dataset::STREAMS_ALONE;
use crate::validate::row::{MeasuredRow, RowFailure};
use sim::hardware::StreamContention;
use sim::network::StreamTimes;
use sim::units::Seconds;

/// Predicts the time of all streams together in milliseconds.
pub(in crate::validate) fn predict_streams(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let chip = row.text("chip")?;
    let contention = prepared.cost_model(chip)?.accelerator().streams;
    if contention.is_none() {
        prepared.note_assumption(format!("streams on {chip} do not slow each other: nothing of it is known"));
    }
    let mut alone = [Seconds::ZERO; STREAMS_ALONE.len()];
    for (time, (_, column)) in alone.iter_mut().zip(STREAMS_ALONE) {
        *time = Seconds(row.stated_time(column, "an empty cell means no such stream")? * 1e-3);
    }
    let [kernels, collective, copy_in, copy_out] = alone;
    let between_nodes = row.optional_count("group_inter")?.is_some_and(|nodes| nodes > 1);
    let streams = StreamTimes { kernels, collective, between_nodes, copy_in, copy_out };
    let together = streams.time_together(&contention.unwrap_or(StreamContention::default()));
    Ok(vec![("measured_ms", together.0 * 1e3)])
}
