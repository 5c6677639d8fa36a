//! Reads the commands of a shell script as a shell with an empty environment would run them: assignments, arrays,
//! defaults, whole-number arithmetic, `if` and `case`. Nothing is executed. Source: POSIX.1-2017, "Shell Command
//! Language", and the reference manual of bash 5.

use super::shell_text::{ShellValue, ShellVariables, Token, arithmetic, assignment, fields, scalar, tokens};
use std::collections::{BTreeMap, BTreeSet};

/// The value of an option that depends on a condition which the script does not decide.
pub(super) const UNDECIDED: &str = "$(if)";

/// Deepest nesting of conditions, loops and groups.
const MOST_LEVELS: usize = 64;

/// Largest number of commands of a script.
const MOST_COMMANDS: usize = 1 << 14;

/// The variables and commands of a script so far.
#[derive(Debug, Clone, Default)]
pub(super) struct ShellRun {
    pub(super) variables: ShellVariables,
    /// The commands with their words.
    pub(super) commands: Vec<Vec<String>>,
    exited: bool,
}

/// Returns the variables that a script sets and the commands that it runs.
pub(super) fn run_script(text: &str) -> ShellRun {
    let tokens = tokens(text);
    let mut reader = Reader { tokens: &tokens, at: 0, level: 0 };
    let mut run = ShellRun::default();
    while reader.at < tokens.len() {
        reader.list(&mut run, &[]);
        reader.at += 1;
    }
    run
}

/// Returns the options among words, each with the words that follow it as values.
pub(super) fn options_of(words: &[String]) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for word in words {
        match word.strip_prefix("--") {
            Some(named) if !named.is_empty() => {
                let (name, value) = named.split_once('=').map_or((named, None), |(name, value)| (name, Some(value)));
                let value = value.filter(|value| !value.is_empty()).map(str::to_owned);
                found.push((name.replace('_', "-"), value.into_iter().collect()));
            }
            _ => {
                if let Some((_, values)) = found.last_mut() {
                    values.push(word.clone());
                }
            }
        }
    }
    found
}

/// Merges lists of words, one of which applies. An option that does not have the same values in all lists is undecided.
pub(super) fn merge_words<'a>(lists: impl Iterator<Item = &'a Vec<String>>) -> Vec<String> {
    let all: Vec<BTreeMap<_, _>> = lists.map(|words| options_of(words).into_iter().collect()).collect();
    let names: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let mut merged = Vec::new();
    for name in names {
        let first = all.first().and_then(|options| options.get(name));
        merged.push(format!("--{name}"));
        match first.filter(|_| all.iter().all(|options| options.get(name) == first)) {
            Some(values) => merged.extend(values.iter().cloned()),
            None => merged.push(UNDECIDED.to_owned()),
        }
    }
    merged
}

/// Merges the states after alternative branches. A branch that exits counts only if all branches exit.
fn merge(start: &ShellRun, branches: Vec<ShellRun>) -> ShellRun {
    let running: Vec<ShellRun> = branches.iter().filter(|branch| !branch.exited).cloned().collect();
    let branches = if running.is_empty() { branches } else { running };
    if let [only] = branches.as_slice() {
        return only.clone();
    }
    let mut merged = start.clone();
    let names: BTreeSet<&String> = branches.iter().flat_map(|branch| branch.variables.keys()).collect();
    for name in names {
        let first = branches[0].variables.get(name);
        let value = match first.filter(|_| branches.iter().all(|branch| branch.variables.get(name) == first)) {
            Some(value) => value.clone(),
            None => ShellValue::OneOf(
                branches
                    .iter()
                    .flat_map(|branch| match branch.variables.get(name) {
                        Some(ShellValue::Known(words)) => BTreeSet::from([words.clone()]),
                        Some(ShellValue::OneOf(lists)) => lists.clone(),
                        None => BTreeSet::from([Vec::new()]),
                    })
                    .collect(),
            ),
        };
        merged.variables.insert(name.clone(), value);
    }
    let before = start.commands.len();
    let own: Vec<&[Vec<String>]> = branches.iter().map(|branch| &branch.commands[before..]).collect();
    if own.iter().all(|commands| *commands == own[0]) {
        merged.commands.extend_from_slice(own[0]);
    } else {
        let options: Vec<Vec<String>> = own.iter().map(|commands| commands.concat()).collect();
        let script = options.iter().flatten().find(|word| word.ends_with(".py")).cloned();
        merged.commands.push(script.into_iter().chain(merge_words(options.iter())).collect());
    }
    merged
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    level: usize,
}

impl Reader<'_> {
    fn word(&self) -> Option<&str> {
        match self.tokens.get(self.at) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn operator(&self) -> Option<&str> {
        match self.tokens.get(self.at) {
            Some(Token::Operator(operator)) => Some(operator),
            _ => None,
        }
    }

    /// Runs commands until a word or operator of `ends` stands where a command begins. Returns true if the last command
    /// succeeded; `None` if the script does not decide it.
    fn list(&mut self, run: &mut ShellRun, ends: &[&str]) -> Option<bool> {
        let mut status = Some(true);
        let mut joined = ";".to_owned();
        while self.at < self.tokens.len() {
            if self.word().or_else(|| self.operator()).is_some_and(|word| ends.contains(&word)) {
                return status;
            }
            if let Some(operator) = self.operator().filter(|operator| *operator != "(") {
                joined = operator.to_owned();
                self.at += 1;
                continue;
            }
            let runs = match joined.as_str() {
                "&&" => status,
                "||" => status.map(|succeeded| !succeeded),
                _ => Some(true),
            };
            let mut branch = run.clone();
            let own = self.command(&mut branch);
            // An exit after `||` handles an error. It is ignored, because the script is read as a run without errors.
            branch.exited &= joined != "||" || branch.exited == run.exited;
            match runs {
                Some(true) => (*run, status) = (branch, own),
                Some(false) => {}
                None => {
                    let without = run.clone();
                    (*run, status) = (merge(run, vec![without, branch]), None);
                }
            }
            ";".clone_into(&mut joined);
        }
        status
    }

    /// Runs one command, loop or condition. Returns true if it succeeded; `None` if the script does not decide it.
    fn command(&mut self, run: &mut ShellRun) -> Option<bool> {
        if self.level > MOST_LEVELS || run.commands.len() > MOST_COMMANDS {
            self.at = self.tokens.len();
            return None;
        }
        self.level += 1;
        let opening = self.word().or_else(|| self.operator()).unwrap_or_default().to_owned();
        let status = match opening.as_str() {
            "if" => self.condition(run),
            "case" => self.case(run),
            "for" | "select" => self.counted_loop(run),
            "while" | "until" => {
                self.at += 1;
                let runs = self.list(run, &["do"]).map(|runs| runs == (opening == "while"));
                self.at += 1;
                let mut body = run.clone();
                self.list(&mut body, &["done"]);
                if runs != Some(false) {
                    *run = body;
                }
                self.at += 1;
                Some(true)
            }
            "(" | "{" => {
                self.at += 1;
                let status = self.list(run, &[if opening == "(" { ")" } else { "}" }]);
                self.at += 1;
                status
            }
            "!" => {
                self.at += 1;
                self.command(run).map(|succeeded| !succeeded)
            }
            _ => self.simple(run),
        };
        self.level -= 1;
        status
    }

    fn condition(&mut self, run: &mut ShellRun) -> Option<bool> {
        let start = run.clone();
        // `None` once a branch runs for certain, because the branches after it do not run.
        let mut before = Some(start.clone());
        let mut branches = Vec::new();
        while matches!(self.word(), Some("if" | "elif" | "else")) {
            let last = self.word() == Some("else");
            self.at += 1;
            let mut branch = before.clone().unwrap_or_else(|| start.clone());
            let runs = if last { Some(true) } else { self.list(&mut branch, &["then"]) };
            self.at += usize::from(!last);
            self.list(&mut branch, &["elif", "else", "fi"]);
            if before.is_some() && runs != Some(false) {
                branches.push(branch);
            }
            if runs == Some(true) {
                before = None;
            }
        }
        self.at += 1;
        branches.extend(before);
        *run = merge(&start, branches);
        Some(true)
    }

    fn case(&mut self, run: &mut ShellRun) -> Option<bool> {
        self.at += 1;
        let subject = scalar(self.word().unwrap_or_default(), &run.variables);
        self.at += 1;
        while self.operator() == Some("\n") || self.word() == Some("in") {
            self.at += 1;
        }
        let start = run.clone();
        let (mut branches, mut decided) = (Vec::new(), false);
        while self.at < self.tokens.len() && self.word() != Some("esac") {
            let mut matches = Some(false);
            while self.at < self.tokens.len() && self.operator() != Some(")") {
                if let Some(pattern) = self.word() {
                    let plain = scalar(pattern, &run.variables);
                    let open = plain.contains(['$', '*', '?', '[']) && plain != "*";
                    matches = match (plain == "*" || plain == subject, open || subject.contains('$')) {
                        _ if matches == Some(true) => matches,
                        (true, _) => Some(true),
                        (false, true) => None,
                        (false, false) => matches,
                    };
                }
                self.at += 1;
            }
            self.at += 1;
            let mut branch = start.clone();
            self.list(&mut branch, &[";;", "esac"]);
            if !decided && matches != Some(false) {
                branches.push(branch);
            }
            decided |= matches == Some(true);
            while matches!(self.operator(), Some(";;" | "\n" | ";")) {
                self.at += 1;
            }
        }
        self.at += 1;
        branches.extend((!decided).then(|| start.clone()));
        *run = merge(&start, branches);
        Some(true)
    }

    /// Runs the body of a `for` once, with its variable standing for any one of the values.
    fn counted_loop(&mut self, run: &mut ShellRun) -> Option<bool> {
        self.at += 1;
        let name = self.word().unwrap_or_default().to_owned();
        let mut words = Vec::new();
        while self.at < self.tokens.len() && self.word() != Some("do") {
            words.extend(self.word().map(|word| fields(word, &run.variables)).unwrap_or_default());
            self.at += 1;
        }
        let values = words.into_iter().skip(1).filter(|word| word != "in").map(|word| vec![word]).collect();
        run.variables.insert(name, ShellValue::OneOf(values));
        self.at += 1;
        self.list(run, &["done"]);
        self.at += 1;
        Some(true)
    }

    /// Runs a command that contains no other commands, and the assignments before it.
    fn simple(&mut self, run: &mut ShellRun) -> Option<bool> {
        let mut words: Vec<String> = Vec::new();
        let mut raw: Vec<String> = Vec::new();
        while let Some(token) = self.tokens.get(self.at) {
            let assigns = raw.is_empty() || ["export", "declare", "local", "readonly", "typeset"].contains(&&*raw[0]);
            match token {
                // Inside `[[ ]]`, operators join conditions.
                Token::Operator(operator) if raw.first().is_some_and(|word| word == "[[") && operator != "\n" => {
                    raw.push(operator.clone());
                }
                Token::Operator(operator) if operator == "(" && raw.len() == 1 => {
                    // A function's body is read at its definition.
                    self.at += 2;
                    return Some(true);
                }
                Token::Operator(_) => break,
                Token::Array { name, append, words } => {
                    let values = words.iter().flat_map(|word| fields(word, &run.variables)).collect();
                    assign(&mut run.variables, name, *append, values);
                }
                Token::Word(word) => match assignment(word).filter(|_| assigns) {
                    Some((name, append, value)) => {
                        let value = scalar(value, &run.variables);
                        assign(&mut run.variables, name, append, vec![value]);
                    }
                    None => {
                        raw.push(word.clone());
                        words.extend(fields(word, &run.variables));
                    }
                },
            }
            self.at += 1;
            if raw.last().is_some_and(|word| word == "]]") {
                break;
            }
        }
        match raw.first().map(String::as_str) {
            None => Some(true),
            Some("[" | "[[" | "test") => test(&raw, &run.variables),
            Some("true" | ":" | "shift" | "set" | "echo" | "printf" | "export" | "declare" | "local" | "function") => {
                Some(true)
            }
            Some("false") => Some(false),
            Some("exit" | "return") => {
                run.exited = true;
                Some(true)
            }
            Some(_) => {
                run.commands.push(words);
                Some(true)
            }
        }
    }
}

fn assign(variables: &mut ShellVariables, name: &str, append: Option<bool>, values: Vec<String>) {
    let joined = |before: &[String]| match append {
        None => values.clone(),
        // Appending to a list adds elements; appending to a text adds letters.
        Some(true) => [before, &values].concat(),
        Some(false) => vec![before.concat() + &values.concat()],
    };
    let value = match variables.get(name) {
        Some(ShellValue::OneOf(lists)) if append.is_some() => {
            ShellValue::OneOf(lists.iter().map(|before| joined(before)).collect())
        }
        Some(ShellValue::Known(before)) => ShellValue::Known(joined(before)),
        _ => ShellValue::Known(joined(&[])),
    };
    variables.insert(name.to_owned(), value);
}

/// Returns the result of `[ ... ]` or `[[ ... ]]`; `None` if the script does not decide it.
fn test(raw: &[String], variables: &ShellVariables) -> Option<bool> {
    let inner = &raw[1..];
    let inner = inner.strip_suffix(&["]".to_owned()]).or(inner.strip_suffix(&["]]".to_owned()])).unwrap_or(inner);
    let any = |parts: Vec<Option<bool>>, wins: bool| match parts.contains(&Some(wins)) {
        true => Some(wins),
        false if parts.contains(&None) => None,
        false => Some(!wins),
    };
    let split = |at: [&str; 2]| -> Vec<Option<bool>> {
        inner.split(|word| at.contains(&word.as_str())).map(|part| test_one(part, variables)).collect()
    };
    if inner.iter().any(|word| word == "||" || word == "-o") {
        return any(split(["||", "-o"]), true).filter(|_| !inner.iter().any(|word| word == "&&" || word == "-a"));
    }
    any(split(["&&", "-a"]), false)
}

fn test_one(words: &[String], variables: &ShellVariables) -> Option<bool> {
    let value = |word: &str| scalar(word, variables);
    match words {
        [not, rest @ ..] if not == "!" => test_one(rest, variables).map(|holds| !holds),
        [operator, word] if operator == "-z" || operator == "-n" => {
            let text = value(word);
            // A variable that neither the script nor its call sets is empty.
            let unset = text.strip_prefix('$').is_some_and(|name| {
                let name = name.trim_start_matches('{').trim_end_matches('}');
                !variables.contains_key(name) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            });
            let empty = text.is_empty() || unset;
            (empty || !text.contains('$')).then_some(empty == (operator == "-z"))
        }
        [left, operator, right] => {
            let [left, right] = [value(left), value(right)];
            if left.contains('$') || right.contains('$') {
                return None;
            }
            let numbers = || Some((arithmetic(&left, variables)?, arithmetic(&right, variables)?));
            match operator.as_str() {
                "=" | "==" if !right.contains(['*', '?']) => Some(left == right),
                "!=" if !right.contains(['*', '?']) => Some(left != right),
                "-eq" => numbers().map(|(left, right)| left == right),
                "-ne" => numbers().map(|(left, right)| left != right),
                "-gt" => numbers().map(|(left, right)| left > right),
                "-ge" => numbers().map(|(left, right)| left >= right),
                "-lt" => numbers().map(|(left, right)| left < right),
                "-le" => numbers().map(|(left, right)| left <= right),
                _ => None,
            }
        }
        _ => None,
    }
}
