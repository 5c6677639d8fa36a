//! A plan put together from what its pieces take: chunks and devices by kind, not one by one.
//!
//! Layers are alike, so that a pipeline has at most three kinds of chunks (the first with the embedding, the last with the head, those between) and
//! three kinds of devices. Both ways to a step's time go through here: [`super::step_time_of`], which plays schedules event by event, and
//! [`super::Evaluator`], which times them in closed form.

use super::contention::{Communication, Window};
use super::profile::{PassProfile, PieceProfile, StepProfile};
use super::schedule::effective_schedule;
use super::sends::{ExposedSends, Sends};
use super::{SoftwareStack, StepTime};
use sim::network::Fabric;
use sim::pipeline::{ChunkWork, EndedPipeline, PassesTime, Schedule};
use sim::units::Seconds;
use workloads::{ChunkSplit, Layout};

/// Kinds of chunks, and of devices: the first, those between, the last. What is alone is the first.
pub(crate) const KINDS: usize = 3;

/// What a device exchanges once per step for the parameters that it holds, and their update.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Exchange {
    /// Reduction of gradients.
    pub reduce: Communication,
    /// Gathering of updated weights.
    pub gather: Communication,
    /// The optimizer's update.
    pub update: Seconds,
}

/// What a plan's degrees ask of the network and of the update: the same for every micro-batch, activation policy and schedule.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Exchanges {
    /// In every micro-batch: weights gathered (ZeRO-3) and gradients scattered (ZeRO-2 and -3) for one unit (a layer or an end) of each kind of
    /// chunk.
    pub units: [(Communication, Communication); KINDS],
    /// Once per step, by kind of device.
    pub devices: [Exchange; KINDS],
    /// The sum of a tied embedding's two gradients.
    pub tied: Seconds,
}

/// The degrees of a plan and what they make of its layers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrangement {
    pub layout: Layout,
    pub split: ChunkSplit,
    pub schedule: Schedule,
    pub micro_batches: u64,
}

impl Arrangement {
    pub fn new(layout: Layout, split: ChunkSplit, schedule: Schedule, micro_batches: u64) -> Self {
        let schedule = effective_schedule(&layout, schedule);
        Self { layout, split, schedule, micro_batches }
    }

    /// Chunks of each kind on a device of each kind, for the kinds of devices that there are.
    pub fn devices(&self) -> impl Iterator<Item = (usize, [u64; KINDS])> + use<> {
        let (p, v) = (self.layout.pipeline, u64::from(self.layout.virtual_stages));
        let kinds = match (p, self.schedule) {
            (1, _) => [Some([1, 0, 0]), None, None],
            (_, Schedule::ZbV) => [Some([1, 0, 1]), Some([0, v, 0]), None],
            _ => [Some([1, v - 1, 0]), (p > 2).then_some([0, v, 0]), Some([0, v - 1, 1])],
        };
        kinds.into_iter().enumerate().filter_map(|(kind, counts)| counts.map(|counts| (kind, counts)))
    }

    /// The device of the chunk at a place of the pipeline.
    pub fn device_of(&self, place: u64) -> u32 {
        let p = u64::from(self.layout.pipeline);
        let device = match self.schedule {
            Schedule::ZbV if place >= p => (2 * p - 1).saturating_sub(place),
            _ => place % p,
        };
        u32::try_from(device).unwrap_or(u32::MAX)
    }

    /// The kind of a device.
    pub fn kind_of(&self, device: u32) -> usize {
        match device {
            0 => 0,
            _ if device + 1 == self.layout.pipeline && self.schedule != Schedule::ZbV => 2,
            _ => 1,
        }
    }

    /// Layers and ends of each kind of chunk: what ZeRO-3 gathers at a time.
    pub fn units(&self) -> [u64; KINDS] {
        let ends = if self.split.chunks == 1 { 2 } else { 1 };
        [self.split.first + ends, self.split.inner, self.split.last + 1]
    }

    /// Stages of which one is the fullest: stages between the first and the last hold the same, the second of them for most micro-batches.
    pub fn places(&self) -> impl Iterator<Item = (usize, u32)> + use<> {
        let last = self.layout.pipeline - 1;
        [(0, 0), (1, 1.min(last)), (2, last)]
            .into_iter()
            .filter(move |(place, _)| *place == 0 || (last > 1 || *place == 2 && last > 0))
    }

    /// The pieces of each kind of chunk.
    pub fn pieces(&self, profile: &StepProfile) -> [PieceProfile; KINDS] {
        let mut first = profile.embedding.plus(profile.layer.times(self.split.first));
        if self.split.chunks == 1 {
            first = first.plus(profile.head);
        }
        let mut last = profile.layer.times(self.split.last).plus(profile.head);
        last.parameters += profile.tied_parameters;
        [first, profile.layer.times(self.split.inner), last]
    }

    /// The kinds of chunks that there are.
    fn kinds(&self) -> &'static [usize] {
        match self.split.chunks {
            1 => &[0],
            2 => &[0, 2],
            _ => &[0, 1, 2],
        }
    }
}

/// A chunk of the pipeline as it runs one micro-batch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Chunk {
    pub piece: PieceProfile,
    pub forward: Seconds,
    pub recompute: Seconds,
    pub backward: Seconds,
    /// Data-parallel communication in every micro-batch that nothing hides (ZeRO-2 and -3).
    data: Seconds,
    host: Seconds,
}

impl Chunk {
    /// A chunk's passes: what its kernels take, or what the host takes to launch them, and what nothing hides of `gathers`.
    fn new(stack: &SoftwareStack, layout: &Layout, piece: PieceProfile, gathers: (Seconds, Seconds)) -> Self {
        let launch = &stack.launch;
        let host = |us: f64, launches: u32| Seconds::from_micros(us * f64::from(launches));
        let (f, r, b) = (piece.forward, piece.recompute, piece.backward);
        let forward_host = host(launch.host_forward_us, f.launches);
        let backward_host = host(launch.host_forward_us, r.launches) + host(launch.host_backward_us, b.launches);
        let busy = r.busy() + b.busy();
        let exchange = if layout.pipeline > 1 { stack.pipeline_pass(layout.virtual_stages) } else { Seconds::ZERO };
        let forward = f.busy().max(forward_host) + exchange + gathers.0;
        let backward = busy.max(backward_host) + exchange + gathers.1;
        let waiting = (forward_host - f.busy()).max(Seconds::ZERO) + (backward_host - busy).max(Seconds::ZERO) + exchange * 2.0;
        Self { piece, forward, recompute: r.busy(), backward: backward - r.busy(), data: gathers.0 + gathers.1, host: waiting }
    }

    fn busy(&self) -> Seconds {
        self.forward + self.recompute + self.backward
    }

    /// Of the backward pass, the gradients of weights.
    pub fn weight(&self) -> Seconds {
        self.piece.backward.weight.min(self.backward)
    }

    fn work(&self) -> ChunkWork {
        ChunkWork { forward: self.forward, backward: self.recompute + self.backward, weight: self.weight() }
    }
}

/// Weights gathered, and gradients scattered, `units` times: the part that nothing hides, forward and backward. Gathering waits for nothing, so that
/// what comes next is fetched beside this unit; where nothing is gathered (ZeRO-2), scattering is the reduction of the unit before.
pub(crate) fn exposed_gathers(
    stack: &SoftwareStack,
    piece: &PieceProfile,
    units: u64,
    (gather, scatter): (Communication, Communication),
) -> (Seconds, Seconds) {
    if gather.time + scatter.time == Seconds::ZERO {
        return (Seconds::ZERO, Seconds::ZERO);
    }
    let n = units.max(1) as f64;
    let overlap = &stack.overlap;
    let hidden = if gather.time > Seconds::ZERO { overlap.parameter_prefetch } else { overlap.data_reduction };
    let exposed = |communication: Communication, all: Window| {
        let each = Window { time: all.time / n, ports: all.ports * (1.0 / n) };
        (communication.time - each.hides(&communication) * hidden) * (n - 1.0) + communication.time
    };
    let backward = piece.recompute.plus(piece.backward);
    (exposed(gather, piece.forward.window()), exposed(gather + scatter, backward.window()))
}

/// The backward pass of a device's pieces, what runs again included, as work to hide communication behind.
pub(crate) fn backward_window(piece: &PieceProfile) -> Window {
    piece.recompute.plus(piece.backward).window()
}

/// Gradients (and updated weights) once per step, less what the last micro-batch's backward pass hides of the former, and the first one's
/// forward pass of the latter, beside their own collectives.
pub(crate) fn exposed_exchange(stack: &SoftwareStack, exchange: &Exchange, [forward, backward]: [Window; 2]) -> Seconds {
    let Exchange { reduce, gather, .. } = exchange;
    let overlap = &stack.overlap;
    let late = reduce.time - backward.hides(reduce) * overlap.data_reduction;
    late + gather.time - forward.hides(gather) * overlap.parameter_prefetch
}

/// A plan's chunks, and what nothing hides of its communication.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Assembly {
    pub arrangement: Arrangement,
    pub chunks: [Chunk; KINDS],
    /// Between stages, what nothing hides.
    pub sends: ExposedSends,
}

/// What a step takes besides its passes, on the device where it takes longest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Once {
    /// Gradients and weights, tied embeddings' among them: what nothing hides, from the end of the last pass.
    data: Seconds,
    /// The optimizer's update.
    update: Seconds,
    overhead: Seconds,
}

impl Once {
    pub fn total(&self) -> Seconds {
        self.data + self.update + self.overhead
    }
}

impl Assembly {
    pub fn new(
        arrangement: Arrangement,
        stack: &SoftwareStack,
        profile: &StepProfile,
        exchanges: &Exchanges,
        sends: &Sends,
    ) -> Self {
        let (pieces, units) = (arrangement.pieces(profile), arrangement.units());
        let mut chunks = [Chunk::default(); KINDS];
        for &kind in arrangement.kinds() {
            let gathers = exposed_gathers(stack, &pieces[kind], units[kind], exchanges.units[kind]);
            chunks[kind] = Chunk::new(stack, &arrangement.layout, pieces[kind], gathers);
        }
        let shortest = arrangement.kinds().iter().map(|&kind| &chunks[kind]).min_by(|a, b| a.forward.0.total_cmp(&b.forward.0));
        let window = shortest.map(|chunk| Window { time: chunk.forward, ports: chunk.piece.forward.ports }).unwrap_or_default();
        let hidden = stack.hidden_sends(arrangement.layout.virtual_stages);
        Self { arrangement, chunks, sends: sends.exposed(window, hidden) }
    }

    /// What the step takes besides its passes, under any degrees that make the same chunks. Every device begins to exchange when its own passes have
    /// ended; all wait for the last before they update (the gradients' norm).
    pub fn once(&self, arrangement: &Arrangement, stack: &SoftwareStack, exchanges: &Exchanges) -> Once {
        let overhead = Seconds(stack.launch.per_step_ms * 1e-3);
        let mut once = Once { overhead, ..Once::default() };
        for (kind, counts) in arrangement.devices() {
            let [data, update] = self.once_on(kind, counts, stack, exchanges);
            once.data = once.data.max(data - self.lead(arrangement, kind));
            once.update = once.update.max(update);
        }
        once
    }

    /// How much earlier than the pipeline's last pass the passes of a kind of device end at least: the last micro-batch goes from there to the first
    /// device. None where weight gradients are put off, or chunks go both ways.
    pub fn lead(&self, arrangement: &Arrangement, kind: usize) -> Seconds {
        let between = f64::from(arrangement.layout.pipeline.saturating_sub(2));
        let back = |kind: usize| self.chunks[kind].recompute + self.chunks[kind].backward;
        match (arrangement.schedule, kind) {
            (Schedule::ZbH1 | Schedule::ZbV, _) | (_, 0) => Seconds::ZERO,
            (_, 1) => back(0) + self.sends.least(),
            _ => back(0) + back(1) * between + self.sends.least() * (between + 1.0) + self.sends.farther(),
        }
    }

    /// What a kind of device exchanges once per step that nothing hides, and its update.
    pub fn once_on(&self, kind: usize, counts: [u64; KINDS], stack: &SoftwareStack, exchanges: &Exchanges) -> [Seconds; 2] {
        let exchange = &exchanges.devices[kind];
        let ends = counts[0] + counts[2] > 0;
        let tied = if ends { exchanges.tied } else { Seconds::ZERO };
        [exposed_exchange(stack, exchange, self.windows(counts)) + tied, exchange.update]
    }

    /// The forward and the backward passes of one micro-batch on a device of so many chunks of each kind.
    fn windows(&self, counts: [u64; KINDS]) -> [Window; 2] {
        let mut windows = [Window::default(); 2];
        for (chunk, count) in self.chunks.iter().zip(counts).filter(|(_, count)| *count > 0) {
            let forward = Window { time: chunk.forward, ports: chunk.piece.forward.ports };
            let backward = Window { time: chunk.recompute + chunk.backward, ..backward_window(&chunk.piece) };
            for (window, one) in windows.iter_mut().zip([forward, backward]) {
                *window = Window { time: window.time + one.time * count as f64, ports: window.ports + one.ports * count as f64 };
            }
        }
        windows
    }

    /// The chunk at a place of the pipeline.
    pub fn chunk(&self, place: u64) -> &Chunk {
        match place {
            0 => &self.chunks[0],
            _ if place + 1 == self.arrangement.split.chunks => &self.chunks[2],
            _ => &self.chunks[1],
        }
    }

    /// What nothing hides of the ways between neighbouring chunks.
    pub fn sends(&self, fabric: &Fabric) -> Vec<Seconds> {
        let Arrangement { layout, split, .. } = &self.arrangement;
        let at = |place: u64| self.arrangement.device_of(place);
        (1..split.chunks).map(|place| self.sends.between(fabric, layout, at(place - 1), at(place))).collect()
    }

    /// All passes of a plan without a pipeline.
    pub fn alone(&self) -> Seconds {
        self.chunks[0].busy() * self.arrangement.micro_batches as f64
    }

    /// All passes in closed form, exact or a bound, under any arrangement that makes the same chunks.
    pub fn closed(&self, arrangement: &Arrangement) -> PassesTime {
        if arrangement.split.chunks == 1 {
            return PassesTime::Exact(self.chunks[0].busy() * arrangement.micro_batches as f64);
        }
        let [first, inner, last] = self.chunks.each_ref().map(Chunk::work);
        let pipeline = EndedPipeline {
            first,
            inner,
            last,
            send: self.sends.least(),
            farther: self.sends.farther(),
            devices: arrangement.layout.pipeline,
            micro_batches: u32::try_from(arrangement.micro_batches).unwrap_or(u32::MAX),
        };
        pipeline.time(arrangement.schedule)
    }

    /// The step's parts, of the device that is busy longest.
    pub fn account(&self, passes: Seconds, once: &Once) -> StepTime {
        let m = self.arrangement.micro_batches as f64;
        let (mut slowest, mut most) = ([0; KINDS], Seconds(-1.0));
        for (_, counts) in self.arrangement.devices() {
            let busy = self.sum(counts, Chunk::busy);
            if busy > most {
                (slowest, most) = (counts, busy);
            }
        }
        let gathered = self.sum(slowest, |c| c.data);
        let sum = |part: &dyn Fn(&Chunk) -> Seconds| self.sum(slowest, part) * m;
        let passes_of = |part: fn(&PassProfile) -> Seconds| {
            sum(&|c| part(&c.piece.forward) + part(&c.piece.recompute) + part(&c.piece.backward))
        };
        let mut step = StepTime {
            total: passes + once.total(),
            forward: sum(&|c| c.piece.forward.device),
            backward: sum(&|c| c.piece.backward.device),
            recompute: sum(&|c| c.piece.recompute.device),
            host_bound: sum(&|c| c.host),
            tensor: passes_of(|p| p.tensor),
            context: passes_of(|p| p.context),
            expert: passes_of(|p| p.expert),
            data: once.data + gathered * m,
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

    fn sum(&self, counts: [u64; KINDS], part: impl Fn(&Chunk) -> Seconds) -> Seconds {
        self.chunks.iter().zip(counts).map(|(chunk, count)| part(chunk) * count as f64).sum()
    }
}
