//! The mechanisms of a plan, as typed values. Tables and answers show their names.

use serde::{Deserialize, Serialize};
use sim::kernel::DataType;
use sim::pipeline::PipelineSchedule;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use step::{SoftwareStack, TrainingPlan};
use workloads::training::LossForm;
use workloads::{ActivationPolicy, Model, ZeroStage};

/// A feature of a plan that measured runs may have or lack, beyond the features of every plan. The order is that of the
/// names.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Mechanism {
    /// Tensor parallelism.
    Tensor,
    /// Tensor parallelism between nodes.
    TensorBetweenNodes,
    /// Pipeline parallelism.
    Pipeline,
    /// Several chunks per stage.
    Interleaved,
    /// A pipeline schedule other than 1F1B, by its name.
    Schedule(String),
    /// Context parallelism.
    Context,
    /// Expert parallelism.
    ExpertParallelism,
    /// A model with experts.
    Experts,
    /// Latent attention.
    LatentAttention,
    /// Linear attention.
    LinearAttention,
    /// Short convolutions as mixers.
    Convolution,
    /// State-space scans.
    Scan,
    /// Attention to tokens that an indexer chooses.
    SparseAttention,
    /// A ZeRO stage, from 1 on.
    Zero(ZeroStage),
    /// Products of fewer than 16 bits.
    NarrowProducts(DataType),
    /// Weights of 16 bits without a wider copy.
    NoMaster,
    /// The optimizer's states in a type of fewer than 32 bits.
    NarrowStates(DataType),
    /// Weight gradients in a type of fewer than 32 bits.
    NarrowGradients(DataType),
    /// Head and loss by chunks of tokens.
    ChunkedLoss,
    /// PyTorch's autocast over fp32 parameters.
    Autocast,
    /// No recomputation: all tensors are kept or offloaded.
    KeepAll,
    /// Selective recomputation.
    RecomputeSelective,
    /// Full recomputation.
    RecomputeFull,
    /// Recomputation tensor by tensor.
    RecomputeByTensor,
    /// Tensors are offloaded.
    Offload,
    /// Tensors are offloaded to storage.
    OffloadToNvme,
    /// A technique, by its name.
    Technique(String),
}

impl Mechanism {
    /// The mechanisms by which a policy keeps, recomputes or offloads tensors.
    pub const OF_POLICIES: [Self; 6] = [
        Self::KeepAll,
        Self::RecomputeSelective,
        Self::RecomputeFull,
        Self::RecomputeByTensor,
        Self::Offload,
        Self::OffloadToNvme,
    ];

    /// Returns the mechanism's name in tables and answers.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Tensor => "tensor",
            Self::TensorBetweenNodes => "tensor-between-nodes",
            Self::Pipeline => "pipeline",
            Self::Interleaved => "interleaved",
            Self::Context => "context",
            Self::ExpertParallelism => "expert",
            Self::Experts => "experts",
            Self::LatentAttention => "latent-attention",
            Self::LinearAttention => "linear-attention",
            Self::Convolution => "convolution",
            Self::Scan => "scan",
            Self::SparseAttention => "sparse-attention",
            Self::Zero(ZeroStage::None) => "zero-0",
            Self::Zero(ZeroStage::OptimizerStates) => "zero-1",
            Self::Zero(ZeroStage::Gradients) => "zero-2",
            Self::Zero(ZeroStage::Parameters) => "zero-3",
            Self::NarrowProducts(data_type) => data_type.name(),
            Self::NoMaster => "no-master",
            Self::NarrowStates(DataType::Fp8) => "states-fp8",
            Self::NarrowStates(DataType::Fp16) => "states-fp16",
            Self::NarrowStates(_) => "states-bf16",
            Self::NarrowGradients(DataType::Fp16) => "gradients-fp16",
            Self::NarrowGradients(_) => "gradients-bf16",
            Self::ChunkedLoss => "loss-chunked",
            Self::Autocast => "autocast",
            Self::KeepAll => "recompute-none",
            Self::RecomputeSelective => "recompute-selective",
            Self::RecomputeFull => "recompute-full",
            Self::RecomputeByTensor => "recompute-by-tensor",
            Self::Offload => "offload",
            Self::OffloadToNvme => "offload-nvme",
            Self::Schedule(name) | Self::Technique(name) => name,
        }
    }

    /// Returns the mechanism with a name from a table. An unknown name becomes a technique.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let plain = [
            Self::Tensor,
            Self::TensorBetweenNodes,
            Self::Pipeline,
            Self::Interleaved,
            Self::Context,
            Self::ExpertParallelism,
            Self::Experts,
            Self::LatentAttention,
            Self::LinearAttention,
            Self::Convolution,
            Self::Scan,
            Self::SparseAttention,
            Self::Zero(ZeroStage::OptimizerStates),
            Self::Zero(ZeroStage::Gradients),
            Self::Zero(ZeroStage::Parameters),
            Self::NoMaster,
            Self::ChunkedLoss,
            Self::Autocast,
            Self::NarrowStates(DataType::Bf16),
            Self::NarrowStates(DataType::Fp16),
            Self::NarrowStates(DataType::Fp8),
            Self::NarrowGradients(DataType::Bf16),
            Self::NarrowGradients(DataType::Fp16),
        ];
        let narrow = [DataType::Fp8, DataType::Int8, DataType::Mxfp8, DataType::Nvfp4, DataType::Mxfp4]
            .map(Self::NarrowProducts);
        let mut known = plain.into_iter().chain(narrow).chain(Self::OF_POLICIES);
        known.find(|mechanism| mechanism.name() == name).unwrap_or_else(|| Self::Technique(name.to_owned()))
    }
}

impl From<String> for Mechanism {
    fn from(name: String) -> Self {
        Self::from_name(&name)
    }
}

impl From<Mechanism> for String {
    fn from(mechanism: Mechanism) -> Self {
        mechanism.name().to_owned()
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Compares by name, since tables and records have only names.
impl PartialEq for Mechanism {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Mechanism {}

impl Ord for Mechanism {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(other.name())
    }
}

impl PartialOrd for Mechanism {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the mechanisms of a model's plan under a stack, beyond those of every plan.
#[must_use]
pub fn mechanisms_of_plan(
    model: &Model,
    plan: &TrainingPlan,
    stack: &SoftwareStack,
    fast_domain: u32,
) -> BTreeSet<Mechanism> {
    let layout = &plan.layout;
    let pipelined = layout.pipeline > 1;
    let of_layout = [
        (layout.tensor > 1, Mechanism::Tensor),
        (layout.tensor > fast_domain, Mechanism::TensorBetweenNodes),
        (pipelined, Mechanism::Pipeline),
        (pipelined && layout.virtual_stages > 1, Mechanism::Interleaved),
        (layout.context > 1, Mechanism::Context),
        (layout.expert > 1, Mechanism::ExpertParallelism),
        (model.experts.is_some(), Mechanism::Experts),
        (model.variations.latent.is_some(), Mechanism::LatentAttention),
        (model.variations.linear.is_some(), Mechanism::LinearAttention),
        (model.variations.convolution.is_some(), Mechanism::Convolution),
        (model.variations.scan.is_some() || model.variations.channel_scan.is_some(), Mechanism::Scan),
        (model.variations.indexer.is_some(), Mechanism::SparseAttention),
        (layout.zero != ZeroStage::None, Mechanism::Zero(layout.zero)),
    ];
    let of_layout = of_layout.into_iter().filter(|(is, _)| *is).map(|(_, mechanism)| mechanism);
    let mut used: BTreeSet<Mechanism> = of_layout.collect();
    let own_schedule = match plan.schedule {
        PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved { .. } => None,
        other => Some(Mechanism::Schedule(other.name().to_owned())),
    };
    used.extend(own_schedule.filter(|_| pipelined));
    used.extend(mechanisms_of_formats(plan));
    used.extend((stack.kernels.loss == LossForm::Chunked).then_some(Mechanism::ChunkedLoss));
    used.extend((!stack.kernels.autocast.is_none()).then_some(Mechanism::Autocast));
    used.extend(plan.activations.distinct_policies().into_iter().flat_map(mechanisms_of_policy));
    used.extend(plan.techniques.iter().map(|technique| Mechanism::Technique(technique.preset().name.clone())));
    used
}

/// Returns the mechanisms of a plan's number formats. Formats without a mechanism are 16 bits for products, and 32 bits
/// for gradients, states and the copy of the weights.
fn mechanisms_of_formats(plan: &TrainingPlan) -> impl Iterator<Item = Mechanism> + use<> {
    let formats = plan.precision;
    let narrow = |data_type: &DataType| data_type.bytes() < 4;
    let product = formats.product.filter(|product| product.bytes() < 2).map(Mechanism::NarrowProducts);
    let states = Some(formats.state_type()).filter(|states| narrow(states) && plan.optimizer.states() > 0);
    let gradients = Some(formats.gradient).filter(narrow);
    let no_master = (narrow(&formats.operand) && formats.master.is_none()).then_some(Mechanism::NoMaster);
    [product, no_master, states.map(Mechanism::NarrowStates), gradients.map(Mechanism::NarrowGradients)]
        .into_iter()
        .flatten()
}

/// Returns the mechanisms of a policy.
pub fn mechanisms_of_policy(policy: &ActivationPolicy) -> impl Iterator<Item = Mechanism> + use<> {
    let kept = match policy {
        ActivationPolicy::None => Mechanism::KeepAll,
        ActivationPolicy::Selective | ActivationPolicy::SelectivePerOperator => Mechanism::RecomputeSelective,
        ActivationPolicy::Full => Mechanism::RecomputeFull,
        ActivationPolicy::Named { .. } | ActivationPolicy::Custom { .. } | ActivationPolicy::Tensors(_) => {
            Mechanism::RecomputeByTensor
        }
    };
    let to_nvme = policy.offloads_to_storage();
    let away = (policy.offloads_to_host() || to_nvme).then_some(Mechanism::Offload);
    std::iter::once(kept).chain(away).chain(to_nvme.then_some(Mechanism::OffloadToNvme))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(policy: &str) -> Vec<String> {
        mechanisms_of_policy(&policy.parse().unwrap()).map(|mechanism| mechanism.to_string()).collect()
    }

    #[test]
    fn a_policy_says_where_its_tensors_go() {
        assert_eq!(names("none"), ["recompute-none"]);
        assert_eq!(names("custom:device(out_proj)"), ["recompute-by-tensor"]);
        assert_eq!(names("custom:offload(decoder_layer_input)"), ["recompute-by-tensor", "offload"]);
        assert_eq!(names("tensors:device(norm_1)"), ["recompute-by-tensor"]);
        assert_eq!(names("tensors:offload(input)"), ["recompute-by-tensor", "offload"]);
        assert_eq!(names("tensors:nvme(input)"), ["recompute-by-tensor", "offload", "offload-nvme"]);
    }

    #[test]
    fn names_are_read_back() {
        for mechanism in Mechanism::OF_POLICIES {
            assert_eq!(Mechanism::from_name(mechanism.name()), mechanism);
        }
        assert_eq!(Mechanism::from_name("fp8"), Mechanism::NarrowProducts(DataType::Fp8));
        for name in ["states-bf16", "states-fp8", "gradients-bf16", "no-master", "loss-chunked"] {
            let mechanism = Mechanism::from_name(name);
            assert!(mechanism.name() == name && !matches!(mechanism, Mechanism::Technique(_)), "{name}");
        }
        assert_eq!(Mechanism::from_name("zero-3"), Mechanism::Zero(ZeroStage::Parameters));
        assert_eq!(Mechanism::from_name("telepathy"), Mechanism::Technique("telepathy".to_owned()));
        assert!(Mechanism::Zero(ZeroStage::OptimizerStates) > Mechanism::Technique("galore".to_owned()));
    }
}
