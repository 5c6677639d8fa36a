//! Numbers in presets: a literal, the name of a parameter or of a quantity of the model, or a formula of these.

use crate::lowering::Lowering;
use crate::model::Model;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A number as a preset's file states it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PresetAmount {
    /// A literal.
    Number(f64),
    /// A name, or a formula of names and numbers. Its operators, from the loosest to the tightest, are ` - `, `//`
    /// (quotient rounded down), `/` (quotient rounded up, at least 1) and `*`. So `a/b*c` means `a/(b*c)`. `log2(name)`
    /// is rounded up.
    Name(String),
}

/// Quantities of the model and the run that presets may name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrainingQuantities(BTreeMap<&'static str, f64>);

impl TrainingQuantities {
    /// Reads the quantities from a model and its lowering. Widths are those of the whole model, whatever the
    /// tensor-parallel degree.
    #[must_use]
    pub fn new(model: &Model, lowering: &Lowering) -> Self {
        let all = [
            ("hidden", model.hidden),
            ("ffn", model.ffn),
            ("vocabulary", model.vocabulary),
            ("sequence", lowering.sequence_length),
            ("heads", model.heads),
            ("layers", model.layers),
            ("experts", model.experts.map_or(0, |e| e.count)),
        ];
        Self(all.into_iter().map(|(name, value)| (name, value as f64)).collect())
    }

    /// Returns the value of the quantity `name`, or `None`.
    #[must_use]
    pub fn find_by_name(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

impl fmt::Display for PresetAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(text) => f.write_str(text),
        }
    }
}

impl PresetAmount {
    /// Evaluates the number. `named` returns the value of a name. Quotients by `/` are rounded up and at least 1.
    ///
    /// # Errors
    /// The first name that `named` does not know.
    pub(crate) fn evaluate_with(&self, named: &impl Fn(&str) -> Option<f64>) -> Result<f64, String> {
        let text = match self {
            Self::Number(number) => return Ok(*number),
            Self::Name(text) => text,
        };
        evaluate_text(text, named)
    }
}

/// Evaluates a formula of names and numbers.
fn evaluate_text(text: &str, named: &impl Fn(&str) -> Option<f64>) -> Result<f64, String> {
    let one = |text: &str| evaluate_text(text, named);
    if let Some((from, less)) = text.rsplit_once(" - ") {
        return Ok(one(from)? - one(less)?);
    }
    if let Some((above, below)) = text.split_once("//") {
        return Ok((one(above)? / one(below)?).floor());
    }
    if let Some((above, below)) = text.split_once('/') {
        return Ok((one(above)? / one(below)?).ceil().max(1.0));
    }
    if let Some((left, right)) = text.split_once('*') {
        return Ok(one(left)? * one(right)?);
    }
    if let Some(of) = text.trim().strip_prefix("log2(").and_then(|rest| rest.strip_suffix(')')) {
        return Ok(one(of)?.log2().ceil().max(0.0));
    }
    let name = text.trim();
    name.parse::<f64>().ok().or_else(|| named(name)).ok_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn quotients_round_up_and_unknown_names_are_named() {
        let named = |name: &str| {
            [("vocabulary", 32_001.0), ("hidden", 4096.0)].into_iter().find(|(n, _)| *n == name).map(|(_, v)| v)
        };
        let of = |text: &str| PresetAmount::Name(text.to_owned()).evaluate_with(&named);
        assert_eq!(of("vocabulary / hidden").unwrap(), 8.0);
        assert_eq!(of("hidden * 0.25").unwrap(), 1024.0);
        assert_eq!(of("hidden / vocabulary").unwrap(), 1.0);
        assert_eq!(of("width").unwrap_err(), "width");
    }
}
