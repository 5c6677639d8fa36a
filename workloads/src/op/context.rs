//! The second product of unfused attention: probabilities times values, per head.

use super::linear::{ProductSize, activation_product};
use super::scores::ScoreShape;
use super::{OperatorContext, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, OperatorRole, TensorId};

/// Adds the product and returns attention's output.
pub(crate) fn add_context_product(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    ScoreShape { heads, keys }: ScoreShape,
    [probabilities, value]: [TensorId; 2],
) -> TensorId {
    let elements = shape.tokens().saturating_mul(heads.query).saturating_mul(heads.value);
    let output = graph.add_activation(&format!("{name}.out"), elements);
    let (products, rows) = (heads.product_count(shape), heads.rows_per_product(shape));
    let kernel = |size| activation_product(products, size, shape.operand);
    let size = ProductSize { m: rows, n: heads.value, k: keys };
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![probabilities, value],
        outputs: vec![output],
        forward: vec![kernel_step("forward", kernel(size))],
        backward: vec![
            input_chain(
                &[probabilities],
                &[value],
                vec![kernel_step("backward_probabilities", kernel(size.left_gradient()))],
            ),
            input_chain(&[value], &[probabilities], vec![kernel_step("backward_value", kernel(size.right_gradient()))]),
        ],
        role: OperatorRole::AttentionCore,
        ..NewOperator::default()
    });
    output
}
