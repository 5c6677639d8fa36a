//! One combination of lengths and limits, with its answer.

use crate::answer::serving::{ServingChoice, ServingReport};
use crate::text::format_significant;
use search::ask::DeploymentCase;
use serde::{Deserialize, Serialize};
use serving::lengths::LengthClass;

/// The answer for one combination of lengths and limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedCase {
    /// Lengths of the requests, with shares that sum to 1.
    pub lengths: Vec<LengthClass>,
    /// The limit on the mean time to the first token, in ms; `null` without one.
    pub ttft_limit_ms: Option<f64>,
    /// The limit on the mean time per output token, in ms; `null` without one.
    pub tpot_limit_ms: Option<f64>,
    /// The answer as `serve` prints it; `null` if nothing serves.
    pub answer: Option<ServingReport>,
    /// The reason why nothing serves.
    pub why: Option<String>,
}

impl ServedCase {
    /// Makes the case of a question, without an answer.
    #[must_use]
    pub fn unanswered(asked: &DeploymentCase) -> Self {
        Self {
            lengths: asked.lengths.clone(),
            ttft_limit_ms: asked.ttft_ms,
            tpot_limit_ms: asked.tpot_ms,
            answer: None,
            why: None,
        }
    }

    /// Returns the lengths in words: `1024 + 256 tokens`.
    #[must_use]
    pub fn length_words(&self) -> String {
        length_words(&self.lengths)
    }

    /// Returns the lengths and limits in words.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = self.length_words();
        let limits = [("first token", self.ttft_limit_ms), ("each next", self.tpot_limit_ms)];
        for (name, limit) in limits {
            words.push_str(&limit.map_or_else(String::new, |limit| format!(", {name} within {limit} ms")));
        }
        words
    }

    /// Returns the cells of the case's row in text and page: lengths, both limits, chip, plan, tokens/s, tokens/s per
    /// device, and both times in ms. Dashes or empty texts replace missing values.
    #[must_use]
    pub fn list_cells(&self) -> [String; 9] {
        let best = self.answer.as_ref().and_then(|answer| answer.choices.first());
        let of = |value: &dyn Fn(&ServingChoice) -> f64| format_or_dash(best.map(value));
        [
            self.length_words(),
            format_or_dash(self.ttft_limit_ms),
            format_or_dash(self.tpot_limit_ms),
            best.map_or_else(|| "none serves".to_owned(), ServingChoice::chip_words),
            best.map_or_else(String::new, ServingChoice::plan_words),
            of(&|best| best.tokens_per_s),
            of(&|best| best.tokens_per_s_per_device),
            of(&|best| best.ttft_ms),
            of(&|best| best.tpot_ms),
        ]
    }

    /// True if both cases have the same lengths and limits.
    #[must_use]
    pub fn asks_the_same(&self, other: &Self) -> bool {
        (&self.lengths, self.ttft_limit_ms, self.tpot_limit_ms)
            == (&other.lengths, other.ttft_limit_ms, other.tpot_limit_ms)
    }
}

/// Returns a number with four significant digits, or a dash if there is none.
#[must_use]
pub fn format_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format_significant(value, 4))
}

/// Describes lengths: `1024 + 256 tokens`. Several classes are joined by `/`.
pub(super) fn length_words(lengths: &[LengthClass]) -> String {
    let each: Vec<String> = lengths.iter().map(|class| format!("{} + {}", class.input, class.output)).collect();
    format!("{} tokens", each.join(" / "))
}
