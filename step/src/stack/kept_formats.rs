//! Formats of gradients, optimizer states and master weights that a recipe chooses itself, in place of the stack's
//! usual ones.

use crate::SoftwareStack;
use serde::{Deserialize, Serialize};
use sim::files::{FaultParts, StructuredError};
use sim::kernel::DataType;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use workloads::footprint::{Optimizer, Precision};

/// The optimizer's own copy of the weights, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MasterCopy {
    /// No copy: the optimizer updates the weights that products read.
    None,
    /// A copy in fp32.
    Fp32,
}

/// The formats that a recipe chooses. `None` leaves the stack's usual one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptFormats {
    /// The optimizer's states, such as Adam's moments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<DataType>,
    /// Weight gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<DataType>,
    /// Master weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<MasterCopy>,
}

/// A format that a run cannot have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("--{key} {value}: {why}; {cure}")]
pub struct KeptFormatError {
    key: &'static str,
    value: String,
    why: String,
    cure: String,
}

impl StructuredError for KeptFormatError {
    fn fault_parts(&self) -> FaultParts {
        FaultParts::of_key(format!("--{}", self.key), &self.value, &self.why, &self.cure)
    }
}

impl fmt::Display for MasterCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Fp32 => "fp32",
        })
    }
}

impl FromStr for MasterCopy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "fp32" => Ok(Self::Fp32),
            _ => Err("must be fp32 or none".to_owned()),
        }
    }
}

impl KeptFormats {
    /// Returns whether the recipe chooses no format.
    #[must_use]
    pub fn are_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl SoftwareStack {
    /// Returns the number formats of a run under this stack ([`Self::precision_of_run`]), changed by the recipe's own
    /// choices.
    ///
    /// # Errors
    /// A format for the states of an optimizer that has none or a fixed format. No master copy under autocast.
    /// Gradients in a type that is neither the weights' nor fp32, that is not fp32 under autocast, or that differs from
    /// the fp32 weights that the stack stores.
    pub fn precision_with_formats(
        &self,
        asked: Precision,
        kept: &KeptFormats,
        optimizer: Optimizer,
    ) -> Result<Precision, KeptFormatError> {
        let error = |key, value: String, why: String, cure: String| Err(KeptFormatError { key, value, why, cure });
        let asked = match kept.master {
            None => asked,
            Some(MasterCopy::Fp32) => Precision { master: Some(DataType::Fp32), ..asked },
            // Without a copy, gradients are accumulated in the weights' type.
            Some(MasterCopy::None) => Precision { master: None, gradient: asked.operand, ..asked },
        };
        let autocast = !self.kernels.autocast.is_none();
        if autocast && asked.master.is_none() {
            let why = "under autocast the parameters are fp32, and 16-bit weights are copies".to_owned();
            return error("master", "none".to_owned(), why, "leave it out, or use kernels.autocast=none".to_owned());
        }
        let mut run = self.precision_of_run(asked);
        if let Some(states) = kept.states {
            let why = match optimizer {
                Optimizer::Adam8bit => Some("keeps its states in 8 bits"),
                Optimizer::Adafactor => Some("keeps factored states, one fp32 number per row and column"),
                _ if optimizer.states() == 0 => Some("keeps no states"),
                _ => None,
            };
            if let Some(why) = why {
                let cure = "leave it out, or use --optimizer adam".to_owned();
                return error("states", states.to_string(), format!("the optimizer {optimizer} {why}"), cure);
            }
            run.state = Some(states);
        }
        if let Some(gradients) = kept.gradients {
            let value = gradients.to_string();
            if ![run.operand, DataType::Fp32].contains(&gradients) {
                let why = format!("weights are in {}, so gradients are too, or in fp32", run.operand);
                return error("gradients", value, why, format!("use {} or fp32", run.operand));
            }
            if autocast && gradients != DataType::Fp32 {
                let why = "under autocast the parameters are fp32, and so are their gradients".to_owned();
                return error("gradients", value, why, "use fp32, or kernels.autocast=none".to_owned());
            }
            if self.memory.stored_master && run.master.is_some_and(|master| master != gradients) {
                let why = format!("stack {} stores fp32 weights, and their gradients have the same type", self.name);
                return error("gradients", value, why, "add --master none, or leave it out".to_owned());
            }
            run.gradient = gradients;
        }
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::units::Bytes;
    use workloads::footprint::BytesPerParameter;

    fn total(stack: &str, kept: KeptFormats) -> Result<u64, String> {
        let stack = SoftwareStack::load(stack).unwrap();
        let run = stack.precision_with_formats(Precision::MIXED_BF16, &kept, Optimizer::Adam);
        run.map(|run| BytesPerParameter::new(Optimizer::Adam, &run).total_bytes().0).map_err(|why| why.to_string())
    }

    #[test]
    fn bytes_per_parameter_follow_the_recipe() {
        let usual = KeptFormats::default();
        let narrow = Some(DataType::Bf16);
        // Megatron-LM: 2 of weights, 4 of gradients, 4 of master weights, 8 of moments.
        assert_eq!(total("megatron_core", usual), Ok(18));
        // DeepSeek-V3 (2024), section 3.3.3: moments in bf16.
        assert_eq!(total("megatron_core", KeptFormats { states: narrow, ..usual }), Ok(14));
        assert_eq!(total("megatron_core", KeptFormats { states: narrow, gradients: narrow, ..usual }), Ok(12));
        // All in bf16: 2 + 2 + 2 x 2, whatever the stack.
        for stack in ["megatron_core", "torchtitan", "huggingface", "nanotron", "maxtext"] {
            let pure = KeptFormats { master: Some(MasterCopy::None), ..usual };
            assert_eq!(total(stack, pure), Ok(8), "{stack}");
            assert_eq!(total(stack, KeptFormats { gradients: narrow, ..pure }), Ok(8), "{stack}");
        }
    }

    #[test]
    fn formats_that_a_run_cannot_have_are_refused_with_a_cure() {
        let wide = KeptFormats { gradients: Some(DataType::Bf16), ..KeptFormats::default() };
        assert_eq!(
            total("torchtitan", wide),
            Err("--gradients bf16: stack torchtitan stores fp32 weights, and their gradients have the same type; add \
                 --master none, or leave it out"
                .to_owned())
        );
        let stack = SoftwareStack::load("huggingface").unwrap();
        let states = KeptFormats { states: Some(DataType::Bf16), ..KeptFormats::default() };
        for (optimizer, why) in [
            (Optimizer::Sgd, "keeps no states"),
            (Optimizer::Adam8bit, "in 8 bits"),
            (Optimizer::Adafactor, "factored states"),
        ] {
            let error = stack.precision_with_formats(Precision::MIXED_BF16, &states, optimizer).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let other = KeptFormats { gradients: Some(DataType::Fp16), ..KeptFormats::default() };
        let error = stack.precision_with_formats(Precision::MIXED_BF16, &other, Optimizer::Adam).unwrap_err();
        assert!(error.to_string().ends_with("use bf16 or fp32"), "{error}");
        assert_eq!(Bytes(DataType::Fp8.bytes()), Bytes(1));
    }
}
