#![allow(clippy::unwrap_used, clippy::panic)]
//! Presets on models whose layers differ: blocks of several layers, leading ones with MLPs in place of experts.

use super::*;
use crate::footprint::Precision;
use crate::graph::OperatorGraph;
use crate::layer_names::{layer_of, within_layer};
use crate::model::Model;
use crate::recompute_policy::ActivationPolicy;
use crate::technique::{Technique, Techniques};
use crate::training::{Lowering, SegmentKind, TrainingGraph};
use std::collections::{BTreeMap, BTreeSet};

const S: u64 = 1024;

fn lowered(model: &str, techniques: &str, change: impl Fn(Lowering) -> Lowering) -> Result<TrainingGraph, TechniqueError> {
    let model = Model::load(model).unwrap();
    let lowering =
        Lowering { sequence_length: S, precision: Precision::PURE_BF16, separate_projections: true, ..Lowering::new(&model) };
    let graph = TrainingGraph::new(&model, &change(lowering)).unwrap();
    let list: Result<Techniques, _> = techniques.split_whitespace().map(str::parse::<Technique>).collect();
    list?.apply(&model, graph, 1)
}

fn layer(training: &TrainingGraph) -> &OperatorGraph {
    &training.segment(SegmentKind::Layer).unwrap().graph
}

/// What techniques have settled, or given another form, by layer of the segment; the layers' own names left out.
fn changed(graph: &OperatorGraph) -> BTreeMap<&str, BTreeSet<&str>> {
    let settled = &graph.settled;
    let partly = settled.partly.iter().flat_map(|partly| &partly.tensors);
    let known: BTreeSet<_> = settled.rebuilt.iter().chain(&settled.away).chain(settled.slices.keys()).chain(partly).collect();
    let mut found = BTreeMap::new();
    for tensor in graph.tensors.iter().filter(|t| known.contains(&t.id) || t.name.contains('~')) {
        // Nobody makes the input of the first layer, and nobody here reads the last one's result.
        let Some(maker) = tensor.producer.map(|op| graph.operators[op.index()].name.as_str()) else { continue };
        let (Some(layer), Some(of)) = (layer_of(maker), within_layer(maker)) else { continue };
        if !of.ends_with(".residual") {
            found.entry(layer).or_insert_with(BTreeSet::new).insert(of);
        }
    }
    found
}

#[test]
fn rules_find_every_layer_of_a_block() {
    let everywhere = "megatron-selective recompute-core-attn recompute-layernorm offload-attn-norm offload-attn-proj offload-core-attn \
                      offload-mlp-norm offload-qkv-linear wta-crs rad compact lora lora-fa mesa ssdtrain memo";
    let dense = "recompute-mlp mst velora";
    let experts = "recompute-moe recompute-moe-act offload-moe-act offload-expert-fc1";
    for (model, more) in [("gemma-2-9b", dense), ("gpt-oss-20b", experts)] {
        for name in everywhere.split_whitespace().chain(more.split_whitespace()) {
            let training = lowered(model, name, |l| l).unwrap_or_else(|e| panic!("{model} {name}: {e}"));
            let found = changed(layer(&training));
            assert_eq!(found.keys().copied().collect::<Vec<_>>(), ["layer.0", "layer.1"], "{model} {name}");
            assert_eq!(found["layer.0"], found["layer.1"], "{model} {name}");
            assert!(training.applied.unwrap().notes.is_empty(), "{model} {name}");
        }
    }
}

#[test]
fn states_of_a_block_are_projected_and_its_products_have_adapters() {
    // gemma-2-9b: 42 layers, hidden 3584, 16 heads and 8 of keys and values of 256 each, an MLP of 14336.
    let (layers, h, q, kv, i) = (42, 3584, 4096, 2048, 14336);
    let shapes = [(h, q), (h, kv), (h, kv), (q, h), (h, i), (h, i), (i, h)];
    let trained = |techniques: &str| {
        let training = lowered("gemma-2-9b", techniques, |l| l).unwrap();
        let segment = training.segment(SegmentKind::Layer).unwrap();
        segment.statics.as_deref().unwrap().own.times(segment.repeat)
    };
    let r = 8;
    let adapters: u64 = shapes.iter().map(|(m, n)| r * (m + n)).sum::<u64>() * layers;
    assert_eq!(trained("lora,rank=8").updated.per_device(), adapters);
    let second: u64 = shapes.iter().map(|(_, n)| r * n).sum::<u64>() * layers;
    assert_eq!(trained("lora-fa,rank=8").updated.per_device(), second);
    let projected: u64 = shapes.iter().map(|(m, n)| 2 * (r * *m.min(n) + 2 * r * *m.max(n))).sum::<u64>() * layers;
    // Four norms a layer have whole states.
    assert_eq!(trained("galore,rank=8").states.device.per_device(), projected + 4 * layers * 4 * h);
}

#[test]
fn full_recomputation_is_that_of_the_policy_whatever_the_layers() {
    for model in ["llama2-7b", "gemma-2-9b", "gpt-oss-20b", "deepseek-v2-lite"] {
        let kept = |techniques: &str, policy: ActivationPolicy| {
            let training = lowered(model, techniques, |l| l).unwrap();
            let of = |kind| {
                let graph = &training.segment(kind).unwrap().graph;
                policy.treatment(graph).kept_bytes(graph).0
            };
            [of(SegmentKind::Layer), of(SegmentKind::Embedding)]
        };
        assert_eq!(kept("megatron-full", ActivationPolicy::None), kept("", ActivationPolicy::Full), "{model}");
    }
}
