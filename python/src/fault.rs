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
    /// A fault without parts.
    #[new]
    fn new(message: String) -> Self {
        Self { exit_code: 2, message, key: None, value: None, limit: None, cure: None }
    }
}

impl Fault {
    /// The fault of an argument.
    pub fn of_argument(key: &str, value: &str, limit: &str, cure: &str) -> Self {
        Self {
            exit_code: 2,
            message: format!("{key} = {value}: {limit}; {cure}"),
            key: Some(key.to_owned()),
            value: Some(value.to_owned()),
            limit: Some(limit.to_owned()),
            cure: Some(cure.to_owned()),
        }
    }

    /// A fault of the program itself.
    pub fn of_program(message: &str) -> Self {
        Self { exit_code: 1, ..Self::new(message.to_owned()) }
    }

    /// A fault of the command. An option has its name in Python.
    pub fn of_call(fault: CallFault) -> Self {
        let CallFault { exit_code, message, key, value, limit, cure } = fault;
        let named = |key: String| match key.strip_prefix("--") {
            Some(flag) => flag.replace('-', "_"),
            None => key.trim_matches(['<', '>', '[', ']', '.']).to_lowercase(),
        };
        Self { exit_code, message, key: key.map(named), value, limit, cure }
    }
}
