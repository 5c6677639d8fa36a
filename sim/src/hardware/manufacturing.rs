//! The cost of making a chip: wafer price, dies per wafer, yield, memory.

use super::{Accelerator, AreaError, AreaModel, ProcessNode, chip_area};
use crate::units::SquareMillimeters;
use serde::{Deserialize, Serialize};

/// Diameter of a wafer in mm.
const WAFER_MM: f64 = 300.0;
/// Defects per cm^2 of a mature process: 0.09 at 7 nm; 5 nm is as low at the same age (TSMC Technology Symposium 2020).
pub const DEFECTS_PER_CM2: f64 = 0.09;
/// Exponent of the negative binomial yield model: 10 to 14 masks' worth of critical layers on recent processes
/// (Hennessy and Patterson, *Computer Architecture*, 6th ed., section 1.6).
const PROCESS_COMPLEXITY: f64 = 12.0;
/// Assembly, packaging and test relative to the price of the dies: 80 USD for 238 at 5 nm, and the same fraction at
/// every node (Khan and Mann, *AI Chips*, CSET 2020, cost per chip by node). It excludes the silicon interposer that
/// HBM needs.
const PACKAGING: f64 = 80.0 / 238.0;
/// HBM, USD per GB in 2023 (LLMCompass, ISCA 2024).
const HBM_USD_PER_GB: f64 = 7.0;

/// A foundry's price and quality; missing figures are the node's.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foundry {
    /// Price of a 300 mm wafer in USD.
    pub wafer_usd: Option<f64>,
    /// Defects per cm^2.
    pub defects_per_cm2: Option<f64>,
}

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

impl ProcessNode {
    /// Price of a 300 mm wafer in USD, where a source exists.
    ///
    /// Source: Khan and Mann, *AI Chips* (CSET 2020), as in Princeton's ttm-cas: 40, 28, 20, 14, 7 and 5 nm; 6 nm as 7
    /// nm, 4 nm as 5 nm. 3 nm: about 18,000 USD (B. Bajarin, Creative Strategies, 2025). 45 nm as 40 nm, 22 nm as 20
    /// nm, 16 nm as 14 nm.
    #[must_use]
    pub fn wafer_usd(self) -> Option<f64> {
        match self {
            Self::N45 => Some(2274.0),
            Self::N28 => Some(2891.0),
            Self::N22 => Some(3677.0),
            Self::N16 => Some(3984.0),
            Self::N7 | Self::N6 => Some(9346.0),
            Self::N5 | Self::N4 => Some(16_988.0),
            Self::N3 => Some(18_000.0),
        }
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
pub fn yield_fraction(die: SquareMillimeters, defects_per_cm2: f64) -> f64 {
    (1.0 + die.0 / 100.0 * defects_per_cm2 / PROCESS_COMPLEXITY).powf(-PROCESS_COMPLEXITY)
}

/// The cost of a chip from its modelled area. `None` where neither the foundry nor the node has a wafer price, or where
/// a die does not fit on a wafer.
///
/// # Errors
/// [`AreaError`] where the chip has no area model.
pub fn chip_cost(accelerator: &Accelerator, foundry: Foundry) -> Result<Option<ChipCost>, AreaError> {
    let total = chip_area(accelerator)?.total_area();
    let (node, dies) = match &accelerator.area_model {
        AreaModel::UnitAreas(floorplan) => (floorplan.node, floorplan.dies.max(1)),
        AreaModel::Phaze22nm | AreaModel::Undisclosed => (ProcessNode::N22, 1),
    };
    let die = total / f64::from(dies);
    let dies_per_wafer = dies_per_wafer(die);
    let Some(wafer) = foundry.wafer_usd.or(node.wafer_usd()).filter(|_| dies_per_wafer > 0) else {
        return Ok(None);
    };
    let yield_fraction = yield_fraction(die, foundry.defects_per_cm2.unwrap_or(DEFECTS_PER_CM2));
    let dies_usd = f64::from(dies) * wafer / (f64::from(dies_per_wafer) * yield_fraction);
    let memory_usd = accelerator.memory_capacity().as_f64() / 1e9 * HBM_USD_PER_GB;
    let packaging_usd = dies_usd * PACKAGING;
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
        let small = yield_fraction(SquareMillimeters(100.0), DEFECTS_PER_CM2);
        let large = yield_fraction(SquareMillimeters(800.0), DEFECTS_PER_CM2);
        assert!(small > 0.9 && large < 0.6, "{small} {large}");
    }

    #[test]
    fn a_newer_wafer_costs_more() {
        let prices: Vec<f64> = ProcessNode::ALL.iter().map(|node| node.wafer_usd().unwrap()).collect();
        assert!(prices.windows(2).all(|pair| pair[0] <= pair[1]), "{prices:?}");
    }

    #[test]
    fn an_a100_costs_a_few_hundred_dollars_to_make() {
        let chip = Accelerator::built_in("a100_80gb_sxm").unwrap();
        let cost = chip_cost(&chip, Foundry::default()).unwrap().unwrap();
        assert!((60..=70).contains(&cost.dies_per_wafer), "{cost:?}");
        assert!((200.0..400.0).contains(&cost.dies_usd), "{cost:?}");
        assert!((cost.total_usd() / (cost.dies_usd * 318.0 / 238.0 + cost.memory_usd) - 1.0).abs() < 1e-12, "{cost:?}");
        let dearer = chip_cost(&chip, Foundry { wafer_usd: Some(20_000.0), defects_per_cm2: Some(0.2) }).unwrap().unwrap();
        assert!(dearer.dies_usd > 2.0 * cost.dies_usd);
        assert_eq!(dearer.memory_usd, cost.memory_usd);
    }
}
