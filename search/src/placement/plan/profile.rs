//! What the planner is told: seconds and bytes of a chain of segments, and the limits of the cluster.

use serde::{Deserialize, Serialize};
use sim::units::{Bytes, Seconds};
use thiserror::Error;

/// The longest chain: positions in it are 16-bit keys.
const MAX_UNITS: usize = 65_535;

/// One way to treat what a segment saves for its backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SegmentPolicy {
    /// The caller's own number for it, returned in plans.
    pub id: usize,
    /// Bytes kept per micro-batch in flight.
    pub stash: Bytes,
    /// Seconds it adds to the segment's time per micro-batch.
    pub extra: Seconds,
    /// Bytes rebuilt and alive during this segment's backward pass only.
    pub workspace: Bytes,
}

/// A piece of the chain that cannot be cut, standing for `repeat` equal ones in a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Name shown in plans.
    pub name: String,
    /// How many equal pieces follow each other; at least 1.
    pub repeat: usize,
    /// Forward time of one piece for one micro-batch.
    pub forward: Seconds,
    /// Backward time of one piece for one micro-batch, recomputation apart.
    pub backward: Seconds,
    /// The ways to treat its saved tensors; at least one.
    pub policies: Vec<SegmentPolicy>,
    /// Bytes of weights, gradients and optimiser states that every data-parallel rank holds.
    pub replicated: Bytes,
    /// Bytes of the same that are divided over the data-parallel ranks (ZeRO); zero without.
    pub sharded: Bytes,
    /// Bytes reduced over the data-parallel ranks once per step.
    pub gradient: Bytes,
    /// Optimiser time per step that every data-parallel rank spends.
    pub optimizer: Seconds,
    /// Optimiser time per step that is divided over the data-parallel ranks (ZeRO); zero without.
    pub sharded_optimizer: Seconds,
    /// Bytes alive only while this piece runs: gradients of its activations, gathered tensors, fp32 logits.
    pub transient: Bytes,
    /// Exposed time of passing its output to another stage, once. The activation's passage is charged to the stage that
    /// receives it and so is that of its gradient, so a cut costs this once on each of its sides.
    pub boundary: Seconds,
}

/// A chain of segments as one tensor-parallel rank sees it, for one micro-batch size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainProfile {
    /// The chain in execution order, for example embedding, layer (repeated), head.
    pub segments: Vec<Segment>,
    /// Memory of one device.
    pub hbm: Bytes,
    /// Memory of one device that the training framework and the collectives' buffers take.
    pub constant: Bytes,
}

/// What the cluster and the training run allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterLimits {
    /// Accelerators available.
    pub devices: u64,
    /// Sequences per training step.
    pub global_batch: u64,
    /// Accelerators that share each layer (tensor parallel).
    pub tensor_width: u64,
    /// Sequences per micro-batch.
    pub micro_batch: u64,
}

/// How much to spend on proving each stage's mix of policies the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// Until it is proven, in all but pathological cases.
    #[default]
    Proof,
    /// A few microseconds per stage: for sweeps. What is left unproven is the status's gap, usually none.
    Sweep,
}

impl Effort {
    pub(super) fn state_limit(self) -> usize {
        match self {
            Self::Proof => 200_000,
            Self::Sweep => 200,
        }
    }
}

/// The fabric as the planner sees it: how long gradients take to reduce.
///
/// Law: more bytes never take less time.
pub trait GradientSync {
    /// Seconds to all-reduce `bytes` among `ranks` devices, `stride` device numbers apart. The planner numbers devices with the
    /// tensor-parallel rank fastest, then the data-parallel rank, then the pipeline stage: the stride is the tensor width.
    /// Not called for a single rank, which takes no time.
    fn seconds(&self, bytes: Bytes, ranks: u64, stride: u64) -> Seconds;
}

impl<F: Fn(Bytes, u64, u64) -> Seconds> GradientSync for F {
    fn seconds(&self, bytes: Bytes, ranks: u64, stride: u64) -> Seconds {
        self(bytes, ranks, stride)
    }
}

/// What is wrong with the planner's input.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlacementError {
    /// The chain has no segment, or too many pieces.
    #[error("the chain has {units} pieces: give at least 1 and at most {MAX_UNITS}")]
    Length {
        /// Pieces, repeats counted.
        units: usize,
    },
    /// A segment is repeated zero times.
    #[error("segment `{segment}` is repeated 0 times: leave it out or repeat it at least once")]
    NoRepeat {
        /// The segment.
        segment: String,
    },
    /// A segment has no memory policy.
    #[error("segment `{segment}` has no memory policy: give at least one, for example keeping everything")]
    NoPolicy {
        /// The segment.
        segment: String,
    },
    /// A time is negative, infinite or not a number.
    #[error("segment `{segment}`: {what} is {seconds} s: a time must be finite and not negative")]
    Time {
        /// The segment.
        segment: String,
        /// Which time.
        what: &'static str,
        /// Its value.
        seconds: f64,
    },
    /// A count that must be positive is zero.
    #[error("{what} is 0: it must be at least 1")]
    Zero {
        /// Which count.
        what: &'static str,
    },
    /// The fabric gave a negative or undefined time.
    #[error(
        "all-reducing {bytes} among {ranks} ranks takes {seconds} s according to the fabric: a time must be finite and not negative"
    )]
    Sync {
        /// The bytes asked for.
        bytes: Bytes,
        /// The ranks asked for.
        ranks: u64,
        /// The answer.
        seconds: f64,
    },
}

impl ChainProfile {
    /// Pieces of the chain, repeats counted.
    #[must_use]
    pub fn units(&self) -> usize {
        self.segments.iter().map(|s| s.repeat).fold(0, usize::saturating_add)
    }

    /// Whether the profile is usable.
    ///
    /// # Errors
    /// The first fault, see [`PlacementError`].
    pub fn check(&self) -> Result<(), PlacementError> {
        let units = self.units();
        if units == 0 || units > MAX_UNITS {
            return Err(PlacementError::Length { units });
        }
        self.segments.iter().try_for_each(Segment::check)
    }
}

impl Segment {
    fn check(&self) -> Result<(), PlacementError> {
        let segment = || self.name.clone();
        if self.repeat == 0 {
            return Err(PlacementError::NoRepeat { segment: segment() });
        }
        if self.policies.is_empty() {
            return Err(PlacementError::NoPolicy { segment: segment() });
        }
        let own = [
            ("forward", self.forward),
            ("backward", self.backward),
            ("optimizer", self.optimizer),
            ("sharded_optimizer", self.sharded_optimizer),
            ("boundary", self.boundary),
        ];
        let times = own.into_iter().chain(self.policies.iter().map(|p| ("a policy's extra", p.extra)));
        for (what, time) in times {
            if !(time.is_finite() && time.0 >= 0.0) {
                return Err(PlacementError::Time { segment: segment(), what, seconds: time.0 });
            }
        }
        Ok(())
    }
}

impl ClusterLimits {
    /// Whether the limits are usable.
    ///
    /// # Errors
    /// [`PlacementError::Zero`] for a count of zero.
    pub fn check(&self) -> Result<(), PlacementError> {
        let counts = [
            ("devices", self.devices),
            ("global_batch", self.global_batch),
            ("tensor_width", self.tensor_width),
            ("micro_batch", self.micro_batch),
        ];
        let zero = counts.into_iter().find(|(_, count)| *count == 0);
        zero.map_or(Ok(()), |(what, _)| Err(PlacementError::Zero { what }))
    }
}
