//! The JSON Schema of a study's dimensions and constants.

use schemars::{Schema, SchemaGenerator, json_schema};

/// The schema of a table of dimensions: any keys, which may be dotted or nested tables.
pub(super) fn dimensions_schema(_: &mut SchemaGenerator) -> Schema {
    let number = "a number, a word or a flag";
    json_schema!({
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {
            "description": "Values: a list, a range, an expression of other dimensions, or a look-up by one",
            "anyOf": [
                { "type": ["number", "boolean"], "description": number },
                { "type": "string", "description": "An expression of other dimensions, or a word" },
                { "type": "array", "minItems": 1, "items": { "anyOf": [
                    { "type": ["number", "boolean", "string"], "description": number },
                    { "type": "array", "minItems": 2, "items": { "type": "integer", "minimum": 1 }, "description": "Sides of a torus, as `4x4x8`" },
                ] } },
                range_schema("step", "Increment, up to `to`"),
                range_schema("factor", "Factor, up to `to`; above 1"),
                look_up_schema(number),
                { "type": "object", "not": { "anyOf": [{ "required": ["from"] }, { "required": ["to"] }, { "required": ["by"] }, { "required": ["values"] }] }, "description": "Dimensions whose keys begin with this one" },
            ],
        },
    })
}

fn look_up_schema(value: &str) -> serde_json::Value {
    let value = serde_json::json!({ "type": ["number", "boolean", "string"], "description": value });
    serde_json::json!({
        "type": "object",
        "properties": {
            "by": { "type": "string", "description": "The dimension, or field of the base, whose value decides" },
            "values": { "type": "object", "minProperties": 1, "additionalProperties": value, "description": "The result for each of its values" },
        },
        "required": ["by", "values"],
        "additionalProperties": false,
    })
}

fn range_schema(by: &str, meaning: &str) -> serde_json::Value {
    let number = |meaning: &str| serde_json::json!({ "type": "number", "description": meaning });
    let properties =
        serde_json::json!({ "from": number("The first value"), "to": number("The last value"), by: number(meaning) });
    serde_json::json!({ "type": "object", "properties": properties, "required": ["from", "to", by], "additionalProperties": false })
}

/// The JSON Schema of changed constants: numbers by key. Keys may be dotted or nested tables.
pub fn constants_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "description": "A constant's value, or a table of those whose keys begin with this one",
            "type": ["number", "object"],
        },
    })
}
