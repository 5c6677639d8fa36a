//! Turns named arguments into the words of a command line, with the command's own table of options. Python and agents
//! call the verbs this way.

use crate::failure::CallFault;
use crate::written_path::WrittenPath;
use clap::{Arg, ArgAction, Command};
use serde_json::{Value, json};
use sim::files::FaultParts;
use std::any::TypeId;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The value of an argument.
#[derive(Debug, Clone, PartialEq)]
pub enum ArgumentValue {
    /// No value: the call is as if the argument were not given.
    Absent,
    /// A truth value.
    Flag(bool),
    /// A number, a text or a path, as it stands on a command line.
    Word(String),
    /// A list of values.
    List(Vec<ArgumentValue>),
    /// Anything else, which no argument takes.
    Other,
}

impl ArgumentValue {
    /// Converts a JSON value. An object becomes [`Self::Other`], because no argument takes one.
    #[must_use]
    pub fn from_json(value: &Value) -> Self {
        match value {
            Value::Null => Self::Absent,
            Value::Bool(flag) => Self::Flag(*flag),
            // A whole number that JSON writes as a float, such as `1e3`, becomes the word of an integer.
            Value::Number(number) => Self::Word(match number.as_f64().filter(|_| number.is_f64()) {
                Some(real) => real.to_string(),
                None => number.to_string(),
            }),
            Value::String(text) => Self::Word(text.clone()),
            Value::Array(entries) => Self::List(entries.iter().map(Self::from_json).collect()),
            Value::Object(_) => Self::Other,
        }
    }

    /// Returns the word of a number, a truth value, a text or a path; `None` for anything else.
    fn word(&self) -> Option<String> {
        match self {
            Self::Flag(flag) => Some(flag.to_string()),
            Self::Word(word) => Some(word.clone()),
            Self::Absent | Self::List(_) | Self::Other => None,
        }
    }
}

/// An argument of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenArgument {
    /// The value.
    pub value: ArgumentValue,
    /// The value as messages show it.
    pub shown: String,
}

impl GivenArgument {
    /// Converts a JSON value, which messages show as JSON.
    #[must_use]
    pub fn from_json(value: &Value) -> Self {
        Self { value: ArgumentValue::from_json(value), shown: value.to_string() }
    }
}

/// The words of a call, or the fault of an argument.
pub type CallWords = Result<Vec<String>, Box<CallFault>>;

/// The verbs that run until they are stopped. Only the program runs them; other programs cannot call them.
pub const SERVING_VERBS: [&str; 2] = ["mcp", "page"];

/// Returns the command's table of verbs and options, which is built once.
fn table() -> &'static Command {
    static TABLE: OnceLock<Command> = OnceLock::new();
    TABLE.get_or_init(crate::command)
}

/// Returns the verbs that other programs call: all but those for shells and packagers, and those that serve.
pub fn callable_verbs() -> impl Iterator<Item = &'static Command> {
    table()
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help" && !SERVING_VERBS.contains(&verb.get_name()))
}

/// Returns the arguments of a verb that other programs can give: all except help, version and format. Every answer has
/// both formats.
pub fn arguments_of(verb: &'static Command) -> impl Iterator<Item = &'static Arg> {
    verb.get_arguments().filter(|argument| !matches!(argument.get_id().as_str(), "help" | "version" | "format"))
}

/// Returns the arguments of a verb that are given by position, in order.
fn positional_arguments(verb: &'static Command) -> Vec<&'static Arg> {
    let mut found: Vec<&Arg> = arguments_of(verb).filter(|argument| argument.is_positional()).collect();
    found.sort_by_key(|argument| argument.get_index());
    found
}

/// Returns the name of an argument: the option with `_` for `-`. A keyword of Python gets a trailing `_`.
#[must_use]
pub fn name_of_argument(argument: &Arg) -> String {
    let name = argument.get_long().unwrap_or(argument.get_id().as_str()).replace('-', "_");
    // A keyword of Python cannot be a keyword argument.
    if matches!(name.as_str(), "from" | "in" | "with" | "for") { name + "_" } else { name }
}

/// True if an argument takes several values.
#[must_use]
pub fn is_multiple(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
        || argument.get_num_args().is_some_and(|count| count.max_values() > 1)
        || list_separator(argument).is_some()
}

/// Returns the separator of an option's values, if it takes a list in one word; `None` if it takes one value.
fn list_separator(option: &Arg) -> Option<char> {
    let is_axes = option.get_value_parser().type_id() == crate::verb::search::axes_type();
    option.get_value_delimiter().or(is_axes.then_some(','))
}

fn is_switch(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::SetTrue)
}

/// True if an option's value may be left out.
fn may_be_alone(argument: &Arg) -> bool {
    argument.get_num_args().is_some_and(|count| count.min_values() == 0)
}

/// True if a verb writes to the path that the argument names.
#[must_use]
pub fn is_written(argument: &Arg) -> bool {
    argument.get_value_parser().type_id() == TypeId::of::<WrittenPath>()
}

/// Returns the allowed words of an argument; empty if it takes any word.
#[must_use]
pub fn choices_of(argument: &Arg) -> Vec<String> {
    let shown = |value: &clap::builder::PossibleValue| value.get_name().to_owned();
    argument.get_possible_values().iter().map(shown).collect()
}

/// Returns the type of an argument's values: `flag`, `int`, `float`, `path`, `text`, or `scalar` for a list whose
/// entries may be numbers or texts.
#[must_use]
pub fn kind_of_argument(argument: &Arg) -> &'static str {
    let of = argument.get_value_parser().type_id();
    let is = |types: &[TypeId]| types.iter().any(|known| of == *known);
    if is_switch(argument) || choices_of(argument) == ["true", "false"] {
        "flag"
    } else if is(&[TypeId::of::<u64>(), TypeId::of::<u32>(), TypeId::of::<u16>(), TypeId::of::<u8>()]) {
        "int"
    } else if is(&[TypeId::of::<f64>()]) {
        "float"
    } else if is(&[TypeId::of::<PathBuf>()]) || is_written(argument) {
        "path"
    } else if argument.get_value_delimiter().is_some() && choices_of(argument).is_empty() {
        "scalar"
    } else {
        "text"
    }
}

/// Returns the verbs that other programs can call, with their options, as JSON.
#[must_use]
pub fn options_as_json() -> Value {
    let option = |argument: &'static Arg| {
        json!({
            "name": name_of_argument(argument),
            "flag": argument.get_long(),
            "positional": argument.is_positional(),
            "required": argument.is_required_set(),
            "kind": kind_of_argument(argument),
            "multiple": is_multiple(argument),
            "writes": is_written(argument),
            "choices": if kind_of_argument(argument) == "flag" { Vec::new() } else { choices_of(argument) },
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
    Value::from(callable_verbs().map(verb).collect::<Vec<_>>())
}

/// Makes a fault of an argument, with exit code 2 and the message `KEY = VALUE: LIMIT; CURE`.
#[must_use]
pub fn argument_fault(key: &str, value: &str, limit: &str, cure: &str) -> Box<CallFault> {
    let message = format!("{key} = {value}: {limit}; {cure}");
    Box::new(CallFault::of_parts(2, message, FaultParts::of_key(key, value, limit, cure)))
}

/// Returns the callable verb with this name.
///
/// # Errors
/// The name of no callable verb.
pub fn find_verb(name: &str) -> Result<&'static Command, Box<CallFault>> {
    callable_verbs().find(|known| known.get_name() == name).ok_or_else(|| {
        let known: Vec<&str> = callable_verbs().map(Command::get_name).collect();
        argument_fault("verb", name, "is no verb", &format!("use one of {}", known.join(", ")))
    })
}

/// Returns the words of a command line that calls `verb`, with `given` by position and `named` by name.
///
/// # Errors
/// An unknown verb or argument, or a value of another form than the argument has.
pub fn words_of_call(verb: &str, given: &[GivenArgument], named: &[(String, GivenArgument)]) -> CallWords {
    let verb = find_verb(verb)?;
    let positional = positional_arguments(verb);
    let (mut front, mut behind) = (vec![verb.get_name().to_owned()], Vec::new());
    let mut slots: Vec<Option<Vec<String>>> = vec![None; positional.len()];
    let mut at = 0;
    for value in given {
        let Some(argument) = positional.get(at) else {
            let most = positional.iter().map(|argument| name_of_argument(argument)).collect::<Vec<_>>().join(", ");
            let cure = format!("{} takes {most} by position; give the others by name", verb.get_name());
            return Err(argument_fault("arguments", &value.shown, "there are too many", &cure));
        };
        slots[at].get_or_insert_default().extend(words_of_value(argument, value)?);
        at += usize::from(!is_multiple(argument));
    }
    for (name, value) in named {
        let argument = find_argument(verb, name).ok_or_else(|| unknown_argument(verb, name, value))?;
        if value.value == ArgumentValue::Absent {
            continue;
        }
        match positional.iter().position(|known| known.get_id() == argument.get_id()) {
            Some(at) if slots[at].is_some() => {
                return Err(argument_fault(name, &value.shown, "is given by position too", "give it once"));
            }
            Some(at) => slots[at] = Some(words_of_value(argument, value)?),
            None => behind.extend(words_of_option(argument, value)?),
        }
    }
    front.extend(behind);
    // Behind `--` no word is an option.
    let values: Vec<String> = slots.into_iter().flatten().flatten().collect();
    if !values.is_empty() {
        front.push("--".to_owned());
        front.extend(values);
    }
    Ok(front)
}

/// Returns the argument with this name or alias; `None` if the verb has none.
#[must_use]
pub fn find_argument(verb: &'static Command, name: &str) -> Option<&'static Arg> {
    let flag = name.replace('_', "-");
    arguments_of(verb).find(|argument| {
        name_of_argument(argument) == name || argument.get_all_aliases().is_some_and(|all| all.contains(&flag.as_str()))
    })
}

fn unknown_argument(verb: &'static Command, name: &str, value: &GivenArgument) -> Box<CallFault> {
    let limit = format!("{} has no such argument", verb.get_name());
    if name == "format" {
        return argument_fault(name, &value.shown, &limit, "leave it out: an answer has json() and text");
    }
    let known: Vec<String> = arguments_of(verb).map(name_of_argument).collect();
    argument_fault(name, &value.shown, &limit, &sim::names::hint(name, &known.join(", "), "it has"))
}

/// Returns the words that give an option its value; none for a flag that is off.
fn words_of_option(argument: &Arg, given: &GivenArgument) -> CallWords {
    let flag = format!("--{}", argument.get_long().unwrap_or_default());
    let fault = |limit: &str, cure: &str| argument_fault(&name_of_argument(argument), &given.shown, limit, cure);
    match given.value {
        // True gives the option without a value; false leaves it out.
        ArgumentValue::Flag(on) if is_switch(argument) || may_be_alone(argument) => {
            return Ok(if on { vec![flag] } else { Vec::new() });
        }
        _ if is_switch(argument) => return Err(fault("is no truth value", "use True or False")),
        _ => {}
    }
    let words = words_of_value(argument, given)?;
    if words.is_empty() {
        return Err(fault("is an empty list", "give a value, or leave it out"));
    }
    if let Some(separator) = list_separator(argument) {
        return Ok(vec![format!("{flag}={}", words.join(&separator.to_string()))]);
    }
    if matches!(argument.get_action(), ArgAction::Append) || words.len() == 1 {
        return Ok(words.into_iter().map(|word| format!("{flag}={word}")).collect());
    }
    Ok(std::iter::once(flag).chain(words).collect())
}

/// Returns the words of a value: one for a number, a truth value, a text or a path, and one per entry for a list.
fn words_of_value(argument: &Arg, given: &GivenArgument) -> CallWords {
    let fault = |limit: &str, cure: &str| argument_fault(&name_of_argument(argument), &given.shown, limit, cure);
    match &given.value {
        ArgumentValue::List(_) if !is_multiple(argument) => Err(fault("is a list", "give one value")),
        ArgumentValue::List(entries) => {
            let words: Option<Vec<String>> = entries.iter().map(ArgumentValue::word).collect();
            words.ok_or_else(|| fault("has an entry that is no number, text or path", "give a flat list"))
        }
        value => value.word().map(|word| vec![word]).ok_or_else(|| {
            fault("is no number, text or path", "give one, or a list of them where the option takes several")
        }),
    }
}
