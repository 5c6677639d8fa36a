//! Activation policies of a plan's layers by stage: one policy for all layers, or a mix of policies for each model
//! chunk.
//!
//! Under 1F1B, stage `k` of `p` holds `min(m, p - k)` micro-batches, so early stages have less free memory than late
//! ones. Within a stage, some layers may keep more than others. Layers are alike, so a mix only states how many of a
//! chunk's layers follow each policy. Megatron-LM's `--recompute-method block` is such a mix: `full` for the first
//! layers of a chunk, `none` for the rest.

use crate::error::WorkloadError;
use crate::layout::ChunkSplit;
use crate::layout::LayoutError;
use crate::recompute_policy::ActivationPolicy;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Consecutive layers of a chunk that follow one policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRun {
    /// Number of layers.
    pub layers: u64,
    /// Their policy.
    pub policy: ActivationPolicy,
}

/// The policies of a model chunk's layers, in order.
pub type LayerMix = Vec<LayerRun>;

/// Activation policies of a plan's layers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StagePolicies {
    /// All layers follow one policy.
    Alike(ActivationPolicy),
    /// Every model chunk has its own mix, in pipeline order. Leading layers, on the embedding's stage, follow the first
    /// policy.
    ByChunk(Vec<LayerMix>),
}

impl Default for StagePolicies {
    fn default() -> Self {
        Self::Alike(ActivationPolicy::None)
    }
}

impl From<ActivationPolicy> for StagePolicies {
    fn from(policy: ActivationPolicy) -> Self {
        Self::Alike(policy)
    }
}

impl FromStr for StagePolicies {
    type Err = WorkloadError;

    /// Parses one policy for all layers.
    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        text.parse().map(Self::Alike)
    }
}

impl StagePolicies {
    /// Returns the policies of a list of mixes in their simplest form. One policy everywhere becomes [`Self::Alike`],
    /// equal neighbours join, and mixes without layers become the default.
    #[must_use]
    pub fn from_chunk_mixes(chunks: Vec<LayerMix>) -> Self {
        let joined = |mix: LayerMix| {
            let mut runs: LayerMix = Vec::with_capacity(mix.len());
            for run in mix.into_iter().filter(|run| run.layers > 0) {
                match runs.last_mut() {
                    Some(last) if last.policy == run.policy => last.layers += run.layers,
                    _ => runs.push(run),
                }
            }
            runs
        };
        let policies = Self::ByChunk(chunks.into_iter().map(joined).collect());
        match policies.distinct_policies().as_slice() {
            [] => Self::default(),
            [only] => Self::Alike((*only).clone()),
            _ => policies,
        }
    }

    /// Returns the policy that all layers follow; `None` if chunks have their own mixes.
    #[must_use]
    pub fn uniform_policy(&self) -> Option<&ActivationPolicy> {
        match self {
            Self::Alike(policy) => Some(policy),
            Self::ByChunk(_) => None,
        }
    }

    /// Returns the mixes of the chunks; `None` if one policy holds for all layers.
    #[must_use]
    pub fn chunk_mixes(&self) -> Option<&[LayerMix]> {
        match self {
            Self::Alike(_) => None,
            Self::ByChunk(chunks) => Some(chunks),
        }
    }

    /// Returns the distinct policies, in order of first appearance in the pipeline.
    #[must_use]
    pub fn distinct_policies(&self) -> Vec<&ActivationPolicy> {
        match self {
            Self::Alike(policy) => vec![policy],
            Self::ByChunk(chunks) => {
                let mut seen: Vec<&ActivationPolicy> = Vec::new();
                for run in chunks.iter().flatten() {
                    if !seen.contains(&&run.policy) {
                        seen.push(&run.policy);
                    }
                }
                seen
            }
        }
    }

    /// Returns the policy of the first layer; leading layers follow it.
    #[must_use]
    pub fn first_layer_policy(&self) -> &ActivationPolicy {
        match self {
            Self::Alike(policy) => policy,
            Self::ByChunk(chunks) => chunks.iter().flatten().next().map_or(&ActivationPolicy::None, |run| &run.policy),
        }
    }

    /// Returns the number of layers of every chunk that keep only their input while the others keep everything
    /// (Megatron-LM's `--recompute-method block`). These are the first layers of each chunk: the same number
    /// everywhere, or all layers of a shorter chunk. Returns 0 for a plan with one policy, `None` for any other mix.
    #[must_use]
    pub fn full_recompute_layers_per_chunk(&self) -> Option<u64> {
        let Self::ByChunk(chunks) = self else { return Some(0) };
        let full = |mix: &LayerMix| match mix.as_slice() {
            [] => Some((0, true)),
            [run] if run.policy == ActivationPolicy::Full => Some((run.layers, true)),
            [run] if run.policy == ActivationPolicy::None => Some((0, false)),
            [run, rest] if run.policy == ActivationPolicy::Full && rest.policy == ActivationPolicy::None => {
                Some((run.layers, false))
            }
            _ => None,
        };
        let counts = chunks.iter().map(full).collect::<Option<Vec<_>>>()?;
        let most = counts.iter().map(|(count, _)| *count).max()?;
        counts.iter().all(|(count, all)| *count == most || *all).then_some(most)
    }

    /// Returns the policies with full recomputation in the first `count` layers of every chunk and none in the others.
    #[must_use]
    pub fn from_full_recompute_layers(count: u64, split: &ChunkSplit) -> Self {
        let chunk = |place: u64| {
            let layers = split.layers_of_chunk(place);
            let full = count.min(layers);
            vec![
                LayerRun { layers: full, policy: ActivationPolicy::Full },
                LayerRun { layers: layers - full, policy: ActivationPolicy::None },
            ]
        };
        Self::from_chunk_mixes((0..split.chunks).map(chunk).collect())
    }

    /// Checks that every chunk's mix has as many layers as the chunk.
    ///
    /// # Errors
    /// A wrong number of chunks, or the first chunk whose mix has a different number of layers than the chunk.
    pub fn check_layer_counts(&self, split: &ChunkSplit) -> Result<(), LayoutError> {
        let Self::ByChunk(chunks) = self else { return Ok(()) };
        let broken = |value: String, limit: String| {
            let cure = "give every chunk a policy for each of its layers, or one policy for all of them".to_owned();
            Err(LayoutError { key: "activations", value, limit, cure })
        };
        if chunks.len() as u64 != split.chunks {
            return broken(
                format!("mixes for {} chunks", chunks.len()),
                format!("for the plan's {} chunks", split.chunks),
            );
        }
        for (place, mix) in chunks.iter().enumerate() {
            let (given, held) = (mix.iter().map(|run| run.layers).sum::<u64>(), split.layers_of_chunk(place as u64));
            if given != held {
                return broken(format!("{given} layers in chunk {place}"), format!("the {held} that it holds"));
            }
        }
        Ok(())
    }
}

/// Returns a mix as text, such as `12 x full + 4 x none`.
#[must_use]
pub fn describe_mix(mix: &[LayerRun]) -> String {
    match mix {
        [] => "no layers".to_owned(),
        [only] => only.policy.to_string(),
        _ => mix.iter().map(|run| format!("{} x {}", run.layers, run.policy)).collect::<Vec<_>>().join(" + "),
    }
}

impl fmt::Display for StagePolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alike(policy) => policy.fmt(f),
            Self::ByChunk(_) => match self.full_recompute_layers_per_chunk() {
                Some(layers) => write!(f, "full in {layers} of each chunk's layers"),
                None => write!(f, "by stage, {} ways", self.distinct_policies().len()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::layout::Layout;

    fn run(layers: u64, policy: &str) -> LayerRun {
        LayerRun { layers, policy: policy.parse().unwrap() }
    }

    #[test]
    fn equal_policies_are_one_and_neighbours_join() {
        let alike = StagePolicies::from_chunk_mixes(vec![vec![run(1, "full"), run(1, "full")], vec![run(2, "full")]]);
        assert_eq!(alike, StagePolicies::Alike(ActivationPolicy::Full));
        let mixed = StagePolicies::from_chunk_mixes(vec![
            vec![run(1, "full"), run(1, "full"), run(0, "none")],
            vec![run(2, "none")],
        ]);
        assert_eq!(mixed, StagePolicies::ByChunk(vec![vec![run(2, "full")], vec![run(2, "none")]]));
        assert_eq!(mixed.distinct_policies(), [&ActivationPolicy::Full, &ActivationPolicy::None]);
        assert_eq!(mixed.first_layer_policy(), &ActivationPolicy::Full);
        assert_eq!(StagePolicies::from_chunk_mixes(Vec::new()), StagePolicies::default());
    }

    #[test]
    fn one_policy_is_written_as_its_name_and_mixes_are_read_back() {
        let alike: StagePolicies = ActivationPolicy::Selective.into();
        assert_eq!(serde_json::to_string(&alike).unwrap(), "\"selective\"");
        let mixed = StagePolicies::ByChunk(vec![vec![
            run(1, "full"),
            run(3, "tensors:offload(attention.core.out)+device(mlp.gate.out)"),
        ]]);
        for policies in [alike, mixed] {
            let text = serde_json::to_string(&policies).unwrap();
            assert_eq!(serde_json::from_str::<StagePolicies>(&text).unwrap(), policies, "{text}");
        }
    }

    #[test]
    fn blocks_are_the_first_layers_of_every_chunk() {
        let split = Layout { pipeline: 4, ..Layout::default() }.chunk_split(14).unwrap();
        for count in 1..4 {
            let policies = StagePolicies::from_full_recompute_layers(count, &split);
            assert_eq!(
                (policies.full_recompute_layers_per_chunk(), policies.check_layer_counts(&split)),
                (Some(count), Ok(()))
            );
        }
        assert_eq!(StagePolicies::from_full_recompute_layers(0, &split), ActivationPolicy::None.into());
        assert_eq!(StagePolicies::from_full_recompute_layers(4, &split), ActivationPolicy::Full.into());
        let uneven =
            StagePolicies::ByChunk(vec![vec![run(2, "full"), run(2, "none")], vec![run(1, "full"), run(3, "none")]]);
        assert_eq!(uneven.full_recompute_layers_per_chunk(), None);
        assert_eq!(
            StagePolicies::ByChunk(vec![vec![run(2, "none"), run(2, "full")]]).full_recompute_layers_per_chunk(),
            None
        );
    }

    #[test]
    fn a_mix_has_as_many_layers_as_its_chunk() {
        let layout = Layout { pipeline: 2, ..Layout::default() };
        let split = layout.chunk_split(8).unwrap();
        let of = |first, last| {
            StagePolicies::ByChunk(vec![vec![run(first, "full")], vec![run(last, "none")]]).check_layer_counts(&split)
        };
        assert_eq!(of(4, 4), Ok(()));
        let wrong = of(4, 5).unwrap_err().to_string();
        assert!(
            wrong.contains("activations")
                && wrong.contains("5 layers in chunk 1")
                && wrong.contains("the 4 that it holds"),
            "{wrong}"
        );
        let few =
            StagePolicies::ByChunk(vec![vec![run(8, "full")]]).check_layer_counts(&split).unwrap_err().to_string();
        assert!(few.contains("mixes for 1 chunks") && few.contains("2 chunks"), "{few}");
    }
}
