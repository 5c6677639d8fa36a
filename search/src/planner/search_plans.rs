//! Searches a space for its fastest plans: first over its plans, then over their layer splits and policy mixes.

use crate::ask::Splits;
use crate::planner::ranked::keep_one_of_alike;
use crate::planner::search::core::{EvaluatedGroups, PlanSearch};
use crate::planner::search::found::{FoundPlans, ROUNDING, SplitStatistics};
use crate::planner::{Job, PlanAnswer, PlanSpace, PlanWatch, RankedPlan, SPLIT_TOLERANCE};
use sim::units::Seconds;
use step::{MixKind, StepError};

/// Returns the `top` fastest plans of `space` that the stack's framework documents, fastest first
/// ([`search_documented`]). If the fastest discouraged plan is faster than the first of them, it follows as the last
/// ([`add_discouraged`]).
///
/// # Errors
/// A chip that the cost model cannot use.
pub fn search_plans(job: &Job<'_>, space: &PlanSpace, top: usize) -> Result<PlanAnswer, StepError> {
    search_plans_watched(job, space, top, PlanWatch::NONE)
}

/// As [`search_plans`], with progress reports and a stop. A stopped search returns the best plans so far and a lower
/// bound ([`PlanAnswer::stopped`]).
///
/// # Errors
/// As [`search_plans`].
pub fn search_plans_watched(
    job: &Job<'_>,
    space: &PlanSpace,
    top: usize,
    watch: PlanWatch<'_>,
) -> Result<PlanAnswer, StepError> {
    let mut answer = search_documented(job, space, top, watch)?;
    add_discouraged(job, space, &mut answer, watch)?;
    Ok(answer)
}

/// Returns the `top` fastest plans of `space` that the stack's framework documents, fastest first. If the framework
/// cannot run the first, the list also has the fastest plan that it can run, if necessary as one plan more. If no
/// documented plan fits, the list is that of all plans.
///
/// # Errors
/// As [`search_plans`].
pub fn search_documented(
    job: &Job<'_>,
    space: &PlanSpace,
    top: usize,
    watch: PlanWatch<'_>,
) -> Result<PlanAnswer, StepError> {
    let documented = space.documented(job);
    let answer = search_with_runnable(job, documented.as_ref().unwrap_or(space), top, watch)?;
    if answer.best.is_empty() && documented.is_some() {
        return search_with_runnable(job, space, top, watch);
    }
    Ok(answer)
}

/// Completes an answer of [`search_documented`] with the fastest plan that the framework discourages. Adds it only if
/// it is faster than the answer's first plan, so the search prunes all slower plans. The answer then covers all plans
/// of the space. Changes nothing if the answer is empty or its first plan is itself discouraged.
///
/// # Errors
/// As [`search_plans`].
pub fn add_discouraged(
    job: &Job<'_>,
    space: &PlanSpace,
    answer: &mut PlanAnswer,
    watch: PlanWatch<'_>,
) -> Result<(), StepError> {
    // Without documented plans, or if none fits, the answer is about all plans already.
    let first = answer.best.first().filter(|first| job.discouragement(&first.plan).is_none());
    let discouraged = space.documented(job).and_then(|_| space.discouraged(job));
    let (Some(first), Some(space)) = (first, discouraged) else { return Ok(()) };
    let limit = first.time.total.0;
    let other = search_below(job, &space, 1, limit, watch)?;
    answer.add_counts(&other);
    let fastest = other.best.into_iter().next().filter(|ranked| is_faster(ranked, limit));
    if answer.stopped.is_some() || other.stopped.is_some() {
        let known = fastest.as_ref().map_or(limit, |ranked| ranked.time.total.0);
        let bounds = [answer.stopped, other.stopped].into_iter().flatten().map(|bound| bound.0);
        answer.stopped = Some(Seconds(bounds.fold(known, f64::min)));
    }
    answer.best.extend(fastest);
    Ok(())
}

/// True if a plan takes less than `limit` seconds, and not only by rounding.
fn is_faster(ranked: &RankedPlan, limit: f64) -> bool {
    ranked.time.total.0 < limit * (1.0 - ROUNDING)
}

/// Searches a space for its fastest plans. If the framework cannot run the first, the fastest that it can run is among
/// them or follows them.
fn search_with_runnable(
    job: &Job<'_>,
    space: &PlanSpace,
    top: usize,
    watch: PlanWatch<'_>,
) -> Result<PlanAnswer, StepError> {
    let mut answer = search_one_of_alike(job, space, top, watch)?;
    let runs = |ranked: &RankedPlan| job.framework_refusal(&ranked.plan).is_none();
    if answer.best.first().is_none_or(runs) {
        return Ok(answer);
    }
    // The list has only the fastest mix of policies of a plan, which the framework may not be able to run.
    let listed = if space.mix_kind() > job.stack.framework.mixes { None } else { answer.best.iter().position(runs) };
    let first = match (listed, space.runnable(job)) {
        (Some(place), _) => Some(answer.best.remove(place)),
        (None, Some(narrow)) => {
            let narrow = search_one_of_alike(job, &narrow, 1, watch)?;
            let fastest = answer.best.first().map_or(f64::INFINITY, |best| best.time.total.0);
            answer.stopped = answer.stopped.or(narrow.stopped).map(|bound| Seconds(bound.0.min(fastest)));
            narrow.best.into_iter().next().filter(runs)
        }
        (None, None) => None,
    };
    if let Some(first) = first {
        answer.best.retain(|other| other.plan != first.plan);
        answer.best.truncate(top);
        let place = answer.best.partition_point(|other| other.time.total.0 <= first.time.total.0);
        answer.best.insert(place, first);
        answer.best.truncate(top.max(place + 1));
    }
    Ok(answer)
}

/// Factor by which the list grows if it holds too many similar plans.
const LONGER: usize = 4;

/// Searches for the fastest plans, and keeps one of each set of similar plans.
fn search_one_of_alike(
    job: &Job<'_>,
    space: &PlanSpace,
    top: usize,
    watch: PlanWatch<'_>,
) -> Result<PlanAnswer, StepError> {
    // Most searches for several plans need the longer list. It takes little more time than the shorter one, unless
    // every plan of the list gets its best split.
    let is_quick = top > 1 && !matches!(space.splits, Some(Splits::Best));
    let (mut length, mut shorter) = (if is_quick { top.saturating_mul(LONGER) } else { top }, None);
    loop {
        let mut answer = search_once(job, space, length, watch)?;
        let all = answer.best.len() < length;
        answer.best = keep_one_of_alike(answer.best);
        if let (Some(shorter), Some(_)) = (shorter.take(), answer.stopped) {
            // This search was stopped. The shorter list comes from the last complete search.
            return Ok(shorter);
        }
        // Similar plans leave too little room for others. Search for a longer list until it has `top` different plans,
        // holds all plans, or reaches the length limit.
        if answer.best.len() >= top || all || length >= top.saturating_mul(LONGER * LONGER) || answer.stopped.is_some()
        {
            answer.best.truncate(top);
            return Ok(answer);
        }
        length *= LONGER;
        shorter = Some(answer);
    }
}

/// Searches for the fastest plans, including similar ones.
pub(crate) fn search_once(
    job: &Job<'_>,
    space: &PlanSpace,
    top: usize,
    watch: PlanWatch<'_>,
) -> Result<PlanAnswer, StepError> {
    search_below(job, space, top, f64::INFINITY, watch)
}

/// Returns the fastest plans, including similar ones. Plans that take longer than `most` seconds may be missing.
fn search_below(
    job: &Job<'_>,
    space: &PlanSpace,
    top: usize,
    most: f64,
    watch: PlanWatch<'_>,
) -> Result<PlanAnswer, StepError> {
    // Times of the small space give no upper bound if the space's plans only recompute blocks.
    let usual = usual_subspace(space).filter(|_| !space.has_only_blocks());
    let usual = usual.map(|usual| InnerSpace::new(job, &usual, top, most, watch)).transpose()?;
    let limit = usual.as_ref().map_or(most, |within| within.limit);
    let search = PlanSearch { limit, ..PlanSearch::new(job, space, top, watch)? };
    let EvaluatedGroups { mut found, loads } = search.evaluate_all_groups();
    let simulated = search.settle_open_plans(&mut found);
    let (tried, split_tolerance) = match space.splits {
        Some(Splits::Listed(_)) => (SplitStatistics::default(), None),
        Some(Splits::Best) => (search.find_best_splits(&mut found, &loads), Some(0.0)),
        None | Some(Splits::Near | Splits::NearOf(_)) => {
            (search.find_near_splits(&mut found, &loads), Some(SPLIT_TOLERANCE))
        }
    };
    search.add_block_plans(space, &mut found);
    let mixed = (search.mixes != MixKind::None).then(|| search.add_mixed_plans(&mut found));
    let bound = search.standing.was_stopped().then(|| search.lower_bound_when_stopped(&found, split_tolerance, mixed));
    let mut answer = PlanAnswer { split_tolerance, mixed, ..search.finish_answer(found, simulated, tried, top)? };
    if let Some(bound) = bound {
        answer.stopped = Some(bound);
        usual.into_iter().try_for_each(|within| within.add_to_stopped(&mut answer, top))?;
    }
    Ok(answer)
}

/// The small space within a space, if it has one.
pub(crate) fn usual_subspace(space: &PlanSpace) -> Option<PlanSpace> {
    let Some(Splits::NearOf(usual)) = &space.splits else { return None };
    let policies = space.policies();
    let open = space.open_policies(&policies);
    let activations = policies.into_iter().zip(open).filter_map(|(policy, open)| open.then_some(policy)).collect();
    Some(PlanSpace { activations: Some(activations), splits: Some(Splits::Best), ..PlanSpace::clone(usual) })
}

/// The plans of a small space, searched before the space that contains it.
struct InnerSpace<'a> {
    search: PlanSearch<'a>,
    found: FoundPlans,
    /// Upper bound in seconds on the last plan of the containing space's list.
    limit: f64,
}

impl<'a> InnerSpace<'a> {
    fn new(
        job: &'a Job<'a>,
        space: &PlanSpace,
        top: usize,
        most: f64,
        watch: PlanWatch<'a>,
    ) -> Result<Self, StepError> {
        let search = PlanSearch { limit: most, ..PlanSearch::new(job, space, top, watch)? };
        let EvaluatedGroups { mut found, .. } = search.evaluate_all_groups();
        search.settle_open_plans(&mut found);
        let limit = most.min(found.cutoff_for_count(search.length) * (1.0 + ROUNDING));
        Ok(Self { search, found, limit })
    }

    /// Adds the small space's plans to the answer of a stopped search, which may not have reached them.
    fn add_to_stopped(self, answer: &mut PlanAnswer, top: usize) -> Result<(), StepError> {
        let own = self.search.finish_answer(self.found, 0, SplitStatistics::default(), top)?;
        for ranked in own.best {
            if answer.best.iter().all(|known| known.plan != ranked.plan) {
                answer.best.push(ranked);
            }
        }
        answer.best.sort_by(|a, b| a.time.total.0.total_cmp(&b.time.total.0));
        answer.best.truncate(top);
        let fastest = answer.best.first().map_or(f64::INFINITY, |best| best.time.total.0);
        answer.stopped = answer.stopped.map(|bound| Seconds(bound.0.min(fastest)));
        Ok(())
    }
}
