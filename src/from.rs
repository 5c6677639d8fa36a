//! `--from FILE`: adds the options that a framework's file states to the words of a command line, before the words are
//! parsed. Options that the call gives itself take precedence.

use crate::failure::{Failure, OrInput, option_failure};
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};
use interop::framework::{FrameworkContext, FrameworkModel, FrameworkRun, read_framework_file};
use sim::files::carried::Files;
use std::ffi::OsString;
use std::path::Path;

/// The name of the option.
const FROM: &str = "from";

/// The options in the words of a call with their values, and the first positional value.
#[derive(Default)]
struct GivenWords {
    options: Vec<(String, String)>,
    positional: Option<String>,
}

impl GivenWords {
    /// Sorts the words after a verb. Options that the verb does not have are left to the parser.
    fn of_words(words: &[String], verb: &Command) -> Self {
        let mut given = Self::default();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let Some(named) = word.strip_prefix("--").filter(|named| !named.is_empty()) else {
                given.positional =
                    given.positional.or_else(|| Some(word.clone()).filter(|word| !word.starts_with('-')));
                continue;
            };
            let (name, value) = named.split_once('=').map_or((named, None), |(name, value)| (name, Some(value)));
            let known = verb.get_arguments().find(|argument| names_of(argument).any(|known| known == name));
            let Some(known) = known else { continue };
            let takes_value = known.get_action().takes_values();
            let value = value.map(str::to_owned).or_else(|| takes_value.then(|| rest.next().cloned()).flatten());
            given.options.push((known.get_long().unwrap_or(name).to_owned(), value.unwrap_or_default()));
        }
        given
    }

    fn value_of(&self, option: &str) -> Option<&str> {
        self.options.iter().find(|(name, _)| name == option).map(|(_, value)| value.as_str())
    }
}

/// Returns the names of an option: its own, and its aliases.
fn names_of(argument: &Arg) -> impl Iterator<Item = &str> {
    let aliases = argument.get_all_aliases().unwrap_or_default();
    argument.get_long().into_iter().chain(aliases)
}

/// The words of a call with the options of a file.
#[derive(Default)]
pub struct MergedWords {
    /// The words.
    pub words: Vec<OsString>,
    /// The file's name and what it states; `None` without `--from`.
    run: Option<(String, FrameworkRun)>,
}

impl MergedWords {
    /// Adds the file's key to the parser's error about a value that the file states.
    pub fn name_key_of_file(&self, error: &mut clap::Error) {
        let Some((file, run)) = &self.run else { return };
        let (Some(ContextValue::String(option)), Some(ContextValue::String(value))) =
            (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
        else {
            return;
        };
        let option = option.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default();
        if !run.options.iter().any(|(stated, own)| *stated == option && own == value) {
            return;
        }
        let same: Vec<String> = run
            .keys
            .iter()
            .filter(|(_, stated)| stated == value)
            .map(|(key, stated)| format!("`{key} = {stated}`"))
            .collect();
        let from = if same.is_empty() { "its keys".to_owned() } else { same.join(" or ") };
        let tip = format!("--{option} follows from {from} in {file}: correct it there, or give --{option}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
}

/// Adds the options that the file of `--from` states and the call does not give, and the file's model if the call names
/// none. A model that the file describes is put into `files` under the file's name. Words without `--from` are returned
/// unchanged.
///
/// # Errors
/// A file that cannot be read, or that is not understood.
pub fn with_file_options(words: Vec<OsString>, command: &Command, files: &mut Files) -> Result<MergedWords, Failure> {
    let as_given = |words| Ok(MergedWords { words, run: None });
    let texts: Option<Vec<String>> = words.iter().map(|word| word.to_str().map(str::to_owned)).collect();
    let (Some((verb, rest)), true) = (texts.as_deref().and_then(<[String]>::split_first), words.len() > 1) else {
        return as_given(words);
    };
    let Some(verb) = command.find_subcommand(verb) else { return as_given(words) };
    let given = GivenWords::of_words(rest, verb);
    let Some(file) = given.value_of(FROM).filter(|_| verb.get_arguments().any(|known| known.get_long() == Some(FROM)))
    else {
        return as_given(words);
    };
    let path = Path::new(file);
    let text = files.read(path).map_err(|error| {
        option_failure("--from", file, format!("cannot be read: {error}"), "give a framework's file")
    })?;
    let assumed: Vec<String> = given
        .options
        .iter()
        .filter(|(name, _)| name == "assume")
        .filter_map(|(_, value)| value.strip_suffix("=ignored").map(str::to_owned))
        .collect();
    let context = FrameworkContext {
        devices: given.value_of("devices").and_then(|value| value.parse().ok()),
        // A call from another program must name a model. It gives the file's own name if the file has the model.
        model_is_named: given.positional.as_deref().is_some_and(|named| named != file),
        documents_are_given: given.value_of("documents").is_some(),
        assumed: &assumed,
    };
    let run = read_framework_file(file, &text, context).or_input()?;
    run.notes.iter().for_each(|note| tracing::warn!("--from {file}: {note}"));
    let words = merged_words(words, &given, &run, file, files);
    Ok(MergedWords { words, run: Some((file.to_owned(), run)) })
}

/// Returns the words with the file's options after the verb.
fn merged_words(
    words: Vec<OsString>,
    given: &GivenWords,
    run: &FrameworkRun,
    file: &str,
    files: &mut Files,
) -> Vec<OsString> {
    // Options that may be given several times go before the user's own, because the last one counts.
    let stated = run
        .options
        .iter()
        .filter(|(option, _)| ["stack-option", "technique"].contains(option) || given.value_of(option).is_none());
    let mut added: Vec<OsString> = stated.map(|(option, value)| format!("--{option}={value}").into()).collect();
    match &run.model {
        None => {}
        Some(FrameworkModel::BuiltIn(name)) => added.push(name.into()),
        Some(FrameworkModel::Config(config)) => {
            files.insert(Path::new(file), config.clone());
            added.extend(given.positional.is_none().then(|| OsString::from(file)));
        }
    }
    // These assumptions are about keys of the file, so the verb must not apply them to a model.
    let is_of_file =
        |value: &str| value.strip_suffix("=ignored").is_some_and(|key| run.assumed.iter().any(|k| k == key));
    let mut kept: Vec<OsString> = Vec::with_capacity(words.len() + added.len());
    let by_name = matches!(run.model, Some(FrameworkModel::BuiltIn(_)));
    for word in words {
        let text = word.to_str().unwrap_or_default();
        let last_is = |flag: &str| kept.last().is_some_and(|last| last == flag);
        if last_is("--assume") && is_of_file(text) {
            kept.pop();
        } else if by_name && text == file && !last_is("--from") {
            // The file's name stands in the model's place.
        } else if !text.strip_prefix("--assume=").is_some_and(is_of_file) {
            kept.push(word);
        }
    }
    kept.splice(1..1, added);
    kept
}
