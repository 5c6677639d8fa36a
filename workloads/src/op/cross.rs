//! Attention of a decoder to its encoder's result (Vaswani et al. 2017): queries of the decoder's tokens, keys and values of the encoder's.
//!
//! The encoder's result is one tensor for all layers: it is kept once, with the embedding, and every layer adds to its gradient.

use super::fused_attention::{self, Core};
use super::linear::{Linear, Split};
use super::transformer::Plan;
use super::{Shape, context, dropout, elementwise, input_chain, scores, softmax, step};
use crate::graph::{GraphBuilder, NewOperator, Parameters, TensorId};
use crate::lowering::Attention;
use sim::kernel::{Direction, Function};
use sim::units::Bytes;

/// Adds the branch; returns its result.
pub(crate) fn add(graph: &mut GraphBuilder, plan: &Plan<'_>, x: TensorId) -> TensorId {
    let (model, shape) = (plan.model, &plan.shape);
    let heads = plan.slice.attention(model);
    let (query_width, kv_width) = (heads.query * heads.dim, heads.kv * heads.dim);
    let query = plan.columns(graph, ("layer.cross", "query"), &[("out", query_width)], model.qkv_bias, x)[0];
    let encoded = add_encoded(graph, shape, model.hidden);
    let [key, value] = [("key", true), ("value", false)].map(|(name, first)| {
        let (name, outputs) = (format!("layer.cross.{name}"), &[("out", kv_width)]);
        let product = Linear {
            name,
            input: model.hidden,
            outputs,
            bias: model.qkv_bias,
            split: Split::Columns,
            shares_input: !first,
            narrow: true,
        };
        product.add(graph, shape, encoded)[0]
    });
    let mixed = match plan.lowering.attention {
        Attention::Fused => {
            let core = Core { heads, keys: shape.full_sequence(), causal: false, window: None, sinks: false };
            fused_attention::add(graph, shape, "layer.cross.core", core, [query, key, value])
        }
        Attention::Unfused => {
            let mut p = scores::add(graph, shape, "layer.cross.scores", heads, (query, key));
            p = softmax::add(graph, shape, "layer.cross.softmax", (heads, false), p);
            if model.dropout.attention > 0.0 {
                p = dropout::add(graph, shape, "layer.cross.dropout", heads.scores(shape), p);
            }
            context::add(graph, shape, "layer.cross.context", heads, (p, value))
        }
    };
    plan.rows(graph, "layer.cross.output", heads.query * heads.value, model.attention_output_bias, mixed)
}

/// The encoder's result as a layer reads it. Kept elsewhere, it takes no bytes here; its gradient is added to the other layers'.
fn add_encoded(graph: &mut GraphBuilder, shape: &Shape, hidden: u64) -> TensorId {
    let elements = shape.local_tokens().saturating_mul(hidden);
    let size = shape.bytes(elements);
    let encoded = graph.constant("layer.cross.encoder_result", Bytes::ZERO);
    let read = graph.borrowed("layer.cross.encoded", size);
    let add = elementwise(Function::Add, Direction::Backward, elements, size * 2, size);
    graph.add(NewOperator {
        name: "layer.cross.encoded".to_owned(),
        inputs: vec![encoded],
        outputs: vec![read],
        backward: vec![input_chain(&[encoded], &[], vec![step("backward_accumulate", add)])],
        ..NewOperator::default()
    });
    read
}

/// Ends the encoder: its result is kept, and the decoder's layers' gradient of it enters here. `biases` parameters are of the scores, of both
/// sides' layers.
pub(crate) fn add_result(graph: &mut GraphBuilder, name: &str, biases: u64, encoded: TensorId) {
    let kept = graph.constant(&format!("{name}.gone"), Bytes::ZERO);
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![encoded],
        outputs: vec![kept],
        backward: vec![input_chain(&[encoded], &[encoded], vec![])],
        parameters: Parameters { sharded: biases, ..Parameters::default() },
        ..NewOperator::default()
    });
}
