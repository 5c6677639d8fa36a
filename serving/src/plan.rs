//! The plan of one replica: its degrees and number formats.

use crate::ServingError;
use crate::context::{self, SharedCache};
use serde::{Deserialize, Serialize};
use sim::kernel::DataType;
use workloads::footprint::Precision;
use workloads::serving::{ServingPass, WeightsOf};
use workloads::{Lowering, Model};

/// The format of products with weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServedProduct {
    /// Weights and activations in bf16.
    Bf16,
    /// Weights and activations in fp8.
    Fp8,
    /// Weights and activations in 8-bit integers.
    Int8,
    /// Weights and activations in MXFP8.
    Mxfp8,
    /// Weights and activations in NVFP4.
    Nvfp4,
    /// Weights and activations in MXFP4.
    Mxfp4,
    /// Weights stored in fp8 and converted to bf16 on their way to the arrays.
    Fp8Weights,
    /// Weights stored in MXFP4 and converted to bf16: 4 bits, and 8 bits of scale per 32 numbers (OCP Microscaling
    /// Formats 1.0, table 1).
    Mxfp4Weights,
    /// Weights stored in NVFP4 and converted to bf16: 4 bits, and 8 bits of scale per 16 numbers.
    Nvfp4Weights,
    /// Weights stored as 4-bit integers and converted to bf16, with 16 bits of scale per 128 numbers (GPTQ and AWQ's
    /// usual group).
    Int4Weights,
}

impl ServedProduct {
    /// All formats.
    pub const ALL: [Self; 10] = [
        Self::Bf16,
        Self::Fp8,
        Self::Int8,
        Self::Mxfp8,
        Self::Nvfp4,
        Self::Mxfp4,
        Self::Fp8Weights,
        Self::Mxfp4Weights,
        Self::Nvfp4Weights,
        Self::Int4Weights,
    ];

    /// Returns the format's name in files, options and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Fp8Weights => "fp8-weights",
            Self::Mxfp4Weights => "mxfp4-weights",
            Self::Nvfp4Weights => "nvfp4-weights",
            Self::Int4Weights => "int4-weights",
        }
    }

    /// Returns the format of this name; `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns the type of the products' operands.
    #[must_use]
    pub fn operand(self) -> DataType {
        match self {
            Self::Fp8 => DataType::Fp8,
            Self::Int8 => DataType::Int8,
            Self::Mxfp8 => DataType::Mxfp8,
            Self::Nvfp4 => DataType::Nvfp4,
            Self::Mxfp4 => DataType::Mxfp4,
            Self::Bf16 | Self::Fp8Weights | Self::Mxfp4Weights | Self::Nvfp4Weights | Self::Int4Weights => {
                DataType::Bf16
            }
        }
    }

    /// Returns the format for arrays that cannot multiply this one: about as many bits per stored weight, multiplied in
    /// bf16.
    #[must_use]
    pub fn stored(self) -> Self {
        match self {
            Self::Fp8 | Self::Mxfp8 => Self::Fp8Weights,
            Self::Nvfp4 => Self::Nvfp4Weights,
            Self::Mxfp4 => Self::Mxfp4Weights,
            Self::Int8 => Self::Bf16,
            stored => stored,
        }
    }

    /// Returns the bytes of a stored weight, scales included.
    #[must_use]
    pub fn bytes_of_weight(self) -> f64 {
        match self {
            Self::Fp8Weights => 1.0,
            Self::Mxfp4Weights => 0.5 + 1.0 / 32.0,
            Self::Nvfp4Weights => 0.5 + 1.0 / 16.0,
            Self::Int4Weights => 0.5 + 2.0 / 128.0,
            _ => self.operand().packed_bytes_per_number(),
        }
    }
}

impl std::fmt::Display for ServedProduct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Number formats of a deployment. Activations, the embedding, routers and the head are bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServingFormats {
    /// Products of the layers outside experts.
    pub products: ServedProduct,
    /// Experts' products.
    pub experts: ServedProduct,
    /// Keys and values in the cache.
    pub cache: DataType,
}

impl ServingFormats {
    /// Everything in bf16.
    pub const BF16: Self = Self { products: ServedProduct::Bf16, experts: ServedProduct::Bf16, cache: DataType::Bf16 };

    /// Returns the bytes of a stored weight.
    pub(crate) fn bytes_of_weight(&self, of: WeightsOf) -> f64 {
        match of {
            WeightsOf::Layers => self.products.bytes_of_weight(),
            WeightsOf::Experts => self.experts.bytes_of_weight(),
            WeightsOf::Rest => DataType::Bf16.bytes() as f64,
        }
    }
}

/// The degrees of one replica. It has `tensor * pipeline * attention_data` devices; `context` adds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServingPlan {
    /// Number of devices that split every layer.
    pub tensor: u32,
    /// Number of pipeline stages.
    pub pipeline: u32,
    /// Number of tensor-parallel groups that each attend for sequences of their own and share the experts of all.
    pub attention_data: u32,
    /// Number of parts of a stage that hold whole experts of their own. While `attention_data` is 1, it divides
    /// `tensor`, and the group's sum joins the parts. Otherwise it is `tensor * attention_data`, and all-to-alls take
    /// tokens to their experts.
    pub expert: u32,
    /// Number of devices of a tensor-parallel group that share the tokens of a sequence. It divides the number that
    /// hold the same keys ([`crate::context`]).
    #[serde(default = "one_device")]
    pub context: u32,
    /// Number formats.
    pub formats: ServingFormats,
}

/// Returns the default degree, for records of earlier versions without it.
const fn one_device() -> u32 {
    1
}

impl ServingPlan {
    /// Returns the plan of one device.
    #[must_use]
    pub const fn of_one_device(formats: ServingFormats) -> Self {
        Self { tensor: 1, pipeline: 1, attention_data: 1, expert: 1, context: 1, formats }
    }

    /// Returns the number of devices of a replica.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.tensor.saturating_mul(self.pipeline).saturating_mul(self.attention_data)
    }

    /// Checks the degrees against each other and against the model.
    ///
    /// # Errors
    /// A degree that is zero or does not divide what it must.
    pub fn check_degrees(&self, model: &Model) -> Result<(), ServingError> {
        let fault = |key, value: u32, limit: String, cure: String| {
            Err(ServingError::Plan { key, value: value.to_string(), limit, cure })
        };
        let degrees = [
            ("tp", self.tensor),
            ("pp", self.pipeline),
            ("attention_dp", self.attention_data),
            (context::KEY, self.context),
        ];
        if let Some((key, value)) = degrees.into_iter().find(|(_, value)| *value == 0) {
            return fault(key, value, "must be at least 1".to_owned(), "give 1 or more".to_owned());
        }
        let layers = model.layers;
        if u64::from(self.pipeline) > layers {
            let limit = format!("has only {layers} layers or blocks to share out");
            return fault("pp", self.pipeline, limit, format!("give at most {layers}"));
        }
        if self.pipeline > 1 && model.variations.shared_block.is_some() {
            let limit = "must be 1: layers share the weights of a block, and copies on several stages are not modelled";
            return fault("pp", self.pipeline, limit.to_owned(), "give 1".to_owned());
        }
        context::check_degree(model, self.tensor, self.context)?;
        let Some(experts) = model.experts else {
            if self.expert == 1 && self.attention_data == 1 {
                return Ok(());
            }
            let key = if self.expert > 1 { "ep" } else { "attention_dp" };
            let limit = "needs experts, which the model has not".to_owned();
            return fault(key, self.expert.max(self.attention_data), limit, "give 1: replicas do the same".to_owned());
        };
        let group = self.tensor.saturating_mul(self.attention_data);
        if self.attention_data > 1 && self.expert != group {
            let limit = format!("must be tp x attention_dp = {group} where attention is data-parallel");
            return fault("ep", self.expert, limit, format!("give {group}"));
        }
        if self.expert == 0 || !group.is_multiple_of(self.expert) || !experts.count.is_multiple_of(self.expert.into()) {
            let limit = format!("must divide the {group} devices of a stage and the {} experts", experts.count);
            return fault("ep", self.expert, limit, "give such a divisor".to_owned());
        }
        Ok(())
    }

    /// Returns the cache whose tokens devices share; `None` if they share none.
    #[must_use]
    pub fn shared_cache(&self, model: &Model) -> Option<SharedCache> {
        SharedCache::of_ranks(model, self.context, self.formats.cache)
    }

    /// Returns the lowering of a pass over `new` tokens of `sequences` sequences on one tensor-parallel group.
    pub(crate) fn lowering(&self, model: &Model, sequences: u64, new: u64) -> Lowering {
        let formats = self.formats;
        let narrow = Some(formats.products.operand()).filter(|operand| *operand != DataType::Bf16);
        let travels = self.attention_data > 1;
        Lowering {
            micro_batch: sequences,
            sequence_length: new,
            tensor_parallel: self.tensor,
            expert_parallel: if travels { self.expert } else { 1 },
            expert_tensor_parallel: travels.then_some(1),
            expert_deduplicated: travels,
            precision: Precision { product: narrow, ..Precision::PURE_BF16 },
            elementwise_fusion: true,
            cached_conversions: true,
            weighted_experts: true,
            ..Lowering::new(model)
        }
    }

    /// Returns the settings that serving adds to a pass after `cached` tokens.
    pub(crate) fn pass_after(&self, cached: u64) -> ServingPass {
        let experts = self.formats.experts.operand();
        let expert_product = (experts != self.formats.products.operand()).then_some(experts);
        // Groups with attention of their own exchange tokens by all-to-alls.
        let expert_ranks = if self.attention_data > 1 { 1 } else { self.expert };
        ServingPass { cached, expert_ranks, expert_product, verifies: false }
    }
}
