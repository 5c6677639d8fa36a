//! Norms of queries and keys before rotation: per head, or over all heads together.

use super::OperatorContext;
use super::norm::NormOperator;
use crate::graph::{GraphBuilder, TensorId};
use crate::model::{Model, Norm};
use crate::parallel::Heads;
use crate::variations::QueryKeyNorm;

/// Adds the norms of queries and of keys under `name` and returns both normalised.
///
/// Over all heads together, a tensor-parallel device normalises only its own heads. The exchange of the sums of
/// squares, four bytes per token, is not counted.
pub(crate) fn add_query_key_norms(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    model: &Model,
    kind: QueryKeyNorm,
    heads: Heads,
    [query, key]: [TensorId; 2],
) -> [TensorId; 2] {
    let mut one = |part: &str, count: u64, input| {
        let all = count.saturating_mul(heads.dim);
        let (per_token, width) = match kind {
            QueryKeyNorm::Head => (count, heads.dim),
            // There is one gain per element of the token, whatever the grouping of the statistics.
            QueryKeyNorm::OwnHead | QueryKeyNorm::Whole => (1, all),
        };
        // A device holds whole rows here: nothing is split along the sequence.
        let sequence = shape.sequence.saturating_mul(per_token);
        let rows = OperatorContext { sequence, ranks: 1, sequence_parallel: false, ..*shape };
        let norm = NormOperator {
            name: format!("{name}.{part}"),
            norm: model.norm,
            width,
            affine: model.norm_affine,
            bias: model.norm == Norm::LayerNorm && !model.variations.norm_without_bias,
            split: kind != QueryKeyNorm::Head,
        };
        norm.add_norm(graph, &rows, input)
    };
    [one("query", heads.query, query), one("key", heads.kv, key)]
}
