//! Plans and designs by their interval's bad end: a search over many plans finds the one that the model is most wrong about in its favour; one whose like has
//! been measured to run as predicted may be the better choice.

use super::facts::{KEEPING, KEEPS, mechanisms_of_policy};
use super::{PredictedQuantity, PredictionFacts, ResidualTable, mechanisms_of_plan};
use search::design::StepTimeMargin;
use search::planner::{Job, PlanAnswer, PlanSpace, PlanWatch, PreparedJob, RankedPlan, search_plans_watched};
use sim::hardware::Accelerator;
use std::collections::BTreeSet;
use step::StepError;

/// The most plans that are looked at.
const MOST: usize = 1000;
/// How many times as many plans as are to be listed are looked at first, and by how much more where they do not settle the order.
const MORE: usize = 4;

/// The bad ends of the intervals of steps, by the carried table.
#[derive(Debug, Clone, Copy)]
pub struct StepEnds;

impl StepEnds {
    /// No plan of a job's space has its interval's bad end at fewer times its predicted step, on a chip of the same family (its kernels run by the same
    /// kind of library) that is as little measured: of every layout and schedule with every policy, and with all together that stages may mix.
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

/// The mechanisms of what plans may keep and run again: of every policy, or, where stages have policies of their own, of every choice of all that there are.
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

/// A step's seconds at the bad end of its interval.
pub(crate) fn bad_end(job: &Job<'_>, ranked: &RankedPlan) -> f64 {
    StepEnds.step_factor(job, ranked) * ranked.time.total.0
}

/// The plans of least step at the bad end of its interval, best first; the best that the stack's framework can run is one of them, or follows them. No interval ends below the predicted time, so that a plan which is predicted
/// to be slower than the best one's bad end cannot be better: plans are looked at until those are all that is left, or a thousand, or the watch stops it.
///
/// # Errors
/// As [`search_plans_watched`].
pub fn search_robust(job: &Job<'_>, space: &PlanSpace, top: usize, watch: PlanWatch<'_>) -> Result<PlanAnswer, StepError> {
    let mut wanted = (top * MORE).min(MOST);
    loop {
        let mut answer = search_plans_watched(job, space, wanted, watch)?;
        let mut ends: Vec<(f64, RankedPlan)> =
            std::mem::take(&mut answer.best).into_iter().map(|ranked| (bad_end(job, &ranked), ranked)).collect();
        // One that the framework can run may follow those that are wanted: of what is between, nothing is known.
        let slowest = ends.get(wanted.saturating_sub(1)).map_or(f64::INFINITY, |(_, last)| last.time.total.0);
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let settled = answer.stopped.is_some() || ends.first().is_none_or(|(end, _)| slowest >= *end) || wanted == MOST;
        if settled {
            // The best that the framework can run is listed, whatever its place.
            let runs =
                ends.iter().position(|(_, ranked)| job.framework_refusal(&ranked.plan).is_none()).filter(|place| *place >= top);
            let last = runs.map(|place| ends.remove(place));
            answer.best = ends.into_iter().take(top).chain(last).map(|(_, ranked)| ranked).collect();
            return Ok(answer);
        }
        wanted = (wanted * MORE).min(MOST);
    }
}
