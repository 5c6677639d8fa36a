//! Models, chips, fabrics, stacks and studies as values.

use crate::fault::Fault;
use coplace::{CallFault, InputKind, NamedInput};
use pyo3::BoundObject;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A model, chip, fabric, stack or study.
#[pyclass(frozen)]
#[derive(Debug, Clone)]
pub struct Input(NamedInput);

fn kind_of_word(word: &str) -> PyResult<InputKind> {
    match word {
        "model" => Ok(InputKind::Model),
        "chip" => Ok(InputKind::Chip),
        "fabric" => Ok(InputKind::Fabric),
        "stack" => Ok(InputKind::Stack),
        "study" => Ok(InputKind::Study),
        _ => Err(PyValueError::new_err(format!("{word}: is no kind of input"))),
    }
}

/// A value, or a fault that Python raises.
type InputResult<'py, T> = PyResult<Result<T, Bound<'py, Fault>>>;

fn or_fault<T>(py: Python<'_>, result: Result<T, Box<CallFault>>) -> InputResult<'_, T> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(fault) => Ok(Err(Bound::new(py, Fault::of_call(*fault))?)),
    }
}

/// Returns the value or the fault as a Python object, because Python has no result type.
fn as_object<'py, T: IntoPyObject<'py, Error: Into<PyErr>>>(
    py: Python<'py>,
    result: Result<T, Bound<'py, Fault>>,
) -> PyResult<Bound<'py, PyAny>> {
    match result {
        Ok(value) => Ok(value.into_pyobject(py).map_err(Into::into)?.into_any().into_bound()),
        Err(fault) => Ok(fault.into_any()),
    }
}

#[pymethods]
impl Input {
    /// Loads a built-in input by name, or a file by path.
    #[staticmethod]
    fn load<'py>(py: Python<'py>, kind: &str, word: &str) -> PyResult<Bound<'py, PyAny>> {
        let input = or_fault(py, NamedInput::load(kind_of_word(kind)?, word))?;
        as_object(py, input.map(Self))
    }

    /// Makes an input from the text of its file.
    #[staticmethod]
    fn from_text<'py>(py: Python<'py>, kind: &str, name: &str, text: String) -> PyResult<Bound<'py, PyAny>> {
        let input = or_fault(py, NamedInput::from_text(kind_of_word(kind)?, name, text))?;
        as_object(py, input.map(Self))
    }

    /// Returns the name or path that stands for the input on a command line.
    #[getter]
    fn word(&self) -> &str {
        self.0.word()
    }

    /// Returns the name.
    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }

    /// Returns the text that stands in for the file of `word`; `None` if the word is a built-in name or a path.
    #[getter]
    fn carried_text(&self) -> Option<&str> {
        self.0.carried_text()
    }

    /// Returns the text of the input's file.
    fn text<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_object(py, or_fault(py, self.0.text())?)
    }

    /// Returns the input's facts as JSON.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_object(py, or_fault(py, self.0.facts().map(|facts| facts.to_string()))?)
    }

    /// Returns the input with one key changed. `value` is JSON; `chip` selects the figures that a fabric has for one
    /// chip.
    #[pyo3(signature = (key, value, chip=None))]
    fn with_value<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        value: &str,
        chip: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = serde_json::from_str(value).map_err(|why| PyValueError::new_err(why.to_string()))?;
        as_object(py, or_fault(py, self.0.with_value(key, &value, chip))?.map(Self))
    }
}
