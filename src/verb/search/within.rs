//! Explains why no chip of a space is within its limits: the limits to change, and their new values.

use super::StudyOverrides;
use crate::failure::{self, Failure};
use search::space::{ChipLimit, ChipLimits, Space};
use search::study::Study;

/// Digits of a suggested limit. It is rounded to the side that still leaves a chip.
const DIGITS: i32 = 4;

/// Returns the failure of a search whose limits leave no chip. `name` is the study's name.
pub fn nothing_within_limits(name: &str, asked: &StudyOverrides, space: &Space) -> Failure {
    let unlimited = ChipLimits { lift_build_limits: space.limits().lift_build_limits, ..ChipLimits::default() };
    let said = cures_of_limits(space, space.limits()).and_then(|alone| match alone.is_empty() {
        false => Ok((alone, "or", "each alone leaves one")),
        true => cures_of_limits(space, &unlimited).map(|all| (all, "and", "no chip is nearer to any of the limits")),
    });
    // A chip that exceeds a limit is not checked against the rules of building. If no change of the limits helps, a
    // broken rule may be the cause.
    let no_cure = said.as_ref().is_ok_and(|(cures, ..)| cures.is_empty());
    match if no_cure { space.nearest_unbuildable(&unlimited) } else { Ok(None) } {
        Ok(Some(broken)) => {
            let cure = broken.rule.cure();
            return failure::file_failure(
                name,
                "no chip of the space can be built",
                format!("the nearest breaks {broken}: {cure}, or lift the limits (--no-build-limits)"),
            );
        }
        Ok(None) => {}
        Err(why) => return failure::file_failure(Study::place(name, &why), why, ""),
    }
    let (cures, joined, why) = match said {
        Ok(said) => said,
        Err(why) => return failure::file_failure(Study::place(name, &why), why, ""),
    };
    let given =
        given_limits(space.limits()).filter(|(limit, _)| cures.is_empty() || cures.iter().any(|(of, _)| of == limit));
    let given: Vec<String> =
        given.map(|(limit, value)| format!("{}{value}", asked.name_of_limit(name, limit))).collect();
    let words: Vec<String> = cures.iter().map(|(limit, nearest)| cure_text(*limit, *nearest)).collect();
    let cure = match &words[..] {
        [] => "widen several of them".to_owned(),
        [alone] => format!("allow {alone}, or vary other dimensions"),
        several => format!("allow {} ({why}), or vary other dimensions", several.join(&format!(", {joined} "))),
    };
    failure::file_failure(
        given.join(", "),
        "no chip of the space is within the limits, so that nothing is searched",
        cure,
    )
}

/// Returns the limits that are set, with their values.
fn given_limits(limits: &ChipLimits) -> impl Iterator<Item = (ChipLimit, f64)> + '_ {
    ChipLimit::ALL.into_iter().filter_map(|limit| Some((limit, limit.value_in(limits)?)))
}

/// Returns the limits that leave a chip if they alone are changed, each with the value needed. The other limits are
/// `others`.
fn cures_of_limits(space: &Space, others: &ChipLimits) -> Result<Vec<(ChipLimit, f64)>, String> {
    let mut cures = Vec::new();
    for (limit, value) in given_limits(space.limits()) {
        let nearest = space.nearest_limit(limit, others)?;
        let beyond = |nearest: &f64| if limit.is_lower_limit() { *nearest < value } else { *nearest > value };
        cures.extend(nearest.filter(beyond).map(|nearest| (limit, nearest)));
    }
    Ok(cures)
}

/// Describes a suggested limit in words.
fn cure_text(limit: ChipLimit, nearest: f64) -> String {
    let (end, value) =
        (if limit.is_lower_limit() { "most" } else { "least" }, round_outwards(nearest, !limit.is_lower_limit()));
    format!("{} {value}{} at {end}", quantity_of_limit(limit), unit_of_limit(limit))
}

/// Returns the quantity of a limit, in words.
fn quantity_of_limit(limit: ChipLimit) -> &'static str {
    match limit {
        ChipLimit::Area => "an area of",
        ChipLimit::Power => "a power of",
        ChipLimit::Cost => "a cost of",
        ChipLimit::LeastHbm => "a least HBM of",
        ChipLimit::MostHbm => "a largest HBM of",
        ChipLimit::HbmRate => "a least HBM bandwidth of",
    }
}

fn unit_of_limit(limit: ChipLimit) -> &'static str {
    match limit {
        ChipLimit::Area => " mm²",
        ChipLimit::Power => " W",
        ChipLimit::Cost => " USD",
        ChipLimit::LeastHbm | ChipLimit::MostHbm => " GiB",
        ChipLimit::HbmRate => " GB/s",
    }
}

/// Rounds a value to few digits: upwards if `up`, otherwise downwards.
fn round_outwards(value: f64, up: bool) -> f64 {
    let scale = 10_f64.powi(DIGITS - 1 - value.abs().log10().floor() as i32);
    let scaled = value * scale;
    let whole = if up { scaled.ceil() } else { scaled.floor() };
    // Division by a scale below 1 would add rounding to large values, so its inverse is rounded to a whole number.
    if scale < 1.0 { whole * (1.0 / scale).round() } else { whole / scale }
}

#[cfg(test)]
mod tests {
    use super::round_outwards;

    #[test]
    fn a_limit_is_rounded_to_where_it_leaves_a_chip() {
        assert_eq!((round_outwards(98.4601, true), round_outwards(98.4699, false)), (98.47, 98.46));
        assert_eq!((round_outwards(32.0, true), round_outwards(123_456.0, true)), (32.0, 123_500.0));
    }
}
