//! Parses the cells of a published claim: numbers, lists of numbers, sizes of a run.

/// The relation between the numbers of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberRelation {
    /// A list: `12.55 / 12.55 / 75.31`.
    List,
    /// Before and after: `22.5 -> 15.7`.
    Arrow,
    /// A range: `28-40`.
    Range,
}

impl NumberRelation {
    /// The separator in the text.
    pub(super) fn separator(self) -> &'static str {
        match self {
            Self::List => " / ",
            Self::Arrow => " -> ",
            Self::Range => "-",
        }
    }
}

/// The numbers of a claim's value, and their relation. `None` if the cell is empty or has a text that is no number.
pub(super) fn parse_numbers(text: &str) -> Option<(Vec<f64>, NumberRelation)> {
    let of =
        |parts: Vec<&str>, between| parts.into_iter().map(parse_number).collect::<Option<Vec<_>>>().map(|all| (all, between));
    if text.contains("->") {
        return of(text.split("->").collect(), NumberRelation::Arrow);
    }
    if text.contains(" / ") {
        return of(text.split(" / ").collect(), NumberRelation::List);
    }
    if let Some(all) = of(text.split('/').collect(), NumberRelation::List).filter(|(all, _)| all.len() > 1) {
        return Some(all);
    }
    match text.split_once('-') {
        Some((low, high)) if !low.trim().is_empty() => of(vec![low, high], NumberRelation::Range),
        _ => of(vec![text], NumberRelation::List),
    }
}

/// One number: `59.92`, `up to 31`, `16*b*s*h`.
fn parse_number(text: &str) -> Option<f64> {
    let text = text.trim().trim_start_matches("up to ").trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let rest = &text[digits..];
    (rest.is_empty() || rest.starts_with('*')).then(|| text[..digits].parse().ok()).flatten()
}

/// The parts of a cell with several entries, separated by arrows or slashes with blanks around them.
pub(super) fn split_parts(text: &str) -> Vec<&str> {
    let sign = if text.contains("->") { "->" } else { " / " };
    text.split(sign).map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// The words of a text in lower case.
pub(super) fn words_of(text: &str) -> Vec<String> {
    text.to_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .filter(|w| !w.is_empty())
        .map(str::to_owned)
        .collect()
}

/// True if the text has the word.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    words_of(text).iter().any(|w| w == word)
}

/// The number after `key=` in the text. `K` and `M` are powers of two: `s=4K` is 4096.
pub(super) fn parse_size(text: &str, key: &str) -> Option<u64> {
    let text = text.to_lowercase();
    let key = format!("{}=", key.to_lowercase());
    let starts = |at: usize| !text[..at].chars().next_back().is_some_and(|c| c.is_ascii_alphanumeric());
    let at = text.match_indices(&key).map(|(at, _)| at).find(|at| starts(*at))?;
    parse_scaled(&text[at + key.len()..])
}

/// A count of tokens in words: `1M tokens`, `4K tokens`.
pub(super) fn parse_tokens(text: &str) -> Option<u64> {
    let words = words_of(text);
    words.windows(2).find(|pair| pair[1].starts_with("token")).and_then(|pair| parse_scaled(&pair[0]))
}

/// The number at the start of a text, times its `k` or `m`.
fn parse_scaled(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let count: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].chars().next() {
        Some('k') => 1 << 10,
        Some('m') => 1 << 20,
        _ => 1,
    };
    count.checked_mul(unit)
}

/// The number of chips at the start of a text: `8xA800`; 1 if there is none.
pub(super) fn parse_chips(text: &str) -> u32 {
    let word = text.split_whitespace().next().unwrap_or_default().to_lowercase();
    word.split_once('x').and_then(|(count, _)| count.parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_lists_and_ranges() {
        assert_eq!(parse_numbers("59.92"), Some((vec![59.92], NumberRelation::List)));
        assert_eq!(parse_numbers("12.55 / 0.24 / 0"), Some((vec![12.55, 0.24, 0.0], NumberRelation::List)));
        assert_eq!(parse_numbers("22.5 -> 15.7"), Some((vec![22.5, 15.7], NumberRelation::Arrow)));
        assert_eq!(parse_numbers("28-40"), Some((vec![28.0, 40.0], NumberRelation::Range)));
        assert_eq!(parse_numbers("16*b*s*h"), Some((vec![16.0], NumberRelation::List)));
        assert_eq!(parse_numbers("1.5/7/32"), Some((vec![1.5, 7.0, 32.0], NumberRelation::List)));
        assert_eq!(parse_numbers("45 / up to 31"), Some((vec![45.0, 31.0], NumberRelation::List)));
        for no_number in ["OOM", "", "2P + [Adam]P", "fewer iterations", "2.5 vs 1"] {
            assert_eq!(parse_numbers(no_number), None, "{no_number}");
        }
    }

    #[test]
    fn sizes_are_found_in_settings() {
        assert_eq!((parse_size("s=512 b=8 AdamW", "s"), parse_size("s=512 b=8 AdamW", "b")), (Some(512), Some(8)));
        assert_eq!((parse_size("vanilla s=4K b=1", "S"), parse_size("S=80000 M=16", "m")), (Some(4096), Some(16)));
        assert_eq!(parse_size("params=5", "s"), None);
        assert_eq!((parse_tokens("1M tokens"), parse_tokens("tokens")), (Some(1 << 20), None));
        assert_eq!((parse_chips("8xA800-80GB, 2TB host"), parse_chips("A100-40GB b=1"), parse_chips("2240xA100")), (8, 1, 2240));
        assert!(has_word("AR + opt-in-bwd s=4K", "ar") && !has_word("timeline Fig 11 standard", "ar"));
        assert_eq!(split_parts("Full-Rank / GaLore / LoRA (r/d=128/256)"), ["Full-Rank", "GaLore", "LoRA (r/d=128/256)"]);
    }
}
