//! Finds a good design to start with: the best of some random designs, improved step by step.
//!
//! Its result is no answer and proves nothing. The search visits it first, so that bounds have a good value to prune
//! by.

use super::DesignSearch;
use crate::runner::Verdict;
use crate::space::{ListedDimension, SingleCombination, combination_of_places, places_of_combination};
use rayon::prelude::*;
use std::collections::BTreeSet;

/// Below this number of chips searched one by one, looking for a good start takes as long as the search.
const WORTH_CLIMBING: usize = 4096;
/// Number of random designs within the limits.
const DRAWN: usize = 64;
/// Limit on draws. If few designs are within the limits, the drawing ends here.
const DRAWS: usize = 4096;
/// Designs evaluated between updates of the best. The first batch is smaller: it has no value to prune by and takes
/// longest.
const BATCH: usize = 16;
const FIRST_BATCH: usize = 2;
/// Limit on steps from the best random design.
const STEPS: usize = 64;

/// A combination of the dimensions' values, with its chip.
#[derive(Debug, Clone, Copy)]
struct ClimbPosition {
    combination: u64,
    point: usize,
}

/// The best design so far.
#[derive(Debug, Clone, Copy)]
struct ClimbedDesign {
    place: ClimbPosition,
    value: f64,
}

/// A design that is good among its neighbours. `None` if no random design is within the limits and has a plan, or if
/// the space is small.
///
/// # Errors
/// An expression without a value, or a field that no chip has.
pub(super) fn climb_to_good_design(
    search: &DesignSearch<'_>,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Option<usize>, String> {
    if search.space.whole_region().is_none() && search.space.chip_count() < WORTH_CLIMBING {
        return Ok(None);
    }
    let dials = search.space.listed_dimensions();
    let mut best = None;
    let drawn = draw_designs(search)?;
    let (mut left, mut size) = (drawn.as_slice(), FIRST_BATCH);
    while !left.is_empty() && !stop() {
        let (batch, rest) = left.split_at(size.min(left.len()));
        keep_better(search, batch, &mut best)?;
        (left, size) = (rest, (2 * size).min(BATCH));
    }
    let Some(mut best) = best else { return Ok(None) };
    for _ in 0..STEPS {
        let mut now = Some(best);
        // A chip with several HBM capacities is evaluated once, with the largest.
        let mut seen = BTreeSet::from([best.place.point]);
        let there = neighbouring_combinations(&dials, best.place.combination)
            .into_iter()
            .filter_map(|combination| position_of(search, combination));
        let there: Vec<ClimbPosition> = there.filter(|place| seen.insert(place.point)).collect();
        for batch in there.chunks(BATCH) {
            if stop() || now.is_some_and(|now| now.place.point != best.place.point) {
                break;
            }
            keep_better(search, batch, &mut now)?;
        }
        match now.filter(|now| now.place.point != best.place.point) {
            Some(now) => best = now,
            None => break,
        }
    }
    Ok(Some(best.place.point))
}

/// The chip of a combination, if the space has it.
fn position_of(search: &DesignSearch<'_>, combination: u64) -> Option<ClimbPosition> {
    search.space.design_of_combination(combination).map(|id| ClimbPosition { combination, point: id.point })
}

/// Some designs within the limits, always the same (Knuth's linear congruential generator MMIX).
fn draw_designs(search: &DesignSearch<'_>) -> Result<Vec<ClimbPosition>, String> {
    let (mut state, mut found, total) = (0_u64, Vec::new(), search.space.combination_count());
    for _ in 0..DRAWS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let combination = ((u128::from(state) * u128::from(total)) >> 64) as u64;
        if let Some(place) = position_of(search, combination)
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

/// Keeps the best of a batch if it is better. The first of equal designs wins.
fn keep_better(
    search: &DesignSearch<'_>,
    batch: &[ClimbPosition],
    best: &mut Option<ClimbedDesign>,
) -> Result<(), String> {
    let cutoff = best.map_or(f64::INFINITY, |best| best.value);
    let value = |&place: &ClimbPosition| match search.space.single_point(place.point)? {
        SingleCombination::Chip(..) => {
            match search.evaluate_design(search.space.with_largest_memory(place.point), cutoff) {
                Verdict::Feasible { value, .. } => Ok(Some(ClimbedDesign { place, value })),
                Verdict::Infeasible(_) | Verdict::Beaten(_) => Ok(None),
            }
        }
        SingleCombination::Outside(_) | SingleCombination::Refused(_) => Ok(None),
    };
    let found: Vec<Result<Option<ClimbedDesign>, String>> = batch.par_iter().with_max_len(1).map(value).collect();
    for one in found {
        if let Some(one) = one? {
            *best = Some(best.filter(|best| best.value <= one.value).unwrap_or(one));
        }
    }
    Ok(())
}

/// The designs that differ in one dimension, and those a step away in two.
fn neighbouring_combinations(dials: &[ListedDimension], combination: u64) -> Vec<u64> {
    let here = places_of_combination(dials, combination);
    let mut found = Vec::new();
    let with = |changed: &[(usize, usize)]| {
        let mut there = here.clone();
        changed.iter().for_each(|&(at, place)| there[at] = place);
        combination_of_places(dials, &there)
    };
    let steps = |at: usize| {
        let up = Some(here[at] + 1).filter(|place| *place < dials[at].values.len());
        [here[at].checked_sub(1), up].into_iter().flatten()
    };
    for at in 0..dials.len() {
        found.extend((0..dials[at].values.len()).filter(|&place| place != here[at]).map(|place| with(&[(at, place)])));
    }
    for one in 0..dials.len() {
        for other in one + 1..dials.len() {
            let pairs = steps(one).flat_map(|a| steps(other).map(move |b| [(one, a), (other, b)]));
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
