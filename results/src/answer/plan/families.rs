//! The fastest plan of each family, as data.

use super::{PlanRow, PlannedAnswer, plan_row_with_fit};
use search::planner::{FamilyPlan, Job};
use serde::Serialize;

/// The fastest plan of a family, among those that fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FamilyRow {
    /// The family.
    pub family: String,
    /// The plan's place in the list of plans, from 1; `None` if it is not listed.
    pub place: Option<usize>,
    /// The plan.
    pub plan: PlanRow,
}

impl PlannedAnswer {
    /// Adds the fastest plan of each family.
    pub fn with_families(&mut self, job: &Job<'_>, families: &[FamilyPlan]) {
        let row = |of: &FamilyPlan| FamilyRow {
            family: of.family.name().to_owned(),
            place: of.place.map(|place| place + 1),
            plan: plan_row_with_fit(job, &of.ranked),
        };
        self.families = families.iter().map(row).collect();
    }
}
