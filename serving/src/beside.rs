//! Figures of an inference technique, compared with plain serving: the prompt's time and memory, and the reads and
//! bytes of storage.

use crate::ServingError;
use crate::best::ServingHardware;
use crate::costs::time_of_prompts;
use crate::lengths::RequestLengths;
use crate::method::ServingMethod;
use crate::passes::PassTimes;
use crate::plan::ServingPlan;
use crate::technique::ContextTechnique;
use sim::units::{Bytes, Seconds};
use workloads::Model;

/// Figures of a prompt with a technique and without one, on one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TechniqueFigures {
    /// Bytes of the prompt's keys and values at their peak.
    pub peak: Bytes,
    /// The same bytes without the technique.
    pub plain_peak: Bytes,
    /// Weights.
    pub weights: Bytes,
    /// Time of the prompt alone.
    pub prompt: Seconds,
    /// The same time without the technique.
    pub plain_prompt: Seconds,
    /// Mean bytes read from storage per token of a sequence.
    pub read_per_token: f64,
    /// Bytes of all stored memories.
    pub stored: f64,
}

impl TechniqueFigures {
    /// Returns the figures of a prompt of `input` tokens.
    ///
    /// # Errors
    /// A plan or a technique that the hardware does not allow.
    pub fn of_prompt(
        hardware: ServingHardware<'_>,
        model: &Model,
        plan: ServingPlan,
        (technique, input): (ContextTechnique, u64),
    ) -> Result<Self, ServingError> {
        let times = || PassTimes::new(model, hardware.chip, hardware.fabric, hardware.engine, plan);
        let method = ServingMethod { technique: Some(technique), ..ServingMethod::default() };
        let (mut plain, mut own) = (times()?, times()?.with_method(method)?);
        // The figures do not depend on the answer, so it has the shortest length, two tokens.
        let memory = plain.memory(&RequestLengths::uniform(input, 2).map_err(|error| ServingError::Plan {
            key: error.key,
            value: error.value,
            limit: error.limit.to_owned(),
            cure: error.cure.to_owned(),
        })?)?;
        let per_token = memory.cache.per_token.as_f64() * f64::from(plan.pipeline);
        let of = |tokens: f64| Bytes((tokens * per_token) as u64);
        let (tokens, read_per_token, stored) = match technique {
            ContextTechnique::Merged(merged) => (merged.peak_tokens(input), 0.0, 0.0),
            ContextTechnique::Memories(memories) => (
                input as f64 + memories.held_tokens,
                memories.held_tokens * per_token / memories.interval,
                memories.texts * memories.stored_tokens * per_token,
            ),
        };
        Ok(Self {
            peak: of(tokens),
            plain_peak: of(input as f64),
            weights: memory.weights,
            prompt: time_of_prompts(&mut own, 1, input)?.total(),
            plain_prompt: time_of_prompts(&mut plain, 1, input)?.total(),
            read_per_token,
            stored,
        })
    }
}
