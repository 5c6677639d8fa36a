//! RMS norms and rotations as the single operations that a model's Python file writes (transformers'
//! `modeling_llama.py`: `LlamaRMSNorm.forward`, `apply_rotary_pos_emb`, `rotate_half`), and the operations that
//! PyTorch's automatic differentiation derives from them (`torch/csrc/autograd/FunctionsManual.cpp`: `pow_backward`,
//! `slice_backward`).

use super::{RowShape, elementwise_kernel, kernel_step, reduction_kernel};
use crate::graph::KernelStep;
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};
use sim::units::Bytes;

/// One operation on the elements of a tensor, or on half of them.
struct SingleOperation {
    label: &'static str,
    function: ElementwiseFunction,
    /// Number of half tensors that are computed, read and written.
    halves: [u64; 3],
}

/// Steps of x * cos + join(-second half, first half) * sin.
const ROTATION: [SingleOperation; 5] = [
    indexed("cosine", [2, 2, 2]),
    indexed("negate_half", [1, 1, 1]),
    indexed("join", [2, 2, 2]),
    indexed("sine", [2, 2, 2]),
    indexed("sum", [2, 4, 2]),
];

/// Steps of the rotation's gradient. The gradient of a slice is a copy into a tensor of zeros.
const ROTATION_GRADIENT: [SingleOperation; 9] = [
    indexed("sine", [2, 2, 2]),
    indexed("negate_half", [1, 1, 1]),
    zeros("zeros_of_first"),
    indexed("place_first", [1, 1, 1]),
    zeros("zeros_of_second"),
    indexed("place_second", [1, 1, 1]),
    indexed("sum_of_halves", [2, 4, 2]),
    indexed("cosine", [2, 2, 2]),
    indexed("sum", [2, 4, 2]),
];

const fn indexed(label: &'static str, halves: [u64; 3]) -> SingleOperation {
    SingleOperation { label, function: ElementwiseFunction::Indexed, halves }
}

const fn zeros(label: &'static str) -> SingleOperation {
    SingleOperation { label, function: ElementwiseFunction::Copy, halves: [2, 0, 2] }
}

/// Returns the steps of the rotation, or of its gradient, for tensors given as (name, number of elements); `bytes` is
/// the size of one element.
pub(super) fn rotation_steps(direction: Direction, tensors: [(&str, u64); 2], bytes: u64) -> Vec<KernelStep> {
    let (pass, operations): (_, &[SingleOperation]) = match direction {
        Direction::Forward => ("forward", &ROTATION),
        Direction::Backward => ("backward_input", &ROTATION_GRADIENT),
    };
    let step = |tensor: &str, numbers: u64, operation: &SingleOperation| {
        let [computed, read, written] = operation.halves.map(|halves| (numbers / 2).saturating_mul(halves));
        let size = |count| Bytes(bytes) * count;
        let kernel = elementwise_kernel(operation.function, Direction::Forward, computed, size(read), size(written));
        kernel_step(&format!("{pass}.{tensor}.{}", operation.label), kernel)
    };
    let of_tensor = |(tensor, numbers)| operations.iter().map(move |operation| step(tensor, numbers, operation));
    tensors.into_iter().flat_map(of_tensor).collect()
}

/// Rows that are normalised: the bytes of all elements as activations (`narrow`) and in fp32 (`wide`), and of one fp32
/// number per row (`factor`).
pub(super) struct NormedRows {
    pub(super) rows: u64,
    pub(super) width: u64,
    pub(super) narrow: Bytes,
    pub(super) wide: Bytes,
    pub(super) factor: Bytes,
}

impl NormedRows {
    /// Returns a pass over all elements.
    fn pass(&self, label: &str, function: ElementwiseFunction, [read, written]: [Bytes; 2]) -> KernelStep {
        let numbers = self.rows.saturating_mul(self.width);
        // The direction is always `Forward`, because the operation takes the same time in both directions.
        kernel_step(label, elementwise_kernel(function, Direction::Forward, numbers, read, written))
    }

    /// Returns the step that sums each row.
    fn sums(&self, label: &str) -> KernelStep {
        let rows = RowShape { rows: self.rows, columns: self.width };
        kernel_step(label, reduction_kernel(RowFunction::Sum, Direction::Forward, rows, self.wide, self.factor))
    }

    /// Returns the steps of weight * (x.float() * rsqrt(mean(x.float() ** 2))).to(x.dtype).
    pub(super) fn forward_steps(&self) -> Vec<KernelStep> {
        use ElementwiseFunction::{Convert, Indexed, Mul};
        let (narrow, wide) = (self.narrow, self.wide);
        vec![
            self.pass("forward.upcast", Indexed, [narrow, wide]),
            self.pass("forward.square", Mul, [wide, wide]),
            self.sums("forward.mean"),
            self.pass("forward.normalise", Indexed, [wide + self.factor, wide]),
            self.pass("forward.downcast", Convert, [wide, narrow]),
            self.pass("forward.gain", Indexed, [narrow, narrow]),
        ]
    }

    /// Returns the steps of the gradient with respect to the rows.
    pub(super) fn backward_steps(&self) -> Vec<KernelStep> {
        use ElementwiseFunction::{Add, Convert, Indexed, Mul};
        let (narrow, wide) = (self.narrow, self.wide);
        vec![
            self.pass("backward_input.gain", Indexed, [narrow, narrow]),
            self.pass("backward_input.upcast", Indexed, [narrow, wide]),
            self.pass("backward_input.normalise", Indexed, [wide + self.factor, wide]),
            self.pass("backward_input.product", Mul, [wide * 2, wide]),
            self.sums("backward_input.sum"),
            // The mean's gradient is spread over its row, and the square's gradient is grad * (2 * x ** 1).
            self.pass("backward_input.spread", Indexed, [self.factor, wide]),
            self.pass("backward_input.power", Mul, [wide, wide]),
            self.pass("backward_input.double", Mul, [wide, wide]),
            self.pass("backward_input.square", Mul, [wide * 2, wide]),
            self.pass("backward_input.join", Add, [wide * 2, wide]),
            self.pass("backward_input.downcast", Convert, [wide, narrow]),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::graph::{KernelStep, OperatorNode};
    use crate::model::Model;
    use crate::training::{Lowering, Segment, SegmentKind, TrainingGraph};
    use sim::kernel::Kernel;
    use sim::units::Bytes;

    fn lowered(composed_layers: bool) -> TrainingGraph {
        let model = Model::load("llama3-8b").unwrap();
        let lowering = Lowering {
            sequence_length: 8192,
            elementwise_fusion: false,
            composed_layers,
            separate_projections: true,
            ..Lowering::new(&model)
        };
        TrainingGraph::new(&model, &lowering).unwrap()
    }

    fn layer(composed_layers: bool) -> Segment {
        lowered(composed_layers).segment(SegmentKind::Layer).unwrap().clone()
    }

    fn operator<'a>(layer: &'a Segment, name: &str) -> &'a OperatorNode {
        layer.graph.operators.iter().find(|op| op.name == name).unwrap()
    }

    fn traffic(steps: &[KernelStep]) -> (usize, Bytes) {
        let bytes = steps.iter().map(|step| match &step.kernel {
            Kernel::Elementwise(pass) => pass.read + pass.written,
            Kernel::Reduction(pass) => pass.read + pass.written,
            _ => Bytes::ZERO,
        });
        (steps.len(), bytes.sum())
    }

    #[test]
    fn single_operations_are_the_same_products_and_memory() {
        let [whole, composed] = [false, true].map(lowered);
        assert_eq!(whole.kernel_flops(), composed.kernel_flops());
        for (a, b) in whole.segments.iter().zip(&composed.segments) {
            assert_eq!(a.graph.tensors, b.graph.tensors);
        }
    }

    #[test]
    fn a_norm_and_a_rotation_move_what_their_operations_do() {
        let composed = layer(true);
        // The norm has 8192 rows of 4096 elements. An element has 2 bytes as an activation and 4 in fp32; the factor
        // has 4 bytes per row.
        let (numbers, factors) = (8192 * 4096, 8192 * 4);
        let norm = operator(&composed, "layer.attention.norm");
        // Bytes per element, read + written: conversion to fp32 2 + 4, square 4 + 4, mean 4, scale 4 + 4, conversion
        // back 4 + 2, gain 2 + 2. The factor is written once and read once.
        assert_eq!(traffic(&norm.forward), (6, Bytes(36 * numbers + 2 * factors)));
        // Bytes per element, read and written together: gain 4, conversion to fp32 6, scale 8, product 12, sum 4,
        // spread 4, power 8, double 8, square 12, join 12, conversion back 6.
        assert_eq!(traffic(&norm.backward[0].steps), (11, Bytes(84 * numbers + 3 * factors)));
        // The rotation has 32 query heads and 8 key heads of 128 elements. A half tensor that an operation reads or
        // writes counts 1 byte per element: 4 + 2 + 4 + 4 + 6 forward, and 4 + 2 + 2 + 2 + 2 + 2 + 6 + 4 + 6 backward.
        let rotation = operator(&composed, "layer.attention.rope");
        let turned = 8192 * 40 * 128;
        assert_eq!(traffic(&rotation.forward), (10, Bytes(20 * turned)));
        assert_eq!(traffic(&rotation.backward[0].steps), (18, Bytes(30 * turned)));
    }
}
