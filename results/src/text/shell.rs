//! Words of commands that a reader may paste into a shell.

use std::borrow::Cow;

/// Quotes a word for a shell if it holds a character that the shell may read otherwise.
#[must_use]
pub fn quote_shell_word(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:,@%=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', "'\\''")))
}

#[cfg(test)]
mod tests {
    use super::quote_shell_word;

    #[test]
    fn only_words_that_a_shell_would_change_are_quoted() {
        for plain in ["runs/llama2-7b-smoke", "~x"] {
            assert_eq!(quote_shell_word(plain) == plain, plain != "~x", "{plain}");
        }
        assert_eq!(quote_shell_word("my runs/it's"), r"'my runs/it'\''s'");
        assert_eq!(quote_shell_word("a;b$c"), "'a;b$c'");
        assert_eq!(quote_shell_word(""), "''");
    }
}
