//! Transient bytes while a layer runs, for both ways to run its backward pass.

use super::MemoryAccount;
use crate::SoftwareStack;
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use workloads::Release;

/// Bytes alive while one layer runs, besides the kept activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TransientBytes {
    /// Bytes if the backward pass runs in one go.
    pub in_one_go: Bytes,
    /// Bytes if weight gradients are put off. The inputs of these gradients then stay alive.
    pub apart: Bytes,
}

impl TransientBytes {
    /// Returns the transient bytes. `alive` gives the bytes alive under each way to free kept tensors.
    pub fn new(stack: &SoftwareStack, alive: impl Fn(Release) -> Bytes) -> Self {
        let apart = alive(Release::AtTheEnd);
        let in_one_go =
            if stack.release_of_layer() == Release::AtTheEnd { apart } else { alive(stack.release_of_layer()) };
        Self { in_one_go, apart }
    }

    pub fn under_schedule(self, schedule: PipelineSchedule) -> Bytes {
        if schedule.splits_backward() { self.apart } else { self.in_one_go }
    }

    /// Returns the larger of both values, for each way to run the backward pass.
    pub fn max_of_both(self, other: Self) -> Self {
        Self { in_one_go: self.in_one_go.max(other.in_one_go), apart: self.apart.max(other.apart) }
    }
}

impl MemoryAccount<'_> {
    /// Returns the transient bytes while one layer runs.
    pub(super) fn transient_bytes(&self) -> Bytes {
        self.profile.transient.under_schedule(self.arrangement.schedule)
    }
}
