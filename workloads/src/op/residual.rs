//! The residual sum. If elementwise work is fused, the branch's dropout is part of the same kernel.

use super::{OperatorContext, dropout, elementwise_kernel, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, ElementwiseFunction};
use sim::units::Bytes;

/// Adds residual + dropout(branch) over rows of `width` and returns the sum. The residual's gradient passes through
/// unchanged.
pub(crate) fn add_residual_sum(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    width: u64,
    drops: bool,
    [branch, residual]: [TensorId; 2],
) -> TensorId {
    let elements = shape.local_tokens().saturating_mul(width);
    let size = shape.activation_bytes(elements);
    if drops && shape.fused {
        let mask_size = Bytes(elements);
        let output = graph.add_activation(&format!("{name}.out"), elements);
        let mask = graph.add_constant(&format!("{name}.mask"), mask_size);
        let forward =
            elementwise_kernel(ElementwiseFunction::Dropout, Direction::Forward, elements, size * 2, size + mask_size);
        let backward =
            elementwise_kernel(ElementwiseFunction::Dropout, Direction::Backward, elements, size + mask_size, size);
        graph.add_operator(NewOperator {
            name: name.to_owned(),
            inputs: vec![branch, residual],
            outputs: vec![output, mask],
            forward: vec![kernel_step("forward", forward)],
            backward: vec![
                input_chain(&[branch], &[mask], vec![kernel_step("backward_input", backward)]),
                input_chain(&[residual], &[], vec![]),
            ],
            ..NewOperator::default()
        });
        return output;
    }
    let branch =
        if drops { dropout::add_dropout(graph, shape, &format!("{name}.dropout"), elements, branch) } else { branch };
    let output = graph.add_activation(&format!("{name}.out"), elements);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![branch, residual],
        outputs: vec![output],
        forward: vec![kernel_step(
            "forward",
            elementwise_kernel(ElementwiseFunction::Add, Direction::Forward, elements, size * 2, size),
        )],
        backward: vec![input_chain(&[branch, residual], &[], vec![])],
        ..NewOperator::default()
    });
    output
}
