//! A state-space layer (Mamba-2, Dao and Gu 2024). One product makes gate, input, the projections into and out of the
//! state, and the steps. A short convolution along the sequence, the selective scan, a gated norm and one product back
//! follow.
//!
//! The scan runs in chunks of q tokens (section 6 and listing 1 of the paper; `mamba_ssm` has these kernels). It
//! computes five parts: the scores of the projections within a chunk, one q x q matrix per group; their product with
//! the chunk's tokens, masked by the decays between them; the chunk's own state; a recurrence that passes states from
//! chunk to chunk; and the contribution of the previous state. Scores and states pass through memory. With fused
//! attention, the backward pass recomputes both, as in `mamba_ssm`. With unfused attention, both are kept.
//!
//! Tensor parallelism splits the heads. If the heads of several devices share a group of projections, each of these
//! devices holds the group.

use super::linear::activation_product;
use super::norm::NormOperator;
use super::segment_plan::SegmentPlan;
use super::{
    OperatorContext, convolution, elementwise_kernel, gated, input_chain, kernel_step, recurrent_step,
    reduction_kernel, weight_chain,
};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, Parameters, TensorId};
use crate::lowering::Attention;
use crate::variations::StateSpace;
use sim::kernel::{Direction, ElementwiseFunction, Kernel, RowFunction};
use sim::units::Bytes;

/// Bytes per element of a state and of a decay (fp32).
const WIDE: u64 = 4;

/// Adds the scan's branch and returns its result.
pub(crate) fn add_scan_branch(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    whole: StateSpace,
    x: TensorId,
) -> TensorId {
    let shape = &plan.shape;
    let ranks = u64::from(shape.ranks.max(1));
    let own = StateSpace { heads: whole.heads / ranks, groups: (whole.groups / ranks).max(1), ..whole };
    let (width, convolved) = (own.scan_width(), own.convolved_width());
    let parts = [("gate", width), ("convolved", convolved), ("step", own.heads)];
    let made = plan.add_column_split_products(graph, ("layer.scan", "in"), &parts, own.bias, x);
    let [gate, input, steps] = <[TensorId; 3]>::try_from(made).unwrap_or([x; 3]);
    let convolution = convolution::Convolution {
        name: "layer.scan.convolution",
        width: convolved,
        reach: own.convolution,
        bias: own.convolution_bias,
    };
    let mixed = convolution.add_convolution(graph, shape, input);
    let scanned = add_scan_core(graph, plan, &own, (mixed, steps));
    let unit =
        gated::add_gated_unit(graph, shape, "layer.scan.gated", ElementwiseFunction::Silu, width, (gate, scanned));
    if own.without_norm {
        return plan.add_row_split_product(graph, "layer.scan.out", width, own.bias, unit);
    }
    let rows = OperatorContext { ranks: 1, sequence_parallel: false, ..*shape };
    let norm = NormOperator {
        name: "layer.scan.gated_norm".to_owned(),
        norm: crate::model::Norm::RmsNorm,
        width,
        affine: true,
        bias: false,
        split: true,
    };
    let normed = norm.add_norm(graph, &rows, unit);
    plan.add_row_split_product(graph, "layer.scan.out", width, own.bias, normed)
}

/// The products and passes of a scan on one device.
struct ScanProducts {
    scores: Kernel,
    decays: Kernel,
    states: Kernel,
    recurrence: Kernel,
    within: Kernel,
    across: Kernel,
}

/// Adds the scan. Its parameters are decay, step and skip of every head.
fn add_scan_core(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    own: &StateSpace,
    (mixed, steps): (TensorId, TensorId),
) -> TensorId {
    let shape = &plan.shape;
    let q = own.chunk.min(shape.sequence).max(1);
    // The last chunk of a sequence is padded.
    let chunks = |per: u64| shape.batch.saturating_mul(shape.sequence.div_ceil(q)).saturating_mul(per);
    let (of_heads, of_groups) = (chunks(own.heads), chunks(own.groups));
    let output = graph.add_activation("layer.scan.core.out", shape.tokens().saturating_mul(own.scan_width()));
    let decays = graph.add_constant("layer.scan.core.decays", Bytes(WIDE) * shape.tokens().saturating_mul(own.heads));
    let state_numbers = of_heads.saturating_mul(own.head_dim * own.state);
    let states_size = Bytes(WIDE) * state_numbers;
    let per_head = shape.tokens().saturating_mul(own.heads);
    let pass =
        |function, elements, read, written| elementwise_kernel(function, Direction::Forward, elements, read, written);
    let (n, p) = (own.state, own.head_dim);
    let forward = ScanProducts {
        decays: pass(ElementwiseFunction::Exp, per_head, shape.activation_bytes(per_head), Bytes(WIDE) * per_head),
        scores: activation_product(of_groups, (q, q, n), shape.operand),
        states: activation_product(of_heads, (p, n, q), shape.operand),
        recurrence: pass(ElementwiseFunction::Mul, state_numbers, states_size, states_size),
        within: activation_product(of_heads, (q, p, q), shape.operand),
        across: activation_product(of_heads, (q, p, n), shape.operand),
    };
    let kept = plan.lowering.attention == Attention::Unfused;
    let scores_bytes = shape.activation_bytes(of_groups.saturating_mul(q * q));
    let between = kept.then(|| {
        [
            graph.add_constant("layer.scan.core.scores", scores_bytes),
            graph.add_constant("layer.scan.core.states", states_size),
        ]
    });
    let made = [
        kernel_step("states", forward.states),
        kernel_step("recurrence", forward.recurrence),
        kernel_step("scores", forward.scores),
    ];
    let mut run: Vec<KernelStep> = vec![kernel_step("forward.decays", forward.decays)];
    run.extend(made.iter().map(|made| KernelStep { label: format!("forward.{}", made.label), ..made.clone() }));
    run.push(kernel_step("forward.within", forward.within));
    run.push(kernel_step("forward", forward.across));
    if shape.decodes() {
        run.truncate(1);
        run.push(recurrent_step(shape, own.state_numbers()));
    }
    let mut back: Vec<KernelStep> = Vec::new();
    if !kept {
        back.extend(
            made.iter()
                .map(|made| KernelStep { label: format!("backward_input.again_{}", made.label), ..made.clone() }),
        );
    }
    // The gradients of both factors of a product.
    let both = |label: &str, batch: u64, [m, n, k]: [u64; 3]| {
        [
            kernel_step(&format!("backward_input.{label}_left"), activation_product(batch, (m, k, n), shape.operand)),
            kernel_step(&format!("backward_input.{label}_right"), activation_product(batch, (k, n, m), shape.operand)),
        ]
    };
    back.extend(both("across", of_heads, [q, p, n]));
    back.extend(both("within", of_heads, [q, p, q]));
    let size = |read: Bytes| {
        elementwise_kernel(ElementwiseFunction::Mul, Direction::Backward, state_numbers, read * 2, states_size)
    };
    back.push(kernel_step("backward_input.recurrence", size(states_size)));
    back.extend(both("states", of_heads, [p, n, q]));
    back.extend(both("scores", of_groups, [q, q, n]));
    let decay_bytes = graph.tensor_bytes(decays);
    back.push(kernel_step(
        "backward_input",
        elementwise_kernel(
            ElementwiseFunction::Exp,
            Direction::Backward,
            per_head,
            decay_bytes * 2,
            shape.activation_bytes(per_head),
        ),
    ));
    let vectors = 3 * own.heads;
    let sum = reduction_kernel(
        RowFunction::Sum,
        Direction::Backward,
        (vectors, shape.tokens()),
        decay_bytes * 3,
        shape.gradient_bytes(vectors),
    );
    let mut reads = vec![mixed, steps, decays];
    reads.extend(between.iter().flatten());
    let mut outputs = vec![output, decays];
    outputs.extend(between.iter().flatten());
    graph.add_operator(NewOperator {
        name: "layer.scan.core".to_owned(),
        inputs: vec![mixed, steps],
        outputs,
        forward: run,
        backward: vec![
            input_chain(&[mixed, steps], &reads, back),
            weight_chain(&[mixed, decays], vec![kernel_step("backward_weight", sum)]),
        ],
        parameters: Parameters { sharded: vectors, ..Parameters::default() },
        workspace: if kept { Bytes::ZERO } else { scores_bytes + states_size },
        ..NewOperator::default()
    });
    output
}
