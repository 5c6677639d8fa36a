//! Published baselines, as data with their source.

use serde::Deserialize;

const EXPERT_PLACEMENTS: &str = include_str!("../../reference/expert_placements.json");

#[derive(Deserialize)]
struct PublishedPlacements {
    source: String,
    placements: Vec<PublishedPlacement>,
}

#[derive(Deserialize)]
struct PublishedPlacement {
    model: String,
    pipeline_stages: u32,
    data_parallel: u32,
    tensor_parallel: u32,
}

/// Parallel degrees as an expert writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertDegrees {
    /// Pipeline stages.
    pub pipeline: u32,
    /// Data-parallel ranks.
    pub data: u32,
    /// Tensor-parallel width.
    pub tensor: u32,
}

/// A placement chosen by an expert, with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertPlacement {
    /// The parallel degrees.
    pub degrees: ExpertDegrees,
    /// The publication.
    pub source: String,
}

/// A placement as PHAZE runs it on a model's layers and a batch (its `solver`, the fixed baseline: ceil(L / p) layers a
/// stage, ceil(B / d) sequences a rank).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedPlacement {
    /// The degrees, without stages that get no layer. The devices of such stages idle.
    pub degrees: ExpertDegrees,
    /// Sequences of a step, with those that fill up the ranks.
    pub sequences: u64,
    /// The differences from the published placement; empty if there are none.
    pub note: String,
}

impl ExpertDegrees {
    /// Returns how PHAZE runs the placement for so many `layers` and `sequences`.
    #[must_use]
    pub fn as_phaze_runs(self, layers: u64, sequences: u64) -> UsedPlacement {
        let each = layers.div_ceil(u64::from(self.pipeline)).max(1);
        let stages = u32::try_from(layers.div_ceil(each)).unwrap_or(self.pipeline).min(self.pipeline);
        let ranks = u64::from(self.data);
        let padded = sequences.div_ceil(ranks.max(1)).saturating_mul(ranks);
        let idle = (stages < self.pipeline).then(|| {
            format!("{each} layers a stage leave {} of {} stages idle", self.pipeline - stages, self.pipeline)
        });
        let filled = (padded > sequences).then(|| {
            format!("{} of {padded} sequences fill up the {ranks} ranks and count nothing", padded - sequences)
        });
        let note = idle.into_iter().chain(filled).collect::<Vec<_>>().join("; ");
        UsedPlacement { degrees: Self { pipeline: stages, ..self }, sequences: padded, note }
    }
}

/// PHAZE's expert placement of a built-in model, if it has one.
#[must_use]
pub fn expert_placement(model: &str) -> Option<ExpertPlacement> {
    let table: PublishedPlacements = serde_json::from_str(EXPERT_PLACEMENTS).ok()?;
    let p = table.placements.iter().find(|p| p.model == model)?;
    let degrees = ExpertDegrees { pipeline: p.pipeline_stages, data: p.data_parallel, tensor: p.tensor_parallel };
    Some(ExpertPlacement { degrees, source: table.source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_table_is_read_and_unknown_models_have_none() {
        let expert = expert_placement("llama2-7b").map(|e| e.degrees);
        assert_eq!(expert, Some(ExpertDegrees { pipeline: 8, data: 128, tensor: 1 }));
        assert_eq!(expert_placement("llama3-8b"), None);
    }

    #[test]
    fn stages_without_layers_idle_and_the_last_micro_batches_are_filled_up() {
        let used = |model: &str, layers| expert_placement(model).unwrap().degrees.as_phaze_runs(layers, 4096);
        // 48 layers on 32 stages: two layers each, on 24 of them.
        let gpt2 = used("gpt2-xl", 48);
        assert_eq!((gpt2.degrees.pipeline, gpt2.degrees.data, gpt2.sequences), (24, 32, 4096));
        assert_eq!(gpt2.note, "2 layers a stage leave 8 of 32 stages idle");
        // 4,096 sequences on 85 ranks: 49 each.
        let opt = used("opt-350m", 24);
        assert_eq!((opt.degrees.pipeline, opt.degrees.data, opt.sequences), (12, 85, 49 * 85));
        assert_eq!(opt.note, "69 of 4165 sequences fill up the 85 ranks and count nothing");
        let llama = used("llama2-7b", 32);
        assert_eq!((llama.degrees.pipeline, llama.sequences, llama.note.as_str()), (8, 4096, ""));
    }
}
