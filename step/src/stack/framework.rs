//! Modelled plans that a stack's framework can run.

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
    pub(crate) fn of_schedule(schedule: PipelineSchedule) -> Self {
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
    pub(crate) fn of_policy(policy: &ActivationPolicy) -> Self {
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
