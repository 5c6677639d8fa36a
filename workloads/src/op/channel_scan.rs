//! A state-space layer with a decay per channel and state number (Mamba, Gu and Dao 2023, arXiv:2312.00752, algorithm
//! 2). One product makes input and gate. After a short convolution, a second product makes the steps' low-rank vector
//! and the projections into and out of the state. A third product makes the steps.
//!
//! The scan has no products. It is vector work: an exponential and three multiply-additions per channel and state
//! number, in one kernel that keeps states on chip (section 3.3.2). Its time is that of the exponentials; the
//! multiply-additions run at the same time. It writes the states once per 2,048 tokens, and the backward pass runs the
//! scan again (`mamba_ssm`, `csrc/selective_scan`).
//!
//! Tensor parallelism splits the channels, and the second product's result is summed over the devices. Groups of
//! channels with their own projections (Zamba) are not divided, and nothing is summed.

use super::linear::{Linear, ResultPart, WeightSplit, result_part};
use super::norm::NormOperator;
use super::per_head::PerHeadProduct;
use super::segment_plan::SegmentPlan;
use super::{
    OperatorContext, RowShape, convolution, elementwise_kernel, gated, input_chain, kernel_step, reduction_kernel,
    weight_chain,
};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, Parameters, TensorId};
use crate::model::Norm;
use crate::variations::ChannelScan;
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};
use sim::units::Bytes;

/// Bytes per element of a state (fp32).
const WIDE: u64 = 4;

/// Number of tokens between two states that the scan writes (`csrc/selective_scan/selective_scan.cpp`: chunks of
/// 2,048).
const TOKENS_PER_STATE: u64 = 2048;

/// Adds the channel scan's branch and returns its result.
pub(crate) fn add_channel_scan(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    whole: ChannelScan,
    x: TensorId,
) -> TensorId {
    let shape = &plan.shape;
    let ranks = u64::from(shape.ranks.max(1));
    let own = ChannelScan { width: whole.width / ranks, groups: (whole.groups / ranks).max(1), ..whole };
    let grouped = whole.groups > 1;
    let (width, state) = (own.width, own.state);
    let parts = [result_part("input", width), result_part("gate", width)];
    let made = plan.add_column_split_products(graph, "layer.scan", "in", &parts, own.bias, x);
    let [input, gate] = <[TensorId; 2]>::try_from(made).unwrap_or([x; 2]);
    let convolution = convolution::Convolution {
        name: "layer.scan.convolution",
        width,
        reach: own.convolution,
        bias: own.convolution_bias,
    };
    let mixed = convolution.add_convolution(graph, shape, input);
    let product = |name: &str, input, outputs: &[ResultPart<'_>], split, bias, graph: &mut GraphBuilder, x| {
        let name = format!("layer.scan.{name}");
        let product = Linear { name, input, outputs, bias, split, shares_input: false, narrow: true, chunks: 1 };
        product.add_linear(graph, shape, x)
    };
    let parts = [result_part("step", own.step_rank), result_part("state", 2 * state)];
    let of_group = |name, input, output| PerHeadProduct { name, heads: own.groups, input, output };
    let narrow = if grouped {
        let select = of_group("layer.scan.select", width / own.groups, own.step_rank + 2 * state);
        select.add_parts(graph, shape, &parts, false, mixed)
    } else {
        product("select", width, &parts, WeightSplit::Rows, false, graph, mixed)
    };
    let norm = |name: &str, width, graph: &mut GraphBuilder, x| {
        if !own.norms {
            return x;
        }
        let name = format!("layer.scan.{name}");
        NormOperator { name, norm: Norm::RmsNorm, width, affine: true, bias: false, split: false }
            .add_norm(graph, shape, x)
    };
    let step = norm("step_norm", own.step_rank, graph, narrow[0]);
    // There are two norms of `state` elements each. One norm of both has as many gains and moves as many bytes.
    let states = norm("state_norm", 2 * state, graph, narrow[1]);
    let steps = if grouped {
        let part = width / own.groups;
        let parts = [result_part("out", part)];
        of_group("layer.scan.steps", own.step_rank, part).add_parts(graph, shape, &parts, true, step)
    } else {
        product("steps", own.step_rank, &[result_part("out", width)], WeightSplit::Columns, true, graph, step)
    };
    let scanned = add_core(graph, shape, &own, grouped, [mixed, steps[0], states]);
    let unit =
        gated::add_gated_unit(graph, shape, "layer.scan.gated", ElementwiseFunction::Silu, width, [gate, scanned]);
    plan.add_row_split_product(graph, "layer.scan.out", width, own.bias, unit)
}

/// Adds the scan, with decays and skip of every channel as parameters.
fn add_core(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    own: &ChannelScan,
    grouped: bool,
    [mixed, steps, states]: [TensorId; 3],
) -> TensorId {
    let tokens = shape.tokens();
    let output = graph.add_activation("layer.scan.core.out", tokens.saturating_mul(own.width));
    let numbers = own.width.saturating_mul(own.state);
    let written = shape.batch.saturating_mul(shape.sequence.div_ceil(TOKENS_PER_STATE)).saturating_mul(numbers);
    let kept = graph.add_constant("layer.scan.core.states", Bytes(WIDE) * written);
    let work = tokens.saturating_mul(numbers);
    let row = shape.activation_bytes(tokens.saturating_mul(own.width));
    let gathered = shape.activation_bytes(tokens.saturating_mul(own.groups).saturating_mul(2 * own.state));
    let scan = |direction, read, written| elementwise_kernel(ElementwiseFunction::Exp, direction, work, read, written);
    // A group's projections are whole on its device, so they need no collective.
    let common = |step: Option<KernelStep>| step.filter(|_| !grouped);
    let mut forward: Vec<KernelStep> = common(shape.gather_sequence("forward", gathered)).into_iter().collect();
    let states_size = graph.tensor_bytes(kept);
    // In serving, the scan starts from the states of the cached tokens.
    let arriving = if shape.serving.is_some() { states_size } else { Bytes::ZERO };
    forward.push(kernel_step("forward", scan(Direction::Forward, row * 2 + gathered + arriving, row + states_size)));
    let read = row * 3 + gathered + states_size;
    let mut backward = vec![kernel_step("backward_input", scan(Direction::Backward, read, row * 2 + gathered))];
    // Every device has the gradient from its own channels only, so the devices sum it.
    backward.extend(common(shape.sum_over_tensor_ranks("backward_input", gathered)));
    let parameters = numbers + own.width;
    let sum = reduction_kernel(
        RowFunction::Sum,
        Direction::Backward,
        RowShape { rows: parameters, columns: shape.batch },
        shape.gradient_bytes(parameters.saturating_mul(shape.batch)),
        shape.gradient_bytes(parameters),
    );
    graph.add_operator(NewOperator {
        name: "layer.scan.core".to_owned(),
        inputs: vec![mixed, steps, states],
        outputs: vec![output, kept],
        forward,
        backward: vec![
            input_chain(&[mixed, steps, states], &[mixed, steps, states, kept], backward),
            weight_chain(&[mixed], vec![kernel_step("backward_weight", sum)]),
        ],
        parameters: Parameters { sharded: parameters, ..Parameters::default() },
        workspace: if shape.sequence_parallel && !grouped { gathered } else { Bytes::ZERO },
        ..NewOperator::default()
    });
    output
}
