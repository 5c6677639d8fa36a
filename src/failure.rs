//! Failures and their exit codes: 2 for wrong input, 3 for an incomplete answer, 1 for anything else.

use results::store::files::Unwritable;
use std::io;
use std::process::ExitCode;

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

    /// Prints the message to standard error and returns the exit code.
    pub fn report_and_exit(&self) -> ExitCode {
        let (code, error) = match self {
            Self::Input(e) => (2, e),
            Self::Incomplete(e) => (3, e),
            Self::Other(e) => (1, e),
            Self::ClosedPipe => return ExitCode::SUCCESS,
        };
        write_to_stderr(&format!("error: {error:#}"));
        ExitCode::from(code)
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
