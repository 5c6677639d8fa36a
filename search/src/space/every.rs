//! Numbers and builds every combination of a study's values, within its limits or not, for sweeps.

use super::grid::GridChip;
use super::{CheckedFigures, ChipFigures, ChipLimits, DesignId, OutsideReason, Space, SpaceKind, phaze_config_of};
use sim::hardware::phaze::{PhazeConfig, design_accelerator};
use sim::hardware::{Accelerator, FieldValue};
use sim::units::Bytes;
use std::collections::BTreeSet;

/// Limit on combinations in one group of [`Space::combinations_by_fabric`].
const TOGETHER: u64 = 16;

/// A dimension with the values that a study lists.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedDimension {
    /// The dimension's key.
    pub key: String,
    /// Its distinct values, in the study's order.
    pub values: Vec<FieldValue>,
}

/// The chip of a combination, within the limits or not.
#[derive(Debug, Clone, PartialEq)]
pub struct CombinationChip {
    /// The chip, at the clock that the power limit allows.
    pub chip: Accelerator,
    /// Its figures.
    pub figures: ChipFigures,
    /// Index of its fabric in [`Space::fabric_settings`]; `None` if no chip within the limits is on that fabric.
    pub fabric: Option<usize>,
}

/// A combination of values, built.
#[derive(Debug, Clone, PartialEq)]
pub enum Combination {
    /// A chip of the space.
    Chip(Box<CombinationChip>),
    /// A chip outside the limits.
    Outside(OutsideReason, Box<CombinationChip>),
    /// No chip: the values do not go together. Holds the reason.
    NoChip(String),
}

impl Space {
    /// The listed dimensions, in the order that numbers combinations: the first dimension changes least often.
    #[must_use]
    pub fn listed_dimensions(&self) -> Vec<ListedDimension> {
        match &self.kind {
            SpaceKind::Grid(grid) => {
                let listed = grid.formulas.keys().iter().zip(grid.formulas.listed_values());
                listed.map(|(key, values)| ListedDimension { key: key.clone(), values: values.clone() }).collect()
            }
            SpaceKind::Phaze(_, spec) => {
                let mut hbm = spec.hbm_gib.clone();
                hbm.sort_by(f64::total_cmp);
                let whole = |list: &[u32]| list.iter().copied().map(f64::from).collect::<Vec<_>>();
                let dials = [
                    ("tensor_cores", whole(&spec.tensor_cores)),
                    ("vector_cores", whole(&spec.vector_cores)),
                    ("array_widths", whole(&spec.array_widths)),
                    ("array_depths", whole(&spec.array_depths)),
                    ("global_buffer_mib", spec.global_buffer_mib.iter().map(|&mib| mib as f64).collect()),
                    ("hbm_gib", hbm),
                ];
                dials
                    .into_iter()
                    .map(|(key, values)| ListedDimension { key: key.to_owned(), values: distinct_numbers(&values) })
                    .collect()
            }
        }
    }

    /// The number of combinations of the listed values, within the limits or not.
    #[must_use]
    pub fn combination_count(&self) -> u64 {
        self.listed_dimensions().iter().map(|dial| dial.values.len() as u64).product()
    }

    /// Groups of combinations that differ only in their fabric's dimensions. Within a group, kernels other than
    /// collectives take equal times. A group has at most sixteen combinations, and groups are ordered by their first.
    /// Every combination appears once.
    pub fn combinations_by_fabric(&self) -> impl Iterator<Item = Vec<u64>> + Send + use<> {
        let free = match &self.kind {
            // A fabric that depends on the area differs from chip to chip, so nothing is grouped.
            SpaceKind::Grid(grid) => grid.dimensions_of_fabrics().unwrap_or_default(),
            SpaceKind::Phaze(..) => Vec::new(),
        };
        let lengths: Vec<u64> = self.listed_dimensions().iter().map(|dial| dial.values.len().max(1) as u64).collect();
        let stride = |dial: usize| lengths[dial + 1..].iter().product::<u64>();
        let (mut together, mut spread) = (1, Vec::new());
        for dial in free {
            if together * lengths[dial] <= TOGETHER {
                together *= lengths[dial];
                spread.push((stride(dial), lengths[dial]));
            }
        }
        let is_first = {
            let spread = spread.clone();
            move |number: &u64| spread.iter().all(|(stride, length)| (number / stride).is_multiple_of(*length))
        };
        (0..self.combination_count()).filter(is_first).map(move |first| {
            let mut group = vec![first];
            for &(stride, length) in &spread {
                group =
                    group.iter().flat_map(|&number| (0..length).map(move |place| number + place * stride)).collect();
            }
            group
        })
    }

    /// Builds a combination, within the limits or not.
    ///
    /// # Errors
    /// A fault of the study, such as a field that no chip has or an expression without a value. A space that is
    /// searched one by one has already reported it. A space in boxes has checked its first combination only.
    pub fn combination_at(&self, number: u64) -> Result<Combination, String> {
        match &self.kind {
            SpaceKind::Grid(grid) => {
                let GridChip { settings, mut chip } = match grid.build_from_values(number) {
                    Ok(built) => built,
                    Err(super::grid::BuildFailure::Refused(why)) => return Ok(Combination::NoChip(why)),
                    Err(super::grid::BuildFailure::Fault(why)) => return Err(why),
                };
                let fabric = grid.fabrics.iter().position(|fabric| *fabric == settings.fabric);
                let CheckedFigures { figures, exceeded } =
                    self.limits.lower_clock_and_check(&mut chip).map_err(|why| why.to_string())?;
                Ok(combination_within(exceeded, CombinationChip { chip, figures, fabric }))
            }
            SpaceKind::Phaze(space, _) => {
                let config = self.phaze_config_at(number);
                let mut chip = design_accelerator(&config);
                let limits = ChipLimits { max_area_mm2: None, ..self.limits };
                let CheckedFigures { figures, exceeded } =
                    limits.lower_clock_and_check(&mut chip).map_err(|why| why.to_string())?;
                let window = (!space.admits_area(&config, figures.area)).then_some(OutsideReason::Area);
                let why = window.or(exceeded);
                Ok(combination_within(why, CombinationChip { chip, figures, fabric: Some(0) }))
            }
        }
    }

    /// The design of a combination. `None` if it is no design of the space.
    #[must_use]
    pub fn design_of_combination(&self, number: u64) -> Option<DesignId> {
        match &self.kind {
            SpaceKind::Grid(grid) => {
                if self.boxes.is_some() {
                    return Some(DesignId { point: usize::try_from(number).ok()?, hbm: None });
                }
                let point = grid.points.binary_search_by_key(&number, |point| point.combination_number()).ok()?;
                Some(DesignId { point, hbm: None })
            }
            SpaceKind::Phaze(space, _) => {
                let wanted = self.phaze_config_at(number);
                let of_point =
                    |point| PhazeConfig { hbm: wanted.hbm, ..phaze_config_of(space, DesignId { point, hbm: None }) };
                let point = (0..space.points.len()).find(|&point| of_point(point) == wanted)?;
                Some(DesignId { point, hbm: Some(wanted.hbm) })
            }
        }
    }

    /// The number of a design's combination: the inverse of [`Self::design_of_combination`].
    #[must_use]
    pub fn combination_of_design(&self, id: DesignId) -> u64 {
        match &self.kind {
            SpaceKind::Grid(_) if self.boxes.is_some() => id.point as u64,
            SpaceKind::Grid(grid) => grid.points[id.point].combination_number(),
            SpaceKind::Phaze(space, _) => {
                let config = phaze_config_of(space, id);
                let dials = self.listed_dimensions();
                // As in `phaze_config_at`: GiB are rounded to bytes, so the bytes are compared.
                let agrees = |dial: usize, listed: f64| match dial {
                    0 => listed == f64::from(config.num_tc),
                    1 => listed == f64::from(config.num_vc),
                    2 => listed == f64::from(config.width),
                    3 => listed == f64::from(config.depth),
                    4 => Bytes((listed as u64) << 20) == config.global_buffer,
                    _ => Bytes::from_gib(listed) == config.hbm,
                };
                let place = |(at, dial): (usize, &ListedDimension)| {
                    let found = dial.values.iter().position(|listed| listed.number().is_some_and(|n| agrees(at, n)));
                    debug_assert!(found.is_some(), "{}: no listed value is that of {config:?}", dial.key);
                    found.unwrap_or_default()
                };
                let places: Vec<usize> = dials.iter().enumerate().map(place).collect();
                combination_of_places(&dials, &places)
            }
        }
    }

    /// The configuration of a combination of PHAZE's grid.
    fn phaze_config_at(&self, number: u64) -> PhazeConfig {
        let dials = self.listed_dimensions();
        let at = places_of_combination(&dials, number);
        let value = |dial: usize| dials[dial].values[at[dial]].number().unwrap_or_default();
        let width = value(2) as u32;
        PhazeConfig {
            num_tc: value(0) as u32,
            num_vc: value(1) as u32,
            width,
            depth: value(3) as u32,
            width_vc: width,
            global_buffer: Bytes((value(4) as u64) << 20),
            hbm: Bytes::from_gib(value(5)),
        }
    }
}

fn combination_within(outside: Option<OutsideReason>, built: CombinationChip) -> Combination {
    match outside {
        Some(why) => Combination::Outside(why, Box::new(built)),
        None => Combination::Chip(Box::new(built)),
    }
}

/// The distinct numbers, in the order of their first occurrence.
fn distinct_numbers(values: &[f64]) -> Vec<FieldValue> {
    let mut seen = BTreeSet::new();
    values.iter().filter(|value| seen.insert(value.to_bits())).map(|value| FieldValue::Number(*value)).collect()
}

/// Indices of a combination's values in the dimensions' lists. The first dimension changes least often.
#[must_use]
pub fn places_of_combination(dials: &[ListedDimension], mut number: u64) -> Vec<usize> {
    let mut places = vec![0; dials.len()];
    for (place, dial) in places.iter_mut().zip(dials).rev() {
        let count = dial.values.len().max(1) as u64;
        *place = (number % count) as usize;
        number /= count;
    }
    places
}

/// The number of the combination with these indices: the inverse of [`places_of_combination`].
#[must_use]
pub fn combination_of_places(dials: &[ListedDimension], places: &[usize]) -> u64 {
    dials.iter().zip(places).fold(0, |number, (dial, place)| number * dial.values.len().max(1) as u64 + *place as u64)
}
