//! Kinds of plans that frameworks do not document, or warn against.

use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::kernel::DataType;
use workloads::{Layout, ZeroStage};

/// A kind of plans that a framework runs, but warns against or leaves undocumented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiscouragedKind {
    /// ZeRO-2 or ZeRO-3 in a pipeline.
    FsdpInPipeline,
    /// ZeRO-2 or ZeRO-3 in any plan.
    Fsdp,
    /// ZeRO-2 or ZeRO-3 beside tensor or context parallelism, on chips with one hardware queue for both: NVIDIA's
    /// before Blackwell.
    FsdpBesideTensorOrContext,
}

impl DiscouragedKind {
    /// Returns whether a layout is of this kind.
    #[must_use]
    pub fn includes_layout(self, layout: &Layout) -> bool {
        let sharded = layout.zero >= ZeroStage::Gradients;
        sharded
            && match self {
                Self::FsdpInPipeline => layout.pipeline > 1,
                Self::Fsdp => true,
                Self::FsdpBesideTensorOrContext => layout.tensor > 1 || layout.context > 1,
            }
    }

    /// Returns whether the framework discourages this kind on a chip.
    pub(super) fn concerns_chip(self, chip: &Accelerator) -> bool {
        // Megatron-LM tests the architecture's number. A chip's file has none, but NVIDIA's chips multiply nvfp4 from
        // Blackwell on.
        self != Self::FsdpBesideTensorOrContext || chip.peak_flops(DataType::Nvfp4).is_none()
    }

    /// Returns the verdict and its reason.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::FsdpInPipeline => "not documented: ZeRO-2 or ZeRO-3 in a pipeline",
            Self::Fsdp => "not documented: ZeRO-2 or ZeRO-3",
            Self::FsdpBesideTensorOrContext => {
                "warned against: ZeRO-2 or ZeRO-3 beside tensor or context parallelism before Blackwell \
                 (CUDA_DEVICE_MAX_CONNECTIONS)"
            }
        }
    }
}
