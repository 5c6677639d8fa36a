//! Tests whether a stack's framework can run a plan, with the reason if it cannot.

use crate::schedule::effective_schedule;
use crate::stack::framework::{MixKind, PolicyKind, ScheduleKind, join_names};
use crate::{SoftwareStack, TrainingPlan};
use sim::pipeline::PipelineSchedule;
use workloads::{ActivationPolicy, Model};

impl SoftwareStack {
    /// Returns whether the framework runs a schedule with this number of chunks per stage.
    #[must_use]
    pub fn runs_schedule(&self, schedule: PipelineSchedule, virtual_stages: u32) -> bool {
        let plain = schedule == PipelineSchedule::OneForwardOneBackward && virtual_stages > 1;
        let schedule = if plain { PipelineSchedule::Interleaved { chunks: virtual_stages } } else { schedule };
        self.framework.schedules.contains(&ScheduleKind::of_schedule(schedule))
    }

    /// Returns whether the framework has policies of this kind.
    #[must_use]
    pub fn runs_policy(&self, policy: &ActivationPolicy) -> bool {
        self.framework.recompute.contains(&PolicyKind::of_policy(policy))
    }

    /// Returns whether the framework can divide a model's key/value heads over a tensor-parallel degree.
    #[must_use]
    pub fn runs_tensor_degree(&self, degree: u32, model: &Model) -> bool {
        model.attention_heads().iter().all(|(_, kv)| self.framework.key_value_heads.allows_degree(degree, *kv))
    }

    /// Returns the reason why the framework cannot run a plan for a model; `None` if no reason is known.
    #[must_use]
    pub fn why_not_runnable(&self, plan: &TrainingPlan, model: &Model) -> Option<String> {
        let (layout, framework) = (&plan.layout, &self.framework);
        if let Some(why) = framework.name.why_product_not_trained(plan.precision.product) {
            return Some(why);
        }
        if !self.runs_tensor_degree(layout.tensor, model) {
            let heads: Vec<u64> = model.attention_heads().into_iter().map(|(_, kv)| kv).collect();
            let heads = join_names(&heads);
            return Some(format!("tensor {}: it must divide the model's key/value heads, {heads}", layout.tensor));
        }
        if layout.pipeline > 1 && !self.runs_schedule(plan.schedule, layout.virtual_stages) {
            let kind = ScheduleKind::of_schedule(effective_schedule(layout, plan.schedule));
            return Some(match framework.schedules.is_empty() {
                true => "it runs no pipeline".to_owned(),
                false => format!("schedule {kind}: it runs {}", join_names(&framework.schedules)),
            });
        }
        if let Some(policy) = plan.activations.distinct_policies().into_iter().find(|policy| !self.runs_policy(policy))
        {
            return Some(format!(
                "recompute {}: it has {}",
                PolicyKind::of_policy(policy),
                join_names(&framework.recompute)
            ));
        }
        match framework.mixes {
            MixKind::None if plan.activations.uniform_policy().is_none() => {
                return Some("recompute by stage: it has one policy for all layers".to_owned());
            }
            MixKind::Block if plan.activations.full_recompute_layers_per_chunk().is_none() => {
                return Some(
                    "recompute by stage: it recomputes the same number of first layers in every chunk".to_owned(),
                );
            }
            _ => {}
        }
        if let Some(why) = self.why_experts_not_hidden(plan) {
            return Some(why.to_owned());
        }
        let empty = layout.chunk_layers(model.layers).is_ok_and(|chunks| chunks.contains(&0));
        (empty && !framework.chunks_without_layers).then(|| "a chunk without layers".to_owned())
    }

    /// Returns the reason why experts' exchanges cannot hide behind another micro-batch in a plan; `None` if they can,
    /// or if the stack hides none.
    fn why_experts_not_hidden(&self, plan: &TrainingPlan) -> Option<&'static str> {
        let layout = &plan.layout;
        if layout.expert < 2 || self.overlap.experts == 0.0 {
            return None;
        }
        let between_chunks = self.framework.experts_hide_between_chunks;
        let whole = plan.activations.distinct_policies().into_iter().any(|policy| *policy == ActivationPolicy::Full);
        match () {
            () if plan.micro_batches() < 2 => {
                Some("overlap.experts: a step of one micro-batch has no other micro-batch that could hide it")
            }
            () if between_chunks && self.overlap.shared_expert > 0.0 => {
                Some("overlap.experts: it excludes overlap.shared_expert")
            }
            () if between_chunks && whole => Some("overlap.experts: it excludes full recomputation"),
            () if between_chunks && layout.pipeline > 1 && layout.virtual_stages < 2 => {
                Some("overlap.experts: it needs several chunks per stage")
            }
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::kernel::DataType;
    use workloads::footprint::{Optimizer, Precision};
    use workloads::training::Attention;
    use workloads::{Batch, LayerEnds, Layout};

    #[test]
    fn what_a_framework_lacks_is_named() {
        let plan = TrainingPlan {
            layout: Layout { pipeline: 4, virtual_stages: 2, ..Layout::default() },
            batch: Batch { micro_batch: 1, global_batch: 8, sequence_length: 1024 },
            activations: ActivationPolicy::None.into(),
            attention: Attention::Fused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            schedule: PipelineSchedule::OneForwardOneBackward,
            techniques: workloads::Techniques::default(),
        };
        let model = Model::load("llama2-7b").unwrap();
        let why = |stack: &str, plan: &TrainingPlan| SoftwareStack::load(stack).unwrap().why_not_runnable(plan, &model);
        assert_eq!(why("megatron_core", &plan), None);
        assert_eq!(why("maxtext", &plan).unwrap(), "schedule interleaved: it runs gpipe");
        assert_eq!(why("pytorch_fsdp", &plan).unwrap(), "it runs no pipeline");
        let alone = TrainingPlan { layout: Layout { data: 4, ..Layout::default() }, ..plan.clone() };
        assert_eq!(why("pytorch_fsdp", &alone), None);
        let offloaded = TrainingPlan { activations: "custom:offload(qkv_proj)".parse().unwrap(), ..plan.clone() };
        assert_eq!(why("megatron_core", &offloaded).unwrap(), "recompute custom: it has none, selective, full");
        let ends = Some(LayerEnds { first: 5, last: 0, shorter: 3 });
        let empty = TrainingPlan { layout: Layout { ends, ..plan.layout }, ..plan };
        assert_eq!(why("megatron", &empty), None);
        let mut strict = SoftwareStack::load("megatron").unwrap();
        strict.framework.chunks_without_layers = false;
        assert_eq!(strict.why_not_runnable(&empty, &model).unwrap(), "a chunk without layers");
    }

    #[test]
    fn formats_of_products_that_a_framework_does_not_train_in_are_named() {
        let why =
            |stack: &str, product| SoftwareStack::load(stack).unwrap().framework.name.why_product_not_trained(product);
        let trained = |stack: &str| {
            let formats = DataType::ALL.into_iter().filter(|format| why(stack, Some(*format)).is_none());
            formats.map(DataType::name).collect::<Vec<_>>()
        };
        for stack in ["megatron", "megatron_core", "megatron_bridge", "nemo"] {
            assert_eq!(trained(stack), ["fp8", "mxfp8", "nvfp4"], "{stack}");
        }
        assert_eq!(why("megatron_core", Some(DataType::Int8)).unwrap(), "products in int8: it has fp8, mxfp8, nvfp4");
        assert_eq!((trained("maxtext"), trained("torchtitan")), (vec!["fp8", "int8"], vec!["fp8", "mxfp8"]));
        assert_eq!(trained("nanotron"), [""; 0]);
        assert_eq!(trained("ideal").len(), DataType::ALL.len());
        assert!(SoftwareStack::built_in_names().iter().all(|stack| why(stack, None).is_none()));
    }

    #[test]
    fn a_tensor_degree_divides_the_key_value_heads_where_the_framework_copies_none() {
        let model = Model { kv_heads: 2, ..Model::load("llama2-7b").unwrap() };
        let refused = |stack: &str| {
            let stack = SoftwareStack::load(stack).unwrap();
            [1, 2, 4, 8].into_iter().filter(|degree| !stack.runs_tensor_degree(*degree, &model)).collect::<Vec<u32>>()
        };
        let divided = ["torchtitan", "torchtitan_eager", "torchtitan_async", "nanotron", "huggingface", "maxtext"];
        for stack in divided {
            assert_eq!(refused(stack), [4, 8], "{stack}");
        }
        for stack in ["megatron", "megatron_core", "megatron_bridge", "nemo", "ideal"] {
            assert_eq!(refused(stack), [0; 0], "{stack}");
        }
    }
}
