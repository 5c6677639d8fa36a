//! Finds the tightest value of a limit that still leaves a chip, for a space whose limits leave none.

use super::grid::{BuildFailure, Grid};
use super::limits::{ChipFigures, ChipLimits};
use super::region::Region;
use super::{Enclosed, Space, SpaceKind};
use sim::hardware::phaze::design_accelerator;
use sim::hardware::{Accelerator, least_sustained_power, lower_clock, lowest_clock, sustained_power};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Limit on boxes visited. If it does not suffice, no value is reported.
const BOXES: usize = 200_000;

/// A limit of a space's chips.
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

    /// Its value, if it is given.
    #[must_use]
    pub fn value_in(self, limits: &ChipLimits) -> Option<f64> {
        *self.field_of(&mut limits.clone())
    }

    /// Sets its value.
    pub fn set_in(self, limits: &mut ChipLimits, value: f64) {
        *self.field_of(limits) = Some(value);
    }

    /// Whether the limit is a minimum.
    #[must_use]
    pub fn is_lower_limit(self) -> bool {
        matches!(self, Self::LeastHbm | Self::HbmRate)
    }

    /// Its field among the limits.
    fn field_of(self, limits: &mut ChipLimits) -> &mut Option<f64> {
        match self {
            Self::Area => &mut limits.max_area_mm2,
            Self::Power => &mut limits.max_power_w,
            Self::Cost => &mut limits.max_cost_usd,
            Self::LeastHbm => &mut limits.min_hbm_gib,
            Self::MostHbm => &mut limits.max_hbm_gib,
            Self::HbmRate => &mut limits.min_hbm_gb_per_s,
        }
    }

    /// A chip's value of the limited figure, with power at the lowest clock. `None` if the chip has no price.
    fn value_of_chip(self, chip: &Accelerator) -> Option<f64> {
        Some(match self {
            Self::Area => ChipFigures::of_chip(chip).ok()?.area.0,
            Self::Power => sustained_power(&lower_clock(chip, lowest_clock(chip))).peak_power().0,
            Self::Cost => ChipFigures::of_chip(chip).ok()?.cost_usd?,
            Self::LeastHbm | Self::MostHbm => chip.memory_capacity().gib(),
            Self::HbmRate => chip.hbm.read_bandwidth.0 / 1e9,
        })
    }

    /// Bound on the limited figure of any chip in a box: the least, or the greatest if the limit is a minimum.
    fn bound_of_box(self, corners: &super::Corners) -> Option<f64> {
        let (fast, small) = (&corners.fast, &corners.small);
        Some(match self {
            Self::Area => corners.least.area.0,
            Self::Power => least_sustained_power(&lower_clock(small, lowest_clock(small)), fast).0,
            Self::Cost => corners.least.cost_usd?,
            Self::LeastHbm => fast.memory_capacity().gib(),
            Self::MostHbm => small.memory_capacity().gib(),
            Self::HbmRate => fast.hbm.read_bandwidth.0 / 1e9,
        })
    }

    /// Orders values so that smaller is nearer to the limit.
    fn distance_from_limit(self, value: f64) -> f64 {
        if self.is_lower_limit() { -value } else { value }
    }
}

/// A region in the queue; the one whose bound is nearest to the limit comes first.
struct QueuedRegion {
    far: f64,
    region: Region,
}

impl PartialEq for QueuedRegion {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for QueuedRegion {}

impl PartialOrd for QueuedRegion {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuedRegion {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The smaller region breaks ties: it is nearer to a single chip.
        self.far.total_cmp(&other.far).then_with(|| self.region.combination_count().cmp(&other.region.combination_count()))
    }
}

impl Space {
    /// The tightest value of `limit` that leaves at least one chip within all `others`; for example, the least area.
    /// `None` if the others leave no chip either, or if none is found soon.
    ///
    /// # Errors
    /// An expression without a value, or a field that no chip has.
    pub fn nearest_limit(&self, limit: ChipLimit, others: &ChipLimits) -> Result<Option<f64>, String> {
        let mut others = *others;
        *limit.field_of(&mut others) = None;
        match &self.kind {
            SpaceKind::Grid(grid) => grid.nearest_limit_of_boxes(limit, &others),
            SpaceKind::Phaze(space, spec) => {
                let configs = space.all_combinations(spec);
                let own = |mut chip: Accelerator| {
                    let exceeds = others.lower_clock_and_check(&mut chip).ok()?.1;
                    exceeds.is_none().then(|| limit.value_of_chip(&chip)).flatten()
                };
                // In the area window, the lower end follows the upper one.
                let inside = |chip: &Accelerator, config: &_| {
                    limit == ChipLimit::Area
                        || ChipFigures::of_chip(chip).is_ok_and(|figures| space.admits_area(config, figures.area))
                };
                let chips = configs.map(|config| (design_accelerator(&config), config));
                let values = chips.filter(|(chip, config)| inside(chip, config)).filter_map(|(chip, _)| own(chip));
                Ok(values.min_by(|a, b| limit.distance_from_limit(*a).total_cmp(&limit.distance_from_limit(*b))))
            }
        }
    }
}

impl Grid {
    fn nearest_limit_of_boxes(&self, limit: ChipLimit, others: &ChipLimits) -> Result<Option<f64>, String> {
        let mut waiting = BinaryHeap::from([Reverse(QueuedRegion { far: f64::NEG_INFINITY, region: self.whole_region() })]);
        let mut nearest: Option<f64> = None;
        for _ in 0..BOXES {
            let Some(Reverse(QueuedRegion { far, region })) = waiting.pop() else { return Ok(nearest) };
            if nearest.is_some_and(|known| limit.distance_from_limit(known) <= far) {
                return Ok(nearest);
            }
            let Some(dimension) = self.word_dimensions_of(&region).first().copied().or_else(|| region.open_dimensions().next())
            else {
                if let Some(value) = self.value_of_single_chip(&region, limit, others)?
                    && nearest.is_none_or(|known| limit.distance_from_limit(value) < limit.distance_from_limit(known))
                {
                    nearest = Some(value);
                }
                continue;
            };
            for half in region.split_in_halves(dimension) {
                let far = match self.enclose_region(&half, others)? {
                    Enclosed::Outside(_) => continue,
                    Enclosed::Open => f64::NEG_INFINITY,
                    Enclosed::Within(corners) => match limit.bound_of_box(&corners) {
                        Some(bound) => limit.distance_from_limit(bound),
                        None => continue,
                    },
                };
                waiting.push(Reverse(QueuedRegion { far, region: half }));
            }
        }
        Ok(None)
    }

    /// The limited figure of the single chip of a region, if the chip is within the other limits.
    fn value_of_single_chip(&self, region: &Region, limit: ChipLimit, others: &ChipLimits) -> Result<Option<f64>, String> {
        match self.build_from_values(self.first_point(region) as u64) {
            Ok((_, mut chip)) => {
                let exceeds = others.lower_clock_and_check(&mut chip).map_err(|why| why.to_string())?.1;
                Ok(exceeds.is_none().then(|| limit.value_of_chip(&chip)).flatten())
            }
            Err(BuildFailure::Refused(_)) => Ok(None),
            Err(BuildFailure::Fault(why)) => Err(why),
        }
    }
}
