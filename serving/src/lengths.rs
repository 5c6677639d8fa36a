//! The distribution of the lengths of requests, in tokens of prompts and answers.

use serde::{Deserialize, Serialize};
use sim::files::{FaultParts, StructuredError};
use thiserror::Error;

/// Requests of one length, with their share of all requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LengthClass {
    /// Tokens of the prompt, at least 1.
    pub input: u64,
    /// Tokens of the answer, at least 2.
    pub output: u64,
    /// Share of the requests.
    pub share: f64,
}

/// The lengths of requests: a distribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestLengths {
    classes: Vec<LengthClass>,
}

/// The reason why lengths cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} = {value}: {limit}; {cure}")]
pub struct LengthError {
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// The rule.
    pub limit: &'static str,
    /// The cure.
    pub cure: &'static str,
}

impl StructuredError for LengthError {
    fn fault_parts(&self) -> FaultParts {
        FaultParts::of_key(self.key, &self.value, self.limit, self.cure)
    }
}

impl RequestLengths {
    /// Largest number of tokens of a prompt or an answer.
    pub const MOST_TOKENS: u64 = 1 << 24;

    /// Returns a distribution. Shares are divided by their sum.
    ///
    /// # Errors
    /// No class, a length out of range, or a share that is not positive or above 1e9.
    pub fn new(classes: &[LengthClass]) -> Result<Self, LengthError> {
        let fault = |key, value: String, limit, cure| Err(LengthError { key, value, limit, cure });
        let total: f64 = classes.iter().map(|class| class.share).sum();
        if classes.is_empty() {
            return fault("lengths", "none".to_owned(), "needs at least one class", "give INPUTxOUTPUT");
        }
        for class in classes {
            if !(1..=Self::MOST_TOKENS).contains(&class.input) {
                let cure = "give the tokens of a prompt";
                return fault("input", class.input.to_string(), "must be from 1 to 16777216", cure);
            }
            if !(2..=Self::MOST_TOKENS).contains(&class.output) {
                let cure = "give the tokens of an answer: the prompt makes the first, decoding the others";
                return fault("output", class.output.to_string(), "must be from 2 to 16777216", cure);
            }
            if !(class.share > 0.0 && class.share <= 1e9) {
                return fault(
                    "share",
                    class.share.to_string(),
                    "must be positive and at most 1e9",
                    "give the requests' share",
                );
            }
        }
        let classes = classes.iter().map(|class| LengthClass { share: class.share / total, ..*class }).collect();
        Ok(Self { classes })
    }

    /// Returns requests of one length.
    ///
    /// # Errors
    /// A length out of range.
    pub fn uniform(input: u64, output: u64) -> Result<Self, LengthError> {
        Self::new(&[LengthClass { input, output, share: 1.0 }])
    }

    /// Returns the classes; their shares sum to 1.
    #[must_use]
    pub fn classes(&self) -> &[LengthClass] {
        &self.classes
    }

    pub(crate) fn mean(&self, of: impl Fn(&LengthClass) -> f64) -> f64 {
        self.classes.iter().map(|class| class.share * of(class)).sum()
    }

    /// Returns the mean number of tokens of an answer.
    #[must_use]
    pub fn mean_output(&self) -> f64 {
        self.mean(|class| class.output as f64)
    }

    /// Returns the mean number of tokens in the cache of a decoding sequence, weighted by the time for which each
    /// sequence decodes.
    #[must_use]
    pub fn mean_context(&self) -> f64 {
        self.mean_context_after(|_| 0)
    }

    /// Returns the mean number of tokens in the cache of a decoding sequence, without the tokens of its prompt that
    /// `held` counts.
    pub(crate) fn mean_context_after(&self, held: impl Fn(u64) -> u64) -> f64 {
        let steps = self.mean(|class| (class.output - 1) as f64);
        let own = |class: &LengthClass| (class.input - held(class.input)) as f64 + class.output as f64 / 2.0;
        self.mean(|class| (class.output - 1) as f64 * own(class)) / steps
    }

    /// Returns the number of tokens of the longest sequence, prompt and answer together.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.longest_after(|_| 0)
    }

    /// Returns the number of tokens of the longest sequence, without the tokens of its prompt that `held` counts.
    pub(crate) fn longest_after(&self, held: impl Fn(u64) -> u64) -> u64 {
        let own = |class: &LengthClass| (class.input - held(class.input)).saturating_add(class.output);
        self.classes.iter().map(own).max().unwrap_or(0)
    }
}
