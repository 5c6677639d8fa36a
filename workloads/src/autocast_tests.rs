#![allow(clippy::unwrap_used)]
use crate::footprint::Precision;
use crate::graph::{OperatorGraph, RecomputeSet};
use crate::lowering::{Attention, Autocast, Lowering};
use crate::model::{Model, built_in_names};
use crate::training::{SegmentKind, TrainingGraph};
use sim::kernel::{DataType, Kernel};
use sim::units::Bytes;

/// Tokens per sequence. The model is GPT-2 XL without dropout: 1,600 wide, with 25 heads.
const TOKENS: u64 = 512;
const HIDDEN: u64 = 1600;

fn graph(autocast: Autocast, attention: Attention, change: impl Fn(Lowering) -> Lowering) -> TrainingGraph {
    let mut model = Model::load("gpt2-xl").unwrap();
    model.dropout = Default::default();
    let lowering = Lowering {
        sequence_length: TOKENS,
        elementwise_fusion: false,
        fused_loss: false,
        attention,
        autocast,
        ..Lowering::new(&model)
    };
    TrainingGraph::new(&model, &change(lowering)).unwrap()
}

fn layer(autocast: Autocast, attention: Attention) -> OperatorGraph {
    graph(autocast, attention, |l| l).segment(SegmentKind::Layer).unwrap().graph.clone()
}

fn kept(graph: &OperatorGraph) -> Bytes {
    graph.saved_bytes(&RecomputeSet::none())
}

#[test]
fn a_layer_keeps_what_autograd_saves_under_autocast() {
    // Counted by hand, in bytes per element of the residual stream. Both norms keep fp32 inputs (4 + 4). The products
    // keep 16-bit inputs (2 + 2 + 2, and 8 for the MLP's last one). Query, key and value take 6. GELU's input is four
    // times as wide: 8 in PyTorch 2, and 16 in PyTorch 1, which keeps the fp32 cast.
    let channels = |autocast| match autocast {
        Autocast::Pytorch1 => 44,
        _ => 36,
    };
    // Bytes per score: fp32 probabilities (4) and the 16-bit copy that multiplies the values (2). PyTorch 1 also keeps
    // the 16-bit scores (2).
    let scores = |autocast| match autocast {
        Autocast::Pytorch1 => 8,
        _ => 6,
    };
    for autocast in [Autocast::Pytorch1, Autocast::Pytorch2] {
        let unfused = kept(&layer(autocast, Attention::Unfused));
        let all = channels(autocast) * TOKENS * HIDDEN + scores(autocast) * 25 * TOKENS * TOKENS;
        assert_eq!(unfused, Bytes(all), "{autocast:?}");
    }
    // Fused attention keeps one fp32 number per row and head instead of the scores.
    let fused = kept(&layer(Autocast::Pytorch2, Attention::Fused));
    assert_eq!(fused, Bytes(36 * TOKENS * HIDDEN + 4 * 25 * TOKENS));
}

#[test]
fn nothing_but_vector_work_and_bytes_changes() {
    for attention in [Attention::Fused, Attention::Unfused] {
        let [plain, cast] = [Autocast::None, Autocast::Pytorch2].map(|autocast| graph(autocast, attention, |l| l));
        assert_eq!(plain.kernel_flops(), cast.kernel_flops());
        assert_eq!(plain.parameters(), cast.parameters());
        let layer = cast.segment(SegmentKind::Layer).unwrap();
        // The residual stream is in fp32, at both ends.
        assert_eq!(layer.boundary_bytes, Bytes(4 * TOKENS * HIDDEN));
        assert_eq!(layer.graph.tensors[0].bytes, layer.boundary_bytes);
        for (id, op) in layer.graph.operators.iter().enumerate() {
            assert_eq!(op.id.index(), id);
            for step in op.forward.iter().chain(op.backward.iter().flat_map(|c| &c.steps)) {
                if let Kernel::Contraction(product) = step.kernel {
                    assert!(product.operand == DataType::Bf16, "{}", op.name);
                }
            }
            // Every input exists when it is read.
            for input in &op.inputs {
                assert!(layer.graph.tensors[input.index()].producer.is_none_or(|maker| maker < op.id), "{}", op.name);
            }
        }
    }
    // With fp32 operands there is nothing to cast.
    let fp32 = |autocast| graph(autocast, Attention::Fused, |l| Lowering { precision: Precision::FP32, ..l });
    assert_eq!(fp32(Autocast::Pytorch2).segments[1].graph, fp32(Autocast::None).segments[1].graph);
}

#[test]
fn every_model_is_lowered_under_autocast_and_keeps_at_most_twice_as_much_and_copies() {
    for name in built_in_names() {
        let model = Model::load(name).unwrap();
        let of = |autocast, elementwise_fusion| {
            let lowering = Lowering { autocast, elementwise_fusion, ..Lowering::new(&model) };
            let graph = TrainingGraph::new(&model, &lowering).unwrap();
            let sums = graph.segments.iter().map(|segment| kept(&segment.graph).0 * segment.repeat).sum::<u64>();
            (sums, graph.kernel_flops())
        };
        for fused in [false, true] {
            let (plain, cast) = (of(Autocast::None, fused), of(Autocast::Pytorch2, fused));
            assert_eq!(plain.1, cast.1, "{name}");
            assert!(cast.0 > plain.0 && cast.0 < 3 * plain.0, "{name} {fused} {} {}", plain.0, cast.0);
        }
    }
}

#[test]
fn a_device_holds_whole_layers_under_autocast() {
    let model = Model::load("gpt2-xl").unwrap();
    let split = Lowering { tensor_parallel: 2, autocast: Autocast::Pytorch2, ..Lowering::new(&model) };
    let refusal = TrainingGraph::new(&model, &split).unwrap_err().to_string();
    assert!(
        refusal.contains("the tensor-parallel degree under autocast is 2") && refusal.contains("--tensor 1"),
        "{refusal}"
    );
}
