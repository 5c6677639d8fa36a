//! What may be done to a tensor: its representation, its place, how it is rebuilt and how it is sliced. Pure data: what follows from it is in
//! `activations` and [`super::parameters`], the same functions for every technique.
//!
//! How a tensor is *shared* among data-parallel ranks is not said here: that is the layout's ZeRO stage, which acts on whatever a policy leaves.

use super::amount::PresetAmount;
use crate::layer_names::name_within_layer;
use serde::Deserialize;
use std::fmt;

/// Kinds of tensors that training keeps or makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorClass {
    /// Weights as products read them.
    Weights,
    /// The optimizer's own copy of the weights.
    MasterWeights,
    /// Gradients of weights.
    Gradients,
    /// States of the optimizer.
    OptimizerStates,
    /// Activations that a backward pass reads.
    SavedActivations,
    /// What exists only while a block of operators runs.
    Transients,
    /// Logits and what the loss makes of them.
    Logits,
    /// What training only reads, or leaves alone: caches of keys and values, stored examples.
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

/// What a rule's numbers are before a technique is asked for with its parameters: numbers, names of parameters, or quantities of the model.
pub type PresetNumber = PresetAmount;

/// The form in which a tensor is held. `N` is [`PresetNumber`] in a preset's file and a number once the technique is asked for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Representation<N = f64> {
    /// Not at all.
    Absent,
    /// Fewer bits per number, with `meta_bytes` of scales per group of `group` numbers; one group per head and tensor where `group` is 0.
    Quantised {
        /// Bits of a number.
        bits: N,
        /// Numbers that share a scale.
        group: N,
        /// Bytes of a group's scales.
        meta_bytes: N,
        /// Whether every reader has a copy of its own.
        #[serde(default)]
        per_reader: bool,
    },
    /// `rank` numbers in place of a row's width, or of the shorter side of a weight's gradient.
    Projected {
        /// The rank.
        rank: N,
        /// Where the projection is from.
        basis: ProjectionBasis,
    },
    /// A part of the rows, with an index of each.
    SampledRows {
        /// The part.
        fraction: N,
        /// Bytes of a row's index.
        index_bytes: N,
    },
    /// One number per group of a row: its component along a fixed vector.
    GroupScalars {
        /// Groups of a row.
        groups: N,
    },
    /// Bits that say in which segment of a piecewise straight function a number lies: all that its derivative needs.
    DerivativeBits {
        /// Bits of a number.
        bits: N,
    },
    /// None of its own: what is needed is had from the operator's result, which the next product keeps anyway.
    SharedWithOutput,
    /// One number per row and one per column of a matrix, in fp32.
    Factored,
}

/// Where a projection is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProjectionBasis {
    /// Drawn again from its seed whenever it is needed: it takes no memory. The gradient and the states of the weight have its rank as well.
    Seed,
    /// Singular vectors of the gradient, kept and computed again every so many steps.
    SingularVectors,
}

/// Where a tensor goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OffloadTarget {
    /// The host's memory.
    Host,
    /// Storage.
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

/// What becomes of the part of a tensor that does not go away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemainderTreatment {
    /// It stays.
    #[default]
    Resident,
    /// It is dropped and computed again.
    Recomputed,
}

/// A place away from the device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffloadPlace<N = f64, P = OffloadTarget> {
    /// Where to.
    pub to: P,
    /// The part that goes there: tokens of an activation, numbers of anything else.
    pub fraction: N,
    /// What becomes of the rest.
    #[serde(default)]
    pub rest: RemainderTreatment,
}

/// What is computed again in the backward pass instead of being kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rebuild {
    /// What the operators make for each other; what others read of them is kept.
    Inside,
    /// All that the operators make.
    Outputs,
}

/// Along what a block is cut, one slice at work at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SliceAxis {
    /// Tokens of the sequence.
    Sequence,
    /// Parameter tensors: each is used up before the next is made.
    Parameter,
}

/// A cut.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockSlices<N = f64> {
    /// Along what.
    pub along: SliceAxis,
    /// Slices; of no meaning along parameters.
    #[serde(default = "none")]
    pub count: Option<N>,
}

fn none<N>() -> Option<N> {
    None
}

/// Which parameters of a low-rank adapter are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdapterTraining {
    /// Both factors: the first one's gradient reads the product's input.
    Both,
    /// The second factor only: it reads what the first one made, `rank` numbers per token.
    Second,
}

/// A low-rank product beside a product with frozen weights.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter<N = f64> {
    /// Its rank.
    pub rank: N,
    /// What of it is trained.
    pub trained: AdapterTraining,
}

/// Data that training does not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadOnlyItem {
    /// Keys and values of a layer for one token, in all layers.
    TokenKeyValues,
    /// A byte.
    Byte,
    /// A copy of the model in fp32.
    ModelCopy,
}

/// So many items.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadOnlyData<N = f64> {
    /// Of what.
    pub item: ReadOnlyItem,
    /// How many.
    pub count: N,
}

/// Whose backward pass reads an activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackwardReader {
    /// The gradient of a product's weights.
    Product,
    /// A normalisation.
    Norm,
    /// An elementwise nonlinearity, alone or in a gated unit.
    Activation,
    /// The product of a gate and what it gates.
    Gate,
    /// Attention: scores, softmax, context, or all in one kernel.
    Attention,
    /// Anything else.
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
    /// Which forms of what it reads its backward pass can work with: a projection, a sample or a scalar per group stands for a sum over tokens, which
    /// only the gradient of weights is; bits of a derivative suffice for a nonlinearity; a norm's input follows from its result.
    #[must_use]
    pub fn accepts_form<N>(self, form: &Representation<N>) -> bool {
        match form {
            Representation::Quantised { .. } => self != Self::Other,
            Representation::Projected { .. } | Representation::SampledRows { .. } | Representation::GroupScalars { .. } => {
                self == Self::Product
            }
            Representation::DerivativeBits { .. } => self == Self::Activation,
            Representation::SharedWithOutput => self == Self::Norm,
            Representation::Absent | Representation::Factored => false,
        }
    }
}

/// Which operators a rule is about: those whose name, after the layer's, is one of the names or goes on after it with a dot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperatorSelector {
    /// Names; none means all.
    pub operators: Vec<String>,
    /// Those left out.
    pub except: Vec<String>,
    /// An operator without which no other is meant.
    pub beside: Option<String>,
}

impl OperatorSelector {
    /// Whether an operator of this name is meant. Names of layers' operators may leave the layer's name out: `layer`, `layer.3` in a block of layers
    /// that differ, `leading_layer_0`, `trailing_layer_1`.
    #[must_use]
    pub fn selects_operator(&self, name: &str) -> bool {
        let inner = name_within_layer(name);
        let matches = |wanted: &String| {
            let is = |name: &str| name.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            is(name) || inner.is_some_and(is)
        };
        (self.operators.is_empty() || self.operators.iter().any(matches)) && !self.except.iter().any(matches)
    }
}

/// One line of a technique: what is done to the tensors of a class at some operators.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TechniqueRule<N = f64, P = OffloadTarget> {
    /// The tensors' class.
    pub class: TensorClass,
    /// The operators.
    #[serde(default)]
    pub at: OperatorSelector,
    /// Of saved activations: whose reading is meant; everybody's where none is given.
    #[serde(default = "none")]
    pub read_by: Option<BackwardReader>,
    /// Of saved activations that go away: their names, without the layer's; all that the operators read where none is given.
    #[serde(default)]
    pub tensors: Vec<String>,
    /// The form.
    #[serde(default = "none")]
    pub representation: Option<Representation<N>>,
    /// The place.
    #[serde(default = "none")]
    pub place: Option<OffloadPlace<N, P>>,
    /// What is computed again.
    #[serde(default = "none")]
    pub rebuild: Option<Rebuild>,
    /// The cut.
    #[serde(default = "none")]
    pub slice: Option<BlockSlices<N>>,
    /// Of weights: whether they are frozen.
    #[serde(default)]
    pub frozen: bool,
    /// Of weights: an adapter beside the product.
    #[serde(default = "none")]
    pub adapter: Option<Adapter<N>>,
    /// Of weights: further copies of all that are trained, of so many bytes a number: what a term of the loss holds weights near to, with 3 operations
    /// per number in the update.
    #[serde(default = "none")]
    pub copy_bytes: Option<N>,
    /// Of read-only data: how much.
    #[serde(default = "none")]
    pub stock: Option<ReadOnlyData<N>>,
    /// A parameter that switches the rule off where it is 0.
    #[serde(default = "none")]
    pub when: Option<N>,
}

/// What a technique does to the result of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingEffect {
    /// Nothing: the same numbers but for rounding.
    Exact,
    /// Gradients are right on average, with more variance.
    Unbiased,
    /// Gradients, or updates, are others.
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
        assert!(of(&[], &["head"]).selects_operator("layer.attention.core") && !of(&[], &["head"]).selects_operator("head.loss"));
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
