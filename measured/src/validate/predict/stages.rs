//! The column `stage_layers`: the layers of each pipeline stage of a run.

use super::PreparedInputs;
use crate::validate::row::{MeasuredRow, RowFailure};
use workloads::layout::split_by_cost;
use workloads::{LayerEnds, Layout, Model};

/// The column.
pub(super) const STAGES: &str = "stage_layers";

/// Returns the ends of nanotron's split of a model; `None` without a pipeline, or with several chunks per stage. The
/// cost of a layer is the weights of its products. The cost of the output layer is its own weights (nanotron, llama.py
/// `get_block_compute_costs`).
pub(super) fn ends_by_cost(model: &Model, layout: &Layout) -> Option<LayerEnds> {
    if layout.pipeline < 2 || layout.virtual_stages > 1 {
        return None;
    }
    let width = model.heads * (model.hidden / model.heads.max(1));
    let layer = 4 * width * model.hidden + 3 * model.ffn * model.hidden;
    let stages = split_by_cost(model.layers, layer, model.vocabulary * model.hidden, layout.pipeline);
    nearest_split(&stages, layout).map(|(ends, _)| ends)
}

/// Returns the ends of the split in the row, without the leading dense layers (which are with the embedding). A split
/// that [`LayerEnds`] cannot express is replaced by the nearest one with the same first and last stage, and noted.
/// `None` without the column or a pipeline, with several chunks per stage, or if no split is near.
pub(super) fn ends_of_row(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    layout: &Layout,
    layers: (u64, u64),
) -> Result<Option<LayerEnds>, RowFailure> {
    let Some(text) = row.cell(STAGES) else { return Ok(None) };
    let stages: Option<Vec<u64>> = text.split(';').map(|n| n.trim().parse().ok()).collect();
    let wrong = |limit: &str| row.row_fault(STAGES, limit, "correct it, or leave it empty");
    let stages = stages.ok_or_else(|| wrong("must be whole numbers with ; between"))?;
    let (all, leading) = layers;
    if stages.len() as u64 != u64::from(layout.pipeline) {
        return Err(wrong(&format!("must be pp = {} numbers", layout.pipeline)));
    }
    let held = stages.iter().try_fold(0_u64, |sum, n| sum.checked_add(*n));
    if held != Some(all) {
        return Err(wrong(&format!("must add up to the {all} layers")));
    }
    if layout.virtual_stages > 1 {
        prepared.note_assumption(format!("{STAGES} is not used where stages hold several chunks"));
        return Ok(None);
    }
    if layout.pipeline < 2 {
        return Ok(None);
    }
    let mut stages = stages;
    stages[0] =
        stages[0].checked_sub(leading).ok_or_else(|| wrong("must hold the leading dense layers in the first stage"))?;
    let near = nearest_split(&stages, layout);
    match near {
        Some((_, 0)) => {}
        Some((ends, _)) => {
            prepared.note_assumption(format!("{STAGES} of another form than first:last@shorter, taken as {ends}"))
        }
        None => prepared.note_assumption(format!("{STAGES} cannot be told, taken as an even split")),
    }
    Ok(near.map(|(ends, _)| ends))
}

/// Returns the ends of the nearest split, and the sum of the differences in layers over all stages.
fn nearest_split(stages: &[u64], layout: &Layout) -> Option<(LayerEnds, u64)> {
    let layers: u64 = stages.iter().sum();
    let (first, last) = (stages.first()?, stages.last()?);
    let between = u32::try_from(stages.len()).ok()?.saturating_sub(2);
    let candidates = (0..=between).filter_map(|shorter| {
        let ends = LayerEnds { first: u32::try_from(*first).ok()?, last: u32::try_from(*last).ok()?, shorter };
        let split = Layout { ends: Some(ends), ..*layout }.chunk_split(layers).ok()?;
        let away = (0..).zip(stages).map(|(stage, held)| split.layers_of_chunk(stage).abs_diff(*held)).sum();
        Some((ends, away))
    });
    candidates.min_by_key(|(ends, away)| (*away, ends.shorter))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_output_layer_counts_in_a_balanced_split() {
        let model = |layers, hidden, ffn| {
            let mut model = Model::load("llama2-7b").unwrap();
            (model.layers, model.hidden, model.ffn, model.heads, model.vocabulary) = (layers, hidden, ffn, 32, 131_072);
            model
        };
        let split = |model: &Model, pipeline| {
            let layout = Layout { pipeline, ..Layout::default() };
            ends_by_cost(model, &layout).map(|ends| ends.to_string())
        };
        // A layer of 4 x 2048 x 2048 + 3 x 8192 x 2048 weights is a quarter of the output layer.
        let small = model(16, 2048, 8192);
        assert_eq!(split(&small, 1), None);
        assert_eq!(split(&small, 2), Some("10:6".into()));
        assert_eq!(split(&small, 4), Some("5:1".into()));
        let large = model(32, 4096, 14_336);
        assert_eq!(split(&large, 2), Some("18:14".into()));
        assert_eq!(split(&large, 4), Some("9:6".into()));
        assert_eq!(split(&large, 8), Some("5:2@2".into()));
    }

    #[test]
    fn splits_that_can_be_told_are_and_others_keep_their_first_stage() {
        let told = |stages: &[u64]| {
            let layout = Layout { pipeline: u32::try_from(stages.len()).unwrap(), ..Layout::default() };
            nearest_split(stages, &layout).map(|(ends, away)| (ends.to_string(), away))
        };
        assert_eq!(told(&[18, 14]), Some(("18:14".into(), 0)));
        assert_eq!(told(&[9, 9, 8, 6]), Some(("9:6".into(), 0)));
        assert_eq!(told(&[5, 4, 4, 5, 4, 4, 4, 2]), Some(("5:2@2".into(), 0)));
        assert_eq!(told(&[6, 5, 5, 0]), Some(("6:0".into(), 0)));
        // More stages than layers and ends.
        assert_eq!(told(&[1, 1, 1, 0, 0, 0]), Some(("1:0".into(), 0)));
        assert_eq!(told(&[0, 0, 1, 1, 0, 0, 0]), Some(("0:0@1".into(), 0)));
        let (ends, away) = told(&[3, 3, 2, 3, 2, 3, 0, 0]).unwrap();
        assert!(ends.starts_with("3:0") && away > 0, "{ends} {away}");
    }
}
