//! Errors of techniques. A message names the technique or its file, the fault and, if there is one, the cure.

use sim::files::{FaultParts, StructuredError};
use thiserror::Error;

/// An invalid technique, or an invalid use of one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TechniqueError {
    /// The file cannot be read.
    #[error("{file}: cannot be read ({why}): give the path of a readable preset")]
    Unreadable {
        /// The file.
        file: String,
        /// The operating system's reason.
        why: String,
    },
    /// The file is not a valid preset.
    #[error("{file}: {why}")]
    Malformed {
        /// The file.
        file: String,
        /// The fault.
        why: String,
    },
    /// The technique does not exist.
    #[error("technique {name}: no such technique; {hint}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The nearest name, or all names.
        hint: String,
    },
    /// The text does not have the form `name,key=value`.
    #[error("technique {text}: `{part}` is not a parameter; write NAME,key=value, such as galore,rank=256")]
    Form {
        /// The given text.
        text: String,
        /// The invalid part.
        part: String,
    },
    /// The technique has no such parameter.
    #[error("technique {technique}: has no parameter `{key}`; {cure}")]
    NoParameter {
        /// The technique.
        technique: String,
        /// The given parameter.
        key: String,
        /// The nearest parameter, or all of them.
        cure: String,
    },
    /// A parameter's value is out of range.
    #[error("technique {technique}: {key} = {value}: must be {limit}; it is {meaning}")]
    Value {
        /// The technique.
        technique: String,
        /// The parameter.
        key: String,
        /// The given value.
        value: String,
        /// The allowed range.
        limit: String,
        /// The parameter's meaning.
        meaning: String,
    },
    /// The technique cannot be used this way.
    #[error("technique {technique}: {why}; {cure}")]
    Refused {
        /// The technique, or the pair of techniques.
        technique: String,
        /// The reason.
        why: String,
        /// The cure.
        cure: String,
    },
}

impl StructuredError for TechniqueError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Unreadable { file, why } => {
                FaultParts::of_file(file, format!("cannot be read ({why})"), "give the path of a readable preset")
            }
            Self::Malformed { file, why } => FaultParts::of_file(file, why, ""),
            Self::Unknown { name, hint } => FaultParts::of_key("technique", name, "no such technique", hint),
            Self::Form { text, part } => FaultParts::of_key(
                "technique",
                text,
                format!("`{part}` is not a parameter"),
                "write NAME,key=value, such as galore,rank=256",
            ),
            Self::NoParameter { technique, key, cure } => {
                FaultParts::of_key("technique", technique, format!("has no parameter `{key}`"), cure)
            }
            Self::Value { technique, key, value, limit, meaning } => {
                let limit = format!("{key} must be {limit}; it is {meaning}");
                FaultParts::of_key("technique", format!("{technique},{key}={value}"), limit, "")
            }
            Self::Refused { technique, why, cure } => FaultParts::of_key("technique", technique, why, cure),
        }
    }
}

impl TechniqueError {
    /// Returns a [`TechniqueError::Refused`].
    pub(crate) fn refuse(technique: &str, why: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::Refused { technique: technique.to_owned(), why: why.into(), cure: cure.into() }
    }
}
