//! The value of a claim: numbers, lists, ranges, or out of memory.

/// The relation of the numbers in a cell.
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
    /// Returns the separator between the numbers.
    pub(super) fn separator(self) -> &'static str {
        match self {
            Self::List => " / ",
            Self::Arrow => " -> ",
            Self::Range => "-",
        }
    }
}

/// One entry of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ClaimedValue {
    Number(f64),
    /// The run is out of memory.
    OutOfMemory,
}

/// The entries of a claim's value, and their relation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClaimedValues {
    pub values: Vec<ClaimedValue>,
    pub relation: NumberRelation,
}

/// Returns the entries of a claim's value and their relation. `None` if an entry is neither a number nor out of memory.
pub(super) fn parse_values(text: &str) -> Option<ClaimedValues> {
    let all = |parts: Vec<&str>, relation| {
        Some(ClaimedValues { values: parts.into_iter().map(parse_value).collect::<Option<_>>()?, relation })
    };
    if text.contains("->") {
        return all(text.split("->").collect(), NumberRelation::Arrow);
    }
    if let Some(list) = all(text.split('/').collect(), NumberRelation::List).filter(|list| list.values.len() > 1) {
        return Some(list);
    }
    match text.split_once('-') {
        Some((low, high)) if !low.trim().is_empty() => all(vec![low, high], NumberRelation::Range),
        _ => all(vec![text], NumberRelation::List),
    }
}

/// Reads one entry: `59.92`, `up to 31`, `OOM`, `OOM(>81)`.
fn parse_value(text: &str) -> Option<ClaimedValue> {
    let text = text.trim().trim_start_matches("up to ").trim();
    if text.to_lowercase().starts_with("oom") {
        return Some(ClaimedValue::OutOfMemory);
    }
    text.parse().ok().filter(|number: &f64| number.is_finite()).map(ClaimedValue::Number)
}

/// Splits a cell with several entries, at arrows or at slashes with spaces around them.
pub(super) fn split_parts(text: &str) -> Vec<&str> {
    let sign = if text.contains("->") { "->" } else { " / " };
    text.split(sign).map(str::trim).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_lists_and_ranges() {
        let numbers = |text: &str| {
            let ClaimedValues { values, relation } = parse_values(text)?;
            let number = |value: &ClaimedValue| match value {
                ClaimedValue::Number(number) => *number,
                ClaimedValue::OutOfMemory => f64::INFINITY,
            };
            Some((values.iter().map(number).collect::<Vec<_>>(), relation))
        };
        assert_eq!(numbers("59.92"), Some((vec![59.92], NumberRelation::List)));
        assert_eq!(numbers("12.55 / 0.24 / 0"), Some((vec![12.55, 0.24, 0.0], NumberRelation::List)));
        assert_eq!(numbers("22.5 -> 15.7"), Some((vec![22.5, 15.7], NumberRelation::Arrow)));
        assert_eq!(numbers("28-40"), Some((vec![28.0, 40.0], NumberRelation::Range)));
        assert_eq!(numbers("OOM(>81) / 59.4"), Some((vec![f64::INFINITY, 59.4], NumberRelation::List)));
        assert_eq!(numbers("45 / up to 31"), Some((vec![45.0, 31.0], NumberRelation::List)));
        for no_number in ["", "2P + [Adam]P", "fewer iterations", "2.5 vs 1"] {
            assert_eq!(numbers(no_number), None, "{no_number}");
        }
    }
}
