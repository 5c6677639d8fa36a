//! Keyword arguments as words of a command line, by the command's own table of options.

use crate::fault::Fault;
use clap::{Arg, ArgAction, Command};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PySequence, PyString, PyTuple};
use serde_json::{Value, json};
use std::any::TypeId;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The words of a call, or the fault of an argument.
pub type CallWords = Result<Vec<String>, Fault>;

/// The command's table.
fn table() -> &'static Command {
    static TABLE: OnceLock<Command> = OnceLock::new();
    TABLE.get_or_init(coplace::command)
}

/// The verbs that Python has: all but those for shells and packagers.
fn verbs() -> impl Iterator<Item = &'static Command> {
    table().get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
}

/// The arguments of a verb that Python gives: no help, and no format, because an answer has both.
fn arguments_of(verb: &'static Command) -> impl Iterator<Item = &'static Arg> {
    verb.get_arguments().filter(|argument| !matches!(argument.get_id().as_str(), "help" | "version" | "format"))
}

/// The name of an argument in Python.
fn python_name(argument: &Arg) -> String {
    let name = argument.get_long().unwrap_or(argument.get_id().as_str()).replace('-', "_");
    // A keyword of Python cannot be a keyword argument.
    if matches!(name.as_str(), "from" | "in" | "with" | "for") { name + "_" } else { name }
}

fn is_multiple(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
        || argument.get_num_args().is_some_and(|count| count.max_values() > 1)
        || coplace::list_separator(argument).is_some()
}

fn is_switch(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::SetTrue)
}

fn choices(argument: &Arg) -> Vec<String> {
    let shown = |value: &clap::builder::PossibleValue| value.get_name().to_owned();
    argument.get_possible_values().iter().map(shown).collect()
}

/// The type of an argument's values: `flag`, `int`, `float`, `path`, `text`, or `scalar` where a text may be a number.
fn kind_of(argument: &Arg) -> &'static str {
    let of = argument.get_value_parser().type_id();
    let is = |types: &[TypeId]| types.iter().any(|known| of == *known);
    if is_switch(argument) || choices(argument) == ["true", "false"] {
        "flag"
    } else if is(&[TypeId::of::<u64>(), TypeId::of::<u32>(), TypeId::of::<u16>(), TypeId::of::<u8>()]) {
        "int"
    } else if is(&[TypeId::of::<f64>()]) {
        "float"
    } else if is(&[TypeId::of::<PathBuf>()]) {
        "path"
    } else if argument.get_value_delimiter().is_some() && choices(argument).is_empty() {
        "scalar"
    } else {
        "text"
    }
}

/// The verbs with their options, as JSON.
#[pyfunction]
pub fn options() -> String {
    let option = |argument: &'static Arg| {
        json!({
            "name": python_name(argument),
            "flag": argument.get_long(),
            "positional": argument.is_positional(),
            "required": argument.is_required_set(),
            "kind": kind_of(argument),
            "multiple": is_multiple(argument),
            "choices": if kind_of(argument) == "flag" { Vec::new() } else { choices(argument) },
            "help": argument.get_help().map(ToString::to_string).unwrap_or_default(),
            "default": argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>(),
        })
    };
    let verb = |verb: &'static Command| {
        let options: Vec<Value> = arguments_of(verb).map(option).collect();
        json!({
            "name": verb.get_name(),
            "about": verb.get_about().map(ToString::to_string).unwrap_or_default(),
            "options": options,
        })
    };
    Value::from(verbs().map(verb).collect::<Vec<_>>()).to_string()
}

/// The words of a call of a verb.
pub fn words_of_call(verb: &str, given: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> PyResult<CallWords> {
    let Some(verb) = verbs().find(|known| known.get_name() == verb) else {
        let known: Vec<&str> = verbs().map(Command::get_name).collect();
        return Ok(Err(Fault::of_argument("verb", verb, "is no verb", &format!("use one of {}", known.join(", ")))));
    };
    let mut positional: Vec<&Arg> = arguments_of(verb).filter(|argument| argument.is_positional()).collect();
    positional.sort_by_key(|argument| argument.get_index());
    let (mut front, mut behind) = (vec![verb.get_name().to_owned()], Vec::new());
    let mut slots: Vec<Option<Vec<String>>> = vec![None; positional.len()];
    let mut at = 0;
    for value in given {
        let Some(argument) = positional.get(at) else {
            let most = positional.iter().map(|argument| python_name(argument)).collect::<Vec<_>>().join(", ");
            let cure = format!("{} takes {most} by position; give the others by name", verb.get_name());
            return Ok(Err(Fault::of_argument("arguments", &shown(&value), "there are too many", &cure)));
        };
        let words = match words_of_value(argument, &value)? {
            Ok(words) => words,
            Err(fault) => return Ok(Err(fault)),
        };
        slots[at].get_or_insert_default().extend(words);
        at += usize::from(!is_multiple(argument));
    }
    for (name, value) in named.into_iter().flat_map(|named| named.iter()) {
        let name: String = name.extract()?;
        let Some(argument) = find_argument(verb, &name) else { return Ok(Err(unknown_argument(verb, &name, &value))) };
        if value.is_none() {
            continue;
        }
        if let Some(at) = positional.iter().position(|known| known.get_id() == argument.get_id()) {
            if slots[at].is_some() {
                return Ok(Err(Fault::of_argument(&name, &shown(&value), "is given by position too", "give it once")));
            }
            match words_of_value(argument, &value)? {
                Ok(words) => slots[at] = Some(words),
                Err(fault) => return Ok(Err(fault)),
            }
            continue;
        }
        match words_of_option(argument, &value)? {
            Ok(words) => behind.extend(words),
            Err(fault) => return Ok(Err(fault)),
        }
    }
    front.extend(behind);
    // Behind `--` no word is an option.
    let values: Vec<String> = slots.into_iter().flatten().flatten().collect();
    if !values.is_empty() {
        front.push("--".to_owned());
        front.extend(values);
    }
    Ok(Ok(front))
}

/// The argument of a name: its own, or an alias of the option.
fn find_argument(verb: &'static Command, name: &str) -> Option<&'static Arg> {
    let flag = name.replace('_', "-");
    arguments_of(verb).find(|argument| {
        python_name(argument) == name || argument.get_all_aliases().is_some_and(|all| all.contains(&flag.as_str()))
    })
}

fn unknown_argument(verb: &'static Command, name: &str, value: &Bound<'_, PyAny>) -> Fault {
    let limit = format!("{} has no such argument", verb.get_name());
    if name == "format" {
        return Fault::of_argument(name, &shown(value), &limit, "leave it out: an answer has json() and text");
    }
    let known: Vec<String> = arguments_of(verb).map(python_name).collect();
    let cure = coplace::hint_of_name(name, &known.join(", "));
    Fault::of_argument(name, &shown(value), &limit, &cure)
}

/// A value as a message shows it.
fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string())
}

/// The words of an option with its value.
fn words_of_option(argument: &Arg, value: &Bound<'_, PyAny>) -> PyResult<CallWords> {
    let flag = format!("--{}", argument.get_long().unwrap_or_default());
    if is_switch(argument) {
        return Ok(match value.cast::<PyBool>() {
            Ok(on) if on.is_true() => Ok(vec![flag]),
            Ok(_) => Ok(Vec::new()),
            Err(_) => {
                Err(Fault::of_argument(&python_name(argument), &shown(value), "is no truth value", "use True or False"))
            }
        });
    }
    // An option whose value may be left out takes True.
    let may_be_alone = argument.get_num_args().is_some_and(|count| count.min_values() == 0);
    if may_be_alone && let Ok(on) = value.cast::<PyBool>() {
        return Ok(Ok(if on.is_true() { vec![flag] } else { Vec::new() }));
    }
    let words = match words_of_value(argument, value)? {
        Ok(words) => words,
        Err(fault) => return Ok(Err(fault)),
    };
    if words.is_empty() {
        let cure = "give a value, or leave it out";
        return Ok(Err(Fault::of_argument(&python_name(argument), &shown(value), "is an empty list", cure)));
    }
    if let Some(separator) = coplace::list_separator(argument) {
        return Ok(Ok(vec![format!("{flag}={}", words.join(&separator.to_string()))]));
    }
    if matches!(argument.get_action(), ArgAction::Append) || words.len() == 1 {
        return Ok(Ok(words.into_iter().map(|word| format!("{flag}={word}")).collect()));
    }
    Ok(Ok(std::iter::once(flag).chain(words).collect()))
}

/// The words of a value: of a number, a text or a path one, of a list one per entry.
fn words_of_value(argument: &Arg, value: &Bound<'_, PyAny>) -> PyResult<CallWords> {
    if let Some(word) = word_of_scalar(value)? {
        return Ok(Ok(vec![word]));
    }
    let name = python_name(argument);
    let fault = |limit: &str, cure: &str| Ok(Err(Fault::of_argument(&name, &shown(value), limit, cure)));
    let is_list = value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
    if !is_list {
        return fault("is no number, text or path", "give one, or a list of them where the option takes several");
    }
    if !is_multiple(argument) {
        return fault("is a list", "give one value");
    }
    let mut words = Vec::new();
    for entry in value.cast::<PySequence>()?.try_iter()? {
        match word_of_scalar(&entry?)? {
            Some(word) => words.push(word),
            None => return fault("has an entry that is no number, text or path", "give a flat list"),
        }
    }
    Ok(Ok(words))
}

/// The word of a number, a truth value, a text or a path; `None` for anything else.
fn word_of_scalar(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Some(flag.is_true().to_string()));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(Some(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(Some(value.str()?.to_string()));
    }
    if value.is_instance_of::<PyFloat>() {
        // `1e3` is the integer 1000 too.
        let number: f64 = value.extract()?;
        return Ok(Some(number.to_string()));
    }
    if value.hasattr("__fspath__")? {
        return Ok(Some(value.call_method0("__fspath__")?.extract()?));
    }
    // A number of NumPy, among others.
    if value.hasattr("__index__")? {
        return Ok(Some(value.call_method0("__index__")?.str()?.to_string()));
    }
    Ok(None)
}
