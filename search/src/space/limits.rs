//! What chips of a space may take: area, power, dollars.

use super::least::ChipLimit;
use serde::{Deserialize, Serialize};
use sim::hardware::manufacturing::{Foundry, chip_cost};
use sim::hardware::{Accelerator, AreaError, chip_area, lower_clock_to_power, sustained_power};
use sim::units::{SquareMillimeters, Watts};

/// Limits of a space's chips; what is not given is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ChipLimits {
    /// Area of all compute dies in mm^2.
    pub max_area_mm2: Option<f64>,
    /// Power under the heaviest sustained load, in W: the clock is lowered to it, as far as that goes.
    pub max_power_w: Option<f64>,
    /// What the chip costs to make, in USD.
    pub max_cost_usd: Option<f64>,
    /// Least capacity of its memory, in GiB.
    pub min_hbm_gib: Option<f64>,
    /// Largest capacity of its memory, in GiB.
    pub max_hbm_gib: Option<f64>,
    /// Least rate at which its memory is read, in GB/s.
    pub min_hbm_gb_per_s: Option<f64>,
}

/// What a chip takes, whatever runs on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChipFigures {
    /// Area of its compute dies.
    pub area: SquareMillimeters,
    /// Power under its heaviest sustained load.
    pub peak_power: Watts,
    /// What it costs to make, in USD; `None` where the node has no wafer price or the die fits on no wafer.
    pub cost_usd: Option<f64>,
}

impl ChipFigures {
    /// Those of a chip.
    ///
    /// # Errors
    /// A chip without an area model.
    pub fn of_chip(chip: &Accelerator) -> Result<Self, AreaError> {
        let cost_usd = chip_cost(chip, Foundry::default())?.map(|cost| cost.total_usd());
        Ok(Self { area: chip_area(chip)?.total_area(), peak_power: sustained_power(chip).peak_power(), cost_usd })
    }
}

/// Why a chip is outside its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutsideReason {
    /// Outside the area limits.
    Area,
    /// Over the power.
    Power,
    /// Over the cost, or of none that is known.
    Cost,
    /// Of less memory, or more, or slower memory than is allowed.
    Hbm,
}

impl ChipLimits {
    /// Lowers a chip's clock as far as the limit of power makes it; a chip that exceeds it at its lowest clock too stays as it is.
    pub fn lower_clock(&self, chip: &mut Accelerator) {
        if let Some(slow) = self.max_power_w.and_then(|most| lower_clock_to_power(chip, Watts(most))) {
            *chip = slow;
        }
    }

    /// Lowers a chip's clock ([`Self::lower_clock`]): what it takes then, and the first limit that it exceeds all the same.
    ///
    /// # Errors
    /// A chip without an area model.
    pub fn lower_clock_and_check(&self, chip: &mut Accelerator) -> Result<(ChipFigures, Option<OutsideReason>), AreaError> {
        self.lower_clock(chip);
        let figures = ChipFigures::of_chip(chip)?;
        let hbm = self.allows_memory(chip, chip, 0.0);
        Ok((figures, self.first_exceeded(&figures).or_else(|| (!hbm).then_some(OutsideReason::Hbm))))
    }

    /// Limits of which no chip is within both, in words; `called` writes a limit before its value.
    #[must_use]
    pub fn find_contradiction(&self, called: impl Fn(ChipLimit) -> String) -> Option<String> {
        let (least, most) = (self.min_hbm_gib?, self.max_hbm_gib?);
        let (below, above) = (called(ChipLimit::LeastHbm), called(ChipLimit::MostHbm));
        (least > most).then(|| format!("{below}{least}: is more than {above}{most}; correct one of the two, or leave it out"))
    }

    /// Whether the limits allow a memory that is no larger and no faster than one chip's, no smaller than another's; both with a hair of `rounding`.
    #[must_use]
    pub fn allows_memory(&self, most: &Accelerator, least: &Accelerator, rounding: f64) -> bool {
        let (more, less) = (1.0 + rounding, 1.0 - rounding);
        let below = |limit: Option<f64>, value: f64| limit.is_some_and(|limit| value * more < limit);
        let small = below(self.min_hbm_gib, most.memory_capacity().gib())
            || below(self.min_hbm_gb_per_s, most.hbm.read_bandwidth.0 / 1e9);
        !small && !self.max_hbm_gib.is_some_and(|limit| least.memory_capacity().gib() * less > limit)
    }

    /// The first limit that a chip exceeds.
    #[must_use]
    pub fn first_exceeded(&self, figures: &ChipFigures) -> Option<OutsideReason> {
        self.all_exceeded(figures).next()
    }

    /// Every limit of area, power and cost that a chip exceeds.
    pub fn all_exceeded(&self, figures: &ChipFigures) -> impl Iterator<Item = OutsideReason> {
        let dear = |most: f64| figures.cost_usd.is_none_or(|cost| cost > most);
        let all = [
            (OutsideReason::Area, self.max_area_mm2.is_some_and(|most| figures.area.0 > most)),
            (OutsideReason::Power, self.max_power_w.is_some_and(|most| figures.peak_power.0 > most)),
            (OutsideReason::Cost, self.max_cost_usd.is_some_and(dear)),
        ];
        all.into_iter().filter(|(_, exceeds)| *exceeds).map(|(why, _)| why)
    }
}

/// How many combinations of a space are outside it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutsideCounts {
    /// Outside the area limits.
    pub area: usize,
    /// Over the power limit.
    pub power: usize,
    /// Over the cost limit.
    pub cost: usize,
    /// Outside the limits of memory.
    pub hbm: usize,
    /// No chips: values that do not go together.
    pub refused: usize,
    /// Why the first of these is none.
    pub refusal: Option<String>,
}

impl OutsideCounts {
    /// Counts some.
    pub fn count_reason(&mut self, why: OutsideReason, combinations: usize) {
        match why {
            OutsideReason::Area => self.area += combinations,
            OutsideReason::Power => self.power += combinations,
            OutsideReason::Cost => self.cost += combinations,
            OutsideReason::Hbm => self.hbm += combinations,
        }
    }

    /// Counts one that is no chip.
    pub fn count_failure(&mut self, why: String) {
        self.refused += 1;
        self.refusal.get_or_insert(why);
    }

    /// What the limits leave out, for a space of which they leave nothing.
    #[must_use]
    pub fn describe_reasons(&self) -> String {
        let kinds = [
            (self.area, "outside the limits of area (max_area_mm2)"),
            (self.power, "over the power at their lowest clock too (max_power_w)"),
            (self.cost, "over the cost, or of none that is known (max_cost_usd)"),
            (self.hbm, "outside the limits of memory (min_hbm_gib, max_hbm_gib, min_hbm_gb_per_s)"),
            (self.refused, "no chips"),
        ];
        let parts: Vec<String> =
            kinds.iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} are {why}")).collect();
        match &*parts {
            [] => "the space holds no chip within its limits".to_owned(),
            _ => format!("the space holds no chip within its limits: of its combinations {}; widen the limit", parts.join(", ")),
        }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> usize {
        self.area + self.power + self.cost + self.hbm + self.refused
    }
}

/// Whether a value is the largest (`true`) or smallest of several.
#[must_use]
pub fn is_end_of(numbers: &[f64], value: f64) -> Option<bool> {
    let largest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    (largest > smallest && (value == largest || value == smallest)).then_some(value == largest)
}
