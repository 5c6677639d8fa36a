//! Limits on quantities that depend on several numbers of a plan.

use super::{Batch, Layout, LayoutError};
use crate::limits::{MAX_ELEMENTS, MAX_PASSES, MAX_TOKENS, MAX_WEIGHTS};
use crate::model::Model;

/// Checks a plan against limits on quantities that depend on several of its numbers. Each single number is already
/// within its own limit.
///
/// # Errors
/// The first exceeded limit.
pub(crate) fn check_limits(layout: &Layout, model: &Model, batch: &Batch) -> Result<(), LayoutError> {
    let beyond = |key, value: u64, limit: String, cure: &str| {
        Err(LayoutError { key, value: value.to_string(), limit, cure: cure.to_owned() })
    };
    let weights = model.weight_count();
    if weights > MAX_WEIGHTS {
        let limit =
            format!("such that the model's matrices have at most {MAX_WEIGHTS} weights (they would have {weights})");
        return beyond("layers", model.layers, limit, "correct it, or the widths, heads, experts or vocabulary");
    }
    let Batch { micro_batch, global_batch, sequence_length } = *batch;
    let elements = model.largest_tensor(micro_batch.saturating_mul(model.variations.longest_side(sequence_length)));
    if elements > MAX_ELEMENTS {
        let limit = format!("such that no tensor has more than {MAX_ELEMENTS} elements (one would have {elements})");
        let (key, value) = if micro_batch == 1 { ("seq", sequence_length) } else { ("micro_batch", micro_batch) };
        return beyond(key, value, limit, "use smaller micro-batches, shorter sequences or a smaller model");
    }
    let tokens = u128::from(global_batch) * u128::from(sequence_length);
    if tokens > MAX_TOKENS {
        let limit = format!("such that a step has at most {MAX_TOKENS} tokens (it would have {tokens})");
        return beyond("global_batch", global_batch, limit, "use a smaller batch or shorter sequences");
    }
    let passes = u128::from(layout.micro_batches(batch)).saturating_mul(layout.chunk_count().into());
    if layout.pipeline > 1 && passes > MAX_PASSES {
        let limit = format!("such that at most {MAX_PASSES} passes go through the pipeline's chunks ({passes} would)");
        return beyond(
            "global_batch",
            global_batch,
            limit,
            "use a smaller batch, larger micro-batches, more copies or fewer stages",
        );
    }
    Ok(())
}
