//! A layer's front where tensors may also go to the host's memory or to storage: bytes on the device against seconds added, and what is away for it.
//!
//! Which tensors are retained follows from what runs again ([`RecomputeSpace`]); of those retained some go away. What a choice adds is what
//! runs again and what the passes do not hide of the copies, each way its own:
//! `max((1 - h) c, c - h busy)` of a copy of `c` seconds beside a pass that is busy for so long, of which the stack hides the share `h` of what fits.
//! That depends on the bytes copied only, not on which tensors they are, and rises with them and with what runs again. So if parts of tensors could be
//! copied, every choice would be no better than one with the rerun set of a point of the front without a host: no more retained, no more run again, and
//! no more copied for the same bytes on the device. Where a part of the tokens runs again only ([`super::rest`]), no better than one on a line between two
//! such points. That is the bound ([`LayerFront::lower_bound_within`]). The choices of the front copy whole tensors, as many bytes
//! as add up to just enough, and the part of the tokens of one more: what a pass just hides, and what just leaves a budget on the device.
//!
//! Storage is behind the same link as the host's memory: what goes there takes no less than storage takes for it, and shares the link with the rest.

use super::layer::{LayerError, OperatorSet, RecomputePolicy, TensorChoice, TensorIndex};
use super::rest::{self, choices_with_rest_rerun};
use super::space::RecomputeSpace;
use sim::units::{Bytes, Seconds};
use workloads::TokenShare;

/// What a copy of some bytes takes, one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyRate {
    /// Seconds before the first byte.
    pub latency: f64,
    /// Seconds per byte.
    pub per_byte: f64,
}

impl CopyRate {
    fn seconds_of(&self, bytes: u64) -> f64 {
        if bytes == 0 { 0.0 } else { self.latency + self.per_byte * bytes as f64 }
    }

    /// The most bytes that take no longer.
    fn bytes_within(&self, seconds: f64) -> u64 {
        if self.per_byte > 0.0 { ((seconds - self.latency).max(0.0) / self.per_byte) as u64 } else { u64::MAX }
    }
}

/// Copies between a device, its host and its storage beside the passes of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyLinks {
    /// To the host: what goes to storage passes it too.
    pub host: Option<CopyRate>,
    /// To storage.
    pub storage: Option<CopyRate>,
    /// The share of what fits beside a pass that the software hides behind it.
    pub hidden: f64,
    /// How long the forward pass is busy.
    pub forward: f64,
    /// How long the backward pass is busy, nothing run again.
    pub backward: f64,
}

/// Bytes away from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct OffloadedBytes {
    /// In the host's memory.
    pub host: u64,
    /// In storage.
    pub storage: u64,
}

impl OffloadedBytes {
    /// All of them.
    #[must_use]
    pub fn total(self) -> u64 {
        self.host.saturating_add(self.storage)
    }
}

impl CopyLinks {
    /// Seconds of the copies, one way.
    #[must_use]
    pub fn copy_seconds(&self, away: OffloadedBytes) -> f64 {
        let shared = match &self.host {
            Some(rate) => rate.seconds_of(away.total()),
            None if away.host > 0 => f64::INFINITY,
            None => 0.0,
        };
        let stored = match &self.storage {
            Some(rate) => rate.seconds_of(away.storage),
            None if away.storage > 0 => f64::INFINITY,
            None => 0.0,
        };
        shared.max(stored)
    }

    /// What both passes wait for the copies of so many bytes where so much runs again.
    #[must_use]
    pub fn exposed_copy_seconds(&self, away: OffloadedBytes, rerun: f64) -> f64 {
        self.pass_exposed_seconds(self.copy_seconds(away), rerun)
    }

    fn pass_exposed_seconds(&self, copy: f64, rerun: f64) -> f64 {
        if copy == 0.0 {
            return 0.0;
        }
        let exposed = |busy: f64| copy - copy.min(busy) * self.hidden;
        exposed(self.forward) + exposed(self.backward + rerun)
    }

    /// Of so many bytes those that can go to storage while the others go to the host, and nothing takes longer.
    fn storage_bytes_beside_host(&self, bytes: u64) -> u64 {
        match (&self.host, &self.storage) {
            (Some(host), Some(storage)) => storage.bytes_within(host.seconds_of(bytes)).min(bytes),
            _ => 0,
        }
    }

    /// Seconds that the copies of so many bytes take at least, wherever they go and without what precedes the first of them.
    pub(super) fn least_copy_seconds(&self, bytes: f64, rerun: f64) -> Option<f64> {
        Some(self.pass_exposed_seconds(self.least_seconds_per_byte()? * bytes, rerun))
    }

    /// Seconds per byte that it takes at least. What goes to storage passes the link to the host, where there is one.
    pub(super) fn least_seconds_per_byte(&self) -> Option<f64> {
        self.host.or(self.storage).map(|rate| rate.per_byte)
    }
}

/// One way to treat a layer's tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerChoice {
    /// Bytes kept on the device per micro-batch in flight.
    pub stash: Bytes,
    /// Bytes kept in the host's memory per micro-batch in flight.
    pub host: Bytes,
    /// Bytes kept in storage per micro-batch in flight.
    pub storage: Bytes,
    /// Seconds of what runs again.
    pub again: Seconds,
    /// Seconds that reruns and copies add to the layer's passes.
    pub added: Seconds,
    /// The operators run again.
    pub operators: OperatorSet,
    /// The tensors that go to the host.
    pub offloaded: Vec<TensorIndex>,
    /// The tensors that go to storage.
    pub stored: Vec<TensorIndex>,
    /// Of these those of which a part of the tokens goes only, and that part; where the rest runs again, `operators` is for the rest.
    pub share: Option<(Vec<TensorIndex>, TokenShare)>,
}

/// The choices of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerFront {
    /// Each faster than all with no more on the device and no more away at its price, least on the device first; those without copies and those with them
    /// apart.
    pub choices: Vec<LayerChoice>,
    /// Without copies.
    exact: Vec<RecomputePolicy>,
    links: Option<CopyLinks>,
}

/// Sums of bytes that are told apart: as many parts of what a policy retains.
const SUMS: u64 = 256;

/// Choices with copies besides those of the convex hull: the fastest within so many budgets, evenly apart.
const BUDGETS: u64 = 16;

/// Prices of the bytes away for which there are choices, at most.
const PRICES: usize = 8;

impl LayerFront {
    /// The front of a layer whose operators take `forward`; without links nothing goes away.
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
                // Where there is little room away its bytes have a price: what it saves to run something else again.
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

    /// The fastest choice of no more than `budget` bytes on the device.
    #[must_use]
    pub fn fastest_within(&self, budget: Bytes) -> Option<&LayerChoice> {
        let fits = self.choices.iter().filter(|choice| choice.stash <= budget);
        fits.min_by(|a, b| a.added.0.total_cmp(&b.added.0).then(away_bytes(a).cmp(&away_bytes(b))))
    }

    /// Seconds that no choice of no more than `budget` bytes on the device adds less than, even if parts of tensors were copied
    /// and a part of the tokens ran again only.
    #[must_use]
    pub fn lower_bound_within(&self, budget: Bytes) -> Option<Seconds> {
        rest::lower_bound_of_rest(&self.exact, self.links.as_ref(), budget)
    }
}

/// Where what goes away goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OffloadDestination {
    Host,
    /// To both at once, as much to storage as takes no longer.
    Both,
    Storage,
}

/// Tensors that go away.
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

/// What a policy retains, large ones first: few tensors for every sum.
struct RetainedTensors<'a> {
    tensors: Vec<(u64, usize)>,
    names: &'a dyn Fn(usize) -> &'a str,
}

impl RetainedTensors<'_> {
    fn bytes_of(&self, tensor: usize) -> u64 {
        self.tensors.iter().find(|(_, t)| *t == tensor).map_or(0, |(bytes, _)| *bytes)
    }

    /// Sums of whole tensors, one for each part of all of them that can be told apart.
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
                // Of sums alike the larger one: it leaves less on the device.
                if place.is_none_or(|(known, _)| known < more) {
                    *place = Some((more, set | 1 << t));
                }
            }
        }
        sums.into_iter().flatten().map(|(_, set)| set).filter(|set| *set != 0).collect()
    }

    /// Whole tensors of so many bytes at most, and the part of one more that is left; `None` where there are not so many bytes.
    fn largest_sum_within(&self, bytes: u64) -> Option<(u128, Option<(usize, u64)>)> {
        let (mut left, mut set) = (bytes, 0_u128);
        for &(size, t) in &self.tensors {
            if size <= left {
                (left, set) = (left - size, set | 1 << t);
            }
        }
        if left == 0 {
            return Some((set, None));
        }
        let next = self.tensors.iter().find(|(_, t)| set >> t & 1 == 0)?;
        Some((set, Some((next.1, left))))
    }

    /// A set of tensors, and a part of one more, sent away.
    fn send_tensors(
        &self,
        set: u128,
        part: Option<(usize, u64)>,
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
        if let Some((t, part)) = part {
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
        // Of both there is something in both places.
        (sent.away.total() > 0 && (kind != OffloadDestination::Both || sent.away.storage > 0 && sent.away.host > 0))
            .then_some(sent)
    }
}

/// What a policy retains, with sums of it away. `most` is what all policies retain at most.
fn choices_with_copies(
    space: &RecomputeSpace,
    policy: &RecomputePolicy,
    links: &CopyLinks,
    most: u64,
) -> Vec<(LayerChoice, OffloadDestination)> {
    let layer = space.layer();
    let choices = layer.tensor_choices(policy.operators);
    let kept = choices.iter().enumerate().filter(|(_, choice)| **choice == TensorChoice::Keep).map(|(t, _)| t);
    let mut tensors: Vec<(u64, usize)> = kept.map(|t| (layer.tensors[t].bytes.0, t)).filter(|(bytes, _)| *bytes > 0).collect();
    tensors.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let name = |t: usize| layer.tensors[t].name.as_str();
    let retained = RetainedTensors { tensors, names: &name };
    let whole: Vec<(u128, Option<(usize, u64)>)> = retained.distinct_sums().into_iter().map(|set| (set, None)).collect();
    let budgets = (0..BUDGETS).filter_map(|step| policy.stash.0.checked_sub(most / BUDGETS * step)).filter(|bytes| *bytes > 0);
    let budgets: Vec<u64> = budgets.collect();
    let mut found = Vec::new();
    for (kind, rate) in [
        (OffloadDestination::Host, links.host),
        (OffloadDestination::Both, links.host.and(links.storage)),
        (OffloadDestination::Storage, links.storage),
    ] {
        let Some(rate) = rate else { continue };
        // What a pass just hides.
        let hidden = [links.forward, links.backward + policy.extra.0].map(|busy| rate.bytes_within(busy));
        let parts = hidden.into_iter().filter(|_| kind != OffloadDestination::Both).chain(budgets.iter().copied());
        let parts =
            parts.filter(|bytes| *bytes > 0 && *bytes <= policy.stash.0).filter_map(|bytes| retained.largest_sum_within(bytes));
        let all = whole.iter().copied().chain(parts);
        let sent = all.filter_map(|(set, part)| retained.send_tensors(set, part, kind, links));
        found.extend(sent.map(|sent| (sent.layer_choice(policy, Some(links)), kind)));
    }
    found
}

/// Seconds that the bytes of a layer cost which run again, at the corners of the front without a host: a few of them.
fn rerun_prices(exact: &[RecomputePolicy]) -> Vec<f64> {
    let corners: Vec<(f64, f64)> = exact.iter().rev().map(|policy| (policy.stash.as_f64(), policy.extra.0)).collect();
    let hull = lower_hull(&corners);
    let slope = |pair: &[usize]| (corners[pair[0]].1 - corners[pair[1]].1) / (corners[pair[1]].0 - corners[pair[0]].0);
    let slopes: Vec<f64> = hull.windows(2).map(slope).collect();
    slopes.iter().copied().step_by(slopes.len().div_ceil(PRICES).max(1)).collect()
}

/// Bytes on the device and seconds, with a price for the bytes away.
fn priced_points(choices: &[LayerChoice], front: &[usize], price: f64) -> Vec<(f64, f64)> {
    front.iter().map(|at| (choices[*at].stash.as_f64(), price_choice(&choices[*at], price))).collect()
}

fn price_choice(choice: &LayerChoice, price: f64) -> f64 {
    choice.added.0 + price * away_bytes(choice) as f64
}

fn away_bytes(choice: &LayerChoice) -> u64 {
    choice.host.0.saturating_add(choice.storage.0)
}

/// Places of those that are faster than all with no more on the device, least on the device first, where bytes away have a price.
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

/// Of a front those on its lower convex hull, whose mixes are the best, and the fastest within a few budgets.
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

/// Positions of the lower convex hull of points whose first value rises and whose second one falls.
pub(super) fn lower_hull(points: &[(f64, f64)]) -> Vec<usize> {
    let slope = |a: usize, b: usize| (points[a].1 - points[b].1) / (points[b].0 - points[a].0);
    let mut hull: Vec<usize> = Vec::new();
    for next in 0..points.len() {
        while let [.., a, b] = hull[..] {
            if slope(a, b) > slope(a, next) {
                break;
            }
            hull.pop();
        }
        hull.push(next);
    }
    hull
}
