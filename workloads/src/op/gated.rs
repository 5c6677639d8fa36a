//! The gated unit of Llama's MLP, activation(gate) * up: one kernel that keeps gate and up, or (unfused, and for gates other
//! than SiLU) an activation and a product that also keeps activation(gate).

use super::{Shape, activation, elementwise, input_chain, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, Function};

/// Adds the unit under the name `name`; returns the gated product.
pub(crate) fn add(
    graph: &mut GraphBuilder,
    shape: &Shape,
    name: &str,
    function: Function,
    width: u64,
    (gate, up): (TensorId, TensorId),
) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let size = shape.bytes(elements);
    if !shape.fused || function != Function::Silu {
        let activated = activation::add(graph, shape, &format!("{name}.gate"), function, width, gate);
        return product(graph, shape, &format!("{name}.product"), elements, (activated, up));
    }
    let output = graph.activation(&format!("{name}.out"), elements);
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![gate, up],
        outputs: vec![output],
        forward: vec![step("forward", elementwise(Function::SwiGlu, Direction::Forward, elements, size * 2, size))],
        backward: vec![input_chain(
            &[gate, up],
            &[gate, up],
            vec![step("backward_input", elementwise(Function::SwiGlu, Direction::Backward, elements, size * 3, size * 2))],
        )],
        ..NewOperator::default()
    });
    output
}

/// left * right; each gradient needs the other factor.
fn product(graph: &mut GraphBuilder, shape: &Shape, name: &str, elements: u64, (left, right): (TensorId, TensorId)) -> TensorId {
    let size = shape.bytes(elements);
    let output = graph.activation(&format!("{name}.out"), elements);
    let backward = |label: &str| vec![step(label, elementwise(Function::Mul, Direction::Backward, elements, size * 2, size))];
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![left, right],
        outputs: vec![output],
        forward: vec![step("forward", elementwise(Function::Mul, Direction::Forward, elements, size * 2, size))],
        backward: vec![
            input_chain(&[left], &[right], backward("backward_left")),
            input_chain(&[right], &[left], backward("backward_right")),
        ],
        ..NewOperator::default()
    });
    output
}
