//! Limits on the chips of a space: area, power, cost, memory, and feasibility of the package.

use super::efficiency::EfficiencyChoice;
use serde::{Deserialize, Serialize};
use sim::hardware::manufacturing::chip_cost;
use sim::hardware::{
    Accelerator, AreaError, BuildRule, Unbuildable, chip_area, cooled_power, find_unbuildable, lower_clock,
    lower_clock_to_power, lowest_clock, sustained_power,
};
use sim::units::{SquareMillimeters, Watts};
use std::collections::BTreeMap;

/// Limits on a space's chips; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ChipLimits {
    /// Area of all compute dies in mm^2.
    pub max_area_mm2: Option<f64>,
    /// Power under the heaviest sustained load, in W. A chip's clock is lowered to meet it, as far as possible.
    pub max_power_w: Option<f64>,
    /// A lower power limit that the search sets, in W. Chips that keep to it run at lower clocks and take less energy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower_to_w: Option<f64>,
    /// Manufacturing cost, in USD.
    pub max_cost_usd: Option<f64>,
    /// Least memory capacity, in GiB.
    pub min_hbm_gib: Option<f64>,
    /// Largest memory capacity, in GiB.
    pub max_hbm_gib: Option<f64>,
    /// Least read bandwidth of the memory, in GB/s.
    pub min_hbm_gb_per_s: Option<f64>,
    /// True if chips may break the limits of feasibility (`sim/constants/package.toml`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lift_build_limits: bool,
}

/// One of the limits on a space's chips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChipLimit {
    /// [`ChipLimits::max_area_mm2`].
    Area,
    /// [`ChipLimits::max_power_w`].
    Power,
    /// [`ChipLimits::max_cost_usd`].
    Cost,
    /// [`ChipLimits::min_hbm_gib`].
    LeastHbm,
    /// [`ChipLimits::max_hbm_gib`].
    MostHbm,
    /// [`ChipLimits::min_hbm_gb_per_s`].
    HbmRate,
}

/// Figures of a chip that do not depend on its workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChipFigures {
    /// Area of its compute dies in mm².
    pub area: SquareMillimeters,
    /// Power under its heaviest sustained load, in W.
    pub peak_power: Watts,
    /// Manufacturing cost in USD; `None` if the node has no wafer price or the die fits on no wafer.
    pub cost_usd: Option<f64>,
    /// Price of the system around a device in USD, if the objective pays for it; otherwise 0. Infinite if a fabric's
    /// parts are unknown.
    pub system_usd: f64,
}

impl ChipFigures {
    /// The figures of a chip.
    ///
    /// # Errors
    /// A chip without an area model.
    pub fn of_chip(chip: &Accelerator) -> Result<Self, AreaError> {
        let cost_usd = chip_cost(chip)?.map(|cost| cost.total_usd());
        let area = chip_area(chip)?.total_area();
        Ok(Self { area, peak_power: sustained_power(chip).peak_power(), cost_usd, system_usd: 0.0 })
    }

    /// The same figures with the price of the system around a device, in USD.
    #[must_use]
    pub fn with_system(self, system_usd: f64) -> Self {
        Self { system_usd, ..self }
    }

    /// The USD per device that an objective in dollars pays besides energy. `None` if the chip has no price or its
    /// system's is unknown.
    #[must_use]
    pub fn paid_usd(&self) -> Option<f64> {
        self.cost_usd.map(|cost| cost + self.system_usd).filter(|usd| usd.is_finite())
    }
}

impl ChipLimit {
    /// All limits, in the order of the study's keys.
    pub const ALL: [Self; 6] = [Self::Area, Self::Power, Self::Cost, Self::LeastHbm, Self::MostHbm, Self::HbmRate];

    /// Its key in a study's `[space]`.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Area => "max_area_mm2",
            Self::Power => "max_power_w",
            Self::Cost => "max_cost_usd",
            Self::LeastHbm => "min_hbm_gib",
            Self::MostHbm => "max_hbm_gib",
            Self::HbmRate => "min_hbm_gb_per_s",
        }
    }

    /// The limit's value in `limits`; `None` if it is not given.
    #[must_use]
    pub fn value_in(self, limits: &ChipLimits) -> Option<f64> {
        *self.field_of(&mut limits.clone())
    }

    /// Sets the limit's value in `limits`.
    pub fn set_in(self, limits: &mut ChipLimits, value: f64) {
        *self.field_of(limits) = Some(value);
    }

    /// True if the limit is a minimum.
    #[must_use]
    pub fn is_lower_limit(self) -> bool {
        matches!(self, Self::LeastHbm | Self::HbmRate)
    }

    /// Its field among the limits.
    pub(super) fn field_of(self, limits: &mut ChipLimits) -> &mut Option<f64> {
        match self {
            Self::Area => &mut limits.max_area_mm2,
            Self::Power => &mut limits.max_power_w,
            Self::Cost => &mut limits.max_cost_usd,
            Self::LeastHbm => &mut limits.min_hbm_gib,
            Self::MostHbm => &mut limits.max_hbm_gib,
            Self::HbmRate => &mut limits.min_hbm_gb_per_s,
        }
    }

    /// A chip's value of the limited figure. Power is that at the lowest clock. `None` if the chip has no area model,
    /// or has no price and the limit is on cost.
    pub(super) fn value_of_chip(self, chip: &Accelerator) -> Option<f64> {
        Some(match self {
            Self::Area => ChipFigures::of_chip(chip).ok()?.area.0,
            Self::Power => sustained_power(&lower_clock(chip, lowest_clock(chip))).peak_power().0,
            Self::Cost => ChipFigures::of_chip(chip).ok()?.cost_usd?,
            Self::LeastHbm | Self::MostHbm => chip.memory_capacity().gib(),
            Self::HbmRate => chip.hbm.read_bandwidth.0 / 1e9,
        })
    }

    /// A key that orders values: the smaller the key, the easier the limit is to meet.
    pub(super) fn distance_from_limit(self, value: f64) -> f64 {
        if self.is_lower_limit() { -value } else { value }
    }
}

/// The limit that a chip exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutsideReason {
    /// Outside the area limits.
    Area,
    /// Over the power limit.
    Power,
    /// Over the cost limit, or without a known cost.
    Cost,
    /// Too little memory, too much, or too slow.
    Hbm,
    /// It cannot be built.
    Unbuildable(BuildRule),
}

/// The largest power that a chip may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerLimit {
    /// The largest power.
    pub most: Watts,
    /// True if cooling sets the limit, false if a given limit does.
    pub by_cooling: bool,
}

/// A chip's figures, and the first limit that it exceeds.
#[derive(Debug, Clone, Copy)]
pub struct CheckedFigures {
    /// The chip's figures.
    pub figures: ChipFigures,
    /// The first limit that it exceeds; `None` if it is within all.
    pub exceeded: Option<OutsideReason>,
}

impl ChipLimits {
    /// The most power of a chip: the limit that was asked for, or the lower one that the search chose.
    #[must_use]
    pub fn most_power(&self) -> Option<Watts> {
        [self.max_power_w, self.lower_to_w].into_iter().flatten().map(Watts).reduce(Watts::min)
    }

    /// The largest power that a chip of this area may take. `None` without any limit.
    #[must_use]
    pub fn power_limit(&self, chip: &Accelerator, area: SquareMillimeters) -> Option<PowerLimit> {
        let given = self.most_power().map(|most| PowerLimit { most, by_cooling: false });
        if self.lift_build_limits {
            return given;
        }
        let cooled = PowerLimit { most: cooled_power(chip, area), by_cooling: true };
        Some(given.filter(|given| given.most <= cooled.most).unwrap_or(cooled))
    }

    /// Lowers a chip's clock to meet the power limit and the limit of cooling. A chip that exceeds the limit even at
    /// its lowest clock is not changed, unless the search chose a lower limit: then it gets its lowest clock.
    pub fn lower_clock(&self, chip: &mut Accelerator) {
        let area = chip_area(chip).map(|parts| parts.total_area());
        let limit = area.ok().and_then(|area| self.power_limit(chip, area));
        match limit.and_then(|limit| lower_clock_to_power(chip, limit.most)) {
            Some(slow) => *chip = slow,
            None if self.lower_to_w.is_some() => *chip = lower_clock(chip, lowest_clock(chip)),
            None => {}
        }
    }

    /// A built chip in ideal form: every peak is reached, and kernels have no library limits. The clock is lowered
    /// until the sustained power is within the chip's published limit and [`Self::max_power_w`], if that is possible.
    #[must_use]
    pub fn ideal_form(&self, chip: &Accelerator) -> Accelerator {
        let ideal = chip.clone().without_measured_limits();
        let limit = [ideal.published.tdp, self.max_power_w.map(Watts)].into_iter().flatten().reduce(Watts::min);
        limit.and_then(|limit| lower_clock_to_power(&ideal, limit)).unwrap_or(ideal)
    }

    /// A built chip with the efficiency of a space's chips. For `Ideal` and `Family` its clock is lowered as in
    /// [`Self::ideal_form`]; for `Base` the chip is unchanged.
    #[must_use]
    pub fn chip_with_efficiency(&self, chip: &Accelerator, efficiency: EfficiencyChoice) -> Accelerator {
        match efficiency {
            EfficiencyChoice::Base => chip.clone(),
            EfficiencyChoice::Ideal => self.ideal_form(chip),
            EfficiencyChoice::Family => self.ideal_form(chip).with_family_efficiency(),
        }
    }

    /// Lowers a chip's clock ([`Self::lower_clock`]). Returns its figures at the lowered clock, and the first limit
    /// that it still exceeds.
    ///
    /// # Errors
    /// A chip without an area model.
    pub fn lower_clock_and_check(&self, chip: &mut Accelerator) -> Result<CheckedFigures, AreaError> {
        self.lower_clock(chip);
        let figures = ChipFigures::of_chip(chip)?;
        if let Some(why) = self.first_exceeded(&figures) {
            return Ok(CheckedFigures { figures, exceeded: Some(why) });
        }
        if !self.allows_memory(chip, chip, 0.0) {
            return Ok(CheckedFigures { figures, exceeded: Some(OutsideReason::Hbm) });
        }
        let broken = self.find_unbuildable(chip, &figures)?.map(|broken| OutsideReason::Unbuildable(broken.rule));
        Ok(CheckedFigures { figures, exceeded: broken })
    }

    /// The first rule of feasibility that a chip breaks. `None` if it breaks none, or if the rules are lifted.
    ///
    /// # Errors
    /// A chip without an area model.
    pub fn find_unbuildable(
        &self,
        chip: &Accelerator,
        figures: &ChipFigures,
    ) -> Result<Option<Unbuildable>, AreaError> {
        if self.lift_build_limits {
            return Ok(None);
        }
        let have = cooled_power(chip, figures.area).0;
        let hot = Unbuildable { rule: BuildRule::PowerDensity, need: figures.peak_power.0, have };
        Ok(find_unbuildable(chip)?.or_else(|| (hot.need > hot.have).then_some(hot)))
    }

    /// Describes limits that contradict each other; `None` if none do. `called` gives a limit's name before its value.
    #[must_use]
    pub fn find_contradiction(&self, called: impl Fn(ChipLimit) -> String) -> Option<String> {
        let (least, most) = (self.min_hbm_gib?, self.max_hbm_gib?);
        let (below, above) = (called(ChipLimit::LeastHbm), called(ChipLimit::MostHbm));
        (least > most)
            .then(|| format!("{below}{least}: is more than {above}{most}; correct one of the two, or leave it out"))
    }

    /// True if the limits allow a memory between those of two chips: at most as large and as fast as that of `most`,
    /// and at least as large as that of `least`. Comparisons have a relative allowance of `rounding`.
    #[must_use]
    pub fn allows_memory(&self, most: &Accelerator, least: &Accelerator, rounding: f64) -> bool {
        let (more, less) = (1.0 + rounding, 1.0 - rounding);
        let below = |limit: Option<f64>, value: f64| limit.is_some_and(|limit| value * more < limit);
        let small = below(self.min_hbm_gib, most.memory_capacity().gib())
            || below(self.min_hbm_gb_per_s, most.hbm.read_bandwidth.0 / 1e9);
        !small && !self.max_hbm_gib.is_some_and(|limit| least.memory_capacity().gib() * less > limit)
    }

    /// The first of the limits on area, power and cost that a chip exceeds.
    #[must_use]
    pub fn first_exceeded(&self, figures: &ChipFigures) -> Option<OutsideReason> {
        self.all_exceeded(figures).next()
    }

    /// All of the limits on area, power and cost that a chip exceeds.
    pub fn all_exceeded(&self, figures: &ChipFigures) -> impl Iterator<Item = OutsideReason> {
        let dear = |most: f64| figures.cost_usd.is_none_or(|cost| cost > most);
        let all = [
            (OutsideReason::Area, self.max_area_mm2.is_some_and(|most| figures.area.0 > most)),
            (OutsideReason::Power, self.most_power().is_some_and(|most| figures.peak_power > most)),
            (OutsideReason::Cost, self.max_cost_usd.is_some_and(dear)),
        ];
        all.into_iter().filter(|(_, exceeds)| *exceeds).map(|(why, _)| why)
    }
}

/// Counts of combinations that are excluded from a space, by reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutsideCounts {
    /// Outside the area limits.
    pub area: usize,
    /// Over the power limit.
    pub power: usize,
    /// Over the cost limit.
    pub cost: usize,
    /// Outside the memory limits.
    pub hbm: usize,
    /// Infeasible chips, by rule.
    pub unbuildable: BTreeMap<BuildRule, usize>,
    /// No chips: their values do not go together.
    pub refused: usize,
    /// The reason of the first refusal.
    pub refusal: Option<String>,
}

impl OutsideCounts {
    /// Adds combinations that exceed a limit.
    pub fn count_reason(&mut self, why: OutsideReason, combinations: usize) {
        match why {
            OutsideReason::Area => self.area += combinations,
            OutsideReason::Power => self.power += combinations,
            OutsideReason::Cost => self.cost += combinations,
            OutsideReason::Hbm => self.hbm += combinations,
            OutsideReason::Unbuildable(rule) => *self.unbuildable.entry(rule).or_default() += combinations,
        }
    }

    /// Adds a combination that is no chip.
    pub fn count_failure(&mut self, why: String) {
        self.refused += 1;
        self.refusal.get_or_insert(why);
    }

    /// Describes the excluded combinations, for a space without chips.
    #[must_use]
    pub fn describe_reasons(&self) -> String {
        let kinds = [
            (self.area, "outside the area limits (max_area_mm2)"),
            (self.power, "over the power limit even at their lowest clock (max_power_w)"),
            (self.cost, "over the cost limit or without a known cost (max_cost_usd)"),
            (self.hbm, "outside the memory limits (min_hbm_gib, max_hbm_gib, min_hbm_gb_per_s)"),
            (self.refused, "no chips"),
        ];
        let mut parts: Vec<String> =
            kinds.iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} are {why}")).collect();
        let unbuildable = self.unbuildable.iter();
        parts.extend(
            unbuildable.map(|(rule, count)| format!("{count} cannot be built ({}: {})", rule.name(), rule.cure())),
        );
        match &*parts {
            [] => "the space holds no chip within its limits".to_owned(),
            _ => format!(
                "the space holds no chip within its limits: of its combinations {}; widen the limit",
                parts.join(", ")
            ),
        }
    }

    /// The sum of all counts.
    #[must_use]
    pub fn total(&self) -> usize {
        self.area + self.power + self.cost + self.hbm + self.unbuildable_count() + self.refused
    }

    /// The number of infeasible chips.
    #[must_use]
    pub fn unbuildable_count(&self) -> usize {
        self.unbuildable.values().sum()
    }
}

/// True if a value is the largest of several different numbers, false if it is the smallest. `None` if it is neither,
/// or if all are equal.
#[must_use]
pub fn is_end_of(numbers: &[f64], value: f64) -> Option<bool> {
    let largest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    (largest > smallest && (value == largest || value == smallest)).then_some(value == largest)
}
