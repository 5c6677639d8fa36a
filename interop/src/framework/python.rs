//! Reads the part of Python that recipes use: literals assigned to fields of configurations. No code is executed, and
//! everything else is refused.

use std::cell::Cell;
use std::collections::BTreeMap;
use step::PythonLiteral;

/// The parts of a recipe that are read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PythonRecipe {
    /// The first string of the file.
    pub(super) description: String,
    /// The class of the model's provider, and the first positional argument of its call if there is one.
    pub(super) provider: (String, Option<String>),
    /// The classes of the inner configurations by their paths, with their lines.
    pub(super) classes: BTreeMap<String, (String, usize)>,
    /// The fields of the whole configuration by their paths (`model.num_layers`), with their lines.
    pub(super) fields: BTreeMap<String, (PythonLiteral, usize)>,
}

/// A part of the file that cannot be read: the line and the reason.
pub(super) type PythonFault = (usize, String);

/// Deepest nesting of brackets, and longest chain of variables that refer to each other.
const MOST_DEPTH: usize = 16;
/// Largest number of tokens of a file.
const MOST_TOKENS: usize = 1 << 18;
/// Largest number of inner configurations.
const MOST_CONFIGURATIONS: usize = 1 << 10;
/// The calls whose first argument has no keyword.
const BY_PLACE: [&str; 2] = ["AutoBridge.from_hf_pretrained", "partial"];
/// The class of the whole configuration.
const WHOLE: &str = "ConfigContainer";
/// The rule for lines, in the words of an error.
const ALLOWED: &str = "only literals are read that are given to fields of ConfigContainer; write the value";

#[derive(Debug, Clone, PartialEq, Eq)]
enum PythonToken {
    Name(String),
    Number(String),
    Text(String),
    Sign(char),
    EndOfLine,
}

/// Splits a file into tokens with their lines. A line ends only outside brackets.
fn tokens_of(text: &str) -> Result<Vec<(PythonToken, usize)>, PythonFault> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at, mut line, mut depth) = (Vec::new(), 0, 1, 0_usize);
    while let Some(&c) = chars.get(at) {
        let rest = &chars[at..];
        let length = |of: fn(char) -> bool| rest.iter().position(|c| !of(*c)).unwrap_or(rest.len());
        let word = |length: usize| rest[..length].iter().collect::<String>();
        let start = line;
        let (token, taken) = match c {
            '\n' => {
                line += 1;
                ((depth == 0).then_some(PythonToken::EndOfLine), 1)
            }
            '#' => (None, length(|c| c != '\n')),
            c if c.is_whitespace() => (None, 1),
            '"' | '\'' => {
                let (text, taken) = string_of(rest).ok_or((line, "a text has no end; close it".to_owned()))?;
                line += rest[..taken].iter().filter(|c| **c == '\n').count();
                (Some(PythonToken::Text(text)), taken)
            }
            c if c.is_alphabetic() || c == '_' => {
                let taken = length(|c| c.is_alphanumeric() || c == '_');
                if matches!(rest.get(taken), Some('"' | '\'')) {
                    return Err((line, format!("a text with the prefix {} is not read; {ALLOWED}", word(taken))));
                }
                (Some(PythonToken::Name(word(taken))), taken)
            }
            c if c.is_ascii_digit() => {
                let mut taken = length(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
                // 1e-4: the sign belongs to the number.
                if matches!(rest.get(taken), Some('-' | '+')) && matches!(rest[taken - 1], 'e' | 'E') {
                    taken += 1 + rest[taken + 1..].iter().take_while(|c| c.is_ascii_digit()).count();
                }
                (Some(PythonToken::Number(word(taken))), taken)
            }
            sign => {
                match sign {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                (Some(PythonToken::Sign(sign)), 1)
            }
        };
        if depth > MOST_DEPTH || found.len() > MOST_TOKENS {
            return Err((line, format!("more than {MOST_DEPTH} brackets inside each other, or {MOST_TOKENS} words")));
        }
        found.extend(token.map(|token| (token, start)));
        at += taken;
    }
    found.push((PythonToken::EndOfLine, line));
    Ok(found)
}

/// Reads a string between single or triple quotes. Returns it with the number of characters read; `None` if it does not
/// end.
fn string_of(rest: &[char]) -> Option<(String, usize)> {
    let quote = *rest.first()?;
    let ends = if rest.starts_with(&[quote; 3]) { 3 } else { 1 };
    let (mut text, mut at) = (String::new(), ends);
    loop {
        match *rest.get(at)? {
            '\\' => {
                text.push(*rest.get(at + 1)?);
                at += 2;
            }
            '\n' if ends == 1 => return None,
            c if c == quote && rest[at..].iter().take(ends).filter(|c| **c == quote).count() == ends => {
                return Some((text, at + ends));
            }
            c => {
                text.push(c);
                at += 1;
            }
        }
    }
}

/// A value of a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PythonValue {
    Literal(PythonLiteral),
    Object(PythonObject),
    /// A variable that holds an object.
    Variable(String),
}

/// An object that a call of a class creates: its class, its first positional argument and its fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct PythonObject {
    class: String,
    first: Option<String>,
    fields: BTreeMap<String, (PythonValue, usize)>,
}

struct RecipeReader {
    tokens: Vec<(PythonToken, usize)>,
    at: usize,
    description: Option<String>,
    variables: BTreeMap<String, PythonObject>,
    whole: Vec<PythonObject>,
    /// Number of configurations visited so far. It is limited, because variables that refer to each other can multiply
    /// them.
    visited: Cell<usize>,
    /// True once the file's function has begun, and once it has returned.
    begun: bool,
    returned: bool,
}

/// Reads a recipe.
///
/// # Errors
/// The line that cannot be read, and the reason.
pub(super) fn read_recipe(text: &str) -> Result<PythonRecipe, PythonFault> {
    let mut reader = RecipeReader {
        tokens: tokens_of(text)?,
        at: 0,
        description: None,
        variables: BTreeMap::new(),
        whole: Vec::new(),
        visited: Cell::new(0),
        begun: false,
        returned: false,
    };
    while reader.at < reader.tokens.len() {
        reader.read_statement()?;
    }
    let made = reader.variables.values().filter(|object| object.class == WHOLE).chain(&reader.whole);
    let [whole] = made.collect::<Vec<_>>()[..] else {
        return Err((1, format!("must make one {WHOLE}; give a file with one recipe")));
    };
    let mut recipe = PythonRecipe { description: reader.description.clone().unwrap_or_default(), ..Default::default() };
    reader.flatten("", whole, 0, &mut recipe)?;
    Ok(recipe)
}

impl RecipeReader {
    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    fn peek(&self) -> Option<&PythonToken> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn next(&mut self) -> Option<PythonToken> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    fn take(&mut self, sign: char) -> bool {
        let is = self.peek() == Some(&PythonToken::Sign(sign));
        self.at += usize::from(is);
        is
    }

    fn refuse<T>(&self, what: &str) -> Result<T, PythonFault> {
        Err((self.line(), format!("{what}; {ALLOWED}")))
    }

    /// Skips the rest of a line that sets no field. Refuses a second statement in the line.
    fn skip_line(&mut self) -> Result<(), PythonFault> {
        while let Some(token) = self.next() {
            match token {
                PythonToken::EndOfLine => break,
                PythonToken::Sign(';') => return self.refuse("a second statement stands in the line"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the colon that must end the line of `what`.
    fn end_with_colon(&mut self, what: &str) -> Result<(), PythonFault> {
        match self.take(':') && self.next().is_none_or(|token| token == PythonToken::EndOfLine) {
            true => Ok(()),
            false => self.refuse(&format!("the line of {what} goes on")),
        }
    }

    fn read_statement(&mut self) -> Result<(), PythonFault> {
        let start = self.at;
        match self.next() {
            None | Some(PythonToken::EndOfLine) => return Ok(()),
            Some(PythonToken::Text(text)) => {
                self.description.get_or_insert(text);
            }
            Some(PythonToken::Name(word)) => match word.as_str() {
                "import" | "from" | "pretrain" => self.skip_line()?,
                "def" => self.read_definition()?,
                "if" => self.read_condition()?,
                "return" => {
                    self.returned = true;
                    if let PythonValue::Object(object) = self.read_value(0)? {
                        self.whole.push(object);
                    }
                }
                _ => {
                    self.at = start;
                    if self.returned {
                        return self.refuse("a value is given after the function's return");
                    }
                    self.read_assignment()?;
                }
            },
            Some(_) => {
                self.at = start;
                return self.refuse("the line is no assignment");
            }
        }
        // A statement that skipped its line has consumed the end of the line too.
        let ended =
            self.tokens.get(self.at.saturating_sub(1)).is_some_and(|(token, _)| *token == PythonToken::EndOfLine);
        match ended || self.next().is_none_or(|token| token == PythonToken::EndOfLine) {
            true => Ok(()),
            false => {
                self.at -= 1;
                self.refuse("the line goes on with what is no literal")
            }
        }
    }

    /// Reads the definition of the file's only function, which must have no parameters. Its body is read as if it were
    /// called.
    fn read_definition(&mut self) -> Result<(), PythonFault> {
        if std::mem::replace(&mut self.begun, true) {
            return self.refuse("a second function is not read");
        }
        self.next();
        if !(self.take('(') && self.take(')')) {
            return self.refuse("a function with parameters is not read");
        }
        if self.take('-') && self.take('>') {
            self.read_name()?;
        }
        self.end_with_colon("a function")
    }

    /// Reads the only known condition: `__name__ == "__main__"`.
    fn read_condition(&mut self) -> Result<(), PythonFault> {
        let name = self.next() == Some(PythonToken::Name("__name__".to_owned()));
        let equal = self.take('=') && self.take('=');
        if !(name && equal && self.next() == Some(PythonToken::Text("__main__".to_owned()))) {
            return self.refuse("a condition is not read");
        }
        self.end_with_colon("a condition")
    }

    fn read_assignment(&mut self) -> Result<(), PythonFault> {
        let line = self.line();
        let target = self.read_name()?;
        if !self.take('=') || self.peek() == Some(&PythonToken::Sign('=')) {
            return self.refuse(&format!("{target} is not given a value here"));
        }
        let value = self.read_value(0)?;
        let mut path: Vec<&str> = target.split('.').collect();
        let (Some(field), true) = (path.pop(), !path.is_empty()) else {
            if self.variables.contains_key(&target) {
                return Err((line, format!("{target} is given a second configuration; give each a name of its own")));
            }
            match value {
                PythonValue::Object(object) => self.variables.insert(target, object),
                _ => {
                    return Err((
                        line,
                        format!("{target} is a variable of another kind than a configuration; {ALLOWED}"),
                    ));
                }
            };
            return Ok(());
        };
        match self.object_at(&path) {
            Some(object) => object.fields.insert(field.to_owned(), (value, line)),
            None => {
                return Err((line, format!("{} is no configuration that the file makes; {ALLOWED}", path.join("."))));
            }
        };
        Ok(())
    }

    /// Finds the object that a path names, and follows variables on the way; `None` if there is none.
    fn object_at(&mut self, path: &[&str]) -> Option<&mut PythonObject> {
        let (first, rest) = path.split_first()?;
        let (mut variable, mut rest) = ((*first).to_owned(), rest.to_vec());
        // A field that is another variable begins a path of its own.
        for _ in 0..MOST_DEPTH {
            let mut object = self.variables.get(&variable)?;
            let mut onward = None;
            for (taken, field) in rest.iter().enumerate() {
                match &object.fields.get(*field)?.0 {
                    PythonValue::Object(inner) => object = inner,
                    PythonValue::Variable(name) => {
                        onward = Some((name.clone(), rest[taken + 1..].to_vec()));
                        break;
                    }
                    PythonValue::Literal(_) => return None,
                }
            }
            match onward {
                Some((name, left)) => (variable, rest) = (name, left),
                None => break,
            }
        }
        let mut object = self.variables.get_mut(&variable)?;
        for field in rest {
            match &mut object.fields.get_mut(field)?.0 {
                PythonValue::Object(inner) => object = inner,
                _ => return None,
            }
        }
        Some(object)
    }

    /// Reads a dotted name.
    fn read_name(&mut self) -> Result<String, PythonFault> {
        let mut name = String::new();
        loop {
            match self.next() {
                Some(PythonToken::Name(word)) => name.push_str(&word),
                _ => {
                    self.at -= 1;
                    return self.refuse("a name is missing");
                }
            }
            if !self.take('.') {
                return Ok(name);
            }
            name.push('.');
        }
    }

    fn read_value(&mut self, depth: usize) -> Result<PythonValue, PythonFault> {
        if depth > MOST_DEPTH {
            return self.refuse("values stand too deep inside each other");
        }
        let literal = |literal| Ok(PythonValue::Literal(literal));
        match self.peek().cloned() {
            Some(PythonToken::Text(text)) => {
                self.at += 1;
                literal(PythonLiteral::Text(text))
            }
            Some(PythonToken::Number(text)) => {
                self.at += 1;
                literal(PythonLiteral::Number(text))
            }
            Some(PythonToken::Sign('-')) => {
                self.at += 1;
                match self.next() {
                    Some(PythonToken::Number(text)) => literal(PythonLiteral::Number(format!("-{text}"))),
                    _ => self.refuse("a minus stands before no number"),
                }
            }
            Some(PythonToken::Sign('[')) => literal(PythonLiteral::List(self.read_parts(']', depth)?)),
            Some(PythonToken::Sign('(')) => literal(PythonLiteral::Tuple(self.read_parts(')', depth)?)),
            Some(PythonToken::Name(_)) => {
                let name = self.read_name()?;
                match self.peek() {
                    Some(PythonToken::Sign('(')) => self.read_call(&name, depth),
                    _ if self.variables.contains_key(&name) => Ok(PythonValue::Variable(name)),
                    _ => literal(PythonLiteral::Name(name)),
                }
            }
            _ => self.refuse("a value is missing, or is no literal"),
        }
    }

    /// Reads the parts of a list or a tuple.
    fn read_parts(&mut self, end: char, depth: usize) -> Result<Vec<PythonLiteral>, PythonFault> {
        self.at += 1;
        let mut parts = Vec::new();
        while !self.take(end) {
            match self.read_value(depth + 1)? {
                PythonValue::Literal(part) => parts.push(part),
                _ => return self.refuse("a list holds a configuration"),
            }
            if !self.take(',') && self.peek() != Some(&PythonToken::Sign(end)) {
                return self.refuse("a list is no list of literals");
            }
        }
        Ok(parts)
    }

    /// Reads a call of a class with keyword arguments, or Bridge's call that makes a provider from a configuration on
    /// Hugging Face.
    fn read_call(&mut self, name: &str, depth: usize) -> Result<PythonValue, PythonFault> {
        let class = name.rsplit('.').next().unwrap_or(name).to_owned();
        let known = class.ends_with("Config") || class.ends_with("Provider") || class == WHOLE;
        if !known && name != "AutoBridge.from_hf_pretrained" && class != "partial" {
            return self.refuse(&format!("calls {name}, whose values are not in the file"));
        }
        let mut object = PythonObject { class: name.to_owned(), ..PythonObject::default() };
        self.read_arguments(&mut object, depth)?;
        if name == "AutoBridge.from_hf_pretrained" {
            // The arguments of this call only affect how files are loaded.
            object.fields.clear();
            if !(self.take('.') && self.read_name()? == "to_megatron_provider") {
                return self.refuse("the bridge is given to nothing that is read");
            }
            self.read_arguments(&mut PythonObject::default(), depth)?;
        }
        Ok(PythonValue::Object(object))
    }

    /// Reads the arguments of a call into an object: keyword arguments, and a first one without a keyword.
    fn read_arguments(&mut self, object: &mut PythonObject, depth: usize) -> Result<(), PythonFault> {
        if !self.take('(') {
            return self.refuse("a call is missing");
        }
        while !self.take(')') {
            let line = self.line();
            let named = matches!(self.tokens.get(self.at + 1), Some((PythonToken::Sign('='), _)));
            if named {
                let name = self.read_name()?;
                self.at += 1;
                let value = self.read_value(depth + 1)?;
                if object.fields.insert(name, (value, line)).is_some() {
                    return self.refuse("an argument is given twice");
                }
            } else {
                match self.read_value(depth + 1)? {
                    PythonValue::Literal(PythonLiteral::Text(text) | PythonLiteral::Name(text))
                        if object.first.is_none() && BY_PLACE.contains(&object.class.as_str()) =>
                    {
                        object.first = Some(text);
                    }
                    _ => return self.refuse("an argument has no keyword"),
                }
            }
            if !self.take(',') && self.peek() != Some(&PythonToken::Sign(')')) {
                return self.refuse("an argument is no literal");
            }
        }
        Ok(())
    }

    /// Adds an object's fields to the recipe by their paths.
    fn flatten(
        &self,
        path: &str,
        object: &PythonObject,
        depth: usize,
        recipe: &mut PythonRecipe,
    ) -> Result<(), PythonFault> {
        if path == "model" {
            recipe.provider = (object.class.clone(), object.first.clone());
        }
        for (name, (value, line)) in &object.fields {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let inner = match value {
                PythonValue::Literal(literal) => {
                    recipe.fields.insert(path, (literal.clone(), *line));
                    continue;
                }
                PythonValue::Object(inner) => Some(inner),
                PythonValue::Variable(variable) => self.variables.get(variable),
            };
            self.visited.set(self.visited.get() + 1);
            let inner = inner.filter(|_| depth < MOST_DEPTH && self.visited.get() < MOST_CONFIGURATIONS);
            let inner = inner.ok_or((*line, format!("{path} is a configuration inside itself; {ALLOWED}")))?;
            recipe.classes.insert(path.clone(), (inner.class.clone(), *line));
            self.flatten(&path, inner, depth + 1, recipe)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "python_tests.rs"]
mod tests;
