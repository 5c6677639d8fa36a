//! Cyclic coordinate search: how a few physical scalars are fitted to measurements, of chips, of fabrics and of software stacks.

/// The first step, as a fraction; halved whenever a round improves nothing.
const FIRST_STEP: f64 = 0.5;
/// The step at which a fit ends: finer than four significant digits are worth.
const LAST_STEP: f64 = 1e-3;
/// An improvement smaller than this is rounding.
const LEAST_GAIN: f64 = 1e-12;

/// What a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found<P> {
    /// The best point.
    pub point: P,
    /// The objective at the start.
    pub before: f64,
    /// The objective at the best point: never above `before`.
    pub after: f64,
}

/// Minimises `objective` from `start`: each of `coordinates` in turn is moved to either of its `neighbours` (point, coordinate, step;
/// `None` where there is none), the better one is kept, steps shrink when nothing improves. Deterministic; ends after at most ten
/// rounds without gain.
///
/// # Errors
/// The first that `objective` gives.
pub fn coordinate_search<P, E>(
    start: P,
    coordinates: usize,
    neighbours: impl Fn(&P, usize, f64) -> [Option<P>; 2],
    mut objective: impl FnMut(&P) -> Result<f64, E>,
) -> Result<Found<P>, E> {
    let before = objective(&start)?;
    let mut found = Found { point: start, before, after: before };
    let mut step = FIRST_STEP;
    while step > LAST_STEP {
        let mut improved = false;
        for coordinate in 0..coordinates {
            for trial in neighbours(&found.point, coordinate, step).into_iter().flatten() {
                let value = objective(&trial)?;
                if value < found.after - LEAST_GAIN {
                    (found.point, found.after, improved) = (trial, value, true);
                }
            }
        }
        if !improved {
            step /= 2.0;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn it_finds_the_bottom_of_a_bowl_and_never_rises() {
        let bowl = |p: &[f64; 2]| Ok::<_, Infallible>((p[0] - 3.0).powi(2) + 2.0 * (p[1] + 1.0).powi(2));
        let neighbours = |p: &[f64; 2], i: usize, step: f64| {
            [step, -step].map(|by| {
                let mut moved = *p;
                moved[i] += by;
                Some(moved)
            })
        };
        let found = coordinate_search([10.0, 10.0], 2, neighbours, bowl).unwrap();
        assert!(found.after < 1e-5 && (found.point[0] - 3.0).abs() < 2e-3, "{found:?}");
        let stuck = coordinate_search([10.0, 10.0], 2, |_, _, _| [None, None], bowl).unwrap();
        assert_eq!((stuck.point, stuck.after), ([10.0, 10.0], stuck.before));
    }

    #[test]
    fn a_failing_objective_ends_it() {
        let found = coordinate_search(1.0_f64, 1, |p, _, s| [Some(p + s), None], |_| Err::<f64, _>("no"));
        assert_eq!(found.unwrap_err(), "no");
    }
}
