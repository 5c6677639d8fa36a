//! A layer's front where tensors may also go to the host: bytes on the device against seconds added, and what the host holds for it.
//!
//! Which tensors are retained follows from what runs again ([`RecomputeSpace`]); of those retained some go to the host. What a choice adds is what
//! runs again and what the passes do not hide of the copies, each way its own:
//! `max((1 - h) c, c - h busy)` of a copy of `c` seconds beside a pass that is busy for so long, of which the stack hides the share `h` of what fits.
//! That depends on the bytes copied only, not on which tensors they are, and rises with them and with what runs again. So if parts of tensors could be
//! copied, every choice would be no better than one with the rerun set of a point of the front without a host: no more retained, no more run again, and
//! no more copied for the same bytes on the device. That is the bound ([`LayerFront::bound`]); the choices of the front copy whole tensors, as many bytes
//! as add up to just enough, and differ from the bound by what whole tensors leave over.

use super::layer::{LayerError, OperatorSet, RecomputePolicy, TensorChoice, TensorIndex};
use super::space::RecomputeSpace;
use sim::units::{Bytes, Seconds};

/// Copies between a device and its host beside the passes of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostLink {
    /// Seconds before the first byte.
    pub latency: f64,
    /// Seconds per byte, one way.
    pub per_byte: f64,
    /// The share of what fits beside a pass that the software hides behind it.
    pub hidden: f64,
    /// How long the forward pass is busy.
    pub forward: f64,
    /// How long the backward pass is busy, nothing run again.
    pub backward: f64,
}

impl HostLink {
    /// What both passes wait for the copies of so many bytes where so much runs again.
    #[must_use]
    pub fn stalls(&self, bytes: u64, rerun: f64) -> f64 {
        if bytes == 0 {
            return 0.0;
        }
        let copy = self.latency + self.per_byte * bytes as f64;
        let exposed = |busy: f64| copy - copy.min(busy) * self.hidden;
        exposed(self.forward) + exposed(self.backward + rerun)
    }
}

/// One way to treat a layer's tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerChoice {
    /// Bytes kept on the device per micro-batch in flight.
    pub stash: Bytes,
    /// Bytes kept in the host's memory per micro-batch in flight.
    pub host: Bytes,
    /// Seconds that reruns and copies add to the layer's passes.
    pub added: Seconds,
    /// The operators run again.
    pub operators: OperatorSet,
    /// The tensors that go to the host.
    pub offloaded: Vec<TensorIndex>,
}

/// The choices of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerFront {
    /// Each faster than all with no more on the device, least on the device first; those without the host and those with it apart.
    pub choices: Vec<LayerChoice>,
    /// Without a host.
    exact: Vec<RecomputePolicy>,
    link: Option<HostLink>,
}

/// Sums of bytes that are told apart: as many parts of what a policy retains.
const SUMS: u64 = 256;

/// Choices with the host besides those of the convex hull: the fastest within so many budgets, evenly apart.
const BUDGETS: u64 = 16;

impl LayerFront {
    /// The front of a layer whose operators take `forward`; without a link nothing goes to the host.
    ///
    /// # Errors
    /// As [`RecomputeSpace::front`].
    pub fn new(space: &RecomputeSpace, forward: &[Seconds], link: Option<HostLink>) -> Result<Self, LayerError> {
        let exact = space.front(forward)?;
        let alone = exact.iter().rev().map(|policy| choice(policy, None, 0, &[]));
        let mut choices: Vec<LayerChoice> = alone.collect();
        if let Some(link) = &link {
            let copied = exact.iter().flat_map(|policy| with_host(space, policy, link)).collect();
            choices.extend(thinned(faster_than_smaller(copied)));
        }
        Ok(Self { choices, exact, link })
    }

    /// The fastest choice of no more than `budget` bytes on the device.
    #[must_use]
    pub fn fastest_within(&self, budget: Bytes) -> Option<&LayerChoice> {
        let fits = self.choices.iter().filter(|choice| choice.stash <= budget);
        fits.min_by(|a, b| a.added.0.total_cmp(&b.added.0).then(a.host.cmp(&b.host)))
    }

    /// Seconds that no choice of no more than `budget` bytes on the device adds less than, even if parts of tensors were copied.
    #[must_use]
    pub fn bound(&self, budget: Bytes) -> Option<Seconds> {
        let of = |policy: &RecomputePolicy| {
            let over = policy.stash.saturating_sub(budget).0;
            match &self.link {
                _ if over == 0 => Some(policy.extra.0),
                // A choice may copy less than the latency's worth, but no less than this.
                Some(link) => Some(policy.extra.0 + HostLink { latency: 0.0, ..*link }.stalls(over, policy.extra.0)),
                None => None,
            }
        };
        self.exact.iter().filter_map(of).reduce(f64::min).map(Seconds)
    }
}

fn choice(policy: &RecomputePolicy, link: Option<&HostLink>, bytes: u64, offloaded: &[TensorIndex]) -> LayerChoice {
    LayerChoice {
        stash: policy.stash.saturating_sub(Bytes(bytes)),
        host: Bytes(bytes),
        added: Seconds(policy.extra.0 + link.map_or(0.0, |link| link.stalls(bytes, policy.extra.0))),
        operators: policy.operators,
        offloaded: offloaded.to_vec(),
    }
}

/// What a policy retains, with sums of it in the host's memory.
fn with_host(space: &RecomputeSpace, policy: &RecomputePolicy, link: &HostLink) -> Vec<LayerChoice> {
    let layer = space.layer();
    let choices = layer.choices(policy.operators);
    let kept = choices.iter().enumerate().filter(|(_, choice)| **choice == TensorChoice::Keep).map(|(t, _)| t);
    let mut tensors: Vec<(u64, usize)> = kept.map(|t| (layer.tensors[t].bytes.0, t)).filter(|(bytes, _)| *bytes > 0).collect();
    // Large ones first: few tensors for every sum.
    tensors.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let total: u64 = tensors.iter().map(|(bytes, _)| *bytes).sum();
    let width = total.div_ceil(SUMS).max(1);
    let mut sums: Vec<Option<(u64, u128)>> = vec![None; SUMS as usize + 1];
    sums[0] = Some((0, 0));
    for (bytes, t) in tensors {
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
    let members = |set: u128| (0..128).filter(|t| set >> t & 1 == 1).map(TensorIndex).collect::<Vec<_>>();
    let found = sums.into_iter().flatten().filter(|(sum, _)| *sum > 0);
    found.map(|(sum, set)| choice(policy, Some(link), sum, &members(set))).collect()
}

/// Those that are faster than all with no more on the device, least on the device first.
fn faster_than_smaller(mut choices: Vec<LayerChoice>) -> Vec<LayerChoice> {
    choices.sort_by(|a, b| a.stash.cmp(&b.stash).then(a.added.0.total_cmp(&b.added.0)).then(a.host.cmp(&b.host)));
    let mut fastest = f64::INFINITY;
    choices.retain(|choice| {
        let faster = choice.added.0 < fastest;
        fastest = fastest.min(choice.added.0);
        faster
    });
    choices
}

/// Of a front those on its lower convex hull, whose mixes are the best, and the fastest within a few budgets.
fn thinned(front: Vec<LayerChoice>) -> Vec<LayerChoice> {
    let (Some(first), Some(last)) = (front.first(), front.last()) else { return front };
    let (least, range) = (first.stash.0, last.stash.0 - first.stash.0);
    let mut chosen = vec![false; front.len()];
    let points: Vec<(f64, f64)> = front.iter().map(|choice| (choice.stash.as_f64(), choice.added.0)).collect();
    lower_hull(&points).into_iter().for_each(|at| chosen[at] = true);
    for step in 1..BUDGETS {
        let budget = least + range / BUDGETS * step;
        let within = front.partition_point(|choice| choice.stash.0 <= budget);
        chosen[within.saturating_sub(1)] = true;
    }
    front.into_iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(choice, _)| choice).collect()
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
