//! Lower bounds on the time for which a piece of a model keeps a device busy in one micro-batch.

use crate::SoftwareStack;
use crate::pass::profile::{PieceProfile, StepProfile};
use crate::pipeline::chunk::{busy_times, launch_times, split_backward_parts};
use sim::units::Seconds;

/// Lower bounds on the passes of a piece for one micro-batch on one device. They include exposed communication, but not
/// the gathering of weights under ZeRO-3.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PieceLoad {
    /// The forward pass.
    pub forward: Seconds,
    /// The backward pass in one go, with recomputation.
    pub backward: Seconds,
    /// The backward pass in two separate parts: recomputation with input gradients, and weight gradients.
    pub apart: [Seconds; 2],
}

/// Returns [`PlanShape::piece_loads`] of a profile.
pub(crate) fn piece_loads_of_profile(profile: &StepProfile, stack: &SoftwareStack) -> [PieceLoad; 3] {
    let pieces = [&profile.embedding, &profile.layer, &profile.head];
    let passes = |piece: &PieceProfile| {
        let ([f, b], [launch, launch_back], [input, weight]) =
            (busy_times(piece), launch_times(stack, piece), split_backward_parts(stack, piece));
        [[f, launch], [b, launch_back], input, weight]
    };
    let longer = passes(pieces[1]).map(|[device, host]| usize::from(host > device));
    pieces.map(|piece| {
        let of = passes(piece);
        let [forward, backward, input, weight] = [0, 1, 2, 3].map(|pass| of[pass][longer[pass]]);
        PieceLoad { forward, backward, apart: [input, weight] }
    })
}
