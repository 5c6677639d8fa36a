//! Limits on chips that can be built: the reticle, the edge of the dies, the package, and heat
//! (`sim/constants/package.toml`).

use super::area::{AreaError, BaseDies, Floorplan};
use super::constants::Constants;
use super::{Accelerator, AreaModel, MemoryKind, MemoryLevel, MemoryScope, chip_area, sustained_power};
use crate::limits::format_number;
use crate::units::{SquareMillimeters, Watts};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A limit on chips that can be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildRule {
    /// A die must not be larger than the reticle.
    Reticle,
    /// HBM stacks sit along two opposite sides of each die.
    HbmSides,
    /// HBM must not be faster than the stacks of its generation.
    HbmRate,
    /// PHYs of HBM, links, other dies and PCIe share the edge of each die.
    Shoreline,
    /// Dies and stacks share a package.
    Package,
    /// Each compute die holds at least one core.
    DieCores,
    /// Links between compute dies carry the traffic of the memories that all cores share.
    DieToDie,
    /// A cooler removes a limited power per area.
    PowerDensity,
}

impl BuildRule {
    /// All rules, in the order in which they are checked.
    pub const ALL: [Self; 8] = [
        Self::Reticle,
        Self::HbmSides,
        Self::HbmRate,
        Self::Shoreline,
        Self::Package,
        Self::DieCores,
        Self::DieToDie,
        Self::PowerDensity,
    ];

    /// Its name in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reticle => "reticle",
            Self::HbmSides => "hbm_sides",
            Self::HbmRate => "hbm_rate",
            Self::Shoreline => "shoreline",
            Self::Package => "package",
            Self::DieCores => "die_cores",
            Self::DieToDie => "die_to_die",
            Self::PowerDensity => "power_density",
        }
    }

    /// The limited quantity, with its unit.
    #[must_use]
    pub fn subject(self) -> &'static str {
        match self {
            Self::Reticle => "mm² of a die",
            Self::HbmSides => "HBM stacks along the sides of a die",
            Self::HbmRate => "GB/s of HBM",
            Self::Shoreline => "mm of a die's edge",
            Self::Package => "mm² of dies and HBM stacks in a package",
            Self::DieCores => "cores, one on each die",
            Self::DieToDie => "GB/s between the compute dies, both directions",
            Self::PowerDensity => "W on the compute dies",
        }
    }

    /// The change that helps.
    #[must_use]
    pub fn cure(self) -> &'static str {
        match self {
            Self::Reticle => "make the die smaller, or split it (area.dies)",
            Self::HbmSides => "take fewer stacks, a larger die or more dies (area.hbm_stacks, area.dies)",
            Self::HbmRate => "take more stacks or a newer generation (area.hbm_stacks, area.hbm_generation)",
            Self::Shoreline => "take fewer links or stacks, or a larger die (area.links, area.hbm_stacks)",
            Self::Package => "take fewer dies or stacks",
            Self::DieCores => "take fewer dies or more cores (area.dies, area.cores)",
            Self::DieToDie => "join the dies by faster links, or take fewer dies (area.die_to_die_tb_per_s, area.dies)",
            Self::PowerDensity => "take fewer or slower units, or more area",
        }
    }
}

/// The rule that a chip breaks, and by how much.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Unbuildable {
    /// The rule.
    pub rule: BuildRule,
    /// The amount that the chip needs, in the unit of [`BuildRule::subject`].
    pub need: f64,
    /// The amount that is available, in the same unit.
    pub have: f64,
}

impl fmt::Display for Unbuildable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = |value: f64| format_number((value * 10.0).round() / 10.0);
        write!(f, "{}: needs {} of {} {}", self.rule.name(), figure(self.need), figure(self.have), self.rule.subject())
    }
}

impl Unbuildable {
    /// Describes the rule, the need, the supply, and the change that helps.
    #[must_use]
    pub fn describe_with_cure(&self) -> String {
        format!("{self}; {}", self.rule.cure())
    }
}

impl Floorplan {
    /// Returns the silicon side by side in the package: base or compute dies, and stacks. It is zero for a single die
    /// without stacks, which needs no interposer.
    #[must_use]
    pub fn package_silicon(&self, constants: &Constants, compute: SquareMillimeters) -> SquareMillimeters {
        if self.hbm_stacks == 0 && self.dies <= 1 {
            return SquareMillimeters::ZERO;
        }
        let dies = self.base.map_or(compute.0, BaseDies::total_mm2);
        let stack = constants.hbm.of_generation(self.hbm_generation).package_area;
        SquareMillimeters(dies + f64::from(self.hbm_stacks) * stack)
    }

    /// Returns the number of dies that hold the PHYs, and the area of one in mm^2.
    fn dies_with_phys(&self, compute: SquareMillimeters) -> (f64, f64) {
        match self.base {
            Some(base) => (f64::from(base.count), base.mm2_each),
            None => (f64::from(self.dies.max(1)), compute.0 / f64::from(self.dies.max(1))),
        }
    }
}

/// All chips between two chips, field by field. `small` has the least need under every rule, `large` the most supply.
struct BuildRange<'a> {
    small: &'a Accelerator,
    large: &'a Accelerator,
    /// Total area of the compute dies of the smallest and of the largest chip.
    least: SquareMillimeters,
    most: SquareMillimeters,
}

/// Relative rounding margin, for sums of doubles in another order.
const ROUNDING: f64 = 1e-6;

/// Returns the number of a chip's compute dies.
fn die_count(chip: &Accelerator) -> f64 {
    match &chip.area_model {
        AreaModel::UnitAreas(plan) => f64::from(plan.dies.max(1)),
        AreaModel::Phaze22nm | AreaModel::Undisclosed => 1.0,
    }
}

/// Returns the mean number of borders between dies that a byte crosses if every die sends as much to every die, itself
/// included: 1/2 with two dies, 1 with four. The dies stand in rows, as near to a square as they can.
fn mean_border_crossings(dies: u32) -> f64 {
    let columns = f64::from(dies).sqrt().ceil();
    let (all, width) = (f64::from(dies), columns as u32);
    let (full_rows, rest) = (dies / width, dies % width);
    let left_of_column = |column: u32| f64::from(column * full_rows + column.min(rest));
    let above_row = |row: u32| f64::from(row * width);
    let on_one_side = (1..width).map(left_of_column).chain((1..=full_rows).map(above_row));
    on_one_side.map(|near| 2.0 * near * (all - near)).sum::<f64>() / (all * all)
}

/// Returns the largest rate, in B/s, among memories with a single copy for all cores: the device's memory and shared
/// scratchpads. Reads and writes that share a port share its rate. A shared cache is left out, because each die caches
/// what its own cores read. The rates are those at the designed clock.
fn shared_traffic(chip: &Accelerator) -> f64 {
    let designed = chip.lowered.map_or(1.0, |lowered| lowered.from.0 / chip.clock.0);
    let rate = |level: &MemoryLevel| {
        let (read, write) = (level.read_bandwidth.0, level.write_bandwidth.0);
        let both = if level.ports <= 1 { read.max(write) } else { read + write };
        if level.is_dram() { both } else { both * designed }
    };
    let is_shared = |level: &&MemoryLevel| level.scope == MemoryScope::Chip && level.kind != MemoryKind::Cache;
    chip.on_chip.iter().filter(is_shared).map(rate).fold(rate(&chip.hbm), f64::max)
}

/// Returns the area of as many dies as a chip has, each as large as the reticle.
#[must_use]
pub fn largest_compute_area(chip: &Accelerator) -> SquareMillimeters {
    let package = &chip.constants.package;
    SquareMillimeters(die_count(chip) * package.reticle_long * package.reticle_short)
}

/// Returns the longer side of a die of this area, in mm.
fn longest_side(constants: &Constants, die: f64) -> f64 {
    (die * constants.package.aspect).sqrt().min(constants.package.reticle_long)
}

impl BuildRange<'_> {
    /// Returns the need and the supply of a rule; `None` if the rule does not apply. [`BuildRule::PowerDensity`] is not
    /// checked here.
    fn need_and_supply(&self, rule: BuildRule) -> Option<(f64, f64)> {
        let constants = &*self.small.constants;
        let package = &constants.package;
        let plans = match (&self.small.area_model, &self.large.area_model) {
            (AreaModel::UnitAreas(small), AreaModel::UnitAreas(large)) => Some((small, large)),
            _ => None,
        };
        if rule == BuildRule::Reticle {
            let dies = die_count(self.small);
            return Some((self.least.0 / dies, largest_compute_area(self.small).0 / dies));
        }
        let (small, large) = plans?;
        let (count, die) = large.dies_with_phys(self.most);
        let stacks = (f64::from(small.hbm_stacks) / count).ceil();
        let side = longest_side(constants, die);
        match rule {
            BuildRule::HbmSides => {
                let span = side - package.phy_width;
                let on_a_side = if span < 0.0 { 0.0 } else { (span / package.stack_pitch).floor() + 1.0 };
                Some((stacks, 2.0 * on_a_side))
            }
            BuildRule::HbmRate if small.hbm_stacks > 0 || large.hbm_stacks > 0 => {
                let stack = constants.hbm.of_generation(large.hbm_generation).stack_rate;
                Some((self.small.hbm.read_bandwidth.0 / 1e9, f64::from(large.hbm_stacks) * stack))
            }
            BuildRule::Shoreline => {
                let links = &constants.link;
                let phys = f64::from(small.hbm_stacks) * package.phy_width
                    + f64::from(small.links) * links.of_kind(small.link).edge
                    + f64::from(small.pcie_lanes) * package.pcie_lane_width;
                let between = 2.0 * small.die_to_die_tb_per_s * links.die_to_die.edge;
                Some(((phys + between) / count, 2.0 * (side + die / side) * package.usable_edge))
            }
            BuildRule::Package => {
                let least = small.package_silicon(constants, self.least);
                Some((least.0, package.interposer_area))
            }
            BuildRule::DieCores => Some((f64::from(small.dies), f64::from(large.cores))),
            // Base dies join the compute dies on them; the links between base dies are in the base dies' area.
            BuildRule::DieToDie if small.dies > 1 && small.base.is_none() => {
                let crossing = mean_border_crossings(small.dies) * shared_traffic(self.small) / 1e9;
                Some((crossing, large.die_to_die_tb_per_s * 1e3))
            }
            BuildRule::Reticle | BuildRule::HbmRate | BuildRule::DieToDie | BuildRule::PowerDensity => None,
        }
    }

    fn broken_rules(&self) -> impl Iterator<Item = Unbuildable> {
        BuildRule::ALL.into_iter().filter_map(|rule| {
            let (need, have) = self.need_and_supply(rule)?;
            find_shortfall(rule, need, have)
        })
    }
}

fn find_shortfall(rule: BuildRule, need: f64, have: f64) -> Option<Unbuildable> {
    (need > have * (1.0 + ROUNDING)).then_some(Unbuildable { rule, need, have })
}

/// Returns the first rule that a chip breaks, except heat (see [`cooled_power`]).
///
/// # Errors
/// [`AreaError`] if the chip has no area model.
pub fn find_unbuildable(chip: &Accelerator) -> Result<Option<Unbuildable>, AreaError> {
    let area = chip_area(chip)?.total_area();
    Ok(BuildRange { small: chip, large: chip, least: area, most: area }.broken_rules().next())
}

/// Returns all rules that a chip breaks, heat included. Its power is that of its heaviest sustained load, or the
/// published limit to which it is held, if that is lower. PHAZE's tables leave parts of the dies out, so heat is not
/// checked with them.
///
/// # Errors
/// [`AreaError`] if the chip has no area model.
pub fn list_broken_rules(chip: &Accelerator) -> Result<Vec<Unbuildable>, AreaError> {
    let area = chip_area(chip)?.total_area();
    let peak = sustained_power(chip).peak_power();
    let power = chip.published.tdp.map_or(peak, |limit| limit.min(peak));
    let whole_dies = matches!(chip.area_model, AreaModel::UnitAreas(_));
    let hot = find_shortfall(BuildRule::PowerDensity, power.0, cooled_power(chip, area).0).filter(|_| whole_dies);
    Ok(BuildRange { small: chip, large: chip, least: area, most: area }.broken_rules().chain(hot).collect())
}

/// Returns a rule that every chip between two breaks, or `None`. `small` has the least of each numeric field and
/// `large` the most; their dies have areas from `least` to `most`. All other fields and the number of dies must be the
/// same.
#[must_use]
pub fn find_unbuildable_between(
    small: &Accelerator,
    large: &Accelerator,
    least: SquareMillimeters,
    most: SquareMillimeters,
) -> Option<Unbuildable> {
    BuildRange { small, large, least, most }.broken_rules().next()
}

/// Returns the largest power that a cooler can remove from a chip whose compute dies have this area. Dies that stand on
/// base dies share the base dies' heat, and spread it over the larger of both areas.
#[must_use]
pub fn cooled_power(chip: &Accelerator, area: SquareMillimeters) -> Watts {
    let base = match &chip.area_model {
        AreaModel::UnitAreas(plan) => plan.base.map_or(0.0, BaseDies::total_mm2),
        _ => 0.0,
    };
    Watts(area.0.max(base) * chip.constants.package.power_density)
}

#[cfg(test)]
#[path = "buildable_tests.rs"]
mod tests;
