//! Mixtures of experts and context parallelism: operations, parameters, bytes and collectives against closed forms.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use sim::kernel::{Collective, CollectiveKind, DataType, Kernel, PartChoice};
use sim::units::{Bytes, Flops};
use workloads::footprint::Precision;
use workloads::import::hugging_face::parse_config;
use workloads::model::{ExpertGroups, Experts};
use workloads::training::{Attention, ContextMethod};
use workloads::{ActivationPolicy, Lowering, Model, RecomputeSet, Segment, SegmentKind, TrainingGraph};

const MIXTRAL: &str = r#"{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096, "vocab_size": 32000,
    "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false}"#;

fn mixtral() -> Model {
    parse_config("mixtral", "mixtral", MIXTRAL).unwrap()
}

fn graph(model: &Model, change: impl Fn(Lowering) -> Lowering) -> TrainingGraph {
    TrainingGraph::new(model, &change(Lowering::new(model))).unwrap()
}

fn layer(model: &Model, change: impl Fn(Lowering) -> Lowering) -> Segment {
    graph(model, change).segment(SegmentKind::Layer).unwrap().clone()
}

fn collectives(segment: &Segment, kind: CollectiveKind) -> Vec<Collective> {
    let (forward, backward) = (segment.forward_graph(), segment.backward_graph(&RecomputeSet::none()));
    let kernels = forward.node_weights().chain(backward.node_weights());
    let found = kernels.filter_map(|n| match n.kernel {
        Kernel::Collective(c) if c.kind == kind => Some(c),
        _ => None,
    });
    found.collect()
}

#[test]
fn a_capacity_factor_is_read_from_the_configuration() {
    let with = |value: &str| {
        let text = MIXTRAL.replacen("{", &format!("{{\"capacity_factor\": {value}, "), 1);
        parse_config("mixtral", "config.json", &text).map_err(|error| error.to_string())
    };
    let factor = |value: &str| with(value).unwrap().experts.unwrap().capacity_factor;
    assert_eq!((mixtral().experts.unwrap().capacity_factor, factor("null")), (None, None));
    assert_eq!((factor("1.25"), factor("1"), factor("4")), (Some(1.25), Some(1.0), Some(4.0)));
    for value in ["0.99", "4.01", "-1", "\"1.25\"", "true"] {
        assert_eq!(
            with(value).unwrap_err(),
            format!(
                "config.json: key `capacity_factor` is {value}, but must be a number from 1.0 to 4 (experts over \
                 experts per token): write for instance 1.25, or leave it out if no token is dropped"
            )
        );
    }
}

#[test]
fn mixtral_has_its_published_parameters() {
    // Jiang et al. 2024: 47B parameters, of which 13B are active per token.
    let model = mixtral();
    assert_eq!(model.parameters(), 46_702_792_704);
    let active = model.active_matrix_parameters(model.vocabulary) + model.vocabulary * model.hidden;
    assert!((12.5e9..13.0e9).contains(&(active as f64)), "{active}");
}

#[test]
fn expert_weights_are_split_by_experts_and_width() {
    let model = mixtral();
    let whole = graph(&model, |l| l).parameters();
    assert_eq!(whole.per_device_count(), model.parameters());
    assert_eq!(whole.expert, 32 * 8 * 3 * 4096 * 14336);
    for (tensor_parallel, expert_parallel) in [(1, 2), (1, 8), (2, 4), (8, 8)] {
        let part = graph(&model, |l| Lowering { tensor_parallel, expert_parallel, ..l }).parameters();
        assert_eq!(
            part.expert * u64::from(tensor_parallel * expert_parallel),
            whole.expert,
            "t {tensor_parallel} e {expert_parallel}"
        );
    }
}

#[test]
fn expert_products_do_the_closed_form_whatever_the_split() {
    let model = mixtral();
    let whole = layer(&model, |l| Lowering { attention: Attention::Unfused, ..l });
    let tokens = 4096;
    let closed = model.training_flops(1, tokens, 0).0 / u128::from(model.layers);
    assert_eq!((whole.forward_flops() + whole.backward_flops()).0, closed);
    // The experts of a rank see the slots of all ranks of their group, so a device's work does not depend on the expert
    // degree.
    for expert_parallel in [2, 4, 8] {
        let part = layer(&model, |l| Lowering { expert_parallel, ..l });
        let all = layer(&model, |l| l);
        assert_eq!(part.forward_flops(), all.forward_flops(), "e = {expert_parallel}");
        assert_eq!(part.backward_flops(), all.backward_flops(), "e = {expert_parallel}");
    }
}

#[test]
fn a_capacity_factor_pads_every_expert() {
    let experts = Experts { count: 8, top_k: 2, capacity_factor: Some(1.25), ..Experts::default() };
    assert_eq!(experts.expert_slots(4096), 8 * 1280);
    assert_eq!(experts.expert_slots(4097), 8 * 1281, "a capacity is rounded up: 1280.3");
    assert_eq!(Experts { capacity_factor: None, ..experts }.expert_slots(4096), 8192);
    let model = mixtral();
    let padded = Model { experts: Some(experts), ..model.clone() };
    let products = |m: &Model| {
        let layer = layer(m, |l| l);
        let ops =
            layer.graph.operators.iter().filter(|op| op.name == "layer.moe.gate_up" || op.name == "layer.moe.down");
        ops.flat_map(|op| &op.forward).map(|s| s.kernel.flops().0).sum::<u128>()
    };
    assert_eq!(products(&padded) * 4, products(&model) * 5);
}

#[test]
fn tokens_travel_four_times_and_only_between_expert_ranks() {
    let model = mixtral();
    assert!(collectives(&layer(&model, |l| l), CollectiveKind::AllToAll).is_empty());
    // Dispatch and return, each forward and backward, exchange two choices for each of 4096 tokens of 4096 elements.
    let found = collectives(&layer(&model, |l| Lowering { expert_parallel: 4, ..l }), CollectiveKind::AllToAll);
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|c| c.bytes == Bytes(2 * 4096 * 4096 * 2) && c.group.ranks == 4 && c.group.stride == 1));
    // Under sequence parallelism each tensor-parallel rank sends its own tokens' choices.
    let split = |l| Lowering { expert_parallel: 4, tensor_parallel: 2, sequence_parallel: true, ..l };
    let found = collectives(&layer(&model, split), CollectiveKind::AllToAll);
    assert!(found.len() == 4 && found.iter().all(|c| c.bytes == Bytes(4096 * 4096 * 2) && c.group.stride == 2));
}

/// Under expert-tensor degrees below the tensor-parallel degree, each device does the same operations and sends the
/// same number of token choices, but holds other weights. Only devices that share an expert gather and sum.
#[test]
fn an_expert_s_width_moves_weights_and_sums_but_no_work() {
    let model = mixtral();
    let at = |tensor: u32, expert: u32, width: Option<u32>| {
        layer(&model, |l| Lowering {
            tensor_parallel: tensor,
            sequence_parallel: tensor > 1,
            expert_parallel: expert,
            expert_tensor_parallel: width,
            ..l
        })
    };
    let of_experts = |segment: &Segment, kind| {
        let attention = collectives(
            &layer(&Model { experts: None, ..model.clone() }, |l| Lowering {
                tensor_parallel: 4,
                sequence_parallel: true,
                ..l
            }),
            kind,
        );
        // In the dense model, attention and MLP have equally many collectives, so half of the model's collectives are
        // attention's.
        collectives(segment, kind).len() - attention.len() / 2
    };
    let (usual, stated) = (at(4, 2, None), at(4, 2, Some(4)));
    assert_eq!(usual.forward_flops(), stated.forward_flops());
    for width in [1, 2] {
        let other = at(4, 2, Some(width));
        assert_eq!(
            (other.forward_flops(), other.backward_flops()),
            (usual.forward_flops(), usual.backward_flops()),
            "{width}"
        );
        let all_to_all = |segment| {
            let found = collectives(segment, CollectiveKind::AllToAll);
            assert_eq!(found.len(), 4);
            found.into_iter().map(|c| (c.bytes, c.group.ranks)).collect::<Vec<_>>()
        };
        assert_eq!(all_to_all(&other), all_to_all(&usual), "{width}");
        assert!(collectives(&other, CollectiveKind::AllToAll).iter().all(|c| c.group.stride == width));
        let expert = |segment: &Segment| segment.graph.operators.iter().map(|op| op.parameters.expert).sum::<u64>();
        assert_eq!(expert(&other) * u64::from(width), expert(&usual) * 4, "{width}");
    }
    // With an expert-tensor degree of 1, no devices share an expert, so nothing is gathered or summed.
    for kind in [CollectiveKind::AllGather, CollectiveKind::ReduceScatter] {
        assert!(of_experts(&usual, kind) > 0);
        assert_eq!(of_experts(&at(4, 2, Some(1)), kind), 0, "{kind:?}");
    }
    // If the expert-tensor degree exceeds the tensor-parallel degree, neighbours that share an expert gather each
    // other's tokens.
    let wide = at(1, 2, Some(4));
    let gathered = collectives(&wide, CollectiveKind::AllGather);
    assert!(!gathered.is_empty() && gathered.iter().all(|c| c.group.ranks == 4 && c.group.stride == 1), "{gathered:?}");
    assert_eq!(wide.forward_flops(), at(1, 2, None).forward_flops());
}

#[test]
fn an_expert_layer_keeps_what_its_backward_pass_reads() {
    // Attention as in a dense layer: (8 + 4g) sbh with the norms' inputs, 4asb and two RMSNorm factors of 4sb. Experts,
    // in units of sbh: the MLP's input 2 (for the router), dispatched tokens 2k, gate, up and their product 6fk,
    // results 2k. Router, in bytes per token: probabilities 4E, weights and indices 8k. Nothing reads the router's
    // result.
    let model = mixtral();
    let (s, h, i, k, e) = (4096_u64, 4096_u64, 14336_u64, 2_u64, 8_u64);
    let attention = s * (10 * h + 4 * 1024 + 4 * 32 + 8);
    let experts = s * (2 * h + 2 * k * h + 6 * k * i + 2 * k * h + 4 * e + 8 * k);
    assert_eq!(layer(&model, |l| l).saved_bytes(&RecomputeSet::none()), Bytes(attention + experts));
}

#[test]
fn context_parallel_devices_share_work_and_activations() {
    let model = Model::load("llama3-8b").unwrap();
    let whole = layer(&model, |l| l);
    let none = RecomputeSet::none();
    for context_parallel in [2, 4, 8] {
        for context_method in [ContextMethod::Ring, ContextMethod::Ulysses] {
            let part = layer(&model, |l| Lowering { context_parallel, context_method, ..l });
            let c = u64::from(context_parallel);
            assert_eq!(part.forward_flops().0 * u128::from(c), whole.forward_flops().0, "{context_method:?} {c}");
            assert_eq!(part.backward_flops().0 * u128::from(c), whole.backward_flops().0, "{context_method:?} {c}");
            assert_eq!(part.parameters, whole.parameters);
            let again = if context_method == ContextMethod::Ulysses { 2 * 8192 * 4096 / c } else { 0 };
            let saved = part.saved_bytes(&none).0;
            assert_eq!(
                saved,
                whole.saved_bytes(&none).0 / c + again,
                "Ulysses keeps attention's result before and after the exchange"
            );
            assert_eq!(part.boundary_bytes.0 * c, whole.boundary_bytes.0);
        }
    }
}

#[test]
fn a_ring_moves_keys_and_values_and_ulysses_all_of_attention() {
    let model = Model::load("llama3-8b").unwrap();
    let kv = Bytes(2 * 8192 * 1024 * 2);
    let ring = layer(&model, |l| Lowering { context_parallel: 4, tensor_parallel: 2, ..l });
    let gathers = collectives(&ring, CollectiveKind::AllGather);
    // Keys and values are gathered forward and again backward; their gradients are reduced once. Each of two
    // tensor-parallel devices has half of the heads, so the ranks of a ring are two apart.
    assert!(
        gathers.len() == 2
            && gathers.iter().all(|c| c.bytes.0 * 2 == kv.0 && c.group.ranks == 4 && c.group.stride == 2)
    );
    assert_eq!(collectives(&ring, CollectiveKind::ReduceScatter).len(), 1);
    let ulysses = layer(&model, |l| Lowering { context_parallel: 4, context_method: ContextMethod::Ulysses, ..l });
    let exchanges = collectives(&ulysses, CollectiveKind::AllToAll);
    let moved: u64 = exchanges.iter().map(|c| c.bytes.0).sum();
    // Each device exchanges query, key, value and result of its quarter of the tokens, forward and backward, in two
    // bytes per element.
    assert_eq!((exchanges.len(), moved), (4, 2 * 2 * 2048 * (4096 + 1024 + 1024 + 4096)));
}

#[test]
fn narrow_products_convert_their_operands_and_keep_wide_activations() {
    let model = Model::load("llama3-8b").unwrap();
    let precision = Precision::MIXED_BF16.with_product_type(DataType::Fp8);
    let (wide, narrow) = (layer(&model, |l| l), layer(&model, |l| Lowering { precision, ..l }));
    let none = RecomputeSet::none();
    assert_eq!(wide.saved_bytes(&none), narrow.saved_bytes(&none));
    assert_eq!(wide.forward_flops() + wide.backward_flops(), narrow.forward_flops() + narrow.backward_flops());
    let products = |s: &Segment, operand| {
        let (forward, backward) = (s.forward_graph(), s.backward_graph(&none));
        let flops = forward.node_weights().chain(backward.node_weights()).filter_map(|n| match n.kernel {
            Kernel::Contraction(c) if c.operand == operand => Some(c.flops()),
            _ => None,
        });
        flops.sum::<Flops>()
    };
    assert_eq!(products(&narrow, DataType::Fp8), products(&wide, DataType::Bf16));
    assert_eq!(products(&narrow, DataType::Bf16), Flops(0), "fused attention is no product with weights");
    let head = graph(&model, |l| Lowering { precision, ..l });
    assert_eq!(products(head.segment(SegmentKind::Head).unwrap(), DataType::Fp8), Flops(0), "logits stay wide");
}

const DEEPSEEK_V3: &str = include_str!("../models/deepseek-v3.json");

#[test]
fn a_limit_on_groups_of_experts_is_read() {
    let with = |changes: &[(&str, &str)]| {
        let text = changes.iter().fold(DEEPSEEK_V3.to_owned(), |text, (of, by)| {
            assert!(text.contains(of), "{of}");
            text.replacen(of, by, 1)
        });
        parse_config("v3", "config.json", &text).map_err(|error| error.to_string())
    };
    let groups = |changes: &[(&str, &str)]| with(changes).unwrap().experts.unwrap().groups;
    assert_eq!(groups(&[]), Some(ExpertGroups { count: 8, chosen: 4 }));
    assert_eq!(groups(&[("\"topk_group\": 4", "\"topk_group\": 8")]), None, "no limit");
    assert_eq!(groups(&[("\"n_group\": 8", "\"n_group\": null"), ("\"topk_group\": 4", "\"topk_group\": null")]), None);
    assert_eq!(groups(&[("\"topk_method\": \"noaux_tc\"", "\"topk_method\": \"greedy\"")]), None);
    let error = |of: &str, by: &str| with(&[(of, by)]).unwrap_err();
    let text = error("\"n_group\": 8", "\"n_group\": 7");
    assert!(text.contains("key `n_group` is 7, but must be a divisor of `n_routed_experts` (256)"), "{text}");
    let text = error("\"topk_group\": 4", "\"topk_group\": 9");
    assert!(text.contains("key `topk_group` is 9, but must be at most `n_group` (8)"), "{text}");
    let text = with(&[("\"n_group\": 8", "\"n_group\": 64"), ("\"topk_group\": 4", "\"topk_group\": 1")]).unwrap_err();
    assert!(text.contains("its groups of 4 experts hold `num_experts_per_tok` (8)"), "{text}");
}

/// If tokens are sent once to every unit of the network, another collective with the same buffer sends them. Work and
/// kept tensors stay the same.
#[test]
fn tokens_sent_once_change_the_exchange_alone() {
    let model = Model::load("deepseek-v3").unwrap();
    let at = |expert_deduplicated| {
        layer(&model, |l| Lowering { expert_parallel: 64, expert_deduplicated, sequence_length: 4096, ..l })
    };
    let (copies, once) = (at(false), at(true));
    assert_eq!((copies.forward_flops(), copies.backward_flops()), (once.forward_flops(), once.backward_flops()));
    let sent = collectives(&copies, CollectiveKind::AllToAll);
    let choice = PartChoice { parts: 256, chosen: 8, groups: 8, groups_chosen: 4 };
    let dispatched = collectives(&once, CollectiveKind::Dispatch(choice));
    assert!(sent.len() == 4 && collectives(&once, CollectiveKind::AllToAll).is_empty());
    let buffers = |found: &[Collective]| found.iter().map(|c| (c.bytes, c.group)).collect::<Vec<_>>();
    assert_eq!(buffers(&sent), buffers(&dispatched));
}

#[test]
fn policies_apply_to_expert_layers() {
    let layer = layer(&mixtral(), |l| l);
    let none = ActivationPolicy::None.treatment_of_segment(&layer.graph);
    let full = ActivationPolicy::Full.treatment_of_segment(&layer.graph);
    assert_eq!(full.kept_bytes(&layer.graph), Bytes(2 * 4096 * 4096));
    assert!(full.recompute.len() > 8 && none.kept_bytes(&layer.graph) > full.kept_bytes(&layer.graph));
}

#[test]
fn what_does_not_divide_is_refused_with_the_nearest() {
    let model = mixtral();
    let error = |change: fn(Lowering) -> Lowering| {
        TrainingGraph::new(&model, &change(Lowering::new(&model))).unwrap_err().to_string()
    };
    let experts = error(|l| Lowering { expert_parallel: 3, ..l });
    assert!(experts.contains("expert-parallel degree is 3") && experts.contains("use 2 or 4"), "{experts}");
    let sequence = error(|l| Lowering { context_parallel: 3, ..l });
    assert!(sequence.contains("context-parallel degree 3"), "{sequence}");
    let heads = error(|l| Lowering { context_parallel: 64, context_method: ContextMethod::Ulysses, ..l });
    assert!(heads.contains("8 key/value heads") && heads.contains("use 8"), "{heads}");
    let shared =
        error(|l| Lowering { context_parallel: 4, tensor_parallel: 4, context_method: ContextMethod::Ulysses, ..l });
    assert!(shared.contains("the 2 key/value heads of a device") && shared.contains("use 2"), "{shared}");
    let unfused = error(|l| Lowering { context_parallel: 2, attention: Attention::Unfused, ..l });
    assert!(unfused.contains("fused"), "{unfused}");
    let dense = Model::load("llama3-8b").unwrap();
    let none =
        TrainingGraph::new(&dense, &Lowering { expert_parallel: 2, ..Lowering::new(&dense) }).unwrap_err().to_string();
    assert!(none.contains("no experts"), "{none}");
}
