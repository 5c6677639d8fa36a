//! Splits the text of a shell script into words: quotes, comments and lists, with variables replaced.

use std::collections::{BTreeMap, BTreeSet};

/// Deepest nesting of variables.
const MOST_DEPTH: usize = 32;

/// The value of a variable; a plain value is a list of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ShellValue {
    /// The words.
    Known(Vec<String>),
    /// The possible words, if the script does not decide which branch runs.
    OneOf(BTreeSet<Vec<String>>),
}

/// The variables of a script.
pub(super) type ShellVariables = BTreeMap<String, ShellValue>;

/// A part of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A word as it is written, with its quotes.
    Word(String),
    /// `NAME=(...)`, with `append` as `None`; or `NAME+=(...)`, with `append` as `Some(true)`.
    Array { name: String, append: Option<bool>, words: Vec<String> },
    /// A sign that ends or joins commands; `\n` for the end of a line.
    Operator(String),
}

/// Splits `NAME=VALUE` or `NAME+=VALUE` into the name, the kind of appending (`None` for `=`, `Some(false)` for `+=`),
/// and the value; `None` for any other word.
pub(super) fn assignment(word: &str) -> Option<(&str, Option<bool>, &str)> {
    let (name, value) = word.split_once('=')?;
    let (name, append) = name.strip_suffix('+').map_or((name, None), |name| (name, Some(false)));
    let starts = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let is_name = starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, append, value))
}

/// Returns the index after the group that `open` begins at `at`. Nested groups and quotes inside are respected.
fn behind(text: &[char], at: usize, open: char, close: char) -> usize {
    let (mut depth, mut quote, mut at) = (0_usize, None, at);
    while let Some(&c) = text.get(at) {
        match (quote, c) {
            (Some('"') | None, '\\') => at += 1,
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '#') if at > 0 && text[at - 1].is_whitespace() => {
                at += text[at..].iter().take_while(|c| **c != '\n').count();
                continue;
            }
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if c == open => depth += 1,
            (None, c) if c == close => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// Returns the index after the quoted text, the `$`-expression or the letter at `at`.
fn unit_end(text: &[char], at: usize) -> usize {
    let find = |close: char, from: usize| {
        let mut end = from;
        while end < text.len() && text[end] != close {
            end += if text[end] == '\\' && close != '\'' { 2 } else { 1 };
        }
        (end + 1).min(text.len())
    };
    match (text[at], text.get(at + 1)) {
        ('\\', _) => (at + 2).min(text.len()),
        ('\'', _) => find('\'', at + 1),
        ('`', _) => find('`', at + 1),
        ('"', _) => {
            let mut end = at + 1;
            while end < text.len() && text[end] != '"' {
                end = match text[end] {
                    '\'' => end + 1,
                    _ => unit_end(text, end),
                };
            }
            (end + 1).min(text.len())
        }
        ('$', Some('(')) => behind(text, at + 1, '(', ')'),
        ('$', Some('{')) => behind(text, at + 1, '{', '}'),
        _ => at + 1,
    }
}

/// Splits a script into tokens, without comments, redirections and here-documents.
pub(super) fn tokens(script: &str) -> Vec<Token> {
    let text: Vec<char> = script.replace("\\\r\n", " ").replace("\\\n", " ").replace('\r', "").chars().collect();
    let mut splitter = ScriptSplitter { text, at: 0, word: String::new(), heredoc_ends: Vec::new(), found: Vec::new() };
    while let Some(&c) = splitter.text.get(splitter.at) {
        splitter.read_from(c);
    }
    splitter.end_word();
    splitter.found
}

/// A script that is being split.
struct ScriptSplitter {
    text: Vec<char>,
    at: usize,
    /// The word so far.
    word: String,
    /// The lines that end the here-documents that begin after this line.
    heredoc_ends: Vec<String>,
    found: Vec<Token>,
}

impl ScriptSplitter {
    /// Reads what begins with the letter `c` at the current place.
    fn read_from(&mut self, c: char) {
        let next = self.text.get(self.at + 1).copied();
        match c {
            '\n' => {
                self.push_operator("\n".to_owned());
                self.at += 1;
                self.skip_heredocs();
            }
            c if c.is_whitespace() => {
                self.end_word();
                self.at += 1;
            }
            '#' if self.word.is_empty() => self.at += self.count_while(|c| c != '\n'),
            '<' | '>' => self.skip_redirection(),
            '(' if self.word.ends_with('=') && assignment(&self.word).is_some() => self.read_array(),
            '(' if !self.word.is_empty() && next != Some(')') => {
                self.extend_word_to(behind(&self.text, self.at, '(', ')'));
            }
            ';' | '|' | '&' | '(' | ')' => {
                let double = next == Some(c) && c != '(' && c != ')';
                self.push_operator(if double { format!("{c}{c}") } else { c.to_string() });
                self.at += if double { 2 } else { 1 };
            }
            _ => self.extend_word_to(unit_end(&self.text, self.at)),
        }
    }

    fn end_word(&mut self) {
        if !self.word.is_empty() {
            self.found.push(Token::Word(std::mem::take(&mut self.word)));
        }
    }

    fn extend_word_to(&mut self, end: usize) {
        self.word.extend(&self.text[self.at..end]);
        self.at = end;
    }

    fn push_operator(&mut self, sign: String) {
        self.end_word();
        self.found.push(Token::Operator(sign));
    }

    /// Returns the number of letters from the current place that are `like` this.
    fn count_while(&self, like: impl Fn(char) -> bool) -> usize {
        self.text[self.at..].iter().take_while(|c| like(**c)).count()
    }

    fn skip_heredocs(&mut self) {
        for end in std::mem::take(&mut self.heredoc_ends) {
            while self.at < self.text.len() {
                let line: String = self.text[self.at..].iter().take_while(|c| **c != '\n').collect();
                self.at = (self.at + line.chars().count() + 1).min(self.text.len());
                if line.trim() == end {
                    break;
                }
            }
        }
    }

    fn skip_redirection(&mut self) {
        if self.word.chars().any(|c| !c.is_ascii_digit()) {
            self.end_word();
        }
        self.word.clear();
        let sign: String = self.text[self.at..].iter().take_while(|c| "<>&-".contains(**c)).collect();
        self.at += sign.chars().count();
        self.at += self.count_while(|c| matches!(c, ' ' | '\t'));
        let start = self.at;
        while self.at < self.text.len() && !self.text[self.at].is_whitespace() && !";|&)".contains(self.text[self.at]) {
            self.at = unit_end(&self.text, self.at);
        }
        if sign == "<<" || sign == "<<-" {
            let end = self.text[start..self.at].iter().filter(|c| !"'\"\\".contains(**c)).collect();
            self.heredoc_ends.push(end);
        }
    }

    fn read_array(&mut self) {
        let end = behind(&self.text, self.at, '(', ')');
        let inner: String = self.text[self.at + 1..end.saturating_sub(1).max(self.at + 1)].iter().collect();
        let words = tokens(&inner).into_iter().filter_map(|token| match token {
            Token::Word(word) => Some(word),
            _ => None,
        });
        let (name, append, _) = assignment(&self.word).unwrap_or_default();
        let (name, append) = (name.to_owned(), append.map(|_| true));
        self.found.push(Token::Array { name, append, words: words.collect() });
        self.word.clear();
        self.at = end;
    }
}

/// Returns the value of `NAME`, `NAME:-DEFAULT` and similar expressions between braces; `None` if it is not known.
fn value_of(inside: &str, variables: &ShellVariables, depth: usize) -> Option<Vec<String>> {
    let end = inside.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inside.len());
    let (name, rest) = inside.split_at(end);
    let known = match variables.get(name) {
        Some(ShellValue::Known(words)) => Some(words.clone()),
        // A branch decides the value, so the default does not apply.
        Some(ShellValue::OneOf(_)) => return None,
        None => None,
    };
    let set = known.as_ref().is_some_and(|words| words.iter().any(|word| !word.is_empty()));
    let other = |text: &str| Some(vec![expand(text, variables, depth + 1).concat()]);
    match rest {
        "" => known.map(|words| words.into_iter().take(1).collect()),
        "[@]" | "[*]" => known,
        _ => match rest.strip_prefix(':').unwrap_or(rest).split_at_checked(1) {
            Some(("-" | "=", default)) if rest.starts_with(':') => known.filter(|_| set).or_else(|| other(default)),
            Some(("-" | "=", default)) => known.or_else(|| other(default)),
            Some(("+", text)) => {
                if set {
                    other(text)
                } else {
                    Some(vec![String::new()])
                }
            }
            _ => None,
        },
    }
}

/// Returns the name in `${NAME[@]}`; `None` for another text.
fn whole_list(quoted: &str) -> Option<&str> {
    quoted.strip_prefix("${")?.strip_suffix("[@]}")
}

/// Returns the texts of a word with its variables replaced. An unknown variable stays as it is written.
fn expand(word: &str, variables: &ShellVariables, depth: usize) -> Vec<String> {
    pieces(word, variables, depth).into_iter().map(|(text, _)| text).collect()
}

/// As [`expand`], with a flag per text: true if blanks in the text separate words.
fn pieces(word: &str, variables: &ShellVariables, depth: usize) -> Vec<(String, bool)> {
    let text: Vec<char> = word.chars().collect();
    let mut found: Vec<(String, bool)> = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let end = unit_end(&text, at);
        let unit: String = text[at..end].iter().collect();
        let inner = |from: usize, to: usize| -> String { text[from..to.max(from)].iter().collect() };
        match text[at] {
            '\\' => found.push((inner(at + 1, end), false)),
            '\'' => found.push((inner(at + 1, end - 1), false)),
            '"' => {
                let quoted = inner(at + 1, end - 1);
                if let Some(ShellValue::Known(list)) = whole_list(&quoted).and_then(|name| variables.get(name)) {
                    for element in list {
                        // This blank ends a word.
                        found.push((element.clone(), false));
                        found.push((" ".to_owned(), true));
                    }
                    at = end;
                    continue;
                }
                let parts = dollars(&quoted, variables, depth, true);
                found.push((parts.concat().replace("\\\"", "\"").replace("\\$", "$"), false));
            }
            '`' => found.push(("$(command)".to_owned(), false)),
            '$' => {
                let name = text[at + 1..].iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '_').count();
                let end = if end == at + 1 { at + 1 + name } else { end };
                let unit: String = text[at..end].iter().collect();
                for part in dollars(&unit, variables, depth, false) {
                    found.push((part, true));
                }
                at = end.max(at + 1);
                continue;
            }
            _ => found.push((unit, false)),
        }
        at = end;
    }
    found
}

/// Replaces the `$`-expressions in a text. The words of a list are joined by blanks.
fn dollars(text: &str, variables: &ShellVariables, depth: usize, quoted: bool) -> Vec<String> {
    if depth > MOST_DEPTH {
        return vec![text.to_owned()];
    }
    let letters: Vec<char> = text.chars().collect();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < letters.len() {
        let mut end = if "$`\\".contains(letters[at]) { unit_end(&letters, at) } else { at + 1 };
        if letters[at] == '$' && end == at + 1 {
            if letters.get(end) == Some(&'#') {
                out.push("0".to_owned());
                at += 2;
                continue;
            }
            end += letters[end..].iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '_').count();
        }
        let unit: String = letters[at..end].iter().collect();
        let arithmetic_of = unit.strip_prefix("$((").and_then(|rest| rest.strip_suffix("))"));
        let inside = unit.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let value = if let Some(sum) = arithmetic_of {
            arithmetic(&dollars(sum, variables, depth + 1, true).concat(), variables).map(|sum| vec![sum.to_string()])
        } else if unit.starts_with("$(") || unit.starts_with('`') {
            Some(vec!["$(command)".to_owned()])
        } else if let Some(name) = inside.or_else(|| unit.strip_prefix('$')).filter(|name| !name.is_empty()) {
            value_of(name, variables, depth)
        } else {
            None
        };
        let value = value.map_or(unit, |words| words.join(" "));
        out.push(value);
        at = end;
    }
    if quoted { out } else { vec![out.concat()] }
}

/// Returns a word as one text, without quotes.
pub(super) fn scalar(word: &str, variables: &ShellVariables) -> String {
    expand(word, variables, 0).concat()
}

/// Returns the words that a word becomes: values of unquoted variables are split at blanks.
pub(super) fn fields(word: &str, variables: &ShellVariables) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut open = None::<String>;
    for (text, parts) in pieces(word, variables, 0) {
        if !parts {
            open.get_or_insert_default().push_str(&text);
            continue;
        }
        let mut rest = text.as_str();
        // An expression without a known value stays one word.
        while let Some(blank) = rest.find(char::is_whitespace).filter(|_| !text.starts_with("$(")) {
            if blank > 0 {
                open.get_or_insert_default().push_str(&rest[..blank]);
            }
            found.extend(open.take());
            rest = rest[blank..].trim_start();
        }
        if !rest.is_empty() {
            open.get_or_insert_default().push_str(rest);
        }
    }
    found.extend(open);
    found
}

/// Evaluates a whole-number expression of `+ - * / %` and parentheses; `None` for another expression, or if a name has
/// no known value.
pub(super) fn arithmetic(text: &str, variables: &ShellVariables) -> Option<i64> {
    fn sum(text: &mut &str, variables: &ShellVariables, depth: usize) -> Option<i64> {
        let mut value = product(text, variables, depth)?;
        loop {
            *text = text.trim_start();
            let (sign, rest) = text.split_at_checked(1).unwrap_or(("", ""));
            if !["+", "-"].contains(&sign) {
                return Some(value);
            }
            *text = rest;
            let other = product(text, variables, depth)?;
            value = if sign == "+" { value.checked_add(other)? } else { value.checked_sub(other)? };
        }
    }
    fn product(text: &mut &str, variables: &ShellVariables, depth: usize) -> Option<i64> {
        let mut value = factor(text, variables, depth)?;
        loop {
            *text = text.trim_start();
            let (sign, rest) = text.split_at_checked(1).unwrap_or(("", ""));
            if !["*", "/", "%"].contains(&sign) {
                return Some(value);
            }
            *text = rest;
            let other = factor(text, variables, depth)?;
            value = match sign {
                "*" => value.checked_mul(other)?,
                "/" => value.checked_div(other)?,
                _ => value.checked_rem(other)?,
            };
        }
    }
    fn factor(text: &mut &str, variables: &ShellVariables, depth: usize) -> Option<i64> {
        *text = text.trim_start();
        if depth > MOST_DEPTH {
            return None;
        }
        if let Some(rest) = text.strip_prefix('(') {
            *text = rest;
            let value = sum(text, variables, depth + 1)?;
            *text = text.trim_start().strip_prefix(')')?;
            return Some(value);
        }
        if let Some(rest) = text.strip_prefix('-') {
            *text = rest;
            return factor(text, variables, depth + 1)?.checked_neg();
        }
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        *text = rest;
        name.parse().ok().or_else(|| match variables.get(name) {
            Some(ShellValue::Known(words)) => arithmetic(words.first()?, &ShellVariables::new()),
            _ => None,
        })
    }
    let mut rest = text;
    sum(&mut rest, variables, 0).filter(|_| rest.trim().is_empty())
}
