//! A space of which the limits leave no chip: which limit does, and what it must be for one.

use super::Asked;
use crate::failure::{self, Failure};
use search::space::{ChipLimits, Limit, Space};
use search::study::Study;

/// Digits of a limit that is told: rounded to where it still leaves a chip.
const DIGITS: i32 = 4;

/// The failure that it is. `name` is the study's.
pub fn nothing_within(name: &str, asked: &Asked, space: &Space) -> Failure {
    let said = cures(space, space.limits()).and_then(|alone| match alone.is_empty() {
        false => Ok((alone, "or", "each by itself leaves one")),
        true => cures(space, &ChipLimits::default()).map(|all| (all, "and", "no chip is nearer to any of them")),
    });
    let (cures, joined, why) = match said {
        Ok(said) => said,
        Err(why) => return failure::input(format!("{}: {why}", Study::place(name, &why))),
    };
    let given = given(space.limits()).filter(|(limit, _)| cures.is_empty() || cures.iter().any(|(of, _)| of == limit));
    let given: Vec<String> = given.map(|(limit, value)| format!("{}{value}", asked.limit(name, limit))).collect();
    let words: Vec<String> = cures.iter().map(|(limit, nearest)| cure(*limit, *nearest)).collect();
    let cure = match &words[..] {
        [] => "widen several of them".to_owned(),
        [alone] => format!("allow {alone}, or vary other dimensions"),
        several => format!("allow {} ({why}), or vary other dimensions", several.join(&format!(", {joined} "))),
    };
    failure::input(format!("{}: no chip of the space is within the limits, and nothing is tried; {cure}", given.join(", ")))
}

/// Limits that are given.
fn given(limits: &ChipLimits) -> impl Iterator<Item = (Limit, f64)> + '_ {
    Limit::ALL.into_iter().filter_map(|limit| Some((limit, limit.of(limits)?)))
}

/// Which of the limits leave a chip of those within others at what value, if that is another than they have.
fn cures(space: &Space, others: &ChipLimits) -> Result<Vec<(Limit, f64)>, String> {
    let mut cures = Vec::new();
    for (limit, value) in given(space.limits()) {
        let nearest = space.nearest(limit, others)?;
        let beyond = |nearest: &f64| if limit.is_least() { *nearest < value } else { *nearest > value };
        cures.extend(nearest.filter(beyond).map(|nearest| (limit, nearest)));
    }
    Ok(cures)
}

/// What is to be allowed.
fn cure(limit: Limit, nearest: f64) -> String {
    let (end, value) = (if limit.is_least() { "most" } else { "least" }, rounded(nearest, !limit.is_least()));
    format!("{} {value}{} at {end}", quantity(limit), unit(limit))
}

/// What a limit is of.
fn quantity(limit: Limit) -> &'static str {
    match limit {
        Limit::Area => "an area of",
        Limit::Power => "a power of",
        Limit::Cost => "a cost of",
        Limit::LeastHbm => "a least HBM of",
        Limit::MostHbm => "a largest HBM of",
        Limit::HbmRate => "a least HBM bandwidth of",
    }
}

fn unit(limit: Limit) -> &'static str {
    match limit {
        Limit::Area => " mm²",
        Limit::Power => " W",
        Limit::Cost => " USD",
        Limit::LeastHbm | Limit::MostHbm => " GiB",
        Limit::HbmRate => " GB/s",
    }
}

/// A value of few digits that is no less (`up`) or no more.
fn rounded(value: f64, up: bool) -> f64 {
    let scale = 10_f64.powi(DIGITS - 1 - value.abs().log10().floor() as i32);
    let scaled = value * scale;
    let whole = if up { scaled.ceil() } else { scaled.floor() };
    // What rounding took away is given back.
    if scale < 1.0 { whole * (1.0 / scale).round() } else { whole / scale }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn a_limit_is_rounded_to_where_it_leaves_a_chip() {
        assert_eq!((rounded(98.4601, true), rounded(98.4699, false)), (98.47, 98.46));
        assert_eq!((rounded(32.0, true), rounded(123_456.0, true)), (32.0, 123_500.0));
    }
}
