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
            let runs = ends.iter().position(|(_, ranked)| job.cannot_run(&ranked.plan).is_none()).filter(|place| *place >= top);
            let last = runs.map(|place| ends.remove(place));
            answer.best = ends.into_iter().take(top).chain(last).map(|(_, ranked)| ranked).collect();
            return Ok(answer);
        }
        wanted = (wanted * MORE).min(MOST);
    }
}
