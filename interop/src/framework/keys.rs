//! The keys of a framework's file: their values, a record of the ones that were read, and the errors about them.

use super::model::FrameworkModel;
use super::run::{FrameworkRun, PlanOptions};
use super::shell::UNDECIDED;
use sim::files::{FaultParts, StructuredError};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// The largest accepted count: the longest sequence and the largest batch of `coplace plan`.
const LARGEST_COUNT: u64 = 1 << 24;
/// Number of characters of a value that a message shows; the rest is cut off.
const SHOWN: usize = 80;

/// The error of a key of a framework's file that cannot be used.
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
    /// Keys whose values affect the run.
    used: BTreeSet<String>,
    /// Notes on keys that change time or memory in a way that is not modelled, with the substitute.
    notes: Vec<String>,
}

/// Keys of a framework that do not become options. A trailing `*` matches every key with that beginning.
pub(super) struct UnreadKeys {
    /// Keys that change neither time nor memory of a step.
    pub(super) nothing: &'static [&'static str],
    /// Keys that change time or memory a little and are not modelled, with the substitute.
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

    /// Makes the error of a key, with its value if it has one.
    pub(super) fn fault(&self, key: &str, why: impl Into<String>) -> FrameworkFileError {
        let value = self.values.get(key).map(|values| values.join(" ")).filter(|value| !value.is_empty());
        let shown = |value: String| match value.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &value[..end]),
            None => value,
        };
        let key = value.map_or_else(|| key.to_owned(), |value| format!("{key} = {}", shown(value)));
        FrameworkFileError { file: self.file.clone(), key, why: why.into() }
    }

    /// Returns all values of a key and marks it as read; `None` if the file lacks it.
    pub(super) fn list(&mut self, key: &str) -> Option<Vec<String>> {
        self.read.insert(key.to_owned());
        self.used.insert(key.to_owned());
        self.values.get(key).cloned()
    }

    /// Refuses a value that depends on a condition which the script does not decide.
    fn decided(&self, key: &str) -> Result<(), FrameworkFileError> {
        if self.values.get(key).is_none_or(|values| values != &[UNDECIDED]) {
            return Ok(());
        }
        let why = "depends on an if or a case that the script does not decide; set its variable in the script";
        Err(FrameworkFileError { file: self.file.clone(), key: key.to_owned(), why: why.to_owned() })
    }

    /// Returns the first value of a key as text; `None` if the file lacks the key. Refuses a key without a value, and a
    /// value that is undecided or a variable.
    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, FrameworkFileError> {
        let Some(values) = self.list(key) else { return Ok(None) };
        let Some(value) = values.into_iter().next() else { return Err(self.fault(key, "has no value; give one")) };
        self.decided(key)?;
        if value.contains('$') {
            return Err(self.fault(key, "is a variable that the file does not set; write its value"));
        }
        Ok(Some(value))
    }

    /// Returns the value of a key, which must be one of these words; `None` if the file lacks the key.
    pub(super) fn one_of(&mut self, key: &str, words: &[&str]) -> Result<Option<String>, FrameworkFileError> {
        match self.text(key)? {
            Some(value) if !words.contains(&value.as_str()) => {
                Err(self.fault(key, format!("is none of {}; correct it", words.join(", "))))
            }
            value => Ok(value),
        }
    }

    /// Returns the value of a key as a number; `None` if the file lacks the key.
    pub(super) fn number<T: std::str::FromStr>(&mut self, key: &str) -> Result<Option<T>, FrameworkFileError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let number = text.replace('_', "").parse().ok();
        number.map(Some).ok_or_else(|| self.fault(key, "is no number of this key's kind; correct it"))
    }

    /// Returns the value of a key as a whole number from 1 to `LARGEST_COUNT`; `None` if the file lacks the key.
    pub(super) fn count(&mut self, key: &str) -> Result<Option<u64>, FrameworkFileError> {
        match self.number(key)? {
            Some(0) => Err(self.fault(key, "must be at least 1; correct it")),
            Some(count) if count > LARGEST_COUNT => {
                Err(self.fault(key, format!("must be at most {LARGEST_COUNT}; correct it")))
            }
            count => Ok(count),
        }
    }

    /// Returns a degree of a mesh: a whole number from 1, or -1; `None` if the file lacks the key.
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

    /// Adds the note that a key is not modelled, with the substitute `instead`.
    pub(super) fn note(&mut self, key: &str, instead: &str) {
        let fault = self.fault(key, format!("is not modelled: {instead}"));
        self.notes.push(format!("{}: {}", fault.key, fault.why));
    }

    /// As [`Self::count`], but fails if the file lacks the key.
    pub(super) fn required_count(&mut self, key: &str) -> Result<u64, FrameworkFileError> {
        let cure = "is missing; add it, or name the model before the options";
        self.count(key)?.ok_or_else(|| self.fault(key, cure))
    }

    /// Returns the state of a switch: off if the key is missing or its value is `false`, otherwise on.
    pub(super) fn switch(&mut self, key: &str) -> Result<bool, FrameworkFileError> {
        let Some(values) = self.list(key) else { return Ok(false) };
        self.decided(key)?;
        // On a command line, an unrelated word may follow a switch, so only `false` turns it off.
        Ok(!values.first().is_some_and(|value| value.eq_ignore_ascii_case("false")))
    }

    /// Marks keys as read.
    pub(super) fn read_all(&mut self, keys: &[&str]) {
        self.read.extend(keys.iter().map(|key| (*key).to_owned()));
    }

    /// Marks all keys with these beginnings as read.
    pub(super) fn read_tables(&mut self, starts: &[&str]) {
        let of_these = self.values.keys().filter(|key| starts.iter().any(|start| key.starts_with(start)));
        self.read.extend(of_these.cloned());
    }

    /// Returns the run that the file describes. Refuses the first key that was not read, is not listed in `unread`, and
    /// is not in `assumed`, the keys that the call declares to be without effect.
    pub(super) fn finish(
        mut self,
        unread: &UnreadKeys,
        assumed: &[String],
        framework: &'static str,
        options: PlanOptions,
        model: Option<FrameworkModel>,
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
