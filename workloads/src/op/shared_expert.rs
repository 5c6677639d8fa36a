//! The shared expert (DeepSeekMoE, Dai et al. 2024): an MLP that processes every token, beside the routed experts. It
//! works on tokens without an exchange, and its result is added to the routed experts' result. In Qwen2-MoE, the
//! sigmoid of a one-column product scales it first.

use super::linear::{Linear, WeightSplit, result_part};
use super::segment_plan::SegmentPlan;
use super::{OperatorContext, RowShape, elementwise_kernel, input_chain, kernel_step, reduction_kernel};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use crate::model::SharedExpert;
use crate::op::activation;
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};

/// Adds the shared expert over `x` and its sum with the `routed` experts' result. Returns the sum.
pub(crate) fn add_shared_expert(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    shared: SharedExpert,
    [x, routed]: [TensorId; 2],
) -> TensorId {
    let ranks = u64::from(plan.shape.ranks.max(1));
    graph.mark_shared_expert(true);
    let mut result = plan.add_mlp(graph, "layer.moe.shared", shared.ffn / ranks, x);
    if shared.weighed {
        let shape = plan.unsplit_context();
        let score = Linear {
            name: "layer.moe.shared.score".to_owned(),
            input: plan.model.hidden,
            outputs: &[result_part("out", 1)],
            bias: false,
            split: WeightSplit::Replicated,
            shares_input: false,
            narrow: false,
            chunks: 1,
        };
        let score = score.add_linear(graph, &shape, x)[0];
        let weight = activation::add_activation(
            graph,
            &shape,
            "layer.moe.shared.sigmoid",
            ElementwiseFunction::Sigmoid,
            1,
            score,
        );
        result = add_row_weights(graph, &shape, plan.model.hidden, [result, weight]);
    }
    if plan.model.experts.is_some_and(|experts| experts.own_norms) {
        result = plan.add_norm_operator(graph, "layer.moe.shared.output_norm", plan.model.hidden, result);
    }
    graph.mark_shared_expert(false);
    add_expert_sum(graph, &plan.unsplit_context(), plan.model.hidden, [routed, result])
}

/// Scales every row by its weight. The weight's gradient is a sum over the row.
fn add_row_weights(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    width: u64,
    [rows, weight]: [TensorId; 2],
) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let (size, small) = (shape.activation_bytes(elements), graph.tensor_bytes(weight));
    let output = graph.add_activation("layer.moe.shared.weighed.out", elements);
    let scale = |direction| elementwise_kernel(ElementwiseFunction::Mul, direction, elements, size + small, size);
    let sums = reduction_kernel(
        RowFunction::Sum,
        Direction::Backward,
        RowShape { rows: shape.tokens(), columns: width },
        size * 2,
        small,
    );
    graph.add_operator(NewOperator {
        name: "layer.moe.shared.weighed".to_owned(),
        inputs: vec![rows, weight],
        outputs: vec![output],
        forward: vec![kernel_step("forward", scale(Direction::Forward))],
        backward: vec![
            input_chain(&[rows], &[weight], vec![kernel_step("backward_rows", scale(Direction::Backward))]),
            input_chain(&[weight], &[rows], vec![kernel_step("backward_scale", sums)]),
        ],
        ..NewOperator::default()
    });
    output
}

/// Adds the sum of routed and shared results; the gradient passes to both.
fn add_expert_sum(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    width: u64,
    [routed, shared]: [TensorId; 2],
) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let size = shape.activation_bytes(elements);
    let output = graph.add_activation("layer.moe.shared.sum.out", elements);
    graph.add_operator(NewOperator {
        name: "layer.moe.shared.sum".to_owned(),
        inputs: vec![routed, shared],
        outputs: vec![output],
        forward: vec![kernel_step(
            "forward",
            elementwise_kernel(ElementwiseFunction::Add, Direction::Forward, elements, size * 2, size),
        )],
        backward: vec![input_chain(&[routed, shared], &[], vec![])],
        ..NewOperator::default()
    });
    output
}
