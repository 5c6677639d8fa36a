//! Faults as Python sees them.

use coplace::CallFault;
use pyo3::prelude::*;

/// A fault, as an exception carries it.
#[pyclass(frozen, get_all)]
#[derive(Debug, Clone)]
pub struct Fault {
    /// The exit code of the program.
    exit_code: u8,
    /// The message.
    message: String,
    /// The file at fault.
    file: Option<String>,
    /// The argument or key at fault.
    key: Option<String>,
    /// Its value.
    value: Option<String>,
    /// The rule that it breaks.
    limit: Option<String>,
    /// The cure.
    cure: Option<String>,
}

#[pymethods]
impl Fault {
    /// Makes the fault of a call that was never made. Parts that it lacks are `None`.
    #[new]
    #[pyo3(signature = (message, *, key=None, value=None, limit=None, cure=None))]
    fn new(
        message: String,
        key: Option<String>,
        value: Option<String>,
        limit: Option<String>,
        cure: Option<String>,
    ) -> Self {
        Self { exit_code: 2, message, file: None, key, value, limit, cure }
    }
}

impl Fault {
    /// Makes a fault of the program itself.
    pub fn of_program(message: &str) -> Self {
        Self { exit_code: 1, ..Self::new(message.to_owned(), None, None, None, None) }
    }

    /// Makes the fault of a call of the command. Options and arguments get their names in Python; keys of files stay as
    /// they are.
    pub fn of_call(fault: CallFault) -> Self {
        let CallFault { exit_code, message, file, key, value, limit, cure } = fault;
        let named = |key: String| match key.strip_prefix("--") {
            Some(flag) => flag.replace('-', "_"),
            None if !key.contains(char::is_lowercase) || key.starts_with(['<', '[']) => {
                key.trim_matches(['<', '>', '[', ']', '.']).to_lowercase()
            }
            None => key,
        };
        Self { exit_code, message, file, key: key.map(named), value, limit, cure }
    }
}
