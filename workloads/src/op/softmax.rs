//! Unfused attention: scale, mask and softmax of the scores; one kernel where elementwise work is fused (Megatron-LM's
//! scaled masked softmax), three passes otherwise. The backward pass reads the probabilities.

use super::fused_attention::{sink_gradient, sink_parameters};
use super::{Shape, elementwise, input_chain, reduction, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::parallel::Heads;
use sim::kernel::{Direction, Function, RowFunction};

/// Adds the softmax over the scores of `heads`, in rows of the sequence length; returns the probabilities.
pub(crate) fn add(
    graph: &mut GraphBuilder,
    shape: &Shape,
    name: &str,
    (heads, sinks): (Heads, bool),
    input: TensorId,
) -> TensorId {
    let scores = heads.scores(shape);
    let output = graph.activation(&format!("{name}.out"), scores);
    let size = shape.bytes(scores);
    let rows = (scores / shape.sequence.max(1), shape.sequence);
    let mut forward = Vec::new();
    let mut backward = vec![step("backward_input", reduction(RowFunction::Softmax, Direction::Backward, rows, size * 2, size))];
    if !shape.fused {
        let mask = shape.bytes(shape.sequence.saturating_mul(shape.sequence));
        forward.push(step("forward.scale", elementwise(Function::Mul, Direction::Forward, scores, size, size)));
        forward.push(step("forward.mask", elementwise(Function::Add, Direction::Forward, scores, size + mask, size)));
        backward.push(step("backward_input.scale", elementwise(Function::Mul, Direction::Backward, scores, size, size)));
    }
    forward.push(step("forward", reduction(RowFunction::Softmax, Direction::Forward, rows, size, size)));
    let mut chains = vec![input_chain(&[input], &[output], backward)];
    chains.extend(sinks.then(|| sink_gradient(shape, heads, (output, size * 2))));
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        forward,
        backward: chains,
        parameters: sink_parameters(heads, sinks),
        ..NewOperator::default()
    });
    output
}
