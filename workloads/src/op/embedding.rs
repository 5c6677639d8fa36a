//! Embeddings: the token lookup and the tables added to it (positions, BERT's token types). Tensor-parallel devices
//! split the rows of the lookup table by vocabulary, as in Megatron-LM.

use super::{OperatorContext, RowShape, elementwise_kernel, input_chain, kernel_step, reduction_kernel, weight_chain};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, OperatorRole, Parameters, TensorId};
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};
use sim::units::Bytes;

/// Bytes of a token id; PyTorch's embedding reads int64.
pub(crate) const TOKEN_ID_BYTES: u64 = 8;

/// Rows and width of a table on this device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableSize {
    pub(crate) rows: u64,
    pub(crate) width: u64,
}

/// Adds the lookup in this device's rows and returns the embedded tokens.
pub(crate) fn add_token_embedding(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    TableSize { rows, width }: TableSize,
    ids: TensorId,
) -> TensorId {
    let output = graph.add_activation(&format!("{name}.out"), shape.local_tokens().saturating_mul(width));
    let elements = shape.tokens().saturating_mul(width);
    let size = shape.activation_bytes(elements);
    let id_bytes = graph.tensor_bytes(ids);
    let mut forward: Vec<KernelStep> = vec![kernel_step(
        "forward",
        elementwise_kernel(ElementwiseFunction::Gather, Direction::Forward, elements, size + id_bytes, size),
    )];
    forward.extend(shape.sum_over_tensor_ranks("forward", size));
    // Each token adds its row to the gradient in memory, so a row is read and written once per token. Several tokens
    // may share a row.
    let rows_touched = shape.gradient_bytes(elements);
    let read = size + id_bytes + rows_touched;
    let scatter = elementwise_kernel(ElementwiseFunction::Scatter, Direction::Backward, elements, read, rows_touched);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![ids],
        outputs: vec![output],
        forward,
        backward_prepare: shape.gather_sequence("backward", size).into_iter().collect(),
        backward: vec![weight_chain(&[ids], vec![kernel_step("backward_weight", scatter)])],
        parameters: Parameters { sharded: rows.saturating_mul(width), ..Parameters::default() },
        workspace: if shape.sequence_parallel { size } else { Bytes::ZERO },
        role: OperatorRole::Lookup,
    });
    output
}

/// Adds a learned table to the embedded tokens and returns the sum.
///
/// `rows_used` is the number of rows that one sequence reads: its length on
/// this device for positions, all rows for token types. The table's gradient is a sum over the sequences, and for token
/// types also over the positions.
pub(crate) fn add_learned_table(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    TableSize { rows, width }: TableSize,
    rows_used: u64,
    input: TensorId,
) -> TensorId {
    let elements = shape.local_tokens().saturating_mul(width);
    let output = graph.add_activation(&format!("{name}.out"), elements);
    let size = shape.activation_bytes(elements);
    let touched = rows_used.saturating_mul(width);
    let forward = elementwise_kernel(
        ElementwiseFunction::Add,
        Direction::Forward,
        elements,
        size + shape.activation_bytes(touched),
        size,
    );
    let sum = reduction_kernel(
        RowFunction::Sum,
        Direction::Backward,
        RowShape { rows: touched, columns: shape.local_tokens() / rows_used.max(1) },
        size,
        shape.gradient_bytes(touched),
    );
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        forward: vec![kernel_step("forward", forward)],
        backward: vec![
            input_chain(&[input], &[], vec![]),
            weight_chain(&[], vec![kernel_step("backward_weight", sum)]),
        ],
        parameters: Parameters { replicated: rows.saturating_mul(width), ..Parameters::default() },
        role: OperatorRole::Lookup,
        ..NewOperator::default()
    });
    output
}
