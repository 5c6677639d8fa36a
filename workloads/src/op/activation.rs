//! The nonlinearity of an MLP. Most functions read their input in the backward pass. ReLU, sigmoid and tanh can read
//! their result instead, which the next product keeps anyway. A plain copy reads nothing.

use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, ElementwiseFunction};

/// Adds `function` over the micro-batch's tokens, each of `width` elements. Returns the result.
pub(crate) fn add_activation(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    function: ElementwiseFunction,
    width: u64,
    input: TensorId,
) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let output = graph.add_activation(&format!("{name}.out"), elements);
    let size = shape.activation_bytes(elements);
    let reads: &[TensorId] = match function {
        ElementwiseFunction::Copy => &[],
        ElementwiseFunction::Relu | ElementwiseFunction::Sigmoid | ElementwiseFunction::Tanh => &[output],
        _ => &[input],
    };
    let forward = kernel_step("forward", elementwise_kernel(function, Direction::Forward, elements, size, size));
    let backward =
        kernel_step("backward_input", elementwise_kernel(function, Direction::Backward, elements, size * 2, size));
    let (forward, backward) =
        if function == ElementwiseFunction::Copy { (vec![], vec![]) } else { (vec![forward], vec![backward]) };
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        forward,
        backward: vec![input_chain(&[input], reads, backward)],
        ..NewOperator::default()
    });
    output
}
