//! The plans of a space that a stack's framework documents, and those that it discourages.

use crate::ask::{LayoutFilter, PlanFamily, PlanSpace, Splits};
use crate::planner::Job;
use workloads::Layout;

impl PlanSpace {
    /// The plans of the space that the framework of a job's stack documents. `None` if it discourages nothing, or all
    /// of the plans: a space of discouraged plans alone is searched as it is. If the space lists ZeRO stages, plans
    /// with another stage, because they have nothing to shard, do not count as documented alternatives.
    #[must_use]
    pub(crate) fn documented(&self, job: &Job<'_>) -> Option<Self> {
        let kinds = job.stack.discouraged_kinds(job.chip);
        if kinds.is_empty() {
            return None;
        }
        let space = self.with_filter(&|filter| filter.without.clone_from(&kinds));
        let asked = |layout: &Layout| self.zero.as_ref().is_none_or(|list| list.contains(&layout.zero));
        space.has_layout(job, &asked).then_some(space)
    }

    /// The plans of the space that the framework discourages; `None` if there are none.
    pub(crate) fn discouraged(&self, job: &Job<'_>) -> Option<Self> {
        let kinds = job.stack.discouraged_kinds(job.chip);
        if kinds.is_empty() {
            return None;
        }
        let space = self.with_filter(&|filter| filter.only.clone_from(&kinds));
        space.has_layout(job, &|_| true).then_some(space)
    }

    /// The plans of the space that are of a family.
    pub(crate) fn of_family(&self, family: PlanFamily) -> Self {
        self.with_filter(&|filter| filter.family = Some(family))
    }

    /// True if some plan of the space has a layout that `counts`. The small space within a large one is checked first,
    /// because it is cheaper.
    fn has_layout(&self, job: &Job<'_>, counts: &impl Fn(&Layout) -> bool) -> bool {
        if let Some(Splits::NearOf(usual)) = &self.splits
            && usual.has_layout(job, counts)
        {
            return true;
        }
        let families = self.families(job);
        families.iter().flat_map(|family| &family.divisions).any(|division| counts(&division.layout))
    }

    /// The space, and the small one within it, with a changed filter of layouts.
    fn with_filter(&self, change: &impl Fn(&mut LayoutFilter)) -> Self {
        let mut space = self.clone();
        change(&mut space.layouts);
        if let Some(Splits::NearOf(usual)) = &mut space.splits {
            change(&mut usual.layouts);
        }
        space
    }
}
