//! Frames of sound as an encoder's tokens (Whisper): two convolutions over time, each a product of neighbouring frames
//! with its nonlinearity, and then positions. The sound has no gradient.
//!
//! A convolution is timed as a product that reads each of its windows whole. The windows of the second convolution
//! overlap by a third, which caches serve on a real device.

use super::activation::add_activation;
use super::embedding::{TableSize, add_learned_table};
use super::linear::{Linear, WeightSplit, result_part};
use super::patches::DataProduct;
use super::segment_plan::SegmentPlan;
use super::{OperatorContext, dropout};
use crate::graph::{GraphBuilder, TensorId};
use crate::variations::SoundFrames;

/// Adds both convolutions, positions and dropout of the encoder and returns its tokens. Every tensor-parallel device
/// makes its own tokens.
pub(crate) fn add_sound_frames(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    name: &str,
    frames: SoundFrames,
) -> TensorId {
    let (model, encoder) = (plan.model, plan.encoder_plan());
    let (shape, hidden) = (&encoder.shape, model.hidden);
    let called = |part: &str| format!("{name}.{part}");
    let unsplit = encoder.unsplit_context();
    let before = OperatorContext { sequence: unsplit.sequence.saturating_mul(SoundFrames::STRIDE), ..unsplit };
    let first = DataProduct {
        data: "sound",
        rows: before.tokens(),
        made: before.tokens(),
        numbers: frames.bins,
        input: SoundFrames::REACH.saturating_mul(frames.bins),
        hidden,
        vectors: 0,
        bias: true,
    };
    let mut x = first.add_product_of_data(graph, shape, &called("convolution"));
    x = add_activation(graph, &before, &called("activation"), model.activation, hidden, x);
    let second = Linear {
        name: called("second_convolution"),
        input: SoundFrames::REACH.saturating_mul(hidden),
        outputs: &[result_part("out", hidden)],
        bias: true,
        split: WeightSplit::Replicated,
        shares_input: false,
        narrow: false,
        chunks: 1,
    };
    x = second.add_linear(graph, shape, x)[0];
    x = add_activation(graph, &unsplit, &called("second_activation"), model.activation, hidden, x);
    let table = TableSize { rows: frames.tokens, width: hidden };
    x = add_learned_table(graph, shape, &called("position"), table, shape.local_sequence(), x);
    if model.dropout.embedding > 0.0 {
        x = dropout::add_dropout(graph, shape, &called("dropout"), encoder.residual_stream_size(), x);
    }
    x
}
