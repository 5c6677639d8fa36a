//! The cost of making a chip: wafer price, dies per wafer, yield, memory.

use super::area::BaseDies;
use super::constants::{Constants, ManufacturingConstants};
use super::{Accelerator, AreaError, AreaModel, HbmGeneration, ProcessNode, chip_area};
use crate::units::SquareMillimeters;
use serde::Serialize;

/// Diameter of a wafer in mm.
const WAFER_MM: f64 = 300.0;
/// The cost of one chip in USD.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ChipCost {
    /// Whole dies that fit on a wafer.
    pub dies_per_wafer: u32,
    /// Fraction of them that can be sold: no defect outside the cores, and no more bad cores than spare ones.
    pub yield_fraction: f64,
    /// The good compute dies of one chip, and the dies below them, in USD.
    pub dies_usd: f64,
    /// Its HBM, in USD.
    pub memory_usd: f64,
    /// The interposer that joins dies and stacks, in USD.
    pub interposer_usd: f64,
    /// Assembly, package and test, and the good parts lost in bad packages, in USD.
    pub packaging_usd: f64,
    /// This chip's share of the design, in USD.
    pub design_usd: f64,
}

impl ChipCost {
    /// Returns the sum of dies, memory, interposer, package and design, in USD.
    #[must_use]
    pub fn total_usd(&self) -> f64 {
        self.dies_usd + self.memory_usd + self.interposer_usd + self.packaging_usd + self.design_usd
    }
}

/// Returns the number of whole dies on a wafer: its area over a die's, less the dies that its edge cuts (Hennessy and
/// Patterson, section 1.6).
#[must_use]
pub fn dies_per_wafer(die: SquareMillimeters) -> u32 {
    let radius = WAFER_MM / 2.0;
    let dies = std::f64::consts::PI * (radius * radius / die.0 - WAFER_MM / (2.0 * die.0).sqrt());
    dies.max(0.0) as u32
}

/// Returns the fraction of dies without a defect: (1 + area x density / complexity) ^ -complexity, the negative
/// binomial model with defects spread over the critical layers.
#[must_use]
pub fn yield_fraction(constants: &Constants, die: SquareMillimeters) -> f64 {
    let ManufacturingConstants { defect_density, process_complexity, .. } = constants.manufacturing;
    (1.0 + die.0 / 100.0 * defect_density / process_complexity).powf(-process_complexity)
}

/// Returns the fraction of dies with at most `spares` bad cores, of cores that cover `area` in all. A defect spoils one
/// core, and defects are Poisson.
fn repaired_fraction(constants: &Constants, area: SquareMillimeters, spares: u32) -> f64 {
    let expected = area.0 / 100.0 * constants.manufacturing.defect_density;
    let mut term = (-expected).exp();
    let mut sum = term;
    for bad in 1..=spares {
        term *= expected / f64::from(bad);
        sum += term;
    }
    sum.min(1.0)
}

/// The assumption about defects of a chip's cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CoreDefects {
    /// Repaired as far as there are spare cores.
    AsSpared,
    /// All repaired. This gives a lower bound on the cost that grows with every field.
    AllRepaired,
}

/// Returns the cost of a chip from its modelled area; `None` if a die does not fit on a wafer.
///
/// # Errors
/// [`AreaError`] if the chip has no area model.
pub fn chip_cost(accelerator: &Accelerator) -> Result<Option<ChipCost>, AreaError> {
    cost_with_defects(accelerator, CoreDefects::AsSpared)
}

/// Returns a lower bound, in USD, on the costs of all chips that have at least the fields of this one. `None` if a die
/// does not fit on a wafer.
///
/// # Errors
/// As [`chip_cost`].
pub fn least_chip_cost(accelerator: &Accelerator) -> Result<Option<f64>, AreaError> {
    Ok(cost_with_defects(accelerator, CoreDefects::AllRepaired)?.map(|cost| cost.total_usd()))
}

fn cost_with_defects(accelerator: &Accelerator, defects: CoreDefects) -> Result<Option<ChipCost>, AreaError> {
    let constants = &accelerator.constants;
    let making = &constants.manufacturing;
    let areas = chip_area(accelerator)?;
    let floorplan =
        if let AreaModel::UnitAreas(floorplan) = &accelerator.area_model { Some(&**floorplan) } else { None };
    let (node, dies) = floorplan.map_or((ProcessNode::N22, 1), |floorplan| (floorplan.node, floorplan.dies.max(1)));
    let die = areas.total_area() / f64::from(dies);
    let dies_per_wafer = dies_per_wafer(die);
    if dies_per_wafer == 0 {
        return Ok(None);
    }
    // PHAZE's parts have no spare cores.
    let cores =
        floorplan.map_or(SquareMillimeters::ZERO, |plan| areas.core_area() * (f64::from(plan.cores) / f64::from(dies)));
    let spares = floorplan.map_or(0, |plan| plan.cores.saturating_sub(accelerator.tensor.cores) / dies);
    let yield_fraction = match defects {
        CoreDefects::AllRepaired => yield_fraction(constants, SquareMillimeters((die.0 - cores.0).max(0.0))),
        CoreDefects::AsSpared if spares == 0 => yield_fraction(constants, die),
        CoreDefects::AsSpared => {
            let rest = yield_fraction(constants, SquareMillimeters((die.0 - cores.0).max(0.0)));
            rest * repaired_fraction(constants, cores, spares)
        }
    };
    let wafer = making.wafer_price.at_node(node);
    let compute_usd = f64::from(dies) * wafer / (f64::from(dies_per_wafer) * yield_fraction);
    let base_usd = floorplan.and_then(|plan| plan.base).map_or(0.0, |base| base_dies_usd(constants, base));
    let dies_usd = compute_usd + base_usd;
    let generation = floorplan.map_or(HbmGeneration::Hbm2, |plan| plan.hbm_generation);
    let memory_usd = accelerator.memory_capacity().as_f64() / 1e9 * constants.hbm.of_generation(generation).price;
    let interposer_usd =
        floorplan.map_or(0.0, |plan| plan.package_silicon(constants, areas.total_area()).0 * making.interposer);
    let lost = (dies_usd + memory_usd + interposer_usd) * (1.0 / making.assembly_yield - 1.0);
    let packaging_usd = dies_usd * making.packaging + lost;
    let design_usd = making.design.at_node(node) * 1e6 / making.volume;
    Ok(Some(ChipCost {
        dies_per_wafer,
        yield_fraction,
        dies_usd,
        memory_usd,
        interposer_usd,
        packaging_usd,
        design_usd,
    }))
}

fn base_dies_usd(constants: &Constants, base: BaseDies) -> f64 {
    let die = SquareMillimeters(base.mm2_each);
    let good = f64::from(dies_per_wafer(die).max(1)) * yield_fraction(constants, die);
    f64::from(base.count) * constants.manufacturing.wafer_price.at_node(base.node) / good
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Hennessy and Patterson, section 1.6: a 300 mm wafer holds 270 dies (269.7) of 2.25 cm^2 and 640 of 1 cm^2.
    #[test]
    fn a_wafer_holds_what_the_textbook_says() {
        assert_eq!(dies_per_wafer(SquareMillimeters(225.0)), 269);
        assert_eq!(dies_per_wafer(SquareMillimeters(100.0)), 640);
        assert_eq!(dies_per_wafer(SquareMillimeters(1e6)), 0);
    }

    #[test]
    fn larger_dies_cost_more_than_their_area() {
        let small = yield_fraction(&Constants::nominal(), SquareMillimeters(100.0));
        let large = yield_fraction(&Constants::nominal(), SquareMillimeters(800.0));
        assert!(small > 0.9 && large < 0.6, "{small} {large}");
    }

    #[test]
    fn a_newer_wafer_costs_more() {
        let prices: Vec<f64> =
            ProcessNode::ALL.iter().map(|node| Constants::nominal().manufacturing.wafer_price.at_node(*node)).collect();
        assert!(prices.windows(2).all(|pair| pair[0] <= pair[1]), "{prices:?}");
    }

    #[test]
    fn an_a100_costs_what_its_parts_do() {
        let chip = Accelerator::built_in("a100_80gb_sxm").unwrap();
        let cost = chip_cost(&chip).unwrap().unwrap();
        assert!((60..=70).contains(&cost.dies_per_wafer), "{cost:?}");
        // 20 of 128 SMs are spare.
        assert!((150.0..300.0).contains(&cost.dies_usd) && cost.yield_fraction > 0.6, "{cost:?}");
        assert!((700.0..2500.0).contains(&cost.total_usd()), "{cost:?}");
        assert!(least_chip_cost(&chip).unwrap().unwrap() <= cost.total_usd());
        let changes = [("manufacturing.wafer_price.n7", 11_000.0), ("manufacturing.defect_density", 0.2)];
        let changes = changes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let dearer = Accelerator { constants: Constants::with_changes(&changes).unwrap(), ..chip.clone() };
        let dearer = chip_cost(&dearer).unwrap().unwrap();
        assert!(dearer.dies_usd > 1.2 * cost.dies_usd);
        assert_eq!(dearer.memory_usd, cost.memory_usd);
        let full = Accelerator { tensor: crate::hardware::TensorCores { cores: 128, ..chip.tensor }, ..chip };
        let full = chip_cost(&full).unwrap().unwrap();
        assert!(full.yield_fraction < 0.6 && full.dies_usd > cost.dies_usd, "without spares: {full:?}");
    }
}
