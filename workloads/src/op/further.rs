//! Modules that predict further tokens (multi-token prediction; DeepSeek-V3 Technical Report, arXiv:2412.19437, section
//! 2.2).
//!
//! For every token, module k reads two vectors: the result of the previous module (or of the model's last layer), and
//! the embedding of the k-th token ahead. It normalises both, and a product reduces their concatenation to the model's
//! width. A layer like the model's last one follows, then a norm, logits and a loss. Embedding and head are shared with
//! the model. A pipeline's last stage holds a copy of the table, as in Megatron-LM; DeepSeek's DualPipe has both on one
//! device.

use super::linear::{Linear, ProductWidths, WeightSplit, result_part};
use super::segment_plan::SegmentPlan;
use super::{elementwise_kernel, embedding, input_chain, kernel_step, loss};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::layer_names::TRAILING_LAYER;
use sim::kernel::{Direction, ElementwiseFunction};
use sim::units::Bytes;

/// Adds the modules after `hidden`, the result of the model's layers. Returns the last loss, or `loss` without modules.
pub(crate) fn add_further_token_modules(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    mut hidden: TensorId,
    mut loss: TensorId,
) -> TensorId {
    let (model, shape) = (plan.model, &plan.shape);
    let (layer, width) = (model.last_kind(), model.hidden);
    for module in 0..model.variations.further_tokens {
        let called = |part: &str| format!("head.further_{module}.{part}");
        let ids = graph.add_constant(&called("tokens"), Bytes(embedding::TOKEN_ID_BYTES) * shape.tokens());
        let ahead = embedding::add_token_embedding(
            graph,
            shape,
            &called("token"),
            embedding::TableSize { rows: 0, width },
            ids,
        );
        let normed = [("hidden_norm", hidden), ("token_norm", ahead)]
            .map(|(name, x)| plan.add_norm_operator(graph, &called(name), width, x));
        let both = add_concatenation(graph, plan, &called("both"), normed);
        let led = plan.add_replicated_product(
            graph,
            &called("projection"),
            ProductWidths { input: 2 * width, output: width },
            false,
            both,
        );
        let place = model.list.trailing.len() as u64 + module;
        hidden = plan.add_layer(graph, &layer, &format!("{TRAILING_LAYER}{place}"), led);
        let x = plan.add_norm_operator(graph, &called("norm"), width, hidden);
        let logits = Linear {
            name: called("logits"),
            input: width,
            outputs: &[result_part("out", plan.slice.vocabulary)],
            bias: model.head_bias,
            split: WeightSplit::Columns,
            shares_input: false,
            narrow: false,
            chunks: plan.loss_chunks(width),
        };
        let chunks = logits.chunks;
        let logits = logits.add_linear(graph, shape, x)[0];
        graph.share_parameters_of_last();
        loss = loss::add_loss(
            graph,
            shape,
            &called("loss"),
            loss::LossSize { columns: plan.slice.vocabulary, chunks },
            logits,
        );
    }
    loss
}

/// Concatenates two rows by a copy. In the backward pass, each row gets its part of the gradient.
pub(crate) fn add_concatenation(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    name: &str,
    parts: [TensorId; 2],
) -> TensorId {
    let shape = &plan.shape;
    let elements = shape.local_tokens().saturating_mul(2 * plan.model.hidden);
    let (output, size) = (graph.add_activation(&format!("{name}.out"), elements), shape.activation_bytes(elements));
    let copy = elementwise_kernel(ElementwiseFunction::Copy, Direction::Forward, elements, size, size);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: parts.to_vec(),
        outputs: vec![output],
        forward: vec![kernel_step("forward", copy)],
        backward: vec![input_chain(&parts, &[], vec![])],
        ..NewOperator::default()
    });
    output
}
