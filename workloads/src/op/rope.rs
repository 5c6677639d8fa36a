//! Rotary position embedding of queries and keys. It is linear, so the backward pass (the inverse rotation) reads only
//! the tables of sines and cosines; the model holds them once.

use super::composed::rotation_steps;
use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, ElementwiseFunction};
use sim::units::Bytes;

/// Elements per token of queries and keys, and the part of each head that is rotated. The others are copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RotatedWidths {
    pub(crate) query: u64,
    pub(crate) key: u64,
    pub(crate) head_dim: u64,
    pub(crate) rotated: u64,
}

/// Adds the rotation of queries and keys and returns both.
pub(crate) fn add_rotation(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    widths: RotatedWidths,
    [query, key]: [TensorId; 2],
) -> [TensorId; 2] {
    let RotatedWidths { head_dim, rotated, .. } = widths;
    let [queries, keys] = [widths.query, widths.key].map(|width| shape.tokens().saturating_mul(width));
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
    [rotated_query, rotated_key]
}
