//! Packed documents: the work of attention is proportional to the sum of their squared lengths.

#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use proptest::prelude::*;
use sim::kernel::{FusedAttention, Kernel};
use workloads::{DocumentLength, Lowering, Model, TrainingGraph};

const SEQUENCE: u64 = 4096;
/// An encoder-decoder.
const T5: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transformers/t5.json");

fn model(name: &str) -> Model {
    Model::load(name).unwrap()
}

fn packed(name: &str, lengths: &[(u64, u64)]) -> Model {
    let lengths = lengths.iter().map(|&(tokens, documents)| DocumentLength { tokens, documents });
    model(name).with_documents(lengths.collect()).unwrap()
}

/// Returns the attention kernels of all segments, forward and backward.
fn attention(model: &Model, lowering: &Lowering) -> Vec<FusedAttention> {
    let graph = TrainingGraph::new(model, lowering).unwrap();
    let steps = graph.segments.iter().flat_map(|segment| segment.operators());
    let steps = steps.flat_map(|op| op.forward.iter().chain(op.backward.iter().flat_map(|chain| &chain.steps)));
    let kernel = |kernel: &Kernel| if let Kernel::FusedAttention(attention) = kernel { Some(*attention) } else { None };
    steps.filter_map(|step| kernel(&step.kernel)).collect()
}

fn lowering(model: &Model) -> Lowering {
    Lowering { sequence_length: SEQUENCE, ..Lowering::new(model) }
}

#[test]
fn one_document_of_the_whole_length_changes_nothing() {
    let whole = model("llama2-7b");
    let one = packed("llama2-7b", &[(SEQUENCE, 1), (3 * SEQUENCE, 2)]);
    let graph = |model: &Model| TrainingGraph::new(model, &lowering(model)).unwrap();
    assert_eq!(graph(&one), graph(&whole));
    let flops = |model: &Model| model.necessary_training_flops(8, SEQUENCE, model.vocabulary);
    assert_eq!(flops(&one), flops(&whole));
}

#[test]
fn two_halves_have_half_of_the_attention() {
    let whole = model("llama2-7b");
    let halves = packed("llama2-7b", &[(SEQUENCE / 2, 1)]);
    let work = |model: &Model| attention(model, &lowering(model)).iter().map(|a| a.flops().0).collect::<Vec<_>>();
    // 32 heads of dimension 128 have 4,096 queries, each with 2,048 or 1,024 keys on average. A score takes 4
    // operations per dimension forward, and 10 backward.
    assert_eq!(work(&whole), [4, 10].map(|each| 32 * 4096 * 2048 * each * 128));
    assert_eq!(work(&halves), [4, 10].map(|each| 32 * 4096 * 1024 * each * 128));
    // Model operations of attention per token: 6 x layers x (query width + value width) x half of the document length.
    // Documents of half a sequence reduce that half from 2,048 to 1,024 tokens.
    let flops = |model: &Model| model.necessary_training_flops(1, SEQUENCE, model.vocabulary).0;
    assert_eq!(flops(&whole) - flops(&halves), 4096 * 6 * 32 * 8192 * 1024);
    // Devices of a ring have a share of the queries of every document.
    let ring = Lowering { context_parallel: 4, ..lowering(&halves) };
    assert_eq!(attention(&halves, &ring)[0].flops().0, 32 * 1024 * 1024 * 4 * 128);
}

#[test]
fn lengths_weigh_by_their_tokens() {
    // 4,096 tokens hold one document of 2,048 and two of 1,024, so 2048^2 + 2 * 1024^2 of 4096^2 scores remain.
    let mixed = packed("llama2-7b", &[(2048, 1), (1024, 2)]);
    let scores = attention(&mixed, &lowering(&mixed))[0].score_count();
    assert_eq!(scores, 32 * (2048 * 2048 + 2 * 1024 * 1024) / 2);
    // A longer document is cut: 10,240 tokens are two sequences and 2,048 tokens.
    let cut = packed("llama2-7b", &[(10_240, 1)]);
    let scores = attention(&cut, &lowering(&cut))[0].score_count();
    let expected = 32 * 4096 * (8192 * 2048 + 2048 * 1024) / 10_240;
    assert!(scores.abs_diff(expected) < expected / 1000, "{scores}, {expected}");
}

#[test]
fn what_has_no_documents_refuses_them() {
    let refusal = |name: &str, lengths: &[(u64, u64)]| {
        let lengths = lengths.iter().map(|&(tokens, documents)| DocumentLength { tokens, documents });
        model(name).with_documents(lengths.collect()).unwrap_err().to_string()
    };
    assert!(refusal(T5, &[(512, 1)]).contains("an encoder-decoder"));
    assert!(refusal("llama2-7b", &[(0, 1)]).contains("from 1 to"));
    assert!(refusal("llama2-7b", &[(512, 0)]).contains("from 1 to"));
}

proptest! {
    /// For any distribution of lengths, the number of scores is proportional to the sum of the squared lengths. It is
    /// at most the number for whole sequences.
    #[test]
    fn scores_are_those_of_the_squares(lengths in proptest::collection::vec((1_u64..4096, 1_u64..1000), 1..200)) {
        let packed = packed("llama2-7b", &lengths);
        let kernel = attention(&packed, &lowering(&packed))[0];
        let whole = FusedAttention { pieces: None, ..kernel };
        prop_assert!(kernel.score_count() <= whole.score_count());
        let tokens: u64 = lengths.iter().map(|(tokens, number)| tokens * number).sum();
        let squares: u64 = lengths.iter().map(|(tokens, number)| tokens * tokens * number).sum();
        let expected = whole.score_count() as f64 * squares as f64 / tokens as f64 / SEQUENCE as f64;
        // Pieces have whole tokens. The tolerance allows for a rounding of 8 tokens of the longest length.
        let rounding = 0.01 * expected + 32.0 * 8.0 * 4096.0;
        prop_assert!((kernel.score_count() as f64 - expected).abs() < rounding);
    }
}
