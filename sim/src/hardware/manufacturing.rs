//! The cost of making a chip: wafer price, dies per wafer, yield, memory.

use super::constants::{Constants, ManufacturingConstants};
use super::{Accelerator, AreaError, AreaModel, ProcessNode, chip_area};
use crate::units::SquareMillimeters;
use serde::Serialize;

/// Diameter of a wafer in mm.
const WAFER_MM: f64 = 300.0;
/// The cost of one chip in USD, without its design: an upper bound. Dies with a defect count as lost, although vendors
/// sell many with the defective cores disabled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ChipCost {
    /// Whole dies that fit on a wafer.
    pub dies_per_wafer: u32,
    /// Fraction of them without a defect.
    pub yield_fraction: f64,
    /// The good compute dies of one chip, in USD.
    pub dies_usd: f64,
    /// Its HBM, in USD.
    pub memory_usd: f64,
    /// Assembly, packaging and test, in USD; no interposer.
    pub packaging_usd: f64,
}

impl ChipCost {
    /// Dies, memory and package.
    #[must_use]
    pub fn total_usd(&self) -> f64 {
        self.dies_usd + self.memory_usd + self.packaging_usd
    }
}

/// Whole dies on a wafer: its area over a die's, less the dies that its edge cuts (Hennessy and Patterson, section
/// 1.6).
#[must_use]
pub fn dies_per_wafer(die: SquareMillimeters) -> u32 {
    let radius = WAFER_MM / 2.0;
    let dies = std::f64::consts::PI * (radius * radius / die.0 - WAFER_MM / (2.0 * die.0).sqrt());
    dies.max(0.0) as u32
}

/// The fraction of dies without a defect: (1 + area x density / complexity) ^ -complexity, the negative binomial model
/// with defects spread over the critical layers.
#[must_use]
pub fn yield_fraction(constants: &Constants, die: SquareMillimeters) -> f64 {
    let ManufacturingConstants { defect_density, process_complexity, .. } = constants.manufacturing;
    (1.0 + die.0 / 100.0 * defect_density / process_complexity).powf(-process_complexity)
}

/// The cost of a chip from its modelled area. `None` where a die does not fit on a wafer.
///
/// # Errors
/// [`AreaError`] where the chip has no area model.
pub fn chip_cost(accelerator: &Accelerator) -> Result<Option<ChipCost>, AreaError> {
    let constants = &accelerator.constants;
    let total = chip_area(accelerator)?.total_area();
    let (node, dies) = match &accelerator.area_model {
        AreaModel::UnitAreas(floorplan) => (floorplan.node, floorplan.dies.max(1)),
        AreaModel::Phaze22nm | AreaModel::Undisclosed => (ProcessNode::N22, 1),
    };
    let die = total / f64::from(dies);
    let dies_per_wafer = dies_per_wafer(die);
    if dies_per_wafer == 0 {
        return Ok(None);
    }
    let wafer = constants.manufacturing.wafer_price.at_node(node);
    let yield_fraction = yield_fraction(constants, die);
    let dies_usd = f64::from(dies) * wafer / (f64::from(dies_per_wafer) * yield_fraction);
    let memory_usd = accelerator.memory_capacity().as_f64() / 1e9 * constants.hbm.price;
    let packaging_usd = dies_usd * constants.manufacturing.packaging;
    Ok(Some(ChipCost { dies_per_wafer, yield_fraction, dies_usd, memory_usd, packaging_usd }))
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
    fn an_a100_costs_a_few_hundred_dollars_to_make() {
        let chip = Accelerator::built_in("a100_80gb_sxm").unwrap();
        let cost = chip_cost(&chip).unwrap().unwrap();
        assert!((60..=70).contains(&cost.dies_per_wafer), "{cost:?}");
        assert!((200.0..400.0).contains(&cost.dies_usd), "{cost:?}");
        assert!((cost.total_usd() / (cost.dies_usd * 318.0 / 238.0 + cost.memory_usd) - 1.0).abs() < 1e-12, "{cost:?}");
        let changes = [("manufacturing.wafer_price.n7", 11_000.0), ("manufacturing.defect_density", 0.2)];
        let changes = changes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let dearer = Accelerator { constants: Constants::with_changes(&changes).unwrap(), ..chip };
        let dearer = chip_cost(&dearer).unwrap().unwrap();
        assert!(dearer.dies_usd > 2.0 * cost.dies_usd);
        assert_eq!(dearer.memory_usd, cost.memory_usd);
    }
}
