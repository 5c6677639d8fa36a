//! A short convolution between two gates as a layer's mixer (LFM2, Liquid AI 2025). One product makes two gates and the
//! vectors. The first gate scales the vectors, a convolution of each channel mixes neighbouring tokens, and the second
//! gate scales the result. A last product maps it back to the residual stream.
//!
//! Tensor parallelism splits the channels.

use super::convolution::Convolution;
use super::gated::gated_product;
use super::linear::result_part;
use super::segment_plan::SegmentPlan;
use crate::graph::{GraphBuilder, TensorId};
use crate::variations::GatedConvolution;

/// Adds the gated convolution's branch and returns its result.
pub(crate) fn add_gated_convolution(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    mixer: GatedConvolution,
    x: TensorId,
) -> TensorId {
    let shape = &plan.shape;
    let width = plan.model.hidden / u64::from(shape.ranks.max(1));
    let elements = shape.tokens().saturating_mul(width);
    let parts = [result_part("before", width), result_part("after", width), result_part("vectors", width)];
    let made = plan.add_column_split_products(graph, "layer.convolution", "in", &parts, mixer.bias, x);
    let [before, after, vectors] = <[TensorId; 3]>::try_from(made).unwrap_or([x; 3]);
    let gated = gated_product(graph, shape, "layer.convolution.before_gate", elements, [before, vectors]);
    let convolution = Convolution { name: "layer.convolution.core", width, reach: mixer.reach, bias: mixer.bias };
    let mixed = convolution.add_convolution(graph, shape, gated);
    let gated = gated_product(graph, shape, "layer.convolution.after_gate", elements, [after, mixed]);
    plan.add_row_split_product(graph, "layer.convolution.out", width, mixer.bias, gated)
}
