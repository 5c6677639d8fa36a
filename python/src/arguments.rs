//! Python's values as arguments of a call. The command's own table of options takes them.

use crate::fault::Fault;
use coplace::arguments::{self, ArgumentValue, GivenArgument};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// The words of a call, or the fault of an argument.
pub type PythonCallWords = Result<Vec<String>, Fault>;

/// Returns the verbs with their options, as JSON.
#[pyfunction]
pub fn options() -> String {
    arguments::options_as_json().to_string()
}

/// Returns the words of a command line that calls `verb`, with `given` by position and `named` by name.
pub fn words_of_call(
    verb: &str,
    given: &Bound<'_, PyTuple>,
    named: Option<&Bound<'_, PyDict>>,
) -> PyResult<PythonCallWords> {
    let given = given.iter().map(|value| argument(&value)).collect::<PyResult<Vec<_>>>()?;
    let entry = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| Ok((name.extract()?, argument(&value)?));
    let named = named.into_iter().flat_map(|named| named.iter()).map(entry).collect::<PyResult<Vec<_>>>()?;
    Ok(arguments::words_of_call(verb, &given, &named).map_err(|fault| Fault::of_call(*fault)))
}

/// Makes an argument from a Python value. Messages show its `repr`.
fn argument(value: &Bound<'_, PyAny>) -> PyResult<GivenArgument> {
    let shown = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    Ok(GivenArgument { value: value_of_object(value)?, shown })
}

/// Returns a Python value as the value of an argument. `None` is absent, and truth values are flags. Numbers, texts and
/// paths become words, and lists and tuples become lists. Any other type is [`ArgumentValue::Other`].
fn value_of_object(value: &Bound<'_, PyAny>) -> PyResult<ArgumentValue> {
    if value.is_none() {
        return Ok(ArgumentValue::Absent);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(ArgumentValue::Flag(flag.is_true()));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(ArgumentValue::Word(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(ArgumentValue::Word(value.str()?.to_string()));
    }
    if value.is_instance_of::<PyFloat>() {
        // A float without a fraction is written as an integer, so that `1e3` may stand for 1000.
        let number: f64 = value.extract()?;
        return Ok(ArgumentValue::Word(number.to_string()));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let entries = value.try_iter()?.map(|entry| value_of_object(&entry?));
        return Ok(ArgumentValue::List(entries.collect::<PyResult<_>>()?));
    }
    if value.hasattr("__fspath__")? {
        return Ok(ArgumentValue::Word(value.call_method0("__fspath__")?.extract()?));
    }
    // Integers of other libraries, such as NumPy.
    if value.hasattr("__index__")? {
        return Ok(ArgumentValue::Word(value.call_method0("__index__")?.str()?.to_string()));
    }
    Ok(ArgumentValue::Other)
}
