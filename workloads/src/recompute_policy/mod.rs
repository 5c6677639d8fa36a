//! Policies for the activations that a layer keeps for its backward pass, by the names that training frameworks use.
//!
//! An [`ActivationPolicy`] is parsed from text and printed as the same text. [`ActivationPolicy::treatment_of_segment`]
//! turns the policy into the [`Treatment`] of a segment: the operators to recompute, the tensors kept on the device and
//! the offloaded tensors. Policies apply to transformer layers. The embedding and the head keep all tensors that their
//! backward passes read, as in Megatron-LM, TorchTitan and MaxText.
//!
//! | text | kept per layer |
//! |---|---|
//! | `none` | everything that the backward pass reads |
//! | `selective` | all except the attention core, which is recomputed (Korthikanti et al. 2022, section 5) |
//! | `selective_per_operator` | results of attention and of every second product with weights (TorchTitan, see below) |
//! | `full` | the layer's input (`full_offloaded`: in host memory) |
//! | `minimal` | results of all products with weights (MaxText `minimal`) |
//! | `minimal_with_context` | `minimal` and attention's result |
//! | `save_qkv_proj`, `save_out_proj` | query, key and value; the attention's output projection |
//! | `save_dot_except_mlp` | query, key, value and output projection |
//! | `save_dot_with_context_except_mlp` | `save_dot_except_mlp` and attention's result |
//! | `save_dot_except_mlpwi` | `minimal` without the MLP's first products |
//! | `save_dot_except_logits` | all products but the attention scores, hence with attention's result (Paxml) |
//! | `save_dot_except_logits_ffn1` | `save_dot_except_logits` without the MLP's first products (Paxml) |
//! | any MaxText or Paxml name + `_offloaded` | the same tensors in host memory |
//! | `custom:offload(a,b)+device(c)` | the named tensors, in host memory or on the device |
//! | `tensors:offload(a,b)+nvme(c)+device(d)` | the tensors by their operators' names for them (`attention.core.out`) |
//!
//! `selective_per_operator` counts products in order of execution, and keeps the first, the third and so on. Under
//! sequence parallelism it also keeps reduce-scattered sums (TorchTitan's `selective_ac_option = "op"`).
//!
//! `tensors:` can express every choice of tensors. `a*0.25` offloads a quarter of a tensor's tokens and keeps the rest
//! on the device. `+rest(recompute)` recomputes the rest instead (MEMO).
//!
//! The layer's input is always kept, on the device unless `decoder_layer_input` is offloaded. Listing it under `device`
//! changes nothing, but allows a list without other tensors: `custom:device(decoder_layer_input)`. This policy is like
//! `full`, but always recomputes only what is needed. A named tensor that neither the backward pass nor a recomputation
//! reads is not kept (JAX drops it). `selective_per_operator` does keep it in eager execution, where the framework
//! caches results before it knows their readers ([`ReplayExtent::WholeRegion`]).

mod leading_layers;
mod tensor_names;
mod treatment;

use self::tensor_names::tensors_by_name;
pub use self::tensor_names::{TensorPlaces, TokenShare};
pub use self::treatment::Treatment;
use crate::error::{WorkloadError, find_nearest};
use crate::graph::{Gradient, OperatorGraph, OperatorNode, OperatorRole, RecomputeSet, TensorId};
use crate::layer_names::{block_boundary_tensors, layer_prefixes};
use serde::{Deserialize, Serialize};
use sim::kernel::{CollectiveKind, Kernel};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A tensor of a layer that policies can name, by its MaxText name (`remat_policy: custom`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedTensor {
    /// The layer's input.
    DecoderLayerInput,
    /// Queries in the form that attention reads (rotated).
    QueryProj,
    /// Keys in the form that attention reads (rotated).
    KeyProj,
    /// Values.
    ValueProj,
    /// Queries, keys and values.
    QkvProj,
    /// Attention's result, with the log-sum-exp of fused attention.
    Context,
    /// Result of the attention's output projection.
    OutProj,
    /// Results of all the MLP's first products.
    Mlpwi,
    /// Result of the gate product, the first of a gated MLP's first products. In an MLP without a gate, its first
    /// product.
    #[serde(rename = "mlpwi_0")]
    Mlpwi0,
    /// Result of the up product, the second of a gated MLP's first products.
    #[serde(rename = "mlpwi_1")]
    Mlpwi1,
    /// Result of the MLP's last product.
    Mlpwo,
}

impl NamedTensor {
    const ALL: [(&'static str, Self); 11] = [
        ("decoder_layer_input", Self::DecoderLayerInput),
        ("query_proj", Self::QueryProj),
        ("key_proj", Self::KeyProj),
        ("value_proj", Self::ValueProj),
        ("qkv_proj", Self::QkvProj),
        ("context", Self::Context),
        ("out_proj", Self::OutProj),
        ("mlpwi", Self::Mlpwi),
        ("mlpwi_0", Self::Mlpwi0),
        ("mlpwi_1", Self::Mlpwi1),
        ("mlpwo", Self::Mlpwo),
    ];

    fn parse_name(text: &str) -> Result<Self, WorkloadError> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, tensor)| *tensor).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            unknown_policy_error("tensor", text, &known)
        })
    }

    /// Returns all tensors that policies can name.
    pub fn all_names() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(_, tensor)| tensor)
    }

    /// Returns the tensors that this name stands for, in all layers of the graph.
    #[must_use]
    pub fn resolve_tensors(self, graph: &OperatorGraph) -> Vec<TensorId> {
        layer_prefixes(graph).iter().flat_map(|layer| self.resolve_in_layer(graph, layer)).collect()
    }

    /// Returns the tensors that this name stands for, in the layer whose names begin with `layer`.
    fn resolve_in_layer(self, graph: &OperatorGraph, layer: &str) -> Vec<TensorId> {
        let tensor = |name: &&str| graph.find_tensor(&format!("{layer}.{name}"));
        let first = |names: &[&str]| names.iter().find_map(tensor).into_iter().collect::<Vec<_>>();
        let all = |names: &[&str]| names.iter().filter_map(tensor).collect::<Vec<_>>();
        // Returns the tensors of the routed experts or the MLP, and those of the shared expert.
        let both = |names: &[&str], shared: &[&str]| first(names).into_iter().chain(first(shared)).collect::<Vec<_>>();
        match self {
            Self::DecoderLayerInput => graph.find_tensor("layer.input").into_iter().collect(),
            Self::QueryProj => first(&["attention.rope.query", "attention.query.out", "attention.qkv.query"]),
            Self::KeyProj => first(&["attention.rope.key", "attention.key.out", "attention.qkv.key"]),
            Self::ValueProj => first(&["attention.value.out", "attention.qkv.value", "attention.kv_up.value"]),
            Self::QkvProj => [Self::QueryProj, Self::KeyProj, Self::ValueProj]
                .into_iter()
                .flat_map(|t| t.resolve_in_layer(graph, layer))
                .collect(),
            Self::Context => all(&[
                "attention.core.out",
                "attention.core.log_sum_exp",
                "attention.context.out",
                "cross.core.out",
                "cross.core.log_sum_exp",
                "cross.context.out",
                "scan.core.out",
                "linear.core.out",
            ]),
            Self::OutProj => all(&["attention.output.out", "cross.output.out", "scan.out.out", "linear.out.out"]),
            Self::Mlpwi0 => both(
                &["mlp.gate.out", "mlp.gate_up.gate", "mlp.fc1.out", "moe.gate_up.gate", "moe.fc1.out"],
                &["moe.shared.gate.out", "moe.shared.gate_up.gate", "moe.shared.fc1.out"],
            ),
            Self::Mlpwi1 => both(
                &["mlp.up.out", "mlp.gate_up.up", "moe.gate_up.up"],
                &["moe.shared.up.out", "moe.shared.gate_up.up"],
            ),
            Self::Mlpwi => {
                [Self::Mlpwi0, Self::Mlpwi1].into_iter().flat_map(|t| t.resolve_in_layer(graph, layer)).collect()
            }
            Self::Mlpwo => both(
                &["mlp.down.out", "mlp.fc2.out", "moe.down.out", "moe.fc2.out"],
                &["moe.shared.down.out", "moe.shared.fc2.out"],
            ),
        }
    }
}

impl fmt::Display for NamedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, tensor)| tensor == self).map_or("", |(name, _)| name))
    }
}

/// A policy of MaxText or Paxml: a named list of tensors to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedPolicy {
    /// Results of products with weights.
    Minimal,
    /// `minimal` and attention's result.
    MinimalWithContext,
    /// Query, key and value.
    SaveQkvProj,
    /// The result of attention's output projection.
    SaveOutProj,
    /// Query, key, value and output projection.
    SaveDotExceptMlp,
    /// Query, key, value, output projection and attention's result.
    SaveDotWithContextExceptMlp,
    /// Results of products with weights, without the MLP's first products.
    SaveDotExceptMlpwi,
    /// Results of every product except the scores.
    SaveDotExceptLogits,
    /// Results of every product except the scores and the MLP's first products.
    SaveDotExceptLogitsFfn1,
}

impl NamedPolicy {
    const ALL: [(&'static str, Self); 9] = [
        ("minimal", Self::Minimal),
        ("minimal_with_context", Self::MinimalWithContext),
        ("save_qkv_proj", Self::SaveQkvProj),
        ("save_out_proj", Self::SaveOutProj),
        ("save_dot_except_mlp", Self::SaveDotExceptMlp),
        ("save_dot_with_context_except_mlp", Self::SaveDotWithContextExceptMlp),
        ("save_dot_except_mlpwi", Self::SaveDotExceptMlpwi),
        ("save_dot_except_logits", Self::SaveDotExceptLogits),
        ("save_dot_except_logits_ffn1", Self::SaveDotExceptLogitsFfn1),
    ];

    /// Returns all named policies.
    pub fn all_policies() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(_, policy)| policy)
    }

    /// Returns the tensors that the policy keeps besides the layer's input.
    #[must_use]
    pub fn kept_tensor_names(self) -> &'static [NamedTensor] {
        use NamedTensor::{Context, Mlpwi, Mlpwo, OutProj, QkvProj};
        match self {
            Self::Minimal => &[QkvProj, OutProj, Mlpwi, Mlpwo],
            Self::MinimalWithContext | Self::SaveDotExceptLogits => &[QkvProj, Context, OutProj, Mlpwi, Mlpwo],
            Self::SaveQkvProj => &[QkvProj],
            Self::SaveOutProj => &[OutProj],
            Self::SaveDotExceptMlp => &[QkvProj, OutProj],
            Self::SaveDotWithContextExceptMlp => &[QkvProj, Context, OutProj],
            Self::SaveDotExceptMlpwi => &[QkvProj, OutProj, Mlpwo],
            Self::SaveDotExceptLogitsFfn1 => &[QkvProj, Context, OutProj, Mlpwo],
        }
    }
}

/// A policy for the activations that a layer keeps for its backward pass; the rest is recomputed. The module page has
/// the grammar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ActivationPolicy {
    /// Everything is kept.
    #[default]
    None,
    /// The attention core is recomputed.
    Selective,
    /// Results of attention and of every second product are kept.
    SelectivePerOperator,
    /// Only the layer's input is kept.
    Full,
    /// A named list of tensors.
    Named {
        /// The list.
        policy: NamedPolicy,
        /// True if the tensors are offloaded to host memory.
        offloaded: bool,
    },
    /// Tensors listed by MaxText's names.
    Custom {
        /// Tensors in host memory.
        host: BTreeSet<NamedTensor>,
        /// Tensors on the device, besides the layer's input.
        device: BTreeSet<NamedTensor>,
    },
    /// Tensors listed by their operators' names, without the layer's name. The optimiser chooses among these policies.
    Tensors(TensorPlaces),
}

/// The extent to which a checkpointed region is recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayExtent {
    /// The whole region, as in Megatron-LM's checkpoint function and PyTorch's re-entrant one. The layer's last product
    /// is recomputed too, although nothing reads its result.
    WholeRegion,
    /// Only the operators that the backward pass needs, directly or indirectly: JAX, compiled PyTorch, and PyTorch's
    /// checkpoint with early stop.
    #[default]
    NeededOnly,
}

impl ActivationPolicy {
    /// Returns whether the policy offloads tensors to host memory.
    #[must_use]
    pub fn offloads_to_host(&self) -> bool {
        match self {
            Self::None | Self::Selective | Self::SelectivePerOperator | Self::Full => false,
            Self::Named { offloaded, .. } => *offloaded,
            Self::Custom { host, .. } => !host.is_empty(),
            Self::Tensors(places) => !places.host.is_empty(),
        }
    }

    /// Returns whether the policy offloads tensors to storage (NVMe).
    #[must_use]
    pub fn offloads_to_storage(&self) -> bool {
        matches!(self, Self::Tensors(places) if !places.storage.is_empty())
    }

    /// Returns the treatment of a segment, with [`ReplayExtent::NeededOnly`].
    #[must_use]
    pub fn treatment_of_segment(&self, graph: &OperatorGraph) -> Treatment {
        self.treatment_with_extent(graph, ReplayExtent::NeededOnly)
    }

    /// Returns the treatment of a segment. The embedding and the head keep all tensors that their backward passes read.
    /// Leading and trailing layers follow the policy, but the tensors that it offloads stay on the device. Placements
    /// that memory techniques have fixed for the segment take precedence.
    #[must_use]
    pub fn treatment_with_extent(&self, graph: &OperatorGraph, replay: ReplayExtent) -> Treatment {
        let alone = self.treatment_without_techniques(graph, replay);
        if graph.settled.is_empty() {
            return alone;
        }
        let settled = alone.with_placements(graph);
        // If a technique keeps the same tensors as `full` or `selective`, it also replays like them.
        let whole = replay == ReplayExtent::WholeRegion && settled.offloaded.is_empty() && settled.partly.is_none();
        let known = [Self::Full, Self::Selective]
            .into_iter()
            .filter(|_| whole)
            .map(|known| known.treatment_without_techniques(graph, replay));
        known.into_iter().find(|known| known.kept == settled.kept).unwrap_or(settled)
    }

    /// Returns the treatment of a segment before memory techniques.
    fn treatment_without_techniques(&self, graph: &OperatorGraph, replay: ReplayExtent) -> Treatment {
        let none = BTreeSet::new();
        if graph.find_tensor("layer.input").is_none() {
            if layer_prefixes(graph).is_empty() {
                return keep_tensors(graph, &keep_everything(graph), &none);
            }
            return self.treatment_of_leading_layers(graph, replay);
        }
        let handed = block_boundary_tensors(graph);
        let resolve = |names: &BTreeSet<NamedTensor>| {
            names.iter().flat_map(|t| t.resolve_tensors(graph)).collect::<BTreeSet<_>>()
        };
        // Tensors that the layers of a block pass to each other stay in the same memory as the layer's input.
        let with_inputs = |device: BTreeSet<TensorId>, mut host: BTreeSet<TensorId>| {
            let input = graph.find_tensor("layer.input");
            if input.is_some_and(|input| host.contains(&input)) {
                host.extend(handed.difference(&device));
            }
            let device = device.union(&handed).filter(|t| !host.contains(t)).copied().collect();
            keep_tensors(graph, &device, &host)
        };
        match self {
            Self::None => keep_tensors(graph, &keep_everything(graph), &none),
            Self::Selective => recompute_attention_core(graph, replay),
            Self::SelectivePerOperator => {
                let cached = keep_per_operator(graph);
                let mut treatment = with_inputs(cached.clone(), none);
                if replay == ReplayExtent::WholeRegion {
                    treatment.kept.extend(cached);
                }
                treatment
            }
            Self::Full => {
                let mut treatment = with_inputs(BTreeSet::new(), none);
                if replay == ReplayExtent::WholeRegion {
                    treatment.recompute = graph.operators.iter().map(|op| op.id).collect();
                }
                treatment
            }
            Self::Named { policy, offloaded } => {
                let tensors = resolve(&policy.kept_tensor_names().iter().copied().collect());
                let (device, host) = if *offloaded { (none, tensors) } else { (tensors, none) };
                with_inputs(device, host)
            }
            Self::Custom { host, device } => with_inputs(resolve(device), resolve(host)),
            Self::Tensors(places) => places.to_placements(
                graph,
                with_inputs(tensors_by_name(graph, &places.device), tensors_by_name(graph, &places.offloaded_names())),
            ),
        }
    }
}

pub(crate) fn keep_everything(graph: &OperatorGraph) -> BTreeSet<TensorId> {
    graph.tensors.iter().map(|t| t.id).collect()
}

/// Returns the treatment that keeps the given tensors and the segment inputs, as far as they are needed, and recomputes
/// the operators that the other needed tensors require.
pub(crate) fn keep_tensors(graph: &OperatorGraph, device: &BTreeSet<TensorId>, host: &BTreeSet<TensorId>) -> Treatment {
    let named = |t: &TensorId| device.contains(t) || host.contains(t);
    let mut needed: Vec<bool> = graph.tensors.iter().map(|t| t.saved).collect();
    let mut recompute = RecomputeSet::none();
    for op in graph.operators.iter().rev() {
        if op.outputs.iter().any(|t| needed[t.index()] && !named(t)) {
            recompute.insert(op.id);
            op.inputs.iter().for_each(|t| needed[t.index()] = true);
        }
    }
    let kept =
        graph.tensors.iter().filter(|t| needed[t.id.index()] && (t.is_segment_input || named(&t.id))).map(|t| t.id);
    let (offloaded, kept) = kept.partition(|t| host.contains(t));
    Treatment { recompute, kept, offloaded, ..Treatment::default() }
}

/// Returns the treatment that recomputes the attention core: the operators from scores to context, or the fused kernel.
/// The context's result is kept as the input of the output projection. So only a whole-region replay recomputes the
/// core's last product.
pub(crate) fn recompute_attention_core(graph: &OperatorGraph, replay: ReplayExtent) -> Treatment {
    let core = |op: &OperatorNode| {
        op.layer.is_some() && matches!(op.role, OperatorRole::AttentionCore | OperatorRole::AttentionScores)
    };
    let inside: BTreeSet<TensorId> =
        graph.operators.iter().filter(|op| core(op)).flat_map(|op| &op.outputs).copied().collect();
    let read_outside: BTreeSet<TensorId> =
        graph.operators.iter().filter(|op| !core(op)).flat_map(|op| &op.inputs).copied().collect();
    let kept = keep_everything(graph).into_iter().filter(|t| !inside.contains(t) || read_outside.contains(t)).collect();
    let mut treatment = keep_tensors(graph, &kept, &BTreeSet::new());
    if replay == ReplayExtent::WholeRegion {
        graph.operators.iter().filter(|op| core(op)).for_each(|op| treatment.recompute.insert(op.id));
    }
    treatment
}

/// Returns the results of attention, of every second product with weights (from the first), and of reduce-scatters.
/// TorchTitan's per-operator selective checkpointing caches these.
pub(crate) fn keep_per_operator(graph: &OperatorGraph) -> BTreeSet<TensorId> {
    let mut kept: BTreeSet<TensorId> = NamedTensor::Context.resolve_tensors(graph).into_iter().collect();
    let has = |op: &OperatorNode, wanted: fn(&Kernel) -> bool| op.forward.iter().any(|s| wanted(&s.kernel));
    let weighs = |op: &OperatorNode| op.backward.iter().any(|chain| chain.gradient == Gradient::Weights);
    for layer in layer_prefixes(graph) {
        let own = |op: &&OperatorNode| op.layer.as_deref() == Some(&layer);
        let products = graph
            .operators
            .iter()
            .filter(own)
            .filter(|op| has(op, |k| matches!(k, Kernel::Contraction(_))) && weighs(op));
        for (i, op) in products.enumerate() {
            let scattered = has(op, |k| matches!(k, Kernel::Collective(c) if c.kind == CollectiveKind::ReduceScatter));
            if i % 2 == 0 || scattered {
                kept.extend(&op.outputs);
            }
        }
    }
    kept
}

impl fmt::Display for ActivationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Selective => f.write_str("selective"),
            Self::Full => f.write_str("full"),
            Self::SelectivePerOperator => f.write_str("selective_per_operator"),
            Self::Named { policy, offloaded } => {
                f.write_str(NamedPolicy::ALL.iter().find(|(_, p)| p == policy).map_or("", |(name, _)| name))?;
                f.write_str(if *offloaded { "_offloaded" } else { "" })
            }
            Self::Custom { host, device } => {
                let list = |place: &str, tensors: &BTreeSet<NamedTensor>| {
                    let names: Vec<String> = tensors.iter().map(ToString::to_string).collect();
                    (!names.is_empty()).then(|| format!("{place}({})", names.join(",")))
                };
                let mut parts: Vec<String> =
                    [list("offload", host), list("device", device)].into_iter().flatten().collect();
                if parts.is_empty() {
                    parts.push(format!("device({})", NamedTensor::DecoderLayerInput));
                }
                write!(f, "custom:{}", parts.join("+"))
            }
            Self::Tensors(places) => f.write_str(&tensor_names::write_policy(places)),
        }
    }
}

impl FromStr for ActivationPolicy {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        if let Some(parts) = text.strip_prefix("custom:") {
            return parse_custom_policy(text, parts);
        }
        if let Some(parts) = text.strip_prefix("tensors:") {
            return tensor_names::parse_policy(text, parts).map(Self::Tensors);
        }
        // These are MaxText's alternative spellings of two policies.
        let text = match text {
            "qkv_proj_offloaded" => "save_qkv_proj_offloaded",
            "minimal_flash" => "minimal_with_context",
            other => other,
        };
        let (base, offloaded) = text.strip_suffix("_offloaded").map_or((text, false), |base| (base, true));
        match (base, offloaded) {
            ("none", false) => return Ok(Self::None),
            ("selective", false) => return Ok(Self::Selective),
            ("full", false) => return Ok(Self::Full),
            ("full", true) => {
                let host = BTreeSet::from([NamedTensor::DecoderLayerInput]);
                return Ok(Self::Custom { host, device: BTreeSet::new() });
            }
            ("selective_per_operator", false) => return Ok(Self::SelectivePerOperator),
            _ => {}
        }
        let named = NamedPolicy::ALL.iter().find(|(name, _)| *name == base);
        named.map(|(_, policy)| Self::Named { policy: *policy, offloaded }).ok_or_else(|| {
            let offloaded = NamedPolicy::ALL.iter().map(|(name, _)| format!("{name}_offloaded"));
            let known: Vec<String> = ["none", "selective", "selective_per_operator", "full", "full_offloaded"]
                .into_iter()
                .chain(NamedPolicy::ALL.iter().map(|(name, _)| *name))
                .map(str::to_owned)
                .chain(offloaded)
                .chain(["custom:offload(a,b)+device(c)".to_owned()])
                .collect();
            unknown_policy_error("policy", text, &known.iter().map(String::as_str).collect::<Vec<_>>())
        })
    }
}

/// Parses `offload(a,b)+device(c)`; either part may be missing.
fn parse_custom_policy(text: &str, parts: &str) -> Result<ActivationPolicy, WorkloadError> {
    let [host, mut device] =
        tensor_names::parse_place_lists(text, parts, ["offload", "device"], NamedTensor::parse_name)?;
    device.remove(&NamedTensor::DecoderLayerInput);
    Ok(ActivationPolicy::Custom { host, device })
}

pub(crate) fn unknown_policy_error(what: &'static str, name: &str, known: &[&str]) -> WorkloadError {
    let list = known.join(", ");
    let cure = match find_nearest(name, known.iter().copied()) {
        Some(near) => format!("no such {what}; did you mean `{near}`? Known are {list}"),
        None => format!("no such {what}; use one of {list}"),
    };
    WorkloadError::BadRecompute { what, name: name.to_owned(), cure }
}

impl From<ActivationPolicy> for String {
    fn from(policy: ActivationPolicy) -> Self {
        policy.to_string()
    }
}

impl TryFrom<String> for ActivationPolicy {
    type Error = WorkloadError;

    fn try_from(text: String) -> Result<Self, WorkloadError> {
        text.parse()
    }
}
