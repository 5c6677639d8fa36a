//! What is alive besides what is kept while a layer runs, by how its backward pass does.

use super::MemoryAccount;
use crate::SoftwareStack;
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use workloads::Release;

/// What is alive while one layer runs, besides what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TransientBytes {
    /// Where its backward pass runs in one go.
    pub in_one_go: Bytes,
    /// Where gradients of weights are put off: what they read waits for them.
    pub apart: Bytes,
}

impl TransientBytes {
    /// From what is alive under either way of giving back what is kept.
    pub fn new(stack: &SoftwareStack, alive: impl Fn(Release) -> Bytes) -> Self {
        let apart = alive(Release::AtTheEnd);
        let in_one_go = if stack.release_of_layer() == Release::AtTheEnd { apart } else { alive(stack.release_of_layer()) };
        Self { in_one_go, apart }
    }

    pub fn under_schedule(self, schedule: PipelineSchedule) -> Bytes {
        if schedule.splits_backward() { self.apart } else { self.in_one_go }
    }

    /// The larger of two, either way.
    pub fn max_of_both(self, other: Self) -> Self {
        Self { in_one_go: self.in_one_go.max(other.in_one_go), apart: self.apart.max(other.apart) }
    }
}

impl MemoryAccount<'_> {
    /// Alive besides while one layer runs.
    pub(super) fn transient_bytes(&self) -> Bytes {
        self.profile.transient.under_schedule(self.arrangement.schedule)
    }
}
