//! The data of techniques' rules. A rule can change a tensor's representation, its place, how it is rebuilt and how it
//! is sliced. `activations` and [`super::parameters`] compute the consequences, the same way for every technique.
//!
//! Sharding over data-parallel ranks is not part of a rule. The layout's ZeRO stage shards the bytes that remain after
//! the rules.

use super::amount::PresetAmount;
use crate::layer_names::name_within_layer;
use serde::Deserialize;
use std::fmt;

/// Classes of tensors that training keeps or makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorClass {
    /// Weights in the form that products read.
    Weights,
    /// The optimizer's master copy of the weights.
    MasterWeights,
    /// Weight gradients.
    Gradients,
    /// Optimizer states.
    OptimizerStates,
    /// Activations that a backward pass reads.
    SavedActivations,
    /// Tensors that exist only while a group of operators runs.
    Transients,
    /// Logits and the tensors that the loss makes from them.
    Logits,
    /// Data that training reads or keeps but does not make: key/value caches, stored examples.
    ReadOnly,
}

impl fmt::Display for TensorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights",
            Self::MasterWeights => "master weights",
            Self::Gradients => "gradients",
            Self::OptimizerStates => "optimizer states",
            Self::SavedActivations => "saved activations",
            Self::Transients => "transients",
            Self::Logits => "logits",
            Self::ReadOnly => "read-only data",
        })
    }
}

/// A number in a rule before the technique's parameters are known: a literal, the name of a parameter or of a quantity
/// of the model, or a formula.
pub type PresetNumber = PresetAmount;

/// The form in which a tensor is held. `N` is [`PresetNumber`] in a preset's file, and `f64` once the parameters are
/// known.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Representation<N = f64> {
    /// The tensor is not held.
    Absent,
    /// Fewer bits per number, with `meta_bytes` of scales per group of `group` numbers. For an activation with `group`
    /// 0, each head of the tensor is one group.
    Quantised {
        /// Bits per number.
        bits: N,
        /// Number of values that share one scale.
        group: N,
        /// Bytes of one group's scales.
        meta_bytes: N,
        /// True if every reader keeps its own quantised copy.
        #[serde(default)]
        per_reader: bool,
    },
    /// A row reduced to `rank` numbers, or the shorter side of a weight's gradient reduced to `rank`.
    Projected {
        /// The rank.
        rank: N,
        /// Origin of the projection's basis.
        basis: ProjectionBasis,
    },
    /// A random sample of the rows, with one index per sampled row.
    SampledRows {
        /// The sampled fraction of the rows.
        fraction: N,
        /// Bytes of one row's index.
        index_bytes: N,
    },
    /// One number per group of a row: the component of the group along a fixed vector.
    GroupScalars {
        /// Number of groups per row.
        groups: N,
    },
    /// Bits that name the segment of a piecewise linear function in which a number lies. They suffice for the
    /// derivative.
    DerivativeBits {
        /// Bits per number.
        bits: N,
    },
    /// No copy of its own: the backward pass uses the operator's result, which the next product keeps anyway.
    SharedWithOutput,
    /// One fp32 number per row and one per column of a matrix.
    Factored,
}

/// Origin of a projection's basis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProjectionBasis {
    /// A random basis, drawn again from its seed whenever it is needed, so it takes no memory. The weight's gradient
    /// and states have the same rank.
    Seed,
    /// Singular vectors of the gradient, kept and recomputed every `decomposed_every` steps.
    SingularVectors,
}

/// The memory to which a tensor is offloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OffloadTarget {
    /// Host memory.
    Host,
    /// Storage (NVMe).
    Nvme,
}

impl fmt::Display for OffloadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Nvme => "NVMe",
        })
    }
}

/// Treatment of the part of a tensor that is not offloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemainderTreatment {
    /// The rest stays on the device.
    #[default]
    Resident,
    /// The rest is dropped and recomputed.
    Recomputed,
}

/// A place outside the device's memory.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffloadPlace<N = f64, P = OffloadTarget> {
    /// The memory that receives the tensor.
    pub to: P,
    /// The offloaded fraction: of an activation's tokens, or of another tensor's elements.
    pub fraction: N,
    /// Treatment of the remainder.
    #[serde(default)]
    pub rest: RemainderTreatment,
}

/// Outputs that are recomputed in the backward pass instead of kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rebuild {
    /// Outputs that only the selected operators read. Outputs that other operators read are kept.
    Inside,
    /// All outputs of the selected operators.
    Outputs,
}

/// The axis along which a block is sliced. One slice is processed at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SliceAxis {
    /// Tokens of the sequence.
    Sequence,
    /// Parameter tensors: each gradient is consumed before the next one is made.
    Parameter,
    /// Tensors: each offloaded tensor leaves and returns by itself, as the tensors before it in the pass are freed.
    Tensor,
}

/// A way to slice a block.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockSlices<N = f64> {
    /// The axis.
    pub along: SliceAxis,
    /// Number of slices. For offloaded activations, it is the number of layers per device that are not offloaded. It is
    /// unused along parameters.
    #[serde(default = "no_value")]
    pub count: Option<N>,
}

fn no_value<N>() -> Option<N> {
    None
}

/// The factors of a low-rank adapter that are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdapterTraining {
    /// Both factors. The first factor's gradient reads the product's input.
    Both,
    /// Only the second factor. Its gradient reads the first factor's result, `rank` numbers per token.
    Second,
}

/// The computation of an adapter attached to a product with frozen weights of `inputs` x `outputs` elements. Each
/// variant also names the tensors that the adapter's backward pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdapterForm {
    /// Two products through `rank` numbers per token. It reads the input and those numbers (Hu et al., LoRA, 2021).
    #[default]
    LowRank,
    /// As `LowRank`, with the result scaled by a trained magnitude over the norm of the whole weights. It also reads
    /// both summands of the result (Liu et al., DoRA, 2024; PEFT, `tuners/lora/dora.py`).
    Decomposed,
    /// Two products through `rank` numbers, minus a projection of the frozen product's result. It also reads that
    /// result in the adapter's type (PEFT, `tuners/deft/layer.py`).
    Corrected,
    /// Two frozen products through `rank` numbers, which all layers share, with trained factors for the `rank` numbers
    /// and for the result. It reads the scaled tensors (Kopiczko et al., VeRA, 2023; PEFT, `tuners/vera/layer.py`).
    SharedProjection,
    /// The sums of `inputs / rank` inputs, multiplied with trained weights of `rank` x `outputs`. It reads the sums
    /// (Kang and Yin, MiSS, 2024; PEFT, `tuners/miss/layer.py`).
    InputSums,
    /// A product with an update of the whole weights. The update is recomputed from trained numbers, as many as a pair
    /// of products of rank `rank` has. It reads the input and the update (Hyeon-Woo et al., LoHa, 2021; PEFT,
    /// `tuners/lycoris_utils.py`, `get_delta_weight`).
    WeightUpdate,
    /// The product of the input with changed weights, which are recomputed in the weights' type. It reads the input and
    /// the changed weights (Chavan et al., GLoRA, 2023; PEFT, `tuners/glora/layer.py`).
    ChangedWeights,
    /// Trained factors of the input. It reads the input (Liu et al., IA3, 2022; PEFT, `tuners/ia3/layer.py`).
    ScaledInput,
    /// Trained factors of the result. It reads the result (source as for `ScaledInput`).
    ScaledOutput,
    /// A trained bias. It reads nothing (Ben Zaken et al., BitFit, 2021).
    Bias,
}

/// Trained parameters attached to a product with frozen weights.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter<N = f64> {
    /// Rank of the adapter; 1 for forms without a rank.
    pub rank: N,
    /// The trained factors.
    pub trained: AdapterTraining,
    /// The adapter's computation.
    #[serde(default)]
    pub form: AdapterForm,
}

/// The unit of an amount of read-only data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadOnlyItem {
    /// Keys and values of one token in all layers.
    TokenKeyValues,
    /// One byte.
    Byte,
    /// An fp32 copy of the model.
    ModelCopy,
}

/// An amount of read-only data.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadOnlyData<N = f64> {
    /// The unit.
    pub item: ReadOnlyItem,
    /// Number of units.
    pub count: N,
}

/// The kind of backward pass that reads an activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackwardReader {
    /// The gradient of a product's weights.
    Product,
    /// A normalisation.
    Norm,
    /// An elementwise nonlinearity, by itself or in a gated unit.
    Activation,
    /// The product of a gate and the gated tensor.
    Gate,
    /// Attention: scores, softmax and context, or one kernel for all of them.
    Attention,
    /// Any other operator.
    Other,
}

impl fmt::Display for BackwardReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Product => "the gradient of a product's weights",
            Self::Norm => "a norm",
            Self::Activation => "a nonlinearity",
            Self::Gate => "a gate",
            Self::Attention => "attention",
            Self::Other => "an operator that needs it exactly",
        })
    }
}

impl BackwardReader {
    /// Returns whether this kind of backward pass can use `form`. Projections, samples and group scalars replace a sum
    /// over tokens, and only weight gradients are such sums. Derivative bits suffice for a nonlinearity. A norm can
    /// recover its input from its result.
    #[must_use]
    pub fn accepts_form<N>(self, form: &Representation<N>) -> bool {
        match form {
            Representation::Quantised { .. } => self != Self::Other,
            Representation::Projected { .. }
            | Representation::SampledRows { .. }
            | Representation::GroupScalars { .. } => self == Self::Product,
            Representation::DerivativeBits { .. } => self == Self::Activation,
            Representation::SharedWithOutput => self == Self::Norm,
            Representation::Absent | Representation::Factored => false,
        }
    }
}

/// The operators that a rule applies to. A listed name selects the operator of that name within a layer, and all
/// operators whose names continue it after a dot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperatorSelector {
    /// Selected names; empty selects all operators.
    pub operators: Vec<String>,
    /// Names that are excluded.
    pub except: Vec<String>,
    /// The end of the name of an operator that the segment must have. Without such an operator, the rule does not
    /// apply.
    pub beside: Option<String>,
}

impl OperatorSelector {
    /// Returns whether the selector selects the operator `name`. Listed names may omit the layer's name: `layer`,
    /// `layer.3` (in a block of different layers), `leading_layer_0` or `trailing_layer_1`.
    #[must_use]
    pub fn selects_operator(&self, name: &str) -> bool {
        let inner = name_within_layer(name);
        let matches = |wanted: &String| {
            let is = |name: &str| {
                name.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            is(name) || inner.is_some_and(is)
        };
        (self.operators.is_empty() || self.operators.iter().any(matches)) && !self.except.iter().any(matches)
    }
}

/// One rule of a technique: its effect on the tensors of one class at some operators.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TechniqueRule<N = f64, P = OffloadTarget> {
    /// Class of the tensors.
    pub class: TensorClass,
    /// Selected operators.
    #[serde(default)]
    pub at: OperatorSelector,
    /// For saved activations: the kind of backward pass whose reads the rule changes; all kinds if absent.
    #[serde(default = "no_value")]
    pub read_by: Option<BackwardReader>,
    /// For offloaded activations: tensor names without the layer's name. An empty list selects all tensors that the
    /// operators' backward passes read.
    #[serde(default)]
    pub tensors: Vec<String>,
    /// The new representation.
    #[serde(default = "no_value")]
    pub representation: Option<Representation<N>>,
    /// The new place.
    #[serde(default = "no_value")]
    pub place: Option<OffloadPlace<N, P>>,
    /// The outputs that are recomputed.
    #[serde(default = "no_value")]
    pub rebuild: Option<Rebuild>,
    /// The slicing.
    #[serde(default = "no_value")]
    pub slice: Option<BlockSlices<N>>,
    /// For weights: true if they are frozen.
    #[serde(default)]
    pub frozen: bool,
    /// For quantised weights: true if their products keep the input for the backward pass, although no weight gradient
    /// needs it (bitsandbytes, `autograd/_functions.py`: `ctx.tensors = (A, B)`).
    #[serde(default)]
    pub keeps_input: bool,
    /// For weights: an adapter attached to the product.
    #[serde(default = "no_value")]
    pub adapter: Option<Adapter<N>>,
    /// For weights: bytes per number of a further copy of all trained weights. A penalty term of the loss keeps the
    /// weights near that copy, at 3 operations per number in the update.
    #[serde(default = "no_value")]
    pub copy_bytes: Option<N>,
    /// For read-only data: its amount.
    #[serde(default = "no_value")]
    pub stock: Option<ReadOnlyData<N>>,
    /// A parameter that switches the rule off if it is 0; `None` means always on.
    #[serde(default = "no_value")]
    pub when: Option<N>,
}

/// Effect of a technique on the result of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingEffect {
    /// No effect except rounding.
    Exact,
    /// Gradients are unbiased, with more variance.
    Unbiased,
    /// Gradients or updates are biased.
    Biased,
}

impl fmt::Display for TrainingEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Unbiased => "unbiased",
            Self::Biased => "biased",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_take_whole_words() {
        let of = |operators: &[&str], except: &[&str]| OperatorSelector {
            operators: operators.iter().map(|s| (*s).to_owned()).collect(),
            except: except.iter().map(|s| (*s).to_owned()).collect(),
            beside: None,
        };
        assert!(of(&["mlp"], &[]).selects_operator("layer.mlp.down"));
        assert!(of(&["mlp"], &[]).selects_operator("leading_layer_0.mlp.down"));
        assert!(of(&["mlp"], &[]).selects_operator("trailing_layer_1.mlp.down"));
        assert!(
            of(&["mlp"], &[]).selects_operator("layer.1.mlp.down")
                && !of(&["attention"], &[]).selects_operator("layer.1.mlp.down")
        );
        assert!(!of(&["moe"], &["moe.router"]).selects_operator("layer.0.moe.router"));
        assert!(!of(&["mlp.down"], &[]).selects_operator("layer.mlp.down_scale"));
        assert!(!of(&["attention"], &["attention.output"]).selects_operator("layer.attention.output"));
        assert!(of(&["head.logits"], &[]).selects_operator("head.logits"));
        assert!(
            of(&[], &["head"]).selects_operator("layer.attention.core")
                && !of(&[], &["head"]).selects_operator("head.loss")
        );
    }

    #[test]
    fn only_sums_over_tokens_take_projections() {
        let projected: Representation = Representation::Projected { rank: 8.0, basis: ProjectionBasis::Seed };
        assert!(
            BackwardReader::Product.accepts_form(&projected)
                && !BackwardReader::Attention.accepts_form(&projected)
                && !BackwardReader::Norm.accepts_form(&projected)
        );
        let bits: Representation = Representation::DerivativeBits { bits: 2.0 };
        assert!(
            BackwardReader::Activation.accepts_form(&bits)
                && !BackwardReader::Product.accepts_form(&bits)
                && !BackwardReader::Gate.accepts_form(&bits)
        );
    }
}
