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

use super::linear::{ProductSize, activation_product, result_part};
use super::norm::NormOperator;
use super::segment_plan::SegmentPlan;
use super::{
    OperatorContext, RowShape, convolution, elementwise_kernel, gated, input_chain, kernel_step, recurrent_step,
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
    let parts = [result_part("gate", width), result_part("convolved", convolved), result_part("step", own.heads)];
    let made = plan.add_column_split_products(graph, "layer.scan", "in", &parts, own.bias, x);
    let [gate, input, steps] = <[TensorId; 3]>::try_from(made).unwrap_or([x; 3]);
    let convolution = convolution::Convolution {
        name: "layer.scan.convolution",
        width: convolved,
        reach: own.convolution,
        bias: own.convolution_bias,
    };
    let mixed = convolution.add_convolution(graph, shape, input);
    let scanned = ScanCore::new(plan, own).add_core(graph, mixed, steps);
    let unit =
        gated::add_gated_unit(graph, shape, "layer.scan.gated", ElementwiseFunction::Silu, width, [gate, scanned]);
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

/// The scan on one device, between the products with weights.
struct ScanCore<'a> {
    plan: &'a SegmentPlan<'a>,
    own: StateSpace,
    /// Tokens of a chunk.
    chunk: u64,
    /// Chunks of all sequences and heads. The last chunk of a sequence is padded.
    head_chunks: u64,
    /// Chunks of all sequences and groups.
    group_chunks: u64,
}

impl<'a> ScanCore<'a> {
    fn new(plan: &'a SegmentPlan<'a>, own: StateSpace) -> Self {
        let shape = &plan.shape;
        let chunk = own.chunk.min(shape.sequence).max(1);
        let chunks = |per: u64| shape.batch.saturating_mul(shape.sequence.div_ceil(chunk)).saturating_mul(per);
        Self { plan, own, chunk, head_chunks: chunks(own.heads), group_chunks: chunks(own.groups) }
    }

    /// Returns the number of elements in the states of all chunks.
    fn state_numbers(&self) -> u64 {
        self.head_chunks.saturating_mul(self.own.head_dim * self.own.state)
    }

    fn state_bytes(&self) -> Bytes {
        Bytes(WIDE) * self.state_numbers()
    }

    fn score_bytes(&self) -> Bytes {
        self.plan.shape.activation_bytes(self.group_chunks.saturating_mul(self.chunk * self.chunk))
    }

    /// Returns the number of decays of all tokens and heads.
    fn decay_numbers(&self) -> u64 {
        self.plan.shape.tokens().saturating_mul(self.own.heads)
    }

    fn keeps_scores(&self) -> bool {
        self.plan.lowering.attention == Attention::Unfused
    }

    /// Returns the products of a chunk: tokens from the previous state, tokens from the chunk's own tokens, states and
    /// scores.
    fn products(&self) -> [ScanProduct; 4] {
        let (q, n, p) = (self.chunk, self.own.state, self.own.head_dim);
        [
            ScanProduct { name: "across", batch: self.head_chunks, size: ProductSize { m: q, n: p, k: n } },
            ScanProduct { name: "within", batch: self.head_chunks, size: ProductSize { m: q, n: p, k: q } },
            ScanProduct { name: "states", batch: self.head_chunks, size: ProductSize { m: p, n, k: q } },
            ScanProduct { name: "scores", batch: self.group_chunks, size: ProductSize { m: q, n: q, k: n } },
        ]
    }

    /// Adds the scan. Its parameters are decay, step and skip of every head.
    fn add_core(&self, graph: &mut GraphBuilder, mixed: TensorId, steps: TensorId) -> TensorId {
        let (own, shape) = (&self.own, &self.plan.shape);
        let width = own.scan_width();
        let output = graph.add_activation("layer.scan.core.out", shape.tokens().saturating_mul(width));
        let decays = graph.add_constant("layer.scan.core.decays", Bytes(WIDE) * self.decay_numbers());
        let between = self.keeps_scores().then(|| {
            [
                graph.add_constant("layer.scan.core.scores", self.score_bytes()),
                graph.add_constant("layer.scan.core.states", self.state_bytes()),
            ]
        });
        let decay_bytes = graph.tensor_bytes(decays);
        let vectors = 3 * own.heads;
        let sum = reduction_kernel(
            RowFunction::Sum,
            Direction::Backward,
            RowShape { rows: vectors, columns: shape.tokens() },
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
            forward: self.forward_steps(),
            backward: vec![
                input_chain(&[mixed, steps], &reads, self.backward_steps(decay_bytes)),
                weight_chain(&[mixed, decays], vec![kernel_step("backward_weight", sum)]),
            ],
            parameters: Parameters { sharded: vectors, ..Parameters::default() },
            workspace: if self.keeps_scores() { Bytes::ZERO } else { self.score_bytes() + self.state_bytes() },
            ..NewOperator::default()
        });
        output
    }

    /// Returns the kernels that make the chunks' states, pass states from chunk to chunk, and make the scores.
    fn state_and_score_steps(&self, prefix: &str) -> [KernelStep; 3] {
        let [_, _, states, scores] = self.products().map(|product| self.product_kernel(&product));
        [
            kernel_step(&format!("{prefix}states"), states),
            kernel_step(&format!("{prefix}recurrence"), self.recurrence(Direction::Forward, self.state_bytes())),
            kernel_step(&format!("{prefix}scores"), scores),
        ]
    }

    fn forward_steps(&self) -> Vec<KernelStep> {
        let (shape, numbers) = (&self.plan.shape, self.decay_numbers());
        let [read, written] = [shape.activation_bytes(numbers), Bytes(WIDE) * numbers];
        let decays = elementwise_kernel(ElementwiseFunction::Exp, Direction::Forward, numbers, read, written);
        let mut run = vec![kernel_step("forward.decays", decays)];
        if shape.decodes() {
            run.push(recurrent_step(shape, self.own.state_numbers()));
            return run;
        }
        let [across, within, ..] = self.products().map(|product| self.product_kernel(&product));
        run.extend(self.state_and_score_steps("forward."));
        run.push(kernel_step("forward.within", within));
        run.push(kernel_step("forward", across));
        run
    }

    fn backward_steps(&self, decay_bytes: Bytes) -> Vec<KernelStep> {
        let shape = &self.plan.shape;
        let mut back: Vec<KernelStep> = Vec::new();
        if !self.keeps_scores() {
            back.extend(self.state_and_score_steps("backward_input.again_"));
        }
        let [across, within, states, scores] = self.products().map(|product| self.gradient_steps(&product));
        back.extend(across);
        back.extend(within);
        back.push(kernel_step(
            "backward_input.recurrence",
            self.recurrence(Direction::Backward, self.state_bytes() * 2),
        ));
        back.extend(states);
        back.extend(scores);
        let numbers = self.decay_numbers();
        let written = shape.activation_bytes(numbers);
        let decays =
            elementwise_kernel(ElementwiseFunction::Exp, Direction::Backward, numbers, decay_bytes * 2, written);
        back.push(kernel_step("backward_input", decays));
        back
    }

    /// Returns the pass that carries states from chunk to chunk.
    fn recurrence(&self, direction: Direction, read: Bytes) -> Kernel {
        elementwise_kernel(ElementwiseFunction::Mul, direction, self.state_numbers(), read, self.state_bytes())
    }

    fn product_kernel(&self, product: &ScanProduct) -> Kernel {
        activation_product(product.batch, product.size, self.plan.shape.operand)
    }

    /// Returns the kernels of the gradients of both factors.
    fn gradient_steps(&self, product: &ScanProduct) -> [KernelStep; 2] {
        let ScanProduct { name, batch, size } = *product;
        let operand = self.plan.shape.operand;
        [
            kernel_step(
                &format!("backward_input.{name}_left"),
                activation_product(batch, size.left_gradient(), operand),
            ),
            kernel_step(
                &format!("backward_input.{name}_right"),
                activation_product(batch, size.right_gradient(), operand),
            ),
        ]
    }
}

/// A batch of products of one size.
struct ScanProduct {
    name: &'static str,
    batch: u64,
    size: ProductSize,
}
