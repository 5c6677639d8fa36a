//! A space of chips made from a base chip's file and dimensions of it.

use super::dimension::Dimension;
use super::formula::{Formulas, Slots};
use super::limits::{ChipLimits, Figures, Outside, Why};
use super::region::{Order, Region};
use rayon::prelude::*;
use sim::hardware::{Accelerator, ChipDocument, HardwareError, Setting, fields};
use std::collections::BTreeMap;

/// The begin of the key of a fabric's field.
pub const FABRIC: &str = "fabric.";
/// The key of a chip's clock where power holds it down.
pub(super) const LOWERED: &str = "lowered_clock_mhz";
/// Combinations of which each is built once.
const MOST_COMBINATIONS: u64 = 50_000_000;
/// Combinations of which boxes are searched: their numbers are exact as doubles.
const MOST_IN_BOXES: u64 = 1 << 53;
/// Fabrics of a space: plans are prepared for each.
const MOST_FABRICS: usize = 256;

/// Combinations built side by side.
const CHUNK: usize = 65_536;

/// A chip of a grid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GridPoint {
    combination: u64,
    fabric: u32,
}

impl GridPoint {
    /// Its number among all combinations.
    pub(super) fn combination(&self) -> u64 {
        self.combination
    }
}

/// What a chip's file sets, and a fabric's.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Of the chip.
    pub chip: Vec<(String, Setting)>,
    /// Of the fabric, keys without [`FABRIC`].
    pub fabric: Vec<(String, Setting)>,
}

/// A space of chips made from a base chip.
#[derive(Debug, Clone)]
pub struct Grid {
    pub(super) base: ChipDocument,
    pub(super) formulas: Formulas,
    /// What each of [`Formulas::keys`] sets.
    pub(super) places: Vec<Place>,
    pub(super) order: Order,
    /// Chips within the limits; none where boxes are searched, of which every combination is a point.
    pub(super) points: Vec<GridPoint>,
    /// The distinct settings of the fabric.
    pub(super) fabrics: Vec<Vec<(String, Setting)>>,
    /// Where boxes are searched.
    joined: Option<Joined>,
}

/// Which fabric joins the chips of a combination.
#[derive(Debug, Clone)]
struct Joined {
    /// Listed dimensions that fabrics follow from.
    dimensions: Vec<usize>,
    /// The fabric of each combination of their places.
    fabrics: BTreeMap<Vec<usize>, u32>,
}

/// Whose field a dimension is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Chip,
    Fabric,
    /// Nobody's: others refer to it.
    Name,
}

/// What became of a combination.
enum Built {
    Chip(Figures, Vec<(String, Setting)>),
    Outside(Why),
    Refused(String),
}

impl Grid {
    /// Puts the dimensions of a base chip in order; no chip is built yet. `fabric` says what a field of the base fabric has.
    ///
    /// # Errors
    /// A dimension that is wrong, a field that the chip has not, more combinations than can be built.
    pub fn new(base: ChipDocument, dimensions: &[Dimension], fabric: &dyn Fn(&str) -> Option<Setting>) -> Result<Self, String> {
        let of_base = |key: &str| key.strip_prefix(FABRIC).map_or_else(|| base.get(key), fabric);
        let formulas = Formulas::new(dimensions, &of_base)?;
        let mut places = Vec::new();
        for key in formulas.keys() {
            let varied = dimensions.iter().any(|dimension| dimension.key == *key);
            let place = if key.starts_with(FABRIC) {
                Place::Fabric
            } else if key.contains('.') || base.get(key).is_some() {
                Place::Chip
            } else {
                Place::Name
            };
            let used = || dimensions.iter().any(|dimension| dimension.values.refer(key));
            if varied && place == Place::Name && !used() {
                let cure = "correct the name, or refer to it (coplace list dimensions)";
                return Err(format!(
                    "space.dimensions.{key}: the chip has no such field and no other dimension refers to it; {cure}"
                ));
            }
            if varied && place == Place::Chip {
                refuse(key, &base)?;
            }
            places.push(place);
        }
        let order = Order::new(&formulas);
        Ok(Self { base, formulas, places, order, points: Vec::new(), fabrics: Vec::new(), joined: None })
    }

    /// How many combinations there are.
    ///
    /// # Errors
    /// More than `most`.
    fn count(&self, most: u64) -> Result<u64, String> {
        let count = self.formulas.combinations();
        count.filter(|count| *count <= most).ok_or_else(|| {
            let count = count.map_or_else(|| "more than can be counted".to_owned(), |count| count.to_string());
            format!("space.dimensions: combinations: {count}, at most {most} are searched; list fewer values")
        })
    }

    /// Combinations of the listed values; `None` where there are more than can be counted.
    pub(super) fn combinations(&self) -> Option<u64> {
        self.formulas.combinations()
    }

    /// Makes every combination a point, whatever its limits, and finds the fabrics: chips are built where a search looks at them.
    ///
    /// # Errors
    /// Too many combinations or fabrics, a fabric that follows from the area, a first combination that has no value or a field that no chip has.
    pub(super) fn join(&mut self) -> Result<usize, String> {
        let count = self.count(MOST_IN_BOXES)?;
        if let Err(Unbuilt::Fault(why)) = self.built(0) {
            return Err(why);
        }
        let dimensions = self.of_fabrics()?;
        let lists: Vec<usize> = dimensions.iter().map(|&dimension| self.formulas.listed()[dimension].len()).collect();
        let (mut known, mut table) = (BTreeMap::new(), BTreeMap::new());
        for places in products(&lists.iter().map(|&length| (0..length).collect()).collect::<Vec<_>>()) {
            let mut combination = vec![0; self.formulas.listed().len()];
            for (&dimension, &place) in dimensions.iter().zip(&places) {
                combination[dimension] = place;
            }
            let slots = self.formulas.values(self.formulas.combination(combination))?;
            let settings = self.settings(&slots).fabric;
            let new = known.len() as u32;
            let fabric = *known.entry(format!("{settings:?}")).or_insert(new);
            if fabric == new {
                self.fabrics.push(settings);
            }
            if self.fabrics.len() > MOST_FABRICS {
                return Err(format!(
                    "space.dimensions: more than {MOST_FABRICS} fabrics; list fewer values of what they follow from"
                ));
            }
            table.insert(places, fabric);
        }
        self.joined = Some(Joined { dimensions, fabrics: table });
        Ok(count as usize)
    }

    /// The listed dimensions that fabrics follow from.
    ///
    /// # Errors
    /// A fabric that follows from the area.
    pub(super) fn of_fabrics(&self) -> Result<Vec<usize>, String> {
        let mut dimensions = Vec::new();
        let set = self.formulas.set(false).chain(self.formulas.set(true));
        for slot in set.filter(|slot| self.places[*slot] == Place::Fabric) {
            let key = &self.formulas.keys()[slot];
            let why = "a fabric does not follow from the area of a chip; give it values of its own";
            dimensions.extend(self.formulas.roots(slot).ok_or_else(|| format!("space.dimensions.{key}: {why}"))?);
        }
        dimensions.sort_unstable();
        dimensions.dedup();
        Ok(dimensions)
    }

    /// The fabrics of combinations with some of each dimension's places, where boxes are searched.
    pub(super) fn fabrics_of(&self, some: &[Vec<usize>]) -> Vec<usize> {
        let Some(Joined { dimensions, fabrics }) = &self.joined else { return (0..self.fabrics.len()).collect() };
        let some: Vec<Vec<usize>> = dimensions.iter().map(|&dimension| some[dimension].clone()).collect();
        let mut found: Vec<usize> = products(&some).filter_map(|places| fabrics.get(&places)).map(|&at| at as usize).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Everything.
    pub(super) fn whole(&self) -> Region {
        self.order.whole()
    }

    /// The least point of a region.
    pub(super) fn first(&self, region: &Region) -> usize {
        let places = self.order.places(region);
        self.formulas.combination(places.into_iter().map(|places| places.into_iter().min().unwrap_or_default())) as usize
    }

    /// Whether a point is in a region.
    pub(super) fn holds(&self, region: &Region, point: usize) -> bool {
        let places = self.formulas.places(point as u64);
        self.order.places(region).iter().zip(places).all(|(some, place)| some.contains(&place))
    }

    /// Dimensions of words, which have no order, of which a region has several.
    pub(super) fn words_of(&self, region: &Region) -> Vec<usize> {
        region
            .open()
            .filter(|&dimension| self.formulas.listed()[dimension].iter().any(|value| value.number().is_none()))
            .collect()
    }

    /// The points of a region.
    pub(super) fn members(&self, region: &Region) -> Vec<usize> {
        products(&self.order.places(region)).map(|places| self.formulas.combination(places) as usize).collect()
    }

    /// A combination within limits, with its figures.
    ///
    /// # Errors
    /// An expression without a value, a field that no chip has.
    pub(super) fn single(&self, point: usize, limits: &ChipLimits) -> Result<Single, String> {
        let (_, mut chip) = match self.built(point as u64) {
            Ok(found) => found,
            Err(Unbuilt::Fault(why)) => return Err(why),
            Err(Unbuilt::Refused(why)) => return Ok(Single::Refused(why)),
        };
        let (figures, exceeded) = limits.fit(&mut chip).map_err(|why| why.to_string())?;
        Ok(exceeded.map_or_else(|| Single::Chip(Box::new(chip), figures), Single::Outside))
    }

    fn numbered(&self, point: usize) -> u64 {
        self.points.get(point).map_or(point as u64, |point| point.combination)
    }

    /// Builds every combination and keeps those within the limits.
    ///
    /// # Errors
    /// A field that no chip has, a value of the wrong type, an expression without a value; a space of which no combination is a chip.
    pub(super) fn enumerate(&mut self, limits: &ChipLimits) -> Result<(Vec<Figures>, Outside), String> {
        let count = self.count(MOST_COMBINATIONS)?;
        let (mut figures, mut outside) = (Vec::new(), Outside::default());
        let mut fabrics: BTreeMap<String, u32> = BTreeMap::new();
        // What is built waits to be sorted out: so many at a time.
        for first in (0..count).step_by(CHUNK) {
            let chunk = first..(first + CHUNK as u64).min(count);
            let built: Vec<Result<Built, String>> =
                chunk.clone().into_par_iter().map(|combination| self.build(combination, limits)).collect();
            for (combination, built) in chunk.zip(built) {
                match built? {
                    Built::Chip(of, settings) => {
                        let new = fabrics.len() as u32;
                        let fabric = *fabrics.entry(format!("{settings:?}")).or_insert(new);
                        if fabric == new {
                            self.fabrics.push(settings);
                        }
                        self.points.push(GridPoint { combination, fabric });
                        figures.push(of);
                    }
                    Built::Outside(why) => outside.count(why, 1),
                    Built::Refused(why) => outside.refuse(why),
                }
            }
        }
        match outside.refusal.as_ref().filter(|_| outside.refused as u64 == count) {
            Some(why) => Err(format!("space.dimensions: no combination is a chip: {why}")),
            None => Ok((figures, outside)),
        }
    }

    fn build(&self, combination: u64, limits: &ChipLimits) -> Result<Built, String> {
        let (settings, mut chip) = match self.built(combination) {
            Ok(found) => found,
            Err(Unbuilt::Fault(why)) => return Err(why),
            Err(Unbuilt::Refused(why)) => return Ok(Built::Refused(why)),
        };
        let (figures, exceeded) = limits.fit(&mut chip).map_err(|why| why.to_string())?;
        Ok(match exceeded {
            Some(why) => Built::Outside(why),
            None => Built::Chip(figures, settings.fabric),
        })
    }

    pub(super) fn built(&self, combination: u64) -> Result<(Settings, Accelerator), Unbuilt> {
        let mut slots = self.formulas.values(combination).map_err(Unbuilt::Fault)?;
        let mut document = self.base.clone();
        self.apply(&mut document, &slots, false)?;
        let mut chip = document.accelerator().map_err(|why| self.unbuilt(why, &slots, false))?;
        if self.formulas.any_of_area() {
            let area = |chip: &Accelerator| sim::hardware::area(chip).map(|parts| parts.total().0);
            let before = area(&chip).map_err(|why| Unbuilt::Fault(why.to_string()))?;
            self.formulas.with_area(&mut slots, before).map_err(Unbuilt::Fault)?;
            self.apply(&mut document, &slots, true)?;
            chip = document.accelerator().map_err(|why| self.unbuilt(why, &slots, true))?;
            if area(&chip).is_ok_and(|after| after != before) {
                let why = "what follows from area_mm2 changes the area; use it for fields such as energy.static_w alone";
                return Err(Unbuilt::Fault(format!("space.dimensions: {why}")));
            }
        }
        chip.name = self.name(combination, &chip.name);
        Ok((self.settings(&slots), chip))
    }

    fn apply(&self, document: &mut ChipDocument, slots: &Slots, of_area: bool) -> Result<(), Unbuilt> {
        for slot in self.formulas.set(of_area).filter(|slot| self.places[*slot] == Place::Chip) {
            let key = &self.formulas.keys()[slot];
            document.set(key, &slots[slot]).map_err(|fault| Unbuilt::Fault(format!("space.dimensions.{fault}")))?;
        }
        Ok(())
    }

    /// Why a file is no chip: of a file that cannot be read, which of the fields that were set is the one.
    fn unbuilt(&self, error: HardwareError, slots: &Slots, of_area: bool) -> Unbuilt {
        let why = match error {
            HardwareError::Invalid { faults, .. } => {
                return Unbuilt::Refused(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
            }
            HardwareError::Malformed { why, .. } => why,
            unknown @ HardwareError::Unknown { .. } => return Unbuilt::Fault(unknown.to_string()),
        };
        for slot in self.formulas.set(of_area).filter(|slot| self.places[*slot] == Place::Chip) {
            let (key, value) = (&self.formulas.keys()[slot], &slots[slot]);
            let mut alone = self.base.clone();
            if alone.set(key, value).is_ok()
                && let Err(HardwareError::Malformed { why, .. }) = alone.accelerator()
            {
                let why = why.lines().map(str::trim).collect::<Vec<_>>().join(" ");
                return Unbuilt::Fault(format!("space.dimensions.{key} = {value}: {why} (coplace list dimensions)"));
            }
        }
        Unbuilt::Fault(format!("space.dimensions: {why}"))
    }

    fn settings(&self, slots: &Slots) -> Settings {
        let set: Vec<usize> = self.formulas.set(false).chain(self.formulas.set(true)).collect();
        let of = |place: Place| {
            let chosen = set.iter().filter(move |slot| self.places[**slot] == place);
            chosen.map(|&slot| {
                let key = &self.formulas.keys()[slot];
                (key.strip_prefix(FABRIC).unwrap_or(key).to_owned(), slots[slot].clone())
            })
        };
        Settings { chip: of(Place::Chip).collect(), fabric: of(Place::Fabric).collect() }
    }

    /// The base's name, so that what goes by it (a software stack) takes the chip for its like, and the combination's number.
    pub(super) fn name(&self, combination: u64, base: &str) -> String {
        if self.formulas.combinations() == Some(1) { format!("{base}_like") } else { format!("{base}_like_{combination}") }
    }

    pub(super) fn chip(&self, point: usize) -> Result<Accelerator, String> {
        self.built(self.numbered(point)).map(|(_, chip)| chip).map_err(Unbuilt::why)
    }

    pub(super) fn fabric(&self, point: usize) -> usize {
        let Some(Joined { dimensions, fabrics }) = &self.joined else { return self.points[point].fabric as usize };
        let places = self.formulas.places(point as u64);
        let own: Vec<usize> = dimensions.iter().map(|&dimension| places[dimension]).collect();
        fabrics.get(&own).copied().unwrap_or_default() as usize
    }

    /// The listed dimensions of a chip in words: `tensor.cores 4, clock_mhz 1400`.
    pub(super) fn words(&self, point: usize) -> String {
        let words = self.varied(point).into_iter().map(|(key, value)| format!("{key} {value}"));
        words.collect::<Vec<_>>().join(", ")
    }

    /// The dimensions with several values, and those of a chip.
    pub(super) fn varied(&self, point: usize) -> Vec<(String, Setting)> {
        let places = self.formulas.places(self.numbered(point));
        let all = self.formulas.keys().iter().zip(self.formulas.listed()).zip(places);
        all.filter(|((_, values), _)| values.len() > 1)
            .map(|((key, values), place)| (key.clone(), values[place].clone()))
            .collect()
    }

    /// Dimensions of which a chip has the largest or smallest number that is listed, and that the field does not end at.
    pub(super) fn at_the_end(&self, point: usize) -> Vec<(String, f64, bool)> {
        let places = self.formulas.places(self.numbered(point));
        let mut found = Vec::new();
        for ((key, values), place) in self.formulas.keys().iter().zip(self.formulas.listed()).zip(places) {
            let Some(numbers) = values.iter().map(Setting::number).collect::<Option<Vec<f64>>>() else { continue };
            let own = fields::find(key).and_then(|field| field.range);
            let end = super::limits::end(&numbers, numbers[place]);
            let beyond =
                end.filter(|largest| own.is_none_or(|(least, most)| numbers[place] != if *largest { most } else { least }));
            found.extend(beyond.map(|largest| (key.clone(), numbers[place], largest)));
        }
        found
    }

    /// The chip's file, at the clock that it is designed for.
    pub(super) fn document(&self, point: usize) -> Result<(ChipDocument, Vec<String>), String> {
        let combination = self.numbered(point);
        let (settings, chip) = self.built(combination).map_err(Unbuilt::why)?;
        let mut document = self.base.clone();
        let mut keys = Vec::new();
        for (key, value) in settings.chip {
            document.set(&key, &value).map_err(|fault| fault.to_string())?;
            keys.push(key);
        }
        document.name(&chip.name, &format!("Found by a search: {}", self.words(point)));
        Ok((document, keys))
    }
}

/// A combination, looked at by itself.
pub enum Single {
    /// A chip within the limits.
    Chip(Box<Accelerator>, Figures),
    /// One outside them.
    Outside(Why),
    /// No chip, and why.
    Refused(String),
}

/// Every choice of one of each list; one of nothing where there are no lists.
fn products(lists: &[Vec<usize>]) -> impl Iterator<Item = Vec<usize>> + '_ {
    let count: usize = lists.iter().map(Vec::len).product();
    (0..count).map(move |mut number| {
        let mut chosen = vec![0; lists.len()];
        for (slot, list) in chosen.iter_mut().zip(lists).rev() {
            *slot = list[number % list.len()];
            number /= list.len();
        }
        chosen
    })
}

/// Why a combination is no chip.
pub(super) enum Unbuilt {
    /// The study is wrong.
    Fault(String),
    /// These values do not go together.
    Refused(String),
}

impl Unbuilt {
    fn why(self) -> String {
        match self {
            Self::Fault(why) | Self::Refused(why) => why,
        }
    }
}

/// Fields that are measured or published of a chip that was built are not chosen.
fn refuse(key: &str, base: &ChipDocument) -> Result<(), String> {
    let measured = ["calibration", "published", "sources", "aliases"];
    if measured.iter().any(|table| key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))) {
        return Err(format!("space.dimensions.{key}: is measured or published of a chip that was built, no choice; remove it"));
    }
    let mut trial = base.clone();
    let value = base.get(key).unwrap_or(Setting::Number(1.0));
    trial.set(key, &value).map_err(|fault| format!("space.dimensions.{}: {}; {}", fault.key, fault.limit, fault.cure))
}
