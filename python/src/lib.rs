//! coplace for Python: the verbs of the command, in Python's own process. It has no formula and no list of options: the
//! command's own table says which keyword arguments a verb takes.

mod arguments;
mod asked;
mod fault;
mod inputs;
mod ordered;
mod table;

// It sets the memory allocator.
use allocator as _;
use pyo3::prelude::*;

/// Runs the program with the words of a command line, without its name. Returns the exit code.
#[pyfunction]
fn run_program(py: Python<'_>, words: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| coplace::run_program(words))
}

/// The native part of the package `coplace`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    coplace::fit_text_to_screen();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("VERBS_WITH_FILES", coplace::VERBS_WITH_FILES.to_vec())?;
    module.add_class::<asked::Output>()?;
    module.add_class::<fault::Fault>()?;
    module.add_class::<inputs::Input>()?;
    module.add_class::<table::Table>()?;
    module.add_function(wrap_pyfunction!(run_program, module)?)?;
    module.add_function(wrap_pyfunction!(asked::ask, module)?)?;
    module.add_function(wrap_pyfunction!(asked::ask_all, module)?)?;
    module.add_function(wrap_pyfunction!(asked::time_loop, module)?)?;
    module.add_function(wrap_pyfunction!(arguments::options, module)?)?;
    module.add_function(wrap_pyfunction!(table::read_designs, module)?)?;
    Ok(())
}
