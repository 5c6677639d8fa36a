//! What can be wrong with a technique; every message names the technique, the value, the limit and the cure.

use thiserror::Error;

/// What can be wrong with a technique that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TechniqueError {
    /// The file cannot be read.
    #[error("{file}: cannot be read ({why}): give the path of a readable preset")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        why: String,
    },
    /// The file is no preset.
    #[error("{file}: {why}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// No such technique.
    #[error("technique {name}: no such technique; {hint}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The nearest name, or all.
        hint: String,
    },
    /// Not of the form `name,key=value`.
    #[error("technique {text}: `{part}` is no parameter; write NAME,key=value, such as galore,rank=256")]
    Form {
        /// What was given.
        text: String,
        /// The part that is wrong.
        part: String,
    },
    /// No such parameter.
    #[error("technique {technique}: has no parameter `{key}`; {cure}")]
    NoParameter {
        /// The technique.
        technique: String,
        /// The parameter given.
        key: String,
        /// The nearest, or all.
        cure: String,
    },
    /// A parameter's value is out of range.
    #[error("technique {technique}: {key} = {value}: must be {limit}; it is {meaning}")]
    Value {
        /// The technique.
        technique: String,
        /// The parameter.
        key: String,
        /// The value given.
        value: String,
        /// What it must be.
        limit: String,
        /// What it says.
        meaning: String,
    },
    /// It cannot be used so.
    #[error("technique {technique}: {why}; {cure}")]
    Refused {
        /// The technique, or the pair.
        technique: String,
        /// Why not.
        why: String,
        /// What to do.
        cure: String,
    },
}

impl TechniqueError {
    /// A refusal.
    pub(crate) fn refuse(technique: &str, why: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::Refused { technique: technique.to_owned(), why: why.into(), cure: cure.into() }
    }
}
