//! The front of a layer's choices with offloading to the host's memory or to storage: bytes on the device against added
//! seconds, with the offloaded bytes.
//!
//! The reruns decide which tensors are retained ([`RecomputeSpace`]). Some of the retained tensors are offloaded. A
//! choice adds the time of its reruns and the exposed copy time of each pass. A copy of `c` seconds beside a pass of
//! `busy` seconds exposes `max((1 - h) c, c - h busy)`. Here `h` is the fraction of the overlap that the stack hides.
//! The exposed time depends on the number of bytes copied, not on the tensors. It grows with this number, and a longer
//! backward pass hides more.
//!
//! Lower bound ([`LayerFront::lower_bound_within`]): assume that parts of tensors can be copied. Then every choice is
//! dominated by one with the rerun set of some point on the front without offloading. For the same bytes on the device,
//! that one retains, reruns and copies no more. If only a part of the tokens is rerun ([`super::rest`]), a point on a
//! line between two such points dominates the choice.
//!
//! The choices on the front copy whole tensors, plus a part of the tokens of one more tensor. This part is as large as
//! a pass just hides, or as a budget on the device requires.
//!
//! Storage is reached over the same link as the host's memory. A copy to storage takes at least the storage's own time,
//! and shares the link with copies to the host.

use super::copies::{CopyLinks, OffloadDestination, OffloadedBytes};
use super::hull::{StashCost, lower_hull};
use super::layer::{LayerError, RecomputePolicy, TensorChoice, TensorIndex};
use super::layer_choice::LayerChoice;
use super::rest::{self, choices_with_rest_rerun};
use super::space::RecomputeSpace;
use sim::units::{Bytes, Seconds};
use workloads::TokenShare;

/// The front of a layer's choices.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerFront {
    /// The choices, smallest device bytes first. Choices without and with copies are selected apart. Choices with
    /// copies lie on a convex hull at some price of offloaded bytes, or are the fastest within a budget.
    pub choices: Vec<LayerChoice>,
    /// The front without copies, fastest policy first.
    exact: Vec<RecomputePolicy>,
    links: Option<CopyLinks>,
}

/// Resolution of byte sums: 1/256 of the bytes that a policy retains.
const SUMS: u64 = 256;

/// Number of evenly spaced budgets on the device. The fastest choice with copies within each is kept beside the convex
/// hull.
const BUDGETS: u64 = 16;

/// Limit on the prices of offloaded bytes for which choices are made.
const PRICES: usize = 8;

impl LayerFront {
    /// The front of a layer whose operators take `forward` seconds. Without links nothing is offloaded.
    ///
    /// # Errors
    /// As [`RecomputeSpace::front`].
    pub fn new(space: &RecomputeSpace, forward: &[Seconds], links: Option<CopyLinks>) -> Result<Self, LayerError> {
        let exact = space.front(forward)?;
        let alone = exact.iter().rev().map(|policy| SentTensors::default().layer_choice(policy, None));
        let mut choices: Vec<LayerChoice> = alone.collect();
        if let Some(links) = &links {
            let most = exact.first().map_or(0, |policy| policy.stash.0);
            let mut copied: Vec<(LayerChoice, OffloadDestination)> =
                exact.iter().flat_map(|policy| choices_with_copies(space, policy, links, most)).collect();
            copied.extend(choices_with_rest_rerun(space, &exact, links));
            for kind in [OffloadDestination::Host, OffloadDestination::Both, OffloadDestination::Storage] {
                let copied: Vec<LayerChoice> =
                    copied.iter().filter(|(_, other)| *other == kind).map(|(choice, _)| choice.clone()).collect();
                let mut chosen = thin_to_hull(&copied, &faster_than_smaller(&copied, 0.0));
                // If host memory or storage is scarce, its bytes have a price: the seconds that rerunning something
                // else would save.
                for price in rerun_prices(&exact) {
                    let front = faster_than_smaller(&copied, price);
                    let hull = lower_hull(&priced_points(&copied, &front, price));
                    chosen.extend(hull.into_iter().map(|at| front[at]));
                }
                chosen.sort_by_key(|at| (copied[*at].stash, *at));
                chosen.dedup();
                choices.extend(chosen.into_iter().map(|at| copied[at].clone()));
            }
        }
        Ok(Self { choices, exact, links })
    }

    /// The fastest choice with at most `budget` bytes on the device; `None` if none fits. On ties, fewer offloaded
    /// bytes win.
    #[must_use]
    pub fn fastest_within(&self, budget: Bytes) -> Option<&LayerChoice> {
        let fits = self.choices.iter().filter(|choice| choice.stash <= budget);
        fits.min_by(|a, b| a.added.0.total_cmp(&b.added.0).then(away_bytes(a).cmp(&away_bytes(b))))
    }

    /// Lower bound on the added seconds of any choice with at most `budget` bytes on the device, even if parts of
    /// tensors are copied and only a part of the tokens is rerun. `None` if no choice fits.
    #[must_use]
    pub fn lower_bound_within(&self, budget: Bytes) -> Option<Seconds> {
        rest::lower_bound_of_rest(&self.exact, self.links.as_ref(), budget)
    }
}

/// The offloaded tensors of a choice, with their bytes.
#[derive(Debug, Clone, Default)]
struct SentTensors {
    away: OffloadedBytes,
    host: Vec<TensorIndex>,
    storage: Vec<TensorIndex>,
    share: Option<(Vec<TensorIndex>, TokenShare)>,
}

impl SentTensors {
    fn layer_choice(self, policy: &RecomputePolicy, links: Option<&CopyLinks>) -> LayerChoice {
        let Self { away, host, storage, share } = self;
        let waits = links.map_or(0.0, |links| links.exposed_copy_seconds(away, policy.extra.0));
        LayerChoice {
            stash: policy.stash.saturating_sub(Bytes(away.total())),
            host: Bytes(away.host),
            storage: Bytes(away.storage),
            again: policy.extra,
            added: Seconds(policy.extra.0 + waits),
            operators: policy.operators,
            offloaded: host,
            stored: storage,
            share,
        }
    }
}

/// The tensors that a policy retains as (bytes, index), largest first, so that sums need few of them.
struct RetainedTensors<'a> {
    tensors: Vec<(u64, usize)>,
    names: &'a dyn Fn(usize) -> &'a str,
}

/// Some bytes of a tensor.
#[derive(Debug, Clone, Copy)]
struct TensorPart {
    tensor: usize,
    bytes: u64,
}

/// A set of whole tensors, and a part of one more.
#[derive(Debug, Clone, Copy)]
struct TensorSet {
    /// A bit for each tensor.
    set: u128,
    part: Option<TensorPart>,
}

impl RetainedTensors<'_> {
    fn bytes_of(&self, tensor: usize) -> u64 {
        self.tensors.iter().find(|(_, t)| *t == tensor).map_or(0, |(bytes, _)| *bytes)
    }

    /// Sets of whole tensors, one for each distinguishable sum of their bytes; the empty set is left out.
    fn distinct_sums(&self) -> Vec<u128> {
        let total: u64 = self.tensors.iter().map(|(bytes, _)| *bytes).sum();
        let width = total.div_ceil(SUMS).max(1);
        let mut sums: Vec<Option<(u64, u128)>> = vec![None; SUMS as usize + 1];
        sums[0] = Some((0, 0));
        for &(bytes, t) in &self.tensors {
            for at in (0..sums.len()).rev() {
                let Some((sum, set)) = sums[at] else { continue };
                let more = sum + bytes;
                let place = &mut sums[(more / width) as usize];
                // The larger one of similar sums leaves less on the device.
                if place.is_none_or(|(known, _)| known < more) {
                    *place = Some((more, set | 1 << t));
                }
            }
        }
        sums.into_iter().flatten().map(|(_, set)| set).filter(|set| *set != 0).collect()
    }

    /// A set of whole tensors with at most `bytes` in sum, and one more tensor with the bytes still missing. `None` if
    /// the tensors have fewer bytes in all.
    fn largest_sum_within(&self, bytes: u64) -> Option<TensorSet> {
        let (mut left, mut set) = (bytes, 0_u128);
        for &(size, t) in &self.tensors {
            if size <= left {
                (left, set) = (left - size, set | 1 << t);
            }
        }
        if left == 0 {
            return Some(TensorSet { set, part: None });
        }
        let next = self.tensors.iter().find(|(_, t)| set >> t & 1 == 0)?;
        Some(TensorSet { set, part: Some(TensorPart { tensor: next.1, bytes: left }) })
    }

    /// Offloads a set of tensors and a part of one more. `None` if nothing is offloaded, or if
    /// [`OffloadDestination::Both`] has nothing in one of its destinations.
    fn send_tensors(
        &self,
        TensorSet { set, part }: TensorSet,
        kind: OffloadDestination,
        links: &CopyLinks,
    ) -> Option<SentTensors> {
        let mut sent = SentTensors::default();
        let all: u64 = self.tensors.iter().filter(|(_, t)| set >> t & 1 == 1).map(|(bytes, _)| *bytes).sum();
        let mut beside = match kind {
            OffloadDestination::Host => 0,
            OffloadDestination::Both => links.storage_bytes_beside_host(all),
            OffloadDestination::Storage => u64::MAX,
        };
        for &(bytes, t) in self.tensors.iter().filter(|(_, t)| set >> t & 1 == 1) {
            if bytes <= beside {
                beside -= bytes;
                sent.away.storage += bytes;
                sent.storage.push(TensorIndex(t));
            } else {
                sent.away.host += bytes;
                sent.host.push(TensorIndex(t));
            }
        }
        if let Some(TensorPart { tensor: t, bytes: part }) = part {
            let size = Bytes(self.bytes_of(t));
            let share = TokenShare::smallest_for_bytes((self.names)(t), size, Bytes(part));
            let moved = share.as_ref().map_or(size, |share| share.offloaded_bytes(size)).0;
            if kind == OffloadDestination::Storage {
                sent.away.storage += moved;
                sent.storage.push(TensorIndex(t));
            } else {
                sent.away.host += moved;
                sent.host.push(TensorIndex(t));
            }
            sent.share = share.map(|share| (vec![TensorIndex(t)], share));
        }
        // "Both" needs bytes in both destinations.
        (sent.away.total() > 0 && (kind != OffloadDestination::Both || sent.away.storage > 0 && sent.away.host > 0))
            .then_some(sent)
    }
}

/// The choices of a policy with parts of its retained bytes offloaded. `most` is the largest stash of any policy.
fn choices_with_copies(
    space: &RecomputeSpace,
    policy: &RecomputePolicy,
    links: &CopyLinks,
    most: u64,
) -> Vec<(LayerChoice, OffloadDestination)> {
    let layer = space.layer();
    let choices = layer.tensor_choices(policy.operators);
    let kept = choices.iter().enumerate().filter(|(_, choice)| **choice == TensorChoice::Keep).map(|(t, _)| t);
    let mut tensors: Vec<(u64, usize)> =
        kept.map(|t| (layer.tensors[t].bytes.0, t)).filter(|(bytes, _)| *bytes > 0).collect();
    tensors.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let name = |t: usize| layer.tensors[t].name.as_str();
    let retained = RetainedTensors { tensors, names: &name };
    let whole: Vec<TensorSet> = retained.distinct_sums().into_iter().map(|set| TensorSet { set, part: None }).collect();
    let budgets =
        (0..BUDGETS).filter_map(|step| policy.stash.0.checked_sub(most / BUDGETS * step)).filter(|bytes| *bytes > 0);
    let budgets: Vec<u64> = budgets.collect();
    let mut found = Vec::new();
    for (kind, rate) in [
        (OffloadDestination::Host, links.host),
        (OffloadDestination::Both, links.host.and(links.storage)),
        (OffloadDestination::Storage, links.storage),
    ] {
        let Some(rate) = rate else { continue };
        // The bytes whose copy a pass just hides.
        let hidden = [links.forward, links.backward + policy.extra.0].map(|busy| rate.bytes_within(busy));
        let parts = hidden.into_iter().filter(|_| kind != OffloadDestination::Both).chain(budgets.iter().copied());
        let parts = parts
            .filter(|bytes| *bytes > 0 && *bytes <= policy.stash.0)
            .filter_map(|bytes| retained.largest_sum_within(bytes));
        let all = whole.iter().copied().chain(parts);
        let sent = all.filter_map(|tensors| retained.send_tensors(tensors, kind, links));
        found.extend(sent.map(|sent| (sent.layer_choice(policy, Some(links)), kind)));
    }
    found
}

/// Prices of a byte in rerun seconds: the slopes between corners of the front without offloading, at most [`PRICES`].
fn rerun_prices(exact: &[RecomputePolicy]) -> Vec<f64> {
    let corners: Vec<StashCost> =
        exact.iter().rev().map(|policy| StashCost { bytes: policy.stash.as_f64(), seconds: policy.extra.0 }).collect();
    let hull = lower_hull(&corners);
    let slope = |pair: &[usize]| corners[pair[0]].saving_towards(corners[pair[1]]);
    let slopes: Vec<f64> = hull.windows(2).map(slope).collect();
    slopes.iter().copied().step_by(slopes.len().div_ceil(PRICES).max(1)).collect()
}

/// The bytes on the device and the seconds of choices, which include a price for offloaded bytes.
fn priced_points(choices: &[LayerChoice], front: &[usize], price: f64) -> Vec<StashCost> {
    let of = |choice: &LayerChoice| StashCost { bytes: choice.stash.as_f64(), seconds: price_choice(choice, price) };
    front.iter().map(|at| of(&choices[*at])).collect()
}

fn price_choice(choice: &LayerChoice, price: f64) -> f64 {
    choice.added.0 + price * away_bytes(choice) as f64
}

fn away_bytes(choice: &LayerChoice) -> u64 {
    choice.host.0.saturating_add(choice.storage.0)
}

/// Indices of the choices that are faster than all with no more bytes on the device, at a price of offloaded bytes.
/// Smallest device bytes first.
fn faster_than_smaller(choices: &[LayerChoice], price: f64) -> Vec<usize> {
    let mut order: Vec<(u64, f64, u64, usize)> = choices
        .iter()
        .enumerate()
        .map(|(at, choice)| (choice.stash.0, price_choice(choice, price), away_bytes(choice), at))
        .collect();
    order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)).then(a.3.cmp(&b.3)));
    let mut fastest = f64::INFINITY;
    order.retain(|(_, time, ..)| {
        let faster = *time < fastest;
        fastest = fastest.min(*time);
        faster
    });
    order.into_iter().map(|(.., at)| at).collect()
}

/// The indices of a front's choices on its lower convex hull, where the best mixes are, and of the fastest within a few
/// budgets.
fn thin_to_hull(choices: &[LayerChoice], front: &[usize]) -> Vec<usize> {
    let (Some(&first), Some(&last)) = (front.first(), front.last()) else { return Vec::new() };
    let (least, range) = (choices[first].stash.0, choices[last].stash.0 - choices[first].stash.0);
    let mut chosen = lower_hull(&priced_points(choices, front, 0.0));
    for step in 1..BUDGETS {
        let budget = least + range / BUDGETS * step;
        chosen.push(front.partition_point(|at| choices[*at].stash.0 <= budget).saturating_sub(1));
    }
    chosen.into_iter().map(|at| front[at]).collect()
}
