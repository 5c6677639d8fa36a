//! The nonlinearity of an MLP. Most need their input in the backward pass; ReLU, sigmoid and tanh have a
//! derivative in their result, which the next product keeps anyway; a straight copy needs nothing.

use super::{Shape, elementwise, input_chain, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, Function};

/// Adds `function` over rows of `width`; returns its result.
pub(crate) fn add(
    graph: &mut GraphBuilder,
    shape: &Shape,
    name: &str,
    function: Function,
    width: u64,
    input: TensorId,
) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let output = graph.activation(&format!("{name}.out"), elements);
    let size = shape.bytes(elements);
    let reads: &[TensorId] = match function {
        Function::Copy => &[],
        Function::Relu | Function::Sigmoid | Function::Tanh => &[output],
        _ => &[input],
    };
    let forward = step("forward", elementwise(function, Direction::Forward, elements, size, size));
    let backward = step("backward_input", elementwise(function, Direction::Backward, elements, size * 2, size));
    let (forward, backward) = if function == Function::Copy { (vec![], vec![]) } else { (vec![forward], vec![backward]) };
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        forward,
        backward: vec![input_chain(&[input], reads, backward)],
        ..NewOperator::default()
    });
    output
}
