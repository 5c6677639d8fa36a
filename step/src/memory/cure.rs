//! Cures for plans that do not fit.

use crate::{MemoryClass, OverCapacity, TrainingPlan};
use workloads::{ActivationPolicy, ZeroStage};

impl TrainingPlan {
    /// Returns whether every layer is recomputed from its input. No policy keeps less on the device.
    #[must_use]
    pub fn recomputes_all(&self) -> bool {
        self.activations.uniform_policy() == Some(&ActivationPolicy::Full)
    }
}

impl OverCapacity {
    /// Returns a cure for the largest class, among the changes that `plan` leaves open: `use ZeRO-1, more devices, or a
    /// chip with more memory`. Empty if the message itself has the cure.
    #[must_use]
    pub fn suggest_cure(&self, plan: &TrainingPlan) -> String {
        let layout = &plan.layout;
        let copied = u64::from(layout.data) * u64::from(layout.context) > 1;
        let shares = |from: ZeroStage| match from.max(layout.zero) {
            _ if !copied || layout.zero == ZeroStage::Parameters => (false, ""),
            ZeroStage::Parameters => (true, "ZeRO-3"),
            ZeroStage::Gradients => (true, if layout.zero < ZeroStage::Gradients { "ZeRO-2" } else { "ZeRO-3" }),
            ZeroStage::OptimizerStates if layout.zero == ZeroStage::OptimizerStates => (true, "ZeRO-2"),
            ZeroStage::OptimizerStates | ZeroStage::None => (true, "ZeRO-1"),
        };
        let smaller = (plan.batch.micro_batch > 1, "a smaller micro-batch");
        let wider = (copied, "more tensor- or pipeline-parallel devices in place of copies");
        let cures = match self.class {
            MemoryClass::Host | MemoryClass::Storage => return String::new(),
            MemoryClass::Framework | MemoryClass::Collectives => return "use a chip with more memory".to_owned(),
            MemoryClass::Weights => vec![shares(ZeroStage::Parameters), wider],
            MemoryClass::Gradients => vec![shares(ZeroStage::Gradients), wider],
            MemoryClass::MasterWeights | MemoryClass::OptimizerStates => {
                vec![shares(ZeroStage::OptimizerStates), wider]
            }
            MemoryClass::Gathered => vec![(copied, "more tensor-parallel devices in place of copies")],
            MemoryClass::Activations => {
                vec![(!plan.recomputes_all(), "more recomputation or offloading"), smaller, wider]
            }
            MemoryClass::Transient | MemoryClass::Logits | MemoryClass::Allocator => {
                vec![smaller, (copied, "more tensor- or context-parallel devices in place of copies")]
            }
        };
        let cures = cures.into_iter().filter(|(possible, _)| *possible).map(|(_, cure)| cure);
        format!("use {}", cures.chain(["more devices, or a chip with more memory"]).collect::<Vec<_>>().join(", "))
    }
}
