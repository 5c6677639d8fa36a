//! Accepted ranges of hardware figures, in base units. Each limit lies far outside all existing hardware and is
//! inclusive. A value beyond it is a typing mistake or has the wrong unit, and would give an answer that looks like a
//! result.

use std::ops::RangeInclusive;

/// Bytes per second of a memory, a link or a network's port. A megabyte per second is below the slowest Ethernet (10
/// Mbit/s). 1e18 is a million times an HBM4 stack's bandwidth (about 2 TB/s), and stands for a memory that never limits
/// in another simulator's file.
pub const RATE: RangeInclusive<f64> = 1e6..=1e18;

/// Bytes per cycle of a memory's port: the ends of [`RATE`] at the ends of [`CLOCK`].
pub const BYTES_PER_CYCLE: RangeInclusive<f64> = 1e-5..=1e15;

/// Bytes of a memory, 1 PiB: a thousand times the largest accelerator's or host's of 2025.
pub const LARGEST_MEMORY: u64 = 1 << 50;

/// Bytes of storage, 1 EiB: far above a device's share of the largest file systems.
pub const LARGEST_STORAGE: u64 = 1 << 60;

/// Largest latency of a memory, a link or a message, in seconds. In this time light almost reaches the moon.
pub const LONGEST_LATENCY: f64 = 1.0;

/// Smallest ratio of achieved to nominal bandwidth. A ratio below a millionth has the wrong unit.
pub const LEAST_FRACTION: f64 = 1e-6;

/// Hertz of a clock: from a hundredth of the first microprocessors' hundreds of kilohertz to ten times the fastest
/// silicon on sale.
pub const CLOCK: RangeInclusive<f64> = 1e3..=1e11;

/// Operations per second of all arrays of a chip: from a million, as in early microprocessors, to 1e21, eight thousand
/// times a wafer's 1.25e17 (Cerebras WSE-3, 2024).
pub const PEAK: RangeInclusive<f64> = 1e6..=1e21;

/// Most cores, arrays, rows, columns, lanes, ports or units of a kind: far above any wafer's.
pub const LARGEST_COUNT: u32 = 1 << 20;

/// Square millimetres of all dies: a wafer has 7e4.
pub const AREA: RangeInclusive<f64> = 1e-3..=1e6;

/// Watts of a device: a wafer takes 2e4.
pub const POWER: RangeInclusive<f64> = 1e-3..=1e6;

/// Largest energy of one operation or byte, in joules. A microjoule is a thousand times the energy of a byte from
/// another machine's memory.
pub const MOST_ENERGY: f64 = 1e-6;

/// Largest ratio of a switch's ports to its uplinks.
pub const MOST_OVERSUBSCRIPTION: f64 = 1e4;

/// Returns a number in readable form. Sizes outside 1e-4 to 1e7 have an exponent, with up to four significant digits
/// where the exact form is longer.
pub fn format_number(number: f64) -> String {
    let size = number.abs();
    if size == 0.0 || (1e-4..1e7).contains(&size) {
        return number.to_string();
    }
    let (exact, rounded) = (format!("{number:e}"), format!("{number:.3e}"));
    if exact.len() > rounded.len() { rounded } else { exact }
}

/// Returns the text of a range, such as `must be from 0.001 to 1e9`.
pub fn describe_range(least: f64, most: f64) -> String {
    format!("must be from {} to {}", format_number(least), format_number(most))
}
