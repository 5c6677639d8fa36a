//! Of which question, space and part a store is: what a sweep is held against before it goes on.

use crate::record::StudyRecord;
use search::shard::Shard;
use search::space::ListedDimension;
use serde::{Deserialize, Serialize};
use sim::hardware::FieldValue;

/// Of which question, space and part a store is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepFacts {
    /// The version of coplace.
    pub coplace: String,
    /// Digest of all that was asked.
    pub question: String,
    /// The words of the command that ask it again, after the verb.
    pub asked_with: Vec<String>,
    /// What was asked.
    pub study: StudyRecord,
    /// Combinations of the whole sweep.
    pub combinations: u64,
    /// The dimensions that have columns of their own, with their values; the first changes least often.
    pub dimensions: Vec<SweptDimension>,
    /// The part, and parts in all.
    pub part: u32,
    /// Parts in all.
    pub parts: u32,
}

/// A dimension of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweptDimension {
    /// Its key.
    pub key: String,
    /// Its values: numbers, words or flags.
    pub values: Vec<serde_json::Value>,
    /// Whether exports have a column of it.
    pub column: bool,
}

impl SweepFacts {
    /// The part.
    #[must_use]
    pub fn shard(&self) -> Shard {
        Shard { part: self.part, of: self.parts }
    }

    /// In what a store differs from what is asked.
    pub(crate) fn difference_from(&self, asked: &Self) -> Option<String> {
        let (own, other) = (&self.study, &asked.study);
        let pairs = [
            ("model", &own.model, &other.model),
            ("study", &own.name, &other.name),
            ("fabric", &own.fabric, &other.fabric),
            ("stack", &own.stack, &other.stack),
            ("objective", &own.objective, &other.objective),
            ("question", &self.question, &asked.question),
        ];
        if let Some((what, found, _)) = pairs.into_iter().find(|(_, found, asked)| found != asked) {
            return Some(format!("{what} {found}"));
        }
        if self.shard() != asked.shard() {
            return Some(format!("part {} of its designs", self.shard()));
        }
        let same_words = Self { asked_with: asked.asked_with.clone(), ..self.clone() };
        (same_words != *asked).then(|| "its facts differ".to_owned())
    }

    /// Whether two are of the same sweep and part.
    #[must_use]
    pub fn is_same_part(&self, asked: &Self) -> bool {
        self.difference_from(asked).is_none()
    }

    /// Combinations of the part.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.shard().size_of(self.combinations)
    }
}

impl SweptDimension {
    /// The dimension as a space has it.
    #[must_use]
    pub fn to_dial(&self) -> ListedDimension {
        let setting = |value: &serde_json::Value| match value {
            serde_json::Value::Bool(flag) => FieldValue::Flag(*flag),
            serde_json::Value::String(word) => FieldValue::Word(word.clone()),
            other => FieldValue::Number(other.as_f64().unwrap_or(f64::NAN)),
        };
        ListedDimension { key: self.key.clone(), values: self.values.iter().map(setting).collect() }
    }

    /// A dimension of a space; `column` says whether exports have a column of it.
    #[must_use]
    pub fn of_dimension(dial: &ListedDimension, column: bool) -> Self {
        let value = |setting: &FieldValue| match setting {
            FieldValue::Number(number) => serde_json::Value::from(*number),
            FieldValue::Flag(flag) => serde_json::Value::from(*flag),
            FieldValue::Word(word) => serde_json::Value::from(word.clone()),
        };
        Self { key: dial.key.clone(), values: dial.values.iter().map(value).collect(), column }
    }
}
