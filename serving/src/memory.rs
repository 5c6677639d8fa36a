//! The memory of a deployment: weights, working memory, and the rest for the cache.

use crate::{ServingEngine, ServingError, ServingPlan};
use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::units::Bytes;
use workloads::serving::{CacheSize, ServingGraph, weight_bytes_of_segment, working_bytes_of_segment};
use workloads::{Model, SegmentKind};

/// Bytes of one device of a deployment, on the stage with the largest need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServingMemory {
    /// The chip's memory.
    pub capacity: Bytes,
    /// The part of the chip's memory that the engine may use.
    pub usable: Bytes,
    /// Weights.
    pub weights: Bytes,
    /// Weights without the embedding's and the head's.
    #[serde(default)]
    pub weights_of_layers: Bytes,
    /// Working memory of the largest pass, context and libraries.
    pub working: Bytes,
    /// The cache of one sequence, by length.
    pub cache: CacheSize,
    /// Tokens of a page.
    pub page_tokens: u64,
    /// Held prefixes of prompts.
    #[serde(default)]
    pub prefixes: Bytes,
    /// The part of the cache that lies off the device; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away: Option<AwayMemory>,
}

/// A part of the cache in a memory beside the device's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AwayMemory {
    /// Fraction of the keys and values that lie there, in layers whose queries see all tokens.
    pub fraction: f64,
    /// Fraction of the keys and values off the device that is on the device at any time: those of the layer at work and
    /// of the next layer.
    pub staged: f64,
    /// Bytes that the memory holds for one device.
    pub capacity: Bytes,
}

impl ServingMemory {
    /// Returns the usable bytes that weights, working memory and held prefixes leave for the cache; zero if they exceed
    /// the usable bytes.
    #[must_use]
    pub fn room_for_cache(&self) -> Bytes {
        self.usable.saturating_sub(self.weights + self.working + self.prefixes)
    }

    /// Returns the bytes of the cache of a sequence of `tokens` tokens, and half a page more.
    #[must_use]
    pub fn cache_of_sequence(&self, tokens: u64) -> Bytes {
        self.cache.of_sequence(tokens.saturating_add(self.page_tokens / 2))
    }

    /// Returns the bytes of a sequence's cache in the device's memory.
    #[must_use]
    pub fn cache_on_device(&self, tokens: u64) -> Bytes {
        let all = self.cache_of_sequence(tokens);
        let absent = self.away.map_or(0.0, |away| away.fraction * (1.0 - away.staged));
        all.saturating_sub(Bytes((self.bytes_of_tokens(tokens).as_f64() * absent) as u64))
    }

    /// Returns the bytes of a sequence's keys and values in layers whose queries see all tokens.
    fn bytes_of_tokens(&self, tokens: u64) -> Bytes {
        self.cache.per_token * tokens.saturating_add(self.page_tokens / 2)
    }

    /// Returns the number of sequences with a mean of `tokens` tokens that fit; zero if the weights alone do not fit.
    #[must_use]
    pub fn sequences_that_fit(&self, tokens: u64) -> u64 {
        let on_device = self.room_for_cache().0 / self.cache_on_device(tokens).0.max(1);
        let beside = self.away.filter(|away| away.fraction > 0.0).map_or(u64::MAX, |away| {
            (away.capacity.as_f64() / (self.bytes_of_tokens(tokens).as_f64() * away.fraction).max(1.0)) as u64
        });
        on_device.min(beside)
    }
}

/// Returns the cache of a device that holds all layers of a plan. If devices share the tokens of a sequence, each holds
/// a part of its keys and values. Plans with windows or states share no tokens.
pub(crate) fn cache_of_device(model: &Model, plan: &ServingPlan) -> CacheSize {
    let whole = CacheSize::of_model(model, plan.tensor, plan.formats.cache);
    CacheSize { per_token: Bytes(whole.per_token.0.div_ceil(plan.context.max(1).into())), ..whole }
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
        // A single stage holds a matrix that embedding and head share only once.
        let shares_head = model.tied_head && stages == 1;
        let one = weight_bytes_of_segment(segment, shares_head, |of| plan.formats.bytes_of_weight(of));
        // The fullest stage has its share of the layers, rounded up, and the larger of both ends.
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
    let size = cache_of_device(model, plan);
    let exchanged = plan.shared_cache(model).map_or(Bytes::ZERO, |shared| {
        let heads = model.heads / u64::from(plan.tensor.max(1));
        shared.working_bytes(engine.batching.most_sequences, tokens, heads, model.head_dim)
    });
    let share = |bytes: Bytes| Bytes(bytes.0.div_ceil(stages));
    let cache = CacheSize {
        per_sequence: share(size.per_sequence),
        per_token: share(size.per_token),
        windows: size.windows.iter().map(|(window, bytes)| (*window, share(*bytes))).collect(),
    };
    let capacity = chip.hbm.capacity;
    let weights_of_layers = weights.get(1).copied().unwrap_or(Bytes::ZERO);
    Ok(ServingMemory {
        capacity,
        usable: Bytes((capacity.as_f64() * engine.memory.used_fraction) as u64),
        weights: weights_of_layers + ends,
        weights_of_layers,
        working: widest + logits + context + exchanged,
        cache,
        // Every device that shares a sequence's tokens has a last page of its own.
        page_tokens: engine.memory.page_tokens * u64::from(plan.context.max(1)),
        prefixes: Bytes::ZERO,
        away: None,
    })
}
