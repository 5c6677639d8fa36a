//! What the limits of a space must be at least for a chip to be within them: for one of which they leave none.

use super::grid::{Grid, Unbuilt};
use super::limits::{ChipLimits, Figures};
use super::region::Region;
use super::{Enclosed, Kind, Space};
use sim::hardware::phaze::design;
use sim::hardware::{Accelerator, at_clock, least_sustained_power, lowest_clock, sustained_power};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Boxes that are looked at for the least of a space; where they are not enough no figure is given.
const BOXES: usize = 200_000;

/// A limit of a space's chips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
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

impl Limit {
    /// All of them, in the order of the study's keys.
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

    /// Its value, where it is given.
    #[must_use]
    pub fn of(self, limits: &ChipLimits) -> Option<f64> {
        *self.field(&mut limits.clone())
    }

    /// Puts a value in its place.
    pub fn set(self, limits: &mut ChipLimits, value: f64) {
        *self.field(limits) = Some(value);
    }

    /// Whether chips are to have at least, not at most, what it says.
    #[must_use]
    pub fn is_least(self) -> bool {
        matches!(self, Self::LeastHbm | Self::HbmRate)
    }

    /// Its place among the limits.
    fn field(self, limits: &mut ChipLimits) -> &mut Option<f64> {
        match self {
            Self::Area => &mut limits.max_area_mm2,
            Self::Power => &mut limits.max_power_w,
            Self::Cost => &mut limits.max_cost_usd,
            Self::LeastHbm => &mut limits.min_hbm_gib,
            Self::MostHbm => &mut limits.max_hbm_gib,
            Self::HbmRate => &mut limits.min_hbm_gb_per_s,
        }
    }

    /// What a chip has of it, at the lowest clock of power; `None` where it has no price.
    fn value(self, chip: &Accelerator) -> Option<f64> {
        Some(match self {
            Self::Area => Figures::of(chip).ok()?.area.0,
            Self::Power => sustained_power(&at_clock(chip, lowest_clock(chip))).peak().0,
            Self::Cost => Figures::of(chip).ok()?.cost_usd?,
            Self::LeastHbm | Self::MostHbm => chip.memory_capacity().gib(),
            Self::HbmRate => chip.hbm.read_bandwidth.0 / 1e9,
        })
    }

    /// What no chip of a box has less of, or more where that is asked for.
    fn bound(self, corners: &super::Corners) -> Option<f64> {
        let (fast, small) = (&corners.fast, &corners.small);
        Some(match self {
            Self::Area => corners.least.area.0,
            Self::Power => least_sustained_power(&at_clock(small, lowest_clock(small)), fast).0,
            Self::Cost => corners.least.cost_usd?,
            Self::LeastHbm => fast.memory_capacity().gib(),
            Self::MostHbm => small.memory_capacity().gib(),
            Self::HbmRate => fast.hbm.read_bandwidth.0 / 1e9,
        })
    }

    /// So that less is nearer to the limit.
    fn far(self, value: f64) -> f64 {
        if self.is_least() { -value } else { value }
    }
}

/// A region that waits, those before others whose bound is nearer to the limit.
struct Waiting {
    far: f64,
    region: Region,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Of equals the smaller region: it is nearer to a chip.
        self.far.total_cmp(&other.far).then_with(|| self.region.size().cmp(&other.region.size()))
    }
}

impl Space {
    /// The value of a limit that leaves one chip and no more of those within `others`, of which that limit itself is left out: the least area, say.
    /// `None` where the others leave no chip either, or none is found soon.
    ///
    /// # Errors
    /// An expression without a value, a field that no chip has.
    pub fn nearest(&self, limit: Limit, others: &ChipLimits) -> Result<Option<f64>, String> {
        let mut others = *others;
        *limit.field(&mut others) = None;
        match &self.kind {
            Kind::Grid(grid) => grid.nearest(limit, &others),
            Kind::Phaze(space, spec) => {
                let configs = space.every(spec);
                let own = |mut chip: Accelerator| {
                    let exceeds = others.fit(&mut chip).ok()?.1;
                    exceeds.is_none().then(|| limit.value(&chip)).flatten()
                };
                // Of the area window the lower end follows the upper one.
                let inside = |chip: &Accelerator, config: &_| {
                    limit == Limit::Area || Figures::of(chip).is_ok_and(|figures| space.admits(config, figures.area))
                };
                let chips = configs.map(|config| (design(&config), config));
                let values = chips.filter(|(chip, config)| inside(chip, config)).filter_map(|(chip, _)| own(chip));
                Ok(values.min_by(|a, b| limit.far(*a).total_cmp(&limit.far(*b))))
            }
        }
    }
}

impl Grid {
    fn nearest(&self, limit: Limit, others: &ChipLimits) -> Result<Option<f64>, String> {
        let mut waiting = BinaryHeap::from([Reverse(Waiting { far: f64::NEG_INFINITY, region: self.whole() })]);
        let mut nearest: Option<f64> = None;
        for _ in 0..BOXES {
            let Some(Reverse(Waiting { far, region })) = waiting.pop() else { return Ok(nearest) };
            if nearest.is_some_and(|known| limit.far(known) <= far) {
                return Ok(nearest);
            }
            let Some(dimension) = self.words_of(&region).first().copied().or_else(|| region.open().next()) else {
                if let Some(value) = self.alone(&region, limit, others)?
                    && nearest.is_none_or(|known| limit.far(value) < limit.far(known))
                {
                    nearest = Some(value);
                }
                continue;
            };
            for half in region.halves(dimension) {
                let far = match self.enclose(&half, others)? {
                    Enclosed::Outside(_) => continue,
                    Enclosed::Open => f64::NEG_INFINITY,
                    Enclosed::Within(corners) => match limit.bound(&corners) {
                        Some(bound) => limit.far(bound),
                        None => continue,
                    },
                };
                waiting.push(Reverse(Waiting { far, region: half }));
            }
        }
        Ok(None)
    }

    /// What the one chip of a region has of a limit, if the others leave it.
    fn alone(&self, region: &Region, limit: Limit, others: &ChipLimits) -> Result<Option<f64>, String> {
        match self.built(self.first(region) as u64) {
            Ok((_, mut chip)) => {
                let exceeds = others.fit(&mut chip).map_err(|why| why.to_string())?.1;
                Ok(exceeds.is_none().then(|| limit.value(&chip)).flatten())
            }
            Err(Unbuilt::Refused(_)) => Ok(None),
            Err(Unbuilt::Fault(why)) => Err(why),
        }
    }
}
