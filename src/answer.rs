//! Writes answers to standard output: text for people, JSON for scripts.

use crate::call::Call;
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

/// Writes text to standard output with control characters escaped, or keeps it for a call from another program. A
/// closed pipe gives [`Failure::ClosedPipe`], whose exit code is 0.
pub fn write_text(call: &Call, text: &str) -> Result<(), Failure> {
    let text = results::text::escape_controls(text);
    if call.keep(|kept| kept.text.push_str(&text)) {
        return Ok(());
    }
    std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()).map_err(output_failure)
}

/// Makes the failure of a write to standard output.
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
    /// Marks an answer with version 1, whose keys are those of the first version.
    pub fn with_schema_one(answer: &'a T) -> Self {
        Self { format: 1, answer }
    }

    /// Marks an answer with version 2, whose keys changed after the first version.
    pub fn with_schema_two(answer: &'a T) -> Self {
        Self { format: 2, answer }
    }
}

/// Writes an answer in the given format. Fails if a number is not finite.
pub fn write_answer<T: Serialize>(
    call: &Call,
    format: Format,
    value: &T,
    in_words: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    write_as(call, format, value, in_words, |value| serde_json::to_string_pretty(value))
}

/// Writes an answer, then returns the failure of its files. If the disk is full or broken, the answer is still printed,
/// because it matters more than its files. A wrong path fails without the answer, because another path cures it.
pub fn write_answer_with_files<T: Serialize>(
    call: &Call,
    format: Format,
    value: &T,
    written: Result<(), Failure>,
    in_words: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    if let Err(failure @ Failure::Input(_)) = written {
        return Err(failure);
    }
    let printed = write_answer(call, format, value, in_words);
    // If both failed, the files' failure is returned: lost files are worse than a reader that closed its pipe.
    written.and(printed)
}

/// Writes an answer in the given format, JSON in one line. Fails if a number is not finite.
pub fn write_answer_line<T: Serialize>(
    call: &Call,
    format: Format,
    value: &T,
    in_words: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    write_as(call, format, value, in_words, |value| serde_json::to_string(value))
}

/// Writes an answer in the given format. A call from another program keeps both formats.
fn write_as<T: Serialize>(
    call: &Call,
    format: Format,
    value: &T,
    in_words: impl FnOnce(&T) -> String,
    in_json: impl FnOnce(&T) -> serde_json::Result<String>,
) -> Result<(), Failure> {
    finite::check_finite(value).or_other()?;
    let of_program = call.is_of_program();
    if !of_program || format == Format::Json {
        let json = in_json(value).or_other()? + "\n";
        let json = results::text::escape_controls(&json);
        if !call.keep(|kept| kept.json.push_str(&json)) {
            return write_text(call, &json);
        }
    }
    write_text(call, &results::text::fold_lines(&in_words(value)))
}
