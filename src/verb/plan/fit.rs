//! The chance with which plans must fit: its argument, and the reason why no plan fits with it.

use results::answer::evidence::{fit_probability, need_and_have};
use results::answer::plan::one_line;
use results::report::format_chance;
use search::planner::{Job, RankedPlan};
use sim::units::Bytes;

/// Parses a chance above 0 and below 1.
pub(in crate::verb) fn parse_fit(text: &str) -> Result<f64, String> {
    let chance = text.trim().parse::<f64>().ok().filter(|chance| *chance > 0.0 && *chance < 1.0);
    chance.ok_or_else(|| {
        "must be greater than 0 and less than 1; use 0.9, or 0.5 to let the predicted peak fill the memory".to_owned()
    })
}

/// Returns why no plan fits with the chance `asked`, and the cure. The text names the one of `plans` that is most
/// likely to fit. `None` if no plan has a known chance.
pub(super) fn refusal_of_margin<'a>(
    job: &Job<'_>,
    plans: impl Iterator<Item = &'a RankedPlan>,
    asked: f64,
) -> Option<String> {
    let chances = plans.filter_map(|ranked| Some((fit_probability(job, ranked)?, ranked)));
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
