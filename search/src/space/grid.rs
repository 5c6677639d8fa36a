//! A space of chips made from a base chip's file and its dimensions.

use super::dimension::Dimension;
use super::formula::{DesignValues, Formulas};
use super::limits::{CheckedFigures, ChipFigures, ChipLimits, OutsideCounts, OutsideReason};
use super::region::{DimensionOrder, Region};
use rayon::prelude::*;
use sim::hardware::fields::{BoundGrowth, growth_of_bounds};
use sim::hardware::{Accelerator, ChipDocument, FieldValue, HardwareError, fields};
use std::collections::BTreeMap;

/// Prefix of the keys of a fabric's fields.
pub const FABRIC: &str = "fabric.";
/// The key of the clock to which the power limit lowers a chip.
pub(super) const LOWERED: &str = "lowered_clock_mhz";
/// Limit on combinations in a space that builds all of them.
const MOST_COMBINATIONS: u64 = 50_000_000;
/// Limit on combinations in a space that is searched in boxes: doubles hold their numbers exactly.
const MOST_IN_BOXES: u64 = 1 << 53;
/// Limit on the fabrics of a space, because plans are prepared for each.
const MOST_FABRICS: usize = 256;

/// Combinations built in parallel before they are counted.
const CHUNK: usize = 65_536;

/// A chip of a grid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GridPoint {
    combination: u64,
    fabric: u32,
}

impl GridPoint {
    /// Its number among all combinations.
    pub(super) fn combination_number(&self) -> u64 {
        self.combination
    }
}

/// The fields that a design sets in the files of chip and fabric.
#[derive(Debug, Clone, PartialEq)]
pub struct FileSettings {
    /// Fields of the chip.
    pub chip: Vec<(String, FieldValue)>,
    /// Fields of the fabric, keys without [`FABRIC`].
    pub fabric: Vec<(String, FieldValue)>,
}

/// A combination's chip, and the fields that it sets.
pub(super) struct GridChip {
    pub settings: FileSettings,
    pub chip: Accelerator,
}

/// A space of chips made from a base chip.
#[derive(Debug, Clone)]
pub struct Grid {
    pub(super) base: ChipDocument,
    pub(super) formulas: Formulas,
    /// By position in [`Formulas::keys`]: the file that the value belongs to.
    pub(super) places: Vec<DimensionOwner>,
    /// By position: how bounds depend on the field of a chip.
    pub(super) growths: Vec<BoundGrowth>,
    pub(super) order: DimensionOrder,
    /// Chips within the limits. Empty if boxes are searched; then every combination is a point.
    pub(super) points: Vec<GridPoint>,
    /// The distinct settings of the fabric.
    pub(super) fabrics: Vec<Vec<(String, FieldValue)>>,
    /// The fabrics of combinations; `None` if boxes are not searched.
    joined: Option<CombinationFabrics>,
}

/// Finds the fabric of a combination.
#[derive(Debug, Clone)]
struct CombinationFabrics {
    /// Listed dimensions that fabrics depend on.
    dimensions: Vec<usize>,
    /// The fabric for each combination of their indices.
    fabrics: BTreeMap<Vec<usize>, u32>,
}

/// The file that a dimension belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DimensionOwner {
    Chip,
    Fabric,
    /// No file: the name serves only other dimensions.
    Name,
}

/// The outcome of building a combination.
enum BuildOutcome {
    Chip(ChipFigures, Vec<(String, FieldValue)>),
    Outside(OutsideReason),
    Refused(String),
}

impl Grid {
    /// Makes a grid from the dimensions of a base chip; no chip is built yet. `fabric` gives the base fabric's value of
    /// a field.
    ///
    /// # Errors
    /// A faulty dimension, a field that the chip does not have, or too many combinations.
    pub fn new(
        base: ChipDocument,
        dimensions: &[Dimension],
        fabric: &dyn Fn(&str) -> Option<FieldValue>,
    ) -> Result<Self, String> {
        let of_base = |key: &str| key.strip_prefix(FABRIC).map_or_else(|| base.field_value(key), fabric);
        let formulas = Formulas::new(dimensions, &of_base)?;
        let mut places = Vec::new();
        for key in formulas.keys() {
            let varied = dimensions.iter().any(|dimension| dimension.key == *key);
            let place = if key.starts_with(FABRIC) {
                DimensionOwner::Fabric
            } else if key.contains('.') || base.field_value(key).is_some() {
                DimensionOwner::Chip
            } else {
                DimensionOwner::Name
            };
            let used = || dimensions.iter().any(|dimension| dimension.values.refer_to_dimension(key));
            if varied && place == DimensionOwner::Name && !used() {
                let cure = "correct the name, or refer to it (coplace list dimensions)";
                return Err(format!(
                    "space.dimensions.{key}: the chip has no such field and no other dimension refers to it; {cure}"
                ));
            }
            if varied && place == DimensionOwner::Chip {
                refuse_measured_fields(key, &base)?;
            }
            places.push(place);
        }
        let order = DimensionOrder::new(&formulas);
        let growths = formulas.keys().iter().map(|key| growth_of_bounds(key)).collect();
        Ok(Self { base, formulas, places, growths, order, points: Vec::new(), fabrics: Vec::new(), joined: None })
    }

    /// Changes constants of the cost model for all chips.
    pub(super) fn set_constants(&mut self, changes: &BTreeMap<String, f64>) {
        self.base.set_constants(changes);
    }

    /// The number of combinations.
    ///
    /// # Errors
    /// More than `most`.
    fn count_up_to(&self, most: u64) -> Result<u64, String> {
        let count = self.formulas.combination_count();
        count.filter(|count| *count <= most).ok_or_else(|| {
            let count = count.map_or_else(|| "more than can be counted".to_owned(), |count| count.to_string());
            format!("space.dimensions: combinations: {count}, at most {most} are searched; list fewer values")
        })
    }

    /// The number of combinations of the listed values; `None` if it overflows.
    pub(super) fn combination_count(&self) -> Option<u64> {
        self.formulas.combination_count()
    }

    /// Makes every combination a point, within the limits or not, and finds the fabrics. Chips are built when a search
    /// visits them. Returns the number of points.
    ///
    /// # Errors
    /// Too many combinations or fabrics, a fabric that depends on the area, or a first combination that has an
    /// expression without a value or a field that no chip has.
    pub(super) fn join_fabrics(&mut self) -> Result<usize, String> {
        let count = self.count_up_to(MOST_IN_BOXES)?;
        if let Err(BuildFailure::Fault(why)) = self.build_from_values(0) {
            return Err(why);
        }
        let dimensions = self.dimensions_of_fabrics()?;
        let lists: Vec<usize> =
            dimensions.iter().map(|&dimension| self.formulas.listed_values()[dimension].len()).collect();
        let (mut known, mut table) = (BTreeMap::new(), BTreeMap::new());
        for places in cartesian_products(&lists.iter().map(|&length| (0..length).collect()).collect::<Vec<_>>()) {
            let mut combination = vec![0; self.formulas.listed_values().len()];
            for (&dimension, &place) in dimensions.iter().zip(&places) {
                combination[dimension] = place;
            }
            let slots = self.formulas.values_of_combination(self.formulas.combination_of_places(combination))?;
            let settings = self.file_settings(&slots).fabric;
            let new = known.len() as u32;
            let fabric = *known.entry(format!("{settings:?}")).or_insert(new);
            if fabric == new {
                self.fabrics.push(settings);
            }
            if self.fabrics.len() > MOST_FABRICS {
                return Err(format!(
                    "space.dimensions: more than {MOST_FABRICS} fabrics; list fewer values of the dimensions that they depend on"
                ));
            }
            table.insert(places, fabric);
        }
        self.joined = Some(CombinationFabrics { dimensions, fabrics: table });
        Ok(count as usize)
    }

    /// The listed dimensions that fabrics depend on.
    ///
    /// # Errors
    /// A fabric that depends on the area.
    pub(super) fn dimensions_of_fabrics(&self) -> Result<Vec<usize>, String> {
        let mut dimensions = Vec::new();
        let set = self.formulas.positions_set(false).chain(self.formulas.positions_set(true));
        for slot in set.filter(|slot| self.places[*slot] == DimensionOwner::Fabric) {
            let key = &self.formulas.keys()[slot];
            let why = "a fabric cannot depend on a chip's area; list its values";
            dimensions
                .extend(self.formulas.roots_of_value(slot).ok_or_else(|| format!("space.dimensions.{key}: {why}"))?);
        }
        dimensions.sort_unstable();
        dimensions.dedup();
        Ok(dimensions)
    }

    /// The fabrics of all combinations in a part of the space. `some` gives, for each listed dimension, the indices of
    /// its values.
    pub(super) fn fabrics_of(&self, some: &[Vec<usize>]) -> Vec<usize> {
        let Some(CombinationFabrics { dimensions, fabrics }) = &self.joined else {
            return (0..self.fabrics.len()).collect();
        };
        let some: Vec<Vec<usize>> = dimensions.iter().map(|&dimension| some[dimension].clone()).collect();
        let mut found: Vec<usize> =
            cartesian_products(&some).filter_map(|places| fabrics.get(&places)).map(|&at| at as usize).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The region of all combinations.
    pub(super) fn whole_region(&self) -> Region {
        self.order.whole_region()
    }

    /// The smallest point number in a region.
    pub(super) fn first_point(&self, region: &Region) -> usize {
        let places = self.order.places_of_region(region);
        self.formulas
            .combination_of_places(places.into_iter().map(|places| places.into_iter().min().unwrap_or_default()))
            as usize
    }

    /// True if a point is in a region.
    pub(super) fn region_contains(&self, region: &Region, point: usize) -> bool {
        let places = self.formulas.places_of_combination(point as u64);
        self.order.places_of_region(region).iter().zip(places).all(|(some, place)| some.contains(&place))
    }

    /// The dimensions with words that have several values in a region. Words have no order, so no range bounds them.
    pub(super) fn word_dimensions_of(&self, region: &Region) -> Vec<usize> {
        region
            .open_dimensions()
            .filter(|&dimension| self.formulas.listed_values()[dimension].iter().any(|value| value.number().is_none()))
            .collect()
    }

    /// The points of a region.
    pub(super) fn points_of_region(&self, region: &Region) -> Vec<usize> {
        cartesian_products(&self.order.places_of_region(region))
            .map(|places| self.formulas.combination_of_places(places) as usize)
            .collect()
    }

    /// Builds a combination and checks it against the limits.
    ///
    /// # Errors
    /// An expression without a value, or a field that no chip has.
    pub(super) fn single_combination(&self, point: usize, limits: &ChipLimits) -> Result<SingleCombination, String> {
        let GridChip { mut chip, .. } = match self.build_from_values(point as u64) {
            Ok(found) => found,
            Err(BuildFailure::Fault(why)) => return Err(why),
            Err(BuildFailure::Refused(why)) => return Ok(SingleCombination::Refused(why)),
        };
        let CheckedFigures { figures, exceeded } =
            limits.lower_clock_and_check(&mut chip).map_err(|why| why.to_string())?;
        Ok(exceeded.map_or_else(|| SingleCombination::Chip(Box::new(chip), figures), SingleCombination::Outside))
    }

    pub(super) fn number_of_point(&self, point: usize) -> u64 {
        self.points.get(point).map_or(point as u64, |point| point.combination)
    }

    /// Builds every combination and keeps those within the limits. Returns the figures of the chips kept, and counts of
    /// the others.
    ///
    /// # Errors
    /// A field that no chip has, a value of the wrong type, an expression without a value, too many combinations, or no
    /// combination that is a chip.
    pub(super) fn enumerate_chips(&mut self, limits: &ChipLimits) -> Result<(Vec<ChipFigures>, OutsideCounts), String> {
        let count = self.count_up_to(MOST_COMBINATIONS)?;
        let (mut figures, mut outside) = (Vec::new(), OutsideCounts::default());
        let mut fabrics: BTreeMap<String, u32> = BTreeMap::new();
        // Builds chunk by chunk, because built combinations wait in memory until they are counted.
        for first in (0..count).step_by(CHUNK) {
            let chunk = first..(first + CHUNK as u64).min(count);
            let built: Vec<Result<BuildOutcome, String>> =
                chunk.clone().into_par_iter().map(|combination| self.build_combination(combination, limits)).collect();
            for (combination, built) in chunk.zip(built) {
                match built? {
                    BuildOutcome::Chip(of, settings) => {
                        let new = fabrics.len() as u32;
                        let fabric = *fabrics.entry(format!("{settings:?}")).or_insert(new);
                        if fabric == new {
                            self.fabrics.push(settings);
                        }
                        self.points.push(GridPoint { combination, fabric });
                        figures.push(of);
                    }
                    BuildOutcome::Outside(why) => outside.count_reason(why, 1),
                    BuildOutcome::Refused(why) => outside.count_failure(why),
                }
            }
        }
        match outside.refusal.as_ref().filter(|_| outside.refused as u64 == count) {
            Some(why) => Err(format!("space.dimensions: no combination is a chip: {why}")),
            None => Ok((figures, outside)),
        }
    }

    fn build_combination(&self, combination: u64, limits: &ChipLimits) -> Result<BuildOutcome, String> {
        let GridChip { settings, mut chip } = match self.build_from_values(combination) {
            Ok(found) => found,
            Err(BuildFailure::Fault(why)) => return Err(why),
            Err(BuildFailure::Refused(why)) => return Ok(BuildOutcome::Refused(why)),
        };
        let CheckedFigures { figures, exceeded } =
            limits.lower_clock_and_check(&mut chip).map_err(|why| why.to_string())?;
        Ok(match exceeded {
            Some(why) => BuildOutcome::Outside(why),
            None => BuildOutcome::Chip(figures, settings.fabric),
        })
    }

    pub(super) fn build_from_values(&self, combination: u64) -> Result<GridChip, BuildFailure> {
        let mut slots = self.formulas.values_of_combination(combination).map_err(BuildFailure::Fault)?;
        let mut document = self.base.clone();
        self.apply_settings(&mut document, &slots, false)?;
        let mut chip = document.build_accelerator().map_err(|why| self.explain_failure(why, &slots, false))?;
        if self.formulas.any_follows_from_area() {
            let area = |chip: &Accelerator| sim::hardware::chip_area(chip).map(|parts| parts.total_area().0);
            let before = area(&chip).map_err(|why| BuildFailure::Fault(why.to_string()))?;
            self.formulas.add_area_values(&mut slots, before).map_err(BuildFailure::Fault)?;
            self.apply_settings(&mut document, &slots, true)?;
            let mut lone = self.chip_positions(true);
            if !lone.all(|slot| ChipDocument::set_lone_field(&mut chip, &self.formulas.keys()[slot], &slots[slot])) {
                chip = document.build_accelerator().map_err(|why| self.explain_failure(why, &slots, true))?;
            }
            if area(&chip).is_ok_and(|after| after != before) {
                let why = "a field that depends on area_mm2 changes the area; use area_mm2 only for fields such as energy.static_w";
                return Err(BuildFailure::Fault(format!("space.dimensions: {why}")));
            }
        }
        chip.name = self.base_name(combination, &chip.name);
        Ok(GridChip { settings: self.file_settings(&slots), chip })
    }

    /// The positions of the chip's fields that a design sets ([`Formulas::positions_set`]).
    pub(super) fn chip_positions(&self, of_area: bool) -> impl Iterator<Item = usize> + '_ {
        self.formulas.positions_set(of_area).filter(|slot| self.places[*slot] == DimensionOwner::Chip)
    }

    fn apply_settings(
        &self,
        document: &mut ChipDocument,
        slots: &DesignValues,
        of_area: bool,
    ) -> Result<(), BuildFailure> {
        for slot in self.chip_positions(of_area) {
            let key = &self.formulas.keys()[slot];
            document
                .set_field(key, &slots[slot])
                .map_err(|fault| BuildFailure::Fault(format!("space.dimensions.{fault}")))?;
        }
        Ok(())
    }

    /// Explains why a file is no chip. If the file cannot be read, finds the field that causes it.
    fn explain_failure(&self, error: HardwareError, slots: &DesignValues, of_area: bool) -> BuildFailure {
        let why = match error {
            HardwareError::Invalid { faults, .. } => {
                return BuildFailure::Refused(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
            }
            HardwareError::Malformed { why, .. } => why,
            unknown @ HardwareError::Unknown { .. } => return BuildFailure::Fault(unknown.to_string()),
        };
        for slot in self.chip_positions(of_area) {
            let (key, value) = (&self.formulas.keys()[slot], &slots[slot]);
            let mut alone = self.base.clone();
            if alone.set_field(key, value).is_ok()
                && let Err(HardwareError::Malformed { why, .. }) = alone.build_accelerator()
            {
                let why = why.lines().map(str::trim).collect::<Vec<_>>().join(" ");
                return BuildFailure::Fault(format!(
                    "space.dimensions.{key} = {value}: {why} (coplace list dimensions)"
                ));
            }
        }
        BuildFailure::Fault(format!("space.dimensions: {why}"))
    }

    fn file_settings(&self, slots: &DesignValues) -> FileSettings {
        let set: Vec<usize> = self.formulas.positions_set(false).chain(self.formulas.positions_set(true)).collect();
        let of = |place: DimensionOwner| {
            let chosen = set.iter().filter(move |slot| self.places[**slot] == place);
            chosen.map(|&slot| {
                let key = &self.formulas.keys()[slot];
                (key.strip_prefix(FABRIC).unwrap_or(key).to_owned(), slots[slot].clone())
            })
        };
        FileSettings { chip: of(DimensionOwner::Chip).collect(), fabric: of(DimensionOwner::Fabric).collect() }
    }

    /// The name of a chip: the base's name with `_like`, and the combination's number if there are several
    /// combinations.
    pub(super) fn base_name(&self, combination: u64, base: &str) -> String {
        if self.formulas.combination_count() == Some(1) {
            format!("{base}_like")
        } else {
            format!("{base}_like_{combination}")
        }
    }

    pub(super) fn chip_of_point(&self, point: usize) -> Result<Accelerator, String> {
        self.build_from_values(self.number_of_point(point))
            .map(|built| built.chip)
            .map_err(BuildFailure::outside_reason)
    }

    pub(super) fn fabric_settings(&self, point: usize) -> usize {
        let Some(CombinationFabrics { dimensions, fabrics }) = &self.joined else {
            return self.points[point].fabric as usize;
        };
        let places = self.formulas.places_of_combination(point as u64);
        let own: Vec<usize> = dimensions.iter().map(|&dimension| places[dimension]).collect();
        fabrics.get(&own).copied().unwrap_or_default() as usize
    }

    /// The listed dimensions of a chip as text: `tensor.cores 4, clock_mhz 1400`.
    pub(super) fn describe_dimensions(&self, point: usize) -> String {
        let words = self.varied_dimensions(point).into_iter().map(|(key, value)| format!("{key} {value}"));
        words.collect::<Vec<_>>().join(", ")
    }

    /// The dimensions with several listed values, each with the chip's value.
    pub(super) fn varied_dimensions(&self, point: usize) -> Vec<(String, FieldValue)> {
        let places = self.formulas.places_of_combination(self.number_of_point(point));
        let all = self.formulas.keys().iter().zip(self.formulas.listed_values()).zip(places);
        all.filter(|((_, values), _)| values.len() > 1)
            .map(|((key, values), place)| (key.clone(), values[place].clone()))
            .collect()
    }

    /// Dimensions in which a chip has the largest (`true`) or smallest (`false`) listed number, although the field
    /// could go further.
    pub(super) fn dimensions_at_the_end(&self, point: usize) -> Vec<(String, f64, bool)> {
        let places = self.formulas.places_of_combination(self.number_of_point(point));
        let mut found = Vec::new();
        for ((key, values), place) in self.formulas.keys().iter().zip(self.formulas.listed_values()).zip(places) {
            let Some(numbers) = values.iter().map(FieldValue::number).collect::<Option<Vec<f64>>>() else { continue };
            let own = fields::find_field(key).and_then(|field| field.range);
            let end = super::limits::is_end_of(&numbers, numbers[place]);
            let beyond = end.filter(|largest| {
                own.is_none_or(|(least, most)| numbers[place] != if *largest { most } else { least })
            });
            found.extend(beyond.map(|largest| (key.clone(), numbers[place], largest)));
        }
        found
    }

    /// Dimensions that change the cores, on-chip memories or link rates of a chip but neither its clock nor its area.
    /// Each is tested at its smallest and largest number.
    pub(super) fn dimensions_without_area(&self, point: usize) -> Vec<String> {
        let places = self.formulas.places_of_combination(self.number_of_point(point));
        let with = |dimension: usize, place: usize| {
            let other = places.iter().enumerate().map(|(at, own)| if at == dimension { place } else { *own });
            let GridChip { settings, chip } =
                self.build_from_values(self.formulas.combination_of_places(other)).ok()?;
            let area = sim::hardware::chip_area(&chip).ok()?.total_area().0;
            let links = settings.fabric.into_iter().filter(|(key, _)| key.ends_with("bandwidth_gb_per_s"));
            Some((area, chip.clock, (chip.tensor, chip.vector, chip.on_chip, links.collect::<Vec<_>>())))
        };
        let costs_nothing = |dimension: usize, values: &[FieldValue]| {
            let numbers = values.iter().map(FieldValue::number).collect::<Option<Vec<f64>>>()?;
            let ranked = |a: &usize, b: &usize| numbers[*a].total_cmp(&numbers[*b]);
            let least = with(dimension, (0..numbers.len()).min_by(ranked)?)?;
            let most = with(dimension, (0..numbers.len()).max_by(ranked)?)?;
            Some((least.0, least.1) == (most.0, most.1) && least.2 != most.2)
        };
        let all = self.formulas.keys().iter().zip(self.formulas.listed_values()).enumerate();
        let free = all.filter(|(at, (_, values))| values.len() > 1 && costs_nothing(*at, values) == Some(true));
        free.map(|(_, (key, _))| key.clone()).collect()
    }

    /// The chip's file, at its design clock, and the keys of the fields that the design sets.
    pub(super) fn chip_document(&self, point: usize) -> Result<(ChipDocument, Vec<String>), String> {
        let combination = self.number_of_point(point);
        let GridChip { settings, chip } = self.build_from_values(combination).map_err(BuildFailure::outside_reason)?;
        let mut document = self.base.clone();
        let mut keys = Vec::new();
        for (key, value) in settings.chip {
            document.set_field(&key, &value).map_err(|fault| fault.to_string())?;
            keys.push(key);
        }
        document.set_name(&chip.name, &format!("Found by a search: {}", self.describe_dimensions(point)));
        Ok((document, keys))
    }
}

/// A single combination, built.
pub enum SingleCombination {
    /// A chip within the limits.
    Chip(Box<Accelerator>, ChipFigures),
    /// A chip outside the limits.
    Outside(OutsideReason),
    /// No chip. Holds the reason.
    Refused(String),
}

impl SingleCombination {
    /// True for a chip within the limits.
    #[must_use]
    pub fn is_chip(&self) -> bool {
        matches!(self, Self::Chip(..))
    }
}

/// The Cartesian product of the lists; a single empty choice if there are no lists.
fn cartesian_products(lists: &[Vec<usize>]) -> impl Iterator<Item = Vec<usize>> + '_ {
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
pub(super) enum BuildFailure {
    /// The study is wrong.
    Fault(String),
    /// These values do not go together.
    Refused(String),
}

impl BuildFailure {
    fn outside_reason(self) -> String {
        match self {
            Self::Fault(why) | Self::Refused(why) => why,
        }
    }
}

/// Refuses to vary fields that report measurements or publications about a built chip, and fields that a chip file does
/// not have.
fn refuse_measured_fields(key: &str, base: &ChipDocument) -> Result<(), String> {
    let measured = ["calibration", "family_efficiency", "published", "sources", "aliases"];
    if measured.iter().any(|table| key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
    {
        return Err(format!(
            "space.dimensions.{key}: is a measurement or publication about a built chip and cannot vary; remove it"
        ));
    }
    let mut trial = base.clone();
    let value = base.field_value(key).unwrap_or(FieldValue::Number(1.0));
    trial
        .set_field(key, &value)
        .map_err(|fault| format!("space.dimensions.{}: {}; {}", fault.key, fault.limit, fault.cure))
}
