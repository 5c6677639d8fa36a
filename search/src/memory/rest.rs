//! Choices that offload a part of the tokens and rerun the rest, as MEMO does (Zhao et al. 2025, section 4.1).
//!
//! Take two points of the front without offloading: one with few or no reruns, and one with more. Some tokens follow
//! the first point, the others the second. Tensors that both points retain are kept for all tokens, on the device or
//! offloaded. Tensors that only the first point retains are offloaded for its tokens. So a layer's copies can be
//! exactly as long as its passes hide, and need no bytes on the device.
//!
//! For its rerun seconds, such a choice retains at least as many bytes as the line between both points. So the lower
//! convex hull of the front bounds all of them ([`lower_bound_of_rest`]).

use super::copies::{CopyLinks, CopyRate, OffloadDestination, OffloadedBytes};
use super::hull::{StashCost, lower_hull};
use super::layer::{OperatorSet, RecomputePolicy, TensorChoice, TensorIndex};
use super::layer_choice::LayerChoice;
use super::space::RecomputeSpace;
use sim::units::{Bytes, Seconds};
use workloads::TokenShare;

/// Steps of the offloaded fraction of the tokens (MEMO's alpha is in eighths).
const PARTS: u32 = 8;

/// The number of millionths in a whole.
const WHOLE: u32 = 1_000_000;

/// Limit on the points of the front without offloading between which tokens are divided.
const CORNERS: usize = 8;

/// The choices between two points of the front.
struct FrontSegment<'a> {
    space: &'a RecomputeSpace,
    links: &'a CopyLinks,
    /// The policy of the tokens whose tensors are offloaded.
    first: &'a RecomputePolicy,
    /// The policy of all other tokens.
    rest: &'a RecomputePolicy,
    /// Tensors retained for all tokens.
    whole: Vec<usize>,
    /// Tensors retained only for the offloaded tokens.
    part: Vec<usize>,
}

/// The choices between pairs of corners of the front without offloading.
pub(super) fn choices_with_rest_rerun(
    space: &RecomputeSpace,
    exact: &[RecomputePolicy],
    links: &CopyLinks,
) -> Vec<(LayerChoice, OffloadDestination)> {
    let corners = hull_corners(exact);
    let step = corners.len().div_ceil(CORNERS).max(1);
    // Includes both ends.
    let mut few: Vec<&RecomputePolicy> = corners.iter().step_by(step).copied().collect();
    few.extend(corners.last().copied().filter(|last| !few.contains(last)));
    let mut found = Vec::new();
    for first in &few {
        for rest in few.iter().filter(|rest| first.extra < rest.extra && first.operators.is_subset(rest.operators)) {
            let retained = |policy: &RecomputePolicy| retained_tensors(space, policy.operators);
            let whole = retained(rest);
            let part = retained(first).into_iter().filter(|t| !whole.contains(t)).collect();
            found.extend(FrontSegment { space, links, first, rest, whole, part }.choices_between());
        }
    }
    found
}

/// Indices of the tensors that a policy retains, without empty ones.
fn retained_tensors(space: &RecomputeSpace, operators: OperatorSet) -> Vec<usize> {
    let tensors = &space.layer().tensors;
    let choices = space.layer().tensor_choices(operators);
    (0..choices.len()).filter(|t| choices[*t] == TensorChoice::Keep && tensors[*t].bytes.0 > 0).collect()
}

/// The corners of the front's lower convex hull, smallest stash first.
fn hull_corners(exact: &[RecomputePolicy]) -> Vec<&RecomputePolicy> {
    let points: Vec<StashCost> =
        exact.iter().rev().map(|policy| StashCost { bytes: policy.stash.as_f64(), seconds: policy.extra.0 }).collect();
    lower_hull(&points).into_iter().filter_map(|at| exact.iter().nth_back(at)).collect()
}

impl FrontSegment<'_> {
    fn away_bytes_of(&self, tensors: &[usize]) -> u64 {
        tensors.iter().map(|t| self.space.layer().tensors[*t].bytes.0).sum()
    }

    fn choices_between(&self) -> Vec<(LayerChoice, OffloadDestination)> {
        let (whole, part) = (self.away_bytes_of(&self.whole), self.away_bytes_of(&self.part));
        let mut found = Vec::new();
        for (kind, rate) in
            [(OffloadDestination::Host, self.links.host), (OffloadDestination::Storage, self.links.storage)]
        {
            let Some(rate) = rate.filter(|_| part > 0) else { continue };
            for away in [false, true] {
                let besides = if away { whole } else { 0 };
                let eighths = (1..PARTS).map(|eighth| f64::from(eighth) / f64::from(PARTS));
                let fractions =
                    eighths.chain(self.hidden_fractions(&rate, besides, part)).map(|f| (f * f64::from(WHOLE)) as u32);
                let fractions = fractions.filter(|millionths| (1..WHOLE).contains(millionths));
                found.extend(fractions.map(|millionths| (self.choice_at(kind, away, millionths), kind)));
            }
        }
        found
    }

    /// The fractions of the tokens whose copies the forward and the backward pass just hide, with `besides` further
    /// bytes to copy. They may lie outside 0 to 1.
    fn hidden_fractions(&self, rate: &CopyRate, besides: u64, part: u64) -> [f64; 2] {
        let (besides, part) = (rate.latency + rate.per_byte * besides as f64, rate.per_byte * part as f64);
        // The more tokens are offloaded, the less is rerun beside their copies.
        let less = self.rest.extra.0 - self.first.extra.0;
        [(self.links.forward - besides) / part, (self.links.backward + self.rest.extra.0 - besides) / (part + less)]
    }

    fn choice_at(&self, kind: OffloadDestination, away: bool, millionths: u32) -> LayerChoice {
        let name = |t: &usize| self.space.layer().tensors[*t].name.clone();
        let share = TokenShare { tensors: self.part.iter().map(name).collect(), millionths, recomputed: true };
        let moved = share.offloaded_bytes(Bytes(self.away_bytes_of(&self.part))).0;
        let whole = self.away_bytes_of(&self.whole);
        let (stays, goes) = if away { (0, whole + moved) } else { (whole, moved) };
        let mut sent: Vec<TensorIndex> = self.part.iter().copied().map(TensorIndex).collect();
        sent.extend(self.whole.iter().filter(|_| away).copied().map(TensorIndex));
        sent.sort();
        let there = if kind == OffloadDestination::Storage {
            OffloadedBytes { host: 0, storage: goes }
        } else {
            OffloadedBytes { host: goes, storage: 0 }
        };
        let rest = 1.0 - f64::from(millionths) / f64::from(WHOLE);
        let again = self.first.extra.0 + rest * (self.rest.extra.0 - self.first.extra.0);
        let (offloaded, stored) =
            if kind == OffloadDestination::Storage { (Vec::new(), sent) } else { (sent, Vec::new()) };
        LayerChoice {
            stash: Bytes(stays),
            host: Bytes(there.host),
            storage: Bytes(there.storage),
            again: Seconds(again),
            added: Seconds(again + self.links.exposed_copy_seconds(there, again)),
            operators: self.rest.operators,
            offloaded,
            stored,
            share: Some((self.part.iter().copied().map(TensorIndex).collect(), share)),
        }
    }
}

/// Lower bound on the added seconds of any choice with at most `budget` bytes on the device, for any copied parts of
/// tensors and any part of the tokens that is rerun. `None` if no choice fits.
///
/// For its rerun seconds, a choice retains at least as many bytes as the front's hull. Along an edge of the hull the
/// added time is linear except at three corners: where nothing is left to copy, and where the copies are as long as the
/// forward or the backward pass.
pub(super) fn lower_bound_of_rest(
    exact: &[RecomputePolicy],
    links: Option<&CopyLinks>,
    budget: Bytes,
) -> Option<Seconds> {
    let alone = exact.iter().filter(|policy| policy.stash <= budget).map(|policy| policy.extra.0);
    let Some(links) = links else { return alone.reduce(f64::min).map(Seconds) };
    let added = |stash: f64, extra: f64| match stash - budget.as_f64() {
        over if over <= 0.0 => Some(extra),
        // The bound ignores latency, because a choice may copy fewer bytes than the latency is worth.
        over => Some(extra + links.least_copy_seconds(over, extra)?),
    };
    let corners = hull_corners(exact);
    let ends = corners.iter().filter_map(|policy| added(policy.stash.as_f64(), policy.extra.0));
    let inside = corners.windows(2).flat_map(|pair| {
        let (stash, extra) = (pair[0].stash.as_f64(), pair[0].extra.0);
        let (more, less) = (pair[1].stash.as_f64() - stash, extra - pair[1].extra.0);
        let over = stash - budget.as_f64();
        let rate = links.least_seconds_per_byte().unwrap_or(0.0);
        let nothing = -over / more;
        let forward = (links.forward - rate * over) / (rate * more);
        let backward = (links.backward + extra - rate * over) / (rate * more + less);
        let at = [nothing, forward, backward].into_iter().filter(|at| (0.0..=1.0).contains(at));
        at.filter_map(|at| added(stash + at * more, extra - at * less)).collect::<Vec<_>>()
    });
    alone.chain(ends).chain(inside).reduce(f64::min).map(Seconds)
}
