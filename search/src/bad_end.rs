//! Ranks plans and designs by the bad end of their step-time interval.
//!
//! A search over many plans tends to find the plan that the model flatters most. Another plan may be the better choice,
//! if measurements of similar plans agree with the predictions. So a robust search counts a step at the upper end of
//! its 90 % interval.

use crate::planner::{Job, PlanAnswer, PlanSpace, PlanWatch, PreparedJob, RankedPlan, search_documented};
use measured::evidence::{
    Mechanism, PredictedQuantity, PredictionFacts, ResidualTable, mechanisms_of_plan, mechanisms_of_policy,
};
use sim::hardware::Accelerator;
use std::collections::BTreeSet;
use step::StepError;

/// Limit on the plans that are ranked by their bad ends.
const MOST: usize = 1000;
/// Factor from the listed plans to the plans that are ranked first. The number grows by the same factor while the order
/// is open.
const MORE: usize = 4;

/// The seconds of a step at the bad end of its interval, divided by the predicted seconds: 1 or more.
#[must_use]
pub fn bad_end_factor(job: &Job<'_>, ranked: &RankedPlan) -> f64 {
    let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
    ResidualTable::read_carried().interval_of(PredictedQuantity::StepTime, &facts).high
}

/// A step's seconds at the bad end of its interval.
#[must_use]
pub fn step_at_bad_end(job: &Job<'_>, ranked: &RankedPlan) -> f64 {
    bad_end_factor(job, ranked) * ranked.time.total.0
}

/// A lower bound on [`bad_end_factor`] over all plans of a job's space, on any chip of the same family with as few
/// measurements. 1 if the space has no plan.
///
/// It combines the mechanisms of every layout and schedule with those of every policy. If stages may mix policies, it
/// takes every set of policy mechanisms.
#[must_use]
pub fn least_bad_end_factor(prepared: &PreparedJob<'_>, chip: &Accelerator) -> f64 {
    let (job, mut kinds, mut any) = (prepared.job(chip), BTreeSet::new(), None);
    let kept = mechanisms_of_space(prepared, chip);
    for plan in prepared.one_plan_per_layout() {
        let mut layout = mechanisms_of_plan(job.model, &plan, job.stack, job.fabric.fast_domain_devices());
        layout.remove(&Mechanism::KeepAll);
        if kinds.insert(layout) {
            any = Some(plan);
        }
    }
    let Some(plan) = any else { return 1.0 };
    let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &plan);
    let table = ResidualTable::read_carried();
    let end = |mechanisms: BTreeSet<Mechanism>| {
        table.interval_of(PredictedQuantity::StepTime, &PredictionFacts { mechanisms, ..facts.clone() }).high
    };
    let all = kinds.iter().flat_map(|layout| kept.iter().map(move |kept| layout | kept));
    all.map(end).fold(f64::INFINITY, f64::min)
}

/// The sets of mechanisms by which plans of a space keep or recompute tensors. If stages have their own policies, these
/// are all non-empty subsets of the known mechanisms.
fn mechanisms_of_space(prepared: &PreparedJob<'_>, chip: &Accelerator) -> BTreeSet<BTreeSet<Mechanism>> {
    if !prepared.mixes_policies() {
        return prepared.policies().iter().map(|policy| mechanisms_of_policy(policy).collect()).collect();
    }
    let may_store = chip.storage.is_some();
    let mut known = Mechanism::OF_POLICIES.to_vec();
    known.retain(|mechanism| may_store || *mechanism != Mechanism::OffloadToNvme);
    let choice = |choice: u32| {
        let taken = known.iter().enumerate().filter(|(at, _)| choice >> at & 1 == 1);
        taken.map(|(_, mechanism)| mechanism.clone()).collect()
    };
    (1..1 << known.len()).map(choice).collect()
}

/// Searches for the `top` documented plans with the shortest steps at the bad end of their interval, best first. If the
/// stack's framework can run none of them, the best plan that it can run follows.
///
/// No interval ends below the predicted time, so a plan that is predicted slower than the best bad end cannot win. The
/// search ranks more plans until only such plans are left, a thousand are ranked, or the watch stops it.
///
/// # Errors
/// As [`search_documented`].
pub fn search_plans_by_bad_end(
    job: &Job<'_>,
    space: &PlanSpace,
    top: usize,
    watch: PlanWatch<'_>,
) -> Result<PlanAnswer, StepError> {
    let mut wanted = (top * MORE).min(MOST);
    loop {
        let mut answer = search_documented(job, space, wanted, watch)?;
        let mut ends: Vec<(f64, RankedPlan)> = std::mem::take(&mut answer.best)
            .into_iter()
            .map(|ranked| (step_at_bad_end(job, &ranked), ranked))
            .collect();
        // The best runnable plan may follow the wanted ones in the list. Plans between them are unknown.
        let slowest = ends.get(wanted.saturating_sub(1)).map_or(f64::INFINITY, |(_, last)| last.time.total.0);
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let settled = answer.stopped.is_some() || ends.first().is_none_or(|(end, _)| slowest >= *end) || wanted == MOST;
        if settled {
            // The best runnable plan is listed, whatever its rank.
            let runs = ends
                .iter()
                .position(|(_, ranked)| job.framework_refusal(&ranked.plan).is_none())
                .filter(|place| *place >= top);
            let last = runs.map(|place| ends.remove(place));
            answer.best = ends.into_iter().take(top).chain(last).map(|(_, ranked)| ranked).collect();
            return Ok(answer);
        }
        wanted = (wanted * MORE).min(MOST);
    }
}
