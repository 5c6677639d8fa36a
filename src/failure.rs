//! Failures and their exit codes: 2 for wrong input, 3 for an incomplete answer, 1 for anything else.

use clap::error::{ContextKind, ContextValue};
use results::store::files::Unwritable;
use sim::files::{FileError, FileFault};
use std::io;

/// The reason why a verb has no complete result.
#[derive(Debug)]
pub enum Failure {
    /// Wrong input. The message names the thing, the value, the limit and the cure.
    Input(anyhow::Error),
    /// An incomplete answer. The message says what is missing.
    Incomplete(anyhow::Error),
    /// Anything else: a full disk, or a defect of the program.
    Other(anyhow::Error),
    /// The reader of the output has gone (`coplace ... | head`). There is no message.
    ClosedPipe,
}

impl Failure {
    /// Puts the place before the message.
    pub fn with_context(self, place: String) -> Self {
        match self {
            Self::Input(e) => Self::Input(e.context(place)),
            Self::Incomplete(e) => Self::Incomplete(e.context(place)),
            Self::Other(e) => Self::Other(e.context(place)),
            Self::ClosedPipe => Self::ClosedPipe,
        }
    }

    /// The message.
    pub fn message(&self) -> String {
        match self {
            Self::Input(e) | Self::Incomplete(e) | Self::Other(e) => format!("{e:#}"),
            Self::ClosedPipe => "the reader of the answer has gone".to_owned(),
        }
    }

    /// The exit code.
    fn exit_code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Incomplete(_) => 3,
            Self::Other(_) => 1,
            Self::ClosedPipe => 0,
        }
    }

    /// Prints the message to standard error and returns the exit code.
    pub fn report_to_stderr(&self) -> u8 {
        if !matches!(self, Self::ClosedPipe) {
            write_to_stderr(&format!("error: {}", self.message()));
        }
        self.exit_code()
    }
}

/// A failure as a program that calls this one sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallFault {
    /// The exit code of the program: 2 for wrong input, 3 for an incomplete answer, 1 for anything else.
    pub exit_code: u8,
    /// The message, as the program prints it behind `error: `.
    pub message: String,
    /// The option or key at fault, as far as the message has one.
    pub key: Option<String>,
    /// Its value.
    pub value: Option<String>,
    /// The rule that the value breaks.
    pub limit: Option<String>,
    /// The cure.
    pub cure: Option<String>,
}

impl CallFault {
    /// A failure of a verb.
    pub(crate) fn of_failure(failure: &Failure) -> Self {
        let exit_code = failure.exit_code();
        let file = match failure {
            Failure::Input(e) | Failure::Incomplete(e) | Failure::Other(e) => {
                e.chain().find_map(|cause| cause.downcast_ref::<FileError>())
            }
            Failure::ClosedPipe => None,
        };
        let message = failure.message();
        match file.and_then(|file| file.faults.first()) {
            Some(FileFault { key, value, limit, cure }) => {
                let [key, value, limit, cure] = [key, value, limit, cure].map(|part| Some(part.clone()));
                Self { exit_code, message, key, value, limit, cure }
            }
            None => Self { exit_code, ..Self::of_message(message) },
        }
    }

    /// Takes a message of the form `PLACE: KEY VALUE: LIMIT; CURE` apart, where KEY is an option or `KEY = VALUE` stands
    /// in a file. A message of another form stays whole.
    fn of_message(message: String) -> Self {
        let mut fault = Self::default();
        let (rule, cure) = message.rsplit_once("; ").map_or((&*message, None), |(rule, cure)| (rule, Some(cure)));
        let mut rest = rule;
        while let Some((head, tail)) = rest.split_once(": ") {
            let named = match head.split_once(" = ") {
                Some((key, value)) if !key.contains(' ') => Some((key, value)),
                _ if head.starts_with("--") => Some(head.split_once(' ').unwrap_or((head, ""))),
                _ => None,
            };
            if let Some((key, value)) = named {
                fault.key = Some(key.to_owned());
                // `--tensor: tp = 3: LIMIT` has the value behind the key of the plan.
                let inner = tail.split_once(": ").and_then(|(inner, limit)| Some((inner.split_once(" = ")?.1, limit)));
                let (value, limit) = if value.is_empty() { inner.unwrap_or(("", tail)) } else { (value, tail) };
                fault.value = Some(value.to_owned()).filter(|value| !value.is_empty());
                fault.limit = Some(limit.to_owned());
                fault.cure = cure.map(str::to_owned);
                break;
            }
            rest = tail;
        }
        Self { message, ..fault }
    }

    /// An error of the arguments.
    pub(crate) fn of_arguments(error: &clap::Error) -> Self {
        let text = |kind: ContextKind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
            _ => None,
        };
        let text_of_error = error.to_string();
        let message = text_of_error.strip_prefix("error: ").unwrap_or(&text_of_error);
        // Usage and a hint at `--help` follow.
        let message = message.split("\n\n").next().unwrap_or(message).trim_end();
        let name = |key: String| key.split([' ', '=']).next().unwrap_or_default().to_owned();
        let suggested = [ContextKind::SuggestedArg, ContextKind::SuggestedValue, ContextKind::SuggestedSubcommand];
        let cure = suggested.into_iter().find_map(text).map(|word| format!("use {word}"));
        let limit = text(ContextKind::ValidValue).map(|values| format!("must be one of {values}"));
        let why = std::error::Error::source(error).map(ToString::to_string);
        let message = cure.as_ref().map_or_else(|| message.to_owned(), |cure| format!("{message}; {cure}"));
        Self {
            exit_code: u8::try_from(error.exit_code()).unwrap_or(1),
            message,
            key: text(ContextKind::InvalidArg).map(name),
            value: text(ContextKind::InvalidValue),
            limit: limit.or(why),
            cure,
        }
    }
}

/// Ignores errors: standard error may be closed too.
fn write_to_stderr(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{}", results::text::escape_controls(message));
}

/// Marks an error as wrong input.
pub trait OrInput<T> {
    /// Returns the value, or a failure with exit code 2.
    fn or_input(self) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrInput<T> for Result<T, E> {
    fn or_input(self) -> Result<T, Failure> {
        self.map_err(|e| Failure::Input(e.into()))
    }
}

/// Marks an error as one of the program or the machine.
pub trait OrOther<T> {
    /// Returns the value, or a failure with exit code 1.
    fn or_other(self) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrOther<T> for Result<T, E> {
    fn or_other(self) -> Result<T, Failure> {
        self.map_err(|e| Failure::Other(e.into()))
    }
}

/// Marks an error of writing a file. A wrong path is wrong input (2); a full or broken disk is not (1).
pub trait OrUnwritable<T> {
    /// Returns the value, or a failure with exit code 2 or 1.
    fn or_unwritable(self) -> Result<T, Failure>;
}

impl<T, E: Unwritable + Into<anyhow::Error>> OrUnwritable<T> for Result<T, E> {
    fn or_unwritable(self) -> Result<T, Failure> {
        self.map_err(|error| match error.write_error().map(|error| is_machine_fault(&error.why)) {
            Some(false) => Failure::Input(error.into()),
            Some(true) | None => Failure::Other(error.into()),
        })
    }
}

/// A failure of a write, with its message.
pub fn write_failure(why: &io::Error, message: impl std::fmt::Display) -> Failure {
    let error = anyhow::anyhow!("{message}");
    if is_machine_fault(why) { Failure::Other(error) } else { Failure::Input(error) }
}

/// EIO on every Unix.
const BROKEN_DISK: i32 = 5;

/// True if no other path would help: the disk is full or broken, or the machine is at its limits.
fn is_machine_fault(why: &io::Error) -> bool {
    use io::ErrorKind::{
        FileTooLarge, Interrupted, Other, OutOfMemory, QuotaExceeded, StorageFull, TimedOut, WriteZero,
    };
    let kinds = [FileTooLarge, Interrupted, OutOfMemory, Other, QuotaExceeded, StorageFull, TimedOut, WriteZero];
    kinds.contains(&why.kind()) || why.raw_os_error() == Some(BROKEN_DISK)
}

/// A failure of wrong input, from a message.
pub fn input_failure(message: impl std::fmt::Display) -> Failure {
    Failure::Input(anyhow::anyhow!("{message}"))
}
