//! Assembles a plan from the profiles of its pieces. It works with kinds of chunks and devices, not with single ones.
//!
//! Layers are alike, so a pipeline has few kinds of chunks and devices ([`Arrangement`]). Both ways to compute a step's
//! time use this module: [`crate::step_time_of`] simulates schedules event by event, and [`crate::Evaluator`] times
//! them in closed form.

use crate::communication::contention::{Communication, OverlapWindow};
use crate::communication::network::StepNetwork;
use crate::communication::sends::{ExposedSends, PipelineSends};
use crate::pass::away::{ParameterCopies, PieceCopies};
use crate::pass::profile::{PassProfile, PieceProfile, StepProfile};
use crate::pipeline::arrangement::{Arrangement, DEVICE_KINDS, DeviceGroup, KINDS};
use crate::pipeline::chunk::{Chunk, ShardingExchange, launch_times};
use crate::pipeline::staged::StagedChunks;
use crate::{SoftwareStack, StepTime};
use sim::pipeline::{LongerRunPipeline, PassesTime, UnequalEndsPipeline};
use sim::units::Seconds;
use std::borrow::Cow;
use workloads::{Layout, StagePolicies};

/// A device's work for its parameters once per step: the exchanges, and the update.
#[derive(Debug, Clone, Copy, Default)]
pub struct ParameterExchange {
    /// Reduction of the gradients.
    pub reduce: Communication,
    /// Gathering of the updated weights.
    pub gather: Communication,
    /// The optimizer's update.
    pub update: Seconds,
}

/// A plan's demands on the network and the optimizer. They hold for every micro-batch, policy and schedule.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepExchanges {
    /// Per micro-batch: gathered weights (ZeRO-3) and scattered gradients (ZeRO-2 and -3) of one unit (a layer or an
    /// end), by kind of chunk.
    pub units: [ShardingExchange; KINDS],
    /// Per micro-batch: copies of offloaded weights and gradients.
    pub copies: Option<ParameterCopies>,
    /// Once per step, by kind of device.
    pub devices: [ParameterExchange; DEVICE_KINDS],
    /// Time to sum a tied embedding's two gradients.
    pub tied: Seconds,
}

impl PieceCopies {
    /// Adds these copies to those of the piece's activations.
    fn add_to_piece(&self, piece: &mut PieceProfile, stack: &SoftwareStack, bounded: bool) {
        let before = piece.backward.offload;
        piece.forward.copies = piece.forward.copies.plus(self.passes[0]);
        piece.backward.copies = piece.backward.copies.plus(self.passes[1]);
        piece.add_exposed_copies(stack);
        if bounded {
            piece.mark_bounded_but_for_copies(before);
        }
    }
}

impl StepExchanges {
    /// Returns the profile with the copies of offloaded weights and gradients.
    pub(crate) fn add_copies_to_profile<'p>(
        &self,
        profile: &'p StepProfile,
        stack: &SoftwareStack,
    ) -> Cow<'p, StepProfile> {
        let Some(ParameterCopies { pieces: [embedding, layer, head], bounded }) = &self.copies else {
            return Cow::Borrowed(profile);
        };
        let mut profile = profile.clone();
        embedding.add_to_piece(&mut profile.embedding, stack, *bounded);
        layer.add_to_piece(&mut profile.layer, stack, *bounded);
        head.add_to_piece(&mut profile.head, stack, *bounded);
        profile.by_policy.iter_mut().for_each(|known| layer.add_to_piece(&mut known.layer, stack, *bounded));
        Cow::Owned(profile)
    }
}

/// Returns the exposed part of the exchange once per step. The last micro-batch's backward pass hides part of the
/// reduction. The first micro-batch's forward pass hides part of the gathering. Their own collectives limit both.
pub fn exposed_exchange(
    stack: &SoftwareStack,
    exchange: &ParameterExchange,
    [forward, backward]: [OverlapWindow; 2],
) -> Seconds {
    let ParameterExchange { reduce, gather, .. } = exchange;
    let overlap = &stack.overlap;
    let late = reduce.time - backward.time_saved(reduce) * overlap.data_reduction;
    late + gather.time - forward.time_saved(gather) * overlap.parameter_prefetch
}

/// A plan's chunks, and the exposed part of its communication.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// The plan's division of the model.
    pub arrangement: Arrangement,
    /// Chunks by kind, if all layers follow one policy.
    pub chunks: [Chunk; KINDS],
    /// The chunks by place, if stages have their own policies.
    staged: Option<Box<StagedChunks>>,
    /// Exposed sends between stages.
    pub sends: ExposedSends,
}

/// Returns the exposed sends between stages. The shortest forward pass of `chunks` is the window that hides them.
fn exposed_sends<'c>(
    arrangement: &Arrangement,
    stack: &SoftwareStack,
    chunks: impl Iterator<Item = &'c Chunk>,
    sends: &PipelineSends,
) -> ExposedSends {
    // Only work hides sends, not exposed collectives. Otherwise, slower collectives would hide more of every send, and
    // on a path whose passes do not get longer the step might then end sooner. The pass of a chunk without layers does
    // not count either: if only that pass were shorter, every send would lose more overlap than the path gains.
    let work = chunks.filter(|chunk| chunk.layers > 0).map(|chunk| {
        let (pass, [launch, _]) = (&chunk.piece.forward, launch_times(stack, &chunk.piece));
        OverlapWindow { time: (pass.device + pass.offload).max(launch), ports: pass.ports, ..OverlapWindow::default() }
    });
    let window = work.min_by(|a, b| a.time.0.total_cmp(&b.time.0)).unwrap_or_default();
    sends.exposed_behind(window, stack.hidden_send_fraction(arrangement.layout.virtual_stages))
}

/// Adds the launch overhead of sends between nodes to a piece.
fn add_message_overhead(sends: &PipelineSends, stack: &SoftwareStack, piece: PieceProfile) -> PieceProfile {
    if sends.leave_node() { piece.with_message_overhead(stack) } else { piece }
}

/// A step's time besides its passes, on the device that ends last.
#[derive(Debug, Clone, Copy, Default)]
pub struct OncePerStep {
    /// Exposed exchange of gradients and weights after the last pass.
    data: Seconds,
    /// Time to sum a tied embedding's two gradients, after the exchange.
    tied: Seconds,
    /// The optimizer's update.
    update: Seconds,
    overhead: Seconds,
}

/// Work of a device once per step.
#[derive(Debug, Clone, Copy)]
pub struct OncePerDevice {
    /// Exposed exchange of gradients and weights.
    pub data: Seconds,
    /// Time to sum a tied embedding's two gradients.
    pub tied: Seconds,
    /// The optimizer's update.
    pub update: Seconds,
}

/// Times by which each device's passes end before the pipeline's last pass.
#[derive(Debug, Clone)]
pub enum PassEndLeads {
    /// In closed form, from the time of the last micro-batch back through the pipeline.
    Closed,
    /// From the simulated schedule, by device.
    Played(Vec<Seconds>),
}

impl OncePerStep {
    pub fn total_time(&self) -> Seconds {
        self.data + self.tied + self.update + self.overhead
    }
}

impl Assembly {
    /// Assembles a plan.
    pub fn new(
        arrangement: Arrangement,
        stack: &SoftwareStack,
        profile: &StepProfile,
        exchanges: &StepExchanges,
        sends: &PipelineSends,
    ) -> Self {
        Self::from_chunks(arrangement, stack, profile, exchanges, sends, Chunk::with_gathers)
    }

    /// Assembles a lower bound of a plan. Its schedule splits the backward pass, and its passes are bounded by their
    /// schedules. No part of the plan's timeline is longer than under better schedules.
    pub fn new_lower_bound(
        arrangement: Arrangement,
        stack: &SoftwareStack,
        profile: &StepProfile,
        exchanges: &StepExchanges,
        sends: &PipelineSends,
    ) -> Self {
        Self::from_chunks(arrangement, stack, profile, exchanges, sends, Chunk::new_lower_bound)
    }

    fn from_chunks(
        arrangement: Arrangement,
        stack: &SoftwareStack,
        profile: &StepProfile,
        exchanges: &StepExchanges,
        sends: &PipelineSends,
        chunk: impl Fn(&SoftwareStack, &Layout, u64, PieceProfile, u64, ShardingExchange) -> Chunk,
    ) -> Self {
        let profile = &exchanges.add_copies_to_profile(profile, stack);
        let (pieces, units) = (arrangement.chunk_pieces(profile), arrangement.gather_units(profile));
        let mut chunks = [Chunk::default(); KINDS];
        for &kind in arrangement.chunk_kinds() {
            let piece = add_message_overhead(sends, stack, pieces[kind]);
            let (layers, units) = (arrangement.layers_in_chunk(kind), units[kind]);
            chunks[kind] = chunk(stack, &arrangement.layout, layers, piece, units, exchanges.units[kind]);
        }
        let sends =
            exposed_sends(&arrangement, stack, arrangement.chunk_kinds().iter().map(|&kind| &chunks[kind]), sends);
        Self { arrangement, chunks, staged: None, sends }
    }

    /// Assembles a plan whose layers follow `policies`. `profile` must be made for them, and the mixes must fit the
    /// chunks.
    pub fn with_policies(
        policies: &StagePolicies,
        arrangement: Arrangement,
        stack: &SoftwareStack,
        profile: &StepProfile,
        exchanges: &StepExchanges,
        sends: &PipelineSends,
    ) -> Self {
        let Some(mixes) = policies.chunk_mixes() else {
            return Self::new(arrangement, stack, profile, exchanges, sends);
        };
        let profile = &exchanges.add_copies_to_profile(profile, stack);
        let units = arrangement.gather_units(profile);
        let chunk = |kind: usize, piece: PieceProfile| {
            let piece = add_message_overhead(sends, stack, piece);
            let (layers, units) = (arrangement.layers_in_chunk(kind), units[kind]);
            Chunk::with_gathers(stack, &arrangement.layout, layers, piece, units, exchanges.units[kind])
        };
        let staged = StagedChunks::new(&arrangement, profile, mixes, chunk);
        let sends = exposed_sends(&arrangement, stack, staged.chunks.iter(), sends);
        Self { arrangement, chunks: [Chunk::default(); KINDS], staged: Some(Box::new(staged)), sends }
    }

    /// Returns the groups of equal devices, or every device by itself if stages have their own policies. `arrangement`
    /// must make the same chunks.
    fn device_groups(&self, arrangement: &Arrangement) -> impl Iterator<Item = DeviceGroup> + use<> {
        let (apart, arrangement) = (self.staged.is_some(), *arrangement);
        let each = if apart { arrangement.layout.pipeline } else { 0 };
        let alone = move |device| arrangement.single_device(device);
        arrangement.device_groups().filter(move |_| !apart).chain((0..each).map(alone))
    }

    /// Returns the group of a device; `None` if the pipeline has no such device.
    pub fn group_of_device(&self, device: u32) -> Option<DeviceGroup> {
        self.device_groups(&self.arrangement).find(|alike| (alike.from..=alike.to).contains(&device))
    }

    /// Calls `each` with the chunks of a device and their counts.
    fn visit_chunks(&self, alike: &DeviceGroup, mut each: impl FnMut(&Chunk, f64)) {
        match &self.staged {
            None => {
                let held = self.chunks.iter().zip(alike.counts).filter(|(_, count)| *count > 0);
                held.for_each(|(chunk, count)| each(chunk, count as f64));
            }
            Some(staged) => staged.chunks_on_device(alike.from).for_each(|(chunk, count)| each(chunk, count as f64)),
        }
    }

    /// Returns the step's time besides its passes, under any degrees that make the same chunks. `leads` are the times
    /// by which each device's passes end before the pipeline's last pass. Every device starts to exchange when its own
    /// passes end. The updates wait for all devices, because of the gradients' norm.
    pub fn once_per_step(
        &self,
        arrangement: &Arrangement,
        stack: &SoftwareStack,
        exchanges: &StepExchanges,
        leads: &PassEndLeads,
    ) -> OncePerStep {
        let mut once = OncePerStep { overhead: Seconds(stack.launch.per_step_ms * 1e-3), ..OncePerStep::default() };
        for alike in self.device_groups(arrangement) {
            let OncePerDevice { data, tied, update } = self.once_per_device(&alike, stack, exchanges);
            let lead = match leads {
                PassEndLeads::Closed => self.lead_of_device(arrangement, alike.kind, alike.from),
                PassEndLeads::Played(leads) => leads[alike.from as usize..=alike.to as usize]
                    .iter()
                    .copied()
                    .fold(Seconds(f64::INFINITY), Seconds::min),
            };
            let end = data + tied - lead;
            if end > once.data + once.tied {
                // The sum of the tied gradients ends last.
                once.tied = tied.min(end);
                once.data = end - once.tied;
            }
            once.update = once.update.max(update);
        }
        once
    }

    /// Returns a lower bound on the time by which the passes of a device (and of later ones of its kind) end before the
    /// pipeline's last pass: the last micro-batch still travels from the device back to the first one. Zero if weight
    /// gradients are put off or chunks go both ways.
    pub fn lead_of_device(&self, arrangement: &Arrangement, kind: usize, device: u32) -> Seconds {
        if arrangement.schedule.splits_backward() {
            return Seconds::ZERO;
        }
        self.time_to_device(arrangement, kind, device, |chunk| chunk.recompute + chunk.backward)
    }

    /// Returns a lower bound on a micro-batch's time between the first device and another: its passes in the first
    /// round's chunks, and the sends between those. Zero for the first device.
    fn time_to_device(
        &self,
        arrangement: &Arrangement,
        kind: usize,
        device: u32,
        pass: impl Fn(&Chunk) -> Seconds,
    ) -> Seconds {
        if device == 0 {
            return Seconds::ZERO;
        }
        let farther = if kind == 2 { self.sends.excess_over_least() } else { Seconds::ZERO };
        if let Some(staged) = &self.staged {
            return staged.time_before_device(device, pass) + self.sends.least_send() * f64::from(device) + farther;
        }
        let pass = |kind: usize| pass(&self.chunks[kind]);
        // Chunks of the first round before the device's own.
        let split = &arrangement.split;
        let end = u64::from(device).min(split.longer_from + split.longer);
        let longer = if split.longer > 0 { end.saturating_sub(split.longer_from) } else { 0 };
        let shorter = u64::from(device) - 1 - longer;
        let between = pass(1) * shorter as f64 + if longer > 0 { pass(3) * longer as f64 } else { Seconds::ZERO };
        pass(0) + between + self.sends.least_send() * f64::from(device) + farther
    }

    /// Returns the step's time, exact or a lower bound, from the time of its passes in closed form. It holds under any
    /// degrees that make the same chunks.
    ///
    /// If weight gradients are put off, the result is a lower bound, the larger of two. First, a device ends no earlier
    /// than the time to reach it plus its own work and its exchange. Second, after the last pass, the device that ends
    /// last still exchanges for at least the shortest exchange of all devices.
    pub fn step_in_closed_form(
        &self,
        arrangement: &Arrangement,
        stack: &SoftwareStack,
        exchanges: &StepExchanges,
        passes: PassesTime,
    ) -> PassesTime {
        let seconds = match passes {
            _ if !arrangement.schedule.splits_backward() => {
                let once = self.once_per_step(arrangement, stack, exchanges, &PassEndLeads::Closed);
                return match passes {
                    PassesTime::Exact(passes) => PassesTime::Exact(passes + once.total_time()),
                    PassesTime::AtLeast(passes) => PassesTime::AtLeast(passes + once.total_time()),
                };
            }
            PassesTime::Exact(seconds) | PassesTime::AtLeast(seconds) => seconds,
        };
        let (mut least, mut ends, mut most) = (Seconds(f64::INFINITY), Seconds::ZERO, Seconds::ZERO);
        for alike in self.device_groups(arrangement) {
            let OncePerDevice { data, tied, update } = self.once_per_device(&alike, stack, exchanges);
            let work = self.sum_over_chunks(&alike, Chunk::busy_time) * arrangement.micro_batches as f64;
            least = least.min(data + tied);
            ends = ends.max(
                self.time_to_device(arrangement, alike.kind, alike.to, |chunk| chunk.forward) + work + data + tied,
            );
            most = most.max(update);
        }
        let overhead = Seconds(stack.launch.per_step_ms * 1e-3);
        PassesTime::AtLeast((seconds + least).max(ends) + most + overhead)
    }

    /// Returns the exposed exchange and the update of one device of a group, once per step.
    pub fn once_per_device(
        &self,
        alike: &DeviceGroup,
        stack: &SoftwareStack,
        exchanges: &StepExchanges,
    ) -> OncePerDevice {
        let (exchange, counts) = (&exchanges.devices[alike.kind], alike.counts);
        let ends = counts[0] + counts[2] > 0;
        OncePerDevice {
            data: exposed_exchange(stack, exchange, self.overlap_windows(alike)),
            tied: if ends { exchanges.tied } else { Seconds::ZERO },
            update: exchange.update,
        }
    }

    /// Returns the passes of one micro-batch on a device as windows that hide communication: (forward, backward).
    fn overlap_windows(&self, alike: &DeviceGroup) -> [OverlapWindow; 2] {
        let mut windows = [OverlapWindow::default(); 2];
        self.visit_chunks(alike, |chunk, count| {
            let (f, r, b) = (&chunk.piece.forward, &chunk.piece.recompute, &chunk.piece.backward);
            let [time, time_back] = chunk.hides;
            let forward = OverlapWindow { time, ports: f.ports, copies: f.copies.times_each_way() };
            let backward =
                OverlapWindow { time: time_back, ports: r.ports + b.ports, copies: b.copies.times_each_way() };
            for (window, one) in windows.iter_mut().zip([forward, backward]) {
                *window = *window + one * count;
            }
        });
        windows
    }

    /// Returns the chunk at `place` in the pipeline.
    pub fn chunk_at(&self, place: u64) -> &Chunk {
        match &self.staged {
            None => &self.chunks[self.arrangement.chunk_kind(place)],
            Some(staged) => staged.chunk_at(place),
        }
    }

    /// Returns the exposed send between every chunk and the next one, in pipeline order.
    pub fn exposed_sends_between_chunks(&self, network: &impl StepNetwork) -> Vec<Seconds> {
        let Arrangement { layout, split, .. } = &self.arrangement;
        let at = |place: u64| self.arrangement.device_of_chunk(place);
        (1..split.chunks).map(|place| self.sends.time_between(network, layout, at(place - 1), at(place))).collect()
    }

    /// Returns the time of all passes of a plan without a pipeline.
    pub fn passes_without_pipeline(&self) -> Seconds {
        self.chunk_at(0).busy_time() * self.arrangement.micro_batches as f64
    }

    /// Returns the time of all passes in closed form, exact or a lower bound, under any arrangement that makes the same
    /// chunks. All layers must follow one policy.
    pub fn passes_in_closed_form(&self, arrangement: &Arrangement) -> PassesTime {
        if arrangement.split.chunks == 1 {
            return PassesTime::Exact(self.chunks[0].busy_time() * arrangement.micro_batches as f64);
        }
        let [first, inner, last, longer] = self.chunks.each_ref().map(|chunk| chunk.chunk_work(arrangement.schedule));
        let split = &arrangement.split;
        let pipeline = UnequalEndsPipeline {
            first,
            inner,
            last,
            send: self.sends.least_send(),
            farther: self.sends.excess_over_least(),
            devices: arrangement.layout.pipeline,
            micro_batches: u32::try_from(arrangement.micro_batches).unwrap_or(u32::MAX),
        };
        if split.longer == 0 {
            return pipeline.time_of_passes(arrangement.schedule);
        }
        LongerRunPipeline { pipeline, longer, from: split.longer_from, count: split.longer }
            .time_of_passes(arrangement.schedule)
    }

    /// Returns the group of devices that is busy longest in one micro-batch; the first of equal ones, `None` without
    /// devices.
    pub fn busiest_devices(&self) -> Option<DeviceGroup> {
        let mut slowest: Option<(DeviceGroup, Seconds)> = None;
        for alike in self.device_groups(&self.arrangement) {
            let busy = self.sum_over_chunks(&alike, Chunk::busy_time);
            if slowest.is_none_or(|(_, most)| busy > most) {
                slowest = Some((alike, busy));
            }
        }
        slowest.map(|(alike, _)| alike)
    }

    /// Returns the step's time and its parts, on a device that is busy longest. The bubble is the rest of the passes'
    /// time.
    pub fn account_step(&self, passes: Seconds, once: &OncePerStep) -> StepTime {
        let m = self.arrangement.micro_batches as f64;
        let slowest = self.busiest_devices();
        let on_slowest = |part: &dyn Fn(&Chunk) -> Seconds| {
            slowest.as_ref().map_or(Seconds::ZERO, |alike| self.sum_over_chunks(alike, part))
        };
        let gathered = on_slowest(&|c| c.data);
        let sum = |part: &dyn Fn(&Chunk) -> Seconds| on_slowest(part) * m;
        let passes_of = |part: fn(&PassProfile) -> Seconds| {
            sum(&|c| part(&c.piece.forward) + part(&c.piece.recompute) + part(&c.piece.backward))
        };
        let mut step = StepTime {
            total: passes + once.total_time(),
            forward: sum(&|c| c.piece.forward.device),
            backward: sum(&|c| c.piece.backward.device),
            recompute: sum(&|c| c.piece.recompute.device),
            host_bound: sum(&|c| c.host),
            tensor: passes_of(|p| p.tensor),
            context: passes_of(|p| p.context),
            expert: passes_of(|p| p.expert),
            data: once.data + gathered * m,
            tied: once.tied,
            offload: passes_of(|p| p.offload),
            bubble: Seconds::ZERO,
            optimizer: once.update,
            overhead: once.overhead,
        };
        let work =
            [step.forward, step.backward, step.recompute, step.host_bound, step.tensor, step.context, step.expert];
        let bubble = passes - work.into_iter().sum::<Seconds>() - step.offload - gathered * m;
        // Rounding leaves a small difference of equal sums: a dozen roundings of 1e-16 each.
        step.bubble = if bubble.0.abs() <= 1e-12 * step.total.0 { Seconds::ZERO } else { bubble };
        step
    }

    fn sum_over_chunks(&self, alike: &DeviceGroup, part: impl Fn(&Chunk) -> Seconds) -> Seconds {
        let mut sum = Seconds::ZERO;
        self.visit_chunks(alike, |chunk, count| sum += part(chunk) * count);
        sum
    }
}
