//! Finds the fastest plan of each family, beside the list of the fastest plans.

use crate::failure::{Failure, OrInput};
use crate::verb::stop::StopLimit;
use search::planner::{FamilyPlan, Job, PlanFamily, PlanSpace, PlanWatch, RankedPlan};

/// Returns the fastest documented plan of each family that has one: from the list, else from a search of the family
/// alone. Every returned plan fits with the requested chance, as the listed plans do.
pub(super) fn fastest_of_families(
    job: &Job<'_>,
    space: &PlanSpace,
    listed: &[RankedPlan],
    limit: &StopLimit,
) -> Result<Vec<FamilyPlan>, Failure> {
    let watch = PlanWatch { stop: &|| limit.is_reached(), told: &|_| {} };
    let mut found = Vec::new();
    for family in PlanFamily::ALL {
        let known = FamilyPlan::among_listed(job, listed, family);
        let searched = || FamilyPlan::search(job, space, family, watch).or_input();
        found.extend(known.map_or_else(searched, |known| Ok(Some(known)))?);
    }
    Ok(found)
}
