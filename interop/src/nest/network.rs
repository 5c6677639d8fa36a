//! Transfers and all-reduces as NEST charges them.

use super::instance::NestInstance;

/// Returns the innermost level with a block that holds both devices. The reader ensures that the outermost block holds
/// all devices.
pub(super) fn level_between(instance: &NestInstance, one: u64, other: u64) -> usize {
    let (mut one, mut other) = (one, other);
    for (at, level) in instance.levels.iter().enumerate() {
        (one, other) = (one / level.branches, other / level.branches);
        if one == other {
            return at;
        }
    }
    instance.levels.len() - 1
}

/// Returns the level of the link between the stage at `position` from the end and the stage before it. The last stage
/// begins at device 0, and the stages before it follow on higher devices. The first device of a stage decides its
/// place.
pub(super) fn level_before_stage(instance: &NestInstance, position: u64, devices_of_stage: u64) -> usize {
    level_between(instance, (position - 1) * devices_of_stage, position * devices_of_stage)
}

/// Returns the seconds of a transfer over a level. Above the innermost level, a transfer goes up and down and counts
/// twice. Its bandwidth is the lowest of the level and all levels below it.
pub(super) fn time_of_transfer(instance: &NestInstance, level: usize, bytes: f64) -> f64 {
    let bandwidth = instance.levels[..=level].iter().map(|level| level.bandwidth).fold(f64::INFINITY, f64::min);
    let once = bytes / bandwidth + instance.levels[level].latency;
    if level == 0 { once } else { 2.0 * once }
}

/// An all-reduce as a fixed time and a time per byte, because NEST's formula is linear in the bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AllReduceCost {
    pub fixed: f64,
    pub per_byte: f64,
}

impl AllReduceCost {
    /// Returns the cost of an all-reduce among `copies` devices that are `stride` devices apart, the first at device 0.
    ///
    /// Halving and doubling uses the innermost link only, `floor(log2 copies)` times. Each further level, up to the one
    /// that holds all members, adds a transfer up and down, and adds the sum for the levels below once more.
    pub fn between_copies(instance: &NestInstance, copies: u64, stride: u64) -> Self {
        let innermost = &instance.levels[0];
        let mut total = Self { fixed: 0.0, per_byte: 0.0 };
        for step in 0..copies.max(1).ilog2() {
            total.fixed += innermost.latency;
            total.per_byte += 0.5_f64.powi(step as i32) / innermost.bandwidth;
        }
        let mut below = Self { fixed: 0.0, per_byte: 0.0 };
        let outermost = level_between(instance, 0, copies.saturating_sub(1) * stride);
        for level in &instance.levels[1..=outermost] {
            total.fixed += 2.0 * level.latency + below.fixed;
            total.per_byte += 2.0 / level.bandwidth + below.per_byte;
            below.fixed += total.fixed;
            below.per_byte += total.per_byte;
        }
        total
    }

    /// Returns the seconds for `bytes`.
    pub fn time_for(self, bytes: f64) -> f64 {
        self.fixed + self.per_byte * bytes
    }
}
