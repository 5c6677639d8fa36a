//! Answers on standard output: text for people, JSON for scripts.

use crate::failure::{Failure, OrOther};
use clap::ValueEnum;
use results::finite;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// The form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people.
    Text,
    /// Stable, documented JSON.
    Json,
}

/// Writes text to standard output; a reader that went away is not an error.
pub fn text(text: &str) -> Result<(), Failure> {
    std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()).map_err(unwritten)
}

/// Writes words for people to standard output, in lines that fit the reader's screen.
pub fn words(words: &str) -> Result<(), Failure> {
    text(&results::report::fitting(words))
}

/// The failure of an answer that standard output does not take.
pub fn unwritten(why: std::io::Error) -> Failure {
    match why.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Other(why.into()),
    }
}

/// An answer with the version of its schema, the first of all keys.
#[derive(Serialize)]
pub struct Versioned<'a, T> {
    format: u32,
    #[serde(flatten)]
    answer: &'a T,
}

impl<'a, T> Versioned<'a, T> {
    /// An answer whose keys have been the same since the first version.
    pub fn first(answer: &'a T) -> Self {
        Self { format: 1, answer }
    }

    /// One whose keys were others in the first version.
    pub fn second(answer: &'a T) -> Self {
        Self { format: 2, answer }
    }
}

/// Writes an answer in its form, unless one of its numbers is none.
pub fn give<T: Serialize>(format: Format, value: &T, in_words: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    match format {
        Format::Json => json(value),
        Format::Text => {
            finite::check(value).or_other()?;
            words(&in_words(value))
        }
    }
}

/// Writes a value as indented JSON, unless one of its numbers is none.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    finite::check(value).or_other()?;
    let mut out = serde_json::to_string_pretty(value).or_other()?;
    out.push('\n');
    text(&out)
}

/// Writes an answer in its form, JSON in one line, unless one of its numbers is none.
pub fn line<T: Serialize>(format: Format, value: &T, in_words: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    finite::check(value).or_other()?;
    match format {
        Format::Json => text(&(serde_json::to_string(value).or_other()? + "\n")),
        Format::Text => words(&in_words(value)),
    }
}
