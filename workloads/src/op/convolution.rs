//! A short convolution of each channel along the sequence, with its nonlinearity. It is one pass over memory, with one
//! multiplication per element and token of the convolution's reach.

use super::{OperatorContext, RowShape, elementwise_kernel, input_chain, kernel_step, reduction_kernel, weight_chain};
use crate::graph::{GraphBuilder, NewOperator, Parameters, TensorId};
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};

/// A convolution on one device.
pub(crate) struct Convolution {
    pub(crate) name: &'static str,
    /// Number of channels.
    pub(crate) width: u64,
    /// Number of tokens that a result depends on.
    pub(crate) reach: u64,
    /// True if every channel has a bias.
    pub(crate) bias: bool,
}

impl Convolution {
    /// Adds the operator and returns the convolved vectors.
    pub(crate) fn add_convolution(
        &self,
        graph: &mut GraphBuilder,
        shape: &OperatorContext,
        input: TensorId,
    ) -> TensorId {
        let elements = shape.tokens().saturating_mul(self.width);
        let size = shape.activation_bytes(elements);
        let output = graph.add_activation(&format!("{}.out", self.name), elements);
        let work = elements.saturating_mul(self.reach);
        let weights = self.width.saturating_mul(self.reach + u64::from(self.bias));
        let sum = reduction_kernel(
            RowFunction::Sum,
            Direction::Backward,
            RowShape { rows: weights, columns: shape.tokens() },
            size * 2,
            shape.gradient_bytes(weights),
        );
        let pass = |direction, read| elementwise_kernel(ElementwiseFunction::Mul, direction, work, read, size);
        graph.add_operator(NewOperator {
            name: self.name.to_owned(),
            inputs: vec![input],
            outputs: vec![output],
            forward: vec![kernel_step("forward", pass(Direction::Forward, size))],
            backward: vec![
                input_chain(
                    &[input],
                    &[input],
                    vec![kernel_step("backward_input", pass(Direction::Backward, size * 2))],
                ),
                weight_chain(&[input], vec![kernel_step("backward_weight", sum)]),
            ],
            parameters: Parameters { sharded: weights, ..Parameters::default() },
            ..NewOperator::default()
        });
        output
    }
}
