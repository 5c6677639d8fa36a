//! Reads training configurations of frameworks: the model, and the options of `coplace plan` that the file states.
//! Every key is read, noted as not modelled, known to change neither time nor memory, or refused.

mod arguments;
mod bridge;
mod deepspeed;
mod keys;
mod maxtext;
mod megatron;
mod megatron_model;
mod megatron_stages;
mod model;
mod nanotron;
mod nemo;
mod python;
mod run;
mod shell;
mod shell_text;
mod split;
#[cfg(test)]
mod tests;
mod torchtitan;

pub use keys::FrameworkFileError;
pub use model::FrameworkModel;
pub use run::{FrameworkContext, FrameworkRun};

use keys::FrameworkKeys;
use std::collections::BTreeMap;

/// Reads a framework's file: TorchTitan's `.toml`, DeepSpeed's `.json`, MaxText's `.yml` or settings, NeMo's or
/// nanotron's `.yaml`, Megatron Bridge's `.py`, else a script or a list of Megatron-LM's arguments.
///
/// # Errors
/// A text of none of these; a key that is not understood, is missing, or has a value that is not modelled.
pub fn read_framework_file(
    file: &str,
    text: &str,
    context: FrameworkContext<'_>,
) -> Result<FrameworkRun, FrameworkFileError> {
    if text.trim().is_empty() {
        let why = "is empty; give a framework's configuration".to_owned();
        return Err(FrameworkFileError { file: file.to_owned(), key: "the file".to_owned(), why });
    }
    let malformed = |why: String| FrameworkFileError { file: file.to_owned(), key: "the file".to_owned(), why };
    if file.ends_with(".toml") {
        let table: toml::Value = toml::from_str(text).map_err(|e| malformed(format!("is no TOML: {e}; correct it")))?;
        let values = serde_json::to_value(table).map_err(|e| malformed(e.to_string()))?;
        return torchtitan::read(FrameworkKeys::new(file, flatten(&values)), context);
    }
    if file.ends_with(".json") {
        let values = serde_json::from_str(text).map_err(|e| malformed(format!("is no JSON: {e}; correct it")))?;
        return deepspeed::read(FrameworkKeys::new(file, flatten(&values)), context);
    }
    if file.ends_with(".yaml") || file.ends_with(".yml") {
        let tree = serde_yaml_ng::from_str::<serde_json::Value>(text).unwrap_or_default();
        let values = flatten(&tree);
        if nemo::recognises(&values) {
            let run = megatron::read(FrameworkKeys::new(file, nemo::arguments_of(file, &values)?), context)?;
            return Ok(FrameworkRun { framework: "NeMo", ..run });
        }
        if nanotron::recognises(&values) {
            return nanotron::read(FrameworkKeys::new(file, values), &tree, context);
        }
    }
    if file.ends_with(".py") && bridge::recognises(text) {
        return bridge::read(file, text, context);
    }
    let arguments = arguments::read_arguments(text);
    if arguments.contains_key("tensor-model-parallel-size") || arguments.contains_key("num-layers") {
        return megatron::read(FrameworkKeys::new(file, arguments), context);
    }
    for settings in [arguments::settings_of_script(text), maxtext::read_settings(text)] {
        if maxtext::recognises(&settings) {
            return maxtext::read(FrameworkKeys::new(file, settings), context);
        }
    }
    Err(malformed(
        "is no configuration that is known; give Megatron-LM's arguments or script, Megatron Bridge's .py, NeMo's or \
         nanotron's .yaml, MaxText's .yml or KEY=VALUE lines, TorchTitan's .toml or DeepSpeed's .json"
            .to_owned(),
    ))
}

/// Returns the leaves of a tree by their paths, whose parts are joined by dots. A list gives several values; null gives
/// none.
fn flatten(value: &serde_json::Value) -> BTreeMap<String, Vec<String>> {
    fn word(value: &serde_json::Value) -> String {
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }
    fn visit(path: &str, value: &serde_json::Value, found: &mut BTreeMap<String, Vec<String>>) {
        match value {
            serde_json::Value::Object(entries) => {
                for (key, value) in entries {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    visit(&path, value, found);
                }
            }
            serde_json::Value::Array(list) => drop(found.insert(path.to_owned(), list.iter().map(word).collect())),
            serde_json::Value::Null => {}
            value => drop(found.insert(path.to_owned(), vec![word(value)])),
        }
    }
    let mut found = BTreeMap::new();
    visit("", value, &mut found);
    found
}
