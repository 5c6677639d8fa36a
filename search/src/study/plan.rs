//! Reads the table `[plan]` of a study: the software, and the plans to try on each chip.

use crate::ask::{DECISIONS, Decision, DecisionValues, OfKey, PlanSpace, Splits, Words};
use crate::planner::USUAL_FIT;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, DeserializeSeed, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use workloads::footprint::Optimizer;
use workloads::training::Attention;

/// The plans to try on each chip, and the software that runs them. A decision that is left out takes every value that
/// obeys the rules.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanSpec {
    /// The software stack: the name of a built-in one, or a file's path. `ideal` if it is left out.
    pub stack: String,
    /// How attention is computed.
    pub attention: Attention,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The least chance that a plan's peak memory fits. At 0.5 or less the predicted peak may fill the memory.
    pub fit: f64,
    /// The plans to choose from. If the study does not say otherwise, layers get the fastest split.
    pub choices: PlanSpace,
}

/// A key of the table `[plan]`.
enum PlanKey {
    Stack,
    Attention,
    Optimizer,
    Fit,
    Of(&'static Decision),
}

/// Reads a key. An unknown key is reported at its own place in the file.
struct ReadKey;

impl<'de> DeserializeSeed<'de> for ReadKey {
    type Value = PlanKey;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<PlanKey, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for ReadKey {
    type Value = PlanKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key of [plan]")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<PlanKey, E> {
        match key {
            "stack" => Ok(PlanKey::Stack),
            "attention" => Ok(PlanKey::Attention),
            "optimizer" => Ok(PlanKey::Optimizer),
            "fit" => Ok(PlanKey::Fit),
            _ => OfKey.visit_str(key).map(PlanKey::Of),
        }
    }
}

impl<'de> Deserialize<'de> for PlanSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ReadPlans)
    }
}

/// Reads the table.
struct ReadPlans;

impl<'de> Visitor<'de> for ReadPlans {
    type Value = PlanSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of software and plans")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PlanSpec, A::Error> {
        let (mut stack, mut attention, mut optimizer, mut fit) = (None, None, None, USUAL_FIT);
        let mut choices = PlanSpace::default();
        while let Some(key) = map.next_key_seed(ReadKey)? {
            match key {
                PlanKey::Stack => stack = Some(map.next_value()?),
                PlanKey::Attention => attention = Some(map.next_value()?),
                PlanKey::Optimizer => optimizer = Some(map.next_value()?),
                PlanKey::Fit => fit = map.next_value()?,
                PlanKey::Of(decision) => {
                    let Words(words) = map.next_value()?;
                    let set = decision.set(&mut choices, &words);
                    set.map_err(|why| de::Error::custom(format!("plan.{}: {why}", decision.file)))?;
                }
            }
        }
        choices.splits.get_or_insert(Splits::Best);
        Ok(PlanSpec {
            stack: stack.unwrap_or_else(|| "ideal".to_owned()),
            attention: attention.ok_or_else(|| de::Error::missing_field("attention"))?,
            optimizer: optimizer.ok_or_else(|| de::Error::missing_field("optimizer"))?,
            fit,
            choices,
        })
    }
}

impl JsonSchema for PlanSpec {
    fn schema_name() -> Cow<'static, str> {
        "PlanSpec".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let word =
            |doc: &str, words: &[&str]| serde_json::json!({ "type": "string", "enum": words, "description": doc });
        let stack = "The software stack: a built-in one's name or a file's path; ideal where it is left out.";
        let mut properties = serde_json::Map::from_iter([
            ("stack".to_owned(), serde_json::json!({ "type": "string", "default": "ideal", "description": stack })),
            ("attention".to_owned(), word("How attention is computed.", &["fused", "unfused"])),
            (
                "optimizer".to_owned(),
                word("The optimizer.", &["sgd", "momentum", "adam", "adafactor", "adam8bit", "muon"]),
            ),
            ("fit".to_owned(), schema_of_fit()),
        ]);
        properties.extend(DECISIONS.iter().map(|decision| (decision.file.to_owned(), schema_of(decision))));
        json_schema!({
            "type": "object",
            "description": "The plans that each chip is tried with, and the software that runs them.",
            "properties": properties,
            "required": ["attention", "optimizer"],
            "additionalProperties": false,
        })
    }
}

fn schema_of_fit() -> serde_json::Value {
    serde_json::json!({
        "type": "number",
        "exclusiveMinimum": 0,
        "exclusiveMaximum": 1,
        "default": USUAL_FIT,
        "description": "The least chance that a plan's peak memory fits; at 0.5 the predicted peak may fill it.",
    })
}

/// The schema of a decision's values: one value or a list.
fn schema_of(decision: &Decision) -> serde_json::Value {
    let value = match decision.values {
        DecisionValues::Numbers(least, most) => {
            serde_json::json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        DecisionValues::Words(words) => {
            let names: Vec<&str> = words().into_iter().map(|(name, _)| name).collect();
            serde_json::json!({ "type": "string", "enum": names })
        }
        DecisionValues::Switch => serde_json::json!({ "type": "boolean" }),
        DecisionValues::Texts(_) => serde_json::json!({ "type": "string" }),
    };
    serde_json::json!({
        "description": decision.doc,
        "anyOf": [value, { "type": "array", "minItems": 1, "items": value }],
    })
}
