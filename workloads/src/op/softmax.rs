//! Scale, mask and softmax of unfused attention's scores. It is one kernel if elementwise work is fused (Megatron-LM's
//! scaled masked softmax), otherwise three passes. The backward pass reads the probabilities.

use super::fused_attention::{sink_gradient, sink_parameters};
use super::scores::ScoreShape;
use super::{OperatorContext, RowShape, elementwise_kernel, input_chain, kernel_step, reduction_kernel};
use crate::graph::{GraphBuilder, NewOperator, OperatorRole, TensorId};
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};

/// Adds the softmax over the scores, with a learned logit per head if `sinks`, and returns the probabilities.
pub(crate) fn add_softmax(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    ScoreShape { heads, keys }: ScoreShape,
    sinks: bool,
    input: TensorId,
) -> TensorId {
    let scores = heads.score_count(shape, keys);
    let output = graph.add_activation(&format!("{name}.out"), scores);
    let size = shape.activation_bytes(scores);
    let rows = RowShape { rows: scores / keys.max(1), columns: keys };
    let mut forward = Vec::new();
    let mut backward = vec![kernel_step(
        "backward_input",
        reduction_kernel(RowFunction::Softmax, Direction::Backward, rows, size * 2, size),
    )];
    if !shape.fused {
        let mask = shape.activation_bytes(shape.sequence.saturating_mul(keys));
        forward.push(kernel_step(
            "forward.scale",
            elementwise_kernel(ElementwiseFunction::Mul, Direction::Forward, scores, size, size),
        ));
        forward.push(kernel_step(
            "forward.mask",
            elementwise_kernel(ElementwiseFunction::Add, Direction::Forward, scores, size + mask, size),
        ));
        backward.push(kernel_step(
            "backward_input.scale",
            elementwise_kernel(ElementwiseFunction::Mul, Direction::Backward, scores, size, size),
        ));
    }
    forward.push(kernel_step("forward", reduction_kernel(RowFunction::Softmax, Direction::Forward, rows, size, size)));
    let mut chains = vec![input_chain(&[input], &[output], backward)];
    chains.extend(sinks.then(|| sink_gradient(shape, heads, output, size * 2)));
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        forward,
        backward: chains,
        parameters: sink_parameters(heads, sinks),
        role: OperatorRole::AttentionScores,
        ..NewOperator::default()
    });
    output
}
