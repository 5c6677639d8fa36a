//! The expert that every token goes to (DeepSeekMoE, Dai et al. 2024): an MLP beside the routed ones, on the tokens where they are, whose result is added
//! to theirs; in Qwen2-MoE it is weighed first, by the sigmoid of a product of one column.

use super::linear::{Linear, Split};
use super::transformer::Plan;
use super::{Shape, elementwise, input_chain, reduction, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::model::SharedExpert;
use crate::op::activation;
use sim::kernel::{Direction, Function, RowFunction};

/// Adds the expert over `x` and its sum with the `routed` ones' result; returns the sum.
pub(crate) fn add(
    graph: &mut GraphBuilder,
    plan: &Plan<'_>,
    shared: SharedExpert,
    (x, routed): (TensorId, TensorId),
) -> TensorId {
    let ranks = u64::from(plan.shape.ranks.max(1));
    graph.of_shared_expert(true);
    let mut result = plan.mlp(graph, "layer.moe.shared", shared.ffn / ranks, x);
    if shared.weighed {
        let shape = plan.local_shape();
        let score = Linear {
            name: "layer.moe.shared.score".to_owned(),
            input: plan.model.hidden,
            outputs: &[("out", 1)],
            bias: false,
            split: Split::Replicated,
            shares_input: false,
            narrow: false,
        };
        let score = score.add(graph, &shape, x)[0];
        let weight = activation::add(graph, &shape, "layer.moe.shared.sigmoid", Function::Sigmoid, 1, score);
        result = weigh(graph, &shape, plan.model.hidden, (result, weight));
    }
    graph.of_shared_expert(false);
    sum(graph, &plan.local_shape(), plan.model.hidden, (routed, result))
}

/// Every row times its weight; the weight's gradient is a sum over the row.
fn weigh(graph: &mut GraphBuilder, shape: &Shape, width: u64, (rows, weight): (TensorId, TensorId)) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let (size, small) = (shape.bytes(elements), graph.bytes(weight));
    let output = graph.activation("layer.moe.shared.weighed.out", elements);
    let scale = |direction| elementwise(Function::Mul, direction, elements, size + small, size);
    let sums = reduction(RowFunction::Sum, Direction::Backward, (shape.tokens(), width), size * 2, small);
    graph.add(NewOperator {
        name: "layer.moe.shared.weighed".to_owned(),
        inputs: vec![rows, weight],
        outputs: vec![output],
        forward: vec![step("forward", scale(Direction::Forward))],
        backward: vec![
            input_chain(&[rows], &[weight], vec![step("backward_rows", scale(Direction::Backward))]),
            input_chain(&[weight], &[rows], vec![step("backward_scale", sums)]),
        ],
        ..NewOperator::default()
    });
    output
}

/// Routed and shared results together; the gradient passes to both.
fn sum(graph: &mut GraphBuilder, shape: &Shape, width: u64, (routed, shared): (TensorId, TensorId)) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let size = shape.bytes(elements);
    let output = graph.activation("layer.moe.shared.sum.out", elements);
    graph.add(NewOperator {
        name: "layer.moe.shared.sum".to_owned(),
        inputs: vec![routed, shared],
        outputs: vec![output],
        forward: vec![step("forward", elementwise(Function::Add, Direction::Forward, elements, size * 2, size))],
        backward: vec![input_chain(&[routed, shared], &[], vec![])],
        ..NewOperator::default()
    });
    output
}
