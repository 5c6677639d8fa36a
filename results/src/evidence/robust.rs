//! Ranks plans and designs by the bad end of their interval. A search over many plans tends to find the one for which
//! the model is most optimistic. A plan whose relatives were measured to run as predicted may be the better choice.

use super::facts::{KEEPING, KEEPS, mechanisms_of_policy};
use super::{PredictedQuantity, PredictionFacts, ResidualTable, mechanisms_of_plan};
use search::design::StepTimeMargin;
use search::planner::{Job, PlanAnswer, PlanSpace, PlanWatch, PreparedJob, RankedPlan, search_plans_watched};
use sim::hardware::Accelerator;
use std::collections::BTreeSet;
use step::StepError;

/// Most plans that are considered.
const MOST: usize = 1000;
/// Multiple of the requested plans that is considered first, and factor of growth while the order is not settled.
const MORE: usize = 4;

/// The bad ends of the intervals of steps, from the carried table.
#[derive(Debug, Clone, Copy)]
pub struct StepEnds;

impl StepEnds {
    /// A lower bound of the factor from predicted step to bad end, over all plans of a job's space. It holds on chips
    /// of the same family (the same kind of library runs their kernels) that are no better measured. It covers every
    /// layout and schedule with every policy, and with all combinations that stages may mix.
    #[must_use]
    pub fn least_over_plans(prepared: &PreparedJob<'_>, chip: &Accelerator) -> f64 {
        let (job, mut kinds, mut any) = (prepared.job(chip), BTreeSet::new(), None);
        let kept = mechanisms_of_space(prepared);
        for plan in prepared.one_plan_per_layout() {
            let mut layout = mechanisms_of_plan(job.model, &plan, job.fabric.fast_domain_devices());
            layout.remove(KEEPS);
            if kinds.insert(layout) {
                any = Some(plan);
            }
        }
        let Some(plan) = any else { return 1.0 };
        let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &plan);
        let table = ResidualTable::read_carried();
        let end = |mechanisms: BTreeSet<String>| {
            table.interval_of(PredictedQuantity::StepTime, &PredictionFacts { mechanisms, ..facts.clone() }).high
        };
        let all = kinds.iter().flat_map(|layout| kept.iter().map(move |kept| layout | kept));
        all.map(end).fold(f64::INFINITY, f64::min)
    }
}

/// The sets of mechanisms of the policies. If stages have their own policies, these are all combinations of mechanisms.
fn mechanisms_of_space(prepared: &PreparedJob<'_>) -> BTreeSet<BTreeSet<String>> {
    if !prepared.mixes_policies() {
        return prepared.policies().iter().map(|policy| mechanisms_of_policy(policy).collect()).collect();
    }
    let choice = |choice: u32| {
        let taken = KEEPING.iter().enumerate().filter(|(at, _)| choice >> at & 1 == 1);
        taken.map(|(_, word)| (*word).to_owned()).collect()
    };
    (1..1 << KEEPING.len()).map(choice).collect()
}

impl StepTimeMargin for StepEnds {
    fn step_factor(&self, job: &Job<'_>, ranked: &RankedPlan) -> f64 {
        let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
        ResidualTable::read_carried().interval_of(PredictedQuantity::StepTime, &facts).high
    }
}

/// The step in seconds at the bad end of its interval.
pub(crate) fn bad_end(job: &Job<'_>, ranked: &RankedPlan) -> f64 {
    StepEnds.step_factor(job, ranked) * ranked.time.total.0
}

/// Searches the plans with the smallest bad end of their interval, best first. The best plan that the stack's framework
/// can run is among them or follows them.
///
/// No interval ends below the predicted time. Therefore a plan that is predicted slower than the best bad end cannot be
/// better. Plans are considered until only such plans are left, up to a thousand, or until the watch stops the search.
///
/// # Errors
/// As [`search_plans_watched`].
pub fn search_robust(job: &Job<'_>, space: &PlanSpace, top: usize, watch: PlanWatch<'_>) -> Result<PlanAnswer, StepError> {
    let mut wanted = (top * MORE).min(MOST);
    loop {
        let mut answer = search_plans_watched(job, space, wanted, watch)?;
        let mut ends: Vec<(f64, RankedPlan)> =
            std::mem::take(&mut answer.best).into_iter().map(|ranked| (bad_end(job, &ranked), ranked)).collect();
        // The plan that the framework can run may follow the requested ones. Nothing is known about the plans between.
        let slowest = ends.get(wanted.saturating_sub(1)).map_or(f64::INFINITY, |(_, last)| last.time.total.0);
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let settled = answer.stopped.is_some() || ends.first().is_none_or(|(end, _)| slowest >= *end) || wanted == MOST;
        if settled {
            // The best plan that the framework can run is listed at any rank.
            let runs =
                ends.iter().position(|(_, ranked)| job.framework_refusal(&ranked.plan).is_none()).filter(|place| *place >= top);
            let last = runs.map(|place| ends.remove(place));
            answer.best = ends.into_iter().take(top).chain(last).map(|(_, ranked)| ranked).collect();
            return Ok(answer);
        }
        wanted = (wanted * MORE).min(MOST);
    }
}
