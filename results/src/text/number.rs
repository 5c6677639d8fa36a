//! Formats numbers together with their units. Most functions print four significant digits.

use sim::units::{Bytes, Seconds, SquareMillimeters};

/// The decimal prefixes of the SI, from 10^-12 to 10^18.
const SI_PREFIXES: [(f64, &str); 11] = [
    (1e18, "E"),
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
    (1e-12, "p"),
];

/// The largest rounding error of a printed limit, as a fraction of the limit.
const SHOWN: f64 = 1e-6;

/// The largest number of decimals of a value that is printed beside its limit.
const MOST_DECIMALS: usize = 15;

/// Formats `value` with `digits` significant digits (at least one). From 10^-4 up to 10^7 it prints no exponent.
/// Trailing zeros stay, because they show the precision. Zero prints as `0`; not-a-number and infinities print as
/// `NaN`, `inf` and `-inf`.
#[must_use]
pub fn format_significant(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    if value == 0.0 {
        return "0".into();
    }
    let digits = digits.max(1);
    let magnitude = value.abs().log10().floor() as i32;
    if !(-4..7).contains(&magnitude) {
        return format!("{value:.*e}", digits - 1);
    }
    let decimals = usize::try_from(digits as i32 - 1 - magnitude).unwrap_or(0);
    let text = format!("{value:.decimals$}");
    // 9.9996 rounds up to 10.000 at four digits, which has one decimal too many.
    let rounded: f64 = text.parse().unwrap_or(value);
    let grew = rounded != 0.0 && rounded.abs().log10().floor() as i32 > magnitude;
    if grew && decimals > 0 { format!("{value:.*}", decimals - 1) } else { text }
}

/// Formats a value and a limit with the same number of decimals, at least `decimals`: `8.143` and `8.100`. The number
/// grows, up to 15, until the two texts differ and the limit is exact to one part in 10^6.
#[must_use]
pub fn format_apart(value: f64, limit: f64, decimals: usize) -> (String, String) {
    let of = |decimals: usize| (format!("{value:.decimals$}"), format!("{limit:.decimals$}"));
    let shows = |decimals: usize| {
        let (one, other) = of(decimals);
        let read = other.parse::<f64>().unwrap_or(f64::NAN);
        (one != other || value == limit) && (read - limit).abs() <= SHOWN * limit.abs()
    };
    of((decimals..=MOST_DECIMALS).find(|decimals| shows(*decimals)).unwrap_or(MOST_DECIMALS))
}

/// Formats `value` with an SI prefix and four significant digits: `power_of_ten_rate(2.75e14, "FLOP/s")` is `275.0
/// TFLOP/s`.
#[must_use]
pub fn power_of_ten_rate(value: f64, unit: &str) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{} {unit}", format_significant(value, 4));
    }
    let last = SI_PREFIXES[SI_PREFIXES.len() - 1];
    // From 0.99995 times a prefix on, a value prints as 1.000 with this prefix.
    let (scale, prefix) = SI_PREFIXES.into_iter().find(|(scale, _)| value.abs() >= scale * 0.99995).unwrap_or(last);
    format!("{} {prefix}{unit}", format_significant(value / scale, 4))
}

/// Formats a time with four significant digits: `1.234 s`, `56.70 ms`, `8.900 µs`. Times from 1 s have no prefix.
#[must_use]
pub fn format_seconds(time: Seconds) -> String {
    if time.0.abs() >= 1.0 { format!("{} s", format_significant(time.0, 4)) } else { power_of_ten_rate(time.0, "s") }
}

/// Formats a range of two times. If both have the same unit, only the second one shows it: `435.9 to 471.3 ms`, but
/// `999.0 ms to 1.001 s`.
#[must_use]
pub fn format_seconds_between(low: Seconds, high: Seconds) -> String {
    let (low, high) = (format_seconds(low), format_seconds(high));
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((value, unit)), Some((_, other))) if unit == other => format!("{value} to {high}"),
        _ => format!("{low} to {high}"),
    }
}

/// Formats a size in binary units: `512 B`, `1.500 KiB`, `80.00 GiB`.
#[must_use]
pub fn format_bytes(size: Bytes) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if size.0 < 1024 {
        return format!("{} B", size.0);
    }
    let mut value = size.as_f64();
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", format_significant(value, 4), UNITS[unit])
}

/// Formats a size in GiB with three decimals, whatever its magnitude, so that a column of sizes is easy to compare:
/// `0.125 GiB`.
#[must_use]
pub fn format_gib(size: Bytes) -> String {
    format!("{:.3} GiB", size.gib())
}

/// Formats a fraction as a percentage with one decimal: `format_percent(0.4567)` is `45.7 %`.
#[must_use]
pub fn format_percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// Formats an area with four significant digits: `278.8 mm²`.
#[must_use]
pub fn format_area(area: SquareMillimeters) -> String {
    format!("{} mm²", format_significant(area.0, 4))
}

/// Formats a rate of whole things, such as tokens per second. From 10^4 to 10^15 it rounds to a whole number with
/// thousands separators; other rates have four significant digits.
#[must_use]
pub fn format_rate(value: f64) -> String {
    if (1e4..1e15).contains(&value) { format_count(value.round() as u64) } else { format_significant(value, 4) }
}

/// Formats a count with thousands separators: `29,360`.
#[must_use]
pub fn format_count(n: impl Into<u128>) -> String {
    let digits = n.into().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_and_the_value_beyond_it_are_told_apart() {
        let of = |value, limit, decimals| {
            let (value, limit) = format_apart(value, limit, decimals);
            format!("{value} {limit}")
        };
        assert_eq!(of(29.44, 20.0, 1), "29.4 20.0");
        assert_eq!(of(8.1432, 8.1, 1), "8.14 8.10");
        assert_eq!(of(8.116, 0.001, 1), "8.116 0.001");
        assert_eq!(of(700.4, 700.0, 0), "700.4 700.0");
        assert_eq!(of(5.0, 5.0, 1), "5.0 5.0");
    }

    #[test]
    fn significant_digits_survive_every_magnitude() {
        assert_eq!(format_significant(0.0, 4), "0");
        assert_eq!(format_significant(1.0, 4), "1.000");
        assert_eq!(format_significant(278.8267, 4), "278.8");
        assert_eq!(format_significant(9.9996, 4), "10.00");
        assert_eq!(format_significant(-0.001_234_56, 4), "-0.001235");
        assert_eq!(format_significant(123_456.7, 4), "123457");
        assert_eq!(format_significant(1.234e12, 4), "1.234e12");
        assert_eq!(format_significant(f64::NAN, 4), "NaN");
        assert_eq!(format_significant(f64::INFINITY, 4), "inf");
    }

    #[test]
    fn prefixes_change_where_the_digits_do() {
        assert_eq!(power_of_ten_rate(2.75e14, "FLOP/s"), "275.0 TFLOP/s");
        assert_eq!(power_of_ten_rate(999_990.0, "B/s"), "1.000 MB/s");
        assert_eq!(power_of_ten_rate(0.0, "W"), "0 W");
        assert_eq!(format_seconds(Seconds(0.0567)), "56.70 ms");
        assert_eq!(format_seconds(Seconds(8.9e-6)), "8.900 µs");
        assert_eq!(format_seconds(Seconds(1234.0)), "1234 s");
        assert_eq!(format_seconds_between(Seconds(0.435_905_9), Seconds(0.471_287_2)), "435.9 to 471.3 ms");
        assert_eq!(format_seconds_between(Seconds(0.999), Seconds(1.001)), "999.0 ms to 1.001 s");
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(format_bytes(Bytes(512)), "512 B");
        assert_eq!(format_bytes(Bytes(1536)), "1.500 KiB");
        assert_eq!(format_bytes(Bytes::from_gib(80.0)), "80.00 GiB");
        assert_eq!(format_bytes(Bytes(u64::MAX)), "16.00 EiB");
        assert_eq!(format_gib(Bytes(1 << 27)), "0.125 GiB");
    }

    #[test]
    fn counts_and_fractions() {
        assert_eq!(format_count(29_360_u64), "29,360");
        assert_eq!(format_count(999_u64), "999");
        assert_eq!(format_count(1_000_000_u64), "1,000,000");
        assert_eq!(format_rate(3_814_190.2), "3,814,190");
        assert_eq!(format_rate(93.124_5), "93.12");
        assert_eq!(format_rate(f64::INFINITY), "inf");
        assert_eq!(format_percent(0.4567), "45.7 %");
        assert_eq!(format_area(SquareMillimeters(278.826_676)), "278.8 mm²");
    }
}
