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
