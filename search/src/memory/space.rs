//! The exact Pareto front of one layer for any hardware's times.

use super::candidates::{PolicyCandidate, SetTimes, enumerate_candidates};
use super::labels::{GivenTimes, undominated_labels};
use super::layer::{LayerError, LayerTensors, OperatorSet, RecomputePolicy, TensorIndex};
use sim::units::{Bytes, Seconds};

/// All recompute policies of a layer that are optimal for some operator times, found once. For each hardware, only
/// times are summed and policies filtered.
#[derive(Debug, Clone)]
pub struct RecomputeSpace {
    layer: LayerTensors,
    candidates: Option<Vec<PolicyCandidate>>,
}

impl RecomputeSpace {
    /// Prepares a layer. Its operators' own times are ignored here.
    ///
    /// # Errors
    /// [`LayerError`] when the description is inconsistent.
    pub fn new(layer: LayerTensors) -> Result<Self, LayerError> {
        layer.check_consistency()?;
        let candidates = enumerate_candidates(&layer);
        Ok(Self { layer, candidates })
    }

    /// The layer.
    #[must_use]
    pub fn layer(&self) -> &LayerTensors {
        &self.layer
    }

    /// The number of policies that can be on the front for some times. `None` if there are too many to list; then each
    /// call of [`RecomputeSpace::front`] solves again.
    #[must_use]
    pub fn candidate_count(&self) -> Option<usize> {
        self.candidates.as_ref().map(Vec::len)
    }

    /// The Pareto front for the layer's own times, see [`RecomputeSpace::front`].
    ///
    /// # Errors
    /// As [`RecomputeSpace::front`].
    pub fn front_for_own_times(&self) -> Result<Vec<RecomputePolicy>, LayerError> {
        let times: Vec<Seconds> = self.layer.operators.iter().map(|o| o.forward).collect();
        self.front(&times)
    }

    /// The Pareto front of stash bytes against extra seconds, if operator `i` takes `forward[i]`. The fastest policy
    /// (no reruns, largest stash) comes first. On ties the smallest workspace wins.
    ///
    /// # Errors
    /// [`LayerError::TimeCount`] for another number of times than operators. [`LayerError::Time`] for a time that is
    /// negative or not finite.
    pub fn front(&self, forward: &[Seconds]) -> Result<Vec<RecomputePolicy>, LayerError> {
        self.check_times(forward)?;
        let seconds: Vec<f64> = forward.iter().map(|t| t.0).collect();
        Ok(match &self.candidates {
            Some(candidates) => filter_front(candidates, &SetTimes::new(&seconds)),
            None => self.solve_by_labels(&seconds),
        })
    }

    fn check_times(&self, forward: &[Seconds]) -> Result<(), LayerError> {
        if forward.len() != self.layer.operators.len() {
            return Err(LayerError::TimeCount { given: forward.len(), operators: self.layer.operators.len() });
        }
        let bad = forward.iter().zip(&self.layer.operators).find(|(t, _)| !(t.is_finite() && t.0 >= 0.0));
        bad.map_or(Ok(()), |(t, o)| Err(LayerError::Time { operator: o.name.clone(), seconds: t.0 }))
    }

    /// Computes the front by labels, which are compared by these times in seconds. [`RecomputeSpace::front`] calls this
    /// if there are too many candidates to list.
    pub(super) fn solve_by_labels(&self, seconds: &[f64]) -> Vec<RecomputePolicy> {
        let bytes = |t: &TensorIndex| self.layer.tensors[t.0].bytes.0;
        let rebuilt = self.layer.operators.iter().map(|o| o.outputs.iter().map(bytes).fold(0, u64::saturating_add));
        let per_operator: Vec<(f64, u64)> = seconds.iter().copied().zip(rebuilt).collect();
        let nothing = GivenTimes { per_operator: &per_operator, seconds: 0.0, workspace: 0, set: OperatorSet::EMPTY };
        let labels = undominated_labels(&self.layer, nothing, usize::MAX).unwrap_or_default();
        let mut found: Vec<PolicyCandidate> = labels
            .into_iter()
            .map(|l| PolicyCandidate { stash: l.stash, workspace: l.cost.workspace, operators: l.cost.set })
            .collect();
        found.sort_by_key(|c| (c.stash, c.workspace, c.operators));
        filter_front(&found, &SetTimes::new(seconds))
    }
}

/// The front of candidates that are sorted by (stash, workspace, set). One pass suffices: a policy joins the front only
/// if it is faster than those before.
fn filter_front(sorted: &[PolicyCandidate], times: &SetTimes) -> Vec<RecomputePolicy> {
    let mut front: Vec<RecomputePolicy> = Vec::new();
    for candidate in sorted {
        let seconds = times.time_of_set(candidate.operators);
        let policy = RecomputePolicy {
            stash: Bytes(candidate.stash),
            extra: Seconds(seconds),
            workspace: Bytes(candidate.workspace),
            operators: candidate.operators,
        };
        match front.last_mut() {
            // Sums in another order differ in their last bits, and such a difference is no gain.
            Some(last) if seconds >= last.extra.0 * (1.0 - 1e-12) => {}
            Some(last) if last.stash == policy.stash => *last = policy,
            _ => front.push(policy),
        }
    }
    front.reverse();
    front
}
