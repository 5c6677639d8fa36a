//! Attention fused over tiles (Dao et al. 2022): keeps queries, keys, values, the output and one fp32 log-sum-exp per row; dropout's
//! mask is drawn again from the generator's state in the backward pass. Under context parallelism (ring) every device keeps its queries
//! while keys and values come around: backward they come again, and their gradients go home.

use super::scores::Heads;
use super::{Shape, input_chain, step};
use crate::graph::{GraphBuilder, NewOperator, Step, TensorId};
use sim::kernel::{CollectiveKind, Direction, FusedAttention, Kernel};
use sim::units::Bytes;

/// Adds the operator; returns the attention's output.
pub(crate) fn add(
    graph: &mut GraphBuilder,
    shape: &Shape,
    name: &str,
    (heads, causal): (Heads, bool),
    [query, key, value]: [TensorId; 3],
) -> TensorId {
    let rows = shape.tokens().saturating_mul(heads.query);
    let output = graph.activation(&format!("{name}.out"), rows.saturating_mul(heads.dim));
    let log_sum_exp = graph.constant(&format!("{name}.log_sum_exp"), Bytes(4) * rows);
    let kernel = |direction| {
        Kernel::FusedAttention(FusedAttention {
            direction,
            batch: shape.batch,
            heads: heads.query,
            kv_heads: heads.kv,
            queries: shape.sequence,
            keys: shape.full_sequence(),
            head_dim: heads.dim,
            causal,
            operand: shape.operand,
        })
    };
    let local = graph.bytes(key) + graph.bytes(value);
    let ring = |label: &str, kind| (shape.context > 1).then(|| shape.context_step(label, kind, local * u64::from(shape.context)));
    let mut forward: Vec<Step> = ring("forward.ring_all_gather", CollectiveKind::AllGather).into_iter().collect();
    forward.push(step("forward", kernel(Direction::Forward)));
    let mut backward: Vec<Step> = ring("backward_input.ring_all_gather", CollectiveKind::AllGather).into_iter().collect();
    backward.push(step("backward_input", kernel(Direction::Backward)));
    backward.extend(ring("backward_input.ring_reduce_scatter", CollectiveKind::ReduceScatter));
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![query, key, value],
        outputs: vec![output, log_sum_exp],
        forward,
        backward: vec![input_chain(&[query, key, value], &[query, key, value, output, log_sum_exp], backward)],
        // Of keys and values, and of their gradients, one share arrives while another is worked on.
        workspace: if shape.context > 1 { local * 4 } else { Bytes::ZERO },
        ..NewOperator::default()
    });
    output
}
