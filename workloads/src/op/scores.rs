//! The first product of unfused attention: queries times keys, per head. Query heads that share a key head are rows of
//! one product.

use super::linear::{ProductSize, activation_product};
use super::{OperatorContext, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, OperatorRole, TensorId};
use crate::parallel::Heads;

impl Heads {
    /// Returns the number of independent products in a micro-batch.
    pub(crate) fn product_count(self, shape: &OperatorContext) -> u64 {
        shape.batch.saturating_mul(self.kv)
    }

    /// Returns the number of query rows of one product: the positions of all query heads that share a key head.
    pub(crate) fn rows_per_product(self, shape: &OperatorContext) -> u64 {
        shape.sequence.saturating_mul(self.query / self.kv.max(1))
    }

    /// Returns the number of scores of a micro-batch on this device, with `keys` keys per sequence.
    pub(crate) fn score_count(self, shape: &OperatorContext, keys: u64) -> u64 {
        shape.tokens().saturating_mul(self.query).saturating_mul(keys)
    }
}

/// The heads of unfused attention on this device, and the keys per sequence that they score.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScoreShape {
    pub(crate) heads: Heads,
    pub(crate) keys: u64,
}

/// Adds the scores and returns them.
pub(crate) fn add_scores(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    ScoreShape { heads, keys }: ScoreShape,
    [query, key]: [TensorId; 2],
) -> TensorId {
    let output = graph.add_activation(&format!("{name}.out"), heads.score_count(shape, keys));
    let (products, rows) = (heads.product_count(shape), heads.rows_per_product(shape));
    let kernel = |size| activation_product(products, size, shape.operand);
    let size = ProductSize { m: rows, n: keys, k: heads.dim };
    let of_key = ProductSize { m: keys, n: heads.dim, k: rows };
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![query, key],
        outputs: vec![output],
        forward: vec![kernel_step("forward", kernel(size))],
        backward: vec![
            input_chain(&[query], &[key], vec![kernel_step("backward_query", kernel(size.left_gradient()))]),
            input_chain(&[key], &[query], vec![kernel_step("backward_key", kernel(of_key))]),
        ],
        role: OperatorRole::AttentionCore,
        ..NewOperator::default()
    });
    output
}
