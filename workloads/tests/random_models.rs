//! The closed forms on random configurations, read like files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use proptest::prelude::*;
use workloads::import::hugging_face::parse_config;
use workloads::model::Model;
use workloads::parallel::tensor_parallel_degrees;
use workloads::training::Attention;
use workloads::{Lowering, RecomputeSet, SegmentKind, TrainingGraph};

fn llama() -> impl Strategy<Value = Model> {
    let sizes = (1u64..9, 0u32..4, 1u64..200, 1u64..600, 1u64..4000);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), 1u64..6, 1u64..300);
    (sizes, switches).prop_map(|((kv, group, head_dim, ffn, vocabulary), (tied, attention_bias, mlp_bias, layers, hidden))| {
        let text = format!(
            r#"{{"model_type": "llama", "hidden_size": {hidden}, "intermediate_size": {ffn}, "num_hidden_layers": {layers},
            "num_attention_heads": {}, "num_key_value_heads": {kv}, "head_dim": {head_dim}, "max_position_embeddings": 64,
            "vocab_size": {vocabulary}, "tie_word_embeddings": {tied}, "attention_bias": {attention_bias}, "mlp_bias": {mlp_bias}}}"#,
            kv << group
        );
        parse_config("random", "random", &text).unwrap()
    })
}

fn opt() -> impl Strategy<Value = Model> {
    let sizes = (1u64..9, 1u64..60, 1u64..600, 1u64..4000, 1u64..300);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 1u64..6);
    (sizes, switches).prop_map(|((heads, head_dim, ffn, vocabulary, embedding), (pre, bias, affine, tied, layers))| {
        let text = format!(
            r#"{{"model_type": "opt", "hidden_size": {}, "ffn_dim": {ffn}, "num_hidden_layers": {layers}, "num_attention_heads": {heads},
            "max_position_embeddings": 64, "vocab_size": {vocabulary}, "word_embed_proj_dim": {embedding}, "tie_word_embeddings": {tied},
            "do_layer_norm_before": {pre}, "enable_bias": {bias}, "layer_norm_elementwise_affine": {affine}, "attention_dropout": 0.1,
            "activation_dropout": 0.1, "activation_function": "gelu"}}"#,
            heads * head_dim
        );
        parse_config("random", "random", &text).unwrap()
    })
}

fn lowering(model: &Model, batch: u64, sequence: u64) -> Lowering {
    Lowering { micro_batch: batch, sequence_length: sequence, attention: Attention::Unfused, ..Lowering::new(model) }
}

proptest! {
    #[test]
    fn work_and_parameters_are_the_closed_forms(model in prop_oneof![llama(), opt()], batch in 1u64..5, sequence in 1u64..64) {
        let lowering = lowering(&model, batch, sequence);
        let graph = TrainingGraph::new(&model, &lowering).unwrap();
        prop_assert_eq!(graph.kernel_flops(), graph.model_flops);
        prop_assert_eq!(graph.parameters().per_device_count(), model.parameters());
    }

    #[test]
    fn a_split_model_does_the_whole_models_work(model in llama(), sequence in 1u64..64) {
        let whole = TrainingGraph::new(&model, &lowering(&model, 1, sequence)).unwrap();
        for t in tensor_parallel_degrees(&model, 64).into_iter().filter(|t| u64::from(*t) <= model.kv_heads) {
            let vocabulary = model.padded_vocabulary(t);
            let padding = 6 * u128::from(sequence * model.hidden * (vocabulary - model.vocabulary));
            let part = TrainingGraph::new(&model, &Lowering { tensor_parallel: t, ..lowering(&model, 1, sequence) }).unwrap();
            prop_assert_eq!(part.kernel_flops().0 * u128::from(t), whole.kernel_flops().0 + padding);
            let rows = (vocabulary - model.vocabulary) * model.hidden * if model.tied_head { 1 } else { 2 };
            let sum = part.parameters();
            prop_assert_eq!(sum.sharded * u64::from(t) + sum.replicated, model.parameters() + rows);
        }
    }

    #[test]
    fn a_gelu_layer_with_every_dropout_keeps_its_closed_form(model in opt(), batch in 1u64..5, sequence in 1u64..64) {
        let lowering = lowering(&model, batch, sequence);
        let graph = TrainingGraph::new(&model, &lowering).unwrap();
        let layer = graph.segment(SegmentKind::Layer).unwrap();
        let sb = batch * sequence;
        // Korthikanti's 34 sbh + 5 a s^2 b, with a free MLP width: 18 sbh outside the MLP and 4 bytes per inner element
        // of the MLP. Here the activation also has dropout, whose result replaces the activation as the next product's
        // input: one more mask.
        let closed = sb * 18 * model.hidden + sb * 5 * model.ffn + 5 * model.heads * sequence * sb;
        prop_assert_eq!(layer.saved_bytes(&RecomputeSet::none()).0, closed);
        prop_assert_eq!(layer.saved_bytes(&layer.graph.full_recompute_set()).0, 2 * sb * model.hidden);
    }
}
