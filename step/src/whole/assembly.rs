//! A plan put together from what its pieces take: chunks and devices by kind, not one by one.
//!
//! Layers are alike, so that a pipeline has few kinds of chunks and of devices ([`Arrangement`]). Both ways to a step's time go through here:
//! [`crate::step_time_of`], which plays schedules event by event, and [`crate::Evaluator`], which times them in closed form.

use crate::communication::contention::{Communication, OverlapWindow};
use crate::communication::network::StepNetwork;
use crate::communication::sends::{ExposedSends, PipelineSends};
use crate::pass::away::{ParameterCopies, PieceCopies};
use crate::pass::profile::{PassProfile, PieceProfile, StepProfile};
use crate::pipeline::arrangement::{Arrangement, DEVICE_KINDS, DeviceGroup, KINDS};
use crate::pipeline::chunk::{Chunk, launch_times};
use crate::pipeline::staged::StagedChunks;
use crate::{SoftwareStack, StepTime};
use sim::pipeline::{LongerRunPipeline, PassesTime, UnequalEndsPipeline};
use sim::units::Seconds;
use std::borrow::Cow;
use workloads::{Layout, StagePolicies};

/// What a device exchanges once per step for the parameters that it holds, and their update.
#[derive(Debug, Clone, Copy, Default)]
pub struct ParameterExchange {
    /// Reduction of gradients.
    pub reduce: Communication,
    /// Gathering of updated weights.
    pub gather: Communication,
    /// The optimizer's update.
    pub update: Seconds,
}

/// What a plan's degrees ask of the network and of the update: the same for every micro-batch, activation policy and schedule.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepExchanges {
    /// In every micro-batch: weights gathered (ZeRO-3) and gradients scattered (ZeRO-2 and -3) for one unit (a layer or an end) of each kind of
    /// chunk.
    pub units: [(Communication, Communication); KINDS],
    /// In every micro-batch: weights and gradients that live away from the device.
    pub copies: Option<ParameterCopies>,
    /// Once per step, by kind of device.
    pub devices: [ParameterExchange; DEVICE_KINDS],
    /// The sum of a tied embedding's two gradients.
    pub tied: Seconds,
}

impl PieceCopies {
    /// The piece with these copies beside those of its activations.
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
    /// The profile with the copies of weights and gradients that live away from the device.
    pub(crate) fn add_copies_to_profile<'p>(&self, profile: &'p StepProfile, stack: &SoftwareStack) -> Cow<'p, StepProfile> {
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

/// Gradients (and updated weights) once per step, less what the last micro-batch's backward pass hides of the former, and the first one's
/// forward pass of the latter, beside their own collectives.
pub fn exposed_exchange(stack: &SoftwareStack, exchange: &ParameterExchange, [forward, backward]: [OverlapWindow; 2]) -> Seconds {
    let ParameterExchange { reduce, gather, .. } = exchange;
    let overlap = &stack.overlap;
    let late = reduce.time - backward.time_saved(reduce) * overlap.data_reduction;
    late + gather.time - forward.time_saved(gather) * overlap.parameter_prefetch
}

/// A plan's chunks, and what nothing hides of its communication.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// How the plan divides the model.
    pub arrangement: Arrangement,
    /// By kind of chunk, where all layers follow one policy.
    pub chunks: [Chunk; KINDS],
    /// Where stages have policies of their own, the chunks one by one.
    staged: Option<Box<StagedChunks>>,
    /// Between stages, what nothing hides.
    pub sends: ExposedSends,
}

/// What nothing hides of an activation's ways between stages that hold these chunks.
fn exposed_sends<'c>(
    arrangement: &Arrangement,
    stack: &SoftwareStack,
    chunks: impl Iterator<Item = &'c Chunk>,
    sends: &PipelineSends,
) -> ExposedSends {
    // Sends hide behind work alone: behind exposed collectives too, slower ones would hide more of every send on a way on which not every pass
    // is longer for them, and the step might end sooner. Nor does the pass of a chunk without layers count: where only that one were shorter, more of
    // every send would be left than the way through it gains.
    let work = chunks.filter(|chunk| chunk.layers > 0).map(|chunk| {
        let (pass, [launch, _]) = (&chunk.piece.forward, launch_times(stack, &chunk.piece));
        OverlapWindow { time: (pass.device + pass.offload).max(launch), ports: pass.ports, ..OverlapWindow::default() }
    });
    let window = work.min_by(|a, b| a.time.0.total_cmp(&b.time.0)).unwrap_or_default();
    sends.exposed_behind(window, stack.hidden_send_fraction(arrangement.layout.virtual_stages))
}

/// A piece of a pipeline with such sends.
fn add_message_overhead(sends: &PipelineSends, stack: &SoftwareStack, piece: PieceProfile) -> PieceProfile {
    if sends.leave_node() { piece.with_message_overhead(stack) } else { piece }
}

/// What a step takes besides its passes, on the device where it takes longest.
#[derive(Debug, Clone, Copy, Default)]
pub struct OncePerStep {
    /// Gradients and weights: what nothing hides, from the end of the last pass.
    data: Seconds,
    /// Of tied embeddings, the sum of their two gradients, behind that.
    tied: Seconds,
    /// The optimizer's update.
    update: Seconds,
    overhead: Seconds,
}

/// What a device does once per step.
#[derive(Debug, Clone, Copy)]
pub struct OncePerDevice {
    /// Gradients and weights: what nothing hides.
    pub data: Seconds,
    /// The sum of a tied embedding's two gradients.
    pub tied: Seconds,
    /// The optimizer's update.
    pub update: Seconds,
}

/// How much earlier than the pipeline's last pass each device's passes end.
#[derive(Debug, Clone)]
pub enum PassEndLeads {
    /// As the last micro-batch goes back through the pipeline.
    Closed,
    /// As the schedule has been played, by device.
    Played(Vec<Seconds>),
}

impl OncePerStep {
    pub fn total_time(&self) -> Seconds {
        self.data + self.tied + self.update + self.overhead
    }
}

impl Assembly {
    /// Puts a plan together.
    pub fn new(
        arrangement: Arrangement,
        stack: &SoftwareStack,
        profile: &StepProfile,
        exchanges: &StepExchanges,
        sends: &PipelineSends,
    ) -> Self {
        Self::from_chunks(arrangement, stack, profile, (exchanges, sends), Chunk::with_gathers)
    }

    /// Puts a plan together that splits the backward pass and whose passes are bounded by their schedules: no part of its timeline is longer than under
    /// better ones.
    pub fn new_lower_bound(
        arrangement: Arrangement,
        stack: &SoftwareStack,
        profile: &StepProfile,
        exchanges: &StepExchanges,
        sends: &PipelineSends,
    ) -> Self {
        Self::from_chunks(arrangement, stack, profile, (exchanges, sends), Chunk::new_lower_bound)
    }

    fn from_chunks(
        arrangement: Arrangement,
        stack: &SoftwareStack,
        profile: &StepProfile,
        (exchanges, sends): (&StepExchanges, &PipelineSends),
        chunk: impl Fn(&SoftwareStack, &Layout, (u64, PieceProfile), (u64, (Communication, Communication))) -> Chunk,
    ) -> Self {
        let profile = &exchanges.add_copies_to_profile(profile, stack);
        let (pieces, units) = (arrangement.chunk_pieces(profile), arrangement.gather_units(profile));
        let mut chunks = [Chunk::default(); KINDS];
        for &kind in arrangement.chunk_kinds() {
            let piece = add_message_overhead(sends, stack, pieces[kind]);
            let of = (arrangement.layers_in_chunk(kind), piece);
            chunks[kind] = chunk(stack, &arrangement.layout, of, (units[kind], exchanges.units[kind]));
        }
        let sends = exposed_sends(&arrangement, stack, arrangement.chunk_kinds().iter().map(|&kind| &chunks[kind]), sends);
        Self { arrangement, chunks, staged: None, sends }
    }

    /// Puts a plan together whose layers follow `policies`, which `profile` was made for.
    pub fn with_policies(
        policies: &StagePolicies,
        arrangement: Arrangement,
        stack: &SoftwareStack,
        profile: &StepProfile,
        exchanges: &StepExchanges,
        sends: &PipelineSends,
    ) -> Self {
        let Some(mixes) = policies.chunk_mixes() else { return Self::new(arrangement, stack, profile, exchanges, sends) };
        let profile = &exchanges.add_copies_to_profile(profile, stack);
        let units = arrangement.gather_units(profile);
        let chunk = |kind: usize, piece: PieceProfile| {
            let piece = add_message_overhead(sends, stack, piece);
            let of = (arrangement.layers_in_chunk(kind), piece);
            Chunk::with_gathers(stack, &arrangement.layout, of, (units[kind], exchanges.units[kind]))
        };
        let staged = StagedChunks::new(&arrangement, profile, mixes, chunk);
        let sends = exposed_sends(&arrangement, stack, staged.chunks.iter(), sends);
        Self { arrangement, chunks: [Chunk::default(); KINDS], staged: Some(Box::new(staged)), sends }
    }

    /// The kinds of devices that there are; one by one where stages have policies of their own. `arrangement` makes the same chunks.
    fn device_groups(&self, arrangement: &Arrangement) -> impl Iterator<Item = DeviceGroup> + use<> {
        let (apart, arrangement) = (self.staged.is_some(), *arrangement);
        let each = if apart { arrangement.layout.pipeline } else { 0 };
        let alone = move |device| arrangement.single_device(device);
        arrangement.device_groups().filter(move |_| !apart).chain((0..each).map(alone))
    }

    /// A device with those that hold and do the same.
    pub fn group_of_device(&self, device: u32) -> Option<DeviceGroup> {
        self.device_groups(&self.arrangement).find(|alike| (alike.from..=alike.to).contains(&device))
    }

    /// The chunks of a device, with how many there are of each.
    fn visit_chunks(&self, alike: &DeviceGroup, mut each: impl FnMut(&Chunk, f64)) {
        match &self.staged {
            None => {
                let held = self.chunks.iter().zip(alike.counts).filter(|(_, count)| *count > 0);
                held.for_each(|(chunk, count)| each(chunk, count as f64));
            }
            Some(staged) => staged.chunks_on_device(alike.from).for_each(|(chunk, count)| each(chunk, count as f64)),
        }
    }

    /// What the step takes besides its passes, under any degrees that make the same chunks, where devices' passes end `leads` before the pipeline's
    /// last. Every device begins to exchange when its own passes have ended; all wait for the last before they update (the gradients' norm).
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
                PassEndLeads::Played(leads) => {
                    leads[alike.from as usize..=alike.to as usize].iter().copied().fold(Seconds(f64::INFINITY), Seconds::min)
                }
            };
            let end = data + tied - lead;
            if end > once.data + once.tied {
                // What is summed ends last.
                once.tied = tied.min(end);
                once.data = end - once.tied;
            }
            once.update = once.update.max(update);
        }
        once
    }

    /// How much earlier than the pipeline's last pass the passes of a device, and of those of its kind behind it, end at least: the last micro-batch
    /// goes from there to the first device. None where weight gradients are put off, or chunks go both ways.
    pub fn lead_of_device(&self, arrangement: &Arrangement, kind: usize, device: u32) -> Seconds {
        if arrangement.schedule.splits_backward() {
            return Seconds::ZERO;
        }
        self.time_to_device(arrangement, kind, device, |chunk| chunk.recompute + chunk.backward)
    }

    /// A micro-batch's way between the first device and another, in its chunks of the first round and between them, at least.
    fn time_to_device(&self, arrangement: &Arrangement, kind: usize, device: u32, pass: impl Fn(&Chunk) -> Seconds) -> Seconds {
        if device == 0 {
            return Seconds::ZERO;
        }
        let farther = if kind == 2 { self.sends.excess_over_least() } else { Seconds::ZERO };
        if let Some(staged) = &self.staged {
            return staged.time_before_device(device, pass) + self.sends.least_send() * f64::from(device) + farther;
        }
        let pass = |kind: usize| pass(&self.chunks[kind]);
        // The chunks of the first round before its own.
        let split = &arrangement.split;
        let end = u64::from(device).min(split.longer_from + split.longer);
        let longer = if split.longer > 0 { end.saturating_sub(split.longer_from) } else { 0 };
        let shorter = u64::from(device) - 1 - longer;
        let between = pass(1) * shorter as f64 + if longer > 0 { pass(3) * longer as f64 } else { Seconds::ZERO };
        pass(0) + between + self.sends.least_send() * f64::from(device) + farther
    }

    /// The step's time, exact or a bound, of passes in closed form: `passes`, under any degrees that make the same chunks.
    ///
    /// Where weight gradients are put off, it is known of a device's end only that it is no earlier than its own work behind the way to it: its
    /// exchange ends no earlier than so long after that. The device that ends last exchanges behind the last pass what the device that exchanges least
    /// does, or more.
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
            ends = ends.max(self.time_to_device(arrangement, alike.kind, alike.to, |chunk| chunk.forward) + work + data + tied);
            most = most.max(update);
        }
        let overhead = Seconds(stack.launch.per_step_ms * 1e-3);
        PassesTime::AtLeast((seconds + least).max(ends) + most + overhead)
    }

    /// What a kind of device exchanges once per step that nothing hides, and its update.
    pub fn once_per_device(&self, alike: &DeviceGroup, stack: &SoftwareStack, exchanges: &StepExchanges) -> OncePerDevice {
        let (exchange, counts) = (&exchanges.devices[alike.kind], alike.counts);
        let ends = counts[0] + counts[2] > 0;
        OncePerDevice {
            data: exposed_exchange(stack, exchange, self.overlap_windows(alike)),
            tied: if ends { exchanges.tied } else { Seconds::ZERO },
            update: exchange.update,
        }
    }

    /// The forward and the backward passes of one micro-batch on a device of so many chunks of each kind.
    fn overlap_windows(&self, alike: &DeviceGroup) -> [OverlapWindow; 2] {
        let mut windows = [OverlapWindow::default(); 2];
        self.visit_chunks(alike, |chunk, count| {
            let (f, r, b) = (&chunk.piece.forward, &chunk.piece.recompute, &chunk.piece.backward);
            let [time, time_back] = chunk.hides;
            let forward = OverlapWindow { time, ports: f.ports, copies: f.copies.times_each_way() };
            let backward = OverlapWindow { time: time_back, ports: r.ports + b.ports, copies: b.copies.times_each_way() };
            for (window, one) in windows.iter_mut().zip([forward, backward]) {
                *window = *window + one * count;
            }
        });
        windows
    }

    /// The chunk at a place of the pipeline.
    pub fn chunk_at(&self, place: u64) -> &Chunk {
        match &self.staged {
            None => &self.chunks[self.arrangement.chunk_kind(place)],
            Some(staged) => staged.chunk_at(place),
        }
    }

    /// What nothing hides of the ways between neighbouring chunks.
    pub fn exposed_sends_between_chunks(&self, network: &impl StepNetwork) -> Vec<Seconds> {
        let Arrangement { layout, split, .. } = &self.arrangement;
        let at = |place: u64| self.arrangement.device_of_chunk(place);
        (1..split.chunks).map(|place| self.sends.time_between(network, layout, at(place - 1), at(place))).collect()
    }

    /// All passes of a plan without a pipeline.
    pub fn passes_without_pipeline(&self) -> Seconds {
        self.chunk_at(0).busy_time() * self.arrangement.micro_batches as f64
    }

    /// All passes in closed form, exact or a bound, under any arrangement that makes the same chunks, where all layers follow one policy.
    pub fn passes_in_closed_form(&self, arrangement: &Arrangement) -> PassesTime {
        if arrangement.split.chunks == 1 {
            return PassesTime::Exact(self.chunks[0].busy_time() * arrangement.micro_batches as f64);
        }
        let [first, inner, last, longer] = self.chunks.each_ref().map(|chunk| chunk.to_chunk_work(arrangement.schedule));
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
        LongerRunPipeline { pipeline, longer, from: split.longer_from, count: split.longer }.time_of_passes(arrangement.schedule)
    }

    /// The devices that are busy longest with a micro-batch, the first of several.
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

    /// The step's parts, of the device that is busy longest.
    pub fn account_step(&self, passes: Seconds, once: &OncePerStep) -> StepTime {
        let m = self.arrangement.micro_batches as f64;
        let slowest = self.busiest_devices();
        let on_slowest =
            |part: &dyn Fn(&Chunk) -> Seconds| slowest.as_ref().map_or(Seconds::ZERO, |alike| self.sum_over_chunks(alike, part));
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
        let work = [step.forward, step.backward, step.recompute, step.host_bound, step.tensor, step.context, step.expert];
        let bubble = passes - work.into_iter().sum::<Seconds>() - step.offload - gathered * m;
        // Differences of sums that are equal: a dozen roundings of 1e-16 each.
        step.bubble = if bubble.0.abs() <= 1e-12 * step.total.0 { Seconds::ZERO } else { bubble };
        step
    }

    fn sum_over_chunks(&self, alike: &DeviceGroup, part: impl Fn(&Chunk) -> Seconds) -> Seconds {
        let mut sum = Seconds::ZERO;
        self.visit_chunks(alike, |chunk, count| sum += part(chunk) * count);
        sum
    }
}
