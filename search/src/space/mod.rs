//! Design spaces: the chips that a search may choose from, and their figures.
//!
//! PHAZE's grid ([`HardwareSpace`]) has its own formulas. Any other space is a base chip's file with varied fields
//! ([`SpaceDimensions`]). The reader of chip files builds its chips, so a new dimension is a line of a study and needs
//! no code.

mod corner;
mod dimension;
mod efficiency;
mod every;
mod extent;
mod formula;
mod grid;
mod interval;
mod least;
mod limits;
mod lookup;
mod names;
mod phaze;
mod region;
mod schema;
mod spec;

pub use corner::{Corners, Enclosed};
pub use dimension::{Dimension, Values, read_dimensions};
pub use efficiency::EfficiencyChoice;
pub use every::{Combination, CombinationChip, ListedDimension, combination_of_places, places_of_combination};
pub use formula::AREA;
use grid::LOWERED;
pub use grid::{FABRIC, FileSettings, Grid, SingleCombination};
pub use limits::{CheckedFigures, ChipFigures, ChipLimit, ChipLimits, OutsideCounts, OutsideReason, PowerLimit};
pub use phaze::{HardwarePoint, HardwareSpace};
pub use region::Region;
pub use schema::constants_schema;
pub use spec::{Chips, PhazeGrid, SpaceDimensions, SpaceSpec};

use sim::hardware::phaze::{PhazeConfig, design_accelerator, design_document};
use sim::hardware::{Accelerator, AreaError, ChipDocument, FieldValue};
use sim::units::{Bytes, SquareMillimeters, Watts};
use std::collections::BTreeMap;

/// Limit on combinations that are searched one by one. All of them are built within a minute, and each has a row in the
/// run's table.
const ONE_BY_ONE: u64 = 300_000;

/// A design space. If it is searched one by one, its points are the chips within the limits, in the order of
/// enumeration. If it is searched in boxes, every combination of values is a point.
#[derive(Debug, Clone)]
pub struct Space {
    kind: SpaceKind,
    /// The figures of each chip. Empty if boxes are searched; then chips are built when a search visits them.
    pub figures: Vec<ChipFigures>,
    /// If boxes are searched: the number of combinations, and the limits. Otherwise `None`.
    boxes: Option<(usize, ChipLimits)>,
    /// HBM capacities that every chip may carry, ascending. Empty if capacity is an ordinary dimension.
    pub hbm: Vec<Bytes>,
    /// The area limit, if any.
    pub max_area: Option<SquareMillimeters>,
    /// Counts of combinations that are no chips of the space, as far as the enumeration knows them.
    pub outside: OutsideCounts,
    /// The limits on its chips. PHAZE's grid without an area limit is limited by the reference's area instead.
    limits: ChipLimits,
}

#[derive(Debug, Clone)]
enum SpaceKind {
    Phaze(Box<HardwareSpace>, PhazeGrid),
    Grid(Box<Grid>),
}

/// A design of a space: one of its points and, if chips may carry several HBM capacities, one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DesignId {
    /// The chip's index.
    pub point: usize,
    /// Its HBM capacity. `None` if the capacity is an ordinary dimension, or for a point's largest.
    pub hbm: Option<Bytes>,
}

impl Space {
    /// PHAZE's grid within limits. Without an area limit, the area of `reference` is the limit. At least one of the
    /// grid's HBM capacities must be within the limits. PHAZE's chips have no PHYs, so limits of feasibility do not
    /// apply.
    ///
    /// # Errors
    /// A reference chip without an area model.
    pub fn from_phaze(grid: &PhazeGrid, limits: &ChipLimits, reference: &Accelerator) -> Result<Self, AreaError> {
        let limits = &ChipLimits { lift_build_limits: true, ..*limits };
        // Keeps the HBM capacities within the limits. The enumeration drops chips with other capacities.
        let allowed = |gib: &f64| {
            limits.min_hbm_gib.is_none_or(|least| *gib >= least) && limits.max_hbm_gib.is_none_or(|most| *gib <= most)
        };
        let grid = &PhazeGrid { hbm_gib: grid.hbm_gib.iter().copied().filter(allowed).collect(), ..grid.clone() };
        let mut space = HardwareSpace::enumerate_chips(grid, limits, reference)?;
        let mut outside = OutsideCounts { area: space.outside, ..OutsideCounts::default() };
        let mut figures = Vec::with_capacity(space.points.len());
        let mut kept = Vec::with_capacity(space.points.len());
        for point in &space.points {
            // The enumeration has already applied the area limit.
            match (ChipLimits { max_area_mm2: None, ..*limits })
                .lower_clock_and_check(&mut design_accelerator(&point.config))?
            {
                CheckedFigures { exceeded: Some(why), .. } => outside.count_reason(why, 1),
                CheckedFigures { figures: of, exceeded: None } => {
                    figures.push(of);
                    kept.push(*point);
                }
            }
        }
        space.points = kept;
        let (hbm, max_area) = (space.hbm.clone(), Some(space.max_area));
        Ok(Self {
            kind: SpaceKind::Phaze(Box::new(space), grid.clone()),
            figures,
            boxes: None,
            hbm,
            max_area,
            outside,
            limits: *limits,
        })
    }

    /// The variants of a base chip. Few combinations are searched one by one, many in boxes.
    ///
    /// # Errors
    /// As [`Self::from_grid`] and [`Self::from_boxes`].
    pub fn from_relatives(grid: Grid, limits: &ChipLimits) -> Result<Self, String> {
        if grid.combination_count().is_some_and(|count| count <= ONE_BY_ONE) {
            Self::from_grid(grid, limits)
        } else {
            Self::from_boxes(grid, limits)
        }
    }

    /// The variants of a base chip within limits, searched one by one.
    ///
    /// # Errors
    /// A field that no chip has, a value of the wrong type, an expression without a value, or no combination that is a
    /// chip.
    pub fn from_grid(mut grid: Grid, limits: &ChipLimits) -> Result<Self, String> {
        let (figures, outside) = grid.enumerate_chips(limits)?;
        let max_area = limits.max_area_mm2.map(SquareMillimeters);
        Ok(Self {
            kind: SpaceKind::Grid(Box::new(grid)),
            figures,
            boxes: None,
            hbm: Vec::new(),
            max_area,
            outside,
            limits: *limits,
        })
    }

    /// The variants of a base chip, searched in boxes. Every combination is a point, within the limits or not, and
    /// chips are built when a search visits them.
    ///
    /// # Errors
    /// An error of [`Self::from_grid`] that the first combination shows, too many fabrics, or a fabric that depends on
    /// a chip's area.
    pub fn from_boxes(mut grid: Grid, limits: &ChipLimits) -> Result<Self, String> {
        let count = grid.join_fabrics()?;
        let (figures, hbm, outside) = (Vec::new(), Vec::new(), OutsideCounts::default());
        let max_area = limits.max_area_mm2.map(SquareMillimeters);
        Ok(Self {
            kind: SpaceKind::Grid(Box::new(grid)),
            figures,
            boxes: Some((count, *limits)),
            hbm,
            max_area,
            outside,
            limits: *limits,
        })
    }

    /// The same designs under other values of the model's constants. `None` for PHAZE's chips, which have areas and
    /// energies of their own.
    #[must_use]
    pub fn with_constants(&self, changes: &BTreeMap<String, f64>) -> Option<Self> {
        let SpaceKind::Grid(grid) = &self.kind else { return None };
        let mut grid = grid.clone();
        grid.set_constants(changes);
        Some(Self {
            kind: SpaceKind::Grid(grid),
            // The figures of the original chips do not hold for the changed ones.
            figures: Vec::new(),
            boxes: self.boxes,
            hbm: self.hbm.clone(),
            max_area: self.max_area,
            outside: OutsideCounts::default(),
            limits: self.limits,
        })
    }

    /// The number of a point among all combinations. `None` for PHAZE's chips.
    #[must_use]
    pub fn combination_of_point(&self, point: usize) -> Option<u64> {
        if let SpaceKind::Grid(grid) = &self.kind { Some(grid.number_of_point(point)) } else { None }
    }

    /// The region of all combinations, if boxes are searched.
    #[must_use]
    pub fn whole_region(&self) -> Option<Region> {
        match (&self.kind, self.boxes) {
            (SpaceKind::Grid(grid), Some(_)) => Some(grid.whole_region()),
            _ => None,
        }
    }

    /// The smallest point number in a region.
    #[must_use]
    pub fn first_point(&self, region: &Region) -> usize {
        if let SpaceKind::Grid(grid) = &self.kind { grid.first_point(region) } else { 0 }
    }

    /// True if a point is in a region.
    #[must_use]
    pub fn region_contains(&self, region: &Region, point: usize) -> bool {
        if let SpaceKind::Grid(grid) = &self.kind { grid.region_contains(region, point) } else { false }
    }

    /// The points of a region, in no order.
    #[must_use]
    pub fn points_of_region(&self, region: &Region) -> Vec<usize> {
        if let SpaceKind::Grid(grid) = &self.kind { grid.points_of_region(region) } else { Vec::new() }
    }

    /// The dimensions with words that have several values in a region. Words have no order and so no common bound.
    #[must_use]
    pub fn word_dimensions_of(&self, region: &Region) -> Vec<usize> {
        if let SpaceKind::Grid(grid) = &self.kind { grid.word_dimensions_of(region) } else { Vec::new() }
    }

    /// Bounds the chips of a region. A space that is not searched in boxes has no bound.
    ///
    /// # Errors
    /// An expression without a value, or a field that no chip has.
    pub fn enclose_boxes(&self, region: &Region) -> Result<Enclosed, String> {
        match (&self.kind, self.boxes) {
            (SpaceKind::Grid(grid), Some((_, limits))) => grid.enclose_region(region, &limits),
            _ => Ok(Enclosed::Open),
        }
    }

    /// Builds one point. It may be no chip only if boxes are searched.
    ///
    /// # Errors
    /// An expression without a value, or a field that no chip has.
    pub fn single_point(&self, point: usize) -> Result<SingleCombination, String> {
        match (&self.kind, self.boxes) {
            (SpaceKind::Grid(grid), Some((_, limits))) => grid.single_combination(point, &limits),
            _ => {
                let id = self.with_largest_memory(point);
                self.chip_of_design(id).map(|chip| SingleCombination::Chip(Box::new(chip), self.figures[point]))
            }
        }
    }

    /// Bounds the whole space by boxes without open words, because words have no bound in common. `None` if there are
    /// too many boxes, if one of them has no bound, or if the space is not searched in boxes.
    fn enclose_by_words(&self) -> Option<Vec<Enclosed>> {
        /// Limit on the number of boxes that are bounded.
        const BOXES: usize = 256;
        let (mut boxes, mut enclosed) = (vec![self.whole_region()?], Vec::new());
        while let Some(region) = boxes.pop() {
            match self.enclose_boxes(&region).ok()? {
                Enclosed::Open if enclosed.len() + boxes.len() < BOXES => {
                    let words = *self.word_dimensions_of(&region).first()?;
                    boxes.extend(region.split_in_halves(words));
                }
                Enclosed::Open => return None,
                bounded => enclosed.push(bounded),
            }
        }
        Some(enclosed)
    }

    /// True if bounds on all chips of the space show that none is within the limits.
    #[must_use]
    pub fn exceeds_limits_everywhere(&self) -> bool {
        self.enclose_by_words().is_some_and(|all| all.iter().all(|one| matches!(one, Enclosed::Outside(_))))
    }

    /// The corners of the part of the space with the largest memory; no chip of the space has more. `None` without
    /// bounds.
    #[must_use]
    pub fn corners_of_largest_memory(&self) -> Option<Corners> {
        let within = self.enclose_by_words()?.into_iter().filter_map(|one| match one {
            Enclosed::Within(corners) => Some(*corners),
            Enclosed::Open | Enclosed::Outside(_) => None,
        });
        within.max_by_key(|corners| corners.fast.memory_capacity())
    }

    /// True if the limits leave no chip. False for every space searched in boxes, where no chip is built yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chip_count() == 0
    }

    /// The limits on its chips.
    #[must_use]
    pub fn limits(&self) -> &ChipLimits {
        &self.limits
    }

    /// The number of points: chips within the limits, or all combinations if boxes are searched.
    #[must_use]
    pub fn chip_count(&self) -> usize {
        self.boxes.map_or(self.figures.len(), |(count, _)| count)
    }

    /// The number of designs: points times HBM capacities.
    #[must_use]
    pub fn design_count(&self) -> usize {
        self.chip_count() * self.hbm.len().max(1)
    }

    /// A chip's design with its largest HBM.
    #[must_use]
    pub fn with_largest_memory(&self, point: usize) -> DesignId {
        DesignId { point, hbm: self.hbm.last().copied() }
    }

    /// A design's chip, at the clock that the power limit allows.
    ///
    /// # Errors
    /// Values that are no chip. If designs are searched one by one, the enumeration has already dropped these.
    pub fn chip_of_design(&self, id: DesignId) -> Result<Accelerator, String> {
        let mut chip = match &self.kind {
            SpaceKind::Phaze(space, _) => design_accelerator(&phaze_config_of(space, id)),
            SpaceKind::Grid(grid) => grid.chip_of_point(id.point)?,
        };
        self.limits.lower_clock(&mut chip);
        Ok(chip)
    }

    /// The figures of a design, with its own HBM. Area and power are infinite if they are unknown.
    #[must_use]
    pub fn figures_of_design(&self, id: DesignId, chip: &Accelerator) -> ChipFigures {
        let none = ChipFigures {
            area: SquareMillimeters(f64::INFINITY),
            peak_power: Watts(f64::INFINITY),
            cost_usd: None,
            system_usd: 0.0,
        };
        match self.figures.get(id.point) {
            Some(of_point) if id.hbm.is_none() => *of_point,
            // The cost of a chip includes its HBM, so each HBM capacity needs its own figures.
            of_point => ChipFigures::of_chip(chip).unwrap_or(of_point.copied().unwrap_or(none)),
        }
    }

    /// A design's chip as a file, and the keys of the fields that the design sets.
    ///
    /// # Errors
    /// As [`Self::chip_of_design`].
    pub fn document_of_design(&self, id: DesignId) -> Result<(ChipDocument, Vec<String>), String> {
        let (mut document, mut keys) = match &self.kind {
            SpaceKind::Phaze(space, _) => {
                let document = design_document(&phaze_config_of(space, id)).map_err(|why| why.to_string())?;
                let keys = document.list_fields().into_iter().map(|(key, _)| key);
                let built = |key: &String| {
                    key.starts_with("tensor.") || key.starts_with("vector.") || key.starts_with("memory.")
                };
                let keys =
                    keys.filter(|key| built(key) && !key.ends_with("ports") && !key.contains("macs_per")).collect();
                (document, keys)
            }
            SpaceKind::Grid(grid) => grid.chip_document(id.point)?,
        };
        let chip = self.chip_of_design(id)?;
        if chip.lowered.is_some() {
            document.set_field(LOWERED, &FieldValue::Number(chip.clock.0 / 1e6)).map_err(|fault| fault.to_string())?;
            keys.push(LOWERED.to_owned());
        }
        Ok((document, keys))
    }

    /// The dimensions of a design as text.
    #[must_use]
    pub fn describe_design(&self, id: DesignId) -> String {
        match &self.kind {
            SpaceKind::Phaze(space, _) => phaze_config_of(space, id).to_string(),
            SpaceKind::Grid(grid) => grid.describe_dimensions(id.point),
        }
    }

    /// The dimensions that the space varies, each with the design's value. `None` for PHAZE's grid, which has its own
    /// columns in tables.
    #[must_use]
    pub fn varied_dimensions(&self, id: DesignId) -> Option<Vec<(String, FieldValue)>> {
        match &self.kind {
            SpaceKind::Phaze(..) => None,
            SpaceKind::Grid(grid) => Some(grid.varied_dimensions(id.point)),
        }
    }

    /// The distinct settings of the fabric, with keys without `fabric.`. A single empty setting if the space varies
    /// only chips.
    #[must_use]
    pub fn fabric_settings(&self) -> Vec<Vec<(String, FieldValue)>> {
        match &self.kind {
            SpaceKind::Phaze(..) => vec![Vec::new()],
            SpaceKind::Grid(grid) => grid.fabrics.clone(),
        }
    }

    /// Index of the design's fabric in [`Self::fabric_settings`].
    #[must_use]
    pub fn fabric_of_design(&self, id: DesignId) -> usize {
        match &self.kind {
            SpaceKind::Phaze(..) => 0,
            SpaceKind::Grid(grid) => grid.fabric_settings(id.point),
        }
    }

    /// Dimensions in which a design has the largest (`true`) or smallest (`false`) number of the study's list, with
    /// that number. A better design may lie beyond.
    #[must_use]
    pub fn at_the_end(&self, id: DesignId) -> Vec<(String, f64, bool)> {
        match &self.kind {
            SpaceKind::Phaze(space, grid) => {
                let c = phaze_config_of(space, id);
                let whole = |list: &[u32]| list.iter().copied().map(f64::from).collect::<Vec<_>>();
                let mib: Vec<f64> = grid.global_buffer_mib.iter().map(|&mib| mib as f64).collect();
                let lists = [
                    ("tensor_cores", whole(&grid.tensor_cores), f64::from(c.num_tc)),
                    ("vector_cores", whole(&grid.vector_cores), f64::from(c.num_vc)),
                    ("array_widths", whole(&grid.array_widths), f64::from(c.width)),
                    ("array_depths", whole(&grid.array_depths), f64::from(c.depth)),
                    ("global_buffer_mib", mib, (c.global_buffer.0 >> 20) as f64),
                    ("hbm_gib", grid.hbm_gib.clone(), c.hbm.gib()),
                ];
                let ends = lists
                    .into_iter()
                    // The value 1 is no end of the search range, because a chip has at least one core, row or MiB.
                    .filter(|(key, _, value)| *key == "hbm_gib" || *value > 1.0)
                    .filter_map(|(key, list, value)| {
                        limits::is_end_of(&list, value).map(|largest| (key.to_owned(), value, largest))
                    });
                ends.collect()
            }
            SpaceKind::Grid(grid) => grid.dimensions_at_the_end(id.point),
        }
    }

    /// The fields of chip and fabric that the study computes from a dimension, without those of the area. Empty for
    /// PHAZE's grid.
    #[must_use]
    pub fn fields_that_follow(&self, dimension: &str) -> Vec<String> {
        let SpaceKind::Grid(grid) = &self.kind else { return Vec::new() };
        let following = grid.formulas.keys_that_follow(dimension);
        // A name without a dot is the study's own.
        let fields = following.into_iter().filter(|key| key.contains('.') && !key.starts_with("area."));
        fields.map(str::to_owned).collect()
    }

    /// Dimensions that change a design's cores, on-chip memories or link rates but neither its area nor its clock,
    /// because no field of `area.*` follows them. Empty for PHAZE's grid.
    #[must_use]
    pub fn dimensions_without_area(&self, id: DesignId) -> Vec<String> {
        match &self.kind {
            SpaceKind::Phaze(..) => Vec::new(),
            SpaceKind::Grid(grid) => grid.dimensions_without_area(id.point),
        }
    }
}

fn phaze_config_of(space: &HardwareSpace, id: DesignId) -> PhazeConfig {
    let config = space.points[id.point].config;
    PhazeConfig { hbm: id.hbm.unwrap_or(config.hbm), ..config }
}
