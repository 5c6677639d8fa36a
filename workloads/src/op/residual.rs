//! The residual sum, with the branch's dropout in the same kernel where elementwise work is fused.

use super::{Shape, dropout, elementwise, input_chain, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, Function};
use sim::units::Bytes;

/// Adds residual + dropout(branch) over rows of `width`; returns the sum. The residual's gradient passes through.
pub(crate) fn add(
    graph: &mut GraphBuilder,
    shape: &Shape,
    name: &str,
    (width, drops): (u64, bool),
    (branch, residual): (TensorId, TensorId),
) -> TensorId {
    let elements = shape.local_tokens().saturating_mul(width);
    let size = shape.bytes(elements);
    if drops && shape.fused {
        let mask_size = Bytes(elements);
        let output = graph.activation(&format!("{name}.out"), elements);
        let mask = graph.constant(&format!("{name}.mask"), mask_size);
        let forward = elementwise(Function::Dropout, Direction::Forward, elements, size * 2, size + mask_size);
        let backward = elementwise(Function::Dropout, Direction::Backward, elements, size + mask_size, size);
        graph.add(NewOperator {
            name: name.to_owned(),
            inputs: vec![branch, residual],
            outputs: vec![output, mask],
            forward: vec![step("forward", forward)],
            backward: vec![
                input_chain(&[branch], &[mask], vec![step("backward_input", backward)]),
                input_chain(&[residual], &[], vec![]),
            ],
            ..NewOperator::default()
        });
        return output;
    }
    let branch = if drops { dropout::add(graph, shape, &format!("{name}.dropout"), elements, branch) } else { branch };
    let output = graph.activation(&format!("{name}.out"), elements);
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![branch, residual],
        outputs: vec![output],
        forward: vec![step("forward", elementwise(Function::Add, Direction::Forward, elements, size * 2, size))],
        backward: vec![input_chain(&[branch, residual], &[], vec![])],
        ..NewOperator::default()
    });
    output
}
