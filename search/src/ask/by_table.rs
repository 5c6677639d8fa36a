//! Reads, writes and describes a plan space by the table of decisions.

use super::choices::PlanSpace;
use super::decision::{DECISIONS, Decision, DecisionValues};
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use step::TrainingPlan;

impl PlanSpace {
    /// This space, completed with `other`'s values for the decisions that it leaves open.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        DECISIONS.iter().for_each(|decision| (decision.access.complete)(&mut self, &other));
        self
    }

    /// The space around one plan: every decision has the plan's value, or is open if the plan has none.
    #[must_use]
    pub fn of_plan(plan: &TrainingPlan) -> Self {
        let mut space = Self::default();
        DECISIONS.iter().for_each(|decision| (decision.access.fix)(&mut space, plan));
        space
    }

    /// Describes the space in a sentence.
    #[must_use]
    pub fn phrase(&self) -> String {
        DECISIONS.iter().filter_map(|decision| decision.phrase(self)).collect::<Vec<_>>().join("; ")
    }

    /// The space as command-line options, each with its value. Open decisions are left out.
    #[must_use]
    pub fn options(&self) -> Vec<(&'static Decision, String)> {
        let option = |decision: &'static Decision| {
            let words = (decision.access.get)(self)?;
            Some((decision, words.join(&decision.separator().to_string())))
        };
        DECISIONS.iter().filter_map(option).collect()
    }
}

impl Serialize for PlanSpace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.serialize_entries(&mut map)?;
        map.end()
    }
}

impl PlanSpace {
    /// Writes every decision that is not open as an entry of a map. Numbers and switches keep their types; other values
    /// are texts.
    pub(crate) fn serialize_entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        for decision in &DECISIONS {
            let Some(words) = (decision.access.get)(self) else { continue };
            match decision.values {
                DecisionValues::Numbers(..) => {
                    let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
                    map.serialize_entry(decision.file, &numbers)?;
                }
                DecisionValues::Switch => {
                    let flags: Vec<bool> = words.iter().filter_map(|word| word.parse().ok()).collect();
                    map.serialize_entry(decision.file, &flags)?;
                }
                DecisionValues::Words(_) | DecisionValues::Texts(_) => map.serialize_entry(decision.file, &words)?,
            }
        }
        Ok(())
    }
}

/// The words of a decision's value in a file: one value, or a list of values.
pub(crate) struct Words(pub Vec<String>);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfWords;
        impl<'de> Visitor<'de> for OfWords {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a word, a flag, or a list of them")
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Words, E> {
                Ok(Words(vec![flag.to_string()]))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Words, E> {
                Ok(Words(vec![number.to_string()]))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Words, E> {
                Ok(Words(vec![number.to_string()]))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Words, E> {
                Ok(Words(vec![number.to_string()]))
            }
            fn visit_str<E>(self, word: &str) -> Result<Words, E> {
                Ok(Words(vec![word.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(Words(more)) = list.next_element()? {
                    words.extend(more);
                }
                Ok(Words(words))
            }
        }
        deserializer.deserialize_any(OfWords)
    }
}

/// Reads a file's key as the decision that it names. An unknown key is reported at its own place in the file.
pub(crate) struct OfKey;

impl<'de> DeserializeSeed<'de> for OfKey {
    type Value = &'static Decision;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for OfKey {
    type Value = &'static Decision;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a decision of plans")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Self::Value, E> {
        let known = || DECISIONS.iter().map(|decision| decision.file).collect::<Vec<_>>().join(", ");
        let found = DECISIONS.iter().find(|decision| decision.file == key);
        found.ok_or_else(|| {
            E::custom(format!("unknown field `{key}`: {}", sim::names::hint(key, &known(), "decisions are")))
        })
    }
}

impl<'de> Deserialize<'de> for PlanSpace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfDecisions;
        impl<'de> Visitor<'de> for OfDecisions {
            type Value = PlanSpace;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("values of decisions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PlanSpace, A::Error> {
                let mut space = PlanSpace::default();
                while let Some(decision) = map.next_key_seed(OfKey)? {
                    let Words(words) = map.next_value()?;
                    let set = decision.set(&mut space, &words);
                    set.map_err(|why| de::Error::custom(format!("{}: {why}", decision.file)))?;
                }
                Ok(space)
            }
        }
        deserializer.deserialize_map(OfDecisions)
    }
}
