#![allow(clippy::unwrap_used, clippy::panic)]
//! Presets on models with different layers: blocks of several layers, and leading layers with MLPs instead of experts.

use super::*;
use crate::footprint::Precision;
use crate::graph::OperatorGraph;
use crate::layer_names::{layer_of_name, name_within_layer};
use crate::model::Model;
use crate::recompute_policy::ActivationPolicy;
use crate::technique::{Technique, Techniques};
use crate::training::{Lowering, SegmentKind, TrainingGraph};
use std::collections::{BTreeMap, BTreeSet};

const S: u64 = 1024;

fn lowered(
    model: &str,
    techniques: &str,
    change: impl Fn(Lowering) -> Lowering,
) -> Result<TrainingGraph, TechniqueError> {
    let model = Model::load(model).unwrap();
    let lowering = Lowering {
        sequence_length: S,
        precision: Precision::PURE_BF16,
        separate_projections: true,
        ..Lowering::new(&model)
    };
    let graph = TrainingGraph::new(&model, &change(lowering)).unwrap();
    let list: Result<Techniques, _> = techniques.split_whitespace().map(str::parse::<Technique>).collect();
    list?.apply_to_graph(&model, graph, 1)
}

fn layer(training: &TrainingGraph) -> &OperatorGraph {
    &training.segment(SegmentKind::Layer).unwrap().graph
}

/// Returns the operators whose tensors techniques have placed or given another form, by layer of the segment and
/// without the layer's name.
fn changed(graph: &OperatorGraph) -> BTreeMap<&str, BTreeSet<&str>> {
    let settled = &graph.settled;
    let partly = settled.partly.iter().flat_map(|partly| &partly.tensors);
    let known: BTreeSet<_> =
        settled.rebuilt.iter().chain(&settled.away).chain(settled.slices.keys()).chain(partly).collect();
    let mut found = BTreeMap::new();
    for tensor in graph.tensors.iter().filter(|t| known.contains(&t.id) || t.name.contains('~')) {
        // Leave out the first layer's input, which no operator of the segment makes. Leave out residual sums too,
        // because no operator of the segment reads the last layer's sum.
        let Some(maker) = tensor.producer.map(|op| graph.operators[op.index()].name.as_str()) else { continue };
        let (Some(layer), Some(of)) = (layer_of_name(maker), name_within_layer(maker)) else { continue };
        if !of.ends_with(".residual") {
            found.entry(layer).or_insert_with(BTreeSet::new).insert(of);
        }
    }
    found
}

#[test]
fn rules_find_every_layer_of_a_block() {
    let everywhere = "megatron-selective recompute-core-attn recompute-layernorm offload-attn-norm offload-attn-proj \
        offload-core-attn offload-mlp-norm offload-qkv-linear wta-crs rad compact lora lora-fa mesa ssdtrain memo";
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
    // gemma-2-9b: 42 layers, hidden 3584, 16 heads and 8 key/value heads of 256, an MLP of 14336.
    let (layers, h, q, kv, i) = (42, 3584, 4096, 2048, 14336);
    let shapes = [(h, q), (h, kv), (h, kv), (q, h), (h, i), (h, i), (i, h)];
    let trained = |techniques: &str| {
        let training = lowered("gemma-2-9b", techniques, |l| l).unwrap();
        let segment = training.segment(SegmentKind::Layer).unwrap();
        segment.statics.as_deref().unwrap().own.times_pieces(segment.repeat)
    };
    let r = 8;
    let adapters: u64 = shapes.iter().map(|(m, n)| r * (m + n)).sum::<u64>() * layers;
    assert_eq!(trained("lora,rank=8").updated.per_device_count(), adapters);
    let second: u64 = shapes.iter().map(|(_, n)| r * n).sum::<u64>() * layers;
    assert_eq!(trained("lora-fa,rank=8").updated.per_device_count(), second);
    let projected: u64 = shapes.iter().map(|(m, n)| 2 * (r * *m.min(n) + 2 * r * *m.max(n))).sum::<u64>() * layers;
    // The states of a layer's four norms stay whole.
    assert_eq!(trained("galore,rank=8").states.device.per_device_count(), projected + 4 * layers * 4 * h);
}

#[test]
fn full_recomputation_is_that_of_the_policy_whatever_the_layers() {
    for model in ["llama2-7b", "gemma-2-9b", "gpt-oss-20b", "deepseek-v2-lite"] {
        let kept = |techniques: &str, policy: ActivationPolicy| {
            let training = lowered(model, techniques, |l| l).unwrap();
            let of = |kind| {
                let graph = &training.segment(kind).unwrap().graph;
                policy.treatment_of_segment(graph).kept_bytes(graph).0
            };
            [of(SegmentKind::Layer), of(SegmentKind::Embedding)]
        };
        assert_eq!(kept("megatron-full", ActivationPolicy::None), kept("", ActivationPolicy::Full), "{model}");
    }
}

#[test]
fn every_operator_has_a_name_that_rules_may_use() {
    let configs = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/configs");
    let files = std::fs::read_dir(configs).unwrap().map(|f| f.unwrap().path().display().to_string());
    let names = crate::model::built_in_names().map(str::to_owned).chain(files.filter(|f| f.ends_with(".json")));
    for name in names {
        let mut model = Model::load(&name).unwrap();
        model.dropout = crate::model::Dropout { embedding: 0.1, attention: 0.1, residual: 0.1, activation: 0.1 };
        let attention = [crate::training::Attention::Fused, crate::training::Attention::Unfused];
        for (whole, attention) in
            [false, true].into_iter().flat_map(|whole| attention.map(|attention| (whole, attention)))
        {
            let lowering = Lowering {
                sequence_length: model.max_sequence.min(256),
                separate_projections: !whole,
                elementwise_fusion: whole,
                attention,
                ..Lowering::new(&model)
            };
            let training = TrainingGraph::new(&model, &lowering).unwrap();
            for op in training.segments.iter().flat_map(|s| &s.graph.operators) {
                assert!(checks::is_operator_name(&op.name), "{name}: {}", op.name);
            }
        }
    }
}

#[test]
fn files_say_what_is_wrong_with_them() {
    let head = |gate: &str| {
        format!(
            "name = \"mine\"\ndescription = \"d\"\nformula = \"f\"\nsource = \"s\"\ngate = \
        \"{gate}\"\n"
        )
    };
    let rule = |gate: &str, rule: &str| format!("{}[[rule]]\nclass = \"saved_activations\"\n{rule}\n", head(gate));
    let error = |text: &str| Preset::from_toml_str("mine.toml", text).unwrap_err().to_string();
    let quantised =
        |bits: &str| format!("representation = {{ kind = \"quantised\", bits = {bits}, group = 64, meta_bytes = 4 }}");
    let away = |fraction: &str| format!("place = {{ to = \"host\", fraction = {fraction} }}");
    for (text, wanted) in [
        (head("exact"), "has no [[rule]]"),
        (rule("exact", ""), "rule 1: does nothing"),
        (
            rule("exact", &quantised("8")),
            "gate = exact: rule 1 changes what is computed (representation = quantised): write gate = \"unbiased\"",
        ),
        (rule("exact", "representation = { kind = \"absent\" }"), "(representation = absent)"),
        (rule("exact", "representation = { kind = \"derivative_bits\", bits = 2 }"), "gate = exact"),
        (
            rule("exact", "representation = { kind = \"sampled_rows\", fraction = 0.5, index_bytes = 4 }"),
            "gate = exact",
        ),
        (rule("exact", "representation = { kind = \"projected\", rank = 4, basis = \"seed\" }"), "gate = exact"),
        (rule("exact", "frozen = true"), "gate = exact"),
        (
            rule("exact", &format!("at = {{ operators = [\"mpl\"] }}\n{}", away("1"))),
            "rule 1: operators = `mpl`: no model has an operator of that name; did you mean `mlp`?",
        ),
        (
            rule("exact", &format!("at = {{ except = [\"layers\"] }}\n{}", away("1"))),
            "rule 1: except = `layers`: no model has an operator of that name",
        ),
        (rule("exact", &format!("rebuild = \"inside\"\n{}", away("1"))), "rule 1: place and rebuild"),
        (
            rule("exact", "rebuild = \"inside\"").replace("\"mine\"", "\"LoRA\""),
            "name = LoRA: a built-in technique has this name",
        ),
    ] {
        let error = error(&text);
        assert!(error.starts_with("mine.toml: ") && error.contains(wanted), "{error}\n{wanted}");
    }
    // Numbers may be parameters, so they are checked once the parameters are known.
    let file = std::env::temp_dir().join(format!("coplace-technique-{}.toml", std::process::id()));
    for (text, wanted) in [
        (rule("exact", &away("1.5")), "rule 1: place.fraction = 1.5: must be from 0 to 1"),
        (rule("exact", &away("nan")), "rule 1: place.fraction = NaN: must be from 0 to 1"),
        (
            rule("biased", &quantised("64")),
            "rule 1: representation.bits = 64: must be above 0 and at most the 16 bits of the numbers that it replaces",
        ),
        (rule("biased", &quantised("0")), "representation.bits = 0: must be above 0"),
        // A group of 0 stands for one group per head, but weights have no heads.
        (
            rule("biased", &quantised("8").replace("64", "0")).replace("saved_activations", "weights"),
            "rule 1: representation.group = 0: must be at least 1 number per scale",
        ),
        (
            rule("biased", &quantised("8").replace("64", "0.5")),
            "rule 1: representation.group = 0.5: must be at least 1 number per scale, or 0 for one group per head",
        ),
        (
            rule("exact", "slice = { along = \"sequence\", count = 0 }").replace("saved_activations", "transients"),
            "rule 1: slice.count = 0: must be a whole number of at least 1",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = lowered("llama2-7b", &file.display().to_string(), |l| l).unwrap_err().to_string();
        assert!(error.starts_with(&file.display().to_string()) && error.contains(wanted), "{error}\n{wanted}");
    }
    // Adapters that match no product are refused, because the model would have nothing to train.
    let adapters = "at = { operators = [\"moe\"] }\nadapter = { rank = 4, trained = \"both\" }";
    std::fs::write(&file, rule("biased", adapters).replace("saved_activations", "weights")).unwrap();
    let error = lowered("llama2-7b", &file.display().to_string(), |l| l).unwrap_err().to_string();
    assert!(error.contains("its adapters match no product of llama2-7b's layers"), "{error}");
    std::fs::remove_file(&file).unwrap();
}
