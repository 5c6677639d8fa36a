//! Finds the fastest plan of each family, beside the list of the fastest plans.

use crate::failure::{Failure, OrInput};
use crate::verb::stop::StopLimit;
use results::answer::evidence::{fit_probability, memory_margin};
use search::planner::{FamilyPlan, Job, NO_MARGIN, PlanFamily, PlanSpace, PlanWatch, RankedPlan};

/// Returns the fastest documented plan of each family that has one: from the list, else from a search of the family
/// alone. Every returned plan fits with the requested chance, as the listed plans do.
pub(super) fn fastest_of_families(
    job: &Job<'_>,
    space: &PlanSpace,
    listed: &[RankedPlan],
    fit: Option<f64>,
    limit: &StopLimit,
) -> Result<Vec<FamilyPlan>, Failure> {
    let fit = fit.filter(|chance| *chance > NO_MARGIN);
    let watch = PlanWatch { stop: &|| limit.is_reached(), told: &|_| {} };
    let mut found = Vec::new();
    for family in PlanFamily::ALL {
        let known = FamilyPlan::among_listed(job, listed, family);
        let fastest = known.map_or_else(|| search_that_fits(job, space, family, fit, watch), |known| Ok(Some(known)));
        found.extend(fastest?);
    }
    Ok(found)
}

/// Searches a family for its fastest plan that fits with a chance; `None` if there is none. Each search leaves more
/// memory free than the one before.
fn search_that_fits(
    job: &Job<'_>,
    space: &PlanSpace,
    family: PlanFamily,
    fit: Option<f64>,
    watch: PlanWatch<'_>,
) -> Result<Option<FamilyPlan>, Failure> {
    let mut job = *job;
    loop {
        let found = FamilyPlan::search(&job, space, family, watch).or_input()?;
        let Some(found) = found else { return Ok(None) };
        let chance = fit.filter(|fit| fit_probability(&job, &found.ranked).is_some_and(|chance| chance < *fit));
        let Some(chance) = chance else { return Ok(Some(found)) };
        let margin = memory_margin(&job, &found.ranked, chance).filter(|margin| *margin > job.headroom);
        let Some(margin) = margin else { return Ok(None) };
        job.headroom = margin;
    }
}
