//! What a box of chips comes to at best: one chip that has the best of each of their figures, and one that takes the least.
//!
//! Chip files are built by the reader of chip files from the ends of what every field comes to in the box, so that a bound of the first chip holds for
//! every chip of the box, as far as bounds follow the fields that vary ([`growth`]).

use super::formula::Extent;
use super::grid::{Grid, Place};
use super::interval::Interval;
use super::limits::{ChipLimits, Figures, Why};
use super::region::Region;
use sim::hardware::fields::{Growth, More, growth};
use sim::hardware::manufacturing::{Foundry, chip_cost};
use sim::hardware::{Accelerator, ChipDocument, Setting, area, at_clock, highest_clock, least_sustained_power, lowest_clock};
use sim::units::{BytesPerSecond, Hertz, SquareMillimeters, Watts};

/// Sums and powers of doubles in another order than a chip's own: more than their rounding comes to.
const ROUNDING: f64 = 1e-9;

/// What bounds all chips of a box.
#[derive(Debug, Clone)]
pub struct Corners {
    /// No chip of the box has a faster kernel, more memory, or more of anything.
    pub fast: Accelerator,
    /// No chip of the box takes less energy for an operation or draws less standing still.
    pub small: Accelerator,
    /// No chip of the box takes less. Without a price where none has one.
    pub least: Figures,
    /// Fabrics that join them, by [`Space::fabrics`](super::Space::fabrics).
    pub fabrics: Vec<usize>,
    /// Whether kernels of [`Self::fast`] with what its arrays and buffers leave of their peaks bound those of the box.
    pub buffered: bool,
    /// Whether its kernels mapped do.
    pub mapped: bool,
}

/// A box of chips.
#[derive(Debug, Clone)]
pub enum Enclosed {
    /// With a bound.
    Within(Box<Corners>),
    /// Without: it is to be split.
    Open,
    /// All are outside the limits.
    Outside(Why),
}

/// The files of both chips.
struct Files {
    fast: ChipDocument,
    small: ChipDocument,
    buffered: bool,
    mapped: bool,
}

impl Files {
    /// Sets a field to the ends of what it comes to; whether a bound is known to follow it.
    fn set(&mut self, key: &str, extent: &Extent) -> bool {
        let mut both = |fast: &Setting, small: &Setting| self.fast.set(key, fast).is_ok() && self.small.set(key, small).is_ok();
        let (low, high) = match extent {
            Extent::Fixed(value) => return both(value, value),
            Extent::Among(_) | Extent::Unknown => return false,
            Extent::Between(Interval { low, high }) => (*low, *high),
        };
        let Growth { more, buffered, mapped, whole } = growth(key);
        // Ends of expressions may lie between whole numbers, which the chips' own values are.
        let (low, high) = if whole { (low.ceil(), high.floor()) } else { (low, high) };
        let known = low <= high
            && match more {
                More::Faster => both(&Setting::Number(high), &Setting::Number(low)),
                More::Slower => both(&Setting::Number(low), &Setting::Number(low)),
                More::Unknown => false,
            };
        self.buffered &= buffered;
        self.mapped &= mapped;
        known
    }

    fn chips(&self) -> Option<(Accelerator, Accelerator)> {
        Some((self.fast.accelerator().ok()?, self.small.accelerator().ok()?))
    }
}

/// Lowers the corners of a box as far as a limit of power lowers its chips: `fast` to a clock that none of them is run above, what `small` takes for an
/// operation to what it is at the lowest voltage. What none of them takes less than if its clock is lowered; `None` where none is within the limit.
fn slow(files: &Files, (fast, small): (&mut Accelerator, &mut Accelerator), most: Watts) -> Option<Watts> {
    let least = |small: &Accelerator, fast: &Accelerator| Watts(least_sustained_power(small, fast).0 * (1.0 - ROUNDING));
    // No chip runs below the lowest clock of the slowest, nor at a lower voltage.
    let lowest = lowest_clock(small);
    let deepest = at_clock(small, lowest);
    if least(&deepest, fast) > most {
        return None;
    }
    // At any clock no chip takes less than one of the fastest's clock, whose voltage and rates have fallen furthest there.
    let falling = Accelerator { clock: fast.clock, ..small.clone() };
    let power = |clock: Hertz| least(&at_clock(&falling, clock), fast);
    // A chip that is within the limit at its own clock need not run at a whole number of MHz.
    let highest = highest_clock(fast.clock, lowest, most, power).map_or(fast.clock, |clock| Hertz(clock.0 + 1e6));
    if highest < fast.clock {
        slow_to(files, fast, small.clock, highest);
    }
    small.energy = deepest.energy;
    for (level, deepest) in small.on_chip.iter_mut().zip(&deepest.on_chip) {
        level.read_energy_per_byte = deepest.read_energy_per_byte;
        level.write_energy_per_byte = deepest.write_energy_per_byte;
    }
    // A clock that is lowered is the highest in whole MHz within the limit: the next would exceed it. Power falls at most with the clock's cube.
    let part = lowest.0 / (lowest.0 + 1e6);
    Some(Watts(most.0 * part.powi(3) * (1.0 - ROUNDING)))
}

/// Lowers the fastest of a box's chips to a clock that none is run above; `least` is the lowest clock that any of them is designed for.
fn slow_to(files: &Files, fast: &mut Accelerator, least: Hertz, clock: Hertz) {
    let mut document = files.fast.clone();
    let set = document.set("clock_mhz", &Setting::Number(clock.0 / 1e6)).is_ok();
    let Some(slow) = document.accelerator().ok().filter(|_| set) else { return };
    // What is per cycle has followed. No rate of the box is per cycle more than the highest over the lowest clock.
    let capped = |rate: BytesPerSecond, slow: BytesPerSecond| slow.min(BytesPerSecond(rate.0 * (clock.0 / least.0).min(1.0)));
    for (level, slow) in fast.on_chip.iter_mut().zip(&slow.on_chip).filter(|(level, _)| !level.is_dram()) {
        level.read_bandwidth = capped(level.read_bandwidth, slow.read_bandwidth);
        level.write_bandwidth = capped(level.write_bandwidth, slow.write_bandwidth);
    }
    fast.clock = slow.clock;
}

impl Grid {
    /// What bounds the chips of a region within limits.
    ///
    /// # Errors
    /// An expression without a value, a field that no chip has.
    pub(super) fn enclose(&self, region: &Region, limits: &ChipLimits) -> Result<Enclosed, String> {
        let some = self.order.places(region);
        let mut extents = self.formulas.extents(&some)?;
        let mut files = Files { fast: self.base.clone(), small: self.base.clone(), buffered: true, mapped: true };
        if !self.set_extents(&mut files, &extents, false) {
            return Ok(Enclosed::Open);
        }
        // What does not go together at the ends may do so between.
        let Some((mut fast, mut small)) = files.chips() else { return Ok(Enclosed::Open) };
        let of = |chip: &Accelerator| area(chip).map(|parts| parts.total().0).map_err(|why| why.to_string());
        let die = Interval::new(of(&small)?, of(&fast)?).widened(ROUNDING);
        if self.formulas.any_of_area() {
            self.formulas.extents_with_area(&mut extents, die)?;
            let set = self.set_extents(&mut files, &extents, true);
            let Some(chips) = files.chips().filter(|_| set) else { return Ok(Enclosed::Open) };
            (fast, small) = chips;
        }
        let mut least = Figures {
            area: SquareMillimeters(die.low),
            peak_power: Watts(least_sustained_power(&small, &fast).0 * (1.0 - ROUNDING)),
            cost_usd: chip_cost(&small, Foundry::default())
                .map_err(|why| why.to_string())?
                .map(|cost| cost.total_usd() * (1.0 - ROUNDING)),
        };
        let unlimited = ChipLimits { max_power_w: None, ..*limits };
        if let Some(why) = unlimited.exceeded(&least) {
            return Ok(Enclosed::Outside(why));
        }
        if !limits.allows_memory(&fast, &small, ROUNDING) {
            return Ok(Enclosed::Outside(Why::Hbm));
        }
        if let Some(most) = limits.max_power_w {
            let Some(power) = slow(&files, (&mut fast, &mut small), Watts(most)) else {
                return Ok(Enclosed::Outside(Why::Power));
            };
            least.peak_power = least.peak_power.min(power);
        }
        // A stack goes by the base's name.
        let name = self.name(0, &fast.name);
        (fast.name, small.name) = (name.clone(), name);
        let Files { buffered, mapped, .. } = files;
        Ok(Enclosed::Within(Box::new(Corners { fast, small, least, fabrics: self.fabrics_of(&some), buffered, mapped })))
    }

    fn set_extents(&self, files: &mut Files, extents: &[Extent], of_area: bool) -> bool {
        let mut chip = self.formulas.set(of_area).filter(|slot| self.places[*slot] == Place::Chip);
        chip.all(|slot| files.set(&self.formulas.keys()[slot], &extents[slot]))
    }
}
