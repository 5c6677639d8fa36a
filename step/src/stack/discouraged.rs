//! Plans that a stack's framework does not document, or warns against.

use crate::stack::discouraged_kind::DiscouragedKind;
use crate::{SoftwareStack, TrainingPlan};
use sim::hardware::Accelerator;

impl SoftwareStack {
    /// Returns the kinds of plans that the framework does not document, or warns against, on a chip.
    #[must_use]
    pub fn discouraged_kinds(&self, chip: &Accelerator) -> Vec<DiscouragedKind> {
        self.framework.discouraged.iter().copied().filter(|kind| kind.concerns_chip(chip)).collect()
    }

    /// Returns the reasons why the framework discourages a plan on a chip, each with its verdict: `not documented:
    /// ...`. `None` if no reason is known.
    #[must_use]
    pub fn why_discouraged(&self, plan: &TrainingPlan, chip: &Accelerator) -> Option<String> {
        let kinds = self.discouraged_kinds(chip);
        let reasons: Vec<&str> = kinds
            .into_iter()
            .filter(|kind| kind.includes_layout(&plan.layout))
            .map(DiscouragedKind::describe)
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::pipeline::PipelineSchedule;
    use workloads::footprint::{Optimizer, Precision};
    use workloads::training::Attention;
    use workloads::{ActivationPolicy, Batch};
    use workloads::{Layout, ZeroStage};

    fn plan_of_layout(layout: Layout) -> TrainingPlan {
        TrainingPlan {
            layout,
            batch: Batch { micro_batch: 1, global_batch: 64, sequence_length: 1024 },
            activations: ActivationPolicy::None.into(),
            attention: Attention::Fused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            schedule: PipelineSchedule::OneForwardOneBackward,
            techniques: workloads::Techniques::default(),
        }
    }

    fn verdict(stack: &str, chip: &str, layout: Layout) -> Option<String> {
        let (stack, chip) = (SoftwareStack::load(stack).unwrap(), Accelerator::built_in(chip).unwrap());
        stack.why_discouraged(&plan_of_layout(layout), &chip)
    }

    #[test]
    fn megatron_discourages_fsdp_in_pipelines_and_beside_tensor_parallelism_before_blackwell() {
        let sharded = Layout { data: 8, zero: ZeroStage::Gradients, ..Layout::default() };
        let staged = Layout { pipeline: 2, ..sharded };
        let beside = Layout { context: 2, zero: ZeroStage::Parameters, ..sharded };
        for stack in ["megatron", "megatron_core", "megatron_core_exposed", "megatron_bridge", "nemo"] {
            let on = |chip: &str, layout| verdict(stack, chip, layout);
            assert_eq!(on("h100_80gb_sxm", sharded), None, "{stack}");
            assert_eq!(on("b200", staged).unwrap(), "not documented: ZeRO-2 or ZeRO-3 in a pipeline", "{stack}");
            assert!(on("h100_80gb_sxm", beside).unwrap().starts_with("warned against: "), "{stack}");
            assert_eq!(on("b200", beside), None, "{stack}");
            let both = on("h100_80gb_sxm", Layout { tensor: 2, ..staged }).unwrap();
            assert!(both.starts_with("not documented: ") && both.contains("; warned against: "), "{both}");
            let optimizer_states = Layout { tensor: 2, zero: ZeroStage::OptimizerStates, ..staged };
            assert_eq!(on("h100_80gb_sxm", optimizer_states), None, "{stack}");
        }
    }

    #[test]
    fn other_frameworks_discourage_what_their_sources_say() {
        let sharded = Layout { data: 8, zero: ZeroStage::Gradients, ..Layout::default() };
        let staged = Layout { pipeline: 2, ..sharded };
        let beside = Layout { tensor: 2, ..sharded };
        let of =
            |stack: &str| [sharded, staged, beside].map(|layout| verdict(stack, "h100_80gb_sxm", layout).is_some());
        assert_eq!(of("megatron_deepspeed"), [false, true, false]);
        assert_eq!(of("nanotron"), [true, true, true]);
        for stack in ["ideal", "torchtitan", "maxtext", "pytorch_fsdp", "huggingface"] {
            assert_eq!(of(stack), [false; 3], "{stack}");
        }
    }

    #[test]
    fn a_stack_lists_known_kinds_with_a_source() {
        let text = SoftwareStack::load("megatron").unwrap().to_toml_string().unwrap();
        assert!(text.contains("discouraged = [\"fsdp_in_pipeline\", \"fsdp_beside_tensor_or_context\"]"), "{text}");
        let read = |text: &str| SoftwareStack::from_toml_str("own.toml", text).map_err(|why| why.to_string());
        assert!(read(&text).is_ok());
        let unknown = read(&text.replace("\"fsdp_in_pipeline\"", "\"fsdp_in_pipelines\"")).unwrap_err();
        assert!(unknown.contains("fsdp_in_pipelines") && unknown.contains("own.toml"), "{unknown}");
    }
}
