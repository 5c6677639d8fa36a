//! A lowered segment as this optimiser sees it.

use super::{LayerOperator, LayerTensors, OperatorIndex, OperatorSet, SavedTensor, TensorIndex, TensorSource};
use sim::units::Seconds;
use workloads::{OpId, RecomputeSet, Segment, TensorId};

impl LayerTensors {
    /// The tensors and operators of a segment; what operators take is left at zero, for each chip to fill in.
    #[must_use]
    pub fn from_segment(segment: &Segment) -> Self {
        let tensors = segment.tensors().iter().map(|tensor| SavedTensor {
            name: tensor.name.clone(),
            bytes: tensor.bytes,
            source: tensor.producer.map_or(TensorSource::LayerInput, |op| TensorSource::Operator(OperatorIndex(op.index()))),
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
    /// The operators as the workload names them.
    #[must_use]
    pub fn recompute_set(self) -> RecomputeSet {
        self.iter().map(|index| OpId(index as u32)).collect()
    }
}
