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
    use super::*;

    #[test]
    fn the_table_is_read_and_unknown_models_have_none() {
        let expert = expert_placement("llama2-7b").map(|e| e.degrees);
        assert_eq!(expert, Some(ExpertDegrees { pipeline: 8, data: 128, tensor: 1 }));
        assert_eq!(expert_placement("llama3-8b"), None);
    }
}
