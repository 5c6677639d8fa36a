//! Estimates how sure the choice of a design is. Designs that may be the best are evaluated under draws of the
//! uncertain constants, with the same draws for all designs.

use super::climb::{climb_under, designs_by_value};
use super::draws::{ConstantDraws, InfluentialConstants};
use super::{DesignAnswer, DesignSearch};
use crate::random::SeededRandom;
use crate::runner::Verdict;
use crate::space::{ChipLimits, DesignId, Space};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Limit on finalists from the front. The best designs come first.
const FROM_FRONT: usize = 12;
/// A design of the front that is worse than the best by more than this fraction is no finalist by itself.
const NEAR: f64 = 0.1;
/// Number of draws for screening. Finalists that are far behind under these draws are dropped.
const SCREENED: usize = 32;
/// Limit on finalists that are evaluated under all draws, unless all designs of a small space are finalists.
const KEPT: usize = 12;
/// A design that is worse than a draw's best by more than this fraction gets its lower bound instead of its value.
const FAR: f64 = 0.5;
/// Number of parts of an input's range. The best design is chosen anew in each part.
const BINS: usize = 8;
/// Number of shuffled inputs. Their apparent worth is noise.
const SHUFFLES: u64 = 16;

/// The effort of an analysis: numbers of draws and finalists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionEffort {
    /// Draws under which finalists are evaluated.
    pub draws: usize,
    /// Number of draws for which the draw's own best design is searched.
    pub climbs: usize,
    /// Spaces with at most this many designs have all of them as finalists.
    pub all_up_to: usize,
    /// The seed of the draws.
    pub seed: u64,
}

impl Default for DecisionEffort {
    fn default() -> Self {
        Self { draws: 256, climbs: 24, all_up_to: 96, seed: 0 }
    }
}

/// A design that may be the best one.
#[derive(Debug, Clone, PartialEq)]
pub struct Finalist {
    /// The design.
    pub id: DesignId,
    /// Its minimised value by draw. Infinite if it exceeds the power limit or has no plan. A lower bound if it is far
    /// behind the draw's best.
    pub values: Vec<f64>,
    /// The fraction of draws in which it is the best finalist.
    pub probability_best: f64,
    /// Mean regret over the draws: the fraction by which it is worse than the draw's best, or 1 if it has no value.
    pub regret_expected: f64,
    /// The 95th percentile of the regret over the draws.
    pub regret_95: f64,
    /// The fraction of draws in which it exceeds a limit of area or cost, or cannot be built.
    pub over_limits: f64,
    /// The fraction of draws in which it loses all: it exceeds the limit of power even at its lowest clock, or has no
    /// plan.
    pub lost: f64,
}

/// The probability that the best design of a draw agrees with the found design in one dimension.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledDimension {
    /// The dimension.
    pub key: String,
    /// The found design's value.
    pub value: String,
    /// The fraction of draws in which they agree.
    pub probability: f64,
    /// The most frequent other value with its fraction.
    pub other: Option<(String, f64)>,
}

/// A constant, and the worth of knowing it.
#[derive(Debug, Clone, PartialEq)]
pub struct InputWorth {
    /// The constant's key.
    pub key: String,
    /// The fall of the expected regret if the constant were known, as a fraction: the expected value of partial perfect
    /// information, less the most that shuffled draws of the constant seem worth.
    pub worth: f64,
    /// The found design's mean lead over the best other finalist, as a fraction. The mean is over the quarter of the
    /// draws in which the constant is lowest.
    pub lead_low: f64,
    /// The same lead in the quarter of the draws with the highest values.
    pub lead_high: f64,
}

/// The result of an analysis of how sure a choice is.
#[derive(Debug, Clone, PartialEq)]
pub struct DecisionAnswer {
    /// The draws under which at least one finalist is within the limit of power and has a plan.
    pub draws: ConstantDraws,
    /// The number of draws without such a finalist. They say nothing about the choice.
    pub left_out: usize,
    /// The finalists: the found design, then the others by their expected regret.
    pub finalists: Vec<Finalist>,
    /// Index in `finalists` of the one with the least expected regret.
    pub robust: usize,
    /// The number of finalists before those far behind were dropped.
    pub considered: usize,
    /// The estimated fraction of further draws whose best design is no finalist (Good and Turing); 0 if all designs are
    /// finalists.
    pub missed: f64,
    /// Agreement of the draws' best designs with the found design, for each dimension with several values.
    pub settled: Vec<SettledDimension>,
    /// The constants that change the objective's value, those most worth knowing first.
    pub inputs: Vec<InputWorth>,
}

/// Estimates how sure the best design of an answer is. `None` if the answer has no best design, if no constant that
/// could be drawn changes the designs, or if `stop` returned true.
///
/// # Errors
/// An error that the space's enumeration has already reported, or no draw in which a finalist has a value.
pub fn decide_under_draws(
    search: &DesignSearch<'_>,
    answer: &DesignAnswer,
    effort: DecisionEffort,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Option<DecisionAnswer>, String> {
    let Some(best) = answer.best else { return Ok(None) };
    let search = &DesignSearch { robust: None, ..*search };
    let mut ids = near_designs(answer, best);
    let mut missed = 0.0;
    let all = search.space.design_count() <= effort.all_up_to;
    if all {
        let every = (0..search.space.chip_count()).map(|point| search.space.with_largest_memory(point));
        ids.extend(every.filter(|id| search.space.single_point(id.point).is_ok_and(|one| one.is_chip())));
    } else {
        let tops = climb_under_draws(search, &ids, effort, stop)?;
        missed = unseen_fraction(&tops);
        ids.extend(tops);
    }
    let mut seen = BTreeSet::new();
    ids.retain(|id| seen.insert((id.point, id.hbm.map(|hbm| hbm.0))));
    if stop() {
        return Ok(None);
    }
    // A constant that changes a single finalist affects the decision too.
    let InfluentialConstants { keys, moves_value } = search.influential_constants(&ids)?;
    if keys.is_empty() {
        return Ok(None);
    }
    let draws = ConstantDraws::draw_constants(keys, effort.draws, effort.seed);
    let spaces = draws.drawn_spaces(search.space, effort.draws);
    let considered = ids.len();
    if considered > KEPT && !all {
        let screened = evaluate_under_draws(search, &spaces[..SCREENED.min(spaces.len())], &ids);
        ids = keep_promising(&ids, &screened);
    }
    let values = evaluate_under_draws(search, &spaces, &ids);
    let over = |id: &DesignId| over_limits(search.space, &spaces, *id);
    let over: Vec<f64> = ids.par_iter().with_max_len(1).map(over).collect();
    let answer = answer_of_values(search.space, draws, DrawnValues { ids, values, over }, considered)?;
    let moving: Vec<&String> =
        answer.draws.keys.iter().zip(&moves_value).filter(|(_, moves)| **moves).map(|(key, _)| key).collect();
    let inputs = answer.inputs.iter().filter(|input| moving.contains(&&input.key)).cloned().collect();
    Ok(Some(DecisionAnswer { missed, inputs, ..answer }))
}

/// Climbs to the best design by its bounds under each of the first draws. Drawn constants are those that change the
/// designs near the found one, or a design with another value in one dimension.
fn climb_under_draws(
    search: &DesignSearch<'_>,
    near: &[DesignId],
    effort: DecisionEffort,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<DesignId>, String> {
    let Some(&found) = near.first() else { return Ok(Vec::new()) };
    let mut shown = near.to_vec();
    shown.extend(designs_by_value(search.space, found));
    let keys = search.influential_constants(&shown)?.keys;
    let draws = ConstantDraws::draw_constants(keys, effort.draws, effort.seed);
    let spaces = draws.drawn_spaces(search.space, effort.climbs);
    let climb = |drawn: &Space| climb_under(&DesignSearch { space: drawn, ..*search }, search.space, found, stop);
    spaces.par_iter().with_max_len(1).map(climb).collect()
}

/// The best designs of the front, the found one first. Other evaluated designs are left out, because they depend on the
/// path of the search.
fn near_designs(answer: &DesignAnswer, best: usize) -> Vec<DesignId> {
    let most = answer.value_of_design(best) * (1.0 + NEAR);
    let mut near: Vec<usize> =
        answer.front.iter().copied().filter(|at| *at != best && answer.value_of_design(*at) <= most).collect();
    near.sort_by(|a, b| answer.value_of_design(*a).total_cmp(&answer.value_of_design(*b)).then(a.cmp(b)));
    let found = std::iter::once(best).chain(near.into_iter().take(FROM_FRONT - 1));
    found.map(|at| answer.designs[at].id).collect()
}

/// The fraction of draws whose best design no other draw has: the estimate of Good and Turing for unseen designs.
fn unseen_fraction(tops: &[DesignId]) -> f64 {
    let once = tops.iter().filter(|id| tops.iter().filter(|other| other == id).count() == 1).count();
    once as f64 / tops.len().max(1) as f64
}

/// Evaluates designs under all draws. Returns their minimised values by design and draw.
fn evaluate_under_draws(search: &DesignSearch<'_>, spaces: &[Space], ids: &[DesignId]) -> Vec<Vec<f64>> {
    let of_draw = |space: &Space| -> Vec<f64> {
        let there = DesignSearch { space, ..*search };
        let mut best = f64::INFINITY;
        ids.iter()
            .map(|id| {
                let value = if exceeds_power(space, *id) {
                    f64::INFINITY
                } else {
                    match there.evaluate_design(*id, best * (1.0 + FAR)) {
                        Verdict::Feasible { value, .. } => value,
                        Verdict::Beaten(bound) => bound,
                        Verdict::Infeasible(_) => f64::INFINITY,
                    }
                };
                best = best.min(value);
                value
            })
            .collect()
    };
    let by_draw: Vec<Vec<f64>> = spaces.par_iter().with_max_len(1).map(of_draw).collect();
    (0..ids.len()).map(|design| by_draw.iter().map(|values| values[design]).collect()).collect()
}

/// True if a design takes more power than allowed even at its lowest clock. A lower limit that the search chose to save
/// energy does not count: the chip then runs at its lowest clock.
fn exceeds_power(space: &Space, id: DesignId) -> bool {
    let Ok(chip) = space.chip_of_design(id) else { return true };
    let figures = space.figures_of_design(id, &chip);
    let most = ChipLimits { lower_to_w: None, ..*space.limits() }.power_limit(&chip, figures.area);
    // The lowered clock meets the limit only up to a tolerance.
    most.is_some_and(|limit| figures.peak_power.0 > limit.most.0 * (1.0 + 1e-6))
}

/// Keeps the found design and the finalists with the least expected regret.
fn keep_promising(ids: &[DesignId], values: &[Vec<f64>]) -> Vec<DesignId> {
    let regrets = regrets_of(values);
    let mean = |design: usize| regrets[design].iter().sum::<f64>();
    let mut others: Vec<usize> = (1..ids.len()).collect();
    others.sort_by(|a, b| mean(*a).total_cmp(&mean(*b)).then(a.cmp(b)));
    std::iter::once(0).chain(others.into_iter().take(KEPT - 1)).map(|at| ids[at]).collect()
}

/// The regrets by design and draw: the fraction by which the design is worse than the draw's best, or 1 without a
/// value.
fn regrets_of(values: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let draws = values.first().map_or(0, Vec::len);
    let best: Vec<f64> =
        (0..draws).map(|draw| values.iter().map(|of| of[draw]).fold(f64::INFINITY, f64::min)).collect();
    let regret = |(value, best): (&f64, &f64)| if value.is_finite() { value / best - 1.0 } else { 1.0 };
    values.iter().map(|of| of.iter().zip(&best).map(regret).collect()).collect()
}

/// The fraction of draws in which a design cannot be built or exceeds a limit. The power limit does not count, because
/// it lowers the clock instead.
fn over_limits(space: &Space, spaces: &[Space], id: DesignId) -> f64 {
    let exceeds = |drawn: &&Space| {
        let Ok(chip) = drawn.chip_of_design(id) else { return true };
        let figures = drawn.figures_of_design(id, &chip);
        let limits = space.limits();
        limits.first_exceeded(&figures).is_some() || limits.find_unbuildable(&chip, &figures).ok().flatten().is_some()
    };
    spaces.iter().filter(exceeds).count() as f64 / spaces.len().max(1) as f64
}

/// Designs with their values and the chance that they exceed limits.
struct DrawnValues {
    ids: Vec<DesignId>,
    values: Vec<Vec<f64>>,
    over: Vec<f64>,
}

fn answer_of_values(
    space: &Space,
    draws: ConstantDraws,
    drawn: DrawnValues,
    considered: usize,
) -> Result<DecisionAnswer, String> {
    let DrawnValues { ids, values, over } = drawn;
    let drawn_count = draws.places.len();
    let usable: Vec<usize> = (0..drawn_count).filter(|draw| values.iter().any(|of| of[*draw].is_finite())).collect();
    if usable.is_empty() {
        return Err("in none of the draws a design is within the limit of power and has a plan".into());
    }
    let values: Vec<Vec<f64>> = values.iter().map(|of| usable.iter().map(|draw| of[*draw]).collect()).collect();
    let places = usable.iter().map(|draw| draws.places[*draw].clone()).collect();
    let (count, draws) = (usable.len(), ConstantDraws { places, ..draws });
    let regrets = regrets_of(&values);
    let winners = winners_of_draws(&regrets);
    let mean = |of: &[f64]| of.iter().sum::<f64>() / count as f64;
    let mut finalists: Vec<Finalist> = Vec::new();
    for (design, id) in ids.iter().enumerate() {
        let mut sorted = regrets[design].clone();
        sorted.sort_by(f64::total_cmp);
        finalists.push(Finalist {
            id: *id,
            values: values[design].clone(),
            probability_best: winners.iter().filter(|winner| **winner == design).count() as f64 / count as f64,
            regret_expected: mean(&regrets[design]),
            regret_95: sorted[((count as f64 * 0.95).ceil() as usize).clamp(1, count) - 1],
            over_limits: over[design],
            lost: values[design].iter().filter(|value| !value.is_finite()).count() as f64 / count as f64,
        });
    }
    let settled = settle_dimensions(space, &ids, &winners);
    let inputs = worth_of_inputs(&draws, &values, &regrets);
    let least = |a: &usize, b: &usize| finalists[*a].regret_expected.total_cmp(&finalists[*b].regret_expected);
    let mut order: Vec<usize> = (1..finalists.len()).collect();
    order.sort_by(|a, b| least(a, b).then(a.cmp(b)));
    order.insert(0, 0);
    let finalists: Vec<Finalist> = order.iter().map(|at| finalists[*at].clone()).collect();
    let robust = (0..finalists.len())
        .min_by(|a, b| finalists[*a].regret_expected.total_cmp(&finalists[*b].regret_expected))
        .unwrap_or_default();
    let left_out = drawn_count - count;
    Ok(DecisionAnswer { draws, left_out, finalists, robust, considered, missed: 0.0, settled, inputs })
}

/// The best design of each draw. On ties the first one wins.
fn winners_of_draws(regrets: &[Vec<f64>]) -> Vec<usize> {
    let draws = regrets.first().map_or(0, Vec::len);
    let least = |draw: usize| {
        (0..regrets.len()).min_by(|a, b| regrets[*a][draw].total_cmp(&regrets[*b][draw])).unwrap_or_default()
    };
    (0..draws).map(least).collect()
}

fn settle_dimensions(space: &Space, ids: &[DesignId], winners: &[usize]) -> Vec<SettledDimension> {
    let values: Vec<Vec<(String, String)>> = ids
        .iter()
        .map(|id| space.varied_dimensions(*id).unwrap_or_default())
        .map(|of| of.into_iter().map(|(key, value)| (key, value.to_string())).collect())
        .collect();
    let Some(found) = values.first() else { return Vec::new() };
    let of = |at: usize| {
        let (key, value) = found[at].clone();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        winners.iter().for_each(|winner| *counts.entry(&values[*winner][at].1).or_default() += 1);
        let part = |count: usize| count as f64 / winners.len().max(1) as f64;
        let probability = part(counts.remove(value.as_str()).unwrap_or_default());
        let other = counts.into_iter().max_by_key(|(_, count)| *count);
        SettledDimension { key, value, probability, other: other.map(|(other, count)| (other.to_owned(), part(count))) }
    };
    (0..found.len()).map(of).collect()
}

/// The worth of knowing each constant, from the draws alone.
fn worth_of_inputs(draws: &ConstantDraws, values: &[Vec<f64>], regrets: &[Vec<f64>]) -> Vec<InputWorth> {
    let count = draws.places.len();
    let mean_of = |design: usize, of: &[usize]| of.iter().map(|draw| regrets[design][*draw]).sum::<f64>();
    let least = |of: &[usize]| (0..regrets.len()).map(|design| mean_of(design, of)).fold(f64::INFINITY, f64::min);
    let whole = least(&(0..count).collect::<Vec<_>>()) / count as f64;
    let known = |order: &[usize]| {
        let bins = order.chunks(count.div_ceil(BINS).max(1));
        whole - bins.map(least).sum::<f64>() / count as f64
    };
    let noise = (0..SHUFFLES).map(|seed| known(&shuffled(count, seed))).fold(0.0, f64::max);
    let lead = |of: &[usize]| {
        let one = |draw: &usize| {
            let others = values[1..].iter().map(|value| value[*draw]).fold(f64::INFINITY, f64::min);
            if others.is_finite() && values[0][*draw].is_finite() { others / values[0][*draw] - 1.0 } else { 0.0 }
        };
        of.iter().map(one).sum::<f64>() / of.len().max(1) as f64
    };
    let quarter = (count / 4).max(1);
    let mut found: Vec<InputWorth> = draws
        .keys
        .iter()
        .enumerate()
        .map(|(at, key)| {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| draws.places[*a][at].total_cmp(&draws.places[*b][at]));
            InputWorth {
                key: key.clone(),
                worth: (known(&order) - noise).max(0.0),
                lead_low: lead(&order[..quarter.min(count)]),
                lead_high: lead(&order[count - quarter.min(count)..]),
            }
        })
        .collect();
    let swing = |of: &InputWorth| (of.lead_high - of.lead_low).abs();
    found.sort_by(|a, b| b.worth.total_cmp(&a.worth).then(swing(b).total_cmp(&swing(a))).then(a.key.cmp(&b.key)));
    found
}

fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut random = SeededRandom(seed ^ 0x6e_6f_69_73_65);
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, random.next_below(at as u64 + 1) as usize);
    }
    order
}
