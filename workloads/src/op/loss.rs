//! Softmax cross-entropy over the vocabulary. Unfused (eager PyTorch), logits are converted to fp32, and the row
//! function reads them twice (normaliser, then log-probabilities). Its gradient reads those and the arriving gradient,
//! before it is converted back. The fp32 probabilities are kept for the backward pass. With the vocabulary split over
//! devices, three small all-reduces (maximum, label's logit, sum of exponentials) avoid gathering the logits
//! (Megatron-LM).

use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step, reduction_kernel};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::op::embedding::TOKEN_ID_BYTES;
use sim::kernel::{CollectiveKind, Direction, ElementwiseFunction, RowFunction};
use sim::units::Bytes;

/// Adds the loss over `columns` logits per token on this device; returns it.
pub(crate) fn add_loss(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    columns: u64,
    logits: TensorId,
) -> TensorId {
    let tokens = shape.tokens();
    let elements = tokens.saturating_mul(columns);
    let loss = graph.add_constant(&format!("{name}.out"), Bytes(4) * tokens);
    let probabilities = graph.add_constant(&format!("{name}.probabilities"), Bytes(4) * elements);
    let (size, wide) = (shape.activation_bytes(elements), graph.tensor_bytes(probabilities));
    let labels = Bytes(TOKEN_ID_BYTES) * tokens;
    let rows = (tokens, columns);
    let mut outputs = vec![loss, probabilities];
    let mut steps = Vec::new();
    let mut backward_steps = Vec::new();
    if shape.fused_loss {
        let forward = reduction_kernel(
            RowFunction::CrossEntropy,
            Direction::Forward,
            rows,
            size + labels,
            wide + Bytes(4) * tokens,
        );
        let backward = reduction_kernel(RowFunction::CrossEntropy, Direction::Backward, rows, wide + labels, size);
        steps.push(kernel_step("forward", forward));
        backward_steps.push(kernel_step("backward_input", backward));
    } else {
        outputs.push(graph.add_wide_copy(&format!("{name}.fp32"), elements));
        let convert = |direction, read, written| {
            elementwise_kernel(ElementwiseFunction::Convert, direction, elements, read, written)
        };
        let forward = reduction_kernel(
            RowFunction::CrossEntropy,
            Direction::Forward,
            rows,
            wide * 2 + labels,
            wide + Bytes(4) * tokens,
        );
        let backward = reduction_kernel(RowFunction::CrossEntropy, Direction::Backward, rows, wide * 2 + labels, wide);
        steps.push(kernel_step("forward.upcast", convert(Direction::Forward, size, wide)));
        steps.push(kernel_step("forward", forward));
        backward_steps.push(kernel_step("backward_input", backward));
        backward_steps.push(kernel_step("backward_input.downcast", convert(Direction::Backward, wide, size)));
    }
    if shape.is_tensor_parallel() {
        for what in ["maximum", "label", "sum"] {
            let label = format!("forward.all_reduce_{what}");
            steps.push(shape.tensor_collective_step(&label, CollectiveKind::AllReduce, Bytes(4) * tokens));
        }
    }
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![logits],
        outputs,
        forward: steps,
        backward: vec![input_chain(&[logits], &[probabilities], backward_steps)],
        ..NewOperator::default()
    });
    loss
}
