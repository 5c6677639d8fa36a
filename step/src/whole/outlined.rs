//! A plan's shape, prepared once for many chips: everything except the times of its passes. It serves lower bounds on
//! schedules ([`Outline`]).
//!
//! [`Outline`]: sim::schedule::Outline

use crate::pass::profile::{PieceProfile, StepProfile};
use crate::pass::program::{KernelProgram, KernelTable, SegmentPasses};
use crate::whole::evaluator::{LoweredModel, PlanShape};
use crate::{ChipTimes, ExecutionMode, StepError, TrainingPlan};
use sim::kernel::KernelGraph;
use sim::network::Fabric;
use sim::units::{Bytes, Seconds};
use std::sync::Arc;
use workloads::{ActivationPolicy, SegmentKind};

impl PlanShape {
    /// Returns the profile's embedding, layer and head.
    fn pieces_mut(&mut self) -> [&mut PieceProfile; 3] {
        let StepProfile { embedding, layer, head, .. } = &mut self.profile;
        [embedding, layer, head]
    }

    /// Returns whether a plan's policies decide which tensors a segment keeps: always for layers, and for ends that
    /// contain layers.
    fn follows_policy(&self, kind: SegmentKind) -> bool {
        match kind {
            SegmentKind::Embedding => self.profile.leading_segment.is_some(),
            SegmentKind::Layer => true,
            SegmentKind::Head => self.profile.trailing_segment.is_some(),
        }
    }
}

/// The recomputing part of a segment's backward pass under a policy.
#[derive(Debug, Clone)]
struct RecomputedBackward<G> {
    /// The backward pass with recomputation, if there is any.
    whole: Option<G>,
    /// Fraction of the recomputation that runs, and number of runs of the backward pass.
    repeats: [f64; 2],
}

/// A plan's shape without the times of its passes: embedding, layer, head.
#[derive(Debug, Clone)]
pub struct UntimedShape<G = KernelGraph> {
    shape: PlanShape,
    again: [RecomputedBackward<G>; 3],
}

/// A shape whose passes are programs of interned kernels.
pub type OutlinedShape = UntimedShape<Arc<KernelProgram>>;

impl LoweredModel<'_> {
    /// Returns the shape of a plan with one policy, without the times of its passes. Returns `None` for plans with
    /// several policies, and if more than the schedules depends on the chip (streams of kernels, copies to the host).
    /// `self`'s first shape must be of the policy that keeps everything.
    ///
    /// # Errors
    /// A graph without layers.
    pub fn untimed_shape(
        &mut self,
        chip: &mut ChipTimes,
        fabric: &Fabric,
        plan: &TrainingPlan,
    ) -> Result<Option<UntimedShape>, StepError> {
        if chip.stack().kernels.execution != ExecutionMode::Scheduled || plan.activations.uniform_policy().is_none() {
            return Ok(None);
        }
        let shape = self.plan_shape(chip, fabric, plan)?;
        let keeps = ActivationPolicy::None;
        let mut copies = false;
        let again = [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(|kind| {
            let Some(segment) = self.graph().segment(kind) else {
                return RecomputedBackward { whole: None, repeats: [1.0; 2] };
            };
            let policy = if shape.follows_policy(kind) { plan.activations.first_layer_policy() } else { &keeps };
            let treatment = policy.treatment_with_extent(&segment.graph, chip.stack().replay_extent());
            copies |= treatment.offloaded_bytes(&segment.graph) > Bytes::ZERO;
            let whole = (!treatment.recompute.is_empty()).then(|| segment.backward_graph(&treatment.recompute));
            // Without offload, all tokens are recomputed.
            RecomputedBackward { whole, repeats: [1.0, if segment.second_backward { 2.0 } else { 1.0 }] }
        });
        Ok((!copies).then_some(UntimedShape { shape, again }))
    }
}

impl UntimedShape {
    /// Returns the shape with its graphs interned in `table`.
    #[must_use]
    pub fn intern_kernels(self, table: &mut KernelTable) -> OutlinedShape {
        let again = self.again.map(|RecomputedBackward { whole, repeats }| RecomputedBackward {
            whole: whole.map(|graph| table.intern_graph(&graph)),
            repeats,
        });
        UntimedShape { shape: self.shape, again }
    }
}

impl OutlinedShape {
    /// Returns the shape without the times of its passes.
    #[must_use]
    pub fn shape_without_times(&self) -> &PlanShape {
        &self.shape
    }

    /// Returns the shape with the pass times that `least` gives. It equals [`LoweredModel::plan_shape`] on a chip with
    /// such kernel bounds. `passes` are those of the lowered model without recomputation.
    #[must_use]
    pub fn shape_with_least(
        &self,
        passes: &[SegmentPasses; 3],
        mut least: impl FnMut(&KernelProgram) -> Seconds,
    ) -> PlanShape {
        let mut shape = self.shape.clone();
        for ((piece, again), passes) in shape.pieces_mut().into_iter().zip(&self.again).zip(passes) {
            let once = least(&passes.backward);
            let more = again.whole.as_ref().map_or(Seconds::ZERO, |whole| (least(whole) - once).max(Seconds::ZERO));
            piece.forward.device = least(&passes.forward);
            piece.recompute.device = more * again.repeats[0];
            piece.backward.device = once * again.repeats[1];
            piece.mark_bounded();
        }
        shape
    }
}
