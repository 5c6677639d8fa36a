//! The second product of unfused attention: probabilities times values, per head.

use super::linear::activation_product;
use super::{OperatorContext, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, OperatorRole, TensorId};
use crate::parallel::Heads;

/// Adds the product over `keys` keys per sequence and returns attention's output.
pub(crate) fn add_context_product(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    (heads, keys): (Heads, u64),
    (probabilities, value): (TensorId, TensorId),
) -> TensorId {
    let elements = shape.tokens().saturating_mul(heads.query).saturating_mul(heads.value);
    let output = graph.add_activation(&format!("{name}.out"), elements);
    let (products, rows) = (heads.product_count(shape), heads.rows_per_product(shape));
    let kernel = |size| activation_product(products, size, shape.operand);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![probabilities, value],
        outputs: vec![output],
        forward: vec![kernel_step("forward", kernel((rows, heads.value, keys)))],
        backward: vec![
            input_chain(
                &[probabilities],
                &[value],
                vec![kernel_step("backward_probabilities", kernel((rows, keys, heads.value)))],
            ),
            input_chain(
                &[value],
                &[probabilities],
                vec![kernel_step("backward_value", kernel((keys, heads.value, rows)))],
            ),
        ],
        role: OperatorRole::AttentionCore,
        ..NewOperator::default()
    });
    output
}
