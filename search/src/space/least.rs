//! For a space whose limits leave no chip, finds the tightest value of one limit that still leaves a chip.

use super::grid::{BuildFailure, Grid, GridChip};
use super::limits::{CheckedFigures, ChipFigures, ChipLimit, ChipLimits, OutsideReason};
use super::region::Region;
use super::{Enclosed, Space, SpaceKind};
use sim::hardware::phaze::design_accelerator;
use sim::hardware::{Accelerator, Unbuildable, least_sustained_power, lower_clock, lowest_clock};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Limit on boxes visited. A search that reaches it reports no value.
const BOXES: usize = 200_000;

impl ChipLimit {
    /// Bound on the limited figure of any chip in a box: a lower bound, or an upper bound if the limit is a minimum.
    /// `None` if no chip of the box has a price and the limit is on cost.
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
}

/// A region in the queue. The region whose bound is nearest to the limit comes first.
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
        // On ties the smaller region comes first, because it is nearer to a single chip.
        self.far
            .total_cmp(&other.far)
            .then_with(|| self.region.combination_count().cmp(&other.region.combination_count()))
    }
}

impl Space {
    /// The tightest value of `limit` that leaves at least one chip within all `others`, for example the least area. The
    /// limit of the same kind in `others` is ignored. `None` if no chip is within the others, or if the search ends at
    /// its limit of boxes.
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
                    let exceeds = others.lower_clock_and_check(&mut chip).ok()?.exceeded;
                    exceeds.is_none().then(|| limit.value_of_chip(&chip)).flatten()
                };
                // The area window is not applied to the area itself, because its lower end follows its upper end.
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

/// Number of combinations that are built to see whether any is a chip.
const TRIED: u64 = 64;

/// Number of combinations that are sampled for the one nearest to a limit of feasibility.
const SAMPLED: u64 = 2_000;

impl Space {
    /// Returns the reason why no combination is a chip, so that a value that no chip may have is found before the
    /// search. Only a sample, spread evenly over the space, is built. `None` if one of the sample is a chip, or if
    /// their reasons differ.
    ///
    /// # Errors
    /// An expression without a value, or a field that no chip has.
    pub fn refusal_of_all(&self) -> Result<Option<String>, String> {
        let SpaceKind::Grid(grid) = &self.kind else { return Ok(None) };
        let count = grid.combination_count().unwrap_or(u64::MAX);
        let mut refusal: Option<String> = None;
        for at in 0..count.min(TRIED) {
            let combination = (u128::from(at) * u128::from(count) / u128::from(count.min(TRIED))) as u64;
            match grid.build_from_values(combination) {
                Ok(_) => return Ok(None),
                Err(BuildFailure::Fault(why)) => return Err(why),
                Err(BuildFailure::Refused(why)) if refusal.as_ref().is_none_or(|known| *known == why) => {
                    refusal = Some(why);
                }
                Err(BuildFailure::Refused(_)) => return Ok(None),
            }
        }
        Ok(refusal)
    }

    /// The rule that the chip nearest to feasibility breaks: the smallest ratio of need to limit, among chips within
    /// `limits`. Only a sample of combinations, spread evenly over the space, is built. `None` if the sample
    /// has no such chip, or for PHAZE's grid.
    ///
    /// # Errors
    /// An expression without a value, or a field that no chip has.
    pub fn nearest_unbuildable(&self, limits: &ChipLimits) -> Result<Option<Unbuildable>, String> {
        let SpaceKind::Grid(grid) = &self.kind else { return Ok(None) };
        let count = grid.combination_count().unwrap_or(u64::MAX);
        let step = count.div_ceil(SAMPLED).max(1);
        let mut nearest: Option<Unbuildable> = None;
        for combination in (0..count).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let mut chip = match grid.build_from_values(combination) {
                Ok(GridChip { chip, .. }) => chip,
                Err(BuildFailure::Refused(_)) => continue,
                Err(BuildFailure::Fault(why)) => return Err(why),
            };
            let CheckedFigures { figures, exceeded } =
                limits.lower_clock_and_check(&mut chip).map_err(|why| why.to_string())?;
            if !matches!(exceeded, Some(OutsideReason::Unbuildable(_))) {
                continue;
            }
            let broken = limits.find_unbuildable(&chip, &figures).map_err(|why| why.to_string())?;
            let excess = |broken: &Unbuildable| broken.need / broken.have.max(f64::MIN_POSITIVE);
            nearest = nearest.into_iter().chain(broken).min_by(|a, b| excess(a).total_cmp(&excess(b)));
        }
        Ok(nearest)
    }
}

impl Grid {
    fn nearest_limit_of_boxes(&self, limit: ChipLimit, others: &ChipLimits) -> Result<Option<f64>, String> {
        let mut waiting =
            BinaryHeap::from([Reverse(QueuedRegion { far: f64::NEG_INFINITY, region: self.whole_region() })]);
        let mut nearest: Option<f64> = None;
        for _ in 0..BOXES {
            let Some(Reverse(QueuedRegion { far, region })) = waiting.pop() else { return Ok(nearest) };
            if nearest.is_some_and(|known| limit.distance_from_limit(known) <= far) {
                return Ok(nearest);
            }
            let Some(dimension) =
                self.word_dimensions_of(&region).first().copied().or_else(|| region.open_dimensions().next())
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

    /// The limited figure of a region's single chip. `None` if it is no chip, exceeds another limit, or has no price.
    fn value_of_single_chip(
        &self,
        region: &Region,
        limit: ChipLimit,
        others: &ChipLimits,
    ) -> Result<Option<f64>, String> {
        match self.build_from_values(self.first_point(region) as u64) {
            Ok(GridChip { mut chip, .. }) => {
                let exceeds = others.lower_clock_and_check(&mut chip).map_err(|why| why.to_string())?.exceeded;
                Ok(exceeds.is_none().then(|| limit.value_of_chip(&chip)).flatten())
            }
            Err(BuildFailure::Refused(_)) => Ok(None),
            Err(BuildFailure::Fault(why)) => Err(why),
        }
    }
}
