//! Errors of workloads. Every message names the cure and, if they apply, the file, the key, the value and the limit.

use sim::files::{FaultParts, StructuredError};
use sim::names::find_beginning;
pub(crate) use sim::names::{find_mistyped, find_nearest};
use thiserror::Error;

/// An error in a user's input: an unreadable or invalid model file, or a setting that the model does not allow. The
/// message is one line and says how to correct the input.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WorkloadError {
    /// The file cannot be read.
    #[error("{file}: cannot be read ({reason}): give the path of a readable config.json")]
    Unreadable {
        /// The file.
        file: String,
        /// The operating system's reason.
        reason: String,
    },
    /// The file is not JSON.
    #[error("{file}, line {line}: not valid JSON ({reason}){at}: {cure}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The parser's reason.
        reason: String,
        /// The text of that line after a comma; empty at the end of the file.
        at: String,
        /// The cure.
        cure: String,
    },
    /// A key occurs twice in the file.
    #[error(
        "{file}: key `{key}` is given more than once (the limit is once): keep the value that is meant and delete the \
         others"
    )]
    DuplicateKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// A key that the importer needs is missing.
    #[error(
        "{file}: key `{key}` is missing, and {needed_by} needs it: add `\"{key}\": {example}` with the model's \
        own value"
    )]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// The user of the key, such as "a model of type `gpt2`".
        needed_by: String,
        /// A valid value.
        example: String,
    },
    /// The model's family has no such key.
    #[error("{file}: unknown key `{key}` (value {value}) for a model of type `{family}`: {cure}")]
    UnknownKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The `model_type`.
        family: String,
        /// The key that was probably meant, or another cure.
        cure: String,
    },
    /// A value is out of range.
    #[error("{file}: key `{key}` is {value}, but must be {limit}: {cure}")]
    BadValue {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The allowed range.
        limit: String,
        /// The cure.
        cure: String,
    },
    /// The name is neither a built-in model nor a file.
    #[error("unknown model `{name}`: neither a built-in model nor a file; {cure}")]
    UnknownModel {
        /// The requested name.
        name: String,
        /// The existing names.
        cure: String,
    },
    /// An invalid recomputation policy, or an unknown name in one.
    #[error("recompute {what} `{name}`: {cure}")]
    BadRecompute {
        /// The kind of the invalid text: `policy`, `tensor` or `place`.
        what: &'static str,
        /// The given text.
        name: String,
        /// The nearest name, and all names.
        cure: String,
    },
    /// The model does not allow a setting of the training run.
    #[error("{model}: {setting} is {value}, but must be {limit}: {cure}")]
    BadLowering {
        /// The model.
        model: String,
        /// The setting.
        setting: String,
        /// Its value.
        value: String,
        /// The allowed range.
        limit: String,
        /// The cure.
        cure: String,
    },
}

impl StructuredError for WorkloadError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Unreadable { file, reason } => {
                let limit = format!("cannot be read ({reason})");
                FaultParts::of_file(file, limit, "give the path of a readable config.json")
            }
            Self::Syntax { file, line, reason, cure, .. } => {
                FaultParts::of_file(file, format!("line {line}: not valid JSON ({reason})"), cure)
            }
            Self::DuplicateKey { file, key } => {
                let cure = "keep the value that is meant and delete the others";
                FaultParts::of_key(key, "", "is given more than once", cure).in_file(file)
            }
            Self::MissingKey { file, key, needed_by, example } => {
                let cure = format!("add `\"{key}\": {example}` with the model's own value");
                FaultParts::of_key(key, "", format!("is missing, and {needed_by} needs it"), cure).in_file(file)
            }
            Self::UnknownKey { file, key, value, family, cure } => {
                let limit = format!("is no key of a model of type `{family}`");
                FaultParts::of_key(key, value, limit, cure).in_file(file)
            }
            Self::BadValue { file, key, value, limit, cure } => {
                FaultParts::of_key(key, value, format!("must be {limit}"), cure).in_file(file)
            }
            Self::UnknownModel { name, cure } => {
                FaultParts::of_key("model", name, "is neither a built-in model nor a file", cure)
            }
            Self::BadRecompute { what, name, cure } => {
                FaultParts::of_key("recompute", name, format!("is no {what} of recomputation"), cure)
            }
            Self::BadLowering { setting, value, limit, cure, .. } => {
                FaultParts::of_key(setting, value, format!("must be {limit}"), cure)
            }
        }
    }
}

impl WorkloadError {
    /// Returns the error for a name that is neither a built-in model nor a file. Its cure lists all `known` names, the
    /// nearest one first.
    pub(crate) fn unknown_model<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.collect();
        let list = known.join(", ");
        let near = find_nearest(name, known.iter().copied()).or_else(|| find_beginning(name, known.iter().copied()));
        let cure = match near {
            Some(near) => format!("did you mean `{near}`? Built in: {list}; or give the path of a config.json"),
            None => format!("use a built-in one ({list}) or give the path of a config.json"),
        };
        Self::UnknownModel { name: name.to_owned(), cure }
    }
}
