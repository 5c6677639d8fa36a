//! What can be wrong with a workload; every message names the place, the key, the value, the limit and the cure.

pub(crate) use sim::names::{find_mistyped, find_nearest};
use thiserror::Error;

/// What can be wrong with a workload. One line each, meant for the person who must mend the input.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WorkloadError {
    /// The file cannot be read.
    #[error("{file}: cannot be read ({reason}): give the path of a readable config.json")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        reason: String,
    },
    /// The file is not JSON.
    #[error("{file}, line {line}: not valid JSON ({reason}){at}: {cure}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What the parser said.
        reason: String,
        /// The text of that line, introduced by a comma; empty where the file ended.
        at: String,
        /// What to do.
        cure: String,
    },
    /// A key is given twice.
    #[error(
        "{file}: key `{key}` is given more than once (the limit is once): keep the value that is meant and delete the others"
    )]
    DuplicateKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// A key that decides the cost is missing.
    #[error("{file}: key `{key}` is missing, and {needed_by} needs it: add `\"{key}\": {example}` with the model's own value")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What needs it: "a model of type `gpt2`".
        needed_by: String,
        /// A value of the right form.
        example: String,
    },
    /// A key that this family does not have.
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
        /// What was probably meant, or what to do.
        cure: String,
    },
    /// A value outside its limits.
    #[error("{file}: key `{key}` is {value}, but must be {limit}: {cure}")]
    BadValue {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What is allowed.
        limit: String,
        /// What to do.
        cure: String,
    },
    /// Neither a built-in name nor a file.
    #[error("unknown model `{name}`: neither a built-in model nor a file; {cure}")]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// The names there are.
        cure: String,
    },
    /// A recomputation policy that cannot be read, or a name in one that does not exist.
    #[error("recompute {what} `{name}`: {cure}")]
    BadRecompute {
        /// `policy`, `tensor` or `place`.
        what: &'static str,
        /// What was given.
        name: String,
        /// The nearest name and all there are.
        cure: String,
    },
    /// A choice of the training run that the model does not allow.
    #[error("{model}: {setting} is {value}, but must be {limit}: {cure}")]
    BadLowering {
        /// The model.
        model: String,
        /// The setting.
        setting: String,
        /// Its value.
        value: String,
        /// What is allowed.
        limit: String,
        /// What to do.
        cure: String,
    },
}

impl WorkloadError {
    /// The error for a name that is neither built in nor a file, with the nearest name and all others.
    pub(crate) fn unknown_model<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.collect();
        let list = known.join(", ");
        let cure = match find_nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? Built in: {list}; or give the path of a config.json"),
            None => format!("use a built-in one ({list}) or give the path of a config.json"),
        };
        Self::UnknownModel { name: name.to_owned(), cure }
    }
}
