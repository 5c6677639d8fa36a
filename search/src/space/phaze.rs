//! PHAZE's design space.
//!
//! The space (phaze 1.0, `Estimator/architecture.py`) is a grid of powers of two. A chip is kept if its area is at most
//! that of a TPUv4-like reference chip and at least a fraction of it. Chips with a single tensor or vector core are
//! exempt from the lower limit. 29,360 of the 75,712 grid points remain.

use super::limits::ChipLimits;
use super::spec::PhazeGrid;
use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::hardware::area::{AreaError, chip_area};
use sim::hardware::phaze::{PhazeConfig, design_accelerator};
use sim::units::{Bytes, SquareMillimeters};
use std::collections::BTreeSet;

/// One chip of PHAZE's space with its area.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HardwarePoint {
    /// The chip's dimensions. Its HBM is the largest of the space; the area model ignores HBM.
    pub config: PhazeConfig,
    /// Its die area.
    pub area: SquareMillimeters,
}

/// The chips of PHAZE's space, in the order of enumeration: tensor cores, vector cores, width, depth, global buffer,
/// with the first outermost.
#[derive(Debug, Clone, PartialEq)]
pub struct HardwareSpace {
    /// The chips inside the area limits.
    pub points: Vec<HardwarePoint>,
    /// The HBM capacities that each chip may carry, ascending.
    pub hbm: Vec<Bytes>,
    /// The largest area allowed.
    pub max_area: SquareMillimeters,
    /// The smallest area allowed, for chips with several cores of both kinds.
    pub min_area: SquareMillimeters,
    /// Grid points outside the area limits.
    pub outside: usize,
}

impl HardwareSpace {
    /// Enumerates the grid of `spec` and keeps the chips inside its area limits. Without an area limit, the area of
    /// `reference` is the upper limit.
    ///
    /// # Errors
    /// A reference chip without an area model.
    pub fn enumerate_chips(spec: &PhazeGrid, limits: &ChipLimits, reference: &Accelerator) -> Result<Self, AreaError> {
        let max_area = limits
            .max_area_mm2
            .map_or_else(|| chip_area(reference).map(|parts| parts.total_area()), |most| Ok(SquareMillimeters(most)))?;
        let min_area = max_area * spec.min_area_fraction;
        let mut hbm: Vec<Bytes> = spec.hbm_gib.iter().map(|&gib| Bytes::from_gib(gib)).collect();
        hbm.sort_unstable();
        hbm.dedup();
        let mut space = Self { points: Vec::new(), hbm, max_area, min_area, outside: 0 };
        // A repeated value makes the same chip again, which is dropped.
        let mut seen = BTreeSet::new();
        for config in grid_combinations(spec, space.hbm.last().copied().unwrap_or_default()).filter(|c| seen.insert(*c))
        {
            let area = chip_area(&design_accelerator(&config))?.total_area();
            if space.admits_area(&config, area) {
                space.points.push(HardwarePoint { config, area });
            } else {
                space.outside += 1;
            }
        }
        Ok(space)
    }

    /// True if a chip of this area is inside the area limits.
    pub(super) fn admits_area(&self, config: &PhazeConfig, area: SquareMillimeters) -> bool {
        let exempt = config.num_tc == 1 || config.num_vc == 1;
        area <= self.max_area && (exempt || area >= self.min_area)
    }

    /// Every combination of the grid's values with the largest HBM, within the limits or not.
    pub(super) fn all_combinations<'a>(&self, spec: &'a PhazeGrid) -> impl Iterator<Item = PhazeConfig> + use<'a> {
        grid_combinations(spec, self.hbm.last().copied().unwrap_or_default())
    }

    /// The number of designs: chips times HBM capacities.
    #[must_use]
    pub fn design_count(&self) -> usize {
        self.points.len() * self.hbm.len()
    }
}

/// Every combination of the grid's values.
fn grid_combinations(spec: &PhazeGrid, hbm: Bytes) -> impl Iterator<Item = PhazeConfig> + '_ {
    spec.tensor_cores.iter().flat_map(move |&num_tc| {
        spec.vector_cores.iter().flat_map(move |&num_vc| {
            spec.array_widths.iter().flat_map(move |&width| {
                spec.array_depths.iter().flat_map(move |&depth| {
                    spec.global_buffer_mib.iter().map(move |&mib| PhazeConfig {
                        num_tc,
                        num_vc,
                        width,
                        depth,
                        width_vc: width,
                        global_buffer: Bytes(mib << 20),
                        hbm,
                    })
                })
            })
        })
    })
}
