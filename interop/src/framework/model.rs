//! The model that a framework's file describes.

use serde_json::{Map, Value, json};

/// A built-in model, or a model as a configuration file.
#[derive(Debug, Clone, PartialEq)]
pub enum FrameworkModel {
    /// A built-in model's name.
    BuiltIn(&'static str),
    /// The text of a `config.json`.
    Config(String),
}

/// A `config.json` being written.
pub(super) struct ConfigJson(Map<String, Value>);

impl ConfigJson {
    pub(super) fn of_type(model_type: &str) -> Self {
        Self(Map::from_iter([("model_type".to_owned(), json!(model_type))]))
    }

    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a key if its value is known.
    pub(super) fn with_known(self, key: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    pub(super) fn into_model(self) -> FrameworkModel {
        FrameworkModel::Config(Value::Object(self.0).to_string())
    }
}
