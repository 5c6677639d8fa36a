//! Attention to near tokens and to compressed entries of all earlier tokens (DeepSeek-V4's report, section 2.3;
//! transformers 5.24, `DeepseekV4Attention`). All heads share one key, which is also the value. An entry is the
//! weighted sum of a few tokens' vectors, with weights per element from a softmax over these tokens. A layer sees only
//! a window, the window and all entries, or the window and the entries that an indexer chooses. The indexer scores its
//! own entries. The heads' results are projected in groups, each through a low-rank vector.
//!
//! The rotation of entries, and the inverse rotation of results, count as part of the kernels before them.
//!
//! Tensor parallelism splits heads and groups. Every device has the shared keys and all entries.

use super::fused_attention::{self, AttentionCore, ChosenKeys};
use super::latent::{LatentRope, add_latent_rope};
use super::linear::{Linear, ResultPart, WeightSplit, result_part};
use super::norm::NormOperator;
use super::per_head::PerHeadProduct;
use super::scores::ScoreShape;
use super::segment_plan::SegmentPlan;
use super::{
    OperatorContext, RowShape, elementwise_kernel, indexer, input_chain, kernel_step, reduction_kernel, weight_chain,
};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, Parameters, TensorId};
use crate::layer_list::KeyChoice;
use crate::lowering::Attention;
use crate::model::Norm;
use crate::parallel::Heads;
use crate::variations::{CompressedAttention, EntryForm};
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};
use sim::units::Bytes;

/// Adds the branch of compressed attention and returns its result.
pub(crate) fn add_compressed_attention(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    own: CompressedAttention,
    x: TensorId,
) -> TensorId {
    let (model, shape) = (plan.model, &plan.shape);
    let heads = Heads { kv: 1, ..plan.slice.attention_heads(model) };
    let narrow = add_replicated(graph, plan, "query_down", &[result_part("out", own.query_rank)], x)[0];
    let narrow = add_gains(graph, shape, "layer.attention.query_norm", own.query_rank, narrow);
    let query = Linear {
        name: "layer.attention.query_up".to_owned(),
        input: own.query_rank,
        outputs: &[result_part("out", heads.query * heads.dim)],
        bias: false,
        split: WeightSplit::Columns,
        shares_input: false,
        narrow: true,
        chunks: 1,
    };
    let query = query.add_linear(graph, shape, narrow)[0];
    let key = add_replicated(graph, plan, "key", &[result_part("out", heads.dim)], x)[0];
    let key = add_gains(graph, shape, "layer.attention.key_norm", heads.dim, key);
    let rope = model.variations.rotated.unwrap_or(heads.dim);
    let [query, key] =
        add_latent_rope(graph, shape, LatentRope { heads, rotated: rope, gathered: heads.dim }, [query, key], None);
    let form = own.entry_form(model.variations.keys);
    let keys = match form {
        None => key,
        Some(form) => {
            let entries = add_entries(
                graph,
                plan,
                EntryPool { name: "layer.attention.entries", form, width: heads.dim, detached: false },
                x,
            );
            add_joined_keys(graph, plan, form, [key, entries])
        }
    };
    let choice = model.own_indexer().map(|index| {
        let form = EntryForm { tokens: index.tokens_per_key, overlaps: true };
        let made = add_entries(
            graph,
            plan,
            EntryPool { name: "layer.attention.index.entries", form, width: index.head_dim, detached: true },
            x,
        );
        indexer::add_indexer_of_entries(graph, plan, index, heads, [x, narrow, made])
    });
    let mixed = add_core(graph, plan, heads, form, choice, [query, keys]);
    let groups = (own.output_groups / u64::from(shape.ranks.max(1))).max(1);
    let down = PerHeadProduct {
        name: "layer.attention.output_down",
        heads: groups,
        input: heads.query * heads.dim / groups,
        output: own.output_rank,
    };
    let led = down.add_product(graph, shape, mixed);
    plan.add_row_split_product(graph, "layer.attention.output", groups * own.output_rank, false, led)
}

/// Adds attention's core over the window's keys and the entries; `keys` holds both, one after the other.
fn add_core(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    heads: Heads,
    form: Option<EntryForm>,
    choice: Option<TensorId>,
    [query, keys]: [TensorId; 2],
) -> TensorId {
    let (model, shape) = (plan.model, &plan.shape);
    let (seen, name) = (shape.seen_tokens(), "layer.attention.core");
    let all = seen.saturating_add(form.map_or(0, |form| seen / form.tokens.max(1)));
    if plan.lowering.attention == Attention::Unfused {
        // All scores are computed and masked, as in transformers.
        return plan.add_unfused_core(
            graph,
            shape,
            "layer.attention",
            ScoreShape { heads, keys: all },
            true,
            [query, keys, keys],
        );
    }
    let chosen = form.map(|_| {
        let count = if shape.serving.is_some() {
            model.keys_at_end(seen, shape.sequence)
        } else {
            u64::try_from(model.compressed_keys_seen(seen)).unwrap_or(u64::MAX)
        };
        // Neighbouring queries share tiles of the window and of all entries, but not of chosen entries.
        let in_blocks = choice.is_none() && !shape.decodes();
        ChosenKeys { most: count, count, in_blocks, one_tensor: true, choice }
    });
    let window = model.variations.window;
    let core = AttentionCore { heads, keys: all, causal: true, window, sinks: true, chosen };
    fused_attention::add_fused_attention(graph, shape, name, core, [query, keys, keys])
}

fn add_replicated(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    name: &str,
    outputs: &[ResultPart<'_>],
    x: TensorId,
) -> Vec<TensorId> {
    let (name, input) = (format!("layer.attention.{name}"), plan.model.hidden);
    let split = WeightSplit::Replicated;
    let product = Linear { name, input, outputs, bias: false, split, shares_input: false, narrow: true, chunks: 1 };
    product.add_linear(graph, &plan.shape, x)
}

/// Adds an RMS norm with gains over rows of `width`.
fn add_gains(graph: &mut GraphBuilder, shape: &OperatorContext, name: &str, width: u64, x: TensorId) -> TensorId {
    let name = name.to_owned();
    NormOperator { name, norm: Norm::RmsNorm, width, affine: true, bias: false, split: false }.add_norm(graph, shape, x)
}

/// Entries into which tokens are compressed.
struct EntryPool<'a> {
    name: &'a str,
    form: EntryForm,
    /// Elements of an entry.
    width: u64,
    /// True if the tokens get no gradient.
    detached: bool,
}

/// Adds the entries into which the tokens `x` are compressed.
fn add_entries(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    EntryPool { name, form, width, detached }: EntryPool<'_>,
    x: TensorId,
) -> TensorId {
    let shape = &plan.shape;
    let each = form.vectors().saturating_mul(width);
    let part = name.trim_start_matches("layer.attention.");
    let made = add_replicated(
        graph,
        plan,
        &format!("{part}.product"),
        &[result_part("vector", each), result_part("gate", each)],
        x,
    );
    if detached {
        graph.detach_inputs_of_last();
    }
    let rows = OperatorContext {
        sequence: (shape.sequence / form.tokens.max(1)).max(1),
        ranks: 1,
        sequence_parallel: false,
        ..*shape
    };
    let pooled = graph.add_activation(&format!("{name}.pool.out"), rows.tokens().saturating_mul(width));
    let elements = shape.tokens().saturating_mul(each);
    let both = shape.activation_bytes(elements) * 2;
    let out = graph.tensor_bytes(pooled);
    let pass =
        |direction, read, written| elementwise_kernel(ElementwiseFunction::Exp, direction, elements, read, written);
    let mut forward: Vec<KernelStep> = shape.gather_sequence("forward", both).into_iter().collect();
    forward.push(kernel_step("forward", pass(Direction::Forward, both, out)));
    let mut backward = vec![kernel_step("backward_input", pass(Direction::Backward, both + out, both))];
    backward.extend(shape.sum_over_tensor_ranks("backward_input", both));
    // There is one bias per element and position in an entry.
    let biases = form.tokens.saturating_mul(each);
    let size = shape.activation_bytes(elements);
    let rows_of_bias = RowShape { rows: biases, columns: shape.tokens() / form.tokens.max(1) };
    let sum = reduction_kernel(RowFunction::Sum, Direction::Backward, rows_of_bias, size, shape.gradient_bytes(biases));
    graph.add_operator(NewOperator {
        name: format!("{name}.pool"),
        inputs: made.clone(),
        outputs: vec![pooled],
        forward,
        backward: vec![
            input_chain(&made, &made, backward),
            weight_chain(&made, vec![kernel_step("backward_weight", sum)]),
        ],
        parameters: Parameters { replicated: biases, ..Parameters::default() },
        workspace: if shape.sequence_parallel { both } else { Bytes::ZERO },
        ..NewOperator::default()
    });
    add_gains(graph, &rows, &format!("{name}.norm"), width, pooled)
}

/// Appends the entries to the keys by a copy.
fn add_joined_keys(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    form: EntryForm,
    parts: [TensorId; 2],
) -> TensorId {
    let (shape, name) = (&plan.shape, "layer.attention.joined_keys");
    let rows = shape.tokens().saturating_add(shape.tokens() / form.tokens.max(1));
    let output = graph.add_activation(&format!("{name}.out"), rows.saturating_mul(plan.model.head_dim));
    let size = graph.tensor_bytes(output);
    let elements = rows.saturating_mul(plan.model.head_dim);
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

impl CompressedAttention {
    /// Returns the form of the entries that a layer's queries see; `None` if they see only a window.
    pub(crate) fn entry_form(&self, keys: KeyChoice) -> Option<EntryForm> {
        match keys {
            KeyChoice::All => None,
            KeyChoice::Entries => Some(EntryForm { tokens: self.entry_tokens, overlaps: false }),
            KeyChoice::Indexed | KeyChoice::Reused => {
                Some(EntryForm { tokens: self.chosen_entry_tokens, overlaps: true })
            }
        }
    }
}
