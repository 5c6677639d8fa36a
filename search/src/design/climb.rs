//! A good design to begin with: the best of some drawn at random, and from there step by step.
//!
//! What it finds proves nothing and is no answer: the search goes to it first, so that its bounds have something to be held against.

use super::DesignSearch;
use crate::runner::Verdict;
use crate::space::{Dial, Single, number, places};
use rayon::prelude::*;

/// Designs within the limits that are drawn.
const DRAWN: usize = 64;
/// Draws at most: in a space of which fewer are within the limits no more is looked for.
const DRAWS: usize = 4096;
/// Designs looked at between two looks at the best.
const BATCH: usize = 16;
/// Steps from the best drawn.
const STEPS: usize = 64;

/// A design whose value is low.
#[derive(Debug, Clone, Copy)]
struct Best {
    point: usize,
    value: f64,
}

/// A design that is good among its neighbours; none where none of those drawn is within the limits and has a plan.
///
/// # Errors
/// An expression without a value, a field that no chip has.
pub(super) fn climb(search: &DesignSearch<'_>, stop: &(dyn Fn() -> bool + Sync)) -> Result<Option<usize>, String> {
    let dials = search.space.dials();
    let mut best = None;
    for batch in drawn(search)?.chunks(BATCH) {
        if stop() {
            break;
        }
        better(search, batch, &mut best)?;
    }
    let Some(mut best) = best else { return Ok(None) };
    for _ in 0..STEPS {
        let mut now = Some(best);
        for batch in neighbours(&dials, best.point).chunks(BATCH) {
            if stop() || now.is_some_and(|now| now.point != best.point) {
                break;
            }
            better(search, batch, &mut now)?;
        }
        match now.filter(|now| now.point != best.point) {
            Some(now) => best = now,
            None => break,
        }
    }
    Ok(Some(best.point))
}

/// Some designs within the limits, the same every time (Knuth's linear congruential generator MMIX).
fn drawn(search: &DesignSearch<'_>) -> Result<Vec<usize>, String> {
    let (mut state, mut found, total) = (0_u64, Vec::new(), search.space.points() as u64);
    for _ in 0..DRAWS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let point = ((u128::from(state) * u128::from(total)) >> 64) as usize;
        if let Single::Chip(..) = search.space.single(point)? {
            found.push(point);
        }
        if found.len() == DRAWN {
            break;
        }
    }
    Ok(found)
}

/// Takes the best of a batch where it is better; of equals the first.
fn better(search: &DesignSearch<'_>, batch: &[usize], best: &mut Option<Best>) -> Result<(), String> {
    let cutoff = best.map_or(f64::INFINITY, |best| best.value);
    let value = |&point: &usize| match search.space.single(point)? {
        Single::Chip(..) => match search.evaluate(search.space.largest(point), cutoff) {
            Verdict::Feasible { value, .. } => Ok(Some(Best { point, value })),
            Verdict::Infeasible(_) | Verdict::Beaten(_) => Ok(None),
        },
        Single::Outside(_) | Single::Refused(_) => Ok(None),
    };
    let found: Vec<Result<Option<Best>, String>> = batch.par_iter().with_max_len(1).map(value).collect();
    for one in found {
        if let Some(one) = one? {
            *best = Some(best.filter(|best| best.value <= one.value).unwrap_or(one));
        }
    }
    Ok(())
}

/// The designs that differ in one dimension, and those a step apart in two.
fn neighbours(dials: &[Dial], point: usize) -> Vec<usize> {
    let here = places(dials, point as u64);
    let mut found = Vec::new();
    let with = |changed: &[(usize, usize)]| {
        let mut there = here.clone();
        changed.iter().for_each(|&(at, place)| there[at] = place);
        number(dials, &there) as usize
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
    use sim::hardware::Setting;

    #[test]
    fn neighbours_differ_in_one_dimension_or_by_a_step_in_two() {
        let dial = |key: &str, count: usize| Dial {
            key: key.to_owned(),
            values: (0..count).map(|value| Setting::Number(value as f64)).collect(),
        };
        let dials = [dial("a", 4), dial("b", 3), dial("c", 1)];
        let here = number(&dials, &[0, 1, 0]) as usize;
        let found: Vec<Vec<usize>> = neighbours(&dials, here).into_iter().map(|at| places(&dials, at as u64)).collect();
        let expected =
            [[1, 1, 0], [2, 1, 0], [3, 1, 0], [0, 0, 0], [0, 2, 0], [1, 0, 0], [1, 2, 0]].map(|places| places.to_vec());
        assert_eq!(found, expected);
    }
}
