//! The tools of a server: the verbs, with input schemas from the command's table of options.

use super::access::{FolderAccess, SUBMITTING};
use crate::arguments;
use clap::{Arg, Command};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use search::ask::{DECISIONS, DecisionValues};
use serde_json::{Value, json};

/// The name of the tool that shows more of an answer.
pub const DETAILS: &str = "details";

/// Returns the tools of a server.
pub fn list_tools(access: &FolderAccess) -> Vec<Tool> {
    arguments::callable_verbs().map(|verb| tool_of_verb(verb, access)).chain([details_tool()]).collect()
}

/// Returns a verb as a tool.
fn tool_of_verb(verb: &'static Command, access: &FolderAccess) -> Tool {
    let offered = |argument: &&'static Arg| {
        argument.get_long() != Some(SUBMITTING) && !(access.is_read_only() && arguments::is_written(argument))
    };
    let (mut properties, mut required) = (JsonObject::new(), Vec::new());
    let mut writes = false;
    for argument in arguments::arguments_of(verb).filter(offered) {
        let name = arguments::name_of_argument(argument);
        let is_written = arguments::is_written(argument);
        writes |= is_written;
        // The server's own directory takes the place of a path that is required.
        if argument.is_required_set() && !is_written {
            required.push(name.clone());
        }
        properties.insert(name, schema_of_argument(argument));
    }
    let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
    with_hints(Tool::new(verb.get_name(), about, object_schema(properties, &required)), !writes)
}

fn details_tool() -> Tool {
    let text = |about: &str| json!({ "type": "string", "description": about });
    let flag = |about: &str| json!({ "type": "boolean", "description": about });
    let properties = [
        ("answer", text("The name of an answer, such as answer-3")),
        ("path", text("A part of the record: keys and numbers joined by dots, such as plans.0.step_s")),
        ("text", flag("The whole text for people instead of the record")),
        ("whole", flag("All of a long record, which is outlined otherwise")),
    ];
    let properties = properties.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    let about =
        "More of an answer: its whole record as JSON (docs/json.md describes the keys), a part of it, or its text";
    with_hints(Tool::new(DETAILS, about, object_schema(properties, &["answer".to_owned()])), true)
}

fn with_hints(tool: Tool, is_read_only: bool) -> Tool {
    tool.with_annotations(ToolAnnotations::from_raw(None, Some(is_read_only), Some(false), Some(true), Some(false)))
}

fn object_schema(properties: JsonObject, required: &[String]) -> JsonObject {
    let mut schema = JsonObject::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties.into());
    schema.insert("required".to_owned(), required.into());
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

/// Returns the schema of an argument's values, with its help and default.
fn schema_of_argument(argument: &Arg) -> Value {
    let one = schema_of_value(argument);
    let mut schema = if arguments::is_multiple(argument) {
        json!({ "anyOf": [one, { "type": "array", "items": one }] })
    } else {
        one
    };
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let usual: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let usual = if usual.is_empty() { String::new() } else { format!(" [default: {}]", usual.join(" ")) };
    schema["description"] = format!("{help}{usual}").into();
    schema
}

/// Returns the schema of one value. The table of decisions says which numbers a degree may have.
fn schema_of_value(argument: &Arg) -> Value {
    let decided = DECISIONS.iter().find(|decision| argument.get_long() == Some(decision.flag));
    if let Some(DecisionValues::Numbers(least, most)) = decided.map(|decision| decision.values) {
        return json!({ "type": "integer", "minimum": least, "maximum": most });
    }
    let choices = arguments::choices_of(argument);
    match arguments::kind_of_argument(argument) {
        "flag" => json!({ "type": "boolean" }),
        "int" => json!({ "type": "integer" }),
        "float" => json!({ "type": "number" }),
        _ if !choices.is_empty() => json!({ "type": "string", "enum": choices }),
        "scalar" => json!({ "type": ["string", "number"] }),
        _ => json!({ "type": "string" }),
    }
}
