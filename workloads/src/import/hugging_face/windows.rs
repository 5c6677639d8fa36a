//! Attention that sees a window of the sequence. It is costed over whole sequences; how much that over-counts is said.

use super::reader::Reader;
use crate::model::Model;

/// A sequence length that people train at, to say what windows would save there.
const USUAL_SEQUENCE: u64 = 4096;

/// Notes that `layers` of the model's layers see at most `window` earlier tokens (the key `key`), where that is less than its longest sequence.
pub(super) fn note(reader: &Reader<'_>, model: &Model, key: &str, window: u64, layers: u64) {
    if window >= model.max_sequence || layers == 0 {
        return;
    }
    let over = |sequence| 100.0 * over_count(model, window, layers, sequence);
    let (longest, all) = (model.max_sequence, model.all_layers());
    let usual = if USUAL_SEQUENCE < longest && over(USUAL_SEQUENCE) >= 0.05 {
        format!("by {:.1} % at {USUAL_SEQUENCE} and ", over(USUAL_SEQUENCE))
    } else {
        String::new()
    };
    let which = if layers == all { "all layers".to_owned() } else { format!("{layers} of {all} layers") };
    reader.assume(format!(
        "`{key}` = {window} in {which}: attention is costed over whole sequences, exact up to {window} tokens; beyond, operations are over-counted, {usual}by \
         {:.1} % at {longest} tokens",
        over(longest)
    ));
}

/// The layers that see windows: those of kind `sliding_attention` (or chunked) in `layer_types`, otherwise all but every `period`-th.
pub(super) fn layers(reader: &Reader<'_>, model: &Model, period: u64) -> u64 {
    let kinds = reader.get("layer_types").and_then(|kinds| kinds.as_array());
    match kinds {
        Some(kinds) => kinds.iter().filter(|kind| kind.as_str().is_some_and(|kind| kind != "full_attention")).count() as u64,
        None if period == 0 => model.all_layers(),
        None => model.all_layers() - model.all_layers() / period,
    }
}

/// The share of a step's necessary operations that windows leave out: of the s / 2 tokens that a token sees on average, w - w^2 / (2 s) remain.
fn over_count(model: &Model, window: u64, layers: u64, sequence: u64) -> f64 {
    if window >= sequence {
        return 0.0;
    }
    let (s, w) = (sequence as f64, window as f64);
    let unseen = s / 2.0 - (w - w * w / (2.0 * s));
    let widths = (model.query_width() + model.context_width()) as f64;
    let left_out = 6.0 * layers as f64 * widths * unseen * s;
    let counted = model.necessary_training_flops(1, sequence, model.vocabulary).as_f64();
    left_out / (counted - left_out).max(1.0)
}
