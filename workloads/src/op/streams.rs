//! Several residual streams per token (manifold-constrained hyper-connections: Xie et al. 2025, arXiv:2512.24880,
//! section 4; DeepSeek-V4's report, section 2.2). A branch reads one vector, the weighted sum of the streams. Its
//! result is added to each stream with a weight, and a doubly stochastic matrix mixes the streams. One product of all
//! streams, after a norm without gains, makes the weights. A few rounds of normalising rows and columns
//! (Sinkhorn-Knopp) make the matrix.
//!
//! The norm is one factor per token. With fusion, the factor scales the product's few results; otherwise the norm is a
//! separate pass. Sums over the streams are vector work, because a matrix of 4 x 4 fills no matrix unit.

use super::linear::{Linear, WeightSplit, result_part};
use super::norm::NormOperator;
use super::segment_plan::SegmentPlan;
use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step, weight_chain};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, Parameters, TensorId};
use crate::model::Norm;
use crate::variations::ResidualStreams;
use sim::kernel::{Direction, ElementwiseFunction};
use sim::units::Bytes;

/// Bytes of a mixing weight (fp32; transformers 5.24, `DeepseekV4HyperConnection`).
const WIDE: u64 = 4;

/// Adds the streams' initial values, which are copies of the embedding, and returns the streams.
pub(crate) fn add_first_streams(graph: &mut GraphBuilder, plan: &SegmentPlan<'_>, name: &str, x: TensorId) -> TensorId {
    let size = plan.residual_stream_size();
    let output = graph.add_activation(&format!("{name}.out"), size);
    let [one, all] = [graph.tensor_bytes(x), plan.shape.activation_bytes(size)];
    let pass = |function, direction, read, written| elementwise_kernel(function, direction, size, read, written);
    let sum = pass(ElementwiseFunction::Add, Direction::Backward, all, one);
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![x],
        outputs: vec![output],
        forward: vec![kernel_step("forward", pass(ElementwiseFunction::Copy, Direction::Forward, one, all))],
        backward: vec![input_chain(&[x], &[], vec![kernel_step("backward_input", sum)])],
        ..NewOperator::default()
    });
    output
}

/// Adds a branch that reads and updates the streams `x`, and returns the new streams. `branch` gets the weighted sum.
pub(crate) fn add_branch_of_streams(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    streams: ResidualStreams,
    name: &str,
    x: TensorId,
    branch: impl Fn(&mut GraphBuilder, TensorId) -> TensorId,
) -> TensorId {
    let mixing = Streams { plan, streams, name };
    let raw = mixing.add_weights(graph, streams.weights(), x);
    let weights = mixing.add_balance(graph, raw);
    let one = mixing.add_sum(graph, x, weights);
    let result = branch(graph, one);
    mixing.add_mixing(graph, [x, result, weights])
}

/// Adds the weighted sum of the streams before the model's last norm.
pub(crate) fn add_last_sum(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    streams: ResidualStreams,
    x: TensorId,
) -> TensorId {
    let mixing = Streams { plan, streams, name: "head" };
    let weights = mixing.add_weights(graph, streams.count, x);
    // One factor scales all weights.
    graph.add_replicated_to_last(1);
    mixing.add_sum(graph, x, weights)
}

/// The operators of one mixing of streams.
struct Streams<'a> {
    plan: &'a SegmentPlan<'a>,
    streams: ResidualStreams,
    name: &'a str,
}

impl Streams<'_> {
    fn called(&self, part: &str) -> String {
        format!("{}.streams.{part}", self.name)
    }

    fn shape(&self) -> &OperatorContext {
        &self.plan.shape
    }

    /// Adds the matrix product that computes `count` weights per token from all streams. Without fusion, a separate
    /// norm comes before it.
    fn add_weights(&self, graph: &mut GraphBuilder, count: u64, x: TensorId) -> TensorId {
        let width = self.streams.count.saturating_mul(self.plan.model.hidden);
        let input = if self.shape().fused {
            x
        } else {
            let name = self.called("norm");
            NormOperator { name, norm: Norm::RmsNorm, width, affine: false, bias: false, split: false }.add_norm(
                graph,
                self.shape(),
                x,
            )
        };
        let outputs = &[result_part("out", count)];
        let (name, split) = (self.called("weights"), WeightSplit::Replicated);
        let product =
            Linear { name, input: width, outputs, bias: true, split, shares_input: false, narrow: false, chunks: 1 };
        product.add_linear(graph, self.shape(), input)[0]
    }

    /// Adds the sigmoids of the weights into and out of the branch, and the rounds that make the mixing matrix doubly
    /// stochastic. Three trained factors scale the weights. With fusion, one kernel keeps all rounds on chip; otherwise
    /// every round is two passes.
    fn add_balance(&self, graph: &mut GraphBuilder, raw: TensorId) -> TensorId {
        let (n, tokens) = (self.streams.count, self.shape().local_tokens());
        let elements = tokens.saturating_mul(self.streams.weights());
        let (narrow, wide) = (graph.tensor_bytes(raw), Bytes(WIDE) * elements);
        let name = self.called("balance");
        let weights = graph.add_tensor_of_bytes(&format!("{name}.out"), wide);
        let rounds = 2 * self.streams.rounds;
        let matrices = tokens.saturating_mul(n * n);
        let steps = |direction, label: &str, sides: u64| {
            let work = elements.saturating_add(matrices.saturating_mul(rounds)).saturating_mul(sides);
            if self.shape().fused {
                let kernel =
                    elementwise_kernel(ElementwiseFunction::Exp, direction, work, narrow + wide * (sides - 1), wide);
                return vec![kernel_step(label, kernel)];
            }
            let first = elementwise_kernel(ElementwiseFunction::Exp, direction, elements, narrow, wide);
            let size = Bytes(WIDE) * matrices;
            let round = elementwise_kernel(ElementwiseFunction::Mul, direction, matrices, size * sides, size);
            let mut steps: Vec<KernelStep> = vec![kernel_step(label, first)];
            steps.extend((0..rounds).map(|i| kernel_step(&format!("{label}.round_{i}"), round)));
            steps
        };
        graph.add_operator(NewOperator {
            name,
            inputs: vec![raw],
            outputs: vec![weights],
            forward: steps(Direction::Forward, "forward", 1),
            backward: vec![
                input_chain(&[raw], &[raw], steps(Direction::Backward, "backward_input", 2)),
                weight_chain(&[raw], vec![]),
            ],
            parameters: Parameters { replicated: 3, ..Parameters::default() },
            ..NewOperator::default()
        });
        weights
    }

    /// Adds the weighted sum of the streams, which the branch reads.
    fn add_sum(&self, graph: &mut GraphBuilder, x: TensorId, weights: TensorId) -> TensorId {
        let (name, hidden) = (self.called("sum"), self.plan.model.hidden);
        let output = graph.add_activation(&format!("{name}.out"), self.shape().local_tokens().saturating_mul(hidden));
        let [all, few, one] = [x, weights, output].map(|tensor| graph.tensor_bytes(tensor));
        let work = self.plan.residual_stream_size();
        let pass =
            |direction, read, written| elementwise_kernel(ElementwiseFunction::Mul, direction, work, read, written);
        let back = pass(Direction::Backward, all + few + one, all + few);
        graph.add_operator(NewOperator {
            name,
            inputs: vec![x, weights],
            outputs: vec![output],
            forward: vec![kernel_step("forward", pass(Direction::Forward, all + few, one))],
            backward: vec![input_chain(&[x, weights], &[x, weights], vec![kernel_step("backward_input", back)])],
            ..NewOperator::default()
        });
        output
    }

    /// Adds the new streams: the branch's result by its weights, and the mixed old streams.
    fn add_mixing(&self, graph: &mut GraphBuilder, [x, result, weights]: [TensorId; 3]) -> TensorId {
        let (name, size) = (self.called("mixing"), self.plan.residual_stream_size());
        let output = graph.add_activation(&format!("{name}.out"), size);
        let [all, one, few] = [x, result, weights].map(|tensor| graph.tensor_bytes(tensor));
        // Each new stream needs one multiply-addition per old stream, and one for the branch's result.
        let work = size.saturating_mul(self.streams.count + 1);
        let pass = |direction, work, read, written| {
            elementwise_kernel(ElementwiseFunction::Mul, direction, work, read, written)
        };
        let forward = pass(Direction::Forward, work, all + one + few, all);
        let back = pass(Direction::Backward, 2 * work, all * 2 + one + few, all + one + few);
        let inputs = [x, result, weights];
        graph.add_operator(NewOperator {
            name,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            forward: vec![kernel_step("forward", forward)],
            backward: vec![input_chain(&inputs, &inputs, vec![kernel_step("backward_input", back)])],
            ..NewOperator::default()
        });
        output
    }
}
