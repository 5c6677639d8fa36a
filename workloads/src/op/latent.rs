//! Projections of multi-head latent attention (DeepSeek-V2, 2024, section 2.1). No projection is absorbed into another,
//! except in the absorbed form. Queries come from a normalised low-rank vector or from the input; keys and values come
//! from another low-rank vector. One rotated part of the key serves all heads. Every tensor-parallel device computes
//! the down-projections for its own tokens. The up-projections are split by heads, as in Megatron-LM.

use super::linear::{Linear, ResultPart, WeightSplit, result_part};
use super::norm::NormOperator;
use super::per_head::PerHeadProduct;
use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, TensorId};
use crate::model::{Model, Norm};
use crate::parallel::Heads;
use crate::variations::LatentAttention;
use sim::kernel::{Direction, ElementwiseFunction};
use sim::units::Bytes;

impl LatentAttention {
    /// Returns the heads of the absorbed form: `heads` query heads attend to the low-rank vectors, which are one key
    /// and value head for all.
    pub(crate) fn absorbed_heads(&self, heads: u64) -> Heads {
        Heads { query: heads, kv: 1, dim: self.kv_rank + self.rope_dim, value: self.kv_rank }
    }
}

/// Adds all projections and the rotation. Returns query, key and value of the device's heads, and the low-rank query
/// vector if there is one. If `absorbed`, queries absorb the keys' up-projection, and the rotated low-rank vector is
/// both key and value.
pub(crate) fn add_latent_attention(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    model: &Model,
    latent: LatentAttention,
    absorbed: bool,
    heads: Heads,
    x: TensorId,
) -> ([TensorId; 3], Option<TensorId>) {
    let (rope, nope) = (latent.rope_dim, heads.dim.saturating_sub(latent.rope_dim));
    let queries = [result_part("out", heads.query * heads.dim)];
    let product = |name: &str, input, split, outputs: &[ResultPart<'_>], graph: &mut GraphBuilder, x| {
        let name = format!("layer.attention.{name}");
        Linear { name, input, outputs, bias: false, split, shares_input: false, narrow: true, chunks: 1 }
            .add_linear(graph, shape, x)
    };
    let norm = |part: &str, width, graph: &mut GraphBuilder, x| {
        let name = format!("layer.attention.{part}");
        NormOperator { name, norm: Norm::RmsNorm, width, affine: model.norm_affine, bias: false, split: false }
            .add_norm(graph, shape, x)
    };
    let (query, narrow_query) = match latent.query_rank {
        Some(rank) => {
            let narrow = [result_part("out", rank)];
            let down = product("query_down", model.hidden, WeightSplit::Replicated, &narrow, graph, x)[0];
            let down = norm("query_norm", rank, graph, down);
            (product("query_up", rank, WeightSplit::Columns, &queries, graph, down)[0], Some(down))
        }
        None => (product("query", model.hidden, WeightSplit::Columns, &queries, graph, x)[0], None),
    };
    let parts = [result_part("latent", latent.kv_rank), result_part("rope_key", rope)];
    let down = product("kv_down", model.hidden, WeightSplit::Replicated, &parts, graph, x);
    let narrow = norm("kv_norm", latent.kv_rank, graph, down[0]);
    if absorbed {
        let name = "layer.attention.key_absorbed";
        let taken_in = PerHeadProduct { name, heads: heads.query, input: nope, output: latent.kv_rank };
        let query = taken_in.add_product(graph, shape, query);
        let heads = latent.absorbed_heads(heads.query);
        // The devices also exchange the low-rank vectors of their tokens.
        let gathered = rope + latent.kv_rank;
        let [query, key] = add_latent_rope(
            graph,
            shape,
            LatentRope { heads, rotated: rope, gathered },
            [query, narrow],
            Some(down[1]),
        );
        return ([query, key, key], narrow_query);
    }
    let parts = [result_part("key", heads.kv * nope), result_part("value", heads.kv * heads.value)];
    let up = product("kv_up", latent.kv_rank, WeightSplit::Columns, &parts, graph, narrow);
    let [query, key] = add_latent_rope(
        graph,
        shape,
        LatentRope { heads, rotated: rope, gathered: rope },
        [query, up[0]],
        Some(down[1]),
    );
    ([query, key, up[1]], narrow_query)
}

/// The rotation of latent attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LatentRope {
    pub(crate) heads: Heads,
    /// Elements that are rotated, of every query head and of the keys' shared part.
    pub(crate) rotated: u64,
    /// Elements per token that are split along the sequence before the rotation.
    pub(crate) gathered: u64,
}

/// Rotates a part of every query head and the shared part of the keys, and appends the shared part to every key head.
/// Without a `rope_key`, the shared part is already in the keys.
pub(crate) fn add_latent_rope(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    LatentRope { heads, rotated: rope, gathered }: LatentRope,
    [query, key]: [TensorId; 2],
    rope_key: Option<TensorId>,
) -> [TensorId; 2] {
    let tokens = shape.tokens();
    let name = "layer.attention.rope";
    let whole_query = graph.add_activation(&format!("{name}.query"), tokens.saturating_mul(heads.query * heads.dim));
    let whole_key = graph.add_activation(&format!("{name}.key"), tokens.saturating_mul(heads.kv * heads.dim));
    let turned = tokens.saturating_mul(rope).saturating_mul(heads.query + 1);
    let shared = shape.activation_bytes(tokens.saturating_mul(gathered));
    // The tables have one sine and one cosine (fp32) per position and pair of dimensions.
    let tables = Bytes(4) * shape.sequence * rope;
    let apart = if rope_key.is_some() { shared } else { Bytes::ZERO };
    let narrow = graph.tensor_bytes(query) + graph.tensor_bytes(key) + apart;
    let wide = graph.tensor_bytes(whole_query) + graph.tensor_bytes(whole_key);
    let mut forward: Vec<KernelStep> = shape.gather_sequence("forward", shared).into_iter().collect();
    forward.push(kernel_step(
        "forward",
        elementwise_kernel(ElementwiseFunction::Rope, Direction::Forward, turned, narrow + tables, wide),
    ));
    let backward = elementwise_kernel(ElementwiseFunction::Rope, Direction::Backward, turned, wide + tables, narrow);
    let mut backward = vec![kernel_step("backward_input", backward)];
    // Every device has the gradient of the keys' shared part from its own heads only, so the devices sum it.
    backward.extend(shape.sum_over_tensor_ranks("backward_input", shared));
    let inputs: Vec<TensorId> = [query, key].into_iter().chain(rope_key).collect();
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: inputs.clone(),
        outputs: vec![whole_query, whole_key],
        forward,
        backward: vec![input_chain(&inputs, &[], backward)],
        workspace: if shape.sequence_parallel { shared } else { Bytes::ZERO },
        ..NewOperator::default()
    });
    [whole_query, whole_key]
}
