//! Softmax cross-entropy over the vocabulary. Unfused (eager PyTorch), logits are converted to fp32, and the row
//! function reads them twice (normaliser, then log-probabilities). The gradient's row function reads the
//! log-probabilities and the arriving gradient; its result is converted back. The fp32 probabilities are kept for the
//! backward pass. If devices split the vocabulary, three small all-reduces (maximum, label's logit, sum of
//! exponentials) avoid gathering the logits (Megatron-LM).
//!
//! In chunks of tokens (Liger), one kernel per chunk reads the logits twice (normaliser, then gradient) and overwrites
//! them with the gradient. The backward pass has no kernel of its own. Liger runs a chunk's three products in the
//! forward pass, around that kernel. Here the two gradient products stay in the backward pass, which follows at once.
//! Later chunks also read the weight gradient to add to it; as in other products, these reads are not counted.

use super::{OperatorContext, RowShape, elementwise_kernel, input_chain, kernel_step, reduction_kernel};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, TensorId};
use crate::lowering::LossForm;
use crate::op::embedding::TOKEN_ID_BYTES;
use sim::kernel::{CollectiveKind, Direction, ElementwiseFunction, RowFunction};
use sim::units::Bytes;

/// Logits of a token on this device, and the number of chunks of tokens in which a chunked loss runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LossSize {
    pub(crate) columns: u64,
    pub(crate) chunks: u64,
}

/// Adds the loss and returns it.
pub(crate) fn add_loss(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    LossSize { columns, chunks }: LossSize,
    logits: TensorId,
) -> TensorId {
    if shape.loss == LossForm::Chunked {
        return add_chunked_loss(graph, shape, name, LossSize { columns, chunks: chunks.max(1) }, logits);
    }
    let tokens = shape.tokens();
    let elements = tokens.saturating_mul(columns);
    let loss = graph.add_constant(&format!("{name}.out"), Bytes(4) * tokens);
    let probabilities = graph.add_constant(&format!("{name}.probabilities"), Bytes(4) * elements);
    let (size, wide) = (shape.activation_bytes(elements), graph.tensor_bytes(probabilities));
    let labels = Bytes(TOKEN_ID_BYTES) * tokens;
    let rows = RowShape { rows: tokens, columns };
    let mut outputs = vec![loss, probabilities];
    let (mut steps, backward_steps) = if shape.fused_loss {
        let written = wide + Bytes(4) * tokens;
        let loss = reduction_kernel(RowFunction::CrossEntropy, Direction::Forward, rows, size + labels, written);
        let gradient = reduction_kernel(RowFunction::CrossEntropy, Direction::Backward, rows, wide + labels, size);
        (vec![kernel_step("forward", loss)], vec![kernel_step("backward_input", gradient)])
    } else {
        outputs.push(graph.add_wide_copy(&format!("{name}.fp32"), elements));
        eager_loss_steps(shape, rows, [size, wide, labels])
    };
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

/// Returns the (forward, backward) steps of an eager loss over the `rows` of logits. The sizes are the
/// bytes of all logits as activations and in fp32, and of the labels.
fn eager_loss_steps(
    shape: &OperatorContext,
    rows: RowShape,
    [size, wide, labels]: [Bytes; 3],
) -> (Vec<KernelStep>, Vec<KernelStep>) {
    let elements = rows.rows.saturating_mul(rows.columns);
    let pass = |function, direction, read, written| elementwise_kernel(function, direction, elements, read, written);
    let upcast = if shape.composed { ElementwiseFunction::Indexed } else { ElementwiseFunction::Convert };
    let written = wide + Bytes(4) * rows.rows;
    let loss = reduction_kernel(RowFunction::CrossEntropy, Direction::Forward, rows, wide * 2 + labels, written);
    let forward =
        vec![kernel_step("forward.upcast", pass(upcast, Direction::Forward, size, wide)), kernel_step("forward", loss)];
    let mut backward = Vec::new();
    if shape.composed {
        // The label's gradient is written into zeros.
        let zeros = pass(ElementwiseFunction::Copy, Direction::Backward, Bytes::ZERO, wide);
        backward.push(kernel_step("backward_input.zeros", zeros));
    }
    let gradient = reduction_kernel(RowFunction::CrossEntropy, Direction::Backward, rows, wide * 2 + labels, wide);
    backward.push(kernel_step("backward_input", gradient));
    let downcast = pass(ElementwiseFunction::Convert, Direction::Backward, wide, size);
    backward.push(kernel_step("backward_input.downcast", downcast));
    (forward, backward)
}

/// Adds the loss chunk by chunk. If devices split the vocabulary, every chunk has its own three all-reduces.
fn add_chunked_loss(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    LossSize { columns, chunks }: LossSize,
    logits: TensorId,
) -> TensorId {
    let tokens = shape.tokens();
    let loss = graph.add_constant(&format!("{name}.out"), Bytes(4) * tokens);
    let mut steps = Vec::new();
    for chunk in 0..chunks {
        // The last chunk has the remaining tokens.
        let rows = tokens.div_ceil(chunks).min(tokens.saturating_sub(chunk * tokens.div_ceil(chunks)));
        let size = shape.activation_bytes(rows.saturating_mul(columns));
        let labels = Bytes(TOKEN_ID_BYTES) * rows;
        let kernel = reduction_kernel(
            RowFunction::CrossEntropy,
            Direction::Forward,
            RowShape { rows, columns },
            size * 2 + labels,
            size + Bytes(4) * rows,
        );
        steps.push(kernel_step(&format!("forward.chunk_{chunk}"), kernel));
        if shape.is_tensor_parallel() {
            for what in ["maximum", "label", "sum"] {
                let label = format!("forward.chunk_{chunk}.all_reduce_{what}");
                steps.push(shape.tensor_collective_step(&label, CollectiveKind::AllReduce, Bytes(4) * rows));
            }
        }
    }
    graph.slice_tensor(logits, chunks);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![logits],
        outputs: vec![loss],
        forward: steps,
        backward: vec![input_chain(&[logits], &[], Vec::new())],
        ..NewOperator::default()
    });
    loss
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::model::Model;
    use crate::training::{LossForm, Lowering, SegmentKind, TrainingGraph};
    use sim::kernel::Kernel;

    fn lowered(loss: LossForm, tensor_parallel: u32) -> TrainingGraph {
        let model = Model::load("llama3-8b").unwrap();
        let lowering = Lowering { sequence_length: 8192, tensor_parallel, loss, ..Lowering::new(&model) };
        TrainingGraph::new(&model, &lowering).unwrap()
    }

    #[test]
    fn chunks_do_the_same_products_and_exchange_three_rows_each() {
        let [whole, chunked] = [LossForm::Whole, LossForm::Chunked].map(|loss| lowered(loss, 8));
        assert_eq!(whole.kernel_flops(), chunked.kernel_flops());
        let head = |training: &TrainingGraph| training.segment(SegmentKind::Head).unwrap().clone();
        let loss = |training: &TrainingGraph| {
            let graph = head(training).graph;
            graph.operators.into_iter().find(|op| op.name == "head.loss").unwrap()
        };
        let collectives = |training: &TrainingGraph| {
            let kernels = loss(training).forward.into_iter().map(|step| step.kernel);
            let bytes = kernels.filter_map(|kernel| match kernel {
                Kernel::Collective(c) => Some(c.bytes.0),
                _ => None,
            });
            bytes.collect::<Vec<_>>()
        };
        // Each of 8 devices has 16,032 logits per token, about four times the width of 4,096, so the loss runs in four
        // chunks of 2,048 tokens.
        assert_eq!(collectives(&whole), vec![4 * 8192; 3]);
        assert_eq!(collectives(&chunked), vec![4 * 2048; 12]);
        // The forward kernel overwrites the logits with their gradient, so the backward pass has no kernel.
        assert!(loss(&chunked).backward.iter().all(|chain| chain.steps.is_empty()));
        let moved = |training: &TrainingGraph| -> u64 {
            let op = loss(training);
            let steps = op.forward.iter().chain(op.backward.iter().flat_map(|chain| &chain.steps));
            let bytes = steps.map(|step| match step.kernel {
                Kernel::Reduction(r) => (r.read + r.written).0,
                Kernel::Elementwise(e) => (e.read + e.written).0,
                _ => 0,
            });
            bytes.sum()
        };
        // Three passes over bf16 logits, labels and losses.
        assert_eq!(moved(&chunked), 8192 * (3 * 2 * 16_032 + 8 + 4));
    }
}
