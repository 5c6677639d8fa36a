//! Attention of a decoder to its encoder's result (Vaswani et al. 2017). Queries come from the decoder's tokens, keys
//! and values from the encoder's.
//!
//! The encoder's result is one tensor for all layers. It is kept once, with the embedding. Every layer adds to its
//! gradient.

use super::fused_attention::{self, AttentionCore};
use super::linear::result_part;
use super::scores::ScoreShape;
use super::segment_plan::SegmentPlan;
use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, Parameters, TensorId};
use crate::lowering::Attention;
use sim::kernel::{Direction, ElementwiseFunction};
use sim::units::Bytes;

/// Adds the cross-attention branch and returns its result.
pub(crate) fn add_cross_attention(graph: &mut GraphBuilder, plan: &SegmentPlan<'_>, x: TensorId) -> TensorId {
    let (model, shape) = (plan.model, &plan.shape);
    let heads = plan.slice.attention_heads(model);
    let (query_width, kv_width) = (heads.query * heads.dim, heads.kv * heads.dim);
    let query = plan.add_column_split_products(
        graph,
        "layer.cross",
        "query",
        &[result_part("out", query_width)],
        model.qkv_bias,
        x,
    )[0];
    let encoder = plan.encoder_plan();
    let elements = encoder.shape.local_tokens().saturating_mul(model.hidden);
    let encoded = borrow_tensor(graph, &encoder.shape, "layer.cross.encoder_result", "layer.cross.encoded", elements);
    let parts = [result_part("key", kv_width), result_part("value", kv_width)];
    let made = encoder.add_separate_products(graph, "layer.cross", &parts, |part| model.has_bias(part), encoded);
    let [key, value] = [made[0], made[1]];
    let mixed = match plan.lowering.attention {
        Attention::Fused => {
            let core = AttentionCore {
                heads,
                keys: encoder.shape.full_sequence(),
                causal: false,
                window: None,
                sinks: false,
                chosen: None,
            };
            fused_attention::add_fused_attention(graph, shape, "layer.cross.core", core, [query, key, value])
        }
        Attention::Unfused => {
            let scores = ScoreShape { heads, keys: encoder.shape.sequence };
            plan.add_unfused_core(graph, shape, "layer.cross", scores, false, [query, key, value])
        }
    };
    plan.add_row_split_product(
        graph,
        "layer.cross.output",
        heads.query * heads.value,
        model.attention_output_bias,
        mixed,
    )
}

/// Adds a shared tensor of `elements` elements, such as the encoder's result, for one layer to read. The tensor is kept
/// elsewhere under the name `lent` and takes no bytes here. Its gradient is added to that of the other layers.
pub(crate) fn borrow_tensor(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    lent: &str,
    name: &str,
    elements: u64,
) -> TensorId {
    let size = shape.activation_bytes(elements);
    let kept = graph.add_constant(lent, Bytes::ZERO);
    let read = graph.add_borrowed_tensor(name, size);
    let add = elementwise_kernel(ElementwiseFunction::Add, Direction::Backward, elements, size * 2, size);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![kept],
        outputs: vec![read],
        backward: vec![input_chain(&[kept], &[], vec![kernel_step("backward_accumulate", add)])],
        ..NewOperator::default()
    });
    read
}

/// Keeps a tensor, such as the encoder's result, and lends it to layers. The gradient from those layers enters here.
/// `parameters` are the parameters that the layers share.
pub(crate) fn lend_tensor(graph: &mut GraphBuilder, name: &str, parameters: Parameters, lent: TensorId) {
    let kept = graph.add_constant(&format!("{name}.gone"), Bytes::ZERO);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![lent],
        outputs: vec![kept],
        backward: vec![input_chain(&[lent], &[lent], vec![])],
        parameters,
        ..NewOperator::default()
    });
}
