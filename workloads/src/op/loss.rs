//! Softmax cross-entropy over the vocabulary. The probabilities are kept in fp32 for the backward pass; with the vocabulary split over
//! devices, three small all-reduces (maximum, label's logit, sum of exponentials) replace the gathering of logits (Megatron-LM).

use super::{Shape, input_chain, reduction, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::op::embedding::TOKEN_ID_BYTES;
use sim::kernel::{CollectiveKind, Direction, RowFunction};
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
    let forward = reduction(RowFunction::CrossEntropy, Direction::Forward, rows, size + labels, wide + Bytes(4) * tokens);
    let backward = reduction(RowFunction::CrossEntropy, Direction::Backward, rows, wide + labels, size);
    let mut steps = vec![step("forward", forward)];
    if shape.parallel() {
        for what in ["maximum", "label", "sum"] {
            let sum = shape.collective(CollectiveKind::AllReduce, Bytes(4) * tokens);
            steps.push(step(&format!("forward.all_reduce_{what}"), sum));
        }
    }
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![logits],
        outputs: vec![loss, probabilities],
        forward: steps,
        backward: vec![input_chain(&[logits], &[probabilities], vec![step("backward_input", backward)])],
        ..NewOperator::default()
    });
    loss
}
