//! Attention fused over tiles (Dao et al. 2022): keeps queries, keys, values, the output and one fp32 log-sum-exp per row; dropout's
//! mask is drawn again from the generator's state in the backward pass.

use super::scores::Heads;
use super::{Shape, input_chain, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, FusedAttention, Kernel};
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
            keys: shape.sequence,
            head_dim: heads.dim,
            causal,
            operand: shape.operand,
        })
    };
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![query, key, value],
        outputs: vec![output, log_sum_exp],
        forward: vec![step("forward", kernel(Direction::Forward))],
        backward: vec![input_chain(
            &[query, key, value],
            &[query, key, value, output, log_sum_exp],
            vec![step("backward_input", kernel(Direction::Backward))],
        )],
        ..NewOperator::default()
    });
    output
}
