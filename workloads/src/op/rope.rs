//! Rotary position embedding of queries and keys. It is linear, so the backward pass (the inverse rotation) reads only
//! the tables of sines and cosines; the model holds them once.

use super::composed::rotation_steps;
use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, ElementwiseFunction};
use sim::units::Bytes;

/// Adds the rotation of queries (`query_width` per token) and keys (`key_width`) and returns both. It rotates `rotated`
/// of each head's `head_dim` elements and copies the others.
pub(crate) fn add_rotation(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    (query_width, key_width, head_dim): (u64, u64, u64),
    rotated: u64,
    (query, key): (TensorId, TensorId),
) -> (TensorId, TensorId) {
    let (queries, keys) = (shape.tokens().saturating_mul(query_width), shape.tokens().saturating_mul(key_width));
    let rotated_query = graph.add_activation(&format!("{name}.query"), queries);
    let rotated_key = graph.add_activation(&format!("{name}.key"), keys);
    let elements = queries.saturating_add(keys);
    let size = shape.activation_bytes(elements);
    let turned = elements / head_dim.max(1) * rotated;
    // The tables have one sine and one cosine (fp32) per position and pair of dimensions.
    let tables = Bytes(4) * shape.sequence * rotated;
    let steps = |direction, label| {
        if shape.composed {
            let of = |numbers: u64| numbers / head_dim.max(1) * rotated;
            return rotation_steps(direction, [("query", of(queries)), ("key", of(keys))], shape.operand.bytes());
        }
        let kernel = elementwise_kernel(ElementwiseFunction::Rope, direction, turned, size + tables, size);
        vec![kernel_step(label, kernel)]
    };
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![query, key],
        outputs: vec![rotated_query, rotated_key],
        forward: steps(Direction::Forward, "forward"),
        backward: vec![input_chain(&[query, key], &[], steps(Direction::Backward, "backward_input"))],
        ..NewOperator::default()
    });
    (rotated_query, rotated_key)
}
