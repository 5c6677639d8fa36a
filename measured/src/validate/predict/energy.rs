//! Energy of kernels: the dynamic energy from the cost model, and the chip's static power over the kernel's time.

use super::PreparedInputs;
use super::kernels::routine_and_clock_of_row;
use crate::validate::row::{MeasuredRow, RowFailure};
use sim::cost::{AttentionCall, Routine, Span, calibrate};
use sim::kernel::{FusedAttention, Kernel};

/// Predicts the energy of one call in millijoules, for random operands. Rows with operands of zeros, which switch fewer
/// bits, have no prediction.
pub(in crate::validate) fn predict_energy(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    match row.cell("operands") {
        None | Some("normal") => {}
        Some("zeros") => {
            let why = "its operands are zeros, which draw less than any model's numbers; no such energy is modelled";
            return Err(RowFailure::Unpredictable(why.to_owned()));
        }
        Some(_) => return Err(row.row_fault("operands", "must be normal or zeros", "say what was multiplied")),
    }
    let model = prepared.cost_model(row.text("chip")?)?;
    let (routine, clock) = routine_and_clock_of_row(row, model.accelerator())?;
    let kernel = match &routine {
        Routine::Kernel(kernel) => *kernel,
        Routine::Linear(product, _) => Kernel::Contraction(*product),
        Routine::Attention(call) => Kernel::FusedAttention(attention_kernel(call)),
        Routine::Grouped(_) | Routine::Experts(_) => {
            let why = format!("no energy of {} is modelled", row.text("kernel")?);
            return Err(RowFailure::Unpredictable(why));
        }
    };
    let dynamic = model.cost_of_kernel(&kernel, Span::AllCores).energy;
    let time = calibrate::predict_time(model, &routine, clock);
    let whole = dynamic.0 + model.accelerator().energy.static_power.0 * time.0;
    Ok(vec![("energy_mj", whole * 1e3)])
}

/// Returns the attention of a call in the form that the cost model prices. While decoding, the heads that share keys
/// are the queries of one head, because keys are read once for all of them.
fn attention_kernel(call: &AttentionCall) -> FusedAttention {
    let decodes = call.queries == 1;
    let shared = if decodes { call.heads.div_ceil(call.kv_heads.max(1)) } else { 1 };
    FusedAttention {
        direction: call.direction,
        batch: call.batch,
        heads: if decodes { call.kv_heads } else { call.heads },
        kv_heads: call.kv_heads,
        queries: call.queries * shared,
        keys: call.keys,
        head_dim: call.head_dim,
        causal: !decodes,
        window: call.window,
        values_are_keys: false,
        pieces: None,
        operand: call.operand,
    }
}
