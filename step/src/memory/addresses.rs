//! Address planning: an address for every tensor of a pass, so that tensors alive together do not overlap and the total
//! memory is minimal.
//!
//! This is offline storage allocation (MEMO plans with it, Zhao et al. 2025, section 4.3): sizes and lifetimes are
//! given, addresses are chosen. The most bytes alive at once are a lower bound. Plans come from best fit in several
//! orders. If no plan reaches the bound and there are few requests, the search tries all orders. This is exhaustive: an
//! optimal plan can be pushed down until every tensor rests on another one or on address 0. If tensors are placed in
//! order of these addresses, each as low as possible, the same plan results.

use sim::units::Bytes;
use workloads::Lifetime;

/// Largest number of requests for which all orders are tried.
const EXACT: usize = 9;

/// Addresses of a list of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressPlan {
    /// First address of each request, in the order of the requests.
    pub offsets: Vec<u64>,
    /// End of the highest request.
    pub peak: Bytes,
    /// Lower bound on the peak: the most bytes alive at once.
    pub bound: Bytes,
    /// True if the plan is proven optimal: no plan has a lower peak.
    pub optimal: bool,
}

/// Returns addresses for `requests`. The plan is optimal if it reaches the bound or if there are at most nine requests;
/// otherwise it is the best of several heuristic ones.
#[must_use]
pub fn plan_addresses(requests: &[Lifetime]) -> AddressPlan {
    let live = |at: u32| requests.iter().filter(|r| r.from <= at && at < r.until).map(|r| r.bytes).sum::<Bytes>();
    let bound = requests.iter().map(|r| live(r.from)).max().unwrap_or_default();
    let mut best = placement_orders(requests)
        .into_iter()
        .map(|order| place_best_fit(requests, &order))
        .min_by_key(|offsets| highest_end(requests, offsets))
        .unwrap_or_default();
    let mut optimal = highest_end(requests, &best) == bound.0;
    if !optimal && requests.len() <= EXACT {
        let mut trial = AddressSearch { requests, best: highest_end(requests, &best), offsets: best };
        trial.place_next(&mut vec![None; requests.len()], 0, 0);
        best = trial.offsets;
        optimal = true;
    }
    let peak = Bytes(highest_end(requests, &best));
    AddressPlan { offsets: best, peak, bound, optimal }
}

/// Sort key of an order. Requests with the largest key come first.
type OrderKey<'a> = &'a dyn Fn(&Lifetime) -> (u128, u128);

/// Returns the orders for best fit: by size, by lifetime, by size times lifetime, and by start.
fn placement_orders(requests: &[Lifetime]) -> Vec<Vec<usize>> {
    let span = |r: &Lifetime| u64::from(r.until - r.from);
    let keys: [OrderKey<'_>; 4] = [
        &|r| (u128::from(r.bytes.0), u128::from(span(r))),
        &|r| (u128::from(span(r)), u128::from(r.bytes.0)),
        &|r| (u128::from(r.bytes.0) * u128::from(span(r)), 0),
        &|r| (u128::from(u32::MAX - r.from), u128::from(r.bytes.0)),
    ];
    let sorted = |key: OrderKey<'_>| {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(key(&requests[*i])), *i));
        order
    };
    keys.into_iter().map(sorted).collect()
}

fn lifetimes_overlap(a: &Lifetime, b: &Lifetime) -> bool {
    a.from < b.until && b.from < a.until
}

fn highest_end(requests: &[Lifetime], offsets: &[u64]) -> u64 {
    requests.iter().zip(offsets).map(|(r, offset)| offset + r.bytes.0).max().unwrap_or(0)
}

/// Places requests in `order`. Each goes into the smallest gap that holds it between those already placed, or on top of
/// them.
fn place_best_fit(requests: &[Lifetime], order: &[usize]) -> Vec<u64> {
    let mut offsets: Vec<Option<u64>> = vec![None; requests.len()];
    for &i in order {
        let placed = offsets.iter().zip(requests).filter_map(|(offset, r)| offset.map(|offset| (offset, r)));
        let mut taken: Vec<(u64, u64)> = placed
            .filter(|(_, r)| lifetimes_overlap(r, &requests[i]))
            .map(|(offset, r)| (offset, offset + r.bytes.0))
            .collect();
        taken.sort_unstable();
        let (mut ground, mut chosen) = (0, None);
        for (start, end) in taken {
            let gap = start.saturating_sub(ground);
            if gap >= requests[i].bytes.0 && chosen.is_none_or(|(_, known)| gap < known) {
                chosen = Some((ground, gap));
            }
            ground = ground.max(end);
        }
        offsets[i] = Some(chosen.map_or(ground, |(offset, _)| offset));
    }
    offsets.into_iter().map(Option::unwrap_or_default).collect()
}

/// A search through all orders of requests, with the best plan so far.
struct AddressSearch<'a> {
    requests: &'a [Lifetime],
    best: u64,
    offsets: Vec<u64>,
}

impl AddressSearch<'_> {
    /// Places each remaining request on the placed ones in turn, and recurses. `lowest` is the last placed address, and
    /// `highest` the end of the highest request. Requests are placed in order of addresses, so none goes below
    /// `lowest`.
    fn place_next(&mut self, placed: &mut Vec<Option<u64>>, lowest: u64, highest: u64) {
        if placed.iter().all(Option::is_some) {
            self.best = highest;
            self.offsets = placed.iter().copied().map(Option::unwrap_or_default).collect();
            return;
        }
        for i in 0..self.requests.len() {
            if placed[i].is_some() {
                continue;
            }
            let own = &self.requests[i];
            let below = placed.iter().zip(self.requests).filter(|(_, r)| lifetimes_overlap(r, own));
            let offset = below.filter_map(|(offset, r)| offset.map(|offset| offset + r.bytes.0)).max().unwrap_or(0);
            let end = highest.max(offset + own.bytes.0);
            if offset >= lowest && end < self.best {
                placed[i] = Some(offset);
                self.place_next(placed, offset, end);
                placed[i] = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(bytes: u64, from: u32, until: u32) -> Lifetime {
        Lifetime { bytes: Bytes(bytes), from, until }
    }

    /// Returns the lowest peak over all addresses up to `limit`, by exhaustive search. The sum of all sizes is a
    /// sufficient limit.
    fn least(requests: &[Lifetime], offsets: &mut Vec<u64>, limit: u64) -> u64 {
        let at = offsets.len();
        if at == requests.len() {
            return highest_end(requests, offsets);
        }
        let mut best = u64::MAX;
        for offset in 0..=limit - requests[at].bytes.0 {
            let clash = offsets.iter().zip(requests).any(|(other, r)| {
                lifetimes_overlap(r, &requests[at])
                    && *other < offset + requests[at].bytes.0
                    && offset < other + r.bytes.0
            });
            if !clash {
                offsets.push(offset);
                best = best.min(least(requests, offsets, limit));
                offsets.pop();
            }
        }
        best
    }

    #[test]
    fn no_plan_is_below_what_is_alive_and_some_must_be_above() {
        assert_eq!(plan_addresses(&[]).peak, Bytes::ZERO);
        // One after the other at the same address.
        let plan = plan_addresses(&[request(5, 0, 1), request(7, 1, 2)]);
        assert_eq!((plan.peak, plan.bound, plan.optimal), (Bytes(7), Bytes(7), true));
        // Two small requests, one of which stays while a large one arrives. They fit if the staying one lies at an end.
        let plan = plan_addresses(&[request(2, 0, 1), request(2, 0, 2), request(6, 1, 2)]);
        assert_eq!((plan.peak, plan.optimal), (Bytes(8), true));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        #[test]
        fn few_requests_are_placed_as_low_as_trying_every_address_can(
            drawn in prop::collection::vec((1_u64..4, 0_u32..5, 1_u32..4), 1..5),
        ) {
            let requests: Vec<Lifetime> = drawn.iter().map(|(bytes, from, span)| request(*bytes, *from, from + span)).collect();
            let plan = plan_addresses(&requests);
            let all = requests.iter().map(|r| r.bytes.0).sum();
            prop_assert!(plan.optimal);
            prop_assert_eq!(plan.peak.0, least(&requests, &mut Vec::new(), all));
        }

        #[test]
        fn plans_do_not_overlap_and_lie_between_the_bound_and_side_by_side(
            drawn in prop::collection::vec((1_u64..1000, 0_u32..60, 1_u32..20), 1..60),
        ) {
            let requests: Vec<Lifetime> = drawn.iter().map(|(bytes, from, span)| request(*bytes, *from, from + span)).collect();
            let plan = plan_addresses(&requests);
            prop_assert!(plan.bound <= plan.peak && plan.peak.0 <= requests.iter().map(|r| r.bytes.0).sum());
            prop_assert!(plan.optimal || plan.peak > plan.bound);
            for (i, a) in requests.iter().enumerate() {
                for (j, b) in requests.iter().enumerate().take(i) {
                    let apart = plan.offsets[i] + a.bytes.0 <= plan.offsets[j] || plan.offsets[j] + b.bytes.0 <= plan.offsets[i];
                    prop_assert!(apart || !lifetimes_overlap(a, b), "{i} {j} {plan:?}");
                }
            }
        }
    }
}
