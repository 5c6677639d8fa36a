//! Passes, and orders of them.

/// A pass of one micro-batch through one virtual stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PipelinePass {
    /// Forward.
    Forward,
    /// Backward: all of it, or the input gradient if the schedule splits the weight gradient off.
    Backward,
    /// The weight gradient, if the schedule splits it off.
    Weight,
    /// All of the backward pass, under a schedule that splits others.
    WholeBackward,
}

impl PipelinePass {
    /// Returns 0 for a forward pass, 1 for a backward pass and 2 for a weight gradient.
    pub(super) fn kind_index(self) -> usize {
        match self {
            Self::Forward => 0,
            Self::Backward | Self::WholeBackward => 1,
            Self::Weight => 2,
        }
    }
}

/// One entry of a device's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrderStep {
    pub pass: PipelinePass,
    pub stage: u32,
    pub micro_batch: u32,
}

/// A pass of the next micro-batch through a virtual stage; every stage takes micro-batches in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StageTurn {
    pub stage: u32,
    pub pass: PipelinePass,
    /// True for a forward pass that runs as one with the next turn, a backward pass. Both start when both inputs are
    /// there, and their results leave together.
    pub with_next: bool,
}

/// All devices' passes, each after those that it needs.
pub(super) type PassOrder = Vec<StageTurn>;
