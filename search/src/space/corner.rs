//! Bounds a box of chips by two corner chips. The fast corner has the best of every figure. The small corner has the
//! least area, energy and power.
//!
//! The reader of chip files builds both corners from the ends of every field's range in the box. If bounds are
//! monotonic in the fields that vary ([`growth_of_bounds`]), a bound of the fast corner holds for every chip of the
//! box.

use super::extent::ValueExtent;
use super::grid::Grid;
use super::interval::NumberInterval;
use super::limits::{ChipFigures, ChipLimits, OutsideReason};
use super::region::Region;
use sim::hardware::fields::{BoundGrowth, FieldEffect};
use sim::hardware::manufacturing::least_chip_cost;
use sim::hardware::{
    Accelerator, AreaModel, BuildRule, ChipDocument, FieldValue, chip_area, find_unbuildable_between, full_cell_rate,
    highest_clock_within, largest_compute_area, least_power_at_cell_rate, least_sustained_power, lower_clock,
    lowest_clock,
};
use sim::units::{BytesPerSecond, Hertz, SquareMillimeters, Watts};

/// Relative allowance for rounding, because sums and powers are computed in another order than for a single chip.
const ROUNDING: f64 = 1e-9;
/// Relative allowance for the reticle rule; larger than the rule's own.
const RETICLE_ROUNDING: f64 = 1e-5;
/// Relative tolerance of the bisection for the bound on cells times clock.
const CELL_RATE_STEP: f64 = 1.0 / 1024.0;

/// Bounds on all chips of a box.
#[derive(Debug, Clone)]
pub struct Corners {
    /// The fast corner: at least as fast as any chip of the box, with at least as much memory and at least as many of
    /// all resources.
    pub fast: Accelerator,
    /// The small corner: its energy per operation and its static power are at most those of any chip of the box.
    pub small: Accelerator,
    /// Lower bounds on the figures. The price is `None` if no chip of the box has one.
    pub least: ChipFigures,
    /// Indices of the fabrics of the box's chips in [`Space::fabric_settings`](super::Space::fabric_settings).
    pub fabrics: Vec<usize>,
    /// True if kernel times of [`Self::fast`], limited by its arrays and buffers, bound those of the box's chips.
    pub buffered: bool,
    /// True if mapped kernel times of [`Self::fast`] bound those of the box's chips.
    pub mapped: bool,
}

/// A box of chips, bounded or not.
#[derive(Debug, Clone)]
pub enum Enclosed {
    /// Bounded.
    Within(Box<Corners>),
    /// Without a bound. The box must be split.
    Open,
    /// All its chips exceed a limit.
    Outside(OutsideReason),
}

/// The fast and the small corner of a box.
struct CornerChips {
    fast: Accelerator,
    small: Accelerator,
}

/// A box before its limits are applied.
struct UnlimitedBox {
    files: Files,
    chips: CornerChips,
    /// The area of its chips' dies in mm².
    die: NumberInterval,
}

/// The chip files of both corners.
struct Files {
    fast: ChipDocument,
    small: ChipDocument,
    buffered: bool,
    mapped: bool,
}

impl Files {
    /// Sets a field to the ends of its range, and returns the values of the fast and the small corner. `None` if a file
    /// lacks the field, or bounds are not known to be monotonic in it.
    fn set_extent(&mut self, key: &str, extent: &ValueExtent, growth: BoundGrowth) -> Option<[FieldValue; 2]> {
        let ends = match extent {
            ValueExtent::Fixed(value) => [value.clone(), value.clone()],
            ValueExtent::Among(_) | ValueExtent::Unknown => return None,
            ValueExtent::Between(NumberInterval { low, high }) => {
                self.buffered &= growth.buffered;
                self.mapped &= growth.mapped;
                // The ends of an expression's range may lie between whole numbers, but a chip's own value is whole.
                let (low, high) = if growth.whole { (low.ceil(), high.floor()) } else { (*low, *high) };
                let fast = match growth.more {
                    FieldEffect::Faster => high,
                    FieldEffect::Slower => low,
                    FieldEffect::Unknown => return None,
                };
                (low <= high).then_some([FieldValue::Number(fast), FieldValue::Number(low)])?
            }
        };
        let [fast, small] = &ends;
        (self.fast.set_field(key, fast).is_ok() && self.small.set_field(key, small).is_ok()).then_some(ends)
    }

    fn corner_chips(&self) -> Option<CornerChips> {
        Some(CornerChips { fast: self.fast.build_accelerator().ok()?, small: self.small.build_accelerator().ok()? })
    }

    /// The small corner, designed for the clock of the fast one. `None` if its file is no chip.
    fn small_chip_at_fast_clock(&self, fast: Hertz) -> Option<Accelerator> {
        let mut document = self.small.clone();
        document.set_field("clock_mhz", &FieldValue::Number(fast.0 / 1e6)).ok()?;
        document.build_accelerator().ok()
    }
}

/// Upper bound on the multiply-accumulate cells of a chip whose dies are within `area` (mm²). It is the number of
/// `fast`, or what fits if everything else takes the least area.
fn most_cells(fast: &Accelerator, small: &Accelerator, die: NumberInterval, area: f64) -> f64 {
    let all = fast.tensor.unit_count() as f64;
    let (AreaModel::UnitAreas(_), true) = (&small.area_model, area < die.high) else { return all };
    // The area of an array's cells grows with their number.
    let mut twice = small.clone();
    twice.tensor.arrays_per_core = small.tensor.arrays_per_core.saturating_mul(2);
    let of = |chip: &Accelerator| chip_area(chip).map_or(f64::NAN, |parts| parts.total_area().0);
    let (least, cells) = (of(small), small.tensor.unit_count() as f64);
    let each = (of(&twice) - least) / (twice.tensor.unit_count() as f64 - cells);
    let left = cells + (area - least) / each * (1.0 + ROUNDING);
    if left > 0.0 { left.min(all) } else { all }
}

/// Upper bound on cells times clock of a chip within a power limit, with at most `cells` cells and a clock of at least
/// `lowest`. `power` gives the least power at a clock and at a rate of cells times clock.
fn most_cell_rate(
    cells: f64,
    fastest: Hertz,
    lowest: Hertz,
    limit: Watts,
    power: impl Fn(Hertz, Hertz) -> Watts,
) -> Hertz {
    let within = |rate: f64| power(Hertz((rate / cells).max(lowest.0)), Hertz(rate)) <= limit;
    let (mut low, mut high) = (0.0, cells * fastest.0);
    if within(high) {
        return Hertz(high);
    }
    while high - low > high * CELL_RATE_STEP {
        let middle = f64::midpoint(low, high);
        if within(middle) { low = middle } else { high = middle }
    }
    Hertz(high)
}

/// Lowers the clocks of a box's corners as the power limit lowers those of its chips. `fast` gets a clock that no chip
/// exceeds. `small` gets the energy per operation at the lowest voltage. `fast` also gets a limit on cells times clock,
/// because a chip with many cells must run at a low clock. No chip has more than `cells`.
///
/// The power limits of the box's chips lie between `least` and `most`. Returns a lower bound on the power of a chip
/// with a lowered clock. `None` if no chip is within its limit.
fn lower_corner_clocks(
    files: &Files,
    CornerChips { fast, small }: &mut CornerChips,
    cells: f64,
    Between { least: tightest, most }: Between<Watts>,
) -> Option<Watts> {
    let least =
        |small: &Accelerator, fast: &Accelerator| Watts(least_sustained_power(small, fast).0 * (1.0 - ROUNDING));
    // No chip runs below the lowest clock of the slowest chip, or at a lower voltage.
    let lowest = lowest_clock(small);
    let deepest = lower_clock(small, lowest);
    if least(&deepest, fast) > most {
        return None;
    }
    // At a given clock, the chip with the fastest design clock takes the least power, because its voltage and rates
    // have fallen furthest.
    let falling = match small.clock == fast.clock {
        true => small.clone(),
        false => files
            .small_chip_at_fast_clock(fast.clock)
            .unwrap_or_else(|| Accelerator { clock: fast.clock, ..small.clone() }),
    };
    let power = |clock: Hertz| least(&lower_clock(&falling, clock), fast);
    let at_rate = |clock: Hertz, cells: Hertz| {
        Watts(least_power_at_cell_rate(&lower_clock(&falling, clock), fast, cells).0 * (1.0 - ROUNDING))
    };
    let limit = most_cell_rate(cells, fast.clock, lowest, most, at_rate);
    // One MHz is added because a chip within the limit at its own clock need not run at a whole number of MHz.
    let highest =
        highest_clock_within(fast.clock, lowest, most, power).map_or(fast.clock, |clock| Hertz(clock.0 + 1e6));
    if highest < fast.clock {
        lower_fastest_clock(files, fast, small.clock, highest);
    }
    fast.cell_rate_limit = Some(limit).filter(|limit| *limit < full_cell_rate(fast));
    small.energy = deepest.energy;
    small.tensor.accumulation = deepest.tensor.accumulation;
    for (level, deepest) in small.on_chip.iter_mut().zip(&deepest.on_chip) {
        level.read_energy_per_byte = deepest.read_energy_per_byte;
        level.write_energy_per_byte = deepest.write_energy_per_byte;
    }
    // A lowered clock is the highest in whole MHz within the limit, so one MHz more would exceed it. Power falls at
    // most with the cube of the clock.
    let part = lowest.0 / (lowest.0 + 1e6);
    Some(Watts(tightest.0 * part.powi(3) * (1.0 - ROUNDING)))
}

/// The smallest and the largest value of a figure in a box.
#[derive(Debug, Clone, Copy)]
struct Between<T> {
    least: T,
    most: T,
}

/// Lowers the fast corner to a clock that no chip exceeds. `least` is the lowest design clock of the box.
fn lower_fastest_clock(files: &Files, fast: &mut Accelerator, least: Hertz, clock: Hertz) {
    let mut document = files.fast.clone();
    let set = document.set_field("clock_mhz", &FieldValue::Number(clock.0 / 1e6)).is_ok();
    let Some(slow) = document.build_accelerator().ok().filter(|_| set) else { return };
    // Figures per cycle have followed the clock. No rate per cycle in the box is higher by more than the ratio of the
    // highest to the lowest clock.
    let capped =
        |rate: BytesPerSecond, slow: BytesPerSecond| slow.min(BytesPerSecond(rate.0 * (clock.0 / least.0).min(1.0)));
    for (level, slow) in fast.on_chip.iter_mut().zip(&slow.on_chip).filter(|(level, _)| !level.is_dram()) {
        level.read_bandwidth = capped(level.read_bandwidth, slow.read_bandwidth);
        level.write_bandwidth = capped(level.write_bandwidth, slow.write_bandwidth);
    }
    fast.clock = slow.clock;
}

impl Grid {
    /// Bounds those chips of a region that are within the limits.
    ///
    /// # Errors
    /// An expression without a value, or a field that no chip has.
    pub(super) fn enclose_region(&self, region: &Region, limits: &ChipLimits) -> Result<Enclosed, String> {
        let some = self.order.places_of_region(region);
        let Some(UnlimitedBox { files, mut chips, die }) = self.box_of_places(&some)? else {
            return Ok(Enclosed::Open);
        };
        let CornerChips { fast, small } = &mut chips;
        let mut least = ChipFigures {
            area: SquareMillimeters(die.low),
            peak_power: Watts(least_sustained_power(small, fast).0 * (1.0 - ROUNDING)),
            cost_usd: least_chip_cost(small).map_err(|why| why.to_string())?.map(|cost| cost * (1.0 - ROUNDING)),
            system_usd: 0.0,
        };
        let unlimited = ChipLimits { max_power_w: None, lower_to_w: None, ..*limits };
        if let Some(why) = unlimited.first_exceeded(&least) {
            return Ok(Enclosed::Outside(why));
        }
        if !limits.allows_memory(fast, small, ROUNDING) {
            return Ok(Enclosed::Outside(OutsideReason::Hbm));
        }
        let built = if limits.lift_build_limits {
            f64::INFINITY
        } else {
            largest_compute_area(fast).0 * (1.0 + RETICLE_ROUNDING)
        };
        let largest = die.high.min(limits.max_area_mm2.unwrap_or(f64::INFINITY)).min(built);
        let (low, high) = (SquareMillimeters(die.low), SquareMillimeters(largest));
        let cells = most_cells(fast, small, die, largest);
        fast.cell_rate_limit = Some(Hertz(cells * fast.clock.0)).filter(|limit| *limit < full_cell_rate(fast));
        if !limits.lift_build_limits
            && let Some(broken) = find_unbuildable_between(small, fast, low, high)
        {
            return Ok(Enclosed::Outside(OutsideReason::Unbuildable(broken.rule)));
        }
        let limit_at = |area| limits.power_limit(fast, area);
        if let (Some(tightest), Some(widest)) = (limit_at(low), limit_at(high)) {
            let between = Between { least: tightest.most, most: widest.most };
            let Some(power) = lower_corner_clocks(&files, &mut chips, cells, between) else {
                let heat = OutsideReason::Unbuildable(BuildRule::PowerDensity);
                return Ok(Enclosed::Outside(if widest.by_cooling { heat } else { OutsideReason::Power }));
            };
            least.peak_power = least.peak_power.min(power);
        }
        // Software stacks recognise a chip by the name of its base.
        let CornerChips { mut fast, mut small } = chips;
        let name = self.base_name(0, &fast.name);
        (fast.name, small.name) = (name.clone(), name);
        let Files { buffered, mapped, .. } = files;
        Ok(Enclosed::Within(Box::new(Corners {
            fast,
            small,
            least,
            fabrics: self.fabrics_of(&some),
            buffered,
            mapped,
        })))
    }

    /// The corners of a box before limits. `None` if the box must be split to get some.
    fn box_of_places(&self, places: &[Vec<usize>]) -> Result<Option<UnlimitedBox>, String> {
        let mut extents = self.formulas.extents_of_region(places)?;
        let mut files = Files { fast: self.base.clone(), small: self.base.clone(), buffered: true, mapped: true };
        if self.chip_positions(false).any(|slot| self.set_extent(&mut files, slot, &extents).is_none()) {
            return Ok(None);
        }
        // Values that do not go together at the ends may go together in between.
        let Some(mut chips) = files.corner_chips() else { return Ok(None) };
        let of = |chip: &Accelerator| chip_area(chip).map(|parts| parts.total_area().0).map_err(|why| why.to_string());
        let die = NumberInterval::new(of(&chips.small)?, of(&chips.fast)?).widen_relatively(ROUNDING);
        if self.formulas.any_follows_from_area() {
            self.formulas.add_area_extents(&mut extents, die)?;
            let mut lone = true;
            for slot in self.chip_positions(true) {
                let Some([fast, small]) = self.set_extent(&mut files, slot, &extents) else { return Ok(None) };
                let key = &self.formulas.keys()[slot];
                lone &= ChipDocument::set_lone_field(&mut chips.fast, key, &fast)
                    && ChipDocument::set_lone_field(&mut chips.small, key, &small);
            }
            if !lone {
                let Some(both) = files.corner_chips() else { return Ok(None) };
                chips = both;
            }
        }
        Ok(Some(UnlimitedBox { files, chips, die }))
    }

    fn set_extent(&self, files: &mut Files, slot: usize, extents: &[ValueExtent]) -> Option<[FieldValue; 2]> {
        files.set_extent(&self.formulas.keys()[slot], &extents[slot], self.growths[slot])
    }
}
