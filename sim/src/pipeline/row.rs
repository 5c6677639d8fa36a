//! Pipelines with a contiguous run of inner virtual stages that are longer than the others, as with layers that do not
//! divide evenly. They have lower bounds without a loop over micro-batches, and GPipe's exact time.
//!
//! A schedule that fixes the order of passes takes at least as long as any path through them. These are the paths, one
//! for each device `j`:
//! - The first micro-batch comes to one of the device's chunks, or comes back to its last one, and the device continues
//!   from that pass. Meanwhile the device may have run passes of its own, or waited; the path counts the way and not
//!   those passes.
//! - Then all of the device's passes follow one another.
//! - The end mirrors the beginning: the last micro-batch's way from one of the device's chunks back to the first one,
//!   or from its last forward pass up to the last chunk and all the way back.
//!
//! In addition, no longer chunk is shorter than the others, so [`UnequalEndsPipeline`] without the run gives a lower
//! bound. GPipe is two flow shops, and its time is exact. Under ZB-H1 and in a V a device's passes follow the way up to
//! it; the passes after them are omitted.

use super::ends::{ChunkWork, PassesTime, UnequalEndsPipeline};
use super::{PipelineSchedule, passes_in_flight};
use crate::units::Seconds;

/// A pipeline whose virtual stages are equal except for the first, the last, and a contiguous run of longer ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LongerRunPipeline {
    /// The same pipeline without the longer stages.
    pub pipeline: UnequalEndsPipeline,
    /// Each of the longer virtual stages; no part of it is shorter than that of an inner stage.
    pub longer: ChunkWork,
    /// The first of them, from 0; it follows the first virtual stage.
    pub from: u64,
    /// Their number. All come before the last virtual stage, and some inner stages are not among them.
    pub count: u64,
}

/// The seconds of a virtual stage's pass in one direction.
type StagePassSeconds = fn(&ChunkWork) -> f64;

const FORWARD: StagePassSeconds = |work| work.forward.0;
const BACKWARD: StagePassSeconds = |work| work.backward.0;

impl LongerRunPipeline {
    /// Returns the time of all passes under a schedule: exact for [`PipelineSchedule::GPipe`], else a lower bound.
    /// Without longer stages it is the base pipeline's time.
    #[must_use]
    pub fn time_of_passes(&self, schedule: PipelineSchedule) -> PassesTime {
        if self.count == 0 {
            return self.pipeline.time_of_passes(schedule);
        }
        if schedule == PipelineSchedule::GPipe {
            return PassesTime::Exact(Seconds(self.time_of_gpipe()));
        }
        let shorter = self.pipeline.time_of_passes(schedule).seconds().0;
        let busy = (0..self.pipeline.devices).map(|device| match schedule {
            _ if schedule.splits_backward() => self.time_behind_way_up(schedule, device),
            _ => self.longest_path_of_device(schedule, device),
        });
        PassesTime::AtLeast(Seconds(busy.fold(shorter, f64::max)))
    }

    /// Returns virtual stage `stage` of `stages`.
    fn work_of_stage(&self, stage: u64, stages: u64) -> &ChunkWork {
        match stage {
            0 => &self.pipeline.first,
            _ if stage + 1 == stages => &self.pipeline.last,
            _ if stage.wrapping_sub(self.from) < self.count => &self.longer,
            _ => &self.pipeline.inner,
        }
    }

    /// Returns the time of a micro-batch's passes through the virtual stages before `stage`, which is not the first.
    fn time_before(&self, stage: u64, pass: StagePassSeconds) -> f64 {
        let longer = stage.min(self.from + self.count).saturating_sub(self.from);
        pass(&self.pipeline.first)
            + pass(&self.pipeline.inner) * (stage.saturating_sub(1) - longer) as f64
            + pass(&self.longer) * longer as f64
    }

    fn time_of_gpipe(&self) -> f64 {
        let UnequalEndsPipeline { first, last, send, farther, devices, micro_batches, .. } = &self.pipeline;
        let stages = u64::from(*devices);
        let largest = |pass: StagePassSeconds| pass(first).max(pass(last)).max(pass(&self.longer));
        let all = |pass: StagePassSeconds| self.time_before(stages - 1, pass) + pass(last);
        let sends = send.0 * f64::from(devices - 1) + farther.0;
        let more = f64::from(micro_batches.saturating_sub(1));
        all(FORWARD) + all(BACKWARD) + 2.0 * sends + (largest(FORWARD) + largest(BACKWARD)) * more
    }

    /// Returns the time of the first micro-batch's way up to a device, followed by all of the device's passes.
    fn time_behind_way_up(&self, schedule: PipelineSchedule, device: u32) -> f64 {
        let p = &self.pipeline;
        let (place, stages) = (u64::from(device), u64::from(p.devices * schedule.chunks_per_device()));
        let way = if device == 0 { 0.0 } else { self.time_before(place, FORWARD) + p.send.0 * f64::from(device) };
        let later = if schedule.is_in_v() { self.total_seconds(stages - 1 - place, stages) } else { 0.0 };
        way + (self.total_seconds(place, stages) + later) * f64::from(p.micro_batches)
    }

    fn total_seconds(&self, stage: u64, stages: u64) -> f64 {
        let work = self.work_of_stage(stage, stages);
        FORWARD(work) + BACKWARD(work)
    }

    /// Returns the longest path through all passes of a device under plain or interleaved 1F1B.
    fn longest_path_of_device(&self, schedule: PipelineSchedule, device: u32) -> f64 {
        let p = &self.pipeline;
        let chunks = u64::from(schedule.chunks_per_device());
        let stages = u64::from(p.devices) * chunks;
        let passes = u64::from(p.micro_batches) * chunks;
        // Passes in flight: the number of forward passes before the first backward one.
        let ahead = u64::from(passes_in_flight(schedule, p.devices, device, p.micro_batches));
        let work: f64 =
            (0..chunks).map(|chunk| self.total_seconds(chunk * u64::from(p.devices) + u64::from(device), stages)).sum();
        let [[up, around], [down, over]] = [[FORWARD, BACKWARD], [BACKWARD, FORWARD]]
            .map(|directions| self.extra_time_of_ways(device, chunks, ahead, directions));
        // The case in which the first backward pass comes before the last forward one.
        let both = if passes > ahead { around + over } else { 0.0 };
        work * f64::from(p.micro_batches) + (up + down).max(up + over).max(around + down).max(both)
    }

    /// Returns the largest extra time of one micro-batch's way, compared with the device's passes that the way
    /// replaces. The first value is for the way to the device's chunks, in the first of the two directions. The second
    /// is for the way to the last chunk and back to the device.
    fn extra_time_of_ways(
        &self,
        device: u32,
        chunks: u64,
        ahead: u64,
        [pass, other]: [StagePassSeconds; 2],
    ) -> [f64; 2] {
        let (p, send) = (u64::from(self.pipeline.devices), self.pipeline.send.0);
        let (device, stages) = (u64::from(device), p * chunks);
        let (mut first, mut left_out, mut passes) = (0.0_f64, 0.0, 0.0);
        for chunk in 0..chunks {
            let place = chunk * p + device;
            let way = if place == 0 { 0.0 } else { self.time_before(place, pass) + send * place as f64 };
            let farther = if place + 1 >= p { self.pipeline.farther.0 } else { 0.0 };
            first = first.max(way + farther - left_out);
            let own = pass(self.work_of_stage(place, stages));
            left_out += own * p as f64;
            let (rounds, rest) = (ahead / stages, ahead % stages);
            passes += own * (rounds * p + rest.saturating_sub(chunk * p).min(p)) as f64;
        }
        let last = &self.pipeline.last;
        let all =
            self.time_before(stages - 1, pass) + pass(last) + send * (stages - 1) as f64 + self.pipeline.farther.0;
        let place = stages - p + device;
        let back = self.time_before(stages - 1, other) + other(last) - self.time_before(place + 1, other);
        let back = if place + 1 < stages { back + send * (stages - 1 - place) as f64 } else { 0.0 };
        [first, all + back - passes]
    }
}

#[cfg(test)]
#[path = "row_tests.rs"]
mod tests;
