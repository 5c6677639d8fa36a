//! Numbers as values of options. Every option accepts a negative number as its value, so that it can report the error
//! itself.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Makes a parser of whole numbers in a range. Its errors name the range.
pub fn whole_number_in<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: Copy + Display + Into<i128> + TryFrom<i128> + Send + Sync + 'static,
{
    let (least, most) = range.into_inner();
    move |text| {
        let number = text.parse::<i128>().map_err(|_| format!("must be a whole number from {least} to {most}"))?;
        let within = Some(number).filter(|number| (least.into()..=most.into()).contains(number));
        within.and_then(|number| T::try_from(number).ok()).ok_or_else(|| format!("{number} is not in {least}..={most}"))
    }
}

/// Joins every option with the negative number after it to one word. The number is then not mistaken for an option; no
/// option begins with a digit.
pub fn join_negative_values(given: Vec<OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::with_capacity(given.len());
    let mut ended = false;
    for word in given {
        let open = words
            .last()
            .and_then(|last| last.to_str())
            .is_some_and(|last| last.strip_prefix("--").is_some_and(|name| !name.is_empty() && !name.contains('=')));
        match words.last_mut() {
            Some(last) if open && !ended && word.to_str().is_some_and(is_negative) => {
                last.push("=");
                last.push(word);
            }
            _ => {
                ended |= word == "--";
                words.push(word);
            }
        }
    }
    words
}

/// True if a word begins like a negative number, or like a list of numbers with a negative first one.
fn is_negative(word: &str) -> bool {
    let Some(rest) = word.strip_prefix('-') else { return false };
    rest.starts_with(|first: char| first.is_ascii_digit())
        || rest.strip_prefix('.').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
        || matches!(rest.to_ascii_lowercase().as_str(), "inf" | "infinity" | "nan")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::CommandLine;
    use clap::error::ErrorKind;
    use clap::{CommandFactory, Parser};

    fn words(line: &str) -> String {
        let words = join_negative_values(line.split(' ').map(OsString::from).collect());
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_number_behind_an_option_is_its_value() {
        assert_eq!(words("plan m --tensor -1 --top -2"), "plan m --tensor=-1 --top=-2");
        assert_eq!(words("--tensor -1,2 --kwh-price -.5 --max-step -inf"), "--tensor=-1,2 --kwh-price=-.5 --max-step=-inf");
        assert_eq!(words("--tensor 2 -o -1 --x=1 -1 --out --zero 1"), "--tensor 2 -o -1 --x=1 -1 --out --zero 1");
        assert_eq!(words("plan -- --tensor -1"), "plan -- --tensor -1");
    }

    #[test]
    fn numbers_are_of_their_range() {
        let read = whole_number_in(1..=8_u32);
        assert_eq!(
            (read("8"), read("-1"), read("9")),
            (Ok(8), Err("-1 is not in 1..=8".into()), Err("9 is not in 1..=8".into()))
        );
        assert_eq!(read("x"), Err("must be a whole number from 1 to 8".into()));
        assert_eq!(whole_number_in(0..=u64::MAX)("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn no_option_of_any_verb_takes_a_negative_number_for_another_option() {
        let mut tried = 0;
        for verb in CommandLine::command().get_subcommands() {
            for option in verb.get_arguments().filter(|option| option.get_action().takes_values()) {
                let Some(long) = option.get_long() else { continue };
                let call = ["coplace".to_owned(), verb.get_name().to_owned(), format!("--{long}"), "-1".to_owned()];
                tried += 1;
                if let Err(error) = CommandLine::try_parse_from(join_negative_values(call.map(OsString::from).to_vec())) {
                    assert_ne!(error.kind(), ErrorKind::UnknownArgument, "{error}");
                }
            }
        }
        assert!(tried > 150, "{tried}");
    }
}
