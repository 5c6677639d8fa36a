//! Laws of the graphs: order, names, dependencies, collectives, slices that sum to the whole, and sufficiency of kept
//! tensors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use petgraph::Direction::Outgoing;
use petgraph::algo::{has_path_connecting, is_cyclic_directed};
use petgraph::graph::NodeIndex;
use proptest::prelude::*;
use sim::kernel::{CollectiveKind, Kernel, KernelGraph};
use sim::units::Flops;
use std::collections::{BTreeMap, BTreeSet};
use workloads::graph::{Gradient, KernelStep, OperatorGraph};
use workloads::layer_list::{LayerKind, Mixer};
use workloads::model::{Model, built_in_names};
use workloads::parallel::tensor_parallel_degrees;
use workloads::training::Attention;
use workloads::variations::QueryKeyNorm;
use workloads::{Lowering, OpId, RecomputeSet, Segment, SegmentKind, TensorId, TrainingGraph};

/// Returns the built-in models whose layers all have attention with the model's own heads. `mixers.rs` and
/// `published_models.rs` test the others.
fn plain_models() -> Vec<&'static str> {
    let is_plain = |model: &Model| {
        let v = &model.variations;
        let own = |kind: &LayerKind| kind.mixer == Mixer::Attention && kind.attention.is_none();
        v.scan.is_none()
            && v.linear.is_none()
            && v.indexer.is_none()
            && model.layer_kinds().iter().all(|(kind, _)| own(kind))
    };
    built_in_names().filter(|name| is_plain(&Model::load(name).unwrap())).collect()
}

/// Returns whether every expert gets a whole number of slots if the sequence has the model's largest length.
fn fills_experts(model: &Model) -> bool {
    model.experts.is_none_or(|experts| (model.max_sequence * experts.top_k).is_multiple_of(experts.count))
}

/// Returns every plain model at each tensor-parallel degree up to eight, under every combination of five switches.
fn cases() -> Vec<(String, TrainingGraph)> {
    let mut cases = Vec::new();
    for name in plain_models() {
        let model = Model::load(name).unwrap();
        for tensor_parallel in tensor_parallel_degrees(&model, 8) {
            for switches in 0..32 {
                let bit = |i: u32| switches >> i & 1 == 1;
                let lowering = Lowering {
                    tensor_parallel,
                    sequence_parallel: bit(0)
                        && tensor_parallel > 1
                        && model.max_sequence.is_multiple_of(tensor_parallel.into()),
                    attention: if bit(1) { Attention::Fused } else { Attention::Unfused },
                    elementwise_fusion: bit(2),
                    epilogues: bit(3),
                    separate_accumulation: bit(4),
                    ..Lowering::new(&model)
                };
                let graph = TrainingGraph::new(&model, &lowering).unwrap();
                cases.push((format!("{name} {lowering:?}"), graph));
            }
        }
    }
    cases
}

fn flops(graph: &KernelGraph) -> Flops {
    graph.node_weights().map(|n| n.kernel.flops()).sum()
}

fn node(graph: &KernelGraph, name: &str) -> NodeIndex {
    graph.node_indices().find(|i| graph[*i].name == name).unwrap_or_else(|| panic!("no kernel {name}"))
}

fn assert_well_formed(what: &str, graph: &KernelGraph) {
    assert!(!is_cyclic_directed(graph), "{what}: a cycle");
    for edge in graph.edge_indices() {
        let ends = graph.edge_endpoints(edge);
        assert!(ends.is_some_and(|(before, after)| before < after), "{what}: node order is not an order of execution");
    }
    let names: BTreeSet<&str> = graph.node_weights().map(|n| n.name.as_str()).collect();
    assert_eq!(names.len(), graph.node_count(), "{what}: a name twice");
    for kernel in graph.node_weights() {
        assert!(kernel.kernel.compulsory_bytes().0 > 0, "{what}: {} moves nothing", kernel.name);
    }
}

#[test]
fn graphs_are_acyclic_with_unique_names_and_do_all_the_work() {
    for (what, training) in cases() {
        for segment in &training.segments {
            let forward = segment.forward_graph();
            assert_well_formed(&what, &forward);
            assert_eq!(flops(&forward), segment.forward_flops(), "{what} {}", segment.name);
            for recompute in [RecomputeSet::none(), segment.graph.full_recompute_set()] {
                let backward = segment.backward_graph(&recompute);
                assert_well_formed(&what, &backward);
                let again: Flops = recompute
                    .iter()
                    .flat_map(|op| &segment.operators()[op.index()].forward)
                    .map(|s| s.kernel.flops())
                    .sum();
                assert_eq!(flops(&backward), segment.backward_flops() + again, "{what} {}", segment.name);
            }
        }
    }
}

#[test]
fn operators_run_in_order_and_every_tensor_has_its_maker() {
    for (what, training) in cases() {
        for segment in &training.segments {
            for op in segment.operators() {
                for input in &op.inputs {
                    let tensor = &segment.tensors()[input.index()];
                    assert!(
                        tensor.producer.is_none_or(|p| p < op.id),
                        "{what}: {} reads {} too early",
                        op.name,
                        tensor.name
                    );
                }
                let gradients: BTreeSet<_> = op
                    .backward
                    .iter()
                    .filter_map(|c| if let Gradient::Inputs(inputs) = &c.gradient { Some(inputs) } else { None })
                    .flatten()
                    .collect();
                let differentiable: BTreeSet<_> =
                    op.inputs.iter().filter(|t| segment.tensors()[t.index()].gradient_bytes.0 > 0).collect();
                assert_eq!(gradients, differentiable, "{what}: {}: gradients of its inputs", op.name);
                let weighs = op.backward.iter().any(|c| c.gradient == Gradient::Weights);
                assert_eq!(
                    weighs,
                    op.parameters.per_device_count() > 0,
                    "{what}: {}: gradient of its parameters",
                    op.name
                );
            }
            for tensor in segment.tensors() {
                assert_eq!(tensor.producer.is_none(), tensor.is_segment_input, "{what}: {}", tensor.name);
            }
        }
    }
}

#[test]
fn nothing_waits_for_a_weight_gradient() {
    for (what, training) in cases() {
        for segment in &training.segments {
            let graph = segment.backward_graph(&segment.graph.full_recompute_set());
            // `layer.moe.combine` computes a gradient of routing weights. They are the router's output and no
            // parameter, so the router's backward pass waits for that gradient.
            let of_parameters =
                |name: &str| name.contains(".backward_weight") && !name.starts_with("layer.moe.combine.");
            for index in graph.node_indices().filter(|i| of_parameters(&graph[*i].name)) {
                for after in graph.neighbors_directed(index, Outgoing) {
                    let own = graph[index].name.split(".backward_weight").next();
                    assert_eq!(
                        graph[after].name.split(".backward_weight").next(),
                        own,
                        "{what}: {}",
                        graph[after].name
                    );
                }
            }
        }
    }
}

/// Returns the bytes (read, written) of steps that all run on the vector cores; `None` if a step does not.
fn vector_bytes(steps: &[KernelStep]) -> Option<(u64, u64)> {
    steps.iter().try_fold((0, 0), |(read, written), step| match step.kernel {
        Kernel::Elementwise(e) => Some((read + e.read.0, written + e.written.0)),
        Kernel::Reduction(r) => Some((read + r.read.0, written + r.written.0)),
        _ => None,
    })
}

#[test]
fn vector_kernels_read_their_inputs_and_write_their_results() {
    let serial = cases().into_iter().filter(|(_, t)| t.lowering.tensor_parallel == 1);
    for (what, training) in serial {
        for segment in &training.segments {
            let sum = |ids: &[TensorId]| ids.iter().map(|t| segment.tensors()[t.index()].bytes.0).sum::<u64>();
            let gradients =
                |ids: &[TensorId]| ids.iter().map(|t| segment.tensors()[t.index()].gradient_bytes.0).sum::<u64>();
            for op in segment.operators() {
                let what = format!("{what}: {}", op.name);
                if let Some((read, written)) = vector_bytes(&op.forward).filter(|_| !op.forward.is_empty()) {
                    assert!(read >= sum(&op.inputs), "{what}: reads {read}");
                    let exact = op.forward.len() == 1;
                    assert!(
                        if exact { written == sum(&op.outputs) } else { written >= sum(&op.outputs) },
                        "{what}: writes {written}"
                    );
                }
                for chain in op.backward.iter().filter(|c| !c.steps.is_empty()) {
                    let Some((read, written)) = vector_bytes(&chain.steps) else { continue };
                    // Eager RMSNorm differentiates two outputs, one of them inside the operator. Count only what leaves
                    // it.
                    let arriving = gradients(&op.outputs[..1]);
                    assert!(read >= sum(&chain.reads) + arriving, "{what}: backward reads {read}");
                    if let Gradient::Inputs(inputs) = &chain.gradient {
                        let exact = chain.steps.len() == 1;
                        let due = gradients(inputs);
                        assert!(
                            if exact { written == due } else { written >= due },
                            "{what}: backward writes {written}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_rotation_reads_its_tables_and_an_embedding_its_ids() {
    let model = Model::load("llama2-7b").unwrap();
    let graph = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
    let read = |kind, name| {
        let op = graph.segment(kind).unwrap().graph.find_operator(name).unwrap();
        vector_bytes(&op.forward).unwrap().0
    };
    // The rotation of 4096 tokens reads queries and keys in bf16, and per position 64 sines and 64 cosines in fp32.
    assert_eq!(read(SegmentKind::Layer, "layer.attention.rope"), 2 * 2 * 4096 * 4096 + 4 * 4096 * 128);
    assert_eq!(read(SegmentKind::Embedding, "embedding.token"), 2 * 4096 * 4096 + 8 * 4096);
}

#[test]
fn embedding_and_head_have_megatrons_collectives() {
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    let model = Model::load("gpt3-175b").unwrap();
    let none = RecomputeSet::none();
    for (sequence_parallel, embedding, head) in [
        (false, [vec![(AllReduce, 1)], vec![]], [vec![(AllReduce, 3)], vec![(AllReduce, 1)]]),
        (
            true,
            [vec![(ReduceScatter, 1)], vec![(AllGather, 1)]],
            [vec![(AllReduce, 3), (AllGather, 1)], vec![(AllGather, 1), (ReduceScatter, 1)]],
        ),
    ] {
        let lowering = Lowering { tensor_parallel: 8, sequence_parallel, ..Lowering::new(&model) };
        let graph = TrainingGraph::new(&model, &lowering).unwrap();
        for (kind, [forward, backward]) in [(SegmentKind::Embedding, embedding), (SegmentKind::Head, head)] {
            let segment = graph.segment(kind).unwrap();
            assert_eq!(collectives(&segment.forward_graph()), forward.into_iter().collect(), "{kind} forward");
            assert_eq!(collectives(&segment.backward_graph(&none)), backward.into_iter().collect(), "{kind} backward");
        }
    }
}

fn layer(name: &str, change: impl Fn(Lowering) -> Lowering) -> Segment {
    let model = Model::load(name).unwrap();
    let graph = TrainingGraph::new(&model, &change(Lowering::new(&model))).unwrap();
    graph.segment(SegmentKind::Layer).unwrap().clone()
}

#[test]
fn a_backward_kernel_waits_for_the_recomputed_tensors_it_reads() {
    let layer = layer("llama2-7b", |l| l);
    let graph = layer.backward_graph(&layer.graph.full_recompute_set());
    for (before, after) in [
        ("layer.attention.norm.recompute", "layer.attention.qkv.backward_weight"),
        ("layer.attention.core.recompute", "layer.attention.core.backward_input"),
        ("layer.mlp.gate_up.recompute", "layer.mlp.gated.recompute"),
        ("layer.mlp.gated.recompute", "layer.mlp.down.backward_weight"),
        ("layer.mlp.down.backward_input", "layer.mlp.gated.backward_input"),
        ("layer.mlp.gated.backward_input", "layer.attention.qkv.backward_weight"),
    ] {
        assert!(has_path_connecting(&graph, node(&graph, before), node(&graph, after), None), "{before} -> {after}");
    }
    // dX of the last product needs only its weights, so it need not wait for recomputation.
    let start = node(&graph, "layer.mlp.down.backward_input");
    assert!(!has_path_connecting(&graph, node(&graph, "layer.attention.norm.recompute"), start, None));
    // Nothing reads the result of the last product, so it is not recomputed.
    assert!(graph.node_weights().all(|n| n.name != "layer.mlp.down.recompute"));
}

#[test]
fn a_recomputed_operator_runs_once_under_its_own_name() {
    let layer = layer("gpt2-xl", |l| Lowering { attention: Attention::Unfused, ..l });
    let scores = layer.graph.find_operator("layer.attention.scores").unwrap().id;
    let graph = layer.backward_graph(&[scores].into_iter().collect());
    assert_eq!(graph.node_weights().filter(|n| n.name.ends_with(".recompute")).count(), 1);
    node(&graph, "layer.attention.scores.recompute");
}

fn collectives(graph: &KernelGraph) -> BTreeMap<CollectiveKind, usize> {
    let mut counts = BTreeMap::new();
    for kernel in graph.node_weights() {
        if let Kernel::Collective(c) = kernel.kernel {
            *counts.entry(c.kind).or_default() += 1;
        }
    }
    counts
}

#[test]
fn a_layer_has_megatrons_collectives() {
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    let none = RecomputeSet::none();
    let tensor = layer("gpt3-175b", |l| Lowering { tensor_parallel: 8, ..l });
    assert_eq!(collectives(&tensor.forward_graph()), BTreeMap::from([(AllReduce, 2)]));
    assert_eq!(collectives(&tensor.backward_graph(&none)), BTreeMap::from([(AllReduce, 2)]));
    let both = layer("gpt3-175b", |l| Lowering { tensor_parallel: 8, sequence_parallel: true, ..l });
    assert_eq!(collectives(&both.forward_graph()), BTreeMap::from([(AllGather, 2), (ReduceScatter, 2)]));
    // The backward pass has one more all-gather per pair of products than the forward pass, because inputs are kept
    // sharded.
    assert_eq!(collectives(&both.backward_graph(&none)), BTreeMap::from([(AllGather, 4), (ReduceScatter, 2)]));
    for kernel in both.forward_graph().node_weights() {
        if let Kernel::Collective(c) = kernel.kernel {
            assert_eq!((c.bytes.0, c.group.ranks, c.group.stride), (2 * 2048 * 12288, 8, 1), "{}", kernel.name);
        }
    }
    let alone = layer("gpt3-175b", |l| l);
    assert!(collectives(&alone.forward_graph()).is_empty() && collectives(&alone.backward_graph(&none)).is_empty());
}

#[test]
fn epilogues_join_a_product_with_the_one_reader_of_its_result() {
    let plain = layer("gpt2-xl", |l| l);
    let joined = layer("gpt2-xl", |l| Lowering { epilogues: true, ..l });
    let names = |s: &Segment| s.forward_graph().node_weights().map(|n| n.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        names(&joined),
        [
            "layer.attention.norm.forward",
            "layer.attention.qkv.forward",
            "layer.attention.core.forward",
            "layer.attention.output+residual.forward",
            "layer.mlp.norm.forward",
            "layer.mlp.fc1+activation.forward",
            "layer.mlp.fc2+residual.forward",
        ]
    );
    assert_eq!(names(&plain).len(), 10);
    let bytes = |s: &Segment| s.forward_graph().node_weights().map(|n| n.kernel.compulsory_bytes().0).sum::<u64>();
    // Epilogues reduce traffic. A residual sum no longer writes and reads the branch's result. The activation no longer
    // reads its input, which is still written.
    let sbh = 1024 * 1600;
    assert_eq!(bytes(&plain) - bytes(&joined), 2 * (4 * sbh) + 8 * sbh);
}

#[test]
fn a_split_model_sums_to_the_whole() {
    for name in plain_models() {
        let model = Model::load(name).unwrap();
        if !fills_experts(&model) {
            continue;
        }
        for t in tensor_parallel_degrees(&model, 64) {
            let vocabulary = model.padded_vocabulary(t);
            let padded = Model { vocabulary, vocabulary_multiple: 1, ..model.clone() };
            let whole = TrainingGraph::new(&padded, &Lowering::new(&padded)).unwrap();
            let lowering = Lowering { tensor_parallel: t, ..Lowering::new(&padded) };
            let part = TrainingGraph::new(&padded, &lowering).unwrap();
            let t64 = u64::from(t);
            // Width of the keys and values that the devices hold together in addition to the model's own.
            let copied = 2 * padded.head_dim * t64.saturating_sub(padded.kv_heads);
            // A norm over whole keys has one gain per element of the keys, copies included.
            let gains = u64::from(padded.variations.query_key_norm == Some(QueryKeyNorm::Whole)) * copied / 2;
            let kv = (copied * (padded.hidden + u64::from(padded.qkv_bias)) + gains) * padded.layer_count();
            let own = padded
                .layer_kinds()
                .into_iter()
                .filter(|(kind, _)| kind.feed == workloads::layer_list::FeedForward::Own);
            let sparse: u64 = own.map(|(_, count)| count).sum();
            // Every device holds the bias of the experts' last product in full.
            let biases =
                padded.experts.filter(|_| padded.mlp_bias).map_or(0, |experts| experts.count * padded.hidden * sparse);
            let kv = kv + biases * (t64 - 1);
            let sum = part.parameters();
            let total = (sum.sharded + sum.expert) * t64 + sum.replicated;
            assert_eq!(total, whole.parameters().per_device_count() + kv, "{name}, t = {t}");
            // `again` counts the weights of products that every device runs in full: BERT's transform, OPT's
            // projections, routers and latent down-projections. Copies of key heads add work too.
            let tokens = u128::from(lowering.sequence_length);
            let again = if padded.head_transform { padded.hidden * padded.hidden } else { 0 }
                + if padded.embedding_width == padded.hidden { 0 } else { 2 * padded.hidden * padded.embedding_width }
                + padded.experts.map_or(0, |experts| experts.count * padded.hidden * sparse)
                + padded.variations.latent.map_or(0, |latent| {
                    (latent.query_rank.unwrap_or(0) + latent.kv_rank + latent.rope_dim)
                        * padded.hidden
                        * padded.layer_count()
                });
            let more = 6
                * tokens
                * (u128::from(again) * u128::from(t - 1) + u128::from(copied * padded.hidden * padded.layer_count()));
            assert_eq!(part.kernel_flops().0 * u128::from(t), whole.kernel_flops().0 + more, "{name}, t = {t}");
        }
    }
}

#[test]
fn optimizer_steps_move_what_the_footprint_says() {
    let model = Model::load("llama2-7b").unwrap();
    let graph = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
    let mut elements = 0;
    for segment in &graph.segments {
        let step = segment.optimizer_step_kernels();
        assert_eq!(step.len(), 1);
        let Kernel::Elementwise(update) = step[0].kernel else { panic!("not elementwise") };
        // Bytes per element of Adam in mixed precision: it reads gradient 2, master 4 and states 8, and writes weight
        // 2, master 4 and states 8.
        assert_eq!((update.read.0, update.written.0), (14 * update.elements, 14 * update.elements));
        elements += update.elements * segment.repeat;
        let resident = segment.weight_bytes() + segment.gradient_bytes() + segment.optimizer_bytes();
        assert_eq!(resident.0, 16 * update.elements);
    }
    assert_eq!(elements, 6_738_415_616);
    let both = Lowering { tensor_parallel: 4, sequence_parallel: true, ..Lowering::new(&model) };
    let layer = TrainingGraph::new(&model, &both).unwrap().segment(SegmentKind::Layer).unwrap().clone();
    let step = layer.optimizer_step_kernels();
    let Kernel::Collective(sum) = step[0].kernel else { panic!("not a collective") };
    assert_eq!(sum.bytes.0, 2 * 2 * 4096, "gradients of two norms, bf16");
}

#[test]
fn a_stage_without_the_embedding_holds_a_copy_of_a_tied_head() {
    let model = Model::load("gpt2-xl").unwrap();
    let graph = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
    let head = graph.segment(SegmentKind::Head).unwrap();
    assert_eq!((head.tied_parameters, head.parameters.per_device_count()), (50257 * 1600, 2 * 1600));
    assert_eq!(head.with_tied_copy().parameters.per_device_count(), 50257 * 1600 + 2 * 1600);
    let untied = Model::load("llama2-7b").unwrap();
    let graph = TrainingGraph::new(&untied, &Lowering::new(&untied)).unwrap();
    let head = graph.segment(SegmentKind::Head).unwrap();
    assert_eq!(head.with_tied_copy().parameters, head.parameters);
}

#[test]
fn separate_accumulation_adds_one_pass_per_product() {
    let fused = layer("llama2-7b", |l| l);
    let separate = layer("llama2-7b", |l| Lowering { separate_accumulation: true, ..l });
    let none = RecomputeSet::none();
    let (fused, separate) = (fused.backward_graph(&none), separate.backward_graph(&none));
    assert_eq!(separate.node_count(), fused.node_count() + 4);
    let bytes = |g: &KernelGraph| g.node_weights().map(|n| n.kernel.compulsory_bytes().0).sum::<u64>();
    let products = 4 * 4096 * 4096 + 3 * 4096 * 11008;
    assert_eq!(bytes(&separate) - bytes(&fused), 6 * products);
}

/// Returns whether the kept tensors and the recomputed operators give everything that the backward pass reads.
fn suffices(graph: &OperatorGraph, recompute: &RecomputeSet) -> bool {
    let mut there: BTreeSet<_> = graph.kept_tensors(recompute).into_iter().collect();
    for op in recompute.iter().map(|id| &graph.operators[id.index()]) {
        if !op.inputs.iter().all(|t| there.contains(t)) {
            return false;
        }
        there.extend(op.outputs.iter().copied());
    }
    graph.tensors.iter().filter(|t| t.saved).all(|t| there.contains(&t.id))
}

proptest! {
    #[test]
    fn what_is_kept_suffices_and_nothing_kept_is_idle(
        name in prop::sample::select(plain_models()), unfused: bool, fused: bool, seed: u64,
    ) {
        let model = Model::load(name).unwrap();
        let attention = if unfused { Attention::Unfused } else { Attention::Fused };
        let lowering = Lowering { attention, elementwise_fusion: fused, ..Lowering::new(&model) };
        for segment in TrainingGraph::new(&model, &lowering).unwrap().segments {
            let graph = &segment.graph;
            let set: RecomputeSet = (0..graph.operators.len() as u32).map(OpId).filter(|op| seed >> (op.0 % 64) & 1 == 1).collect();
            prop_assert!(suffices(graph, &set));
            for kept in graph.kept_tensors(&set) {
                let saved = graph.tensors[kept.index()].saved;
                let read = set.iter().any(|op| graph.operators[op.index()].inputs.contains(&kept));
                prop_assert!(saved || read);
            }
            let full = graph.full_recompute_set();
            prop_assert!(suffices(graph, &full));
            prop_assert!(graph.kept_tensors(&full).iter().all(|t| graph.tensors[t.index()].is_segment_input));
            prop_assert!(graph.saved_bytes(&full) <= graph.saved_bytes(&set).max(graph.saved_bytes(&RecomputeSet::none())));
        }
    }

    #[test]
    fn bytes_and_work_grow_linearly_with_the_micro_batch(
        name in prop::sample::select(plain_models()), micro_batch in 1u64..64,
    ) {
        let model = Model::load(name).unwrap();
        prop_assume!(fills_experts(&model));
        let one = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
        let many = TrainingGraph::new(&model, &Lowering { micro_batch, ..Lowering::new(&model) }).unwrap();
        prop_assert_eq!(many.kernel_flops(), one.kernel_flops() * u128::from(micro_batch));
        for (one, many) in one.segments.iter().zip(&many.segments) {
            let none = RecomputeSet::none();
            prop_assert_eq!(many.saved_bytes(&none), one.saved_bytes(&none) * micro_batch);
            prop_assert_eq!(many.boundary_bytes, one.boundary_bytes * micro_batch);
            prop_assert_eq!(many.parameters, one.parameters);
        }
    }
}
