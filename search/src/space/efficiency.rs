//! The efficiency that the chips of a space are assumed to reach.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far the chips of a space get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EfficiencyChoice {
    /// Every peak is reached, and launches are free.
    Ideal,
    /// As far as chips of their family were measured to get (`coplace list constants`: `efficiency`).
    #[default]
    Family,
    /// As far as the base chip, by its fitted scalars.
    Base,
}

impl EfficiencyChoice {
    /// All choices with their words.
    pub const NAMES: [(&'static str, Self); 3] =
        [("ideal", Self::Ideal), ("family", Self::Family), ("base", Self::Base)];

    /// Its word in studies, options and records.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::NAMES.iter().find(|(_, choice)| *choice == self).map_or("", |(word, _)| word)
    }
}
