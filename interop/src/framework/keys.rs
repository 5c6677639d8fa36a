//! The keys of a framework's file, which of them were read, and what is wrong with one.

use super::shell::UNDECIDED;
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

/// The keys of a file with their values; a switch has none.
pub(super) struct FrameworkKeys {
    file: String,
    values: BTreeMap<String, Vec<String>>,
    read: BTreeSet<String>,
    /// Keys of which the value counts.
    used: BTreeSet<String>,
}

impl FrameworkKeys {
    pub(super) fn new(file: &str, values: BTreeMap<String, Vec<String>>) -> Self {
        Self { file: file.to_owned(), values, read: BTreeSet::new(), used: BTreeSet::new() }
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

    /// Refuses the first key that nothing has read and that is not `ignored`: a name, or a beginning with `*`. Returns
    /// the keys that are `assumed` to change nothing.
    pub(super) fn refuse_the_rest(
        &self,
        ignored: &[&str],
        assumed: &[String],
    ) -> Result<Vec<String>, FrameworkFileError> {
        self.used.iter().try_for_each(|key| self.decided(key))?;
        let changes_nothing = |key: &str| {
            ignored.iter().any(|name| name.strip_suffix('*').map_or(key == *name, |start| key.starts_with(start)))
        };
        let unread = self.values.keys().filter(|key| !self.read.contains(*key) && !changes_nothing(key));
        let (taken, refused): (Vec<&String>, Vec<&String>) = unread.partition(|key| assumed.contains(key));
        refused.first().map_or_else(
            || Ok(taken.into_iter().cloned().collect()),
            |key| {
                let cure = "is not understood; leave it out, or give --assume";
                Err(self.fault(key, format!("{cure} {key}=ignored if it changes neither time nor memory")))
            },
        )
    }
}
