//! The question, the space and the part of a store. A resumed sweep must have the same.

use crate::run::record::StudyRecord;
use search::ask::Question;
use search::shard::Shard;
use search::space::ListedDimension;
use serde::{Deserialize, Serialize};
use sim::hardware::FieldValue;

/// The question, the space and the part of a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepFacts {
    /// The version of coplace.
    pub coplace: String,
    /// Digest of the whole question.
    pub question: String,
    /// The question as a value.
    pub asked: Question,
    /// The study, as a record states it.
    pub study: StudyRecord,
    /// Combinations of the whole sweep.
    pub combinations: u64,
    /// The listed dimensions and their values. The first dimension changes least often.
    pub dimensions: Vec<SweptDimension>,
    /// The number of the part, from 1.
    pub part: u32,
    /// Number of parts.
    pub parts: u32,
}

/// A dimension of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweptDimension {
    /// The key.
    pub key: String,
    /// The values: numbers, words or flags.
    pub values: Vec<serde_json::Value>,
    /// True if exports have a column for it.
    pub column: bool,
}

impl SweepFacts {
    /// Returns the part as a shard.
    #[must_use]
    pub fn shard(&self) -> Shard {
        Shard { part: self.part, of: self.parts }
    }

    /// Describes the first difference between the store's facts and those asked for; `None` if they agree.
    pub(crate) fn difference_from(&self, asked: &Self) -> Option<String> {
        if self.question != asked.question {
            let difference = self.asked.difference_from(&asked.asked);
            return Some(difference.unwrap_or_else(|| format!("question {}", self.question)));
        }
        if self.shard() != asked.shard() {
            return Some(format!("part {} of its designs", self.shard()));
        }
        // Names and paths of the same question may be spelled differently, so that they are not compared.
        let own = (&self.coplace, self.combinations, &self.dimensions);
        (own != (&asked.coplace, asked.combinations, &asked.dimensions)).then(|| "its facts differ".to_owned())
    }

    /// True if both belong to the same sweep and part.
    #[must_use]
    pub fn is_same_part(&self, asked: &Self) -> bool {
        self.difference_from(asked).is_none()
    }

    /// Returns the number of combinations of the part.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.shard().size_of(self.combinations)
    }
}

impl SweptDimension {
    /// Converts the dimension to the type that spaces use.
    #[must_use]
    pub fn to_dial(&self) -> ListedDimension {
        let setting = |value: &serde_json::Value| match value {
            serde_json::Value::Bool(flag) => FieldValue::Flag(*flag),
            serde_json::Value::String(word) => FieldValue::Word(word.clone()),
            other => FieldValue::Number(other.as_f64().unwrap_or(f64::NAN)),
        };
        ListedDimension { key: self.key.clone(), values: self.values.iter().map(setting).collect() }
    }

    /// Makes the dimension of a sweep from that of a space. `column` is true if exports have a column for it.
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
