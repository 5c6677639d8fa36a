//! Finds a good design to start a search with. It takes the best of some random designs and improves each by its bound,
//! step by step.
//!
//! The result proves nothing. The search visits it first, so that it has a good value to prune by.

use super::DesignSearch;
use super::bounds::BoundDepth;
use super::room::TooSmallMemories;
use crate::runner::Verdict;
use crate::space::{DesignId, ListedDimension, SingleCombination, Space, combination_of_places, places_of_combination};
use rayon::prelude::*;
use std::collections::BTreeSet;

/// For spaces without boxes and with fewer chips, looking for a good start takes as long as the search.
const WORTH_CLIMBING: usize = 4096;
/// Limit on random designs that are within the limits.
const DRAWN: usize = 128;
/// Limit on draws, for spaces where few designs are within the limits.
const DRAWS: usize = 8192;
/// Number of random designs to improve: those with the best bounds.
const STARTS: usize = 3;
/// Number of neighbours bounded at once; the climb moves after a batch with a better bound.
const BATCH: usize = 16;
/// Limit on steps from a random design.
const STEPS: usize = 64;

/// A combination of the dimensions' values, with its chip.
#[derive(Debug, Clone, Copy)]
struct ClimbPosition {
    combination: u64,
    point: usize,
}

/// A design with a bound on its value, or its value.
#[derive(Debug, Clone, Copy)]
struct ClimbedDesign {
    place: ClimbPosition,
    value: f64,
}

/// Returns the best design of a climb. It evaluates the local optima of the bound first, then the random designs.
/// `None` if none of them is within the limits and has a plan, if the space is small, or if `stop` returned true before
/// an evaluation.
///
/// # Errors
/// An expression without a value, or a field that no chip has.
pub(super) fn climb_to_good_design(
    search: &DesignSearch<'_>,
    too_small: &TooSmallMemories,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Option<usize>, String> {
    if search.space.whole_region().is_none() && search.space.chip_count() < WORTH_CLIMBING {
        return Ok(None);
    }
    let dials = search.space.listed_dimensions();
    let drawn = draw_designs(search)?;
    let bounded = drawn.into_par_iter().map(|place| bound_design(search, place, f64::INFINITY, BoundDepth::Buffered));
    let mut starts: Vec<ClimbedDesign> = bounded.filter_map(Result::transpose).collect::<Result<_, String>>()?;
    starts.sort_by(|a, b| a.value.total_cmp(&b.value).then(a.place.point.cmp(&b.place.point)));
    starts.dedup_by_key(|start| start.place.point);
    let random = starts.clone();
    starts.truncate(STARTS);
    let climb = |start: &ClimbedDesign| climb_from(search, &dials, *start, stop);
    let mut tops = starts.par_iter().with_max_len(1).map(climb).collect::<Result<Vec<_>, String>>()?;
    tops.sort_by(|a, b| a.value.total_cmp(&b.value).then(a.place.point.cmp(&b.place.point)));
    tops.dedup_by_key(|top| top.place.point);
    // Designs with good bounds may have no plan, so the random designs follow as a fallback.
    let mut best: Option<ClimbedDesign> = None;
    for one in tops.iter().chain(&random) {
        let cutoff = best.map_or(f64::INFINITY, |best| best.value);
        if stop() || one.value >= cutoff {
            break;
        }
        let id = search.space.with_largest_memory(one.place.point);
        if too_small.exclude_design(search, id) {
            continue;
        }
        if let Verdict::Feasible { value, .. } = too_small.evaluate_design(search, id, cutoff) {
            best = Some(ClimbedDesign { value, ..*one });
        }
    }
    Ok(best.map(|best| best.place.point))
}

/// Improves a design by its bounds under changed constants, which are those of `search`. `within` is the same space
/// with its own constants. Only designs within its limits are neighbours.
///
/// # Errors
/// As [`climb_to_good_design`].
pub(super) fn climb_under(
    search: &DesignSearch<'_>,
    within: &Space,
    start: DesignId,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<DesignId, String> {
    let dials = search.space.listed_dimensions();
    let Some(combination) = within.combination_of_point(start.point) else { return Ok(start) };
    let place = ClimbPosition { combination, point: start.point };
    let bound = |place: ClimbPosition, cutoff: f64| -> Result<Option<ClimbedDesign>, String> {
        if !within.single_point(place.point)?.is_chip() {
            return Ok(None);
        }
        let id = search.space.with_largest_memory(place.point);
        let Ok(chip) = search.space.chip_of_design(id) else { return Ok(None) };
        let figures = search.space.figures_of_design(id, &chip);
        let seen = search.see_chip(chip, figures, search.space.fabric_of_design(id));
        Ok(Some(ClimbedDesign { place, value: search.fine_lower_bound(&seen, cutoff, &mut Vec::new()) }))
    };
    let start = ClimbedDesign { place, value: f64::INFINITY };
    let top = climb_by(&bound, search.space, &dials, start, stop)?;
    Ok(search.space.with_largest_memory(top.place.point))
}

/// Improves a design until no neighbour has a better bound, under the search's own constants.
fn climb_from(
    search: &DesignSearch<'_>,
    dials: &[ListedDimension],
    start: ClimbedDesign,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<ClimbedDesign, String> {
    let bound = |place: ClimbPosition, cutoff: f64| bound_design(search, place, cutoff, BoundDepth::Mapped);
    climb_by(&bound, search.space, dials, start, stop)
}

/// Bounds a design's value from below, as tightly as needed to decide whether it is below a cutoff. `None` if the
/// design is outside the limits.
type DesignBound<'a> = dyn Fn(ClimbPosition, f64) -> Result<Option<ClimbedDesign>, String> + Sync + 'a;

/// Improves a design until no neighbour has a better bound.
fn climb_by(
    bound: &DesignBound<'_>,
    space: &Space,
    dials: &[ListedDimension],
    start: ClimbedDesign,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<ClimbedDesign, String> {
    let Some(mut best) = bound(start.place, f64::INFINITY)? else { return Ok(start) };
    for _ in 0..STEPS {
        let mut now = best;
        // A chip with several HBM capacities is bounded once, with the largest.
        let mut seen = BTreeSet::from([best.place.point]);
        let there = neighbouring_combinations(dials, best.place.combination)
            .into_iter()
            .filter_map(|combination| position_of(space, combination));
        let there: Vec<ClimbPosition> = there.filter(|place| seen.insert(place.point)).collect();
        for batch in there.chunks(BATCH) {
            if stop() || now.place.point != best.place.point {
                break;
            }
            let one = |&place: &ClimbPosition| bound(place, now.value);
            let found: Vec<Result<Option<ClimbedDesign>, String>> = batch.par_iter().map(one).collect();
            for one in found {
                now = one?.filter(|one| one.value < now.value).unwrap_or(now);
            }
        }
        if now.place.point == best.place.point {
            break;
        }
        best = now;
    }
    Ok(best)
}

/// Bounds a design's value from below, as tightly as needed to decide whether it is below `cutoff`. `None` if the
/// design is outside the limits.
fn bound_design(
    search: &DesignSearch<'_>,
    place: ClimbPosition,
    cutoff: f64,
    depth: BoundDepth,
) -> Result<Option<ClimbedDesign>, String> {
    let SingleCombination::Chip(chip, figures) = search.space.single_point(place.point)? else { return Ok(None) };
    let id = search.space.with_largest_memory(place.point);
    let seen = search.see_chip(*chip, figures, search.space.fabric_of_design(id));
    let value = match depth {
        BoundDepth::Mapped => search.fine_lower_bound(&seen, cutoff, &mut Vec::new()),
        _ => search.coarse_lower_bound(&seen, depth, &mut Vec::new()),
    };
    Ok(Some(ClimbedDesign { place, value }))
}

/// The position of a combination. `None` if the space does not have its chip.
fn position_of(space: &Space, combination: u64) -> Option<ClimbPosition> {
    space.design_of_combination(combination).map(|id| ClimbPosition { combination, point: id.point })
}

/// Draws random designs within the limits, the same in every call (Knuth's linear congruential generator MMIX).
fn draw_designs(search: &DesignSearch<'_>) -> Result<Vec<ClimbPosition>, String> {
    let (mut state, mut found, total) = (0_u64, Vec::new(), search.space.combination_count());
    for _ in 0..DRAWS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let combination = ((u128::from(state) * u128::from(total)) >> 64) as u64;
        if let Some(place) = position_of(search.space, combination)
            && let SingleCombination::Chip(..) = search.space.single_point(place.point)?
        {
            found.push(place);
        }
        if found.len() == DRAWN {
            break;
        }
    }
    Ok(found)
}

/// Limit on the values per dimension that [`designs_by_value`] tries.
const VALUES_SHOWN: usize = 16;

/// The designs that differ from `id` in at most one dimension, `id` included. Dimensions with more than
/// [`VALUES_SHOWN`] values are sampled.
pub(super) fn designs_by_value(space: &Space, id: DesignId) -> Vec<DesignId> {
    let dials = space.listed_dimensions();
    let Some(combination) = space.combination_of_point(id.point) else { return Vec::new() };
    let here = places_of_combination(&dials, combination);
    let mut found = Vec::new();
    for (at, dial) in dials.iter().enumerate() {
        for place in (0..dial.values.len()).step_by(dial.values.len().div_ceil(VALUES_SHOWN).max(1)) {
            let combination = change_places(&dials, &here, &[ChangedPlace { dimension: at, place }]);
            found.extend(position_of(space, combination).map(|there| space.with_largest_memory(there.point)));
        }
    }
    found.retain(|id| space.single_point(id.point).is_ok_and(|one| one.is_chip()));
    found
}

/// A dimension with another place in its list of values.
#[derive(Debug, Clone, Copy)]
struct ChangedPlace {
    dimension: usize,
    place: usize,
}

/// The combination with the places of some dimensions changed.
fn change_places(dials: &[ListedDimension], here: &[usize], changed: &[ChangedPlace]) -> u64 {
    let mut there = here.to_vec();
    changed.iter().for_each(|change| there[change.dimension] = change.place);
    combination_of_places(dials, &there)
}

/// The combinations that differ in one dimension, or in two dimensions by one step each.
fn neighbouring_combinations(dials: &[ListedDimension], combination: u64) -> Vec<u64> {
    let here = places_of_combination(dials, combination);
    let mut found = Vec::new();
    let with = |changed: &[ChangedPlace]| change_places(dials, &here, changed);
    let steps = |dimension: usize| {
        let up = Some(here[dimension] + 1).filter(|place| *place < dials[dimension].values.len());
        let near = [here[dimension].checked_sub(1), up].into_iter().flatten();
        near.map(move |place| ChangedPlace { dimension, place })
    };
    for (dimension, dial) in dials.iter().enumerate() {
        let others = (0..dial.values.len()).filter(|&place| place != here[dimension]);
        found.extend(others.map(|place| with(&[ChangedPlace { dimension, place }])));
    }
    for one in 0..dials.len() {
        for other in one + 1..dials.len() {
            let pairs = steps(one).flat_map(|a| steps(other).map(move |b| [a, b]));
            found.extend(pairs.map(|pair| with(&pair)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::hardware::FieldValue;

    #[test]
    fn neighbours_differ_in_one_dimension_or_by_a_step_in_two() {
        let dial = |key: &str, count: usize| ListedDimension {
            key: key.to_owned(),
            values: (0..count).map(|value| FieldValue::Number(value as f64)).collect(),
        };
        let dials = [dial("a", 4), dial("b", 3), dial("c", 1)];
        let here = combination_of_places(&dials, &[0, 1, 0]);
        let found: Vec<Vec<usize>> =
            neighbouring_combinations(&dials, here).into_iter().map(|at| places_of_combination(&dials, at)).collect();
        let expected =
            [[1, 1, 0], [2, 1, 0], [3, 1, 0], [0, 0, 0], [0, 2, 0], [1, 0, 0], [1, 2, 0]].map(|places| places.to_vec());
        assert_eq!(found, expected);
    }
}
