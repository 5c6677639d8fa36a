//! A block of attention and MLP, whose weights several layers share, before a layer's own scan (Zamba,
//! arXiv:2405.16712, section 3; Zamba 2, arXiv:2411.15242, section 2).
//!
//! The block reads the layer's input concatenated with the token's embedding: a row of twice the model's width. A norm,
//! attention, a norm and an MLP follow, without residual sums between them. Each layer's own low-rank adapters and last
//! product make the result differ by layer. The result is added to the scan's input, not to the residual stream.
//!
//! The weights are counted once, with the embedding, as in the module that holds all layers that share them. Every
//! layer runs their kernels. The embedding is kept once, and every layer adds to its gradient.
//!
//! Tensor parallelism splits heads and MLP. Every device runs the adapters' first products and the layer's own product
//! for its own tokens.

use super::cross::{borrow_tensor, lend_tensor};
use super::linear::{Linear, ProductWidths, ResultPart, WeightSplit, result_part};
use super::norm::NormOperator;
use super::rope::RotatedWidths;
use super::segment_plan::SegmentPlan;
use super::{OperatorContext, channel_scan, further, gated, residual, rope, scan};
use crate::graph::{GraphBuilder, OperatorRole, Parameters, TensorId};
use crate::model::{Model, PositionEncoding};
use crate::variations::SharedBlock;

/// Adds the layer's shared block and scan, and returns their result.
pub(crate) fn add_shared_block_and_scan(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    block: SharedBlock,
    x: TensorId,
) -> TensorId {
    let width = plan.model.hidden;
    let size = plan.shape.local_tokens().saturating_mul(width);
    let embedded = borrow_tensor(graph, &plan.shape, "layer.shared.embedding", "layer.shared.embedded", size);
    let (made, _) = add_block(graph, plan, block, [x, embedded]);
    let led = plan.add_replicated_product(
        graph,
        "layer.shared.linear",
        ProductWidths { input: width, output: width },
        false,
        made,
    );
    let sum = residual::add_residual_sum(graph, &plan.shape, "layer.shared.sum", width, false, [led, x]);
    let normed = plan.add_norm_operator(graph, "layer.scan.norm", width, sum);
    let scanned = match (plan.model.variations.scan, plan.model.variations.channel_scan) {
        (Some(own), _) => scan::add_scan_branch(graph, plan, own, normed),
        (None, Some(own)) => channel_scan::add_channel_scan(graph, plan, own, normed),
        (None, None) => normed,
    };
    residual::add_residual_sum(graph, &plan.shape, "layer.scan.residual", width, false, [scanned, x])
}

/// Adds the weights of all blocks, and the embedding that they read, after the embedding's operators.
pub(crate) fn add_shared_weights(graph: &mut GraphBuilder, plan: &SegmentPlan<'_>, block: SharedBlock, x: TensorId) {
    let mut scratch = GraphBuilder::new(plan.shape.operand);
    let inputs = ["x", "embedded"].map(|name| scratch.add_activation(name, plan.residual_stream_size()));
    let (_, each) = add_block(&mut scratch, plan, block, inputs);
    lend_tensor(graph, "embedding.shared_blocks", each.times_pieces(block.count), x);
    graph.set_role_of_last(OperatorRole::SharedWeights);
}

/// Adds a block that reads the layer's input and the embedding. Returns its result, and the parameters on one device
/// that layers share; the block's operators do not count these.
fn add_block(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    block: SharedBlock,
    inputs: [TensorId; 2],
) -> (TensorId, Parameters) {
    let (model, shape) = (plan.model, &plan.shape);
    let double = 2 * model.hidden;
    let joint = further::add_concatenation(graph, plan, "layer.attention.joint", inputs);
    let mut held = Parameters::default();
    let mut mark = graph.operator_count();
    let norm = NormOperator {
        name: "layer.attention.norm".to_owned(),
        norm: model.norm,
        width: double,
        affine: model.norm_affine,
        bias: false,
        split: false,
    };
    let normed = norm.add_norm(graph, shape, joint);
    let heads = plan.slice.attention_heads(model);
    // The rotation follows the adapters, so the products are made without it.
    let wide = Model { hidden: double, position: PositionEncoding::None, ..model.clone() };
    let mut qkv = SegmentPlan { model: &wide, ..*plan }.add_query_key_value(graph, heads, normed);
    held = held.plus(graph.share_parameters_since(mark));
    let widths = [heads.query * heads.dim, heads.kv * heads.dim, heads.kv * heads.value];
    if let Some(rank) = block.attention_adapter {
        let parts = [result_part("query", widths[0]), result_part("key", widths[1]), result_part("value", widths[2])];
        let adapters = Adapters { name: "layer.attention", input: double, rank, parts: &parts };
        let adapted = adapters.add_adapters(graph, plan, normed, &qkv);
        qkv = <[TensorId; 3]>::try_from(adapted).unwrap_or(qkv);
    }
    let [mut query, mut key, value] = qkv;
    if model.position == PositionEncoding::Rotary {
        let widths = RotatedWidths { query: widths[0], key: widths[1], head_dim: heads.dim, rotated: heads.dim };
        [query, key] = rope::add_rotation(graph, shape, "layer.attention.rope", widths, [query, key]);
    }
    let mixed = plan.add_attention_core(graph, shape, heads, None, [query, key, value]);
    mark = graph.operator_count();
    let width = heads.query * heads.value;
    let attended = plan.add_row_split_product(graph, "layer.attention.output", width, false, mixed);
    let normed = plan.add_norm_operator(graph, "layer.mlp.norm", model.hidden, attended);
    held = held.plus(graph.share_parameters_since(mark));
    let (result, of_mlp) = add_shared_mlp(graph, plan, block.mlp_adapter, normed);
    (result, held.plus(of_mlp))
}

/// Adds the block's MLP. Returns its result and the parameters that layers share.
fn add_shared_mlp(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    adapter: Option<u64>,
    x: TensorId,
) -> (TensorId, Parameters) {
    let (model, width) = (plan.model, plan.slice.ffn);
    let parts = [result_part("gate", width), result_part("up", width)];
    let mark = graph.operator_count();
    let mut made = plan.add_column_split_products(graph, "layer.mlp", "gate_up", &parts, model.mlp_bias, x);
    let first = graph.share_parameters_since(mark);
    if let Some(rank) = adapter {
        let adapters = Adapters { name: "layer.mlp", input: model.hidden, rank, parts: &parts };
        made = adapters.add_adapters(graph, plan, x, &made);
    }
    let [gate, up] = <[TensorId; 2]>::try_from(made).unwrap_or([x; 2]);
    let unit = gated::add_gated_unit(graph, &plan.shape, "layer.mlp.gated", model.activation, width, [gate, up]);
    let mark = graph.operator_count();
    let result = plan.add_row_split_product(graph, "layer.mlp.down", width, model.mlp_bias, unit);
    (result, first.plus(graph.share_parameters_since(mark)))
}

/// Low-rank adapters of a block's products, one for each part of their result.
struct Adapters<'a> {
    name: &'a str,
    /// Width of the input.
    input: u64,
    rank: u64,
    /// The parts on this device.
    parts: &'a [ResultPart<'a>],
}

impl Adapters<'_> {
    /// Adds the adapters' products of `x` and their sums with the `made` parts, and returns the sums. Gate and up of an
    /// MLP share one low-rank vector, because they are halves of one product.
    fn add_adapters(
        &self,
        graph: &mut GraphBuilder,
        plan: &SegmentPlan<'_>,
        x: TensorId,
        made: &[TensorId],
    ) -> Vec<TensorId> {
        let shape = &plan.shape;
        let narrow_parts: Vec<ResultPart<'_>> = match self.parts {
            [ResultPart { name: "gate", .. }, ..] => vec![result_part("gate_up", self.rank)],
            parts => parts.iter().map(|part| result_part(part.name, self.rank)).collect(),
        };
        let product = |name: String, input, outputs: &[ResultPart<'_>], split, graph: &mut GraphBuilder, x| {
            let shares_input = split == WeightSplit::Replicated;
            let product = Linear { name, input, outputs, bias: false, split, shares_input, narrow: true, chunks: 1 };
            product.add_linear(graph, shape, x)
        };
        let down = format!("{}.adapter_down", self.name);
        let narrow = product(down, self.input, &narrow_parts, WeightSplit::Replicated, graph, x);
        let up = |part: &str| format!("{}.adapter_up_{part}", self.name);
        let raised: Vec<TensorId> = if let [one] = narrow[..] {
            product(up("gate_up"), self.rank, self.parts, WeightSplit::Columns, graph, one)
        } else {
            let mut each = Vec::with_capacity(narrow.len());
            for (one, part) in narrow.iter().zip(self.parts) {
                let outputs = [result_part("out", part.width)];
                each.extend(product(up(part.name), self.rank, &outputs, WeightSplit::Columns, graph, *one));
            }
            each
        };
        // Split products have all tokens, so nothing is split along the sequence.
        let rows = OperatorContext { sequence_parallel: false, ..*shape };
        let both = made.iter().zip(&raised).zip(self.parts);
        both.map(|((own, raised), part)| {
            let name = format!("{}.adapted_{}", self.name, part.name);
            residual::add_residual_sum(graph, &rows, &name, part.width, false, [*raised, *own])
        })
        .collect()
    }
}
