//! Failures and their exit codes: 2 for wrong input, 3 for an incomplete answer, 1 for anything else.

use clap::error::{ContextKind, ContextValue};
use interop::framework::FrameworkFileError;
use measured::validate::RowError;
use results::store::files::{Unwritable, WriteError};
use search::study::StudyError;
use serving::lengths::LengthError;
use serving::{EngineError, ServingError};
use sim::files::{FaultParts, FileError, StructuredError};
use sim::hardware::HardwareError;
use sim::network::NetworkError;
use std::fmt::Display;
use std::io;
use step::{KeptFormatError, StackError, StepError};
use workloads::{LayoutError, TechniqueError, WorkloadError};

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

    /// Returns the error. A closed pipe becomes an error with a message of its own.
    pub fn into_error(self) -> anyhow::Error {
        match self {
            Self::Input(e) | Self::Incomplete(e) | Self::Other(e) => e,
            Self::ClosedPipe => anyhow::anyhow!("the reader of the answer has gone"),
        }
    }

    /// Returns the message, with the causes of the error after colons.
    pub fn message(&self) -> String {
        match self {
            Self::Input(e) | Self::Incomplete(e) | Self::Other(e) => format!("{e:#}"),
            Self::ClosedPipe => "the reader of the answer has gone".to_owned(),
        }
    }

    /// Returns the exit code: 2, 3 or 1, or 0 for a closed pipe.
    fn exit_code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Incomplete(_) => 3,
            Self::Other(_) => 1,
            Self::ClosedPipe => 0,
        }
    }

    /// Prints the message to standard error and returns the exit code. A closed pipe prints nothing.
    pub fn report_to_stderr(&self) -> u8 {
        if !matches!(self, Self::ClosedPipe) {
            write_to_stderr(&format!("error: {}", self.message()));
        }
        self.exit_code()
    }
}

/// Wrong input with its parts. The message is made from the parts or has a text of its own.
#[derive(Debug)]
pub struct InputFault {
    message: String,
    parts: FaultParts,
}

impl std::fmt::Display for InputFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InputFault {}

impl StructuredError for InputFault {
    fn fault_parts(&self) -> FaultParts {
        self.parts.clone()
    }
}

/// Makes a failure of wrong input with a message of its own beside its parts.
pub fn structured_failure(message: impl Display, parts: FaultParts) -> Failure {
    Failure::Input(InputFault { message: message.to_string(), parts }.into())
}

/// Makes a failure of an option that is needed and not given: `OPTION is missing: CURE`.
pub fn missing_option(option: &str, cure: impl Display) -> Failure {
    let cure = cure.to_string();
    structured_failure(format!("{option} is missing: {cure}"), FaultParts::of_key(option, "", "is missing", cure))
}

/// Returns `Ok` if `faults` is empty. Otherwise returns one failure with all messages and the parts of the first fault.
pub fn all_faults(faults: Vec<anyhow::Error>) -> Result<(), Failure> {
    let Some(first) = faults.first() else { return Ok(()) };
    let message = faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: ");
    Err(structured_failure(message, parts_of_chain(first)))
}

/// Returns `LIMIT; CURE`, or the one that is not empty.
fn rule_text(limit: &str, cure: &str) -> String {
    [limit, cure].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Makes a failure of an option's or argument's value: `KEY VALUE: LIMIT; CURE`. An empty value or cure is left out.
pub fn option_failure(key: &str, value: impl Display, limit: impl Display, cure: impl Display) -> Failure {
    let [value, limit, cure] = [value.to_string(), limit.to_string(), cure.to_string()];
    let named = if value.is_empty() { key.to_owned() } else { format!("{key} {value}") };
    let message = format!("{named}: {}", rule_text(&limit, &cure));
    structured_failure(message, FaultParts::of_key(key, value, limit, cure))
}

/// Makes a failure of a file, a directory or a study as a whole: `FILE: LIMIT; CURE`. An empty cure is left out.
pub fn file_failure(file: impl Display, limit: impl Display, cure: impl Display) -> Failure {
    let [file, limit, cure] = [file.to_string(), limit.to_string(), cure.to_string()];
    let message = format!("{file}: {}", rule_text(&limit, &cure));
    structured_failure(message, FaultParts::of_file(file, limit, cure))
}

/// Makes a failure of an option with the message `OPTION: MESSAGE` and the parts of `error`. A value under an inner key
/// keeps that key: `overlap.tensor=2`. `option` may include its value: `--fabric mine.toml`.
pub fn option_failure_from<E: StructuredError>(option: &str, error: &E) -> Failure {
    let (flag, given) = option.split_once(' ').map_or((option, None), |(flag, value)| (flag, Some(value)));
    let inner = error.fault_parts();
    let is_own = |key: &String| key.replace('_', "-") == flag.trim_start_matches('-');
    let named = |key: String, value: Option<String>| match value {
        Some(value) => format!("{key}={value}"),
        None => key,
    };
    let value = match (given, inner.key.clone().filter(|key| !is_own(key))) {
        (Some(given), _) => Some(given.to_owned()),
        (None, Some(key)) => Some(named(key, inner.value.clone())),
        (None, None) => inner.value.clone(),
    };
    let parts = FaultParts { key: Some(flag.to_owned()), value, ..inner };
    structured_failure(format!("{option}: {error}"), parts)
}

/// Makes the failure of a rule of a plan's layout. It names `option`, which the rule restricts, and takes its value
/// from the rule. Without an option, it is the rule's own failure.
pub fn option_failure_of_rule(option: Option<String>, rule: LayoutError) -> Failure {
    let Some(option) = option else { return Failure::Input(rule.into()) };
    let parts = FaultParts { key: Some(option.clone()), ..rule.fault_parts() };
    structured_failure(format!("{option}: {rule}"), parts)
}

/// Returns the parts of an error if it has type `E`; otherwise `None`.
fn parts_if<E: StructuredError>(error: &(dyn std::error::Error + 'static)) -> Option<FaultParts> {
    error.downcast_ref::<E>().map(StructuredError::fault_parts)
}

/// Reads the parts of an error; `None` if it has another type than the reader's.
type PartsReader = fn(&(dyn std::error::Error + 'static)) -> Option<FaultParts>;

/// One reader for each type of error that has parts.
const STRUCTURED: [PartsReader; 17] = [
    parts_if::<InputFault>,
    parts_if::<FileError>,
    parts_if::<HardwareError>,
    parts_if::<NetworkError>,
    parts_if::<LayoutError>,
    parts_if::<WorkloadError>,
    parts_if::<TechniqueError>,
    parts_if::<StackError>,
    parts_if::<KeptFormatError>,
    parts_if::<StepError>,
    parts_if::<StudyError>,
    parts_if::<FrameworkFileError>,
    parts_if::<RowError>,
    parts_if::<ServingError>,
    parts_if::<EngineError>,
    parts_if::<LengthError>,
    parts_if::<WriteError>,
];

/// Returns the parts of the first error of a chain that has some; empty if none has.
fn parts_of_chain(error: &anyhow::Error) -> FaultParts {
    let parts = |cause| STRUCTURED.iter().find_map(|read| read(cause));
    error.chain().find_map(parts).unwrap_or_default()
}

/// A failure as a program that calls this one sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallFault {
    /// The exit code of the program: 2 for wrong input, 3 for an incomplete answer, 1 for anything else.
    pub exit_code: u8,
    /// The message, as the program prints it behind `error: `.
    pub message: String,
    /// The file at fault.
    pub file: Option<String>,
    /// The option or key at fault, or the kind of thing whose name is unknown (`chip`).
    pub key: Option<String>,
    /// Its value.
    pub value: Option<String>,
    /// The rule that the value breaks.
    pub limit: Option<String>,
    /// The cure.
    pub cure: Option<String>,
}

impl CallFault {
    /// Makes the fault of a verb's failure.
    pub(crate) fn of_failure(failure: &Failure) -> Self {
        let parts = match failure {
            Failure::Input(e) | Failure::Incomplete(e) | Failure::Other(e) => parts_of_chain(e),
            Failure::ClosedPipe => FaultParts::default(),
        };
        Self::of_parts(failure.exit_code(), failure.message(), parts)
    }

    /// Makes a fault from its parts.
    pub(crate) fn of_parts(exit_code: u8, message: String, parts: FaultParts) -> Self {
        let FaultParts { file, key, value, limit, cure } = parts;
        Self { exit_code, message, file, key, value, limit, cure }
    }

    /// Makes the fault of an error that the parser reports.
    pub(crate) fn of_arguments(error: &clap::Error) -> Self {
        let text = |kind: ContextKind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
            _ => None,
        };
        let text_of_error = error.to_string();
        let message = text_of_error.strip_prefix("error: ").unwrap_or(&text_of_error);
        // After an empty line, clap adds the usage and a hint at `--help`.
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
            file: None,
            key: text(ContextKind::InvalidArg).map(name),
            value: text(ContextKind::InvalidValue),
            limit: limit.or(why),
            cure,
        }
    }
}

/// Writes a line to standard error. Errors are ignored, because standard error may be closed too.
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

/// Marks an error as a fault of the program or of the machine.
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

/// Makes the failure of a write with its message: exit code 1 if the machine is at fault, otherwise 2.
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

/// Makes a failure of wrong input, from a message.
pub fn input_failure(message: impl std::fmt::Display) -> Failure {
    Failure::Input(anyhow::anyhow!("{message}"))
}
