//! The exchanges of DeepSpeed-Ulysses (Jacobs et al. 2023). Before attention, every context-parallel device gets all
//! tokens of a share of the heads. After attention, it gets all heads of its share of the tokens. Each exchange is an
//! all-to-all, with another all-to-all in the backward pass.

use super::{OperatorContext, input_chain};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::parallel::Heads;
use sim::kernel::CollectiveKind;

/// Adds the exchange of query, key and value from all `heads` of a share of the tokens to `fewer` heads of all tokens.
/// Returns attention's inputs.
pub(crate) fn scatter_heads(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    heads: Heads,
    fewer: Heads,
    inputs: [TensorId; 3],
) -> [TensorId; 3] {
    let tokens = shape.batch.saturating_mul(shape.full_sequence());
    let widths = [fewer.query * heads.dim, fewer.kv * heads.dim, fewer.kv * heads.value];
    let mut outputs = inputs;
    for ((output, part), width) in outputs.iter_mut().zip(["query", "key", "value"]).zip(widths) {
        *output = graph.add_activation(&format!("{name}.{part}"), tokens.saturating_mul(width));
    }
    let bytes = inputs.iter().map(|t| graph.tensor_bytes(*t)).sum();
    let exchange = |label: &str| vec![shape.context_collective_step(label, CollectiveKind::AllToAll, bytes)];
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        forward: exchange("forward.all_to_all"),
        backward: vec![input_chain(&inputs, &[], exchange("backward_input.all_to_all"))],
        ..NewOperator::default()
    });
    outputs
}

/// Adds the exchange of attention's result back to all `heads` of this device's tokens. Returns the result.
pub(crate) fn gather_heads(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    heads: Heads,
    input: TensorId,
) -> TensorId {
    let elements = shape.tokens().saturating_mul(heads.query).saturating_mul(heads.value);
    let output = graph.add_activation(&format!("{name}.out"), elements);
    let bytes = graph.tensor_bytes(output);
    let exchange = |label: &str| vec![shape.context_collective_step(label, CollectiveKind::AllToAll, bytes)];
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        forward: exchange("forward.all_to_all"),
        backward: vec![input_chain(&[input], &[], exchange("backward_input.all_to_all"))],
        ..NewOperator::default()
    });
    output
}
