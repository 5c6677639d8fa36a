//! Finds the line of a key in a study's file, for error messages.

use super::Study;

impl Study {
    /// A study's name or path, with the line of the key at the beginning of an error, if the file has it.
    #[must_use]
    pub fn place(name_or_path: &str, why: &str) -> String {
        let text = match Self::text(name_or_path) {
            Some(text) => Some(text.to_owned()),
            None => sim::files::text::read_text(name_or_path.as_ref()).ok(),
        };
        text.map_or_else(|| name_or_path.to_owned(), |text| place(name_or_path, &text, why))
    }
}

/// A study's file name, with the line of the key at the beginning of an error, if the file has it.
pub(super) fn place(file: &str, text: &str, why: &str) -> String {
    let key = why.split([' ', ':']).next().unwrap_or_default();
    line(text, key).map_or_else(|| file.to_owned(), |line| format!("{file}, line {line}"))
}

/// As [`place`], for a key that may occur in several tables: the line with this value, or else the key's first line.
pub(super) fn place_of_value(file: &str, text: &str, key: &str, value: &str) -> String {
    let number = |text: &str| text.split('#').next().and_then(|text| text.trim().replace('_', "").parse::<f64>().ok());
    let same = |written: &str| match (number(written), number(value)) {
        (Some(written), Some(value)) => written.total_cmp(&value).is_eq() || written == value,
        _ => false,
    };
    let own = lines(text).find(|(_, found, written)| found == key && same(written)).map(|(line, ..)| line);
    own.or_else(|| line(text, key)).map_or_else(|| file.to_owned(), |line| format!("{file}, line {line}"))
}

/// The line of a key or of a table's head, counted from 1.
fn line(text: &str, key: &str) -> Option<usize> {
    lines(text).find(|(_, found, _)| found == key).map(|(line, ..)| line)
}

/// The lines with a key or a table's head: line number (from 1), full key, and the text after `=`. Keys and heads stand
/// at the beginning of a line. Lines inside lists and multi-line texts have none.
fn lines(text: &str) -> impl Iterator<Item = (usize, String, &str)> {
    let mut table = String::new();
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let line = line.trim();
        if line.starts_with('[') {
            let head = line.trim_start_matches('[').split(']').next().unwrap_or_default();
            table = plain(head);
            return Some((number, table.clone(), ""));
        }
        let (name, value) = line.split_once('=')?;
        let name = plain(name);
        Some((number, if table.is_empty() { name } else { format!("{table}.{name}") }, value))
    })
}

/// A key without quotes and blanks.
fn plain(key: &str) -> String {
    key.chars().filter(|letter| !matches!(letter, '"' | '\'') && !letter.is_whitespace()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_however_it_is_written() {
        let text = "over = \"mean\"\n[space]\nbase_chip = \"a\"\n\n[space.dimensions]\n# links = 1\n  links = [6]\n\"area.links\" = \"links\"\n\
                    tensor.cores = 4\n[space.dimensions.memory.hbm]\ncapacity_gib = 4\n[[workload]]\nmodel = \"x\"\n";
        for (key, expected) in [
            ("over", Some(1)),
            ("space.base_chip", Some(3)),
            ("space.dimensions", Some(5)),
            ("space.dimensions.links", Some(7)),
            ("space.dimensions.area.links", Some(8)),
            ("space.dimensions.tensor.cores", Some(9)),
            ("space.dimensions.memory.hbm.capacity_gib", Some(11)),
            ("workload.model", Some(13)),
            ("space.dimensions.clock_mhz", None),
        ] {
            assert_eq!(line(text, key), expected, "{key}");
        }
        assert_eq!(place("s.toml", text, "space.dimensions.links = [6]: is wrong"), "s.toml, line 7");
        assert_eq!(place("s.toml", text, "space.dimensions.links: is wrong"), "s.toml, line 7");
        assert_eq!(place("s.toml", text, "the devices are too few"), "s.toml");
        let two = "[[workload]]\nmodel = \"a\"\nweight = 1\n[[workload]]\nmodel = \"b\"\nweight = nan # none\n";
        assert_eq!(place_of_value("s.toml", two, "workload.weight", "NaN"), "s.toml, line 6");
        assert_eq!(place_of_value("s.toml", two, "workload.weight", "2"), "s.toml, line 3");
    }
}
