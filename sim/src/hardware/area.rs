//! Silicon area: PHAZE's 22 nm tables, or unit areas of a technology node.

mod floorplan;
mod phaze_22nm;
mod units;

pub use floorplan::{ArrayCell, BaseDies, Floorplan, SramArray, SramKind};
pub(super) use units::running_megatransistors;
pub use units::sram_area;

use super::{Accelerator, AreaModel};
use crate::units::SquareMillimeters;
use serde::Serialize;
use thiserror::Error;

/// A part of the die or of a core, with the area of all its instances.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AreaPart {
    /// Its name: `cores`, `global_buffer`, `mem_phy`, ...
    pub name: &'static str,
    /// Its area.
    pub area: SquareMillimeters,
}

/// The area of an accelerator's dies by component.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AreaBreakdown {
    /// Parts of the die; they add up to [`Self::total_area`].
    pub die: Vec<AreaPart>,
    /// Parts of one tensor core, with its vector lanes if the area model is unit areas; they add up to
    /// [`Self::core_area`].
    pub in_core: Vec<AreaPart>,
}

impl AreaBreakdown {
    /// The area of all compute dies.
    #[must_use]
    pub fn total_area(&self) -> SquareMillimeters {
        self.die.iter().map(|part| part.area).sum()
    }

    /// The area of one core.
    #[must_use]
    pub fn core_area(&self) -> SquareMillimeters {
        self.in_core.iter().map(|part| part.area).sum()
    }

    /// Returns the area of `component` at `level` (`die` or `core`), under the names of die photographs; `TOTAL` and
    /// `TOTAL_core` are the sums. Photographs do not separate link controllers from the logic around them, so
    /// `offchip_link_ctrl` is zero here and counts in `other`. `None` for an unknown name.
    #[must_use]
    pub fn component_area(&self, level: &str, component: &str) -> Option<SquareMillimeters> {
        let parts = match level {
            "die" => &self.die,
            "core" => &self.in_core,
            _ => return None,
        };
        match component {
            "TOTAL" if level == "die" => Some(self.total_area()),
            "TOTAL" | "TOTAL_core" if level == "core" => Some(self.core_area()),
            "offchip_link_ctrl" => Some(SquareMillimeters::ZERO),
            _ => parts.iter().find(|part| part.name == component).map(|part| part.area),
        }
    }
}

/// The reason why an accelerator has no modelled area.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AreaError {
    /// The vendor discloses too little.
    #[error(
        "{chip} has no area model: its die is not disclosed; give its file an [area] table (model = \"unit_areas\" or \"phaze_22nm\")"
    )]
    Undisclosed {
        /// The chip.
        chip: String,
    },
    /// PHAZE's data file is damaged.
    #[error("sim/data/phaze_22nm.toml: {why}; restore the file")]
    Coefficients {
        /// The parser's message.
        why: String,
    },
}

/// Returns the area of an accelerator by component.
///
/// # Errors
/// [`AreaError::Undisclosed`] if the chip's file does not describe its die; [`AreaError::Coefficients`] if PHAZE's
/// table is damaged.
pub fn chip_area(accelerator: &Accelerator) -> Result<AreaBreakdown, AreaError> {
    match &accelerator.area_model {
        AreaModel::Phaze22nm => phaze_22nm::phaze_area(accelerator),
        AreaModel::UnitAreas(floorplan) => Ok(floorplan.die_areas(accelerator)),
        AreaModel::Undisclosed => Err(AreaError::Undisclosed { chip: accelerator.name.clone() }),
    }
}
