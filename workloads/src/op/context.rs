//! Unfused attention, second product: probabilities times values, per head.

use super::linear::product;
use super::{Shape, input_chain, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::parallel::Heads;

/// Adds the product; returns the attention's output.
pub(crate) fn add(
    graph: &mut GraphBuilder,
    shape: &Shape,
    name: &str,
    heads: Heads,
    (probabilities, value): (TensorId, TensorId),
) -> TensorId {
    let elements = shape.tokens().saturating_mul(heads.query).saturating_mul(heads.value);
    let output = graph.activation(&format!("{name}.out"), elements);
    let (products, rows, keys) = (heads.products(shape), heads.rows(shape), shape.sequence);
    let kernel = |size| product(products, size, shape.operand);
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![probabilities, value],
        outputs: vec![output],
        forward: vec![step("forward", kernel((rows, heads.value, keys)))],
        backward: vec![
            input_chain(&[probabilities], &[value], vec![step("backward_probabilities", kernel((rows, keys, heads.value)))]),
            input_chain(&[value], &[probabilities], vec![step("backward_value", kernel((keys, heads.value, rows)))]),
        ],
        ..NewOperator::default()
    });
    output
}
