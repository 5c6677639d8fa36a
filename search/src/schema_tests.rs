#![allow(clippy::unwrap_used)]
use super::*;
use serde_json::Value;
use std::collections::BTreeSet;

/// Validates a value against the schema, with the keywords that the schema uses. An unknown keyword is an error.
struct Validator {
    root: Value,
}

impl Validator {
    fn new() -> Self {
        Self { root: schema() }
    }

    fn check(&self, text: &str) -> Result<(), String> {
        let study = serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap();
        self.obeys(&self.root, &study, "study")
    }

    fn obeys(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let Value::Object(schema) = schema else {
            return if *schema == Value::Bool(false) { Err(format!("{at}: not allowed")) } else { Ok(()) };
        };
        for (keyword, rule) in schema {
            let fault = || Err(format!("{at} = {value}: {keyword} {rule}"));
            let holds = match keyword.as_str() {
                "$ref" => {
                    let path = rule.as_str().unwrap().strip_prefix('#').unwrap();
                    self.obeys(self.root.pointer(path).unwrap(), value, at)?;
                    true
                }
                "type" => match rule {
                    Value::Array(types) => types.iter().any(|one| is(value, one)),
                    one => is(value, one),
                },
                "properties" => {
                    for (key, inner) in value.as_object().into_iter().flatten() {
                        if let Some(schema) = rule.get(key) {
                            self.obeys(schema, inner, &format!("{at}.{key}"))?;
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    let known = |key: &str| schema.get("properties").is_some_and(|known| known.get(key).is_some());
                    for (key, inner) in value.as_object().into_iter().flatten().filter(|(key, _)| !known(key)) {
                        self.obeys(rule, inner, &format!("{at}.{key}"))?;
                    }
                    true
                }
                "required" => {
                    let there = |key: &Value| value.get(key.as_str().unwrap()).is_some();
                    !value.is_object() || rule.as_array().unwrap().iter().all(there)
                }
                "items" => {
                    for inner in value.as_array().into_iter().flatten() {
                        self.obeys(rule, inner, &format!("{at}[]"))?;
                    }
                    true
                }
                "anyOf" => rule.as_array().unwrap().iter().any(|one| self.obeys(one, value, at).is_ok()),
                "oneOf" => {
                    rule.as_array().unwrap().iter().filter(|one| self.obeys(one, value, at).is_ok()).count() == 1
                }
                "not" => self.obeys(rule, value, at).is_err(),
                "enum" => rule.as_array().unwrap().contains(value),
                "const" => rule == value,
                "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= rule.as_u64().unwrap()),
                "minProperties" => value.as_object().is_none_or(|map| map.len() as u64 >= rule.as_u64().unwrap()),
                "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
                "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
                "exclusiveMinimum" => value.as_f64().is_none_or(|number| number > rule.as_f64().unwrap()),
                "exclusiveMaximum" => value.as_f64().is_none_or(|number| number < rule.as_f64().unwrap()),
                "$schema" | "$defs" | "title" | "description" | "default" | "format" => true,
                _ => return Err(format!("the schema has the keyword {keyword}, which this test does not know")),
            };
            if !holds {
                return fault();
            }
        }
        Ok(())
    }
}

/// True if a value has one of JSON Schema's types.
fn is(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}

#[test]
fn the_built_in_studies_and_the_template_obey_the_schema() {
    let validator = Validator::new();
    for name in Study::names() {
        validator.check(Study::text(&name).unwrap()).unwrap();
    }
    validator.check(TEMPLATE).unwrap();
    let study = Study::parse("template", TEMPLATE).unwrap();
    assert_eq!(study.cluster.devices, 64);
}

#[test]
fn what_no_study_may_say_is_refused_by_the_schema_too() {
    let validator = Validator::new();
    let with = |from: &str, to: &str| {
        assert!(TEMPLATE.contains(from), "{from}");
        TEMPLATE.replacen(from, to, 1)
    };
    for (wrong, why) in [
        (with("devices = 64", "device = 64"), "an unknown key"),
        (with("devices = 64", ""), "a missing key"),
        (with("devices = 64", "devices = \"64\""), "a word for a number"),
        (with("devices = 64", "devices = -1"), "a number below none"),
        (with("fit = 0.9", "fit = 1.0"), "a chance that is none"),
        (with("optimizer = \"adam\"", "optimizer = \"adams\""), "an unknown word"),
        (with("links = [6, 12]", "links = []"), "an empty list"),
        (with("links = [6, 12]", "links = { from = 6, to = 12 }"), "a range without a step"),
        (with("links = [6, 12]", "links = { from = 6, to = 12, step = 1, factor = 2 }"), "a range with two"),
        (with("description =", "descriptions ="), "an unknown key at the root"),
        (with("links = [6, 12]", "links = { by = \"tensor.cores\" }"), "a look-up of nothing"),
        (with("links = [6, 12]", "links = { by = \"tensor.cores\", values = { 1 = [6] } }"), "a look-up of lists"),
    ] {
        assert!(validator.check(&wrong).is_err(), "the schema takes {why}");
        assert!(Study::parse("s.toml", &wrong).is_err(), "a study may have {why}");
    }
    // Studies that both accept.
    for right in [
        with("links = [6, 12]", "links = 6"),
        with("links = [6, 12]", "\"links\" = { from = 6, to = 12, step = 6 }"),
        with("hbm_stacks = [2, 4, 6]", "hbm_stacks = [2.5, 4]"),
        with("links = [6, 12]", "links = { by = \"tensor.cores\", values = { 1 = 6, 2 = 12 } }"),
        with("\"tensor.cores\" = [1, 2]", "tensor.cores = [1, 2]"),
    ] {
        validator.check(&right).unwrap();
        Study::parse("s.toml", &right).unwrap();
    }
}

/// The keys of a schema's objects, including those of definitions.
fn keys(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Object(properties)) = map.get("properties") {
                for (key, value) in properties {
                    assert!(explained(value), "{key} has no description");
                    found.insert(key.clone());
                }
            }
            map.values().for_each(|value| keys(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

fn explained(value: &Value) -> bool {
    value.get("description").is_some() || value.get("$ref").is_some()
}

#[test]
fn every_key_has_a_description_and_stands_in_the_template() {
    let mut found = BTreeSet::new();
    keys(&schema(), &mut found);
    assert!(found.len() > 30, "{found:?}");
    for key in found {
        let there = |line: &str| {
            let line = line.trim_start_matches("# ");
            line.starts_with(&format!("{key} = "))
                || line == format!("[{key}]")
                || line == format!("[[{key}]]")
                || line.ends_with(&format!(".{key}]"))
        };
        let in_range = ["from", "to", "step", "factor", "by", "values"].contains(&key.as_str())
            && TEMPLATE.contains(&format!("{key} = "));
        assert!(in_range || TEMPLATE.lines().any(there), "{key} is not in the template");
    }
}
