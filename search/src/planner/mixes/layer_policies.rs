//! Policies of a layer, from the choices of its front, and from presets of memory techniques that only decide which
//! tensors are kept and where.

use crate::memory::{LayerChoice, LayerTensors, TensorChoice, TensorIndex, TensorSource};
use sim::units::Bytes;
use std::collections::BTreeSet;
use step::{MemoryNeed, SoftwareStack};
use workloads::memory::Preset;
use workloads::{ActivationPolicy, Model, SegmentKind, Technique, Techniques, TensorPlaces, TokenShare, TrainingGraph};

/// Number of steps of the fraction of tokens that a preset leaves open.
const PARTS: u32 = 8;

/// A layer's distinct policies under all presets, each combined with no reruns, the attention core and full
/// recomputation. Policies that need host memory or storage are left out if `capacity` has none.
pub(crate) fn preset_policies(
    model: &Model,
    graph: &TrainingGraph,
    stack: &SoftwareStack,
    capacity: MemoryNeed,
) -> Vec<ActivationPolicy> {
    let Some(layer) = graph.segment(SegmentKind::Layer) else { return Vec::new() };
    let presets = Preset::built_in_names().into_iter().filter_map(|name| name.parse::<Technique>().ok());
    let places = presets.filter(|technique| technique.preset().decides_places()).flat_map(|technique| {
        let parts = if technique.is_adaptive() { 1..=PARTS } else { PARTS..=PARTS };
        let adaptive = technique.is_adaptive();
        parts.map(move |part| match adaptive {
            true => technique.with_parameter("fraction", f64::from(part) / f64::from(PARTS)),
            false => technique.clone(),
        })
    });
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for technique in places {
        let techniques: Techniques = [technique].into_iter().collect();
        let Ok(applied) = techniques.apply_to_graph(model, graph.clone(), 1) else { continue };
        let Some(changed) = applied.segment(SegmentKind::Layer) else { continue };
        for own in [ActivationPolicy::None, ActivationPolicy::Selective, ActivationPolicy::Full] {
            let treatment = own.treatment_with_extent(&changed.graph, stack.replay_extent());
            let stored = !treatment.stored.is_empty();
            let hosted = treatment.offloaded.len() > treatment.stored.len();
            if stored && capacity.storage == Bytes::ZERO || hosted && capacity.host == Bytes::ZERO {
                continue;
            }
            let policy = ActivationPolicy::from_treatment(&layer.graph, &treatment);
            if seen.insert(policy.to_string()) {
                found.push(policy);
            }
        }
    }
    found
}

/// A layer's choice as a policy, which names its tensors.
pub(crate) fn policy_of_choice(layer: &LayerTensors, choice: &LayerChoice) -> ActivationPolicy {
    let name = |t: usize| layer.tensors[t].name.strip_prefix("layer.").unwrap_or(&layer.tensors[t].name).to_owned();
    let names = |tensors: &[TensorIndex]| tensors.iter().map(|t| name(t.0)).collect::<BTreeSet<String>>();
    let (host, storage) = (names(&choice.offloaded), names(&choice.stored));
    let kept = layer.tensor_choices(choice.operators);
    // A layer's input is kept without being named.
    let made = |t: &usize| layer.tensors[*t].source != TensorSource::LayerInput;
    let device =
        kept.iter().enumerate().filter(|(_, choice)| **choice == TensorChoice::Keep).map(|(t, _)| t).filter(made);
    let device = device.map(name).filter(|name| !host.contains(name) && !storage.contains(name)).collect();
    let share = choice.share.as_ref().map(|(of, share)| TokenShare { tensors: names(of), ..share.clone() });
    ActivationPolicy::Tensors(TensorPlaces { host, storage, device, share })
}
