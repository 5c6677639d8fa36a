//! The gated unit of Llama's MLP, activation(gate) * up. With fusion and SiLU, it is one kernel that keeps gate and up.
//! Otherwise it is an activation and a product, which also keeps activation(gate).

use super::{OperatorContext, activation, elementwise_kernel, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, ElementwiseFunction};

/// Adds the unit as `name` and returns the gated product.
pub(crate) fn add_gated_unit(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    function: ElementwiseFunction,
    width: u64,
    [gate, up]: [TensorId; 2],
) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let size = shape.activation_bytes(elements);
    if !shape.fused || function != ElementwiseFunction::Silu {
        let activated = activation::add_activation(graph, shape, &format!("{name}.gate"), function, width, gate);
        return gated_product(graph, shape, &format!("{name}.product"), elements, [activated, up]);
    }
    let output = graph.add_activation(&format!("{name}.out"), elements);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![gate, up],
        outputs: vec![output],
        forward: vec![kernel_step(
            "forward",
            elementwise_kernel(ElementwiseFunction::SwiGlu, Direction::Forward, elements, size * 2, size),
        )],
        backward: vec![input_chain(
            &[gate, up],
            &[gate, up],
            vec![kernel_step(
                "backward_input",
                elementwise_kernel(ElementwiseFunction::SwiGlu, Direction::Backward, elements, size * 3, size * 2),
            )],
        )],
        ..NewOperator::default()
    });
    output
}

/// Elements per token of a gate and of the tensor that it scales. A gate with fewer elements scales several neighbours
/// by each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GateSizes {
    pub(crate) gates: u64,
    pub(crate) width: u64,
}

/// Adds sigmoid(gate) * x as `name`: one kernel forward, and one backward that makes both gradients. Gate and x are
/// kept.
pub(crate) fn add_gate(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    GateSizes { gates, width }: GateSizes,
    [gate, x]: [TensorId; 2],
) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let (size, narrow) =
        (shape.activation_bytes(elements), shape.activation_bytes(shape.tokens().saturating_mul(gates)));
    let output = graph.add_activation(&format!("{name}.out"), elements);
    let pass =
        |direction, read, written| elementwise_kernel(ElementwiseFunction::Sigmoid, direction, elements, read, written);
    let backward = pass(Direction::Backward, size * 2 + narrow, size + narrow);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![gate, x],
        outputs: vec![output],
        forward: vec![kernel_step("forward", pass(Direction::Forward, size + narrow, size))],
        backward: vec![input_chain(&[gate, x], &[gate, x], vec![kernel_step("backward_input", backward)])],
        ..NewOperator::default()
    });
    output
}

/// Adds left * right. The gradient of each factor needs the other one.
pub(crate) fn gated_product(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    elements: u64,
    [left, right]: [TensorId; 2],
) -> TensorId {
    let size = shape.activation_bytes(elements);
    let output = graph.add_activation(&format!("{name}.out"), elements);
    let backward = |label: &str| {
        vec![kernel_step(
            label,
            elementwise_kernel(ElementwiseFunction::Mul, Direction::Backward, elements, size * 2, size),
        )]
    };
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![left, right],
        outputs: vec![output],
        forward: vec![kernel_step(
            "forward",
            elementwise_kernel(ElementwiseFunction::Mul, Direction::Forward, elements, size * 2, size),
        )],
        backward: vec![
            input_chain(&[left], &[right], backward("backward_left")),
            input_chain(&[right], &[left], backward("backward_right")),
        ],
        ..NewOperator::default()
    });
    output
}
