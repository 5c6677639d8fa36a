//! The memory of a deployment: weights, working memory, and what is left for the cache.

use crate::{ServingEngine, ServingError, ServingPlan};
use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::units::Bytes;
use workloads::serving::{CacheSize, ServingGraph, weight_bytes_of_segment, working_bytes_of_segment};
use workloads::{Model, SegmentKind};

/// Bytes of one device of a deployment, on the stage that needs most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServingMemory {
    /// The chip's memory.
    pub capacity: Bytes,
    /// The engine's share of it.
    pub usable: Bytes,
    /// Weights.
    pub weights: Bytes,
    /// Working memory of the largest pass, context and libraries.
    pub working: Bytes,
    /// The cache of one sequence, by length.
    pub cache: CacheSize,
    /// Tokens of a page.
    pub page_tokens: u64,
}

impl ServingMemory {
    /// Returns the bytes that weights and working memory leave.
    #[must_use]
    pub fn room_for_cache(&self) -> Bytes {
        self.usable.saturating_sub(self.weights + self.working)
    }

    /// Returns the cache of a sequence of `tokens` tokens with half a page to spare.
    #[must_use]
    pub fn cache_of_sequence(&self, tokens: u64) -> Bytes {
        self.cache.of_sequence(tokens.saturating_add(self.page_tokens / 2))
    }

    /// Returns how many sequences of a mean of `tokens` tokens fit; none if the weights alone do not.
    #[must_use]
    pub fn sequences_that_fit(&self, tokens: u64) -> u64 {
        let each = self.cache_of_sequence(tokens).0.max(1);
        self.room_for_cache().0 / each
    }
}

/// Returns the memory of one device under a plan. The working memory is that of the largest pass: the activations of
/// one layer over the engine's most tokens, and the logits of its most sequences.
///
/// # Errors
/// A model that cannot be served under the plan.
pub fn memory_of_plan(
    model: &Model,
    chip: &Accelerator,
    engine: &ServingEngine,
    plan: &ServingPlan,
) -> Result<ServingMemory, ServingError> {
    plan.check_degrees(model)?;
    let tokens = engine.batching.most_tokens.min(model.max_sequence).max(1);
    let graph = ServingGraph::new(model, &plan.lowering(model, 1, tokens), plan.pass_after(0))?;
    let stages = u64::from(plan.pipeline);
    let weights = graph.segments.iter().map(|segment| {
        let one = weight_bytes_of_segment(segment, |of| plan.formats.bytes_of_weight(of));
        // A stage has a share of the layers, the fullest one more if they do not divide, and the larger end.
        if segment.kind == SegmentKind::Layer { one * segment.repeat.div_ceil(stages) } else { one }
    });
    let weights: Vec<Bytes> = weights.collect();
    let ends = weights.first().zip(weights.last()).map_or(Bytes::ZERO, |(first, last)| match plan.pipeline {
        1 => *first + *last,
        _ => (*first).max(*last),
    });
    let widest = graph.segments.iter().map(working_bytes_of_segment).max().unwrap_or(Bytes::ZERO);
    let logits = Bytes(4) * engine.batching.most_sequences * (model.vocabulary / u64::from(plan.tensor.max(1)));
    let context = Bytes::from_gib(engine.memory.context_gib);
    let size = CacheSize::of_model(model, plan.tensor, plan.formats.cache);
    let share = |bytes: Bytes| Bytes(bytes.0.div_ceil(stages));
    let cache = CacheSize {
        per_sequence: share(size.per_sequence),
        per_token: share(size.per_token),
        windows: size.windows.iter().map(|(window, bytes)| (*window, share(*bytes))).collect(),
    };
    let capacity = chip.hbm.capacity;
    Ok(ServingMemory {
        capacity,
        usable: Bytes((capacity.as_f64() * engine.memory.used_fraction) as u64),
        weights: weights.get(1).copied().unwrap_or(Bytes::ZERO) + ends,
        working: widest + logits + context,
        cache,
        page_tokens: engine.memory.page_tokens,
    })
}
