//! Plans by their interval's bad end: a search over many plans finds the one that the model is most wrong about in its favour; one whose like has
//! been measured to run as predicted may be the better choice.

use super::{Facts, Quantity, Residuals};
use search::planner::{Job, PlanAnswer, PlanSpace, PlanWatch, RankedPlan, search_plans_watched};
use step::StepError;

/// The most plans that are looked at.
const MOST: usize = 1000;
/// How many times as many plans as are to be listed are looked at first, and by how much more where they do not settle the order.
const MORE: usize = 4;

/// A step's seconds at the bad end of its interval.
fn bad_end(job: &Job<'_>, ranked: &RankedPlan) -> f64 {
    let facts = Facts::new(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
    let table = Residuals::carried();
    table.interval_of(Quantity::StepTime, &facts).high * ranked.time.total.0
}

/// The plans of least step at the bad end of its interval, best first. No interval ends below the predicted time, so that a plan which is predicted
/// to be slower than the best one's bad end cannot be better: plans are looked at until those are all that is left, or a thousand, or the watch stops it.
///
/// # Errors
/// As [`search_plans_watched`].
pub fn search_robust(job: &Job<'_>, space: &PlanSpace, top: usize, watch: PlanWatch<'_>) -> Result<PlanAnswer, StepError> {
    let mut wanted = (top * MORE).min(MOST);
    loop {
        let mut answer = search_plans_watched(job, space, wanted, watch)?;
        let slowest = answer.best.iter().map(|ranked| ranked.time.total.0).fold(0.0, f64::max);
        let mut ends: Vec<(bool, f64, RankedPlan)> = std::mem::take(&mut answer.best)
            .into_iter()
            .map(|ranked| (job.cannot_run(&ranked.plan).is_some(), bad_end(job, &ranked), ranked))
            .collect();
        let found = ends.len();
        ends.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let settled = answer.stopped.is_some()
            || ends.first().is_none_or(|(_, end, _)| slowest >= *end)
            || found < wanted
            || wanted == MOST;
        if settled {
            answer.best = ends.into_iter().map(|(.., ranked)| ranked).take(top).collect();
            return Ok(answer);
        }
        wanted = (wanted * MORE).min(MOST);
    }
}
