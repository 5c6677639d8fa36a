//! The names in an expression of dimensions: they may hold dots, and be called as a function is.

/// Whether a letter may be in a name.
fn in_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == '.'
}

/// Pieces of an expression, names among them: not what begins with a digit, nor what stands before a bracket.
fn pieces(text: &str) -> Vec<(bool, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|letter| in_name(letter) != in_name(first)).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        let named = first.is_ascii_alphabetic() && !after.trim_start().starts_with('(');
        found.push((named, piece));
        rest = after;
    }
    found
}

/// The names in an expression.
pub(super) fn names(text: &str) -> Vec<String> {
    let mut names: Vec<String> = pieces(text).into_iter().filter(|(named, _)| *named).map(|(_, name)| name.to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

/// Whether an expression has a name.
pub(super) fn refers(text: &str, name: &str) -> bool {
    pieces(text).into_iter().any(|(named, piece)| named && piece == name)
}

/// The expression with its names in braces, so that they may hold dots and be called as a function is.
pub(super) fn braced(text: &str) -> String {
    pieces(text).into_iter().map(|(named, piece)| if named { format!("{{{piece}}}") } else { piece.to_owned() }).collect()
}
