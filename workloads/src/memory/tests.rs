#![allow(clippy::unwrap_used, clippy::panic)]
//! Every preset on llama2-7b against formulas in this file. They give the bytes of one layer on one device, for s
//! tokens, hidden width h and MLP width I.

use super::*;
use crate::footprint::Precision;
use crate::model::Model;
use crate::recompute_policy::ActivationPolicy;
use crate::technique::{Allowance, Technique, Techniques};
use crate::training::{Attention, Lowering, SegmentKind, TrainingGraph};
use crate::working_set::Release;
use sim::kernel::{Kernel, TransferLink};

const S: u64 = 4096;
const H: u64 = 4096;
const I: u64 = 11008;
const A: u64 = 32;
const V: u64 = 32000;
const L: u64 = 32;
/// Parameters of llama2-7b: `MATRICES` in the matrices of its layers, `P` in total.
const MATRICES: u64 = L * (4 * H * H + 3 * H * I);
const P: u64 = MATRICES + 2 * V * H + (2 * L + 1) * H;
/// Bytes that a fused layer keeps: inputs of two norms, both norms' results, Q, K, V, O, gate, up and their product,
/// the log-sum-exp, and two factors per row.
const FUSED: u64 = S * (16 * H + 6 * I) + 4 * A * S + 8 * S;

fn llama() -> Model {
    Model::load("llama2-7b").unwrap()
}

fn lowering(model: &Model) -> Lowering {
    Lowering { sequence_length: S, precision: Precision::PURE_BF16, separate_projections: true, ..Lowering::new(model) }
}

fn lowered(techniques: &str, change: impl Fn(Lowering) -> Lowering) -> Result<TrainingGraph, TechniqueError> {
    let model = llama();
    let graph = TrainingGraph::new(&model, &change(lowering(&model))).unwrap();
    let list: Result<Techniques, _> = techniques.split_whitespace().map(str::parse::<Technique>).collect();
    list?.apply_to_graph(&model, graph, 1)
}

/// Returns the bytes that a layer keeps on the device, the bytes that it offloads, and the parameters' bytes over all
/// segments.
fn layer_of(techniques: &str, change: impl Fn(Lowering) -> Lowering) -> (u64, u64, StaticBytes) {
    let training = lowered(techniques, change).unwrap();
    let layer = &training.segment(SegmentKind::Layer).unwrap().graph;
    let treatment = ActivationPolicy::None.treatment_of_segment(layer);
    let statics = training.segments.iter().fold(StaticBytes::default(), |sum, s| {
        sum.plus(s.statics.as_deref().copied().unwrap_or_default().own.times_pieces(s.repeat))
    });
    (treatment.kept_bytes(layer).0, treatment.offloaded_bytes(layer).0, statics)
}

fn layer(techniques: &str) -> (u64, u64, StaticBytes) {
    layer_of(techniques, |l| l)
}

fn device(placed: BytesByPlace) -> u64 {
    placed.device.per_device_count()
}

/// Asserts what plain Adam in bf16 keeps: weights, gradients, states.
fn is_plain(statics: &StaticBytes) {
    assert_eq!([device(statics.weights), device(statics.gradients), device(statics.states)], [2 * P, 2 * P, 4 * P]);
    assert_eq!((device(statics.masters), statics.largest_gradient), (0, 0));
}

#[test]
fn every_preset_is_read_and_runs_on_llama() {
    let names = Preset::built_in_names();
    assert!(names.len() >= 39, "{names:?}");
    for name in names {
        let preset = Preset::load(&name).unwrap();
        assert_eq!(preset.name, name);
        assert!(preset.source.len() > 20 && !preset.formula.is_empty() && !preset.description.is_empty(), "{name}");
        // Approx-BP needs nonlinearities with kernels of their own, as in its paper, so it runs without elementwise
        // fusion.
        let own_kernels = name == "approx-bp";
        if preset.inference_only.is_some() {
            let refused = lowered(&name, |l| l).unwrap_err().to_string();
            assert!(refused.contains("inference") && refused.contains("leave it out"), "{refused}");
            continue;
        }
        let beside = if preset.needs_frozen_weights() { format!("lora {name}") } else { name.clone() };
        let training = lowered(&beside, |l| Lowering { elementwise_fusion: !own_kernels, ..l })
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let applied = training.applied.unwrap();
        let moe = [
            "recompute-moe",
            "recompute-moe-act",
            "recompute-shared-experts",
            "recompute-mla-up-proj",
            "offload-expert-fc1",
            "offload-moe-act",
        ];
        // Only two kinds of technique add a note: those that store data note the amount, and those in `moe` note that
        // they have no effect on llama2-7b.
        let told = preset.only_stores_data() || moe.contains(&name.as_str());
        assert!(applied.notes.is_empty() || told, "{name}: {:?}", applied.notes);
    }
}

#[test]
fn recomputation_keeps_what_megatron_keeps() {
    let kept = |name: &str| {
        let (kept, away, statics) = layer(name);
        is_plain(&statics);
        assert_eq!(away, 0);
        kept
    };
    assert_eq!(kept("megatron-full"), 2 * S * H);
    // The context stays, because the output projection reads it. The log-sum-exp goes, because only the fused core
    // reads it.
    assert_eq!(kept("megatron-selective"), FUSED - 4 * A * S);
    assert_eq!(kept("recompute-core-attn"), FUSED - 4 * A * S);
    // Everything from the second norm to the product of gate and up is recomputed. The norm's input stays.
    assert_eq!(kept("recompute-mlp"), FUSED - 6 * S * I - 2 * S * H - 4 * S);
    assert_eq!(kept("recompute-layernorm"), FUSED - 4 * S * H - 8 * S);
    for nothing in ["recompute-moe", "recompute-moe-act", "recompute-shared-experts", "recompute-mla-up-proj"] {
        assert_eq!(kept(nothing), FUSED, "{nothing}");
    }
}

#[test]
fn offload_modules_send_what_their_backward_pass_reads() {
    let away = |name: &str| {
        let (kept, away, statics) = layer(name);
        is_plain(&statics);
        assert_eq!(kept + away, FUSED, "{name}");
        away
    };
    assert_eq!(away("offload-attn-norm"), 2 * S * H + 4 * S);
    assert_eq!(away("offload-qkv-linear"), 2 * S * H);
    assert_eq!(away("offload-core-attn"), 8 * S * H + 4 * A * S);
    assert_eq!(away("offload-attn-proj"), 2 * S * H);
    assert_eq!(away("offload-mlp-norm"), 2 * S * H + 4 * S);
    assert_eq!(away("ssdtrain"), FUSED);
    assert_eq!(away("ssdtrain,fraction=0.25"), FUSED.div_ceil(4));
}

/// Without fusion, the core's backward pass reads Q, K, V and the probabilities, and all of them are offloaded.
#[test]
fn the_attention_core_goes_away_however_it_is_executed() {
    let unfused = |l: Lowering| Lowering { attention: Attention::Unfused, ..l };
    let (kept, away, statics) = layer_of("offload-core-attn", unfused);
    is_plain(&statics);
    assert_eq!(away, 6 * S * H + 2 * A * S * S);
    assert_eq!(kept + away, layer_of("", unfused).0);
}

#[test]
fn memo_moves_inputs_and_attention_whole_and_the_rest_by_tokens() {
    let whole = 4 * S * H + 4 * A * S;
    for eighths in 0..=8 {
        let (kept, away, statics) = layer(&format!("memo,fraction={}", f64::from(eighths) / 8.0));
        is_plain(&statics);
        assert_eq!((kept, away), (0, whole + (FUSED - whole) * u64::from(eighths as u32) / 8), "{eighths}/8");
    }
}

#[test]
fn mini_sequences_keep_inputs_and_use_up_gradients() {
    let (kept, away, statics) = layer("mst");
    assert_eq!((kept, away), (2 * S * H, 0));
    assert_eq!([device(statics.weights), device(statics.gradients), device(statics.states)], [2 * P, 0, 4 * P]);
    assert_eq!((statics.largest_gradient, statics.at_once.per_device_count()), (2 * V * H, 0));
    let transient = |techniques: &str| {
        let training = lowered(techniques, |l| l).unwrap();
        let graph = &training.segment(SegmentKind::Layer).unwrap().graph;
        ActivationPolicy::Full.treatment_of_segment(graph).peak_backward_bytes(graph, Release::AtTheEnd).0
    };
    // Gradients of gate, up and their product exist one eighth at a time; rebuilt tensors are whole.
    let saved = transient("megatron-full") - transient("mst,mlp_slices=8,head_slices=8");
    assert!(saved > 2 * S * I * 7 / 8 && saved <= 6 * S * I, "{saved}");
}

#[test]
fn adapters_replace_gradients_of_frozen_weights() {
    let r = 8;
    let adapters = L * r * (4 * 2 * H + 3 * (H + I));
    let (kept, away, statics) = layer("lora,rank=8");
    // The inputs of all products stay for the first factors. Every adapter keeps r more numbers per token.
    assert_eq!((kept, away), (FUSED + 7 * 2 * S * r, 0));
    let trained = |statics: &StaticBytes| [device(statics.weights), device(statics.gradients), device(statics.states)];
    assert_eq!(trained(&statics), [2 * (P + adapters), 2 * adapters, 4 * adapters]);
    let second = L * r * (4 * H + 2 * I + H);
    let (kept, _, statics) = layer("lora-fa,rank=8");
    // Under LoRA-FA, no gradient reads a product's input, so both norms' results and the product of gate and up are
    // dropped. Attention's result stays, because attention's own backward pass reads it.
    assert_eq!(kept, FUSED - 4 * S * H - 2 * S * I + 7 * 2 * S * r);
    assert_eq!(trained(&statics), [2 * (P + adapters), 2 * second, 4 * second]);
}

/// The techniques replace inputs of products with weights. A plain layer keeps each of these once: both norms' results,
/// attention's result, and the product of gate and up.
#[test]
fn sampled_and_projected_inputs_stand_for_whole_ones() {
    // Each of the seven products has its own sample. Attention's result stays whole for attention.
    let rows = |fraction: f64| (S as f64 * fraction).ceil() as u64;
    let exact = FUSED - 4 * S * H - 2 * S * I;
    let (kept, _, statics) = layer("wta-crs,fraction=0.3");
    assert_eq!(kept, exact + rows(0.3) * (2 * (6 * H + I) + 7 * 8));
    is_plain(&statics);
    let (kept, _, statics) = layer("rad,fraction=0.1");
    assert_eq!(kept, exact + rows(0.1) * 2 * (6 * H + I));
    is_plain(&statics);
    let r = 1024;
    let (kept, _, statics) = layer("compact,rank=1024");
    // CompAct projects the inputs of all products except attention's output projection.
    assert_eq!(kept, exact + 6 * 2 * S * r);
    let low = L * (r * (3 * H + 2 * I + H) + H * H);
    let rest = P - MATRICES;
    assert_eq!(
        [device(statics.weights), device(statics.gradients), device(statics.states)],
        [2 * P, 2 * (low + rest), 4 * (low + rest)]
    );
    let (kept, _, statics) = layer("velora,groups=32");
    // VeLoRA keeps one number per group for value and for down. The input of value stays too, because query and key
    // read it.
    assert_eq!(kept, FUSED - 2 * S * I + 2 * 2 * S * 32);
    is_plain(&statics);
}

#[test]
fn quantised_and_shared_activations() {
    let (kept, _, statics) = layer("mesa");
    is_plain(&statics);
    // Every reader has its own copy: two norms, seven products (six h wide, one I), Q, K, V, O in attention, gate and
    // up. Each copy has 8 bytes per head.
    let copies = 2 + 7 + 4 + 2;
    assert_eq!(kept, S * ((2 + 6 + 4) * H + (1 + 2) * I) + 8 * A * copies + 4 * A * S + 8 * S);
    let (kept, _, statics) = layer("ms-bp");
    is_plain(&statics);
    assert_eq!(kept, FUSED - 4 * S * H);
    // In a fused unit, the gate's derivative needs 2 bits, but up's gradient needs the activated gate. Both together
    // take a quarter byte more per number, so the kernel keeps the gate.
    let (kept, _, statics) = layer("approx-bp");
    is_plain(&statics);
    assert_eq!(kept, FUSED);
    let notes = |change: fn(Lowering) -> Lowering| lowered("approx-bp", change).unwrap().applied.unwrap().notes;
    assert!(notes(|l| l)[0].contains("nothing changes: the gated unit of llama2-7b is one kernel"));
    assert!(notes(|l| Lowering { elementwise_fusion: false, ..l }).is_empty());
    // In eager execution, the activated gate is kept anyway, so a quarter byte per element replaces the two bytes of
    // the gate.
    let eager = |techniques: &str| layer_of(techniques, |l| Lowering { elementwise_fusion: false, ..l }).0;
    assert_eq!(eager("ms-bp"), eager("approx-bp") + 2 * S * I - S * I / 4 - 2 * (4 + 2) * S * H);
}

#[test]
fn optimizers_keep_what_their_papers_say() {
    let of = |techniques: &str| {
        let (kept, away, statics) = layer(techniques);
        assert_eq!((kept, away), (FUSED, 0), "{techniques}");
        (device(statics.weights), device(statics.gradients), statics.largest_gradient, device(statics.states))
    };
    assert_eq!(of("lomo"), (2 * P, 0, 2 * V * H, 0));
    let r = 1024;
    // GaLore projects the shorter side of a matrix, which is h in every matrix here.
    let projected = L * (4 * 2 * (H * r + 2 * r * H) + 3 * 2 * (H * r + 2 * r * I));
    let rest = P - MATRICES;
    assert_eq!(of("galore,rank=1024"), (2 * P, 2 * P, 0, projected + 4 * rest));
    assert_eq!(of("galore,rank=1024,per_layer=1"), (2 * P, 0, 2 * V * H, projected + 4 * rest));
    let block = |numbers: u64| 2 * (numbers + numbers.div_ceil(2048) * 4);
    let narrow = L * (4 * (2 * H * r + block(r * H)) + 3 * (2 * H * r + block(r * I)))
        + 2 * block(V * H)
        + (2 * L + 1) * block(H);
    assert_eq!(of("galore-8bit,rank=1024"), (2 * P, 0, 2 * V * H, narrow));
    assert_eq!(of("adam8bit").3, L * (4 * block(H * H) + 3 * block(H * I)) + 2 * block(V * H) + (2 * L + 1) * block(H));
    assert_eq!(of("adafactor").3, 4 * (L * (4 * 2 * H + 3 * (H + I)) + 2 * (V + H) + (2 * L + 1) * H));
    assert_eq!(of("proximal-anchor"), (2 * P, 2 * P, 0, 4 * P));
}

#[test]
fn an_anchor_is_of_what_is_trained_and_the_update_reads_it() {
    let copies = |techniques: &str| {
        let statics = layer(techniques).2;
        (device(statics.copies), statics.copies.host.per_device_count(), statics.updated.per_device_count())
    };
    assert_eq!(copies("proximal-anchor"), (2 * P, 0, P));
    assert_eq!(copies("proximal-anchor,bytes=4,on_host=1"), (0, 4 * P, P));
    let (anchor, _, trained) = copies("lora proximal-anchor");
    assert!(anchor == 2 * trained && trained < P / 100, "{anchor} {trained}");
    let extra = |techniques: &str| {
        let training = lowered(techniques, |l| l).unwrap();
        training.segment(SegmentKind::Layer).unwrap().update_extra.clone()
    };
    let (matrices, norms) = (4 * H * H + 3 * H * I, 2 * H);
    let n = matrices + norms;
    let [(Kernel::Elementwise(pass), once)] = extra("proximal-anchor")[..] else { panic!("one kernel") };
    // The pass reads weights, gradients and the anchor, 2 bytes each, and writes gradients.
    assert_eq!((pass.elements, pass.read.0, pass.written.0, once), (3 * n, 6 * n, 2 * n, 1.0));
    let [_, (Kernel::Transfer(copy), _)] = extra("proximal-anchor,on_host=1")[..] else {
        panic!("a kernel and a copy")
    };
    assert_eq!((copy.link, copy.bytes.0), (TransferLink::Host, 2 * n));
}

/// In mixed precision, GaLore's moments have 4 bytes per element and its bases 2. Under tensor parallelism, the rank
/// applies to the whole matrix.
#[test]
fn galore_projects_whole_matrices_whatever_the_precision_and_the_width() {
    let r = 1024;
    let states = |t: u32, precision| {
        let of = |l: Lowering| Lowering { precision, tensor_parallel: t, sequence_parallel: t > 1, ..l };
        device(layer_of("galore", of).2.states)
    };
    let basis = L * 7 * r * H;
    let moments = L * r * (4 * H + 3 * I);
    let norms = (2 * L + 1) * H;
    for t in [1, 2, 8] {
        for (precision, bytes) in [(Precision::PURE_BF16, 2), (Precision::MIXED_BF16, 4)] {
            let shared = (moments + 2 * V * H) / u64::from(t);
            assert_eq!(states(t, precision), 2 * basis + 2 * bytes * (shared + norms), "{t} {bytes}");
        }
    }
}

#[test]
fn offloaded_states_are_all_somewhere() {
    let mixed = |l: Lowering| Lowering { precision: Precision::MIXED_BF16, ..l };
    let (kept, away, statics) = layer_of("zero-offload", mixed);
    assert_eq!((kept, away), (FUSED, 0));
    assert_eq!(
        [device(statics.weights), device(statics.gradients), device(statics.states), device(statics.masters)],
        [2 * P, 0, 0, 0]
    );
    let host = |s: &StaticBytes| {
        [s.weights, s.gradients, s.states, s.masters].map(|p| p.host.per_device_count()).iter().sum::<u64>()
    };
    assert_eq!((host(&statics), statics.largest_gradient), (14 * P, 2 * V * H));
    let (_, _, statics) = layer_of("zero-infinity,to_nvme=1", mixed);
    let stored = [statics.weights, statics.gradients, statics.states, statics.masters]
        .map(|p| p.nvme.per_device_count())
        .iter()
        .sum::<u64>();
    assert_eq!((stored, device(statics.weights), host(&statics)), (16 * P, 0, 0));
}

#[test]
fn read_only_data_changes_nothing_else() {
    for (techniques, place, bytes) in [
        ("exemplar,examples=603,backbones=1", "host", 603 * 3072 + 4 * P),
        ("exemplar,examples=603,to_nvme=1", "nvme", 603 * 3072),
        ("rmm", "host", 2000 * 3072),
        ("memo-cil", "host", 2000 * 3072 + 10 * 4 * 463_504),
    ] {
        let (kept, away, mut statics) = layer(techniques);
        is_plain(&statics);
        assert_eq!((kept, away), (FUSED, 0));
        let stock = std::mem::take(&mut statics.stock);
        let found = [("device", stock.device), ("host", stock.host), ("nvme", stock.nvme)]
            .map(|(name, p)| (name, p.per_device_count()));
        for (name, count) in found {
            assert_eq!(count, if name == place { bytes } else { 0 }, "{techniques} {name}");
        }
    }
}

/// The same budget holds models and examples: 3,312 examples with MEMO (a ResNet-32 with ten last stages), 7,431 with
/// iCaRL (one ResNet-32), and 2,000 with DER (ten ResNet-32). Source: Zhou et al. 2023, section 4.1; the repository's
/// `-ms 3312`. RMM splits the examples between old and new classes, and rounding loses at most one.
#[test]
fn a_budget_is_split_between_models_and_examples() {
    let model = llama();
    let facts = TrainingQuantities::new(&model, &lowering(&model));
    let values = |text: &str| text.parse::<Technique>().unwrap().parameter_values(&facts).unwrap();
    let examples = |text: &str| values(text)["examples"];
    assert_eq!(examples("memo-cil"), 3312.0);
    assert_eq!(examples("memo-cil,special_parameters=0"), 7431.0);
    assert_eq!(examples("memo-cil,special_parameters=463504"), 2000.0);
    assert_eq!(values("memo-cil")["examples_per_model"], 603.0);
    for tenths in 0..=10 {
        let split = values(&format!("rmm,old_share={}", f64::from(tenths) / 10.0));
        let all = split["old_examples"] + split["new_examples"];
        assert!((1999.0..=2000.0).contains(&all), "{split:?}");
    }
    // A budget smaller than the models leaves no examples.
    assert_eq!(examples("memo-cil,budget=1000"), 0.0);
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let refused = |techniques: &str, micro_batches: u64| {
        let model = llama();
        let graph = TrainingGraph::new(&model, &lowering(&model)).unwrap();
        let list: Result<Techniques, _> = techniques.split_whitespace().map(str::parse::<Technique>).collect();
        list.and_then(|list| list.apply_to_graph(&model, graph, micro_batches)).unwrap_err().to_string()
    };
    assert!(
        refused("lomo", 4)
            .contains("a gradient is freed before the next micro-batch can add to it (a step has 4 micro-batches)")
    );
    assert!(refused("galore,per_layer=1", 2).contains("with updates per layer"));
    assert!(refused("galore,rank=5000", 1).contains("must be a whole number from 1 to 4096"));
    assert!(refused("velora,groups=3", 1).contains("3 groups do not divide the dimension of"));
    assert!(
        refused("velora,groups=3", 1).ends_with("use 2, or another divisor of 4096"),
        "{}",
        refused("velora,groups=3", 1)
    );
    assert!(refused("lomo galore", 1).contains("LOMO keeps no states"));
    assert!(refused("galore compact", 1).contains("projected already"));
    for low_rank in ["lora galore,rank=1024", "galore lora", "lora-fa galore-8bit,rank=4"] {
        assert!(
            refused(low_rank, 1).contains("is an adapter, which has a low rank already"),
            "{low_rank}: {}",
            refused(low_rank, 1)
        );
    }
    // Adam8bit also quantises the states of adapters.
    let (adapted, both) = (layer("lora").2, layer("lora adam8bit").2);
    assert!(device(both.states) < device(adapted.states) && device(both.states) > device(adapted.states) / 2);
    for again in ["wta-crs megatron-full", "recompute-mlp rad", "lora wta-crs recompute-mlp"] {
        assert!(refused(again, 1).contains("drawn at random: a recomputation would draw others"), "{again}");
    }
    assert!(refused("wta-crs compact", 1).contains("has another form already"));
    assert!(refused("memo,fraction=1.5", 1).contains("fraction = 1.5: must be from 0 to 1"));
    assert!(refused("galor", 1).contains("did you mean `galore`?"));
    assert!(refused("galore,rnk=4", 1).contains("did you mean `rank`?"));
    assert!(refused("galore,rank", 1).contains("write NAME,key=value"));
    assert!(refused("memo ssdtrain", 1).contains("host and to NVMe at once"));
}

#[test]
fn compositions_of_the_papers_go_together() {
    let narrow = layer("galore,rank=1024,per_layer=1 adam8bit").2;
    assert_eq!(narrow.states, layer("galore-8bit,rank=1024").2.states);
    assert_eq!(narrow.states, layer("adam8bit galore,rank=1024").2.states, "whatever the order");
    // LoRA-FA keeps the inputs of nonlinear operators. Mesa quantises them, so both together keep less than either.
    let (both, ..) = layer("lora-fa mesa");
    assert!(both < layer("lora-fa").0 && both < layer("mesa").0);
    // LoRA reads the products' exact inputs, so they can be sampled (WTA-CRS, section 4) or grouped (VeLoRA). The
    // tensor between the factors stays.
    let (r, rows) = (8, (S as f64 * 0.3).ceil() as u64);
    let adapted = 7 * 2 * S * r;
    let exact = FUSED - 4 * S * H - 2 * S * I;
    let (sampled, _, statics) = layer("lora,rank=8 wta-crs,fraction=0.3");
    assert_eq!(sampled, exact + adapted + rows * (2 * (6 * H + I) + 7 * 8));
    assert_eq!(statics, layer("lora,rank=8").2);
    assert_eq!(layer("lora,rank=8 velora,groups=32").0, FUSED - 2 * S * I + 2 * 2 * S * 32 + adapted);
    // The first factor's gradient, of h x r elements, is a sum over the sampled tokens only.
    let training = lowered("lora,rank=8 wta-crs,fraction=0.3", |l| l).unwrap();
    let graph = &training.segment(SegmentKind::Layer).unwrap().graph;
    let steps = graph.find_operator("layer.attention.output").unwrap().backward.iter().flat_map(|c| &c.steps);
    let down = steps.clone().find(|s| s.label == "backward_weight.adapter_down").unwrap();
    let Kernel::Contraction(down) = down.kernel else { panic!("a product") };
    // The number of sampled tokens is padded to a multiple of 16.
    assert_eq!((down.m, down.n, down.k), (H, r, rows.next_multiple_of(16)));
    let gathered = steps.filter_map(|s| match s.kernel {
        Kernel::Elementwise(e) if s.label == "backward.sampled" => Some(e.elements),
        _ => None,
    });
    assert_eq!(gathered.collect::<Vec<_>>(), [rows * r]);
    // The attention core has no products with weights, so its recomputation draws no sample again.
    assert_eq!(layer("wta-crs megatron-selective").0, layer("wta-crs").0 - 4 * A * S);
    let (ms, ..) = layer("ms-bp megatron-selective");
    assert_eq!(ms, FUSED - 4 * S * H - 4 * A * S);
}

#[test]
fn what_the_authors_code_cannot_is_said_of_replicas() {
    let said = |text: &str, replicas| {
        let list: Techniques = [text.parse::<Technique>().unwrap()].into_iter().collect();
        list.describe_replica_limits(&TrainingQuantities::new(&llama(), &lowering(&llama())), replicas).unwrap()
    };
    assert!(
        said("galore,per_layer=1", 8)[0].contains("without DistributedDataParallel")
            && said("galore-8bit", 2).len() == 1
    );
    assert!(said("galore,per_layer=1", 1).is_empty() && said("galore", 8).is_empty() && said("lomo", 8).is_empty());
}

#[test]
fn what_changes_training_is_allowed_by_name() {
    let list: Techniques = ["galore,rank=64", "ms-bp"].into_iter().map(|t| t.parse::<Technique>().unwrap()).collect();
    let allowing = |texts: &[&str]| {
        let allowances: Result<Vec<Allowance>, _> = texts.iter().map(|t| t.parse::<Allowance>()).collect();
        allowances.and_then(|allowances| list.with_allowances(&allowances))
    };
    assert!(allowing(&[]).unwrap_err().to_string().contains("--allow galore,step_multiplier=X"));
    assert_eq!(allowing(&["galore"]).unwrap().step_multiplier(), 1.0);
    assert_eq!(allowing(&["galore,step_multiplier=1.25"]).unwrap().step_multiplier(), 1.25);
    assert!(allowing(&["galore", "lora"]).unwrap_err().to_string().contains("not among the techniques"));
    assert!(allowing(&["galore,steps=2"]).unwrap_err().to_string().contains("`steps=2` is not a parameter"));
    assert_eq!(list.lossy_techniques().count(), 1);
    let refused = |texts: &[&str]| allowing(texts).unwrap_err().to_string();
    assert!(
        refused(&["galore,step_multiplier=0.5"]).contains("step_multiplier = 0.5: must be a number from 1 to 1000")
    );
    assert!(refused(&["galore", "ms-bp,step_multiplier=2"]).contains("ms-bp: it is exact"));
    assert!(refused(&["galore", "GaLore,step_multiplier=2"]).contains("it is allowed twice"));
    let twice = "galore,rank=512,rank=256".parse::<Technique>().unwrap_err().to_string();
    assert!(twice.contains("technique galore: rank is given twice; give it once"), "{twice}");
}

#[test]
fn names_of_techniques_are_short_and_read_again() {
    for (text, shown) in [
        ("memo,fraction=1e-300", "memo,fraction=1e-300"),
        ("memo,fraction=0.375", "memo,fraction=0.375"),
        ("memo,fraction=0", "memo,fraction=0"),
    ] {
        let technique: Technique = text.parse().unwrap();
        assert_eq!(technique.to_string(), shown);
        assert_eq!(shown.parse::<Technique>().unwrap(), technique);
    }
}

#[test]
fn what_has_gone_already_is_said_so() {
    let notes = |techniques: &str| lowered(techniques, |l| l).unwrap().applied.unwrap().notes;
    let gone = notes("offload-core-attn offload-attn-proj");
    assert_eq!(gone, ["offload-attn-proj: another technique already offloads the same tensors"]);
    assert!(notes("offload-attn-proj offload-core-attn").is_empty());
    assert!(notes("offload-moe-act")[0].contains("has nothing that its rule on saved activations matches"));
}
