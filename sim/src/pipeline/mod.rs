//! The pipeline of a training step: an event simulation, and closed forms that are cheap enough for a search.
//!
//! A [`Pipeline`] is a chain of stages with the durations of their passes, the send times between them, a number of
//! micro-batches and a [`PipelineSchedule`]. [`Pipeline::simulate_step`] plays it event by event into a [`Timeline`]:
//! the step's time, and every device's bubble, exposed communication and memory over time. Sends are asynchronous: they
//! delay the receiver and occupy no device.
//!
//! # 1F1B with uneven stages
//! Let `s_k = f_k + b_k` (forward, and everything backward) and `c_k` the send time between stages `k` and `k + 1`.
//! [`one_f_one_b_time`] is `U = sum_k s_k + 2 sum_k c_k + (m - 1) * period`. [`one_f_one_b_period`] is the steady time
//! per micro-batch: `max over intervals i..=j of (sum of s over i..=j + 2 * sum of c inside) / (j - i + 1)`. Without
//! send times the period is `max_k s_k`, and `U` is the planner's `sum_k (f_k + b_k) + (m - 1) max_k (f_k + b_k)`. With
//! send times the period exceeds the slowest stage: 1F1B keeps exactly `p - k` micro-batches in flight, and a round
//! trip with sends takes longer than they do.
//!
//! The event simulation's time `T` compares as follows (property tests in `tests.rs`, random stages and sends):
//! - `T = U` when all `s_k` are equal and nothing is sent, *however* forward and backward split them: both are
//!   `(m + p - 1) * s`. It also holds for one micro-batch, always.
//! - `T = U` when the last stage is a slowest one, `b_k / f_k` is the same everywhere and nothing is sent.
//! - `T <= U` (an upper bound) whenever `b_k / f_k` is the same on every stage, with or without send times. `T` may be
//!   well below: a slow stage followed by faster ones hides part of the fill and drain behind its own warm-up. Forward
//!   (6, 1, 2, 4, 2, 2), backward twice that, six micro-batches: `U = 141`, `T = 111`. Without sends the excess `U - T`
//!   is at most the work of the stages after the first slowest one, so it does not grow with `m`.
//! - In general `U` is **no bound in either direction**. If some stages are forward-heavy and others backward-heavy,
//!   `T` may exceed `U`. Forward (5, 6, 1, 1), backward (1, 1, 6, 1), five micro-batches: `U = 50`, `T = 53`. Random
//!   integers in 1..=6 give up to 12 % at few micro-batches.
//! - [`one_f_one_b_lower_bound`] never exceeds `T`: it is the longest of a few paths through the events. It equals `T`
//!   in 9 of 10 random uneven pipelines, and in all even ones without sends.
//! - [`one_f_one_b_upper_bound`] is never below `T`: it is `U` with every stage raised to the slowest one.
//! - [`one_f_one_b_exact_time`] is `T`, by a recurrence of `p (m + p)` steps. It is six to nine times faster than
//!   playing the events (2.5 against 15 microseconds for 8 stages and 64 micro-batches on a shared core).
//! - [`interleaved_exact_time`] is the time of interleaved 1F1B by a similar recurrence.
//! - [`Pipeline::lower_bound`] never exceeds the time of *any* schedule, once-per-step work included.
//! - [`UnequalEndsPipeline::time_of_passes`] is `T` without a loop over stages or micro-batches, where only the first
//!   and the last stage differ from the others (models of equal layers). It is exact for GPipe, and for 1F1B and
//!   interleaved under conditions that such models meet. [`LongerRunPipeline::time_of_passes`] is a lower bound where a
//!   contiguous run of the other stages is longer (layers that do not divide evenly).
//!
//! A search may therefore rank by `U` and prune by the lower bound, but the exact time must decide.

mod closed_form;
mod dual_pipe;
mod ends;
mod interleaved;
mod order;
mod pass;
mod reductions;
mod row;
mod schedule;
mod simulate;
#[cfg(test)]
mod tests;
mod zb_v;

pub use closed_form::{
    StageWork, gpipe_time, interleaved_time, one_f_one_b_exact_time, one_f_one_b_lower_bound, one_f_one_b_period,
    one_f_one_b_time, one_f_one_b_upper_bound, passes_in_flight, v_in_flight, zb_h1_time,
};
pub use ends::{ChunkWork, PassesTime, UnequalEndsPipeline};
pub use interleaved::interleaved_exact_time;
pub use row::LongerRunPipeline;
pub use schedule::{PipelineSchedule, SCHEDULES, VSchedule};
pub use simulate::{DeviceReport, PipelineEvent, PipelineEventKind, Timeline};

use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One (virtual) stage: the costs of a micro-batch, and the once-per-step costs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PipelineStage {
    /// Forward pass of one micro-batch.
    pub forward: Seconds,
    /// Forward work repeated before the backward pass, after the gradient has arrived (activation recomputation).
    pub recompute: Seconds,
    /// Gradient with respect to the stage's input, one micro-batch.
    pub backward_input: Seconds,
    /// Gradient with respect to its weights, one micro-batch.
    pub backward_weight: Seconds,
    /// Reduction of the weight gradients over the data-parallel ranks, once per step.
    pub reduction: Seconds,
    /// Optimizer update, once per step.
    pub optimizer: Seconds,
    /// Resident bytes: weights, gradients, optimizer states.
    pub resident: Bytes,
    /// Bytes that a micro-batch keeps from the start of its forward pass to the end of its input gradient.
    pub stash: Bytes,
    /// The part of `stash` that the weight gradient needs. If the weight gradient is a separate pass, this part stays
    /// until that pass ends.
    pub stash_for_weights: Bytes,
    /// Bytes that one backward pass needs while it runs (recomputed activations, gradients of activations).
    pub working: Bytes,
}

impl PipelineStage {
    /// Returns the time of one micro-batch's whole backward pass.
    #[must_use]
    pub fn backward_seconds(&self) -> Seconds {
        self.recompute + self.backward_input + self.backward_weight
    }
}

/// The time at which gradients are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientReduction {
    /// After the device's last backward pass.
    AfterBackward,
    /// In `buckets` equal parts, each as soon as the last micro-batch's backward pass has produced it.
    Overlapped {
        /// Parts, at least 1; 1 is [`GradientReduction::AfterBackward`] per chunk.
        buckets: u32,
    },
}

/// A training step to simulate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pipeline {
    /// Virtual stages in model order: devices times chunks. Under [`PipelineSchedule::Interleaved`] virtual stage `i`
    /// is on device `i mod p`.
    pub stages: Vec<PipelineStage>,
    /// Time from the end of a pass to the arrival of its result. `sends[i]` is the time between virtual stages `i` and
    /// `i + 1`, in both directions; it is ignored between stages of one device. There is one send fewer than stages.
    pub sends: Vec<Seconds>,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// The schedule.
    pub schedule: PipelineSchedule,
    /// The time at which gradients are reduced.
    pub reduction: GradientReduction,
    /// True if optimizer updates wait until all devices have reduced, as clipping by the global gradient norm requires.
    pub optimizer_waits_for_all: bool,
}

/// The reason why a pipeline is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PipelineError {
    /// No stages or no micro-batches.
    #[error("a pipeline needs at least one stage and one micro-batch, it has {stages} and {micro_batches}; give both")]
    Empty {
        /// Stages given.
        stages: usize,
        /// Micro-batches given.
        micro_batches: u32,
    },
    /// The number of send times does not match the stages.
    #[error("{sends} send times for {stages} stages; give one fewer than stages")]
    Sends {
        /// Send times given.
        sends: usize,
        /// Stages given.
        stages: usize,
    },
    /// The stages do not divide into chunks.
    #[error("{stages} virtual stages do not divide into {chunks} chunks per device; use {low} or {high}")]
    Chunks {
        /// Virtual stages given.
        stages: usize,
        /// Chunks per device.
        chunks: u32,
        /// The next lower number that divides.
        low: usize,
        /// The next higher number that divides.
        high: usize,
    },
    /// Interleaving needs whole rounds of micro-batches.
    #[error("{micro_batches} micro-batches on {devices} interleaved devices: must be a multiple; use {low} or {high}")]
    Rounds {
        /// Micro-batches given.
        micro_batches: u32,
        /// Devices.
        devices: u32,
        /// The next lower multiple (at least one round).
        low: u32,
        /// The next higher multiple.
        high: u32,
    },
    /// Fewer than two chunks with interleaving, no buckets, or fewer micro-batches than a schedule's order needs.
    #[error("{what} = {value}: must be at least {least}; raise it")]
    TooSmall {
        /// The quantity.
        what: String,
        /// Its value.
        value: u32,
        /// The limit.
        least: u32,
    },
    /// The schedule deadlocks: a defect of the schedule, not of the input.
    #[error(
        "the schedule never runs the backward pass of micro-batch {micro_batch} on stage {stage}; report it with the pipeline"
    )]
    Stuck {
        /// The virtual stage.
        stage: usize,
        /// The micro-batch.
        micro_batch: usize,
    },
    /// An invalid duration.
    #[error(
        "stage {stage}: {what} = {value}: must be a finite number of seconds, at least 0; check the cost model's input"
    )]
    Duration {
        /// The virtual stage.
        stage: usize,
        /// The name of the duration.
        what: &'static str,
        /// Its value.
        value: String,
    },
}

impl Pipeline {
    /// Returns a pipeline of equal stages without sends and once-per-step work, for closed forms, tests and examples.
    #[must_use]
    pub fn with_uniform_stages(
        stage: PipelineStage,
        stages: usize,
        micro_batches: u32,
        schedule: PipelineSchedule,
    ) -> Self {
        Self {
            stages: vec![stage; stages],
            sends: vec![Seconds::ZERO; stages.saturating_sub(1)],
            micro_batches,
            schedule,
            reduction: GradientReduction::AfterBackward,
            optimizer_waits_for_all: false,
        }
    }

    /// Returns the number of devices: virtual stages divided by chunks.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        self.stages.len() as u32 / self.schedule.chunks_per_device().max(1)
    }

    /// Returns the device of a virtual stage.
    #[must_use]
    pub fn device_of(&self, stage: usize) -> usize {
        let p = (self.device_count() as usize).max(1);
        if self.schedule.is_in_v() && stage >= p { 2 * p - 1 - stage.min(2 * p - 1) } else { stage % p }
    }

    /// Checks the description.
    ///
    /// # Errors
    /// The first broken rule, with values that would obey it.
    pub fn check_description(&self) -> Result<(), PipelineError> {
        let stages = self.stages.len();
        if stages == 0 || self.micro_batches == 0 {
            return Err(PipelineError::Empty { stages, micro_batches: self.micro_batches });
        }
        if self.sends.len() + 1 != stages {
            return Err(PipelineError::Sends { sends: self.sends.len(), stages });
        }
        self.check_schedule(stages)?;
        for (stage, s) in self.stages.iter().enumerate() {
            let send = self.sends.get(stage).copied().unwrap_or(Seconds::ZERO);
            for (what, value) in [
                ("forward", s.forward),
                ("recompute", s.recompute),
                ("backward_input", s.backward_input),
                ("backward_weight", s.backward_weight),
                ("reduction", s.reduction),
                ("optimizer", s.optimizer),
                ("send", send),
            ] {
                if !(value.is_finite() && value.0 >= 0.0) {
                    return Err(PipelineError::Duration { stage, what, value: value.0.to_string() });
                }
            }
        }
        Ok(())
    }

    fn check_schedule(&self, stages: usize) -> Result<(), PipelineError> {
        let chunks = self.schedule.chunks_per_device();
        if let PipelineSchedule::Interleaved { chunks } = self.schedule
            && chunks < 2
        {
            return Err(PipelineError::TooSmall { what: "chunks".to_owned(), value: chunks, least: 2 });
        }
        if let GradientReduction::Overlapped { buckets: 0 } = self.reduction {
            return Err(PipelineError::TooSmall { what: "buckets".to_owned(), value: 0, least: 1 });
        }
        let per = chunks as usize;
        if !stages.is_multiple_of(per) {
            let low = (stages / per * per).max(per);
            return Err(PipelineError::Chunks { stages, chunks, low, high: (stages / per + 1) * per });
        }
        let (m, p) = (self.micro_batches, self.device_count());
        let least = self.schedule.least_micro_batches(p);
        if m < least {
            let what = format!("micro-batches under {}", self.schedule.name());
            return Err(PipelineError::TooSmall { what, value: m, least });
        }
        if matches!(self.schedule, PipelineSchedule::Interleaved { .. }) && m % p != 0 {
            let low = (m / p * p).max(p);
            return Err(PipelineError::Rounds {
                micro_batches: m,
                devices: p,
                low,
                high: (m / p + 1).saturating_mul(p),
            });
        }
        Ok(())
    }
}
