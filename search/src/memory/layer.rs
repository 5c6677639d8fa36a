//! One layer's operators and tensors, and the cost of rerunning a set of its operators.

use serde::{Deserialize, Serialize};
use sim::units::{Bytes, Seconds};
use std::fmt;
use thiserror::Error;

/// Limit on operators, and on tensors, of one layer: sets of operators and tensors are 128-bit masks.
pub const MAX_OPERATORS: usize = 128;

/// Position of a tensor in [`LayerTensors::tensors`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorIndex(pub usize);

/// Position of an operator in [`LayerTensors::operators`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperatorIndex(pub usize);

/// The origin of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorSource {
    /// An input of the layer. It can be kept but not rebuilt.
    LayerInput,
    /// An output of this operator.
    Operator(OperatorIndex),
}

/// One tensor of a layer's forward pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedTensor {
    /// Name shown in plans.
    pub name: String,
    /// Size on one device for one micro-batch.
    pub bytes: Bytes,
    /// Its origin: the operator that makes it, or the layer's input.
    pub source: TensorSource,
    /// True if the layer's backward pass reads it.
    pub needed_by_backward: bool,
}

/// One operator of a layer's forward pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerOperator {
    /// Name shown in plans.
    pub name: String,
    /// Seconds of one execution on one micro-batch.
    pub forward: Seconds,
    /// Tensors it reads.
    pub inputs: Vec<TensorIndex>,
    /// Tensors it makes; a rerun rebuilds all of them.
    pub outputs: Vec<TensorIndex>,
    /// True if the backward pass may rerun it. A random operator whose generator state is not kept may not be rerun.
    pub recomputable: bool,
}

/// The tensors and operators of one layer, operators in execution order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LayerTensors {
    /// Every tensor that crosses from one operator to another or to the backward pass.
    pub tensors: Vec<SavedTensor>,
    /// Operators in execution order: each operator follows the producers of its inputs.
    pub operators: Vec<LayerOperator>,
}

/// A policy's treatment of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TensorChoice {
    /// Stays on the device from the forward to the backward pass.
    Keep,
    /// Freed after the forward pass. The backward pass rebuilds it by rerunning its producer.
    Recompute,
    /// Freed after the forward pass: nothing reads it again.
    Drop,
}

impl TensorChoice {
    /// Bytes that a tensor of `bytes` occupies on the device between the passes.
    #[must_use]
    pub fn stash_bytes(self, bytes: Bytes) -> Bytes {
        match self {
            Self::Keep => bytes,
            Self::Recompute | Self::Drop => Bytes::ZERO,
        }
    }

    /// Bytes that a tensor of `bytes` adds to the workspace of the layer's own backward pass, beside the stash.
    #[must_use]
    pub fn workspace_bytes(self, bytes: Bytes) -> Bytes {
        match self {
            Self::Recompute => bytes,
            Self::Keep | Self::Drop => Bytes::ZERO,
        }
    }
}

/// A set of operators of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(into = "Vec<usize>", try_from = "Vec<usize>")]
pub struct OperatorSet(pub(super) u128);

impl OperatorSet {
    /// No operator.
    pub const EMPTY: Self = Self(0);

    /// True if the operator is in the set.
    #[must_use]
    pub fn contains(self, operator: usize) -> bool {
        operator < MAX_OPERATORS && self.0 >> operator & 1 == 1
    }

    /// The set with one more operator. An index of [`MAX_OPERATORS`] or more changes nothing.
    #[must_use]
    pub fn with_operator(self, operator: usize) -> Self {
        if operator < MAX_OPERATORS { Self(self.0 | 1 << operator) } else { self }
    }

    /// True if every operator of this set is in `other`.
    #[must_use]
    pub fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Number of operators in the set.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// True if the set has no operator.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The indices in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_OPERATORS).filter(move |&o| self.contains(o))
    }
}

impl From<OperatorSet> for Vec<usize> {
    fn from(set: OperatorSet) -> Self {
        set.iter().collect()
    }
}

impl TryFrom<Vec<usize>> for OperatorSet {
    type Error = LayerError;
    fn try_from(indices: Vec<usize>) -> Result<Self, LayerError> {
        match indices.iter().find(|&&o| o >= MAX_OPERATORS) {
            Some(&o) => Err(LayerError::TooMany { what: "operators", count: o + 1 }),
            None => Ok(indices.into_iter().fold(Self::EMPTY, Self::with_operator)),
        }
    }
}

impl fmt::Display for OperatorSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// One way to treat a layer's tensors: the operators its backward pass reruns, and their consequences.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RecomputePolicy {
    /// Bytes kept per micro-batch in flight.
    pub stash: Bytes,
    /// Seconds the reruns add to the layer's backward pass.
    pub extra: Seconds,
    /// Bytes of the rebuilt tensors, resident during this layer's backward pass only.
    pub workspace: Bytes,
    /// The operators that are rerun.
    pub operators: OperatorSet,
}

/// A fault of a layer description.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum LayerError {
    /// More operators or tensors than a 128-bit set holds.
    #[error(
        "the layer has {count} {what}, the limit is {MAX_OPERATORS}: fuse operators or describe a part of the layer"
    )]
    TooMany {
        /// "operators" or "tensors".
        what: &'static str,
        /// Their number.
        count: usize,
    },
    /// An operator names a tensor that does not exist.
    #[error(
        "operator `{operator}` names tensor {tensor}, but the layer has {count} tensors (0 to {count}-1): correct the index"
    )]
    UnknownTensor {
        /// The operator's name.
        operator: String,
        /// The index it names.
        tensor: usize,
        /// The number of tensors.
        count: usize,
    },
    /// An operator reads a tensor that a later operator makes.
    #[error("operator `{operator}` reads `{tensor}` before it is made: list operators in execution order")]
    NotInOrder {
        /// The reader.
        operator: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor's source and the operators' output lists disagree.
    #[error(
        "tensor `{tensor}` must be in the outputs of its source and of no other operator; it is listed {found} times"
    )]
    Source {
        /// The tensor.
        tensor: String,
        /// The number of output lists, of any operator, that name it.
        found: usize,
    },
    /// A time is negative, infinite or not a number.
    #[error("operator `{operator}` takes {seconds} s: a time must be finite and not negative")]
    Time {
        /// The operator.
        operator: String,
        /// Its time.
        seconds: f64,
    },
    /// The number of times differs from the number of operators.
    #[error("{given} times for {operators} operators: give one time per operator, in the same order")]
    TimeCount {
        /// The number of times given.
        given: usize,
        /// The number of operators.
        operators: usize,
    },
}

impl LayerTensors {
    /// Checks that the description is consistent.
    ///
    /// # Errors
    /// The first inconsistency, see [`LayerError`].
    pub fn check_consistency(&self) -> Result<(), LayerError> {
        for (what, count) in [("operators", self.operators.len()), ("tensors", self.tensors.len())] {
            if count > MAX_OPERATORS {
                return Err(LayerError::TooMany { what, count });
            }
        }
        let mut made = vec![0_usize; self.tensors.len()];
        let mut by_source = made.clone();
        for (position, operator) in self.operators.iter().enumerate() {
            self.check_operator(position, operator)?;
            for output in &operator.outputs {
                made[output.0] += 1;
                if self.tensors[output.0].source == TensorSource::Operator(OperatorIndex(position)) {
                    by_source[output.0] += 1;
                }
            }
        }
        for (t, tensor) in self.tensors.iter().enumerate() {
            let expected = usize::from(tensor.source != TensorSource::LayerInput);
            if made[t] != expected || by_source[t] != expected {
                return Err(LayerError::Source { tensor: tensor.name.clone(), found: made[t] });
            }
        }
        Ok(())
    }

    fn check_operator(&self, position: usize, operator: &LayerOperator) -> Result<(), LayerError> {
        let name = || operator.name.clone();
        if !(operator.forward.is_finite() && operator.forward.0 >= 0.0) {
            return Err(LayerError::Time { operator: name(), seconds: operator.forward.0 });
        }
        for &TensorIndex(tensor) in operator.inputs.iter().chain(&operator.outputs) {
            if tensor >= self.tensors.len() {
                return Err(LayerError::UnknownTensor { operator: name(), tensor, count: self.tensors.len() });
            }
        }
        for input in &operator.inputs {
            let tensor = &self.tensors[input.0];
            if matches!(tensor.source, TensorSource::Operator(OperatorIndex(producer)) if producer >= position) {
                return Err(LayerError::NotInOrder { operator: name(), tensor: tensor.name.clone() });
            }
        }
        Ok(())
    }

    /// The choice for each tensor if the backward pass reruns exactly `rerun` and keeps as little as possible.
    #[must_use]
    pub fn tensor_choices(&self, rerun: OperatorSet) -> Vec<TensorChoice> {
        let mut read: Vec<bool> = self.tensors.iter().map(|t| t.needed_by_backward).collect();
        for (_, operator) in self.operators.iter().enumerate().filter(|(o, _)| rerun.contains(*o)) {
            for input in &operator.inputs {
                read[input.0] = true;
            }
        }
        let choose = |(tensor, read): (&SavedTensor, bool)| match tensor.source {
            TensorSource::Operator(o) if rerun.contains(o.0) => TensorChoice::Recompute,
            _ if read => TensorChoice::Keep,
            _ => TensorChoice::Drop,
        };
        self.tensors.iter().zip(read).map(choose).collect()
    }

    /// The policy that reruns exactly `rerun`: stash, workspace, and extra time by the operators' own times.
    #[must_use]
    pub fn policy_of_rerun(&self, rerun: OperatorSet) -> RecomputePolicy {
        let choices = self.tensor_choices(rerun);
        let sized = || choices.iter().zip(&self.tensors);
        RecomputePolicy {
            stash: sized().map(|(choice, tensor)| choice.stash_bytes(tensor.bytes)).sum(),
            workspace: sized().map(|(choice, tensor)| choice.workspace_bytes(tensor.bytes)).sum(),
            extra: rerun.iter().filter_map(|o| self.operators.get(o)).map(|o| o.forward).sum(),
            operators: rerun,
        }
    }
}
