//! The hardware alone: chips of a space, each under the fastest plan that is left where the degrees are given, for a search that knows no bounds.

use super::best_plan;
use crate::bayes::Designs;
use crate::planner::Prepared;
use crate::space::{DesignId, Single, Space};
use sim::hardware::{Accelerator, Setting};

/// Chips with their largest HBM; their value is a step's seconds.
#[derive(Debug, Clone, Copy)]
pub struct HardwareAlone<'a> {
    /// The chips.
    pub space: &'a Space,
    /// The job and its plans, prepared for every fabric of [`Space::fabrics`], in that order.
    pub prepared: &'a [Prepared<'a>],
}

impl HardwareAlone<'_> {
    /// A design's chip, if it is within the limits.
    #[must_use]
    pub fn chip(&self, id: DesignId) -> Option<Accelerator> {
        if id.hbm.is_some() {
            return self.space.chip(id).ok();
        }
        match self.space.single(id.point).ok()? {
            Single::Chip(chip, _) => Some(*chip),
            Single::Outside(_) | Single::Refused(_) => None,
        }
    }
}

impl Designs for HardwareAlone<'_> {
    fn count(&self) -> usize {
        self.space.points()
    }

    /// The numbers of the dimensions that the space varies; a word has none, and counts as one. PHAZE's are the six of its chips.
    fn dimensions(&self, design: usize) -> Option<Vec<f64>> {
        let id = self.space.largest(design);
        let chip = self.chip(id)?;
        let number = |setting: &Setting| setting.to_string().parse::<f64>().unwrap_or(1.0);
        Some(match self.space.varied(id) {
            Some(varied) => varied.iter().map(|(_, setting)| number(setting)).collect(),
            None => {
                let buffer = chip.global_buffer().map_or(0.0, |level| level.capacity.as_f64());
                let whole = [chip.tensor.cores, chip.vector.cores, chip.tensor.rows, chip.tensor.columns, chip.vector.lanes];
                whole.into_iter().map(f64::from).chain([buffer]).collect()
            }
        })
    }

    fn value(&self, design: usize) -> Option<f64> {
        let id = self.space.largest(design);
        let chip = self.chip(id)?;
        let prepared = self.prepared.get(self.space.fabric(id))?;
        best_plan(prepared, &chip).outcome.ok().map(|plan| plan.time.total.0)
    }
}
