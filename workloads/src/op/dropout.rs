//! Dropout whose mask is kept, with one byte per element (Korthikanti et al. 2022).

use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, ElementwiseFunction};
use sim::units::Bytes;

/// Adds dropout over `elements` elements and returns the result.
pub(crate) fn add_dropout(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    elements: u64,
    input: TensorId,
) -> TensorId {
    let output = graph.add_activation(&format!("{name}.out"), elements);
    let mask = graph.add_constant(&format!("{name}.mask"), Bytes(elements));
    let (size, mask_size) = (shape.activation_bytes(elements), Bytes(elements));
    let forward =
        elementwise_kernel(ElementwiseFunction::Dropout, Direction::Forward, elements, size, size + mask_size);
    let backward =
        elementwise_kernel(ElementwiseFunction::Dropout, Direction::Backward, elements, size + mask_size, size);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output, mask],
        forward: vec![kernel_step("forward", forward)],
        backward: vec![input_chain(&[input], &[mask], vec![kernel_step("backward_input", backward)])],
        ..NewOperator::default()
    });
    output
}
