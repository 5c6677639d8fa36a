//! Expresses the tensors that a plan's layers keep, by a framework's names for parts of a layer. Names express a policy
//! exactly if they treat every tensor as the policy does.

use super::PlanRecipe;
use std::collections::BTreeSet;
use step::{TrainingPlan, lowering_of_plan};
use workloads::graph::OperatorGraph;
use workloads::recompute_policy::{NamedTensor, Treatment};
use workloads::{
    ActivationPolicy, LayerRun, SegmentKind, StagePolicies, Technique, Techniques, TensorId, TrainingGraph,
};

/// Presets that are modules of Megatron-LM's `--recompute-modules`. The module has the preset's name without the
/// prefix.
const RECOMPUTED: [&str; 7] = [
    "recompute-core-attn",
    "recompute-moe-act",
    "recompute-layernorm",
    "recompute-mla-up-proj",
    "recompute-mlp",
    "recompute-moe",
    "recompute-shared-experts",
];

/// Presets that are modules of Megatron-LM's `--offload-modules`.
const OFFLOADED: [&str; 7] = [
    "offload-attn-norm",
    "offload-qkv-linear",
    "offload-core-attn",
    "offload-attn-proj",
    "offload-mlp-norm",
    "offload-expert-fc1",
    "offload-moe-act",
];

/// MaxText's names for groups of tensors, with the names of their members.
const WHOLES: [(NamedTensor, &[NamedTensor]); 2] = [
    (NamedTensor::QkvProj, &[NamedTensor::QueryProj, NamedTensor::KeyProj, NamedTensor::ValueProj]),
    (NamedTensor::Mlpwi, &[NamedTensor::Mlpwi0, NamedTensor::Mlpwi1]),
];

/// Returns Megatron-LM's name for a preset's module. The flag is true if the module is offloaded, false if it is
/// recomputed. `None` if Megatron-LM has no such module.
pub(super) fn megatron_module(preset: &str) -> Option<(String, bool)> {
    let name = |prefix: &str| preset.strip_prefix(prefix).map(|rest| rest.replace('-', "_"));
    if RECOMPUTED.contains(&preset) {
        return name("recompute-").map(|name| (name, false));
    }
    name("offload-").filter(|_| OFFLOADED.contains(&preset)).map(|name| (name, true))
}

/// The names that express most of a policy, and the tensors that they treat differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyNames<T> {
    pub words: T,
    pub otherwise: Vec<String>,
}

/// Returns the plan with policies instead of those techniques that only place or recompute a layer's tensors, because
/// frameworks have names for policies. All other techniques stay.
pub(super) fn plan_by_policies(recipe: &PlanRecipe<'_>) -> TrainingPlan {
    let plan = recipe.plan;
    let of = |places: bool| -> Techniques {
        plan.techniques.iter().filter(|technique| technique.preset().only_decides_places() == places).cloned().collect()
    };
    let (places, others) = (of(true), of(false));
    let settled = || -> Option<StagePolicies> {
        let training = layer_without_techniques(recipe)?;
        let plain = &training.segment(SegmentKind::Layer)?.graph;
        let applied = places.apply_to_graph(recipe.model, training.clone(), 1).ok()?;
        let layer = &applied.segment(SegmentKind::Layer)?.graph;
        let own = |policy: &ActivationPolicy| -> ActivationPolicy {
            let wanted = policy.treatment_with_extent(layer, recipe.stack.replay_extent());
            let known = [policy.clone(), ActivationPolicy::None, ActivationPolicy::Selective, ActivationPolicy::Full];
            let same = |known: &ActivationPolicy| {
                describe_differences(plain, &wanted, &known.treatment_with_extent(plain, recipe.stack.replay_extent()))
                    .is_empty()
            };
            known.into_iter().find(same).unwrap_or_else(|| ActivationPolicy::from_treatment(plain, &wanted))
        };
        Some(match &plan.activations {
            StagePolicies::Alike(policy) => StagePolicies::Alike(own(policy)),
            StagePolicies::ByChunk(chunks) => {
                let run = |run: &LayerRun| LayerRun { layers: run.layers, policy: own(&run.policy) };
                StagePolicies::from_chunk_mixes(chunks.iter().map(|mix| mix.iter().map(run).collect()).collect())
            }
        })
    };
    match (places.is_empty(), settled()) {
        (false, Some(activations)) => TrainingPlan { activations, techniques: others, ..plan.clone() },
        _ => plan.clone(),
    }
}

/// Returns the graph of the plan without techniques. `None` if the model cannot be lowered.
fn layer_without_techniques(recipe: &PlanRecipe<'_>) -> Option<TrainingGraph> {
    TrainingGraph::new(recipe.model, &lowering_of_plan(recipe.model, recipe.plan, recipe.stack)).ok()
}

/// A layer, and how a policy treats its tensors.
pub(super) struct TreatedLayer {
    pub layer: OperatorGraph,
    pub treatment: Treatment,
}

/// Returns the layer of the plan under a policy. `None` if there is no such layer.
pub(super) fn policy_on_layer(recipe: &PlanRecipe<'_>, policy: &ActivationPolicy) -> Option<TreatedLayer> {
    let layer = layer_without_techniques(recipe)?.segment(SegmentKind::Layer)?.graph.clone();
    let treatment = policy.treatment_with_extent(&layer, recipe.stack.replay_extent());
    Some(TreatedLayer { layer, treatment })
}

/// Finds the modules of Megatron-LM (by preset) that together equal a policy or cover most of it.
pub(super) fn find_megatron_modules(
    recipe: &PlanRecipe<'_>,
    policy: &ActivationPolicy,
) -> Option<PolicyNames<Vec<&'static str>>> {
    let training = layer_without_techniques(recipe)?;
    let under = |names: &[&str]| -> Option<Treatment> {
        let techniques: Vec<Technique> = names.iter().map(|name| name.parse().ok()).collect::<Option<_>>()?;
        let techniques: Techniques = techniques.into_iter().collect();
        let applied = techniques.apply_to_graph(recipe.model, training.clone(), 1).ok()?;
        let layer = &applied.segment(SegmentKind::Layer)?.graph;
        Some(ActivationPolicy::None.treatment_with_extent(layer, recipe.stack.replay_extent()))
    };
    let layer = &training.segment(SegmentKind::Layer)?.graph;
    let wanted = policy.treatment_with_extent(layer, recipe.stack.replay_extent());
    // A module is included if the policy recomputes everything that the module recomputes, and likewise offloads.
    let again = |treatment: &Treatment| treatment.recompute.iter().collect::<BTreeSet<_>>();
    let part = |name: &&&'static str| {
        under(&[**name]).is_some_and(|own| {
            let (more, away) = (again(&own), &own.offloaded);
            more.is_subset(&again(&wanted))
                && away.is_subset(&wanted.offloaded)
                && !(more.is_empty() && away.is_empty())
        })
    };
    let words: Vec<&'static str> = RECOMPUTED.iter().chain(&OFFLOADED).filter(part).copied().collect();
    let found = under(&words)?;
    Some(PolicyNames { otherwise: describe_differences(layer, &wanted, &found), words })
}

/// Finds MaxText's names of tensors in host memory and on the device that together equal a policy or cover most of it.
pub(super) fn find_maxtext_names(
    recipe: &PlanRecipe<'_>,
    policy: &ActivationPolicy,
) -> Option<PolicyNames<[BTreeSet<NamedTensor>; 2]>> {
    let TreatedLayer { layer, treatment: wanted } = policy_on_layer(recipe, policy)?;
    let of = |place: &BTreeSet<TensorId>| -> BTreeSet<NamedTensor> {
        let all = |named: &NamedTensor| {
            let tensors = named.resolve_tensors(&layer);
            !tensors.is_empty() && tensors.iter().all(|t| place.contains(t))
        };
        let mut names: BTreeSet<NamedTensor> = NamedTensor::all_names().filter(all).collect();
        // The name of a group replaces the names of its members.
        for (whole, parts) in WHOLES {
            if names.contains(&whole) {
                names.retain(|name| !parts.contains(name));
            }
        }
        names
    };
    let (host, mut device) = (of(&wanted.offloaded), of(&wanted.kept));
    device.remove(&NamedTensor::DecoderLayerInput);
    let custom = ActivationPolicy::Custom { host: host.clone(), device: device.clone() };
    let found = custom.treatment_with_extent(&layer, recipe.stack.replay_extent());
    Some(PolicyNames { otherwise: describe_differences(&layer, &wanted, &found), words: [host, device] })
}

/// Lists the tensors that two treatments of a layer place differently, with the place that is wanted.
fn describe_differences(layer: &OperatorGraph, wanted: &Treatment, found: &Treatment) -> Vec<String> {
    let place = |treatment: &Treatment, id: TensorId| {
        let partly = treatment.partly.as_ref().filter(|partly| partly.tensors.contains(&id));
        let part = partly.map_or_else(String::new, |partly| {
            let rest = if partly.recomputed { ", the others again" } else { "" };
            format!(" for {} of its tokens{rest}", partly.offloaded_fraction())
        });
        let there =
            match (treatment.stored.contains(&id), treatment.offloaded.contains(&id), treatment.kept.contains(&id)) {
                (true, ..) => "on NVMe",
                (_, true, _) => "in host memory",
                (.., true) => "on the device",
                _ => "not kept",
            };
        format!("{there}{part}")
    };
    let tensors = layer.tensors.iter().filter_map(|tensor| {
        let (wanted, found) = (place(wanted, tensor.id), place(found, tensor.id));
        let name = tensor.name.strip_prefix("layer.").unwrap_or(&tensor.name);
        (wanted != found).then(|| format!("{name} {wanted}"))
    });
    tensors.collect()
}
