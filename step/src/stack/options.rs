//! Single options of a stack, set by name: `overlap.tensor = 1`, `kernels.shard_within_domain = true`.

use super::fitted_run::FittedRuns;
use super::software::StackError;
use crate::SoftwareStack;
use sim::files::{FaultParts, StructuredError};
use thiserror::Error;
use workloads::training::LossForm;

/// An option that cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionError {
    /// The text does not have the form `table.key=value`.
    #[error(
        "`{text}`: must be an option and its value; write it like overlap.tensor=1 or \
        kernels.shard_within_domain=true"
    )]
    Form {
        /// The given text.
        text: String,
    },
    /// The stack has no such option.
    #[error("{key}: the stack {stack} has no such option; {}", sim::names::hint(key, known, "it has"))]
    Unknown {
        /// The given key.
        key: String,
        /// The stack.
        stack: String,
        /// All keys.
        known: String,
    },
    /// The value has another type than the option.
    #[error("{key} = {value}: must be {form}; {stack} has {default}")]
    Type {
        /// The key.
        key: String,
        /// The given value.
        value: String,
        /// The required form of the value.
        form: &'static str,
        /// The stack.
        stack: String,
        /// The stack's own value.
        default: String,
    },
    /// The changed stack cannot be written to TOML or read from it.
    #[error("{0}")]
    Value(String),
    /// The value is out of range.
    #[error(transparent)]
    OutOfRange(Box<StackError>),
}

impl StructuredError for OptionError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Form { text } => FaultParts::of_key(
                "stack_option",
                text,
                "must be an option and its value",
                "write it like overlap.tensor=1 or kernels.shard_within_domain=true",
            ),
            Self::Unknown { key, stack, known } => FaultParts::of_key(
                key,
                "",
                format!("the stack {stack} has no such option"),
                sim::names::hint(key, known, "it has"),
            ),
            Self::Type { key, value, form, stack, default } => {
                FaultParts::of_key(key, value, format!("must be {form}"), format!("{stack} has {default}"))
            }
            Self::Value(why) => FaultParts::of_key("", "", why, ""),
            Self::OutOfRange(error) => error.fault_parts(),
        }
    }
}

/// Tables with options.
const TABLES: [&str; 5] = ["kernels", "launch", "sustained", "overlap", "memory"];

impl SoftwareStack {
    /// Returns the stack with one option set, as `table.key=value`. The stack's name states the change, unless the
    /// option already had that value.
    ///
    /// # Errors
    /// Text of another form, an unknown option, a value of another type or out of range.
    pub fn with_option(&self, assignment: &str) -> Result<Self, OptionError> {
        let form = || OptionError::Form { text: assignment.to_owned() };
        let (key, value) =
            assignment.split_once('=').map(|(key, value)| (key.trim(), value.trim())).ok_or_else(form)?;
        let (table, option) = key.split_once('.').ok_or_else(form)?;
        let mut file = toml::Table::try_from(self).map_err(|error| OptionError::Value(error.to_string()))?;
        let known = TABLES.contains(&table).then(|| file.get_mut(table)?.as_table_mut()?.get_mut(option)).flatten();
        let Some(known) = known else {
            let options = all_options(&file);
            return Err(OptionError::Unknown {
                key: key.to_owned(),
                stack: self.name.clone(),
                known: options.join(", "),
            });
        };
        let asked = parse_like(known, value).map_err(|form| OptionError::Type {
            key: key.to_owned(),
            value: value.to_owned(),
            form,
            stack: self.name.clone(),
            default: known.to_string(),
        })?;
        if *known == asked {
            return Ok(self.clone());
        }
        *known = asked;
        let mut stack: Self =
            file.try_into().map_err(|error: toml::de::Error| OptionError::Value(error.to_string()))?;
        stack.name = format!("{} with {key}={value}", self.name);
        // The runs were measured without this option.
        stack.runs = FittedRuns::default();
        stack.sources.insert(key.to_owned(), "given in the call".to_owned());
        stack.check_values(&self.name).map_err(|error| OptionError::OutOfRange(Box::new(error)))?;
        Ok(stack)
    }
}

impl SoftwareStack {
    /// Returns the stack with the form of head and loss set to `loss`.
    ///
    /// # Errors
    /// Never fails for a stack with valid values.
    pub fn with_loss(&self, loss: LossForm) -> Result<Self, OptionError> {
        self.with_option(match loss {
            LossForm::Whole => "kernels.loss=whole",
            LossForm::Chunked => "kernels.loss=chunked",
        })
    }
}

/// Returns the names of all options of a stack, as `table.key`.
fn all_options(file: &toml::Table) -> Vec<String> {
    let tables = TABLES.into_iter().filter_map(|table| Some((table, file.get(table)?.as_table()?)));
    tables.flat_map(|(table, keys)| keys.keys().map(move |key| format!("{table}.{key}"))).collect()
}

/// Parses a text as a value of the same type as `known`.
///
/// # Errors
/// The required form, if the text does not have it.
fn parse_like(known: &toml::Value, text: &str) -> Result<toml::Value, &'static str> {
    match known {
        toml::Value::Boolean(_) => text.parse().map(toml::Value::Boolean).map_err(|_| "true or false"),
        toml::Value::Integer(_) => {
            text.parse().map(|n: u32| toml::Value::Integer(n.into())).map_err(|_| "a whole number from 0 to 4294967295")
        }
        toml::Value::String(_) => Ok(toml::Value::String(text.to_owned())),
        _ => text.parse().ok().filter(|value: &f64| value.is_finite()).map(toml::Value::Float).ok_or("a number"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_of_all_types_are_set_and_nothing_else_changes() {
        let stack = SoftwareStack::load("megatron").unwrap();
        let set = stack.with_option("overlap.tensor=0.5").unwrap();
        let set = set
            .with_option("kernels.shard_within_domain = true")
            .unwrap()
            .with_option("memory.gathered_layers=3")
            .unwrap();
        assert_eq!((set.overlap.tensor, set.kernels.shard_within_domain, set.memory.gathered_layers), (0.5, true, 3));
        assert!(set.name.starts_with("megatron with overlap.tensor=0.5 with kernels."), "{}", set.name);
        let mut back = set;
        (back.overlap, back.kernels, back.memory) = (stack.overlap, stack.kernels.clone(), stack.memory);
        assert_eq!((back.launch, back.sustained), (stack.launch, stack.sustained));
        // Setting a value that the stack already has makes no new stack with other intervals.
        assert_eq!(
            stack.with_option("kernels.shard_within_domain=false").unwrap().with_option("overlap.tensor=0").unwrap(),
            stack
        );
    }

    #[test]
    fn errors_name_the_option_the_value_and_the_cure() {
        let stack = SoftwareStack::load("megatron").unwrap();
        let composed = stack.with_option("kernels.composed_layers=true").unwrap_err().to_string();
        assert!(composed.contains("must be false beside kernels.elementwise_fusion = true"), "{composed}");
        let error = |text: &str| stack.with_option(text).unwrap_err().to_string();
        assert!(
            error("overlap.tensor").starts_with("`overlap.tensor`: must be an option and its value; write"),
            "a value is missing"
        );
        assert!(error("tensor=1").starts_with("`tensor=1`: must be"));
        let unknown = error("overlap.tensors=1");
        assert!(
            unknown.starts_with(
                "overlap.tensors: the stack megatron has no such option; did you mean `overlap.tensor`? It has kernels."
            ),
            "{unknown}"
        );
        assert!(unknown.contains("overlap.tensor,") && !unknown.contains("sources"), "{unknown}");
        assert!(error("name.x=1").contains("no such option"));
        assert_eq!(
            error("kernels.shard_within_domain=1"),
            "kernels.shard_within_domain = 1: must be true or false; megatron has false"
        );
        assert_eq!(error("overlap.tensor=nan"), "overlap.tensor = nan: must be a number; megatron has 0.0");
        assert_eq!(
            error("overlap.tensor=2"),
            "megatron: overlap.tensor = 2: must be from 0 to 1; give a value in that range"
        );
        let layers = error("memory.gathered_layers=99999999999");
        assert!(layers.contains("must be a whole number from 0 to 4294967295"), "{layers}");
    }
}
