#![allow(clippy::unwrap_used, clippy::panic)]
//! Adapters and quantised bases against the counts that PEFT and LitGPT print, and against bytes computed by hand.

use super::*;
use crate::footprint::{Optimizer, Precision};
use crate::graph::{OperatorGraph, RecomputeSet};
use crate::model::Model;
use crate::technique::{Technique, Techniques};
use crate::training::{Lowering, SegmentKind, TrainingGraph};

/// Tokens of a micro-batch: 4 sequences of 768.
const T: u64 = 3072;

fn lowered(
    model: &str,
    techniques: &str,
    change: impl Fn(Lowering) -> Lowering,
) -> Result<TrainingGraph, TechniqueError> {
    let model = Model::load(model).unwrap();
    let lowering = Lowering {
        micro_batch: 4,
        sequence_length: T / 4,
        precision: Precision::PURE_BF16,
        separate_projections: true,
        elementwise_fusion: false,
        ..Lowering::new(&model)
    };
    let graph = TrainingGraph::new(&model, &change(lowering)).unwrap();
    let list: Result<Techniques, _> = techniques.split_whitespace().map(str::parse::<Technique>).collect();
    list?.apply_to_graph(&model, graph, 1)
}

fn statics(training: &TrainingGraph) -> StaticBytes {
    training.segments.iter().fold(StaticBytes::default(), |sum, s| {
        sum.plus(s.statics.as_deref().copied().unwrap_or_default().own.times_pieces(s.repeat))
    })
}

fn trained(model: &str, techniques: &str) -> u64 {
    statics(&lowered(model, techniques, |l| l).unwrap()).updated.per_device_count()
}

fn layer(training: &TrainingGraph) -> &OperatorGraph {
    &training.segment(SegmentKind::Layer).unwrap().graph
}

fn kept(training: &TrainingGraph) -> u64 {
    layer(training).saved_bytes(&RecomputeSet::none()).0
}

fn refusal(techniques: &str, change: impl Fn(Lowering) -> Lowering) -> String {
    lowered("llama3.2-3b", techniques, change).unwrap_err().to_string()
}

#[test]
fn trained_numbers_are_those_that_peft_and_litgpt_print() {
    let three = "llama3.2-3b";
    for (techniques, numbers) in [
        // Counts from PEFT's method_comparison/MetaMathQA on Llama 3.2 3B.
        ("lora,rank=32,targets=q_proj/v_proj", 9_175_040),
        ("lora,rank=64,targets=q_proj/v_proj", 18_350_080),
        ("lora,rank=10,targets=up_proj/gate_proj/down_proj", 9_461_760),
        ("ia3", 286_720),
        ("vera,rank=256,targets=q_proj/v_proj", 129_024),
        ("miss,rank=64,targets=q_proj/v_proj", 7_340_032),
        ("bitfit,targets=v_proj", 28_672),
        // DoRA adds one magnitude per output to LoRA's factors.
        ("dora,rank=32,targets=q_proj/v_proj", 9_175_040 + 28 * (3072 + 1024)),
        ("prompt-tuning", 0),
    ] {
        assert_eq!(trained(three, techniques), numbers, "{techniques}");
    }
    // Counts from LitGPT's tutorials/resource-tables.md.
    for (model, numbers) in
        [("phi-1.5", 1_572_864), ("stablelm-alpha-3b", 2_097_152), ("llama2-7b", 4_194_304), ("llama2-13b", 6_553_600)]
    {
        assert_eq!(trained(model, "lora,rank=8,targets=q_proj/v_proj"), numbers, "{model}");
    }
}

#[test]
fn an_adapter_in_fp32_keeps_a_copy_of_its_input_for_every_target() {
    let wide = |l| Lowering { wide_adapters: true, ..l };
    let base = kept(&lowered("llama3.2-3b", "prompt-tuning", wide).unwrap());
    let more = |techniques: &str| kept(&lowered("llama3.2-3b", techniques, wide).unwrap()) - base;
    // For each of the two targets, an fp32 copy of the input (3072 elements) and the 32 elements between the factors.
    assert_eq!(more("lora,rank=32,targets=q_proj/v_proj"), T * 4 * 2 * (3072 + 32));
    assert_eq!(more("lora,rank=10,targets=down_proj"), T * 4 * (8192 + 10));
    // DoRA also keeps the frozen product's result in bf16 and the adapter's result in fp32.
    assert_eq!(more("dora,rank=32,targets=v_proj"), T * (4 * (3072 + 32) + 2 * 1024 + 4 * 1024));
    // IA3 keeps keys and values in bf16, and the MLP's inner activations in fp32.
    assert_eq!(more("ia3"), T * (2 * 2 * 1024 + 4 * 8192));
    assert_eq!(more("vera,rank=256,targets=v_proj"), T * 4 * (256 + 1024));
    assert_eq!(more("miss,rank=64,targets=q_proj/v_proj"), T * 4 * 2 * 64);
    assert_eq!(more("bitfit,targets=v_proj"), 0);
    assert_eq!(more("loha,rank=32,targets=v_proj"), 4 * (T * 3072 + 3072 * 1024));
    assert_eq!(more("glora,rank=8,targets=v_proj"), 2 * (T * 3072 + 3072 * 1024));
    assert_eq!(more("deft,rank=32,targets=v_proj"), T * 4 * (3072 + 32 + 1024));
    // With adapters in the operand type, both targets read the norm's bf16 result, which is kept once.
    let shared = kept(&lowered("llama3.2-3b", "lora,rank=32,targets=q_proj/v_proj", |l| l).unwrap()) - base;
    assert_eq!(shared, T * 2 * (3072 + 2 * 32));
}

#[test]
fn adapters_in_fp32_have_weights_gradients_and_moments_of_four_bytes() {
    let of = |wide_adapters| {
        let training =
            lowered("llama3.2-3b", "lora,rank=32,targets=q_proj/v_proj", |l| Lowering { wide_adapters, ..l });
        let all = statics(&training.unwrap());
        [all.weights, all.gradients, all.states].map(|placed| placed.device.per_device_count())
    };
    let (base, adapters) = (2 * 3_212_749_824, 9_175_040);
    assert_eq!(of(true), [base + 4 * adapters, 4 * adapters, 8 * adapters]);
    assert_eq!(of(false), [base + 2 * adapters, 2 * adapters, 4 * adapters]);
}

#[test]
fn a_base_of_four_bits_is_converted_before_every_product_and_keeps_inputs() {
    let plain = lowered("llama2-7b", "lora,rank=8,targets=q_proj/v_proj", |l| l).unwrap();
    let of = |base: &str| lowered("llama2-7b", &format!("lora,rank=8,targets=q_proj/v_proj {base}"), |l| l).unwrap();
    let weights = |training: &TrainingGraph| statics(training).weights.device.per_device_count();
    let matrices = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11_008);
    for (base, bytes) in [
        // NF4 takes half a byte per weight and a 4-byte scale per 64 weights. Double quantisation reduces the scale to
        // 1 + 4 / 256 bytes. Int8 takes a byte per weight and a 4-byte scale per 4,096 weights.
        ("nf4-base,scale_bytes=4", matrices / 2 + matrices / 16),
        ("nf4-base", matrices / 2 + (matrices as f64 / 64.0 * 1.015625) as u64),
        ("int8-base", matrices + matrices / 4096 * 4),
    ] {
        assert_eq!(weights(&plain) - weights(&of(base)), 2 * matrices - bytes, "{base}");
    }
    let quantised = of("nf4-base");
    // Quantised products keep their inputs. The adapters already keep the input of query, key and value, and attention
    // keeps the input of the output projection. So the base adds only the input of gate and up (4096) and that of down
    // (11,008).
    assert_eq!(kept(&quantised) - kept(&plain), T * 2 * (4096 + 11_008));
    let down = layer(&quantised).operators.iter().find(|op| op.name.ends_with("mlp.down")).unwrap();
    assert_eq!(down.workspace.0, 2 * 4096 * 11_008);
    let names = |op: &crate::graph::OperatorNode| {
        let backward = op.backward.iter().flat_map(|chain| &chain.steps);
        op.forward.iter().chain(backward).filter(|step| step.label.ends_with("dequantise")).count()
    };
    assert_eq!(names(down), 2);
    assert!(layer(&quantised).operators.iter().filter(|op| op.name.ends_with("norm")).all(|op| names(op) == 0));
}

#[test]
fn what_cannot_be_is_refused_with_the_cure() {
    let plain = |l| l;
    assert_eq!(
        refusal("nf4-base", plain),
        "technique nf4-base: it quantises the weights of layer.attention.query, which are trained; add an adapter, \
         which freezes them (--technique lora), or leave it out"
    );
    assert!(refusal("lora,targets=", plain).contains("its targets name no module; name some, such as q_proj,v_proj"));
    assert!(refusal("lora,targets=q_prj", plain).contains("`q_prj` is no module; did you mean `q_proj`"));
    assert!(refusal("lora,targets=q_proj/q_proj", plain).contains("name q_proj twice"));
    assert!(refusal("galore,targets=q_proj", plain).contains("has no adapters"));
    assert!(refusal("ia3,targets=q_proj", plain).contains("modules of its own"));
    assert!(refusal("lora dora", plain).contains("both put adapters beside products"));
    // The keys of 8 heads are 1024 wide, so a larger rank is refused.
    let rank = refusal("lora,rank=2000,targets=k_proj", plain);
    assert!(rank.contains("a rank of 2000 is above the dimension of layer.attention.key, 1024"), "{rank}");
    // If query, key and value are one product, no product is the target `q_proj`.
    let fused = refusal("lora,targets=q_proj", |l| Lowering { separate_projections: false, ..l });
    assert!(fused.contains("its adapters (q_proj) match no product") && fused.contains("qkv_proj"), "{fused}");
    // Every target must match a product; `fc1` matches none.
    assert!(refusal("lora,targets=q_proj/fc1", plain).contains("(fc1) match no product"));
}

#[test]
fn one_file_narrows_gradients_under_every_stack() {
    let file = std::env::temp_dir().join(format!("coplace-narrow-{}.toml", std::process::id()));
    let rule = "name = \"narrow\"\ndescription = \"d\"\nformula = \"f\"\nsource = \"s\"\ngate = \"biased\"\n\
        [[rule]]\nclass = \"gradients\"\n\
        representation = { kind = \"quantised\", bits = 16, group = 1, meta_bytes = 0 }\n";
    std::fs::write(&file, rule).unwrap();
    let of = |precision| {
        let training = lowered("llama2-7b", file.to_str().unwrap(), |l| Lowering { precision, ..l }).unwrap();
        (statics(&training).gradients.device.per_device_count(), training.applied.unwrap().notes)
    };
    let bytes = 2 * 6_738_415_616;
    assert_eq!(of(Precision::MIXED_BF16_FP32_GRADIENTS), (bytes, vec![]));
    let said = vec!["narrow: the gradients have 16 bits already: nothing changes".to_owned()];
    assert_eq!(of(Precision::PURE_BF16), (bytes, said));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_fraction_of_the_states_on_the_host_leaves_the_device_the_rest_of_the_update() {
    let of = |techniques: &str| {
        let training = lowered("llama2-7b", techniques, |l| Lowering {
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            ..l
        });
        training.unwrap()
    };
    let quarter = of("optimizer-offload,fraction=0.25");
    let all = statics(&quarter);
    let (here, away) = (all.states.device.per_device_count(), all.states.host.per_device_count());
    assert!((away as f64 / (here + away) as f64 - 0.25).abs() < 1e-6);
    let update = |training: &TrainingGraph| {
        let kernels = training.segment(SegmentKind::Layer).unwrap().update_kernels(1_000_000);
        let device = kernels.iter().find_map(|(kernel, _)| match kernel {
            sim::kernel::Kernel::Elementwise(e) => Some((e.elements, e.read.0, e.written.0)),
            _ => None,
        });
        let copied = kernels.iter().filter_map(|(kernel, times)| match kernel {
            sim::kernel::Kernel::Transfer(copy) => Some((copy.bytes.as_f64() * times).round() as u64),
            _ => None,
        });
        (device, copied.collect::<Vec<_>>())
    };
    // The device updates three quarters of the parameters, and reads and writes 14 bytes for each. For each of the
    // other parameters, 2 bytes cross the link each way. The host reads and writes 12 bytes of states and master
    // weights, reads a 2-byte gradient and writes a 2-byte weight.
    let (device, copied) = update(&quarter);
    let (elements, read, written) = device.unwrap();
    let near = |value: u64, wanted: f64| (value as f64 / wanted - 1.0).abs() < 1e-3;
    assert!(near(elements, 750e3) && near(read, 14.0 * 750e3) && near(written, 14.0 * 750e3), "{device:?}");
    assert!(near(copied[0], 4.0 * 250e3) && near(copied[1], 28.0 * 250e3), "{copied:?}");
    let (device, _) = update(&of("optimizer-offload"));
    assert_eq!(device, None);
}
