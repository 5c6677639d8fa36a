//! Tensors that Transformer Engine keeps with narrow products, and experts weighted before their last product, against
//! closed forms.
#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use sim::kernel::DataType;
use workloads::footprint::Precision;
use workloads::{Lowering, Model, RecomputeSet, Segment, SegmentKind, TrainingGraph};

fn layer(model: &Model, change: impl Fn(Lowering) -> Lowering) -> Segment {
    let training = TrainingGraph::new(model, &change(Lowering::new(model))).unwrap();
    training.segment(SegmentKind::Layer).unwrap().clone()
}

fn kept(segment: &Segment) -> u64 {
    segment.graph.saved_bytes(&RecomputeSet::none()).0
}

fn narrow(product: DataType) -> impl Fn(Lowering) -> Lowering {
    move |lowering| Lowering {
        precision: Precision::MIXED_BF16.with_product_type(product),
        cached_conversions: true,
        sequence_length: 4096,
        ..lowering
    }
}

#[test]
fn of_a_products_input_the_narrow_copy_is_kept() {
    let (model, s) = (Model::load("llama3-8b").unwrap(), 4096);
    let wide = kept(&layer(&model, |l| Lowering { sequence_length: s, ..l }));
    let (h, ffn) = (model.hidden, model.ffn);
    // The inputs of qkv, of gate and up, and of down are kept in the narrow type instead of bf16. The output
    // projection's input is kept in both, because attention reads it in bf16.
    let copies = s * (3 * h + ffn);
    let gone = 2 * s * (2 * h + ffn);
    assert_eq!(kept(&layer(&model, narrow(DataType::Fp8))), wide - gone + copies);
    // MXFP8 has a one-byte scale per 32 elements. NVFP4 has half a byte per element and a one-byte scale per 16.
    assert_eq!(kept(&layer(&model, narrow(DataType::Mxfp8))), wide - gone + copies + copies / 32);
    assert_eq!(kept(&layer(&model, narrow(DataType::Nvfp4))), wide - gone + copies / 2 + copies / 16);
    // If operands are converted before each product, as in torchao, the kept tensors stay wide.
    let again = |l| Lowering { cached_conversions: false, ..narrow(DataType::Fp8)(l) };
    assert_eq!(kept(&layer(&model, again)), wide);
}

#[test]
fn the_passes_take_the_conversions_that_they_took() {
    let model = Model::load("llama3-8b").unwrap();
    let segment = layer(&model, narrow(DataType::Fp8));
    let converts = segment.graph.operators.iter().filter(|op| op.name.ends_with(".narrow.convert"));
    assert_eq!(converts.clone().count(), 4);
    assert!(converts.clone().all(|op| op.backward.is_empty() && op.forward.len() == 1));
    // A conversion passes no gradient on, so the backward pass holds nothing more for it.
    let wide = layer(&model, |l| Lowering { sequence_length: 4096, ..l });
    let gradients = |segment: &Segment| segment.graph.tensors.iter().map(|t| t.gradient_bytes.0).sum::<u64>();
    assert_eq!(gradients(&segment), gradients(&wide));
}

#[test]
fn experts_weighed_before_their_last_product_keep_no_results() {
    let model = Model::load("mixtral-8x7b").unwrap();
    let of = |weighted_experts| layer(&model, |l| Lowering { weighted_experts, sequence_length: 4096, ..l });
    let (late, early) = (of(false), of(true));
    let experts = model.experts.unwrap();
    assert_eq!(kept(&late) - kept(&early), 2 * 4096 * experts.top_k * model.hidden);
    let reads = |segment: &Segment, name: &str| {
        let weights = segment.graph.find_tensor("layer.moe.top_k.weights").unwrap();
        segment.graph.find_operator(name).unwrap().backward.iter().any(|chain| chain.reads.contains(&weights))
    };
    assert!(reads(&late, "layer.moe.combine") && !reads(&late, "layer.moe.gated"));
    assert!(reads(&early, "layer.moe.gated") && !reads(&early, "layer.moe.combine"));
}
