//! Finds the fastest plan of each family.

use super::search_plans::search_once;
use super::{Job, PlanSpace, PlanWatch, RankedPlan};
use crate::ask::PlanFamily;
use step::StepError;

/// The fastest plan of a family, among those that the framework documents.
#[derive(Debug, Clone, PartialEq)]
pub struct FamilyPlan {
    /// The family.
    pub family: PlanFamily,
    /// Its index in the list of fastest plans; `None` if it is not among them.
    pub place: Option<usize>,
    /// The plan.
    pub ranked: RankedPlan,
}

impl FamilyPlan {
    /// The fastest plan of a family in `listed`; `None` if the list has none. The list has the fastest documented
    /// plans, in any order. A discouraged plan at its end does not count.
    #[must_use]
    pub fn among_listed(job: &Job<'_>, listed: &[RankedPlan], family: PlanFamily) -> Option<Self> {
        let documented = listed[..job.count_documented(listed)].iter().enumerate();
        let members = documented.filter(|(_, ranked)| family.includes_layout(&ranked.plan.layout));
        let (place, ranked) = members.min_by(|a, b| a.1.time.total.0.total_cmp(&b.1.time.total.0))?;
        Some(Self { family, place: Some(place), ranked: ranked.clone() })
    }

    /// Searches a space for the fastest plan of a family. `None` if none fits, or if the watch stops the search.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn search(
        job: &Job<'_>,
        space: &PlanSpace,
        family: PlanFamily,
        watch: PlanWatch<'_>,
    ) -> Result<Option<Self>, StepError> {
        let documented = space.documented(job);
        let space = documented.as_ref().unwrap_or(space).of_family(family);
        let answer = search_once(job, &space, 1, watch)?;
        let ranked = answer.best.into_iter().next().filter(|_| answer.stopped.is_none());
        Ok(ranked.map(|ranked| Self { family, place: None, ranked }))
    }
}
