//! Modelled plans that a stack's framework can run.

use crate::schedule::effective_schedule;
use crate::{SoftwareStack, TrainingPlan};
use serde::{Deserialize, Serialize};
use sim::pipeline::PipelineSchedule;
use std::fmt;
use workloads::ActivationPolicy;

/// Plans that the framework can run. Other plans are timed as if it could.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameworkOptions {
    /// Pipeline schedules; empty if it runs no pipeline.
    pub schedules: Vec<ScheduleKind>,
    /// Kinds of activation policies.
    pub recompute: Vec<PolicyKind>,
    /// How far policies may differ between layers; not at all if a file does not say.
    #[serde(default)]
    pub mixes: MixKind,
    /// True if a model chunk may hold the embedding or the head without any layer.
    pub chunks_without_layers: bool,
    /// True if experts' exchanges in a pipeline hide behind another micro-batch only between chunks of an interleaved
    /// schedule. Then they hide neither beside the shared expert nor under full recomputation (Megatron-LM,
    /// megatron/core/transformer/transformer_config.py, `overlap_moe_expert_parallel_comm`). Later cores recompute
    /// whole chunks instead of layers, which is not modelled.
    #[serde(default)]
    pub experts_hide_between_chunks: bool,
}

/// How far layers' policies may differ within a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixKind {
    /// All layers follow one policy.
    #[default]
    None,
    /// The first layers of every chunk keep only their input, the others everything; the number is the same in every
    /// chunk (Megatron-LM's `--recompute-method block`).
    Block,
    /// Every chunk has its own mix.
    PerStage,
}

/// A pipeline schedule, for any number of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScheduleKind {
    /// [`PipelineSchedule::OneForwardOneBackward`] over one chunk.
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// [`PipelineSchedule::OneForwardOneBackward`] over several chunks.
    #[serde(rename = "interleaved")]
    Interleaved,
    /// [`PipelineSchedule::GPipe`].
    #[serde(rename = "gpipe")]
    GPipe,
    /// [`PipelineSchedule::ZbH1`].
    #[serde(rename = "zb-h1")]
    ZbH1,
    /// [`PipelineSchedule::ZbV`].
    #[serde(rename = "zb-v")]
    ZbV,
}

impl ScheduleKind {
    fn of_schedule(schedule: PipelineSchedule) -> Self {
        match schedule {
            PipelineSchedule::OneForwardOneBackward => Self::OneForwardOneBackward,
            PipelineSchedule::Interleaved { .. } => Self::Interleaved,
            PipelineSchedule::GPipe => Self::GPipe,
            PipelineSchedule::ZbH1 => Self::ZbH1,
            PipelineSchedule::ZbV => Self::ZbV,
        }
    }
}

/// A kind of [`ActivationPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// [`ActivationPolicy::None`].
    None,
    /// [`ActivationPolicy::Selective`].
    Selective,
    /// [`ActivationPolicy::SelectivePerOperator`].
    PerOperator,
    /// [`ActivationPolicy::Full`].
    Full,
    /// [`ActivationPolicy::Named`].
    Named,
    /// [`ActivationPolicy::Custom`].
    Custom,
    /// [`ActivationPolicy::Tensors`].
    Tensors,
}

impl PolicyKind {
    fn of_policy(policy: &ActivationPolicy) -> Self {
        match policy {
            ActivationPolicy::None => Self::None,
            ActivationPolicy::Selective => Self::Selective,
            ActivationPolicy::SelectivePerOperator => Self::PerOperator,
            ActivationPolicy::Full => Self::Full,
            ActivationPolicy::Named { .. } => Self::Named,
            ActivationPolicy::Custom { .. } => Self::Custom,
            ActivationPolicy::Tensors { .. } => Self::Tensors,
        }
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved => "interleaved",
            Self::GPipe => "gpipe",
            Self::ZbH1 => "zb-h1",
            Self::ZbV => "zb-v",
        })
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Selective => "selective",
            Self::PerOperator => "per-operator",
            Self::Full => "full",
            Self::Named => "named",
            Self::Custom => "custom",
            Self::Tensors => "tensors",
        })
    }
}

fn join_names<T: fmt::Display>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl SoftwareStack {
    /// Returns whether the framework runs a schedule with this number of chunks per stage.
    #[must_use]
    pub fn runs_schedule(&self, schedule: PipelineSchedule, virtual_stages: u32) -> bool {
        let plain = schedule == PipelineSchedule::OneForwardOneBackward && virtual_stages > 1;
        let kind = if plain { ScheduleKind::Interleaved } else { ScheduleKind::of_schedule(schedule) };
        self.framework.schedules.contains(&kind)
    }

    /// Returns whether the framework has a policy's kind.
    #[must_use]
    pub fn runs_policy(&self, policy: &ActivationPolicy) -> bool {
        self.framework.recompute.contains(&PolicyKind::of_policy(policy))
    }

    /// Returns why the framework cannot run a plan for a model with `layers` layers; `None` if no reason is known.
    #[must_use]
    pub fn why_not_runnable(&self, plan: &TrainingPlan, layers: u64) -> Option<String> {
        let (layout, framework) = (&plan.layout, &self.framework);
        if layout.pipeline > 1 && !self.runs_schedule(plan.schedule, layout.virtual_stages) {
            let kind = ScheduleKind::of_schedule(effective_schedule(layout, plan.schedule));
            return Some(match framework.schedules.is_empty() {
                true => "it runs no pipeline".to_owned(),
                false => format!("schedule {kind}: it runs {}", join_names(&framework.schedules)),
            });
        }
        if let Some(policy) = plan.activations.distinct_policies().into_iter().find(|policy| !self.runs_policy(policy)) {
            return Some(format!(
                "recompute {}: it has \
                {}",
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
                    "recompute by stage: it recomputes the same number of first layers in every \
                    chunk"
                        .to_owned(),
                );
            }
            _ => {}
        }
        if let Some(why) = self.why_experts_not_hidden(plan) {
            return Some(why.to_owned());
        }
        let empty = layout.chunk_layers(layers).is_ok_and(|chunks| chunks.contains(&0));
        (empty && !framework.chunks_without_layers).then(|| "a chunk without layers".to_owned())
    }

    /// Returns why experts' exchanges cannot hide behind another micro-batch in a plan, if the stack says that they do.
    fn why_experts_not_hidden(&self, plan: &TrainingPlan) -> Option<&'static str> {
        let layout = &plan.layout;
        if layout.expert < 2 || self.overlap.experts == 0.0 {
            return None;
        }
        let between_chunks = self.framework.experts_hide_between_chunks;
        let whole = plan.activations.distinct_policies().into_iter().any(|policy| *policy == ActivationPolicy::Full);
        match () {
            () if plan.micro_batches() < 2 => Some(
                "overlap.experts: a step of one micro-batch has no other \
                micro-batch that could hide it",
            ),
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
        let why = |stack: &str, plan: &TrainingPlan| SoftwareStack::load(stack).unwrap().why_not_runnable(plan, 32);
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
        assert_eq!(strict.why_not_runnable(&empty, 32).unwrap(), "a chunk without layers");
    }
}
