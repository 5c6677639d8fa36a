//! A chip at a lower clock than it is designed for, to meet a power limit.
//!
//! Dynamic power is C V^2 f. Voltage follows the clock down to the floor of its process (`process.voltage_floor`);
//! below that floor only the clock falls. A chip at a clock takes the same energy whatever clock it is designed for.
//! Everything on the cores' clock slows with it: arrays, lanes, and the bandwidth and latency of memories on the die.
//! HBM, links and static power stay, and so does the clock of the network on the die, whose width carries HBM's traffic
//! at the designed clock.

use super::{Accelerator, Accumulation, ProcessNode, sustained_power};
use crate::units::{BytesPerSecond, Hertz, Joules, Seconds, Watts};
use serde::Serialize;

/// Step of clocks, in Hz.
const STEP: f64 = 1e6;

/// The change of a chip whose clock was lowered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LoweredClock {
    /// The designed clock.
    pub from: Hertz,
    /// The lowered voltage as a fraction of the voltage at the designed clock.
    pub voltage_fraction: f64,
}

/// Returns the clock that a chip is designed for, lowered or not.
fn designed_clock(chip: &Accelerator) -> Hertz {
    chip.lowered.map_or(chip.clock, |lowered| lowered.from)
}

/// Returns the voltage of a chip at a lower clock, as a fraction of that at the clock of its design. If the process is
/// unknown, the node whose voltage falls least gives it.
fn voltage_fraction_of_chip(chip: &Accelerator, clock: Hertz) -> f64 {
    let of = |node: ProcessNode| chip.constants.voltage_fraction(node, designed_clock(chip), clock);
    chip.process_node().map_or_else(|| ProcessNode::ALL.into_iter().map(of).fold(0.0, f64::max), of)
}

/// Returns the chip at a lower clock; unchanged if `clock` is not below its own. A chip that is already lowered is the
/// same chip at one clock, whatever its clocks in between.
#[must_use]
pub fn lower_clock(chip: &Accelerator, clock: Hertz) -> Accelerator {
    let mut slow = chip.clone();
    let part = clock.0 / chip.clock.0;
    if part.is_nan() || part >= 1.0 {
        return slow;
    }
    let voltage_fraction = voltage_fraction_of_chip(chip, clock);
    let voltage = voltage_fraction / chip.lowered.map_or(1.0, |lowered| lowered.voltage_fraction);
    let dynamic = |energy: Joules| Joules(energy.0 * voltage * voltage);
    let rate = |rate: BytesPerSecond| BytesPerSecond(rate.0 * part);
    for level in slow.on_chip.iter_mut().filter(|level| !level.is_dram()) {
        level.read_bandwidth = rate(level.read_bandwidth);
        level.write_bandwidth = rate(level.write_bandwidth);
        level.latency = Seconds(level.latency.0 / part);
        level.read_energy_per_byte = dynamic(level.read_energy_per_byte);
        level.write_energy_per_byte = dynamic(level.write_energy_per_byte);
    }
    if let Accumulation::Memory(memory) = &mut slow.tensor.accumulation {
        memory.read_energy_per_byte = dynamic(memory.read_energy_per_byte);
        memory.write_energy_per_byte = dynamic(memory.write_energy_per_byte);
    }
    slow.energy.per_mac = slow.energy.per_mac.map_values(dynamic);
    slow.energy.per_vector_operation = dynamic(slow.energy.per_vector_operation);
    slow.energy.per_core_cycle = dynamic(slow.energy.per_core_cycle);
    slow.clock = clock;
    slow.lowered = Some(LoweredClock { from: designed_clock(chip), voltage_fraction });
    slow
}

/// Returns the lowest clock at which a chip may run. Far below the voltage floor, an operation takes no less dynamic
/// energy but ever more static energy. A smaller chip at a higher clock then does the same work within the same power.
#[must_use]
pub fn lowest_clock(chip: &Accelerator) -> Hertz {
    Hertz(designed_clock(chip).0 * chip.constants.process.lowest_clock_fraction)
}

/// Returns the highest clock at which `power` is within `limit`; `power` must grow with the clock. The clock is
/// `designed`, or else a whole number of MHz that is at least `lowest`. `None` if there is no such clock.
#[must_use]
pub fn highest_clock_within(
    designed: Hertz,
    lowest: Hertz,
    limit: Watts,
    power: impl Fn(Hertz) -> Watts,
) -> Option<Hertz> {
    // A power of NaN fails the comparison, so it counts as above the limit.
    highest_clock_where(designed, lowest, |clock| power(clock) <= limit)
}

/// Returns the highest clock at which `holds` is true. If `holds` is true at a clock, it must be true at all lower
/// ones. The result is `designed`, or else a whole number of MHz that is at least `lowest`; `None` if there is none.
#[must_use]
pub fn highest_clock_where(designed: Hertz, lowest: Hertz, holds: impl Fn(Hertz) -> bool) -> Option<Hertz> {
    if holds(designed) {
        return Some(designed);
    }
    let step = |number: u64| Hertz(number as f64 * STEP);
    let (mut low, mut high) = ((lowest.0 / STEP).ceil() as u64, (designed.0 / STEP).ceil() as u64);
    if low >= high || !holds(step(low)) {
        return None;
    }
    // Invariant: it holds at `low`, and not at `high`.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(step(middle)) { low = middle } else { high = middle }
    }
    Some(step(low))
}

/// Returns the chip at the highest clock, in whole MHz, at which its sustained power is within `limit`. It is unchanged
/// if its own clock already is. `None` if even its lowest clock is not.
#[must_use]
pub fn lower_clock_to_power(chip: &Accelerator, limit: Watts) -> Option<Accelerator> {
    let power = |clock: Hertz| sustained_power(&lower_clock(chip, clock)).peak_power();
    highest_clock_within(chip.clock, lowest_clock(chip), limit, power).map(|clock| lower_clock(chip, clock))
}

#[cfg(test)]
#[path = "lowered_tests.rs"]
mod tests;
