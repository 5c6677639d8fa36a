//! Searches plans whose peak memory fits with a given chance.

use super::watched::PlanSearchReporter;
use super::{PlanArguments, requested_spaces, search_space, search_with_fractions, unmet_budget};
use crate::call::Call;
use crate::failure::{Failure, OrInput};
use crate::progress::ProgressDisplay;
use crate::verb::job::LoadedJob;
use crate::verb::stop::StopLimit;
use results::answer::evidence::{fit_probability, memory_margin, need_and_have};
use results::answer::plan::one_line;
use results::report::format_chance;
use search::ask::Question;
use search::planner::{
    Job, NO_MARGIN, PlanAnswer, PlanSpace, PlanWatch, RankedPlan, add_discouraged, scout_plans, search_discouraged,
};
use sim::units::Bytes;
use workloads::Techniques;

/// Parses a chance above 0 and below 1.
pub(in crate::verb) fn parse_fit(text: &str) -> Result<f64, String> {
    let chance = text.trim().parse::<f64>().ok().filter(|chance| *chance > 0.0 && *chance < 1.0);
    chance.ok_or_else(|| {
        "must be greater than 0 and less than 1; use 0.9, or 0.5 to let the predicted peak fill the memory".to_owned()
    })
}

/// The inputs of a search for plans that fit with a chance.
pub(super) struct FitSearch<'a> {
    pub(super) call: &'a Call,
    pub(super) arguments: &'a PlanArguments,
    pub(super) question: &'a Question,
    pub(super) asked: &'a PlanSpace,
    pub(super) techniques: Techniques,
    pub(super) limit: &'a StopLimit,
    pub(super) progress: &'a ProgressDisplay,
}

/// Number of plans from the scout, whose margin the search starts with.
const SCOUTED: usize = 10;

/// A margin that no plan leaves free, with the answer of its search.
pub(super) struct EmptyMargin {
    margin: Bytes,
    answer: PlanAnswer,
}

impl FitSearch<'_> {
    /// Searches the fastest plans that fit with the requested chance. The search starts with the margin of the fastest
    /// plans of a simple kind, because the margin of plans found without one would cost a further search. Returns the
    /// reason too if no plan is left.
    pub(super) fn search_with_margin(
        &self,
        loaded: &mut LoadedJob,
        space: &PlanSpace,
    ) -> Result<(PlanAnswer, Option<String>), Failure> {
        let free = loaded.headroom();
        let mut empty = None;
        let scouted = self.scout(loaded, space)?;
        let stopped = self.limit.is_reached();
        if let Some(margin) = self.scouted_margin(loaded, &scouted).filter(|_| !stopped) {
            loaded.leave_free(margin, self.techniques.clone());
            let answer = self.search(loaded)?;
            if !answer.best.is_empty() {
                return self.keep_margin(loaded, answer, None);
            }
            loaded.set_headroom(free);
            empty = answer.stopped.is_none().then_some(EmptyMargin { margin, answer });
        }
        let job = loaded.planner_job(self.question);
        let mut answer = search_space(self.arguments, &job, space, self.limit, self.progress)?;
        if stopped && answer.best.is_empty() {
            answer.best = scouted;
        }
        unmet_budget(self.question, &job, &answer)?;
        self.keep_margin(loaded, answer, empty)
    }

    /// Returns the fastest plans of a simple kind. Returns none without a requested chance above [`NO_MARGIN`], and
    /// none under a time limit, which is kept for the search itself.
    fn scout(&self, loaded: &LoadedJob, space: &PlanSpace) -> Result<Vec<RankedPlan>, Failure> {
        let asked = self.question.software.fit.filter(|chance| *chance > NO_MARGIN);
        if asked.is_none() || self.arguments.time_limit.is_some() {
            return Ok(Vec::new());
        }
        let watch = PlanWatch { stop: &|| self.limit.is_reached(), told: &|_| {} };
        scout_plans(&loaded.planner_job(self.question), space, SCOUTED, watch).or_input()
    }

    /// Returns the smallest margin that a scouted plan needs to fit with the requested chance; `None` if no scouted
    /// plan needs one above the headroom.
    fn scouted_margin(&self, loaded: &LoadedJob, scouted: &[RankedPlan]) -> Option<Bytes> {
        let (asked, job) = (self.question.software.fit?, loaded.planner_job(self.question));
        risky_margins(&job, scouted, asked).min().filter(|margin| *margin > job.headroom)
    }

    /// Searches again, with a larger margin each time, until all listed plans fit with the asked chance. The margin is
    /// that of the listed plan with the widest errors, so it may exclude a plan with narrower errors. Returns the reason
    /// too if no plan is left.
    pub(super) fn keep_margin(
        &self,
        loaded: &mut LoadedJob,
        mut answer: PlanAnswer,
        empty: Option<EmptyMargin>,
    ) -> Result<(PlanAnswer, Option<String>), Failure> {
        let Some(asked) = self.question.software.fit.filter(|chance| *chance > NO_MARGIN) else {
            return Ok((answer, None));
        };
        let mut refused = None;
        loop {
            let job = loaded.planner_job(self.question);
            let risky = |ranked: &RankedPlan| fit_probability(&job, ranked).is_some_and(|chance| chance < asked);
            let Some(margin) = risky_margins(&job, &answer.best, asked).max() else {
                return Ok((answer.clone(), refused.filter(|_| answer.best.is_empty())));
            };
            refused = refused.or_else(|| refusal(&job, &answer, asked));
            if answer.stopped.is_some() && answer.best.iter().all(risky) {
                // The column of chances shows their risk. An empty list would waste the search.
                tracing::warn!("none of the plans found so far fits with a chance of {}", format_chance(asked));
                return Ok((answer, None));
            }
            if answer.stopped.is_some() || margin <= job.headroom {
                answer.best.retain(|ranked| !risky(ranked));
                return Ok((answer.clone(), refused.filter(|_| answer.best.is_empty())));
            }
            // If the next margin leaves no plan, the listed plans that need no larger margin are the answer.
            let safe = PlanAnswer {
                best: answer.best.iter().filter(|ranked| !risky(ranked)).cloned().collect(),
                ..answer.clone()
            };
            if let Some(empty) = empty.as_ref().filter(|empty| margin >= empty.margin) {
                if !safe.best.is_empty() {
                    return Ok((safe, None));
                }
                loaded.leave_free(empty.margin, self.techniques.clone());
                return Ok((empty.answer.clone(), refused));
            }
            let free = job.headroom;
            loaded.leave_free(margin, self.techniques.clone());
            answer = self.search(loaded)?;
            if answer.best.is_empty() && !safe.best.is_empty() {
                loaded.set_headroom(free);
                return Ok((safe, None));
            }
        }
    }

    /// Adds the fastest discouraged plan that fits with the requested chance, if it is faster than the first plan. The
    /// margin is computed for this plan alone.
    pub(super) fn add_discouraged(&self, loaded: &LoadedJob, answer: &mut PlanAnswer) -> Result<(), Failure> {
        let Some(first) = answer.best.first().map(|first| first.time.total) else { return Ok(()) };
        let (arguments, mut job) = (self.arguments, loaded.planner_job(self.question));
        let (space, _) = requested_spaces(arguments.emit, arguments.everything, &job, &loaded.cluster, self.asked);
        let teller = PlanSearchReporter::new(self.progress);
        let watch = PlanWatch { stop: &|| self.limit.is_reached(), told: &|now| teller.report_progress(now) };
        let listed = answer.best.len();
        add_discouraged(&job, &space, answer, watch).or_input()?;
        let mut found = answer.best.split_off(listed).into_iter().next();
        let asked = self.question.software.fit.filter(|chance| *chance > NO_MARGIN);
        while let (Some(ranked), Some(asked)) = (&found, asked) {
            if fit_probability(&job, ranked).is_none_or(|chance| chance >= asked) {
                break;
            }
            let margin = memory_margin(&job, ranked, asked).filter(|margin| *margin > job.headroom);
            let Some(margin) = margin.filter(|_| answer.stopped.is_none()) else { return Ok(()) };
            job.headroom = margin;
            found = search_discouraged(&job, &space, first, watch).or_input()?;
        }
        answer.best.extend(found);
        Ok(())
    }

    fn search(&self, loaded: &mut LoadedJob) -> Result<PlanAnswer, Failure> {
        let Self { call, arguments, question, asked, limit, progress, .. } = *self;
        let settled = search_with_fractions(call, arguments, question, loaded, asked, limit)?;
        let job = loaded.planner_job(question);
        let (space, _) = requested_spaces(arguments.emit, arguments.everything, &job, &loaded.cluster, asked);
        settled.map_or_else(|| search_space(arguments, &job, &space, limit, progress), Ok)
    }
}

/// Returns the margins of the plans that fit with less than the requested chance.
fn risky_margins(job: &Job<'_>, plans: &[RankedPlan], asked: f64) -> impl Iterator<Item = Bytes> {
    let risky = move |ranked: &&RankedPlan| fit_probability(job, ranked).is_some_and(|chance| chance < asked);
    plans.iter().filter(risky).filter_map(move |ranked| memory_margin(job, ranked, asked))
}

/// Returns the reason why the listed plans are refused: the plan that is most likely to fit, and the cure.
fn refusal(job: &Job<'_>, answer: &PlanAnswer, asked: f64) -> Option<String> {
    let chances = answer.best.iter().filter_map(|ranked| Some((fit_probability(job, ranked)?, ranked)));
    let (chance, ranked) = chances.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let [need, have] = need_and_have(job, ranked).map(Bytes::gib);
    let recompute = if ranked.plan.recomputes_all() { "" } else { " or --recompute full" };
    Some(format!(
        "no plan fits with a chance of {}; {}, needs {need:.2} of {have:.2} GiB and fits with a chance of {}: use \
         more devices{recompute}, or accept the risk with --fit 0.5",
        format_chance(asked),
        one_line(&ranked.plan),
        format_chance(chance)
    ))
}
