//! Exact identities: a layer's kept bytes, parameters and matrix operations against published closed forms.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use sim::units::{Bytes, Flops};
use workloads::layer_list::{KeyWindow, LayerKind, Mixer};
use workloads::model::{Model, built_in_names};
use workloads::training::Attention;
use workloads::{Lowering, RecomputeSet, Segment, SegmentKind, TrainingGraph};

const GPTS: [&str; 5] = ["gpt2-xl", "megatron-gpt2-xl", "megatron-gpt2-54", "megatron-gpt2-72", "gpt3-175b"];

fn model(name: &str) -> Model {
    Model::load(name).unwrap()
}

fn lowering(model: &Model, attention: Attention) -> Lowering {
    Lowering { attention, micro_batch: 2, ..Lowering::new(model) }
}

fn segment(model: &Model, lowering: &Lowering, kind: SegmentKind) -> Segment {
    TrainingGraph::new(model, lowering).unwrap().segment(kind).unwrap().clone()
}

fn saved(model: &Model, lowering: &Lowering) -> u64 {
    segment(model, lowering, SegmentKind::Layer).saved_bytes(&RecomputeSet::none()).0
}

/// Returns s b h and a s^2 b, the units of Korthikanti et al. 2022.
fn units(model: &Model, lowering: &Lowering) -> (u64, u64) {
    let (s, b) = (lowering.sequence_length, lowering.micro_batch);
    (s * b * model.hidden, model.heads * s * s * b)
}

#[test]
fn a_gpt_layer_keeps_sbh_34_plus_5as_over_h() {
    for name in GPTS.into_iter().chain(["bert-large", "megatron-bert"]) {
        let model = model(name);
        let lowering = lowering(&model, Attention::Unfused);
        let (sbh, as2b) = units(&model, &lowering);
        assert_eq!(saved(&model, &lowering), 34 * sbh + 5 * as2b, "{name}");
        let eager = Lowering { elementwise_fusion: false, ..lowering };
        assert_eq!(saved(&model, &eager), 34 * sbh + 5 * as2b, "{name} eager");
    }
}

#[test]
fn without_dropout_a_gpt_layer_keeps_32sbh_plus_2as2b() {
    let mut model = model("gpt3-175b");
    model.dropout = workloads::model::Dropout::default();
    let unfused = lowering(&model, Attention::Unfused);
    let (sbh, as2b) = units(&model, &unfused);
    assert_eq!(saved(&model, &unfused), 32 * sbh + 2 * as2b);
    let fused = Lowering { attention: Attention::Fused, ..unfused };
    let log_sum_exp = 4 * model.heads * fused.sequence_length * fused.micro_batch;
    assert_eq!(saved(&model, &fused), 32 * sbh + log_sum_exp);
}

#[test]
fn fused_attention_leaves_34_minus_nothing_quadratic() {
    // Fused attention keeps 34 sbh, which includes the masks on the residual branches, and a log-sum-exp of four bytes
    // per row and head.
    let model = model("gpt2-xl");
    let lowering = lowering(&model, Attention::Fused);
    let (sbh, _) = units(&model, &lowering);
    let log_sum_exp = 4 * model.heads * lowering.sequence_length * lowering.micro_batch;
    assert_eq!(saved(&model, &lowering), 34 * sbh + log_sum_exp);
}

#[test]
fn tensor_and_sequence_parallel_layers_keep_korthikantis_shares() {
    for t in [2, 4, 8] {
        let model = model("gpt3-175b");
        let tensor = Lowering { tensor_parallel: t, ..lowering(&model, Attention::Unfused) };
        let (sbh, as2b) = units(&model, &tensor);
        let t64 = u64::from(t);
        assert_eq!(saved(&model, &tensor), 10 * sbh + 24 * sbh / t64 + 5 * as2b / t64, "t = {t}");
        let both = Lowering { sequence_parallel: true, ..tensor };
        assert_eq!(saved(&model, &both), (34 * sbh + 5 * as2b) / t64, "t = {t}, sequence parallel");
    }
}

#[test]
fn recomputation_of_a_gpt_layer_keeps_34_and_2_sbh() {
    let model = model("gpt3-175b");
    let lowering = lowering(&model, Attention::Unfused);
    let layer = segment(&model, &lowering, SegmentKind::Layer);
    let (sbh, _) = units(&model, &lowering);
    let core = ["layer.attention.scores", "layer.attention.softmax", "layer.attention.dropout"];
    let selective: RecomputeSet = core.iter().map(|n| layer.graph.find_operator(n).unwrap().id).collect();
    assert_eq!(layer.saved_bytes(&selective).0, 34 * sbh);
    assert_eq!(layer.saved_bytes(&layer.graph.full_recompute_set()).0, 2 * sbh);
    let sharded = Lowering { tensor_parallel: 8, sequence_parallel: true, ..lowering };
    let layer = segment(&model, &sharded, SegmentKind::Layer);
    assert_eq!(layer.saved_bytes(&layer.graph.full_recompute_set()).0, 2 * sbh / 8);
}

/// Returns (sbh (12 + 4g + 6f), sb) of a Llama layer, with g = kv heads / heads and f = MLP width / hidden.
fn llama_bytes(model: &Model, lowering: &Lowering) -> (u64, u64) {
    let sb = lowering.sequence_length * lowering.micro_batch;
    (sb * (12 * model.hidden + 4 * model.kv_width() + 6 * model.ffn), sb)
}

#[test]
fn a_fused_llama_layer_keeps_sbh_12_4g_6f_plus_4asb_plus_8sb() {
    for name in ["llama2-7b", "llama3-8b", "llama3-70b"] {
        let model = model(name);
        let lowering = lowering(&model, Attention::Fused);
        let (linear, sb) = llama_bytes(&model, &lowering);
        assert_eq!(saved(&model, &lowering), linear + 4 * model.heads * sb + 8 * sb, "{name}");
        // Unfused SwiGLU keeps silu(gate). Eager RMSNorm keeps an fp32 copy and the normalised rows instead of its
        // input.
        let eager = Lowering { elementwise_fusion: false, ..lowering };
        let more = sb * (8 * model.hidden + 2 * model.ffn);
        assert_eq!(saved(&model, &eager), linear + more + 4 * model.heads * sb + 8 * sb, "{name} eager");
    }
}

#[test]
fn a_parallel_llama_layer_keeps_its_shares() {
    for (name, degrees) in [("llama2-7b", &[2, 4, 8][..]), ("llama3-70b", &[2, 4, 8, 16, 64][..])] {
        let model = model(name);
        for t in degrees.iter().copied() {
            let tensor = Lowering { tensor_parallel: t, ..lowering(&model, Attention::Fused) };
            let sb = tensor.sequence_length * tensor.micro_batch;
            let (h, a, t) = (model.hidden, model.heads, u64::from(t));
            // With more devices than key heads (a_kv), keys and values are replicated, so they take 4g max(1/t,
            // 1/a_kv).
            let kv = (model.kv_heads / t).max(1) * model.head_dim;
            let split = sb * (4 * h / t + 4 * kv + 6 * model.ffn / t) + 4 * a * sb / t;
            assert_eq!(saved(&model, &tensor), 8 * sb * h + split + 8 * sb, "{name}, t = {t}");
            let both = Lowering { sequence_parallel: true, ..tensor };
            assert_eq!(saved(&model, &both), 8 * sb * h / t + split + 8 * sb / t, "{name}, t = {t}, sequence parallel");
        }
    }
}

#[test]
fn opt_needs_no_input_of_its_relu() {
    let model = model("opt-350m");
    let lowering = lowering(&model, Attention::Unfused);
    let (sbh, as2b) = units(&model, &lowering);
    // ReLU reads its result, so 8 of the 34 sbh, for fc1's result, are not kept. Without attention dropout, softmax and
    // the context product keep the same probabilities.
    assert_eq!(saved(&model, &lowering), 26 * sbh + 2 * as2b);
}

#[test]
fn the_head_keeps_its_norm_input_its_own_input_and_fp32_probabilities() {
    let model = model("gpt3-175b");
    for t in [1, 4, 8] {
        let lowering = Lowering { tensor_parallel: t, sequence_parallel: t > 1, ..lowering(&model, Attention::Fused) };
        let head = segment(&model, &lowering, SegmentKind::Head);
        let (sbh, _) = units(&model, &lowering);
        let sb = lowering.sequence_length * lowering.micro_batch;
        let logits = 4 * sb * model.padded_vocabulary(t) / u64::from(t);
        assert_eq!(head.saved_bytes(&RecomputeSet::none()), Bytes(4 * sbh / u64::from(t) + logits));
        let embedding = segment(&model, &lowering, SegmentKind::Embedding);
        // The embedding keeps the dropout mask (one byte per element) and the token ids (8 bytes each).
        assert_eq!(embedding.saved_bytes(&RecomputeSet::none()), Bytes(sbh / u64::from(t) + 8 * sb));
    }
}

#[test]
fn transient_bytes_peak_where_the_widest_gradients_meet() {
    let none = RecomputeSet::none();
    for name in ["llama2-7b", "llama3-8b"] {
        let model = model(name);
        let lowering = lowering(&model, Attention::Fused);
        let sb = lowering.sequence_length * lowering.micro_batch;
        let layer = segment(&model, &lowering, SegmentKind::Layer);
        // Gradients of the gated product, gate and up (6f), besides the residual stream's (2).
        let widest = sb * (6 * model.ffn + 2 * model.hidden);
        assert_eq!(layer.transient_bytes(&none).0, widest, "{name}");
        // Full recomputation rebuilds everything kept except the layer's input. It also rebuilds unsaved results on the
        // way: queries and keys before rotation, and attention's output product.
        let full = layer.graph.full_recompute_set();
        let rebuilt = layer.saved_bytes(&none).0 - 2 * sb * model.hidden
            + 2 * sb * (model.query_width() + model.kv_width())
            + 2 * sb * model.hidden;
        assert_eq!(layer.transient_bytes(&full).0, widest + rebuilt, "{name}, full recomputation");
        // Besides the kept fp32 probabilities, the head holds bf16 logits. All other tensors together take at most two
        // bf16 tensors of hidden vectors.
        let head = segment(&model, &lowering, SegmentKind::Head);
        let logits = 2 * sb * model.vocabulary;
        assert!(
            head.transient_bytes(&none).0 >= logits && head.transient_bytes(&none).0 <= logits + 4 * sb * model.hidden
        );
    }
}

#[test]
fn sequence_parallelism_on_one_device_changes_nothing() {
    let model = model("gpt2-xl");
    let plain = lowering(&model, Attention::Fused);
    let parallel = Lowering { sequence_parallel: true, ..plain };
    for kind in [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head] {
        assert_eq!(segment(&model, &plain, kind).graph, segment(&model, &parallel, kind).graph);
    }
}

#[test]
fn parameters_are_the_published_ones() {
    for (name, parameters) in [
        ("gpt2-xl", 1_557_611_200),
        ("bert-large", 335_174_458),
        ("opt-350m", 331_196_416),
        ("llama2-7b", 6_738_415_616),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("mixtral-8x7b", 46_702_792_704),
    ] {
        let model = model(name);
        let graph = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
        assert_eq!(model.parameters(), parameters, "{name}");
        assert_eq!(graph.parameters().per_device_count(), parameters, "{name}");
    }
}

#[test]
fn operators_hold_all_parameters_of_the_closed_form() {
    for name in built_in_names() {
        let mut model = model(name);
        model.vocabulary_multiple = 1;
        let graph = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
        assert_eq!(graph.parameters().per_device_count(), model.parameters(), "{name}");
    }
}

#[test]
fn gpt_parameters_are_megatrons_closed_form() {
    for name in GPTS {
        let model = model(name);
        let graph = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
        let (l, h, v, s) = (model.layers, model.hidden, graph.vocabulary_rows, model.max_sequence);
        // 12 l h^2 (1 + 13/(12h) + (V + s)/(12lh)) (Narayanan et al. 2021, equation 2), and the final norm that it
        // omits.
        assert_eq!(graph.parameters().per_device_count(), 12 * l * h * h + 13 * l * h + (v + s) * h + 2 * h, "{name}");
    }
}

#[test]
fn a_llama2_layer_has_the_parameters_that_phaze_traced() {
    let model = model("llama2-7b");
    let layer = segment(&model, &Lowering::new(&model), SegmentKind::Layer);
    assert_eq!(layer.parameters.per_device_count(), 202_383_360);
}

#[test]
fn gpt_flops_are_megatrons_closed_form() {
    for name in GPTS {
        let model = model(name);
        let lowering = lowering(&model, Attention::Unfused);
        let graph = TrainingGraph::new(&model, &lowering).unwrap();
        let [b, s, l, h, v] =
            [lowering.micro_batch, lowering.sequence_length, model.layers, model.hidden, graph.vocabulary_rows]
                .map(u128::from);
        // 72 B s l h^2 (1 + s/(6h) + V/(12lh)), multiplied out.
        let closed = Flops(72 * b * s * l * h * h + 12 * b * s * s * l * h + 6 * b * s * h * v);
        assert_eq!(graph.kernel_flops(), closed, "{name}");
    }
}

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
    built_in_names().filter(|name| is_plain(&model(name))).collect()
}

/// Returns whether every expert gets a whole number of slots if the sequence has the model's largest length.
fn fills_experts(model: &Model) -> bool {
    model.experts.is_none_or(|experts| (model.max_sequence * experts.top_k).is_multiple_of(experts.count))
}

#[test]
fn every_built_in_models_flops_are_the_closed_form() {
    for name in plain_models() {
        let model = model(name);
        if !fills_experts(&model) {
            continue;
        }
        let unfused = lowering(&model, Attention::Unfused);
        let graph = TrainingGraph::new(&model, &unfused).unwrap();
        let closed = model.training_flops(unfused.micro_batch, unfused.sequence_length, graph.vocabulary_rows);
        assert_eq!(graph.kernel_flops(), closed, "{name}");
        let padding = graph.vocabulary_rows - model.vocabulary;
        let padded = 6 * u128::from(unfused.micro_batch * unfused.sequence_length * model.embedding_width * padding);
        assert_eq!(graph.model_flops.0 + padded, closed.0, "{name}");
        // Fused attention runs seven products of scores instead of six, each on half of the scores if causal.
        let fused = TrainingGraph::new(&model, &Lowering { attention: Attention::Fused, ..unfused }).unwrap();
        let [b, s, a] = [unfused.micro_batch, unfused.sequence_length, model.heads].map(u128::from);
        let [d, v] = [model.head_dim, model.value_dim()].map(u128::from);
        let (mut six, mut seven) = (0, 0);
        for (kind, count) in model.layer_kinds() {
            // Operations of a product per dimension, for all scores (`all`) and for those that the mask leaves
            // (`left`): half of them if causal, 2 s w - w^2 of 2 s^2 through a window.
            let all = 2 * b * s * s * a;
            let left = match kind.window {
                Some(KeyWindow::Sliding(w)) if u128::from(w) < s => b * a * (2 * s * u128::from(w) - u128::from(w * w)),
                // In whole chunks, the mask leaves half of the square of each chunk.
                Some(KeyWindow::Chunk { chunk }) if u128::from(chunk) < s && s.is_multiple_of(chunk.into()) => {
                    b * a * s * u128::from(chunk)
                }
                _ if model.causal => all / 2,
                _ => all,
            };
            // Unfused attention has three products over a query's dimension and three over a value's. Fused attention
            // computes the scores again in the backward pass, and its five products there have one mean dimension.
            six += u128::from(count) * all * (3 * d + 3 * v);
            seven += u128::from(count) * left * (d + v + 5 * (3 * d + 2 * v).div_ceil(5));
        }
        assert_eq!(fused.kernel_flops().0, closed.0 - six + seven, "{name}");
    }
}

#[test]
fn backward_of_every_product_is_twice_its_forward() {
    for name in plain_models() {
        let model = model(name);
        let graph = TrainingGraph::new(&model, &lowering(&model, Attention::Unfused)).unwrap();
        for segment in &graph.segments {
            assert_eq!(segment.backward_flops(), segment.forward_flops() * 2, "{name} {}", segment.name);
        }
    }
}
