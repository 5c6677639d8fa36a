//! Orders units so that those with fast links stand side by side, whatever their numbers.

use kodama::{Method, linkage};
use sim::network::LinkMatrix;

/// Returns the units in the order of the leaves of an average-linkage tree (Sokal and Michener, 1958). The distance of
/// two units is the time of a byte between them. Two branches that meet are turned so that the ends with the faster
/// link touch.
pub(super) fn seriate_units(links: &LinkMatrix) -> Vec<u32> {
    let n = links.unit_count() as usize;
    let mut apart: Vec<f64> =
        (0..n as u32).flat_map(|a| (a + 1..n as u32).map(move |b| 1.0 / links.rate_between(a, b))).collect();
    let tree = linkage(&mut apart, n, Method::Average);
    let mut branches: Vec<Vec<u32>> = (0..n as u32).map(|unit| vec![unit]).collect();
    for step in tree.steps() {
        let [mut left, mut right] = [step.cluster1, step.cluster2].map(|branch| std::mem::take(&mut branches[branch]));
        let rate = |a: Option<&u32>, b: Option<&u32>| a.zip(b).map_or(0.0, |(a, b)| links.rate_between(*a, *b));
        let touching = |turn: &(bool, bool)| {
            let (end, start) =
                (if turn.0 { left.first() } else { left.last() }, if turn.1 { right.last() } else { right.first() });
            rate(end, start)
        };
        let turns = [(false, false), (false, true), (true, false), (true, true)];
        let best = turns.into_iter().rev().max_by(|a, b| touching(a).total_cmp(&touching(b))).unwrap_or_default();
        if best.0 {
            left.reverse();
        }
        if best.1 {
            right.reverse();
        }
        left.append(&mut right);
        branches.push(left);
    }
    branches.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn racks_stand_together_however_their_units_are_numbered() {
        for stride in [1, 3, 5, 7] {
            let rack = |unit: usize| unit * stride % 16 / 4;
            let rows: Vec<Vec<f64>> = (0..16)
                .map(|a| {
                    (0..16)
                        .map(|b| {
                            if a == b {
                                0.0
                            } else if rack(a) == rack(b) {
                                100.0
                            } else {
                                25.0
                            }
                        })
                        .collect()
                })
                .collect();
            let order = seriate_units(&LinkMatrix::from_gb_per_s(&rows).unwrap());
            let mut units = order.clone();
            units.sort_unstable();
            assert_eq!(units, (0..16).collect::<Vec<u32>>());
            for four in order.chunks(4) {
                assert!(
                    four.iter().all(|unit| rack(*unit as usize) == rack(four[0] as usize)),
                    "stride {stride}: {order:?}"
                );
            }
        }
    }

    #[test]
    fn one_and_two_units_have_an_order() {
        let pair = LinkMatrix::from_gb_per_s(&[vec![0.0, 10.0], vec![10.0, 0.0]]).unwrap();
        assert_eq!(seriate_units(&pair).len(), 2);
    }
}
