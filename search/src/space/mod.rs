//! Design spaces: which chips a search may build, and what they take.
//!
//! PHAZE's grid ([`HardwareSpace`]) is built by formulas of its own; any other space is a base chip's file with fields that vary
//! ([`Dimensions`]), read by the reader of chip files, so that a new dimension is a line of a study and no code.

mod corner;
mod dimension;
mod every;
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
pub use dimension::{Dimension, Values, read as read_dimensions};
pub use every::{Built, Combination, Dial, number, places};
pub use formula::AREA;
use grid::LOWERED;
pub use grid::{FABRIC, Grid, Settings, Single};
pub use least::Limit;
pub use limits::{ChipLimits, Figures, Outside, Why};
pub use phaze::{HardwarePoint, HardwareSpace};
pub use region::Region;
pub use spec::{CalibrationChoice, Chips, Dimensions, PhazeGrid, SpaceSpec};

use sim::hardware::phaze::{PhazeConfig, design, document};
use sim::hardware::{Accelerator, AreaError, ChipDocument, Setting};
use sim::units::{Bytes, SquareMillimeters, Watts};

/// The most combinations that are searched one by one: all are built within a minute, and each has its row in the run's table.
const ONE_BY_ONE: u64 = 300_000;

/// The chips of a space that are within its limits, in the order of enumeration.
#[derive(Debug, Clone)]
pub struct Space {
    kind: Kind,
    /// What each chip takes; empty where boxes of chips are searched, which are built where a search looks at them.
    pub figures: Vec<Figures>,
    /// Where boxes are searched: the number of combinations, and their limits.
    boxes: Option<(usize, ChipLimits)>,
    /// HBM capacities that every chip may carry, ascending; empty where capacity is a dimension as any other.
    pub hbm: Vec<Bytes>,
    /// The largest area allowed, where it is limited.
    pub max_area: Option<SquareMillimeters>,
    /// Combinations that are no chips of the space.
    pub outside: Outside,
    /// What its chips may take; of PHAZE's grid the reference's area where no area is given.
    limits: ChipLimits,
}

#[derive(Debug, Clone)]
enum Kind {
    Phaze(Box<HardwareSpace>, PhazeGrid),
    Grid(Box<Grid>),
}

/// A design of a space: one of its chips, with one of the HBM capacities where each may carry several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DesignId {
    /// The chip's position.
    pub point: usize,
    /// Its HBM, where that is no dimension of the chip.
    pub hbm: Option<Bytes>,
}

impl Space {
    /// PHAZE's grid within limits; the area of `reference` is one where `limits` have none. Of its HBM capacities some must be within them.
    ///
    /// # Errors
    /// A reference chip without an area model.
    pub fn phaze(grid: &PhazeGrid, limits: &ChipLimits, reference: &Accelerator) -> Result<Self, AreaError> {
        // Capacities that every chip may carry: chips with another are none of the space.
        let allowed = |gib: &f64| {
            limits.min_hbm_gib.is_none_or(|least| *gib >= least) && limits.max_hbm_gib.is_none_or(|most| *gib <= most)
        };
        let grid = &PhazeGrid { hbm_gib: grid.hbm_gib.iter().copied().filter(allowed).collect(), ..grid.clone() };
        let mut space = HardwareSpace::enumerate(grid, limits, reference)?;
        let mut outside = Outside { area: space.outside, ..Outside::default() };
        let mut figures = Vec::with_capacity(space.points.len());
        let mut kept = Vec::with_capacity(space.points.len());
        for point in &space.points {
            // The area has been looked at, with the reference's limit.
            match (ChipLimits { max_area_mm2: None, ..*limits }).fit(&mut design(&point.config))? {
                (_, Some(why)) => outside.count(why, 1),
                (of, None) => {
                    figures.push(of);
                    kept.push(*point);
                }
            }
        }
        space.points = kept;
        let (hbm, max_area) = (space.hbm.clone(), Some(space.max_area));
        Ok(Self {
            kind: Kind::Phaze(Box::new(space), grid.clone()),
            figures,
            boxes: None,
            hbm,
            max_area,
            outside,
            limits: *limits,
        })
    }

    /// A base chip's relatives, searched one by one or, where they are many, box by box.
    ///
    /// # Errors
    /// As [`Self::grid`] and [`Self::boxes`].
    pub fn relatives(grid: Grid, limits: &ChipLimits) -> Result<Self, String> {
        if grid.combinations().is_some_and(|count| count <= ONE_BY_ONE) {
            Self::grid(grid, limits)
        } else {
            Self::boxes(grid, limits)
        }
    }

    /// A base chip's relatives within limits.
    ///
    /// # Errors
    /// A field that no chip has, a value of the wrong type, an expression without a value, no combination that is a chip.
    pub fn grid(mut grid: Grid, limits: &ChipLimits) -> Result<Self, String> {
        let (figures, outside) = grid.enumerate(limits)?;
        let max_area = limits.max_area_mm2.map(SquareMillimeters);
        Ok(Self { kind: Kind::Grid(Box::new(grid)), figures, boxes: None, hbm: Vec::new(), max_area, outside, limits: *limits })
    }

    /// A base chip's relatives of which boxes are searched: every combination is a point, within the limits or not, and none is built before a search
    /// looks at it.
    ///
    /// # Errors
    /// As [`Self::grid`], as far as the first combination shows it; a fabric that follows from a chip's area.
    pub fn boxes(mut grid: Grid, limits: &ChipLimits) -> Result<Self, String> {
        let count = grid.join()?;
        let (figures, hbm, outside) = (Vec::new(), Vec::new(), Outside::default());
        let max_area = limits.max_area_mm2.map(SquareMillimeters);
        Ok(Self {
            kind: Kind::Grid(Box::new(grid)),
            figures,
            boxes: Some((count, *limits)),
            hbm,
            max_area,
            outside,
            limits: *limits,
        })
    }

    /// The whole of a space of which boxes are searched.
    #[must_use]
    pub fn whole(&self) -> Option<Region> {
        match (&self.kind, self.boxes) {
            (Kind::Grid(grid), Some(_)) => Some(grid.whole()),
            _ => None,
        }
    }

    /// The least point of a region.
    #[must_use]
    pub fn first(&self, region: &Region) -> usize {
        if let Kind::Grid(grid) = &self.kind { grid.first(region) } else { 0 }
    }

    /// Whether a point is in a region.
    #[must_use]
    pub fn holds(&self, region: &Region, point: usize) -> bool {
        if let Kind::Grid(grid) = &self.kind { grid.holds(region, point) } else { false }
    }

    /// The points of a region, in no order.
    #[must_use]
    pub fn members(&self, region: &Region) -> Vec<usize> {
        if let Kind::Grid(grid) = &self.kind { grid.members(region) } else { Vec::new() }
    }

    /// Dimensions of words, which have no order and so no bound in common, of which a region has several.
    #[must_use]
    pub fn words_of(&self, region: &Region) -> Vec<usize> {
        if let Kind::Grid(grid) = &self.kind { grid.words_of(region) } else { Vec::new() }
    }

    /// What bounds the chips of a region.
    ///
    /// # Errors
    /// An expression without a value, a field that no chip has.
    pub fn enclose(&self, region: &Region) -> Result<Enclosed, String> {
        match (&self.kind, self.boxes) {
            (Kind::Grid(grid), Some((_, limits))) => grid.enclose(region, &limits),
            _ => Ok(Enclosed::Open),
        }
    }

    /// A point of a space of which boxes are searched.
    ///
    /// # Errors
    /// An expression without a value, a field that no chip has.
    pub fn single(&self, point: usize) -> Result<Single, String> {
        match (&self.kind, self.boxes) {
            (Kind::Grid(grid), Some((_, limits))) => grid.single(point, &limits),
            _ => {
                let id = self.largest(point);
                self.chip(id).map(|chip| Single::Chip(Box::new(chip), self.figures[point]))
            }
        }
    }

    /// Whether its limits are known to leave none of its chips, before any box of chips is looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points() == 0
    }

    /// What its chips may take.
    #[must_use]
    pub fn limits(&self) -> &ChipLimits {
        &self.limits
    }

    /// Chips.
    #[must_use]
    pub fn points(&self) -> usize {
        self.boxes.map_or(self.figures.len(), |(count, _)| count)
    }

    /// Chips times HBM capacities, where each may carry several.
    #[must_use]
    pub fn designs(&self) -> usize {
        self.points() * self.hbm.len().max(1)
    }

    /// A chip with its largest HBM.
    #[must_use]
    pub fn largest(&self, point: usize) -> DesignId {
        DesignId { point, hbm: self.hbm.last().copied() }
    }

    /// A design's chip, at the clock that the limit of power leaves it.
    ///
    /// # Errors
    /// None that its enumeration has not had: the values were a chip.
    pub fn chip(&self, id: DesignId) -> Result<Accelerator, String> {
        let mut chip = match &self.kind {
            Kind::Phaze(space, _) => design(&config(space, id)),
            Kind::Grid(grid) => grid.chip(id.point)?,
        };
        self.limits.lower(&mut chip);
        Ok(chip)
    }

    /// What a design takes: its chip's figures, with its own HBM.
    #[must_use]
    pub fn figures(&self, id: DesignId, chip: &Accelerator) -> Figures {
        let none = Figures { area: SquareMillimeters(f64::INFINITY), peak_power: Watts(f64::INFINITY), cost_usd: None };
        match self.figures.get(id.point) {
            Some(of_point) if id.hbm.is_none() => *of_point,
            // HBM is part of what a chip costs; capacities that every chip may carry are not its figures'.
            of_point => Figures::of(chip).unwrap_or(of_point.copied().unwrap_or(none)),
        }
    }

    /// A design's chip as a file, and the fields that its design sets.
    ///
    /// # Errors
    /// As [`Self::chip`].
    pub fn document(&self, id: DesignId) -> Result<(ChipDocument, Vec<String>), String> {
        let (mut document, mut keys) = match &self.kind {
            Kind::Phaze(space, _) => {
                let document = document(&config(space, id)).map_err(|why| why.to_string())?;
                let keys = document.fields().into_iter().map(|(key, _)| key);
                let built = |key: &String| key.starts_with("tensor.") || key.starts_with("vector.") || key.starts_with("memory.");
                let keys = keys.filter(|key| built(key) && !key.ends_with("ports") && !key.contains("macs_per")).collect();
                (document, keys)
            }
            Kind::Grid(grid) => grid.document(id.point)?,
        };
        let chip = self.chip(id)?;
        if chip.lowered.is_some() {
            document.set(LOWERED, &Setting::Number(chip.clock.0 / 1e6)).map_err(|fault| fault.to_string())?;
            keys.push(LOWERED.to_owned());
        }
        Ok((document, keys))
    }

    /// The dimensions of a design in words.
    #[must_use]
    pub fn words(&self, id: DesignId) -> String {
        match &self.kind {
            Kind::Phaze(space, _) => config(space, id).to_string(),
            Kind::Grid(grid) => grid.words(id.point),
        }
    }

    /// The dimensions that the space varies, with a design's values; `None` for PHAZE's, which are columns of their own.
    #[must_use]
    pub fn varied(&self, id: DesignId) -> Option<Vec<(String, Setting)>> {
        match &self.kind {
            Kind::Phaze(..) => None,
            Kind::Grid(grid) => Some(grid.varied(id.point)),
        }
    }

    /// The distinct settings of the fabric, keys without `fabric.`; empty ones where the space varies chips alone.
    #[must_use]
    pub fn fabrics(&self) -> Vec<Vec<(String, Setting)>> {
        match &self.kind {
            Kind::Phaze(..) => vec![Vec::new()],
            Kind::Grid(grid) => grid.fabrics.clone(),
        }
    }

    /// Which of [`Self::fabrics`] joins a design's chips.
    #[must_use]
    pub fn fabric(&self, id: DesignId) -> usize {
        match &self.kind {
            Kind::Phaze(..) => 0,
            Kind::Grid(grid) => grid.fabric(id.point),
        }
    }

    /// Dimensions of which a design has the largest (`true`) or smallest number of the study's list: a better one may lie beyond it.
    #[must_use]
    pub fn at_the_end(&self, id: DesignId) -> Vec<(String, f64, bool)> {
        match &self.kind {
            Kind::Phaze(space, grid) => {
                let c = config(space, id);
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
                    // There is no less than one core, row or MiB.
                    .filter(|(key, _, value)| *key == "hbm_gib" || *value > 1.0)
                    .filter_map(|(key, list, value)| limits::end(&list, value).map(|largest| (key.to_owned(), value, largest)));
                ends.collect()
            }
            Kind::Grid(grid) => grid.at_the_end(id.point),
        }
    }
}

fn config(space: &HardwareSpace, id: DesignId) -> PhazeConfig {
    let config = space.points[id.point].config;
    PhazeConfig { hbm: id.hbm.unwrap_or(config.hbm), ..config }
}
