//! The keys of a framework's file, which of them were read, and what is wrong with one.

use super::model::FrameworkModel;
use super::run::{FrameworkRun, PlanOptions};
use super::shell::UNDECIDED;
use sim::files::{FaultParts, StructuredError};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// The largest count that is taken: the longest sequence and the largest batch of `coplace plan`.
const LARGEST_COUNT: u64 = 1 << 24;
/// Most characters of a value in a message.
const SHOWN: usize = 80;

/// A key of a framework's file that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}: {key}: {why}")]
pub struct FrameworkFileError {
    /// The file.
    pub file: String,
    /// The key, with its value where there is one.
    pub key: String,
    /// The limit and the cure.
    pub why: String,
}

impl StructuredError for FrameworkFileError {
    fn fault_parts(&self) -> FaultParts {
        FaultParts::of_key(&self.key, "", &self.why, "").in_file(&self.file)
    }
}

/// The keys of a file with their values; a switch has none.
pub(super) struct FrameworkKeys {
    file: String,
    values: BTreeMap<String, Vec<String>>,
    read: BTreeSet<String>,
    /// Keys of which the value counts.
    used: BTreeSet<String>,
    /// Keys that change time or memory in a way that is not modelled, with what is done instead.
    notes: Vec<String>,
}

/// The meaning of the keys of a framework that are no option: a name, or a beginning with `*`.
pub(super) struct UnreadKeys {
    /// Keys that change neither time nor memory of a step.
    pub(super) nothing: &'static [&'static str],
    /// Keys that change either a little and are not modelled, with what is done instead.
    pub(super) unmodelled: &'static [(&'static str, &'static str)],
}

/// A degree of a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MeshDegree {
    Stated(u64),
    /// The devices that the other degrees leave: -1.
    Rest,
}

impl FrameworkKeys {
    pub(super) fn new(file: &str, values: BTreeMap<String, Vec<String>>) -> Self {
        Self { file: file.to_owned(), values, read: BTreeSet::new(), used: BTreeSet::new(), notes: Vec::new() }
    }

    /// A failure about a key.
    pub(super) fn fault(&self, key: &str, why: impl Into<String>) -> FrameworkFileError {
        let value = self.values.get(key).map(|values| values.join(" ")).filter(|value| !value.is_empty());
        let shown = |value: String| match value.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &value[..end]),
            None => value,
        };
        let key = value.map_or_else(|| key.to_owned(), |value| format!("{key} = {}", shown(value)));
        FrameworkFileError { file: self.file.clone(), key, why: why.into() }
    }

    /// All values of a key.
    pub(super) fn list(&mut self, key: &str) -> Option<Vec<String>> {
        self.read.insert(key.to_owned());
        self.used.insert(key.to_owned());
        self.values.get(key).cloned()
    }

    /// Refuses a value that depends on a condition.
    fn decided(&self, key: &str) -> Result<(), FrameworkFileError> {
        if self.values.get(key).is_none_or(|values| values != &[UNDECIDED]) {
            return Ok(());
        }
        let why = "depends on an if or a case that the script does not decide; set its variable in the script";
        Err(FrameworkFileError { file: self.file.clone(), key: key.to_owned(), why: why.to_owned() })
    }

    /// The value of a key as text.
    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, FrameworkFileError> {
        let Some(values) = self.list(key) else { return Ok(None) };
        let Some(value) = values.into_iter().next() else { return Err(self.fault(key, "has no value; give one")) };
        self.decided(key)?;
        if value.contains('$') {
            return Err(self.fault(key, "is a variable that the file does not set; write its value"));
        }
        Ok(Some(value))
    }

    /// The value of a key that is one of these words.
    pub(super) fn one_of(&mut self, key: &str, words: &[&str]) -> Result<Option<String>, FrameworkFileError> {
        match self.text(key)? {
            Some(value) if !words.contains(&value.as_str()) => {
                Err(self.fault(key, format!("is none of {}; correct it", words.join(", "))))
            }
            value => Ok(value),
        }
    }

    /// The value of a key as a number.
    pub(super) fn number<T: std::str::FromStr>(&mut self, key: &str) -> Result<Option<T>, FrameworkFileError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let number = text.replace('_', "").parse().ok();
        number.map(Some).ok_or_else(|| self.fault(key, "is no number of this key's kind; correct it"))
    }

    /// A whole number from 1.
    pub(super) fn count(&mut self, key: &str) -> Result<Option<u64>, FrameworkFileError> {
        match self.number(key)? {
            Some(0) => Err(self.fault(key, "must be at least 1; correct it")),
            Some(count) if count > LARGEST_COUNT => {
                Err(self.fault(key, format!("must be at most {LARGEST_COUNT}; correct it")))
            }
            count => Ok(count),
        }
    }

    /// A degree of a mesh: a whole number from 1, or -1. `None` if it is not there.
    pub(super) fn mesh_degree(&mut self, key: &str) -> Result<Option<MeshDegree>, FrameworkFileError> {
        match self.text(key)?.as_deref() {
            None => Ok(None),
            Some("-1") => Ok(Some(MeshDegree::Rest)),
            Some(_) => Ok(self.count(key)?.map(MeshDegree::Stated)),
        }
    }

    /// Refuses a value other than the one that is modelled.
    pub(super) fn expect(&mut self, key: &str, modelled: &str) -> Result<(), FrameworkFileError> {
        match self.text(key)? {
            Some(stated) if !stated.eq_ignore_ascii_case(modelled) => {
                Err(self.fault(key, format!("is not modelled; {modelled} is")))
            }
            _ => Ok(()),
        }
    }

    /// Notes that a key is not modelled as the file has it.
    pub(super) fn note(&mut self, key: &str, instead: &str) {
        let fault = self.fault(key, format!("is not modelled: {instead}"));
        self.notes.push(format!("{}: {}", fault.key, fault.why));
    }

    /// The same where the key has to be there.
    pub(super) fn required_count(&mut self, key: &str) -> Result<u64, FrameworkFileError> {
        let cure = "is missing; add it, or name the model before the options";
        self.count(key)?.ok_or_else(|| self.fault(key, cure))
    }

    /// A switch: off if it is not there or says so.
    pub(super) fn switch(&mut self, key: &str) -> Result<bool, FrameworkFileError> {
        let Some(values) = self.list(key) else { return Ok(false) };
        self.decided(key)?;
        // Another word of the script may follow a switch of a command line.
        Ok(!values.first().is_some_and(|value| value.eq_ignore_ascii_case("false")))
    }

    /// Takes keys as read.
    pub(super) fn read_all(&mut self, keys: &[&str]) {
        self.read.extend(keys.iter().map(|key| (*key).to_owned()));
    }

    /// Takes the keys that begin so as read.
    pub(super) fn read_tables(&mut self, starts: &[&str]) {
        let of_these = self.values.keys().filter(|key| starts.iter().any(|start| key.starts_with(start)));
        self.read.extend(of_these.cloned());
    }

    /// The run that the file describes. Refuses the first key that nothing has read, that has no meaning in `unread`
    /// and that the call does not take to change nothing.
    pub(super) fn finish(
        mut self,
        unread: &UnreadKeys,
        assumed: &[String],
        (framework, options, model): (&'static str, PlanOptions, Option<FrameworkModel>),
    ) -> Result<FrameworkRun, FrameworkFileError> {
        self.used.iter().try_for_each(|key| self.decided(key))?;
        let is = |key: &str, name: &str| name.strip_suffix('*').map_or(key == name, |start| key.starts_with(start));
        let left: Vec<String> = self.values.keys().filter(|key| !self.read.contains(*key)).cloned().collect();
        let mut taken = Vec::new();
        for key in left {
            if unread.nothing.iter().any(|name| is(&key, name)) {
                continue;
            }
            if assumed.contains(&key) {
                taken.push(key);
            } else if let Some((_, instead)) = unread.unmodelled.iter().find(|(name, _)| is(&key, name)) {
                self.note(&key, instead);
            } else {
                let cure = format!("--assume {key}=ignored if it changes neither time nor memory");
                return Err(self.fault(&key, format!("is not understood; leave it out, or give {cure}")));
            }
        }
        let value_of = |key: &String| Some((key.clone(), self.values.get(key)?.join(" ")));
        let keys = self.used.iter().filter_map(value_of).collect();
        Ok(FrameworkRun { framework, options: options.0, keys, model, assumed: taken, notes: self.notes })
    }
}
