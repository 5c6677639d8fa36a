//! RWKV's layer (Peng et al. 2023, arXiv:2305.13048, section 3; transformers 5.24, `RwkvSelfAttention` and
//! `RwkvFeedForward`). Every product reads an elementwise mix of a token and the previous one. A recurrence per channel
//! sums values weighted by exponentials of keys, which decay over time. A gate scales its result. The MLP also has
//! mixes and a gate.
//!
//! The recurrence has no products. It is vector work: four exponentials per channel and token, in one kernel that keeps
//! states on chip. The backward pass reads keys, values and results, and runs the recurrence again
//! (`RwkvLinearAttention` saves these three).
//!
//! Tensor parallelism splits the channels and the MLP. Every device mixes its own tokens and computes the MLP's gate
//! for them.

use super::gated::add_gated_unit;
use super::linear::{Linear, WeightSplit, result_part};
use super::segment_plan::SegmentPlan;
use super::{
    OperatorContext, RowShape, elementwise_kernel, input_chain, kernel_step, recurrent_step, reduction_kernel,
    weight_chain,
};
use crate::graph::{GraphBuilder, NewOperator, Parameters, TensorId};
use crate::variations::Recurrence;
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};

/// Number of exponentials per channel and token: two for the result and two for the state
/// (`rwkv_linear_attention_cpu`).
const EXPONENTIALS: u64 = 4;

/// Adds the branch that mixes tokens and returns its result.
pub(crate) fn add_recurrence(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    whole: Recurrence,
    x: TensorId,
) -> TensorId {
    let shape = &plan.shape;
    let width = whole.width / u64::from(shape.ranks.max(1));
    let parts = ["key", "value", "receptance"];
    let mixes = add_mixes(graph, plan, "layer.recurrence.shift", &parts, x);
    let mut made = Vec::with_capacity(parts.len());
    for (part, mix) in parts.iter().zip(mixes) {
        made.push(add_product(graph, plan, &format!("layer.recurrence.{part}"), width, WeightSplit::Columns, mix));
    }
    let [key, value, gate] = <[TensorId; 3]>::try_from(made).unwrap_or([x; 3]);
    let mixed = add_core(graph, shape, width, [key, value]);
    let sigmoid = ElementwiseFunction::Sigmoid;
    let gated = add_gated_unit(graph, shape, "layer.recurrence.gated", sigmoid, width, [gate, mixed]);
    plan.add_row_split_product(graph, "layer.recurrence.output", width, false, gated)
}

/// Adds the MLP with its mixes and gate, and returns its result.
pub(crate) fn add_channel_mixing(graph: &mut GraphBuilder, plan: &SegmentPlan<'_>, x: TensorId) -> TensorId {
    let hidden = plan.model.hidden;
    let mixes = add_mixes(graph, plan, "layer.mlp.shift", &["key", "receptance"], x);
    let [key, receptance] = <[TensorId; 2]>::try_from(mixes).unwrap_or([x; 2]);
    let made = plan.add_mlp(graph, "layer.mlp", plan.slice.ffn, key);
    let gate = add_product(graph, plan, "layer.mlp.receptance", hidden, WeightSplit::Replicated, receptance);
    let (shape, sigmoid) = (plan.unsplit_context(), ElementwiseFunction::Sigmoid);
    add_gated_unit(graph, &shape, "layer.mlp.gated", sigmoid, hidden, [gate, made])
}

fn add_product(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    name: &str,
    width: u64,
    split: WeightSplit,
    x: TensorId,
) -> TensorId {
    let (name, input, outputs) = (name.to_owned(), plan.model.hidden, &[result_part("out", width)]);
    let product = Linear { name, input, outputs, bias: false, split, shares_input: false, narrow: true, chunks: 1 };
    product.add_linear(graph, &plan.shape, x)[0]
}

/// Adds one mix of every token and the previous one for each of `parts`, with a trained weight per element. With
/// fusion, one kernel makes all mixes. Otherwise each mix is two products and a sum.
fn add_mixes(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    name: &str,
    parts: &[&str],
    x: TensorId,
) -> Vec<TensorId> {
    let (shape, hidden) = (&plan.shape, plan.model.hidden);
    let elements = shape.local_tokens().saturating_mul(hidden);
    let made: Vec<TensorId> =
        parts.iter().map(|part| graph.add_activation(&format!("{name}.{part}"), elements)).collect();
    let (size, count) = (shape.activation_bytes(elements), parts.len() as u64);
    let pass =
        |function, direction, elements, read, written| elementwise_kernel(function, direction, elements, read, written);
    let steps = |direction, label: &str| {
        let (mul, forward) = (ElementwiseFunction::Mul, direction == Direction::Forward);
        if shape.fused {
            let (read, written) = if forward { (size, size * count) } else { (size * count, size) };
            return vec![kernel_step(label, pass(mul, direction, elements * count, read, written))];
        }
        let each = |part: &&str| {
            let scale = pass(mul, direction, elements, size, size);
            let sum = pass(ElementwiseFunction::Add, direction, elements, size * 2, size);
            [("token", scale), ("earlier", scale), ("sum", sum)]
                .map(|(what, kernel)| kernel_step(&format!("{label}.{part}_{what}"), kernel))
        };
        parts.iter().flat_map(each).collect()
    };
    let weights = hidden.saturating_mul(count);
    let read = size * (1 + count);
    let rows = RowShape { rows: weights, columns: shape.local_tokens() };
    let sum = reduction_kernel(RowFunction::Sum, Direction::Backward, rows, read, shape.gradient_bytes(weights));
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![x],
        outputs: made.clone(),
        forward: steps(Direction::Forward, "forward"),
        backward: vec![
            input_chain(&[x], &[], steps(Direction::Backward, "backward_input")),
            weight_chain(&[x], vec![kernel_step("backward_weight", sum)]),
        ],
        parameters: Parameters { replicated: weights, ..Parameters::default() },
        ..NewOperator::default()
    });
    made
}

/// Adds the recurrence. Its parameters are a decay per channel and a weight of the token itself per channel.
fn add_core(graph: &mut GraphBuilder, shape: &OperatorContext, width: u64, [key, value]: [TensorId; 2]) -> TensorId {
    let elements = shape.tokens().saturating_mul(width);
    let output = graph.add_activation("layer.recurrence.core.out", elements);
    let size = shape.activation_bytes(elements);
    let work = elements.saturating_mul(EXPONENTIALS);
    let pass = |direction, read, written| elementwise_kernel(ElementwiseFunction::Exp, direction, work, read, written);
    let forward = if shape.decodes() {
        recurrent_step(shape, Recurrence::STATE.saturating_mul(width))
    } else {
        kernel_step("forward", pass(Direction::Forward, size * 2, size))
    };
    let parameters = 2 * width;
    let rows = RowShape { rows: parameters, columns: shape.batch };
    let partial = shape.gradient_bytes(parameters.saturating_mul(shape.batch));
    let sum = reduction_kernel(RowFunction::Sum, Direction::Backward, rows, partial, shape.gradient_bytes(parameters));
    let (inputs, reads) = ([key, value], [key, value, output]);
    graph.add_operator(NewOperator {
        name: "layer.recurrence.core".to_owned(),
        inputs: inputs.to_vec(),
        outputs: vec![output],
        forward: vec![forward],
        backward: vec![
            input_chain(
                &inputs,
                &reads,
                vec![kernel_step("backward_input", pass(Direction::Backward, size * 4, size * 2))],
            ),
            weight_chain(&[key], vec![kernel_step("backward_weight", sum)]),
        ],
        parameters: Parameters { sharded: parameters, ..Parameters::default() },
        ..NewOperator::default()
    });
    output
}
