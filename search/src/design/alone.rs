//! The search over hardware alone, for a method without bounds: every chip has the time of its fastest plan.

use super::best_plan;
use crate::bayes::BayesProblem;
use crate::planner::PreparedJob;
use crate::space::{DesignId, SingleCombination, Space};
use sim::hardware::{Accelerator, FieldValue};

/// Chips with their largest HBM. Their value is a step's seconds.
#[derive(Debug, Clone, Copy)]
pub struct HardwareOnly<'a> {
    /// The space of chips.
    pub space: &'a Space,
    /// The job and its plans, prepared for every fabric of [`Space::fabric_settings`], in that order.
    pub prepared: &'a [PreparedJob<'a>],
}

impl HardwareOnly<'_> {
    /// A design's chip. `None` if it is outside the limits or cannot be built.
    #[must_use]
    pub fn chip_of_design(&self, id: DesignId) -> Option<Accelerator> {
        if id.hbm.is_some() {
            return self.space.chip_of_design(id).ok();
        }
        match self.space.single_point(id.point).ok()? {
            SingleCombination::Chip(chip, _) => Some(*chip),
            SingleCombination::Outside(_) | SingleCombination::Refused(_) => None,
        }
    }
}

impl BayesProblem for HardwareOnly<'_> {
    fn count(&self) -> usize {
        self.space.chip_count()
    }

    /// The numbers of the dimensions that the space varies. A word has no number and counts as one. PHAZE's chips have
    /// six dimensions.
    fn dimensions_of(&self, design: usize) -> Option<Vec<f64>> {
        let id = self.space.with_largest_memory(design);
        let chip = self.chip_of_design(id)?;
        let number = |setting: &FieldValue| setting.to_string().parse::<f64>().unwrap_or(1.0);
        Some(match self.space.varied_dimensions(id) {
            Some(varied) => varied.iter().map(|(_, setting)| number(setting)).collect(),
            None => {
                let buffer = chip.global_buffer().map_or(0.0, |level| level.capacity.as_f64());
                let whole =
                    [chip.tensor.cores, chip.vector.cores, chip.tensor.rows, chip.tensor.columns, chip.vector.lanes];
                whole.into_iter().map(f64::from).chain([buffer]).collect()
            }
        })
    }

    fn value_of(&self, design: usize) -> Option<f64> {
        let id = self.space.with_largest_memory(design);
        let chip = self.chip_of_design(id)?;
        let prepared = self.prepared.get(self.space.fabric_of_design(id))?;
        best_plan(prepared, &chip).outcome.ok().map(|plan| plan.time.total.0)
    }
}
