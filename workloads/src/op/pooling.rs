//! The choice of one token per sequence, for a head that reads no other token. Under sequence parallelism, the device
//! that holds the token passes it on. The gradient of all other tokens is zero.

use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{CollectiveKind, Direction, ElementwiseFunction};
use sim::units::Bytes;

/// Adds the choice and returns the chosen tokens.
pub(crate) fn add_token_choice(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    width: u64,
    input: TensorId,
) -> TensorId {
    let chosen = shape.batch.saturating_mul(width);
    let all = shape.local_tokens().saturating_mul(width);
    let output = graph.add_activation(&format!("{name}.out"), chosen);
    let (small, large) = (shape.activation_bytes(chosen), shape.activation_bytes(all));
    let mut forward = vec![kernel_step(
        "forward",
        elementwise_kernel(ElementwiseFunction::Gather, Direction::Forward, chosen, small, small),
    )];
    if shape.sequence_parallel && shape.is_tensor_parallel() {
        forward.push(shape.tensor_collective_step("forward.all_reduce", CollectiveKind::AllReduce, small));
    }
    // The backward pass writes zeros without reading them.
    let zeros = elementwise_kernel(
        ElementwiseFunction::Scatter,
        Direction::Backward,
        all,
        small.min(large),
        large.max(Bytes(1)),
    );
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        forward,
        backward: vec![input_chain(&[input], &[], vec![kernel_step("backward_input", zeros)])],
        ..NewOperator::default()
    });
    output
}
