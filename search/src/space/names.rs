//! Finds the names in an expression of dimensions. Names may contain dots and may equal the name of a function.

/// The syntax of expressions, for messages.
pub(super) const FORM: &str = "write plain numbers, names of dimensions, + - * / ^ and min, max, ceil, floor, round, sqrt, ln, log2, log10, exp, abs";
/// The functions of expressions.
const FUNCTIONS: [&str; 11] = ["min", "max", "ceil", "floor", "round", "sqrt", "ln", "log2", "log10", "exp", "abs"];

/// True if a name may contain the character.
fn is_name_character(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == '.'
}

/// Splits an expression into pieces, and tells for each whether it is a name. A piece that begins with a digit or
/// stands before a bracket is no name.
fn split_expression(text: &str) -> Vec<(bool, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|letter| is_name_character(letter) != is_name_character(first)).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        let named = first.is_ascii_alphabetic() && !after.trim_start().starts_with('(');
        found.push((named, piece));
        rest = after;
    }
    found
}

/// The names in an expression, sorted and distinct.
pub(super) fn names_in_expression(text: &str) -> Vec<String> {
    let mut names: Vec<String> =
        split_expression(text).into_iter().filter(|(named, _)| *named).map(|(_, name)| name.to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

/// Checks that every word before a bracket is a known function.
///
/// # Errors
/// A message with the first unknown function.
pub(super) fn check_functions(text: &str) -> Result<(), String> {
    match called_functions(text).into_iter().find(|called| !FUNCTIONS.contains(called)) {
        Some(called) => Err(format!("{called} is no known function; {FORM}")),
        None => Ok(()),
    }
}

/// The words that stand before a bracket, as function names do.
fn called_functions(text: &str) -> Vec<&str> {
    let pieces = split_expression(text);
    let is_called =
        |at: usize| pieces[at + 1..].iter().map(|(_, piece)| piece.trim_start()).find(|piece| !piece.is_empty());
    let called = (0..pieces.len()).filter(|&at| is_called(at).is_some_and(|after| after.starts_with('(')));
    called
        .map(|at| pieces[at].1)
        .filter(|piece| piece.starts_with(|letter: char| letter.is_ascii_alphabetic()))
        .collect()
}

/// True if an expression contains a name.
pub(super) fn refers_to_names(text: &str, name: &str) -> bool {
    split_expression(text).into_iter().any(|(named, piece)| named && piece == name)
}

/// The expression with its names in braces, so that names may contain dots and may equal the name of a function.
pub(super) fn brace_names(text: &str) -> String {
    split_expression(text)
        .into_iter()
        .map(|(named, piece)| if named { format!("{{{piece}}}") } else { piece.to_owned() })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_called_is_a_function() {
        assert_eq!(check_functions("2 * (a.b + max (c, 3)) + sqrt(4)"), Ok(()));
        let unknown = check_functions("ceil(a) + foo(hbm_stacks)").unwrap_err();
        assert!(unknown.starts_with("foo is no known function; write plain numbers, "), "{unknown}");
        assert!(check_functions("a.b(2)").is_err());
    }
}
