//! One token of every sequence, for a head that reads no other. Under sequence parallelism the device that has it hands it on; its gradient is zero
//! everywhere else.

use super::{Shape, elementwise, input_chain, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{CollectiveKind, Direction, Function};
use sim::units::Bytes;

/// Adds the choice; returns the tokens chosen.
pub(crate) fn add(graph: &mut GraphBuilder, shape: &Shape, name: &str, width: u64, input: TensorId) -> TensorId {
    let chosen = shape.batch.saturating_mul(width);
    let all = shape.local_tokens().saturating_mul(width);
    let output = graph.activation(&format!("{name}.out"), chosen);
    let (small, large) = (shape.bytes(chosen), shape.bytes(all));
    let mut forward = vec![step("forward", elementwise(Function::Gather, Direction::Forward, chosen, small, small))];
    if shape.sequence_parallel && shape.parallel() {
        forward.push(shape.tensor_step("forward.all_reduce", CollectiveKind::AllReduce, small));
    }
    // Zeros are written, read by nothing.
    let zeros = elementwise(Function::Scatter, Direction::Backward, all, small.min(large), large.max(Bytes(1)));
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        forward,
        backward: vec![input_chain(&[input], &[], vec![step("backward_input", zeros)])],
        ..NewOperator::default()
    });
    output
}
