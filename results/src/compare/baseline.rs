//! Published baselines, as data with their source.

use serde::Deserialize;
use workloads::LayerEnds;

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

/// Parallel degrees of an expert's placement.
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

/// A placement as PHAZE runs it on a model's layers and a batch (`device_placement.cpp`, `fixedConfigTimePerBatch`).
/// Stages take ceil(L / p) layers until none is left. The last stage has whatever follows the layers. A rank has ceil(B
/// / d) sequences. PHAZE also counts the time to fill the empty stages in between; here, these stages are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedPlacement {
    /// The degrees, without empty stages. The devices of empty stages are idle.
    pub degrees: ExpertDegrees,
    /// The split of the layers; `None` if it is even.
    pub ends: Option<LayerEnds>,
    /// Sequences of a step, including those that only fill up the ranks.
    pub sequences: u64,
    /// The differences from the published placement; empty if there are none.
    pub note: String,
}

impl ExpertDegrees {
    /// Returns the number of devices; `None` if it overflows.
    #[must_use]
    pub fn devices(self) -> Option<u32> {
        self.pipeline.checked_mul(self.tensor)?.checked_mul(self.data)
    }

    /// Returns the placement as PHAZE runs it for these `layers` and `sequences`.
    #[must_use]
    pub fn as_phaze_runs(self, layers: u64, sequences: u64) -> UsedPlacement {
        let (stages, ranks) = (u64::from(self.pipeline.max(1)), u64::from(self.data.max(1)));
        let each = layers.div_ceil(stages).max(1);
        let held = (0..stages).map(|stage| layers.saturating_sub(stage.saturating_mul(each)).min(each));
        let mut chunks: Vec<u64> = held.take_while(|layers| *layers > 0).collect();
        let empty = stages - chunks.len() as u64;
        // If the layers do not reach the last stage, it has only the head.
        chunks.extend((empty > 0).then_some(0));
        let even = chunks.iter().all(|layers| *layers == each);
        let pipeline = u32::try_from(chunks.len()).unwrap_or(self.pipeline);
        let padded = sequences.div_ceil(ranks).saturating_mul(ranks);
        let idle = (empty > 1).then(|| format!("{each} layers a stage leave {} of {stages} stages empty", empty - 1));
        let filled = (padded > sequences).then(|| {
            format!("{} of {padded} sequences fill up the {ranks} ranks and count nothing", padded - sequences)
        });
        UsedPlacement {
            degrees: Self { pipeline, ..self },
            ends: if even { None } else { LayerEnds::of_chunks(&chunks) },
            sequences: padded,
            note: idle.into_iter().chain(filled).collect::<Vec<_>>().join("; "),
        }
    }
}

/// Returns PHAZE's expert placement of a built-in model; `None` if it has none.
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
        // 48 layers on 32 stages: 24 stages have two layers each, seven are empty, and the last one has the head.
        let gpt2 = used("gpt2-xl", 48);
        assert_eq!((gpt2.degrees.pipeline, gpt2.degrees.data, gpt2.sequences), (25, 32, 4096));
        assert_eq!(gpt2.ends, Some(LayerEnds { first: 2, last: 0, shorter: 0 }));
        assert_eq!(gpt2.note, "2 layers a stage leave 7 of 32 stages empty");
        // 54 layers on 8 stages: seven stages have seven layers each, and the last one has five.
        let gpt2_54 = used("megatron-gpt2-54", 54);
        assert_eq!((gpt2_54.degrees.pipeline, gpt2_54.note.as_str()), (8, ""));
        assert_eq!(gpt2_54.ends, Some(LayerEnds { first: 7, last: 5, shorter: 0 }));
        // 4,096 sequences on 85 ranks: each rank has 49. The 69 sequences above 4,096 only fill up the ranks.
        let opt = used("opt-350m", 24);
        assert_eq!((opt.degrees.pipeline, opt.degrees.data, opt.sequences), (12, 85, 49 * 85));
        assert_eq!(opt.note, "69 of 4165 sequences fill up the 85 ranks and count nothing");
        assert_eq!(ExpertDegrees { pipeline: 1 << 20, tensor: 1 << 20, data: 1 }.devices(), None);
        let llama = used("llama2-7b", 32);
        assert_eq!((llama.degrees.pipeline, llama.ends, llama.sequences, llama.note.as_str()), (8, None, 4096, ""));
    }
}
