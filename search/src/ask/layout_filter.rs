//! Selects layouts of a space by the framework's documentation and by family.

use step::DiscouragedKind;
use workloads::{Layout, ZeroStage};

/// A family of plans, by the main use of their devices. A plan may be of two families: context and expert parallel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlanFamily {
    /// Data parallelism alone, with copied weights and gradients (ZeRO-0, ZeRO-1).
    DataParallel,
    /// Data parallelism alone, with sharded weights or gradients (ZeRO-2, ZeRO-3).
    Fsdp,
    /// Tensor or pipeline parallelism, without context and expert parallelism.
    TensorOrPipeline,
    /// Context parallelism.
    Context,
    /// Expert parallelism.
    Expert,
}

impl PlanFamily {
    /// All families.
    pub const ALL: [Self; 5] = [Self::DataParallel, Self::Fsdp, Self::TensorOrPipeline, Self::Context, Self::Expert];

    /// Returns its name in tables and in data.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DataParallel => "data parallel",
            Self::Fsdp => "FSDP",
            Self::TensorOrPipeline => "tensor or pipeline parallel",
            Self::Context => "context parallel",
            Self::Expert => "expert parallel",
        }
    }

    /// Returns true if a layout is of the family.
    #[must_use]
    pub fn includes_layout(self, layout: &Layout) -> bool {
        let sharded = layout.zero >= ZeroStage::Gradients;
        let alone = layout.tensor == 1 && layout.pipeline == 1;
        let plain = layout.context == 1 && layout.expert == 1;
        match self {
            Self::DataParallel => plain && alone && !sharded,
            Self::Fsdp => plain && alone && sharded,
            Self::TensorOrPipeline => plain && !alone,
            Self::Context => layout.context > 1,
            Self::Expert => layout.expert > 1,
        }
    }
}

/// The layouts of a space that count. By default all do.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LayoutFilter {
    /// Layouts of these kinds do not count.
    pub without: Vec<DiscouragedKind>,
    /// If not empty, only layouts of one of these kinds count.
    pub only: Vec<DiscouragedKind>,
    /// If set, only layouts of this family count.
    pub family: Option<PlanFamily>,
}

impl LayoutFilter {
    /// Returns true if a layout counts. Its degrees, ZeRO stage and expert parallelism must be decided.
    #[must_use]
    pub fn admits_layout(&self, layout: &Layout) -> bool {
        let is_of = |kinds: &[DiscouragedKind]| kinds.iter().any(|kind| kind.includes_layout(layout));
        !is_of(&self.without)
            && (self.only.is_empty() || is_of(&self.only))
            && self.family.is_none_or(|family| family.includes_layout(layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_is_of_a_family_and_only_context_and_expert_parallelism_overlap() {
        let stages = [ZeroStage::None, ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters];
        for bits in 0..16_u32 {
            for zero in stages {
                let degree = |bit: u32| 1 + (bits >> bit & 1);
                let (tensor, pipeline, context, expert) = (degree(0), degree(1), degree(2), degree(3));
                let layout = Layout { tensor, pipeline, context, expert, data: 4, zero, ..Layout::default() };
                let families: Vec<_> =
                    PlanFamily::ALL.into_iter().filter(|family| family.includes_layout(&layout)).collect();
                let both = context > 1 && expert > 1;
                assert_eq!(families.len(), if both { 2 } else { 1 }, "{layout:?}: {families:?}");
            }
        }
    }
}
