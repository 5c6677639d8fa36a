//! Activation policies: their text, what they keep, and what that costs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use sim::units::{Bytes, Flops};
use std::collections::BTreeSet;
use workloads::graph::OperatorGraph;
use workloads::training::Attention;
use workloads::{
    ActivationPolicy, Lowering, Model, NamedTensor, Release, ReplayExtent, Segment, SegmentKind, TrainingGraph,
    Treatment,
};

const NAMED: [&str; 9] = [
    "minimal",
    "minimal_with_context",
    "save_qkv_proj",
    "save_out_proj",
    "save_dot_except_mlp",
    "save_dot_with_context_except_mlp",
    "save_dot_except_mlpwi",
    "save_dot_except_logits",
    "save_dot_except_logits_ffn1",
];

fn policy(text: &str) -> ActivationPolicy {
    text.parse().unwrap()
}

fn segment(name: &str, change: impl Fn(Lowering) -> Lowering, kind: SegmentKind) -> Segment {
    let model = Model::load(name).unwrap();
    let training = TrainingGraph::new(&model, &change(Lowering::new(&model))).unwrap();
    training.segment(kind).unwrap().clone()
}

fn llama(change: impl Fn(Lowering) -> Lowering) -> Segment {
    segment("llama3-8b", change, SegmentKind::Layer)
}

fn recomputed_flops(graph: &OperatorGraph, treatment: &Treatment) -> Flops {
    let steps = treatment.recompute.iter().flat_map(|op| &graph.operators[op.index()].forward);
    steps.map(|s| s.kernel.flops()).sum()
}

#[test]
fn texts_are_read_and_printed_back() {
    let plain = ["none", "selective", "selective_per_operator", "full"];
    let custom = ["custom:offload(decoder_layer_input,query_proj)+device(out_proj)", "custom:device(mlpwi_0,mlpwi_1)"];
    for text in plain.into_iter().chain(NAMED).chain(custom) {
        assert_eq!(policy(text).to_string(), text);
    }
    for name in NAMED {
        let text = format!("{name}_offloaded");
        assert_eq!(policy(&text).to_string(), text);
    }
    assert_eq!(policy("full_offloaded").to_string(), "custom:offload(decoder_layer_input)");
    assert_eq!(policy("qkv_proj_offloaded"), policy("save_qkv_proj_offloaded"));
    assert_eq!(policy("minimal_flash"), policy("minimal_with_context"));
}

#[test]
fn every_choice_of_tensors_is_read_back_as_it_is_printed() {
    use NamedTensor::*;
    let tensors =
        [DecoderLayerInput, QueryProj, KeyProj, ValueProj, QkvProj, Context, OutProj, Mlpwi, Mlpwi0, Mlpwi1, Mlpwo];
    for choice in 0..3_u32.pow(tensors.len() as u32) {
        let place = |i: usize| choice / 3_u32.pow(i as u32) % 3;
        let at = |wanted: u32| (0..tensors.len()).filter(move |i| place(*i) == wanted).map(|i| tensors[i]);
        // The layer's input is on the device anyway, so a policy's list of device tensors omits it.
        let device = at(2).filter(|tensor| *tensor != DecoderLayerInput).collect();
        let chosen = ActivationPolicy::Custom { host: at(1).collect(), device };
        assert_eq!(policy(&chosen.to_string()), chosen, "{chosen}");
    }
    let nothing = policy("custom:device(decoder_layer_input)");
    assert_eq!(nothing, ActivationPolicy::Custom { host: BTreeSet::new(), device: BTreeSet::new() });
    assert_eq!(nothing.to_string(), "custom:device(decoder_layer_input)");
    let layer = llama(|l| l);
    assert_eq!(nothing.treatment_of_segment(&layer.graph), ActivationPolicy::Full.treatment_of_segment(&layer.graph));
}

#[test]
fn a_wrong_name_gets_the_nearest() {
    let error = |text: &str| text.parse::<ActivationPolicy>().unwrap_err().to_string();
    assert!(
        error("minimall").starts_with("recompute policy `minimall`: no such policy; did you mean `minimal`?"),
        "{}",
        error("minimall")
    );
    assert!(error("save_qkv_porj").contains("did you mean `save_qkv_proj`?"));
    assert!(error("selective_offloaded").contains("no such policy; use one of none, selective, "));
    assert!(error("custom:offload(querry_proj)").contains("did you mean `query_proj`?"));
    assert!(error("custom:host(query_proj)").contains("recompute place `host`"));
    assert!(error("custom:query_proj").contains("is not a list of tensors"));
    assert!(error("custom:offload()").contains("`offload()` is not a list of tensors: write `custom:offload("));
    assert!(error("custom:offload(context)+device(context)").contains("`context` is in two places"));
}

#[test]
fn selective_keeps_34_sbh_and_runs_the_core_again() {
    for (attention, kept) in [(Attention::Unfused, 34), (Attention::Fused, 34)] {
        let layer = segment("gpt3-175b", |l| Lowering { attention, ..l }, SegmentKind::Layer);
        let sbh = 2048 * 12288;
        let treatment = policy("selective").treatment_of_segment(&layer.graph);
        assert_eq!(treatment.kept_bytes(&layer.graph), Bytes(kept * sbh), "{attention:?}");
        let all = policy("selective").treatment_with_extent(&layer.graph, ReplayExtent::WholeRegion);
        assert_eq!(all.kept, treatment.kept, "what is kept does not depend on the replay");
        // Both products of the attention core are recomputed: 4 s^2 b h operations, or the causal half of them if the
        // core is fused.
        let squares = 4 * 2048 * 2048 * 12288_u128;
        let expected = if attention == Attention::Unfused { squares } else { squares / 2 };
        assert_eq!(recomputed_flops(&layer.graph, &all), Flops(expected), "{attention:?}");
    }
}

#[test]
fn full_keeps_the_input_and_a_whole_region_is_the_forward_pass() {
    let layer = llama(|l| l);
    let needed = ActivationPolicy::Full.treatment_of_segment(&layer.graph);
    let whole = ActivationPolicy::Full.treatment_with_extent(&layer.graph, ReplayExtent::WholeRegion);
    let input = Bytes(2 * 8192 * 4096);
    assert_eq!(needed.kept_bytes(&layer.graph), input);
    assert_eq!(whole.kept, needed.kept);
    assert_eq!(recomputed_flops(&layer.graph, &whole), layer.forward_flops());
    // Nothing reads the result of the MLP's last product, so it is not recomputed.
    let last = Flops(2 * 8192 * 14336 * 4096);
    assert_eq!(recomputed_flops(&layer.graph, &needed) + last, layer.forward_flops());
    let offloaded = policy("full_offloaded").treatment_of_segment(&layer.graph);
    assert_eq!((offloaded.kept_bytes(&layer.graph), offloaded.offloaded_bytes(&layer.graph)), (Bytes(0), input));
    // GPT-3 has dropout after the MLP's last product. The dropout kernel that makes the mask again reads the product's
    // result.
    let gpt = segment("gpt3-175b", |l| l, SegmentKind::Layer);
    let needed = ActivationPolicy::Full.treatment_of_segment(&gpt.graph);
    assert_eq!(recomputed_flops(&gpt.graph, &needed), gpt.forward_flops());
}

#[test]
fn minimal_keeps_the_products_of_a_llama_layer() {
    // Kept bytes in units of sbh: input 2, query 2, key and value 2g each, output projection 2, gate and up 4f. The sum
    // is (6 + 4g + 4f) sbh. Nothing reads the MLP's result. Attention is recomputed, so neither its result nor its
    // log-sum-exp is kept.
    let layer = llama(|l| l);
    let sb = 8192_u64;
    let expected = sb * (6 * 4096 + 4 * 1024 + 4 * 14336);
    let minimal = policy("minimal").treatment_of_segment(&layer.graph);
    assert_eq!(minimal.kept_bytes(&layer.graph), Bytes(expected));
    let context = policy("minimal_with_context").treatment_of_segment(&layer.graph);
    assert_eq!(context.kept_bytes(&layer.graph), Bytes(expected + sb * 2 * 4096 + sb * 4 * 32));
    assert_eq!(recomputed_flops(&layer.graph, &context), Flops(0), "only elementwise work runs again");
    let host = policy("minimal_offloaded").treatment_of_segment(&layer.graph);
    assert_eq!(host.kept_bytes(&layer.graph), Bytes(sb * 2 * 4096), "the layer's input stays");
    assert_eq!(host.offloaded_bytes(&layer.graph), Bytes(expected - sb * 2 * 4096));
    assert_eq!(host.recompute, minimal.recompute);
}

#[test]
fn per_operator_keeps_attention_and_every_second_product() {
    // Kept bytes in units of sbh: input 2, attention 2, query 2, value 2g, gate 2f; and the log-sum-exp. Eager
    // execution also caches the last product's result.
    let layer = llama(|l| Lowering { separate_projections: true, ..l });
    let sb = 8192_u64;
    let expected = sb * (6 * 4096 + 2 * 1024 + 2 * 14336 + 4 * 32);
    let compiled = policy("selective_per_operator").treatment_of_segment(&layer.graph);
    assert_eq!(compiled.kept_bytes(&layer.graph), Bytes(expected));
    let eager = policy("selective_per_operator").treatment_with_extent(&layer.graph, ReplayExtent::WholeRegion);
    assert_eq!(eager.kept_bytes(&layer.graph), Bytes(expected + sb * 2 * 4096));
    // Key, output and up projections are recomputed.
    let products = 2 * u128::from(sb) * (4096 * 1024 + 4096 * 4096 + 4096 * 14336);
    assert_eq!(recomputed_flops(&layer.graph, &compiled), Flops(products));
}

#[test]
fn what_is_kept_suffices_and_more_kept_is_less_run_again() {
    let texts = || ["none", "selective", "selective_per_operator", "full"].into_iter().chain(NAMED);
    for separate_projections in [false, true] {
        for (name, attention) in
            [("llama3-8b", Attention::Fused), ("gpt2-xl", Attention::Unfused), ("bert-large", Attention::Unfused)]
        {
            let layer = segment(name, |l| Lowering { attention, separate_projections, ..l }, SegmentKind::Layer);
            let graph = &layer.graph;
            for text in texts() {
                let treatment = policy(text).treatment_of_segment(graph);
                let held = |t: &workloads::TensorId| treatment.kept.contains(t) || treatment.offloaded.contains(t);
                let rebuilt = |t: &workloads::TensorId| {
                    graph.tensors[t.index()].producer.is_some_and(|op| treatment.recompute.contains(op))
                };
                let available = |t: &workloads::TensorId| held(t) || rebuilt(t);
                assert!(graph.tensors.iter().filter(|t| t.saved).all(|t| available(&t.id)), "{name} {text}: backward");
                for op in treatment.recompute.iter() {
                    assert!(graph.operators[op.index()].inputs.iter().all(available), "{name} {text}: {op}");
                }
                let full = ActivationPolicy::Full.treatment_of_segment(graph);
                let none = ActivationPolicy::None.treatment_of_segment(graph);
                assert!(
                    treatment.kept_bytes(graph) >= full.kept_bytes(graph)
                        && treatment.kept_bytes(graph) <= none.kept_bytes(graph)
                );
                assert!(recomputed_flops(graph, &treatment) <= recomputed_flops(graph, &full));
                assert!(none.recompute.is_empty() && none.rebuilt_bytes(graph) == Bytes(0));
            }
        }
    }
}

/// Returns the peak of a simulated backward pass: kept tensors, each until its last reader has run, and gradients, but
/// no rebuilt tensors.
fn played_backward(graph: &OperatorGraph) -> u64 {
    let kept = graph.kept_tensors(&workloads::RecomputeSet::none());
    let reads = |op: usize| graph.operators[op].backward.iter().flat_map(|chain| chain.reads.iter().copied());
    let mut gradients = BTreeSet::from([graph.output]);
    let mut most = 0;
    for at in (0..graph.operators.len()).rev() {
        let op = &graph.operators[at];
        let unread: BTreeSet<_> = (0..=at).flat_map(reads).collect();
        let never: BTreeSet<_> = (0..graph.operators.len()).flat_map(reads).collect();
        let saved: u64 = kept
            .iter()
            .filter(|t| unread.contains(t) || !never.contains(t))
            .map(|t| graph.tensors[t.index()].bytes.0)
            .sum();
        let mut live = saved + op.workspace.0;
        for input in op.inputs.iter().filter(|_| !op.backward.is_empty()) {
            // A second contribution to a gradient is a separate tensor until it is added.
            if !gradients.insert(*input) {
                live += graph.tensors[input.index()].gradient_bytes.0;
            }
        }
        live += gradients.iter().map(|t| graph.tensors[t.index()].gradient_bytes.0).sum::<u64>();
        op.outputs.iter().for_each(|t| {
            gradients.remove(t);
        });
        most = most.max(live);
    }
    most
}

#[test]
fn what_is_kept_goes_behind_its_last_reader() {
    for unfused in [false, true] {
        let layer = llama(|l| Lowering {
            attention: if unfused { Attention::Unfused } else { Attention::Fused },
            elementwise_fusion: !unfused,
            sequence_length: 2048,
            ..l
        });
        let graph = &layer.graph;
        let none = ActivationPolicy::None.treatment_of_segment(graph);
        let kept = none.kept_bytes(graph).0;
        let [whole, by_tensor] =
            [Release::AtTheEnd, Release::BehindReaders].map(|release| none.peak_backward_bytes(graph, release).0);
        assert_eq!(kept + by_tensor, played_backward(graph), "unfused {unfused}");
        assert!(by_tensor < whole, "unfused {unfused}: {by_tensor} {whole}");
        for text in NAMED {
            let treatment = policy(text).treatment_of_segment(graph);
            let [whole, by_tensor] =
                [Release::AtTheEnd, Release::BehindReaders].map(|r| treatment.transient_bytes(graph, r));
            assert!(by_tensor <= whole, "{text}");
        }
        // A checkpoint's input is held while its layer is recomputed; all other tensors are rebuilt.
        let full = ActivationPolicy::Full.treatment_of_segment(graph);
        let [whole, by_tensor] =
            [Release::AtTheEnd, Release::BehindReaders].map(|release| full.peak_backward_bytes(graph, release));
        assert_eq!(whole, by_tensor, "unfused {unfused}");
    }
}

#[test]
fn the_working_set_is_what_the_passes_need_at_once() {
    // A fully kept Llama layer has its peak at the backward pass of the gated unit. Bytes per token: gradients of the
    // gated product, gate and up (2i each) and of the residual stream (2h). With everything recomputed, the rebuilt
    // tensors are added: 12h + 4g + 6i for keys of width g, without the input (2h) and the gated product (2i), which is
    // freed already. Both norms' factors and the log-sum-exp are added too.
    let layer = llama(|l| l);
    let (sb, h, i) = (8192_u64, 4096_u64, 14336_u64);
    let none = ActivationPolicy::None.treatment_of_segment(&layer.graph);
    assert_eq!(none.peak_backward_bytes(&layer.graph, Release::AtTheEnd), Bytes(sb * (6 * i + 2 * h)));
    let full = ActivationPolicy::Full.treatment_of_segment(&layer.graph);
    let rebuilt = 10 * h + 4 * 1024 + 4 * i + 4 * 32 + 8;
    assert_eq!(full.peak_backward_bytes(&layer.graph, Release::AtTheEnd), Bytes(sb * (6 * i + 2 * h + rebuilt)));
    // The peak is at most the sum of all rebuilt tensors and the peak of a fully kept layer.
    for text in NAMED {
        let treatment = policy(text).treatment_of_segment(&layer.graph);
        let bound = none.peak_backward_bytes(&layer.graph, Release::AtTheEnd) + treatment.rebuilt_bytes(&layer.graph);
        assert!(treatment.peak_backward_bytes(&layer.graph, Release::AtTheEnd) <= bound, "{text}");
        assert!(
            treatment.transient_bytes(&layer.graph, Release::AtTheEnd)
                >= none.peak_backward_bytes(&layer.graph, Release::AtTheEnd).max(Bytes(1)),
            "{text}"
        );
    }
    // An offloaded input returns for the backward pass, so it adds to the peak.
    let moved = policy("full_offloaded").treatment_of_segment(&layer.graph);
    assert_eq!(
        moved.peak_backward_bytes(&layer.graph, Release::AtTheEnd),
        full.peak_backward_bytes(&layer.graph, Release::AtTheEnd) + Bytes(sb * 2 * h)
    );
}

#[test]
fn embedding_and_head_keep_everything() {
    for kind in [SegmentKind::Embedding, SegmentKind::Head] {
        let segment = segment("llama3-8b", |l| l, kind);
        let treatment = ActivationPolicy::Full.treatment_with_extent(&segment.graph, ReplayExtent::WholeRegion);
        assert!(treatment.recompute.is_empty() && treatment.offloaded.is_empty());
        assert_eq!(treatment.kept_bytes(&segment.graph), segment.saved_bytes(&treatment.recompute));
    }
}

#[test]
fn separate_projections_are_the_same_work_and_memory() {
    for tensor_parallel in [1, 8] {
        let change = |separate_projections| {
            move |l| Lowering { separate_projections, tensor_parallel, sequence_parallel: tensor_parallel > 1, ..l }
        };
        let (joint, separate) = (llama(change(false)), llama(change(true)));
        assert_eq!(joint.forward_flops(), separate.forward_flops());
        assert_eq!(joint.backward_flops(), separate.backward_flops());
        assert_eq!(joint.parameters, separate.parameters);
        let none = workloads::RecomputeSet::none();
        assert_eq!(joint.saved_bytes(&none), separate.saved_bytes(&none));
        let collectives = |s: &Segment| {
            let graph = s.forward_graph();
            graph.node_weights().filter(|n| matches!(n.kernel, sim::kernel::Kernel::Collective(_))).count()
        };
        assert_eq!(collectives(&joint), collectives(&separate), "the input is gathered once");
    }
}
