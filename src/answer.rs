//! Writes answers to standard output: text for people, JSON for scripts.

use crate::failure::{Failure, OrOther};
use clap::ValueEnum;
use results::answer::finite;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// The format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people.
    Text,
    /// Stable JSON with a documented schema.
    Json,
}

/// Writes text to standard output, without control characters. A closed pipe is not an error.
pub fn write_text(text: &str) -> Result<(), Failure> {
    let text = results::text::escape_controls(text);
    std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()).map_err(output_failure)
}

/// Writes text for people to standard output, folded to the width of the screen.
pub fn write_folded(words: &str) -> Result<(), Failure> {
    write_text(&results::text::fold_lines(words))
}

/// The failure of a write to standard output.
pub fn output_failure(why: std::io::Error) -> Failure {
    match why.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Other(why.into()),
    }
}

/// An answer with the version of its schema as the first key.
#[derive(Serialize)]
pub struct Versioned<'a, T> {
    format: u32,
    #[serde(flatten)]
    answer: &'a T,
}

impl<'a, T> Versioned<'a, T> {
    /// An answer whose keys are those of the first version.
    pub fn with_schema_one(answer: &'a T) -> Self {
        Self { format: 1, answer }
    }

    /// An answer whose keys changed after the first version.
    pub fn with_schema_two(answer: &'a T) -> Self {
        Self { format: 2, answer }
    }
}

/// Writes an answer in the given format. Fails if a number is not finite.
pub fn write_answer<T: Serialize>(
    format: Format,
    value: &T,
    in_words: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    match format {
        Format::Json => write_json(value),
        Format::Text => {
            finite::check_finite(value).or_other()?;
            write_folded(&in_words(value))
        }
    }
}

/// Writes a value as indented JSON. Fails if a number is not finite.
pub fn write_json(value: &impl Serialize) -> Result<(), Failure> {
    finite::check_finite(value).or_other()?;
    let mut out = serde_json::to_string_pretty(value).or_other()?;
    out.push('\n');
    write_text(&out)
}

/// Writes an answer in the given format, JSON in one line. Fails if a number is not finite.
pub fn write_answer_line<T: Serialize>(
    format: Format,
    value: &T,
    in_words: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    finite::check_finite(value).or_other()?;
    match format {
        Format::Json => write_text(&(serde_json::to_string(value).or_other()? + "\n")),
        Format::Text => write_folded(&in_words(value)),
    }
}
