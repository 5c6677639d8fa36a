//! Numbers as values of options. Every option accepts a negative number as its value, so that it can report the error
//! itself.

use clap::Command;
use std::any::TypeId;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Makes a parser of whole numbers in a range. Its errors name the range.
pub fn whole_number_in<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
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

/// Makes a parser of numbers of tokens in a range. `k` behind a number is 1,024 and `m` 1,048,576, as in the names of
/// context lengths (`32k`). Its errors name the range.
pub fn token_count_in(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    let whole = whole_number_in(range);
    move |text| match parse_token_count(text) {
        Some(count) => whole(&count.to_string()),
        None => whole(text),
    }
}

/// Parses a number of tokens, with the units of [`token_count_in`]. `None` if the text is none.
pub fn parse_token_count(text: &str) -> Option<u64> {
    const UNITS: [(char, u64); 2] = [('k', 1 << 10), ('m', 1 << 20)];
    let unit =
        UNITS.iter().find_map(|(unit, size)| Some((text.strip_suffix([*unit, unit.to_ascii_uppercase()])?, size)));
    let (digits, size) = unit.unwrap_or((text, &1));
    digits.parse::<u64>().ok()?.checked_mul(*size)
}

/// Parses a number, which may have a fraction. Its error says how numbers are written.
pub fn real_number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "must be a number; write it like 0.5 or 12".to_owned())
}

/// Lets every option take a negative number as its value, so that the option refuses it with its own limit.
pub fn with_negative_values(command: Command) -> Command {
    let numbers =
        [TypeId::of::<f64>(), TypeId::of::<u64>(), TypeId::of::<u32>(), TypeId::of::<u16>(), TypeId::of::<u8>()];
    command.mut_subcommands(move |verb| {
        verb.mut_args(|option| {
            let of = option.get_value_parser().type_id();
            let is_number = option.get_long().is_some() && numbers.iter().any(|number| of == *number);
            let takes_values = option.get_action().takes_values() && option.get_long().is_some();
            if is_number {
                option.allow_hyphen_values(true)
            } else if takes_values {
                option.allow_negative_numbers(true)
            } else {
                option
            }
        })
    })
}

/// Short names of options, by the options' names. These are the usual names of degrees and devices in the field.
const SHORT_NAMES: [(&str, &str); 8] = [
    ("tensor", "tp"),
    ("pipeline", "pp"),
    ("data", "dp"),
    ("attention-data", "dp"),
    ("context", "cp"),
    ("expert", "ep"),
    ("expert-tensor", "etp"),
    ("devices", "gpus"),
];

/// Gives the names of `SHORT_NAMES` to the degrees and the devices of every verb. A verb without `--tensor` has no
/// degrees.
pub fn with_short_names(command: Command) -> Command {
    command.mut_subcommands(|verb| {
        let has_degrees = verb.get_arguments().any(|option| option.get_long() == Some("tensor"));
        verb.mut_args(|option| {
            let known = SHORT_NAMES.iter().find(|(name, _)| option.get_long() == Some(*name));
            match known.filter(|(name, _)| has_degrees || *name == "devices") {
                Some((_, short)) => option.visible_alias(*short),
                None => option,
            }
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::CommandLine;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    #[test]
    fn numbers_are_of_their_range() {
        let read = whole_number_in(1..=8_u32);
        assert_eq!(
            (read("8"), read("-1"), read("9")),
            (Ok(8), Err("-1 is not in 1..=8".into()), Err("9 is not in 1..=8".into()))
        );
        assert_eq!(read("x"), Err("must be a whole number from 1 to 8".into()));
        assert_eq!((real_number("-inf").is_ok(), real_number("1,5").is_err()), (true, true));
        assert_eq!(whole_number_in(0..=u64::MAX)("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn lengths_may_be_written_in_units_of_1024_tokens() {
        let read = token_count_in(1..=1 << 24);
        assert_eq!(
            (read("32k"), read("128K"), read("1m"), read("4096")),
            (Ok(32_768), Ok(131_072), Ok(1 << 20), Ok(4096))
        );
        for wrong in ["k", "-1k", "1.5k", "32kb", "32 k", "99999999999999999999k", ""] {
            assert_eq!(read(wrong), Err("must be a whole number from 1 to 16777216".into()), "{wrong}");
        }
        assert_eq!(
            (read("0k"), read("17M")),
            (Err("0 is not in 1..=16777216".into()), Err("17825792 is not in 1..=16777216".into()))
        );
    }

    #[test]
    fn degrees_and_devices_have_their_short_names_in_every_verb() {
        let command = crate::command();
        let aliases = |verb: &str| {
            let verb = command.find_subcommand(verb).unwrap();
            let short = verb.get_arguments().filter_map(|option| option.get_visible_aliases());
            short.flatten().map(str::to_owned).collect::<std::collections::BTreeSet<String>>()
        };
        for verb in ["plan", "evaluate", "techniques", "page"] {
            for short in ["tp", "pp", "dp", "cp", "ep", "gpus"] {
                assert!(aliases(verb).contains(short), "{verb} --{short}");
            }
        }
        assert!(aliases("search").contains("gpus") && aliases("serve").contains("dp"));
        // `compare --expert` asks for an expert's placement; it is no degree.
        assert!(!aliases("compare").contains("ep"));
    }

    #[test]
    fn no_option_of_any_verb_takes_a_negative_number_for_another_option() {
        let mut tried = 0;
        let command = with_negative_values(CommandLine::command());
        for verb in command.get_subcommands() {
            for option in verb.get_arguments().filter(|option| option.get_action().takes_values()) {
                let Some(long) = option.get_long() else { continue };
                let call = ["coplace".to_owned(), verb.get_name().to_owned(), format!("--{long}"), "-1".to_owned()];
                tried += 1;
                if let Err(error) = command.clone().try_get_matches_from(call) {
                    assert_ne!(error.kind(), ErrorKind::UnknownArgument, "{error}");
                }
            }
        }
        assert!(tried > 150, "{tried}");
    }
}
