//! The indexer of sparse attention (DeepSeek-V3.2-Exp report, 2025, section 2.1). Small heads score all earlier tokens,
//! and every query keeps the tokens with the highest scores. A score is the weighted sum over heads of relu(query ·
//! key).
//!
//! The scores of the single heads stay on chip; only their sum is written, in fp32. A radix selection reads it twice
//! (TileLang, `examples/deepseek_v32/topk_selector.py`). The backward pass keeps the choice, not the scores. Serving
//! computes scores in fp8 for models that were published in this form ([`Indexer::scaled`]; DeepGEMM's
//! `fp8_mqa_logits`).
//!
//! The indexer learns from attention's own probabilities (the report's equations 3 and 4, sparse stage). Its input is
//! detached, so no gradient of the model's loss passes through it. Its backward pass scores the chosen tokens again,
//! needs attention's probabilities on them, and makes the gradients of its queries and keys.
//!
//! Every tensor-parallel device runs the whole indexer, as in vLLM and SGLang. Context-parallel devices gather the
//! indexer's keys.

use super::linear::{Linear, ProductSize, ResultPart, WeightSplit, activation_product, result_part};
use super::norm::NormOperator;
use super::segment_plan::SegmentPlan;
use super::{OperatorContext, RowShape, elementwise_kernel, input_chain, kernel_step, reduction_kernel};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, TensorId};
use crate::model::Norm;
use crate::parallel::Heads;
use crate::variations::Indexer;
use sim::kernel::{
    CollectiveKind, Contraction, DataType, Direction, Elementwise, ElementwiseFunction, Epilogue, Kernel, RowFunction,
};
use sim::units::Bytes;

/// Bytes of a score (fp32), and of the index of a chosen token (int32).
const WIDE: u64 = 4;

/// Largest size of the scores that exist at once; further queries wait (512 MiB: vLLM's
/// `VLLM_SPARSE_INDEXER_MAX_LOGITS_MB`).
const SCORES_AT_ONCE: Bytes = Bytes(512 << 20);

/// Adds the indexer and returns the choice. Queries come from `narrow`, the low-rank query vector of latent attention,
/// or from the layer's input `x`.
pub(crate) fn add_indexer(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    indexer: Indexer,
    heads: Heads,
    x: TensorId,
    narrow: Option<TensorId>,
) -> TensorId {
    let (hidden, dim) = (plan.model.hidden, indexer.head_dim);
    let query_from = narrow.filter(|_| indexer.query_rank.is_some()).unwrap_or(x);
    let query_input = indexer.query_rank.unwrap_or(hidden);
    let width = indexer.heads.saturating_mul(dim);
    let query = add_detached_product(graph, plan, "query", query_input, &[result_part("out", width)], query_from)[0];
    let mut parts = vec![result_part("key", dim)];
    parts.extend(indexer.weighed.then_some(result_part("weights", indexer.heads)));
    let made = add_detached_product(graph, plan, "key", hidden, &parts, x);
    let key = add_key_norm(graph, plan, indexer, made[0]);
    let inputs: Vec<TensorId> = [query, key].into_iter().chain(made.get(1).copied()).collect();
    add_choice(graph, plan, indexer, heads, &inputs)
}

/// Adds an indexer over `entries`, into which earlier tokens are compressed, and returns the choice. Queries come from
/// the low-rank query vector `narrow`, and the heads' weights from the layer's input `x`.
pub(crate) fn add_indexer_of_entries(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    indexer: Indexer,
    heads: Heads,
    [x, narrow, entries]: [TensorId; 3],
) -> TensorId {
    let width = indexer.heads.saturating_mul(indexer.head_dim);
    let rank = indexer.query_rank.unwrap_or(plan.model.hidden);
    let query = add_detached_product(graph, plan, "query", rank, &[result_part("out", width)], narrow)[0];
    let parts = [result_part("weights", indexer.heads)];
    let weights = add_detached_product(graph, plan, "weights", plan.model.hidden, &parts, x)[0];
    add_choice(graph, plan, indexer, heads, &[query, entries, weights])
}

/// Adds a product whose input gets no gradient.
fn add_detached_product(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    name: &str,
    input: u64,
    outputs: &[ResultPart<'_>],
    x: TensorId,
) -> Vec<TensorId> {
    let name = format!("layer.attention.index.{name}");
    let split = WeightSplit::Replicated;
    let product = Linear { name, input, outputs, bias: false, split, shares_input: false, narrow: false, chunks: 1 };
    let made = product.add_linear(graph, &plan.shape, x);
    graph.detach_inputs_of_last();
    made
}

/// Adds the norm of the keys. It also stands for the queries' norm (MiniMax M3).
fn add_key_norm(graph: &mut GraphBuilder, plan: &SegmentPlan<'_>, indexer: Indexer, key: TensorId) -> TensorId {
    // LayerNorm has a gain and a bias for keys; RMSNorm has a gain for queries and one for keys. Both have as many
    // parameters.
    let norm = NormOperator {
        name: "layer.attention.index.norm".to_owned(),
        norm: Norm::LayerNorm,
        width: indexer.head_dim,
        affine: true,
        bias: true,
        split: false,
    };
    norm.add_norm(graph, &plan.shape, key)
}

/// Adds the scores and the choice, and returns the choice.
fn add_choice(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    indexer: Indexer,
    attention: Heads,
    inputs: &[TensorId],
) -> TensorId {
    let shape = &plan.shape;
    let (tokens, sequence) = (shape.tokens(), shape.full_sequence());
    let chosen = match shape.serving {
        Some(_) => indexer.chosen.min((shape.seen_tokens() / indexer.tokens_per_key.max(1)).max(1)),
        None => indexer.chosen_keys(sequence),
    };
    let choice = graph.add_constant("layer.attention.index.scores.choice", Bytes(WIDE) * tokens.saturating_mul(chosen));
    // On average, a token sees half of the sequence and all cached tokens.
    let seen = sequence.div_ceil(2).saturating_add(shape.serving.map_or(0, |pass| pass.cached));
    let seen = seen.div_ceil(indexer.tokens_per_key.max(1));
    let written = Bytes(WIDE) * tokens.saturating_mul(seen).div_ceil(indexer.block.max(1));
    let rotated = tokens.saturating_mul((indexer.heads + 1).saturating_mul(indexer.head_dim));
    let size = shape.activation_bytes(rotated);
    let gathered = shape.activation_bytes(rotated);
    let mut forward: Vec<KernelStep> = shape.gather_sequence("forward", gathered).into_iter().collect();
    forward.push(kernel_step(
        "forward.rope",
        elementwise_kernel(ElementwiseFunction::Rope, Direction::Forward, rotated, size, size),
    ));
    // In serving, queries and keys may have their own format.
    let scales = indexer.scaled.filter(|_| shape.serving.is_some()).map(|block| indexer.scale_bytes(block));
    forward.extend(scales.map(|scales| {
        let narrow = DataType::Fp8.packed_bytes_of(rotated) + scales * tokens.saturating_mul(indexer.heads + 1);
        let convert = elementwise_kernel(ElementwiseFunction::Convert, Direction::Forward, rotated, size, narrow);
        kernel_step("forward.convert", convert)
    }));
    let all_keys = shape.activation_bytes(shape.batch.saturating_mul(sequence).saturating_mul(indexer.head_dim));
    let exchange =
        |label: &str, kind| (shape.context > 1).then(|| shape.context_collective_step(label, kind, all_keys));
    forward.extend(exchange("forward.all_gather", CollectiveKind::AllGather));
    forward.push(kernel_step("forward.scores", score_kernel(shape, indexer, seen, scales)));
    let rows = RowShape { rows: tokens, columns: seen.div_ceil(indexer.block.max(1)) };
    let select = reduction_kernel(RowFunction::Sum, Direction::Forward, rows, written * 2, graph.tensor_bytes(choice));
    forward.push(kernel_step("forward", select));
    let mut reads = inputs.to_vec();
    reads.push(choice);
    let mut backward: Vec<KernelStep> =
        exchange("backward_input.all_gather", CollectiveKind::AllGather).into_iter().collect();
    backward.extend(backward_on_chosen(plan, indexer, attention, chosen));
    backward.extend(exchange("backward_input.reduce_scatter", CollectiveKind::ReduceScatter));
    let alive = written.min(SCORES_AT_ONCE);
    let workspace = if shape.sequence_parallel { gathered + alive } else { alive };
    graph.add_operator(NewOperator {
        name: "layer.attention.index.scores".to_owned(),
        inputs: inputs.to_vec(),
        outputs: vec![choice],
        forward,
        backward: vec![input_chain(inputs, &reads, backward)],
        workspace,
        ..NewOperator::default()
    });
    choice
}

/// Returns the kernel of the scores of `seen` tokens for every query. It is one product for all heads, which read the
/// same keys, with a sum over the heads and over the tokens of a block. With `scales`, queries and keys are fp8, and
/// every key has a scale. The queries' scales are part of the heads' weights.
fn score_kernel(shape: &OperatorContext, indexer: Indexer, seen: u64, scales: Option<Bytes>) -> Kernel {
    let queries = shape.sequence.saturating_mul(indexer.heads);
    let operand = if scales.is_some() { DataType::Fp8 } else { shape.operand };
    let contraction =
        Contraction { batch: shape.batch, m: queries, n: seen, k: indexer.head_dim, operand, result: DataType::Fp32 };
    let weights = if indexer.weighed { Bytes(WIDE) * shape.batch.saturating_mul(queries) } else { Bytes::ZERO };
    let relu = Elementwise {
        function: ElementwiseFunction::Relu,
        direction: Direction::Forward,
        elements: shape.batch.saturating_mul(queries).saturating_mul(seen),
        read: weights + scales.unwrap_or(Bytes::ZERO) * shape.batch.saturating_mul(seen),
        written: Bytes::ZERO,
    };
    let summed = indexer.heads.saturating_mul(indexer.block.max(1));
    Kernel::Epilogue(Epilogue { contraction, elementwise: relu, summed })
}

/// Returns the backward pass of the scores, which covers only the chosen tokens.
fn backward_on_chosen(plan: &SegmentPlan<'_>, indexer: Indexer, attention: Heads, chosen: u64) -> Vec<KernelStep> {
    let shape = &plan.shape;
    let (tokens, heads, dim) = (shape.tokens(), indexer.heads, indexer.head_dim);
    let sums = Bytes(WIDE) * tokens.saturating_mul(chosen);
    // A product whose results are summed over heads while they are on chip.
    let summed = |label: &str, heads: u64, k: u64, function| {
        let contraction =
            Contraction { batch: tokens, m: heads, n: chosen, k, operand: shape.operand, result: DataType::Fp32 };
        let elements = tokens.saturating_mul(heads).saturating_mul(chosen);
        let (direction, none) = (Direction::Backward, Bytes::ZERO);
        let elementwise = Elementwise { function, direction, elements, read: none, written: none };
        let kernel = Kernel::Epilogue(Epilogue { contraction, elementwise, summed: heads });
        kernel_step(&format!("backward_input.{label}"), kernel)
    };
    let product = |label: &str, size| {
        kernel_step(&format!("backward_input.{label}"), activation_product(tokens, size, shape.operand))
    };
    let rows = RowShape { rows: tokens, columns: chosen };
    let divergence = reduction_kernel(RowFunction::Softmax, Direction::Backward, rows, sums * 2, sums);
    let mut steps = vec![
        summed("again", heads, dim, ElementwiseFunction::Relu),
        summed("target", attention.query, attention.dim, ElementwiseFunction::Exp),
    ];
    steps.extend(shape.is_tensor_parallel().then(|| {
        // Every device has the probabilities of its own heads only, so the devices sum them.
        shape.tensor_collective_step("backward_input.all_reduce", CollectiveKind::AllReduce, sums)
    }));
    steps.push(kernel_step("backward_input.divergence", divergence));
    steps.push(product("query", ProductSize { m: heads, n: dim, k: chosen }));
    steps.push(product("key", ProductSize { m: chosen, n: dim, k: heads }));
    steps
}
