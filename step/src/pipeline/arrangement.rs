//! Division of a model among devices: the kinds of chunks, and the groups of devices that hold the same chunks.
//!
//! All layers are alike, so a pipeline has at most four kinds of chunks: the first with the embedding, the last with
//! the head, and shorter and longer inner ones. The longer chunks are neighbours, so there are at most five kinds of
//! devices.

use crate::StepProfile;
use crate::pass::profile::PieceProfile;
use crate::schedule::effective_schedule;
use sim::pipeline::PipelineSchedule;
use workloads::{ChunkSplit, Layout};

/// Number of kinds of chunks: the first, inner ones, the last, and inner ones with one more layer. A single chunk
/// counts as the first kind.
pub const KINDS: usize = 4;

/// Largest number of kinds of devices: the first, up to three kinds of inner ones, and the last. Inner neighbours hold
/// the same chunks, except where the row of longer chunks begins and where it ends.
pub const DEVICE_KINDS: usize = 5;

/// Kinds of inner devices, in pipeline order.
const BETWEEN: [usize; 3] = [1, 3, 4];

/// Neighbouring devices that hold the same chunks.
#[derive(Debug, Clone, Copy)]
pub struct DeviceGroup {
    /// Their kind.
    pub kind: usize,
    /// The first device; the others follow it.
    pub from: u32,
    /// The last device.
    pub to: u32,
    /// Chunks of each kind per device.
    pub counts: [u64; KINDS],
}

/// A plan's degrees, and the resulting division of its layers.
#[derive(Debug, Clone, Copy)]
pub struct Arrangement {
    /// The parallel degrees.
    pub layout: Layout,
    /// Layers of each chunk.
    pub split: ChunkSplit,
    /// The effective schedule.
    pub schedule: PipelineSchedule,
    /// Micro-batches per step and pipeline.
    pub micro_batches: u64,
}

impl Arrangement {
    /// Returns the arrangement of a layout, with the schedule that effectively runs.
    pub fn new(layout: Layout, split: ChunkSplit, schedule: PipelineSchedule, micro_batches: u64) -> Self {
        let schedule = effective_schedule(&layout, schedule);
        Self { layout, split, schedule, micro_batches }
    }

    /// Returns the groups of equal devices.
    pub fn device_groups(&self) -> impl Iterator<Item = DeviceGroup> + use<> {
        let arrangement = *self;
        let (p, [one, other, end]) = (self.layout.pipeline, self.kind_boundaries());
        let last = p > 1 && !self.schedule.is_in_v();
        let kinds = [(0, 0, 1), (1, 1, one), (2, p - 1, if last { p } else { 0 }), (3, one, other), (4, other, end)];
        let alike = move |(kind, from, end)| DeviceGroup {
            kind,
            from,
            to: end - 1,
            counts: arrangement.chunk_counts(kind, from),
        };
        kinds.into_iter().filter(|(_, from, end)| from < end).map(alike)
    }

    /// Returns the group that consists of `device` alone.
    pub fn single_device(&self, device: u32) -> DeviceGroup {
        let kind = self.device_kind(device);
        DeviceGroup { kind, from: device, to: device, counts: self.chunk_counts(kind, device) }
    }

    /// Returns the first device after each kind of inner devices. Inner devices begin with the second device.
    fn kind_boundaries(&self) -> [u32; 3] {
        let p = self.layout.pipeline;
        let end = if self.schedule.is_in_v() { p } else { (p - 1).max(1) };
        if self.split.longer == 0 {
            return [end; 3];
        }
        // Devices differ from their predecessors where the row of longer chunks begins and where it ends.
        let row = [self.split.longer_from, self.split.longer_from + self.split.longer];
        let [a, b] = row.map(|place| match (self.schedule, place) {
            (schedule, place) if schedule.is_in_v() => place.min(2 * u64::from(p) - place),
            (_, place) => place % u64::from(p),
        });
        let within = |place: u64| u32::try_from(place).unwrap_or(u32::MAX).clamp(1, end);
        [within(a.min(b)), within(a.max(b)), end]
    }

    /// Returns the number of chunks of each kind on a device.
    fn chunk_counts(&self, kind: usize, device: u32) -> [u64; KINDS] {
        let v = u64::from(self.layout.virtual_stages);
        let longer = if self.split.longer == 0 { 0 } else { self.longer_chunks_on(device) };
        match (kind, self.schedule) {
            (0, _) if self.layout.pipeline == 1 => [1, 0, 0, 0],
            (0, schedule) if schedule.is_in_v() => [1, 0, 1, 0],
            (0, _) => [1, v - 1 - longer, 0, longer],
            (2, _) => [0, v - 1 - longer, 1, longer],
            _ => [0, v - longer, 0, longer],
        }
    }

    /// Returns the number of longer chunks on a device.
    fn longer_chunks_on(&self, device: u32) -> u64 {
        let (p, device) = (u64::from(self.layout.pipeline), u64::from(device));
        if self.schedule.is_in_v() {
            return [device, 2 * p - 1 - device]
                .into_iter()
                .map(|place| u64::from(self.split.is_longer_chunk(place)))
                .sum();
        }
        let before = |place: u64| (place + p - 1 - device) / p;
        before(self.split.longer_from + self.split.longer) - before(self.split.longer_from)
    }

    /// Returns the number of layers in a kind of chunk.
    pub fn layers_in_chunk(&self, kind: usize) -> u64 {
        let ChunkSplit { first, inner, last, .. } = self.split;
        [first, inner, last, inner + 1][kind]
    }

    /// Returns the number of layers on a device.
    pub fn layers_on_device(&self, device: u32) -> u64 {
        self.chunk_counts(self.device_kind(device), device)
            .iter()
            .enumerate()
            .map(|(kind, n)| n * self.layers_in_chunk(kind))
            .sum()
    }

    /// Returns the device that holds the chunk at `place` in the pipeline.
    pub fn device_of_chunk(&self, place: u64) -> u32 {
        let p = u64::from(self.layout.pipeline);
        let device = match self.schedule {
            schedule if schedule.is_in_v() && place >= p => (2 * p - 1).saturating_sub(place),
            _ => place % p,
        };
        u32::try_from(device).unwrap_or(u32::MAX)
    }

    /// Returns the kind of a device.
    pub fn device_kind(&self, device: u32) -> usize {
        match device {
            0 => 0,
            _ if device + 1 == self.layout.pipeline && !self.schedule.is_in_v() => 2,
            _ => {
                let [one, other, _] = self.kind_boundaries();
                BETWEEN[usize::from(device >= one) + usize::from(device >= other)]
            }
        }
    }

    /// Returns the kind of the chunk at `place` in the pipeline.
    pub fn chunk_kind(&self, place: u64) -> usize {
        match place {
            0 => 0,
            _ if place + 1 == self.split.chunks => 2,
            _ => {
                if self.split.is_longer_chunk(place) {
                    3
                } else {
                    1
                }
            }
        }
    }

    /// Returns the number of gather units (layers and ends) in each kind of chunk. ZeRO-3 gathers one unit at a time.
    pub fn gather_units(&self, profile: &StepProfile) -> [u64; KINDS] {
        let ChunkSplit { chunks, first, inner, last, .. } = self.split;
        let [embedding, layer, head] = profile.units;
        let alone = if chunks == 1 { head } else { 0 };
        [embedding + first * layer + alone, inner * layer, last * layer + head, (inner + 1) * layer]
    }

    /// Returns the profile of each kind of chunk; the default profile for longer chunks if there are none.
    pub fn chunk_pieces(&self, profile: &StepProfile) -> [PieceProfile; KINDS] {
        let mut first = profile.embedding.plus(profile.layer.times(self.split.first));
        if self.split.chunks == 1 {
            first = first.plus(profile.head);
        }
        let mut last = profile.layer.times(self.split.last).plus(profile.head);
        last.parameters += profile.tied_parameters;
        let longer =
            if self.split.longer > 0 { profile.layer.times(self.split.inner + 1) } else { PieceProfile::default() };
        [first, profile.layer.times(self.split.inner), last, longer]
    }

    /// Returns the kinds of chunks that the pipeline has.
    pub fn chunk_kinds(&self) -> &'static [usize] {
        match self.split.chunks {
            1 => &[0],
            2 => &[0, 2],
            _ if self.split.longer > 0 => &[0, 1, 2, 3],
            _ => &[0, 1, 2],
        }
    }
}
