//! Softmax cross-entropy over the vocabulary. Unfused (eager PyTorch), logits are converted to fp32, the row function reads them twice
//! (normaliser, then log-probabilities), and its gradient reads those and the gradient that reaches them, before it is converted back. The
//! probabilities are kept in fp32 for the backward pass; with the vocabulary split over devices, three small all-reduces (maximum, label's
//! logit, sum of exponentials) replace the gathering of logits (Megatron-LM).

use super::{Shape, elementwise, input_chain, reduction, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::op::embedding::TOKEN_ID_BYTES;
use sim::kernel::{CollectiveKind, Direction, Function, RowFunction};
use sim::units::Bytes;

/// Adds the loss over logits of `columns` per token on this device; returns it.
pub(crate) fn add(graph: &mut GraphBuilder, shape: &Shape, name: &str, columns: u64, logits: TensorId) -> TensorId {
    let tokens = shape.tokens();
    let elements = tokens.saturating_mul(columns);
    let loss = graph.constant(&format!("{name}.out"), Bytes(4) * tokens);
    let probabilities = graph.constant(&format!("{name}.probabilities"), Bytes(4) * elements);
    let (size, wide) = (shape.bytes(elements), graph.bytes(probabilities));
    let labels = Bytes(TOKEN_ID_BYTES) * tokens;
    let rows = (tokens, columns);
    let mut outputs = vec![loss, probabilities];
    let mut steps = Vec::new();
    let mut backward_steps = Vec::new();
    if shape.fused_loss {
        let forward = reduction(RowFunction::CrossEntropy, Direction::Forward, rows, size + labels, wide + Bytes(4) * tokens);
        let backward = reduction(RowFunction::CrossEntropy, Direction::Backward, rows, wide + labels, size);
        steps.push(step("forward", forward));
        backward_steps.push(step("backward_input", backward));
    } else {
        outputs.push(graph.constant(&format!("{name}.fp32"), wide));
        let convert = |direction, read, written| elementwise(Function::Convert, direction, elements, read, written);
        let forward = reduction(RowFunction::CrossEntropy, Direction::Forward, rows, wide * 2 + labels, wide + Bytes(4) * tokens);
        let backward = reduction(RowFunction::CrossEntropy, Direction::Backward, rows, wide * 2 + labels, wide);
        steps.push(step("forward.upcast", convert(Direction::Forward, size, wide)));
        steps.push(step("forward", forward));
        backward_steps.push(step("backward_input", backward));
        backward_steps.push(step("backward_input.downcast", convert(Direction::Backward, wide, size)));
    }
    if shape.parallel() {
        for what in ["maximum", "label", "sum"] {
            let label = format!("forward.all_reduce_{what}");
            steps.push(shape.tensor_step(&label, CollectiveKind::AllReduce, Bytes(4) * tokens));
        }
    }
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![logits],
        outputs,
        forward: steps,
        backward: vec![input_chain(&[logits], &[probabilities], backward_steps)],
        ..NewOperator::default()
    });
    loss
}
