//! Attention fused over tiles (Dao et al. 2022). It keeps queries, keys, values, the output and one fp32 log-sum-exp
//! per row. The backward pass redraws dropout's mask from the generator's state. Under context parallelism (ring) every
//! device keeps its queries while keys and values pass by. In the backward pass they pass by again, and their gradients
//! return to their devices.
//!
//! In latent attention, queries and values differ in dimension. The kernel then has the dimension with the same number
//! of operations. Forward this is the mean of both, which also moves the same bytes. Backward it is (3 query + 2 value)
//! / 5, rounded up, over the five products.

use super::{OperatorContext, input_chain, kernel_step, reduction_kernel, weight_chain};
use crate::graph::{BackwardChain, GraphBuilder, KernelStep, NewOperator, OperatorRole, Parameters, TensorId};
use crate::parallel::Heads;
use sim::kernel::{CollectiveKind, Direction, FusedAttention, Kernel, RowFunction};
use sim::units::Bytes;

/// The computation of a fused kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionCore {
    /// Heads on this device.
    pub(crate) heads: Heads,
    /// Keys per sequence.
    pub(crate) keys: u64,
    /// True if a query sees only its own key and earlier ones.
    pub(crate) causal: bool,
    /// Most keys that a query sees.
    pub(crate) window: Option<u64>,
    /// True if every head has a learned logit besides its scores.
    pub(crate) sinks: bool,
}

/// Adds the operator; returns attention's output.
pub(crate) fn add_fused_attention(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    AttentionCore { heads, keys, causal, window, sinks }: AttentionCore,
    [query, key, value]: [TensorId; 3],
) -> TensorId {
    let rows = shape.tokens().saturating_mul(heads.query);
    let output = graph.add_activation(&format!("{name}.out"), rows.saturating_mul(heads.value));
    let log_sum_exp = graph.add_constant(&format!("{name}.log_sum_exp"), Bytes(4) * rows);
    let kernel = |direction| {
        Kernel::FusedAttention(FusedAttention {
            direction,
            batch: shape.batch,
            heads: heads.query,
            kv_heads: heads.kv,
            queries: shape.sequence,
            keys,
            head_dim: match direction {
                Direction::Forward => (heads.dim + heads.value).div_ceil(2),
                Direction::Backward => (3 * heads.dim + 2 * heads.value).div_ceil(5),
            },
            causal,
            window: window.filter(|window| *window < keys),
            operand: shape.operand,
        })
    };
    let local = graph.tensor_bytes(key) + graph.tensor_bytes(value);
    let ring = |label: &str, kind| {
        (shape.context > 1).then(|| shape.context_collective_step(label, kind, local * u64::from(shape.context)))
    };
    let mut forward: Vec<KernelStep> = ring("forward.ring_all_gather", CollectiveKind::AllGather).into_iter().collect();
    forward.push(kernel_step("forward", kernel(Direction::Forward)));
    let mut backward: Vec<KernelStep> =
        ring("backward_input.ring_all_gather", CollectiveKind::AllGather).into_iter().collect();
    backward.push(kernel_step("backward_input", kernel(Direction::Backward)));
    backward.extend(ring("backward_input.ring_reduce_scatter", CollectiveKind::ReduceScatter));
    let mut chains = vec![input_chain(&[query, key, value], &[query, key, value, output, log_sum_exp], backward)];
    let read = graph.tensor_bytes(log_sum_exp) + graph.tensor_bytes(output);
    chains.extend(sinks.then(|| sink_gradient(shape, heads, (log_sum_exp, read))));
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![query, key, value],
        outputs: vec![output, log_sum_exp],
        forward,
        backward: chains,
        parameters: sink_parameters(heads, sinks),
        // One share of keys and values, and of their gradients, arrives while another is in use.
        workspace: if shape.context > 1 { local * 4 } else { Bytes::ZERO },
        role: OperatorRole::AttentionCore,
        ..NewOperator::default()
    });
    output
}

/// Returns one learned logit per head, which takes part only in the softmax (GPT-OSS's sinks).
pub(crate) fn sink_parameters(heads: Heads, sinks: bool) -> Parameters {
    Parameters { sharded: if sinks { heads.query } else { 0 }, ..Parameters::default() }
}

/// Returns the chain of the sinks' gradients. They sum over each head's rows the backward pass's values of the softmax
/// and the arriving gradient, `read` bytes.
pub(crate) fn sink_gradient(shape: &OperatorContext, heads: Heads, (rows, read): (TensorId, Bytes)) -> BackwardChain {
    let written = shape.gradient_bytes(heads.query);
    let sum = reduction_kernel(RowFunction::Sum, Direction::Backward, (heads.query, shape.tokens()), read, written);
    weight_chain(&[rows], vec![kernel_step("backward_weight", sum)])
}
