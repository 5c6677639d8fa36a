//! Training frameworks, and the modelled plans that each can run.

use crate::stack::discouraged_kind::DiscouragedKind;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use sim::kernel::DataType;
use sim::names::hint;
use sim::pipeline::{PipelineSchedule, SCHEDULES};
use std::fmt;
use workloads::ActivationPolicy;

/// A training framework. Several stacks may be versions or settings of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framework {
    /// Megatron-LM.
    MegatronLm,
    /// Megatron Bridge.
    MegatronBridge,
    /// Megatron-DeepSpeed.
    #[serde(rename = "megatron_deepspeed")]
    MegatronDeepSpeed,
    /// NeMo.
    Nemo,
    /// nanotron.
    Nanotron,
    /// MaxText.
    #[serde(rename = "maxtext")]
    MaxText,
    /// TorchTitan.
    #[serde(rename = "torchtitan")]
    TorchTitan,
    /// PyTorch's FSDP, as llm-foundry uses it.
    PytorchFsdp,
    /// The Trainer of Hugging Face's transformers.
    #[serde(rename = "huggingface")]
    HuggingFace,
    /// InternEvo.
    #[serde(rename = "internevo")]
    InternEvo,
    /// Software without costs of its own.
    Ideal,
    /// Another framework; also the default if a stack's file does not name one.
    #[default]
    Other,
}

impl Framework {
    /// Every framework with its name in files and tables, and with the built-in stack that stands for it by default.
    const NAMED: [(Self, &str, Option<&str>); 12] = [
        (Self::MegatronLm, "megatron_lm", Some("megatron")),
        (Self::MegatronBridge, "megatron_bridge", Some("megatron_bridge")),
        (Self::MegatronDeepSpeed, "megatron_deepspeed", Some("megatron_deepspeed")),
        (Self::Nemo, "nemo", Some("nemo")),
        (Self::Nanotron, "nanotron", Some("nanotron")),
        (Self::MaxText, "maxtext", Some("maxtext")),
        (Self::TorchTitan, "torchtitan", Some("torchtitan")),
        (Self::PytorchFsdp, "pytorch_fsdp", Some("pytorch_fsdp")),
        (Self::HuggingFace, "huggingface", Some("huggingface")),
        (Self::InternEvo, "internevo", Some("internevo")),
        (Self::Ideal, "ideal", Some("ideal")),
        (Self::Other, "other", None),
    ];

    /// Returns the names of all frameworks.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        Self::NAMED.iter().map(|(_, name, _)| *name).collect()
    }

    /// Returns the framework of this name, whatever its case; `None` if there is none. `llm-foundry` and `pytorch` are
    /// PyTorch's FSDP.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let fsdp = ["llm-foundry", "pytorch"].iter().any(|other| sim::names::are_same_name(name, other));
        let name = if fsdp { "pytorch_fsdp" } else { name };
        let mut named = Self::NAMED.iter();
        named.find(|(_, known, _)| sim::names::are_same_name(known, name)).map(|(framework, ..)| *framework)
    }

    /// Returns the framework's name in files and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(framework, ..)| *framework == self).map_or("other", |(_, name, _)| name)
    }

    /// Returns the built-in stack that stands for the framework if its version and settings are not known; `None` for
    /// [`Self::Other`].
    #[must_use]
    pub fn default_stack_name(self) -> Option<&'static str> {
        Self::NAMED.iter().find(|(framework, ..)| *framework == self).and_then(|(.., stack)| *stack)
    }

    /// Returns the formats of products, narrower than the weights', in which the framework trains; `None` if any is
    /// possible.
    #[must_use]
    pub fn narrow_products(self) -> Option<&'static [DataType]> {
        use DataType::{Fp8, Int8, Mxfp8, Nvfp4};
        match self {
            // Megatron-LM, megatron/training/arguments.py: --fp8-format, --fp8-recipe (mxfp8 is one), --fp4-format with
            // the recipe nvfp4. Megatron Bridge and NeMo run the same core.
            Self::MegatronLm | Self::MegatronBridge | Self::Nemo => Some(&[Fp8, Mxfp8, Nvfp4]),
            // MaxText, configs/base.yml: `quantization`.
            Self::MaxText => Some(&[Fp8, Int8]),
            // TorchTitan, docs/float8.md and docs/mxfp8.md.
            Self::TorchTitan => Some(&[Fp8, Mxfp8]),
            // Transformer Engine in Megatron-DeepSpeed (--fp8-hybrid), Composer (amp_fp8) and Accelerate
            // (mixed_precision fp8); InternEvo, internlm/core/quantization/fp8handler.py.
            Self::MegatronDeepSpeed | Self::PytorchFsdp | Self::HuggingFace | Self::InternEvo => Some(&[Fp8]),
            // nanotron multiplies in the type of the model.
            Self::Nanotron => Some(&[]),
            Self::Ideal | Self::Other => None,
        }
    }

    /// Returns the reason why the framework trains with no products of a format; `None` if it does, or if products are
    /// in the weights' own format.
    #[must_use]
    pub fn why_product_not_trained(self, product: Option<DataType>) -> Option<String> {
        let (product, known) = (product?, self.narrow_products()?);
        if known.contains(&product) {
            return None;
        }
        Some(match known.is_empty() {
            true => format!("products in {product}: it multiplies in the weights' format"),
            false => format!("products in {product}: it has {}", join_names(known)),
        })
    }

    /// Returns whether the framework takes the arguments of Megatron-LM.
    #[must_use]
    pub fn takes_megatron_arguments(self) -> bool {
        matches!(self, Self::MegatronLm | Self::MegatronBridge | Self::MegatronDeepSpeed)
    }
}

/// Plans that the framework can run. Other plans are timed as if it could.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameworkOptions {
    /// The framework.
    #[serde(default)]
    pub name: Framework,
    /// Pipeline schedules; empty if the framework runs no pipeline.
    pub schedules: Vec<ScheduleKind>,
    /// Kinds of activation policies.
    pub recompute: Vec<PolicyKind>,
    /// Extent to which policies may differ between layers. The default is not at all.
    #[serde(default)]
    pub mixes: MixKind,
    /// True if a model chunk may hold the embedding or the head without any layer.
    pub chunks_without_layers: bool,
    /// True if experts' exchanges in a pipeline can hide behind another micro-batch only between chunks of an
    /// interleaved schedule. Then they hide neither beside the shared expert nor under full recomputation (Megatron-LM,
    /// megatron/core/transformer/transformer_config.py, `overlap_moe_expert_parallel_comm`). Later cores recompute
    /// whole chunks instead of layers, which is not modelled.
    #[serde(default)]
    pub experts_hide_between_chunks: bool,
    /// The rule by which tensor parallelism divides key/value heads.
    #[serde(default)]
    pub key_value_heads: KeyValueHeadRule,
    /// The framework's name for its scaling of fp8 products; `None` for the framework's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8_recipe: Option<String>,
    /// Kinds of plans that the framework runs, but does not document or warns against. They rank behind other plans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discouraged: Vec<DiscouragedKind>,
}

/// The tensor-parallel degrees that a framework allows for a number of key/value heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyValueHeadRule {
    /// Divisors and multiples of the number of heads. Above that number, several devices hold each head. Every layout
    /// obeys this rule.
    #[default]
    Replicated,
    /// Divisors of the number of heads only. Every device holds whole heads of its own.
    Divided,
}

impl KeyValueHeadRule {
    /// Returns whether a degree is allowed for this number of key/value heads.
    #[must_use]
    pub fn allows_degree(self, degree: u32, heads: u64) -> bool {
        self == Self::Replicated || heads.is_multiple_of(u64::from(degree.max(1)))
    }
}

/// The extent to which layers' policies may differ within a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixKind {
    /// All layers follow one policy.
    #[default]
    None,
    /// The first layers of every chunk keep only their input, and the others keep everything. The number of first
    /// layers is the same in every chunk (Megatron-LM's `--recompute-method block`).
    Block,
    /// Every chunk has its own mix.
    PerStage,
}

/// A kind of [`PipelineSchedule`], for any number of chunks: its word, as a stack's file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ScheduleKind(&'static str);

impl ScheduleKind {
    pub(crate) fn of_schedule(schedule: PipelineSchedule) -> Self {
        Self(schedule.word())
    }
}

impl<'de> Deserialize<'de> for ScheduleKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = String::deserialize(deserializer)?;
        let plain = SCHEDULES.iter().map(|(.., schedule)| *schedule);
        let words: Vec<_> =
            plain.chain([PipelineSchedule::Interleaved { chunks: 2 }]).map(PipelineSchedule::word).collect();
        let found = words.iter().find(|word| **word == written);
        found.map(|word| Self(word)).ok_or_else(|| D::Error::custom(hint(&written, &words.join(", "), "use one of")))
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
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

pub(super) fn join_names<T: fmt::Display>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::SoftwareStack;

    #[test]
    fn every_framework_has_one_name_and_a_stack_of_its_own() {
        for (framework, name, stack) in Framework::NAMED {
            assert_eq!(toml::Value::try_from(framework).unwrap().as_str(), Some(name));
            assert_eq!((Framework::from_name(name), framework.name()), (Some(framework), name));
            let stack = stack.map(|stack| SoftwareStack::load(stack).unwrap().framework.name);
            assert_eq!(stack.unwrap_or(Framework::Other), framework);
        }
        assert_eq!(Framework::from_name("llm-foundry"), Some(Framework::PytorchFsdp));
        assert_eq!(Framework::from_name("megatron"), None);
    }

    #[test]
    fn every_built_in_stack_names_its_framework() {
        for name in SoftwareStack::built_in_names() {
            assert_ne!(SoftwareStack::load(&name).unwrap().framework.name, Framework::Other, "{name}");
        }
    }
}
