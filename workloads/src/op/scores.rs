//! Unfused attention, first product: queries times keys, per head. Query heads that share a key head are rows of one product.

use super::linear::product;
use super::{Shape, input_chain, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::parallel::Heads;

impl Heads {
    /// Independent products of a micro-batch.
    pub(crate) fn products(self, shape: &Shape) -> u64 {
        shape.batch.saturating_mul(self.kv)
    }

    /// Query rows of one product: the positions of all query heads that share a key head.
    pub(crate) fn rows(self, shape: &Shape) -> u64 {
        shape.sequence.saturating_mul(self.query / self.kv.max(1))
    }

    /// Scores of a micro-batch on this device.
    pub(crate) fn scores(self, shape: &Shape) -> u64 {
        shape.tokens().saturating_mul(self.query).saturating_mul(shape.sequence)
    }
}

/// Adds the scores; returns them.
pub(crate) fn add(
    graph: &mut GraphBuilder,
    shape: &Shape,
    name: &str,
    heads: Heads,
    (query, key): (TensorId, TensorId),
) -> TensorId {
    let output = graph.activation(&format!("{name}.out"), heads.scores(shape));
    let (products, rows, keys) = (heads.products(shape), heads.rows(shape), shape.sequence);
    let kernel = |size| product(products, size, shape.operand);
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![query, key],
        outputs: vec![output],
        forward: vec![step("forward", kernel((rows, keys, heads.dim)))],
        backward: vec![
            input_chain(&[query], &[key], vec![step("backward_query", kernel((rows, heads.dim, keys)))]),
            input_chain(&[key], &[query], vec![step("backward_key", kernel((keys, heads.dim, rows)))]),
        ],
        ..NewOperator::default()
    });
    output
}
