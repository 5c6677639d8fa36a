//! Normalisation of rows. LayerNorm keeps its input, and the backward pass recomputes mean and variance (as Korthikanti
//! et al. 2022 count it). RMSNorm keeps its input and one fp32 factor per row. Unfused RMSNorm (eager Hugging Face)
//! keeps an fp32 copy of the input, the factor and the normalised rows instead.

use super::composed::NormedRows;
use super::{OperatorContext, RowShape, elementwise_kernel, input_chain, kernel_step, reduction_kernel, weight_chain};
use crate::graph::{BackwardChain, GraphBuilder, KernelStep, NewOperator, Parameters, TensorId};
use crate::model::Norm;
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};
use sim::units::Bytes;

/// A norm over rows of `width` elements.
#[derive(Debug)]
pub(crate) struct NormOperator {
    pub(crate) name: String,
    pub(crate) norm: Norm,
    pub(crate) width: u64,
    /// True if it has parameters.
    pub(crate) affine: bool,
    /// For LayerNorm: true if the parameters include a bias.
    pub(crate) bias: bool,
    /// True if tensor-parallel devices split the parameters, each with its part of the rows' columns.
    pub(crate) split: bool,
}

impl NormOperator {
    /// Adds the operator and returns the normalised rows.
    pub(crate) fn add_norm(self, graph: &mut GraphBuilder, shape: &OperatorContext, input: TensorId) -> TensorId {
        let elements = shape.local_tokens().saturating_mul(self.width);
        let output = graph.add_activation(&format!("{}.out", self.name), elements);
        if self.norm == Norm::RmsNorm && !shape.fused {
            self.add_eager_rms(graph, shape, input, output);
            return output;
        }
        let mut outputs = vec![output];
        let mut reads = vec![input];
        let function = match self.norm {
            Norm::LayerNorm => RowFunction::LayerNorm,
            Norm::RmsNorm => {
                let factor = graph.add_row_factor(&format!("{}.rstd", self.name), shape.local_tokens());
                outputs.push(factor);
                reads.push(factor);
                RowFunction::RmsNorm
            }
        };
        let size = shape.activation_bytes(elements);
        let rows = RowShape { rows: shape.local_tokens(), columns: self.width };
        let written = outputs.iter().map(|t| graph.tensor_bytes(*t)).sum();
        let read: Bytes = reads.iter().map(|t| graph.tensor_bytes(*t)).sum();
        let forward = reduction_kernel(function, Direction::Forward, rows, size, written);
        let backward = reduction_kernel(function, Direction::Backward, rows, size + read, size);
        let mut chains = vec![input_chain(&[input], &reads, vec![kernel_step("backward_input", backward)])];
        chains.extend(self.norm_weight_gradient(shape, &reads, read));
        graph.add_operator(NewOperator {
            inputs: vec![input],
            outputs,
            forward: vec![kernel_step("forward", forward)],
            backward: chains,
            parameters: self.norm_parameters(),
            name: self.name,
            ..NewOperator::default()
        });
        output
    }

    /// Returns the chain of the gradients of gains and biases: sums over the tokens of dY * normalised x, and of dY.
    /// `None` without parameters.
    fn norm_weight_gradient(&self, shape: &OperatorContext, reads: &[TensorId], read: Bytes) -> Option<BackwardChain> {
        let parameters = self.norm_parameters().per_device_count();
        let size = shape.activation_bytes(shape.local_tokens().saturating_mul(self.width));
        let kernel = reduction_kernel(
            RowFunction::Sum,
            Direction::Backward,
            RowShape { rows: parameters, columns: shape.local_tokens() },
            size + read,
            shape.gradient_bytes(parameters),
        );
        (parameters > 0).then(|| weight_chain(reads, vec![kernel_step("backward_weight", kernel)]))
    }

    fn norm_parameters(&self) -> Parameters {
        let per_column = match (self.affine, self.norm) {
            (false, _) => 0,
            (true, Norm::LayerNorm) if self.bias => 2,
            (true, _) => 1,
        };
        let count = self.width.saturating_mul(per_column);
        if self.split {
            return Parameters { sharded: count, ..Parameters::default() };
        }
        Parameters { replicated: count, ..Parameters::default() }
    }

    fn add_eager_rms(self, graph: &mut GraphBuilder, shape: &OperatorContext, input: TensorId, output: TensorId) {
        let rows = shape.local_tokens();
        let elements = rows.saturating_mul(self.width);
        let wide = graph.add_wide_copy(&format!("{}.fp32", self.name), elements);
        let factor = graph.add_row_factor(&format!("{}.rstd", self.name), rows);
        let normalised = graph.add_activation(&format!("{}.normalised", self.name), elements);
        let (small, large, row) =
            (shape.activation_bytes(elements), graph.tensor_bytes(wide), graph.tensor_bytes(factor));
        let of = NormedRows { rows, width: self.width, narrow: small, wide: large, factor: row };
        let (forward, backward) = if shape.composed {
            (of.forward_steps(), of.backward_steps())
        } else {
            eager_rms_steps(&of, shape.activation_bytes(self.width))
        };
        let mut chains = vec![input_chain(&[input], &[wide, factor], backward)];
        chains.extend(self.norm_weight_gradient(shape, &[normalised], small));
        graph.add_operator(NewOperator {
            inputs: vec![input],
            outputs: vec![output, wide, factor, normalised],
            forward,
            backward: chains,
            parameters: self.norm_parameters(),
            name: self.name,
            ..NewOperator::default()
        });
    }
}

/// Returns an eager RMS norm as three kernels, and its gradient as two. `gain` is the bytes of the gains.
fn eager_rms_steps(of: &NormedRows, gain: Bytes) -> (Vec<KernelStep>, Vec<KernelStep>) {
    use ElementwiseFunction::{Convert, Mul};
    let (small, large, row) = (of.narrow, of.wide, of.factor);
    let numbers = of.rows.saturating_mul(of.width);
    let rows = |direction, read, written| {
        reduction_kernel(RowFunction::RmsNorm, direction, RowShape { rows: of.rows, columns: of.width }, read, written)
    };
    let numbers = |function, direction, read, written| elementwise_kernel(function, direction, numbers, read, written);
    let forward = vec![
        kernel_step("forward.upcast", numbers(Convert, Direction::Forward, small, large)),
        kernel_step("forward.normalise", rows(Direction::Forward, large, row + small)),
        kernel_step("forward.gain", numbers(Mul, Direction::Forward, small + gain, small)),
    ];
    let backward = vec![
        kernel_step("backward_input.gain", numbers(Mul, Direction::Backward, small + gain, small)),
        kernel_step("backward_input", rows(Direction::Backward, small + large + row, small)),
    ];
    (forward, backward)
}
