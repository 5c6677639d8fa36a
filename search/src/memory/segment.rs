//! Converts a lowered segment to the layer description of this optimiser.

use super::{LayerOperator, LayerTensors, OperatorIndex, OperatorSet, SavedTensor, TensorIndex, TensorSource};
use sim::units::Seconds;
use workloads::{OpId, RecomputeSet, Segment, TensorId};

impl LayerTensors {
    /// The tensors and operators of a segment. Operator times are zero, because they depend on the chip. All operators
    /// count as recomputable.
    #[must_use]
    pub fn from_segment(segment: &Segment) -> Self {
        let tensors = segment.tensors().iter().map(|tensor| SavedTensor {
            name: tensor.name.clone(),
            bytes: tensor.bytes,
            source: tensor
                .producer
                .map_or(TensorSource::LayerInput, |op| TensorSource::Operator(OperatorIndex(op.index()))),
            needed_by_backward: tensor.saved,
        });
        let indices = |ids: &[TensorId]| ids.iter().map(|id| TensorIndex(id.index())).collect();
        let operators = segment.operators().iter().map(|op| LayerOperator {
            name: op.name.clone(),
            forward: Seconds::ZERO,
            inputs: indices(&op.inputs),
            outputs: indices(&op.outputs),
            recomputable: true,
        });
        Self { tensors: tensors.collect(), operators: operators.collect() }
    }
}

impl OperatorSet {
    /// The same operators as the type of the `workloads` crate.
    #[must_use]
    pub fn recompute_set(self) -> RecomputeSet {
        self.iter().map(|index| OpId(index as u32)).collect()
    }
}
