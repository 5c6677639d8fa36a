//! Numbers in presets: written out, or by the name of a parameter or of a quantity of the model, or a quotient of two.

use crate::lowering::Lowering;
use crate::model::Model;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A number as a preset writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PresetAmount {
    /// The number.
    Number(f64),
    /// A name, `name / name` (rounded up), or `name * number`.
    Name(String),
}

/// Quantities of what is trained that presets may name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrainingQuantities(BTreeMap<&'static str, f64>);

impl TrainingQuantities {
    /// Of a model in a training run. Widths are whole ones, whatever the tensor-parallel degree.
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

    /// The value of a name.
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
    /// Its value, where `named` knows the names. A quotient is rounded up to a whole number, and is 1 at least.
    pub(crate) fn evaluate_with(&self, named: &impl Fn(&str) -> Option<f64>) -> Result<f64, String> {
        let text = match self {
            Self::Number(number) => return Ok(*number),
            Self::Name(text) => text,
        };
        let one = |name: &str| {
            let name = name.trim();
            name.parse::<f64>().ok().or_else(|| named(name)).ok_or_else(|| name.to_owned())
        };
        if let Some((above, below)) = text.split_once('/') {
            return Ok((one(above)? / one(below)?).ceil().max(1.0));
        }
        if let Some((left, right)) = text.split_once('*') {
            return Ok(one(left)? * one(right)?);
        }
        if let Some(of) = text.trim().strip_prefix("log2(").and_then(|rest| rest.strip_suffix(')')) {
            return Ok(one(of)?.log2().ceil().max(0.0));
        }
        one(text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn quotients_round_up_and_unknown_names_are_named() {
        let named =
            |name: &str| [("vocabulary", 32_001.0), ("hidden", 4096.0)].into_iter().find(|(n, _)| *n == name).map(|(_, v)| v);
        let of = |text: &str| PresetAmount::Name(text.to_owned()).evaluate_with(&named);
        assert_eq!(of("vocabulary / hidden").unwrap(), 8.0);
        assert_eq!(of("hidden * 0.25").unwrap(), 1024.0);
        assert_eq!(of("hidden / vocabulary").unwrap(), 1.0);
        assert_eq!(of("width").unwrap_err(), "width");
    }
}
