//! Policies that offload a share of the tokens and recompute the rest.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use proptest::prelude::*;
use std::collections::BTreeSet;
use workloads::{
    ActivationPolicy, Lowering, Model, OpId, Segment, SegmentKind, Technique, Techniques, TensorPlaces, TokenShare,
    TrainingGraph,
};

fn training(name: &str) -> (Model, TrainingGraph) {
    let model = Model::load(name).unwrap();
    let graph = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
    (model, graph)
}

fn layer(graph: &TrainingGraph) -> &Segment {
    graph.segment(SegmentKind::Layer).unwrap()
}

fn error(text: &str) -> String {
    text.parse::<ActivationPolicy>().unwrap_err().to_string()
}

#[test]
fn memo_is_a_policy_whatever_part_of_the_tokens_goes() {
    for name in ["llama2-7b", "gpt3-175b", "mixtral-8x7b"] {
        let (model, plain) = training(name);
        for eighths in 0..=8 {
            let fraction = f64::from(eighths) / 8.0;
            let memo: Techniques =
                [format!("memo,fraction={fraction}").parse::<Technique>().unwrap()].into_iter().collect();
            let applied = memo.apply_to_graph(&model, plain.clone(), 1).unwrap();
            for own in ["none", "selective", "full"] {
                let wanted = own.parse::<ActivationPolicy>().unwrap().treatment_of_segment(&layer(&applied).graph);
                let policy = ActivationPolicy::from_treatment(&layer(&plain).graph, &wanted);
                assert_eq!(
                    policy.to_string().ends_with("+rest(recompute)"),
                    wanted.partly.is_some() && eighths > 0,
                    "{policy}"
                );
                let found =
                    policy.to_string().parse::<ActivationPolicy>().unwrap().treatment_of_segment(&layer(&plain).graph);
                let graph = &layer(&plain).graph;
                assert_eq!(found.kept, wanted.kept, "{name} {fraction} {own}");
                assert_eq!(found.recompute, wanted.recompute, "{name} {fraction} {own}");
                assert_eq!(found.kept_bytes(graph), wanted.kept_bytes(graph));
                assert_eq!(found.offloaded_bytes(graph), wanted.offloaded_bytes(graph));
                let share = |id: OpId| (found.recomputed_token_fraction(id), wanted.recomputed_token_fraction(id));
                assert!(
                    found.recompute.iter().map(share).all(|(found, wanted)| found == wanted),
                    "{name} {fraction} {own}"
                );
            }
        }
    }
}

#[test]
fn what_the_rest_needs_is_kept_for_all_tokens() {
    let (_, plain) = training("llama2-7b");
    let graph = &layer(&plain).graph;
    let of = |text: &str| text.parse::<ActivationPolicy>().unwrap().treatment_of_segment(graph);
    // For the three quarters of the tokens that stay, `mlp.gated.out` is dropped, and the operators that make it are
    // recomputed.
    let part = of("tensors:offload(mlp.gated.out*0.25)+device(attention.core.out)+rest(recompute)");
    let whole = of("tensors:offload(mlp.gated.out)+device(attention.core.out)");
    let without = of("tensors:device(attention.core.out)");
    assert_eq!(part.throughout, whole.recompute, "what runs again whatever goes away");
    assert_eq!(part.recompute, without.recompute, "what the rest needs besides");
    assert_eq!(part.kept_bytes(graph), without.kept_bytes(graph));
    let bytes = |tensor: &str| graph.tensors[graph.find_tensor(&format!("layer.{tensor}")).unwrap().index()].bytes;
    assert_eq!(part.offloaded_bytes(graph).0, bytes("mlp.gated.out").0 / 4);
    let again: Vec<OpId> = part.recompute.iter().filter(|id| !part.throughout.contains(*id)).collect();
    assert!(!again.is_empty() && again.iter().all(|id| part.recomputed_token_fraction(*id) == 0.75));
    assert!(part.throughout.iter().all(|id| part.recomputed_token_fraction(id) == 1.0));
    assert_eq!(part.rebuilt_bytes(graph), without.rebuilt_bytes(graph), "each token is rebuilt or brought back");
}

#[test]
fn the_rest_runs_again_beside_techniques_too() {
    let (model, plain) = training("llama2-7b");
    let policy = "tensors:offload(attention.core.log_sum_exp,attention.core.out,mlp.gated.out*0.25)+rest(recompute)";
    let policy = policy.parse::<ActivationPolicy>().unwrap();
    let alone = policy.treatment_of_segment(&layer(&plain).graph);
    assert!(!alone.recompute.is_empty());
    // The first technique offloads and the second recomputes only tensors that the policy offloads or recomputes
    // anyway. The third affects no activations.
    for name in ["offload-attn-proj", "recompute-layernorm", "zero-offload"] {
        let techniques: Techniques = [name.parse::<Technique>().unwrap()].into_iter().collect();
        let applied = techniques.apply_to_graph(&model, plain.clone(), 1).unwrap();
        let beside = policy.treatment_of_segment(&layer(&applied).graph);
        assert_eq!(beside.recompute, alone.recompute, "{name}");
        assert_eq!((&beside.throughout, &beside.partly), (&alone.throughout, &alone.partly), "{name}");
        assert_eq!((&beside.kept, &beside.offloaded), (&alone.kept, &alone.offloaded), "{name}");
    }
}

#[test]
fn a_rest_of_nothing_is_none() {
    assert!(error("tensors:offload(input)+rest(recompute)").contains("write `offload(NAME*0.5)+rest(recompute)`"));
    assert!(error("tensors:offload(input*0.5)+rest(keep)").contains("leave it out, or write `rest(recompute)`"));
    assert!(error("custom:offload(context)+rest(recompute)").contains("rest"));
    assert!(error("tensors:offload(mlp.gated.out,mlp.gated.out*0.5)").contains("`mlp.gated.out` is named twice"));
    assert!(error("tensors:offload(input*0.5)+rest(recompute)+rest(recompute)").contains("given twice"));
}

proptest! {
    #[test]
    fn every_policy_is_read_back_as_it_is_printed(
        places in prop::collection::vec(0_u8..6, 24),
        millionths in 1_u32..1_000_000,
        recomputed in any::<bool>(),
    ) {
        let (_, plain) = training("llama2-7b");
        let graph = &layer(&plain).graph;
        let names: Vec<&str> = graph.tensors.iter().filter_map(|t| t.name.strip_prefix("layer.")).collect();
        let at = |wanted: &[u8]| -> BTreeSet<String> {
            let chosen = names.iter().zip(&places).filter(|(name, place)| **name != "input" && wanted.contains(place));
            chosen.map(|(name, _)| (*name).to_owned()).collect()
        };
        let tensors = at(&[3, 5]);
        let share = (!tensors.is_empty()).then_some(TokenShare { tensors, millionths, recomputed });
        let policy = ActivationPolicy::Tensors(TensorPlaces { host: at(&[1, 3]), storage: at(&[4, 5]), device: at(&[2]), share });
        prop_assert_eq!(&policy.to_string().parse::<ActivationPolicy>().unwrap(), &policy);
        // The policy derived from a treatment gives the same treatment again.
        let treatment = policy.treatment_of_segment(graph);
        prop_assert_eq!(&ActivationPolicy::from_treatment(graph, &treatment).treatment_of_segment(graph), &treatment);
        prop_assert!(treatment.kept.is_disjoint(&treatment.offloaded) && treatment.stored.is_subset(&treatment.offloaded));
        prop_assert!(treatment.throughout.iter().all(|id| treatment.recompute.contains(id)));
    }
}
